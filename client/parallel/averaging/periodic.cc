#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/averaging/arguments.h"
#include "muster/averaging.h"
#include "muster/base/status.h"
#include "muster/coalescing.h"
#include "muster/distributed.h"
#include "muster/objects.h"

namespace muster {
namespace {

using internal::Agreement;

void Average(const std::vector<Tensor>& tensors,
             const std::shared_ptr<ProcessGroup>& group) {
  if (tensors.empty()) return;
  AllReduceCoalesced(tensors, {.op = ReduceOp::kAvg, .group = group});
}

// Throws on all ranks of `group` unless all ranks of each subgroup have it.
void CheckSubgroups(const ProcessGroup& subgroup,
                    const std::shared_ptr<ProcessGroup>& group) {
  Agreement ranks("subgroup");
  ranks.Add("ranks", absl::StrJoin(subgroup.ranks(), ","));
  // Its size, and what no other subgroup has.
  std::vector<std::string> all;
  AllGatherObject(all, absl::StrCat(subgroup.size(), " ", ranks.ComputeHash()),
                  {.group = group});
  for (size_t i = 0; i < all.size(); ++i) {
    const int size = std::stoi(all[i]);
    const auto with = std::count(all.begin(), all.end(), all[i]);
    if (with == size) continue;
    internal::Throw(internal::ErrorSource::kControl,
                    internal::WithCulprits(
                        InvalidArgumentError(absl::StrCat(
                            "PostLocalSgd: option subgroup: rank ",
                            group->ranks()[i], " has a group of ", size,
                            " ranks, which ", with, " of the ranks have")),
                        {{group->state()->GetMember(static_cast<int>(i))}}));
  }
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
  const bool has_subgroup = options_.subgroup != nullptr;
  arguments.Add("option subgroup", has_subgroup ? "a group" : "none");
  if (has_subgroup && options_.subgroup->rank() < 0) {
    arguments.AddFault(
        InvalidArgumentError("option subgroup: this rank is not in it"));
  }
  arguments.Check({options_.group});
  if (has_subgroup) CheckSubgroups(*options_.subgroup, options_.group);
}

void PostLocalSgd::AverageGradients() {
  if (step() < options_.warmup_steps) {
    Average(gradients_, options_.group);
  } else if (options_.subgroup != nullptr) {
    Average(gradients_, options_.subgroup);
  }
}

}  // namespace muster
