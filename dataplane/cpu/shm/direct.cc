#include "dataplane/cpu/shm/direct.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/shm/streaming.h"
#include "dataplane/reduction.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

using cpu::ToBlock;
using cpu::ToBlocks;

// The most that is combined at once, of all ranks together: it stays in a
// processor's cache between reading and combining. And the least of each rank,
// which takes precedence: every system read takes 2 us, however short.
constexpr size_t kPiecesBytes = 1 << 20;
constexpr size_t kPieceBytesMin = 64 << 10;

class SingleCopy : public Rounds {
 public:
  SingleCopy(ShmContext& context, const Collective& collective, Scope where)
      : Rounds(context, collective, HasRows(collective.kind)),
        where_(where),
        piece_bytes_(std::max(kPieceBytesMin,
                              std::bit_floor(kPiecesBytes / world_size_))),
        give_(world_size_),
        take_(world_size_),
        expected_(world_size_),
        sources_(world_size_),
        factors_(world_size_) {}

  StatusOr<bool> Run();

 private:
  // Needs no allocation for a few ranks.
  template <typename Value>
  using ByRank = absl::InlinedVector<Value, 8>;

  // Published behind the row. A SourceAddress for each rank follows it.
  struct Offer {
    double factor = 1;
    // The worst access of this rank's data.
    Access reach = Access::kMapped;
  };

  // Fills in give_, take_ and expected_.
  void Arrange();

  // Exchanges addresses with all ranks. kNone if some data cannot be read.
  StatusOr<Access> ShowAll();
  // Writes the addresses of this rank's data for each other rank.
  Access ShowOrigins(std::byte* to);

  // Copies the data that each rank gives to this one.
  Status Move();
  // Combines the data that all ranks give to this one, from element `first` on,
  // into `result`.
  Status Combine(const Reduction& reduction, const Block& result, size_t first);
  // Each rank combines its part and copies the other parts from their ranks.
  Status AllReduce(const Reduction& reduction);

  // The address of `count` elements, from `first` on, of the data that `peer`
  // gives to this rank, at most piece_bytes_; read into scratch if they are not
  // mapped.
  StatusOr<const std::byte*> Operand(int peer, size_t first, size_t count);
  const Scope where_;
  // The bytes of each rank that are combined at once.
  const size_t piece_bytes_;
  Blocks give_;
  Blocks take_;
  // The number of elements that each rank must give to this one.
  ByRank<uint64_t> expected_;
  // After ShowAll: each rank's data for this one, and its factor.
  ByRank<Source> sources_;
  ByRank<double> factors_;
};

StatusOr<bool> SingleCopy::Run() {
  Arrange();
  const StatusOr<Access> met = ShowAll();
  if (!met.ok()) return met.status();
  if (*met == Access::kNone) return false;
  CHECK(where_ == Scope::kAnywhere ||
        collective().kind != CollectiveKind::kAllReduce)
      << "symmetric_all_reduce.h has these";
  context().transport.set_algorithm(
      AlgorithmName(*met == Access::kMapped ? Algorithm::kSymmetric
                                            : Algorithm::kSingleCopy));
  Status status;
  if (IsReduction(collective().kind)) {
    const Reduction& reduction =
        Reduction::Of(collective().data_type(), collective().reduce_op);
    if (collective().kind == CollectiveKind::kAllReduce) {
      status = AllReduce(reduction);
    } else if (take_[rank_].data != nullptr) {
      status = Combine(reduction, take_[rank_], 0);
    }
  } else {
    status = Move();
  }
  if (status.ok()) status = Meet();
  if (!status.ok()) return status;
  return true;
}

void SingleCopy::Arrange() {
  const Collective& run = collective();
  const bool is_root = rank_ == run.root;
  switch (GetTraits(run.kind).list_form) {
    case CollectiveKind::kAllReduce:
      give_.assign(world_size_, ToBlock(run.tensors[0]));
      break;
    case CollectiveKind::kReduce:
      give_.assign(world_size_, ToBlock(run.tensors[0]));
      if (is_root) take_[rank_] = give_[rank_];
      break;
    case CollectiveKind::kBroadcast:
      if (is_root) give_.assign(world_size_, ToBlock(run.tensors[0]));
      if (!is_root) take_[run.root] = ToBlock(run.tensors[0]);
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      give_.assign(world_size_, ToBlock(run.inputs[0]));
      if (!run.outputs.empty()) {
        take_ = ToBlocks(run.outputs, world_size_);
      }
      set_element_count(give_[rank_].count);
      break;
    case CollectiveKind::kScatter:
      if (is_root) give_ = ToBlocks(run.inputs, world_size_);
      take_[run.root] = ToBlock(run.outputs[0]);
      break;
    case CollectiveKind::kReduceScatter:
      give_ = ToBlocks(run.inputs, world_size_);
      take_[rank_] = ToBlock(run.outputs[0]);
      break;
    default:
      break;
  }
  const bool takes_tensors = !run.outputs.empty();
  for (int peer = 0; peer < world_size_; ++peer) {
    expected_[peer] = IsReduction(run.kind) && takes_tensors
                          ? take_[rank_].count
                      : takes_tensors ? take_[peer].count
                                      : element_count();
  }
}

SingleCopy::Access SingleCopy::ShowOrigins(std::byte* to) {
  Access reach = Access::kMapped;
  Block last;
  SourceAddress origin;
  for (int peer = 0; peer < world_size_; ++peer) {
    // No other rank reads data that this rank gives to itself.
    if (peer == rank_) continue;
    const Block& block = give_[peer];
    // Asking the system takes as long as a small collective, and mostly all
    // ranks get the same block.
    if (block.data != last.data || block.count != last.count) {
      reach = std::min(reach, FindSource(block, where_, origin));
      last = block;
    }
    std::memcpy(to + peer * sizeof(SourceAddress), &origin,
                sizeof(SourceAddress));
  }
  return reach;
}

StatusOr<SingleCopy::Access> SingleCopy::ShowAll() {
  Status status =
      Open(row_bytes() + sizeof(Offer) + world_size_ * sizeof(SourceAddress));
  if (!status.ok()) return status;
  WriteRow(give_);
  Offer own = {.factor = collective().factor};
  own.reach = ShowOrigins(payload() + row_bytes() + sizeof(own));
  std::memcpy(payload() + row_bytes(), &own, sizeof(own));
  Post();
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    status = Await(peer, expected_[peer]);
    if (!status.ok()) return status;
  }
  Access reach = own.reach;
  factors_[rank_] = own.factor;
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    const std::byte* const theirs = published(peer) + row_bytes();
    Offer offer;
    std::memcpy(&offer, theirs, sizeof(offer));
    reach = std::min(reach, offer.reach);
    factors_[peer] = offer.factor;
    SourceAddress origin;
    std::memcpy(&origin, theirs + sizeof(offer) + rank_ * sizeof(origin),
                sizeof(origin));
    sources_[peer] = MakeSource(peer, origin);
  }
  return reach;
}

Status SingleCopy::Move() {
  CopyOut(take_[rank_].data, give_[rank_].data,
          take_[rank_].count * element_bytes_, collective().bytes());
  for (const int peer : Others()) {
    const Block& take = take_[peer];
    if (take.data == nullptr) continue;
    Status status =
        Read(peer, sources_[peer], 0, take.data, take.count * element_bytes_);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

StatusOr<const std::byte*> SingleCopy::Operand(int peer, size_t first,
                                               size_t count) {
  const size_t offset = first * element_bytes_;
  if (peer == rank_) return give_[rank_].data + offset;
  if (sources_[peer].mapped != nullptr) return sources_[peer].mapped + offset;
  std::byte* const to =
      Scratch(world_size_ * piece_bytes_) + peer * piece_bytes_;
  Status status =
      Read(peer, sources_[peer], offset, to, count * element_bytes_);
  if (!status.ok()) return status;
  return to;
}

Status SingleCopy::Combine(const Reduction& reduction, const Block& result,
                           size_t first) {
  const size_t at_once = piece_bytes_ / element_bytes_;
  absl::InlinedVector<const void*, 16> operands(world_size_);
  for (size_t done = 0; done < result.count; done += at_once) {
    Status aborted = context().transport.abort_cause();
    if (!aborted.ok()) return aborted;
    const size_t count = std::min(at_once, result.count - done);
    for (int peer = 0; peer < world_size_; ++peer) {
      const auto operand = Operand(peer, first + done, count);
      if (!operand.ok()) return operand.status();
      operands[peer] = *operand;
    }
    CombineAll(reduction, result.Slice({done, count}, ResultBytes(reduction)),
               operands, factors_);
  }
  return OkStatus();
}

Status SingleCopy::AllReduce(const Reduction& reduction) {
  const Block& tensor = give_[rank_];
  const Range own = CutPart(tensor.count, rank_, world_size_);
  Status status =
      Combine(reduction, tensor.Slice(own, element_bytes_), own.first);
  // All have theirs.
  if (status.ok()) status = Meet();
  for (const int peer : Others()) {
    if (!status.ok()) return status;
    const Range part = CutPart(tensor.count, peer, world_size_);
    status = Read(peer, sources_[peer], part.first * element_bytes_,
                  tensor.Slice(part, element_bytes_).data,
                  part.count * element_bytes_);
  }
  return status;
}

}  // namespace

StatusOr<bool> RunSingleCopy(ShmContext& context, const Collective& collective,
                             Scope where) {
  return SingleCopy(context, collective, where).Run();
}

}  // namespace muster::dataplane::shm
