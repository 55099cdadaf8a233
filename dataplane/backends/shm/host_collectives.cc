#include "dataplane/backends/shm/host_collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/gloo/exchange.h"
#include "dataplane/backends/gloo/schedules.h"
#include "dataplane/culprit.h"
#include "dataplane/reduction.h"

namespace muster::dataplane::shm_internal {
namespace {

using gloo_internal::Block;
using gloo_internal::BlockOf;
using gloo_internal::BlocksOf;
using gloo_internal::Mesh;
using gloo_internal::Mismatch;
using gloo_internal::NoteHeader;

// What begins all that a rank shows.
struct Head {
  NoteHeader header;
  // Of what it ran before: ranks that are done with a collective when they have
  // shown what they have do not see in it that others run another one.
  uint64_t history = 0;
};

// What a rank shows in a round, behind that; and behind this, where nobody
// looks who has no need to, what it ran last.
constexpr size_t kPayloadBytes =
    Board::kSlotBytes - sizeof(Head) - sizeof(NoteHeader);

// What takes more rounds goes another way: from one tensor to the other, in
// one copy.
constexpr size_t kRoundsMax = 16;

// All_reduce: up to here every rank combines everything, in one round. Beyond,
// each combines its part, and shows the result in another.
constexpr size_t kOneRoundBytesMax = 8 << 10;

size_t RoundsFor(size_t count, size_t count_per_round) {
  return std::max<size_t>(1, (count + count_per_round - 1) / count_per_round);
}

// What of `block` goes in round `round`.
Block ChunkOf(const Block& block, size_t round, size_t count_per_round,
              size_t element_bytes) {
  const size_t first = std::min(block.count, round * count_per_round);
  const size_t count = std::min(block.count - first, count_per_round);
  return {block.data + first * element_bytes, count};
}

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// The rounds of one collective on this rank.
class Rounds {
 public:
  Rounds(Board& board, Mesh& mesh, std::vector<std::byte>& scratch,
         const History& before, const Collective& collective)
      : board_(board),
        mesh_(mesh),
        scratch_(scratch),
        collective_(collective),
        rank_(board.rank()),
        world_size_(board.world_size()),
        element_bytes_(DataTypeBytes(collective.data_type())),
        before_(before),
        header_(NoteHeader::Of(collective)) {}

  absl::StatusOr<bool> Run();

  // The history after it. Before Run.
  History history() const;

 private:
  // Who shows something in Show, and who looks at it.
  struct Scene {
    Block give = {};
    // By rank; of those that do not give, empty.
    std::vector<Block> take = {};
    std::vector<int> givers = {};
    size_t count_max = 0;
    bool gives = false;
    bool takes = false;
  };

  std::byte* payload() { return board_.slot() + sizeof(Head); }
  const std::byte* shown(int peer) const {
    return board_.shown(peer) + sizeof(Head);
  }
  // In what `peer` shows in Deal: how many elements it has for each rank.
  const uint64_t* RowOf(int peer) const {
    return reinterpret_cast<const uint64_t*>(shown(peer));
  }
  size_t row_bytes() const { return world_size_ * sizeof(uint64_t); }

  absl::Status StatusOf(Board::Outcome outcome);
  absl::Status Open() { return StatusOf(board_.Open()); }
  void Post();
  // What `peer` shows is there. In the first round: and it is of the same
  // collective, in which it gives this rank `count` elements. Of Deal, the row
  // says how many it does.
  absl::Status Await(int peer, uint64_t count, bool has_row);
  absl::Status AwaitAll();

  // From what all ranks show `offset` bytes behind their headers.
  void Combine(const Reduction& reduction, size_t offset, const Block& result);

  std::vector<int> Everybody() const;
  Scene SceneOf() const;
  absl::StatusOr<bool> Show(const Scene& scene);

  absl::StatusOr<bool> AllReduce();
  absl::Status ReduceAtOnce(const Reduction& reduction, const Block& tensor);
  absl::Status ReduceByParts(const Reduction& reduction, const Block& tensor);
  absl::StatusOr<bool> Reduce();
  absl::StatusOr<bool> ReduceScatter();
  absl::StatusOr<bool> Scatter();
  absl::StatusOr<bool> AllToAll();

  // Writes, behind a row, what of `give` goes in this round, from accumulators
  // if `reduction` is there; none of it if not `with_data`.
  void WriteDealt(const std::vector<Block>& give, size_t count_per_round,
                  const Reduction* reduction, bool with_data);
  // Where in what `peer` shows this rank's is.
  size_t DealtOffset(int peer, size_t count_per_round,
                     size_t bytes_of_one) const;
  // In what all ranks show: the largest count in any row.
  uint64_t CountMax() const;

  Board& board_;
  Mesh& mesh_;
  std::vector<std::byte>& scratch_;
  const Collective& collective_;
  const int rank_;
  const int world_size_;
  const size_t element_bytes_;
  const History before_;
  NoteHeader header_;
  // From 0: this collective's.
  size_t round_ = 0;
};

absl::Status Rounds::StatusOf(Board::Outcome outcome) {
  switch (outcome) {
    case Board::Outcome::kDone:
      return absl::OkStatus();
    case Board::Outcome::kWoken:
      return mesh_.abort_cause();
    case Board::Outcome::kLeft:
      break;
  }
  return mesh_.Gone(board_.left_peer());
}

void Rounds::Post() {
  const Head head = {header_, before_.hash};
  std::memcpy(board_.slot(), &head, sizeof(head));
  std::memcpy(payload() + kPayloadBytes, &before_.last, sizeof(before_.last));
  board_.Post();
}

absl::Status Rounds::Await(int peer, uint64_t count, bool has_row) {
  absl::Status status = StatusOf(board_.Await(peer));
  if (!status.ok() || round_ > 0 || peer == rank_) return status;
  Head theirs;
  std::memcpy(&theirs, board_.shown(peer), sizeof(theirs));
  NoteHeader ours = header_;
  ours.element_count = count;
  if (has_row && theirs.header.kind == ours.kind) {
    theirs.header.element_count = RowOf(peer)[rank_];
  }
  if (theirs.header != ours) {
    return Mismatch(peer, rank_, theirs.header, ours);
  }
  if (theirs.history == before_.hash) return status;
  NoteHeader last;
  std::memcpy(&last, shown(peer) + kPayloadBytes, sizeof(last));
  if (last != before_.last) return Mismatch(peer, rank_, last, before_.last);
  status = absl::InvalidArgumentError(
      absl::StrCat("rank ", peer, " and rank ", rank_,
                   " ran different collectives, or with different roots, "
                   "before ",
                   collective_.Label()));
  SetCulpritRank(status, peer);
  return status;
}

History Rounds::history() const {
  History after;
  // The same on all ranks, before some of it is one rank's own.
  after.last = header_;
  // FNV-1a.
  after.hash = before_.hash ^ 14695981039346656037u;
  for (const uint64_t part :
       {uint64_t{header_.kind}, uint64_t{header_.data_type},
        uint64_t{header_.reduce_op}, static_cast<uint64_t>(header_.root),
        header_.element_count, header_.sizes_hash}) {
    after.hash = (after.hash ^ part) * 1099511628211u;
  }
  return after;
}

absl::Status Rounds::AwaitAll() {
  absl::Status status;
  for (int peer = 0; peer < world_size_ && status.ok(); ++peer) {
    status = Await(peer, header_.element_count, /*has_row=*/false);
  }
  return status;
}

void Rounds::Combine(const Reduction& reduction, size_t offset,
                     const Block& result) {
  if (result.count == 0) return;
  std::byte* accumulators = result.data;
  if (!reduction.in_place()) {
    scratch_.resize(std::max(scratch_.size(),
                             result.count * reduction.accumulator_bytes()));
    accumulators = scratch_.data();
  }
  reduction.Combine(accumulators, shown(0) + offset, shown(1) + offset,
                    result.count);
  for (int peer = 2; peer < world_size_; ++peer) {
    reduction.Combine(accumulators, accumulators, shown(peer) + offset,
                      result.count);
  }
  reduction.Finish(accumulators, result.count, world_size_);
  reduction.Store(result.data, accumulators, result.count);
}

absl::StatusOr<bool> Rounds::Run() {
  switch (collective_.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce();
    case CollectiveKind::kReduce:
      return Reduce();
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduceScatterTensor:
      return ReduceScatter();
    case CollectiveKind::kScatter:
      return Scatter();
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kAllToAllSingle:
      return AllToAll();
    case CollectiveKind::kBarrier:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherIntoTensor:
    case CollectiveKind::kGather:
      return Show(SceneOf());
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      break;
  }
  return false;
}

std::vector<int> Rounds::Everybody() const {
  std::vector<int> all;
  for (int i = 1; i < world_size_; ++i)
    all.push_back((rank_ + i) % world_size_);
  return all;
}

Rounds::Scene Rounds::SceneOf() const {
  Scene scene;
  scene.take.resize(world_size_);
  const bool is_root = rank_ == collective_.root;
  switch (collective_.kind) {
    case CollectiveKind::kBroadcast: {
      const Block tensor = BlockOf(collective_.tensors[0]);
      scene.gives = is_root;
      scene.takes = !is_root;
      scene.givers = {collective_.root};
      scene.count_max = tensor.count;
      (is_root ? scene.give : scene.take[collective_.root]) = tensor;
      break;
    }
    case CollectiveKind::kGather:
      scene.give = BlockOf(collective_.inputs[0]);
      scene.gives = !is_root;
      scene.takes = is_root;
      scene.count_max = scene.give.count;
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherIntoTensor:
      scene.give = BlockOf(collective_.inputs[0]);
      scene.gives = true;
      scene.takes = true;
      break;
    default:  // kBarrier
      scene.takes = true;
      break;
  }
  if (scene.givers.empty()) scene.givers = Everybody();
  if (!collective_.outputs.empty()) {
    scene.take = BlocksOf(collective_.outputs, world_size_);
    gloo_internal::CopyBlock(scene.take[rank_], scene.give, element_bytes_);
    for (const Block& block : scene.take) {
      scene.count_max = std::max(scene.count_max, block.count);
    }
  }
  return scene;
}

// Every giver shows its block, in as many rounds as it takes; whoever wants it
// looks.
absl::StatusOr<bool> Rounds::Show(const Scene& scene) {
  const size_t per_round = kPayloadBytes / element_bytes_;
  const size_t rounds = RoundsFor(scene.count_max, per_round);
  const bool fits = rounds <= kRoundsMax;
  if (scene.gives) header_.element_count = scene.give.count;
  for (round_ = 0; round_ < (fits ? rounds : 1); ++round_) {
    absl::Status status = Open();
    if (!status.ok()) return status;
    if (scene.gives && fits) {
      const Block chunk =
          ChunkOf(scene.give, round_, per_round, element_bytes_);
      Copy(payload(), chunk.data, chunk.count * element_bytes_);
    }
    Post();
    if (!scene.takes) continue;
    for (const int giver : scene.givers) {
      const Block& take = scene.take[giver];
      const Block chunk = ChunkOf(take, round_, per_round, element_bytes_);
      if (round_ > 0 && chunk.count == 0) continue;
      status = Await(giver, take.count, /*has_row=*/false);
      if (!status.ok()) return status;
      if (fits) Copy(chunk.data, shown(giver), chunk.count * element_bytes_);
    }
  }
  return fits;
}

absl::StatusOr<bool> Rounds::AllReduce() {
  const Reduction reduction(collective_.data_type(), collective_.reduce_op);
  const Block tensor = BlockOf(collective_.tensors[0]);
  const size_t bytes = tensor.count * reduction.accumulator_bytes();
  if (bytes <= kOneRoundBytesMax) {
    absl::Status status = ReduceAtOnce(reduction, tensor);
    if (!status.ok()) return status;
    return true;
  }
  if (bytes <= kRoundsMax * kPayloadBytes) {
    absl::Status status = ReduceByParts(reduction, tensor);
    if (!status.ok()) return status;
    return true;
  }
  absl::Status status = Open();
  if (!status.ok()) return status;
  Post();
  status = AwaitAll();
  if (!status.ok()) return status;
  return false;
}

absl::Status Rounds::ReduceAtOnce(const Reduction& reduction,
                                  const Block& tensor) {
  absl::Status status = Open();
  if (!status.ok()) return status;
  reduction.Load(payload(), tensor.data, tensor.count, collective_.factor);
  Post();
  status = AwaitAll();
  if (status.ok()) Combine(reduction, 0, tensor);
  return status;
}

// A round shows this rank's part of the result of what the last one showed, and
// what comes next of its own tensor.
absl::Status Rounds::ReduceByParts(const Reduction& reduction,
                                   const Block& tensor) {
  const size_t own_bytes = reduction.accumulator_bytes();
  const auto ranks = static_cast<size_t>(world_size_);
  // A part has at most an element more than an equal one.
  const size_t per_round = (kPayloadBytes - sizeof(uint64_t) - element_bytes_) *
                           ranks / (ranks * own_bytes + element_bytes_);
  const size_t chunks = RoundsFor(tensor.count, per_round);
  const size_t results = (std::min(per_round, tensor.count) * own_bytes + 7) /
                         sizeof(uint64_t) * sizeof(uint64_t);
  std::vector<Block> parts;
  for (round_ = 0; round_ <= chunks; ++round_) {
    absl::Status status = Open();
    if (!status.ok()) return status;
    if (round_ > 0) {
      Copy(payload() + results, parts[rank_].data,
           parts[rank_].count * element_bytes_);
    }
    const Block chunk = ChunkOf(tensor, round_, per_round, element_bytes_);
    reduction.Load(payload(), chunk.data, chunk.count, collective_.factor);
    Post();
    status = AwaitAll();
    if (!status.ok()) return status;
    for (int peer = 0; peer < world_size_ && round_ > 0; ++peer) {
      if (peer == rank_) continue;
      Copy(parts[peer].data, shown(peer) + results,
           parts[peer].count * element_bytes_);
    }
    if (round_ == chunks) break;
    parts = gloo_internal::PartsOf(chunk, ranks, element_bytes_);
    const size_t first =
        static_cast<size_t>(parts[rank_].data - chunk.data) / element_bytes_;
    Combine(reduction, first * own_bytes, parts[rank_]);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Rounds::Reduce() {
  const Reduction reduction(collective_.data_type(), collective_.reduce_op);
  const Block tensor = BlockOf(collective_.tensors[0]);
  const size_t per_round = kPayloadBytes / reduction.accumulator_bytes();
  const size_t rounds = RoundsFor(tensor.count, per_round);
  const bool fits = rounds <= kRoundsMax;
  for (round_ = 0; round_ < (fits ? rounds : 1); ++round_) {
    absl::Status status = Open();
    if (!status.ok()) return status;
    const Block chunk = ChunkOf(tensor, round_, per_round, element_bytes_);
    if (fits) {
      reduction.Load(payload(), chunk.data, chunk.count, collective_.factor);
    }
    Post();
    if (rank_ != collective_.root) continue;
    status = AwaitAll();
    if (!status.ok()) return status;
    if (fits) Combine(reduction, 0, chunk);
  }
  return fits;
}

void Rounds::WriteDealt(const std::vector<Block>& give, size_t count_per_round,
                        const Reduction* reduction, bool with_data) {
  auto* const row = reinterpret_cast<uint64_t*>(payload());
  std::byte* next = payload() + row_bytes();
  for (int peer = 0; peer < world_size_; ++peer) {
    row[peer] = give.empty() ? 0 : give[peer].count;
    if (give.empty() || !with_data) continue;
    const Block chunk =
        ChunkOf(give[peer], round_, count_per_round, element_bytes_);
    if (reduction != nullptr) {
      reduction->Load(next, chunk.data, chunk.count, collective_.factor);
      next += chunk.count * reduction->accumulator_bytes();
    } else {
      Copy(next, chunk.data, chunk.count * element_bytes_);
      next += chunk.count * element_bytes_;
    }
  }
}

size_t Rounds::DealtOffset(int peer, size_t count_per_round,
                           size_t bytes_of_one) const {
  const uint64_t* const row = RowOf(peer);
  size_t before = 0;
  for (int i = 0; i < rank_; ++i) {
    before += ChunkOf({nullptr, row[i]}, round_, count_per_round, 0).count;
  }
  return row_bytes() + before * bytes_of_one;
}

uint64_t Rounds::CountMax() const {
  uint64_t most = 0;
  for (int peer = 0; peer < world_size_; ++peer) {
    most = std::max(most,
                    *std::max_element(RowOf(peer), RowOf(peer) + world_size_));
  }
  return most;
}

// Every rank shows all others what it has for them, all of which have as much
// for one, and each combines its own.
absl::StatusOr<bool> Rounds::ReduceScatter() {
  const Reduction reduction(collective_.data_type(), collective_.reduce_op);
  const std::vector<Block> give = BlocksOf(collective_.inputs, world_size_);
  const Block output = BlockOf(collective_.outputs[0]);
  const size_t per_round = (kPayloadBytes - row_bytes()) / world_size_ /
                           reduction.accumulator_bytes();
  size_t most = 0;
  for (const Block& block : give) most = std::max(most, block.count);
  const bool fits = RoundsFor(most, per_round) <= kRoundsMax;
  const size_t rounds = fits ? RoundsFor(most, per_round) : 1;
  for (round_ = 0; round_ < rounds; ++round_) {
    absl::Status status = Open();
    if (!status.ok()) return status;
    WriteDealt(give, per_round, &reduction, fits);
    Post();
    for (int peer = 0; peer < world_size_ && status.ok(); ++peer) {
      status = Await(peer, output.count, /*has_row=*/true);
    }
    if (!status.ok()) return status;
    if (!fits) break;
    // All rows are the same.
    Combine(reduction,
            DealtOffset(rank_, per_round, reduction.accumulator_bytes()),
            ChunkOf(output, round_, per_round, element_bytes_));
  }
  return fits;
}

absl::StatusOr<bool> Rounds::Scatter() {
  const Block output = BlockOf(collective_.outputs[0]);
  const bool is_root = rank_ == collective_.root;
  std::vector<Block> give;
  if (is_root) {
    give = BlocksOf(collective_.inputs, world_size_);
    gloo_internal::CopyBlock(output, give[rank_], element_bytes_);
    give[rank_].count = 0;
  }
  const size_t per_round =
      (kPayloadBytes - row_bytes()) / world_size_ / element_bytes_;
  const bool fits = RoundsFor(output.count, per_round) <= kRoundsMax;
  const size_t rounds = fits ? RoundsFor(output.count, per_round) : 1;
  for (round_ = 0; round_ < rounds; ++round_) {
    absl::Status status = Open();
    if (!status.ok()) return status;
    WriteDealt(give, per_round, nullptr, fits);
    Post();
    if (is_root) continue;
    status = Await(collective_.root, output.count, /*has_row=*/true);
    if (!status.ok()) return status;
    if (!fits) break;
    const Block chunk = ChunkOf(output, round_, per_round, element_bytes_);
    Copy(chunk.data,
         shown(collective_.root) +
             DealtOffset(collective_.root, per_round, element_bytes_),
         chunk.count * element_bytes_);
  }
  return fits;
}

// Sizes may differ, and no rank knows what others have for each other before
// it has seen that.
absl::StatusOr<bool> Rounds::AllToAll() {
  const bool single = collective_.kind == CollectiveKind::kAllToAllSingle;
  std::vector<Block> give =
      single ? gloo_internal::CutBlocks(collective_.inputs[0],
                                        collective_.input_splits, world_size_)
             : BlocksOf(collective_.inputs, world_size_);
  const std::vector<Block> take =
      single ? gloo_internal::CutBlocks(collective_.outputs[0],
                                        collective_.output_splits, world_size_)
             : BlocksOf(collective_.outputs, world_size_);
  gloo_internal::CopyBlock(take[rank_], give[rank_], element_bytes_);
  give[rank_].count = 0;
  const size_t per_round =
      (kPayloadBytes - row_bytes()) / world_size_ / element_bytes_;
  size_t rounds = 1;
  for (round_ = 0; round_ < rounds; ++round_) {
    absl::Status status = Open();
    if (!status.ok()) return status;
    WriteDealt(give, per_round, nullptr, /*with_data=*/true);
    Post();
    for (const int peer : Everybody()) {
      status = Await(peer, take[peer].count, /*has_row=*/true);
      if (!status.ok()) return status;
    }
    if (round_ == 0) {
      rounds = RoundsFor(CountMax(), per_round);
      if (rounds > kRoundsMax) return false;
    }
    for (const int peer : Everybody()) {
      const Block chunk =
          ChunkOf(take[peer], round_, per_round, element_bytes_);
      Copy(chunk.data,
           shown(peer) + DealtOffset(peer, per_round, element_bytes_),
           chunk.count * element_bytes_);
    }
  }
  return true;
}

}  // namespace

HostCollectives::HostCollectives(std::unique_ptr<Segment> segment, Mesh& mesh,
                                 bool is_crowded)
    : segment_(std::move(segment)),
      mesh_(mesh),
      board_(segment_->memory(), mesh.rank(), mesh.world_size(), is_crowded,
             [&mesh](int rank) { mesh.set_waiting_for(rank); }) {}

absl::StatusOr<bool> HostCollectives::Run(const Collective& collective) {
  Rounds rounds(board_, mesh_, scratch_, history_, collective);
  history_ = rounds.history();
  return rounds.Run();
}

}  // namespace muster::dataplane::shm_internal
