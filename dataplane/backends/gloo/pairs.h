#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_PAIRS_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_PAIRS_H_

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backend.h"
#include "dataplane/backends/gloo/greeter.h"
#include "dataplane/backends/gloo/loop_handlers.h"
#include "dataplane/backends/gloo/rendezvous.h"
#include "dataplane/mutex.h"

namespace muster::dataplane::gloo_internal {

// Pairs are Gloo's connections, one to a peer, of which each is made when it is
// first used: Gloo listens on a port of its own for each, and looking for that
// many free ports took most of the time in which a group of 64 was made. The
// addresses go through the greeters. Used by several threads.
class Pairs {
 public:
  // `greeter` serves Answer.
  Pairs(int rank, int world_size, const Greeter& greeter);
  // After Close, or before anything was opened.
  ~Pairs();

  // Chooses the network, and returns the address of this host there. See
  // CreateBackend for the errors.
  absl::StatusOr<AddressBytes> Start(const BackendOptions& options);

  // Connects to `peer`, unless that was done, and waits until it is. Errors:
  // kUnavailable naming the peer; kResourceExhausted, of this process; when
  // aborted, any.
  absl::Status Open(int peer);

  bool IsOpen(int peer) const {
    return is_open_[peer].load(std::memory_order_acquire);
  }

  // What the greeter says to a peer that opens its pair; empty if it cannot.
  AddressBytes Answer(int peer, const AddressBytes& theirs);

  // No pair is made any more. Ends Open if the greeter is woken, too. Does not
  // block.
  void Abort();

  // Gloo's buffers are made from it. After Start.
  ::gloo::transport::Context& context() { return *context_; }

  // Around what locks a connection.
  void Posting(bool on) { yielder_->Posting(on); }

  // Closes all of them, orderly. No other call is under way, nor comes later.
  void Close();

 private:
  enum class Phase { kNone, kListening, kConnecting, kOpen, kFailed };

  struct Pair {
    Phase phase = Phase::kNone;
    ::gloo::transport::Pair* pair = nullptr;
    AddressBytes address = {};
    absl::Status failure = absl::OkStatus();
  };

  // Where this rank waits for `peer`.
  absl::StatusOr<AddressBytes> ListenFor(int peer);
  // `theirs` is where the peer waits for this rank.
  absl::Status Connect(int peer, const AddressBytes& theirs);
  void Spin(bool on);

  const int rank_;
  const int world_size_;
  const Greeter& greeter_;

  // Constant after Start. Destroyed from below: the device's handlers after it,
  // the context before it.
  std::unique_ptr<LoopSpinner> spinner_;
  std::unique_ptr<LoopYielder> yielder_;
  std::shared_ptr<transport::tcp::Device> device_;
  std::shared_ptr<transport::Context> context_;

  // By rank.
  std::vector<std::atomic<bool>> is_open_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Pair> pairs_ ABSL_GUARDED_BY(mutex_);
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  // How many want it.
  int spins_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The sockets of the pairs that are connected. Gloo does not give them away:
// they are found by their addresses among the descriptors of this process.
std::vector<int> FindSockets(const std::vector<AddressBytes>& own,
                             const std::vector<AddressBytes>& remote);

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_PAIRS_H_
