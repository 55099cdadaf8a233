#ifndef MUSTER_CLIENT_TESTING_CUTTING_PROXY_H_
#define MUSTER_CLIENT_TESTING_CUTTING_PROXY_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::testing {

// A relay in front of a server on 127.0.0.1 that can cut all connections, hold
// back the server's answers, and refuse new connections.
class CuttingProxy {
 public:
  explicit CuttingProxy(int server_port);
  ~CuttingProxy();
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  int port() const { return port_; }
  std::string address() const;

  // Resets all connections and ends a hold. Later connections work normally.
  void Cut();

  // While held, answers do not reach the client and are lost; requests still
  // reach the server.
  void HoldAnswers(bool hold) { hold_answers_ = hold; }

  // The number of connections so far.
  int connections() const { return connections_; }
  // Bytes that reached the server.
  int64_t bytes_up() const { return bytes_up_; }

 private:
  struct Link {
    int client = -1;
    int server = -1;
  };

  void Run();
  bool Accept();
  // Returns false when the link is over.
  bool Relay(const Link& link, int from);

  const int server_port_;
  int listener_ = -1;
  int port_ = 0;
  // Wakes the relay.
  int bell_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> cut_{false};
  std::atomic<bool> hold_answers_{false};
  std::atomic<int> connections_{0};
  std::atomic<int64_t> bytes_up_{0};
  // Used only by the relay's thread.
  std::vector<Link> links_;
  std::thread thread_;
};

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_TESTING_CUTTING_PROXY_H_
