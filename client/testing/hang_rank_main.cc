// A rank of a job that hangs: hang_rank HOW, under muster-run with three ranks.
// Rank 1 is the culprit.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/muster.hpp"

namespace muster {
namespace {

// Like user code that never returns.
[[noreturn]] __attribute__((noinline)) void LostInUserCode() {
  while (true) pause();
}

void Step(const std::shared_ptr<ProcessGroup>& group = nullptr) {
  std::vector<float> values(8, 1.0F);
  AllReduce(Tensor(values), {.group = group});
}

// Takes a seat in the rendezvous and publishes no address, like a rank that
// hangs before it connects.
[[noreturn]] void JoinAlone() {
  const auto get = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::shared_ptr<Session> session = Session::Connect(
      {.address = get("MASTER_ADDR") + ":" + get("MASTER_PORT"),
       .job = get("TORCHELASTIC_RUN_ID")});
  session->Join({.rank = std::stoi(get("RANK")),
                 .world_size = std::stoi(get("WORLD_SIZE"))});
  std::printf("hanging\n");
  std::fflush(stdout);
  LostInUserCode();
}

int Hang(const std::string& how) {
  if (how == "connecting" && std::string(std::getenv("RANK")) == "1") {
    JoinAlone();
  }
  InitProcessGroup();
  const std::shared_ptr<ProcessGroup> pair =
      NewGroup({.ranks = std::vector<int>{1, 2}});
  for (int i = 0; i < 3; ++i) Step();
  std::printf("hanging\n");
  std::fflush(stdout);
  const bool culprit = GetRank() == 1;
  if (how == "user_code" && culprit) LostInUserCode();
  if (how == "stopped" && culprit) raise(SIGSTOP);
  if (how == "other_group" && culprit) Step(pair);
  if (how == "point_to_point") {
    // Rank 2 waits for rank 0, which waits for the culprit.
    if (culprit) LostInUserCode();
    std::vector<float> values(8);
    Recv(Tensor(values), GetRank() == 0 ? 1 : 0);
  }
  if (how == "barrier") {
    if (culprit) LostInUserCode();
    MonitoredBarrier({.timeout = std::chrono::minutes(10)});
  }
  if (how == "new_group") {
    // Rank 2 is not in it, and goes on.
    if (culprit) LostInUserCode();
    NewGroup({.ranks = std::vector<int>{0, 1}});
  }
  if (how == "store") {
    if (culprit) GetDefaultStore()->Get("never set");
  }
  if (how == "barrier_and_step") {
    if (!culprit) MonitoredBarrier({.timeout = std::chrono::minutes(10)});
  }
  while (true) {
    Step();
    if (how == "slow" && culprit) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
    }
  }
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return muster::Record([&] { return muster::Hang(argv[1]); });
}
