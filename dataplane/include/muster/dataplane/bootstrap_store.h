#ifndef MUSTER_DATAPLANE_BOOTSTRAP_STORE_H_
#define MUSTER_DATAPLANE_BOOTSTRAP_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/export.h"
#include "muster/base/status.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// The key-value store through which the ranks of a new group exchange addresses
// before they are connected. It is the only store interface of the data plane.
// The owner gives each group its own key prefix, a fresh one each time the
// group is created. Implementations are thread-safe.
class BootstrapStore {
 public:
  virtual ~BootstrapStore() = default;

  // Sets `key` to `value`, which may hold any bytes.
  virtual Status Set(const std::string& key, const std::string& value) = 0;

  // As Set, but fails with kDeadlineExceeded at `deadline`. May be called
  // again.
  virtual Status SetBy(const std::string& key, const std::string& value,
                       Instant deadline) {
    return Set(key, value);
  }

  // Waits until all of `keys` are set and returns their values in that order.
  // Sends one request to the store, however many the keys.
  // Errors: kDeadlineExceeded (names missing keys) when `deadline` passes
  // first.
  virtual StatusOr<std::vector<std::string>> Get(
      const std::vector<std::string>& keys, Instant deadline) = 0;

  // Adds `delta` to the decimal number at `key` (0 if unset) and returns the
  // sum.
  virtual StatusOr<int64_t> Add(const std::string& key, int64_t delta) = 0;

  // Tells the store that `key`, which this process has set, will not be read
  // any more. A store may delete it; it stops trying at `deadline`.
  virtual void Forget(const std::string& key, Instant deadline) {}
};

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_BOOTSTRAP_STORE_H_
