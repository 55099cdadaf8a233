#include "client/parallel/checkpoint/save.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exception_guard.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/checkpoint/folders.h"
#include "client/parallel/checkpoint/messages.h"
#include "client/parallel/checkpoint/safetensors.h"
#include "glog/logging.h"
#include "muster/distributed.h"
#include "muster/errors.h"
#include "nlohmann/json.hpp"

namespace muster::internal {
namespace {

using nlohmann::json;

// A file that is written block by block, each with its checksum.
class BlockWriter {
 public:
  explicit BlockWriter(std::unique_ptr<CheckpointWriter> file)
      : file_(std::move(file)) {}

  // Returns the checksums of the blocks.
  StatusOr<std::vector<uint32_t>> Append(std::span<const std::byte> bytes) {
    std::vector<uint32_t> checksums;
    while (!bytes.empty()) {
      const auto block =
          bytes.first(std::min(bytes.size(), static_cast<size_t>(kBlockBytes)));
      if (Status status = file_->Append(block); !status.ok()) return status;
      checksums.push_back(ComputeChecksum(block));
      bytes = bytes.subspan(block.size());
    }
    return checksums;
  }

  Status Finish() { return file_->Finish(); }

 private:
  const std::unique_ptr<CheckpointWriter> file_;
};

}  // namespace

CheckpointSave::CheckpointSave(CheckpointStorage& storage, SavePlan& plan,
                               int64_t step, SaveCheckpointOptions options)
    : storage_(storage),
      step_(step),
      options_(std::move(options)),
      plan_(plan) {}

ObjectSourceOptions CheckpointSave::FromFirst() const {
  return {.group = options_.group, .timeout = options_.timeout, .group_src = 0};
}

std::vector<std::string> CheckpointSave::GatherAtFirst(
    const std::string& mine) const {
  std::vector<std::string> all;
  GatherObject(
      mine, IsFirst() ? &all : nullptr, std::nullopt,
      {.group = options_.group, .timeout = options_.timeout, .group_dst = 0});
  return all;
}

void CheckpointSave::ThrowIfFailed(const Verdict& verdict) const {
  ThrowWithCulprits(Status(verdict.status.code(),
                           absl::StrCat("checkpoint of step ", step_, ": ",
                                        verdict.status.message())),
                    verdict.culprits, *options_.group);
}

void CheckpointSave::Agree(const std::vector<CheckpointShard>& state) {
  RankDescription mine;
  mine.rank =
      options_.group->ranks()[static_cast<size_t>(options_.group->rank())];
  mine.agreed = {{"step", step_},
                 {"keep_newest", options_.keep_newest},
                 {"keep_every", options_.keep_every}};
  for (const auto& [name, value] : mine.agreed) {
    if (value >= 0) continue;
    mine.fault.Update(InvalidArgumentError(absl::StrCat(
        "argument ", name, " must not be negative but was ", value)));
  }
  for (const auto& [name, text] : options_.values) {
    if (!IsFirst() || (IsUtf8(name) && IsUtf8(text))) continue;
    mine.fault.Update(InvalidArgumentError(
        absl::StrCat("value ", base::Quote(name), " is not UTF-8")));
  }
  const StatusOr<std::vector<ShardDescription>> shards = DescribeShards(state);
  mine.fault.Update(shards.status());
  // After a failure all ranks tell their shards again.
  const auto before = std::exchange(plan_.mine, std::nullopt);
  if (shards.ok() && before != *shards) mine.shards = *shards;
  const std::vector<std::string> all = GatherAtFirst(internal::ToBytes(mine));
  std::vector<std::string> answer(1);
  ScatterObjectList(answer, IsFirst() ? MakeAnswers(all) : answer, std::nullopt,
                    FromFirst());
  const json object = json::parse(answer[0]);
  ThrowIfFailed({StatusFromJson(object)});
  folder_ = object.at("folder");
  for (const size_t index : object.at("write")) {
    const Tensor& local = state[index].local;
    pieces_.push_back(
        {index,
         {static_cast<const std::byte*>(local.data()), local.bytes()},
         (*shards)[index]});
  }
  plan_.mine = *shards;
}

std::vector<std::string> CheckpointSave::MakeAnswers(
    const std::vector<std::string>& all) {
  Status status;
  plan_.ranks.resize(all.size());
  bool is_new = false;
  for (size_t r = 0; r < all.size(); ++r) {
    StatusOr<RankDescription> rank = ParseRankDescription(all[r]);
    status.Update(rank.status());
    if (!rank.ok()) continue;
    if (rank->shards.has_value()) {
      is_new = true;
    } else {
      rank->shards = std::move(plan_.ranks[r].shards);
    }
    plan_.ranks[r] = *std::move(rank);
  }
  if (status.ok()) status = CheckRanks(plan_.ranks);
  if (status.ok() && is_new) {
    StatusOr<std::vector<std::vector<size_t>>> writes = PlanSave(plan_.ranks);
    if (writes.ok()) {
      plan_.writes = *std::move(writes);
    } else {
      status = writes.status();
    }
  }
  plan_.writes.resize(all.size());
  if (status.ok()) status = base::Guarded([&] { return Prepare(); });
  std::vector<std::string> answers;
  for (const std::vector<size_t>& write : plan_.writes) {
    json answer = ToJson(status);
    answer["folder"] = folder_;
    answer["write"] = write;
    answers.push_back(ToBytes(answer));
  }
  return answers;
}

// Removes the leftovers of saves that did not end, and chooses a folder.
Status CheckpointSave::Prepare() {
  const StatusOr<CheckpointFolders> folders = FindFolders(storage_);
  if (!folders.ok()) return folders.status();
  for (const std::string& folder : folders->temporary) Remove(folder);
  folder_ = MakeTemporaryName(step_);
  save_ = folders->last_save + 1;
  return OkStatus();
}

void CheckpointSave::Remove(const std::string& folder) const {
  const Status removed = RemoveFolder(storage_, folder);
  LOG_IF(WARNING, !removed.ok())
      << "checkpoint folder " << folder << " stays: " << removed;
}

void CheckpointSave::CopyShards() {
  size_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.bytes.size();
  copy_.reset(new (std::nothrow) std::byte[bytes]);
  if (copy_ == nullptr) {
    failure_ = ResourceExhaustedError(
        absl::StrCat("no memory for a copy of ", bytes, " bytes"));
    return;
  }
  std::byte* at = copy_.get();
  for (Piece& piece : pieces_) {
    std::memcpy(at, piece.bytes.data(), piece.bytes.size());
    piece.bytes = {at, piece.bytes.size()};
    at += piece.bytes.size();
  }
}

void CheckpointSave::Write() {
  std::string written;
  Status mine = failure_;
  if (mine.ok()) {
    mine = base::Guarded([&] {
      StatusOr<std::string> file = WriteFile();
      if (!file.ok()) return file.status();
      written = *std::move(file);
      return OkStatus();
    });
  }
  json result = ToJson(mine);
  result["written"] = written;
  std::vector<std::string> results;
  try {
    results = GatherAtFirst(ToBytes(result));
  } catch (const DistError&) {
    if (IsFirst()) RemoveUnfinished();
    throw;
  }
  std::vector<std::string> answer(1);
  if (IsFirst()) {
    Verdict verdict;
    const Status ended = base::Guarded([&] {
      verdict = Commit(results);
      return OkStatus();
    });
    if (!ended.ok()) verdict = {ended, {plan_.ranks.front().rank}};
    if (!verdict.status.ok()) RemoveUnfinished();
    json object = ToJson(verdict.status);
    object["culprits"] = verdict.culprits;
    answer[0] = ToBytes(object);
  }
  BroadcastObjectList(answer, std::nullopt, FromFirst());
  const json object = json::parse(answer[0]);
  ThrowIfFailed({StatusFromJson(object), object.at("culprits")});
  if (!IsFirst()) return;
  // The checkpoint is saved, whatever happens to the old ones.
  const Status removed = base::Guarded([&] {
    RemoveOld();
    return OkStatus();
  });
  LOG_IF(WARNING, !removed.ok()) << "old checkpoints stay: " << removed;
}

StatusOr<std::string> CheckpointSave::WriteFile() {
  if (pieces_.empty()) return std::string();
  const auto entry = [](const Piece& piece) -> SafetensorsEntry {
    const ShardDescription& shard = piece.description;
    return {MakeKey(shard.name, shard.shape, shard.box), shard.type,
            shard.box.lengths};
  };
  std::sort(pieces_.begin(), pieces_.end(),
            [&](const Piece& a, const Piece& b) {
              return IsStoredBefore(entry(a), entry(b));
            });
  std::vector<SafetensorsEntry> entries;
  for (const Piece& piece : pieces_) entries.push_back(entry(piece));
  const SafetensorsLayout layout = LayOutSafetensors(entries);
  const std::string name = MakeFileName(options_.group->rank());
  auto file = storage_.Create(absl::StrCat(folder_, "/", name));
  if (!file.ok()) return file.status();
  BlockWriter writer(*std::move(file));
  const auto header = writer.Append(std::as_bytes(std::span(layout.header)));
  if (!header.ok()) return header.status();
  json shards = json::array();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const auto checksums = writer.Append(pieces_[i].bytes);
    if (!checksums.ok()) return checksums.status();
    shards.push_back(
        json::array({pieces_[i].index, layout.offsets[i], ToHex(*checksums)}));
  }
  if (Status finished = writer.Finish(); !finished.ok()) return finished;
  return ToBytes({{"name", name}, {"bytes", layout.bytes}, {"shards", shards}});
}

CheckpointSave::Verdict CheckpointSave::Commit(
    const std::vector<std::string>& results) {
  Verdict verdict;
  std::vector<std::string> written;
  for (size_t r = 0; r < results.size(); ++r) {
    const json result = json::parse(results[r]);
    const Status status = StatusFromJson(result);
    written.push_back(result.at("written"));
    if (status.ok()) continue;
    verdict.culprits.push_back(plan_.ranks[r].rank);
    verdict.status.Update(Status(
        status.code(),
        absl::StrCat("rank ", plan_.ranks[r].rank, ": ", status.message())));
  }
  if (verdict.culprits.size() > 1) {
    verdict.status =
        Status(verdict.status.code(),
               absl::StrCat(verdict.status.message(), "; failed are ",
                            base::RanksText(verdict.culprits)));
  }
  if (!verdict.status.ok()) return verdict;
  const Manifest manifest = MakeManifest(written);
  Status status = WriteManifest(manifest);
  // At the end, because another save may have taken the folder away.
  if (status.ok()) status = CheckFiles(manifest);
  if (status.ok()) {
    status = storage_.Rename(folder_, MakeFolderName({step_, save_}));
  }
  if (status.ok()) return verdict;
  const int first = plan_.ranks.front().rank;
  return {Status(status.code(),
                 absl::StrCat("rank ", first, ": ", status.message())),
          {first}};
}

Manifest CheckpointSave::MakeManifest(
    const std::vector<std::string>& results) const {
  Manifest manifest = {.step = step_,
                       .world_size = static_cast<int>(plan_.ranks.size()),
                       .values = options_.values};
  for (size_t r = 0; r < results.size(); ++r) {
    for (const ShardDescription& shard : *plan_.ranks[r].shards) {
      StoredTensor& tensor = manifest.tensors[shard.name];
      tensor.type = shard.type;
      tensor.shape = shard.shape;
    }
    if (results[r].empty()) continue;
    const json result = json::parse(results[r]);
    for (const auto& one : result.at("shards")) {
      const ShardDescription& shard =
          plan_.ranks[r].shards->at(one.at(0).get<size_t>());
      manifest.tensors[shard.name].shards.push_back(
          {.file = manifest.files.size(),
           .key = MakeKey(shard.name, shard.shape, shard.box),
           .offset = one.at(1),
           .box = shard.box,
           .checksums = FromHex(one.at(2).get<std::string>()).value()});
    }
    manifest.files.push_back({result.at("name"), result.at("bytes")});
  }
  return manifest;
}

// Finds ranks that have written elsewhere.
Status CheckpointSave::CheckFiles(const Manifest& manifest) const {
  for (const StoredFile& file : manifest.files) {
    const std::string path = absl::StrCat(folder_, "/", file.name);
    const StatusOr<std::unique_ptr<CheckpointReader>> reader =
        storage_.Open(path);
    const int64_t size = reader.ok() ? (*reader)->size() : -1;
    if (size == file.bytes) continue;
    return FailedPreconditionError(absl::StrCat(
        base::Quote(path), " has ", file.bytes, " bytes where it was written, ",
        size < 0 ? reader.status().message() : absl::StrCat(size, " bytes"),
        " here: do all ranks write to the same storage? Is this the only save "
        "in it?"));
  }
  return OkStatus();
}

Status CheckpointSave::WriteManifest(const Manifest& manifest) const {
  auto file = storage_.Create(absl::StrCat(folder_, "/", kManifestName));
  if (!file.ok()) return file.status();
  const std::string text = internal::ToJson(manifest);
  Status status = (*file)->Append(std::as_bytes(std::span(text)));
  if (status.ok()) status = (*file)->Finish();
  return status;
}

void CheckpointSave::RemoveUnfinished() const {
  const Status removed =
      base::Guarded([&] { return storage_.Remove(folder_); });
  LOG_IF(WARNING, !removed.ok()) << "a part of a checkpoint stays: " << removed;
}

void CheckpointSave::RemoveOld() const {
  const StatusOr<CheckpointFolders> folders = FindFolders(storage_);
  LOG_IF(WARNING, !folders.ok())
      << "old checkpoints stay: " << folders.status();
  if (!folders.ok()) return;
  for (const CheckpointFolder& one : folders->replaced) {
    Remove(MakeFolderName(one));
  }
  if (options_.keep_newest == 0) return;
  const auto& all = folders->checkpoints;
  for (size_t i = static_cast<size_t>(options_.keep_newest); i < all.size();
       ++i) {
    const bool is_kept =
        options_.keep_every > 0 && all[i].step % options_.keep_every == 0;
    if (!is_kept) Remove(MakeFolderName(all[i]));
  }
}

}  // namespace muster::internal

namespace muster {

void SaveCheckpoint(CheckpointStorage& storage, int64_t step,
                    const std::vector<CheckpointShard>& state,
                    const SaveCheckpointOptions& options) {
  SaveCheckpointOptions mine = options;
  if (mine.group == nullptr) mine.group = WorldGroup();
  if (mine.group->state()->IsForOthers("save_checkpoint")) return;
  internal::SavePlan plan;
  internal::CheckpointSave save(storage, plan, step, std::move(mine));
  save.Agree(state);
  save.Write();
}

}  // namespace muster
