#include "coordinator/storage/etcd/etcd_storage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/storage/etcd/etcd.pb.h"
#include "coordinator/storage/etcd/log.pb.h"
#include "glog/logging.h"

namespace muster::coordinator {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RequestOp;
using storage::v1::LogEntry;
using storage::v1::LogPart;
using storage::v1::Snapshot;

constexpr char kFormat[] = "muster etcd 1";
// Parts of a range that are read with one request.
constexpr int64_t kRangeParts = 32;

std::string Digits(int64_t number) {
  return absl::StrCat(absl::Hex(number, absl::kZeroPad16));
}

// The first key after all that begin with `prefix`, which ends in "/".
std::string MakeRangeEnd(std::string prefix) {
  ++prefix.back();
  return prefix;
}

RequestOp Put(const std::string& key, const std::string& value) {
  RequestOp op;
  op.mutable_request_put()->set_key(key);
  op.mutable_request_put()->set_value(value);
  return op;
}

RequestOp Delete(const std::string& first, const std::string& end) {
  RequestOp op;
  op.mutable_request_delete_range()->set_key(first);
  op.mutable_request_delete_range()->set_range_end(end);
  return op;
}

RequestOp Get(const std::string& key) {
  RequestOp op;
  op.mutable_request_range()->set_key(key);
  return op;
}

// Values of etcd that together are `entry`.
std::vector<std::string> CutIntoParts(const std::string& entry,
                                      size_t part_bytes_max) {
  std::vector<std::string> parts;
  size_t begin = 0;
  do {
    const size_t count = std::min(part_bytes_max, entry.size() - begin);
    LogPart part;
    part.set_first(begin == 0);
    part.set_last(begin + count == entry.size());
    part.set_data(entry.data() + begin, count);
    parts.push_back(part.SerializeAsString());
    begin += count;
  } while (begin < entry.size());
  return parts;
}

void Apply(const LogEntry& entry,
           std::map<std::string, std::string, std::less<>>& entries) {
  for (const auto& change : entry.changes()) {
    if (change.erases_prefix()) {
      auto it = entries.lower_bound(change.key());
      while (it != entries.end() && absl::StartsWith(it->first, change.key())) {
        it = entries.erase(it);
      }
    } else if (change.has_value()) {
      entries[change.key()] = change.value();
    } else {
      entries.erase(change.key());
    }
  }
}

}  // namespace

EtcdStorage::EtcdStorage(EtcdKv& kv, EtcdStorageOptions options)
    : kv_(kv),
      options_(std::move(options)),
      snapshots_([this] { SnapshotLoop(); }) {}

EtcdStorage::~EtcdStorage() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  snapshots_.join();
}

std::string EtcdStorage::LogKey(int64_t number) const {
  return absl::StrCat(options_.prefix, "log/", Digits(number));
}

std::string EtcdStorage::SnapshotPartKey(int64_t log_begin,
                                         int64_t part) const {
  return absl::StrCat(options_.prefix, "snapshots/", Digits(log_begin), "/",
                      Digits(part));
}

Status EtcdStorage::Load(
    absl::FunctionRef<Status(absl::string_view key, absl::string_view value)>
        entry) {
  Status status = CheckOwner();
  if (!status.ok()) return status;
  const StatusOr<Contents> contents = Read();
  if (!contents.ok()) return contents.status();
  for (const auto& [key, value] : contents->entries) {
    status = entry(key, value);
    if (!status.ok()) return status;
  }
  log_end_ = contents->log_end;
  {
    MutexLock lock(mu_);
    log_bytes_ = contents->log_bytes;
    snapshot_bytes_ = contents->snapshot_bytes;
    loaded_ = true;
  }
  changed_.NotifyAll();
  return OkStatus();
}

Status EtcdStorage::Write(const std::vector<StorageChange>& changes) {
  LogEntry entry;
  for (const StorageChange& change : changes) {
    auto* logged = entry.add_changes();
    logged->set_key(change.key);
    if (change.value.has_value()) logged->set_value(*change.value);
  }
  return Append(entry.SerializeAsString());
}

Status EtcdStorage::ErasePrefix(absl::string_view prefix) {
  LogEntry entry;
  entry.add_changes()->set_key(std::string(prefix));
  entry.mutable_changes(0)->set_erases_prefix(true);
  return Append(entry.SerializeAsString());
}

Status EtcdStorage::Append(const std::string& entry) {
  for (const std::string& part : CutIntoParts(entry, options_.part_bytes_max)) {
    const std::string key = LogKey(log_end_);
    Status status = Guarded({Put(key, part)}, key, part);
    if (!status.ok()) return status;
    ++log_end_;
    MutexLock lock(mu_);
    log_bytes_ += static_cast<int64_t>(part.size());
  }
  changed_.NotifyAll();
  return OkStatus();
}

Status EtcdStorage::Retry(absl::FunctionRef<Status()> request) {
  while (true) {
    Status status = request();
    if (!IsUnavailable(status) && !IsResourceExhausted(status)) return status;
    {
      MutexLock lock(mu_);
      if (stopping_) return status;
    }
    if (!options_.try_again(status)) return status;
  }
}

Status EtcdStorage::Guarded(const std::vector<RequestOp>& ops,
                            const std::string& new_key,
                            const std::string& value) {
  etcdserverpb::TxnRequest request;
  Compare* owner = request.add_compare();
  owner->set_target(Compare::CREATE);
  owner->set_key(options_.owner_key);
  owner->set_create_revision(options_.owner_revision);
  *request.add_failure() = Get(options_.owner_key);
  if (!new_key.empty()) {
    Compare* absent = request.add_compare();
    absent->set_target(Compare::VERSION);
    absent->set_key(new_key);
    absent->set_version(0);
    *request.add_failure() = Get(new_key);
  }
  for (const RequestOp& op : ops) *request.add_success() = op;

  etcdserverpb::TxnResponse response;
  Status status = Retry([&] { return kv_.Txn(request, response); });
  if (!status.ok() || response.succeeded()) return status;
  const auto& found = response.responses(0).response_range();
  if (found.kvs_size() == 0 ||
      found.kvs(0).create_revision() != options_.owner_revision) {
    return AbortedError(absl::StrCat(
        "etcd: this coordinator does not own ", options_.prefix, " any more: ",
        found.kvs_size() == 0
            ? std::string("its lease has ended")
            : absl::StrCat(base::Quote(found.kvs(0).value()), " does")));
  }
  const auto& existing = response.responses(1).response_range();
  if (existing.kvs_size() == 1 && existing.kvs(0).value() == value) {
    return OkStatus();
  }
  return DataLossError(absl::StrCat("etcd: the key ", base::Quote(new_key),
                                    " has a value that this coordinator has "
                                    "not written"));
}

Status EtcdStorage::CheckOwner() { return Guarded({}); }

StatusOr<EtcdStorage::Contents> EtcdStorage::Read() {
  while (true) {
    Contents contents;
    Status status = ReadAt(contents);
    if (status.ok()) return contents;
    // The revision was compacted while it was read.
    if (!IsOutOfRange(status)) return status;
  }
}

Status EtcdStorage::ReadAt(Contents& contents) {
  const auto damaged = [&](const std::string& key, absl::string_view what) {
    return DataLossError(
        absl::StrCat("etcd: key ", base::Quote(key), ": ", what));
  };
  const std::string mark_key = options_.prefix + "snapshot";
  etcdserverpb::RangeRequest request;
  request.set_key(mark_key);
  etcdserverpb::RangeResponse response;
  Status status = Retry([&] { return kv_.Range(request, response); });
  if (!status.ok()) return status;
  contents.revision = response.header().revision();
  Snapshot mark;
  if (response.kvs_size() > 0 &&
      (!mark.ParseFromString(response.kvs(0).value()) ||
       mark.format() != kFormat)) {
    return damaged(mark_key, "is not the snapshot of this version");
  }
  contents.snapshot_bytes = mark.bytes();

  std::string bytes;
  int64_t parts = 0;
  const auto add = [&](const LogPart& part) {
    if (part.first()) bytes.clear();
    bytes += part.data();
    if (!part.last()) return true;
    LogEntry entry;
    if (!entry.ParseFromString(bytes)) return false;
    bytes.clear();
    Apply(entry, contents.entries);
    return true;
  };
  LogPart part;
  status = ReadRange(
      SnapshotPartKey(mark.log_begin(), 0),
      SnapshotPartKey(mark.log_begin(), mark.parts()), contents.revision,
      [&](const std::string& key, const std::string& value) {
        if (key != SnapshotPartKey(mark.log_begin(), parts++)) {
          return damaged(key, "a part of the snapshot before it is missing");
        }
        if (part.ParseFromString(value) && add(part)) return OkStatus();
        return damaged(key, "its value is damaged");
      });
  if (!status.ok()) return status;
  if (parts != mark.parts()) {
    return damaged(SnapshotPartKey(mark.log_begin(), parts), "is missing");
  }

  contents.complete_end = contents.log_end = mark.log_begin();
  const std::string log = options_.prefix + "log/";
  int64_t unfinished_bytes = 0;
  return ReadRange(LogKey(mark.log_begin()), MakeRangeEnd(log),
                   contents.revision,
                   [&](const std::string& key, const std::string& value) {
                     if (key != LogKey(contents.log_end)) {
                       return damaged(LogKey(contents.log_end), "is missing");
                     }
                     if (!part.ParseFromString(value) || !add(part)) {
                       return damaged(key, "its value is damaged");
                     }
                     ++contents.log_end;
                     unfinished_bytes += static_cast<int64_t>(value.size());
                     if (!part.last()) return OkStatus();
                     contents.complete_end = contents.log_end;
                     contents.log_bytes += std::exchange(unfinished_bytes, 0);
                     return OkStatus();
                   });
}

Status EtcdStorage::ReadRange(
    const std::string& first, const std::string& end, int64_t revision,
    absl::FunctionRef<Status(const std::string& key, const std::string& value)>
        entry) {
  etcdserverpb::RangeRequest request;
  request.set_key(first);
  request.set_range_end(end);
  request.set_revision(revision);
  request.set_limit(kRangeParts);
  while (request.key() < end) {
    etcdserverpb::RangeResponse response;
    Status status = Retry([&] { return kv_.Range(request, response); });
    if (!status.ok()) return status;
    for (const auto& found : response.kvs()) {
      status = entry(found.key(), found.value());
      if (!status.ok()) return status;
    }
    if (!response.more() || response.kvs_size() == 0) break;
    request.set_key(response.kvs(response.kvs_size() - 1).key() + '\0');
  }
  return OkStatus();
}

void EtcdStorage::SnapshotLoop() {
  while (true) {
    {
      MutexLock lock(mu_);
      while (!stopping_ && (!loaded_ || !snapshot_status_.ok() ||
                            log_bytes_ < std::max(options_.snapshot_bytes_min,
                                                  snapshot_bytes_))) {
        changed_.Wait(mu_);
      }
      if (stopping_) return;
    }
    const Status status = MakeSnapshot();
    {
      MutexLock lock(mu_);
      // After a failure the log grows without snapshots until a restart.
      snapshot_status_ = status;
    }
    changed_.NotifyAll();
    if (!status.ok()) {
      LOG(ERROR) << "etcd_snapshot_failed: cause="
                 << base::Quote(status.message());
    }
  }
}

Status EtcdStorage::AwaitSnapshots() {
  MutexLock lock(mu_);
  while (snapshot_status_.ok() &&
         log_bytes_ >= std::max(options_.snapshot_bytes_min, snapshot_bytes_)) {
    changed_.Wait(mu_);
  }
  return snapshot_status_;
}

Status EtcdStorage::MakeSnapshot() {
  const StatusOr<Contents> contents = Read();
  if (!contents.ok()) return contents.status();
  Status status = WriteSnapshot(*contents);
  if (!status.ok()) return status;
  if (last_revision_ > 0) {
    // Values that were removed stay in etcd until their history is compacted.
    etcdserverpb::CompactionRequest request;
    request.set_revision(last_revision_);
    etcdserverpb::CompactionResponse response;
    status = Retry([&] { return kv_.Compact(request, response); });
    // Others may have compacted a later revision.
    if (!status.ok() && !IsOutOfRange(status)) return status;
  }
  last_revision_ = contents->revision;
  return OkStatus();
}

Status EtcdStorage::WriteSnapshot(const Contents& contents) {
  Snapshot mark;
  mark.set_format(kFormat);
  mark.set_log_begin(contents.complete_end);
  LogEntry entry;
  size_t bytes = 0;
  const auto write = [&]() -> Status {
    for (const std::string& part :
         CutIntoParts(entry.SerializeAsString(), options_.part_bytes_max)) {
      Status status =
          Guarded({Put(SnapshotPartKey(mark.log_begin(), mark.parts()), part)});
      if (!status.ok()) return status;
      mark.set_parts(mark.parts() + 1);
      mark.set_bytes(mark.bytes() + static_cast<int64_t>(part.size()));
    }
    entry.Clear();
    bytes = 0;
    return OkStatus();
  };
  for (const auto& [key, value] : contents.entries) {
    auto* change = entry.add_changes();
    change->set_key(key);
    change->set_value(value);
    bytes += key.size() + value.size();
    if (bytes < options_.part_bytes_max) continue;
    Status status = write();
    if (!status.ok()) return status;
  }
  Status status = write();
  if (!status.ok()) return status;
  // From here on a load begins with the new snapshot.
  status =
      Guarded({Put(options_.prefix + "snapshot", mark.SerializeAsString())});
  if (!status.ok()) return status;
  {
    MutexLock lock(mu_);
    log_bytes_ -= contents.log_bytes;
    snapshot_bytes_ = mark.bytes();
  }
  return Guarded(
      {Delete(LogKey(0), LogKey(mark.log_begin())),
       Delete(SnapshotPartKey(0, 0), SnapshotPartKey(mark.log_begin(), 0))});
}

}  // namespace muster::coordinator
