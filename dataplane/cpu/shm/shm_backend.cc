#include "dataplane/cpu/shm/shm_backend.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/process_limits.h"
#include "base/text.h"
#include "dataplane/cpu/collectives/selection.h"
#include "dataplane/cpu/engine/cpu_backend.h"
#include "dataplane/cpu/engine/engine.h"
#include "dataplane/cpu/engine/multi_interface_backend.h"
#include "dataplane/cpu/shm/available_memory.h"
#include "dataplane/cpu/shm/calibration.h"
#include "dataplane/cpu/shm/group_agreement.h"
#include "dataplane/cpu/shm/hierarchical.h"
#include "dataplane/cpu/shm/processor_share.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/segment.h"
#include "dataplane/cpu/shm/shm_collectives.h"
#include "dataplane/cpu/shm/topology.h"
#include "dataplane/cpu/transport/shm_mailbox.h"
#include "dataplane/culprit.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::dataplane {
namespace {

using cpu::Algorithm;
using cpu::Engine;
using cpu::Medium;
using cpu::ShmMailbox;
using shm::Calibration;
using shm::FindProcessorShare;
using shm::GroupAgreement;
using shm::Hierarchical;
using shm::HostIdentity;
using shm::IsCrowded;
using shm::MemoryLeft;
using shm::ProcessorShare;
using shm::Region;
using shm::Regions;
using shm::RoundBuffer;
using shm::RoundBufferTraits;
using shm::Segment;
using shm::SegmentFile;
using shm::ShmCollectives;
using shm::ShmTraits;
using shm::Topology;

// "0" on any rank: the group shares no memory.
constexpr char kVariable[] = "MUSTER_SHM";

// "address": ranks with different addresses count as different hosts, for tests
// and measurements on one machine. Set it on all ranks.
constexpr char kHostsVariable[] = "MUSTER_SHM_HOSTS";
constexpr absl::string_view kByAddress = "address";

absl::string_view GetVariable(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// The properties that a rank tells to all others of its group.
struct Self {
  HostIdentity identity = {};
  ProcessorShare processors = {};
  // It reads the memory of all others, so they are on its host.
  bool is_near_all = false;
  // It shares no memory, and will tell the reason.
  bool refuses = false;
  Algorithm algorithm = Algorithm::kFastest;
  Calibration calibration = {};
};

// IsCrowded() for these ranks of one host.
bool AreCrowded(const std::vector<int>& ranks, const std::vector<Self>& all) {
  std::vector<ProcessorShare> shares;
  for (const int rank : ranks) shares.push_back(all[rank].processors);
  return IsCrowded(shares);
}

Status CheckEnvironment() {
  const absl::string_view value = GetVariable(kVariable);
  if (!value.empty() && value != "0" && value != "1") {
    return InvalidArgumentError(absl::StrCat("environment variable ", kVariable,
                                             " must be 0 or 1 but was ",
                                             base::Quote(value)));
  }
  const absl::string_view hosts = GetVariable(kHostsVariable);
  if (!hosts.empty() && hosts != kByAddress) {
    return InvalidArgumentError(
        absl::StrCat("environment variable ", kHostsVariable, " must be ",
                     kByAddress, " but was ", base::Quote(hosts)));
  }
  return cpu::FindForcedAlgorithm(Medium::kSharedMemory).status();
}

Algorithm ForcedAlgorithm() {
  return cpu::FindForcedAlgorithm(Medium::kSharedMemory)
      .value_or(Algorithm::kFastest);
}

std::string AlgorithmText(Algorithm algorithm) {
  if (algorithm == Algorithm::kFastest) return "not set";
  return absl::StrCat("\"", cpu::AlgorithmName(algorithm), "\"");
}

// A rank's slice of a region.
class Slice : public SymmetricMemory {
 public:
  Slice(const std::shared_ptr<Regions>& regions, std::shared_ptr<Region> region,
        int rank)
      : regions_(regions), region_(std::move(region)), rank_(rank) {}
  ~Slice() override {
    // In a forked child the slice belongs to the parent. The child cannot take
    // locks either: a thread that it does not have may have held them.
    if (!region_->is_own()) return;
    if (const auto regions = regions_.lock()) {
      regions->Release(*region_);
    } else {
      region_->Release();
    }
  }
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;

  void* data() const override { return region_->slice(rank_); }
  Device device() const override { return {}; }

 private:
  // The group's regions. The group may be gone.
  const std::weak_ptr<Regions> regions_;
  const std::shared_ptr<Region> region_;
  const int rank_;
};

// Ordinary memory, for a group whose ranks share none.
class OrdinaryMemory : public SymmetricMemory {
 public:
  explicit OrdinaryMemory(size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {}
  ~OrdinaryMemory() override { ::operator delete(memory_, kAlignment); }
  OrdinaryMemory(const OrdinaryMemory&) = delete;
  OrdinaryMemory& operator=(const OrdinaryMemory&) = delete;

  // Errors: kResourceExhausted.
  static StatusOr<std::shared_ptr<SymmetricMemory>> Allocate(size_t bytes) {
    const MemoryLeft left = shm::FindMemoryLeft();
    try {
      if (bytes <= left.bytes) return std::make_shared<OrdinaryMemory>(bytes);
    } catch (const std::bad_alloc&) {
      // The process has no address space of that size.
    }
    return ResourceExhaustedError(absl::StrCat("memory of ", bytes,
                                               " bytes: ", left.Describe(),
                                               AddressSpaceLimitText()));
  }

  void* data() const override { return memory_; }
  Device device() const override { return {}; }

 private:
  static constexpr std::align_val_t kAlignment{256};
  std::byte* const memory_;
};

// The memory that the ranks of each host share.
struct Sharing {
  // Their symmetric memory. Null if they share nothing, for the reason why_not.
  std::shared_ptr<Regions> regions = nullptr;
  std::string why_not = {};
  // Whether sharing nothing is expected here.
  bool is_expected = false;

  std::optional<Topology> hosts = std::nullopt;
};

class ShmBackend : public BackendDecorator {
 public:
  // `name`: "shm", or "gloo" if no ranks share memory.
  ShmBackend(absl::string_view name, std::string group_name,
             std::shared_ptr<Engine> engine, Sharing sharing)
      : BackendDecorator(cpu::MakeBackend(name, engine)),
        group_name_(std::move(group_name)),
        engine_(std::move(engine)),
        sharing_(std::move(sharing)) {}

  Status Supports(const Collective& collective) const override {
    if (sharing_.regions != nullptr && sharing_.regions->any_released()) {
      Status freed = CheckFreed(collective);
      if (!freed.ok()) return freed;
    }
    return BackendDecorator::Supports(collective);
  }

  // As the gloo backend's functions, without the call in between.
  std::unique_ptr<Prepared> Prepare(const Collective& collective) override {
    return engine_->Prepare(collective);
  }
  Ticket Enter(const Collective& collective) override {
    return engine_->Enter(collective);
  }
  Completion Run(const Collective& collective, Prepared* prepared,
                 const Ticket& ticket) override {
    return engine_->Run(collective, prepared, ticket);
  }

  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override {
    if (options.device != DeviceType::kCpu) {
      return UnimplementedError(
          absl::StrCat("the shm backend has symmetric memory of the CPU, not ",
                       DeviceTypeName(options.device)));
    }
    GroupAgreement agreement(*engine_, Step::kAllocateSymmetric,
                             options.deadline);
    auto piece = Take(agreement, options.bytes);
    if (!piece.ok()) {
      // kResourceExhausted is reserved for refusals that all ranks have agreed
      // on.
      return IsResourceExhausted(piece.status())
                 ? InternalError(piece.status().message())
                 : piece.status();
    }
    if (piece->memory == nullptr) return Lacking(piece->refusal, options.bytes);
    return std::move(piece->memory);
  }

 private:
  // Null if `refusal` names a rank that has no memory.
  struct Piece {
    std::shared_ptr<SymmetricMemory> memory = nullptr;
    GroupAgreement::Refusal refusal = {};
  };

  Status CheckFreed(const Collective& collective) const {
    for (const Collective::Tensors* const tensors :
         {&collective.tensors, &collective.inputs, &collective.outputs}) {
      for (const Tensor& tensor : *tensors) {
        if (!sharing_.regions->WasIn(tensor.data(), tensor.bytes())) continue;
        return InvalidArgumentError(
            absl::StrCat(tensor.Describe(),
                         " is in symmetric memory that this rank has freed"));
      }
    }
    return OkStatus();
  }

  // Allocates in agreement with all ranks. Errors: see GroupAgreement;
  // kInvalidArgument if sizes differ.
  StatusOr<Piece> Take(GroupAgreement& agreement, size_t bytes) {
    const auto all = agreement.AllGather(uint64_t{bytes});
    if (!all.ok()) return all.status();
    for (int rank = 0; rank < agreement.world_size(); ++rank) {
      if ((*all)[rank] == bytes) continue;
      Status status = InvalidArgumentError(absl::StrCat(
          "rank ", rank, " allocates ", (*all)[rank],
          " bytes of symmetric memory, rank ", agreement.rank(), " ", bytes));
      SetCulpritRank(status, rank);
      return agreement.End(status);
    }
    return sharing_.regions == nullptr ? TakeOrdinary(agreement, bytes)
                                       : TakeShared(agreement, bytes);
  }

  static StatusOr<Piece> TakeOrdinary(GroupAgreement& agreement, size_t bytes) {
    auto memory = OrdinaryMemory::Allocate(bytes);
    auto refusal = agreement.FindRefusal(memory.status());
    if (!refusal.ok()) return refusal.status();
    if (refusal->has_value()) return Piece{nullptr, **std::move(refusal)};
    return Piece{*std::move(memory), {}};
  }

  StatusOr<Piece> TakeShared(GroupAgreement& agreement, size_t bytes) {
    sharing_.regions->Forget();
    const auto ranks = static_cast<int>(sharing_.hosts->neighbours().size());
    auto shared =
        agreement.Share(Region::BytesFor(bytes, ranks),
                        sharing_.hosts->neighbours().front(), regions_file_);
    if (!shared.ok()) return shared.status();
    if (shared->segment == nullptr) return Piece{nullptr, shared->refusal};
    regions_file_ = shared->segment->file();
    const int place = sharing_.hosts->place();
    auto region = std::make_shared<Region>(std::move(shared->segment), bytes,
                                           place, ranks);
    sharing_.regions->Add(region);
    return Piece{
        std::make_shared<Slice>(sharing_.regions, std::move(region), place),
        {}};
  }

  // The error is the same on all ranks.
  Status Lacking(const GroupAgreement::Refusal& refusal, size_t bytes) const {
    std::string text =
        absl::StrCat(StepName(Step::kAllocateSymmetric), " on group ",
                     base::Quote(group_name_), ": ", refusal.Describe());
    if (sharing_.hosts.has_value()) {
      const int host = sharing_.hosts->host_of(refusal.rank);
      absl::StrAppend(&text, "; each of ", sharing_.hosts->ranks(host).size(),
                      " ranks of its host asks for ", bytes);
    }
    Status status = ResourceExhaustedError(text);
    SetCulpritRank(status, refusal.rank);
    return status;
  }

  const std::string group_name_;
  const std::shared_ptr<Engine> engine_;
  const Sharing sharing_;
  // The file of all symmetric memory; null before the first.
  std::shared_ptr<SegmentFile> regions_file_;
};

// kInvalidArgument if ranks have different algorithms set.
Status CheckAlgorithms(const std::vector<Self>& all, int rank) {
  const Algorithm algorithm = all[rank].algorithm;
  for (size_t peer = 0; peer < all.size(); ++peer) {
    if (all[peer].algorithm == algorithm) continue;
    // The algorithms' rounds are incompatible.
    return InvalidArgumentError(absl::StrCat(
        "environment variable ", cpu::AlgorithmVariable(Medium::kSharedMemory),
        " must be the same on all ranks: on rank ", peer, " it is ",
        AlgorithmText(all[peer].algorithm), ", on rank ", rank, " ",
        AlgorithmText(algorithm)));
  }
  return OkStatus();
}

// The reason why this rank cannot share memory, or OK.
Status FindObjection(const StatusOr<HostIdentity>& identity) {
  if (GetVariable(kVariable) == "0") {
    return FailedPreconditionError(absl::StrCat(kVariable, "=0"));
  }
  return identity.status();
}

// The reason why these ranks share no memory; empty if they may.
StatusOr<std::string> FindReason(GroupAgreement& agreement,
                                 const Topology& hosts,
                                 const std::vector<Self>& all,
                                 const Status& objection) {
  if (std::ranges::none_of(all, &Self::refuses)) {
    std::vector<HostIdentity> identities;
    identities.reserve(all.size());
    for (const Self& self : all) identities.push_back(self.identity);
    return shm::DescribeStrangers(hosts, identities);
  }
  const auto refusal = agreement.FindRefusal(objection);
  if (!refusal.ok()) return refusal.status();
  return refusal->value_or(GroupAgreement::Refusal()).Describe();
}

// Makes the mailbox in `segment`, from `offset` on. Null if there is no memory
// for it; sends and receives then use connections.
std::shared_ptr<ShmMailbox> MakeMail(const std::string& group_name,
                                     const std::shared_ptr<Segment>& segment,
                                     size_t offset,
                                     const std::vector<int>& ranks, int place) {
  auto mailbox = std::make_shared<ShmMailbox>(
      std::shared_ptr<void>(
          segment, static_cast<std::byte*>(segment->memory()) + offset),
      ranks, place);
  const Status reserved = mailbox->Reserve([&](size_t begin, size_t bytes) {
    return segment->Reserve(offset + begin, bytes);
  });
  if (reserved.ok()) return mailbox;
  LOG_FIRST_N(WARNING, 1) << "backend shm: sends and receives of group "
                          << base::Quote(group_name)
                          << " take connections, and are slower: "
                          << reserved.message();
  return nullptr;
}

// Makes `engine` make that mailbox when a send or receive first needs it.
void SetMail(const std::string& group_name,
             const std::shared_ptr<Segment>& segment, size_t offset,
             const Topology& hosts, Engine& engine, const ShmTraits& traits) {
  engine.SetMail(
      [group_name, segment, offset, ranks = hosts.neighbours(),
       place = hosts.place()] {
        return MakeMail(group_name, segment, offset, ranks, place);
      },
      traits.round_buffer.is_crowded);
}

// Makes `engine` run its collectives in `segment` from now on.
void SetShortcut(const std::string& group_name,
                 std::shared_ptr<Segment> segment, const Sharing& sharing,
                 Engine& engine, const ShmTraits& traits) {
  const Topology& hosts = *sharing.hosts;
  if (hosts.count() == 1) {
    engine.SetShortcut(std::make_unique<ShmCollectives>(
        std::move(segment), sharing.regions, engine.transport(), traits));
    return;
  }
  LOG_FIRST_N(INFO, 1) << "backend shm: group " << base::Quote(group_name)
                       << " goes in two levels: " << hosts.world_size()
                       << " ranks on " << hosts.count() << " hosts, "
                       << hosts.fewest() << " to " << hosts.most()
                       << " on each";
  engine.SetShortcut(std::make_unique<Hierarchical>(
      std::move(segment), sharing.regions, hosts, engine.transport(), traits,
      [&engine](const Collective& collective, const Status& failure) {
        engine.Fail(collective, failure);
      }));
}

// The memory that the ranks of this host share for their rings and mailbox.
struct HostMemory {
  // Without a segment the ranks of some host share none.
  GroupAgreement::Shared shared;
  // The size of each ring, and that of the round buffer before the mailbox.
  size_t ring_bytes = 0;
  size_t round_buffer_bytes = 0;
};

// With little memory, rings are halved. All hosts try equally often: as often
// as the largest rings need, those of the host with the fewest ranks.
// `reserved_bytes`: how much is reserved at once. Errors: see GroupAgreement.
StatusOr<HostMemory> ShareHostMemory(GroupAgreement& agreement,
                                     const Topology& hosts,
                                     const std::string& group_name,
                                     size_t reserved_bytes) {
  const auto neighbours = static_cast<int>(hosts.neighbours().size());
  std::string why_smaller;
  HostMemory memory;
  for (int smaller = 0;; ++smaller) {
    memory.ring_bytes =
        std::max(RoundBuffer::RingBytesFor(neighbours) >> smaller,
                 RoundBufferTraits::kRingBytesMin);
    memory.round_buffer_bytes =
        RoundBuffer::BytesFor(neighbours, memory.ring_bytes);
    auto shared = agreement.Share(
        memory.round_buffer_bytes + ShmMailbox::BytesFor(neighbours),
        hosts.neighbours().front(), /*file=*/nullptr, reserved_bytes);
    if (!shared.ok()) return shared.status();
    memory.shared = *std::move(shared);
    if (memory.shared.segment != nullptr ||
        RoundBuffer::RingBytesFor(static_cast<int>(hosts.fewest())) >>
            smaller <= RoundBufferTraits::kRingBytesMin) {
      break;
    }
    why_smaller = memory.shared.refusal.Describe();
  }
  if (memory.shared.segment != nullptr && !why_smaller.empty()) {
    LOG_FIRST_N(WARNING, 1)
        << "backend shm: the ranks of group " << base::Quote(group_name)
        << " have rings of " << memory.ring_bytes << " bytes, not of "
        << RoundBuffer::RingBytesFor(neighbours)
        << ", and are slower: " << why_smaller;
  }
  return memory;
}

// Whether the first rank of some host has not calibrated yet. The same on all
// ranks.
bool NeedsCalibration(const Topology& hosts, const std::vector<Self>& all) {
  for (int host = 0; host < hosts.count(); ++host) {
    const std::vector<int>& ranks = hosts.ranks(host);
    if (ranks.size() > 1 && !all[ranks.front()].calibration.is_known) {
      return true;
    }
  }
  return false;
}

// The answer of the first rank of this rank's host: `known`, or that of a
// calibration in `memory`. All ranks of the group call it.
StatusOr<Calibration> FindCalibration(GroupAgreement& agreement,
                                      const Topology& hosts,
                                      const cpu::Transport& transport,
                                      Calibration known, void* memory) {
  const std::vector<int>& neighbours = hosts.neighbours();
  if (!known.is_known && hosts.place() < 2 && neighbours.size() > 1) {
    known = shm::Calibrate(memory, hosts.place(),
                           transport.FindMemory(neighbours[1 - hosts.place()]));
  }
  const auto all = agreement.AllGather(known);
  if (!all.ok()) return all.status();
  return (*all)[neighbours.front()];
}

void WarnOfForcedReads(const ShmTraits& traits, const std::string& group_name) {
  if (traits.algorithm != Algorithm::kSingleCopy) return;
  LOG_FIRST_N(WARNING, 1) << "backend shm: environment variable "
                          << cpu::AlgorithmVariable(Medium::kSharedMemory)
                          << "=\"" << cpu::AlgorithmName(Algorithm::kSingleCopy)
                          << "\" has no effect in group "
                          << base::Quote(group_name)
                          << ": its ranks do not all read each other's memory";
}

// Makes the ranks of each host share memory, or none in the group. Errors: see
// GroupAgreement; kInvalidArgument if ranks have different algorithms set.
StatusOr<Sharing> ShareMemory(const BackendOptions& options, Engine& engine) {
  GroupAgreement agreement(engine, Step::kFormGroup, options.deadline);
  const auto identity = shm::IdentifyHost(
      GetVariable(kHostsVariable) == kByAddress ? options.local_address : "");
  const Status objection = FindObjection(identity);
  const auto all =
      agreement.AllGather(Self{.identity = identity.value_or(HostIdentity()),
                               .processors = FindProcessorShare(),
                               .is_near_all = engine.transport().is_near_all(),
                               .refuses = !objection.ok(),
                               .algorithm = ForcedAlgorithm(),
                               .calibration = shm::KnownCalibration()});
  if (!all.ok()) return all.status();
  std::vector<uint64_t> identities;
  identities.reserve(all->size());
  for (const Self& self : *all) identities.push_back(self.identity.host);
  Topology hosts(identities, options.rank);
  if (hosts.most() == 1 && std::ranges::count(identities, uint64_t{0}) == 0) {
    return Sharing{.why_not = "every rank is on a host of its own",
                   .is_expected = true};
  }
  if (Status bad = CheckAlgorithms(*all, options.rank); !bad.ok()) {
    return agreement.End(bad);
  }
  auto reason = FindReason(agreement, hosts, *all, objection);
  if (!reason.ok()) return reason.status();
  if (!reason->empty()) return Sharing{.why_not = *std::move(reason)};
  const auto neighbours = static_cast<int>(hosts.neighbours().size());
  const size_t slots_bytes = RoundBuffer::SlotsBytesFor(neighbours);
  const bool calibrates = NeedsCalibration(hosts, *all);
  // A calibration writes where the first ring will be.
  const size_t reserved_bytes =
      slots_bytes + (calibrates ? shm::kCalibrationBytes : 0);
  auto memory =
      ShareHostMemory(agreement, hosts, options.group_name, reserved_bytes);
  if (!memory.ok()) return memory.status();
  const std::shared_ptr<Segment> segment = std::move(memory->shared.segment);
  if (segment == nullptr) {
    return Sharing{.why_not = memory->shared.refusal.Describe()};
  }
  segment->CloseDescriptor();
  segment->MapPages(reserved_bytes);
  Calibration calibration = (*all)[hosts.neighbours().front()].calibration;
  if (calibrates) {
    const auto answer = FindCalibration(
        agreement, hosts, engine.transport(), calibration,
        static_cast<std::byte*>(segment->memory()) + slots_bytes);
    if (!answer.ok()) return answer.status();
    calibration = *answer;
  }
  shm::SetKnownCalibration(calibration);
  const ShmTraits traits = {
      .round_buffer = {.is_crowded = AreCrowded(hosts.neighbours(), *all),
                       .ring_bytes = memory->ring_bytes},
      .reads_memory = std::ranges::all_of(*all, &Self::is_near_all),
      .writes_past_caches = calibration.writes_past_caches,
      .reads_are_fast = calibration.reads_are_fast,
      .algorithm = ForcedAlgorithm()};
  if (!traits.reads_memory) WarnOfForcedReads(traits, options.group_name);
  Sharing sharing = {.regions = std::make_shared<Regions>(),
                     .hosts = std::move(hosts)};
  if (ShmMailbox::IsFor(neighbours)) {
    SetMail(options.group_name, segment, memory->round_buffer_bytes,
            *sharing.hosts, engine, traits);
  }
  SetShortcut(options.group_name, segment, sharing, engine, traits);
  return sharing;
}

StatusOr<cpu::SingleInterfaceBackend> CreateOverOneInterface(
    const BackendOptions& options) {
  auto engine = cpu::JoinGroup("shm", options);
  if (!engine.ok()) return engine.status();
  const cpu::InterruptedAbort interrupted(options, **engine);
  StatusOr<Sharing> sharing =
      options.world_size > 1 ? ShareMemory(options, **engine) : Sharing();
  if (!sharing.ok()) return sharing.status();
  if (!sharing->why_not.empty()) {
    const std::string what = absl::StrCat(
        "backend shm: the ranks of group ", base::Quote(options.group_name),
        " share no memory, their collectives take connections: ",
        sharing->why_not);
    // With one rank per host this is expected.
    if (sharing->is_expected) {
      LOG_FIRST_N(INFO, 1) << what;
    } else {
      LOG_FIRST_N(WARNING, 1) << what;
    }
  }
  const bool is_on_one_host =
      options.world_size == 1 ||
      (sharing->hosts.has_value() && sharing->hosts->count() == 1);
  return cpu::SingleInterfaceBackend{
      .backend = std::make_unique<ShmBackend>(
          sharing->regions == nullptr ? "gloo" : "shm", options.group_name,
          *std::move(engine), *std::move(sharing)),
      .is_on_one_host = is_on_one_host};
}

}  // namespace

StatusOr<std::unique_ptr<Backend>> CreateShmBackend(
    const BackendOptions& options) {
  if (Status bad = CheckEnvironment(); !bad.ok()) return bad;
  return cpu::CreateMultiInterfaceBackend(options, CreateOverOneInterface);
}

}  // namespace muster::dataplane
