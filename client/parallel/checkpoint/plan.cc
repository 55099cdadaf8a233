#include "client/parallel/checkpoint/plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "client/parallel/checkpoint/manifest.h"
#include "client/parallel/checkpoint/messages.h"
#include "client/parallel/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"

namespace muster::internal {
namespace {

using dataplane::DataType;
using dataplane::DataTypeBytes;
using nlohmann::json;

// Errors name at most this many boxes.
constexpr size_t kBoxesInTextMax = 8;

Status CheckBox(const ShardDescription& shard) {
  const size_t dimensions = shard.shape.size();
  if (shard.box.offsets.size() != dimensions ||
      shard.box.lengths.size() != dimensions) {
    return InvalidArgumentError(absl::StrCat(
        "global_shape has ", dimensions, " dimensions, offsets have ",
        shard.box.offsets.size(), ", local has ", shard.box.lengths.size()));
  }
  if (!IsPossible(shard.shape, DataTypeBytes(shard.type))) {
    return InvalidArgumentError(absl::StrCat("global_shape is [",
                                             absl::StrJoin(shard.shape, ","),
                                             "], which no tensor can have"));
  }
  for (size_t d = 0; d < dimensions; ++d) {
    const int64_t begin = shard.box.offsets[d];
    if (begin < 0 || shard.box.lengths[d] > shard.shape[d] - begin) {
      return InvalidArgumentError(absl::StrCat(
          "in dimension ", d, " of ", shard.shape[d], " elements, offset ",
          begin, " with ", shard.box.lengths[d], " elements is outside"));
    }
  }
  return OkStatus();
}

// A tensor, and who has which of its boxes, by index of the rank and of its
// shard.
struct HeldTensor {
  const ShardDescription* first = nullptr;
  int first_rank = 0;
  std::map<Box, std::vector<std::pair<size_t, size_t>>> holders = {};
};

using Tensors = std::map<std::string, HeldTensor>;

Status CheckAgreed(const std::vector<RankDescription>& ranks) {
  const RankDescription& first = ranks.front();
  for (const RankDescription& other : ranks) {
    for (size_t i = 0; i < first.agreed.size(); ++i) {
      const auto& [name, value] = first.agreed[i];
      if (other.agreed[i].second == value) continue;
      return InvalidArgumentError(absl::StrCat(
          "argument ", name, " is ", other.agreed[i].second, " on rank ",
          other.rank, ", ", value, " on rank ", first.rank));
    }
  }
  return OkStatus();
}

StatusOr<Tensors> CollectTensors(const std::vector<RankDescription>& ranks) {
  Tensors tensors;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t i = 0; i < ranks[r].shards->size(); ++i) {
      const ShardDescription& shard = (*ranks[r].shards)[i];
      HeldTensor& tensor = tensors[shard.name];
      if (tensor.first == nullptr) {
        tensor.first = &shard;
        tensor.first_rank = ranks[r].rank;
      }
      if (shard.type != tensor.first->type ||
          shard.shape != tensor.first->shape) {
        return InvalidArgumentError(absl::StrCat(
            "tensor ", base::Quote(shard.name), " is ",
            DescribeTensor(shard.type, shard.shape), " on rank ", ranks[r].rank,
            ", ", DescribeTensor(tensor.first->type, tensor.first->shape),
            " on rank ", tensor.first_rank));
      }
      if (ComputeVolume(shard.box.lengths) > 0) {
        tensor.holders[shard.box].emplace_back(r, i);
      }
    }
  }
  return tensors;
}

// "rank 3 has [0:4]".
std::string DescribeHolder(
    const Box& box, const std::vector<std::pair<size_t, size_t>>& holders,
    const std::vector<RankDescription>& ranks) {
  return absl::StrCat("rank ", ranks[holders.front().first].rank, " has ",
                      ToText(box));
}

Status CheckCover(const std::string& name, const HeldTensor& tensor,
                  const std::vector<RankDescription>& ranks) {
  std::vector<Box> boxes;
  boxes.reserve(tensor.holders.size());
  for (const auto& [box, holders] : tensor.holders) boxes.push_back(box);
  const auto describe = [&](const Box& box) {
    return DescribeHolder(box, tensor.holders.at(box), ranks);
  };
  const std::string label = absl::StrCat(
      "tensor ", base::Quote(name), " of ",
      DescribeTensor(tensor.first->type, tensor.first->shape), ": ");
  if (const auto overlap = FindOverlap(boxes)) {
    return InvalidArgumentError(absl::StrCat(
        label, "boxes overlap in part: ", describe(boxes[overlap->first]), ", ",
        describe(boxes[overlap->second])));
  }
  const auto gap = FindGap(MakeWholeBox(tensor.first->shape), boxes);
  if (!gap.has_value()) return OkStatus();
  std::string text = absl::StrCat(label, "no rank has ", ToText(*gap));
  for (size_t i = 0; i < std::min(boxes.size(), kBoxesInTextMax); ++i) {
    absl::StrAppend(&text, ", ", describe(boxes[i]));
  }
  if (boxes.size() > kBoxesInTextMax) {
    absl::StrAppend(&text, " and ", boxes.size() - kBoxesInTextMax,
                    " more boxes");
  }
  return InvalidArgumentError(text);
}

// Two tensors of one file must not have one key: a name may look like that of
// a part.
Status CheckKeys(const Tensors& tensors) {
  std::map<std::string, std::string> names;
  for (const auto& [name, tensor] : tensors) {
    for (const auto& [box, holders] : tensor.holders) {
      const auto [it, is_new] =
          names.emplace(MakeKey(name, tensor.first->shape, box), name);
      if (is_new) continue;
      return InvalidArgumentError(absl::StrCat(
          "tensors ", base::Quote(it->second), " and ", base::Quote(name),
          " would both be stored as ", base::Quote(it->first)));
    }
  }
  return OkStatus();
}

// Gives each box, the largest first, to that of its holders which writes least
// so far.
std::vector<std::vector<size_t>> AssignWriters(const Tensors& tensors,
                                               size_t ranks) {
  using Holders = std::vector<std::pair<size_t, size_t>>;
  std::vector<std::pair<int64_t, const Holders*>> boxes;
  for (const auto& [name, tensor] : tensors) {
    for (const auto& [box, holders] : tensor.holders) {
      boxes.emplace_back(
          ComputeVolume(box.lengths) *
              static_cast<int64_t>(DataTypeBytes(tensor.first->type)),
          &holders);
    }
  }
  std::stable_sort(
      boxes.begin(), boxes.end(),
      [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<int64_t> written(ranks, 0);
  std::vector<std::vector<size_t>> plan(ranks);
  for (const auto& [bytes, holders] : boxes) {
    const auto [rank, index] = *std::min_element(
        holders->begin(), holders->end(), [&](const auto& a, const auto& b) {
          return written[a.first] < written[b.first];
        });
    written[rank] += bytes;
    plan[rank].push_back(index);
  }
  return plan;
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    if (base::TakeCharacter(text) == base::kNoCharacter) return false;
  }
  return true;
}

StatusOr<ShardDescription> DescribeShard(const CheckpointShard& shard) {
  const auto failure = [&](const Status& status) {
    return Status(status.code(), absl::StrCat("shard ", base::Quote(shard.name),
                                              ": ", status.message()));
  };
  const auto lengths = shard.local.shape();
  ShardDescription description = {
      .name = shard.name,
      .type = shard.local.data_type(),
      .shape = shard.global_shape,
      .box = {shard.offsets, {lengths.begin(), lengths.end()}}};
  if (shard.global_shape.empty() && shard.offsets.empty()) {
    description.shape = description.box.lengths;
    description.box.offsets.assign(lengths.size(), 0);
  }
  // The format has metadata under that key.
  if (shard.name.empty() || !IsUtf8(shard.name) ||
      shard.name == "__metadata__") {
    return failure(InvalidArgumentError("a tensor cannot have this name"));
  }
  if (Status valid = shard.local.Validate(); !valid.ok()) {
    return failure(valid);
  }
  if (shard.local.device().type != dataplane::DeviceType::kCpu) {
    return failure(UnimplementedError(absl::StrCat(
        shard.local.Describe(), " is not on the CPU; copy it there before")));
  }
  if (ToSafetensorsType(description.type).empty()) {
    return failure(UnimplementedError(absl::StrCat(
        shard.local.Describe(), " has a type that safetensors lacks")));
  }
  if (Status box = CheckBox(description); !box.ok()) {
    return failure(box);
  }
  return description;
}

StatusOr<std::vector<ShardDescription>> DescribeShards(
    const std::vector<CheckpointShard>& shards) {
  std::vector<ShardDescription> descriptions;
  std::set<std::pair<std::string, Box>> seen;
  for (const CheckpointShard& shard : shards) {
    StatusOr<ShardDescription> one = DescribeShard(shard);
    if (!one.ok()) return one.status();
    if (!seen.emplace(one->name, one->box).second) {
      return InvalidArgumentError(absl::StrCat("shard ", base::Quote(one->name),
                                               ": ", ToText(one->box),
                                               " is there twice"));
    }
    descriptions.push_back(*std::move(one));
  }
  return descriptions;
}

std::string ToBytes(const RankDescription& description) {
  json shards;
  if (description.shards.has_value()) {
    shards = json::array();
    for (const ShardDescription& shard : *description.shards) {
      shards.push_back(
          json::array({shard.name, static_cast<int>(shard.type), shard.shape,
                       shard.box.offsets, shard.box.lengths}));
    }
  }
  const json whole = {{"rank", description.rank},
                      {"code", static_cast<int>(description.fault.code())},
                      {"message", description.fault.message()},
                      {"agreed", description.agreed},
                      {"shards", std::move(shards)}};
  return ToBytes(whole);
}

StatusOr<RankDescription> ParseRankDescription(const std::string& bytes) {
  try {
    const json whole = json::parse(bytes);
    RankDescription description = {
        .rank = whole.at("rank"),
        .fault = Status(static_cast<StatusCode>(whole.at("code").get<int>()),
                        whole.at("message"))};
    whole.at("agreed").get_to(description.agreed);
    const json& shards = whole.at("shards");
    if (shards.is_null()) return description;
    description.shards.emplace();
    for (const auto& shard : shards) {
      description.shards->push_back(
          {.name = shard.at(0),
           .type = static_cast<DataType>(shard.at(1).get<int>()),
           .shape = shard.at(2),
           .box = {shard.at(3), shard.at(4)}});
    }
    return description;
  } catch (const json::exception& error) {
    return InternalError(absl::StrCat("a rank's shards: ", error.what()));
  }
}

Status CheckRanks(const std::vector<RankDescription>& ranks) {
  for (const RankDescription& rank : ranks) {
    if (rank.fault.ok()) continue;
    return Status(rank.fault.code(),
                  absl::StrCat("rank ", rank.rank, ": ", rank.fault.message()));
  }
  return CheckAgreed(ranks);
}

StatusOr<std::vector<std::vector<size_t>>> PlanSave(
    const std::vector<RankDescription>& ranks) {
  const StatusOr<Tensors> tensors = CollectTensors(ranks);
  if (!tensors.ok()) return tensors.status();
  for (const auto& [name, tensor] : *tensors) {
    if (Status cover = CheckCover(name, tensor, ranks); !cover.ok()) {
      return cover;
    }
  }
  if (Status keys = CheckKeys(*tensors); !keys.ok()) return keys;
  return AssignWriters(*tensors, ranks.size());
}

}  // namespace muster::internal
