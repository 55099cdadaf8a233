#include "client/parallel/checkpoint/folders.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster::internal {
namespace {

constexpr absl::string_view kPrefix = "step-";
constexpr absl::string_view kTemporary = "tmp-";
constexpr size_t kRandomDigits = 16;
// One more is a number, too.
constexpr int64_t kSaveMax = std::numeric_limits<int64_t>::max() - 1;

// Takes "step-100." from `name`. Returns the step.
std::optional<int64_t> TakeStep(absl::string_view& name) {
  const size_t dot = name.find('.');
  absl::string_view number = name.substr(0, dot);
  int64_t step = 0;
  if (dot == absl::string_view::npos ||
      !absl::ConsumePrefix(&number, kPrefix) ||
      !absl::SimpleAtoi(number, &step) || step < 0 ||
      absl::StrCat(step) != number) {
    return std::nullopt;
  }
  name.remove_prefix(dot + 1);
  return step;
}

bool IsRandom(absl::string_view digits) {
  return digits.size() == kRandomDigits &&
         std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit);
}

}  // namespace

std::string MakeFolderName(const CheckpointFolder& folder) {
  return absl::StrCat(kPrefix, folder.step, ".", folder.save);
}

std::string MakeTemporaryName(int64_t step) {
  std::random_device random;
  return absl::StrCat(kPrefix, step, ".", kTemporary,
                      absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8));
}

std::string MakeFileName(int rank) {
  return absl::StrFormat("rank-%05d.safetensors", rank);
}

StatusOr<CheckpointFolders> FindFolders(CheckpointStorage& storage) {
  const StatusOr<std::vector<std::string>> names = storage.ListFolders();
  if (!names.ok()) return names.status();
  CheckpointFolders folders;
  std::vector<CheckpointFolder> all;
  for (const std::string& name : *names) {
    absl::string_view rest = name;
    const std::optional<int64_t> step = TakeStep(rest);
    if (!step.has_value()) continue;
    int64_t save = 0;
    if (absl::ConsumePrefix(&rest, kTemporary)) {
      if (IsRandom(rest)) folders.temporary.push_back(name);
    } else if (absl::SimpleAtoi(rest, &save) && save > 0 && save <= kSaveMax &&
               absl::StrCat(save) == rest) {
      all.push_back({*step, save});
      folders.last_save = std::max(folders.last_save, save);
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(b.save, b.step) < std::tie(a.save, a.step);
  });
  std::set<int64_t> steps;
  // The program has gone back to an earlier step since then.
  std::vector<CheckpointFolder> abandoned;
  for (const CheckpointFolder& one : all) {
    const bool is_lowest = steps.empty() || one.step < *steps.begin();
    if (!steps.insert(one.step).second) {
      folders.replaced.push_back(one);
    } else {
      (is_lowest ? folders.checkpoints : abandoned).push_back(one);
    }
  }
  folders.checkpoints.insert(folders.checkpoints.end(), abandoned.begin(),
                             abandoned.end());
  return folders;
}

StatusOr<CheckpointFolder> FindCheckpoint(CheckpointStorage& storage,
                                          int64_t step) {
  const StatusOr<CheckpointFolders> folders = FindFolders(storage);
  if (!folders.ok()) return folders.status();
  for (const CheckpointFolder& one : folders->checkpoints) {
    if (one.step == step) return one;
  }
  return NotFoundError(absl::StrCat("there is no checkpoint of step ", step));
}

Status RemoveFolder(CheckpointStorage& storage, const std::string& folder) {
  absl::string_view rest = folder;
  const std::string away = MakeTemporaryName(TakeStep(rest).value_or(0));
  if (Status renamed = storage.Rename(folder, away); !renamed.ok()) {
    return renamed;
  }
  return storage.Remove(away);
}

}  // namespace muster::internal
