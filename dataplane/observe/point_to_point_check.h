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
#include "dataplane/failed_call.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/bootstrap_store.h"

namespace muster::dataplane {

struct PointToPointCheckOptions {
  std::string group_name = {};
  int rank = 0;
  // The store in which ranks publish their operations. Only this group uses its
  // keys.
  std::shared_ptr<BootstrapStore> store = {};
  // An operation that still waits after this time, or a quarter of its timeout
  // if that is less, is published.
  std::chrono::milliseconds patience = std::chrono::seconds(1);
};

// PointToPointCheck ends the group when a send or receive has timed out. The
// error lists the sends and receives in which the peer waits at that time, and
// says so if none of them matches. Nothing fails earlier than without the
// check, since a peer that waits for something else may still reach the
// matching call.
//
// An operation that completes soon is not published; one that waits is
// published once. All ranks of the group must have the check. It has one
// thread, which publishes and reads.
class PointToPointCheck : public BackendDecorator {
 public:
  PointToPointCheck(std::unique_ptr<Backend> inner,
                    PointToPointCheckOptions options);
  ~PointToPointCheck() override;

  std::shared_ptr<Work> Start(const Collective& collective) override;

 private:
  // A running send or receive.
  struct Operation {
    CollectiveKind kind = CollectiveKind::kSend;
    int peer = 0;
    int tag = 0;
    FailedCall call;
    std::string description;
    std::chrono::milliseconds timeout{0};
    Instant deadline;
    // The time at which it is published.
    Instant due;
  };

  void Serve();
  // The time at which Serve must next publish or fail an operation.
  Instant NextLook() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsTold(uint64_t number) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Publishes the operations in which this rank waits.
  void Tell();
  // The number of an operation whose deadline has passed.
  std::optional<uint64_t> FindLate();
  void Fail(uint64_t number);
  // "; rank 1 waits in recv #1 ..."; empty if nothing is known.
  std::string PeerText(const Operation& operation);

  static std::string Serialize(const std::vector<Operation>& operations);
  static std::vector<Operation> Parse(absl::string_view text);

  const PointToPointCheckOptions options_;

  Mutex mutex_;
  CondVar changed_;
  uint64_t last_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Operation> operations_ MUSTER_GUARDED_BY(mutex_);
  // The numbers of the published operations.
  std::vector<uint64_t> told_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_POINT_TO_POINT_CHECK_H_
