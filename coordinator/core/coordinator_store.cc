// The store's verbs of Coordinator.

#include <utility>

#include "coordinator/core/coordinator.h"

namespace muster::coordinator::core {

void Coordinator::Set(const Call& call, absl::string_view key,
                      std::string value, Instant now, Outbox& out,
                      const SetOptions& options) {
  Mutate(call, "Set", now, out,
         [&] { store_.Set(call, key, std::move(value), options, now, out); });
}

void Coordinator::Add(const Call& call, absl::string_view key, int64_t delta,
                      Instant now, Outbox& out) {
  Mutate(call, "Add", now, out, [&] { store_.Add(call, key, delta, out); });
}

void Coordinator::Append(const Call& call, absl::string_view key,
                         absl::string_view bytes, Instant now, Outbox& out) {
  Mutate(call, "Append", now, out,
         [&] { store_.Append(call, key, bytes, out); });
}

void Coordinator::CompareSet(const Call& call, absl::string_view key,
                             absl::string_view expected, std::string desired,
                             Instant now, Outbox& out) {
  Mutate(call, "CompareSet", now, out, [&] {
    store_.CompareSet(call, key, expected, std::move(desired), out);
  });
}

void Coordinator::CompareAndSet(const Call& call, absl::string_view key,
                                int64_t expected_revision, std::string value,
                                Instant now, Outbox& out,
                                const SetOptions& options) {
  Mutate(call, "CompareAndSet", now, out, [&] {
    store_.CompareAndSet(call, key, expected_revision, std::move(value),
                         options, now, out);
  });
}

void Coordinator::DeleteKey(const Call& call, absl::string_view key,
                            Instant now, Outbox& out) {
  Mutate(call, "Delete", now, out, [&] { store_.DeleteKey(call, key, out); });
}

void Coordinator::DeletePrefix(const Call& call, absl::string_view prefix,
                               Instant now, Outbox& out) {
  Mutate(call, "DeletePrefix", now, out,
         [&] { store_.DeletePrefix(call, prefix, out); });
}

void Coordinator::QueuePush(const Call& call, absl::string_view key,
                            std::string item, Instant now, Outbox& out) {
  Mutate(call, "QueuePush", now, out,
         [&] { store_.QueuePush(call, key, std::move(item), out); });
}

void Coordinator::QueuePop(const Call& call, absl::string_view key,
                           std::optional<Duration> timeout, Instant now,
                           Outbox& out) {
  const auto pop = [&] { store_.QueuePop(call, key, timeout, now, out); };
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  if (member == nullptr) return pop();
  ApplyAndPark(call, "QueuePop", *member, out, pop);
}

void Coordinator::MultiSet(const Call& call, absl::Span<const std::string> keys,
                           std::vector<std::string> values, Instant now,
                           Outbox& out) {
  Mutate(call, "MultiSet", now, out,
         [&] { store_.MultiSet(call, keys, std::move(values), out); });
}

void Coordinator::Get(const Call& call, absl::string_view key, Duration timeout,
                      Instant now, Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.Get(call, key, timeout, now, out);
}

void Coordinator::TryGet(const Call& call, absl::string_view key, Instant now,
                         Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.TryGet(call, key, out);
}

void Coordinator::Check(const Call& call, absl::Span<const std::string> keys,
                        Instant now, Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.Check(call, keys, out);
}

void Coordinator::Wait(const Call& call, std::vector<std::string> keys,
                       Duration timeout, Instant now, Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.Wait(call, std::move(keys), timeout, now, out);
}

void Coordinator::MultiGet(const Call& call, std::vector<std::string> keys,
                           Duration timeout, Instant now, Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.MultiGet(call, std::move(keys), timeout, now, out);
}

void Coordinator::NumKeys(const Call& call, Instant now, Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.NumKeys(call, out);
}

void Coordinator::ListKeys(const Call& call, absl::string_view prefix,
                           absl::string_view after, int64_t count_max,
                           Instant now, Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.ListKeys(call, prefix, after, count_max, out);
}

void Coordinator::QueueLen(const Call& call, absl::string_view key, Instant now,
                           Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.QueueLen(call, key, out);
}

void Coordinator::Watch(const Call& call, WatchRequest request, Instant now,
                        Outbox& out) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  store_.Watch(call, std::move(request), now, out);
}

}  // namespace muster::coordinator::core
