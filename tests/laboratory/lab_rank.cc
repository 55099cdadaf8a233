// One rank of the laboratory: runs one verb until it fails, reports the
// failure, and then whether its other group still works.
//
//   lab_rank VERB     with RANK, WORLD_SIZE, MASTER_ADDR and so on set
//
//   lab_rank burst CALLS BYTES
//
// The second runs CALLS all_reduces of BYTES at the same time and prints the
// seconds that they take.
//
// Output of the first: "running" once the first calls are done; "error CLASS
// RANKS: TEXT" with the culprits' ranks; "other group: SUM".

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "muster/muster.hpp"

namespace muster {
namespace {

// Large enough for a call to take a while.
constexpr size_t kCount = 256 << 10;
constexpr int64_t kSmall = 1 << 10;

std::vector<Tensor> MakeParts(std::vector<float>& values) {
  const int size = GetWorldSize();
  std::vector<Tensor> parts;
  for (int part = 0; part < size; ++part) {
    const auto count = static_cast<int64_t>(values.size()) / size;
    parts.emplace_back(values.data() + part * count,
                       std::initializer_list<int64_t>{count});
  }
  return parts;
}

// Parts of several tensors, each small enough to be coalesced with others.
std::vector<Tensor> MakeSmallTensors(std::vector<float>& values,
                                     int64_t count) {
  std::vector<Tensor> some;
  for (int64_t i = 0; i < 3; ++i) {
    some.emplace_back(values.data() + i * count,
                      std::initializer_list<int64_t>{count});
  }
  return some;
}

// Verbs with objects, in which the last rank is waited for, too.
std::map<std::string, std::function<void()>> ObjectVerbs() {
  static const std::string object(kCount, 'x');
  static std::vector<std::string> objects(GetWorldSize(), object);
  static const int last = GetWorldSize() - 1;
  static const bool is_last = GetRank() == last;
  return {
      {"all_gather_object", [] { AllGatherObject(objects, object); }},
      {"broadcast_object_list",
       [] {
         BroadcastObjectList(objects, last);
         Barrier();
       }},
      {"gather_object",
       [] {
         GatherObject(object, is_last ? &objects : nullptr, last);
         Barrier();
       }},
      {"scatter_object_list",
       [] {
         std::vector<std::string> mine(1);
         ScatterObjectList(mine, objects, last);
         Barrier();
       }},
      {"send_object",
       [] {
         std::string received;
         if (is_last) {
           for (int peer = 0; peer < last; ++peer) SendObject(object, peer);
         } else {
           RecvObject(received, last);
         }
       }},
  };
}

// The calls of a verb, in which the last rank takes part and is waited for.
std::function<void()> MakeVerb(const std::string& name) {
  static std::vector<float> one(kCount);
  static std::vector<float> all(kCount * GetWorldSize());
  static std::vector<float> other(all.size());
  static const int last = GetWorldSize() - 1;
  static const bool is_last = GetRank() == last;
  std::map<std::string, std::function<void()>> verbs = {
      {"all_reduce", [] { AllReduce(one); }},
      {"all_reduce_small", [] { AllReduce(std::span<float>(one.data(), 4)); }},
      // The barrier makes every rank wait for the last one.
      {"broadcast",
       [] {
         Broadcast(one, last);
         Barrier();
       }},
      {"reduce",
       [] {
         Reduce(one, last);
         Barrier();
       }},
      {"all_gather", [] { AllGather(MakeParts(all), one); }},
      {"gather",
       [] {
         Gather(one, is_last ? MakeParts(all) : std::vector<Tensor>(), last);
         Barrier();
       }},
      {"scatter",
       [] {
         Scatter(one, is_last ? MakeParts(all) : std::vector<Tensor>(), last);
         Barrier();
       }},
      {"all_gather_into_tensor", [] { AllGatherIntoTensor(all, one); }},
      {"reduce_scatter", [] { ReduceScatter(one, MakeParts(all)); }},
      {"reduce_scatter_tensor", [] { ReduceScatterTensor(one, all); }},
      {"all_to_all", [] { AllToAll(MakeParts(other), MakeParts(all)); }},
      {"all_to_all_single", [] { AllToAllSingle(other, all); }},
      {"all_reduce_coalesced",
       [] { AllReduceCoalesced(MakeSmallTensors(all, kSmall)); }},
      {"all_gather_into_tensor_coalesced",
       [] {
         AllGatherIntoTensorCoalesced(
             MakeSmallTensors(all, GetWorldSize() * kSmall),
             MakeSmallTensors(one, kSmall));
       }},
      {"reduce_scatter_tensor_coalesced",
       [] {
         ReduceScatterTensorCoalesced(
             MakeSmallTensors(one, kSmall),
             MakeSmallTensors(all, GetWorldSize() * kSmall));
       }},
      {"barrier", [] { Barrier(); }},
      {"send",
       [] {
         if (is_last) {
           for (int peer = 0; peer < last; ++peer) Send(one, peer);
         } else {
           Recv(one, last);
         }
       }},
      {"batch_isend_irecv",
       [] {
         const int size = GetWorldSize();
         for (Work& work :
              BatchIsendIrecv({{.op = P2POp::Kind::kIsend,
              .tensor = one,
              .peer = (GetRank() + 1) % size},
                               {.op = P2POp::Kind::kIrecv,
                               .tensor = MakeParts(all)[0],
                               .peer = (GetRank() + size - 1) % size}})) {
           work.Wait();
         }
       }},
  };
  verbs.merge(ObjectVerbs());
  return verbs.at(name);
}

std::string Describe(const DistError& error) {
  std::string text = "error ";
  if (dynamic_cast<const DistNetworkError*>(&error) != nullptr) {
    text += "DistNetworkError";
  } else if (dynamic_cast<const DistBackendError*>(&error) != nullptr) {
    text += "DistBackendError";
  } else {
    text += "DistError";
  }
  for (const auto& culprit : error.culprits()) {
    text += " " + std::to_string(culprit.rank);
  }
  return text + ": " + error.what();
}

int Run(const std::string& verb_name) {
  // The timeout is thirty minutes, so it is not what ends the group.
  InitProcessGroup();
  std::vector<int> living(GetWorldSize() - 1);
  std::iota(living.begin(), living.end(), 0);
  const auto other_group = NewGroup({.ranks = living});
  const auto verb = MakeVerb(verb_name);
  for (int call = 0; call < 2; ++call) verb();
  Barrier();
  std::cout << "running" << std::endl;
  try {
    for (;;) verb();
  } catch (const DistError& error) {
    std::string text = Describe(error);
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::cout << text << std::endl;
  }
  std::vector<int> sum = {1};
  AllReduce(sum, {.group = other_group});
  std::cout << "other group: " << sum[0] << std::endl;
  try {
    DestroyProcessGroup();
  } catch (const DistError&) {
    // The error of the failed group.
  }
  return 0;
}

int RunBurst(int calls, size_t bytes) {
  InitProcessGroup();
  std::vector<std::vector<float>> tensors(
      static_cast<size_t>(calls), std::vector<float>(bytes / sizeof(float), 1));
  const auto all_reduce = [&] {
    std::vector<Work> works;
    for (std::vector<float>& tensor : tensors) {
      works.push_back(AllReduce(tensor, {.async_op = true}));
    }
    for (Work& work : works) work.Wait();
  };
  // The first call makes connections.
  all_reduce();
  Barrier();
  const auto start = std::chrono::steady_clock::now();
  all_reduce();
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  const auto wanted = static_cast<float>(GetWorldSize() * GetWorldSize());
  for (const std::vector<float>& tensor : tensors) {
    for (const float value : tensor) {
      if (value != wanted) throw std::runtime_error("a sum is wrong");
    }
  }
  std::cout << seconds.count() << std::endl;
  DestroyProcessGroup();
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  try {
    if (argc == 4) {
      return muster::RunBurst(std::stoi(argv[2]), std::stoul(argv[3]));
    }
    return muster::Run(argv[1]);
  } catch (const muster::DistError& error) {
    std::cout << "failed: " << error.what() << std::endl;
    return 1;
  }
}
