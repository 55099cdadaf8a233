// Finds the ranks of a host that hang in user code, for a launcher.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_HUNG_RANKS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_HUNG_RANKS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/session.h"

namespace muster::internal {
class AdminClient;
}  // namespace muster::internal

namespace muster::v1 {
class GetJobResponse;
}  // namespace muster::v1

namespace muster::tools {

struct HungRank {
  int rank = -1;
  int64_t pid = 0;
  // For people: where and for how long the others wait, and where it is.
  std::string why;
};

// The ranks on `host` for which others have waited for at least `hung_after`
// while they were in user code, by the rules of `musterctl diagnose`: alive, in
// no collective, send, receive, barrier or forming group, waiting for no key,
// and not just late. `earlier` is an older snapshot; may be null.
std::vector<HungRank> HungRanks(const v1::GetJobResponse& job,
                                const v1::GetJobResponse* earlier,
                                const std::string& host,
                                std::chrono::milliseconds hung_after);

// HungRanksReader reads the job's state from the coordinator with unary calls.
// Does not join the job. Used by one thread.
class HungRanksReader {
 public:
  // As AdminClient::Open.
  static StatusOr<std::unique_ptr<HungRanksReader>> Open(
      const SessionOptions& options);

  ~HungRanksReader();
  HungRanksReader(const HungRanksReader&) = delete;
  HungRanksReader& operator=(const HungRanksReader&) = delete;

  // Reads the state of options.job and compares it with that of the call
  // before, so the first call returns no ranks.
  // Errors: kUnavailable, and the coordinator's errors.
  StatusOr<std::vector<HungRank>> Read(const std::string& host,
                                       std::chrono::milliseconds hung_after);

 private:
  HungRanksReader(std::string job,
                  std::unique_ptr<internal::AdminClient> control);

  const std::string job_;
  const std::unique_ptr<internal::AdminClient> admin_client_;
  std::unique_ptr<v1::GetJobResponse> earlier_;
};

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_HUNG_RANKS_H_
