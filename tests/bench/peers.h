// Other people's stores on this machine, to stand beside ours.

#ifndef MUSTER_TESTS_BENCH_PEERS_H_
#define MUSTER_TESTS_BENCH_PEERS_H_

#include <memory>
#include <string>

#include "tests/bench/load.h"

namespace muster::bench {

// A store that serves on 127.0.0.1 until it is destroyed.
class Peer {
 public:
  virtual ~Peer() = default;

  // A caller's operation, over a connection of its own. Throws on failure.
  virtual Operation Set(const std::string& payload, int caller) = 0;
  virtual int pid() const = 0;
};

// redis without persistence; null where redis-server is not installed. Throws
// when it does not start.
std::unique_ptr<Peer> StartRedis();

// etcd with its data in `folder`, each put synced to the disk as it is by
// default; null where etcd is not installed. Throws when it does not start.
std::unique_ptr<Peer> StartEtcd(const std::string& folder);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_PEERS_H_
