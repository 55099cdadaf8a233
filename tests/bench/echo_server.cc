#include "tests/bench/echo_server.h"

#include <grpcpp/grpcpp.h>

#include <mutex>
#include <vector>

#include "tests/bench/echo.grpc.pb.h"

namespace muster::bench {
namespace {

// Reads one message, writes it back, reads the next: a stream without batching.
class EchoReactor : public grpc::ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  EchoReactor() { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    response_.set_payload(request_.payload());
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    StartRead(&request_);
  }

  void OnDone() override { delete this; }

 private:
  EchoRequest request_;
  EchoResponse response_;
};

class EchoServiceImpl final : public EchoService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context,
                                  const EchoRequest* request,
                                  EchoResponse* response) override {
    response->set_payload(request->payload());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Park(grpc::CallbackServerContext* context,
                                 const EchoRequest* request,
                                 EchoResponse* response) override {
    response->set_payload(request->payload());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const std::lock_guard<std::mutex> lock(mutex_);
    parked_.push_back(reactor);
    return reactor;
  }

  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const ReleaseRequest* request,
                                    ReleaseResponse* response) override {
    std::vector<grpc::ServerUnaryReactor*> released;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (parked_.size() >= static_cast<size_t>(request->calls())) {
        released.swap(parked_);
      }
    }
    response->set_released(!released.empty());
    for (grpc::ServerUnaryReactor* reactor : released) {
      reactor->Finish(grpc::Status::OK);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerBidiReactor<EchoRequest, EchoResponse>* Stream(
      grpc::CallbackServerContext* /*context*/) override {
    return new EchoReactor();
  }

 private:
  std::mutex mutex_;
  std::vector<grpc::ServerUnaryReactor*> parked_;
};

class GrpcEchoServer final : public EchoServer {
 public:
  bool Listen() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    return server_ != nullptr && port_ != 0;
  }

  ~GrpcEchoServer() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  int port() const override { return port_; }

 private:
  EchoServiceImpl service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

std::unique_ptr<EchoServer> EchoServer::Start() {
  auto server = std::make_unique<GrpcEchoServer>();
  if (!server->Listen()) return nullptr;
  return server;
}

}  // namespace muster::bench
