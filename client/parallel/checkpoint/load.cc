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
#include "base/text.h"
#include "client/control/throw.h"
#include "client/parallel/checkpoint/box.h"
#include "client/parallel/checkpoint/manifest.h"
#include "client/parallel/checkpoint/plan.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"

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
      const auto size =
          static_cast<size_t>(std::min(kBlockBytes, bytes_ - begin));
      const auto skipped = static_cast<size_t>(offset - begin);
      const size_t count = std::min(size - skipped, out.size());
      if (count == size) {
        const Status status = ReadBlock(block, out.first(size));
        if (!status.ok()) return status;
      } else {
        if (block != buffered_) {
          buffer_.resize(size);
          buffered_ = block;
          const Status status = ReadBlock(block, buffer_);
          if (!status.ok()) return status;
        }
        std::memcpy(out.data(), buffer_.data() + skipped, count);
      }
      offset += static_cast<int64_t>(count);
      out = out.subspan(count);
    }
    return OkStatus();
  }

 private:
  Status ReadBlock(int64_t block, std::span<std::byte> out) {
    const int64_t offset = shard_.offset + block * kBlockBytes;
    if (Status read = file_.Read(offset, out); !read.ok()) return read;
    if (static_cast<size_t>(block) < shard_.checksums.size() &&
        ComputeChecksum(out) == shard_.checksums[static_cast<size_t>(block)]) {
      return OkStatus();
    }
    return DataLossError(absl::StrCat("damaged: the checksum of the ",
                                      out.size(), " bytes from byte ", offset,
                                      " on differs"));
  }

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
  Loader(CheckpointStorage& storage, int64_t step)
      : storage_(storage),
        step_(step),
        manifest_(
            ValueOrThrow(ErrorSource::kControl, ReadManifest(storage, step))) {}

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
    int64_t found = 0;
    for (const StoredShard& stored : tensor.shards) {
      auto common = Intersect(stored.box, shard.box);
      if (!common.has_value()) continue;
      found += ComputeVolume(common->lengths);
      copies_.push_back({&stored, &shard, memory, *std::move(common)});
    }
    if (found != ComputeVolume(shard.box.lengths)) {
      Fail(StatusCode::kDataLoss,
           absl::StrCat(kManifestName, " has no part of tensor ",
                        base::Quote(shard.name), " for some of ",
                        ToText(shard.box)));
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
        reader = Open(file, copy);
        open = &file;
      }
      Check(internal::Execute(copy, *reader, buffer), file, copy);
    }
  }

  [[noreturn]] void Fail(StatusCode code, const std::string& text) const {
    Throw(ErrorSource::kControl,
          Status(code, absl::StrCat("checkpoint ", MakeFolderName(step_), ": ",
                                    text)));
  }

 private:
  std::unique_ptr<CheckpointReader> Open(const StoredFile& file,
                                         const Copy& copy) const {
    auto reader =
        storage_.Open(absl::StrCat(MakeFolderName(step_), "/", file.name));
    Check(reader.status(), file, copy);
    if ((*reader)->size() != file.bytes) {
      Check(
          DataLossError(absl::StrCat("the file has ", (*reader)->size(),
                                     " bytes, ", file.bytes, " were written")),
          file, copy);
    }
    return *std::move(reader);
  }

  void Check(const Status& status, const StoredFile& file,
             const Copy& copy) const {
    if (status.ok()) return;
    Fail(status.code(),
         absl::StrCat("file ", base::Quote(file.name), ", tensor ",
                      base::Quote(copy.to->name), " ", ToText(copy.from->box),
                      ": ", status.message()));
  }

  CheckpointStorage& storage_;
  const int64_t step_;
  const Manifest manifest_;
  std::vector<Copy> copies_;
};

}  // namespace
}  // namespace muster::internal

namespace muster {

using internal::ErrorSource;
using internal::ValueOrThrow;

LoadedCheckpoint LoadCheckpoint(CheckpointStorage& storage, int64_t step,
                                const std::vector<CheckpointShard>& shards,
                                const LoadCheckpointOptions& options) {
  const std::vector<internal::ShardDescription> wanted =
      ValueOrThrow(ErrorSource::kControl, internal::DescribeShards(shards));
  internal::Loader loader(storage, step);
  LoadedCheckpoint loaded = {.values = loader.values()};
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!loader.Add(wanted[i],
                    static_cast<std::byte*>(shards[i].local.data()))) {
      loaded.missing.push_back(wanted[i].name);
    }
  }
  if (options.strict && !loaded.missing.empty()) {
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

std::vector<int64_t> ListCheckpoints(CheckpointStorage& storage) {
  return ValueOrThrow(ErrorSource::kControl, internal::FindSteps(storage));
}

std::optional<int64_t> NewestCheckpoint(CheckpointStorage& storage) {
  const std::vector<int64_t> steps = ListCheckpoints(storage);
  if (steps.empty()) return std::nullopt;
  return steps.back();
}

}  // namespace muster
