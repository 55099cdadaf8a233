// Gloo's own collectives, as a peer of muster-bench (worker/bench/peer.h):
//
//   muster-bench all_reduce --nproc=4 --backend=gloo --peer=bin/gloo_peer
//
// With the argument `bcube` or `hd` all_reduce takes that algorithm (hd: of
// float32 alone) instead of the ring.

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/peer_request.h"

namespace {

using muster::tests::bench::PeerRequest;

template <typename T>
class Caller {
 public:
  Caller(std::shared_ptr<gloo::Context> context, std::string algorithm,
         uint32_t& tag, const PeerRequest& request)
      : context_(std::move(context)),
        algorithm_(std::move(algorithm)),
        tag_(tag),
        request_(request),
        small_(request.count),
        large_(request.count * context_->size),
        other_(IsExchange() ? large_.size() : 0) {}

  // Null: the operation is not supported.
  std::function<void()> Call() {
    const std::string& operation = request_.operation;
    if (operation == "barrier") {
      return [this] {
        gloo::BarrierOptions options(context_);
        options.setTag(tag_++);
        gloo::barrier(options);
      };
    }
    if (operation == "all_reduce") return AllReduceCall();
    if (operation == "broadcast") {
      return [this] {
        gloo::BroadcastOptions options(context_);
        options.setTag(tag_++);
        options.setRoot(request_.root);
        options.setOutput(small_.data(), small_.size());
        gloo::broadcast(options);
      };
    }
    if (operation == "all_gather" || operation == "all_gather_into_tensor") {
      return [this] {
        gloo::AllgatherOptions options(context_);
        options.setTag(tag_++);
        options.setInput(small_.data(), small_.size());
        options.setOutput(large_.data(), large_.size());
        gloo::allgather(options);
      };
    }
    if (IsExchange()) {
      return [this] {
        gloo::AlltoallOptions options(context_);
        options.setTag(tag_++);
        options.setInput(other_.data(), other_.size());
        options.setOutput(large_.data(), large_.size());
        gloo::alltoall(options);
      };
    }
    return RootedCall();
  }

  // Whether one call gives the correct result. Leaves zeros behind.
  bool Verify(const std::function<void()>& call) {
    for (std::vector<T>* values : {&small_, &large_, &other_}) {
      std::fill(values->begin(), values->end(),
                static_cast<T>(context_->rank + 1));
    }
    call();
    bool right = true;
    const auto ranks = static_cast<int>(context_->size);
    if (request_.operation == "all_reduce") {
      const T sum = static_cast<T>(ranks * (ranks + 1) / 2);
      for (const T value : small_) right &= value == sum;
    }
    if (request_.operation == "all_gather" || IsExchange()) {
      for (size_t i = 0; i < large_.size(); ++i) {
        right &= large_[i] == static_cast<T>(i / request_.count + 1);
      }
    }
    for (std::vector<T>* values : {&small_, &large_, &other_}) {
      std::fill(values->begin(), values->end(), T{});
    }
    return right;
  }

 private:
  bool IsExchange() const {
    return request_.operation == "all_to_all" ||
           request_.operation == "all_to_all_single";
  }

  static void Sum(void* result, const void* a, const void* b, size_t count) {
    gloo::sum<T>(result, a, b, count);
  }

  std::function<void()> AllReduceCall() {
    if (request_.reduce_op != "sum") return nullptr;
    if (algorithm_ == "hd") {
      auto algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<T>>(
          context_, std::vector<T*>{small_.data()},
          static_cast<int>(small_.size()));
      return [algorithm] { algorithm->run(); };
    }
    return [this] {
      gloo::AllreduceOptions options(context_);
      options.setTag(tag_++);
      options.setOutput(small_.data(), small_.size());
      options.setAlgorithm(algorithm_ == "bcube"
                               ? gloo::AllreduceOptions::Algorithm::BCUBE
                               : gloo::AllreduceOptions::Algorithm::RING);
      options.setReduceFunction(&Sum);
      gloo::allreduce(options);
    };
  }

  std::function<void()> RootedCall() {
    const bool is_root = context_->rank == request_.root;
    if (request_.operation == "reduce" && request_.reduce_op == "sum") {
      return [this] {
        gloo::ReduceOptions options(context_);
        options.setTag(tag_++);
        options.setRoot(request_.root);
        options.setOutput(small_.data(), small_.size());
        options.setReduceFunction(&Sum);
        gloo::reduce(options);
      };
    }
    if (request_.operation == "gather") {
      return [this, is_root] {
        gloo::GatherOptions options(context_);
        options.setTag(tag_++);
        options.setRoot(request_.root);
        options.setInput(small_.data(), small_.size());
        if (is_root) options.setOutput(large_.data(), large_.size());
        gloo::gather(options);
      };
    }
    if (request_.operation == "scatter") {
      return [this, is_root] {
        gloo::ScatterOptions options(context_);
        options.setTag(tag_++);
        options.setRoot(request_.root);
        if (is_root) {
          std::vector<T*> inputs;
          for (int rank = 0; rank < context_->size; ++rank) {
            inputs.push_back(large_.data() + rank * small_.size());
          }
          options.setInputs(inputs, small_.size());
        }
        options.setOutput(small_.data(), small_.size());
        gloo::scatter(options);
      };
    }
    return nullptr;
  }

  const std::shared_ptr<gloo::Context> context_;
  const std::string algorithm_;
  uint32_t& tag_;
  const PeerRequest request_;
  std::vector<T> small_;
  std::vector<T> large_;
  std::vector<T> other_;
};

class Server {
 public:
  Server(std::shared_ptr<gloo::Context> context, std::string algorithm)
      : context_(std::move(context)), algorithm_(std::move(algorithm)) {}

  std::string Answer(const PeerRequest& request) {
    if (request.data_type == "float32") return Run<float>(request, floats_);
    // The halving-doubling algorithm supports only float32 here.
    if (algorithm_ == "hd") return "none";
    if (request.data_type == "float64") return Run<double>(request, doubles_);
    if (request.data_type == "int32") return Run<int32_t>(request, ints_);
    if (request.data_type == "int64") return Run<int64_t>(request, longs_);
    return "none";
  }

 private:
  template <typename T>
  struct Kept {
    std::string key;
    std::unique_ptr<Caller<T>> caller;
    std::function<void()> call;
  };

  template <typename T>
  std::string Run(const PeerRequest& request, Kept<T>& kept) {
    const std::string key = request.Key();
    if (kept.key != key) {
      kept.call = nullptr;
      kept.caller.reset();
      kept.key = key;
      kept.caller =
          std::make_unique<Caller<T>>(context_, algorithm_, tag_, request);
      kept.call = kept.caller->Call();
      if (kept.call == nullptr) return "none";
      if (!kept.caller->Verify(kept.call)) return "wrong result";
    }
    if (kept.call == nullptr) return "none";
    gloo::BarrierOptions together(context_);
    together.setTag(tag_++);
    gloo::barrier(together);
    return muster::tests::bench::TimeCalls(kept.call, request.calls);
  }

  const std::shared_ptr<gloo::Context> context_;
  const std::string algorithm_;
  uint32_t tag_ = 0;
  Kept<float> floats_;
  Kept<double> doubles_;
  Kept<int32_t> ints_;
  Kept<int64_t> longs_;
};

}  // namespace

int main(int argc, char** argv) {
  const char* const rank = std::getenv("RANK");
  const char* const world_size = std::getenv("WORLD_SIZE");
  const char* const folder = std::getenv("MUSTER_BENCH_FOLDER");
  if (rank == nullptr || world_size == nullptr || folder == nullptr) {
    std::cerr << "gloo_peer is started by muster-bench --peer=gloo_peer\n";
    return 2;
  }
  const std::string algorithm = argc > 1 ? argv[1] : "ring";
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto context = std::make_shared<gloo::rendezvous::Context>(
      std::atoi(rank), std::atoi(world_size));
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);
  std::cout << "ready raw_gloo" << (argc > 1 ? "_" + algorithm : "")
            << std::endl;
  Server server(context, algorithm);
  muster::tests::bench::ServeRequests(
      std::cin, std::cout,
      [&](const PeerRequest& request) { return server.Answer(request); });
  return 0;
}
