#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exception_guard.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/checkpoint/box.h"
#include "client/parallel/checkpoint/folders.h"
#include "client/parallel/checkpoint/manifest.h"
#include "client/parallel/checkpoint/messages.h"
#include "client/parallel/checkpoint/plan.h"
#include "client/parallel/checkpoint/safetensors.h"
#include "glog/logging.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"
#include "muster/distributed.h"
#include "muster/errors.h"
#include "muster/objects.h"
#include "nlohmann/json.hpp"

namespace muster::internal {
namespace {

// The elements that a stored part of a tensor and a box of the caller have in
// common.
struct Copy {
  const StoredShard* from = nullptr;
  // Name, type and box of the caller's memory.
  const ShardDescription* to = nullptr;
  std::byte* memory = nullptr;
  Box common = {};

  size_t element_bytes() const { return dataplane::DataTypeBytes(to->type); }
};

// The number of the element of `box`, in its row-major order, at `indices` of
// the whole tensor.
int64_t FindElement(const Box& box, const std::vector<int64_t>& indices) {
  int64_t element = 0;
  for (size_t d = 0; d < indices.size(); ++d) {
    element = element * box.lengths[d] + (indices[d] - box.offsets[d]);
  }
  return element;
}

// Reads the block of a stored part of a tensor, and verifies it.
Status ReadBlock(CheckpointReader& file, const StoredShard& shard,
                 int64_t block, std::span<std::byte> out) {
  const int64_t offset = shard.offset + block * kBlockBytes;
  if (Status read = file.Read(offset, out); !read.ok()) return read;
  if (ComputeChecksum(out) == shard.checksums[static_cast<size_t>(block)]) {
    return OkStatus();
  }
  return DataLossError(absl::StrCat("damaged: the checksum of the ", out.size(),
                                    " bytes from byte ", offset,
                                    " on differs"));
}

// Reads bytes of one stored part of a tensor, by verified blocks. Reads that go
// forward read each block once.
class BlockReader {
 public:
  BlockReader(CheckpointReader& file, const StoredShard& shard, int64_t bytes,
              std::vector<std::byte>& buffer)
      : file_(file), shard_(shard), bytes_(bytes), buffer_(buffer) {}

  Status Read(int64_t offset, std::span<std::byte> out) {
    while (!out.empty()) {
      const int64_t block = offset / kBlockBytes;
      const int64_t begin = block * kBlockBytes;
      if (block != buffered_) {
        buffered_ = block;
        buffer_.resize(
            static_cast<size_t>(std::min(kBlockBytes, bytes_ - begin)));
        const Status status = ReadBlock(file_, shard_, block, buffer_);
        if (!status.ok()) return status;
      }
      const auto skipped = static_cast<size_t>(offset - begin);
      const size_t count = std::min(buffer_.size() - skipped, out.size());
      std::memcpy(out.data(), buffer_.data() + skipped, count);
      offset += static_cast<int64_t>(count);
      out = out.subspan(count);
    }
    return OkStatus();
  }

 private:
  CheckpointReader& file_;
  const StoredShard& shard_;
  // Size of the stored part.
  const int64_t bytes_;
  std::vector<std::byte>& buffer_;
  int64_t buffered_ = -1;
};

// Copies row by row: the elements of a row follow each other in both boxes.
Status Execute(const Copy& copy, CheckpointReader& file,
               std::vector<std::byte>& buffer) {
  const Box& from = copy.from->box;
  const Box& to = copy.to->box;
  const auto element_bytes = static_cast<int64_t>(copy.element_bytes());
  BlockReader blocks(file, *copy.from,
                     ComputeVolume(from.lengths) * element_bytes, buffer);
  // Dimensions from `row` on are one row.
  size_t row = copy.common.lengths.size();
  int64_t row_elements = 1;
  while (row > 0) {
    --row;
    row_elements *= copy.common.lengths[row];
    if (from.lengths[row] != to.lengths[row] ||
        from.lengths[row] != copy.common.lengths[row]) {
      break;
    }
  }
  std::vector<int64_t> indices = copy.common.offsets;
  while (true) {
    const Status read =
        blocks.Read(FindElement(from, indices) * element_bytes,
                    {copy.memory + FindElement(to, indices) * element_bytes,
                     static_cast<size_t>(row_elements * element_bytes)});
    if (!read.ok()) return read;
    // The next row, like an odometer.
    size_t d = row;
    while (d > 0) {
      --d;
      if (++indices[d] < copy.common.offsets[d] + copy.common.lengths[d]) break;
      indices[d] = copy.common.offsets[d];
      if (d == 0) return OkStatus();
    }
    if (row == 0) return OkStatus();
  }
}

// Loads from one checkpoint. All methods throw DistError.
class Loader {
 public:
  Loader(CheckpointStorage& storage, const CheckpointFolder& folder)
      : storage_(storage), folder_(folder) {
    StatusOr<Manifest> manifest = ReadManifest(storage, folder);
    if (!manifest.ok()) {
      Fail(manifest.status().code(), manifest.status().message());
    }
    manifest_ = *std::move(manifest);
  }

  const CheckpointValues& values() const { return manifest_.values; }

  // Returns false if there is no such tensor. `shard` must live until Execute.
  bool Add(const ShardDescription& shard, std::byte* memory) {
    const auto it = manifest_.tensors.find(shard.name);
    if (it == manifest_.tensors.end()) return false;
    const StoredTensor& tensor = it->second;
    if (tensor.type != shard.type || tensor.shape != shard.shape) {
      Fail(StatusCode::kInvalidArgument,
           absl::StrCat("tensor ", base::Quote(shard.name), " is ",
                        DescribeTensor(tensor.type, tensor.shape),
                        " there, asked for is ",
                        DescribeTensor(shard.type, shard.shape)));
    }
    for (const StoredShard& stored : tensor.shards) {
      auto common = Intersect(stored.box, shard.box);
      if (!common.has_value()) continue;
      copies_.push_back({&stored, &shard, memory, *std::move(common)});
    }
    return true;
  }

  // File by file, from the beginning to the end.
  void Execute() {
    std::sort(copies_.begin(), copies_.end(), [](const Copy& a, const Copy& b) {
      return std::pair(a.from->file, a.from->offset) <
             std::pair(b.from->file, b.from->offset);
    });
    std::vector<std::byte> buffer;
    std::unique_ptr<CheckpointReader> reader;
    const StoredFile* open = nullptr;
    for (const Copy& copy : copies_) {
      const StoredFile& file = manifest_.files.at(copy.from->file);
      if (&file != open) {
        reader = Open(file);
        open = &file;
      }
      Check(internal::Execute(copy, *reader, buffer), file, copy.to->name,
            *copy.from);
    }
  }

  // Reads all files.
  void Verify() const {
    struct Part {
      const std::string* name;
      const StoredTensor* tensor;
      const StoredShard* shard;
    };
    std::vector<std::vector<Part>> files(manifest_.files.size());
    for (const auto& [name, tensor] : manifest_.tensors) {
      for (const StoredShard& shard : tensor.shards) {
        files[shard.file].push_back({&name, &tensor, &shard});
      }
    }
    std::vector<std::byte> buffer;
    for (size_t i = 0; i < files.size(); ++i) {
      const StoredFile& file = manifest_.files[i];
      const std::unique_ptr<CheckpointReader> reader = Open(file);
      std::sort(files[i].begin(), files[i].end(),
                [](const Part& a, const Part& b) {
                  return a.shard->offset < b.shard->offset;
                });
      std::vector<SafetensorsEntry> entries;
      for (const Part& part : files[i]) {
        entries.push_back(
            {part.shard->key, part.tensor->type, part.shard->box.lengths});
      }
      CheckHeader(LayOutSafetensors(entries).header, file, *reader);
      for (const auto& [name, tensor, shard] : files[i]) {
        int64_t left =
            ComputeVolume(shard->box.lengths) *
            static_cast<int64_t>(dataplane::DataTypeBytes(tensor->type));
        for (int64_t block = 0; left > 0; ++block, left -= kBlockBytes) {
          buffer.resize(static_cast<size_t>(std::min(kBlockBytes, left)));
          Check(ReadBlock(*reader, *shard, block, buffer), file, *name, *shard);
        }
      }
    }
  }

  [[noreturn]] void Fail(StatusCode code, const std::string& text) const {
    Throw(ErrorSource::kControl,
          Status(code, absl::StrCat("checkpoint ", MakeFolderName(folder_),
                                    ": ", text)));
  }

 private:
  std::unique_ptr<CheckpointReader> Open(const StoredFile& file) const {
    auto reader =
        storage_.Open(absl::StrCat(MakeFolderName(folder_), "/", file.name));
    if (!reader.ok()) {
      // The checkpoint is there, and its file is not.
      const StatusCode code = reader.status().code();
      Fail(code == StatusCode::kNotFound ? StatusCode::kDataLoss : code,
           absl::StrCat("file ", base::Quote(file.name), ": ",
                        reader.status().message()));
    }
    if ((*reader)->size() != file.bytes) {
      Fail(StatusCode::kDataLoss,
           absl::StrCat("file ", base::Quote(file.name), " has ",
                        (*reader)->size(), " bytes, ", file.bytes,
                        " were written"));
    }
    return *std::move(reader);
  }

  // Other programs read the header.
  void CheckHeader(const std::string& header, const StoredFile& file,
                   CheckpointReader& reader) const {
    std::string found(header.size(), '\0');
    Status status = reader.Read(0, std::as_writable_bytes(std::span(found)));
    if (status.ok() && found != header) {
      status = DataLossError("damaged: its header differs");
    }
    if (status.ok()) return;
    Fail(status.code(),
         absl::StrCat("file ", base::Quote(file.name), ": ", status.message()));
  }

  void Check(const Status& status, const StoredFile& file,
             const std::string& tensor, const StoredShard& shard) const {
    if (status.ok()) return;
    Fail(status.code(),
         absl::StrCat("file ", base::Quote(file.name), ", tensor ",
                      base::Quote(tensor), " ", ToText(shard.box), ": ",
                      status.message()));
  }

  CheckpointStorage& storage_;
  const CheckpointFolder folder_;
  Manifest manifest_;
  std::vector<Copy> copies_;
};

std::vector<ShardDescription> Describe(
    const std::vector<CheckpointShard>& shards) {
  return ValueOrThrow(ErrorSource::kControl, DescribeShards(shards));
}

CheckpointFolder Find(CheckpointStorage& storage, int64_t step) {
  return ValueOrThrow(ErrorSource::kControl, FindCheckpoint(storage, step));
}

// Throws DistError. `wanted` describes `shards`.
LoadedCheckpoint Load(CheckpointStorage& storage,
                      const CheckpointFolder& folder,
                      const std::vector<CheckpointShard>& shards,
                      const std::vector<ShardDescription>& wanted,
                      bool strict) {
  Loader loader(storage, folder);
  LoadedCheckpoint loaded = {.step = folder.step, .values = loader.values()};
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!loader.Add(wanted[i],
                    static_cast<std::byte*>(shards[i].local.data()))) {
      loaded.missing.push_back(wanted[i].name);
    }
  }
  if (strict && !loaded.missing.empty()) {
    std::string text =
        absl::StrCat("has no tensor ", base::Quote(loaded.missing.front()));
    if (loaded.missing.size() > 1) {
      absl::StrAppend(&text, " and lacks ", loaded.missing.size() - 1, " more");
    }
    loader.Fail(StatusCode::kNotFound, text);
  }
  loader.Execute();
  return loaded;
}

// Returns what `call` throws.
template <typename Call>
Status Caught(const Call& call) {
  try {
    call();
    return OkStatus();
  } catch (const DistError& error) {
    return error.status();
  } catch (...) {
    return base::StatusOfCaught();
  }
}

// Throws a status of the group's global rank `rank` unless it is OK.
void ThrowOnAll(const Status& status, int rank, const ProcessGroup& group) {
  ThrowWithCulprits(Status(status.code(),
                           absl::StrCat("rank ", rank, ": ", status.message())),
                    {rank}, group);
}

// The checkpoints that rank 0 of the group finds, from the newest on.
std::vector<CheckpointFolder> FindTogether(CheckpointStorage& storage,
                                           const LoadNewestOptions& options) {
  std::vector<std::string> message(1);
  if (options.group->rank() == 0) {
    nlohmann::json found = nlohmann::json::array();
    const Status status = Caught([&] {
      const CheckpointFolders folders =
          ValueOrThrow(ErrorSource::kControl, FindFolders(storage));
      for (const CheckpointFolder& one : folders.checkpoints) {
        found.push_back({one.step, one.save});
      }
    });
    nlohmann::json object = ToJson(status);
    object["found"] = std::move(found);
    message[0] = ToBytes(object);
  }
  BroadcastObjectList(
      message, std::nullopt,
      {.group = options.group, .timeout = options.timeout, .group_src = 0});
  const auto object = nlohmann::json::parse(message[0]);
  ThrowOnAll(StatusFromJson(object), options.group->ranks()[0], *options.group);
  std::vector<CheckpointFolder> folders;
  for (const auto& one : object.at("found")) {
    folders.push_back({one.at(0), one.at(1)});
  }
  return folders;
}

}  // namespace
}  // namespace muster::internal

namespace muster {

using internal::ErrorSource;
using internal::ValueOrThrow;

LoadedCheckpoint LoadCheckpoint(CheckpointStorage& storage, int64_t step,
                                const std::vector<CheckpointShard>& shards,
                                const LoadCheckpointOptions& options) {
  const auto wanted = internal::Describe(shards);
  return internal::Load(storage, internal::Find(storage, step), shards, wanted,
                        options.strict);
}

std::optional<LoadedCheckpoint> LoadNewestCheckpoint(
    CheckpointStorage& storage, const std::vector<CheckpointShard>& shards,
    const LoadNewestOptions& options) {
  LoadNewestOptions mine = options;
  if (mine.group == nullptr) mine.group = WorldGroup();
  if (mine.group->state()->IsForOthers("load_newest_checkpoint")) {
    return std::nullopt;
  }
  const std::vector<int> ranks = mine.group->ranks();
  std::vector<int64_t> damaged;
  std::optional<std::pair<Status, int>> first_damage;
  for (const internal::CheckpointFolder& folder :
       internal::FindTogether(storage, mine)) {
    LoadedCheckpoint loaded;
    const Status status = internal::Caught([&] {
      loaded = internal::Load(storage, folder, shards,
                              internal::Describe(shards), /*strict=*/true);
    });
    std::vector<std::string> all;
    AllGatherObject(all, internal::ToBytes(internal::ToJson(status)),
                    {.group = mine.group, .timeout = mine.timeout});
    std::optional<std::pair<Status, int>> damage;
    for (size_t i = 0; i < all.size(); ++i) {
      const Status theirs =
          internal::StatusFromJson(nlohmann::json::parse(all[i]));
      if (theirs.code() == StatusCode::kDataLoss) {
        if (!damage.has_value()) damage.emplace(theirs, ranks[i]);
      } else {
        internal::ThrowOnAll(theirs, ranks[i], *mine.group);
      }
    }
    if (!damage.has_value()) {
      loaded.damaged = std::move(damaged);
      return loaded;
    }
    LOG_IF(WARNING, mine.group->rank() == 0)
        << "a damaged checkpoint is not loaded: rank " << damage->second << ": "
        << damage->first.message();
    damaged.push_back(folder.step);
    if (!first_damage.has_value()) first_damage = std::move(damage);
  }
  if (first_damage.has_value()) {
    internal::ThrowOnAll(first_damage->first, first_damage->second,
                         *mine.group);
  }
  return std::nullopt;
}

void VerifyCheckpoint(CheckpointStorage& storage, int64_t step) {
  internal::Loader(storage, internal::Find(storage, step)).Verify();
}

void RemoveCheckpoint(CheckpointStorage& storage, int64_t step) {
  const auto folders =
      ValueOrThrow(ErrorSource::kControl, internal::FindFolders(storage));
  // First those that would appear when the newer one is gone.
  bool is_there = false;
  for (const auto* list : {&folders.replaced, &folders.checkpoints}) {
    for (const internal::CheckpointFolder& one : *list) {
      if (one.step != step) continue;
      is_there = true;
      internal::ThrowIfFailed(
          ErrorSource::kControl,
          internal::RemoveFolder(storage, internal::MakeFolderName(one)));
    }
  }
  if (is_there) return;
  internal::Throw(
      ErrorSource::kControl,
      NotFoundError(absl::StrCat("there is no checkpoint of step ", step)));
}

std::vector<int64_t> ListCheckpoints(CheckpointStorage& storage) {
  const auto folders =
      ValueOrThrow(ErrorSource::kControl, internal::FindFolders(storage));
  std::vector<int64_t> steps;
  for (const auto& one : folders.checkpoints) steps.push_back(one.step);
  std::reverse(steps.begin(), steps.end());
  return steps;
}

std::optional<int64_t> NewestCheckpoint(CheckpointStorage& storage) {
  const std::vector<int64_t> steps = ListCheckpoints(storage);
  if (steps.empty()) return std::nullopt;
  return steps.back();
}

}  // namespace muster
