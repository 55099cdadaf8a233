// Limits the messages and bytes on the wire at the worst moments of a large
// job.

#include "coordinator/server/rpc/apply.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/call.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/outbox.h"
#include "gtest/gtest.h"
#include "muster/v1/membership.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// A job whose members are the ranks of a generation, 8 per host.
class LargeJob {
 public:
  explicit LargeJob(int size) : size_(size) {
    core::Outbox out;
    for (int i = 0; i < size_; ++i) {
      coordinator_.Register(
          MakeCall(i), {.host = absl::StrCat("node-", i / 8), .pid = 1000 + i},
          now_, out);
    }
    for (int i = 0; i < size_; ++i) {
      coordinator_.Join(
          MakeCall(i),
          {.rank = core::Rank(i), .world_size = size_, .timeout = seconds(30)},
          now_, out);
    }
  }

  int size() const { return size_; }
  core::Coordinator& coordinator() { return coordinator_; }
  core::Instant now() const { return now_; }

  core::Call MakeCall(int i) {
    core::Call call;
    call.member = core::MemberId(absl::StrCat("trainer-", i));
    call.incarnation = core::Incarnation(1);
    call.waiter = core::WaiterId(++waiter_);
    return call;
  }

  // Ticks at every deadline, as a driver does.
  void Advance(core::Duration duration, core::Outbox& out) {
    const core::Instant end = now_ + duration;
    for (auto due = coordinator_.NextDeadline(); due.has_value() && *due <= end;
         due = coordinator_.NextDeadline()) {
      now_ = std::max(now_, *due);
      coordinator_.Tick(now_, out);
    }
    now_ = end;
  }

 private:
  const int size_;
  core::Instant now_{seconds(1000)};
  uint64_t waiter_ = 0;
  core::Coordinator coordinator_{core::CoordinatorEpoch(1),
                                 core::CoordinatorOptions()};
};

struct Traffic {
  int64_t messages = 0;
  int64_t bytes = 0;
};

void Count(const core::Publication& publication, Traffic& traffic) {
  v1::MemberEvent event;
  FillEvent(publication.event, &event);
  const int64_t readers = static_cast<int64_t>(publication.audience->size());
  traffic.messages += readers;
  traffic.bytes += readers * static_cast<int64_t>(event.ByteSizeLong());
  // The sessions' estimate.
  EXPECT_LE(static_cast<int64_t>(event.ByteSizeLong()),
            2 * EventBytes(publication.event));
}

// All members leave within `time`, in random order.
Traffic EndOfJob(int size, core::Duration time) {
  LargeJob job(size);
  Traffic traffic;
  for (int i = 0; i < size; ++i) {
    core::Outbox out;
    const int64_t rank = int64_t{i} * 7919 % size;
    job.coordinator().Leave(job.MakeCall(static_cast<int>(rank)), "finished",
                            job.now(), out);
    job.Advance(time / size, out);
    for (const core::Publication& event : out.events) Count(event, traffic);
  }
  std::cout << size << " members leave within " << core::FormatDuration(time)
            << ": " << traffic.messages << " events, " << traffic.bytes / 1000
            << " kB\n";
  return traffic;
}

TEST(LargeJobTest, ItsEndCostsEachMemberAFewEvents) {
  for (const int size : {800, 10'000}) {
    for (const auto time : {milliseconds(50), milliseconds(1000)}) {
      const Traffic traffic = EndOfJob(size, time);
      EXPECT_LE(traffic.messages, 12 * size);
      // A byte or two for the rank of each other member, and the texts of some.
      EXPECT_LE(traffic.bytes, int64_t{size} * (size * 5 / 4 + 5000));
    }
  }
}

std::set<int64_t> CulpritRanks(const v1::Result& result) {
  const absl::optional<v1::Culprits> culprits =
      v1::GetCulprits(v1::FromWire(result.status()));
  std::set<int64_t> ranks;
  if (!culprits.has_value()) return ranks;
  for (const v1::MemberInfo& member : culprits->members()) {
    ranks.insert(member.rank());
  }
  int64_t rank = 0;
  for (int i = 0; i + 1 < culprits->others_size(); i += 2) {
    rank += culprits->others(i);
    const int64_t end = rank + culprits->others(i + 1);
    while (rank < end) ranks.insert(rank++);
  }
  return ranks;
}

// All ranks but one arrive. The missing one is lost or comes too late.
Traffic FailedBarrier(int size, bool lost) {
  LargeJob job(size);
  core::BarrierRequest request;
  request.barrier = "epoch";
  request.timeout = seconds(5);
  core::Outbox out;
  // Ranks that arrive after the failure get the decision.
  const int early = lost ? size / 4 : size - 1;
  for (int i = 0; i < early; ++i) {
    request.rank = core::Rank(i);
    job.coordinator().Arrive(job.MakeCall(i), request, job.now(), out);
  }
  if (lost) {
    job.coordinator().ReportFailure(job.MakeCall(size - 1), {.text = "broken"},
                                    job.now(), out);
    for (int i = early; i < size - 1; ++i) {
      request.rank = core::Rank(i);
      job.coordinator().Arrive(job.MakeCall(i), request, job.now(), out);
    }
  }
  job.Advance(seconds(5), out);
  std::set<int64_t> missing;
  for (int i = early; i < size; ++i) missing.insert(i);
  Traffic traffic;
  for (const core::Reply& reply : out.replies) {
    if (reply.status.ok()) continue;
    Answer answer;
    answer.method = Method::kAwaitBarrier;
    answer.status = reply.status;
    answer.payload = reply.payload;
    v1::Result result;
    FillResult(answer, core::MemberId(), &result);
    EXPECT_EQ(CulpritRanks(result), missing);
    ++traffic.messages;
    traffic.bytes += static_cast<int64_t>(result.ByteSizeLong());
  }
  std::cout << size << " ranks, " << (lost ? "one lost" : "one late") << ": "
            << traffic.messages << " answers, " << traffic.bytes / 1000
            << " kB\n";
  return traffic;
}

TEST(LargeJobTest, AFailedBarrierTellsEachOfItsCallersWhoIsMissingInShort) {
  for (const int size : {400, 1600}) {
    for (const bool lost : {false, true}) {
      const Traffic traffic = FailedBarrier(size, lost);
      EXPECT_EQ(traffic.messages, size - 1);
      EXPECT_LE(traffic.bytes, int64_t{size} * 4000);
    }
  }
}

}  // namespace
}  // namespace muster::coordinator
