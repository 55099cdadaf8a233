// For tests: parts of tensors whose elements are known by their number, and a
// storage whose calls a test watches, fails or dies in.

#ifndef MUSTER_CLIENT_PARALLEL_CHECKPOINT_TEST_PARTS_H_
#define MUSTER_CLIENT_PARALLEL_CHECKPOINT_TEST_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/parallel/checkpoint/box.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"
#include "muster/checkpoint_storage.h"

namespace muster::testing {

// A folder that is removed with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::random_device random;
    path_ =
        std::filesystem::temp_directory_path() /
        ("checkpoint-" + std::to_string(random()) + std::to_string(random()));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// The parts of tensors that a rank has.
class Parts {
 public:
  Parts() = default;
  Parts(Parts&&) = default;
  Parts& operator=(Parts&&) = default;
  // A copy's shards would have the memory of the original.
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // Adds a box of a tensor whose elements are zeros.
  Parts& Add(const std::string& name, DataType type,
             const std::vector<int64_t>& shape, const internal::Box& box) {
    const auto elements =
        static_cast<size_t>(internal::ComputeVolume(box.lengths));
    memory_.emplace_back(elements * dataplane::DataTypeBytes(type));
    shards_.push_back({name, shape, box.offsets,
                       Tensor(memory_.back().data(), type,
                              std::span<const int64_t>(box.lengths))});
    return *this;
  }
  Parts& Add(const std::string& name, DataType type,
             const std::vector<int64_t>& shape) {
    return Add(name, type, shape, internal::MakeWholeBox(shape));
  }

  // Gives each element the bytes that its number in the tensor, the tensor's
  // name and `version` make.
  Parts& Fill(uint64_t version = 0) {
    ForEachElement([&](std::byte* at, uint64_t value, size_t bytes) {
      value += version * 0x9E3779B97F4A7C15u;
      for (size_t i = 0; i < bytes; ++i) {
        at[i] = static_cast<std::byte>(value >> (8 * (i % 8)));
      }
    });
    return *this;
  }

  // The number of elements that are not as Fill makes them.
  size_t CountWrong(uint64_t version = 0) {
    const std::vector<std::vector<std::byte>> had = memory_;
    Fill(version);
    size_t wrong = 0;
    for (size_t i = 0; i < had.size(); ++i) {
      const size_t bytes = shards_[i].local.element_bytes();
      for (size_t at = 0; at < had[i].size(); at += bytes) {
        wrong +=
            std::memcmp(had[i].data() + at, memory_[i].data() + at, bytes) != 0;
      }
      std::memcpy(memory_[i].data(), had[i].data(), had[i].size());
    }
    return wrong;
  }

  const std::vector<CheckpointShard>& shards() const { return shards_; }

 private:
  template <typename Visit>
  void ForEachElement(const Visit& visit) {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const CheckpointShard& shard = shards_[i];
      const size_t bytes = shard.local.element_bytes();
      const auto lengths = shard.local.shape();
      const uint64_t seed = std::hash<std::string>()(shard.name);
      for (int64_t e = 0; e < shard.local.element_count(); ++e) {
        // The element's indices in the box, and its number in the tensor.
        uint64_t number = 0;
        int64_t stride = 1;
        int64_t left = e;
        for (size_t d = lengths.size(); d-- > 0;) {
          const int64_t index = shard.offsets[d] + left % lengths[d];
          number += static_cast<uint64_t>(index * stride);
          stride *= shard.global_shape[d];
          left /= lengths[d];
        }
        visit(memory_[i].data() + static_cast<size_t>(e) * bytes,
              (number + seed + 1) * 0xBF58476D1CE4E5B9u, bytes);
      }
    }
  }

  std::vector<std::vector<std::byte>> memory_;
  std::vector<CheckpointShard> shards_;
};

// The call of a storage that is about to be made.
struct StorageCall {
  std::string
      name;  // "create", "append", "half", "finish", "open", "read", ...
  std::string path;
  size_t bytes = 0;
};

// A storage that asks `watch` before each call, and in the middle of each
// append ("half"). If `watch` returns an error, that is the call's.
class WatchedStorage : public CheckpointStorage {
 public:
  using Watch = std::function<Status(const StorageCall&)>;

  WatchedStorage(std::shared_ptr<CheckpointStorage> storage, Watch watch)
      : storage_(std::move(storage)), watch_(std::move(watch)) {}

  StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& path) override {
    if (Status status = watch_({"create", path}); !status.ok()) return status;
    auto writer = storage_->Create(path);
    if (!writer.ok()) return writer;
    return std::make_unique<Writer>(*std::move(writer), path, watch_);
  }
  StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& path) override {
    if (Status status = watch_({"open", path}); !status.ok()) return status;
    auto reader = storage_->Open(path);
    if (!reader.ok()) return reader;
    return std::make_unique<Reader>(*std::move(reader), path, watch_);
  }
  StatusOr<std::vector<std::string>> ListFolders() override {
    if (Status status = watch_({"list", ""}); !status.ok()) return status;
    return storage_->ListFolders();
  }
  Status Rename(const std::string& from, const std::string& to) override {
    if (Status status = watch_({"rename", to}); !status.ok()) return status;
    return storage_->Rename(from, to);
  }
  Status Remove(const std::string& folder) override {
    if (Status status = watch_({"remove", folder}); !status.ok()) return status;
    return storage_->Remove(folder);
  }

 private:
  class Writer : public CheckpointWriter {
   public:
    Writer(std::unique_ptr<CheckpointWriter> writer, std::string path,
           const Watch& watch)
        : writer_(std::move(writer)), path_(std::move(path)), watch_(watch) {}

    Status Append(std::span<const std::byte> bytes) override {
      const auto half = bytes.first(bytes.size() / 2);
      Status status = watch_({"append", path_, bytes.size()});
      if (status.ok()) status = writer_->Append(half);
      if (status.ok()) status = watch_({"half", path_});
      if (status.ok()) status = writer_->Append(bytes.subspan(half.size()));
      return status;
    }
    Status Finish() override {
      if (Status status = watch_({"finish", path_}); !status.ok()) {
        return status;
      }
      return writer_->Finish();
    }

   private:
    const std::unique_ptr<CheckpointWriter> writer_;
    const std::string path_;
    const Watch& watch_;
  };

  class Reader : public CheckpointReader {
   public:
    Reader(std::unique_ptr<CheckpointReader> reader, std::string path,
           const Watch& watch)
        : reader_(std::move(reader)), path_(std::move(path)), watch_(watch) {}

    int64_t size() const override { return reader_->size(); }
    Status Read(int64_t offset, std::span<std::byte> bytes) override {
      Status status = watch_({"read", path_, bytes.size()});
      if (!status.ok()) return status;
      return reader_->Read(offset, bytes);
    }

   private:
    const std::unique_ptr<CheckpointReader> reader_;
    const std::string path_;
    const Watch& watch_;
  };

  const std::shared_ptr<CheckpointStorage> storage_;
  const Watch watch_;
};

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_PARALLEL_CHECKPOINT_TEST_PARTS_H_
