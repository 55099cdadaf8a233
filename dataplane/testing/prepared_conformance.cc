// Prepared collectives: their tensors' contents change from run to run.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "gtest/gtest.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::testing {
namespace {

constexpr int kCalls = 8;

using Values = std::vector<int64_t>;

// One rank, which prepares all collectives in the first call of RunAll and runs
// them in each.
class Repeater {
 public:
  Repeater(Communicator& communicator, size_t count, int root)
      : communicator_(communicator),
        rank_(communicator.rank()),
        world_size_(communicator.world_size()),
        count_(count),
        root_(root),
        part_(count),
        taken_(count),
        all_given_(count * static_cast<size_t>(world_size_)),
        all_taken_(all_given_.size()) {}

  void RunAll(int call) {
    call_ = call;
    next_ = 0;
    Reductions();
    Rooted();
    Gathers();
    Exchanges();
    Run({.kind = CollectiveKind::kBarrier});
  }

 private:
  // Ranks that run a prepared one, start it, or run an ordinary one meet.
  void Run(const Collective& arguments) {
    if (next_ == prepared_.size()) {
      auto prepared = communicator_.Prepare(arguments);
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      prepared_.push_back(*std::move(prepared));
    }
    const std::shared_ptr<PreparedCollective>& prepared = prepared_[next_++];
    Status status;
    switch ((call_ + rank_) % 4) {
      case 2:
        status = communicator_.Start(prepared)->Wait();
        break;
      case 3:
        status = communicator_.Run(Collective(arguments));
        break;
      default:
        status = communicator_.Run(*prepared);
    }
    EXPECT_TRUE(status.ok()) << status;
  }

  // The values of rank `from` for rank `to` in this call.
  Values Parcel(int from, int to) const {
    Values values(count_);
    for (size_t i = 0; i < count_; ++i) {
      values[i] = call_ * 1'000'000 + from * 1000 + to * 100 +
                  static_cast<int64_t>(i % 91);
    }
    return values;
  }
  // The sum of all ranks' values for rank `to`.
  Values Sum(int to) const {
    Values sum(count_, 0);
    for (int from = 0; from < world_size_; ++from) {
      const Values values = Parcel(from, to);
      for (size_t i = 0; i < count_; ++i) sum[i] += values[i];
    }
    return sum;
  }
  template <typename Of>
  Values Joined(const Of& of) const {
    Values all;
    for (int peer = 0; peer < world_size_; ++peer) {
      const Values values = of(peer);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  Values FromAll(int to) const {
    return Joined([&](int from) { return Parcel(from, to); });
  }
  Values ToAll(int from) const {
    return Joined([&](int to) { return Parcel(from, to); });
  }
  // `values`, cut into one tensor per rank.
  Collective::Tensors Cut(Values& values) const {
    Collective::Tensors tensors;
    for (int peer = 0; peer < world_size_; ++peer) {
      tensors.emplace_back(values.data() + static_cast<size_t>(peer) * count_,
                           std::span<const int64_t>({Count()}));
    }
    return tensors;
  }
  // Copies without moving `to`, whose address tensors hold.
  static void Put(const Values& from, Values& to) {
    std::ranges::copy(from, to.begin());
  }
  int64_t Count() const { return static_cast<int64_t>(count_); }
  size_t Ranks() const { return static_cast<size_t>(world_size_); }
  Values Blank(size_t ranks) const { return Values(count_ * ranks, -1); }

  void Reductions() {
    const Tensor part(part_);
    const Tensor taken(taken_);
    Put(Parcel(rank_, 0), part_);
    Run({.kind = CollectiveKind::kAllReduce, .tensors = {part}});
    EXPECT_EQ(part_, Sum(0));
    Put(Parcel(rank_, 1), part_);
    Run({.kind = CollectiveKind::kAllReduce,
         .tensors = {part},
         .reduce_op = ReduceOp::kMax});
    EXPECT_EQ(part_, Parcel(world_size_ - 1, 1));
    Put(ToAll(rank_), all_given_);
    Put(Blank(1), taken_);
    Run({.kind = CollectiveKind::kReduceScatterTensor,
         .inputs = {Tensor(all_given_)},
         .outputs = {taken}});
    EXPECT_EQ(taken_, Sum(rank_));
    Put(Blank(1), taken_);
    Run({.kind = CollectiveKind::kReduceScatter,
         .inputs = Cut(all_given_),
         .outputs = {taken}});
    EXPECT_EQ(taken_, Sum(rank_));
  }

  void Rooted() {
    const bool is_root = rank_ == root_;
    const Tensor part(part_);
    Put(is_root ? Parcel(root_, 0) : Blank(1), part_);
    Run({.kind = CollectiveKind::kBroadcast, .tensors = {part}, .root = root_});
    EXPECT_EQ(part_, Parcel(root_, 0));
    Put(Parcel(rank_, 3), part_);
    Run({.kind = CollectiveKind::kReduce, .tensors = {part}, .root = root_});
    EXPECT_EQ(part_, is_root ? Sum(3) : Parcel(rank_, 3));
    Put(ToAll(rank_), all_given_);
    Run({.kind = CollectiveKind::kScatter,
         .inputs = is_root ? Cut(all_given_) : Collective::Tensors(),
         .outputs = {part},
         .root = root_});
    EXPECT_EQ(part_, Parcel(root_, rank_));
    Put(Parcel(rank_, root_), part_);
    Put(Blank(Ranks()), all_taken_);
    Run({.kind = CollectiveKind::kGather,
         .inputs = {part},
         .outputs = is_root ? Cut(all_taken_) : Collective::Tensors(),
         .root = root_});
    EXPECT_EQ(all_taken_, is_root ? FromAll(root_) : Blank(Ranks()));
  }

  void Gathers() {
    const Tensor part(part_);
    Put(Parcel(rank_, 0), part_);
    Put(Blank(Ranks()), all_taken_);
    Run({.kind = CollectiveKind::kAllGatherIntoTensor,
         .inputs = {part},
         .outputs = {Tensor(all_taken_)}});
    EXPECT_EQ(all_taken_, FromAll(0));
    Put(Blank(Ranks()), all_taken_);
    Run({.kind = CollectiveKind::kAllGather,
         .inputs = {part},
         .outputs = Cut(all_taken_)});
    EXPECT_EQ(all_taken_, FromAll(0));
  }

  void Exchanges() {
    Put(ToAll(rank_), all_given_);
    Put(Blank(Ranks()), all_taken_);
    Run({.kind = CollectiveKind::kAllToAll,
         .inputs = Cut(all_given_),
         .outputs = Cut(all_taken_)});
    EXPECT_EQ(all_taken_, FromAll(rank_));
    const std::vector<int64_t> splits(Ranks(), Count());
    for (const std::vector<int64_t>& cut : {splits, std::vector<int64_t>()}) {
      Put(Blank(Ranks()), all_taken_);
      Run({.kind = CollectiveKind::kAllToAllSingle,
           .inputs = {Tensor(all_given_)},
           .outputs = {Tensor(all_taken_)},
           .input_splits = cut,
           .output_splits = cut});
      EXPECT_EQ(all_taken_, FromAll(rank_));
    }
  }

  Communicator& communicator_;
  const int rank_;
  const int world_size_;
  const size_t count_;
  const int root_;
  // This rank's part or result, and what it has for and from all ranks.
  Values part_;
  Values taken_;
  Values all_given_;
  Values all_taken_;
  int call_ = 0;
  // In the order in which RunAll runs them, and the next one.
  std::vector<std::shared_ptr<PreparedCollective>> prepared_;
  size_t next_ = 0;
};

TEST_P(BackendConformance, APreparedCollectiveMovesWhatItsTensorsHoldThen) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    // None, few, and sizes on both sides of each limit at which the shm backend
    // changes its path.
    for (const size_t count : {0, 1, 150, 151, 5000, 20'000}) {
      for (const int root : {0, world_size() - 1}) {
        SCOPED_TRACE(absl::StrCat(count, " elements, root ", root));
        Repeater repeater(communicator, count, root);
        for (int call = 0; call < kCalls; ++call) repeater.RunAll(call);
      }
    }
  });
}

}  // namespace
}  // namespace muster::dataplane::testing
