#include "client/telemetry/stacks.h"

#include <dirent.h>
#include <execinfo.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "muster/base/mutex.h"

namespace muster::worker {
namespace {

constexpr int kFramesMax = 64;
// The frames of the handler, and of the kernel's return from it.
constexpr int kOwnFrames = 2;
constexpr int64_t kAnswerNs = 200'000'000;

int StackSignal() { return SIGRTMAX - 2; }

// The interrupted thread writes into it. One thread is asked at a time; one
// that answers too late finds another number here and writes nothing.
struct Request {
  std::atomic<pid_t> thread{0};
  std::array<void*, kFramesMax> frames;
  int count = 0;
  sem_t answered;
};

Request& TheRequest() {
  static Request* const request = [] {
    auto* const made = new Request;
    sem_init(&made->answered, 0, 0);
    // Loads the library that walks stacks, which a handler must not do.
    backtrace(made->frames.data(), 1);
    return made;
  }();
  return *request;
}

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void OnStackSignal(int) {
  const int error = errno;
  Request& request = TheRequest();
  pid_t expected = ThreadId();
  // Negative: the thread is answering, and the asker must wait.
  if (request.thread.compare_exchange_strong(expected, -expected)) {
    request.count = backtrace(request.frames.data(), kFramesMax);
    sem_post(&request.answered);
  }
  errno = error;
}

// Asks `thread` and returns whether it has answered.
bool Ask(pid_t thread) {
  Request& request = TheRequest();
  request.count = 0;
  request.thread = thread;
  if (syscall(SYS_tgkill, getpid(), thread, StackSignal()) != 0) {
    request.thread = 0;
    return false;
  }
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += kAnswerNs;
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  while (sem_timedwait(&request.answered, &until) != 0) {
    if (errno == EINTR) continue;
    pid_t expected = thread;
    if (request.thread.compare_exchange_strong(expected, 0)) return false;
    // The thread is answering.
    while (sem_wait(&request.answered) != 0) {
    }
    break;
  }
  request.thread = 0;
  return true;
}

std::vector<pid_t> Threads() {
  std::vector<pid_t> threads;
  DIR* const folder = opendir("/proc/self/task");
  if (folder == nullptr) return threads;
  while (const dirent* const entry = readdir(folder)) {
    const int thread = std::atoi(entry->d_name);
    if (thread > 0) threads.push_back(thread);
  }
  closedir(folder);
  std::sort(threads.begin(), threads.end());
  return threads;
}

// Returns `"gloo-1", sleeping`.
std::string NameAndState(pid_t thread) {
  const std::string folder = absl::StrCat("/proc/self/task/", thread);
  std::string name;
  std::getline(std::ifstream(folder + "/comm"), name);
  std::ifstream status(folder + "/status");
  std::string line;
  while (std::getline(status, line) && line.rfind("State:", 0) != 0) {
  }
  const size_t open = line.find('(');
  const size_t close = line.find(')');
  const std::string state =
      open == std::string::npos || close == std::string::npos
          ? "gone"
          : line.substr(open + 1, close - open - 1);
  return absl::StrCat(base::Quote(name), ", ", state);
}

std::string FrameText(int number, const void* address) {
  char name[512] = "?";
  // A return address; the call before it is in the right function.
  absl::Symbolize(static_cast<const char*>(address) - 1, name, sizeof(name));
  return absl::StrFormat("  #%d %p %s\n", number, address, name);
}

}  // namespace

std::string StacksOfAllThreads() {
  static Mutex* const mutex = new Mutex;
  MutexLock lock(*mutex);
  Request& request = TheRequest();
  struct sigaction action = {};
  action.sa_handler = OnStackSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(StackSignal(), &action, nullptr);
  std::string text;
  for (const pid_t thread : Threads()) {
    absl::StrAppend(&text, "thread ", thread, " (", NameAndState(thread),
                    thread == ThreadId() ? ", the one that asks" : "", ")\n");
    if (!Ask(thread)) {
      absl::StrAppend(&text, "  does not answer\n\n");
      continue;
    }
    for (int i = kOwnFrames; i < request.count; ++i) {
      absl::StrAppend(&text, FrameText(i - kOwnFrames,
                                       request.frames[static_cast<size_t>(i)]));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace muster::worker
