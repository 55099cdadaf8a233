#ifndef MUSTER_WORKER_OUTPUT_PUMP_H_
#define MUSTER_WORKER_OUTPUT_PUMP_H_

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/line_prefixer.h"

namespace muster::worker {

// OutputPump reads what processes print and prints it line by line with
// prefixes, on a thread of its own: whoever reads our output slowly must not
// keep the launcher from its signals.
class OutputPump {
 public:
  OutputPump();
  // As Join.
  ~OutputPump();

  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  // Adds a stream and returns the descriptor to write to, which the caller
  // closes. What comes is printed to the descriptor `sink`, and as it is to
  // the file `log_path` unless that is empty. Before Start.
  // Errors: RESOURCE_EXHAUSTED (no descriptor left), FAILED_PRECONDITION (the
  //   file cannot be written; the text names it).
  absl::StatusOr<int> Add(const std::string& prefix, int sink,
                          const std::string& log_path);

  void Start();

  // Readable when every stream has ended and was printed.
  int done_fd() const { return done_fd_; }

  // Waits for the end of every stream.
  void Join();

  // The last lines of the `index`th stream added. After Join.
  const std::deque<std::string>& tail(size_t index) const;

 private:
  struct Stream;

  void Run();
  void Print(Stream& stream, const std::string& text);

  std::vector<std::unique_ptr<Stream>> streams_;
  const int done_fd_;
  // Sinks that cannot be written any more. Used by the thread alone.
  std::vector<int> broken_sinks_;
  std::thread thread_;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_OUTPUT_PUMP_H_
