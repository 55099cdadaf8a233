#include "dataplane/testing/local_world.h"

#include <malloc.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/testing/addresses.h"
#include "dataplane/testing/in_memory_store.h"
#include "glog/logging.h"
#include "muster/dataplane/factory.h"

namespace muster::dataplane::testing {
namespace {

// Keeps freed tensor memory in the process: clearing new pages for each tensor
// takes a third of the time of the conformance suites.
void KeepMemory() {
  // One without the other makes it slower. The sanitizers' allocators have
  // neither.
  if (mallopt(M_MMAP_THRESHOLD, 1 << 30) == 1) {
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
  }
}

}  // namespace

LocalWorld::LocalWorld(LocalWorldOptions options)
    : options_(std::move(options)), communicators_(options_.world_size) {
  KeepMemory();
  const auto store = std::make_shared<InMemoryStore>();
  std::vector<std::thread> threads;
  threads.reserve(options_.world_size);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    threads.emplace_back([this, rank, store] {
      auto backend = CreateBackend(
          options_.backend, {.rank = rank,
                             .world_size = options_.world_size,
                             .group_name = options_.group_name,
                             .store = store,
                             .deadline = Clock::now() + options_.create_timeout,
                             .network_interfaces = "",
                             .local_address = GetAddress(rank)});
      CHECK(backend.ok()) << "rank " << rank << ": " << backend.status();
      communicators_[rank] = std::make_unique<Communicator>(
          CommunicatorOptions{.group_name = options_.group_name,
                              .rank = rank,
                              .world_size = options_.world_size,
                              .default_timeout = options_.default_timeout},
          *std::move(backend));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void LocalWorld::OnEachRank(const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(communicators_.size());
  for (const auto& communicator : communicators_) {
    if (communicator == nullptr) continue;
    threads.emplace_back([&body, &communicator] { body(*communicator); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace muster::dataplane::testing
