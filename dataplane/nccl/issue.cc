#include "dataplane/nccl/issue.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "dataplane/cuda/api.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/reduction.h"
#include "muster/dataplane/float8.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::nccl {
namespace {

// The first NCCL with the float8 types, and the compute capability of the
// devices on which it reduces them.
constexpr int kFloat8Version = 22400;
constexpr int kFloat8Capability = 9;

// NCCL's view of an element: `count` values of type `type`.
struct Unit {
  DataType type = kUint8;
  size_t count = 1;
};

Unit GetUnit(dataplane::DataType type, bool reduces) {
  switch (type) {
    case dataplane::DataType::kUint8:
    case dataplane::DataType::kBool:
      return {kUint8, 1};
    case dataplane::DataType::kInt8:
      return {kInt8, 1};
    case dataplane::DataType::kInt16:
      return {kUint8, 2};
    case dataplane::DataType::kInt32:
      return {kInt32, 1};
    case dataplane::DataType::kInt64:
      return {kInt64, 1};
    case dataplane::DataType::kFloat16:
      return {kFloat16, 1};
    case dataplane::DataType::kBfloat16:
      return {kBfloat16, 1};
    case dataplane::DataType::kFloat32:
      return {kFloat32, 1};
    case dataplane::DataType::kFloat64:
      return {kFloat64, 1};
    case dataplane::DataType::kComplex64:
      return {kFloat32, 2};
    case dataplane::DataType::kComplex128:
      return {kFloat64, 2};
    // Moved as bytes, so that an older NCCL moves them as well.
    case dataplane::DataType::kFloat8E4m3fn:
      return {reduces ? kFloat8e4m3 : kUint8, 1};
    case dataplane::DataType::kFloat8E5m2:
      return {reduces ? kFloat8e5m2 : kUint8, 1};
    case dataplane::DataType::kUint16:
      return {kUint8, 2};
    case dataplane::DataType::kUint32:
      return {kUint32, 1};
    case dataplane::DataType::kUint64:
      return {kUint64, 1};
    case dataplane::DataType::kOpaque:
      return {kUint8, 1};
    case dataplane::DataType::kFloat32Int32:
    case dataplane::DataType::kInt32Int32:
      return {kUint8, 8};
    case dataplane::DataType::kFloat64Int64:
    case dataplane::DataType::kInt64Int64:
      return {kUint8, 16};
  }
  return {};
}

size_t CountUnits(const Tensor& tensor) {
  return static_cast<size_t>(tensor.element_count()) *
         GetUnit(tensor.data_type(), /*reduces=*/false).count;
}

// On bool, all operations are OR (kMax) or AND (kMin).
RedOp ToRedOp(ReduceOp op, dataplane::DataType type) {
  const bool is_bool = type == dataplane::DataType::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kBor:
      return is_bool ? kMax : kSum;
    case ReduceOp::kProduct:
    case ReduceOp::kBand:
      return is_bool ? kMin : kProd;
    case ReduceOp::kMin:
      return kMin;
    case ReduceOp::kMax:
      return kMax;
    case ReduceOp::kAvg:
      return kAvg;
    case ReduceOp::kBxor:
    case ReduceOp::kPremulSum:
    case ReduceOp::kMinloc:
    case ReduceOp::kMaxloc:
    case ReduceOp::kUser:
      break;
  }
  return kSum;
}

// How many of `count` elements of `bytes` each NCCL's kernel for one rank (2.28
// and older) writes correctly. It has one block per 16 KiB, at most 32. Each
// block takes count / blocks elements, rounded down and then up to 16 bytes, so
// some may be left: with 8193 float16, the last one.
size_t CountWritten(size_t count, size_t bytes) {
  constexpr size_t kBlock = 16 << 10;
  constexpr size_t kBlocksMax = 32;
  const size_t blocks =
      std::min((count * bytes + kBlock - 1) / kBlock, kBlocksMax);
  if (blocks <= 1) return count;
  const size_t pack = 16 / bytes;
  const size_t each = (count / blocks + pack - 1) / pack * pack;
  if (blocks * each >= count) return count;
  if (blocks < kBlocksMax) return (blocks - 1) * (kBlock / bytes);
  return count - count % (kBlocksMax * pack);
}

// Whether the tensors have one size and are contiguous.
bool IsOne(const Collective::Tensors& tensors) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    const size_t bytes = tensors[0].bytes();
    const char* const first = static_cast<const char*>(tensors[0].data());
    if (tensors[i].bytes() != bytes ||
        static_cast<const char*>(tensors[i].data()) != first + i * bytes) {
      return false;
    }
  }
  return true;
}

// Whether all splits are equal. True if there are none.
bool AreEqual(const std::vector<int64_t>& splits) {
  return std::all_of(splits.begin(), splits.end(),
                     [&](int64_t split) { return split == splits.front(); });
}

// Checks whether float8 can be reduced. The error begins with c10d's text.
Status CheckFloat8(const Platform& platform, const Collective& collective,
                   int device, int world_size) {
  const dataplane::DataType type = collective.data_type();
  const std::string head = absl::StrCat(
      "Unsupported Float8 type for NCCL reduction: ", DataTypeName(type),
      " needs ");
  if (collective.reduce_op == ReduceOp::kPremulSum && world_size == 1) {
    return UnimplementedError(absl::StrCat(
        head, "a second rank for PREMUL_SUM: one alone does not multiply it"));
  }
  if (platform.nccl_version < kFloat8Version) {
    return UnimplementedError(
        absl::StrCat(head, "NCCL ", VersionText(kFloat8Version), ", this is ",
                     VersionText(platform.nccl_version)));
  }
  int capability = 0;
  Status status =
      cuda::ToStatus(platform.cuda,
                     platform.cuda.DeviceGetAttribute(
                         &capability, cuda::kComputeCapabilityMajor, device),
                     "cudaDeviceGetAttribute");
  if (!status.ok() || capability >= kFloat8Capability) return status;
  return UnimplementedError(
      absl::StrCat(head, "compute capability ", kFloat8Capability,
                   ".0, that of cuda:", device, " is ", capability, ".x"));
}

// Enqueues one collective. Remembers the first call that failed.
class Issuer {
 public:
  Issuer(const Collective& collective, const Target& target)
      : collective_(collective),
        target_(target),
        unit_(GetUnit(collective.data_type(), IsReduction(collective.kind))),
        unit_bytes_(DataTypeBytes(collective.data_type()) / unit_.count),
        op_(ToRedOp(collective.reduce_op, collective.data_type())) {
    // The average of one rank is its own value. NCCL would multiply by 1, which
    // a communicator of one rank cannot do with float8.
    if (op_ == kAvg && target.size == 1) op_ = kSum;
  }

  using KindFunction = void (Issuer::*)();
  // Null if NCCL does not support the kind.
  static KindFunction FindFunction(CollectiveKind kind);

  Status Run() {
    MakeOp();
    if (status_.ok()) (this->*FindFunction(collective_.kind))();
    if (made_op_) {
      Note(target_.nccl.RedOpDestroy(op_, target_.comm), "ncclRedOpDestroy");
    }
    return status_;
  }

 private:
  void Note(Result result, absl::string_view what) {
    if (status_.ok()) {
      status_ = ToStatus(target_.nccl, result, what, target_.comm);
    }
  }

  // Makes the calls of `body` in one NCCL group.
  void Group(const std::function<void()>& body) {
    Note(target_.nccl.GroupStart(), "ncclGroupStart");
    body();
    // Also after an error: the thread must leave the group.
    Note(target_.nccl.GroupEnd(), "ncclGroupEnd");
  }

  void MakeOp() {
    if (!IsReduction(collective_.kind) ||
        collective_.reduce_op != ReduceOp::kPremulSum) {
      return;
    }
    const float single = static_cast<float>(collective_.factor);
    double scalar = collective_.factor;
    if (IsFloat8(collective_.data_type())) {
      const uint8_t element = ToFloat8(collective_.data_type(), single);
      std::memcpy(&scalar, &element, sizeof(element));
    } else if (unit_.type != kFloat64) {
      const dataplane::DataType type = unit_.type == kFloat32
                                           ? dataplane::DataType::kFloat32
                                           : collective_.data_type();
      Reduction::Of(type, ReduceOp::kSum).Store(&scalar, &single, 1);
    }
    Note(target_.nccl.RedOpCreatePreMulSum(&op_, &scalar, unit_.type,
                                           kScalarHostImmediate, target_.comm),
         "ncclRedOpCreatePreMulSum");
    made_op_ = status_.ok();
  }

  void Broadcast(const Tensor& from, const Tensor& to, int root) {
    Note(target_.nccl.Broadcast(from.data(), to.data(), CountUnits(to),
                                unit_.type, root, target_.comm, target_.stream),
         "ncclBroadcast");
  }

  // Calls `reduce` for all `count` units. But if one rank multiplies by a
  // factor, calls it for the part that CountWritten returns and for the rest.
  void InWholePieces(
      const Tensor& source, const Tensor& result, size_t count,
      const std::function<void(const void*, void*, size_t)>& reduce) {
    const size_t whole = made_op_ && target_.size == 1
                             ? CountWritten(count, unit_bytes_)
                             : count;
    if (whole == count) return reduce(source.data(), result.data(), count);
    Group([&] {
      reduce(source.data(), result.data(), whole);
      reduce(static_cast<const char*>(source.data()) + whole * unit_bytes_,
             static_cast<char*>(result.data()) + whole * unit_bytes_,
             count - whole);
    });
  }

  void AllReduce(const Tensor& tensor) {
    InWholePieces(tensor, tensor, CountUnits(tensor),
                  [&](const void* from, void* to, size_t count) {
                    Note(
                        target_.nccl.AllReduce(from, to, count, unit_.type, op_,
                                               target_.comm, target_.stream),
                        "ncclAllReduce");
                  });
  }

  void Reduce(const Tensor& source, const Tensor& result, int root) {
    InWholePieces(source, result, CountUnits(source),
                  [&](const void* from, void* to, size_t count) {
                    Note(
                        target_.nccl.Reduce(from, to, count, unit_.type, op_,
                                            root, target_.comm, target_.stream),
                        "ncclReduce");
                  });
  }

  void ReduceScatter(const Tensor& source, const Tensor& result) {
    InWholePieces(
        source, result, CountUnits(result),
        [&](const void* from, void* to, size_t count) {
          Note(target_.nccl.ReduceScatter(from, to, count, unit_.type, op_,
                                          target_.comm, target_.stream),
               "ncclReduceScatter");
        });
  }

  void AllGather(const Tensor& from, const Tensor& to) {
    Note(target_.nccl.AllGather(from.data(), to.data(), CountUnits(from),
                                unit_.type, target_.comm, target_.stream),
         "ncclAllGather");
  }

  void Send(const char* data, size_t count, int peer) {
    if (count == 0) return;
    Note(target_.nccl.Send(data, count, unit_.type, peer, target_.comm,
                           target_.stream),
         "ncclSend");
  }

  void Recv(char* data, size_t count, int peer) {
    if (count == 0) return;
    Note(target_.nccl.Recv(data, count, unit_.type, peer, target_.comm,
                           target_.stream),
         "ncclRecv");
  }

  void Send(const Tensor& tensor, int peer) {
    Send(static_cast<const char*>(tensor.data()), CountUnits(tensor), peer);
  }
  void Recv(const Tensor& tensor, int peer) {
    Recv(static_cast<char*>(tensor.data()), CountUnits(tensor), peer);
  }

  // False for empty parts, which are not sent at all.
  bool CanAllToAll(size_t count) const {
    return target_.wants_copy_engines && target_.nccl.AlltoAll != nullptr &&
           count > 0;
  }

  void AllReduce() { AllReduce(collective_.tensors[0]); }

  void Broadcast() {
    const Tensor& tensor = collective_.tensors[0];
    Broadcast(tensor, tensor, collective_.root);
  }

  void Barrier() {
    Note(target_.nccl.AllReduce(target_.scratch, target_.scratch, 1, kFloat32,
                                kSum, target_.comm, target_.stream),
         "ncclAllReduce");
  }

  void Reduce() {
    const Tensor& tensor = collective_.tensors[0];
    Reduce(tensor, tensor, collective_.root);
  }

  // Also for all_gather_into_tensor, which has one output.
  void AllGather() {
    const Tensor& own = collective_.inputs[0];
    const Collective::Tensors& outputs = collective_.outputs;
    if (IsOne(outputs)) return AllGather(own, outputs[0]);
    Group([&] {
      for (int rank = 0; rank < target_.size; ++rank) {
        const Tensor& to = outputs[static_cast<size_t>(rank)];
        Broadcast(rank == target_.rank ? own : to, to, rank);
      }
    });
  }

  // Also for reduce_scatter_tensor, which has one input.
  void ReduceScatter() {
    const Tensor& result = collective_.outputs[0];
    const Collective::Tensors& inputs = collective_.inputs;
    if (IsOne(inputs)) return ReduceScatter(inputs[0], result);
    Group([&] {
      for (int rank = 0; rank < target_.size; ++rank) {
        Reduce(inputs[static_cast<size_t>(rank)], result, rank);
      }
    });
  }

  // Sends to and receives from every rank, including this one.
  void AllToAll() {
    const std::vector<int64_t> sent =
        CountPartUnits(collective_.inputs, collective_.input_splits);
    const std::vector<int64_t> taken =
        CountPartUnits(collective_.outputs, collective_.output_splits);
    const auto each = static_cast<size_t>(sent[0]);
    if (CanAllToAll(each) && AreEqual(sent) && sent == taken &&
        IsOne(collective_.inputs) && IsOne(collective_.outputs)) {
      return Note(
          target_.nccl.AlltoAll(collective_.inputs[0].data(),
                                collective_.outputs[0].data(), each, unit_.type,
                                target_.comm, target_.stream),
          "ncclAlltoAll");
    }
    // In all_to_all_single the parts are contiguous in one tensor.
    const bool is_whole = HasSplits(collective_.kind);
    const auto begin_of = [&](const Collective::Tensors& list, size_t rank) {
      return static_cast<char*>(list[is_whole ? 0 : rank].data());
    };
    Group([&] {
      size_t from = 0;
      size_t to = 0;
      for (int rank = 0; rank < target_.size; ++rank) {
        const auto place = static_cast<size_t>(rank);
        const auto out = static_cast<size_t>(sent[place]);
        const auto in = static_cast<size_t>(taken[place]);
        Send(begin_of(collective_.inputs, place) + from, out, rank);
        Recv(begin_of(collective_.outputs, place) + to, in, rank);
        if (!is_whole) continue;
        from += out * unit_bytes_;
        to += in * unit_bytes_;
      }
    });
  }

  // The units of each rank's part of the list.
  std::vector<int64_t> CountPartUnits(
      const Collective::Tensors& list,
      const std::vector<int64_t>& splits) const {
    std::vector<int64_t> counts = PartCounts(list, splits, target_.size);
    for (int64_t& count : counts) count *= static_cast<int64_t>(unit_.count);
    return counts;
  }

  void GatherOrScatter() {
    const bool is_root = target_.rank == collective_.root;
    const bool gathers = collective_.kind == CollectiveKind::kGather;
    if (!gathers && target_.wants_copy_engines &&
        target_.nccl.Scatter != nullptr && IsOne(collective_.inputs) &&
        CountUnits(collective_.outputs[0]) > 0) {
      const Tensor& out = collective_.outputs[0];
      return Note(
          target_.nccl.Scatter(is_root ? collective_.inputs[0].data() : nullptr,
                               out.data(), CountUnits(out), unit_.type,
                               collective_.root, target_.comm, target_.stream),
          "ncclScatter");
    }
    Group([&] {
      if (gathers) Send(collective_.inputs[0], collective_.root);
      for (int rank = 0; is_root && rank < target_.size; ++rank) {
        const auto place = static_cast<size_t>(rank);
        if (gathers) {
          Recv(collective_.outputs[place], rank);
        } else {
          Send(collective_.inputs[place], rank);
        }
      }
      if (!gathers) Recv(collective_.outputs[0], collective_.root);
    });
  }

  void Send() {
    Send(collective_.inputs[0], target_.is_pair ? 1 : collective_.peer);
  }
  void Recv() {
    Recv(collective_.outputs[0], target_.is_pair ? 0 : collective_.peer);
  }

  const Collective& collective_;
  const Target& target_;
  const Unit unit_;
  const size_t unit_bytes_;
  RedOp op_;
  bool made_op_ = false;
  Status status_;
};

Issuer::KindFunction Issuer::FindFunction(CollectiveKind kind) {
  switch (GetTraits(kind).list_form) {
    case CollectiveKind::kAllReduce:
      return &Issuer::AllReduce;
    case CollectiveKind::kBroadcast:
      return &Issuer::Broadcast;
    case CollectiveKind::kBarrier:
      return &Issuer::Barrier;
    case CollectiveKind::kReduce:
      return &Issuer::Reduce;
    case CollectiveKind::kAllGather:
      return &Issuer::AllGather;
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return &Issuer::GatherOrScatter;
    case CollectiveKind::kReduceScatter:
      return &Issuer::ReduceScatter;
    case CollectiveKind::kAllToAll:
      return &Issuer::AllToAll;
    case CollectiveKind::kSend:
      return &Issuer::Send;
    case CollectiveKind::kRecv:
      return &Issuer::Recv;
    default:
      return nullptr;
  }
}

}  // namespace

Status ToStatus(const Api& api, Result result, absl::string_view what,
                Comm comm) {
  if (result == kSuccess || result == kInProgress) return OkStatus();
  const char* const more = comm == nullptr ? nullptr : api.GetLastError(comm);
  return InternalError(
      absl::StrCat(what, ": ", api.GetErrorString(result),
                   more == nullptr || *more == '\0' ? "" : ": ",
                   more == nullptr ? "" : more));
}

Status CheckSupported(const Platform& platform, const Collective& collective,
                      int device, int rank, int world_size) {
  if (Issuer::FindFunction(collective.kind) == nullptr) {
    return NoSuchKind("nccl", collective.kind);
  }
  if (const int own = collective.device; own >= 0) {
    if (device >= 0 && own != device) {
      return InvalidArgumentError(
          absl::StrCat("a barrier on cuda:", own,
                       " in a group whose device is cuda:", device));
    }
    device = own;
  }
  for (const auto* list : collective.lists()) {
    for (const Tensor& tensor : *list) {
      if (tensor.device().type != DeviceType::kCuda) {
        return UnimplementedError(absl::StrCat(
            "the nccl backend takes CUDA tensors, got ", tensor.Describe()));
      }
      if (device < 0) device = tensor.device().index;
      if (tensor.device().index != device) {
        return InvalidArgumentError(
            absl::StrCat("tensors on cuda:", tensor.device().index,
                         " in a group whose device is cuda:", device));
      }
    }
  }
  if (device >= 0) {
    Status status = cuda::CheckIsNotCaptured(platform.cuda, device);
    if (!status.ok()) return status;
  }
  if (collective.kind == CollectiveKind::kRecv && collective.peer == kAnyPeer) {
    return UnimplementedError(
        "NCCL does not receive from any rank: name the source");
  }
  if (IsPointToPoint(collective.kind) && collective.peer == rank &&
      !collective.begins_together) {
    return UnimplementedError(
        "NCCL sends to its own rank only within a BatchIsendIrecv that also "
        "receives it");
  }
  if (!IsReduction(collective.kind)) return OkStatus();
  const dataplane::DataType type = collective.data_type();
  if (collective.reduce_op == ReduceOp::kUser) {
    return dataplane::NoFunctions("nccl");
  }
  if (type == dataplane::DataType::kInt16 ||
      type == dataplane::DataType::kUint16 ||
      type > dataplane::DataType::kOpaque) {
    return UnimplementedError(
        absl::StrCat("NCCL does not reduce ", DataTypeName(type),
                     ": Input tensor data type is not supported"));
  }
  if (IsFloat8(type)) {
    Status status = CheckFloat8(platform, collective, device, world_size);
    if (!status.ok()) return status;
  }
  const ReduceOp op = collective.reduce_op;
  const bool is_bool = type == dataplane::DataType::kBool;
  if (op == ReduceOp::kBxor ||
      (!is_bool && (op == ReduceOp::kBand || op == ReduceOp::kBor))) {
    return UnimplementedError(
        absl::StrCat("Cannot use ReduceOp.",
                     absl::AsciiStrToUpper(ReduceOpName(op)), " with NCCL"));
  }
  return OkStatus();
}

Status Issue(const Collective& collective, const Target& target) {
  return Issuer(collective, target).Run();
}

}  // namespace muster::dataplane::nccl
