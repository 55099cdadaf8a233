#include "client/parallel/averaging/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/control/throw.h"
#include "muster/dataplane/tensor.h"
#include "muster/objects.h"

namespace muster::internal {
namespace {

bool IsFloat(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 ||
         type == DataType::kFloat32 || type == DataType::kFloat64;
}

// No text has one: texts are names, numbers and descriptions of tensors.
constexpr char kSeparator = '\n';

}  // namespace

void AgreedArguments::AddTensors(const std::string& argument,
                                 const std::vector<Tensor>& tensors,
                                 bool cpu_only) {
  Add(absl::StrCat("the number of ", argument), absl::StrCat(tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    std::string name = absl::StrCat("argument ", argument, ", number ", i);
    if (!tensor.is_valid()) {
      SetFault(
          absl::StrCat(name, ": ", std::string(tensor.Validate().message())));
    } else if (!IsFloat(tensor.data_type())) {
      SetFault(absl::StrCat(name, " is ", tensor.Describe(),
                            ", must be float16, bfloat16, float32 or float64"));
    } else if (cpu_only && tensor.device().type != DeviceType::kCpu) {
      SetFault(absl::StrCat(name, " is ", tensor.Describe(),
                            ", only tensors on the CPU are supported"),
               StatusCode::kUnimplemented);
    }
    // Devices may differ.
    Add(std::move(name),
        Tensor(tensor.data(), tensor.data_type(), tensor.shape()).Describe());
  }
}

void AgreedArguments::CheckAtLeast(const std::string& argument, int64_t value,
                                   int64_t least) {
  Add(absl::StrCat("option ", argument), absl::StrCat(value));
  if (value >= least) return;
  SetFault(absl::StrCat("option ", argument, " must be at least ", least,
                        " but was ", value));
}

void AgreedArguments::Agree(const std::shared_ptr<ProcessGroup>& group) const {
  std::string fault = fault_;
  std::replace(fault.begin(), fault.end(), kSeparator, ' ');
  std::vector<std::string> mine = {absl::StrCat(static_cast<int>(fault_code_)),
                                   std::move(fault)};
  mine.insert(mine.end(), texts_.begin(), texts_.end());
  std::vector<std::string> all;
  AllGatherObject(all, absl::StrJoin(mine, std::string(1, kSeparator)),
                  {.group = group});
  const std::vector<int> ranks = group->ranks();
  std::vector<std::vector<std::string>> texts;
  for (size_t i = 0; i < all.size(); ++i) {
    texts.push_back(absl::StrSplit(all[i], kSeparator));
    const auto code = static_cast<StatusCode>(std::stoi(texts[i][0]));
    if (code == StatusCode::kOk) continue;
    Throw(ErrorSource::kControl,
          Status(code,
                 absl::StrCat(name_, ": rank ", ranks[i], ": ", texts[i][1])));
  }
  for (size_t i = 1; i < texts.size(); ++i) {
    // A list's number of elements comes before its elements.
    for (size_t at = 3; at < std::min(texts[0].size(), texts[i].size());
         at += 2) {
      if (texts[i][at] == texts[0][at]) continue;
      Invalid(absl::StrCat(name_, ": ", texts[i][at - 1], ": rank ", ranks[i],
                           " has ", texts[i][at], ", rank ", ranks[0], " has ",
                           texts[0][at]));
    }
  }
}

}  // namespace muster::internal
