#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/groups/group_state.h"
#include "client/parallel/averaging/arguments.h"
#include "dataplane/reduction.h"
#include "muster/averaging.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/distributed.h"

namespace muster {
namespace {

using dataplane::Reduction;

// The parameters of one fragment that are computed in T, one after the other.
template <typename T>
class OuterOptimizer {
 public:
  void Add(const Tensor& parameter) {
    parameters_.push_back(parameter);
    count_ += static_cast<size_t>(parameter.element_count());
  }

  // Takes the parameters as they are. Call it once, after Add.
  void Begin() {
    outer_.resize(count_);
    momentum_.resize(count_);
    gradient_.resize(count_);
    Load(outer_.data());
  }

  void Step(ProcessGroup& group, double learning_rate, double momentum) {
    if (count_ == 0) return;
    ComputeGradient();
    group.AllReduce(gradient_, {.op = ReduceOp::kAvg});
    const auto rate = static_cast<T>(learning_rate);
    const auto keep = static_cast<T>(momentum);
    for (size_t i = 0; i < count_; ++i) {
      momentum_[i] = keep * momentum_[i] + gradient_[i];
      outer_[i] -= rate * (gradient_[i] + keep * momentum_[i]);
    }
    Store();
  }

  void AddState(std::vector<Tensor>& state) {
    if (count_ == 0) return;
    state.emplace_back(outer_);
    state.emplace_back(momentum_);
  }

 private:
  static const Reduction& FindConversion(const Tensor& parameter) {
    // Its accumulators are of type T.
    return Reduction::Of(parameter.data_type(), ReduceOp::kSum);
  }

  void Load(T* values) const {
    for (const Tensor& parameter : parameters_) {
      const auto count = static_cast<size_t>(parameter.element_count());
      FindConversion(parameter).Load(values, parameter.data(), count, 1);
      values += count;
    }
  }

  // How far the parameters have moved from where the last step left them: from
  // `outer_` as the parameters' type has it.
  void ComputeGradient() {
    T* gradient = gradient_.data();
    const T* outer = outer_.data();
    std::vector<T> now;
    std::vector<std::byte> stored;
    for (const Tensor& parameter : parameters_) {
      const auto count = static_cast<size_t>(parameter.element_count());
      const Reduction& conversion = FindConversion(parameter);
      stored.resize(parameter.bytes());
      conversion.Store(stored.data(), outer, count);
      conversion.Load(gradient, stored.data(), count, 1);
      now.resize(count);
      conversion.Load(now.data(), parameter.data(), count, 1);
      for (size_t i = 0; i < count; ++i) gradient[i] -= now[i];
      gradient += count;
      outer += count;
    }
  }

  void Store() const {
    const T* values = outer_.data();
    for (const Tensor& parameter : parameters_) {
      const auto count = static_cast<size_t>(parameter.element_count());
      FindConversion(parameter).Store(parameter.data(), values, count);
      values += count;
    }
  }

  std::vector<Tensor> parameters_;
  size_t count_ = 0;
  std::vector<T> outer_;
  std::vector<T> momentum_;
  std::vector<T> gradient_;
};

struct Fragment {
  OuterOptimizer<float> singles;
  OuterOptimizer<double> doubles;
};

}  // namespace

struct DiLoCo::Impl {
  Impl(const std::vector<Tensor>& parameters, const DiLoCoOptions& the_options)
      : options(the_options), step(the_options.first_step) {
    if (options.group == nullptr) options.group = WorldGroup();
    if (options.group->state()->IsForOthers("diloco")) return;
    Check(parameters);
    fragments.resize(static_cast<size_t>(options.fragments));
    for (size_t i = 0; i < parameters.size(); ++i) {
      options.group->Broadcast(parameters[i], std::nullopt, {.group_src = 0});
      Fragment& fragment = fragments[i % fragments.size()];
      if (parameters[i].data_type() == DataType::kFloat64) {
        fragment.doubles.Add(parameters[i]);
      } else {
        fragment.singles.Add(parameters[i]);
      }
    }
    for (Fragment& fragment : fragments) {
      fragment.singles.Begin();
      fragment.doubles.Begin();
    }
  }

  void Check(const std::vector<Tensor>& parameters) const {
    internal::Agreement arguments("DiLoCo");
    arguments.AddAtLeast("option fragments", options.fragments, 1);
    arguments.AddAtLeast("option period", options.period, options.fragments);
    arguments.AddAtLeast("option first_step", options.first_step, 0);
    const double rate = options.outer_learning_rate;
    arguments.AddNumber("option outer_learning_rate", rate);
    if (!(rate >= 0) || !std::isfinite(rate)) {
      arguments.AddFault(InvalidArgumentError(absl::StrCat(
          "option outer_learning_rate must be at least 0 and finite but was ",
          rate)));
    }
    const double momentum = options.outer_momentum;
    arguments.AddNumber("option outer_momentum", momentum);
    if (!(momentum >= 0 && momentum < 1)) {
      arguments.AddFault(InvalidArgumentError(
          absl::StrCat("option outer_momentum must be at least 0 and less than "
                       "1 but was ",
                       momentum)));
    }
    internal::AddTensors("parameters", parameters, /*cpu_only=*/true,
                         arguments);
    arguments.Check({options.group});
  }

  bool Step() {
    ++step;
    bool any = false;
    const auto count = static_cast<int64_t>(fragments.size());
    for (int64_t i = 0; i < count; ++i) {
      if ((step - (i + 1) * options.period / count) % options.period != 0) {
        continue;
      }
      Fragment& fragment = fragments[static_cast<size_t>(i)];
      fragment.singles.Step(*options.group, options.outer_learning_rate,
                            options.outer_momentum);
      fragment.doubles.Step(*options.group, options.outer_learning_rate,
                            options.outer_momentum);
      any = true;
    }
    return any;
  }

  DiLoCoOptions options;
  int64_t step;
  std::vector<Fragment> fragments;
};

DiLoCo::DiLoCo(const std::vector<Tensor>& parameters,
               const DiLoCoOptions& options)
    : impl_(std::make_unique<Impl>(parameters, options)) {}

DiLoCo::DiLoCo(DiLoCo&&) noexcept = default;
DiLoCo& DiLoCo::operator=(DiLoCo&&) noexcept = default;
DiLoCo::~DiLoCo() = default;

bool DiLoCo::Step() {
  if (impl_->options.group->state()->IsForOthers("diloco")) return false;
  return impl_->Step();
}

int64_t DiLoCo::step() const { return impl_->step; }

std::vector<Tensor> DiLoCo::state() const {
  std::vector<Tensor> state;
  for (Fragment& fragment : impl_->fragments) {
    fragment.singles.AddState(state);
    fragment.doubles.AddState(state);
  }
  return state;
}

}  // namespace muster
