#ifndef MUSTER_DATAPLANE_TESTING_DIRECTORY_STORE_H_
#define MUSTER_DATAPLANE_TESTING_DIRECTORY_STORE_H_

#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/dataplane/bootstrap_store.h"

namespace muster::dataplane::testing {

// A BootstrapStore for ranks that are processes of one host: one file per key
// in a directory, polled once per millisecond.
class DirectoryStore : public BootstrapStore {
 public:
  // `directory` must exist.
  explicit DirectoryStore(std::string directory);

  Status Set(const std::string& key, const std::string& value) override;
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         Instant deadline) override;
  StatusOr<int64_t> Add(const std::string& key, int64_t delta) override;

 private:
  std::string MakePath(const std::string& key) const;

  const std::string directory_;
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_DIRECTORY_STORE_H_
