#include "dataplane/backends/shm/shm_backend.h"

#include <sched.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dataplane/backends/gloo/engine.h"
#include "dataplane/backends/gloo/gloo_backend.h"
#include "dataplane/backends/shm/board.h"
#include "dataplane/backends/shm/host_collectives.h"
#include "dataplane/backends/shm/segment.h"
#include "glog/logging.h"

namespace muster::dataplane {
namespace {

using gloo_internal::Engine;
using shm_internal::Board;
using shm_internal::HostCollectives;
using shm_internal::HostTraits;
using shm_internal::Segment;

// 0: no memory is shared. On any rank, for all of the group.
constexpr char kVariable[] = "MUSTER_SHM";

// How all collectives go, small and large; on all ranks. For tests, and to
// measure.
constexpr char kAlgorithmVariable[] = "MUSTER_SHM_ALGORITHM";
constexpr absl::string_view kStaged = "staged";
constexpr absl::string_view kSingleCopy = "single_copy";

// Beyond, one copy is faster than two.
constexpr size_t kStagedRoundsMax = 16;

absl::string_view ValueOf(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// Processors that this process may use.
int Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Off: kFailedPrecondition.
absl::Status CheckWanted() {
  if (ValueOf(kVariable) != "0") return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(kVariable, "=0"));
}

absl::Status CheckEnvironment() {
  const absl::string_view value = ValueOf(kVariable);
  if (!value.empty() && value != "0" && value != "1") {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", kVariable,
                     " must be 0 or 1 but was \"", value, "\""));
  }
  const absl::string_view algorithm = ValueOf(kAlgorithmVariable);
  if (!algorithm.empty() && algorithm != kStaged && algorithm != kSingleCopy) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment variable ", kAlgorithmVariable, " must be ", kStaged,
        " or ", kSingleCopy, " but was \"", algorithm, "\""));
  }
  return absl::OkStatus();
}

// Whether all ranks read each other's memory is `all_near`.
size_t StagedRoundsMax(bool all_near) {
  const absl::string_view algorithm = ValueOf(kAlgorithmVariable);
  if (!all_near || algorithm == kStaged) return shm_internal::kAnyRounds;
  return algorithm == kSingleCopy ? 0 : kStagedRoundsMax;
}

// How the ranks come to share a segment: rank 0 makes one and says where it is,
// each of the others opens it, and all learn whether everybody has it.
class Sharing {
 public:
  Sharing(const BackendOptions& options, Engine& engine)
      : options_(options), engine_(engine) {}

  // Errors: those of collectives, and kFailedPrecondition: the ranks do not
  // share memory, and why.
  absl::Status Run() {
    const size_t bytes = Board::BytesFor(options_.world_size);
    absl::Status had = CheckWanted();
    std::array<uint64_t, 3> place = {};
    if (options_.rank == 0 && had.ok()) {
      auto segment = Segment::Create(bytes);
      had = segment.status();
      if (segment.ok()) {
        segment_ = *std::move(segment);
        const Segment::Place made = segment_->place();
        place = {made.process, made.descriptor, made.nonce};
      }
    }
    absl::Status status =
        Do({.kind = CollectiveKind::kBroadcast, .tensors = {AsTensor(place)}});
    if (!status.ok()) return status;
    if (options_.rank != 0 && had.ok()) {
      auto segment = Segment::Open(
          {.process = place[0], .descriptor = place[1], .nonce = place[2]},
          bytes);
      had = segment.status();
      if (segment.ok()) segment_ = *std::move(segment);
    }
    status = Agree(had);
    if (!status.ok()) return status;
    if (options_.rank == 0) segment_->CloseDescriptor();
    engine_.SetShortcut(std::make_unique<HostCollectives>(
        std::move(segment_), engine_.mesh(),
        HostTraits{.is_crowded = Processors() < options_.world_size,
                   .staged_rounds_max = StagedRoundsMax(all_near_)}));
    return absl::OkStatus();
  }

 private:
  static Tensor AsTensor(std::array<uint64_t, 3>& place) {
    return Tensor(place.data(), DataType::kUint8, {sizeof(place)});
  }

  absl::Status Do(Collective collective) {
    collective.deadline = options_.deadline;
    collective.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
        options_.deadline - Clock::now());
    collective.caller_waits = true;
    return engine_.Start(collective)->Wait(Instant::max());
  }

  // Whether all ranks have the segment; `had` is whether this one has. And
  // whether all read each other's memory.
  absl::Status Agree(const absl::Status& had) {
    std::array<int32_t, 2> own = {static_cast<int32_t>(had.code()),
                                  engine_.mesh().is_near_all()};
    std::vector<int32_t> all(own.size() * options_.world_size);
    absl::Status status = Do({.kind = CollectiveKind::kAllGatherIntoTensor,
                              .inputs = {Tensor(std::span<int32_t>(own))},
                              .outputs = {Tensor(std::span<int32_t>(all))}});
    if (!status.ok()) return status;
    all_near_ = true;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      all_near_ &= all[2 * rank + 1] != 0;
      const auto code = static_cast<absl::StatusCode>(all[2 * rank]);
      if (code == absl::StatusCode::kOk) continue;
      return absl::FailedPreconditionError(
          rank == options_.rank
              ? std::string(had.message())
              : absl::StrCat("rank ", rank, " does not get at it: ",
                             absl::StatusCodeToString(code)));
    }
    return absl::OkStatus();
  }

  const BackendOptions& options_;
  Engine& engine_;
  std::unique_ptr<Segment> segment_;
  bool all_near_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateShmBackend(
    const BackendOptions& options) {
  if (absl::Status bad = CheckEnvironment(); !bad.ok()) return bad;
  auto engine = gloo_internal::JoinGroup(options);
  if (!engine.ok()) return engine.status();
  auto backend = gloo_internal::BackendOf("shm", *engine);
  if (options.world_size == 1) return backend;
  absl::Status shared = Sharing(options, **engine).Run();
  if (absl::IsFailedPrecondition(shared)) {
    LOG_FIRST_N(WARNING, 1)
        << "backend shm: the ranks of group \"" << options.group_name
        << "\" share no memory, their collectives take connections: "
        << shared.message();
    return backend;
  }
  if (!shared.ok()) return shared;
  return backend;
}

}  // namespace muster::dataplane
