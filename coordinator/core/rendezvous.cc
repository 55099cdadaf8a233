#include "coordinator/core/rendezvous.h"
