#include "worker/launcher/log_runs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster::worker {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kAttempt = "attempt_";

// Calls `visit` with the name of each entry. An unreadable folder has none;
// writing there will report the error.
template <typename Visit>
void ForEachIn(const std::string& folder, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    visit(each->path().filename().string());
  }
}

// Returns the run of `job` that has this folder; 0: none.
int ParseRun(absl::string_view name, absl::string_view job) {
  if (!absl::ConsumePrefix(&name, job)) return 0;
  if (name.empty()) return 1;
  int run = 0;
  if (!absl::ConsumePrefix(&name, ".") || !absl::SimpleAtoi(name, &run)) {
    return 0;
  }
  return std::max(run, 0);
}

int LastAttemptIn(const std::string& folder) {
  int last = -1;
  ForEachIn(folder, [&](absl::string_view name) {
    int attempt = 0;
    if (absl::ConsumePrefix(&name, kAttempt) &&
        absl::SimpleAtoi(name, &attempt)) {
      last = std::max(last, attempt);
    }
  });
  return last;
}

}  // namespace

std::string LogRunFolder(const std::string& log_dir, const std::string& job,
                         int run) {
  return absl::StrCat(log_dir, "/", job,
                      run == 1 ? "" : absl::StrCat(".", run));
}

std::string AttemptFolder(int attempt) {
  return absl::StrCat(kAttempt, attempt);
}

int FreeLogRun(const std::string& log_dir, const std::string& job, int run,
               int attempt) {
  int free = run;
  ForEachIn(log_dir, [&](const std::string& name) {
    const int other = ParseRun(name, job);
    if (other >= free &&
        LastAttemptIn(absl::StrCat(log_dir, "/", name)) >= attempt) {
      free = other + 1;
    }
  });
  return free;
}

}  // namespace muster::worker
