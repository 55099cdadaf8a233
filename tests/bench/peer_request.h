#ifndef MUSTER_TESTS_BENCH_PEER_REQUEST_H_
#define MUSTER_TESTS_BENCH_PEER_REQUEST_H_

#include <chrono>
#include <functional>
#include <istream>
#include <ostream>
#include <string>

// What the C++ peers of muster-bench have in common: the lines that they read
// and answer (worker/bench/README.md).
namespace muster::tests::bench {

// What a line asks for.
struct PeerRequest {
  std::string operation;
  std::string data_type;
  std::string reduce_op;
  size_t count = 0;
  int root = 0;
  int calls = 0;

  // The same for lines that differ in `calls` alone.
  std::string Key() const {
    return operation + " " + data_type + " " + reduce_op + " " +
           std::to_string(count) + " " + std::to_string(root);
  }
};

// Calls `call` so often, and says how long one took.
inline std::string TimeCalls(const std::function<void()>& call, int calls) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  return "seconds " + std::to_string(elapsed.count() * 1e9 / calls) + "e-9";
}

// Answers lines until there are no more.
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
