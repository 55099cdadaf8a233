// One rank of the tests in which a rank is lost in the middle of a verb. Prints
// what it sees to standard output, one line each.
//
//   verb_rank VERB
//
// Repeats the verb until it fails. There are three ranks; 0 and 2 have another
// group of their own.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "client/testing/say.h"
#include "muster/muster.hpp"

namespace muster::testing {
namespace {

// Large enough to take a while.
constexpr size_t kPart = 300'000;

// Small enough to be sent together with others.
constexpr size_t kSmall = 300;

struct Memory {
  std::vector<float> part = std::vector<float>(kPart, 1);
  std::vector<float> whole = std::vector<float>(3 * kPart, 1);
  std::vector<std::vector<float>> parts{3, part};
  std::vector<std::vector<float>> more_parts{3, part};
  std::vector<std::vector<float>> small{3, std::vector<float>(kSmall, 1)};
  std::vector<std::vector<float>> large{3, std::vector<float>(3 * kSmall, 1)};
  const std::string object = std::string(kPart, 'x');
  std::vector<std::string> objects{3, object};

  std::vector<Tensor> Parts() { return {parts.begin(), parts.end()}; }
  std::vector<Tensor> MoreParts() {
    return {more_parts.begin(), more_parts.end()};
  }
  std::vector<Tensor> Small() { return {small.begin(), small.end()}; }
  std::vector<Tensor> Large() { return {large.begin(), large.end()}; }
  // A list on rank 0, the root.
  std::vector<Tensor> OnRankZero() {
    return GetRank() == 0 ? Parts() : std::vector<Tensor>();
  }
};

// To the next rank and from the previous one: rank 0 begins.
void PassOn(Memory& m) {
  const int next = (GetRank() + 1) % 3;
  const int previous = (GetRank() + 2) % 3;
  if (GetRank() == 0) SendObjectList(m.objects, next);
  RecvObjectList(m.objects, previous);
  if (GetRank() != 0) SendObjectList(m.objects, next);
}

// In none of them the lost rank is the root.
const std::map<std::string, std::function<void(Memory&)>>& Verbs() {
  static const auto* const verbs = new std::map<std::string,
                                                std::function<void(Memory&)>>{
      {"all_reduce", [](Memory& m) { AllReduce(m.whole); }},
      {"broadcast", [](Memory& m) { Broadcast(m.whole, 0); }},
      {"reduce", [](Memory& m) { Reduce(m.whole, 0); }},
      {"all_gather", [](Memory& m) { AllGather(m.Parts(), m.part); }},
      {"all_gather_into_tensor",
       [](Memory& m) { AllGatherIntoTensor(m.whole, m.part); }},
      {"gather", [](Memory& m) { Gather(m.part, m.OnRankZero()); }},
      {"scatter", [](Memory& m) { Scatter(m.part, m.OnRankZero()); }},
      {"reduce_scatter", [](Memory& m) { ReduceScatter(m.part, m.Parts()); }},
      {"reduce_scatter_tensor",
       [](Memory& m) { ReduceScatterTensor(m.part, m.whole); }},
      {"all_to_all", [](Memory& m) { AllToAll(m.Parts(), m.MoreParts()); }},
      {"all_to_all_single",
       [](Memory& m) {
         std::vector<float> out(m.whole.size());
         AllToAllSingle(out, m.whole);
       }},
      {"barrier", [](Memory&) { Barrier(); }},
      {"all_reduce_coalesced",
       [](Memory& m) { AllReduceCoalesced(m.Large()); }},
      {"all_gather_into_tensor_coalesced",
       [](Memory& m) { AllGatherIntoTensorCoalesced(m.Large(), m.Small()); }},
      {"reduce_scatter_tensor_coalesced",
       [](Memory& m) { ReduceScatterTensorCoalesced(m.Small(), m.Large()); }},
      {"all_gather_object",
       [](Memory& m) { AllGatherObject(m.objects, m.object); }},
      {"broadcast_object_list",
       [](Memory& m) { BroadcastObjectList(m.objects, 0); }},
      {"gather_object",
       [](Memory& m) {
         GatherObject(m.object, GetRank() == 0 ? &m.objects : nullptr);
       }},
      {"scatter_object_list",
       [](Memory& m) {
         std::vector<std::string> mine(1);
         ScatterObjectList(mine, m.objects);
       }},
      {"send_and_recv_object_list", &PassOn},
      {"batch_isend_irecv",
       [](Memory& m) {
         auto works = BatchIsendIrecv({{.op = P2POp::Kind::kIsend,
                                        .tensor = m.part,
                                        .peer = (GetRank() + 1) % 3},
                                       {.op = P2POp::Kind::kIrecv,
                                        .tensor = m.parts[0],
                                        .peer = (GetRank() + 2) % 3}});
         for (Work& work : works) work.Wait();
       }},
      {"send_and_recv",
       [](Memory& m) {
         Work sent = Isend(m.part, (GetRank() + 1) % 3);
         Recv(m.parts[0], (GetRank() + 2) % 3);
         sent.Wait();
       }},
  };
  return *verbs;
}

int Run(const std::string& verb) {
  const std::function<void(Memory&)>& call = Verbs().at(verb);
  InitProcessGroup({.timeout = std::chrono::minutes(30)});
  const auto pair = NewGroup({.ranks = {{0, 2}}});
  Memory memory;
  call(memory);
  Say("running");
  try {
    for (;;) call(memory);
  } catch (const DistError& error) {
    SayError(error);
  }
  std::vector<int32_t> sum = {GetRank() + 1};
  AllReduce(sum, {.group = pair});
  Say("pair sum " + std::to_string(sum[0]));
  DestroyProcessGroup();
  return 0;
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  return muster::testing::Run(argv[1]);
}
