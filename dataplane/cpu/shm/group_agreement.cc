#include "dataplane/cpu/shm/group_agreement.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::shm {
namespace {

// The reason of a rank that refuses. A longer text is cut.
using Why = std::array<char, 512>;

}  // namespace

std::string GroupAgreement::Refusal::Describe() const {
  return absl::StrCat("rank ", rank, ": ", why);
}

Status GroupAgreement::Gather(void* own, void* all, size_t bytes) {
  const auto one = static_cast<int64_t>(bytes);
  const Collective gathering = {
      .kind = CollectiveKind::kAllGatherIntoTensor,
      .step = step_,
      .inputs = {Tensor(own, DataType::kUint8, {one})},
      .outputs = {Tensor(all, DataType::kUint8, {one * world_size()})},
      .timeout =
          std::chrono::duration_cast<std::chrono::milliseconds>(timeout_),
      .deadline = deadline_};
  return engine_.RunStep(gathering);
}

StatusOr<std::optional<GroupAgreement::Refusal>> GroupAgreement::FindRefusal(
    const Status& own) {
  const auto refuses = AllGather(uint8_t{!own.ok()});
  if (!refuses.ok()) return refuses.status();
  const auto first = std::find(refuses->begin(), refuses->end(), 1);
  if (first == refuses->end()) return std::nullopt;
  Why why = {};
  own.message().copy(why.data(), why.size());
  const auto all = AllGather(why);
  if (!all.ok()) return all.status();
  const int refusing = static_cast<int>(first - refuses->begin());
  const Why& theirs = (*all)[refusing];
  return Refusal{refusing, std::string(theirs.data(),
                                       strnlen(theirs.data(), theirs.size()))};
}

StatusOr<GroupAgreement::Shared> GroupAgreement::Share(
    size_t bytes, int maker, const std::shared_ptr<SegmentFile>& file,
    std::optional<size_t> reserved) {
  Status had;
  Shared shared;
  Segment::Location place = {};
  if (rank() == maker) {
    auto segment = Segment::Create(bytes, file, reserved);
    had = segment.status();
    if (segment.ok()) {
      shared.segment = *std::move(segment);
      place = shared.segment->place();
    }
  }
  const auto places = AllGather(place);
  if (!places.ok()) return places.status();
  // If the maker failed, Open fails here, too; FindRefusal returns the maker's
  // reason, because its rank is the lowest of them.
  if (rank() != maker) {
    auto segment = Segment::Open((*places)[maker], bytes, file);
    had = segment.status();
    if (segment.ok()) shared.segment = *std::move(segment);
  }
  auto refusal = FindRefusal(had);
  if (!refusal.ok()) return refusal.status();
  if (!refusal->has_value()) return shared;
  // The file may outlive the segment.
  if (rank() == maker && shared.segment != nullptr) {
    shared.segment->GiveBack(0, bytes);
  }
  return Shared{nullptr, **std::move(refusal)};
}

}  // namespace muster::dataplane::shm
