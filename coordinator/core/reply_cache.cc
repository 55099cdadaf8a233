#include "coordinator/core/reply_cache.h"
