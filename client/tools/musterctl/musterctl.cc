// musterctl: looks at a coordinator and its jobs. CtlHelp() is its manual.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/options.h"
#include "base/text.h"
#include "client/control/admin_client.h"
#include "client/control/channel_security.h"
#include "client/control/convert.h"
#include "client/control/endpoint.h"
#include "client/tools/diagnose/diagnosis.h"
#include "client/tools/diagnose/fetch.h"
#include "client/tools/diagnose/recorders.h"
#include "client/tools/diagnose/tool_text.h"
#include "client/tools/musterctl/agents.h"
#include "client/tools/musterctl/options.h"
#include "client/tools/musterctl/version_report.h"
#include "google/protobuf/message.h"
#include "google/protobuf/util/json_util.h"
#include "muster/base/status.h"
#include "muster/session.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::tools {
namespace {

constexpr int kMisuse = 2;
constexpr int kStuck = 3;

// The timeout of a worker's page.
constexpr std::chrono::milliseconds kPageTime = std::chrono::seconds(2);

// Keys per call of kv list.
constexpr int kKeysPerCall = 256;

// One line, so that a stream of answers can be read line by line.
std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, &text, options);
  return status.ok() ? text + "\n" : ErrorJson(status.ToString());
}

class Ctl {
 public:
  // `authorization` is for the pages of workers.
  Ctl(const CtlOptions& options, std::unique_ptr<internal::AdminClient> control,
      std::string authorization)
      : options_(options),
        admin_client_(std::move(control)),
        authorization_(std::move(authorization)) {}

  // Whether diagnose or cluster found a problem.
  bool stuck() const { return stuck_; }

  Status Run() {
    const std::map<std::string, Status (Ctl::*)()> commands = {
        {"status", &Ctl::ShowStatus}, {"jobs", &Ctl::Jobs},
        {"members", &Ctl::Members},   {"groups", &Ctl::Groups},
        {"barriers", &Ctl::Barriers}, {"top", &Ctl::Top},
        {"diagnose", &Ctl::Diagnose}, {"flight-recorder", &Ctl::FlightRecorder},
        {"trace", &Ctl::Trace},       {"kv get", &Ctl::Get},
        {"kv set", &Ctl::Set},        {"kv list", &Ctl::List},
        {"kv watch", &Ctl::Watch},    {"kv delete", &Ctl::Delete},
        {"close", &Ctl::Close},       {"drain", &Ctl::Drain},
        {"cluster", &Ctl::Cluster},   {"move", &Ctl::Move},
    };
    Status status = (this->*commands.at(options_.command))();
    if (status.ok() && !written_) {
      status = DataLossError("standard output does not take the answer");
    }
    return status;
  }

 private:
  void Print(const std::string& text) {
    const bool all = fwrite(text.data(), 1, text.size(), stdout) == text.size();
    written_ = all && fflush(stdout) == 0 && written_;
  }

  template <typename Message>
  void Print(const Message& message, const std::string& text) {
    Print(options_.json ? Json(message) : text);
  }

  std::string Address() const { return admin_client_->endpoint().ToString(); }

  // Asks every coordinator of the cluster that `cluster` shows.
  StatusOr<std::vector<CoordinatorReport>> AskAll(
      v1::GetClusterResponse& cluster) {
    Status status = admin_client_->GetCluster({}, &cluster);
    if (!status.ok()) return status;
    std::vector<CoordinatorReport> reports;
    for (const v1::ClusterCoordinator& coordinator : cluster.coordinators()) {
      CoordinatorReport report;
      report.coordinator = coordinator;
      SessionOptions session;
      session.address = coordinator.address();
      session.connect_timeout = options_.timeout;
      StatusOr<std::unique_ptr<internal::AdminClient>> client =
          internal::AdminClient::Open(session);
      report.status = client.status();
      if (client.ok()) {
        report.status = (*client)->GetCluster({}, &report.cluster);
      }
      if (report.status.ok()) {
        report.status = (*client)->ListJobs({}, &report.jobs);
      }
      reports.push_back(std::move(report));
    }
    return reports;
  }

  // The jobs of all coordinators, with the rest of the answer of the one that
  // was asked.
  Status ListAllJobs(v1::ListJobsResponse& jobs) {
    Status status = admin_client_->ListJobs({}, &jobs);
    if (!status.ok()) return status;
    v1::GetClusterResponse cluster;
    const StatusOr<std::vector<CoordinatorReport>> reports = AskAll(cluster);
    // A coordinator of an earlier version, or a lone one, has all jobs.
    if (!reports.ok() || cluster.shards().empty()) return OkStatus();
    std::map<std::string, v1::JobSummary> by_name;
    for (const CoordinatorReport& report : *reports) {
      if (!report.status.ok()) return report.status;
      for (const v1::JobSummary& job : report.jobs.jobs()) {
        by_name[job.job()] = job;
      }
    }
    jobs.clear_jobs();
    for (const auto& [name, job] : by_name) *jobs.add_jobs() = job;
    return OkStatus();
  }

  Status Cluster() {
    v1::GetClusterResponse cluster;
    const StatusOr<std::vector<CoordinatorReport>> reports = AskAll(cluster);
    if (!reports.ok()) return reports.status();
    Print(options_.json ? ClusterJson(cluster, *reports)
                        : ClusterText(cluster, *reports));
    stuck_ = !IsHealthy(cluster, *reports);
    return OkStatus();
  }

  Status Move() {
    v1::MoveJobRequest request;
    request.set_job(options_.arguments.front());
    request.set_to(options_.to);
    v1::MoveJobResponse response;
    Status status = admin_client_->MoveJob(request, &response);
    if (!status.ok()) return status;
    v1::GetClusterRequest which;
    which.set_job(request.job());
    v1::GetClusterResponse cluster;
    status = admin_client_->GetCluster(which, &cluster);
    if (!status.ok()) return status;
    Print(response,
          absl::StrCat("shard ", cluster.job_shard(), ", with job ",
                       base::Printable(request.job()), ", goes to ",
                       options_.to.empty() ? "the coordinator that they choose"
                                           : base::Printable(options_.to),
                       "\n"));
    return OkStatus();
  }

  // Returns the job to use.
  StatusOr<std::string> Job() {
    if (!options_.job.empty()) return options_.job;
    v1::ListJobsResponse jobs;
    Status status = ListAllJobs(jobs);
    if (!status.ok()) return status;
    if (jobs.jobs_size() == 1) return jobs.jobs(0).job();
    std::vector<std::string> names;
    for (const v1::JobSummary& job : jobs.jobs()) {
      names.push_back(base::Printable(job.job()));
    }
    return NotFoundError(
        names.empty()
            ? absl::StrCat("there is no job at ", Address())
            : absl::StrCat("which job? name one (--job, MUSTER_JOB): ",
                           absl::StrJoin(names, ", ")));
  }

  // For calls that create the job if it does not exist.
  Status FillCaller(v1::Caller* caller) {
    const StatusOr<std::string> job = Job();
    if (job.ok()) caller->set_job(*job);
    return job.status();
  }

  // For calls that only read: refuses an unknown job, which the call would
  // otherwise create and show as empty.
  Status FillReader(v1::Caller* caller) {
    Status status = FillCaller(caller);
    if (!status.ok()) return status;
    v1::GetJobRequest request;
    request.set_job(caller->job());
    v1::GetJobResponse response;
    return admin_client_->GetJob(request, &response);
  }

  StatusOr<v1::GetJobResponse> LookAtJob() {
    StatusOr<std::string> job =
        options_.arguments.empty() ? Job() : options_.arguments.front();
    if (!job.ok()) return job.status();
    v1::GetJobRequest request;
    request.set_job(*job);
    v1::GetJobResponse response;
    Status status = admin_client_->GetJob(request, &response);
    if (!status.ok()) return status;
    return response;
  }

  Status ShowStatus() {
    v1::ListJobsResponse response;
    Status status = admin_client_->ListJobs({}, &response);
    if (status.ok()) Print(response, StatusText(Address(), response));
    return status;
  }

  Status Jobs() {
    v1::ListJobsResponse response;
    Status status = ListAllJobs(response);
    if (!status.ok()) return status;
    if (!options_.names) {
      Print(response, JobsText(response));
      return status;
    }
    for (const v1::JobSummary& job : response.jobs()) Print(job.job() + "\n");
    return status;
  }

  Status Members() {
    const StatusOr<v1::GetJobResponse> job = LookAtJob();
    if (job.ok()) Print(*job, MembersText(*job));
    return job.status();
  }

  Status Groups() {
    const StatusOr<v1::GetJobResponse> job = LookAtJob();
    if (job.ok()) Print(*job, GroupsText(*job));
    return job.status();
  }

  Status Barriers() {
    const StatusOr<v1::GetJobResponse> job = LookAtJob();
    if (job.ok()) Print(*job, BarriersText(*job));
    return job.status();
  }

  Status Diagnose() {
    const StatusOr<v1::GetJobResponse> earlier = LookAtJob();
    if (!earlier.ok()) return earlier.status();
    if (Interrupted(options_.interval)) return OkStatus();
    const StatusOr<v1::GetJobResponse> job = LookAtJob();
    if (!job.ok()) return job.status();
    DiagnosisOptions limits = {.stuck_after = options_.stuck_after};
    if (!job->missing_ranks().empty()) {
      limits.hosts = HostsOfRanks(*admin_client_, job->summary().job());
    }
    Answers answers;
    for (const auto& [rank, fetched] :
         FetchAll(*job, RanksToAsk(*job, &*earlier, limits), "")) {
      if (!IsInvalidArgument(fetched.status) &&
          !IsFailedPrecondition(fetched.status)) {
        answers[rank] = fetched.answer;
      }
    }
    const Diagnosis diagnosis =
        tools::Diagnose(*job, &*earlier, answers, limits);
    Print(options_.json ? DiagnosisJson(*job, diagnosis)
                        : DiagnosisText(*job, diagnosis));
    if (options_.stacks) PrintStacks(*job, diagnosis);
    stuck_ = !diagnosis.healthy();
    return OkStatus();
  }

  void PrintStacks(const v1::GetJobResponse& job, const Diagnosis& diagnosis) {
    std::set<int> ranks;
    for (const StuckGroup& group : diagnosis.groups) {
      for (const Culprit& culprit : group.culprits) ranks.insert(culprit.rank);
    }
    for (const Culprit& culprit : diagnosis.silent) ranks.insert(culprit.rank);
    for (const auto& [rank, fetched] :
         FetchAll(job, {ranks.begin(), ranks.end()}, "/debug/stacks")) {
      std::string text =
          absl::StrCat("\nstacks of rank ", rank, ": ",
                       base::Printable(fetched.status.message()), "\n");
      if (fetched.status.ok()) {
        for (const absl::string_view line :
             absl::StrSplit(fetched.body, '\n')) {
          absl::StrAppend(&text, base::Printable(line), "\n");
        }
      }
      Print(text);
    }
  }

  // Fetches a page of each of `ranks` at once; "" only checks whether they
  // answer.
  std::map<int, Fetched> FetchAll(const v1::GetJobResponse& job,
                                  const std::vector<int>& ranks,
                                  const std::string& path) {
    std::map<int, Asked> asked;
    for (const v1::MemberInfo& member : job.members()) {
      if (std::find(ranks.begin(), ranks.end(), member.rank()) == ranks.end()) {
        continue;
      }
      asked[member.rank()] = {member.rank(), member.host(), member.pid(),
                              member.debug_address()};
    }
    return tools::FetchAll(asked, path, authorization_,
                           std::min(options_.timeout, kPageTime));
  }

  // Returns the prefix of a rank that answers, else this process's.
  std::string DumpPrefix(const v1::GetJobResponse& job,
                         const Recorders& recorders) {
    if (recorders.by_rank.empty()) {
      const char* const own = std::getenv("TORCH_FR_DUMP_TEMP_FILE");
      return own == nullptr ? "" : own;
    }
    const int rank = recorders.by_rank.begin()->first;
    return DumpPrefixIn(
        FetchAll(job, {rank}, "/debug/environment").at(rank).body);
  }

  StatusOr<Recorders> Collect(std::string& name) {
    const StatusOr<v1::GetJobResponse> job = LookAtJob();
    if (!job.ok()) return job.status();
    name = job->summary().job();
    Recorders recorders;
    std::vector<int> ranks;
    for (const v1::MemberInfo& member : job->members()) {
      if (member.rank() < 0) continue;
      ranks.push_back(member.rank());
      recorders.hosts[member.rank()] = member.host();
    }
    for (auto& [rank, fetched] :
         FetchAll(*job, ranks, "/debug/flight_recorder")) {
      if (fetched.status.ok()) {
        recorders.by_rank[rank] = std::move(fetched.body);
      } else {
        recorders.missing[rank] = fetched.status.message();
      }
    }
    const std::string prefix =
        recorders.missing.empty() ? "" : DumpPrefix(*job, recorders);
    for (const v1::MemberInfo& member : job->members()) {
      const auto missing = recorders.missing.find(member.rank());
      if (missing == recorders.missing.end()) continue;
      missing->second =
          WhyNoRecorder(member, missing->second, prefix, internal::HostName());
    }
    fputs(MissingText(recorders.missing, ranks.size()).c_str(), stderr);
    if (recorders.by_rank.empty() && !ranks.empty()) {
      return UnavailableError("no rank answered");
    }
    return recorders;
  }

  Status FlightRecorder() {
    std::string job;
    const StatusOr<Recorders> recorders = Collect(job);
    return recorders.ok() ? Write(MergedJson(job, *recorders))
                          : recorders.status();
  }

  Status Trace() {
    std::string job;
    const StatusOr<Recorders> recorders = Collect(job);
    if (!recorders.ok()) return recorders.status();
    if (!options_.per_rank.empty()) {
      Status status = WriteTraces(options_.per_rank, job, *recorders);
      if (!status.ok()) return status;
    }
    return Write(TraceJson(job, *recorders));
  }

  // Writes to the file of --output, or to standard output.
  Status Write(const std::string& text) {
    if (!options_.output.empty()) return WriteFile(options_.output, text);
    Print(text);
    return OkStatus();
  }

  StatusOr<std::string> TopText() {
    v1::ListJobsResponse jobs;
    Status status = ListAllJobs(jobs);
    if (!status.ok()) return status;
    std::string text = StatusText(Address(), jobs);
    if (options_.arguments.empty()) {
      return options_.json ? Json(jobs)
                           : absl::StrCat(text, "\n", JobsText(jobs));
    }
    const StatusOr<v1::GetJobResponse> job = LookAtJob();
    if (!job.ok()) return job.status();
    if (options_.json) return Json(*job);
    return absl::StrCat(text, "\n", MembersText(*job), "\n",
                        BarriersText(*job));
  }

  Status Top() {
    // Moves home and clears line by line, to avoid flicker.
    const bool screen = isatty(STDOUT_FILENO) == 1 && !options_.json;
    if (screen) Print("\033[2J");
    for (int64_t polls = 1; written_; ++polls) {
      const StatusOr<std::string> text = TopText();
      if (!text.ok()) return text.status();
      if (screen) {
        std::string lines = "\033[H";
        for (const char c : *text) {
          lines += c == '\n' ? "\033[K\n" : std::string(1, c);
        }
        Print(lines + "\033[J");
      } else {
        Print(*text);
      }
      if (polls == options_.count) break;
      if (Interrupted(options_.interval)) break;
    }
    return OkStatus();
  }

  // Whether SIGINT or SIGTERM comes within `patience`. At other times they end
  // the process.
  static bool Interrupted(std::chrono::milliseconds patience) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    const timespec time = {
        .tv_sec = static_cast<time_t>(patience.count() / 1000),
        .tv_nsec = static_cast<long>(  // NOLINT(google-runtime-int)
            patience.count() % 1000 * 1'000'000)};
    const bool interrupted = sigtimedwait(&signals, nullptr, &time) > 0;
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    return interrupted;
  }

  Status Get() {
    const std::string& key = options_.arguments.front();
    v1::GetResponse response;
    if (options_.wait.has_value()) {
      v1::GetRequest request;
      Status status = FillCaller(request.mutable_caller());
      if (!status.ok()) return status;
      request.set_key(key);
      *request.mutable_timeout() = internal::ToProto(*options_.wait);
      status = admin_client_->Get(request, &response);
      if (status.ok()) Print(response, response.value() + "\n");
      return status;
    }
    v1::TryGetRequest request;
    Status status = FillReader(request.mutable_caller());
    if (!status.ok()) return status;
    request.set_key(key);
    v1::TryGetResponse found;
    status = admin_client_->TryGet(request, &found);
    if (!status.ok()) return status;
    if (!found.found()) {
      return NotFoundError(absl::StrCat("no key ", base::Quote(key), " in job ",
                                        base::Quote(request.caller().job())));
    }
    Print(found, found.value() + "\n");
    return OkStatus();
  }

  Status Set() {
    v1::SetRequest request;
    Status status = FillCaller(request.mutable_caller());
    if (!status.ok()) return status;
    request.set_key(options_.arguments[0]);
    request.set_value(options_.arguments[1]);
    if (options_.arguments[1] == "-") {
      request.set_value(std::string(std::istreambuf_iterator<char>(std::cin),
                                    std::istreambuf_iterator<char>()));
    }
    if (options_.ttl.has_value()) {
      *request.mutable_ttl() = internal::ToProto(*options_.ttl);
    }
    v1::SetResponse response;
    status = admin_client_->Set(request, &response);
    if (status.ok()) {
      Print(response, absl::StrCat("revision ", response.revision(), "\n"));
    }
    return status;
  }

  Status List() {
    v1::ListKeysRequest request;
    Status status = FillReader(request.mutable_caller());
    if (!status.ok()) return status;
    if (!options_.arguments.empty()) {
      request.set_prefix(options_.arguments.front());
    }
    request.set_limit(kKeysPerCall);
    v1::ListKeysResponse response;
    do {
      status = admin_client_->ListKeys(request, &response);
      if (!status.ok()) return status;
      std::string text;
      for (const std::string& key : response.keys()) {
        absl::StrAppend(&text, base::Printable(key), "\n");
      }
      Print(response, text);
      if (!response.keys().empty()) {
        request.set_start_after(*response.keys().rbegin());
      }
    } while (response.more() && written_);
    return OkStatus();
  }

  Status Watch() {
    v1::WatchRequest request;
    Status status = FillCaller(request.mutable_caller());
    if (!status.ok()) return status;
    request.set_key(options_.arguments.front());
    request.set_prefix(options_.prefix);
    if (options_.after.has_value()) request.set_after_revision(*options_.after);
    return admin_client_->Watch(request,
                                [this](const v1::WatchResponse& response) {
                                  if (!response.changes().empty())
                                    Print(response, ChangesText(response));
                                  return written_;
                                });
  }

  Status Delete() {
    const std::string& key = options_.arguments.front();
    if (options_.prefix) {
      v1::DeletePrefixRequest request;
      Status status = FillCaller(request.mutable_caller());
      if (!status.ok()) return status;
      request.set_prefix(key);
      v1::DeletePrefixResponse response;
      status = admin_client_->DeletePrefix(request, &response);
      if (status.ok()) {
        Print(response, absl::StrCat(response.deleted(), " keys deleted\n"));
      }
      return status;
    }
    v1::DeleteRequest request;
    Status status = FillCaller(request.mutable_caller());
    if (!status.ok()) return status;
    request.set_key(key);
    v1::DeleteResponse response;
    status = admin_client_->Delete(request, &response);
    if (!status.ok()) return status;
    if (!response.deleted()) {
      return NotFoundError(absl::StrCat("no key ", base::Quote(key), " in job ",
                                        base::Quote(request.caller().job())));
    }
    Print(response, "deleted\n");
    return OkStatus();
  }

  Status Close() {
    const StatusOr<v1::GetJobResponse> job = LookAtJob();
    if (!job.ok()) return job.status();
    v1::CloseRendezvousRequest request;
    request.mutable_caller()->set_job(job->summary().job());
    request.set_reason(options_.reason);
    v1::CloseRendezvousResponse response;
    Status status = admin_client_->CloseRendezvous(request, &response);
    if (status.ok()) Print(response, "closed\n");
    return status;
  }

  Status Drain() {
    v1::DrainRequest request;
    request.set_reason(options_.reason);
    v1::DrainResponse response;
    Status status = admin_client_->Drain(request, &response);
    if (status.ok()) {
      Print(response,
            absl::StrCat("coordinator ", Address(), " drains and ends\n"));
    }
    return status;
  }

  const CtlOptions& options_;
  const std::unique_ptr<internal::AdminClient> admin_client_;
  const std::string authorization_;
  bool written_ = true;
  bool stuck_ = false;
};

int Fail(const Status& status, int code) {
  std::string kind;
  if (code != kMisuse) {
    kind = absl::StrCat(StatusCodeToString(status.code()), ": ");
  }
  fprintf(stderr, "musterctl: %s%s\n", kind.c_str(),
          base::Printable(status.message()).c_str());
  return code;
}

int Show(const StatusOr<std::string>& text) {
  if (!text.ok()) return Fail(text.status(), kMisuse);
  fputs(text->c_str(), stdout);
  return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int Main(int argc, char** argv) {
  const StatusOr<CtlOptions> options = ParseCtlOptions(
      std::vector<std::string>(argv + 1, argv + argc), base::OwnEnvironment());
  if (!options.ok()) return Fail(options.status(), kMisuse);
  if (options->command == "help") {
    return Show(CtlHelp(absl::StrJoin(options->arguments, " ")));
  }
  if (options->command == "completion") {
    return Show(CtlCompletion(options->arguments.front()));
  }
  if (options->command == "version") {
    return Show(VersionReport(options->verbose));
  }
  SessionOptions session;
  session.address = options->coordinator;
  session.connect_timeout = options->timeout;
  StatusOr<std::unique_ptr<internal::AdminClient>> control =
      internal::AdminClient::Open(session);
  if (!control.ok()) return Fail(control.status(), kMisuse);
  // Members choose the addresses of their pages: this program's own token,
  // which may be an admin's, must not go there.
  const StatusOr<std::string> token = internal::JobToken();
  if (!token.ok()) return Fail(token.status(), kMisuse);
  Ctl ctl(*options, *std::move(control),
          token->empty() ? "" : absl::StrCat("Bearer ", *token));
  const Status status = ctl.Run();
  if (!status.ok()) return Fail(status, EXIT_FAILURE);
  return ctl.stuck() ? kStuck : EXIT_SUCCESS;
}

}  // namespace
}  // namespace muster::tools

int main(int argc, char** argv) { return muster::tools::Main(argc, argv); }
