#ifndef MUSTER_COORDINATOR_SERVER_AUTH_AUTH_FILE_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_AUTH_FILE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace muster::coordinator {

// Reads a file of certificates, keys or tokens; `option` names the offending
// option in the error. Such files are read again once a second and compared:
// they are small, and times of change are coarser than changes.
// Errors: INVALID_ARGUMENT `tls_cert "/x.pem": no such file or directory`, or
//   over 16 MiB.
StatusOr<std::string> ReadAuthFile(absl::string_view option,
                                   const std::string& path);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_AUTH_FILE_H_
