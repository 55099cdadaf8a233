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

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/backend.h"
#include "dataplane/collective.h"
#include "dataplane/cuda/api.h"
#include "dataplane/cuda/device_work.h"
#include "dataplane/cuda/pinned.h"

namespace muster::dataplane::cuda {

// kDeadlineExceeded: the stream has not come to `collective` in time.
Status StreamIsLate(const Collective& collective);

// Each message moves as a whole through its own pinned memory. A receive is
// started on the inner backend at once, and is copied to the device when the
// data has come and the stream has reached the receive. A send is first copied
// from the device, after which its tensor is free. So no message delays
// another, except that sends to one peer with one tag keep their order.
//
// One thread does all of it, from the first message on. Thread-safe.
class StagedMessages {
 public:
  // `api` and `inner`, which takes CPU tensors, outlive it. `fail` is called by
  // the thread with the first failure: it is to end the group, with Abort of
  // this and of `inner`.
  StagedMessages(const Api& api, Backend& inner,
                 std::function<void(const Status&)> fail);

  // After Abort of this and of `inner`: waits for the end of all of them.
  ~StagedMessages();

  // A kSend or kRecv, of a tensor on a CUDA device, that begins after `ready`,
  // which is this object's from here on. Does not block.
  void Start(const Collective& collective, std::shared_ptr<DeviceWork> work,
             Event ready);

  // Ends all of them with `cause`, soon.
  void Abort(const Status& cause);

 private:
  struct Message;
  // The streams for copies of a device.
  struct Streams {
    Stream in = nullptr;
    Stream out = nullptr;
  };

  void Serve();
  // Goes as far with it as it goes without waiting. True: it has ended.
  bool Advance(Message& message, const Status& aborted);
  Status Begin(Message& message);
  void GiveToInner(Message& message);
  Status GiveCopy(Message& message);
  void End(Message& message, const Status& status);
  // Whether a send before it, with its peer and tag, is not with `inner` yet.
  bool HasToWait(const Message& message) const;
  Status Await(const Message& message, Event event, bool& reached) const;
  StatusOr<Stream> StreamOf(const Message& message);

  const Api& api_;
  Backend& inner_;
  const std::function<void(const Status&)> fail_;

  // Of the thread alone. In the order in which they were started.
  std::vector<std::unique_ptr<Message>> messages_;
  std::map<int, Streams> streams_;
  std::vector<std::unique_ptr<Pinned>> free_;
  size_t free_bytes_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Message>> started_ MUSTER_GUARDED_BY(mutex_);
  // What `inner` has ended, and how.
  std::vector<std::pair<Message*, Status>> ended_ MUSTER_GUARDED_BY(mutex_);
  Status status_ MUSTER_GUARDED_BY(mutex_);
  // Something above is new.
  bool is_news_ MUSTER_GUARDED_BY(mutex_) = false;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_STAGED_MESSAGES_H_
