// Simulates and runs a random program.

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/coalescing.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/random_program.h"
#include "dataplane/testing/reference.h"
#include "glog/logging.h"

namespace muster::dataplane::testing {
namespace {

template <typename T>
using Buffers = std::vector<std::vector<T>>;

// The initial buffers of a rank, different on each.
template <typename T>
Buffers<T> Beginning(const RandomProgram& program, int rank) {
  Buffers<T> buffers(program.buffer_count);
  for (size_t b = 0; b < buffers.size(); ++b) {
    for (size_t i = 0; i < program.buffer_size; ++i) {
      const uint64_t number = (i + 1) * 2654435761U + b * 40503U +
                              static_cast<uint64_t>(rank) * 97U;
      constexpr int kNumbers = 2 * kBeginningMax + 1;
      const int value = static_cast<int>(number % kNumbers) - kBeginningMax;
      if constexpr (std::is_integral_v<T>) {
        buffers[b].push_back(static_cast<T>(value));
      } else if constexpr (std::is_same_v<T, Flag>) {
        buffers[b].push_back({number % 3 != 0});
      } else if constexpr (kIsComplex<T>) {
        using Part = typename T::value_type;
        const int other = static_cast<int>(number % 31);
        buffers[b].push_back(
            {static_cast<Part>(value), static_cast<Part>(other)});
      } else {
        buffers[b].push_back(static_cast<T>(static_cast<float>(value)));
      }
    }
  }
  return buffers;
}

// Computes the results with plain loops, one instruction at a time on all
// ranks.
template <typename T>
class Simulation {
 public:
  explicit Simulation(const RandomProgram& program) : program_(program) {
    for (const int rank : program.groups[0]) {
      ranks.push_back(Beginning<T>(program, rank));
    }
  }

  void Do(const Instruction& instruction) {
    group_ = &program_.groups[instruction.group];
    const size_t size = group_->size();
    const auto root = static_cast<size_t>(instruction.root);
    std::vector<std::vector<T>> in;
    for (size_t rank = 0; rank < size; ++rank) {
      in.push_back(Read(rank, instruction.inputs[rank]));
    }
    // An in-place instruction has no outputs.
    const bool in_place =
        GetTraits(instruction.kind).tensors == TensorList::kOne;
    for (size_t rank = 0; rank < size; ++rank) {
      const auto& outputs =
          (in_place ? instruction.inputs : instruction.outputs)[rank];
      switch (GetTraits(instruction.kind).list_form) {
        case CollectiveKind::kBarrier:
          break;
        case CollectiveKind::kAllReduce:
          Write(rank, outputs, Reduced(in, instruction.op));
          break;
        case CollectiveKind::kReduce:
          if (rank != root) break;
          Write(rank, outputs, Reduced(in, instruction.op));
          break;
        case CollectiveKind::kBroadcast:
          Write(rank, outputs, in[root]);
          break;
        case CollectiveKind::kGather:
          if (rank != root) break;
          [[fallthrough]];
        case CollectiveKind::kAllGather:
          Write(rank, outputs, Joined(in));
          break;
        case CollectiveKind::kScatter:
          Write(rank, outputs, Part(in[root], instruction.inputs[root], rank));
          break;
        case CollectiveKind::kReduceScatter: {
          // After the parts of the ranks before it.
          size_t begin = 0;
          for (size_t before = 0; before < rank; ++before) {
            begin += instruction.outputs[before][0].count;
          }
          const std::vector<T> all = Reduced(in, instruction.op);
          const auto first = all.begin() + static_cast<ptrdiff_t>(begin);
          Write(rank, outputs,
                {first, first + static_cast<ptrdiff_t>(outputs[0].count)});
          break;
        }
        case CollectiveKind::kAllToAll: {
          std::vector<std::vector<T>> parts;
          for (size_t from = 0; from < size; ++from) {
            parts.push_back(Part(in[from], instruction.inputs[from], rank));
          }
          Write(rank, outputs, Joined(parts));
          break;
        }
        case CollectiveKind::kSend:
          if (rank == static_cast<size_t>(instruction.peer)) {
            Write(rank, outputs, in[root]);
          }
          break;
        default:
          LOG(FATAL) << CollectiveKindName(instruction.kind)
                     << " has no simulation";
      }
    }
  }

  std::vector<Buffers<T>> ranks;  // by rank of the world

 private:
  Buffers<T>& At(size_t rank) {
    return ranks[static_cast<size_t>((*group_)[rank])];
  }

  std::vector<T> Read(size_t rank, const std::vector<Slice>& slices) {
    std::vector<T> values;
    for (const Slice& slice : slices) {
      const auto begin =
          At(rank)[slice.buffer].begin() + static_cast<ptrdiff_t>(slice.begin);
      values.insert(values.end(), begin,
                    begin + static_cast<ptrdiff_t>(slice.count));
    }
    return values;
  }

  void Write(size_t rank, const std::vector<Slice>& slices,
             const std::vector<T>& values) {
    size_t next = 0;
    for (const Slice& slice : slices) {
      for (size_t i = 0; i < slice.count; ++i) {
        At(rank)[slice.buffer][slice.begin + i] = values[next++];
      }
    }
  }

  static std::vector<T> Joined(const std::vector<std::vector<T>>& lists) {
    std::vector<T> all;
    for (const auto& list : lists) {
      all.insert(all.end(), list.begin(), list.end());
    }
    return all;
  }

  // The part of `all`, the contents of `slices` in order, that belongs to slice
  // `number`.
  static std::vector<T> Part(const std::vector<T>& all,
                             const std::vector<Slice>& slices, size_t number) {
    size_t begin = 0;
    for (size_t i = 0; i < number; ++i) begin += slices[i].count;
    const auto first = all.begin() + static_cast<ptrdiff_t>(begin);
    return {first, first + static_cast<ptrdiff_t>(slices[number].count)};
  }

  // Combines two integers; wraps.
  static T Pair(ReduceOp op, T a, T b) {
    const auto x = static_cast<uint64_t>(a);
    const auto y = static_cast<uint64_t>(b);
    switch (op) {
      case ReduceOp::kMin:
        return std::min(a, b);
      case ReduceOp::kMax:
        return std::max(a, b);
      case ReduceOp::kProduct:
        return static_cast<T>(x * y);
      case ReduceOp::kBand:
        return static_cast<T>(x & y);
      case ReduceOp::kBor:
        return static_cast<T>(x | y);
      case ReduceOp::kBxor:
        return static_cast<T>(x ^ y);
      default:
        return static_cast<T>(x + y);
    }
  }

  // Reduces the values of one element.
  static T ReducedInteger(const std::vector<T>& of, ReduceOp op) {
    T result = of[0];
    for (size_t rank = 1; rank < of.size(); ++rank) {
      result = Pair(op, result, of[rank]);
    }
    if (op != ReduceOp::kAvg) return result;
    return static_cast<T>(static_cast<int64_t>(result) /
                          static_cast<int64_t>(of.size()));
  }

  static T ReducedFlag(const std::vector<T>& of, ReduceOp op) {
    T result = of[0];
    for (size_t rank = 1; rank < of.size(); ++rank) {
      result = {ExpectedFlag(op, result.value, of[rank].value)};
    }
    return result;
  }

  // Computes in float64, which is exact here, and rounds once.
  static T ReducedFloat(const std::vector<T>& of, ReduceOp op) {
    using Wide =
        std::conditional_t<kIsComplex<T>, std::complex<double>, double>;
    Wide result = 0;
    for (size_t rank = 0; rank < of.size(); ++rank) {
      auto value = static_cast<Wide>(Exact(of[rank]));
      if (op == ReduceOp::kPremulSum)
        value *= GetFactor(static_cast<int>(rank));
      if (rank == 0) {
        result = value;
      } else if (op == ReduceOp::kProduct) {
        result *= value;
      } else if (op != ReduceOp::kMin && op != ReduceOp::kMax) {
        result += value;
      } else if constexpr (!kIsComplex<T>) {
        result = op == ReduceOp::kMin ? std::min(result, value)
                                      : std::max(result, value);
      }
    }
    if (op == ReduceOp::kAvg) result /= static_cast<double>(of.size());
    if constexpr (kIsNarrow<T>) {
      return static_cast<T>(static_cast<float>(result));
    } else {
      return static_cast<T>(result);
    }
  }

  static std::vector<T> Reduced(const std::vector<std::vector<T>>& of,
                                ReduceOp op) {
    std::vector<T> result(of[0].size());
    std::vector<T> element(of.size());
    for (size_t i = 0; i < result.size(); ++i) {
      for (size_t rank = 0; rank < of.size(); ++rank) {
        element[rank] = of[rank][i];
      }
      if constexpr (std::is_same_v<T, Flag>) {
        result[i] = ReducedFlag(element, op);
      } else if constexpr (std::is_integral_v<T>) {
        result[i] = ReducedInteger(element, op);
      } else {
        result[i] = ReducedFloat(element, op);
      }
    }
    return result;
  }

  const RandomProgram& program_;
  const std::vector<int>* group_ = nullptr;
};

// Runs one rank's part of the program.
template <typename T>
class Runner {
 public:
  // `at`: this rank's communicator in each group; null if it is not in the
  // group.
  Runner(const RandomProgram& program, int rank, std::vector<Communicator*> at)
      : program_(program),
        at_(std::move(at)),
        buffers(Beginning<T>(program, rank)) {}

  void Run() {
    for (const Instruction& instruction : program_.instructions) {
      Communicator* const group = at_[instruction.group];
      if (group != nullptr) Start(instruction, *group);
    }
    while (!running_.empty()) FinishFirst();
  }

 private:
  struct Running {
    std::shared_ptr<Work> work;
    std::vector<Slice> touches;
  };

  // Checks a status that has no handle.
  void Expect(const Status& status) {
    if (!status.ok()) Report("", status.ToString());
  }

  void Finish(Work& work) {
    const Status status = work.Wait();
    if (!status.ok()) Report(work.description(), status.ToString());
  }

  void Report(const std::string& description, const std::string& text) {
    if (problem.empty()) problem = absl::StrCat(description, ": ", text);
  }

  void FinishFirst() {
    Finish(*running_.front().work);
    running_.erase(running_.begin());
  }

  // Waits for all instructions up to the last one that shares elements with
  // `slices`.
  void FinishWhatTouches(const std::vector<Slice>& slices) {
    size_t count = 0;
    for (size_t i = 0; i < running_.size(); ++i) {
      for (const Slice& a : running_[i].touches) {
        for (const Slice& b : slices) {
          if (a.Overlaps(b)) count = i + 1;
        }
      }
    }
    for (; count > 0; --count) FinishFirst();
  }

  Tensor MakeTensor(const Slice& slice) {
    return Tensor(buffers[slice.buffer].data() + slice.begin, program_.type,
                  {static_cast<int64_t>(slice.count)});
  }

  Collective::Tensors Tensors(const std::vector<Slice>& slices) {
    Collective::Tensors tensors;
    for (const Slice& slice : slices) tensors.push_back(MakeTensor(slice));
    return tensors;
  }

  // The slices, which are contiguous, as one tensor.
  Collective::Tensors Whole(const std::vector<Slice>& slices,
                            std::vector<int64_t>& splits) {
    Slice whole = slices[0];
    whole.count = 0;
    for (const Slice& slice : slices) {
      whole.count += slice.count;
      splits.push_back(static_cast<int64_t>(slice.count));
    }
    return {MakeTensor(whole)};
  }

  void Start(const Instruction& instruction, Communicator& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const std::vector<Slice>& inputs = instruction.inputs[rank];
    const std::vector<Slice>& outputs = instruction.outputs[rank];
    const std::vector<Slice> touches = instruction.TouchedBy(rank);
    FinishWhatTouches(touches);
    if (instruction.from_any) return GatherFromAny(instruction, group);
    Collective collective{.kind = instruction.kind,
                          .reduce_op = instruction.op,
                          .factor = GetFactor(group.rank()),
                          .root = instruction.root,
                          .peer = instruction.peer,
                          .tag = instruction.tag};
    if (IsPointToPoint(instruction.kind)) {
      if (group.rank() == instruction.peer) {
        collective.kind = CollectiveKind::kRecv;
        collective.peer = instruction.root;
      } else if (group.rank() != instruction.root) {
        return;
      }
    }
    if (GetTraits(instruction.kind).tensors == TensorList::kOne) {
      collective.tensors = Tensors(inputs);
    } else if (HasSplits(instruction.kind)) {
      collective.inputs = Whole(inputs, collective.input_splits);
      collective.outputs = Whole(outputs, collective.output_splits);
    } else {
      collective.inputs = Tensors(inputs);
      collective.outputs = Tensors(outputs);
    }
    if (instruction.with_next || !together_.empty()) {
      together_.push_back(std::move(collective));
      touched_together_.insert(touched_together_.end(), touches.begin(),
                               touches.end());
      if (instruction.with_next) return;
      if (instruction.waits) {
        Expect(RunCoalesced(group, std::exchange(together_, {})));
        touched_together_.clear();
      } else {
        running_.push_back({StartCoalesced(group, std::exchange(together_, {})),
                            std::exchange(touched_together_, {})});
      }
    } else if (instruction.waits && !IsPointToPoint(collective.kind)) {
      Expect(group.Run(std::move(collective)));
    } else {
      running_.push_back({group.Start(std::move(collective)), touches});
    }
    // Earlier instructions may be waited for in any order.
    while (instruction.waits && !running_.empty()) FinishFirst();
  }

  // Receives in the order of arrival; each message says which rank sent it.
  void GatherFromAny(const Instruction& instruction, Communicator& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const Slice& own = instruction.inputs[rank][0];
    if (group.rank() != instruction.root) {
      running_.push_back({group.Start({.kind = CollectiveKind::kSend,
                                       .inputs = {MakeTensor(own)},
                                       .peer = instruction.root,
                                       .tag = instruction.tag}),
                          {own}});
      return;
    }
    const std::vector<Slice>& outputs = instruction.outputs[rank];
    const auto put = [&](const T* from, const Slice& to) {
      std::copy_n(from, to.count, buffers[to.buffer].data() + to.begin);
    };
    std::vector<std::vector<T>> arriving(outputs.size() - 1,
                                         std::vector<T>(own.count));
    std::vector<std::shared_ptr<Work>> works;
    for (std::vector<T>& one : arriving) {
      works.push_back(
          group.Start({.kind = CollectiveKind::kRecv,
                       .outputs = {Tensor(one.data(), program_.type,
                                          {static_cast<int64_t>(own.count)})},
                       .peer = kAnyPeer,
                       .tag = instruction.tag}));
    }
    std::vector<bool> heard(outputs.size());
    heard[rank] = true;
    put(buffers[own.buffer].data() + own.begin, outputs[rank]);
    for (size_t i = 0; i < works.size(); ++i) {
      Finish(*works[i]);
      const int source = works[i]->source_rank();
      const auto from = static_cast<size_t>(source);
      if (source < 0 || from >= heard.size() || heard[from]) {
        return Report(works[i]->description(),
                      absl::StrCat("is from rank ", source));
      }
      heard[from] = true;
      put(arriving[i].data(), outputs[from]);
    }
  }

  const RandomProgram& program_;
  const std::vector<Communicator*> at_;
  std::vector<Running> running_;
  // Collectives to coalesce with the next instruction, and their slices.
  std::vector<Collective> together_;
  std::vector<Slice> touched_together_;

 public:
  Buffers<T> buffers;
  std::string problem;
};

template <typename T>
std::string Text(T value) {
  if constexpr (std::is_same_v<T, Flag>) {
    return value.value ? "true" : "false";
  } else if constexpr (kIsComplex<T>) {
    return absl::StrCat("(", value.real(), ", ", value.imag(), ")");
  } else {
    return absl::StrCat(Exact(value));
  }
}

template <typename T>
std::string RunAs(const RandomProgram& program, const std::string& backend) {
  Simulation<T> simulation(program);
  for (const Instruction& instruction : program.instructions) {
    simulation.Do(instruction);
  }
  std::vector<std::unique_ptr<LocalWorld>> groups;
  for (const auto& ranks : program.groups) {
    groups.push_back(std::make_unique<LocalWorld>(LocalWorldOptions{
        .backend = backend,
        .world_size = static_cast<int>(ranks.size()),
        .group_name = absl::StrCat("group-", groups.size())}));
  }
  std::vector<Runner<T>> runners;
  for (const int rank : program.groups[0]) {
    std::vector<Communicator*> at;
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto& ranks = program.groups[g];
      const auto found = std::find(ranks.begin(), ranks.end(), rank);
      at.push_back(found == ranks.end() ? nullptr
                                        : &groups[g]->at(static_cast<int>(
                                              found - ranks.begin())));
    }
    runners.emplace_back(program, rank, std::move(at));
  }
  groups[0]->OnEachRank([&](Communicator& world) {
    runners[static_cast<size_t>(world.rank())].Run();
  });
  for (size_t rank = 0; rank < runners.size(); ++rank) {
    if (!runners[rank].problem.empty()) {
      return absl::StrCat("rank ", rank, ": ", runners[rank].problem);
    }
    for (size_t b = 0; b < program.buffer_count; ++b) {
      const auto& actual = runners[rank].buffers[b];
      const auto& expected = simulation.ranks[rank][b];
      for (size_t i = 0; i < actual.size(); ++i) {
        if (actual[i] == expected[i]) continue;
        return absl::StrCat("rank ", rank, " buffer ", b, " element ", i,
                            " is ", Text(actual[i]), ", not ",
                            Text(expected[i]));
      }
    }
  }
  return "";
}

}  // namespace

std::string RunProgram(const RandomProgram& program,
                       const std::string& backend) {
  std::string problem;
  WithElementType(program.type,
                  [&]<typename T>(T) { problem = RunAs<T>(program, backend); });
  return problem;
}

}  // namespace muster::dataplane::testing
