// The hooks that send 8 bits for each gradient.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/parallel/data/block_quantization.h"
#include "client/parallel/data/bucket_states.h"
#include "client/parallel/elements/float_conversion.h"
#include "muster/communication_hooks.h"

namespace muster {
namespace {

using internal::EightBits;
using internal::kBlockElements;
using internal::QuantizedBytes;

class QuantizedHook : public CommunicationHook {
 public:
  QuantizedHook(EightBits format, std::string name)
      : format_(format), name_(std::move(name)) {}

  std::string Describe() const override { return name_; }

  HookStage Start(const GradBucket& bucket) override {
    State& state = states_.Get(bucket, [&] { return MakeState(bucket); });
    // This rank sends its gradients and its earlier rounding errors.
    internal::ToFloats(bucket.buffer, Floats(state.count));
    for (size_t i = 0; i < state.count; ++i) state.errors[i] += floats_[i];
    const size_t part_bytes = QuantizedBytes(state.part);
    for (size_t rank = 0; rank < state.ranks; ++rank) {
      const auto [at, size] = state.GetPart(rank);
      float* const exact = state.errors.data() + at;
      uint8_t* const sent = state.sent.data() + rank * part_bytes;
      QuantizePart(state, exact, size, sent);
      internal::SubtractQuantized(format_, sent, size, exact);
    }
    Work work = bucket.group->AllToAllSingle(state.received, Tensor(state.sent),
                                             {.async_op = true});
    return {std::move(work),
            [this, &bucket, &state] { return AverageOwnPart(bucket, state); }};
  }

  void Discard(const GradBucket& bucket, size_t index) override {
    internal::KeepAverage(bucket, index, states_.Find(bucket)->errors);
  }

  void BucketsRebuilt() override { states_.Clear(); }

 private:
  struct State {
    size_t ranks;
    size_t count;
    // Elements of each rank's part, a multiple of a block; the last parts may
    // have less, or nothing.
    size_t part;
    // Rounding errors of the gradients, and of the average of this rank's part.
    std::vector<float> errors;
    std::vector<float> own_errors;
    std::vector<uint8_t> sent;
    std::vector<uint8_t> received;

    std::pair<size_t, size_t> GetPart(size_t rank) const {
      const size_t at = std::min(rank * part, count);
      return {at, std::min(part, count - at)};
    }
  };

  static State MakeState(const GradBucket& bucket) {
    const auto ranks = static_cast<size_t>(bucket.group->size());
    const auto count = static_cast<size_t>(bucket.buffer.element_count());
    const size_t blocks = (count + kBlockElements - 1) / kBlockElements;
    const size_t part = (blocks + ranks - 1) / ranks * kBlockElements;
    const size_t bytes = ranks * QuantizedBytes(part);
    return {.ranks = ranks,
            .count = count,
            .part = part,
            .errors = std::vector<float>(count),
            .own_errors = std::vector<float>(part),
            .sent = std::vector<uint8_t>(bytes),
            .received = std::vector<uint8_t>(bytes)};
  }

  float* Floats(size_t count) {
    if (floats_.size() < count) floats_.resize(count);
    return floats_.data();
  }

  // Scales and elements of a part shorter than the others have gaps after them.
  void QuantizePart(const State& state, const float* from, size_t size,
                    uint8_t* to) const {
    std::fill_n(to, QuantizedBytes(state.part), uint8_t{0});
    internal::Quantize(format_, from, size, to);
  }

  HookStage AverageOwnPart(const GradBucket& bucket, State& state) {
    const size_t part_bytes = QuantizedBytes(state.part);
    const auto own = static_cast<size_t>(bucket.group->rank());
    const size_t size = state.GetPart(own).second;
    float* const sum = Floats(state.part);
    std::fill_n(sum, size, 0.0f);
    for (size_t rank = 0; rank < state.ranks; ++rank) {
      internal::DequantizeAndAdd(
          format_, state.received.data() + rank * part_bytes, size, sum);
    }
    float* const exact = state.own_errors.data();
    for (size_t i = 0; i < size; ++i) {
      exact[i] += sum[i] / static_cast<float>(state.ranks);
    }
    QuantizePart(state, exact, size, state.sent.data());
    internal::SubtractQuantized(format_, state.sent.data(), size, exact);
    const Tensor average(state.sent.data(), {static_cast<int64_t>(part_bytes)});
    Work work = bucket.group->AllGatherIntoTensor(state.received, average,
                                                  {.async_op = true});
    return {std::move(work),
            [this, &bucket, &state] { WriteAverages(bucket, state); }};
  }

  void WriteAverages(const GradBucket& bucket, const State& state) {
    float* const averages = Floats(state.count);
    for (size_t rank = 0; rank < state.ranks; ++rank) {
      const auto [at, size] = state.GetPart(rank);
      internal::Dequantize(
          format_, state.received.data() + rank * QuantizedBytes(state.part),
          size, averages + at);
    }
    internal::FromFloats(averages, bucket.buffer);
  }

  const EightBits format_;
  const std::string name_;
  internal::BucketStates<State> states_;
  std::vector<float> floats_;
};

}  // namespace

std::shared_ptr<CommunicationHook> MakeInt8CompressHook() {
  return std::make_shared<QuantizedHook>(EightBits::kInt8, "int8_compress");
}

std::shared_ptr<CommunicationHook> MakeFp8CompressHook() {
  return std::make_shared<QuantizedHook>(EightBits::kFloat8E4m3fn,
                                         "fp8_compress");
}

}  // namespace muster
