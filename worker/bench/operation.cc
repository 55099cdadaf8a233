#include "worker/bench/operation.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::worker::bench {
namespace {

using Verb = Operation::Verb;

constexpr Operation kOperations[] = {
    {.verb = Verb::kAllReduce,
     .name = "all_reduce",
     .is_cut = false,
     .reduces = true,
     .has_root = false,
     .out_of_place = false,
     .in_place = true},
    {.verb = Verb::kBroadcast,
     .name = "broadcast",
     .is_cut = false,
     .reduces = false,
     .has_root = true,
     .out_of_place = false,
     .in_place = true},
    {.verb = Verb::kReduce,
     .name = "reduce",
     .is_cut = false,
     .reduces = true,
     .has_root = true,
     .out_of_place = false,
     .in_place = true},
    {.verb = Verb::kAllGather,
     .name = "all_gather",
     .is_cut = true,
     .reduces = false,
     .has_root = false,
     .out_of_place = true,
     .in_place = true},
    {.verb = Verb::kAllGatherIntoTensor,
     .name = "all_gather_into_tensor",
     .is_cut = true,
     .reduces = false,
     .has_root = false,
     .out_of_place = true,
     .in_place = true},
    {.verb = Verb::kGather,
     .name = "gather",
     .is_cut = true,
     .reduces = false,
     .has_root = true,
     .out_of_place = true,
     .in_place = true},
    {.verb = Verb::kScatter,
     .name = "scatter",
     .is_cut = true,
     .reduces = false,
     .has_root = true,
     .out_of_place = true,
     .in_place = true},
    {.verb = Verb::kReduceScatter,
     .name = "reduce_scatter",
     .is_cut = true,
     .reduces = true,
     .has_root = false,
     .out_of_place = true,
     .in_place = true},
    {.verb = Verb::kReduceScatterTensor,
     .name = "reduce_scatter_tensor",
     .is_cut = true,
     .reduces = true,
     .has_root = false,
     .out_of_place = true,
     .in_place = true},
    {.verb = Verb::kAllToAll,
     .name = "all_to_all",
     .is_cut = true,
     .reduces = false,
     .has_root = false,
     .out_of_place = true,
     .in_place = false},
    {.verb = Verb::kAllToAllSingle,
     .name = "all_to_all_single",
     .is_cut = true,
     .reduces = false,
     .has_root = false,
     .out_of_place = true,
     .in_place = false},
    {.verb = Verb::kSendRecv,
     .name = "sendrecv",
     .is_cut = false,
     .reduces = false,
     .has_root = false,
     .out_of_place = true,
     .in_place = false},
    {.verb = Verb::kBarrier,
     .name = "barrier",
     .is_cut = false,
     .reduces = false,
     .has_root = false,
     .out_of_place = true,
     .in_place = false},
};

struct TypeName {
  const char* name;
  DataType type;
};

// The first one of a type is nccl-tests'.
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
};

// How many parts the larger of a rank's two tensors has.
int PartsFor(const Operation& operation, int world_size) {
  return operation.is_cut ? world_size : 1;
}

// The input is the smaller one.
bool Gathers(const Operation& operation) {
  return operation.verb == Verb::kAllGather ||
         operation.verb == Verb::kAllGatherIntoTensor ||
         operation.verb == Verb::kGather;
}

bool Exchanges(const Operation& operation) {
  return operation.verb == Verb::kAllToAll ||
         operation.verb == Verb::kAllToAllSingle;
}

// Where in its pattern rank `source`'s part for rank `target` begins: in all
// other operations than all_to_all parts follow each other.
size_t FirstOf(const Case& measured, int target) {
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
  if (operation.verb == Verb::kAllReduce) return 2 * others / world_size;
  return operation.is_cut ? others / world_size : 1;
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
  if (measured.operation->verb == Verb::kBarrier) return 0;
  const size_t parts = PartsFor(*measured.operation, world_size);
  return std::max<size_t>(1, bytes / DataTypeBytes(measured.data_type) / parts);
}

Trial::Trial(const Case& measured, int rank, int world_size, Device device,
             bool is_symmetric)
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
  input_.buffer = &memory_;
  output_.buffer = &memory_;
  Place& smaller = Gathers(operation) ? input_ : output_;
  if (!measured.in_place) {
    const bool is_small = operation.is_cut && !Exchanges(operation);
    other_memory_.emplace(
        device,
        is_small ? part_bytes_ : part_bytes_ * PartsFor(operation, world_size),
        is_symmetric);
    smaller.buffer = &*other_memory_;
  } else if (operation.is_cut) {
    // The smaller one is this rank's part of the larger one.
    smaller.offset = static_cast<size_t>(rank) * part_bytes_;
  }
  const bool both = Exchanges(operation);
  MakeTensors(input_, operation.is_cut && (both || &smaller != &input_));
  MakeTensors(output_, operation.is_cut && (both || &smaller != &output_));
  calls_ = MakeCalls();
}

std::byte* Trial::PartOf(std::byte* memory, int part) const {
  return memory + static_cast<size_t>(part) * part_bytes_;
}

void Trial::Clear() {
  memory_.Clear();
  if (other_memory_.has_value()) other_memory_->Clear();
}

void Trial::Bring() {
  Clear();
  const Pattern& own = inputs_[rank_];
  const bool has_parts = case_.operation->is_cut && !Gathers(*case_.operation);
  for (int part = 0; part < (has_parts ? world_size_ : 1); ++part) {
    own.Fill(PartOf(input_.host(), part), case_.count, FirstOf(case_, part));
  }
  input_.buffer->Give();
}

void Trial::Synchronize() const {
  if (device_.type == DeviceType::kCuda) {
    SynchronizeCurrentStream(device_.index);
  }
}

int64_t Trial::CountWrong(int ulps) {
  output_.buffer->Take();
  const std::byte* const output = output_.host();
  const size_t count = case_.count;
  const bool is_root = rank_ == case_.root;
  switch (case_.operation->verb) {
    case Verb::kBarrier:
      return 0;
    case Verb::kAllReduce:
      return reduced_.CountWrong(output, count, 0, ulps);
    case Verb::kReduce:
      return (is_root ? reduced_ : inputs_[rank_])
          .CountWrong(output, count, 0, is_root ? ulps : 0);
    case Verb::kBroadcast:
      return inputs_[case_.root].CountWrong(output, count);
    case Verb::kScatter:
      return inputs_[case_.root].CountWrong(output, count,
                                            FirstOf(case_, rank_));
    case Verb::kReduceScatter:
    case Verb::kReduceScatterTensor:
      return reduced_.CountWrong(output, count, FirstOf(case_, rank_), ulps);
    case Verb::kSendRecv:
      return inputs_[(rank_ + world_size_ - 1) % world_size_].CountWrong(output,
                                                                         count);
    case Verb::kGather:
      if (!is_root) return 0;
      break;
    default:
      break;
  }
  // All ranks' parts, one after the other.
  const size_t first = Exchanges(*case_.operation) ? FirstOf(case_, rank_) : 0;
  int64_t wrong = 0;
  for (int part = 0; part < world_size_; ++part) {
    wrong +=
        inputs_[part].CountWrong(PartOf(output_.host(), part), count, first);
  }
  return wrong;
}

void Trial::MakeTensors(Place& place, bool is_whole) const {
  const auto count = static_cast<int64_t>(case_.count);
  place.one = Tensor(place.data(), case_.data_type, {count}, device_);
  if (!is_whole) return;
  place.all =
      Tensor(place.data(), case_.data_type, {count * world_size_}, device_);
  for (int part = 0; part < world_size_; ++part) {
    place.parts.emplace_back(PartOf(place.data(), part), case_.data_type,
                             std::span<const int64_t>({count}), device_);
  }
}

// Round the ring of ranks.
std::vector<Work> Trial::SendAndReceive(bool wait) {
  std::vector<Work> works;
  works.push_back(Irecv(output_.one, (rank_ + world_size_ - 1) % world_size_));
  works.push_back(Isend(input_.one, (rank_ + 1) % world_size_));
  if (!wait) return works;
  for (Work& work : works) work.Wait();
  return {};
}

Trial::Calls Trial::MakeCalls() {
  // What is the same in each call is made once: whoever measures MPI does so.
  const auto with = [](auto options, auto call) {
    return [options, call](bool async, int calls) mutable {
      options.async_op = async;
      for (; calls > 1; --calls) call(options);
      return call(options);
    };
  };
  const bool is_root = rank_ == case_.root;
  // As the calls take it: to put one together in each takes a while.
  const std::optional<int> root = case_.root;
  const ReductionOptions reduction = {
      .op = case_.reduce_op,
      .factor = case_.reduce_op == ReduceOp::kPremulSum ? FactorOf(rank_) : 1};
  static const std::vector<Tensor> kNone;
  switch (case_.operation->verb) {
    case Verb::kAllReduce:
      return with(reduction, [this](const auto& options) {
        return AllReduce(output_.one, options);
      });
    case Verb::kBroadcast:
      return with(BroadcastOptions(), [this, root](const auto& options) {
        return Broadcast(output_.one, root, options);
      });
    case Verb::kReduce:
      return with(ReduceOptions{.op = reduction.op, .factor = reduction.factor},
                  [this, root](const auto& options) {
                    return Reduce(output_.one, root, options);
                  });
    case Verb::kAllGather:
      return with(CollectiveOptions(), [this](const auto& options) {
        return AllGather(output_.parts, input_.one, options);
      });
    case Verb::kAllGatherIntoTensor:
      return with(CollectiveOptions(), [this](const auto& options) {
        return AllGatherIntoTensor(output_.all, input_.one, options);
      });
    case Verb::kGather:
      return with(GatherOptions(), [this, root, is_root](const auto& options) {
        return Gather(input_.one, is_root ? output_.parts : kNone, root,
                      options);
      });
    case Verb::kScatter:
      return with(ScatterOptions(), [this, root, is_root](const auto& options) {
        return Scatter(output_.one, is_root ? input_.parts : kNone, root,
                       options);
      });
    case Verb::kReduceScatter:
      return with(reduction, [this](const auto& options) {
        return ReduceScatter(output_.one, input_.parts, options);
      });
    case Verb::kReduceScatterTensor:
      return with(reduction, [this](const auto& options) {
        return ReduceScatterTensor(output_.one, input_.all, options);
      });
    case Verb::kAllToAll:
      return with(CollectiveOptions(), [this](const auto& options) {
        return AllToAll(output_.parts, input_.parts, options);
      });
    case Verb::kAllToAllSingle:
      return with(AllToAllSingleOptions(), [this](const auto& options) {
        return AllToAllSingle(output_.all, input_.all, options);
      });
    case Verb::kBarrier:
      return with(BarrierOptions(),
                  [](const auto& options) { return Barrier(options); });
    case Verb::kSendRecv:  // SendAndReceive
      break;
  }
  return nullptr;
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
  if (case_.operation->verb == Verb::kSendRecv) return SendAndReceive(wait);
  Work work = calls_(/*async=*/!wait, /*calls=*/1);
  std::vector<Work> works;
  if (!wait) works.push_back(std::move(work));
  return works;
}

}  // namespace muster::worker::bench
