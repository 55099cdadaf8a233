// A coordinator on RocksDB, in a process that is killed and restarted.

#ifndef MUSTER_TESTS_FAULT_KILLED_COORDINATOR_H_
#define MUSTER_TESTS_FAULT_KILLED_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/processes.h"
#include "coordinator/server/auth/test_certificates.h"

namespace muster::fault {

// Requires certificates and tokens; once there is one, this process's
// environment has the client's. If it does not start, the test process ends.
class KilledCoordinator {
 public:
  // Serves when it returns, with a new folder for its storage, and with `flags`
  // in addition to those that it needs.
  explicit KilledCoordinator(std::vector<std::string> flags = {});

  void KillAndRestart();

  // The environment of clients in other processes.
  std::map<std::string, std::string> environment() const {
    return protection_.environment();
  }

  int port() const { return port_.port(); }
  std::string address() const;

 private:
  void Start();

  const std::vector<std::string> flags_;
  const coordinator::TestProtection protection_{"*"};
  std::string storage_;
  testing::ReservedPort port_;
  std::unique_ptr<testing::Process> process_;
};

// Reads arguments --NAME=NUMBER, all positive, into the numbers. Ends the
// process at any other argument.
void ReadNumbers(int argc, char** argv,
                 const std::map<std::string, int64_t*>& numbers);

}  // namespace muster::fault

#endif  // MUSTER_TESTS_FAULT_KILLED_COORDINATOR_H_
