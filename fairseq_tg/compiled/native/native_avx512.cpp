// The engine for machines with AVX-512 and VNNI; setup.py builds it under this name, with flags of its own
#include "engine.h"
