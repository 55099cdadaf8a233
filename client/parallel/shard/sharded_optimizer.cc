#include "muster/sharded_optimizer.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/agreement/agreement.h"
#include "client/parallel/shard/counted_memory.h"
#include "muster/distributed.h"

namespace muster {
namespace {

using internal::Invalid;

// Each tensor of the state begins at a multiple of this.
constexpr size_t kAlignedBytes = 64;

size_t AlignedBytes(const Tensor& tensor) {
  return (tensor.bytes() + kAlignedBytes - 1) / kAlignedBytes * kAlignedBytes;
}

bool AreAlike(const Tensor& a, const Tensor& b) {
  return a.data_type() == b.data_type() && a.device() == b.device() &&
         std::equal(a.shape().begin(), a.shape().end(), b.shape().begin(),
                    b.shape().end());
}

// Why an Optimizer cannot have these arguments; empty: it can.
std::string FindFault(const OptimizerRule& rule,
                      const std::vector<OptimizedTensor>& tensors) {
  if (rule.update == nullptr) return "argument rule: it has no function update";
  if (rule.state_slots < 0) {
    return absl::StrCat("argument rule: state_slots is ", rule.state_slots);
  }
  for (const OptimizedTensor& tensor : tensors) {
    std::string fault;
    if (!tensor.value.is_valid()) {
      fault = tensor.value.Validate().message();
    } else if (!tensor.gradient.is_valid()) {
      fault = absl::StrCat("gradient: ", tensor.gradient.Validate().message());
    } else if (!AreAlike(tensor.value, tensor.gradient)) {
      fault = absl::StrCat("the gradient is ", tensor.gradient.Describe());
    } else if (tensor.value.device().type != DeviceType::kCpu) {
      fault = "it is not on the CPU";
    }
    if (fault.empty()) continue;
    return absl::StrCat("tensor ", base::Quote(tensor.name), ": ",
                        tensor.value.Describe(), ": ", fault);
  }
  return "";
}

// Deals the tensors out to `ranks`, from the largest on, each to the rank with
// the fewest elements so far. Returns each tensor's rank.
std::vector<int> DealOut(const std::vector<OptimizedTensor>& tensors,
                         int ranks) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].value.element_count() > tensors[b].value.element_count();
  });
  std::vector<int64_t> elements(static_cast<size_t>(ranks));
  std::vector<int> owners(tensors.size());
  for (const size_t index : order) {
    const auto least = std::min_element(elements.begin(), elements.end());
    *least += tensors[index].value.element_count();
    owners[index] = static_cast<int>(least - elements.begin());
  }
  return owners;
}

}  // namespace

Optimizer::Optimizer(OptimizerRule rule, std::vector<OptimizedTensor> tensors,
                     const AllocateFunction& allocate)
    : rule_(std::move(rule)), tensors_(std::move(tensors)) {
  const std::string fault = FindFault(rule_, tensors_);
  if (!fault.empty()) Invalid(absl::StrCat("Optimizer: ", fault));
  const auto slots = static_cast<size_t>(rule_.state_slots);
  size_t bytes = 0;
  for (const OptimizedTensor& tensor : tensors_) {
    bytes += slots * AlignedBytes(tensor.value);
  }
  if (bytes == 0) {
    // Also of tensors without elements.
    for (const OptimizedTensor& tensor : tensors_) {
      state_.insert(state_.end(), slots, tensor.value);
    }
    return;
  }
  memory_ = internal::Allocate(bytes, allocate);
  state_bytes_ = static_cast<int64_t>(bytes);
  std::memset(memory_.get(), 0, bytes);
  auto* place = static_cast<std::byte*>(memory_.get());
  for (const OptimizedTensor& tensor : tensors_) {
    for (size_t slot = 0; slot < slots; ++slot) {
      state_.emplace_back(place, tensor.value.data_type(),
                          tensor.value.shape());
      place += AlignedBytes(tensor.value);
    }
  }
}

std::span<const Tensor> Optimizer::state(size_t index) const {
  const auto slots = static_cast<size_t>(rule_.state_slots);
  return std::span(state_).subspan(index * slots, slots);
}

void Optimizer::Step(double learning_rate) {
  ++steps_;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].value.element_count() == 0) continue;
    rule_.update({.value = tensors_[i].value,
                  .gradient = tensors_[i].gradient,
                  .state = state(i),
                  .learning_rate = learning_rate,
                  .step = steps_});
  }
}

ShardedOptimizer::ShardedOptimizer(OptimizerRule rule,
                                   std::vector<OptimizedTensor> tensors,
                                   const ShardedOptimizerOptions& options)
    : group_(options.group == nullptr ? WorldGroup() : options.group),
      tensors_(std::move(tensors)) {
  if (group_->state()->IsForOthers("sharded_optimizer")) return;
  internal::Agreement agreement("ShardedOptimizer");
  const std::string fault = FindFault(rule, tensors_);
  if (!fault.empty()) agreement.AddFault(InvalidArgumentError(fault));
  agreement.Add("the number of state slots of argument rule",
                absl::StrCat(rule.state_slots));
  for (const OptimizedTensor& tensor : tensors_) {
    agreement.Add(absl::StrCat("tensor ", base::Quote(tensor.name)),
                  tensor.value.Describe());
  }
  agreement.Check({group_});
  owners_ = DealOut(tensors_, group_->size());
  std::vector<OptimizedTensor> own;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_own = owners_[i] == group_->rank();
    own_index_.push_back(is_own ? static_cast<int64_t>(own.size()) : -1);
    if (is_own) own.push_back(tensors_[i]);
  }
  internal::AllocateTogether("ShardedOptimizer", {group_}, [&] {
    own_ = std::make_unique<Optimizer>(std::move(rule), std::move(own),
                                       options.allocate_state);
  });
}

void ShardedOptimizer::Step(double learning_rate) {
  if (own_ == nullptr) return;
  try {
    own_->Step(learning_rate);
  } catch (const std::exception& error) {
    // No rank may wait for the parameters of this one.
    group_->Abort(error.what());
    throw;
  }
  std::vector<Work> works;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].value.element_count() == 0) continue;
    works.push_back(group_->Broadcast(
        tensors_[i].value, {}, {.async_op = true, .group_src = owners_[i]}));
  }
  for (Work& work : works) work.Wait();
}

std::span<const Tensor> ShardedOptimizer::state(size_t index) const {
  if (own_ == nullptr || own_index_.at(index) < 0) return {};
  return own_->state(static_cast<size_t>(own_index_[index]));
}

}  // namespace muster
