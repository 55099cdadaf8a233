#ifndef MUSTER_DATAPLANE_BACKEND_H_
#define MUSTER_DATAPLANE_BACKEND_H_

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "dataplane/bootstrap_store.h"
#include "dataplane/collective.h"
#include "dataplane/interruption.h"
#include "dataplane/tensor.h"
#include "dataplane/work.h"

namespace muster::dataplane {

class ReleasableLock;

// Of the nccl backend. What is not given is NCCL's own choice; its environment
// (NCCL_...) goes before what is given. An NCCL that is too old for a field
// ignores it, but for cta_policy, which is an error then. A value that NCCL
// would refuse is an error (kInvalidArgument) that names the field.
struct NcclOptions {
  // NCCL_CTA_POLICY_...: how many processors of the device a collective takes.
  // kEfficiency: as few as do. kZero: none where copy engines can do it, which
  // they can where all tensors of the collective lie in symmetric memory; NCCL
  // says for which collectives.
  enum class CtaPolicy { kDefault = 0, kEfficiency = 1, kZero = 2 };

  // Collectives go before kernels of streams of ordinary priority.
  bool is_high_priority_stream = false;
  // Waiting for a collective holds up the host, too, until it is complete.
  bool blocking_wait = false;

  // The fields of ncclConfig_t with these names; commName is the group's name.

  // True: calls of NCCL come back when they are done, and not at once. No call
  // of this library comes back later for it: the group makes NCCL's on threads
  // of its own, one for each communicator, and errors and timeouts come as
  // ever. But NCCL allows an abort while none of its calls is under way alone.
  // So one that waits for a rank that does not come (when communicators are
  // made, in the first collectives, which connect ranks, and in
  // AllocateSymmetric) keeps its thread, its communicator and its stream, also
  // after the group's end, until NCCL gives up by itself; the tensors of such a
  // collective are to be left alone until then, though it has failed. And
  // groups that are made of this one, or of which it is made, have
  // communicators of their own from the start: not by ncclCommSplit or
  // ncclCommShrink.
  bool blocking = false;
  std::optional<int> cga_cluster_size = std::nullopt;  // 0 to 8
  std::optional<int> min_ctas = std::nullopt;          // 1 to max_ctas
  std::optional<int> max_ctas = std::nullopt;
  std::string net_name = {};                           // empty: not given
  std::optional<int> split_share = std::nullopt;       // 0 or 1
  std::optional<int> traffic_class = std::nullopt;     // from 0 on; NCCL 2.25
  std::optional<int> collnet_enable = std::nullopt;    // 0 or 1; 2.27
  std::optional<CtaPolicy> cta_policy = std::nullopt;  // 2.27; kZero: 2.28
  std::optional<int> shrink_share = std::nullopt;      // 0 or 1; 2.27
  std::optional<int> nvls_ctas = std::nullopt;         // from 1 on; 2.27
  std::optional<int> channels_per_net_peer = std::nullopt;  // 1 to 64; 2.28
  std::optional<int> nvlink_centric_sched = std::nullopt;   // 0 or 1; 2.28

  friend bool operator==(const NcclOptions&, const NcclOptions&) = default;
};

// What a group that is made of ranks of another one has from that one's backend
// (Backend::Split): only a backend of the same kind knows what it is. It may
// outlive the group that it comes from.
class ParentHandle {
 public:
  virtual ~ParentHandle() = default;
};

// A group that is to be made of ranks of another one.
struct SplitOptions {
  // Several can be made at once: the number, from 0 on, of the one that this
  // rank is in, or kNoPart. Its ranks have the order that they have in the
  // other one.
  int part = 0;
  // Or: it is the other one without these ranks, ascending. Those that are left
  // alone take part then, and the other one is of no use any more.
  std::vector<int> excluded = {};
  // The same: what still runs there, perhaps for ever, is to be ended.
  bool aborts = false;
  std::string group_name = {};
  NcclOptions nccl = {};
};

inline constexpr int kNoPart = -1;

// What every backend needs to know to join its group. One backend object
// serves one rank of one group.
struct BackendOptions {
  int rank = 0;
  int world_size = 1;

  // For error texts, logs and metrics.
  std::string group_name = {};

  // Where the ranks find each other. The backend keeps it.
  std::shared_ptr<BootstrapStore> store = {};

  // When the group must be connected.
  Instant deadline = Instant::max();

  // Ends the making of the group before that, with the reason: a rank is gone.
  // kCancelled: one has left in peace. That ends the wait for connections
  // alone: who has all of them may have all that it needs from that rank.
  Interruption interruption = {};

  // Network interfaces to use, by name, comma separated as in
  // GLOO_SOCKET_IFNAME; empty leaves the choice to the backend.
  std::string network_interfaces = {};

  // An address of this host that its peers can reach, for instance the local
  // end of the connection to the coordinator; used when no interface is named.
  // Empty when unknown.
  std::string local_address = {};

  // The CUDA device that the group is bound to: a backend may connect its ranks
  // at once, before the first collective. -1: that of the first collective.
  int device = -1;

  NcclOptions nccl = {};

  // What Backend::Split of the group that this one is made from has given; null
  // if there is none.
  std::shared_ptr<ParentHandle> parent_handle = {};
};

// A rank's piece of memory of which all ranks of a group have one of the same
// size, so that the group's collectives reach each other's without a copy in
// between. It is given back when this is destroyed, which may be after the
// group; collectives on it are to be complete by then.
class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;

  virtual void* data() const = 0;
  virtual Device device() const = 0;
};

struct SymmetricOptions {
  // The same on all ranks, and not 0.
  size_t bytes = 0;
  DeviceType device = DeviceType::kCuda;
  Instant deadline = Instant::max();
};

// What is known of the communicators of a library, for people and for c10d's
// tools: texts by their names, of each communicator by a name that its ranks
// share.
using CommunicatorStates =
    std::map<std::string, std::map<std::string, std::string>>;

// How the last collective went that this rank has run to its end.
struct LastRun {
  // "gloo", "shm", ...: what moved the data.
  std::string backend = {};
  // "ring", "one_round", ...: that backend's name for it. Empty: it has none,
  // does not know, or there was nothing to move.
  std::string algorithm = {};
};

// How a collective ended, and when.
struct Completion {
  Status status;
  Instant at;
};

// Backend moves the data of one group. Start and Abort may be called from any
// thread; collectives run in the order in which they were started, which must
// be the same on every rank. The destructor aborts what is still running and
// returns when no thread of the backend is left.
class Backend {
 public:
  virtual ~Backend() = default;

  // "gloo", "nccl", ...
  virtual std::string name() const = 0;

  // Kinds of device whose tensors it takes.
  virtual std::span<const DeviceType> devices() const = 0;

  // OK if this backend can do `collective` (valid, see Validate) at all;
  // kUnimplemented, naming what is missing, if not, the same on every rank; or
  // kInvalidArgument: a tensor of this rank is where it has no memory any more.
  virtual Status Supports(const Collective& collective) const = 0;

  // Whether what Supports says of collectives like `collective`, which it has
  // taken, depends on where the tensors are: a flag that lives as long as this
  // backend, and is looked at (acquire) in the way of each of them. While it is
  // false, one like it is taken again without being asked about. It may change
  // at any time, as when memory was freed (release). Called with the order of
  // collectives held: quick, and calls nothing back. Who does not know says
  // yes.
  virtual const std::atomic<bool>& looks_where_tensors_are(
      const Collective& collective) const {
    return kLooks;
  }

  // Up to how many bytes of accumulators (see reduction.h) an element's
  // operands are combined in an order that depends neither on the size of the
  // tensor nor on the element's place in it. Several all_reduces, or
  // reduce_scatters, that are not larger together may then be made one with
  // bitwise the same result.
  virtual size_t fusable_bytes() const { return 0; }

  // Starts `collective`, which is valid and supported, and returns its handle;
  // never null, never blocks on the network. Failures complete the Work: see
  // README.md for the codes. Its tensors belong to the backend until the Work
  // is complete, and no longer, failed or not.
  virtual std::shared_ptr<Work> Start(const Collective& collective) = 0;

  // As Start, for a caller with nothing to do until `collective`, not a send or
  // receive, is complete. A backend may run it on this thread: waking another
  // one takes longer than a small collective. `order` is let go when the
  // collective has its place in the order and, if it runs here, before it waits
  // for another rank longer than a few looks take, or, where it gives its
  // processor to another rank, a few turns of that: a small one that all ranks
  // begin together may end with it held. What its owner has left for then is
  // done when it waits (CallLast), while what others have to say is on its way;
  // if it never does, or not long, its owner does it afterwards. While it is
  // held nothing is done that takes as long as a tensor is large, or that calls
  // back.
  virtual Completion Run(const Collective& collective, ReleasableLock& order);

  // What is started between the two begins as one, if the backend knows how:
  // collectives, or sends and receives, which then none of them waits for
  // another to begin. One thread calls them, in pairs, with nothing but Start
  // between; no other thread starts anything then.
  virtual void BeginTogether() {}
  virtual void EndTogether() {}

  // `collective`, not a send or receive, is not started here, because of `why`:
  // its arguments are bad. The other ranks may have started it. May take a
  // second.
  virtual void Refused(const Collective& collective, const Status& why) {}

  // Groups of the same backend are made of ranks of this one. All ranks call
  // it, those that are in none, too (but for `excluded`), in one order with the
  // collectives. What it
  // returns goes into the options of the new group's backend, or is dropped.
  // Null, on all ranks alike: that one needs nothing of this. Does not block.
  virtual std::shared_ptr<ParentHandle> Split(const SplitOptions& options) {
    return nullptr;
  }

  // All ranks call it, in one order with the collectives. Waits for them.
  // Errors: kUnimplemented (it has none), kResourceExhausted (a rank has not so
  // much memory, as all ranks have found out together: each has this error, in
  // the same words); after these the group goes on. kInvalidArgument (`bytes`
  // differ), kDeadlineExceeded (not all ranks came) and others end it.
  virtual StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options);

  // Does not wait for anything. Empty if it has none.
  virtual CommunicatorStates communicator_states() const { return {}; }

  // Of tensors on `device`; sends and receives do not count. From any thread:
  // another collective may run meanwhile.
  virtual LastRun last_run(DeviceType device) const {
    return {.backend = name()};
  }

  // Ends every started collective with `cause`, soon and without its peers'
  // help, closes the connections, and makes every later Start fail with the
  // first `cause` given. Does not block; may be called from a Work's callback.
  virtual void Abort(Status cause) = 0;

 protected:
  // Always true, and always false.
  static constexpr std::atomic<bool> kLooks{true};
  static constexpr std::atomic<bool> kLooksNever{false};
};

// Base of a backend that does something around another one. A decorator
// overrides Start; and Run, if there is less to do around that.
class BackendDecorator : public Backend {
 public:
  explicit BackendDecorator(std::unique_ptr<Backend> inner)
      : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  std::span<const DeviceType> devices() const override {
    return inner_->devices();
  }
  Status Supports(const Collective& collective) const override {
    return inner_->Supports(collective);
  }
  const std::atomic<bool>& looks_where_tensors_are(
      const Collective& collective) const override {
    return inner_->looks_where_tensors_are(collective);
  }
  size_t fusable_bytes() const override { return inner_->fusable_bytes(); }
  std::shared_ptr<Work> Start(const Collective& collective) override {
    return inner_->Start(collective);
  }
  void BeginTogether() override { inner_->BeginTogether(); }
  void EndTogether() override { inner_->EndTogether(); }
  void Refused(const Collective& collective, const Status& why) override {
    inner_->Refused(collective, why);
  }
  std::shared_ptr<ParentHandle> Split(const SplitOptions& options) override {
    return inner_->Split(options);
  }
  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override {
    return inner_->AllocateSymmetric(options);
  }
  CommunicatorStates communicator_states() const override {
    return inner_->communicator_states();
  }
  LastRun last_run(DeviceType device) const override {
    return inner_->last_run(device);
  }
  void Abort(Status cause) override { inner_->Abort(std::move(cause)); }

 protected:
  Backend& inner() { return *inner_; }

  // In the destructor, when something is to be done after that of `inner`.
  void DestroyInner() { inner_ = nullptr; }

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_BACKEND_H_
