#include "muster/store.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "client/stores/store_rules.h"
#include "client/stores/store_watch.h"
#include "muster/base/status.h"
#include "muster/session.h"
#include "muster/v1/session.pb.h"

namespace muster {
namespace {

using internal::Deadline;
using internal::ErrorSource;
using internal::ThrowIfFailed;
using internal::ValueOrThrow;

constexpr char kNobodysValue[] = "muster: a value that nobody sets";

Deadline After(std::chrono::milliseconds timeout) {
  return internal::StoreDeadline(timeout);
}

// Adds the name of the timeout, which the coordinator does not know.
Status Blamed(const Status& status, const Deadline& deadline) {
  if (!IsDeadlineExceeded(status)) return status;
  return DeadlineExceededError(
      absl::StrCat(status.message(), " ", deadline.Blame()));
}

template <typename T>
StatusOr<T> Blamed(StatusOr<T> result, const Deadline& deadline) {
  if (result.ok()) return result;
  return Blamed(result.status(), deadline);
}

// Makes one call on the session.
v1::Result Call(Session& session, v1::Operation operation,
                const Deadline& deadline) {
  return ValueOrThrow(ErrorSource::kStore,
                      session.stream().Call(std::move(operation), deadline));
}

[[noreturn]] void ThrowUnimplemented(std::string_view verb) {
  internal::Throw(
      ErrorSource::kStore,
      UnimplementedError(absl::StrCat("Not implemented. This store has no ",
                                      base::ToAbsl(verb))));
}

// Watches a part of a store; returns the changed keys without the prefix.
class PrefixWatch : public StoreWatch {
 public:
  PrefixWatch(size_t prefix_bytes, std::unique_ptr<StoreWatch> watch)
      : prefix_bytes_(prefix_bytes), watch_(std::move(watch)) {}

  std::optional<KeyChange> Next(std::chrono::milliseconds timeout) override {
    std::optional<KeyChange> change = watch_->Next(timeout);
    if (change.has_value()) change->key.erase(0, prefix_bytes_);
    return change;
  }
  void Cancel() override { watch_->Cancel(); }
  int64_t revision() const override { return watch_->revision(); }

 private:
  const size_t prefix_bytes_;
  const std::unique_ptr<StoreWatch> watch_;
};

}  // namespace

bool Store::DeleteKey(std::string_view) { ThrowUnimplemented("DeleteKey"); }
std::vector<std::string> Store::ListKeys(std::string_view) {
  ThrowUnimplemented("ListKeys");
}
void Store::Append(std::string_view, std::string_view) {
  ThrowUnimplemented("Append");
}
std::vector<std::string> Store::MultiGet(const std::vector<std::string>&) {
  ThrowUnimplemented("MultiGet");
}
void Store::MultiSet(const std::vector<std::string>&,
                     const std::vector<std::string>&) {
  ThrowUnimplemented("MultiSet");
}
void Store::Set(std::string_view key, std::string_view value,
                const SetOptions& options) {
  if (options.ttl.has_value() || options.ephemeral) {
    ThrowUnimplemented("Set with a time to live or an owner");
  }
  Set(key, value);
}
std::optional<StoreValue> Store::TryGet(std::string_view) {
  ThrowUnimplemented("TryGet");
}
CompareAndSetResult Store::CompareAndSet(std::string_view, int64_t,
                                         std::string_view,
                                         const SetOptions& options) {
  ThrowUnimplemented(options.ttl.has_value() || options.ephemeral
                         ? "CompareAndSet with a time to live or an owner"
                         : "CompareAndSet");
}
int64_t Store::DeletePrefix(std::string_view) {
  ThrowUnimplemented("DeletePrefix");
}
void Store::QueuePush(std::string_view, std::string_view) {
  ThrowUnimplemented("QueuePush");
}
std::string Store::QueuePop(std::string_view, bool) {
  ThrowUnimplemented("QueuePop");
}
int64_t Store::QueueLen(std::string_view) { ThrowUnimplemented("QueueLen"); }
std::unique_ptr<StoreWatch> Store::Watch(std::string_view,
                                         const WatchOptions&) {
  ThrowUnimplemented("Watch");
}
std::shared_ptr<Store> Store::Clone() { ThrowUnimplemented("Clone"); }

CoordinatorStore::CoordinatorStore(std::shared_ptr<Session> session)
    : session_(std::move(session)) {
  if (session_ == nullptr) {
    internal::Throw(ErrorSource::kStore,
                    InvalidArgumentError("CoordinatorStore: session is null"));
  }
}

void CoordinatorStore::Set(std::string_view key, std::string_view value) {
  Set(key, value, {});
}

std::string CoordinatorStore::Get(std::string_view key) {
  const Deadline deadline = After(timeout());
  return ValueOrThrow(
      ErrorSource::kStore,
      Blamed(internal::GetKey(session_->stream(), base::ToAbsl(key), deadline),
             deadline));
}

int64_t CoordinatorStore::Add(std::string_view key, int64_t delta) {
  return ValueOrThrow(ErrorSource::kStore,
                      internal::AddToKey(session_->stream(), base::ToAbsl(key),
                                         delta, After(timeout())));
}

void CoordinatorStore::Append(std::string_view key, std::string_view value) {
  v1::Operation operation;
  operation.mutable_append()->mutable_key()->assign(key);
  operation.mutable_append()->mutable_value()->assign(value);
  Call(*session_, std::move(operation), After(timeout()));
}

bool CoordinatorStore::Check(const std::vector<std::string>& keys) {
  v1::Operation operation;
  operation.mutable_check()->mutable_keys()->Assign(keys.begin(), keys.end());
  return Call(*session_, std::move(operation), After(timeout()))
      .check()
      .all_present();
}

std::string CoordinatorStore::CompareSet(std::string_view key,
                                         std::string_view expected,
                                         std::string_view desired) {
  v1::Operation operation;
  v1::CompareSetRequest& request = *operation.mutable_compare_set();
  request.mutable_key()->assign(key);
  request.mutable_expected()->assign(expected);
  request.mutable_desired()->assign(desired);
  v1::Result result = Call(*session_, std::move(operation), After(timeout()));
  return std::move(*result.mutable_compare_set()->mutable_value());
}

bool CoordinatorStore::DeleteKey(std::string_view key) {
  return ValueOrThrow(ErrorSource::kStore,
                      internal::DeleteKey(session_->stream(), base::ToAbsl(key),
                                          After(timeout())));
}

int64_t CoordinatorStore::NumKeys() {
  const Deadline deadline = After(timeout());
  v1::Operation operation;
  operation.mutable_num_keys();
  const int64_t all =
      Call(*session_, std::move(operation), deadline).num_keys().count();
  const auto reserved =
      ValueOrThrow(ErrorSource::kStore,
                   internal::ListKeys(session_->stream(),
                                      internal::kReservedKeyPrefix, deadline));
  return all - static_cast<int64_t>(reserved.size());
}

std::vector<std::string> CoordinatorStore::ListKeys(std::string_view prefix) {
  auto keys =
      ValueOrThrow(ErrorSource::kStore,
                   internal::ListKeys(session_->stream(), base::ToAbsl(prefix),
                                      After(timeout())));
  internal::DropReservedKeys(base::ToAbsl(prefix), keys);
  return keys;
}

void CoordinatorStore::Wait(const std::vector<std::string>& keys,
                            std::chrono::milliseconds timeout) {
  if (keys.empty()) return;
  ThrowIfFailed(ErrorSource::kStore,
                internal::CheckTimeout(timeout, "Store::Wait"));
  const Deadline deadline = internal::WaitDeadline(timeout);
  v1::Operation operation;
  operation.mutable_wait()->mutable_keys()->Assign(keys.begin(), keys.end());
  ThrowIfFailed(
      ErrorSource::kStore,
      Blamed(session_->stream().Call(std::move(operation), deadline).status(),
             deadline));
}

std::vector<std::string> CoordinatorStore::MultiGet(
    const std::vector<std::string>& keys) {
  if (keys.empty()) return {};
  const Deadline deadline = After(timeout());
  return ValueOrThrow(
      ErrorSource::kStore,
      Blamed(internal::GetKeys(session_->stream(), keys, deadline), deadline));
}

void CoordinatorStore::MultiSet(const std::vector<std::string>& keys,
                                const std::vector<std::string>& values) {
  ThrowIfFailed(ErrorSource::kStore, internal::CheckSameLength(keys, values));
  if (keys.empty()) return;
  v1::Operation operation;
  for (size_t i = 0; i < keys.size(); ++i) {
    v1::KeyValue& entry = *operation.mutable_multi_set()->add_entries();
    entry.set_key(keys[i]);
    entry.set_value(values[i]);
  }
  Call(*session_, std::move(operation), After(timeout()));
}

void CoordinatorStore::Set(std::string_view key, std::string_view value,
                           const SetOptions& options) {
  ThrowIfFailed(
      ErrorSource::kStore,
      internal::SetKey(session_->stream(), base::ToAbsl(key),
                       base::ToAbsl(value), options, After(timeout())));
}

std::optional<StoreValue> CoordinatorStore::TryGet(std::string_view key) {
  return ValueOrThrow(ErrorSource::kStore,
                      internal::TryGetKey(session_->stream(), base::ToAbsl(key),
                                          After(timeout())));
}

CompareAndSetResult CoordinatorStore::CompareAndSet(std::string_view key,
                                                    int64_t expected_revision,
                                                    std::string_view desired,
                                                    const SetOptions& options) {
  return ValueOrThrow(
      ErrorSource::kStore,
      internal::CompareAndSetKey(session_->stream(), base::ToAbsl(key),
                                 expected_revision, base::ToAbsl(desired),
                                 options, After(timeout())));
}

int64_t CoordinatorStore::DeletePrefix(std::string_view prefix) {
  v1::Operation operation;
  operation.mutable_delete_prefix()->mutable_prefix()->assign(prefix);
  return Call(*session_, std::move(operation), After(timeout()))
      .delete_prefix()
      .deleted();
}

void CoordinatorStore::QueuePush(std::string_view key, std::string_view value) {
  v1::Operation operation;
  operation.mutable_queue_push()->mutable_key()->assign(key);
  operation.mutable_queue_push()->mutable_value()->assign(value);
  Call(*session_, std::move(operation), After(timeout()));
}

std::string CoordinatorStore::QueuePop(std::string_view key, bool block) {
  const Deadline deadline = After(timeout());
  v1::Operation operation;
  operation.mutable_queue_pop()->mutable_key()->assign(key);
  operation.mutable_queue_pop()->set_no_wait(!block);
  StatusOr<v1::Result> result =
      Blamed(session_->stream().Call(std::move(operation), deadline), deadline);
  if (!result.ok()) return internal::ItemOrThrow(result.status());
  return std::move(*result->mutable_queue_pop()->mutable_value());
}

int64_t CoordinatorStore::QueueLen(std::string_view key) {
  v1::Operation operation;
  operation.mutable_queue_len()->mutable_key()->assign(key);
  return Call(*session_, std::move(operation), After(timeout()))
      .queue_len()
      .length();
}

std::unique_ptr<StoreWatch> CoordinatorStore::Watch(
    std::string_view key, const WatchOptions& options) {
  return internal::NewStoreWatch(session_, base::ToAbsl(key), options,
                                 After(timeout()));
}

std::shared_ptr<Store> CoordinatorStore::Clone() {
  auto clone = std::make_shared<CoordinatorStore>(session_);
  clone->timeout_ = timeout();
  return clone;
}

void CoordinatorStore::SetTimeout(std::chrono::milliseconds timeout) {
  ThrowIfFailed(ErrorSource::kStore, internal::CheckTimeout(timeout));
  timeout_ = timeout;
}

std::chrono::milliseconds CoordinatorStore::timeout() const { return timeout_; }

PrefixStore::PrefixStore(std::string_view prefix, std::shared_ptr<Store> store)
    : prefix_(absl::StrCat(base::ToAbsl(prefix), "/")),
      store_(std::move(store)) {
  if (store_ == nullptr) {
    internal::Throw(ErrorSource::kStore,
                    InvalidArgumentError(absl::StrCat(
                        "PrefixStore ", base::Quote(base::ToAbsl(prefix)),
                        ": the underlying store is null")));
  }
}

std::string PrefixStore::Prefixed(std::string_view key) const {
  return absl::StrCat(prefix_, base::ToAbsl(key));
}

std::vector<std::string> PrefixStore::Prefixed(
    const std::vector<std::string>& keys) const {
  std::vector<std::string> prefixed;
  prefixed.reserve(keys.size());
  for (const std::string& key : keys) prefixed.push_back(Prefixed(key));
  return prefixed;
}

void PrefixStore::Set(std::string_view key, std::string_view value) {
  store_->Set(Prefixed(key), value);
}

std::string PrefixStore::Get(std::string_view key) {
  return store_->Get(Prefixed(key));
}

int64_t PrefixStore::Add(std::string_view key, int64_t delta) {
  return store_->Add(Prefixed(key), delta);
}

bool PrefixStore::HasExtendedApi() const { return store_->HasExtendedApi(); }

void PrefixStore::Append(std::string_view key, std::string_view value) {
  const std::string full = Prefixed(key);
  if (store_->HasExtendedApi()) return store_->Append(full, value);
  for (;;) {
    // Reads without waiting: a missing key gives kNobodysValue, which no user
    // sets.
    std::string present =
        store_->CompareSet(full, kNobodysValue, kNobodysValue);
    if (present == kNobodysValue) present.clear();
    const std::string desired = absl::StrCat(present, base::ToAbsl(value));
    if (store_->CompareSet(full, present, desired) == desired) return;
  }
}

bool PrefixStore::Check(const std::vector<std::string>& keys) {
  return store_->Check(Prefixed(keys));
}

std::string PrefixStore::CompareSet(std::string_view key,
                                    std::string_view expected,
                                    std::string_view desired) {
  return store_->CompareSet(Prefixed(key), expected, desired);
}

bool PrefixStore::DeleteKey(std::string_view key) {
  return store_->DeleteKey(Prefixed(key));
}

int64_t PrefixStore::NumKeys() {
  return static_cast<int64_t>(store_->ListKeys(prefix_).size());
}

std::vector<std::string> PrefixStore::ListKeys(std::string_view prefix) {
  std::vector<std::string> keys = store_->ListKeys(Prefixed(prefix));
  for (std::string& key : keys) key.erase(0, prefix_.size());
  return keys;
}

void PrefixStore::Wait(const std::vector<std::string>& keys,
                       std::chrono::milliseconds timeout) {
  store_->Wait(Prefixed(keys), timeout);
}

std::vector<std::string> PrefixStore::MultiGet(
    const std::vector<std::string>& keys) {
  const std::vector<std::string> full = Prefixed(keys);
  if (store_->HasExtendedApi()) return store_->MultiGet(full);
  store_->Wait(full, timeout());
  std::vector<std::string> values;
  values.reserve(full.size());
  for (const std::string& key : full) values.push_back(store_->Get(key));
  return values;
}

void PrefixStore::MultiSet(const std::vector<std::string>& keys,
                           const std::vector<std::string>& values) {
  ThrowIfFailed(ErrorSource::kStore, internal::CheckSameLength(keys, values));
  if (store_->HasExtendedApi()) {
    return store_->MultiSet(Prefixed(keys), values);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    store_->Set(Prefixed(keys[i]), values[i]);
  }
}

void PrefixStore::Set(std::string_view key, std::string_view value,
                      const SetOptions& options) {
  store_->Set(Prefixed(key), value, options);
}

std::optional<StoreValue> PrefixStore::TryGet(std::string_view key) {
  return store_->TryGet(Prefixed(key));
}

CompareAndSetResult PrefixStore::CompareAndSet(std::string_view key,
                                               int64_t expected_revision,
                                               std::string_view desired,
                                               const SetOptions& options) {
  return store_->CompareAndSet(Prefixed(key), expected_revision, desired,
                               options);
}

int64_t PrefixStore::DeletePrefix(std::string_view prefix) {
  return store_->DeletePrefix(Prefixed(prefix));
}

void PrefixStore::QueuePush(std::string_view key, std::string_view value) {
  store_->QueuePush(Prefixed(key), value);
}

std::string PrefixStore::QueuePop(std::string_view key, bool block) {
  return store_->QueuePop(Prefixed(key), block);
}

int64_t PrefixStore::QueueLen(std::string_view key) {
  return store_->QueueLen(Prefixed(key));
}

std::unique_ptr<StoreWatch> PrefixStore::Watch(std::string_view key,
                                               const WatchOptions& options) {
  return std::make_unique<PrefixWatch>(prefix_.size(),
                                       store_->Watch(Prefixed(key), options));
}

const std::shared_ptr<Store>& PrefixStore::underlying_non_prefix_store() const {
  const auto* const inner = dynamic_cast<const PrefixStore*>(store_.get());
  return inner == nullptr ? store_ : inner->underlying_non_prefix_store();
}

std::shared_ptr<Store> PrefixStore::Clone() {
  return std::make_shared<PrefixStore>(
      std::string_view(prefix_).substr(0, prefix_.size() - 1), store_->Clone());
}

void PrefixStore::SetTimeout(std::chrono::milliseconds timeout) {
  store_->SetTimeout(timeout);
}

std::chrono::milliseconds PrefixStore::timeout() const {
  return store_->timeout();
}

}  // namespace muster
