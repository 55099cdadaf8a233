#include "dataplane/backends/nccl/communicator_maker.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/backends/nccl/config.h"
#include "dataplane/backends/nccl/issue.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::nccl {
namespace {

// How often a communicator that is being made is looked at.
constexpr std::chrono::milliseconds kLook(1);

absl::StatusOr<UniqueId> AgreeOnId(const MakeOptions& options) {
  const Api& nccl = options.platform.nccl;
  const std::string& group = options.group.group_name;
  UniqueId id;
  if (options.rank == 0) {
    absl::Status status =
        ToStatus(nccl, nccl.GetUniqueId(&id), "ncclGetUniqueId");
    if (!status.ok() || options.size == 1) {
      if (status.ok()) return id;
      return status;
    }
    status = options.group.store->SetBy(
        options.key, std::string(id.internal, sizeof(id.internal)),
        options.deadline);
    if (!status.ok()) return status;
    return id;
  }
  const auto values = options.group.store->Get({options.key}, options.deadline);
  if (absl::IsDeadlineExceeded(values.status())) {
    absl::Status late = absl::DeadlineExceededError(absl::StrCat(
        "group \"", group, "\": rank 0 did not come to make the communicator"));
    SetCulpritRank(late, 0);
    return late;
  }
  if (!values.ok()) return values.status();
  if (values->front().size() != sizeof(id.internal)) {
    return absl::DataLossError(
        absl::StrCat("group \"", group, "\": key \"", options.key, "\" holds ",
                     values->front().size(), " bytes, which is no unique id"));
  }
  std::memcpy(id.internal, values->front().data(), sizeof(id.internal));
  return id;
}

// Waits until `comm`, which is being made by `what`, is there; else aborts it.
absl::StatusOr<Comm> AwaitReady(const MakeOptions& options, Comm comm,
                                absl::string_view what) {
  const Api& nccl = options.platform.nccl;
  absl::Status status;
  for (;;) {
    Result state = kInProgress;
    status = ToStatus(nccl, nccl.CommGetAsyncError(comm, &state),
                      "ncclCommGetAsyncError", comm);
    if (status.ok()) status = ToStatus(nccl, state, what, comm);
    if (status.ok() && state != kInProgress) return comm;
    if (status.ok()) status = options.over();
    if (status.ok() && Clock::now() >= options.deadline) {
      status = absl::DeadlineExceededError(
          absl::StrCat("group \"", options.group.group_name, "\": not all of ",
                       options.size, " ranks came to make the communicator"));
    }
    if (!status.ok()) break;
    std::this_thread::sleep_for(kLook);
  }
  nccl.CommAbort(comm);
  return status;
}

}  // namespace

absl::StatusOr<Comm> MakeCommunicator(const MakeOptions& options) {
  if (options.heritage != nullptr) {
    absl::StatusOr<Comm> comm =
        options.heritage->Make({.group = options.group,
                                .device = options.device,
                                .deadline = options.deadline,
                                .over = options.over});
    if (!comm.ok()) return comm;
    if (*comm != nullptr) return AwaitReady(options, *comm, "NCCL");
  }
  const absl::StatusOr<UniqueId> id = AgreeOnId(options);
  if (!id.ok()) return id.status();
  constexpr char kCall[] = "ncclCommInitRankConfig";
  const Api& nccl = options.platform.nccl;
  Config config = ConfigOf(options.group.nccl, options.group.group_name,
                           options.platform.nccl_version);
  Comm comm = nullptr;
  absl::Status status = ToStatus(
      nccl,
      nccl.CommInitRankConfig(&comm, options.size, *id, options.rank, &config),
      kCall);
  if (status.ok()) return AwaitReady(options, comm, kCall);
  if (comm != nullptr) nccl.CommAbort(comm);
  return status;
}

}  // namespace muster::dataplane::nccl
