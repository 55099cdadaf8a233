#include "client/groups/process_telemetry.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/http_server.h"
#include "client/control/channel_security.h"
#include "client/control/endpoint.h"
#include "client/groups/debugging.h"
#include "client/telemetry/telemetry.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::internal {

// The source of the groups' progress; the server's threads read it.
class Telemetry::Groups {
 public:
  void Set(std::function<std::vector<GroupProgress>()> progress) {
    MutexLock lock(mutex_);
    progress_ = std::move(progress);
  }

  // Running time of the oldest call in any group.
  std::chrono::milliseconds RunningFor() const {
    std::chrono::milliseconds longest{0};
    for (const GroupProgress& group : Progress()) {
      if (!group.current.empty()) {
        longest = std::max(longest, group.running_for);
      }
    }
    return longest;
  }

  std::string Json() const {
    nlohmann::json json = nlohmann::json::array();
    for (const GroupProgress& group : Progress()) {
      json.push_back({{"group", group.group},
                      {"last_enqueued", group.last_enqueued},
                      {"last_completed", group.last_completed},
                      {"current", group.current},
                      {"running_for_ms", group.running_for.count()}});
    }
    return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
           "\n";
  }

 private:
  std::vector<GroupProgress> Progress() const {
    std::function<std::vector<GroupProgress>()> progress;
    {
      MutexLock lock(mutex_);
      progress = progress_;
    }
    return progress == nullptr ? std::vector<GroupProgress>() : progress();
  }

  mutable Mutex mutex_;
  std::function<std::vector<GroupProgress>()> progress_
      MUSTER_GUARDED_BY(mutex_);
};

namespace {

// Constant time, so that it does not show where the texts differ.
bool Same(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

// Returns the token that the debug pages require: the job's, else the one that
// this process sends to the coordinator, which may differ between hosts.
StatusOr<std::string> PagesToken() {
  StatusOr<std::string> token = JobToken();
  if (!token.ok() || !token->empty()) return token;
  const StatusOr<ChannelSecurity> security = ChannelSecurity::Take({});
  if (!security.ok()) return security.status();
  return security->Token();
}

Status MayDebug(const std::string& header) {
  const StatusOr<std::string> token = PagesToken();
  if (!token.ok()) return token.status();
  if (token->empty()) {
    return PermissionDeniedError(
        "beyond loopback these pages want the job's token, and this process "
        "has none (MUSTER_JOB_TOKEN, MUSTER_JOB_TOKEN_FILE, or the "
        "coordinator's, MUSTER_TOKEN, MUSTER_TOKEN_FILE)");
  }
  // Schemes are case-insensitive.
  constexpr absl::string_view kScheme = "bearer ";
  if (absl::StartsWithIgnoreCase(header, kScheme) &&
      Same(std::string(absl::StripAsciiWhitespace(
               absl::string_view(header).substr(kScheme.size()))),
           *token)) {
    return OkStatus();
  }
  return UnauthenticatedError(
      "these pages want the job's token: Authorization: Bearer TOKEN");
}

std::string LevelJson() {
  constexpr const char* kNames[] = {"OFF", "INFO", "DETAIL"};
  return absl::StrCat("{\"debug_level\": \"",
                      kNames[static_cast<int>(CurrentDebugLevel())], "\"}\n");
}

Status SetLevel(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto level =
      json.is_object() && json.size() == 1 && json.contains("debug_level")
          ? json["debug_level"]
          : nlohmann::json();
  if (level == "OFF") {
    OverrideDebugLevel(DebugLevel::kOff);
  } else if (level == "INFO") {
    OverrideDebugLevel(DebugLevel::kInfo);
  } else if (level == "DETAIL") {
    OverrideDebugLevel(DebugLevel::kDetail);
  } else {
    return InvalidArgumentError(
        "the body must be {\"debug_level\": \"OFF\"}, \"INFO\" or \"DETAIL\"");
  }
  return OkStatus();
}

// If any port will do, reuses the port of the server before if it is free, so
// that a scraper finds it again after each new group.
StatusOr<std::unique_ptr<worker::Telemetry>> Serve(
    worker::TelemetryOptions options) {
  static std::atomic<int> last_port{0};
  const bool any = options.port == 0;
  options.port = any ? last_port.load() : options.port;
  StatusOr<std::unique_ptr<worker::Telemetry>> server =
      worker::Telemetry::Start(options);
  if (!any) return server;
  if (!server.ok() && options.port != 0) {
    options.port = 0;
    server = worker::Telemetry::Start(options);
  }
  if (server.ok()) {
    const std::string& address = (*server)->address();
    int port = 0;
    if (absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
      last_port = port;
    }
  }
  return server;
}

}  // namespace

StatusOr<std::unique_ptr<Telemetry>> Telemetry::Start(std::optional<int> port) {
  StatusOr<std::optional<worker::TelemetryOptions>> options =
      worker::TelemetryOptionsFromEnv();
  if (!options.ok()) return options.status();
  if (port.has_value()) {
    if (!options->has_value()) options->emplace();
    (*options)->port = *port;
  }
  if (!options->has_value()) return nullptr;
  const auto groups = std::make_shared<Groups>();
  worker::TelemetryOptions& chosen = **options;
  chosen.running_for = [groups] { return groups->RunningFor(); };
  chosen.debug_pages = {
      {"/debug/groups",
       base::RenderAs("application/json", [groups] { return groups->Json(); })},
      {"/debug/flight_recorder",
       base::RenderAs("application/json", [] { return Recorder()->ToJson(); })},
      {"/debug/level", base::RenderAs("application/json", LevelJson),
       SetLevel}};
  if (!IsLoopback(chosen.address)) chosen.may_debug = MayDebug;
  StatusOr<std::unique_ptr<worker::Telemetry>> server = Serve(chosen);
  if (!server.ok()) return server.status();
  return std::unique_ptr<Telemetry>(new Telemetry(
      groups, std::shared_ptr<worker::Telemetry>(*std::move(server))));
}

Telemetry::Telemetry(std::shared_ptr<Groups> groups,
                     std::shared_ptr<worker::Telemetry> server)
    : groups_(std::move(groups)), server_(std::move(server)) {}

const std::string& Telemetry::address() const { return server_->address(); }

std::shared_ptr<dataplane::Metrics> Telemetry::metrics() const {
  return {server_, &server_->collectives()};
}

void Telemetry::SetRank(int rank, int world_size) {
  server_->SetRank(rank, world_size);
}

void Telemetry::SetProgress(
    std::function<std::vector<GroupProgress>()> progress) {
  groups_->Set(std::move(progress));
}

}  // namespace muster::internal
