#ifndef MUSTER_DATAPLANE_BOOTSTRAP_STORE_H_
#define MUSTER_DATAPLANE_BOOTSTRAP_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster::dataplane {

// Where the ranks of a new group meet before they are connected: all that the
// data plane knows of a key-value store. The owner gives each group a part of
// the keys of its own (a prefix), fresh for each creation of that group.
// Implementations are thread-safe.
class BootstrapStore {
 public:
  virtual ~BootstrapStore() = default;

  // Sets `key` to `value`, any bytes.
  virtual Status Set(const std::string& key, const std::string& value) = 0;

  // As Set, but gives up at `deadline`: kDeadlineExceeded. May be called again.
  virtual Status SetBy(const std::string& key, const std::string& value,
                       Instant deadline) {
    return Set(key, value);
  }

  // Waits until all of `keys` are set, and returns their values in that order.
  // kDeadlineExceeded, naming missing keys, when `deadline` passes first. One
  // request to the store, however many the keys.
  virtual StatusOr<std::vector<std::string>> Get(
      const std::vector<std::string>& keys, Instant deadline) = 0;

  // Adds `delta` to the decimal number at `key` (0 when there is none) and
  // returns the sum.
  virtual StatusOr<int64_t> Add(const std::string& key, int64_t delta) = 0;

  // Nobody reads `key` any more, which this process has set: a store may delete
  // it, and gives up at `deadline`.
  virtual void Forget(const std::string& key, Instant deadline) {}
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_BOOTSTRAP_STORE_H_
