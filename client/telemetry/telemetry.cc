#include "client/telemetry/telemetry.h"

#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/endpoint.h"
#include "base/http_server.h"
#include "base/text.h"
#include "client/telemetry/debug_pages.h"
#include "client/telemetry/metrics.h"
#include "client/telemetry/stacks.h"
#include "muster/base/status.h"

namespace muster::worker {
namespace {

using base::HttpPage;
using base::RenderAs;

constexpr char kIdentityPage[] = "/identity";

// Returns the page that links to all `pages`, in their order.
std::string Index(const std::vector<HttpPage>& pages) {
  std::string html =
      "<!doctype html><title>muster worker</title><h1>muster worker</h1>\n";
  for (const HttpPage& page : pages) {
    absl::StrAppend(&html, "<p><a href=\"", page.path, "\">",
                    page.path.substr(1), "</a></p>\n");
  }
  return html;
}

// Returns "; rank 2 (pid 7) has it", or "; pid 7, in no group, has it", for the
// worker process that serves that address; "" if it is another program.
std::string DescribeHolder(const base::Endpoint& endpoint) {
  if (endpoint.port == 0) return "";
  const std::string page = base::FetchPage(endpoint, kIdentityPage);
  int rank = 0;
  int64_t pid = 0;
  if (std::sscanf(page.c_str(), "{\"rank\": %d, \"pid\": %" SCNd64 "}", &rank,
                  &pid) != 2) {
    return "";
  }
  return rank < 0 ? absl::StrCat("; pid ", pid, ", in no group, has it")
                  : absl::StrCat("; rank ", rank, " (pid ", pid, ") has it");
}

class HttpTelemetry final : public Telemetry {
 public:
  Status Listen(const TelemetryOptions& options) {
    std::vector<HttpPage> pages = {
        {"/metrics", RenderAs("text/plain; version=0.0.4; charset=utf-8",
                              [this, running_for = options.running_for] {
                                if (running_for != nullptr) {
                                  metrics_->SetRunning(running_for());
                                }
                                return metrics_->Render();
                              })},
        {"/healthz", RenderAs("text/plain", [] { return "ok\n"; })},
        {kIdentityPage,
         RenderAs("application/json", [this] { return Identity(); })},
        {"/debug/stacks", RenderAs("text/plain", StacksOfAllThreads)},
        {"/debug/environment", RenderAs("application/json", EnvironmentJson)},
        {"/debug/log", RenderAs("application/json", LogJson), SetLog}};
    for (const HttpPage& page : options.debug_pages) pages.push_back(page);
    for (HttpPage& page : pages) {
      page.guarded = absl::StartsWith(page.path, "/debug/");
    }
    pages.push_back(
        {"/", RenderAs("text/html", [html = Index(pages)] { return html; })});
    base::Endpoint endpoint = {options.address, options.port};
    StatusOr<std::unique_ptr<base::HttpServer>> server =
        base::HttpServer::Start(endpoint, pages, {.may = options.may_debug});
    if (!server.ok()) {
      return Status(
          server.status().code(),
          absl::StrCat(server.status().message(), DescribeHolder(endpoint),
                       " (MUSTER_HTTP_ADDRESS, MUSTER_HTTP_PORT; port 0 takes "
                       "any free one)"));
    }
    server_ = *std::move(server);
    endpoint.port = server_->port();
    address_ = endpoint.ToString();
    return OkStatus();
  }

  const std::string& address() const override { return address_; }
  dataplane::Metrics& collectives() override { return *metrics_; }
  void SetRank(int rank, int world_size) override {
    rank_ = rank;
    metrics_->SetRank(rank, world_size);
  }

 private:
  std::string Identity() const {
    return absl::StrCat("{\"rank\": ", rank_.load(), ", \"pid\": ", getpid(),
                        "}\n");
  }

  const std::unique_ptr<Metrics> metrics_ = Metrics::Create();
  std::string address_;
  std::atomic<int> rank_{-1};
  // Last, so that it stops before the data of its pages is destroyed.
  std::unique_ptr<base::HttpServer> server_;
};

}  // namespace

StatusOr<std::optional<TelemetryOptions>> TelemetryOptionsFromEnv() {
  const char* const port = std::getenv("MUSTER_HTTP_PORT");
  if (port == nullptr || *port == '\0') {
    return std::optional<TelemetryOptions>();
  }
  TelemetryOptions options;
  if (!absl::SimpleAtoi(port, &options.port) || options.port < 0 ||
      options.port > 65535) {
    return InvalidArgumentError(
        absl::StrCat("MUSTER_HTTP_PORT must be a port, 0 to 65535, got ",
                     base::Quote(port)));
  }
  const char* const address = std::getenv("MUSTER_HTTP_ADDRESS");
  if (address != nullptr && *address != '\0') options.address = address;
  return std::make_optional(std::move(options));
}

StatusOr<std::unique_ptr<Telemetry>> Telemetry::Start(
    const TelemetryOptions& options) {
  auto telemetry = std::make_unique<HttpTelemetry>();
  Status status = telemetry->Listen(options);
  if (!status.ok()) return status;
  return telemetry;
}

}  // namespace muster::worker
