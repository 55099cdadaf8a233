#ifndef MUSTER_TESTS_BENCH_PEER_REQUEST_H_
#define MUSTER_TESTS_BENCH_PEER_REQUEST_H_

#include <chrono>
#include <functional>
#include <istream>
#include <ostream>
#include <string>

// Shared by the C++ peers of muster-bench: the lines that they read and answer
// (worker/bench/peer.h).
namespace muster::tests::bench {

// The request in a line.
struct PeerRequest {
  std::string operation;
  std::string data_type;
  std::string reduce_op;
  size_t count = 0;
  int root = 0;
  int calls = 0;

  // Equal for lines that differ only in `calls`.
  std::string Key() const {
    return operation + " " + data_type + " " + reduce_op + " " +
           std::to_string(count) + " " + std::to_string(root);
  }
};

// Makes `calls` calls and returns the time of one.
inline std::string TimeCalls(const std::function<void()>& call, int calls) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  return "seconds " + std::to_string(elapsed.count() * 1e9 / calls) + "e-9";
}

// Answers lines until the end of `in`.
inline void ServeRequests(
    std::istream& in, std::ostream& out,
    const std::function<std::string(const PeerRequest&)>& answer) {
  std::string verb;
  PeerRequest request;
  while (in >> verb >> request.operation >> request.data_type >>
         request.reduce_op >> request.count >> request.root >> request.calls) {
    out << answer(request) << std::endl;
  }
}

}  // namespace muster::tests::bench

#endif  // MUSTER_TESTS_BENCH_PEER_REQUEST_H_
