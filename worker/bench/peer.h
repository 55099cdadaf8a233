#ifndef MUSTER_WORKER_BENCH_PEER_H_
#define MUSTER_WORKER_BENCH_PEER_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "muster/base/status.h"
#include "worker/bench/operation.h"

namespace muster::worker::bench {

// Peer is another program that can run the same operations. Each rank has one
// peer process. The peers form a group and run calls on request. So both
// programs are measured alternately, within the same minutes.
//
// It starts with RANK, WORLD_SIZE and MUSTER_BENCH_FOLDER (a shared folder) in
// its environment, forms its group and prints `ready NAME`. Then it reads lines
//   run OPERATION DATATYPE REDOP ELEMENTS ROOT CALLS
// from its standard input, makes CALLS calls back to back, and answers each
// line with `seconds S` for one call, `none` if it has no such operation, or
// any other text, which is an error. ELEMENTS are those of a rank's part where
// the size is that of all parts. It verifies one call of each size, and ends
// when its input ends; two seconds later it is killed.
class Peer {
 public:
  // Starts `command`, words separated by spaces. All ranks' peers share
  // `folder` for their rendezvous. Returns when the peer has its group. This
  // and each answer may take `timeout`.
  // Errors: UNAVAILABLE, with the peer's last output; DEADLINE_EXCEEDED.
  static StatusOr<std::unique_ptr<Peer>> Start(
      const std::string& command, const std::string& folder, int rank,
      int world_size, std::chrono::milliseconds timeout);

  // Closes its standard input, and kills it if it does not end soon.
  ~Peer();

  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // The name that the peer reports.
  const std::string& name() const { return name_; }

  // Returns this rank's seconds per call; nullopt if the peer does not support
  // the case.
  // Errors: DATA_LOSS (its result is wrong), UNAVAILABLE (it has ended),
  // DEADLINE_EXCEEDED.
  StatusOr<std::optional<double>> Run(const Case& measured, int calls);

 private:
  Peer(std::string command, std::chrono::milliseconds timeout, pid_t pid,
       int to, int from);
  StatusOr<std::string> ReadLine();

  const std::string command_;
  const std::chrono::milliseconds timeout_;
  const pid_t pid_;
  const int to_;
  const int from_;
  // Output that was read after the last line.
  std::string said_;
  std::string name_;
};

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_PEER_H_
