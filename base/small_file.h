#ifndef MUSTER_BASE_SMALL_FILE_H_
#define MUSTER_BASE_SMALL_FILE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::base {

// Reads a regular file of certificates, keys, tokens or the like. `option`
// names the option in the error. Does not wait for a pipe's writer.
// Errors: INVALID_ARGUMENT `tls_cert "/x.pem": no such file or directory`, or
//   over `bytes_max`.
StatusOr<std::string> ReadSmallFile(absl::string_view option,
                                    const std::string& path, size_t bytes_max);

}  // namespace muster::base

#endif  // MUSTER_BASE_SMALL_FILE_H_
