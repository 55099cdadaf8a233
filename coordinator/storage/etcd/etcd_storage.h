// A Storage in etcd.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_STORAGE_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_STORAGE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "coordinator/storage/etcd/etcd_kv.h"
#include "coordinator/storage/etcd/etcd_space.h"
#include "coordinator/storage/storage.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace etcdserverpb {
class TxnRequest;
class TxnResponse;
}  // namespace etcdserverpb
namespace muster::storage::v1 {
class Snapshot;
}  // namespace muster::storage::v1

namespace muster::coordinator {

struct EtcdStorageOptions {
  // All keys of the storage begin with this; it ends in "/".
  std::string prefix;
  // The storage is this process's while this key has this mod revision. Any
  // later put of the key gives it to another owner.
  std::string owner_key;
  int64_t owner_revision = 0;
  // Called, on the thread of the call or of snapshots, when a request failed
  // with UNAVAILABLE or RESOURCE_EXHAUSTED, with that status. Waits a moment
  // and returns true to try again, or false to give up.
  std::function<bool(const Status&)> try_again;
  // Storages of one etcd share it.
  std::shared_ptr<EtcdSpace> space = std::make_shared<EtcdSpace>();
  // A request has at most about this many bytes. etcd refuses more than 1.5
  // MiB.
  size_t part_bytes_max = 1 << 20;
  // A log of fewer bytes is not replaced by a snapshot. 64 storages of this
  // size leave room in etcd's default quota of 2 GiB, and load in a moment.
  int64_t snapshot_bytes_min = 2 << 20;
  // After a snapshot that failed, the next one is tried so long later.
  std::chrono::milliseconds snapshot_pause{30'000};
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
// it; so over time each byte is written about twice more. The thread starts
// with the first snapshot.
//
// Every transaction, of reads too, compares the owner's key: a process that is
// no longer the owner reads and writes nothing. Nobody else changes the keys
// meanwhile, so a load may take several requests, whatever others compact. A
// transaction that was sent again, because its answer was lost, finds its own
// part and is done.
class EtcdStorage : public Storage {
 public:
  // `kv` outlives the storage.
  EtcdStorage(EtcdKv& kv, EtcdStorageOptions options);
  // Waits for a request of the snapshots' thread, if there is one, to end.
  ~EtcdStorage() override;

  // Call it before all others, once. One request, if there is no snapshot and
  // the log has few parts. Errors: also ABORTED (not the owner).
  Status Load(
      absl::FunctionRef<Status(absl::string_view key, absl::string_view value)>
          entry) override;
  // Errors: ABORTED (not the owner; nothing was written), and those for which
  //   try_again gave up.
  Status Write(const std::vector<StorageChange>& changes) override;
  Status ErasePrefix(absl::string_view prefix) override;
  // Does nothing: etcd has synced each write on most of its members.
  Status Sync() override { return OkStatus(); }
  // Whether requests of this storage, or of one that shares its `space`, wait.
  Status health() const override { return options_.space->Check(); }

  // Waits until no snapshot is needed. For tests. Errors: ABORTED (not the
  // owner: there are no more snapshots).
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
    // The mod revision of the snapshot's key; 0: there is none.
    int64_t snapshot_revision = 0;
    // etcd's, when the first of this was read.
    int64_t revision = 0;
  };

  std::string LogKey(int64_t number) const;
  std::string SnapshotPartKey(int64_t log_begin, int64_t part) const;
  Status Append(const std::string& entry);
  // Sends a transaction that MakeRequest began. If it has not succeeded, and
  // the result is OK, another comparison than that of the owner has failed.
  Status Send(const etcdserverpb::TxnRequest& request,
              etcdserverpb::TxnResponse& response);
  etcdserverpb::TxnRequest MakeRequest() const;
  // Puts `value` if the key's mod revision is still `mod_revision` (0: there is
  // no such key), or has it already.
  Status Put(const std::string& key, int64_t mod_revision,
             const std::string& value);
  Status Retry(absl::FunctionRef<Status()> request);
  Status Read(Contents& contents);
  Status ReadSnapshot(const storage::v1::Snapshot& mark, Contents& contents);
  // Calls `entry` for the keys from `first` to before `end`, in their order.
  Status ReadRange(const std::string& first, const std::string& end,
                   absl::FunctionRef<Status(const std::string& key,
                                            const std::string& value)>
                       entry);
  bool NeedsSnapshot() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return log_bytes_ >= std::max(options_.snapshot_bytes_min, snapshot_bytes_);
  }
  // Wakes or starts the snapshots' thread.
  void StartSnapshotIfNeeded() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  // Not OK: there are no more snapshots.
  Status snapshots_end_ MUSTER_GUARDED_BY(mu_);
  std::thread snapshots_ MUSTER_GUARDED_BY(mu_);
  // Used only by that thread: etcd's revision at the last snapshot.
  int64_t last_revision_ = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_STORAGE_H_
