#ifndef MUSTER_CLIENT_STORES_STORE_WATCH_H_
#define MUSTER_CLIENT_STORES_STORE_WATCH_H_

#include <memory>

#include "absl/strings/string_view.h"
#include "client/control/deadline.h"
#include "muster/session.h"
#include "muster/store.h"

namespace muster::internal {

// Makes a watch over the session's stream. It asks for the changes after the
// revision that it has, and then again with the revision of the answer. After a
// broken connection it repeats the question on the next one, so it misses no
// change.
//
// Throws DistStoreError, and DistNetworkError if there is no answer before
// `deadline` and options.after_revision leaves the start to the coordinator.
std::unique_ptr<StoreWatch> NewStoreWatch(std::shared_ptr<Session> session,
                                          absl::string_view key,
                                          const WatchOptions& options,
                                          const Deadline& deadline);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_STORES_STORE_WATCH_H_
