// Whose turn it is when jobs want more than the processors can do.

#ifndef MUSTER_COORDINATOR_SERVER_TURN_QUEUE_H_
#define MUSTER_COORDINATOR_SERVER_TURN_QUEUE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "coordinator/server/mutex.h"

namespace muster::coordinator {

class Job;

// TurnQueue runs the work of jobs that takes long, in turns: the jobs that have
// any get one turn after another in rotation, however many turns each of them
// has waiting. gRPC's own threads, which read for all jobs, are kept free of
// it. Thread-safe.
class TurnQueue {
 public:
  // A message of a client with no more than this much in it is quicker done
  // than handed over.
  static constexpr size_t kItemsWithoutTurn = 256;
  static constexpr size_t kBytesWithoutTurn = 64 << 10;

  explicit TurnQueue(int threads);
  // As Stop.
  ~TurnQueue();
  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  // Runs `turn` on a thread of the queue. Turns of one job begin in the order
  // in which they were posted; some may run at the same time. A turn should be
  // short, about a millisecond, and post what is left as another one.
  void Post(const Job* job, std::function<void()> turn)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Runs what waits, and what that posts, and ends the threads.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run();

  Mutex mu_;
  CondVar wakes_;
  // Of each job that has any; `rotation_` holds the same jobs, the next first.
  absl::flat_hash_map<const Job*, std::deque<std::function<void()>>> turns_
      ABSL_GUARDED_BY(mu_);
  std::deque<const Job*> rotation_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_TURN_QUEUE_H_
