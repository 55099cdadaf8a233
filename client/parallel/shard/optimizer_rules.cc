// The rules Sgd and AdamW.

#include <cmath>
#include <cstdint>

#include "client/parallel/elements/float_conversion.h"
#include "muster/sharded_optimizer.h"

namespace muster {

OptimizerRule Sgd(const SgdOptions& options) {
  OptimizerRule rule;
  rule.state_slots = options.momentum == 0 ? 0 : 1;
  rule.update = [options](const OptimizerUpdate& update) {
    const bool has_momentum = !update.state.empty();
    // Without a momentum the third array is not used.
    void* const buffer =
        has_momentum ? update.state[0].data() : update.gradient.data();
    internal::ForElements<3>(
        update.value.data_type(),
        {update.value.data(), update.gradient.data(), buffer},
        update.value.element_count(),
        [&]<typename T>(const std::array<T*, 3>& arrays, int64_t count) {
          const auto [value, gradient, momentum] = arrays;
          const T rate = static_cast<T>(update.learning_rate);
          const T decay = static_cast<T>(options.weight_decay);
          const T factor = static_cast<T>(options.momentum);
          for (int64_t i = 0; i < count; ++i) {
            T step = gradient[i] + decay * value[i];
            if (has_momentum) {
              step += factor * momentum[i];
              momentum[i] = step;
            }
            value[i] -= rate * step;
          }
        });
  };
  return rule;
}

OptimizerRule AdamW(const AdamWOptions& options) {
  OptimizerRule rule;
  rule.state_slots = 2;
  rule.update = [options](const OptimizerUpdate& update) {
    const auto step = static_cast<double>(update.step);
    const double first_bias = 1 - std::pow(options.beta1, step);
    const double second_bias = 1 - std::pow(options.beta2, step);
    internal::ForElements<4>(
        update.value.data_type(),
        {update.value.data(), update.gradient.data(), update.state[0].data(),
         update.state[1].data()},
        update.value.element_count(),
        [&]<typename T>(const std::array<T*, 4>& arrays, int64_t count) {
          const auto [value, gradient, first, second] = arrays;
          const T rate = static_cast<T>(update.learning_rate / first_bias);
          const T keep =
              static_cast<T>(1 - update.learning_rate * options.weight_decay);
          const T root_bias = static_cast<T>(std::sqrt(second_bias));
          const T epsilon = static_cast<T>(options.epsilon);
          const T beta1 = static_cast<T>(options.beta1);
          const T beta2 = static_cast<T>(options.beta2);
          const T rest1 = static_cast<T>(1 - options.beta1);
          const T rest2 = static_cast<T>(1 - options.beta2);
          for (int64_t i = 0; i < count; ++i) {
            const T g = gradient[i];
            first[i] = beta1 * first[i] + rest1 * g;
            second[i] = beta2 * second[i] + rest2 * g * g;
            value[i] =
                keep * value[i] -
                rate * first[i] / (std::sqrt(second[i]) / root_bias + epsilon);
          }
        });
  };
  return rule;
}

}  // namespace muster
