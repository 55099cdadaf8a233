#include "worker/launcher/option_values.h"

#include <algorithm>
#include <csignal>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/process_limits.h"
#include "base/text.h"
#include "worker/launcher/numa.h"

namespace muster::worker {
namespace {

constexpr int kNnodesMax = 65536;
constexpr int kNprocMax = 1024;
constexpr double kSecondsMax = 24 * 3600;

absl::Status Wrong(absl::string_view option, absl::string_view want,
                   absl::string_view value) {
  return absl::InvalidArgumentError(
      absl::StrCat(option, " must be ", want, ", got ", base::Quote(value)));
}

// A number of `bits` (0 to 3), which are streams.
bool ReadBits(absl::string_view text, int& bits) {
  return absl::SimpleAtoi(text, &bits) && bits >= 0 && bits <= 3;
}

}  // namespace

absl::StatusOr<NodeCount> ParseNodeCount(absl::string_view option,
                                         absl::string_view value) {
  NodeCount count;
  const std::vector<absl::string_view> parts = absl::StrSplit(value, ':');
  const bool numbers = parts.size() <= 2 &&
                       absl::SimpleAtoi(parts.front(), &count.min) &&
                       absl::SimpleAtoi(parts.back(), &count.max);
  if (!numbers || count.min < 1 || count.max > kNnodesMax ||
      count.min > count.max) {
    return Wrong(option,
                 absl::StrCat("N or MIN:MAX, of 1 to ", kNnodesMax, " hosts"),
                 value);
  }
  return count;
}

Devices DevicesOfHost(const std::map<std::string, std::string>& environment) {
  return {.cpus = UsableProcessors(),
          .gpus = static_cast<int>(GpuNodes("", environment).size())};
}

absl::StatusOr<int> ParseNproc(absl::string_view option,
                               absl::string_view value,
                               const Devices& devices) {
  if (value == "cpu" || (value == "auto" && devices.gpus == 0)) {
    return std::min(devices.cpus, kNprocMax);
  }
  if (value == "gpu" && devices.gpus == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        option,
        "=gpu: this host has no GPU, or CUDA_VISIBLE_DEVICES hides it"));
  }
  if (value == "gpu" || value == "auto") {
    return std::min(devices.gpus, kNprocMax);
  }
  int nproc = 0;
  if (!absl::SimpleAtoi(value, &nproc) || nproc < 1 || nproc > kNprocMax) {
    return Wrong(option, absl::StrCat("1 to ", kNprocMax, ", auto, cpu or gpu"),
                 value);
  }
  return nproc;
}

int Streams::Of(int local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? all_ : found->second;
}

absl::StatusOr<Streams> Streams::Parse(absl::string_view option,
                                       absl::string_view value) {
  int all = 0;
  if (ReadBits(value, all)) return Streams(all);
  Streams streams;
  for (const absl::string_view part : absl::StrSplit(value, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    int rank = 0;
    int bits = 0;
    if (!absl::SimpleAtoi(pair.first, &rank) || rank < 0 ||
        !ReadBits(pair.second, bits)) {
      return Wrong(option,
                   "0 to 3 (1: standard output, 2: standard error, 3: both), "
                   "or LOCAL_RANK:0 to 3 with commas between",
                   value);
    }
    streams.by_rank_[rank] = bits;
  }
  return streams;
}

absl::StatusOr<std::vector<int>> ParseLocalRanks(absl::string_view option,
                                                 absl::string_view value) {
  std::vector<int> ranks;
  if (value.empty()) return ranks;
  for (const absl::string_view part : absl::StrSplit(value, ',')) {
    int rank = 0;
    if (!absl::SimpleAtoi(part, &rank) || rank < 0) {
      return Wrong(option, "local ranks with commas between", value);
    }
    ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

absl::StatusOr<std::vector<int>> ParseSignals(absl::string_view option,
                                              absl::string_view value) {
  constexpr absl::string_view kWant =
      "names of signals with commas between, such as SIGTERM,SIGUSR1, not "
      "SIGKILL, SIGSTOP, SIGCHLD, SIGSEGV and their like";
  std::vector<int> signals;
  for (absl::string_view part :
       absl::StrSplit(value, ',', absl::SkipWhitespace())) {
    const std::string name = absl::AsciiStrToUpper(
        absl::StripAsciiWhitespace(absl::StripPrefix(part, "SIG")));
    int found = 0;
    for (int signal = 1; signal < NSIG; ++signal) {
      const char* const abbreviation = sigabbrev_np(signal);
      if (abbreviation != nullptr && name == abbreviation) found = signal;
    }
    switch (found) {
      case 0:
      case SIGKILL:
      case SIGSTOP:
      case SIGCHLD:
      case SIGPIPE:
      case SIGSEGV:
      case SIGBUS:
      case SIGFPE:
      case SIGILL:
      case SIGABRT:
      case SIGTRAP:
        return Wrong(option, kWant, value);
      default:
        signals.push_back(found);
    }
  }
  if (signals.empty()) return Wrong(option, kWant, value);
  return signals;
}

absl::StatusOr<RendezvousTimes> ParseRendezvousConf(absl::string_view option,
                                                    absl::string_view value) {
  RendezvousTimes times;
  for (const absl::string_view part :
       absl::StrSplit(value, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(pair.first);
    std::chrono::milliseconds* target = nullptr;
    // torchrun's c10d and static rendezvous have different names for it.
    if (key == "join_timeout" || key == "timeout") target = &times.join_timeout;
    if (key == "last_call_timeout") target = &times.last_call;
    if (target == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          option, " has no ", base::Quote(key),
          "; it has join_timeout (or timeout) and last_call_timeout, in "
          "seconds"));
    }
    double seconds = 0;
    if (!absl::SimpleAtod(pair.second, &seconds) || !(seconds >= 0) ||
        seconds > kSecondsMax) {
      return Wrong(absl::StrCat(option, ": ", key), "0 to 86400 seconds",
                   pair.second);
    }
    *target = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
  return times;
}

}  // namespace muster::worker
