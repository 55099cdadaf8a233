#include "client/tools/diagnose/hung_ranks.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/admin_client.h"
#include "client/tools/diagnose/diagnosis.h"
#include "client/tools/diagnose/rank_progress.h"
#include "client/tools/diagnose/tool_text.h"
#include "muster/base/status.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

std::vector<HungRank> HungRanks(const v1::GetJobResponse& job,
                                const v1::GetJobResponse* earlier,
                                const std::string& host,
                                std::chrono::milliseconds hung_after) {
  // By rank. Each has one entry, for the group that is stuck for longest.
  std::map<int, HungRank> hung;
  const Diagnosis diagnosis =
      Diagnose(job, earlier, {}, {.stuck_after = hung_after});
  for (const StuckGroup& group : diagnosis.groups) {
    for (const Culprit& culprit : group.culprits) {
      if (culprit.host != host || culprit.state != "user_code") continue;
      hung.emplace(
          culprit.rank,
          HungRank{.rank = culprit.rank,
                   .pid = culprit.pid,
                   .why = absl::StrCat("others have waited in ",
                                       base::Printable(group.collective),
                                       " on group ", base::Quote(group.group),
                                       " for ", SecondsText(group.running_for),
                                       ", and it ", culprit.what)});
    }
  }
  std::vector<HungRank> ranks;
  for (auto& [rank, found] : hung) ranks.push_back(std::move(found));
  return ranks;
}

StatusOr<std::unique_ptr<HungRanksReader>> HungRanksReader::Open(
    const SessionOptions& options) {
  auto control = internal::AdminClient::Open(options);
  if (!control.ok()) return control.status();
  return std::unique_ptr<HungRanksReader>(
      new HungRanksReader(options.job, *std::move(control)));
}

HungRanksReader::HungRanksReader(std::string job,
                                 std::unique_ptr<internal::AdminClient> control)
    : job_(std::move(job)), admin_client_(std::move(control)) {}

HungRanksReader::~HungRanksReader() = default;

StatusOr<std::vector<HungRank>> HungRanksReader::Read(
    const std::string& host, std::chrono::milliseconds hung_after) {
  v1::GetJobRequest request;
  request.set_job(job_);
  auto response = std::make_unique<v1::GetJobResponse>();
  Status status = admin_client_->GetJob(request, response.get());
  if (!status.ok() && !IsNotFound(status)) return status;
  std::vector<HungRank> hung;
  if (earlier_ != nullptr) {
    hung = HungRanks(*response, earlier_.get(), host, hung_after);
  }
  earlier_ = std::move(response);
  return hung;
}

}  // namespace muster::tools
