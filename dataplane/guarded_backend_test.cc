#include "dataplane/guarded_backend.h"

#include <memory>
#include <stdexcept>

#include "dataplane/failed_call.h"
#include "dataplane/testing/fake_backend.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using testing::FakeBackend;

// A backend that breaks every contract.
class BadBackend : public FakeBackend {
 public:
  Status Supports(const Collective&) const override {
    throw std::runtime_error("cannot say");
  }
  std::shared_ptr<Work> Start(const Collective& collective) override {
    if (collective.kind == CollectiveKind::kBarrier) return nullptr;
    if (collective.kind == CollectiveKind::kSend) throw 7;
    throw std::runtime_error("no licence");
  }
  Ticket Enter(const Collective& collective) override {
    if (collective.kind == CollectiveKind::kBarrier) return {};
    throw std::runtime_error("no place");
  }
  Completion Run(const Collective&, Prepared*, const Ticket&) override {
    throw std::runtime_error("no time");
  }
  void Refused(const Collective&, const Status&) override {
    throw std::runtime_error("no");
  }
  std::unique_ptr<Prepared> Prepare(const Collective&) override {
    throw std::runtime_error("cannot say");
  }
  void Abort(Status) override { throw std::runtime_error("no"); }
};

Collective Of(CollectiveKind kind) {
  Collective collective;
  collective.kind = kind;
  collective.sequence = 3;
  return collective;
}

Status Failed(const FailedCall& call, const std::string& problem) {
  return Labelled(call, "tp0", InternalError("backend \"fake\": " + problem));
}

TEST(ExceptionGuardTest, WhatABackendDoesWrongFailsTheCollective) {
  ExceptionGuard guarding(std::make_unique<BadBackend>(), "tp0");
  const auto failure = [&](CollectiveKind kind) {
    const auto work = guarding.Start(Of(kind));
    EXPECT_TRUE(work->IsCompleted());
    return work->status();
  };
  EXPECT_EQ(failure(CollectiveKind::kAllReduce),
            Failed({"all_reduce #3"}, "Start threw: no licence"));
  EXPECT_EQ(failure(CollectiveKind::kBarrier),
            Failed({"barrier #3"}, "Start returned no Work"));
  EXPECT_EQ(
      failure(CollectiveKind::kSend),
      Failed({"send #3", /*is_point_to_point=*/true}, "Start threw something"));
  EXPECT_EQ(guarding.Supports(Of(CollectiveKind::kBarrier)),
            InternalError("backend \"fake\": Supports threw: cannot say"));
  // It runs without.
  EXPECT_EQ(guarding.Prepare(Of(CollectiveKind::kBarrier)), nullptr);
  const auto run = [&](CollectiveKind kind) {
    const Ticket ticket = guarding.Enter(Of(kind));
    return guarding.Run(Of(kind), nullptr, ticket).status;
  };
  EXPECT_EQ(run(CollectiveKind::kBarrier),
            Failed({"barrier #3"}, "Run threw: no time"));
  EXPECT_EQ(run(CollectiveKind::kBroadcast),
            Failed({"broadcast #3"}, "Enter threw: no place"));
  guarding.Refused(Of(CollectiveKind::kBarrier), OkStatus());
  guarding.Abort(AbortedError("enough"));
}

TEST(ExceptionGuardTest, WhatItDoesRightPasses) {
  auto fake = std::make_unique<FakeBackend>();
  FakeBackend& inner = *fake;
  inner.supports = UnimplementedError("not that");
  ExceptionGuard guarding(std::move(fake), "tp0");
  EXPECT_EQ(guarding.Supports(Of(CollectiveKind::kBarrier)), inner.supports);
  const auto prepared = guarding.Prepare(Of(CollectiveKind::kBarrier));
  const Ticket ticket = guarding.Enter(Of(CollectiveKind::kBarrier));
  EXPECT_TRUE(guarding.Run(Of(CollectiveKind::kBarrier), prepared.get(), ticket)
                  .status.ok());
  EXPECT_EQ(inner.run_with.at(0), prepared.get());
  EXPECT_EQ(inner.tickets.at(0), 1U);
  EXPECT_NE(prepared, nullptr);
  const auto work = guarding.Start(Of(CollectiveKind::kBarrier));
  EXPECT_EQ(work, inner.works.at(0));
  guarding.Refused(Of(CollectiveKind::kBarrier), OkStatus());
  EXPECT_EQ(inner.refused.size(), 1U);
  guarding.Abort(AbortedError("enough"));
  EXPECT_EQ(work->status(), AbortedError("enough"));
}

}  // namespace
}  // namespace muster::dataplane
