// A Storage in etcd.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_STORAGE_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_STORAGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "coordinator/storage/etcd/etcd_kv.h"
#include "coordinator/storage/storage.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace etcdserverpb {
class RequestOp;
}  // namespace etcdserverpb

namespace muster::coordinator {

struct EtcdStorageOptions {
  // All keys of the storage begin with this; it ends in "/".
  std::string prefix;
  // The owner of the storage has this key, with this create revision. Without
  // it nothing is written.
  std::string owner_key;
  int64_t owner_revision = 0;
  // Called, on the thread of the call or of snapshots, when a request failed
  // with UNAVAILABLE or RESOURCE_EXHAUSTED, with that status. Waits a moment
  // and returns true to try again, or false to give up.
  std::function<bool(const Status&)> try_again;
  // A request has at most about this many bytes. etcd refuses more than 1.5
  // MiB.
  size_t part_bytes_max = 1 << 20;
  // A log of fewer bytes is not replaced by a snapshot.
  int64_t snapshot_bytes_min = 16 << 20;
};

// EtcdStorage is a log of changes in etcd, and a snapshot of what was before
// them:
//
//   PREFIX snapshot             where the log begins (Snapshot of log.proto)
//   PREFIX snapshots/BEGIN/I    part I of the snapshot before the log's BEGIN
//   PREFIX log/NUMBER           one part (LogPart) of a LogEntry
//
// Numbers have 16 hexadecimal digits. A write appends one entry, in most cases
// by one put, whatever the number of changes is: a group commit of many calls
// is one request. A larger entry has several parts; a load ignores it if the
// last one is missing. When the log has become larger than the snapshot, a
// thread reads both back, writes a new snapshot, and removes what came before
// it; so over time each byte is written about twice more.
//
// Every transaction compares the owner's key: a process that is no longer the
// owner writes nothing. A transaction that was sent again, because its answer
// was lost, finds its own part and is done.
class EtcdStorage : public Storage {
 public:
  // `kv` outlives the storage.
  EtcdStorage(EtcdKv& kv, EtcdStorageOptions options);
  // Waits for a request of the snapshots' thread to end.
  ~EtcdStorage() override;

  // Call it before all others, once. Errors: also ABORTED (not the owner).
  Status Load(
      absl::FunctionRef<Status(absl::string_view key, absl::string_view value)>
          entry) override;
  // Errors: ABORTED (not the owner; nothing was written), and those for which
  //   try_again gave up.
  Status Write(const std::vector<StorageChange>& changes) override;
  Status ErasePrefix(absl::string_view prefix) override;
  // Does nothing: etcd has synced each write on most of its members.
  Status Sync() override { return OkStatus(); }

  // Waits until no snapshot is needed. For tests.
  Status AwaitSnapshots();

 private:
  using Entries = std::map<std::string, std::string, std::less<>>;
  // The state in etcd.
  struct Contents {
    Entries entries;
    // The first part that is not in `entries`, and the end of the log. Parts
    // between them are those of an unfinished entry.
    int64_t complete_end = 0;
    int64_t log_end = 0;
    int64_t log_bytes = 0;
    int64_t snapshot_bytes = 0;
    // etcd's, when this was read.
    int64_t revision = 0;
  };

  std::string LogKey(int64_t number) const;
  std::string SnapshotPartKey(int64_t log_begin, int64_t part) const;
  Status Append(const std::string& entry);
  // Applies `ops` if this process is the owner and, if `new_key` is not empty,
  // that key does not exist. A key that exists with `value` is success.
  Status Guarded(const std::vector<etcdserverpb::RequestOp>& ops,
                 const std::string& new_key = "",
                 const std::string& value = "");
  Status Retry(absl::FunctionRef<Status()> request);
  Status CheckOwner();
  StatusOr<Contents> Read();
  Status ReadAt(Contents& contents);
  Status ReadRange(const std::string& first, const std::string& end,
                   int64_t revision,
                   absl::FunctionRef<Status(const std::string& key,
                                            const std::string& value)>
                       entry);
  void SnapshotLoop();
  Status MakeSnapshot();
  Status WriteSnapshot(const Contents& contents);

  EtcdKv& kv_;
  const EtcdStorageOptions options_;
  // Used only by the thread that writes.
  int64_t log_end_ = 0;

  Mutex mu_;
  CondVar changed_;
  int64_t log_bytes_ MUSTER_GUARDED_BY(mu_) = 0;
  int64_t snapshot_bytes_ MUSTER_GUARDED_BY(mu_) = 0;
  bool stopping_ MUSTER_GUARDED_BY(mu_) = false;
  bool loaded_ MUSTER_GUARDED_BY(mu_) = false;
  Status snapshot_status_ MUSTER_GUARDED_BY(mu_);
  // Used only by the snapshots' thread: etcd's revision at the last one.
  int64_t last_revision_ = 0;

  std::thread snapshots_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_STORAGE_H_
