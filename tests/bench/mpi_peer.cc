// The program of mpi_peer.sh: one MPI rank, which executes the requests that it
// reads from a FIFO.

#include <mpi.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/peer_request.h"

namespace {

using muster::tests::bench::PeerRequest;

struct Type {
  MPI_Datatype mpi;
  int bytes;
};

template <typename T>
MPI_Op MakeSum() {
  MPI_Op op = MPI_OP_NULL;
  MPI_Op_create(
      [](void* in, void* inout, int* count, MPI_Datatype*) {
        const T* const a = static_cast<const T*>(in);
        T* const b = static_cast<T*>(inout);
        for (int i = 0; i < *count; ++i) b[i] = a[i] + b[i];
      },
      /*commute=*/1, &op);
  return op;
}

class Caller {
 public:
  Caller(const PeerRequest& request, Type type, MPI_Op op)
      : request_(request),
        // MPI counts with an int.
        count_(static_cast<int>(request.count)),
        type_(type),
        op_(op) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    one_.resize(static_cast<size_t>(request.count) * type.bytes);
    many_.resize(one_.size() * size_);
    other_.resize(request.operation.starts_with("all_to_all") ||
                          request.operation.starts_with("reduce_scatter")
                      ? many_.size()
                      : 0);
  }

  // Null: the operation is not supported.
  std::function<void()> Call() {
    const std::string& operation = request_.operation;
    const int count = count_;
    const int root = request_.root;
    if (operation == "barrier") return [] { MPI_Barrier(MPI_COMM_WORLD); };
    if (operation == "all_reduce") {
      return [this, count] {
        MPI_Allreduce(MPI_IN_PLACE, one_.data(), count, type_.mpi, op_,
                      MPI_COMM_WORLD);
      };
    }
    if (operation == "broadcast") {
      return [this, count, root] {
        MPI_Bcast(one_.data(), count, type_.mpi, root, MPI_COMM_WORLD);
      };
    }
    if (operation == "all_gather" || operation == "all_gather_into_tensor") {
      return [this, count] {
        MPI_Allgather(one_.data(), count, type_.mpi, many_.data(), count,
                      type_.mpi, MPI_COMM_WORLD);
      };
    }
    if (operation == "reduce_scatter" || operation == "reduce_scatter_tensor") {
      return [this, count] {
        MPI_Reduce_scatter_block(other_.data(), one_.data(), count, type_.mpi,
                                 op_, MPI_COMM_WORLD);
      };
    }
    if (operation == "all_to_all" || operation == "all_to_all_single") {
      return [this, count] {
        MPI_Alltoall(other_.data(), count, type_.mpi, many_.data(), count,
                     type_.mpi, MPI_COMM_WORLD);
      };
    }
    return nullptr;
  }

  // Whether a call gives the correct result, for float32: rank r has the value
  // r + 1. Leaves zeros behind.
  bool Verify(const std::function<void()>& call) {
    if (request_.data_type != "float32") return true;
    Fill(static_cast<float>(rank_ + 1));
    call();
    const auto sum = static_cast<float>(size_ * (size_ + 1) / 2);
    bool right = true;
    if (request_.operation == "all_reduce" ||
        request_.operation.starts_with("reduce_scatter")) {
      for (int i = 0; i < count_; ++i) right &= Of(one_)[i] == sum;
    }
    if (request_.operation.starts_with("all_gather") ||
        request_.operation.starts_with("all_to_all")) {
      for (int i = 0; i < count_ * size_; ++i) {
        right &= Of(many_)[i] == static_cast<float>(i / count_ + 1);
      }
    }
    Fill(0);
    return right;
  }

 private:
  static float* Of(std::vector<char>& memory) {
    return reinterpret_cast<float*>(memory.data());
  }
  void Fill(float value) {
    for (std::vector<char>* memory : {&one_, &many_, &other_}) {
      std::fill_n(Of(*memory), memory->size() / sizeof(float), value);
    }
  }

  const PeerRequest request_;
  const int count_;
  const Type type_;
  const MPI_Op op_;
  int rank_ = 0;
  int size_ = 0;
  std::vector<char> one_;
  std::vector<char> many_;
  std::vector<char> other_;
};

class Server {
 public:
  std::string Answer(const PeerRequest& request) {
    const std::string key = request.Key();
    if (key_ != key) {
      key_ = key;
      call_ = nullptr;
      caller_.reset();
      const auto type = types_.find(request.data_type);
      const bool is_user = request.reduce_op == "user";
      const auto& ops = is_user ? user_ops_ : ops_;
      const auto op = ops.find(is_user ? request.data_type : request.reduce_op);
      if (type == types_.end() || op == ops.end()) return "none";
      caller_ = std::make_unique<Caller>(request, type->second, op->second);
      call_ = caller_->Call();
      if (call_ == nullptr) return "none";
      if (!caller_->Verify(call_)) return "wrong result";
    }
    if (call_ == nullptr) return "none";
    MPI_Barrier(MPI_COMM_WORLD);
    return muster::tests::bench::TimeCalls(call_, request.calls);
  }

 private:
  const std::map<std::string, Type> types_ = {
      {"float32", {MPI_FLOAT, 4}}, {"float64", {MPI_DOUBLE, 8}},
      {"int32", {MPI_INT32_T, 4}}, {"int64", {MPI_INT64_T, 8}},
      {"uint8", {MPI_UINT8_T, 1}}, {"int8", {MPI_INT8_T, 1}}};
  const std::map<std::string, MPI_Op> ops_ = {{"sum", MPI_SUM},
                                              {"product", MPI_PROD},
                                              {"min", MPI_MIN},
                                              {"max", MPI_MAX}};
  // "user": a sum by MPI_Op_create, of these types.
  const std::map<std::string, MPI_Op> user_ops_ = {
      {"float32", MakeSum<float>()},
      {"float64", MakeSum<double>()},
      {"int32", MakeSum<int32_t>()},
      {"int64", MakeSum<int64_t>()}};
  std::string key_;
  std::unique_ptr<Caller> caller_;
  std::function<void()> call_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) {
    std::cerr << "mpi_peer is started by mpi_peer.sh\n";
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string fifo =
      std::string(argv[1]) + "/mpi." + std::to_string(rank) + ".";
  // The other side may have made them already.
  mkfifo((fifo + "in").c_str(), 0600);
  mkfifo((fifo + "out").c_str(), 0600);
  std::ifstream in(fifo + "in");
  std::ofstream out(fifo + "out");
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  // "Open MPI v4.1.4, package: ..."
  std::string name =
      std::string(version).substr(0, std::string(version).find(','));
  std::replace(name.begin(), name.end(), ' ', '_');
  out << "ready " << name << std::endl;
  Server server;
  muster::tests::bench::ServeRequests(in, out, [&](const PeerRequest& request) {
    return server.Answer(request);
  });
  MPI_Finalize();
  return 0;
}
