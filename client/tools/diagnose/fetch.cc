#include "client/tools/diagnose/fetch.h"

#include <httplib.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "client/control/endpoint.h"

namespace muster::tools {
namespace {

// Limits of a page, so that a faulty server cannot fill the memory or send
// forever.
constexpr size_t kPageBytesMax = 64 << 20;
constexpr std::chrono::seconds kPageTimeMax{30};
// How many requests run at a time.
constexpr size_t kFetchersMax = 64;

// Returns the status of a response; OK if it has the page.
Status ToStatus(const httplib::Response& response, absl::string_view text) {
  if (response.status == 200) return OkStatus();
  while (absl::ConsumeSuffix(&text, "\n")) {
  }
  const std::string why =
      absl::StrCat("HTTP status ", response.status, ": ", text);
  if (response.status == 401) return UnauthenticatedError(why);
  if (response.status == 403) return PermissionDeniedError(why);
  return UnknownError(why);
}

// The identity that a process reports.
struct Identity {
  bool known = false;  // false: the SDK is older than this page
  int64_t rank = -1;
  int64_t pid = 0;

  // A process learns its rank a moment after the coordinator.
  bool IsFrom(const Asked& asked) const {
    return pid == asked.pid && (rank == asked.rank || rank == -1);
  }
};

Identity IdentityIn(const std::string& text) {
  // A longer text is another page.
  if (text.size() > 1024) return {};
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return {};
  const auto rank = json.find("rank");
  const auto pid = json.find("pid");
  if (rank == json.end() || !rank->is_number_integer() || pid == json.end() ||
      !pid->is_number_integer()) {
    return {};
  }
  return {true, rank->get<int64_t>(), pid->get<int64_t>()};
}

// `address` is HOST:PORT.
bool IsLoopbackAddress(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return host == "localhost" || internal::IsLoopback(host);
}

// Returns the network namespace of process `pid` ("self": this one); empty if
// there is no such process here or it belongs to another user.
std::string FindNetwork(absl::string_view pid) {
  std::array<char, 64> name{};
  const ssize_t size = readlink(absl::StrCat("/proc/", pid, "/ns/net").c_str(),
                                name.data(), name.size());
  return size > 0 ? std::string(name.data(), static_cast<size_t>(size)) : "";
}

// Whether process `pid` runs on this host and shares its loopback.
bool IsHere(int64_t pid) {
  const std::string network = FindNetwork(absl::StrCat(pid));
  return !network.empty() && network == FindNetwork("self");
}

Fetched Elsewhere(const Asked& asked) {
  return {.status = FailedPreconditionError(
              absl::StrCat("pid ", asked.pid,
                           " is not reachable from here: it listens on "
                           "loopback of ",
                           asked.host, " alone, at ", asked.address,
                           " (MUSTER_HTTP_ADDRESS there says what else)"))};
}

}  // namespace

Fetched Fetch(const std::string& address, const std::string& path,
              const std::string& authorization,
              std::chrono::milliseconds timeout) {
  Fetched fetched;
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    fetched.status = InvalidArgumentError(
        absl::StrCat(base::Quote(address), " is no HOST:PORT"));
    return fetched;
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  // The library cannot tell a refused connection from an unreachable host.
  const Status reached = internal::Probe({host, port}, timeout);
  if (!reached.ok()) {
    fetched.answer = internal::IsConnectionRefused(reached)
                         ? Answer::kRefused
                         : Answer::kUnreachable;
    fetched.status = UnavailableError(
        absl::StrCat("no answer from ", address, ": ", reached.message()));
    return fetched;
  }
  httplib::Client client(host, port);
  client.set_connection_timeout(timeout);
  client.set_read_timeout(timeout);
  client.set_write_timeout(timeout);
  httplib::Headers headers;
  if (!authorization.empty()) headers.emplace("Authorization", authorization);
  const auto until = std::chrono::steady_clock::now() + kPageTimeMax;
  bool endless = false;
  const httplib::Result result =
      client.Get(path, headers, [&](const char* data, size_t bytes) {
        endless = fetched.body.size() + bytes > kPageBytesMax ||
                  std::chrono::steady_clock::now() > until;
        if (!endless) fetched.body.append(data, bytes);
        return !endless;
      });
  if (result) {
    fetched.answer = Answer::kAnswers;
    fetched.status = ToStatus(*result, fetched.body);
    return fetched;
  }
  fetched.body.clear();
  if (endless) {
    fetched.answer = Answer::kAnswers;
    fetched.status = ResourceExhaustedError(absl::StrCat(
        address, path, " is longer than ", kPageBytesMax >> 20,
        " MiB, or takes longer than ", kPageTimeMax.count(), " s"));
    return fetched;
  }
  const bool unreachable = result.error() == httplib::Error::Connection ||
                           result.error() == httplib::Error::ConnectionTimeout;
  fetched.answer = unreachable ? Answer::kUnreachable : Answer::kSilent;
  fetched.status = UnavailableError(
      absl::StrCat("no answer from ", address, " within ", timeout.count(),
                   " ms: ", httplib::to_string(result.error())));
  return fetched;
}

Fetched FetchChecked(const Asked& asked, const std::string& path,
                     const std::string& authorization,
                     std::chrono::milliseconds timeout) {
  const bool loopback = IsLoopbackAddress(asked.address);
  if (loopback && asked.host != internal::HostName()) return Elsewhere(asked);
  Fetched identity = Fetch(asked.address, "/identity", "", timeout);
  if (IsInvalidArgument(identity.status)) return identity;
  const Identity found =
      identity.status.ok() ? IdentityIn(identity.body) : Identity();
  if (found.known && !found.IsFrom(asked)) {
    if (loopback) return Elsewhere(asked);
    return {.status = FailedPreconditionError(absl::StrCat(
                "at ", asked.address, " is pid ", found.pid, " as rank ",
                found.rank, ", not pid ", asked.pid, " as rank ", asked.rank))};
  }
  // If nothing answers on this host's loopback, the member may be on another
  // host of the same name.
  if (!found.known && loopback &&
      (identity.answer == Answer::kRefused || !IsHere(asked.pid))) {
    return Elsewhere(asked);
  }
  if (identity.answer != Answer::kAnswers) return identity;
  if (path.empty()) return {.answer = Answer::kAnswers};
  return Fetch(asked.address, path, found.known ? authorization : "", timeout);
}

std::map<int, Fetched> FetchAll(const std::map<int, Asked>& asked,
                                const std::string& path,
                                const std::string& authorization,
                                std::chrono::milliseconds timeout) {
  std::map<int, Fetched> pages;
  for (const auto& [rank, one] : asked) pages[rank];
  std::vector<std::thread> threads;
  const auto join_all = [&threads] {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  };
  for (auto& [rank, fetched] : pages) {
    threads.emplace_back([&, rank = rank, page = &fetched] {
      *page = FetchChecked(asked.at(rank), path, authorization, timeout);
    });
    if (threads.size() == kFetchersMax) join_all();
  }
  join_all();
  return pages;
}

}  // namespace muster::tools
