// The check of debug level DETAIL for sends and receives.

#ifndef MUSTER_DATAPLANE_OBSERVE_POINT_TO_POINT_CHECK_H_
#define MUSTER_DATAPLANE_OBSERVE_POINT_TO_POINT_CHECK_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/backend.h"
#include "dataplane/bootstrap_store.h"
#include "dataplane/failed_call.h"

namespace muster::dataplane {

struct PointToPointCheckOptions {
  std::string group_name = {};
  int rank = 0;
  // Where the ranks tell each other; keys of this group alone.
  std::shared_ptr<BootstrapStore> store = {};
  // After so long, or a quarter of its timeout, an operation is told of.
  std::chrono::milliseconds patience = std::chrono::seconds(1);
};

// PointToPointCheck ends the group when a send or receive has timed out. The
// error lists the sends and receives in which its peer waits at that time, and
// says so if none of them matches. It makes nothing fail earlier: a peer that
// waits for something else may still reach the matching call.
//
// So an operation that completes soon is not reported. One that waits is
// published once in the store. All ranks of the group must have the check. A
// thread of its own publishes and asks.
class PointToPointCheck : public BackendDecorator {
 public:
  PointToPointCheck(std::unique_ptr<Backend> inner,
                    PointToPointCheckOptions options);
  ~PointToPointCheck() override;

  std::shared_ptr<Work> Start(const Collective& collective) override;

 private:
  // A send or receive that is under way.
  struct Operation {
    CollectiveKind kind = CollectiveKind::kSend;
    int peer = 0;
    int tag = 0;
    FailedCall call;
    std::string description;
    std::chrono::milliseconds timeout{0};
    Instant deadline;
    // When the others are told.
    Instant due;
  };

  void Serve();
  // When there is something to do: to tell of an operation, or to fail one.
  Instant NextLook() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsTold(uint64_t number) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the others in what this rank waits.
  void Tell();
  // The number of one whose time is over.
  std::optional<uint64_t> FindLate();
  void Fail(uint64_t number);
  // "; rank 1 waits in recv #1 ..."; empty: nothing is known.
  std::string PeerText(const Operation& operation);

  static std::string Serialize(const std::vector<Operation>& operations);
  static std::vector<Operation> Parse(absl::string_view text);

  const PointToPointCheckOptions options_;

  Mutex mutex_;
  CondVar changed_;
  uint64_t last_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Operation> operations_ MUSTER_GUARDED_BY(mutex_);
  // The numbers of those that the others know of.
  std::vector<uint64_t> told_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_POINT_TO_POINT_CHECK_H_
