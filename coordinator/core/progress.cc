#include "coordinator/core/progress.h"
