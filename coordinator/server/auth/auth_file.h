#ifndef MUSTER_COORDINATOR_SERVER_AUTH_AUTH_FILE_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_AUTH_FILE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace muster::coordinator {

// Reads a file of certificates, keys or tokens; `option` names the option in
// the error. The server rereads such files once a second and compares their
// contents: they are small, and modification times are too coarse to show every
// change.
// Errors: INVALID_ARGUMENT `tls_cert "/x.pem": no such file or directory`, or
//   over 16 MiB.
StatusOr<std::string> ReadAuthFile(absl::string_view option,
                                   const std::string& path);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_AUTH_FILE_H_
