#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "client/groups/group_state.h"
#include "client/parallel/averaging/arguments.h"
#include "muster/averaging.h"
#include "muster/coalescing.h"
#include "muster/distributed.h"

namespace muster {
namespace {

using internal::Agreement;

void Average(const std::vector<Tensor>& tensors,
             const std::shared_ptr<ProcessGroup>& group) {
  if (tensors.empty()) return;
  AllReduceCoalesced(tensors, {.op = ReduceOp::kAvg, .group = group});
}

bool IsForOthers(const std::shared_ptr<ProcessGroup>& group, const char* name) {
  return group->state()->IsForOthers(name);
}

}  // namespace

PeriodicModelAverager::PeriodicModelAverager(
    std::vector<Tensor> parameters, const PeriodicModelAveragerOptions& options)
    : parameters_(std::move(parameters)),
      options_(options),
      step_(options.first_step) {
  if (options_.group == nullptr) options_.group = WorldGroup();
  if (IsForOthers(options_.group, "periodic_model_averager")) return;
  Agreement arguments("PeriodicModelAverager");
  arguments.AddAtLeast("option period", options.period, 1);
  arguments.AddAtLeast("option warmup_steps", options.warmup_steps, 0);
  arguments.AddAtLeast("option first_step", options.first_step, 0);
  internal::AddTensors("parameters", parameters_, /*cpu_only=*/false,
                       arguments);
  arguments.Check({options_.group});
}

bool PeriodicModelAverager::AverageParameters() {
  if (IsForOthers(options_.group, "average_parameters")) return false;
  const int64_t since = step_ - options_.warmup_steps;
  const bool is_due = since >= 0 && since % options_.period == 0;
  if (is_due) Average(parameters_, options_.group);
  ++step_;
  return is_due;
}

PostLocalSgd::PostLocalSgd(std::vector<Tensor> parameters,
                           std::vector<Tensor> gradients,
                           const PostLocalSgdOptions& options)
    : gradients_(std::move(gradients)),
      options_(options),
      averager_(std::move(parameters), {.period = options.period,
                                        .warmup_steps = options.warmup_steps,
                                        .first_step = options.first_step,
                                        .group = options.group}) {
  if (options_.group == nullptr) options_.group = WorldGroup();
  if (IsForOthers(options_.group, "post_local_sgd")) return;
  Agreement arguments("PostLocalSgd");
  internal::AddTensors("gradients", gradients_, /*cpu_only=*/false, arguments);
  arguments.Check({options_.group});
}

void PostLocalSgd::AverageGradients() {
  if (step() < options_.warmup_steps) {
    Average(gradients_, options_.group);
  } else if (options_.subgroup != nullptr) {
    Average(gradients_, options_.subgroup);
  }
}

}  // namespace muster
