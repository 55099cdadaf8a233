#include "tests/bench/callers.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/store.h"
#include "muster/v1/store.grpc.pb.h"
#include "tests/bench/echo.grpc.pb.h"

namespace muster::bench {
namespace {

void Require(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

Operation EchoUnary(const std::string& address, const std::string& payload) {
  auto stub = std::shared_ptr<EchoService::Stub>(
      EchoService::NewStub(OwnChannel(address)));
  return [stub, payload] {
    grpc::ClientContext context;
    EchoRequest request;
    request.set_payload(payload);
    EchoResponse response;
    Require(stub->Unary(&context, request, &response));
  };
}

// A stream with one operation per message.
class EchoStream {
 public:
  explicit EchoStream(const std::string& address)
      : stub_(EchoService::NewStub(OwnChannel(address))),
        stream_(stub_->Stream(&context_)) {}

  ~EchoStream() {
    stream_->WritesDone();
    stream_->Finish();
  }

  void Call(const std::string& payload) {
    EchoRequest request;
    request.set_payload(payload);
    EchoResponse response;
    if (!stream_->Write(request) || !stream_->Read(&response)) {
      throw std::runtime_error("the echo's stream broke");
    }
  }

 private:
  std::unique_ptr<EchoService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<EchoRequest, EchoResponse>> stream_;
};

Operation SetUnary(const std::string& address, const std::string& payload,
                   int caller) {
  auto stub = std::shared_ptr<v1::StoreService::Stub>(
      v1::StoreService::NewStub(OwnChannel(address)));
  return [stub, payload, key = absl::StrCat("key/", caller)] {
    grpc::ClientContext context;
    v1::SetRequest request;
    request.mutable_caller()->set_job("bench");
    request.set_key(key);
    request.set_value(payload);
    v1::SetResponse response;
    Require(stub->Set(&context, request, &response));
  };
}

Operation GetUnary(const std::string& address, const std::string& payload,
                   int caller) {
  SetUnary(address, payload, caller)();
  auto stub = std::shared_ptr<v1::StoreService::Stub>(
      v1::StoreService::NewStub(OwnChannel(address)));
  return [stub, key = absl::StrCat("key/", caller)] {
    grpc::ClientContext context;
    v1::GetRequest request;
    request.mutable_caller()->set_job("bench");
    request.set_key(key);
    v1::GetResponse response;
    Require(stub->Get(&context, request, &response));
  };
}

}  // namespace

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

std::shared_ptr<Session> Connect(const std::string& address) {
  return Session::Connect({.address = address, .job = "bench"});
}

Operation StoreOperation(std::shared_ptr<Session> session,
                         const std::string& verb, const std::string& payload,
                         int caller) {
  auto store = std::make_shared<CoordinatorStore>(std::move(session));
  const std::string key = absl::StrCat(verb, "/", caller);
  if (verb == "add") {
    return [store, key] { store->Add(key, 1); };
  }
  store->Set(key, payload);
  if (verb == "get") {
    return [store, key] { store->Get(key); };
  }
  return [store, key, payload] { store->Set(key, payload); };
}

Operation MakeOperation(const std::string& kind, const std::string& address,
                        const std::string& payload, int caller) {
  if (kind == "echo unary") return EchoUnary(address, payload);
  if (kind == "set unary") return SetUnary(address, payload, caller);
  if (kind == "get unary") return GetUnary(address, payload, caller);
  if (kind == "echo stream") {
    auto stream = std::make_shared<EchoStream>(address);
    return [stream, payload] { stream->Call(payload); };
  }
  for (const char* verb : {"set", "get", "add"}) {
    if (kind != absl::StrCat(verb, " stream")) continue;
    return StoreOperation(Connect(address), verb, payload, caller);
  }
  throw std::runtime_error(absl::StrCat("no operation \"", kind, "\""));
}

}  // namespace muster::bench
