#ifndef MUSTER_TESTS_BENCH_ECHO_SERVER_H_
#define MUSTER_TESTS_BENCH_ECHO_SERVER_H_

#include <memory>

namespace muster::bench {

// A bare gRPC echo over the callback API, on a free port of 127.0.0.1.
class EchoServer {
 public:
  // Null: it cannot listen.
  static std::unique_ptr<EchoServer> Start();

  virtual ~EchoServer() = default;
  virtual int port() const = 0;
};

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_ECHO_SERVER_H_
