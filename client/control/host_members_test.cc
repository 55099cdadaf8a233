#include "client/control/host_members.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/endpoint.h"
#include "coordinator/server/server.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/errors.h"

namespace muster::internal {
namespace {

using coordinator::Server;
using coordinator::ServerOptions;
using std::chrono::seconds;

class HostMembersTest : public ::testing::Test {
 protected:
  HostMembersTest() {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.lease = seconds(2);
    auto server = Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    options_.address = absl::StrCat("127.0.0.1:", server_->port());
    options_.job = "j";
    auto reader = HostMembersReader::Open(options_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    reader_ = *std::move(reader);
  }

  HostMembers Read(const std::string& host = HostName()) {
    StatusOr<HostMembers> members = reader_->Read(host);
    EXPECT_TRUE(members.ok()) << members.status();
    return *std::move(members);
  }

  std::unique_ptr<Server> server_;
  SessionOptions options_;
  std::unique_ptr<HostMembersReader> reader_;
};

TEST_F(HostMembersTest, AJobThatIsNotThereHasNoMembers) {
  EXPECT_TRUE(Read().members.empty());
  EXPECT_EQ(Read().lease.count(), 0);
}

TEST_F(HostMembersTest, SaysWhoLivesOnAHostAndWhoWasLost) {
  const auto lives = Session::Connect(options_);
  const auto lost = Session::Connect(options_);
  // Without a goodbye.
  lost->Close();
  HostMembers found;
  const auto state = [&](const Session& session) {
    for (const HostMember& member : found.members) {
      if (member.incarnation == session.incarnation()) return member.state;
    }
    ADD_FAILURE() << "it is not there";
    return HostMember::State::kGone;
  };
  const auto until = std::chrono::steady_clock::now() + seconds(30);
  do {
    found = Read();
    ASSERT_EQ(found.members.size(), 2u);
    EXPECT_EQ(state(*lives), HostMember::State::kLive);
  } while (state(*lost) == HostMember::State::kLive &&
           std::chrono::steady_clock::now() < until);
  EXPECT_EQ(state(*lost), HostMember::State::kLost);
  EXPECT_EQ(found.members[0].pid, getpid());
  EXPECT_EQ(found.lease, seconds(2));
  lives->Leave("done");
  found = Read();
  EXPECT_EQ(state(*lives), HostMember::State::kGone);
  EXPECT_TRUE(Read("another").members.empty());
}

TEST_F(HostMembersTest, SaysHowManyWaitForWhichWorld) {
  options_.pid = 4242;
  const auto session = Session::Connect(options_);
  HostMembers found = Read();
  EXPECT_EQ(found.forming_world_size, 0);
  EXPECT_EQ(found.joined, 0);
  // A session that acts for another process appears as that process.
  ASSERT_EQ(found.members.size(), 1u);
  EXPECT_EQ(found.members[0].pid, 4242);
  std::thread waits(
      [&] { EXPECT_THROW(session->Join({.world_size = 3}), DistError); });
  const auto until = std::chrono::steady_clock::now() + seconds(30);
  do {
    found = Read("another");
  } while (found.joined == 0 && std::chrono::steady_clock::now() < until);
  EXPECT_EQ(found.joined, 1);
  EXPECT_EQ(found.forming_world_size, 3);
  session->Close();
  waits.join();
}

TEST_F(HostMembersTest, SaysWhichOfTheAskedRanksAreMissing) {
  const auto session = Session::Connect(options_);
  std::thread waits([&] {
    EXPECT_THROW(session->Join({.rank = 1, .world_size = 4}), DistError);
  });
  const auto ask = [&](int first_rank, int rank_count) {
    auto members = reader_->Read(HostName(), first_rank, rank_count);
    EXPECT_TRUE(members.ok()) << members.status();
    return members.ok() ? members->missing_ranks : std::vector<int>();
  };
  const auto until = std::chrono::steady_clock::now() + seconds(30);
  while (Read().joined == 0 && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_EQ(ask(0, 4), std::vector<int>({0, 2, 3}));
  EXPECT_EQ(ask(1, 2), std::vector<int>({2}));
  EXPECT_TRUE(Read().missing_ranks.empty());
  const auto too_many = reader_->Read(HostName(), 0, 1025);
  EXPECT_TRUE(IsInvalidArgument(too_many.status())) << too_many.status();
  session->Close();
  waits.join();
}

TEST_F(HostMembersTest, ACoordinatorThatIsGoneDoesNotAnswer) {
  server_.reset();
  EXPECT_TRUE(IsUnavailable(reader_->Read("host").status()));
}

}  // namespace
}  // namespace muster::internal
