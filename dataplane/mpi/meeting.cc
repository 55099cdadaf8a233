#include "dataplane/mpi/meeting.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "dataplane/culprit.h"
#include "dataplane/mpi/mpi_reduction.h"
#include "muster/base/clock.h"

namespace muster::dataplane::mpi_internal {
namespace {

// All processes are already exchanging greetings then, which takes
// milliseconds, on a busy machine longer, but not as long as this.
constexpr std::chrono::seconds kGreetingTimeout(10);
constexpr std::chrono::milliseconds kPause(1);

// The value that a rank publishes in the store.
struct RankInfo {
  int mpi_rank = 0;
  int mpi_size = 0;
  uint64_t nonce = 0;  // random, per process and call of Meet
};

std::string MakeKey(const char* step, int rank) {
  return absl::StrCat("mpi/", step, "/", rank);
}

// Waits until all ranks have called it, and returns their values, by rank.
StatusOr<std::vector<std::string>> Exchange(const char* step,
                                            const std::string& value,
                                            const BackendOptions& options) {
  Status told = options.store->Set(MakeKey(step, options.rank), value);
  if (!told.ok()) return told;
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.world_size; ++rank) {
    keys.push_back(MakeKey(step, rank));
  }
  auto values = options.store->Get(keys, options.deadline);
  if (!IsDeadlineExceeded(values.status())) return values;
  std::vector<int> missing;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (!options.store->Get({MakeKey(step, rank)}, Clock::now()).ok()) {
      missing.push_back(rank);
    }
  }
  if (missing.empty()) return values;
  Status status = DeadlineExceededError(absl::StrCat(
      static_cast<size_t>(options.world_size) - missing.size(), " of ",
      options.world_size, " ranks came to the rendezvous in time; missing ",
      base::RanksText(missing)));
  SetCulpritRanks(status, missing);
  return status;
}

StatusOr<std::vector<RankInfo>> ExchangeRankInfos(
    const RankInfo& own, const BackendOptions& options) {
  auto values = Exchange(
      "place", absl::StrCat(own.mpi_rank, " ", own.mpi_size, " ", own.nonce),
      options);
  if (!values.ok()) return values.status();
  std::vector<RankInfo> places;
  for (const std::string& value : *values) {
    const std::vector<std::string> words = absl::StrSplit(value, ' ');
    RankInfo place;
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &place.mpi_rank) ||
        !absl::SimpleAtoi(words[1], &place.mpi_size) ||
        !absl::SimpleAtoi(words[2], &place.nonce)) {
      return InternalError(
          absl::StrCat("not a place in MPI: ", base::Quote(value)));
    }
    places.push_back(place);
  }
  return places;
}

Status NotOneMpirun(const BackendOptions& options, const std::string& why) {
  return FailedPreconditionError(
      absl::StrCat("the processes of group ", base::Quote(options.group_name),
                   " are not those of one mpirun: ", why));
}

// Checks MPI's ranks and sizes. The result is the same on all ranks.
Status CompareRankInfos(const std::vector<RankInfo>& places,
                        const BackendOptions& options) {
  for (size_t rank = 1; rank < places.size(); ++rank) {
    const RankInfo& place = places[rank];
    if (place.mpi_size != places[0].mpi_size) {
      return NotOneMpirun(
          options,
          absl::StrCat("MPI of rank ", rank, " has ", place.mpi_size,
                       " processes, that of rank 0 has ", places[0].mpi_size));
    }
    for (size_t other = 0; other < rank; ++other) {
      if (place.mpi_rank != places[other].mpi_rank) continue;
      return NotOneMpirun(
          options, absl::StrCat("ranks ", other, " and ", rank,
                                " are both rank ", place.mpi_rank, " of MPI"));
    }
  }
  return OkStatus();
}

// Exchanges greetings over MPI. A missing greeting is not an error for MPI:
// each of several mpiruns may have a process with the expected rank.
class Greetings {
 public:
  explicit Greetings(uint64_t nonce) : tag_(static_cast<int>(nonce % 32768)) {}

  // Leaks requests that cannot be cancelled, with their memory.
  ~Greetings() {
    for (auto& one : pending_) {
      if (one->receives) MPI_Cancel(&one->request);
      MPI_Request_free(&one->request);
      one.release();  // NOLINT(bugprone-unused-return-value)
    }
  }

  Greetings(const Greetings&) = delete;
  Greetings& operator=(const Greetings&) = delete;

  void Send(uint64_t nonce, int mpi_rank) {
    auto one = std::make_unique<Greeting>();
    one->nonce = nonce;
    MPI_Isend(&one->nonce, 1, MPI_UINT64_T, mpi_rank, tag_, MPI_COMM_WORLD,
              &one->request);
    pending_.push_back(std::move(one));
  }

  void Expect(uint64_t nonce, int mpi_rank, int rank) {
    auto one = std::make_unique<Greeting>();
    one->receives = true;
    one->expected = nonce;
    one->rank = rank;
    MPI_Irecv(&one->nonce, 1, MPI_UINT64_T, mpi_rank, tag_, MPI_COMM_WORLD,
              &one->request);
    pending_.push_back(std::move(one));
  }

  // Returns the ranks that have sent no greeting or a wrong one.
  std::vector<int> Await(Instant deadline) {
    std::vector<int> strangers;
    while (!pending_.empty()) {
      std::erase_if(pending_, [&](const std::unique_ptr<Greeting>& one) {
        int done = 0;
        MPI_Test(&one->request, &done, MPI_STATUS_IGNORE);
        if (done != 0 && one->receives && one->nonce != one->expected) {
          strangers.push_back(one->rank);
        }
        return done != 0;
      });
      if (Clock::now() >= deadline) break;
      std::this_thread::sleep_for(kPause);
    }
    for (const auto& one : pending_) {
      if (one->receives) strangers.push_back(one->rank);
    }
    std::sort(strangers.begin(), strangers.end());
    return strangers;
  }

 private:
  struct Greeting {
    bool receives = false;
    uint64_t nonce = 0;
    uint64_t expected = 0;
    int rank = -1;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  const int tag_;
  std::vector<std::unique_ptr<Greeting>> pending_;
};

// Rank 0 and every other rank exchange greetings with the nonces from the
// store. A process of another mpirun does not know the nonce.
Status Greet(const std::vector<RankInfo>& places,
             const BackendOptions& options) {
  std::vector<int> strangers;
  {
    Greetings greetings(places[0].nonce);
    const RankInfo& own = places[static_cast<size_t>(options.rank)];
    for (int rank = 0; rank < options.world_size; ++rank) {
      if ((rank == 0) == (options.rank == 0)) continue;
      const RankInfo& peer = places[static_cast<size_t>(rank)];
      greetings.Expect(peer.nonce, peer.mpi_rank, rank);
      greetings.Send(own.nonce, peer.mpi_rank);
    }
    // Half of the time that is left, so that the others can be told.
    const Instant now = Clock::now();
    strangers = greetings.Await(
        now + std::min<Clock::duration>((options.deadline - now) / 2,
                                        kGreetingTimeout));
  }
  auto found = Exchange(
      "met", strangers.empty() ? "" : base::RanksText(strangers), options);
  if (!found.ok()) return found.status();
  for (size_t rank = 0; rank < found->size(); ++rank) {
    if ((*found)[rank].empty()) continue;
    return NotOneMpirun(
        options,
        absl::StrCat("rank ", rank, ", which is rank ", places[rank].mpi_rank,
                     " of MPI, does not reach ", (*found)[rank], " by MPI"));
  }
  return OkStatus();
}

}  // namespace

Status AwaitAll(const BackendOptions& options) {
  if (options.world_size == 1) return OkStatus();
  return Exchange("here", "", options).status();
}

StatusOr<MPI_Comm> Meet(const BackendOptions& options) {
  RankInfo own;
  MPI_Comm_rank(MPI_COMM_WORLD, &own.mpi_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &own.mpi_size);
  std::vector<int> members = {own.mpi_rank};
  if (options.world_size > 1) {
    std::random_device random;
    own.nonce = uint64_t{random()} << 32 | random();
    const auto places = ExchangeRankInfos(own, options);
    if (!places.ok()) return places.status();
    Status one_mpirun = CompareRankInfos(*places, options);
    if (one_mpirun.ok()) one_mpirun = Greet(*places, options);
    if (!one_mpirun.ok()) return one_mpirun;
    members.clear();
    for (const RankInfo& place : *places) members.push_back(place.mpi_rank);
  }
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, static_cast<int>(members.size()), members.data(),
                 &group);
  MPI_Comm comm = MPI_COMM_NULL;
  // The tag tells apart groups that are made at the same time: it depends on
  // the group's name.
  const int tag =
      static_cast<int>(std::hash<std::string>()(options.group_name) % 32768);
  const int code = MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &comm);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  if (code != MPI_SUCCESS) return ToStatus(code, "MPI_Comm_create_group");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return comm;
}

}  // namespace muster::dataplane::mpi_internal
