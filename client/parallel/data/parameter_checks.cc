#include "client/parallel/data/parameter_checks.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>

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
  for (const auto& [name, bytes] :
       {std::pair("bucket_bytes", options.bucket_bytes),
        std::pair("first_bucket_bytes", options.first_bucket_bytes)}) {
    if (bytes <= 0) {
      return InvalidArgumentError(
          absl::StrCat(name, " must be positive but was ", bytes));
    }
  }
  return OkStatus();
}

}  // namespace

Arguments MakeArguments(const std::vector<Parameter>& parameters,
                        const DataParallelOptions& options,
                        const CommunicationHook& hook) {
  Arguments all{.fault = CheckArguments(parameters, options)};
  for (size_t i = 0; i < parameters.size(); ++i) {
    all.items.push_back(absl::StrCat("parameter ", i, " ",
                                     base::Quote(parameters[i].name), " ",
                                     parameters[i].value.Describe()));
  }
  for (size_t i = 0; i < options.buffers.size(); ++i) {
    all.items.push_back(absl::StrCat("buffer ", i, " ",
                                     base::Quote(options.buffers[i].name), " ",
                                     options.buffers[i].tensor.Describe()));
  }
  all.items.insert(
      all.items.end(),
      {absl::StrCat("bucket_bytes ", options.bucket_bytes),
       absl::StrCat("first_bucket_bytes ", options.first_bucket_bytes),
       absl::StrCat("broadcast_buffers ", options.broadcast_buffers),
       absl::StrCat("find_unused_parameters ", options.find_unused_parameters),
       absl::StrCat("static_graph ", options.static_graph),
       absl::StrCat("hook ", base::Printable(hook.Describe()))});
  return all;
}

}  // namespace muster::internal
