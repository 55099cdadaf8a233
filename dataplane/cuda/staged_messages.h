// Sends and receives of CUDA tensors through host memory.

#ifndef MUSTER_DATAPLANE_CUDA_STAGED_MESSAGES_H_
#define MUSTER_DATAPLANE_CUDA_STAGED_MESSAGES_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/cuda/api.h"
#include "dataplane/cuda/device_work.h"
#include "dataplane/cuda/pinned.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::cuda {

// kDeadlineExceeded: the stream has not reached `collective` in time.
Status StreamIsLate(const Collective& collective);

// Runs sends and receives of CUDA tensors through pinned host memory. Each
// message moves as a whole through its own memory. A receive starts on the
// inner backend at once and is copied to the device when the data have come and
// the stream has reached the receive. A send is first copied from the device,
// after which its tensor is free. So no message delays another, except that
// sends to one peer with one tag keep their order.
//
// One thread, started with the first message, does all of it. Thread-safe.
class StagedMessages {
 public:
  // `api` and `inner`, which takes CPU tensors, must outlive it. The thread
  // calls `fail` with each failure; `fail` must end the group by calling Abort
  // of this object and of `inner`.
  StagedMessages(const Api& api, Backend& inner,
                 std::function<void(const Status&)> fail);

  // Waits for the end of all messages. Call Abort of this and of `inner`
  // before.
  ~StagedMessages();

  // Starts a kSend or kRecv of a tensor on a CUDA device, which begins after
  // `ready`. Takes ownership of `ready`. Does not block.
  void Start(const Collective& collective, std::shared_ptr<DeviceWork> work,
             Event ready);

  // Ends all messages with `cause`, soon.
  void Abort(const Status& cause);

 private:
  struct Message;
  // The streams for copies from and to a device.
  struct Streams {
    Stream in = nullptr;
    Stream out = nullptr;
  };

  void Serve();
  // Advances a message as far as possible without waiting. Returns true if it
  // has ended.
  bool Advance(Message& message, const Status& aborted);
  Status Begin(Message& message);
  void GiveToInner(Message& message);
  Status GiveCopy(Message& message);
  void End(Message& message, const Status& status);
  // Whether an earlier send with the same peer and tag is not yet with `inner`.
  bool HasToWait(const Message& message) const;
  Status Await(const Message& message, Event event, bool& reached) const;
  StatusOr<Stream> GetStream(const Message& message);

  const Api& api_;
  Backend& inner_;
  const std::function<void(const Status&)> fail_;

  // Used only by the thread. In the order of their starts.
  std::vector<std::unique_ptr<Message>> messages_;
  std::map<int, Streams> streams_;
  std::vector<std::unique_ptr<Pinned>> free_;
  size_t free_bytes_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Message>> started_ MUSTER_GUARDED_BY(mutex_);
  // Messages that `inner` has completed, with their results.
  std::vector<std::pair<Message*, Status>> ended_ MUSTER_GUARDED_BY(mutex_);
  Status status_ MUSTER_GUARDED_BY(mutex_);
  // Tells the thread that a member above has changed.
  bool is_news_ MUSTER_GUARDED_BY(mutex_) = false;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_STAGED_MESSAGES_H_
