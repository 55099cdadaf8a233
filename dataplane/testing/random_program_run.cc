// A random program, simulated and run.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/random_program.h"

namespace muster::dataplane::testing {
namespace {

template <typename T>
using Buffers = std::vector<std::vector<T>>;

// What each rank begins with: different everywhere.
template <typename T>
Buffers<T> Beginning(const RandomProgram& program, int rank) {
  Buffers<T> buffers(program.buffer_count);
  for (size_t b = 0; b < buffers.size(); ++b) {
    for (size_t i = 0; i < program.buffer_size; ++i) {
      const uint64_t number = (i + 1) * 2654435761U + b * 40503U +
                              static_cast<uint64_t>(rank) * 97U;
      const int value = static_cast<int>(number % 251) - 125;
      if constexpr (std::is_integral_v<T>) {
        buffers[b].push_back(static_cast<T>(value));
      } else {
        buffers[b].push_back(static_cast<T>(static_cast<float>(value)));
      }
    }
  }
  return buffers;
}

// By plain loops, one instruction after the other, all ranks at a time.
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
    for (size_t rank = 0; rank < size; ++rank) {
      const auto& outputs = instruction.outputs[rank];
      switch (instruction.kind) {
        case CollectiveKind::kBarrier:
          break;
        case CollectiveKind::kAllReduce:
          Write(rank, instruction.inputs[rank], Reduced(in, instruction.op));
          break;
        case CollectiveKind::kReduce:
          if (rank != root) break;
          Write(rank, instruction.inputs[rank], Reduced(in, instruction.op));
          break;
        case CollectiveKind::kBroadcast:
          Write(rank, instruction.inputs[rank], in[root]);
          break;
        case CollectiveKind::kGather:
          if (rank != root) break;
          [[fallthrough]];
        case CollectiveKind::kAllGather:
        case CollectiveKind::kAllGatherIntoTensor:
          Write(rank, outputs, Joined(in));
          break;
        case CollectiveKind::kScatter:
          Write(rank, outputs, Part(in[root], instruction.inputs[root], rank));
          break;
        case CollectiveKind::kReduceScatter:
          Write(rank, outputs,
                Part(Reduced(in, instruction.op), instruction.inputs[0], rank));
          break;
        case CollectiveKind::kReduceScatterTensor: {
          const std::vector<T> all = Reduced(in, instruction.op);
          const auto part = static_cast<ptrdiff_t>(all.size() / size);
          const auto begin = all.begin() + part * static_cast<ptrdiff_t>(rank);
          Write(rank, outputs, std::vector<T>(begin, begin + part));
          break;
        }
        case CollectiveKind::kAllToAll:
        case CollectiveKind::kAllToAllSingle: {
          std::vector<std::vector<T>> parts;
          for (size_t from = 0; from < size; ++from) {
            parts.push_back(Part(in[from], instruction.inputs[from], rank));
          }
          Write(rank, outputs, Joined(parts));
          break;
        }
        case CollectiveKind::kSend:
        case CollectiveKind::kRecv:
          if (rank == static_cast<size_t>(instruction.peer)) {
            Write(rank, outputs, in[root]);
          }
          break;
      }
    }
  }

  std::vector<Buffers<T>> ranks;  // of the world

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

  // Of what is in these slices: the `number`-th.
  static std::vector<T> Part(const std::vector<T>& all,
                             const std::vector<Slice>& slices, size_t number) {
    size_t begin = 0;
    for (size_t i = 0; i < number; ++i) begin += slices[i].count;
    const auto first = all.begin() + static_cast<ptrdiff_t>(begin);
    return {first, first + static_cast<ptrdiff_t>(slices[number].count)};
  }

  static T Pair(ReduceOp op, T a, T b) {
    if (op == ReduceOp::kMin) return b < a ? b : a;
    if (op == ReduceOp::kMax) return a < b ? b : a;
    if constexpr (std::is_integral_v<T>) {
      const auto x = static_cast<uint64_t>(a);
      const auto y = static_cast<uint64_t>(b);
      switch (op) {
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
    return a;
  }

  static std::vector<T> Reduced(const std::vector<std::vector<T>>& of,
                                ReduceOp op) {
    std::vector<T> result = of[0];
    for (size_t rank = 1; rank < of.size(); ++rank) {
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = Pair(op, result[i], of[rank][i]);
      }
    }
    if constexpr (std::is_integral_v<T>) {
      if (op == ReduceOp::kAvg) {
        for (T& value : result) {
          value = static_cast<T>(static_cast<int64_t>(value) /
                                 static_cast<int64_t>(of.size()));
        }
      }
    }
    return result;
  }

  const RandomProgram& program_;
  const std::vector<int>* group_ = nullptr;
};

// One rank of the world, which runs its part of the program.
template <typename T>
class Runner {
 public:
  // `at`: this rank's end of each group; null where it is in none.
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

  static bool Overlap(const Slice& a, const Slice& b) {
    return a.buffer == b.buffer && a.begin < b.begin + b.count &&
           b.begin < a.begin + a.count;
  }

  void FinishFirst() {
    const absl::Status status = running_.front().work->Wait();
    if (!status.ok() && problem.empty()) {
      problem = absl::StrCat(running_.front().work->description(), ": ",
                             status.ToString());
    }
    running_.erase(running_.begin());
  }

  // Waits for those that were started up to the last one that needs the same.
  void FinishWhatTouches(const std::vector<Slice>& slices) {
    size_t count = 0;
    for (size_t i = 0; i < running_.size(); ++i) {
      for (const Slice& a : running_[i].touches) {
        for (const Slice& b : slices) {
          if (Overlap(a, b)) count = i + 1;
        }
      }
    }
    for (; count > 0; --count) FinishFirst();
  }

  Tensor TensorOf(const Slice& slice) {
    return Tensor(buffers[slice.buffer].data() + slice.begin, program_.type,
                  {static_cast<int64_t>(slice.count)});
  }

  Collective::Tensors Tensors(const std::vector<Slice>& slices) {
    Collective::Tensors tensors;
    for (const Slice& slice : slices) tensors.push_back(TensorOf(slice));
    return tensors;
  }

  // As one tensor, whose parts lie one after the other.
  Collective::Tensors Whole(const std::vector<Slice>& slices,
                            std::vector<int64_t>& splits) {
    Slice whole = slices[0];
    whole.count = 0;
    for (const Slice& slice : slices) {
      whole.count += slice.count;
      splits.push_back(static_cast<int64_t>(slice.count));
    }
    return {TensorOf(whole)};
  }

  void Start(const Instruction& instruction, Communicator& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const std::vector<Slice>& inputs = instruction.inputs[rank];
    const std::vector<Slice>& outputs = instruction.outputs[rank];
    Collective collective{.kind = instruction.kind,
                          .reduce_op = instruction.op,
                          .root = instruction.root,
                          .peer = instruction.peer,
                          .tag = instruction.tag};
    switch (instruction.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kReduce:
        collective.tensors = Tensors(inputs);
        break;
      case CollectiveKind::kAllToAllSingle:
        collective.inputs = Whole(inputs, collective.input_splits);
        collective.outputs = Whole(outputs, collective.output_splits);
        break;
      case CollectiveKind::kSend:
        if (group.rank() == instruction.peer) {
          collective.kind = CollectiveKind::kRecv;
          collective.peer = instruction.root;
        } else if (group.rank() != instruction.root) {
          return;
        }
        [[fallthrough]];
      default:
        collective.inputs = Tensors(inputs);
        collective.outputs = Tensors(outputs);
    }
    std::vector<Slice> touches = inputs;
    touches.insert(touches.end(), outputs.begin(), outputs.end());
    FinishWhatTouches(touches);
    collective.caller_waits = instruction.waits;
    running_.push_back({group.Start(std::move(collective)), touches});
    // The order of the wait does not matter to what came before.
    while (instruction.waits && !running_.empty()) FinishFirst();
  }

  const RandomProgram& program_;
  const std::vector<Communicator*> at_;
  std::vector<Running> running_;

 public:
  Buffers<T> buffers;
  std::string problem;
};

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
                            " is ", static_cast<double>(actual[i]), ", not ",
                            static_cast<double>(expected[i]));
      }
    }
  }
  return "";
}

}  // namespace

std::string RunProgram(const RandomProgram& program,
                       const std::string& backend) {
  switch (program.type) {
    case DataType::kUint8:
      return RunAs<uint8_t>(program, backend);
    case DataType::kInt8:
      return RunAs<int8_t>(program, backend);
    case DataType::kInt16:
      return RunAs<int16_t>(program, backend);
    case DataType::kInt64:
      return RunAs<int64_t>(program, backend);
    case DataType::kFloat16:
      return RunAs<Eigen::half>(program, backend);
    case DataType::kFloat32:
      return RunAs<float>(program, backend);
    default:
      return RunAs<int32_t>(program, backend);
  }
}

}  // namespace muster::dataplane::testing
