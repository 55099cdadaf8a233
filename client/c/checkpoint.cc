#include "muster/checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "client/control/fork_guard.h"
#include "client/control/throw.h"
#include "muster/base/status.h"
#include "muster/checkpoint_storage.h"
#include "muster/errors.h"
#include "muster/muster_parallel.h"

struct muster_checkpoint_storage {
  std::shared_ptr<muster::CheckpointStorage> storage;
};

// The saves run on a thread, which a forked child has not.
struct muster_checkpointer {
  std::shared_ptr<muster::Checkpointer> checkpointer = nullptr;
  muster::internal::ForkGuard fork_guard = {};
};

struct muster_pending_checkpoint {
  muster::PendingCheckpoint pending;
  muster::internal::ForkGuard fork_guard = {};
};

namespace muster::c {
namespace {

// Shards of the caller. The first bad argument is `fault`; its shard has no
// memory, which the ranks refuse together.
struct Shards {
  std::vector<CheckpointShard> shards;
  std::optional<ArgumentError> fault = std::nullopt;
};

void ToShard(const muster_checkpoint_shard& from, const char* argument,
             CheckpointShard& to) {
  to.name = ToString(from.name);
  const std::string label = "\"" + to.name + "\"";
  if (from.local == nullptr) ThrowArgument(argument, label + " has no tensor");
  to.local = ToTensor(from.local, argument);
  if (from.global_shape == nullptr && from.offsets == nullptr) return;
  if (from.global_shape == nullptr || from.offsets == nullptr) {
    ThrowArgument(argument,
                  label + (from.offsets == nullptr ? " has no offsets"
                                                   : " has no global_shape"));
  }
  to.global_shape = ToVector(from.global_shape, from.ndim, argument);
  to.offsets = ToVector(from.offsets, from.ndim, argument);
}

Shards ToShards(const muster_checkpoint_shard* shards, size_t count,
                const char* argument) {
  Shards to;
  const auto refuse = [&](const ArgumentError& error, CheckpointShard& shard) {
    if (!to.fault.has_value()) to.fault = error;
    shard.local = Tensor(nullptr, DataType::kUint8, {1});
  };
  try {
    for (const auto& from : ToSpan(shards, count, argument)) {
      CheckpointShard& shard = to.shards.emplace_back();
      try {
        ToShard(from, argument, shard);
      } catch (const ArgumentError& error) {
        refuse(error, shard);
      }
    }
  } catch (const ArgumentError& error) {
    // There is no array.
    refuse(error, to.shards.emplace_back());
  }
  return to;
}

// Makes a call of all ranks with the shards. If one is bad, throws what is
// wrong with it once the other ranks know.
template <typename Call>
auto CallWithShards(const Shards& state, Call call) {
  try {
    return call(state.shards);
  } catch (const DistError&) {
    if (state.fault.has_value()) throw ArgumentError(*state.fault);
    throw;
  }
}

CheckpointValues ToValues(const muster_checkpoint_value* values, size_t count) {
  CheckpointValues to;
  for (const muster_checkpoint_value& value : ToSpan(values, count, "values")) {
    to[ToString(value.name)] = ToString(value.text);
  }
  return to;
}

// A name, its text, the next name and so on.
muster_strings* FromValues(const CheckpointValues& values) {
  std::vector<std::string> texts;
  for (const auto& [name, text] : values) {
    texts.push_back(name);
    texts.push_back(text);
  }
  return MakeStrings(std::move(texts));
}

CheckpointStorage& ToStorage(muster_checkpoint_storage* storage) {
  return *Need(storage, "storage").storage;
}

// Throws DistError in a process that was forked after the object was made.
void CheckIsHere(const internal::ForkGuard& guard, const std::string& what) {
  if (guard.is_here()) return;
  internal::Throw(internal::ErrorSource::kControl,
                  FailedPreconditionError(what + internal::kIsParents));
}

}  // namespace
}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;
using muster::c::ToStorage;

muster_status muster_directory_storage_new(
    const char* directory, muster_checkpoint_storage** storage) {
  return GuardHandle(__func__, storage, "storage", [&] {
    return new muster_checkpoint_storage{
        muster::DirectoryStorage(&Need(directory, "directory"))};
  });
}

void muster_checkpoint_storage_release(muster_checkpoint_storage* storage) {
  delete storage;
}

muster_status muster_save_checkpoint(
    muster_checkpoint_storage* storage, int64_t step,
    const muster_checkpoint_shard* state, size_t shard_count,
    muster_group* group, const muster_save_checkpoint_options* options) {
  return Guard(__func__, [&] {
    const muster_save_checkpoint_options from = muster::c::ReadOptions(options);
    muster::CheckpointStorage& to = ToStorage(storage);
    const muster::SaveCheckpointOptions save = {
        .group = muster::c::ToGroup(group),
        .timeout = muster::c::ToMilliseconds(from.timeout_ms),
        .values = muster::c::ToValues(from.values, from.value_count),
        .keep_newest = from.keep_newest,
        .keep_every = from.keep_every};
    muster::c::CallWithShards(
        muster::c::ToShards(state, shard_count, "state"),
        [&](const std::vector<muster::CheckpointShard>& shards) {
          muster::SaveCheckpoint(to, step, shards, save);
        });
  });
}

muster_status muster_checkpointer_new(
    muster_checkpoint_storage* storage, muster_group* group,
    const muster_checkpointer_options* options,
    muster_checkpointer** checkpointer) {
  return GuardHandle(__func__, checkpointer, "checkpointer", [&] {
    const muster_checkpointer_options from = muster::c::ReadOptions(options);
    const muster::CheckpointerOptions to = {
        .group = muster::c::ToGroup(group),
        .timeout = muster::c::ToMilliseconds(from.timeout_ms),
        .keep_newest = from.keep_newest,
        .keep_every = from.keep_every};
    auto handle = std::make_unique<muster_checkpointer>();
    handle->checkpointer = muster::internal::MakeAtHome<muster::Checkpointer>(
        Need(storage, "storage").storage, to);
    return handle.release();
  });
}

void muster_checkpointer_release(muster_checkpointer* checkpointer) {
  delete checkpointer;
}

muster_status muster_save_checkpoint_async(
    muster_checkpointer* checkpointer, int64_t step,
    const muster_checkpoint_shard* state, size_t shard_count,
    const muster_checkpoint_value* values, size_t value_count,
    muster_pending_checkpoint** pending) {
  return GuardHandle(__func__, pending, "pending", [&] {
    const muster_checkpointer& handle = Need(checkpointer, "checkpointer");
    muster::c::CheckIsHere(handle.fork_guard, "the checkpointer");
    const muster::CheckpointValues texts =
        muster::c::ToValues(values, value_count);
    return muster::c::CallWithShards(
        muster::c::ToShards(state, shard_count, "state"),
        [&](const std::vector<muster::CheckpointShard>& shards) {
          return new muster_pending_checkpoint{
              handle.checkpointer->SaveAsync(step, shards, texts)};
        });
  });
}

muster_status muster_pending_checkpoint_wait(
    muster_pending_checkpoint* pending) {
  return Guard(__func__, [&] {
    const muster_pending_checkpoint& handle = Need(pending, "pending");
    muster::c::CheckIsHere(handle.fork_guard, "the pending checkpoint");
    handle.pending.Wait();
  });
}

muster_status muster_pending_checkpoint_is_done(
    muster_pending_checkpoint* pending, int32_t* done) {
  return Guard(__func__, [&] {
    Need(done, "done") = Need(pending, "pending").pending.Done() ? 1 : 0;
  });
}

void muster_pending_checkpoint_release(muster_pending_checkpoint* pending) {
  delete pending;
}

muster_status muster_load_checkpoint(
    muster_checkpoint_storage* storage, int64_t step,
    const muster_checkpoint_shard* shards, size_t shard_count,
    const muster_load_checkpoint_options* options, muster_strings** values,
    muster_strings** missing) {
  return Guard(__func__, [&] {
    if (values != nullptr) *values = nullptr;
    if (missing != nullptr) *missing = nullptr;
    const muster_load_checkpoint_options from = muster::c::ReadOptions(options);
    muster::CheckpointStorage& to = ToStorage(storage);
    const muster::c::Shards boxes =
        muster::c::ToShards(shards, shard_count, "shards");
    if (boxes.fault.has_value()) throw muster::c::ArgumentError(*boxes.fault);
    muster::LoadedCheckpoint loaded = muster::LoadCheckpoint(
        to, step, boxes.shards, {.strict = from.not_strict == 0});
    std::unique_ptr<muster_strings> names(
        muster::c::MakeStrings(std::move(loaded.missing)));
    if (values != nullptr) {
      *values = muster::c::FromValues(loaded.values);
    }
    if (missing != nullptr) *missing = names.release();
  });
}

muster_status muster_load_newest_checkpoint(
    muster_checkpoint_storage* storage, const muster_checkpoint_shard* shards,
    size_t shard_count, muster_group* group,
    const muster_load_newest_options* options, int64_t* step,
    muster_strings** values) {
  return Guard(__func__, [&] {
    if (values != nullptr) *values = nullptr;
    int64_t& found = Need(step, "step");
    const muster_load_newest_options from = muster::c::ReadOptions(options);
    muster::CheckpointStorage& to = ToStorage(storage);
    const auto loaded = muster::c::CallWithShards(
        muster::c::ToShards(shards, shard_count, "shards"),
        [&](const std::vector<muster::CheckpointShard>& boxes) {
          return muster::LoadNewestCheckpoint(
              to, boxes,
              {.group = muster::c::ToGroup(group),
               .timeout = muster::c::ToMilliseconds(from.timeout_ms)});
        });
    if (values != nullptr && loaded.has_value()) {
      *values = muster::c::FromValues(loaded->values);
    }
    found = loaded.has_value() ? loaded->step : -1;
  });
}

muster_status muster_verify_checkpoint(muster_checkpoint_storage* storage,
                                       int64_t step) {
  return Guard(__func__,
               [&] { muster::VerifyCheckpoint(ToStorage(storage), step); });
}

muster_status muster_remove_checkpoint(muster_checkpoint_storage* storage,
                                       int64_t step) {
  return Guard(__func__,
               [&] { muster::RemoveCheckpoint(ToStorage(storage), step); });
}

muster_status muster_list_checkpoints(muster_checkpoint_storage* storage,
                                      int64_t* steps, size_t capacity,
                                      size_t* count) {
  return Guard(__func__, [&] {
    muster::c::WriteArray(muster::ListCheckpoints(ToStorage(storage)), steps,
                          "steps", capacity, count);
  });
}
