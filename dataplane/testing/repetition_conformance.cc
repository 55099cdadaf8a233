// Collectives that are run again and again, and may then use another path than
// at first. From call to call only the contents and addresses of the tensors
// change.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "dataplane/collective.h"
#include "dataplane/communicator.h"
#include "dataplane/tensor.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

constexpr int kCalls = 8;

using Values = std::vector<int64_t>;

// One rank, which runs all collectives once per call.
class Repeater {
 public:
  Repeater(Communicator& communicator, size_t count)
      : communicator_(communicator),
        rank_(communicator.rank()),
        world_size_(communicator.world_size()),
        count_(count) {}

  void RunAll(int call) {
    call_ = call;
    root_ = call % 2 == 0 ? 0 : world_size_ - 1;
    Reductions();
    Rooted();
    Gathers();
    Exchanges();
    Run({.kind = CollectiveKind::kBarrier});
  }

 private:
  // Some ranks run it with a view (which may have a plan), others as a new
  // collective, in turn. The results must not differ.
  void Run(const CollectiveView& view) {
    if ((call_ + rank_) % 4 == 3) {
      const Status status = communicator_.Run(view.Copy());
      EXPECT_TRUE(status.ok()) << status;
      return;
    }
    Instant began = Instant::min();
    const Status status = communicator_.Run(view, began);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_GT(began, Instant::min());
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
  std::vector<Tensor> Cut(Values& values) const {
    std::vector<Tensor> tensors;
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
  Values Blank(size_t ranks) const { return Values(count_ * ranks, -1); }

  void Reductions() {
    Values values = Parcel(rank_, 0);
    const Tensor tensor(values);
    Run({.kind = CollectiveKind::kAllReduce, .tensors = {&tensor, 1}});
    EXPECT_EQ(values, Sum(0));
    Put(Parcel(rank_, 1), values);
    Run({.kind = CollectiveKind::kAllReduce,
         .tensors = {&tensor, 1},
         .reduce_op = ReduceOp::kMax});
    EXPECT_EQ(values, Parcel(world_size_ - 1, 1));
    Values given = ToAll(rank_);
    Values taken = Blank(1);
    const Tensor whole(given);
    const Tensor output(taken);
    Run({.kind = CollectiveKind::kReduceScatterTensor,
         .inputs = {&whole, 1},
         .outputs = {&output, 1}});
    EXPECT_EQ(taken, Sum(rank_));
    Put(Blank(1), taken);
    const std::vector<Tensor> parts = Cut(given);
    Run({.kind = CollectiveKind::kReduceScatter,
         .inputs = parts,
         .outputs = {&output, 1}});
    EXPECT_EQ(taken, Sum(rank_));
  }

  void Rooted() {
    const bool is_root = rank_ == root_;
    Values values = is_root ? Parcel(root_, 0) : Blank(1);
    const Tensor tensor(values);
    Run({.kind = CollectiveKind::kBroadcast,
         .tensors = {&tensor, 1},
         .root = root_});
    EXPECT_EQ(values, Parcel(root_, 0));
    Put(Parcel(rank_, 3), values);
    Run({.kind = CollectiveKind::kReduce,
         .tensors = {&tensor, 1},
         .root = root_});
    EXPECT_EQ(values, is_root ? Sum(3) : Parcel(rank_, 3));
    Values all = is_root ? ToAll(root_) : Values();
    const std::vector<Tensor> parts =
        is_root ? Cut(all) : std::vector<Tensor>();
    Run({.kind = CollectiveKind::kScatter,
         .inputs = parts,
         .outputs = {&tensor, 1},
         .root = root_});
    EXPECT_EQ(values, Parcel(root_, rank_));
    Put(Parcel(rank_, root_), values);
    Put(Blank(is_root ? static_cast<size_t>(world_size_) : 0), all);
    Run({.kind = CollectiveKind::kGather,
         .inputs = {&tensor, 1},
         .outputs = parts,
         .root = root_});
    EXPECT_EQ(all, is_root ? FromAll(root_) : Values());
  }

  void Gathers() {
    Values given = Parcel(rank_, 0);
    Values taken = Blank(static_cast<size_t>(world_size_));
    const Tensor input(given);
    const Tensor whole(taken);
    Run({.kind = CollectiveKind::kAllGatherIntoTensor,
         .inputs = {&input, 1},
         .outputs = {&whole, 1}});
    EXPECT_EQ(taken, FromAll(0));
    Put(Blank(static_cast<size_t>(world_size_)), taken);
    const std::vector<Tensor> parts = Cut(taken);
    Run({.kind = CollectiveKind::kAllGather,
         .inputs = {&input, 1},
         .outputs = parts});
    EXPECT_EQ(taken, FromAll(0));
  }

  void Exchanges() {
    Values given = ToAll(rank_);
    Values taken = Blank(static_cast<size_t>(world_size_));
    const std::vector<Tensor> from = Cut(given);
    const std::vector<Tensor> to = Cut(taken);
    Run({.kind = CollectiveKind::kAllToAll, .inputs = from, .outputs = to});
    EXPECT_EQ(taken, FromAll(rank_));
    // With splits and without.
    const std::vector<int64_t> splits(static_cast<size_t>(world_size_),
                                      Count());
    const Tensor input(given);
    const Tensor output(taken);
    for (const std::span<const int64_t> cut :
         {std::span(splits), std::span<const int64_t>()}) {
      Put(Blank(static_cast<size_t>(world_size_)), taken);
      Run({.kind = CollectiveKind::kAllToAllSingle,
           .inputs = {&input, 1},
           .outputs = {&output, 1},
           .input_splits = cut,
           .output_splits = cut});
      EXPECT_EQ(taken, FromAll(rank_));
    }
  }

  Communicator& communicator_;
  const int rank_;
  const int world_size_;
  const size_t count_;
  int call_ = 0;
  int root_ = 0;
};

TEST_P(BackendConformance, WhatIsRunAgainGivesWhatItsTensorsHaveThen) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    // None, few, and sizes on both sides of each limit at which the shm backend
    // changes its path.
    for (const size_t count : {0, 1, 150, 151, 5000, 20'000}) {
      SCOPED_TRACE(absl::StrCat(count, " elements"));
      Repeater repeater(communicator, count);
      for (int call = 0; call < kCalls; ++call) {
        // Allocates something, so that not all memory is where it was the last
        // time.
        const Values other_places(call % 2 == 0 ? count : 0);
        repeater.RunAll(call);
      }
    }
  });
}

// A change of any argument makes another collective.
TEST_P(BackendConformance, WhatIsRunAgainOtherwiseIsAnother) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    const int last = world_size() - 1;
    for (int call = 0; call < kCalls; ++call) {
      for (const auto& [op, root, result] :
           {std::tuple(ReduceOp::kSum, 0, int64_t{world_size()} * last / 2),
            std::tuple(ReduceOp::kMax, 0, int64_t{last}),
            std::tuple(ReduceOp::kMax, last, int64_t{last}),
            std::tuple(ReduceOp::kMin, last, int64_t{0})}) {
        Values values = {rank};
        const Tensor tensor(values);
        Instant began;
        EXPECT_TRUE(communicator
                        .Run({.kind = CollectiveKind::kReduce,
                              .tensors = {&tensor, 1},
                              .reduce_op = op,
                              .root = root},
                             began)
                        .ok());
        EXPECT_EQ(values, Values({rank == root ? result : rank}));
      }
    }
  });
}

}  // namespace
}  // namespace muster::dataplane::testing
