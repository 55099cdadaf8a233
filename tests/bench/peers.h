// Other projects' stores on this machine, for comparison.

#ifndef MUSTER_TESTS_BENCH_PEERS_H_
#define MUSTER_TESTS_BENCH_PEERS_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/bench/load.h"

namespace muster::bench {

// A store that serves on 127.0.0.1 until it is destroyed.
class Peer {
 public:
  virtual ~Peer() = default;

  // Makes a caller's operation over a connection of its own. Throws on failure.
  virtual Operation Set(const std::string& payload, int caller) = 0;
  virtual int pid() const = 0;
};

// Starts redis without persistence; null: redis-server is not installed. Throws
// if it does not start.
std::unique_ptr<Peer> StartRedis();

class EtcdPeer : public Peer {
 public:
  virtual std::vector<std::string> endpoints() const = 0;
};

// Starts an etcd with its data in `folder`; each put is synced to the disk,
// which is etcd's default. Null: etcd is not installed. Throws if it does not
// start.
std::unique_ptr<EtcdPeer> StartEtcd(const std::string& folder, int members = 1);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_PEERS_H_
