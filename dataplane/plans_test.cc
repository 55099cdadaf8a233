#include "dataplane/plans.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "dataplane/collective.h"
#include "dataplane/tensor.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

class PlansTest : public ::testing::Test {
 protected:
  CollectiveView Reduction() {
    return {.kind = CollectiveKind::kReduce,
            .tensors = {&tensor_, 1},
            .factor = 2,
            .root = 1};
  }
  CollectiveView Exchange() {
    return {.kind = CollectiveKind::kAllToAllSingle,
            .inputs = {&tensor_, 1},
            .outputs = {&other_, 1},
            .input_splits = splits_,
            .output_splits = splits_};
  }
  void NoteTwice(const CollectiveView& view) {
    plans_.Note(view.Copy(), checks_tensors_);
    plans_.Note(view.Copy(), checks_tensors_);
  }
  Collective* Find(const CollectiveView& view) { return plans_.Find(view); }

  std::vector<float> values_ = std::vector<float>(6);
  std::vector<float> more_ = std::vector<float>(6);
  Tensor tensor_{values_.data(), {2, 3}};
  Tensor other_{more_.data(), {2, 3}};
  std::vector<int64_t> splits_ = {2, 0};
  std::atomic<bool> checks_tensors_{false};
  Plans plans_;
};

TEST_F(PlansTest, WhatCameTwiceIsKnown) {
  EXPECT_EQ(Find(Reduction()), nullptr);
  plans_.Note(Reduction().Copy(), checks_tensors_);
  EXPECT_EQ(Find(Reduction()), nullptr);
  plans_.Note(Reduction().Copy(), checks_tensors_);
  const Collective* const known = Find(Reduction());
  ASSERT_NE(known, nullptr);
  ASSERT_NE(known->plan, nullptr);
  EXPECT_TRUE(known->plan->is_valid);
  EXPECT_EQ(known->bytes(), 24u);
  EXPECT_EQ(known->root, 1);
}

TEST_F(PlansTest, TensorsElsewhereAreTheSame) {
  NoteTwice(Reduction());
  CollectiveView elsewhere = Reduction();
  elsewhere.tensors = {&other_, 1};
  Collective* const known = Find(elsewhere);
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(known->tensors[0].data(), more_.data());
  // Until the caller sets it.
  EXPECT_FALSE(known->plan->is_valid);
  ASSERT_EQ(Find(elsewhere), known);
  EXPECT_FALSE(known->plan->is_valid);
  known->plan->is_valid = true;
  ASSERT_EQ(Find(elsewhere), known);
  EXPECT_TRUE(known->plan->is_valid);
  NoteTwice(Exchange());
  CollectiveView swapped = Exchange();
  std::swap(swapped.inputs, swapped.outputs);
  Collective* const exchange = Find(swapped);
  ASSERT_NE(exchange, nullptr);
  EXPECT_FALSE(exchange->plan->is_valid);
  EXPECT_EQ(exchange->inputs[0].data(), more_.data());
  EXPECT_EQ(exchange->outputs[0].data(), values_.data());
  // Only one of the two lists moves.
  for (const bool is_input : {true, false}) {
    Find(swapped)->plan->is_valid = true;
    CollectiveView half = swapped;
    (is_input ? half.inputs : half.outputs) = {is_input ? &tensor_ : &other_,
                                               1};
    EXPECT_FALSE(Find(half)->plan->is_valid);
  }
}

// Find compares and updates one tensor after the other: the first one is
// updated when the second one differs.
TEST_F(PlansTest, OneThatIsAnotherAfterAllLeavesNothingValid) {
  NoteTwice(Exchange());
  ASSERT_TRUE(Find(Exchange())->plan->is_valid);
  CollectiveView another = Exchange();
  another.inputs = {&other_, 1};
  const Tensor flat(more_);
  another.outputs = {&flat, 1};
  EXPECT_EQ(Find(another), nullptr);
  Collective* const known = Find(Exchange());
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(known->inputs[0].data(), values_.data());
  EXPECT_FALSE(known->plan->is_valid);
}

// For one dimension Find compares only the number of elements.
TEST_F(PlansTest, ShapesOfAsManyElementsAreNotTheSame) {
  const Tensor scalar(values_.data(), {});
  const Tensor one(values_.data(), {1});
  const Tensor nothing(values_.data(), {0});
  const Tensor flat_nothing(values_.data(), {0, 3});
  const auto view = [](const Tensor& tensor) {
    return CollectiveView{.kind = CollectiveKind::kAllReduce,
                          .tensors = {&tensor, 1}};
  };
  const auto expect = [&](const Tensor& noted, const Tensor& other) {
    NoteTwice(view(noted));
    EXPECT_NE(Find(view(noted)), nullptr) << noted.Describe();
    EXPECT_EQ(Find(view(other)), nullptr) << other.Describe();
  };
  expect(scalar, one);
  expect(one, scalar);
  expect(nothing, flat_nothing);
  expect(flat_nothing, nothing);
}

TEST_F(PlansTest, SendsAndTensorsOnDevicesHaveNone) {
  NoteTwice({.kind = CollectiveKind::kSend,
             .inputs = {&tensor_, 1},
             .peer = 1,
             .tag = 3});
  EXPECT_EQ(
      Find({.kind = CollectiveKind::kSend, .inputs = {&tensor_, 1}, .peer = 1}),
      nullptr);
  const Tensor on_device(values_.data(), DataType::kFloat32, {2, 3},
                         Device{DeviceType::kCuda, 0});
  const CollectiveView view = {.kind = CollectiveKind::kAllReduce,
                               .tensors = {&on_device, 1}};
  NoteTwice(view);
  EXPECT_EQ(Find(view), nullptr);
}

TEST_F(PlansTest, WhatDiffersInAnythingElseIsAnother) {
  NoteTwice(Reduction());
  const Tensor flat(values_);
  const Tensor narrow(values_.data(), DataType::kInt32, {2, 3});
  const Tensor on_device(values_.data(), DataType::kFloat32, {2, 3},
                         Device{DeviceType::kCuda, 0});
  const Tensor none(nullptr, DataType::kFloat32, {2, 3});
  const Tensor turned(values_.data(), {3, 2});
  const Tensor deep(values_.data(), {2, 3, 1});
  for (const Tensor* const tensor :
       {&flat, &narrow, &on_device, &none, &turned, &deep}) {
    CollectiveView view = Reduction();
    view.tensors = {tensor, 1};
    EXPECT_EQ(Find(view), nullptr) << tensor->Describe();
  }
  CollectiveView view = Reduction();
  view.tensors = {};
  EXPECT_EQ(Find(view), nullptr);
  view = Reduction();
  view.inputs = {&other_, 1};
  EXPECT_EQ(Find(view), nullptr);
  view = Reduction();
  view.outputs = {&other_, 1};
  EXPECT_EQ(Find(view), nullptr);
  view = Reduction();
  view.kind = CollectiveKind::kAllReduce;
  EXPECT_EQ(Find(view), nullptr);
  view = Reduction();
  view.reduce_op = ReduceOp::kMax;
  EXPECT_EQ(Find(view), nullptr);
  view = Reduction();
  view.root = 0;
  EXPECT_EQ(Find(view), nullptr);
  view = Reduction();
  view.timeout = std::chrono::milliseconds(-1);
  EXPECT_EQ(Find(view), nullptr);
  EXPECT_NE(Find(Reduction()), nullptr);
}

TEST_F(PlansTest, SplitsCount) {
  NoteTwice(Exchange());
  const std::vector<int64_t> others = {1, 1};
  CollectiveView view = Exchange();
  view.input_splits = others;
  EXPECT_EQ(Find(view), nullptr);
  view = Exchange();
  view.output_splits = others;
  EXPECT_EQ(Find(view), nullptr);
  view = Exchange();
  view.output_splits = {};
  EXPECT_EQ(Find(view), nullptr);
  EXPECT_NE(Find(Exchange()), nullptr);
}

TEST_F(PlansTest, TheFactorIsThatOfTheCall) {
  NoteTwice(Reduction());
  CollectiveView view = Reduction();
  for (const double factor : {3.0, 0.0, -0.0}) {
    view.factor = factor;
    const Collective* const known = Find(view);
    ASSERT_NE(known, nullptr);
    EXPECT_EQ(known->factor, factor);
    EXPECT_EQ(std::signbit(known->factor), std::signbit(factor));
  }
}

TEST_F(PlansTest, TheTimeoutIsThatOfTheCall) {
  NoteTwice(Reduction());
  // The communicator replaces a timeout of zero with its default.
  Find(Reduction())->timeout = std::chrono::seconds(9);
  CollectiveView view = Reduction();
  EXPECT_EQ(Find(view)->timeout.count(), 0);
  view.timeout = std::chrono::milliseconds(5);
  EXPECT_EQ(Find(view)->timeout.count(), 5);
}

TEST_F(PlansTest, WhatRunsIsNotGivenToAnother) {
  NoteTwice(Reduction());
  Collective& known = *Find(Reduction());
  known.plan->is_running = true;
  EXPECT_EQ(Find(Reduction()), nullptr);
  // The running one's entry is not replaced, either.
  NoteTwice(Reduction());
  Plans::HasEnded(known);
  EXPECT_EQ(Find(Reduction()), &known);
  // HasEnded accepts a collective without a plan.
  Plans::HasEnded(Reduction().Copy());
}

TEST_F(PlansTest, WhatComesAfterAnotherMayBeAnyOther) {
  CollectiveView more = Reduction();
  const Tensor all(values_.data(), {6});
  more.tensors = {&all, 1};
  NoteTwice(Reduction());
  NoteTwice(Exchange());
  NoteTwice(more);
  Collective* const reduction = Find(Reduction());
  Collective* const exchange = Find(Exchange());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Find(Reduction()), reduction);
    EXPECT_EQ(Find(Exchange()), exchange);
    EXPECT_EQ(Find(Reduction()), reduction);
    EXPECT_EQ(Find(Reduction()), reduction);
    // Not one of the successors so far.
    EXPECT_EQ(Find(more)->tensors[0].shape().size(), 1u);
  }
  exchange->plan->is_running = true;
  EXPECT_EQ(Find(Reduction()), reduction);
  EXPECT_EQ(Find(Exchange()), nullptr);
  EXPECT_NE(Find(more), nullptr);
}

// Nothing reads the removed successor; a sanitizer would detect that.
TEST_F(PlansTest, WhatCameAfterAnotherMayHaveGone) {
  std::vector<float> values(1000);
  const auto all_reduce = [&](const Tensor& tensor) {
    return CollectiveView{.kind = CollectiveKind::kAllReduce,
                          .tensors = {&tensor, 1}};
  };
  NoteTwice(Reduction());
  NoteTwice(Exchange());
  Collective* const reduction = Find(Reduction());
  Collective* const exchange = Find(Exchange());
  ASSERT_EQ(Find(Reduction()), reduction);
  // Until other collectives replace it.
  for (int64_t count = 1; Find(Exchange()) == exchange; ++count) {
    ASSERT_LE(count, 1000);
    ASSERT_EQ(Find(Reduction()), reduction);
    const Tensor tensor(values.data(), {count});
    reduction->plan->is_running = true;
    NoteTwice(all_reduce(tensor));
    Plans::HasEnded(*reduction);
  }
  EXPECT_EQ(Find(Reduction()), reduction);
  EXPECT_EQ(Find(Exchange()), nullptr);
  NoteTwice(Exchange());
  EXPECT_NE(Find(Exchange()), nullptr);
}

// More than there are entries, one after the other.
TEST_F(PlansTest, WhoComesTwiceInARowTakesAPlace) {
  std::vector<float> values(200);
  int known = 0;
  for (int64_t count = 1; count <= 200; ++count) {
    const Tensor tensor(values.data(), {count});
    const CollectiveView view = {.kind = CollectiveKind::kAllReduce,
                                 .tensors = {&tensor, 1}};
    NoteTwice(view);
    const Collective* const found = Find(view);
    ASSERT_NE(found, nullptr) << count;
    EXPECT_EQ(found->bytes(), static_cast<size_t>(count) * 4);
  }
  for (int64_t count = 1; count <= 200; ++count) {
    const Tensor tensor(values.data(), {count});
    known += Find({.kind = CollectiveKind::kAllReduce,
                   .tensors = {&tensor, 1}}) != nullptr;
  }
  EXPECT_GT(known, 16);
  EXPECT_LE(known, 32);
}

}  // namespace
}  // namespace muster::dataplane
