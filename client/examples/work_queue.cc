// Ranks that share work through a store, without a process group: faster ranks
// take more.
//
//   muster-run --standalone --nproc-per-node=3 -- work_queue
//
// Without muster-run, RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be
// set; rank 0 serves the store then.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "muster/errors.h"
#include "muster/store.h"
#include "muster/tcp_store.h"

namespace {

std::string Env(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void ShareWork(int rank, int size, muster::Store& store) {
  constexpr int kNumbers = 100;
  if (rank == 0) {
    for (int i = 0; i < kNumbers; ++i) {
      store.QueuePush("numbers", std::to_string(i));
    }
    // An empty item for each rank ends its work.
    for (int i = 0; i < size; ++i) store.QueuePush("numbers", "");
  }
  for (std::string item = store.QueuePop("numbers"); !item.empty();
       item = store.QueuePop("numbers")) {
    const int64_t number = std::stoll(item);
    store.Add("sum of squares", number * number);
  }
  store.Set("done/" + std::to_string(rank), "");
}

}  // namespace

int main() {
  try {
    const int rank = std::atoi(Env("RANK").c_str());
    const int size = std::atoi(Env("WORLD_SIZE").c_str());
    const auto shared = std::make_shared<muster::TcpStore>(
        muster::TcpStoreOptions{.host = Env("MASTER_ADDR"),
                                .port = std::atoi(Env("MASTER_PORT").c_str()),
                                .world_size = size,
                                .is_master = rank == 0});
    // Other parts of the program may use the store as well.
    muster::PrefixStore store("squares", shared);
    ShareWork(rank, size, store);

    std::vector<std::string> done;
    done.reserve(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) done.push_back("done/" + std::to_string(i));
    store.Wait(done);
    std::printf("rank %d: the sum is %s\n", rank,
                store.Get("sum of squares").c_str());

    // The rank that serves the store ends last.
    store.Set("gone/" + std::to_string(rank), "");
    if (rank == 0) {
      for (std::string& key : done) key.replace(0, 4, "gone");
      store.Wait(done);
    }
  } catch (const muster::DistError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
