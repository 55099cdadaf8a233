#ifndef MUSTER_WORKER_LAUNCHER_LINE_PREFIXER_H_
#define MUSTER_WORKER_LAUNCHER_LINE_PREFIXER_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::worker {

// LinePrefixer turns a stream of bytes into lines that begin with a prefix, so
// that the output of several processes can be mixed line by line. Bytes other
// than '\n' pass unchanged. Not thread-safe.
class LinePrefixer {
 public:
  // A line longer than `line_bytes_max` is broken there: a process that never
  // ends its line must not fill the memory.
  explicit LinePrefixer(std::string prefix, size_t line_bytes_max = 65536);

  // Takes bytes and returns the complete lines to print.
  std::string Push(absl::string_view bytes);

  // Ends the stream: returns the last line if it had no end, with an end; else
  // "".
  std::string Finish();

  // The last lines, oldest first, without prefix, each cut to 400 bytes.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  void EndLine(std::string& out);

  const std::string prefix_;
  const size_t line_bytes_max_;
  std::string line_;
  std::deque<std::string> tail_;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_LINE_PREFIXER_H_
