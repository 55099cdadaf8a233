#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/elements/neutral_element.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/distributed.h"
#include "muster/join.h"

namespace muster {
namespace {

using internal::Invalid;

[[noreturn]] void Unimplemented(const std::string& text) {
  internal::Throw(internal::ErrorSource::kControl, UnimplementedError(text));
}

std::shared_ptr<ProcessGroup> GetGroup(
    const std::shared_ptr<ProcessGroup>& group) {
  return group == nullptr ? WorldGroup() : group;
}

// Memory for one step without an input.
class Shadow {
 public:
  Shadow(DataType type, int64_t count)
      : type_(type),
        count_(count),
        // Blocks of 16 bytes, so that elements of any type are aligned.
        memory_(static_cast<size_t>(count) * dataplane::DataTypeBytes(type) /
                    16 +
                1) {}

  Tensor tensor() { return {memory_.data(), type_, {count_}}; }

 private:
  struct alignas(16) Block {
    std::byte bytes[16] = {};
  };
  DataType type_;
  int64_t count_;
  std::vector<Block> memory_;
};

void CheckCount(const char* name, int64_t count) {
  if (count >= 0) return;
  Invalid(absl::StrCat(name, ": argument count must not be negative but was ",
                       count));
}

void FillNeutral(const char* name, const Tensor& tensor, ReduceOp op) {
  if (internal::FillNeutral(tensor, op)) return;
  Unimplemented(absl::StrCat(name, ": there is no neutral element for ",
                             dataplane::ReduceOpName(op), " of ",
                             dataplane::DataTypeName(tensor.data_type())));
}

void CheckNeutral(const char* name, DataType type, ReduceOp op) {
  FillNeutral(name, Tensor(nullptr, type, {0}), op);
}

void CheckTensor(const char* name, const char* argument, const Tensor& tensor,
                 DataType type, int64_t count) {
  if (tensor.device().type != DeviceType::kCpu) {
    Unimplemented(absl::StrCat(name, ": argument ", argument, " is ",
                               tensor.Describe(),
                               ", only tensors on the CPU are supported"));
  }
  if (tensor.data_type() == type && tensor.element_count() == count) return;
  Invalid(absl::StrCat(name, ": argument ", argument, " is ", tensor.Describe(),
                       ", the ", name, " was made for ", count, " elements of ",
                       dataplane::DataTypeName(type)));
}

std::string Describe(const char* name, DataType type, int64_t count) {
  return absl::StrCat(name, "(", dataplane::DataTypeName(type), "[", count,
                      "])");
}

std::string Describe(const char* name, DataType type, int64_t count,
                     ReduceOp op) {
  return absl::StrCat(dataplane::ReduceOpName(op), " by ",
                      Describe(name, type, count));
}

constexpr char kAllReduce[] = "JoinableAllReduce";
constexpr char kReduceScatter[] = "JoinableReduceScatter";
constexpr char kAllGather[] = "JoinableAllGather";

}  // namespace

JoinableAllReduce::JoinableAllReduce(DataType data_type, int64_t count,
                                     const JoinableReductionOptions& options)
    : data_type_(data_type), count_(count), options_(options) {
  CheckCount(kAllReduce, count);
  CheckNeutral(kAllReduce, data_type, options.op);
}

void JoinableAllReduce::Run(const Tensor& tensor) {
  const auto group = join_group();
  if (group->state()->IsForOthers(kAllReduce)) return;
  CheckTensor(kAllReduce, "tensor", tensor, data_type_, count_);
  group->AllReduce(tensor, {.op = options_.op});
}

std::shared_ptr<ProcessGroup> JoinableAllReduce::join_group() const {
  return GetGroup(options_.group);
}

void JoinableAllReduce::ShadowStep() {
  Shadow shadow(data_type_, count_);
  FillNeutral(kAllReduce, shadow.tensor(), options_.op);
  Run(shadow.tensor());
}

std::string JoinableAllReduce::DescribeJoin() const {
  return Describe(kAllReduce, data_type_, count_, options_.op);
}

JoinableReduceScatter::JoinableReduceScatter(
    DataType data_type, int64_t count, const JoinableReductionOptions& options)
    : data_type_(data_type), count_(count), options_(options) {
  CheckCount(kReduceScatter, count);
  CheckNeutral(kReduceScatter, data_type, options.op);
}

void JoinableReduceScatter::Run(const Tensor& output, const Tensor& input) {
  const auto group = join_group();
  if (group->state()->IsForOthers(kReduceScatter)) return;
  CheckTensor(kReduceScatter, "output", output, data_type_, count_);
  CheckTensor(kReduceScatter, "input", input, data_type_,
              count_ * group->size());
  group->ReduceScatterTensor(output, input, {.op = options_.op});
}

std::shared_ptr<ProcessGroup> JoinableReduceScatter::join_group() const {
  return GetGroup(options_.group);
}

void JoinableReduceScatter::ShadowStep() {
  Shadow output(data_type_, count_);
  Shadow input(data_type_, count_ * join_group()->size());
  FillNeutral(kReduceScatter, input.tensor(), options_.op);
  Run(output.tensor(), input.tensor());
}

std::string JoinableReduceScatter::DescribeJoin() const {
  return Describe(kReduceScatter, data_type_, count_, options_.op);
}

JoinableAllGather::JoinableAllGather(DataType data_type, int64_t count,
                                     const std::shared_ptr<ProcessGroup>& group)
    : data_type_(data_type), count_(count), group_(group) {
  CheckCount(kAllGather, count);
}

void JoinableAllGather::Run(const Tensor& output, const Tensor& input) {
  const auto group = join_group();
  if (group->state()->IsForOthers(kAllGather)) return;
  CheckTensor(kAllGather, "output", output, data_type_, count_ * group->size());
  CheckTensor(kAllGather, "input", input, data_type_, count_);
  group->AllGatherIntoTensor(output, input);
}

std::shared_ptr<ProcessGroup> JoinableAllGather::join_group() const {
  return GetGroup(group_);
}

void JoinableAllGather::ShadowStep() {
  Shadow output(data_type_, count_ * join_group()->size());
  Shadow input(data_type_, count_);
  Run(output.tensor(), input.tensor());
}

std::string JoinableAllGather::DescribeJoin() const {
  return Describe(kAllGather, data_type_, count_);
}

}  // namespace muster
