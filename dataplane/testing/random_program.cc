#include "dataplane/testing/random_program.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/coalescing.h"
#include "dataplane/data_types.h"
#include "dataplane/testing/reference.h"

namespace muster::dataplane::testing {
namespace {

constexpr size_t kInstructions = 40;
// The lowest tag that only one instruction uses.
constexpr int kOwnTag = 100;
constexpr size_t kCoalescedMax = 6;

// The floating-point numbers of a buffer: none is larger than `largest`, all
// are multiples of `step`.
struct Range {
  double largest = kBeginningMax;
  double step = 1;

  void Include(const Range& other) {
    largest = std::max(largest, other.largest);
    step = std::min(step, other.step);
  }
};

// Makes valid instructions with exact results.
class Generator {
 public:
  Generator(uint64_t seed, int world_size)
      : random_(seed), world_(world_size) {}

  // A number from 0 to `limit` - 1.
  size_t Below(size_t limit) { return random_() % limit; }

  template <typename T>
  T Any(const std::vector<T>& of) {
    return of[Below(of.size())];
  }

  std::vector<std::vector<int>> Groups() {
    std::vector<std::vector<int>> groups(1);
    for (int rank = 0; rank < world_; ++rank) groups[0].push_back(rank);
    for (int i = 0; i < 2; ++i) {
      std::vector<int> some;
      for (int rank = 0; rank < world_; ++rank) {
        if (Below(2) == 0) some.push_back(rank);
      }
      if (!some.empty()) groups.push_back(std::move(some));
    }
    return groups;
  }

  void Begin(const RandomProgram& program) {
    type_ = program.type;
    buffers_ = program.buffer_count;
    room_ = program.buffer_size;
    ranges_.assign(static_cast<size_t>(world_), std::vector<Range>(buffers_));
  }

  // One instruction, or several that are coalesced.
  std::vector<Instruction> Next(const RandomProgram& program) {
    Instruction next;
    next.group = Below(program.groups.size());
    group_ = &program.groups[next.group];
    size_ = group_->size();
    next.kind = static_cast<CollectiveKind>(Below(kCollectiveKindCount));
    if (next.kind == CollectiveKind::kRecv) next.kind = CollectiveKind::kSend;
    // A rank does not send to itself here.
    if (next.kind == CollectiveKind::kSend && size_ == 1) {
      next.kind = CollectiveKind::kBarrier;
    }
    next.root = static_cast<int>(Below(size_));
    next.waits = Below(3) == 0;
    if (next.kind == CollectiveKind::kGather && Below(2) == 0) {
      next.from_any = true;
      next.tag = ++last_own_tag_;
    }
    Instruction first = next;
    Fill(first);
    if (IsReduction(first.kind)) {
      const std::vector<ReduceOp> ops = ExactOps(first);
      // No operation would be exact: the numbers have become too large.
      if (ops.empty()) return {};
      first.op = next.op = Any(ops);
    }
    Note(first);
    std::vector<Instruction> together = {std::move(first)};
    while (CanCoalesce(next.kind).ok() && together.size() < kCoalescedMax &&
           Below(3) != 0) {
      Instruction more = next;
      Fill(more);
      if (!IsApart(together, more) || !IsExact(more)) break;
      Note(more);
      together.back().with_next = true;
      together.push_back(std::move(more));
    }
    return together;
  }

 private:
  static std::vector<ReduceOp> GetOps(DataType type) {
    using enum ReduceOp;
    switch (type) {
      case DataType::kFloat16:
      case DataType::kBfloat16:
      case DataType::kFloat32:
      case DataType::kFloat64:
        return {kSum, kAvg, kMin, kMax, kProduct, kPremulSum};
      case DataType::kComplex64:
      case DataType::kComplex128:
        return {kSum, kAvg, kPremulSum};
      case DataType::kBool:
        return {kSum, kMin, kMax, kProduct, kBand, kBor, kBxor};
      default:
        return {kSum, kAvg, kMin, kMax, kProduct, kBand, kBor, kBxor};
    }
  }

  // The operations whose result does not depend on the order.
  std::vector<ReduceOp> ExactOps(const Instruction& of) const {
    std::vector<ReduceOp> ops = GetOps(type_);
    const Range inputs = ComputeRange(of);
    std::erase_if(
        ops, [&](ReduceOp op) { return !Reduced(op, inputs).has_value(); });
    return ops;
  }

  bool IsExact(const Instruction& of) const {
    return !IsReduction(of.kind) ||
           Reduced(of.op, ComputeRange(of)).has_value();
  }

  bool Fits(const Range& range) const {
    // 16-bit numbers are reduced in float32 and rounded at the end. One bit
    // less, since that may round up.
    const bool is_double =
        type_ == DataType::kFloat64 || type_ == DataType::kComplex128;
    return range.largest / range.step <= std::ldexp(1, is_double ? 52 : 23) &&
           range.step >= std::ldexp(1, -14);
  }

  // The range of the result; empty if the result might depend on the order.
  std::optional<Range> Reduced(ReduceOp op, Range range) const {
    const auto size = static_cast<double>(size_);
    if (IsIntegral(type_)) return range;
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) return range;
    if (op == ReduceOp::kProduct) {
      range.largest = std::pow(range.largest, size);
      range.step = std::pow(range.step, size);
    } else {
      range.largest *= size;
    }
    if (op == ReduceOp::kPremulSum) {
      range.largest *= GetFactor(static_cast<int>(size_) - 1);
      range.step /= 2;
    }
    if (!Fits(range)) return std::nullopt;
    if (op == ReduceOp::kAvg) {
      if ((size_ & (size_ - 1)) != 0) return std::nullopt;
      range.largest /= size;
      range.step /= size;
    }
    const bool overflows =
        type_ == DataType::kFloat16 && range.largest > 60'000;
    if (overflows || !Fits(range)) return std::nullopt;
    return range;
  }

  Range& RangeAt(size_t rank, const Slice& slice) {
    return ranges_[static_cast<size_t>((*group_)[rank])][slice.buffer];
  }

  // The range of all numbers that the instruction reads.
  Range ComputeRange(const Instruction& of) const {
    Range all;
    for (size_t rank = 0; rank < of.inputs.size(); ++rank) {
      for (const Slice& slice : of.inputs[rank]) {
        all.Include(
            ranges_[static_cast<size_t>((*group_)[rank])][slice.buffer]);
      }
    }
    return all;
  }

  // Updates the ranges of the slices that `done` has written.
  void Note(const Instruction& done) {
    Range result = ComputeRange(done);
    if (IsReduction(done.kind)) result = *Reduced(done.op, result);
    for (const auto* lists : {&done.inputs, &done.outputs}) {
      for (size_t rank = 0; rank < lists->size(); ++rank) {
        for (const Slice& slice : (*lists)[rank]) {
          RangeAt(rank, slice).Include(result);
        }
      }
    }
  }

  // Whether on no rank `one` shares elements with `others`.
  static bool IsApart(const std::vector<Instruction>& others,
                      const Instruction& one) {
    for (const Instruction& other : others) {
      for (size_t rank = 0; rank < one.inputs.size(); ++rank) {
        for (const Slice& a : other.TouchedBy(rank)) {
          for (const Slice& b : one.TouchedBy(rank)) {
            if (a.Overlaps(b)) return false;
          }
        }
      }
    }
    return true;
  }

  // Usually small, sometimes 0.
  size_t Count(size_t limit) {
    const size_t most = Below(3) == 0 ? limit : std::min<size_t>(limit, 40);
    return Below(most + 1);
  }

  // Contiguous slices of `counts` elements in a buffer other than `other`.
  std::vector<Slice> ChooseSlices(const std::vector<size_t>& counts,
                                  size_t other) {
    size_t total = 0;
    for (const size_t count : counts) total += count;
    size_t buffer = Below(buffers_ - 1);
    if (buffer >= other) ++buffer;
    size_t begin = Below(room_ - total + 1);
    std::vector<Slice> slices;
    for (const size_t count : counts) {
      slices.push_back({buffer, begin, count});
      begin += count;
    }
    return slices;
  }

  // Places each rank's inputs and outputs in different buffers.
  void FillBoth(Instruction& next, const std::vector<std::vector<size_t>>& in,
                const std::vector<std::vector<size_t>>& out) {
    for (size_t rank = 0; rank < size_; ++rank) {
      next.inputs.push_back(ChooseSlices(in[rank], buffers_));
      const size_t used =
          in[rank].empty() ? buffers_ : next.inputs.back()[0].buffer;
      next.outputs.push_back(ChooseSlices(out[rank], used));
    }
  }

  using Counts = std::vector<std::vector<size_t>>;

  // The same list on all ranks.
  Counts Everywhere(const std::vector<size_t>& counts) const {
    return Counts(size_, counts);
  }
  // One count per rank: counts[r] on rank r.
  static Counts Each(const std::vector<size_t>& counts) {
    Counts each;
    for (const size_t count : counts) each.push_back({count});
    return each;
  }
  // The list on the root; none on the other ranks.
  Counts OnRoot(int root, const std::vector<size_t>& counts) const {
    Counts one(size_);
    one[static_cast<size_t>(root)] = counts;
    return one;
  }

  // The counts of each rank for parts of these sizes.
  Counts MakeCounts(TensorList layout, int root,
                    const std::vector<size_t>& sizes) const {
    switch (layout) {
      case TensorList::kEmpty:
        break;
      case TensorList::kOne:
        return Each(sizes);
      case TensorList::kWhole:
        return Everywhere(
            {std::accumulate(sizes.begin(), sizes.end(), size_t{0})});
      case TensorList::kPerRank:
        return Everywhere(sizes);
      case TensorList::kPerRankOnRoot:
        return OnRoot(root, sizes);
    }
    return Counts(size_);
  }

  void Fill(Instruction& next) {
    const CollectiveTraits& traits = GetTraits(next.kind);
    const size_t part = room_ / size_;
    const std::vector<size_t> equal(size_, Count(part));
    if (traits.tensors == TensorList::kOne) {
      return FillBoth(next, Everywhere({Count(room_)}), Counts(size_));
    }
    if (traits.is_point_to_point) {
      next.peer = static_cast<int>(
          (static_cast<size_t>(next.root) + 1 + Below(size_ - 1)) % size_);
      next.tag = static_cast<int>(Below(3));
      return FillBoth(next, OnRoot(next.root, {equal[0]}),
                      OnRoot(next.peer, {equal[0]}));
    }
    if (IsAllToAll(next.kind)) {
      Counts to(size_);
      Counts from(size_);
      for (size_t a = 0; a < size_; ++a) {
        for (size_t b = 0; b < size_; ++b) {
          const size_t count = Count(part);
          to[a].push_back(count);
          from[b].push_back(count);
        }
      }
      return FillBoth(next, to, from);
    }
    std::vector<size_t> sizes = equal;
    if (traits.is_uneven) {
      for (size_t& size : sizes) size = Count(part);
    }
    FillBoth(next, MakeCounts(traits.inputs, next.root, sizes),
             MakeCounts(traits.outputs, next.root, sizes));
  }

  std::mt19937_64 random_;
  const int world_;
  DataType type_ = DataType::kInt32;
  const std::vector<int>* group_ = nullptr;  // of the instruction
  size_t size_ = 1;                          // of group_
  size_t buffers_ = 0;
  size_t room_ = 0;
  int last_own_tag_ = kOwnTag;
  // By rank of the world, then by buffer.
  std::vector<std::vector<Range>> ranges_;
};

}  // namespace

std::vector<Slice> Instruction::TouchedBy(size_t rank) const {
  std::vector<Slice> slices = inputs[rank];
  slices.insert(slices.end(), outputs[rank].begin(), outputs[rank].end());
  return slices;
}

std::string Instruction::Describe() const {
  std::string text = absl::StrCat(CollectiveKindName(kind), " on group ", group,
                                  " ", ReduceOpName(op), " root ", root);
  if (kind == CollectiveKind::kSend) {
    absl::StrAppend(&text, " to ", peer, " tag ", tag);
  }
  if (from_any) absl::StrAppend(&text, " from any, tag ", tag);
  absl::StrAppend(&text, with_next ? ", with the next" : "",
                  waits ? ", waits" : "", ":");
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    absl::StrAppend(&text, " ", rank, ":");
    for (const auto* list : {&inputs[rank], &outputs[rank]}) {
      absl::StrAppend(&text, list == &inputs[rank] ? "" : ">");
      for (const Slice& slice : *list) {
        absl::StrAppend(&text, "[", slice.buffer, "@", slice.begin, "+",
                        slice.count, "]");
      }
    }
  }
  return text;
}

namespace {

constexpr size_t kRepeats = 4;

// Whether its caller waits for it and its results stay exact.
bool MayBeRepeated(const Instruction& instruction) {
  if (!instruction.waits || instruction.from_any ||
      IsPointToPoint(instruction.kind)) {
    return false;
  }
  return !IsReduction(instruction.kind) || instruction.op == ReduceOp::kMin ||
         instruction.op == ReduceOp::kMax;
}

}  // namespace

RandomProgram::RandomProgram(uint64_t seed, int world_size) {
  Generator generator(seed, world_size);
  type = static_cast<DataType>(seed % kProgramTypes);
  buffer_count = 3 + generator.Below(6);
  // Sometimes large.
  buffer_size = generator.Below(8) == 0 ? 200'000 : 1 + generator.Below(20'000);
  groups = generator.Groups();
  generator.Begin(*this);
  for (size_t i = 0; i < kInstructions; ++i) {
    std::vector<Instruction> made = generator.Next(*this);
    // Repeats some, since a collective that is run again uses another path.
    if (made.size() == 1 && MayBeRepeated(made[0]) && generator.Below(4) == 0) {
      made.resize(kRepeats, made[0]);
    }
    std::ranges::move(made, std::back_inserter(instructions));
  }
}

}  // namespace muster::dataplane::testing
