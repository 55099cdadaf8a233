#include "client/tools/musterctl/agents.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::tools {
namespace {

// More processes than an agent has.
constexpr int kProcessesMax = 1 << 16;

// Returns the number of ranks of this agent (worker/launcher/hosts.cc writes
// it); 0: not known.
int CountProcesses(internal::AdminClient& control,
                   const v1::GetJobResponse& agents, int number) {
  v1::TryGetRequest request;
  request.mutable_caller()->set_job(agents.summary().job());
  request.set_key(
      absl::StrCat("hosts/", agents.summary().generation(), "/", number));
  v1::TryGetResponse response;
  if (!control.TryGet(request, &response).ok()) return 0;
  const auto json = nlohmann::json::parse(response.value(), nullptr, false);
  if (!json.is_object()) return 0;
  const auto processes = json.find("nproc");
  if (processes == json.end() || !processes->is_number_unsigned() ||
      *processes > kProcessesMax) {
    return 0;
  }
  return processes->get<int>();
}

}  // namespace

std::map<int, std::string> HostsOfRanks(internal::AdminClient& control,
                                        const std::string& job) {
  v1::GetJobRequest request;
  request.set_job(absl::StrCat(job, ".agents"));
  v1::GetJobResponse agents;
  std::map<int, std::string> hosts;
  if (!control.GetJob(request, &agents).ok()) return hosts;
  // By rank; those without a rank come last.
  int rank = 0;
  int number = 0;
  for (const v1::MemberInfo& agent : agents.members()) {
    if (agent.rank() != number) break;
    const int processes = CountProcesses(control, agents, number++);
    if (processes == 0) break;
    for (int i = 0; i < processes; ++i) hosts[rank++] = agent.host();
  }
  return hosts;
}

}  // namespace muster::tools
