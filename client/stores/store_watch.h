#ifndef MUSTER_CLIENT_STORES_STORE_WATCH_H_
#define MUSTER_CLIENT_STORES_STORE_WATCH_H_

#include <memory>

#include "absl/strings/string_view.h"
#include "client/control/deadline.h"
#include "client/session.h"
#include "client/store.h"

namespace muster::internal {

// A watch over the session's stream: it asks for the changes after those that
// it has, and asks again with the revision of the answer. A broken connection
// repeats the question on the next one, so nothing is missed.
//
// Throws DistStoreError, DistNetworkError (no answer before `deadline` where
// options.after_revision leaves it to the coordinator to say where to begin).
std::unique_ptr<StoreWatch> NewStoreWatch(std::shared_ptr<Session> session,
                                          absl::string_view key,
                                          const WatchOptions& options,
                                          const Deadline& deadline);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_STORES_STORE_WATCH_H_
