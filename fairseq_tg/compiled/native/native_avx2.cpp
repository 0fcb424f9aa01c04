// The engine for machines with AVX2; setup.py builds it under this name, with flags of its own
#include "engine.h"
