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
// The parts that the first request of a range reads; the next ones read about
// so many bytes.
constexpr int64_t kRangeParts = 32;
constexpr int64_t kRangeBytes = 4 << 20;
constexpr int64_t kRangePartsMax = 4096;

std::string Digits(int64_t number) {
  return absl::StrCat(absl::Hex(number, absl::kZeroPad16));
}

// The first key after all that begin with `prefix`, which ends in "/".
std::string MakeRangeEnd(std::string prefix) {
  ++prefix.back();
  return prefix;
}

RequestOp MakePut(const std::string& key, const std::string& value) {
  RequestOp op;
  op.mutable_request_put()->set_key(key);
  op.mutable_request_put()->set_value(value);
  return op;
}

RequestOp MakeDeletion(const std::string& first, const std::string& end) {
  RequestOp op;
  op.mutable_request_delete_range()->set_key(first);
  op.mutable_request_delete_range()->set_range_end(end);
  return op;
}

RequestOp MakeGet(const std::string& key) {
  RequestOp op;
  op.mutable_request_range()->set_key(key);
  return op;
}

RequestOp MakeRange(const std::string& first, const std::string& end,
                    int64_t limit) {
  RequestOp op = MakeGet(first);
  op.mutable_request_range()->set_range_end(end);
  op.mutable_request_range()->set_limit(limit);
  return op;
}

// The transaction compares the key's mod revision, and answers the key if that
// is another.
void CompareRevision(const std::string& key, int64_t mod_revision,
                     etcdserverpb::TxnRequest& request) {
  Compare* compare = request.add_compare();
  compare->set_target(Compare::MOD);
  compare->set_key(key);
  compare->set_mod_revision(mod_revision);
  *request.add_failure() = MakeGet(key);
}

Status DamageError(const std::string& key, absl::string_view what) {
  return DataLossError(
      absl::StrCat("etcd: key ", base::Quote(key), ": ", what));
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

// Puts the parts of entries together, and applies each that is complete.
class PartReader {
 public:
  explicit PartReader(std::map<std::string, std::string, std::less<>>& entries)
      : entries_(entries) {}

  // Errors: DATA_LOSS (the part, or the entry that it completes, is damaged).
  Status Add(const std::string& key, const std::string& value) {
    if (!part_.ParseFromString(value)) {
      return DamageError(key, "its value is damaged");
    }
    if (part_.first()) bytes_.clear();
    bytes_ += part_.data();
    if (!part_.last()) return OkStatus();
    LogEntry entry;
    if (!entry.ParseFromString(bytes_)) {
      return DamageError(key, "its value is damaged");
    }
    Apply(entry, entries_);
    bytes_.clear();
    return OkStatus();
  }

  // Whether the part that was added last has completed an entry.
  bool complete() const { return part_.last(); }

 private:
  std::map<std::string, std::string, std::less<>>& entries_;
  LogPart part_;
  std::string bytes_;
};

}  // namespace

EtcdStorage::EtcdStorage(EtcdKv& kv, EtcdStorageOptions options)
    : kv_(kv), options_(std::move(options)) {}

EtcdStorage::~EtcdStorage() {
  std::thread snapshots;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    snapshots.swap(snapshots_);
  }
  changed_.NotifyAll();
  if (snapshots.joinable()) snapshots.join();
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
  Contents contents;
  Status status = Read(contents);
  if (!status.ok()) return status;
  for (const auto& [key, value] : contents.entries) {
    status = entry(key, value);
    if (!status.ok()) return status;
  }
  log_end_ = contents.log_end;
  MutexLock lock(mu_);
  log_bytes_ = contents.log_bytes;
  snapshot_bytes_ = contents.snapshot_bytes;
  StartSnapshotIfNeeded();
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
  int64_t bytes = 0;
  for (const std::string& part : CutIntoParts(entry, options_.part_bytes_max)) {
    Status status = Put(LogKey(log_end_), 0, part);
    if (!status.ok()) return status;
    ++log_end_;
    bytes += static_cast<int64_t>(part.size());
  }
  MutexLock lock(mu_);
  log_bytes_ += bytes;
  StartSnapshotIfNeeded();
  return OkStatus();
}

Status EtcdStorage::Retry(absl::FunctionRef<Status()> request) {
  EtcdSpace::Request waits(*options_.space);
  while (true) {
    Status status = request();
    if (!IsUnavailable(status) && !IsResourceExhausted(status)) return status;
    waits.Failed(status);
    {
      MutexLock lock(mu_);
      if (stopping_) return status;
    }
    if (!options_.try_again(status)) return status;
  }
}

etcdserverpb::TxnRequest EtcdStorage::MakeRequest() const {
  etcdserverpb::TxnRequest request;
  CompareRevision(options_.owner_key, options_.owner_revision, request);
  return request;
}

Status EtcdStorage::Send(const etcdserverpb::TxnRequest& request,
                         etcdserverpb::TxnResponse& response) {
  Status status = Retry([&] { return kv_.Txn(request, response); });
  if (!status.ok() || response.succeeded()) return status;
  const auto& owner = response.responses(0).response_range();
  if (owner.kvs_size() == 0 ||
      owner.kvs(0).mod_revision() != options_.owner_revision) {
    return AbortedError(absl::StrCat(
        "etcd: this coordinator does not own ", options_.prefix, " any more: ",
        owner.kvs_size() == 0
            ? std::string("its lease has ended")
            : absl::StrCat(base::Quote(owner.kvs(0).value()), " does")));
  }
  return OkStatus();
}

Status EtcdStorage::Put(const std::string& key, int64_t mod_revision,
                        const std::string& value) {
  etcdserverpb::TxnRequest request = MakeRequest();
  CompareRevision(key, mod_revision, request);
  *request.add_success() = MakePut(key, value);
  etcdserverpb::TxnResponse response;
  Status status = Send(request, response);
  if (!status.ok() || response.succeeded()) return status;
  const auto& found = response.responses(1).response_range();
  if (found.kvs_size() == 1 && found.kvs(0).value() == value) return OkStatus();
  return DamageError(key, "has a value that this coordinator has not written");
}

Status EtcdStorage::Read(Contents& contents) {
  const std::string mark_key = options_.prefix + "snapshot";
  const std::string log = options_.prefix + "log/";
  etcdserverpb::TxnRequest request = MakeRequest();
  *request.add_success() = MakeGet(mark_key);
  *request.add_success() = MakeRange(LogKey(0), MakeRangeEnd(log), kRangeParts);
  etcdserverpb::TxnResponse response;
  Status status = Send(request, response);
  if (!status.ok()) return status;
  contents.revision = response.header().revision();
  const auto& marks = response.responses(0).response_range();
  Snapshot mark;
  if (marks.kvs_size() > 0) {
    if (!mark.ParseFromString(marks.kvs(0).value()) ||
        mark.format() != kFormat) {
      return DamageError(mark_key, "is not the snapshot of this version");
    }
    contents.snapshot_bytes = mark.bytes();
    contents.snapshot_revision = marks.kvs(0).mod_revision();
  }

  status = ReadSnapshot(mark, contents);
  if (!status.ok()) return status;
  contents.complete_end = contents.log_end = mark.log_begin();
  PartReader reader(contents.entries);
  int64_t unfinished_bytes = 0;
  const auto add = [&](const std::string& key, const std::string& value) {
    // A part that is in the snapshot; its removal was interrupted.
    if (key < LogKey(mark.log_begin())) return OkStatus();
    if (key != LogKey(contents.log_end)) {
      return DamageError(LogKey(contents.log_end), "is missing");
    }
    Status added = reader.Add(key, value);
    if (!added.ok()) return added;
    ++contents.log_end;
    unfinished_bytes += static_cast<int64_t>(value.size());
    if (!reader.complete()) return OkStatus();
    contents.complete_end = contents.log_end;
    contents.log_bytes += std::exchange(unfinished_bytes, 0);
    return OkStatus();
  };
  const auto& logged = response.responses(1).response_range();
  for (const auto& found : logged.kvs()) {
    status = add(found.key(), found.value());
    if (!status.ok()) return status;
  }
  if (!logged.more()) return OkStatus();
  return ReadRange(LogKey(contents.log_end), MakeRangeEnd(log), add);
}

Status EtcdStorage::ReadSnapshot(const Snapshot& mark, Contents& contents) {
  PartReader reader(contents.entries);
  int64_t parts = 0;
  Status status =
      ReadRange(SnapshotPartKey(mark.log_begin(), 0),
                SnapshotPartKey(mark.log_begin(), mark.parts()),
                [&](const std::string& key, const std::string& value) {
                  if (key != SnapshotPartKey(mark.log_begin(), parts++)) {
                    return DamageError(
                        key, "a part of the snapshot before it is missing");
                  }
                  return reader.Add(key, value);
                });
  if (status.ok() && parts != mark.parts()) {
    return DamageError(SnapshotPartKey(mark.log_begin(), parts), "is missing");
  }
  return status;
}

Status EtcdStorage::ReadRange(
    const std::string& first, const std::string& end,
    absl::FunctionRef<Status(const std::string& key, const std::string& value)>
        entry) {
  std::string next = first;
  int64_t limit = kRangeParts;
  while (next < end) {
    etcdserverpb::TxnRequest request = MakeRequest();
    *request.add_success() = MakeRange(next, end, limit);
    etcdserverpb::TxnResponse response;
    Status status = Send(request, response);
    if (!status.ok()) return status;
    const auto& found = response.responses(0).response_range();
    for (const auto& kv : found.kvs()) {
      status = entry(kv.key(), kv.value());
      if (!status.ok()) return status;
    }
    if (!found.more() || found.kvs_size() == 0) break;
    next = found.kvs(found.kvs_size() - 1).key() + '\0';
    const auto part_bytes =
        static_cast<int64_t>(found.ByteSizeLong()) / found.kvs_size();
    limit =
        std::clamp(kRangeBytes / (part_bytes + 1), int64_t{1}, kRangePartsMax);
  }
  return OkStatus();
}

void EtcdStorage::StartSnapshotIfNeeded() {
  if (!NeedsSnapshot()) return;
  if (!snapshots_.joinable() && !stopping_) {
    snapshots_ = std::thread([this] { SnapshotLoop(); });
  }
  changed_.NotifyAll();
}

void EtcdStorage::SnapshotLoop() {
  while (true) {
    {
      MutexLock lock(mu_);
      while (!stopping_ && !NeedsSnapshot()) changed_.Wait(mu_);
      if (stopping_) return;
    }
    const Status status = MakeSnapshot();
    changed_.NotifyAll();
    if (status.ok()) continue;
    MutexLock lock(mu_);
    if (stopping_) return;
    if (IsAborted(status)) {
      snapshots_end_ = status;
      changed_.NotifyAll();
      return;
    }
    // Meanwhile the log grows.
    LOG(ERROR) << "etcd_snapshot_failed: prefix=" << options_.prefix
               << " cause=" << base::Quote(status.message());
    const auto next =
        std::chrono::steady_clock::now() + options_.snapshot_pause;
    while (!stopping_ && std::chrono::steady_clock::now() < next) {
      changed_.WaitUntil(mu_, next);
    }
  }
}

Status EtcdStorage::AwaitSnapshots() {
  MutexLock lock(mu_);
  while (snapshots_end_.ok() && NeedsSnapshot()) changed_.Wait(mu_);
  return snapshots_end_;
}

Status EtcdStorage::MakeSnapshot() {
  Contents contents;
  Status status = Read(contents);
  if (status.ok()) status = WriteSnapshot(contents);
  if (!status.ok()) return status;
  if (last_revision_ > 0 && options_.space->TakeCompaction()) {
    // Values that were removed stay in etcd until their history is compacted.
    etcdserverpb::CompactionRequest request;
    request.set_revision(last_revision_);
    etcdserverpb::CompactionResponse response;
    status = Retry([&] { return kv_.Compact(request, response); });
    // Others may have compacted a later revision.
    if (!status.ok() && !IsOutOfRange(status)) return status;
  }
  last_revision_ = contents.revision;
  return OkStatus();
}

Status EtcdStorage::WriteSnapshot(const Contents& contents) {
  Snapshot mark;
  mark.set_format(kFormat);
  mark.set_log_begin(contents.complete_end);
  etcdserverpb::TxnResponse response;
  LogEntry entry;
  size_t bytes = 0;
  const auto write = [&]() -> Status {
    for (const std::string& part :
         CutIntoParts(entry.SerializeAsString(), options_.part_bytes_max)) {
      // It may replace that of a snapshot which was not finished.
      etcdserverpb::TxnRequest request = MakeRequest();
      *request.add_success() =
          MakePut(SnapshotPartKey(mark.log_begin(), mark.parts()), part);
      Status status = Send(request, response);
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
  // From here on a load begins with the new snapshot. Compares the old one: if
  // this is applied a second time, and late, it must not undo a later snapshot.
  status = Put(options_.prefix + "snapshot", contents.snapshot_revision,
               mark.SerializeAsString());
  if (!status.ok()) return status;
  {
    MutexLock lock(mu_);
    log_bytes_ -= contents.log_bytes;
    snapshot_bytes_ = mark.bytes();
  }
  etcdserverpb::TxnRequest request = MakeRequest();
  *request.add_success() = MakeDeletion(LogKey(0), LogKey(mark.log_begin()));
  *request.add_success() =
      MakeDeletion(SnapshotPartKey(0, 0), SnapshotPartKey(mark.log_begin(), 0));
  return Send(request, response);
}

}  // namespace muster::coordinator
