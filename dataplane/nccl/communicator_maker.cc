#include "dataplane/nccl/communicator_maker.h"

#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/culprit.h"
#include "dataplane/nccl/config.h"
#include "dataplane/nccl/issue.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::nccl {
namespace {

// The polling interval while a communicator is being made.
constexpr std::chrono::milliseconds kLook(1);

StatusOr<UniqueId> AgreeOnId(const MakeOptions& options) {
  const Api& nccl = options.platform.nccl;
  const std::string& group = options.group->group_name;
  UniqueId id;
  if (options.rank == 0) {
    Status status = ToStatus(nccl, nccl.GetUniqueId(&id), "ncclGetUniqueId");
    if (!status.ok() || options.size == 1) {
      if (status.ok()) return id;
      return status;
    }
    status = options.group->store->SetBy(
        options.key, std::string(id.internal, sizeof(id.internal)),
        options.deadline);
    if (!status.ok()) return status;
    return id;
  }
  const auto values =
      options.group->store->Get({options.key}, options.deadline);
  if (IsDeadlineExceeded(values.status())) {
    Status late = DeadlineExceededError(
        absl::StrCat("group ", base::Quote(group),
                     ": rank 0 did not come to make the communicator"));
    SetCulpritRank(late, 0);
    return late;
  }
  if (!values.ok()) return values.status();
  if (values->front().size() != sizeof(id.internal)) {
    return DataLossError(absl::StrCat(
        "group ", base::Quote(group), ": key ", base::Quote(options.key),
        " holds ", values->front().size(), " bytes, which is no unique id"));
  }
  std::memcpy(id.internal, values->front().data(), sizeof(id.internal));
  return id;
}

// Polls `is_made` until it returns true or an error, or `over` returns an
// error, or the deadline passes.
Status Await(const MakeOptions& options,
             const std::function<StatusOr<bool>()>& is_made) {
  for (;;) {
    const StatusOr<bool> made = is_made();
    if (!made.ok()) return made.status();
    if (*made) return OkStatus();
    Status over = options.over();
    if (!over.ok()) return over;
    if (Clock::now() >= options.deadline) {
      return DeadlineExceededError(
          absl::StrCat("group ", base::Quote(options.group->group_name),
                       ": not all of ", options.size,
                       " ranks came to make the communicator, or NCCL does not "
                       "connect them (NCCL_DEBUG=INFO says what it tries)"));
    }
    std::this_thread::sleep_for(kLook);
  }
}

// Waits until `comm`, which `what` is making, is ready. Aborts it on failure.
StatusOr<Comm> AwaitReady(const MakeOptions& options, Comm comm,
                          absl::string_view what) {
  const Api& nccl = options.platform.nccl;
  Status status = Await(options, [&]() -> StatusOr<bool> {
    Result state = kInProgress;
    Status said = ToStatus(nccl, nccl.CommGetAsyncError(comm, &state),
                           "ncclCommGetAsyncError", comm);
    if (said.ok()) said = ToStatus(nccl, state, what, comm);
    if (!said.ok()) return said;
    return state != kInProgress;
  });
  if (status.ok()) return comm;
  nccl.CommAbort(comm);
  return status;
}

constexpr char kInit[] = "ncclCommInitRankConfig";

StatusOr<Comm> Init(const Platform& platform, const BackendOptions& group,
                    int size, const UniqueId& id, int rank) {
  const Api& nccl = platform.nccl;
  Config config = MakeConfig(GetNcclOptions(group), group.group_name,
                             platform.nccl_version);
  Comm comm = nullptr;
  Status status = ToStatus(
      nccl, nccl.CommInitRankConfig(&comm, size, id, rank, &config), kInit);
  if (status.ok()) return comm;
  if (comm != nullptr) nccl.CommAbort(comm);
  return status;
}

// Init on the thread of options.caller, which may never return.
StatusOr<Comm> InitByCaller(const MakeOptions& options, const UniqueId& id) {
  struct Made {
    Mutex mutex;
    bool is_left MUSTER_GUARDED_BY(mutex) = false;
    Comm comm MUSTER_GUARDED_BY(mutex) = nullptr;
  };
  const auto made = std::make_shared<Made>();
  options.caller->Begin([made, id, platform = options.platform,
                         group = options.group, size = options.size,
                         rank = options.rank] {
    const StatusOr<Comm> comm = Init(platform, *group, size, id, rank);
    if (!comm.ok()) return comm.status();
    bool is_left = false;
    {
      MutexLock lock(made->mutex);
      is_left = made->is_left;
      if (!is_left) made->comm = *comm;
    }
    if (is_left) platform.nccl.CommAbort(*comm);
    return OkStatus();
  });
  Status status = Await(options, [&]() -> StatusOr<bool> {
    const std::optional<Status> ended = options.caller->End();
    if (ended.has_value() && !ended->ok()) return *ended;
    return ended.has_value();
  });
  Comm late = nullptr;
  {
    MutexLock lock(made->mutex);
    if (status.ok()) return made->comm;
    made->is_left = true;
    late = made->comm;
  }
  if (late != nullptr) options.platform.nccl.CommAbort(late);
  return status;
}

}  // namespace

StatusOr<Comm> MakeCommunicator(const MakeOptions& options) {
  if (options.parent != nullptr) {
    StatusOr<Comm> comm = options.parent->Make({.group = *options.group,
                                                .device = options.device,
                                                .deadline = options.deadline,
                                                .over = options.over});
    if (!comm.ok()) return comm;
    if (*comm != nullptr) return AwaitReady(options, *comm, "NCCL");
  }
  const StatusOr<UniqueId> id = AgreeOnId(options);
  if (!id.ok()) return id.status();
  if (options.caller != nullptr) return InitByCaller(options, *id);
  StatusOr<Comm> comm =
      Init(options.platform, *options.group, options.size, *id, options.rank);
  if (!comm.ok()) return comm;
  return AwaitReady(options, *comm, kInit);
}

}  // namespace muster::dataplane::nccl
