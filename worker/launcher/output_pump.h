#ifndef MUSTER_WORKER_LAUNCHER_OUTPUT_PUMP_H_
#define MUSTER_WORKER_LAUNCHER_OUTPUT_PUMP_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "worker/launcher/line_prefixer.h"

namespace muster::worker {

// OutputPump reads the output of processes and prints it line by line with
// prefixes, on a thread of its own: a slow reader of our output must not keep
// the launcher from handling signals.
class OutputPump {
 public:
  OutputPump();
  // As Join.
  ~OutputPump();

  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  // Adds a stream and returns the descriptor to write to, which the caller
  // closes. What comes is printed to the descriptor `sink` unless that is -1,
  // and as it is to the file `log_path` unless that is empty.
  // Errors: RESOURCE_EXHAUSTED (no descriptor left), FAILED_PRECONDITION (the
  //   file cannot be written; the text names it).
  StatusOr<int> Add(const std::string& prefix, int sink,
                    const std::string& log_path);

  // How many streams were added.
  size_t size() const { return streams_.size(); }

  void Start();

  // No stream is added any more.
  void Finish();

  // After Finish: readable when every stream has ended and was printed.
  int done_fd() const { return done_fd_; }

  // Finish, and waits for the end of every stream.
  void Join();

  // The last lines of the `index`th stream added. After Join.
  const std::deque<std::string>& tail(size_t index) const;

 private:
  struct Stream;

  void Run();
  void Print(Stream& stream, const std::string& text);

  // What the thread has not seen yet.
  struct News {
    std::vector<Stream*> streams;
    bool finished = false;
  };

  // Of the caller's thread; the other one knows the streams by pointers.
  std::vector<std::unique_ptr<Stream>> streams_;
  Mutex mutex_;
  News news_ MUSTER_GUARDED_BY(mutex_);
  const int news_fd_;
  const int done_fd_;
  // Sinks that cannot be written any more. Used by the thread alone.
  std::vector<int> broken_sinks_;
  std::thread thread_;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_OUTPUT_PUMP_H_
