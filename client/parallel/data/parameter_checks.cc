#include "client/parallel/data/parameter_checks.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/parallel/data/float_conversion.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

Status CheckParameter(const Parameter& parameter) {
  const Tensor& value = parameter.value;
  const Tensor& gradient = parameter.gradient;
  const std::string name =
      absl::StrCat("parameter ", base::Quote(parameter.name));
  if (Status valid = value.Validate(); !valid.ok()) {
    return InvalidArgumentError(absl::StrCat(name, ": ", valid.message()));
  }
  if (value.device().type != DeviceType::kCpu) {
    return UnimplementedError(absl::StrCat(
        name, " is ", value.Describe(), ": only CPU tensors are implemented"));
  }
  if (!IsGradientType(value.data_type()) || value.element_count() == 0) {
    return InvalidArgumentError(absl::StrCat(
        name, " is ", value.Describe(),
        ": float16, bfloat16, float32 or float64 and elements are needed"));
  }
  if (gradient.data() == nullptr) return OkStatus();
  if (gradient.data_type() != value.data_type() ||
      gradient.device() != value.device() ||
      !std::ranges::equal(gradient.shape(), value.shape())) {
    return InvalidArgumentError(absl::StrCat(name, " is ", value.Describe(),
                                             ", but its gradient is ",
                                             gradient.Describe()));
  }
  return gradient.Validate();
}

Status CheckArguments(const std::vector<Parameter>& parameters,
                      const DataParallelOptions& options) {
  if (parameters.empty()) return InvalidArgumentError("no parameters");
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    if (Status ok = CheckParameter(parameter); !ok.ok()) return ok;
    if (!names.insert(parameter.name).second) {
      return InvalidArgumentError(absl::StrCat("two parameters are called ",
                                               base::Quote(parameter.name)));
    }
  }
  for (const NamedTensor& buffer : options.buffers) {
    if (Status ok = buffer.tensor.Validate(); !ok.ok()) {
      return InvalidArgumentError(absl::StrCat(
          "buffer ", base::Quote(buffer.name), ": ", ok.message()));
    }
  }
  return OkStatus();
}

}  // namespace

Agreement MakeAgreement(const std::vector<Parameter>& parameters,
                        const DataParallelOptions& options,
                        const CommunicationHook& hook) {
  Agreement all("data_parallel");
  all.AddFault(CheckArguments(parameters, options));
  for (size_t i = 0; i < parameters.size(); ++i) {
    all.Add(absl::StrCat("parameter ", i),
            absl::StrCat(base::Quote(parameters[i].name), " ",
                         parameters[i].value.Describe()));
  }
  for (size_t i = 0; i < options.buffers.size(); ++i) {
    all.Add(absl::StrCat("buffer ", i),
            absl::StrCat(base::Quote(options.buffers[i].name), " ",
                         options.buffers[i].tensor.Describe()));
  }
  all.AddAtLeast("option bucket_bytes", options.bucket_bytes, 1);
  all.AddAtLeast("option first_bucket_bytes", options.first_bucket_bytes, 1);
  all.Add("option broadcast_buffers", absl::StrCat(options.broadcast_buffers));
  all.Add("option find_unused_parameters",
          absl::StrCat(options.find_unused_parameters));
  all.Add("option static_graph", absl::StrCat(options.static_graph));
  all.Add("option hook", base::Printable(hook.Describe()));
  return all;
}

}  // namespace muster::internal
