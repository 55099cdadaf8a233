#include "dataplane/backends/gloo/gloo_errors.h"

#include <string>

namespace muster::dataplane::gloo_internal {

std::string WithoutSourcePosition(absl::string_view text) {
  const size_t end = text.find("] ");
  if (text.empty() || text[0] != '[' || end == absl::string_view::npos) {
    return std::string(text);
  }
  return std::string(text.substr(end + 2));
}

}  // namespace muster::dataplane::gloo_internal
