#include "coordinator/core/outbox.h"
