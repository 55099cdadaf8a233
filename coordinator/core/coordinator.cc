#include "coordinator/core/coordinator.h"
