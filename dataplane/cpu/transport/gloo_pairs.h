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

// Pairs are Gloo's connections, one per peer, each made when it is first used,
// over a connection of the group's Listener. By itself Gloo would listen on a
// separate port for each, and take the first client that connects there for the
// peer. Used by several threads.
class Pairs {
 public:
  // `listener` serves Take.
  Pairs(int rank, int world_size, const Listener& listener);
  // After Close, or before anything was opened.
  ~Pairs();

  // Chooses the network, and returns the address of this host there. Gloo's
  // device, which has a thread and memory, is made with the first pair. See
  // CreateBackend for the errors.
  StatusOr<AddressBytes> Start(const BackendOptions& options);

  // Connects to `peer`, unless that was done, and waits until it is. Errors:
  // kUnavailable naming the peer; kResourceExhausted, of this process; when
  // aborted, any.
  Status Open(int peer);

  bool IsOpen(int peer) const {
    return is_open_[peer].load(std::memory_order_acquire);
  }

  // What the listener does with a connection that a peer offers for its pair.
  void Take(int peer, int socket,
            const std::function<void(Listener::Reply reply)>& tell);

  // No pair is made any more. Ends Open if the listener is woken, too. Does not
  // block.
  void Abort();

  // Gloo's buffers are made from it. After Open.
  ::gloo::transport::Context& context() { return *context_; }

  // Around what locks a connection.
  void Posting(bool on) { yielder_->Posting(on); }

  // Closes all of them, orderly. No other call is under way, nor comes later.
  void Close();

 private:
  enum class Phase {
    kNone,
    kOffering,  // a connection to the peer
    kMaking,    // of a connection that is there
    kOpen,
    kFailed,
  };

  struct Pair {
    Phase phase = Phase::kNone;
    // Of kFailed.
    Status failure = OkStatus();
  };

  // Waits until nobody is about to make the pair.
  Status AwaitMade(const Pair& pair) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the pair, which is kMaking, of a connection to the peer, and owns
  // that.
  Status Make(int peer, int socket);
  // kAborted: it is to be tried again.
  Status MakeOnce(int peer, int socket);
  // Calls `function` in a turn of Gloo's event loop; its status is what that
  // throws.
  Status InLoop(const std::function<void()>& function);
  Status End(int peer, const Status& status)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Unless that was done. Throws as Gloo does.
  void MakeDevice() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Spin(bool on);

  const int rank_;
  const int world_size_;
  const Listener& listener_;

  // Of the device. Constant after Start.
  gloo_transport::tcp::attr attributes_;

  // Constant after MakeDevice. Destroyed from below: the device's handlers
  // after it, the context before it.
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
  // How many want it.
  int spins_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_GLOO_PAIRS_H_
