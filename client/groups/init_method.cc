#include "client/groups/init_method.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

// muster-run sets it for all ranks of one attempt.
constexpr char kAttemptVariable[] = "MUSTER_ATTEMPT";

constexpr char kMethods[] =
    "env://, tcp://HOST:PORT?rank=R&world_size=N, "
    "file:///PATH?rank=R&world_size=N or muster://HOST:PORT/JOB";

// "scheme://authority/path?key=value&..."
struct Url {
  std::string scheme;
  std::string authority;
  std::string path;
  std::map<std::string, std::string> query;
};

Status Error(const Url& url, absl::string_view what) {
  return InvalidArgumentError(
      absl::StrCat("Error initializing torch.distributed using ", url.scheme,
                   ":// rendezvous: ", what));
}

StatusOr<Url> ParseUrl(absl::string_view text) {
  const size_t colon = text.find("://");
  if (colon == absl::string_view::npos || colon == 0) {
    return InvalidArgumentError(absl::StrCat("init_method ", base::Quote(text),
                                             " is not a URL: use ", kMethods));
  }
  Url url;
  url.scheme = std::string(text.substr(0, colon));
  absl::string_view rest = text.substr(colon + 3);
  const size_t question = rest.find('?');
  if (question != absl::string_view::npos) {
    for (absl::string_view pair :
         absl::StrSplit(rest.substr(question + 1), '&', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> split =
          absl::StrSplit(pair, absl::MaxSplits('=', 1));
      if (split.first != "rank" && split.first != "world_size") {
        return Error(
            url, absl::StrCat("unknown parameter ", base::Quote(split.first),
                              ": rank and world_size are known"));
      }
      url.query[split.first] = split.second;
    }
    rest = rest.substr(0, question);
  }
  const size_t slash = rest.find('/');
  url.authority = std::string(rest.substr(0, slash));
  if (slash != absl::string_view::npos) {
    url.path = std::string(rest.substr(slash + 1));
  }
  return url;
}

StatusOr<int> ToInt(const Url& url, absl::string_view where,
                    absl::string_view text) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return Error(url, absl::StrCat(where, " must be a number but was ",
                                   base::Quote(text)));
  }
  return value;
}

bool IsSet(const Environment& environment, const char* name) {
  const char* const value = environment(name);
  return value != nullptr && *value != '\0';
}

StatusOr<std::string> Required(const Url& url, const Environment& environment,
                               const char* name) {
  if (!IsSet(environment, name)) {
    return Error(
        url, absl::StrCat(
                 "environment variable ", name,
                 " expected, but not set: start the program with `muster-run "
                 "--standalone --nproc-per-node=N -- PROGRAM`, or set RANK, "
                 "WORLD_SIZE, MASTER_ADDR and MASTER_PORT"));
  }
  return std::string(environment(name));
}

// Returns the option, else the URL's parameter, else the environment's
// `variable` (may be null); nullopt if none is set.
StatusOr<std::optional<int>> Choose(const Url& url, int option,
                                    const char* parameter,
                                    const Environment& environment,
                                    const char* variable) {
  if (option < -1) {
    return Error(
        url, absl::StrCat(parameter, " must not be negative but was ", option));
  }
  if (option >= 0) return option;
  const auto found = url.query.find(parameter);
  if (found != url.query.end()) return ToInt(url, parameter, found->second);
  if (variable != nullptr && IsSet(environment, variable)) {
    return ToInt(url, absl::StrCat("environment variable ", variable),
                 environment(variable));
  }
  return std::nullopt;
}

// Whether the world may have more than one size.
bool IsElastic(const InitRequest& request) {
  return request.min_world_size != -1 || request.max_world_size != -1;
}

Status CheckElastic(const Url& url, const InitRequest& request) {
  if (!IsElastic(request)) {
    if (!request.has_last_call) return OkStatus();
    return Error(url,
                 "last_call needs min_world_size and max_world_size beside it");
  }
  const std::string sizes =
      absl::StrCat("min_world_size ", request.min_world_size,
                   " and max_world_size ", request.max_world_size);
  if (url.scheme != "muster") {
    return Error(url, absl::StrCat(sizes, " need a muster:// coordinator"));
  }
  const bool sized =
      request.world_size >= 0 || url.query.contains("world_size");
  if (sized || request.rank >= 0 || url.query.contains("rank")) {
    return Error(url, absl::StrCat(sizes, " leave no room for a ",
                                   sized ? "world_size" : "rank"));
  }
  if (request.min_world_size < 1 ||
      request.max_world_size < request.min_world_size) {
    return Error(url, absl::StrCat(sizes,
                                   " are no range of sizes: both are needed, "
                                   "the first at least 1, the second no less"));
  }
  return OkStatus();
}

Status CheckPlan(const Url& url, const InitPlan& plan) {
  if (plan.max_world_size > 0) return OkStatus();
  if (plan.world_size < 1) {
    return Error(url, absl::StrCat("world size must be at least 1 but was ",
                                   plan.world_size));
  }
  // A muster:// coordinator assigns ranks that are not claimed.
  const bool assigned = plan.rank == -1 && url.scheme == "muster";
  if (plan.rank >= plan.world_size || (plan.rank < 0 && !assigned)) {
    return Error(url, absl::StrCat("rank must be in [0, ", plan.world_size,
                                   ") but was ", plan.rank));
  }
  for (const Endpoint& each : plan.Addresses()) {
    if (plan.file.empty() && each.port == 0 &&
        (!plan.embedded || plan.world_size > 1)) {
      return Error(url,
                   "port 0 stands for any free one, which only a group of one "
                   "rank can use");
    }
  }
  return OkStatus();
}

StatusOr<Endpoint> AuthorityEndpoint(const Url& url) {
  StatusOr<Endpoint> endpoint = ParseEndpoint(url.authority);
  if (!endpoint.ok()) return Error(url, endpoint.status().message());
  return endpoint;
}

StatusOr<InitPlan> PlanEnv(const Url& url, const InitRequest& request,
                           const Environment& environment) {
  InitPlan plan;
  const auto rank = Choose(url, request.rank, "rank", environment, "RANK");
  if (!rank.ok()) return rank.status();
  if (!rank->has_value()) return Required(url, environment, "RANK").status();
  const auto world_size =
      Choose(url, request.world_size, "world_size", environment, "WORLD_SIZE");
  if (!world_size.ok()) return world_size.status();
  if (!world_size->has_value()) {
    return Required(url, environment, "WORLD_SIZE").status();
  }
  const auto host = Required(url, environment, "MASTER_ADDR");
  if (!host.ok()) return host.status();
  const auto port = Required(url, environment, "MASTER_PORT");
  if (!port.ok()) return port.status();
  const auto number = ToInt(url, "environment variable MASTER_PORT", *port);
  if (!number.ok()) return number.status();
  const auto endpoint =
      ParseEndpoint(Endpoint{WithoutBrackets(*host), *number}.ToString());
  if (!endpoint.ok()) return Error(url, endpoint.status().message());
  plan.rank = rank->value_or(-1);
  plan.world_size = **world_size;
  plan.endpoint = *endpoint;
  return plan;
}

// Reads the ranks and sizes of URLs that must have them.
Status RequirePlace(const Url& url, const InitRequest& request,
                    const Environment& environment, InitPlan& plan) {
  const auto rank = Choose(url, request.rank, "rank", environment, nullptr);
  if (!rank.ok()) return rank.status();
  if (!rank->has_value()) return Error(url, "rank parameter missing");
  const auto world_size =
      Choose(url, request.world_size, "world_size", environment, nullptr);
  if (!world_size.ok()) return world_size.status();
  if (!world_size->has_value()) {
    return Error(url, "world size parameter missing");
  }
  plan.rank = **rank;
  plan.world_size = **world_size;
  return OkStatus();
}

StatusOr<InitPlan> PlanTcp(const Url& url, const InitRequest& request,
                           const Environment& environment) {
  InitPlan plan;
  const auto endpoint = AuthorityEndpoint(url);
  if (!endpoint.ok()) return endpoint.status();
  plan.endpoint = *endpoint;
  Status place = RequirePlace(url, request, environment, plan);
  if (!place.ok()) return place;
  return plan;
}

StatusOr<InitPlan> PlanFile(const Url& url, const InitRequest& request,
                            const Environment& environment) {
  InitPlan plan;
  if (url.path.empty()) return Error(url, "path missing");
  if (!url.authority.empty()) {
    return Error(url, absl::StrCat("\"", url.authority, "/", url.path,
                                   "\" is no absolute path: three slashes "
                                   "begin one, file:///PATH"));
  }
  plan.file = absl::StrCat("/", url.path);
  Status place = RequirePlace(url, request, environment, plan);
  if (!place.ok()) return place;
  return plan;
}

void SetAddresses(std::vector<Endpoint> addresses, InitPlan& plan) {
  plan.endpoint = std::move(addresses.front());
  addresses.erase(addresses.begin());
  plan.others = std::move(addresses);
}

// muster-run tells its ranks of all coordinators, and torchrun's variables have
// room for one. The user's variable may mean others, for tools.
void TakeOthers(const Environment& environment, InitPlan& plan) {
  constexpr char kVariable[] = "MUSTER_COORDINATOR";
  if (!IsSet(environment, kVariable)) return;
  auto all = ParseEndpoints(kVariable, environment(kVariable), kDefaultPort);
  if (!all.ok()) return;
  for (const Endpoint& each : *all) {
    if (each.ToString() == plan.endpoint.ToString()) {
      return SetAddresses(*std::move(all), plan);
    }
  }
}

StatusOr<InitPlan> PlanMuster(const Url& url, const InitRequest& request,
                              const Environment& environment) {
  InitPlan plan;
  auto addresses = ParseEndpoints("address", url.authority);
  if (!addresses.ok()) return Error(url, addresses.status().message());
  SetAddresses(*std::move(addresses), plan);
  plan.job = url.path;
  if (IsElastic(request)) {
    // Options come before the environment, which a launcher may have set.
    plan.min_world_size = request.min_world_size;
    plan.max_world_size = request.max_world_size;
    return plan;
  }
  const auto rank = Choose(url, request.rank, "rank", environment, "RANK");
  if (!rank.ok()) return rank.status();
  const auto world_size =
      Choose(url, request.world_size, "world_size", environment, "WORLD_SIZE");
  if (!world_size.ok()) return world_size.status();
  if (!world_size->has_value()) {
    return Error(url,
                 "world size missing: InitProcessGroupOptions::world_size, "
                 "?world_size=N or environment variable WORLD_SIZE");
  }
  plan.rank = rank->value_or(-1);
  plan.world_size = **world_size;
  return plan;
}

// The most explicit name comes first.
std::string JobName(const InitRequest& request, const InitPlan& plan,
                    const Environment& environment) {
  if (!request.job.empty()) return request.job;
  if (!plan.job.empty()) return plan.job;
  for (const char* variable : {"MUSTER_JOB", "TORCHELASTIC_RUN_ID"}) {
    if (IsSet(environment, variable)) return environment(variable);
  }
  return "default";
}

}  // namespace

std::vector<Endpoint> InitPlan::Addresses() const {
  std::vector<Endpoint> addresses = {endpoint};
  addresses.insert(addresses.end(), others.begin(), others.end());
  return addresses;
}

StatusOr<bool> IsAgentsStore(const Environment& environment) {
  constexpr char kVariable[] = "TORCHELASTIC_USE_AGENT_STORE";
  const char* const text = environment(kVariable);
  const absl::string_view value = text == nullptr ? "" : text;
  if (value.empty() || value == "False") return false;
  if (value == "True") return true;
  return InvalidArgumentError(absl::StrCat("environment variable ", kVariable,
                                           " must be True or False but was ",
                                           base::Quote(value)));
}

StatusOr<InitPlan> PlanInit(const InitRequest& request,
                            const Environment& environment) {
  const StatusOr<Url> url =
      ParseUrl(request.init_method.empty() ? "env://" : request.init_method);
  if (!url.ok()) return url.status();
  Status elastic = CheckElastic(*url, request);
  if (!elastic.ok()) return elastic;
  // Refuses parts that would be ignored.
  const bool is_env = url->scheme == "env";
  if ((is_env && !url->authority.empty()) ||
      ((is_env || url->scheme == "tcp") && !url->path.empty())) {
    return Error(*url,
                 absl::StrCat(base::Quote(request.init_method), " has ",
                              is_env ? "a host or path" : "a path", ", which ",
                              url->scheme, ":// does not take"));
  }
  StatusOr<InitPlan> plan;
  if (is_env) {
    plan = PlanEnv(*url, request, environment);
  } else if (url->scheme == "tcp") {
    plan = PlanTcp(*url, request, environment);
  } else if (url->scheme == "file") {
    plan = PlanFile(*url, request, environment);
  } else if (url->scheme == "muster") {
    plan = PlanMuster(*url, request, environment);
  } else {
    return InvalidArgumentError(absl::StrCat(
        "No rendezvous handler for ", url->scheme, "://: use ", kMethods));
  }
  if (!plan.ok()) return plan.status();
  const StatusOr<bool> agents = IsAgentsStore(environment);
  if (!agents.ok()) return agents.status();
  plan->embedded = url->scheme != "muster" && plan->file.empty() && !*agents;
  plan->job = JobName(request, *plan, environment);
  if (is_env && *agents) TakeOthers(environment, *plan);
  if (is_env && *agents && IsSet(environment, kAttemptVariable)) {
    if (!absl::SimpleAtoi(environment(kAttemptVariable), &plan->attempt) ||
        plan->attempt < 1) {
      return Error(*url,
                   absl::StrCat("environment variable ", kAttemptVariable,
                                " must be a positive number but was ",
                                base::Quote(environment(kAttemptVariable))));
    }
  }
  if (Status checked = CheckPlan(*url, *plan); !checked.ok()) {
    return checked;
  }
  return plan;
}

}  // namespace muster::internal
