#include "coordinator/server/test_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "gtest/gtest.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {

using std::chrono::steady_clock;

v1::Caller MakeCaller(const std::string& job, const std::string& member,
                      uint64_t incarnation) {
  v1::Caller caller;
  caller.set_job(job);
  caller.set_member(member);
  caller.set_incarnation(incarnation);
  return caller;
}

TestServer::TestServer(const ServerOptions& options) {
  StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  if (!server.ok()) return;
  server_ = *std::move(server);
  channel_ = NewChannel();
  store_ = v1::StoreService::NewStub(channel_);
  membership_ = v1::MembershipService::NewStub(channel_);
  barrier_ = v1::BarrierService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string(server_->port()),
      grpc::InsecureChannelCredentials(), arguments);
}

v1::GetJobResponse TestServer::Job(const std::string& job) {
  v1::GetJobRequest request;
  request.set_job(job);
  v1::GetJobResponse response;
  const grpc::Status status =
      CallGrpc(*admin_, &v1::AdminService::Stub::GetJob, request, &response);
  EXPECT_TRUE(status.ok() || status.error_code() == grpc::NOT_FOUND)
      << status.error_message();
  return response;
}

void TestServer::Await(
    const std::string& job,
    const std::function<bool(const v1::GetJobResponse&)>& done) {
  const auto deadline = steady_clock::now() + kTestDeadline;
  v1::GetJobResponse state;
  do {
    state = Job(job);
    if (done(state)) return;
  } while (steady_clock::now() < deadline);
  ADD_FAILURE() << "does not come about: " << state.ShortDebugString();
}

void TestServer::AwaitWaiters(const std::string& job, int64_t count) {
  Await(job, [count](const v1::GetJobResponse& state) {
    return state.summary().waiters() == count;
  });
}

std::string TestServer::Http(const std::string& path) const {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->http_port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string response;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n";
    EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    char buffer[4096];
    ssize_t bytes = 0;
    // The server closes after one answer.
    while ((bytes = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
      response.append(buffer, static_cast<size_t>(bytes));
    }
  }
  close(fd);
  return response;
}

TestStream::TestStream(std::shared_ptr<grpc::Channel> channel,
                       const std::string& token)
    : stub_(v1::SessionService::NewStub(std::move(channel))) {
  context_.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
  if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
  stream_ = stub_->Stream(&context_);
}

TestStream::~TestStream() {
  if (finished_) return;
  context_.TryCancel();
  Finish().IgnoreError();
}

void TestStream::Hello(const std::string& job) {
  v1::StreamRequest request;
  *request.mutable_hello()->mutable_caller() = MakeCaller(job);
  EXPECT_TRUE(Send(request));
}

v1::Welcome TestStream::HelloMember(const std::string& job,
                                    const std::string& member,
                                    uint64_t incarnation) {
  v1::StreamRequest request;
  *request.mutable_hello()->mutable_caller() =
      MakeCaller(job, member, incarnation);
  request.mutable_hello()->mutable_registration()->set_host("host-" + member);
  EXPECT_TRUE(Send(request));
  v1::StreamResponse response;
  EXPECT_TRUE(stream_->Read(&response)) << Finish();
  for (const v1::MemberEvent& event : response.events()) {
    events_.push_back(event);
  }
  return response.welcome();
}

bool TestStream::Send(const v1::StreamRequest& request) {
  return stream_->Write(request);
}

void TestStream::SendOperation(v1::Operation operation) {
  v1::StreamRequest request;
  *request.add_operations() = std::move(operation);
  EXPECT_TRUE(Send(request));
}

bool TestStream::Read(v1::StreamResponse* response) {
  return stream_->Read(response);
}

bool TestStream::ReadOn() {
  v1::StreamResponse response;
  if (!stream_->Read(&response)) return false;
  for (const v1::Result& result : response.results()) {
    EXPECT_TRUE(results_.emplace(result.id(), result).second)
        << "a second result for " << result.id();
  }
  for (const v1::MemberEvent& event : response.events()) {
    events_.push_back(event);
  }
  return true;
}

v1::Result TestStream::Await(uint64_t id) {
  while (results_.count(id) == 0) {
    if (!ReadOn()) {
      ADD_FAILURE() << "no result for " << id << ": " << Finish();
      return v1::Result();
    }
  }
  v1::Result result = results_[id];
  results_.erase(id);
  return result;
}

v1::Result TestStream::Call(v1::Operation operation) {
  const uint64_t id = operation.id();
  SendOperation(std::move(operation));
  return Await(id);
}

v1::MemberEvent TestStream::NextEvent() {
  while (events_.empty()) {
    if (!ReadOn()) {
      ADD_FAILURE() << "no event: " << Finish();
      return v1::MemberEvent();
    }
  }
  v1::MemberEvent event = events_.front();
  events_.erase(events_.begin());
  return event;
}

void TestStream::HalfClose() { stream_->WritesDone(); }

Status TestStream::Finish() {
  if (finished_) return OkStatus();
  finished_ = true;
  v1::StreamResponse ignored;
  while (stream_->Read(&ignored)) {
  }
  return v1::FromGrpc(stream_->Finish());
}

v1::Operation SetOperation(uint64_t id, const std::string& key,
                           const std::string& value) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_set()->set_key(key);
  operation.mutable_set()->set_value(value);
  return operation;
}

v1::Operation GetOperation(uint64_t id, const std::string& key) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_get()->set_key(key);
  return operation;
}

}  // namespace muster::coordinator
