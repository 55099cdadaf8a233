#ifndef MUSTER_DATAPLANE_NCCL_RETURN_IF_ERROR_H_
#define MUSTER_DATAPLANE_NCCL_RETURN_IF_ERROR_H_

#include "muster/base/status.h"

// Returns from the calling function with the status of `expression` if that is
// an error.
#define MUSTER_RETURN_IF_ERROR(expression)                    \
  do {                                                        \
    if (muster::Status failed = (expression); !failed.ok()) { \
      return failed;                                          \
    }                                                         \
  } while (false)

#endif  // MUSTER_DATAPLANE_NCCL_RETURN_IF_ERROR_H_
