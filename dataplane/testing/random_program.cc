#include "dataplane/testing/random_program.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::dataplane::testing {
namespace {

constexpr size_t kInstructions = 40;

// Makes instructions whose slices fit.
class Generator {
 public:
  Generator(uint64_t seed, int world_size)
      : random_(seed), world_(world_size) {}

  // From 0 to `limit` - 1.
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

  Instruction Next(const RandomProgram& program) {
    Instruction next;
    next.group = Below(program.groups.size());
    size_ = program.groups[next.group].size();
    buffers_ = program.buffer_count;
    room_ = program.buffer_size;
    next.kind = static_cast<CollectiveKind>(Below(kCollectiveKindCount));
    if (next.kind == CollectiveKind::kRecv) next.kind = CollectiveKind::kSend;
    // Nobody sends to himself.
    if (next.kind == CollectiveKind::kSend && size_ == 1) {
      next.kind = CollectiveKind::kBarrier;
    }
    next.op = Any(OpsOf(program.type));
    next.root = static_cast<int>(Below(size_));
    next.waits = Below(3) == 0;
    Fill(next);
    return next;
  }

 private:
  static std::vector<ReduceOp> OpsOf(DataType type) {
    using enum ReduceOp;
    // The sum of others would depend on the order.
    if (type == DataType::kFloat32 || type == DataType::kFloat16) {
      return {kMin, kMax};
    }
    return {kSum, kAvg, kMin, kMax, kProduct, kBand, kBor, kBxor};
  }

  // Often small, now and then nothing.
  size_t Count(size_t limit) {
    const size_t most = Below(3) == 0 ? limit : std::min<size_t>(limit, 40);
    return Below(most + 1);
  }

  // `counts` elements one after the other, in a buffer that is not `other`.
  std::vector<Slice> Place(const std::vector<size_t>& counts, size_t other) {
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

  // The same on every rank of the group, or not.
  void FillBoth(Instruction& next, const std::vector<std::vector<size_t>>& in,
                const std::vector<std::vector<size_t>>& out) {
    for (size_t rank = 0; rank < size_; ++rank) {
      next.inputs.push_back(Place(in[rank], buffers_));
      const size_t used =
          in[rank].empty() ? buffers_ : next.inputs.back()[0].buffer;
      next.outputs.push_back(Place(out[rank], used));
    }
  }

  using Counts = std::vector<std::vector<size_t>>;

  // All ranks have the same list.
  Counts Everywhere(const std::vector<size_t>& counts) const {
    return Counts(size_, counts);
  }
  // Rank r has the r-th alone.
  static Counts Each(const std::vector<size_t>& counts) {
    Counts each;
    for (const size_t count : counts) each.push_back({count});
    return each;
  }
  // The root has the list, others nothing.
  Counts OnRoot(int root, const std::vector<size_t>& counts) const {
    Counts one(size_);
    one[static_cast<size_t>(root)] = counts;
    return one;
  }

  void Fill(Instruction& next) {
    const size_t part = room_ / size_;
    const std::vector<size_t> equal(size_, Count(part));
    std::vector<size_t> uneven;
    for (size_t rank = 0; rank < size_; ++rank) uneven.push_back(Count(part));
    switch (next.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kReduce:
        return FillBoth(next, Everywhere({Count(room_)}), Counts(size_));
      case CollectiveKind::kBarrier:
        return FillBoth(next, Counts(size_), Counts(size_));
      case CollectiveKind::kAllGather:
        return FillBoth(next, Each(uneven), Everywhere(uneven));
      case CollectiveKind::kAllGatherIntoTensor:
        return FillBoth(next, Each(equal), Everywhere({equal[0] * size_}));
      case CollectiveKind::kGather:
        return FillBoth(next, Each(equal), OnRoot(next.root, equal));
      case CollectiveKind::kScatter:
        return FillBoth(next, OnRoot(next.root, equal), Each(equal));
      case CollectiveKind::kReduceScatter:
        return FillBoth(next, Everywhere(uneven), Each(uneven));
      case CollectiveKind::kReduceScatterTensor:
        return FillBoth(next, Everywhere({equal[0] * size_}), Each(equal));
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kAllToAllSingle: {
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
      case CollectiveKind::kSend:
      case CollectiveKind::kRecv:
        next.peer = static_cast<int>(
            (static_cast<size_t>(next.root) + 1 + Below(size_ - 1)) % size_);
        next.tag = static_cast<int>(Below(3));
        return FillBoth(next, OnRoot(next.root, {equal[0]}),
                        OnRoot(next.peer, {equal[0]}));
    }
  }

  std::mt19937_64 random_;
  const int world_;
  size_t size_ = 1;  // of the instruction's group
  size_t buffers_ = 0;
  size_t room_ = 0;
};

}  // namespace

std::string Instruction::Describe() const {
  std::string text = absl::StrCat(CollectiveKindName(kind), " on group ", group,
                                  " ", ReduceOpName(op), " root ", root);
  if (kind == CollectiveKind::kSend) {
    absl::StrAppend(&text, " to ", peer, " tag ", tag);
  }
  absl::StrAppend(&text, waits ? ", waits" : "", ":");
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

RandomProgram::RandomProgram(uint64_t seed, int world_size) {
  Generator generator(seed, world_size);
  using enum DataType;
  type = generator.Any<DataType>(
      {kUint8, kInt8, kInt16, kInt32, kInt64, kFloat16, kFloat32});
  buffer_count = 3 + generator.Below(6);
  // Now and then beyond all that is small.
  buffer_size = generator.Below(8) == 0 ? 200'000 : 1 + generator.Below(20'000);
  groups = generator.Groups();
  for (size_t i = 0; i < kInstructions; ++i) {
    instructions.push_back(generator.Next(*this));
  }
}

}  // namespace muster::dataplane::testing
