#include "coordinator/core/barrier_table.h"
