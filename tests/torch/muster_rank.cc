// One rank of the cases on muster's gloo: muster_rank CASES OUTPUT. The
// counterpart of torch_rank.py.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "muster/muster.hpp"

namespace muster::testing {
namespace {

struct Case {
  std::string verb;
  ReduceOp op;
  DataType type;
  size_t count;
  int root;
};

// SCALE of cases.py.
template <typename T>
T Scaled(int number) {
  if constexpr (!std::is_integral_v<T>) {
    return static_cast<T>(static_cast<float>(number) * 0.5F);
  } else {
    const uint64_t scale = sizeof(T) == 1   ? 50
                           : sizeof(T) == 4 ? 1'000'000'007
                                            : 4'000'000'000'000'000'037;
    return static_cast<T>(static_cast<uint64_t>(number) * scale);
  }
}

template <typename T>
std::vector<T> Make(int rank, size_t count) {
  std::vector<T> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = Scaled<T>(
        static_cast<int>((i * 7 + static_cast<size_t>(rank) * 3) % 5) - 2);
  }
  return numbers;
}

template <typename T>
Tensor MakeTensor(DataType type, std::vector<T>& values, size_t begin = 0,
                  size_t count = SIZE_MAX) {
  count = std::min(count, values.size() - begin);
  return Tensor(values.data() + begin, type, {static_cast<int64_t>(count)});
}

// The result of the case on this rank; empty: none.
template <typename T>
std::vector<T> RunAs(const Case& it) {
  const int rank = GetRank();
  const int size = GetWorldSize();
  std::vector<T> mine = Make<T>(rank, it.count);
  const Tensor own = MakeTensor(it.type, mine);
  // Parts for all ranks, one after the other.
  std::vector<T> joined;
  for (int to = 0; to < size; ++to) {
    const std::vector<T> part = Make<T>(rank + to, it.count);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  std::vector<T> all(joined.size());
  const auto parts = [&](std::vector<T>& of, bool wanted) {
    std::vector<Tensor> tensors;
    for (int to = 0; wanted && to < size; ++to) {
      tensors.push_back(MakeTensor(
          it.type, of, static_cast<size_t>(to) * it.count, it.count));
    }
    return tensors;
  };
  if (it.verb == "all_reduce") {
    AllReduce(own, {.op = it.op});
    return mine;
  }
  if (it.verb == "reduce") {
    Reduce(own, it.root, {.op = it.op});
    return rank == it.root ? mine : std::vector<T>();
  }
  if (it.verb == "broadcast") {
    Broadcast(own, it.root);
    return mine;
  }
  if (it.verb == "all_gather") {
    AllGather(parts(all, true), own);
    return all;
  }
  if (it.verb == "gather") {
    Gather(own, parts(all, rank == it.root), it.root);
    return rank == it.root ? all : std::vector<T>();
  }
  if (it.verb == "scatter") {
    Scatter(own, parts(joined, rank == it.root), it.root);
    return mine;
  }
  if (it.verb == "all_to_all_single") {
    AllToAllSingle(MakeTensor(it.type, all), MakeTensor(it.type, joined));
    return all;
  }
  std::vector<T> got(it.count);
  Work sent = Isend(own, (rank + 1) % size, {.tag = it.root});
  Recv(MakeTensor(it.type, got), (rank + size - 1) % size, {.tag = it.root});
  sent.Wait();
  return got;
}

template <typename T>
void RunTo(std::ofstream& output, const Case& it) {
  const std::vector<T> result = RunAs<T>(it);
  output.write(reinterpret_cast<const char*>(result.data()),
               static_cast<std::streamsize>(result.size() * sizeof(T)));
}

int Run(const char* cases, const char* path) {
  using enum DataType;
  const std::map<std::string, DataType> types = {
      {"uint8", kUint8},    {"int8", kInt8},       {"int32", kInt32},
      {"int64", kInt64},    {"float16", kFloat16}, {"float32", kFloat32},
      {"float64", kFloat64}};
  const std::map<std::string, ReduceOp> ops = {
      {"sum", ReduceOp::kSum},   {"product", ReduceOp::kProduct},
      {"min", ReduceOp::kMin},   {"max", ReduceOp::kMax},
      {"band", ReduceOp::kBand}, {"bor", ReduceOp::kBor},
      {"bxor", ReduceOp::kBxor}};
  InitProcessGroup({.backend = "gloo"});
  std::ifstream lines(cases);
  std::ofstream output(path, std::ios::binary);
  std::string type;
  std::string op;
  Case it;
  while (lines >> it.verb >> type >> op >> it.count >> it.root) {
    it.type = types.at(type);
    it.op = ops.at(op);
    switch (it.type) {
      case kUint8:
        RunTo<uint8_t>(output, it);
        break;
      case kInt8:
        RunTo<int8_t>(output, it);
        break;
      case kInt32:
        RunTo<int32_t>(output, it);
        break;
      case kInt64:
        RunTo<int64_t>(output, it);
        break;
      case kFloat16:
        RunTo<Eigen::half>(output, it);
        break;
      case kFloat64:
        RunTo<double>(output, it);
        break;
      default:
        RunTo<float>(output, it);
    }
  }
  DestroyProcessGroup();
  return 0;
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  try {
    return muster::testing::Run(argv[1], argv[2]);
  } catch (const muster::DistError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
