// A coordinator on RocksDB, as a process that is killed and started again.

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

// It asks for certificates and tokens, which this process has from its
// environment once there is one. The process ends the test's when it does not
// start.
class KilledCoordinator {
 public:
  // Serves when it returns, with a new folder for its storage, and with `flags`
  // beside those that it needs.
  explicit KilledCoordinator(std::vector<std::string> flags = {});

  void KillAndRestart();

  // Of clients that are processes of their own.
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
// process at one that is none.
void ReadNumbers(int argc, char** argv,
                 const std::map<std::string, int64_t*>& numbers);

}  // namespace muster::fault

#endif  // MUSTER_TESTS_FAULT_KILLED_COORDINATOR_H_
