// One rank of the tests of muster-run whose ranks form a process group.
//
//   launched_rank [HOW RANK]    for that rank, in its first process,
//     leave    returns before the others are done
//     fail     exits with 3
//     keys     as fail, after every rank has set a key and counted them
//     hang     hangs in user code, which ends by SIGTERM; the others wait
//              for two seconds
//     stall    as hang, and the others wait for long
//     stop     stops itself
//
//   launched_rank close ADDRESS JOB REASON    closes the job's rendezvous

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "muster/muster.hpp"

int main(int argc, char** argv) {
  const std::string how = argc > 2 ? argv[1] : "";
  if (how == "close" && argc == 5) {
    muster::SessionOptions options;
    options.address = argv[2];
    options.job = argv[3];
    muster::Session::Connect(options)->CloseRendezvous(argv[4]);
    return 0;
  }
  const int whose = argc > 2 ? std::atoi(argv[2]) : -1;
  return muster::Record([&] {
    muster::InitProcessGroupOptions options;
    if (how == "hang") options.timeout = std::chrono::seconds(2);
    muster::InitProcessGroup(options);
    std::vector<float> values(8, 1.0F);
    muster::AllReduce(values);
    std::printf("reduced to %.0f\n", static_cast<double>(values[0]));
    std::fflush(stdout);
    if (how == "keys") {
      muster::Store& store = *muster::GetDefaultStore();
      store.Set(std::string("restart ") +
                    std::getenv("TORCHELASTIC_RESTART_COUNT") + " rank " +
                    std::to_string(muster::GetRank()),
                "");
      muster::Barrier();
      std::printf("keys %d\n", static_cast<int>(store.NumKeys()));
      std::fflush(stdout);
      muster::Barrier();
    }
    const char* const restart = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (muster::GetRank() == whose && restart != nullptr &&
        std::atoi(restart) == 0) {
      if (how == "leave") return 0;
      if (how == "fail" || how == "keys") return 3;
      if (how == "stop") raise(SIGSTOP);
      while (how == "hang" || how == "stall") pause();
    }
    muster::AllReduce(values);
    muster::DestroyProcessGroup();
    return 0;
  });
}
