#ifndef MUSTER_DATAPLANE_BACKEND_H_
#define MUSTER_DATAPLANE_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/export.h"
#include "muster/base/status.h"
#include "muster/dataplane/bootstrap_store.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/interruption.h"
#include "muster/dataplane/tensor.h"
#include "muster/dataplane/work.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// Options of the nccl backend: nccl_options.h.
struct NcclOptions;

// The result of Backend::Split of a parent group, for the backend of a group
// made of some of its ranks. Only a backend of the same kind can read it. It
// may outlive the parent group.
class ParentHandle {
 public:
  virtual ~ParentHandle() = default;
};

// Describes a group to be made of ranks of an existing one, the parent.
struct SplitOptions {
  // One call can make several groups. This is the number, from 0, of the group
  // that this rank joins, or kNoPart. The ranks of a group keep the order that
  // they have in the parent.
  int part = 0;
  // Alternatively, the new group is the parent without these ranks, in
  // ascending order. Then only the remaining ranks call Split, and the parent
  // cannot be used afterwards.
  std::vector<int> excluded = {};
  // With `excluded`: also ends calls that still run in the parent and might
  // never end.
  bool aborts = false;
  std::string group_name = {};
  // For nccl; null: the defaults.
  std::shared_ptr<const NcclOptions> nccl = {};
};

inline constexpr int kNoPart = -1;

// The options with which a backend joins its group. One backend object serves
// one rank of one group.
struct BackendOptions {
  int rank = 0;
  int world_size = 1;

  // For error texts, logs and metrics.
  std::string group_name = {};

  // The store through which the ranks find each other. The backend keeps it.
  std::shared_ptr<BootstrapStore> store = {};

  // The time by which the group must be connected.
  Instant deadline = Instant::max();

  // Ends the forming of the group before the deadline and carries the reason,
  // for instance that a rank is gone. The reason kCancelled means that a rank
  // has left without a failure. It ends only the wait for connections: a rank
  // that has all of its connections may need nothing more from the one that
  // left.
  Interruption interruption = {};

  // Network interfaces to use, by name, comma separated as in
  // GLOO_SOCKET_IFNAME; empty leaves the choice to the backend.
  std::string network_interfaces = {};

  // An address of this host that its peers can reach, for instance the local
  // end of the connection to the coordinator; used when no interface is named.
  // Empty when unknown.
  std::string local_address = {};

  // The CUDA device that the group is bound to: a backend may connect its ranks
  // at once, before the first collective. -1: the device of the first
  // collective.
  int device = -1;

  // For nccl; null: the defaults.
  std::shared_ptr<const NcclOptions> nccl = {};

  // The result of Backend::Split of the parent group; null without a parent.
  std::shared_ptr<ParentHandle> parent_handle = {};

  // How backends of the CPU move the data of collectives between hosts: "tcp",
  // or "gloo" for the Gloo library. Empty: as MUSTER_CPU_TRANSPORT says.
  std::string cpu_transport = {};
};

// This rank's block of memory in a group where every rank has one of the same
// size, so that collectives access all of them directly, without a copy in
// between. The destructor frees the block and may run after the group's end.
// Collectives on it must be complete by then.
class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;

  virtual void* data() const = 0;
  virtual Device device() const = 0;
};

struct SymmetricOptions {
  // Equal on all ranks, and not 0.
  size_t bytes = 0;
  DeviceType device = DeviceType::kCuda;
  Instant deadline = Instant::max();
};

// The state of a library's communicators, for people and for c10d's tools. The
// outer key is a communicator's name, which is the same on its ranks; the inner
// map holds named texts.
using CommunicatorStates =
    std::map<std::string, std::map<std::string, std::string>>;

// Describes the last collective that this rank has run to its end.
struct LastRun {
  // The backend that moved the data: "gloo", "shm", ...
  std::string backend = {};
  // The backend's name for its algorithm: "ring", "one_round", ... Empty if it
  // has no name, is unknown, or nothing had to be moved.
  std::string algorithm = {};
};

// How a collective ended, and when.
struct Completion {
  Status status;
  Instant at;
};

// The place of a collective in the order of its group, from Backend::Enter.
struct Ticket {
  // Set if another thread runs the collective; then nothing else is.
  std::shared_ptr<Work> work = nullptr;
  // The number of the collective in the queue of the backend that runs it.
  uint64_t number = 0;
  // Whether it is the first in that queue.
  bool is_first = false;
  // The backend with that queue, among those of a MultiInterfaceBackend.
  uint32_t interface = 0;
  // The collective's record in the flight recorder; -1: none.
  int64_t record = -1;
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

  // The kinds of device whose tensors this backend takes.
  virtual std::span<const DeviceType> devices() const = 0;

  // OK if this backend can run `collective`, which is valid (see Validate).
  // Errors: kUnimplemented (names what is missing; the same on every rank),
  // kInvalidArgument (a tensor of this rank points to memory that no longer
  // exists).
  virtual Status Supports(const Collective& collective) const = 0;

  // The largest size, in bytes of accumulators (reduction.h), up to which the
  // order in which an element's operands are combined depends neither on the
  // size of the tensor nor on the element's position in it. Several
  // all_reduces, or several reduce_scatters, that are together no larger may be
  // fused into one with bitwise the same result.
  virtual size_t fusable_bytes() const { return 0; }

  // Starts `collective`, which is valid and supported, and returns its handle.
  // Never returns null and never blocks on the network. A failure completes the
  // Work; README.md lists the codes. The backend owns the tensors until the
  // Work is complete, with or without an error, and not longer.
  virtual std::shared_ptr<Work> Start(const Collective& collective) = 0;

  // A backend's part of a prepared collective (Communicator::Prepare): what it
  // finds out once for all runs. Destroyed while no run uses it, on any thread,
  // also after the backend.
  class Prepared {
   public:
    virtual ~Prepared() = default;
  };

  // Prepares runs of `collective`, which is valid, supported, and no send or
  // receive. All its runs have these arguments and tensors; their number and
  // times differ. From any thread; does not block. Null: there is nothing to
  // prepare.
  virtual std::unique_ptr<Prepared> Prepare(const Collective& collective) {
    return nullptr;
  }

  // As Start, for a caller that waits: gives `collective`, which is no send or
  // receive, its place in the order. Does not block. The caller then calls Run,
  // once, and meanwhile others may call Start and Enter.
  virtual Ticket Enter(const Collective& collective) {
    return {.work = Start(collective)};
  }

  // Runs a collective with the `ticket` from Enter, when those before it are
  // complete, and returns when it is complete. `prepared` is what Prepare has
  // returned for it, or null; one run at a time uses it. A backend may run it
  // on the calling thread, because waking another thread takes longer than a
  // small collective.
  virtual Completion Run(const Collective& collective, Prepared* prepared,
                         const Ticket& ticket);

  // Collectives, or sends and receives, that are started between these two
  // calls begin as one batch if the backend supports it: none of them then
  // waits for another one to begin. One thread makes the two calls, with only
  // calls of Start between them; no other thread starts anything meanwhile.
  virtual void BeginTogether() {}
  virtual void EndTogether() {}

  // Tells the backend that `collective`, which is not a send or receive, was
  // not started on this rank because its arguments are bad (`why`). Other ranks
  // may have started theirs. May take a second.
  virtual void Refused(const Collective& collective, const Status& why) {}

  // Prepares groups of the same backend that are made of ranks of this one. All
  // ranks call it, also those that join no group (but not those in `excluded`),
  // in one order with the collectives. The caller puts the result into the
  // options of the new group's backend, or drops it. Null, on all ranks alike,
  // if the new group's backend needs nothing from this one. Does not block.
  virtual std::shared_ptr<ParentHandle> Split(const SplitOptions& options) {
    return nullptr;
  }

  // Allocates symmetric memory. All ranks call it, in one order with the
  // collectives. Waits for them.
  // Errors: kUnimplemented (this backend has none) and kResourceExhausted (a
  // rank lacks the memory; all ranks have agreed on that and get the same text)
  // leave the group usable. kInvalidArgument (`bytes` differ),
  // kDeadlineExceeded (not all ranks came) and all others end the group.
  virtual StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options);

  // Does not wait. Empty if the backend has no communicators.
  virtual CommunicatorStates communicator_states() const { return {}; }

  // The last run of a collective of tensors on `device`; sends and receives do
  // not count. Callable from any thread, also while another collective runs.
  virtual LastRun last_run(DeviceType device) const {
    return {.backend = name()};
  }

  // Ends every started collective with `cause`, promptly and without help from
  // other ranks, closes the connections, and makes every later Start fail with
  // the first `cause` given. Does not block. May be called from a Work's
  // callback.
  virtual void Abort(Status cause) = 0;
};

// Base of a backend that wraps another one. A decorator overrides Start. It may
// override Enter, Run and Prepare, if it can do less work there.
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

  // For a subclass's destructor that must do something after `inner` is
  // destroyed.
  void DestroyInner() { inner_ = nullptr; }

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_BACKEND_H_
