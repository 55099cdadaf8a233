#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/parallel/data/bucket_states.h"
#include "client/parallel/data/orthogonalization.h"
#include "client/parallel/elements/float_conversion.h"
#include "muster/communication_hooks.h"

namespace muster {
namespace {

// A gradient as a matrix, and where it and its factors are.
struct Matrix {
  int64_t rows;
  int64_t columns;
  int64_t rank;
  // Elements before it in the bucket, and before its factors.
  size_t at;
  size_t p_at;
  size_t q_at;

  size_t count() const { return static_cast<size_t>(rows * columns); }
};

// All matrices are row-major.

// p = m q
void ComputeP(const Matrix& matrix, const float* m, const float* q, float* p) {
  const int64_t rank = matrix.rank;
  std::fill_n(p, matrix.rows * rank, 0.0f);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column) {
      const float each = m[row * matrix.columns + column];
      for (int64_t k = 0; k < rank; ++k) {
        p[row * rank + k] += each * q[column * rank + k];
      }
    }
  }
}

// q = transposed m, times p
void ComputeQ(const Matrix& matrix, const float* m, const float* p, float* q) {
  const int64_t rank = matrix.rank;
  std::fill_n(q, matrix.columns * rank, 0.0f);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column) {
      const float each = m[row * matrix.columns + column];
      for (int64_t k = 0; k < rank; ++k) {
        q[column * rank + k] += each * p[row * rank + k];
      }
    }
  }
}

// m = p, times transposed q. What m was before, less this, becomes `error`.
void Replace(const Matrix& matrix, const float* p, const float* q, float* m,
             float* error) {
  const int64_t rank = matrix.rank;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column) {
      float product = 0;
      for (int64_t k = 0; k < rank; ++k) {
        product += p[row * rank + k] * q[column * rank + k];
      }
      const int64_t i = row * matrix.columns + column;
      const float difference = m[i] - product;
      error[i] = std::isfinite(difference) ? difference : 0;
      m[i] = product;
    }
  }
}

class PowerSgdHook : public CommunicationHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : options_(options) {}

  std::string Describe() const override {
    return absl::StrCat("power_sgd with rank ", options_.rank, ", start_step ",
                        options_.start_step, ", min_compression_rate ",
                        options_.min_compression_rate, ", seed ",
                        options_.seed);
  }

  HookStage Start(const GradBucket& bucket) override {
    if (bucket.index == 0) ++step_;
    if (step_ <= options_.start_step) return all_reduce_->Start(bucket);
    State& state = states_.Get(bucket, [&] { return MakeState(bucket); });
    float* const m = state.gradients.data();
    internal::ToFloats(bucket.buffer, m);
    for (const Matrix& matrix : state.matrices) {
      for (size_t i = matrix.at; i < matrix.at + matrix.count(); ++i) {
        m[i] += state.errors[i];
      }
      ComputeP(matrix, m + matrix.at, state.q.data() + matrix.q_at,
               state.p.data() + matrix.p_at);
    }
    state.CopyRest(/*to_p=*/true);
    Work work = bucket.group->AllReduce(
        state.p, {.op = ReduceOp::kAvg, .async_op = true});
    return {std::move(work),
            [this, &bucket, &state] { return StartSecond(bucket, state); }};
  }

  void Discard(const GradBucket& bucket, size_t index) override {
    // There is none in the steps that are not compressed.
    State* const state = states_.Find(bucket);
    if (state != nullptr) internal::KeepAverage(bucket, index, state->errors);
  }

  void BucketsRebuilt() override { states_.Clear(); }

 private:
  struct State {
    std::vector<Matrix> matrices;
    // Gradients that are not compressed: where they are in the bucket, and in
    // p, and how many elements they have.
    struct Rest {
      size_t at;
      size_t p_at;
      size_t count;
    };
    std::vector<Rest> rest;
    // As in the bucket.
    std::vector<float> gradients;
    std::vector<float> errors;
    // The left factors, then the rest.
    std::vector<float> p;
    // The right factors, also those of the last step.
    std::vector<float> q;

    // Copies the rest to `p` or back.
    void CopyRest(bool to_p) {
      for (const Rest& each : rest) {
        float* const here = gradients.data() + each.at;
        float* const there = p.data() + each.p_at;
        std::copy_n(to_p ? here : there, each.count, to_p ? there : here);
      }
    }
  };

  HookStage StartSecond(const GradBucket& bucket, State& state) {
    state.CopyRest(/*to_p=*/false);
    if (state.matrices.empty()) {
      internal::FromFloats(state.gradients.data(), bucket.buffer);
      return {};
    }
    for (const Matrix& matrix : state.matrices) {
      float* const p = state.p.data() + matrix.p_at;
      internal::Orthogonalize(p, matrix.rows, matrix.rank);
      ComputeQ(matrix, state.gradients.data() + matrix.at, p,
               state.q.data() + matrix.q_at);
    }
    Work work = bucket.group->AllReduce(
        state.q, {.op = ReduceOp::kAvg, .async_op = true});
    return {std::move(work),
            [this, &bucket, &state] { Finish(bucket, state); }};
  }

  void Finish(const GradBucket& bucket, State& state) const {
    for (const Matrix& matrix : state.matrices) {
      Replace(matrix, state.p.data() + matrix.p_at,
              state.q.data() + matrix.q_at, state.gradients.data() + matrix.at,
              state.errors.data() + matrix.at);
      // The next step cannot begin with what a NaN or a gradient of zeros
      // leaves.
      const std::span<float> q = GetQ(matrix, state);
      const bool is_finite = std::all_of(
          q.begin(), q.end(), [](float each) { return std::isfinite(each); });
      if (!is_finite || std::all_of(q.begin(), q.end(),
                                    [](float each) { return each == 0; })) {
        Fill(q);
      }
    }
    internal::FromFloats(state.gradients.data(), bucket.buffer);
  }

  static std::span<float> GetQ(const Matrix& matrix, State& state) {
    return {state.q.data() + matrix.q_at,
            static_cast<size_t>(matrix.columns * matrix.rank)};
  }

  // Fills it with random numbers, the same on all ranks.
  void Fill(std::span<float> q) const {
    std::mt19937_64 random(options_.seed);
    for (float& each : q) {
      // By hand: the standard's distributions differ between libraries.
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      each = static_cast<float>(2 * unit - 1);
    }
  }

  State MakeState(const GradBucket& bucket) const {
    State state;
    size_t at = 0;
    size_t p_at = 0;
    size_t q_at = 0;
    for (const Tensor& gradient : bucket.gradients) {
      const int64_t count = gradient.element_count();
      const int64_t rows = gradient.shape().empty() ? 1 : gradient.shape()[0];
      const int64_t columns = count / rows;
      const int64_t rank = std::min({options_.rank, rows, columns});
      if (options_.min_compression_rate *
              static_cast<double>((rows + columns) * rank) <=
          static_cast<double>(count)) {
        state.matrices.push_back({rows, columns, rank, at, p_at, q_at});
        p_at += static_cast<size_t>(rows * rank);
        q_at += static_cast<size_t>(columns * rank);
      } else {
        state.rest.push_back(
            {.at = at, .p_at = 0, .count = static_cast<size_t>(count)});
      }
      at += static_cast<size_t>(count);
    }
    for (auto& each : state.rest) {
      each.p_at = p_at;
      p_at += each.count;
    }
    state.gradients.resize(at);
    state.errors.resize(at);
    state.p.resize(p_at);
    state.q.resize(q_at);
    for (const Matrix& matrix : state.matrices) Fill(GetQ(matrix, state));
    return state;
  }

  const PowerSgdOptions options_;
  const std::shared_ptr<CommunicationHook> all_reduce_ = MakeAllReduceHook();
  int64_t step_ = 0;
  internal::BucketStates<State> states_;
};

}  // namespace

std::shared_ptr<CommunicationHook> MakePowerSgdHook(
    const PowerSgdOptions& options) {
  if (options.rank < 1) {
    internal::Invalid(absl::StrCat(
        "PowerSgdOptions::rank must be at least 1 but was ", options.rank));
  }
  if (options.start_step < 0) {
    internal::Invalid(absl::StrCat(
        "PowerSgdOptions::start_step must not be negative but was ",
        options.start_step));
  }
  if (!(options.min_compression_rate >= 1)) {
    internal::Invalid(absl::StrCat(
        "PowerSgdOptions::min_compression_rate must be at least 1 but was ",
        options.min_compression_rate));
  }
  return std::make_shared<PowerSgdHook>(options);
}

}  // namespace muster
