// The engine for any machine; setup.py builds it under this name
#include "engine.h"
