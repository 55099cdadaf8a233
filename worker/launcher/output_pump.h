#ifndef MUSTER_WORKER_LAUNCHER_OUTPUT_PUMP_H_
#define MUSTER_WORKER_LAUNCHER_OUTPUT_PUMP_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "worker/launcher/line_prefixer.h"

namespace muster::worker {

// OutputPump reads the output of processes and prints it line by line with
// prefixes. It has a thread: a slow reader of this output must not keep the
// launcher from handling signals.
class OutputPump {
 public:
  OutputPump();
  // Calls Join.
  ~OutputPump();

  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  // Adds a stream and returns the descriptor to write to, which the caller
  // closes. Prints lines to the descriptor `sink` unless that is -1, and copies
  // the bytes to the file `log_path` unless that is empty.
  // Errors: RESOURCE_EXHAUSTED (no descriptor left), FAILED_PRECONDITION (the
  //   file cannot be written; the text names it).
  StatusOr<int> Add(const std::string& prefix, int sink,
                    const std::string& log_path);

  // How many streams were added.
  size_t size() const { return streams_.size(); }

  void Start();

  // No more streams will be added.
  void Finish();

  // After Finish: readable when every stream has ended and is printed.
  int done_fd() const { return done_fd_; }

  // Calls Finish and waits until every stream has ended.
  void Join();

  // The last lines of the `index`th stream added. After Join.
  const std::deque<std::string>& tail(size_t index) const;

 private:
  struct Stream;

  void Run();
  void Print(Stream& stream, const std::string& text);

  // New data for the thread.
  struct News {
    std::vector<Stream*> streams;
    bool finished = false;
  };

  // Used by the caller's thread; the other thread has pointers to the streams.
  std::vector<std::unique_ptr<Stream>> streams_;
  Mutex mutex_;
  News news_ MUSTER_GUARDED_BY(mutex_);
  const int news_fd_;
  const int done_fd_;
  // Sinks that cannot be written any more. Used only by the thread.
  std::vector<int> broken_sinks_;
  std::thread thread_;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_OUTPUT_PUMP_H_
