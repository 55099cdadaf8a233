#include "client/examples/transformer/layout.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "muster/distributed.h"

namespace muster::examples {
namespace {

[[noreturn]] void Fail(const std::string& text, const std::string& why) {
  throw std::invalid_argument(absl::StrCat("--parallel=", text, ": ", why));
}

size_t FindIndex(std::string_view name) {
  return static_cast<size_t>(
      std::find(Layout::kNames.begin(), Layout::kNames.end(), name) -
      Layout::kNames.begin());
}

// The prime factors of `number`, the largest first.
std::vector<int64_t> ComputeFactors(int64_t number) {
  std::vector<int64_t> factors;
  for (int64_t factor = 2; number > 1;) {
    if (number % factor == 0) {
      factors.insert(factors.begin(), factor);
      number /= factor;
    } else {
      ++factor;
    }
  }
  return factors;
}

}  // namespace

Layout Layout::Parse(const std::string& text, int64_t world_size) {
  Layout layout;
  int64_t product = 1;
  std::vector<size_t> seen;
  std::vector<size_t> without_size;
  const std::vector<std::string> items =
      absl::StrSplit(text.empty() ? "ddp" : text, ',');
  for (const std::string& item : items) {
    const std::vector<std::string> parts = absl::StrSplit(item, '=');
    const size_t index = FindIndex(parts[0]);
    if (index == kNames.size() || parts.size() > 2) {
      Fail(text,
           absl::StrCat("\"", item, "\" is not ", absl::StrJoin(kNames, ", "),
                        " or such a name with =N"));
    }
    if (std::count(seen.begin(), seen.end(), index) > 0) {
      Fail(text, absl::StrCat("\"", parts[0], "\" is there twice"));
    }
    seen.push_back(index);
    if (parts.size() == 1) {
      without_size.push_back(index);
      continue;
    }
    int64_t& size = layout.sizes_[index];
    if (!absl::SimpleAtoi(parts[1], &size) || size < 1) {
      Fail(text, absl::StrCat("the size of \"", item,
                              "\" is not a number from 1 on"));
    }
    if (size > world_size / product) {
      Fail(text, absl::StrCat("needs more than ", world_size, " ranks"));
    }
    product *= size;
  }
  if (world_size % product != 0 ||
      (without_size.empty() && product != world_size)) {
    Fail(text, absl::StrCat("the sizes' product is ", product, ", there are ",
                            world_size, " ranks"));
  }
  for (const int64_t factor : ComputeFactors(world_size / product)) {
    const auto smallest = std::min_element(
        without_size.begin(), without_size.end(), [&](size_t a, size_t b) {
          return layout.sizes_[a] < layout.sizes_[b];
        });
    layout.sizes_[*smallest] *= factor;
  }
  return layout;
}

DeviceMesh Layout::MakeMesh() const {
  return InitDeviceMesh("cpu", {sizes_.begin(), sizes_.end()},
                        {.dim_names = {kNames.begin(), kNames.end()}});
}

int64_t Layout::size(std::string_view name) const {
  return sizes_.at(FindIndex(name));
}

std::string Layout::ToText() const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (sizes_[i] > 1) parts.push_back(absl::StrCat(kNames[i], "=", sizes_[i]));
  }
  return parts.empty() ? "one process" : absl::StrJoin(parts, ",");
}

}  // namespace muster::examples
