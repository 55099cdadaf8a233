#ifndef MUSTER_COORDINATOR_SERVER_TEST_SERVER_H_
#define MUSTER_COORDINATOR_SERVER_TEST_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/server.h"
#include "grpcpp/grpcpp.h"
#include "muster/base/status.h"
#include "muster/v1/admin.grpc.pb.h"
#include "muster/v1/barrier.grpc.pb.h"
#include "muster/v1/membership.grpc.pb.h"
#include "muster/v1/session.grpc.pb.h"
#include "muster/v1/store.grpc.pb.h"

// A coordinator in the test's process, and clients that reach it over real
// channels.
namespace muster::coordinator {

// Longer than any correct test takes; a call that hangs fails after it.
inline constexpr std::chrono::seconds kTestDeadline{30};

v1::Caller MakeCaller(const std::string& job, const std::string& member = "",
                      uint64_t incarnation = 0);

class TestServer {
 public:
  explicit TestServer(const ServerOptions& options = {});

  Server& server() { return *server_; }
  void Stop() { server_.reset(); }
  // Returns a channel with a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel() const;

  v1::StoreService::Stub& store() { return *store_; }
  v1::MembershipService::Stub& membership() { return *membership_; }
  v1::BarrierService::Stub& barrier() { return *barrier_; }
  v1::AdminService::Stub& admin() { return *admin_; }

  // The job's state; empty if there is no such job.
  v1::GetJobResponse Job(const std::string& job);
  // Polls the job's state until `done` returns true; fails the test if that
  // takes too long.
  void Await(const std::string& job,
             const std::function<bool(const v1::GetJobResponse&)>& done);
  void AwaitWaiters(const std::string& job, int64_t count);

  // Sends a GET. Returns the status line and the body.
  std::string Http(const std::string& path) const;

 private:
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::StoreService::Stub> store_;
  std::unique_ptr<v1::MembershipService::Stub> membership_;
  std::unique_ptr<v1::BarrierService::Stub> barrier_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// Makes a unary call and returns its status with payloads.
//   Call(server.store(), &v1::StoreService::Stub::Set, request, &response)
template <typename Stub, typename Request, typename Response>
grpc::Status CallGrpc(Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                   const Request&, Response*),
                      const Request& request, Response* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
  return (stub.*method)(&context, request, response);
}

// One stream.
class TestStream {
 public:
  // `token` may be empty.
  explicit TestStream(std::shared_ptr<grpc::Channel> channel,
                      const std::string& token = "");
  // Cancels an open stream.
  ~TestStream();

  // The two ways to begin a stream.
  void Hello(const std::string& job);
  v1::Welcome HelloMember(const std::string& job, const std::string& member,
                          uint64_t incarnation);

  bool Send(const v1::StreamRequest& request);
  // Sends one operation.
  void SendOperation(v1::Operation operation);

  // Reads until the result of the operation comes. Keeps events on the way.
  v1::Result Await(uint64_t id);
  v1::Result Call(v1::Operation operation);

  // Returns the next event; reads until one comes.
  v1::MemberEvent NextEvent();

  // Reads the next message. Returns false if the stream has ended.
  bool Read(v1::StreamResponse* response);
  void HalfClose();
  // Reads to the end.
  Status Finish();
  void Cancel() { context_.TryCancel(); }

 private:
  bool ReadOn();

  grpc::ClientContext context_;
  std::unique_ptr<v1::SessionService::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>>
      stream_;
  bool finished_ = false;
  std::map<uint64_t, v1::Result> results_;
  std::vector<v1::MemberEvent> events_;
};

v1::Operation SetOperation(uint64_t id, const std::string& key,
                           const std::string& value);
v1::Operation GetOperation(uint64_t id, const std::string& key);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_TEST_SERVER_H_
