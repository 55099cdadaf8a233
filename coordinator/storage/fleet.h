// Several coordinators that share the jobs.

#ifndef MUSTER_COORDINATOR_STORAGE_FLEET_H_
#define MUSTER_COORDINATOR_STORAGE_FLEET_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/storage/storage.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// The jobs are spread over this many shards. One coordinator at a time serves
// the jobs of a shard: its owner.
inline constexpr int kShards = 64;

// The FNV-1a hash (Fowler, Noll and Vo). Stored data depends on it.
uint64_t HashName(absl::string_view name);

// Returns the shard of a job, from 0: the hash of its name, modulo kShards.
int FindShard(absl::string_view job);

// How a coordinator presents itself to the others and to clients.
struct FleetMember {
  // host:port of its gRPC endpoint, and of HTTP (empty: it has none).
  std::string address;
  std::string http_address;
  std::string version;
  uint64_t epoch = 0;
  // It takes no shards, and gives its own away.
  bool draining = false;
};

// The fleet as one of its coordinators saw it last.
struct FleetView {
  struct Shard {
    // Addresses. The owner, empty if there is none; and the choice of an
    // operator, empty if there is none.
    std::string owner;
    std::string pin;
  };

  std::vector<FleetMember> members;  // by address
  std::array<Shard, kShards> shards;
};

// Counts of a coordinator in its fleet, since its start.
struct FleetCounts {
  int64_t members = 0;  // now
  int64_t owned = 0;    // shards that it serves now
  // Shards that it began to serve, gave to another, and lost.
  int64_t acquired = 0;
  int64_t handed_over = 0;
  int64_t lost = 0;
  // Writes that were refused because another coordinator had the shard.
  int64_t fenced_writes = 0;
  // Failed requests to the storage.
  std::map<StatusCode, int64_t> errors;
  // From the ownership of a shard to its service, in all.
  std::chrono::nanoseconds load_time{0};
};

// FleetHost is the coordinator whose shards a Fleet assigns. The calls for one
// shard come one after another, those for different ones from several threads.
class FleetHost {
 public:
  virtual ~FleetHost() = default;

  // Loads the jobs of a shard from its storage, and serves them.
  // Errors: those of Storage::Load, DATA_LOSS (they are no records of jobs).
  virtual Status Take(int shard, std::unique_ptr<Storage> storage) = 0;

  // Applies no more operations to the shard's jobs, for which callers should
  // ask `owner` (an address). Returns when everything that was applied is
  // stored and answered.
  // Errors: that of the storage. The shard is lost then.
  virtual Status Hold(int shard, const std::string& owner) = 0;

  // After Hold: `owner` can take the shard now. Ends the streams and the
  // waiting calls of its jobs, and destroys its storage.
  virtual void Release(int shard, const std::string& owner) = 0;

  // These shards are not this coordinator's any more: it answers nothing about
  // their jobs, ends their streams and calls, and destroys their storages.
  virtual void Lose(const std::vector<int>& shards) = 0;
};

// Fleet is a coordinator's membership in its fleet. It assigns shards to its
// host, from threads of its own, until it is destroyed. Thread-safe.
class Fleet {
 public:
  virtual ~Fleet() = default;

  virtual FleetView View() const = 0;
  virtual FleetCounts Counts() const = 0;

  // Returns the address of the shard's owner; empty if there is none now. Looks
  // for a new one soon, because there is a call for it.
  virtual std::string FindOwner(int shard) = 0;

  // Chooses the owner of a shard by its address; an empty one lets the fleet
  // choose. The handover comes later.
  // Errors: INVALID_ARGUMENT (`address` is no coordinator of the fleet), and
  //   those of the storage.
  virtual Status Move(int shard, const std::string& address) = 0;

  // Whether the coordinator is in the fleet and serves all shards of which it
  // is the owner. Otherwise the text says what is missing.
  virtual Status CheckReady() const = 0;

  // Takes no more shards, and gives away all that it has. Returns when it has
  // none, when there is nobody to take them, or after `timeout`.
  virtual void Leave(std::chrono::milliseconds timeout) = 0;
};

// Joins a fleet as `self`, for `host`, which outlives the result.
using OpenFleet = std::function<StatusOr<std::unique_ptr<Fleet>>(
    const FleetMember& self, FleetHost& host)>;

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_FLEET_H_
