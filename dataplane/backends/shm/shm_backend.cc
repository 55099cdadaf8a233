#include "dataplane/backends/shm/shm_backend.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
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
#include "dataplane/backends/shm/hosts.h"
#include "dataplane/backends/shm/regions.h"
#include "dataplane/backends/shm/segment.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/backends/shm/two_levels.h"
#include "dataplane/culprit.h"
#include "glog/logging.h"

namespace muster::dataplane {
namespace {

using gloo_internal::Engine;
using shm_internal::Algorithm;
using shm_internal::Board;
using shm_internal::BoardTraits;
using shm_internal::HostCollectives;
using shm_internal::Hosts;
using shm_internal::HostTraits;
using shm_internal::Region;
using shm_internal::Regions;
using shm_internal::Segment;
using shm_internal::SegmentFile;
using shm_internal::TwoLevels;

// 0: no memory is shared. On any rank, for all of the group.
constexpr char kVariable[] = "MUSTER_SHM";

// "address": ranks of other addresses are on other hosts, for tests and to
// measure on one machine. On all ranks.
constexpr char kHostsVariable[] = "MUSTER_SHM_HOSTS";
constexpr absl::string_view kByAddress = "address";

// How all collectives go, small and large; on all ranks. For tests, and to
// measure.
constexpr char kAlgorithmVariable[] = "MUSTER_SHM_ALGORITHM";

absl::string_view ValueOf(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// The processors that this process may use, a bit for each; from the 64th on
// they share the bits of those before.
uint64_t ProcessorBits() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  uint64_t bits = 0;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) bits |= uint64_t{1} << processor % 64;
  }
  return bits;
}

// Whether these ranks, of one host, have fewer processors than they are, by
// what all ranks said of theirs.
bool IsCrowded(const std::vector<int>& ranks,
               const std::vector<uint64_t>& processor_bits) {
  uint64_t all = 0;
  for (const int rank : ranks) all |= processor_bits[rank];
  const auto processors =
      ~all == 0 ? sysconf(_SC_NPROCESSORS_ONLN) : std::popcount(all);
  return processors < static_cast<int64_t>(ranks.size());
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
  const absl::string_view hosts = ValueOf(kHostsVariable);
  if (!hosts.empty() && hosts != kByAddress) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", kHostsVariable, " must be ",
                     kByAddress, " but was \"", hosts, "\""));
  }
  const absl::string_view algorithm = ValueOf(kAlgorithmVariable);
  if (algorithm.empty()) return absl::OkStatus();
  const absl::Status found = shm_internal::FindAlgorithm(algorithm).status();
  return found.ok() ? found
                    : absl::InvalidArgumentError(absl::StrCat(
                          "environment variable ", kAlgorithmVariable, ": ",
                          found.message()));
}

Algorithm ForcedAlgorithm() {
  return shm_internal::FindAlgorithm(ValueOf(kAlgorithmVariable))
      .value_or(Algorithm::kFastest);
}

// Of what a rank says of itself: whether it reads the memory of all others,
// whether it IsFencedBySleepers(), and its Algorithm. The others are its host.
constexpr uint64_t kNearBit = 1;
constexpr uint64_t kFencedBit = 2;
constexpr int kAlgorithmShift = 2;
constexpr uint64_t kTraitBits = 31;

// By which ranks know whether they are on one host: the number that the system
// has since it was booted, and the network that this process is in, since what
// has another address is taken for another host elsewhere, too. Without the
// bits of kTraitBits.
uint64_t ThisHost(const BackendOptions& options) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  std::array<char, 64> network = {};
  (void)!readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  text += network.data();
  if (ValueOf(kHostsVariable) == kByAddress) text += options.local_address;
  // FNV-1a.
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return hash & ~kTraitBits;
}

std::string AlgorithmText(Algorithm algorithm) {
  if (algorithm == Algorithm::kFastest) return "not set";
  return absl::StrCat("\"", shm_internal::AlgorithmName(algorithm), "\"");
}

// What the ranks of a group say to each other beside its collectives.
class Council {
 public:
  // `engine` lives longer.
  Council(Engine& engine, Instant deadline)
      : engine_(engine), deadline_(deadline) {}

  int rank() const { return engine_.mesh().rank(); }
  int world_size() const { return engine_.mesh().world_size(); }

  // What each of them says, by rank.
  absl::StatusOr<std::vector<uint64_t>> Hear(uint64_t own) {
    return HearEach(own);
  }

  // A segment of this rank and others: rank `maker`, which is one of them,
  // makes it. All ranks of the group have one, or none. `wanted`: this rank
  // wants to share. Errors: those of collectives; kNotFound: they are not on
  // one host; kFailedPrecondition: they do not share memory for another reason.
  // `file`: see Segment.
  absl::StatusOr<std::unique_ptr<Segment>> Share(
      size_t bytes, int maker, const absl::Status& wanted,
      const std::shared_ptr<SegmentFile>& file = nullptr) {
    absl::Status had = wanted;
    std::unique_ptr<Segment> shared;
    Segment::Place place = {};
    if (rank() == maker && had.ok()) {
      auto segment = Segment::Create(bytes, file);
      had = segment.status();
      if (segment.ok()) {
        shared = *std::move(segment);
        place = shared->place();
      }
    }
    const auto places = HearEach(place);
    if (!places.ok()) return places.status();
    if (rank() != maker && had.ok()) {
      auto segment = Segment::Open((*places)[maker], bytes, file);
      had = segment.status();
      if (segment.ok()) shared = *std::move(segment);
    }
    absl::Status status = Agree(had);
    if (!status.ok()) return status;
    return shared;
  }

  // Of ranks that all fail, each with `failure`, which ends the group: nobody
  // does that before all know why.
  absl::Status End(const absl::Status& failure) {
    Hear(0).status().IgnoreError();
    return failure;
  }

 private:
  template <typename Word>
  absl::StatusOr<std::vector<Word>> HearEach(Word own) {
    std::vector<Word> all(world_size());
    const auto bytes = static_cast<int64_t>(sizeof(Word) * all.size());
    absl::Status status =
        Do({.kind = CollectiveKind::kAllGatherIntoTensor,
            .inputs = {Tensor(&own, DataType::kUint8, {sizeof(own)})},
            .outputs = {Tensor(all.data(), DataType::kUint8, {bytes})}});
    if (!status.ok()) return status;
    return all;
  }

  absl::Status Do(Collective collective) {
    collective.deadline = deadline_;
    collective.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline_ - Clock::now());
    return engine_.Start(collective)->Wait();
  }

  // Whether all ranks have the segment; `had` is whether this one has.
  absl::Status Agree(const absl::Status& had) {
    const auto all = Hear(static_cast<uint64_t>(had.code()));
    if (!all.ok()) return all.status();
    for (int other = 0; other < world_size(); ++other) {
      const auto code = static_cast<absl::StatusCode>((*all)[other]);
      if (code == absl::StatusCode::kOk) continue;
      const std::string why =
          other == rank()
              ? std::string(had.message())
              : absl::StrCat("rank ", other, " does not get at it: ",
                             absl::StatusCodeToString(code));
      return absl::IsNotFound(absl::Status(code, ""))
                 ? absl::NotFoundError(why)
                 : absl::FailedPreconditionError(why);
    }
    return absl::OkStatus();
  }

  Engine& engine_;
  const Instant deadline_;
};

bool IsNotShared(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
}

// A rank's slice of a region.
class Slice : public SymmetricMemory {
 public:
  Slice(std::shared_ptr<Region> region, int rank)
      : region_(std::move(region)), rank_(rank) {}
  ~Slice() override { region_->Release(); }

  void* data() const override { return region_->slice(rank_); }
  Device device() const override { return {}; }

 private:
  const std::shared_ptr<Region> region_;
  const int rank_;
};

// Memory as any other, of a rank whose group shares none.
class OrdinaryMemory : public SymmetricMemory {
 public:
  explicit OrdinaryMemory(size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {}
  ~OrdinaryMemory() override { ::operator delete(memory_, kAlignment); }
  OrdinaryMemory(const OrdinaryMemory&) = delete;
  OrdinaryMemory& operator=(const OrdinaryMemory&) = delete;

  void* data() const override { return memory_; }
  Device device() const override { return {}; }

 private:
  static constexpr std::align_val_t kAlignment{256};
  std::byte* const memory_;
};

// Symmetric memory of the ranks of each host.
struct Sharing {
  // Null: there is none.
  std::shared_ptr<Regions> regions = nullptr;
  // Of this host: who makes segments, by its rank in the group; this rank's
  // place; and how many there are.
  int maker = 0;
  int place = 0;
  int count = 0;
};

class ShmBackend : public BackendDecorator {
 public:
  // `name`: shm, or gloo if no ranks share memory.
  ShmBackend(absl::string_view name, std::shared_ptr<Engine> engine,
             Sharing sharing)
      : BackendDecorator(gloo_internal::BackendOf(name, engine)),
        engine_(std::move(engine)),
        sharing_(std::move(sharing)) {}

  Ending Run(const Collective& collective, ReleasableLock& order) override {
    return inner().Run(collective, order);
  }

  absl::StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override {
    if (options.device != DeviceType::kCpu) {
      return absl::UnimplementedError(
          absl::StrCat("the shm backend has symmetric memory of the CPU, not ",
                       DeviceTypeName(options.device)));
    }
    Council council(*engine_, options.deadline);
    const auto all = council.Hear(options.bytes);
    if (!all.ok()) return all.status();
    for (int rank = 0; rank < council.world_size(); ++rank) {
      if ((*all)[rank] == options.bytes) continue;
      absl::Status status = absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " allocates ", (*all)[rank],
                       " bytes of symmetric memory, rank ", council.rank(), " ",
                       options.bytes));
      SetCulpritRank(status, rank);
      return council.End(status);
    }
    if (sharing_.regions == nullptr) return Ordinary(options.bytes);
    auto segment =
        council.Share(Region::BytesFor(options.bytes, sharing_.count),
                      sharing_.maker, absl::OkStatus(), regions_file_);
    if (IsNotShared(segment.status())) {
      return council.End(
          absl::ResourceExhaustedError(segment.status().message()));
    }
    if (!segment.ok()) return segment.status();
    regions_file_ = (*segment)->file();
    auto region = std::make_shared<Region>(*std::move(segment), options.bytes,
                                           sharing_.place, sharing_.count);
    sharing_.regions->Add(region);
    return std::make_shared<Slice>(std::move(region), sharing_.place);
  }

 private:
  static absl::StatusOr<std::shared_ptr<SymmetricMemory>> Ordinary(
      size_t bytes) {
    try {
      return std::make_shared<OrdinaryMemory>(bytes);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("symmetric memory of ", bytes, " bytes"));
    }
  }

  const std::shared_ptr<Engine> engine_;
  const Sharing sharing_;
  // Of all symmetric memory; null before there is any.
  std::shared_ptr<SegmentFile> regions_file_;
};

// Ranks that are told to go different ways.
absl::Status CheckAlgorithms(const std::vector<uint64_t>& all, int rank) {
  const Algorithm algorithm = ForcedAlgorithm();
  for (size_t peer = 0; peer < all.size(); ++peer) {
    const auto other =
        static_cast<Algorithm>((all[peer] & kTraitBits) >> kAlgorithmShift);
    if (other == algorithm) continue;
    // One way's rounds mean nothing to the other.
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", kAlgorithmVariable,
                     " must be the same on all ranks: on rank ", peer,
                     " it is ", AlgorithmText(other), ", on rank ", rank, " ",
                     AlgorithmText(algorithm)));
  }
  return absl::OkStatus();
}

// The ranks of each host share memory from now on. Errors: see Council::Share;
// kInvalidArgument: they are told to go different ways.
absl::StatusOr<Sharing> ShareMemory(const BackendOptions& options,
                                    Engine& engine) {
  Council council(engine, options.deadline);
  const auto all = council.Hear(
      ThisHost(options) | (engine.mesh().is_near_all() ? kNearBit : 0) |
      (Board::IsFencedBySleepers() ? kFencedBit : 0) |
      static_cast<uint64_t>(ForcedAlgorithm()) << kAlgorithmShift);
  if (!all.ok()) return all.status();
  bool reads_memory = true;
  bool sleepers_fence = true;
  std::vector<uint64_t> identities;
  identities.reserve(all->size());
  for (const uint64_t traits : *all) {
    identities.push_back(traits & ~kTraitBits);
    reads_memory &= (traits & kNearBit) != 0;
    sleepers_fence &= (traits & kFencedBit) != 0;
  }
  const Hosts hosts(identities, options.rank);
  if (hosts.most() == 1) {
    return absl::NotFoundError("every rank is on a host of its own");
  }
  if (absl::Status bad = CheckAlgorithms(*all, options.rank); !bad.ok()) {
    return council.End(bad);
  }
  const auto processors = council.Hear(ProcessorBits());
  if (!processors.ok()) return processors.status();
  const auto neighbours = static_cast<int>(hosts.neighbours().size());
  auto segment = council.Share(Board::BytesFor(neighbours),
                               hosts.neighbours().front(), CheckWanted());
  if (!segment.ok()) return segment.status();
  (*segment)->CloseDescriptor();
  const HostTraits traits = {
      .board = {.is_crowded = IsCrowded(hosts.neighbours(), *processors),
                .sleepers_fence = sleepers_fence},
      .reads_memory = reads_memory,
      .algorithm = ForcedAlgorithm()};
  const Sharing sharing = {.regions = std::make_shared<Regions>(),
                           .maker = hosts.neighbours().front(),
                           .place = hosts.place(),
                           .count = neighbours};
  if (hosts.count() > 1) {
    LOG_FIRST_N(INFO, 1) << "backend shm: group \"" << options.group_name
                         << "\" goes in two levels: " << hosts.world_size()
                         << " ranks on " << hosts.count() << " hosts, "
                         << hosts.fewest() << " to " << hosts.most()
                         << " on each";
    engine.SetShortcut(std::make_unique<TwoLevels>(
        *std::move(segment), sharing.regions, hosts, engine.mesh(), traits));
    return sharing;
  }
  engine.SetShortcut(std::make_unique<HostCollectives>(
      *std::move(segment), sharing.regions, engine.mesh(), traits));
  return sharing;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateShmBackend(
    const BackendOptions& options) {
  if (absl::Status bad = CheckEnvironment(); !bad.ok()) return bad;
  auto engine = gloo_internal::JoinGroup(options);
  if (!engine.ok()) return engine.status();
  absl::StatusOr<Sharing> sharing = Sharing();
  absl::string_view name = "gloo";
  if (options.world_size > 1) {
    sharing = ShareMemory(options, **engine);
    if (sharing.ok()) name = "shm";
    if (IsNotShared(sharing.status())) {
      const std::string what =
          absl::StrCat("backend shm: the ranks of group \"", options.group_name,
                       "\" share no memory, their collectives take "
                       "connections: ",
                       sharing.status().message());
      if (absl::IsNotFound(sharing.status())) {
        // On as many hosts as there are ranks that is as it must be.
        LOG_FIRST_N(INFO, 1) << what;
      } else {
        LOG_FIRST_N(WARNING, 1) << what;
      }
      sharing = Sharing();
    }
  }
  auto backend = std::make_unique<ShmBackend>(
      name, *std::move(engine), sharing.ok() ? *sharing : Sharing());
  if (!sharing.ok()) return sharing.status();
  return backend;
}

}  // namespace muster::dataplane
