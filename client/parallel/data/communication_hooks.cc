// The hooks that are one all_reduce.

#include "muster/communication_hooks.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/parallel/data/bucket_states.h"
#include "client/parallel/elements/float_conversion.h"

namespace muster {
namespace {

HookStage AllReduce(const GradBucket& bucket) {
  return bucket.group->AllReduce(bucket.buffer,
                                 {.op = ReduceOp::kAvg, .async_op = true});
}

class AllReduceHook : public CommunicationHook {
 public:
  std::string Describe() const override { return "all_reduce"; }
  HookStage Start(const GradBucket& bucket) override {
    return AllReduce(bucket);
  }
};

// Averages in `type`, which has 16 bits.
class CompressHook : public CommunicationHook {
 public:
  CompressHook(DataType type, std::string name)
      : type_(type), name_(std::move(name)) {}

  std::string Describe() const override { return name_; }

  HookStage Start(const GradBucket& bucket) override {
    if (bucket.buffer.element_bytes() == 2) return AllReduce(bucket);
    const auto count = static_cast<size_t>(bucket.buffer.element_count());
    std::vector<uint16_t>& memory =
        compressed_.Get(bucket, [&] { return std::vector<uint16_t>(count); });
    const Tensor compressed(memory.data(), type_, bucket.buffer.shape());
    const float* gradients = static_cast<const float*>(bucket.buffer.data());
    if (bucket.buffer.data_type() != DataType::kFloat32) {
      floats_.resize(count);
      internal::ToFloats(bucket.buffer, floats_.data());
      gradients = floats_.data();
    }
    internal::FromFloats(gradients, compressed);
    Work work = bucket.group->AllReduce(
        compressed, {.op = ReduceOp::kAvg, .async_op = true});
    return {std::move(work), [this, &bucket, compressed] {
              if (bucket.buffer.data_type() == DataType::kFloat32) {
                internal::ToFloats(compressed,
                                   static_cast<float*>(bucket.buffer.data()));
                return;
              }
              floats_.resize(static_cast<size_t>(compressed.element_count()));
              internal::ToFloats(compressed, floats_.data());
              internal::FromFloats(floats_.data(), bucket.buffer);
            }};
  }

  void BucketsRebuilt() override { compressed_.Clear(); }

 private:
  const DataType type_;
  const std::string name_;
  internal::BucketStates<std::vector<uint16_t>> compressed_;
  std::vector<float> floats_;
};

}  // namespace

std::shared_ptr<CommunicationHook> MakeAllReduceHook() {
  return std::make_shared<AllReduceHook>();
}

std::shared_ptr<CommunicationHook> MakeFp16CompressHook() {
  return std::make_shared<CompressHook>(DataType::kFloat16, "fp16_compress");
}

std::shared_ptr<CommunicationHook> MakeBf16CompressHook() {
  return std::make_shared<CompressHook>(DataType::kBfloat16, "bf16_compress");
}

}  // namespace muster
