#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_GLOO_PAIRS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_GLOO_PAIRS_H_

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/backend.h"
#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/cpu/transport/gloo_loop_handlers.h"
#include "dataplane/cpu/transport/listener.h"

namespace muster::dataplane::cpu {

// Pairs are Gloo's connections, one per peer. Each is made at its first use,
// over a connection of the group's Listener. Gloo alone would listen on a
// separate port for each pair and take the first client there for the peer.
// Used by several threads.
class Pairs {
 public:
  // The owner has `listener` call Take.
  Pairs(int rank, int world_size, const Listener& listener);
  // Destroy it after Close, or before any pair was opened.
  ~Pairs();

  // Chooses the network, and returns the address of this host there. Gloo's
  // device, which has a thread and memory, is made with the first pair. See
  // CreateBackend for the errors.
  StatusOr<AddressBytes> Start(const BackendOptions& options);

  // Connects to `peer` unless the pair is open, and waits for the connection.
  // Errors: kUnavailable naming the peer; kResourceExhausted of this process;
  // any code after an abort.
  Status Open(int peer);

  bool IsOpen(int peer) const {
    return is_open_[peer].load(std::memory_order_acquire);
  }

  // Handles a connection that a peer offers for its pair (Listener::Take).
  void Take(int peer, int socket,
            const std::function<void(Listener::Reply reply)>& tell);

  // Prevents new pairs. Ends Open if the listener is woken, too. Does not
  // block.
  void Abort();

  // Makes Gloo's buffers. Call it after Open.
  ::gloo::transport::Context& context() { return *context_; }

  // See LoopYielder::Posting.
  void Posting(bool on) { yielder_->Posting(on); }

  // Closes all pairs and delivers the data on its way. No other call may run
  // meanwhile or later.
  void Close();

 private:
  enum class Phase {
    kNone,
    kOffering,  // this rank offers the peer a connection
    kMaking,    // the connection exists; the pair is being made
    kOpen,
    kFailed,
  };

  struct Pair {
    Phase phase = Phase::kNone;
    // Set in phase kFailed.
    Status failure = OkStatus();
  };

  // Waits until no thread is making the pair.
  Status AwaitMade(const Pair& pair) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the pair, in phase kMaking, from `socket`, a connection to the peer,
  // which it owns.
  Status Make(int peer, int socket);
  // kAborted: call it again.
  Status MakeOnce(int peer, int socket);
  // Calls `function` in an iteration of Gloo's event loop. Returns its
  // exception as a status.
  Status InLoop(const std::function<void()>& function);
  Status End(int peer, const Status& status)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the device unless it exists. Throws Gloo's exceptions.
  void MakeDevice() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Spin(bool on);

  const int rank_;
  const int world_size_;
  const Listener& listener_;

  // The device's attributes. Constant after Start.
  gloo_transport::tcp::attr attributes_;

  // Constant after MakeDevice. Destroyed in reverse order: the context, the
  // device, then its handlers.
  std::unique_ptr<LoopSpinner> spinner_;
  std::unique_ptr<LoopYielder> yielder_;
  std::shared_ptr<gloo_transport::tcp::Device> device_;
  std::shared_ptr<gloo_transport::Context> context_;

  // By rank.
  std::vector<std::atomic<bool>> is_open_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Pair> pairs_ MUSTER_GUARDED_BY(mutex_);
  bool aborted_ MUSTER_GUARDED_BY(mutex_) = false;
  // The number of callers that need the spinner on.
  int spins_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_GLOO_PAIRS_H_
