#include "dataplane/backends/nccl/communicator_maker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/backends/nccl/issue.h"

namespace muster::dataplane::nccl {
namespace {

// How often a communicator that is being made is looked at.
constexpr std::chrono::milliseconds kLook(1);

absl::StatusOr<UniqueId> AgreeOnId(const MakeOptions& options) {
  UniqueId id;
  if (options.rank == 0) {
    absl::Status status = ToStatus(
        *options.nccl, options.nccl->GetUniqueId(&id), "ncclGetUniqueId");
    if (!status.ok() || options.size == 1) {
      if (status.ok()) return id;
      return status;
    }
    status = options.store->SetBy(options.key,
                                  std::string(id.internal, sizeof(id.internal)),
                                  options.deadline);
    if (!status.ok()) return status;
    return id;
  }
  const auto values = options.store->Get({options.key}, options.deadline);
  if (absl::IsDeadlineExceeded(values.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat("group \"", options.group_name,
                     "\": rank 0 did not come to make the communicator"));
  }
  if (!values.ok()) return values.status();
  if (values->front().size() != sizeof(id.internal)) {
    return absl::DataLossError(absl::StrCat(
        "group \"", options.group_name, "\": key \"", options.key, "\" holds ",
        values->front().size(), " bytes, which is no unique id"));
  }
  std::memcpy(id.internal, values->front().data(), sizeof(id.internal));
  return id;
}

// Its texts are those of `options`.
Config ConfigOf(const MakeOptions& options) {
  const NcclOptions& given = options.config;
  Config config;
  config.version = static_cast<unsigned>(options.version);
  // Else nothing could end it while ranks are missing.
  config.blocking = 0;
  config.comm_name = options.group_name.c_str();
  if (!given.net_name.empty()) config.net_name = given.net_name.c_str();
  const auto set = [](int& field, const std::optional<int>& value) {
    if (value.has_value()) field = *value;
  };
  set(config.cga_cluster_size, given.cga_cluster_size);
  set(config.min_ctas, given.min_ctas);
  set(config.max_ctas, given.max_ctas);
  set(config.split_share, given.split_share);
  set(config.traffic_class, given.traffic_class);
  set(config.collnet_enable, given.collnet_enable);
  set(config.cta_policy, given.cta_policy);
  set(config.shrink_share, given.shrink_share);
  set(config.nvls_ctas, given.nvls_ctas);
  set(config.channels_per_net_peer, given.channels_per_net_peer);
  set(config.nvlink_centric_sched, given.nvlink_centric_sched);
  return config;
}

}  // namespace

absl::StatusOr<Comm> MakeCommunicator(const MakeOptions& options) {
  const Api& nccl = *options.nccl;
  const absl::StatusOr<UniqueId> id = AgreeOnId(options);
  if (!id.ok()) return id.status();
  Config config = ConfigOf(options);
  Comm comm = nullptr;
  absl::Status status = ToStatus(
      nccl,
      nccl.CommInitRankConfig(&comm, options.size, *id, options.rank, &config),
      "ncclCommInitRankConfig");
  Result state = kInProgress;
  while (status.ok() && state == kInProgress) {
    status = ToStatus(nccl, nccl.CommGetAsyncError(comm, &state),
                      "ncclCommGetAsyncError", comm);
    if (status.ok()) {
      status = ToStatus(nccl, state, "ncclCommInitRankConfig", comm);
    }
    if (!status.ok() || state != kInProgress) break;
    status = options.over();
    if (status.ok() && Clock::now() >= options.deadline) {
      status = absl::DeadlineExceededError(
          absl::StrCat("group \"", options.group_name, "\": not all of ",
                       options.size, " ranks came to make the communicator"));
    }
    std::this_thread::sleep_for(kLook);
  }
  if (status.ok()) return comm;
  if (comm != nullptr) nccl.CommAbort(comm);
  return status;
}

}  // namespace muster::dataplane::nccl
