#include "worker/bench/operation.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::worker::bench {
namespace {

using Flow = Operation::Flow;

// Makes calls with `options`, which are copied once.
template <typename Options, typename Call>
Calls With(Options options, Call call) {
  return [options, call](bool async, int calls) mutable {
    options.async_op = async;
    for (; calls > 1; --calls) call(options);
    return call(options);
  };
}

// Returns a list that only the root has.
const std::vector<Tensor>& OnRoot(const CallArguments& a,
                                  const Operand& operand) {
  static const std::vector<Tensor> kNone;
  return a.is_root ? operand.parts : kNone;
}

ReduceOptions ToReduceOptions(const ReductionOptions& options) {
  return {.op = options.op, .factor = options.factor};
}

ReduceScatterVOptions ToReduceScatterVOptions(const ReductionOptions& options) {
  return {.op = options.op, .factor = options.factor};
}

constexpr Operation kOperations[] = {
    {.name = "all_reduce",
     .flow = Flow::kInPlace,
     .reduces = true,
     .make_calls =
         [](const CallArguments& a) {
           return With(a.reduction, [&a](const auto& options) {
             return AllReduce(a.output.one, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareAllReduce(a.output.one, a.reduction);
         }},
    {.name = "broadcast",
     .flow = Flow::kInPlace,
     .has_root = true,
     .make_calls =
         [](const CallArguments& a) {
           return With(BroadcastOptions(), [&a](const auto& options) {
             return Broadcast(a.output.one, a.root, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareBroadcast(a.output.one, a.root);
         }},
    {.name = "reduce",
     .flow = Flow::kInPlace,
     .reduces = true,
     .has_root = true,
     .make_calls =
         [](const CallArguments& a) {
           return With(ToReduceOptions(a.reduction), [&a](const auto& options) {
             return Reduce(a.output.one, a.root, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareReduce(a.output.one, a.root,
                                              ToReduceOptions(a.reduction));
         }},
    {.name = "all_gather",
     .flow = Flow::kGather,
     .make_calls =
         [](const CallArguments& a) {
           return With(CollectiveOptions(), [&a](const auto& options) {
             return AllGather(a.output.parts, a.input.one, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareAllGather(a.output.parts, a.input.one);
         }},
    {.name = "all_gather_into_tensor",
     .flow = Flow::kGather,
     .make_calls =
         [](const CallArguments& a) {
           return With(CollectiveOptions(), [&a](const auto& options) {
             return AllGatherIntoTensor(a.output.all, a.input.one, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareAllGatherIntoTensor(a.output.all,
                                                           a.input.one);
         }},
    {.name = "all_gather_v",
     .flow = Flow::kGather,
     .make_calls =
         [](const CallArguments& a) {
           return With(AllGatherVOptions(), [&a](const auto& options) {
             return AllGatherV(a.output.all, a.input.one, a.counts, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareAllGatherV(a.output.all, a.input.one,
                                                  a.counts);
         }},
    {.name = "gather",
     .flow = Flow::kGather,
     .has_root = true,
     .make_calls =
         [](const CallArguments& a) {
           return With(GatherOptions(), [&a](const auto& options) {
             return Gather(a.input.one, OnRoot(a, a.output), a.root, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareGather(a.input.one, OnRoot(a, a.output),
                                              a.root);
         }},
    {.name = "scatter",
     .flow = Flow::kScatter,
     .has_root = true,
     .make_calls =
         [](const CallArguments& a) {
           return With(ScatterOptions(), [&a](const auto& options) {
             return Scatter(a.output.one, OnRoot(a, a.input), a.root, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareScatter(a.output.one, OnRoot(a, a.input),
                                               a.root);
         }},
    {.name = "reduce_scatter",
     .flow = Flow::kScatter,
     .reduces = true,
     .make_calls =
         [](const CallArguments& a) {
           return With(a.reduction, [&a](const auto& options) {
             return ReduceScatter(a.output.one, a.input.parts, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareReduceScatter(
               a.output.one, a.input.parts, a.reduction);
         }},
    {.name = "reduce_scatter_tensor",
     .flow = Flow::kScatter,
     .reduces = true,
     .make_calls =
         [](const CallArguments& a) {
           return With(a.reduction, [&a](const auto& options) {
             return ReduceScatterTensor(a.output.one, a.input.all, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareReduceScatterTensor(
               a.output.one, a.input.all, a.reduction);
         }},
    {.name = "reduce_scatter_v",
     .flow = Flow::kScatter,
     .reduces = true,
     .make_calls =
         [](const CallArguments& a) {
           return With(ToReduceScatterVOptions(a.reduction),
                       [&a](const auto& options) {
                         return ReduceScatterV(a.output.one, a.input.all,
                                               a.counts, options);
                       });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareReduceScatterV(
               a.output.one, a.input.all, a.counts,
               ToReduceScatterVOptions(a.reduction));
         }},
    {.name = "all_to_all",
     .flow = Flow::kExchange,
     .make_calls =
         [](const CallArguments& a) {
           return With(CollectiveOptions(), [&a](const auto& options) {
             return AllToAll(a.output.parts, a.input.parts, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareAllToAll(a.output.parts, a.input.parts);
         }},
    {.name = "all_to_all_single",
     .flow = Flow::kExchange,
     .make_calls =
         [](const CallArguments& a) {
           return With(AllToAllSingleOptions(), [&a](const auto& options) {
             return AllToAllSingle(a.output.all, a.input.all, options);
           });
         },
     .prepare =
         [](const CallArguments& a) {
           return WorldGroup()->PrepareAllToAllSingle(a.output.all,
                                                      a.input.all);
         }},
    {.name = "sendrecv", .flow = Flow::kRing},
    {.name = "barrier",
     .flow = Flow::kNone,
     .make_calls =
         [](const CallArguments&) {
           return With(BarrierOptions(),
                       [](const auto& options) { return Barrier(options); });
         },
     .prepare =
         [](const CallArguments&) { return WorldGroup()->PrepareBarrier(); }},
};

struct TypeName {
  const char* name;
  DataType type;
};

// The first name of each type is nccl-tests'.
constexpr TypeName kTypes[] = {
    {"int8", DataType::kInt8},
    {"uint8", DataType::kUint8},
    {"int16", DataType::kInt16},
    {"int32", DataType::kInt32},
    {"int64", DataType::kInt64},
    {"half", DataType::kFloat16},
    {"float16", DataType::kFloat16},
    {"bfloat16", DataType::kBfloat16},
    {"float", DataType::kFloat32},
    {"float32", DataType::kFloat32},
    {"double", DataType::kFloat64},
    {"float64", DataType::kFloat64},
    {"bool", DataType::kBool},
    {"complex64", DataType::kComplex64},
    {"complex128", DataType::kComplex128},
    {"f8e4m3", DataType::kFloat8E4m3fn},
    {"float8_e4m3fn", DataType::kFloat8E4m3fn},
    {"f8e5m2", DataType::kFloat8E5m2},
    {"float8_e5m2", DataType::kFloat8E5m2},
    {"uint16", DataType::kUint16},
    {"uint32", DataType::kUint32},
    {"uint64", DataType::kUint64},
    {"opaque", DataType::kOpaque},
    {"float32_int32", DataType::kFloat32Int32},
    {"float64_int64", DataType::kFloat64Int64},
    {"int32_int32", DataType::kInt32Int32},
    {"int64_int64", DataType::kInt64Int64},
};

struct OpName {
  const char* name;
  ReduceOp op;
};

constexpr OpName kOps[] = {
    {"sum", ReduceOp::kSum},
    {"prod", ReduceOp::kProduct},
    {"product", ReduceOp::kProduct},
    {"min", ReduceOp::kMin},
    {"max", ReduceOp::kMax},
    {"avg", ReduceOp::kAvg},
    {"band", ReduceOp::kBand},
    {"bor", ReduceOp::kBor},
    {"bxor", ReduceOp::kBxor},
    {"mulsum", ReduceOp::kPremulSum},
    {"premul_sum", ReduceOp::kPremulSum},
    {"minloc", ReduceOp::kMinloc},
    {"maxloc", ReduceOp::kMaxloc},
    {"user", ReduceOp::kUser},
};

// The number of parts of the larger of a rank's two tensors.
int PartsFor(const Operation& operation, int world_size) {
  return operation.is_cut() ? world_size : 1;
}

// The index in the sender's pattern at which the part for `target` begins.
size_t ComputeFirst(const Case& measured, int target) {
  return static_cast<size_t>(target) * measured.count;
}

}  // namespace

const Operation* FindOperation(absl::string_view name) {
  for (const Operation& operation : kOperations) {
    if (operation.name == name) return &operation;
  }
  return nullptr;
}

std::string OperationNames() {
  std::string names;
  for (const Operation& operation : kOperations) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", operation.name);
  }
  return names;
}

double BusFactor(const Operation& operation, int world_size) {
  const double others = world_size - 1;
  // The data go to all ranks and come from all ranks.
  if (operation.flow == Flow::kInPlace && !operation.has_root) {
    return 2 * others / world_size;
  }
  return operation.is_cut() ? others / world_size : 1;
}

std::optional<DataType> FindDataType(absl::string_view name) {
  for (const TypeName& type : kTypes) {
    if (type.name == name) return type.type;
  }
  return std::nullopt;
}

std::optional<ReduceOp> FindReduceOp(absl::string_view name) {
  for (const OpName& op : kOps) {
    if (op.name == name) return op.op;
  }
  return std::nullopt;
}

std::vector<DataType> AllDataTypes() {
  std::vector<DataType> types;
  for (const TypeName& type : kTypes) {
    if (std::find(types.begin(), types.end(), type.type) == types.end()) {
      types.push_back(type.type);
    }
  }
  return types;
}

std::vector<ReduceOp> AllReduceOps() {
  std::vector<ReduceOp> ops;
  for (const OpName& op : kOps) {
    if (std::find(ops.begin(), ops.end(), op.op) == ops.end()) {
      ops.push_back(op.op);
    }
  }
  return ops;
}

size_t Case::Elements(int world_size) const {
  return count * PartsFor(*operation, world_size);
}

size_t Case::Bytes(int world_size) const {
  return Elements(world_size) * DataTypeBytes(data_type);
}

size_t CountFor(const Case& measured, int64_t bytes, int world_size) {
  if (measured.operation->flow == Flow::kNone) return 0;
  const size_t parts = PartsFor(*measured.operation, world_size);
  return std::max<size_t>(1, bytes / DataTypeBytes(measured.data_type) / parts);
}

Trial::Trial(const Case& measured, int rank, int world_size, Device device,
             bool is_symmetric, bool is_prepared)
    : case_(measured),
      rank_(rank),
      world_size_(world_size),
      device_(device),
      part_bytes_(measured.count * DataTypeBytes(measured.data_type)),
      reduced_(
          Pattern::Reduced(measured.data_type, measured.reduce_op, world_size)),
      memory_(device, part_bytes_ * PartsFor(*measured.operation, world_size),
              is_symmetric) {
  for (int r = 0; r < world_size; ++r) {
    inputs_.push_back(
        Pattern::Input(measured.data_type, measured.reduce_op, r));
  }
  const Operation& operation = *measured.operation;
  Operand& input = arguments_.input;
  Operand& output = arguments_.output;
  input.buffer = &memory_;
  output.buffer = &memory_;
  Operand& smaller = operation.flow == Flow::kGather ? input : output;
  const bool both = operation.flow == Flow::kExchange;
  if (!measured.in_place) {
    const bool is_small = operation.is_cut() && !both;
    other_memory_.emplace(
        device,
        is_small ? part_bytes_ : part_bytes_ * PartsFor(operation, world_size),
        is_symmetric);
    smaller.buffer = &*other_memory_;
  } else if (operation.is_cut()) {
    // The smaller tensor is this rank's part of the larger one.
    smaller.offset = static_cast<size_t>(rank) * part_bytes_;
  }
  MakeTensors(input, operation.is_cut() && (both || &smaller != &input));
  MakeTensors(output, operation.is_cut() && (both || &smaller != &output));
  arguments_.root = measured.root;
  arguments_.is_root = rank == measured.root;
  arguments_.counts.assign(static_cast<size_t>(world_size),
                           static_cast<int64_t>(measured.count));
  arguments_.reduction.op = measured.reduce_op == ReduceOp::kUser
                                ? MakeSumFunction(measured.data_type)
                                : ReduceOperator(measured.reduce_op);
  if (measured.reduce_op == ReduceOp::kPremulSum) {
    arguments_.reduction.factor = GetFactor(rank);
  }
  if (is_prepared) {
    prepared_ = operation.prepare(arguments_);
    calls_ = [this](bool async, int calls) {
      for (; calls > 1; --calls) prepared_.Run();
      if (async) return prepared_.Start();
      prepared_.Run();
      return Work();
    };
  } else if (operation.make_calls != nullptr) {
    calls_ = operation.make_calls(arguments_);
  }
}

std::byte* Trial::GetPart(std::byte* memory, int part) const {
  return memory + static_cast<size_t>(part) * part_bytes_;
}

void Trial::Clear() {
  memory_.Clear();
  if (other_memory_.has_value()) other_memory_->Clear();
}

void Trial::Bring() {
  Clear();
  const Pattern& own = inputs_[rank_];
  const Flow flow = case_.operation->flow;
  const bool has_parts = flow == Flow::kScatter || flow == Flow::kExchange;
  for (int part = 0; part < (has_parts ? world_size_ : 1); ++part) {
    own.Fill(GetPart(arguments_.input.host(), part), case_.count,
             ComputeFirst(case_, part));
  }
  arguments_.input.buffer->Give();
}

void Trial::Synchronize() const {
  if (device_.type == DeviceType::kCuda) {
    SynchronizeCurrentStream(device_.index);
  }
}

int64_t Trial::CountWrong(int ulps) {
  const Operand& operand = arguments_.output;
  operand.buffer->Take();
  std::byte* const output = operand.host();
  const size_t count = case_.count;
  const Operation& operation = *case_.operation;
  const bool is_root = arguments_.is_root;
  // The start of this rank's part, if ranks get different parts.
  const size_t own = ComputeFirst(case_, rank_);
  switch (operation.flow) {
    case Flow::kNone:
      return 0;
    case Flow::kInPlace:
    case Flow::kScatter: {
      const size_t first = operation.flow == Flow::kScatter ? own : 0;
      if (!operation.reduces) {
        return inputs_[case_.root].CountWrong(output, count, first);
      }
      // Other ranks' tensors do not change.
      if (operation.has_root && !is_root) {
        return inputs_[rank_].CountWrong(output, count, first);
      }
      return reduced_.CountWrong(output, count, first, ulps);
    }
    case Flow::kRing:
      return inputs_[(rank_ + world_size_ - 1) % world_size_].CountWrong(output,
                                                                         count);
    case Flow::kGather:
      if (operation.has_root && !is_root) return 0;
      break;
    case Flow::kExchange:
      break;
  }
  // The parts of all ranks, one after the other.
  const size_t first = operation.flow == Flow::kExchange ? own : 0;
  int64_t wrong = 0;
  for (int part = 0; part < world_size_; ++part) {
    wrong += inputs_[part].CountWrong(GetPart(output, part), count, first);
  }
  return wrong;
}

void Trial::MakeTensors(Operand& operand, bool is_whole) const {
  const auto count = static_cast<int64_t>(case_.count);
  operand.one = Tensor(operand.data(), case_.data_type, {count}, device_);
  if (!is_whole) return;
  operand.all =
      Tensor(operand.data(), case_.data_type, {count * world_size_}, device_);
  for (int part = 0; part < world_size_; ++part) {
    operand.parts.emplace_back(GetPart(operand.data(), part), case_.data_type,
                               std::span<const int64_t>({count}), device_);
  }
}

// Around the ring of ranks.
std::vector<Work> Trial::SendAndReceive(bool wait) {
  std::vector<Work> works;
  works.push_back(
      Irecv(arguments_.output.one, (rank_ + world_size_ - 1) % world_size_));
  works.push_back(Isend(arguments_.input.one, (rank_ + 1) % world_size_));
  if (!wait) return works;
  for (Work& work : works) work.Wait();
  return {};
}

void Trial::Run(int calls) {
  if (calls_ != nullptr && device_.type == DeviceType::kCpu) {
    calls_(/*async=*/false, calls);
    return;
  }
  for (int i = 0; i < calls; ++i) {
    Call(/*wait=*/true);
    Synchronize();
  }
}

std::vector<Work> Trial::Call(bool wait) {
  if (calls_ == nullptr) return SendAndReceive(wait);
  Work work = calls_(/*async=*/!wait, /*calls=*/1);
  std::vector<Work> works;
  if (!wait) works.push_back(std::move(work));
  return works;
}

}  // namespace muster::worker::bench
