// Finds the ranks of a host that hang in code of their own, for a launcher.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_HUNG_RANKS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_HUNG_RANKS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/session.h"

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
  // For people: what others wait in, for how long, and where it is.
  std::string why;
};

// Those on `host` that others have waited for for `hung_after` at least, while
// they were in code of their own, as `musterctl diagnose` finds it: in no
// collective, send or receive of any group, in no barrier or group that forms,
// waiting for no key, alive, and not on their way.
// `earlier`, if it is not null, is of some time before.
std::vector<HungRank> HungRanks(const v1::GetJobResponse& job,
                                const v1::GetJobResponse* earlier,
                                const std::string& host,
                                std::chrono::milliseconds hung_after);

// HungRanksReader fetches the job's state from the coordinator with unary calls
// and does not join the job. Used by one thread.
class HungRanksReader {
 public:
  // As Control::Open.
  static StatusOr<std::unique_ptr<HungRanksReader>> Open(
      const SessionOptions& options);

  ~HungRanksReader();
  HungRanksReader(const HungRanksReader&) = delete;
  HungRanksReader& operator=(const HungRanksReader&) = delete;

  // Of options.job; the answer before this one is the earlier one, so that the
  // first tells of nobody.
  // Errors: kUnavailable, and what the coordinator says.
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
