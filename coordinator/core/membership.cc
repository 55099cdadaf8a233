#include "coordinator/core/membership.h"
