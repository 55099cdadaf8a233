#include "client/parallel/data/parameter_checks.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/parallel/elements/float_conversion.h"
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
  if (!IsFloat(value.data_type()) || value.element_count() == 0) {
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
  if (Status valid = gradient.Validate(); !valid.ok()) {
    return InvalidArgumentError(
        absl::StrCat("the gradient of ", name, ": ", valid.message()));
  }
  return OkStatus();
}

Status CheckBuffer(const NamedTensor& buffer) {
  const std::string name = absl::StrCat("buffer ", base::Quote(buffer.name));
  if (Status valid = buffer.tensor.Validate(); !valid.ok()) {
    return InvalidArgumentError(absl::StrCat(name, ": ", valid.message()));
  }
  if (buffer.tensor.device().type != DeviceType::kCpu) {
    return UnimplementedError(
        absl::StrCat(name, " is ", buffer.tensor.Describe(),
                     ": only CPU tensors are implemented"));
  }
  return OkStatus();
}

// Memory of the program, and what is in it.
struct Memory {
  const std::byte* begin;
  const std::byte* end;
  std::string name;
};

Memory MakeMemory(const Tensor& tensor, std::string name) {
  const auto* const begin = static_cast<const std::byte*>(tensor.data());
  return {begin, begin + tensor.bytes(), std::move(name)};
}

// No two tensors may have memory in common.
Status CheckMemory(const std::vector<Parameter>& parameters,
                   const std::vector<NamedTensor>& buffers) {
  std::vector<Memory> all;
  for (const auto& [name, value, gradient] : parameters) {
    all.push_back(
        MakeMemory(value, absl::StrCat("parameter ", base::Quote(name))));
    if (gradient.data() == nullptr) continue;
    all.push_back(MakeMemory(
        gradient,
        absl::StrCat("the gradient of parameter ", base::Quote(name))));
  }
  for (const auto& [name, tensor] : buffers) {
    if (tensor.bytes() == 0) continue;
    all.push_back(
        MakeMemory(tensor, absl::StrCat("buffer ", base::Quote(name))));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Memory& a, const Memory& b) {
                     return std::less<>()(a.begin, b.begin);
                   });
  for (size_t i = 1; i < all.size(); ++i) {
    if (!std::less<>()(all[i].begin, all[i - 1].end)) continue;
    return InvalidArgumentError(absl::StrCat(
        all[i - 1].name, " and ", all[i].name, " have the same memory"));
  }
  return OkStatus();
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
    if (Status ok = CheckBuffer(buffer); !ok.ok()) return ok;
  }
  return CheckMemory(parameters, options.buffers);
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
