#include "coordinator/core/store_engine.h"
