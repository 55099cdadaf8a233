#include "muster/store.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/file_store.h"
#include "muster/hash_store.h"
#include "muster/muster_control.h"
#include "muster/tcp_store.h"

struct muster_watch {
  // Keeps the store, which may be a program's own, alive.
  std::shared_ptr<muster::Store> store;
  std::unique_ptr<muster::StoreWatch> watch;
  // The last change that was returned.
  muster::KeyChange change = {};
};

namespace muster::c {
namespace {

static_assert(MUSTER_KEY_PUT == static_cast<int>(KeyChange::Kind::kPut));
static_assert(MUSTER_KEY_DELETED ==
              static_cast<int>(KeyChange::Kind::kDeleted));
static_assert(MUSTER_KEY_EXPIRED ==
              static_cast<int>(KeyChange::Kind::kExpired));
static_assert(MUSTER_KEY_ORPHANED ==
              static_cast<int>(KeyChange::Kind::kOrphaned));

Store& ToStore(muster_store* store) { return *Need(store, "store").store; }

std::string_view ToKey(const void* key, size_t size) {
  return ToView(key, size, "key");
}

std::string_view ToValue(const void* value, size_t size) {
  return ToView(value, size, "value");
}

std::optional<SetOptions> ToSetOptions(const muster_set_options* options) {
  const muster_set_options from = ReadOptions(options);
  if (from.ttl_ms == 0 && from.ephemeral == 0) return std::nullopt;
  SetOptions to;
  if (from.ttl_ms != 0) to.ttl = ToMilliseconds(from.ttl_ms);
  to.ephemeral = from.ephemeral != 0;
  return to;
}

muster_store* MakeStore(std::shared_ptr<Store> store) {
  return new muster_store{std::move(store)};
}

// Writes an output that the caller may leave out.
template <typename T, typename From>
void WriteOptional(T* out, const From& value) {
  if (out != nullptr) *out = static_cast<T>(value);
}

muster_bytes ToBytes(const std::string& text) {
  return {text.data(), text.size()};
}

}  // namespace
}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::MakeStore;
using muster::c::MakeStrings;
using muster::c::Need;
using muster::c::ToKey;
using muster::c::ToMilliseconds;
using muster::c::ToStore;
using muster::c::ToStrings;
using muster::c::ToValue;
using muster::c::WriteOptional;

void muster_store_release(muster_store* store) { delete store; }

muster_status muster_hash_store_new(muster_store** store) {
  return GuardHandle(__func__, store, "store", [] {
    return MakeStore(std::make_shared<muster::HashStore>());
  });
}

muster_status muster_file_store_new(const char* path, int32_t world_size,
                                    muster_store** store) {
  return GuardHandle(__func__, store, "store", [&] {
    Need(path, "path");
    return MakeStore(std::make_shared<muster::FileStore>(
        path, world_size == 0 ? -1 : world_size));
  });
}

muster_status muster_prefix_store_new(const char* prefix, muster_store* other,
                                      muster_store** store) {
  return GuardHandle(__func__, store, "store", [&] {
    return MakeStore(std::make_shared<muster::PrefixStore>(
        muster::c::ToString(prefix), Need(other, "other").store));
  });
}

muster_status muster_prefix_store_underlying(muster_store* store,
                                             muster_store** other) {
  return GuardHandle(__func__, other, "other", [&] {
    const auto* const prefixed =
        dynamic_cast<const muster::PrefixStore*>(&ToStore(store));
    if (prefixed == nullptr) {
      muster::c::ThrowArgument("store", "it is no prefix store");
    }
    return MakeStore(prefixed->underlying_store());
  });
}

muster_status muster_coordinator_store_new(muster_session* session,
                                           muster_store** store) {
  return GuardHandle(__func__, store, "store", [&] {
    return MakeStore(std::make_shared<muster::CoordinatorStore>(
        Need(session, "session").session));
  });
}

muster_status muster_tcp_store_new(const muster_tcp_store_options* options,
                                   muster_store** store) {
  return Guard(__func__, [&] {
    if (store != nullptr) *store = nullptr;
    const muster_tcp_store_options from =
        muster::c::ReadOptions(&Need(options, "options"));
    // The C++ store takes the socket over; without a place for the store there
    // is none.
    if (store == nullptr && from.has_listen_fd != 0 && from.listen_fd >= 0) {
      close(from.listen_fd);
    }
    Need(store, "store");
    muster::TcpStoreOptions to;
    to.host = muster::c::ToString(from.host);
    to.port = from.port;
    if (from.world_size != 0) to.world_size = from.world_size;
    to.is_master = from.is_master != 0;
    to.timeout = ToMilliseconds(from.timeout_ms, to.timeout);
    to.wait_for_workers = from.no_wait_for_workers == 0;
    to.multi_tenant = from.multi_tenant != 0;
    if (from.has_listen_fd != 0) to.master_listen_fd = from.listen_fd;
    *store = MakeStore(std::make_shared<muster::TcpStore>(to));
  });
}

muster_status muster_tcp_store_port(muster_store* store, int32_t* port) {
  return Guard(__func__, [&] {
    const auto* const tcp =
        dynamic_cast<const muster::TcpStore*>(&ToStore(store));
    if (tcp == nullptr) {
      muster::c::ThrowArgument("store", "it is no TCP store");
    }
    Need(port, "port") = tcp->port();
  });
}

muster_status muster_store_clone(muster_store* store, muster_store** clone) {
  return GuardHandle(__func__, clone, "clone",
                     [&] { return MakeStore(ToStore(store).Clone()); });
}

muster_status muster_store_set_timeout(muster_store* store,
                                       int64_t timeout_ms) {
  return Guard(__func__,
               [&] { ToStore(store).SetTimeout(ToMilliseconds(timeout_ms)); });
}

muster_status muster_store_timeout(muster_store* store, int64_t* timeout_ms) {
  return Guard(__func__, [&] {
    Need(timeout_ms, "timeout_ms") = ToStore(store).timeout().count();
  });
}

muster_status muster_store_set(muster_store* store, const void* key,
                               size_t key_size, const void* value,
                               size_t value_size,
                               const muster_set_options* options) {
  return Guard(__func__, [&] {
    muster::Store& to = ToStore(store);
    const std::string_view name = ToKey(key, key_size);
    const std::string_view bytes = ToValue(value, value_size);
    if (const auto set = muster::c::ToSetOptions(options)) {
      to.Set(name, bytes, *set);
    } else {
      to.Set(name, bytes);
    }
  });
}

muster_status muster_store_get(muster_store* store, const void* key,
                               size_t key_size, muster_strings** value) {
  return GuardHandle(__func__, value, "value", [&] {
    return MakeStrings(ToStore(store).Get(ToKey(key, key_size)));
  });
}

muster_status muster_store_try_get(muster_store* store, const void* key,
                                   size_t key_size, muster_strings** value,
                                   int64_t* revision) {
  return GuardHandle(__func__, value, "value", [&]() -> muster_strings* {
    auto found = ToStore(store).TryGet(ToKey(key, key_size));
    if (!found.has_value()) return nullptr;
    muster_strings* const result = MakeStrings(std::move(found->value));
    WriteOptional(revision, found->revision);
    return result;
  });
}

muster_status muster_store_add(muster_store* store, const void* key,
                               size_t key_size, int64_t delta, int64_t* sum) {
  return Guard(__func__, [&] {
    WriteOptional(sum, ToStore(store).Add(ToKey(key, key_size), delta));
  });
}

muster_status muster_store_append(muster_store* store, const void* key,
                                  size_t key_size, const void* value,
                                  size_t value_size) {
  return Guard(__func__, [&] {
    ToStore(store).Append(ToKey(key, key_size), ToValue(value, value_size));
  });
}

muster_status muster_store_check(muster_store* store, const muster_bytes* keys,
                                 size_t count, int32_t* exist) {
  return Guard(__func__, [&] {
    const bool all = ToStore(store).Check(ToStrings(keys, count, "keys"));
    Need(exist, "exist") = all ? 1 : 0;
  });
}

muster_status muster_store_wait(muster_store* store, const muster_bytes* keys,
                                size_t count, int64_t timeout_ms) {
  return Guard(__func__, [&] {
    muster::Store& from = ToStore(store);
    from.Wait(ToStrings(keys, count, "keys"),
              timeout_ms == 0 ? from.timeout() : ToMilliseconds(timeout_ms));
  });
}

muster_status muster_store_compare_set(muster_store* store, const void* key,
                                       size_t key_size, const void* expected,
                                       size_t expected_size,
                                       const void* desired, size_t desired_size,
                                       muster_strings** value) {
  return GuardHandle(__func__, value, "value", [&] {
    return MakeStrings(ToStore(store).CompareSet(
        ToKey(key, key_size),
        muster::c::ToView(expected, expected_size, "expected"),
        muster::c::ToView(desired, desired_size, "desired")));
  });
}

muster_status muster_store_compare_and_set(
    muster_store* store, const void* key, size_t key_size,
    int64_t expected_revision, const void* desired, size_t desired_size,
    const muster_set_options* options, int32_t* written, int64_t* revision,
    muster_strings** present) {
  return Guard(__func__, [&] {
    WriteOptional(present, nullptr);
    Need(written, "written");
    muster::CompareAndSetResult result = ToStore(store).CompareAndSet(
        ToKey(key, key_size), expected_revision,
        muster::c::ToView(desired, desired_size, "desired"),
        muster::c::ToSetOptions(options).value_or(muster::SetOptions()));
    if (present != nullptr && result.present.has_value()) {
      *present = MakeStrings(*std::move(result.present));
    }
    *written = result.written ? 1 : 0;
    WriteOptional(revision, result.revision);
  });
}

muster_status muster_store_delete_key(muster_store* store, const void* key,
                                      size_t key_size, int32_t* existed) {
  return Guard(__func__, [&] {
    WriteOptional(existed, ToStore(store).DeleteKey(ToKey(key, key_size)));
  });
}

muster_status muster_store_delete_prefix(muster_store* store,
                                         const void* prefix, size_t prefix_size,
                                         int64_t* deleted) {
  return Guard(__func__, [&] {
    WriteOptional(deleted, ToStore(store).DeletePrefix(muster::c::ToView(
                               prefix, prefix_size, "prefix")));
  });
}

muster_status muster_store_num_keys(muster_store* store, int64_t* count) {
  return Guard(__func__,
               [&] { Need(count, "count") = ToStore(store).NumKeys(); });
}

muster_status muster_store_list_keys(muster_store* store, const void* prefix,
                                     size_t prefix_size,
                                     muster_strings** keys) {
  return GuardHandle(__func__, keys, "keys", [&] {
    return MakeStrings(ToStore(store).ListKeys(
        muster::c::ToView(prefix, prefix_size, "prefix")));
  });
}

muster_status muster_store_has_extended_api(muster_store* store, int32_t* has) {
  return Guard(__func__, [&] {
    Need(has, "has") = ToStore(store).HasExtendedApi() ? 1 : 0;
  });
}

muster_status muster_store_multi_get(muster_store* store,
                                     const muster_bytes* keys, size_t count,
                                     muster_strings** values) {
  return GuardHandle(__func__, values, "values", [&] {
    return MakeStrings(ToStore(store).MultiGet(ToStrings(keys, count, "keys")));
  });
}

muster_status muster_store_multi_set(muster_store* store,
                                     const muster_bytes* keys,
                                     const muster_bytes* values, size_t count) {
  return Guard(__func__, [&] {
    ToStore(store).MultiSet(ToStrings(keys, count, "keys"),
                            ToStrings(values, count, "values"));
  });
}

muster_status muster_store_queue_push(muster_store* store, const void* key,
                                      size_t key_size, const void* value,
                                      size_t value_size) {
  return Guard(__func__, [&] {
    ToStore(store).QueuePush(ToKey(key, key_size), ToValue(value, value_size));
  });
}

muster_status muster_store_queue_pop(muster_store* store, const void* key,
                                     size_t key_size, int32_t block,
                                     muster_strings** item) {
  return GuardHandle(__func__, item, "item", [&] {
    return MakeStrings(
        ToStore(store).QueuePop(ToKey(key, key_size), block != 0));
  });
}

muster_status muster_store_queue_len(muster_store* store, const void* key,
                                     size_t key_size, int64_t* length) {
  return Guard(__func__, [&] {
    Need(length, "length") = ToStore(store).QueueLen(ToKey(key, key_size));
  });
}

muster_status muster_store_watch(muster_store* store, const void* key,
                                 size_t key_size,
                                 const muster_watch_options* options,
                                 muster_watch** watch) {
  return GuardHandle(__func__, watch, "watch", [&] {
    const muster_watch_options from = muster::c::ReadOptions(options);
    muster::WatchOptions to;
    to.prefix = from.prefix != 0;
    if (from.has_after_revision != 0) to.after_revision = from.after_revision;
    muster::Store& watched = ToStore(store);
    return new muster_watch{store->store,
                            watched.Watch(ToKey(key, key_size), to)};
  });
}

void muster_watch_release(muster_watch* watch) { delete watch; }

muster_status muster_watch_next(muster_watch* watch, int64_t timeout_ms,
                                muster_key_change* change, int32_t* found) {
  return Guard(__func__, [&] {
    muster_watch& from = Need(watch, "watch");
    int32_t& has_change = Need(found, "found");
    muster::c::CheckSize(change, "change");
    auto next = from.watch->Next(ToMilliseconds(timeout_ms));
    const bool has_next = next.has_value();
    if (has_next) {
      from.change = *std::move(next);
      muster_key_change to = {};
      to.kind = static_cast<int32_t>(from.change.kind);
      to.revision = from.change.revision;
      to.key = muster::c::ToBytes(from.change.key);
      to.value = muster::c::ToBytes(from.change.value);
      muster::c::Fill(to, change, "change");
    }
    has_change = has_next ? 1 : 0;
  });
}

muster_status muster_watch_cancel(muster_watch* watch) {
  return Guard(__func__, [&] { Need(watch, "watch").watch->Cancel(); });
}

muster_status muster_watch_revision(muster_watch* watch, int64_t* revision) {
  return Guard(__func__, [&] {
    Need(revision, "revision") = Need(watch, "watch").watch->revision();
  });
}
