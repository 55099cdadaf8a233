#include "client/parallel/averaging/arguments.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "client/parallel/elements/float_conversion.h"
#include "muster/base/status.h"

namespace muster::internal {
void AddTensors(const std::string& argument, const std::vector<Tensor>& tensors,
                bool cpu_only, Agreement& agreement) {
  agreement.Add(absl::StrCat("the number of ", argument),
                absl::StrCat(tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    const std::string name =
        absl::StrCat("argument ", argument, ", number ", i);
    if (!tensor.is_valid()) {
      agreement.AddFault(InvalidArgumentError(
          absl::StrCat(name, ": ", tensor.Validate().message())));
    } else if (!IsFloat(tensor.data_type())) {
      agreement.AddFault(InvalidArgumentError(
          absl::StrCat(name, " is ", tensor.Describe(),
                       ", must be float16, bfloat16, float32 or float64")));
    } else if (cpu_only && tensor.device().type != DeviceType::kCpu) {
      agreement.AddFault(UnimplementedError(
          absl::StrCat(name, " is ", tensor.Describe(),
                       ", only tensors on the CPU are supported")));
    }
    agreement.Add(
        name,
        Tensor(tensor.data(), tensor.data_type(), tensor.shape()).Describe());
  }
}

}  // namespace muster::internal
