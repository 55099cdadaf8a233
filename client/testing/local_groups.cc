#include "client/testing/local_groups.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/groups/error_resolver.h"
#include "client/groups/group_state.h"
#include "dataplane/testing/in_memory_store.h"
#include "glog/logging.h"
#include "muster/dataplane/factory.h"
#include "muster/errors.h"

namespace muster::testing {

using internal::ErrorResolver;
using internal::GroupState;

namespace {

std::vector<int> MakeRanks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(LocalGroups::GlobalRank(rank));
  }
  return ranks;
}

}  // namespace

LocalGroups::LocalGroups(int size, std::chrono::milliseconds timeout,
                         const std::string& backend)
    : LocalGroups(MakeRanks(size), timeout, backend) {}

LocalGroups::LocalGroups(const std::vector<int>& ranks)
    : LocalGroups(ranks, std::chrono::seconds(60), "gloo") {}

LocalGroups::LocalGroups(const std::vector<int>& ranks,
                         std::chrono::milliseconds timeout,
                         const std::string& backend)
    : groups_(ranks.size()) {
  const auto size = static_cast<int>(ranks.size());
  const auto store = std::make_shared<dataplane::testing::InMemoryStore>();
  internal::GroupStateOptions options;
  options.name = "local";
  options.backend = backend;
  options.timeout = timeout;
  options.timeout_name = "the test's timeout";
  options.generation = 1;
  options.is_world = false;
  ErrorResolver::Options judging;
  judging.verdict_timeout = std::chrono::milliseconds(0);
  for (const int rank : ranks) options.seats.push_back({.rank = rank});
  judging.ranks = ranks;
  std::vector<std::thread> threads;
  threads.reserve(groups_.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, mine = options]() mutable {
      // Each thread has a device of its own: on one device they would share its
      // default stream and wait there for each other.
      const int device = mine.backend == "gloo" ? -1 : rank;
      mine.device = device;
      auto made = dataplane::CreateBackend(
          mine.backend, {.rank = rank,
                         .world_size = size,
                         .group_name = mine.name,
                         .store = store,
                         .deadline = Clock::now() + std::chrono::seconds(60),
                         .network_interfaces = "",
                         .local_address = "127.0.0.1",
                         .device = device});
      CHECK(made.ok()) << "rank " << rank << ": " << made.status();
      mine.rank = rank;
      groups_[static_cast<size_t>(rank)] = std::make_shared<ProcessGroup>(
          GroupState::Create(std::move(mine), *std::move(made), nullptr,
                             std::make_shared<ErrorResolver>(judging)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

LocalGroups::~LocalGroups() {
  for (int rank = 0; rank < static_cast<int>(groups_.size()); ++rank) {
    Leave(rank);
  }
}

const std::shared_ptr<ProcessGroup>& LocalGroups::at(int rank) const {
  return groups_[static_cast<size_t>(rank)];
}

std::vector<std::string> LocalGroups::OnEachRank(
    const std::function<void(const std::shared_ptr<ProcessGroup>&, int)>&
        body) {
  std::vector<std::string> thrown(groups_.size());
  std::vector<std::thread> threads;
  threads.reserve(groups_.size());
  for (size_t rank = 0; rank < groups_.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(groups_[rank], static_cast<int>(rank));
      } catch (const DistError& error) {
        thrown[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

std::shared_ptr<ProcessGroup> LocalGroups::NonMember() {
  return std::make_shared<ProcessGroup>(GroupState::NonMember(7));
}

void LocalGroups::Leave(int rank) { at(rank)->state()->Shutdown(); }

}  // namespace muster::testing
