#include "dataplane/nccl/testing/host_nccl.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/testing/host_arithmetic.h"
#include "dataplane/nccl/testing/host_comms.h"
#include "dataplane/reduction.h"
#include "muster/base/mutex.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/float8.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::nccl::testing {
namespace {

// The calls of one communicator and stream since GroupStart, in their order.
struct Gathered {
  std::shared_ptr<HostComm> comm;
  cuda::Stream stream = nullptr;
  std::vector<std::function<void()>> sends = {};
  std::vector<std::function<void()>> works = {};
  std::vector<std::function<void()>> awaits = {};
};

thread_local int t_group_depth = 0;
thread_local std::vector<Gathered> t_gathered;

std::atomic<int> g_version{0};
std::atomic<int> g_polls{0};
std::atomic<int> g_copy_engine_calls{0};

Mutex g_launches_mutex;
std::vector<size_t> g_launches MUSTER_GUARDED_BY(g_launches_mutex);

void LaunchGathered(const Gathered& one) {
  cuda::testing::Launch(one.stream, [one] {
    for (const auto* list : {&one.sends, &one.works, &one.awaits}) {
      for (const auto& step : *list) {
        if (!one.comm->IsAborted()) step();
      }
    }
    --one.comm->outstanding;
  });
}

// Enqueues the gathered calls, at once or after some polls.
Result Flush() {
  std::vector<Gathered> all = std::exchange(t_gathered, {});
  const int polls = g_polls;
  Result result = kSuccess;
  for (Gathered& one : all) {
    {
      MutexLock lock(g_launches_mutex);
      g_launches.push_back(one.sends.size() + one.works.size());
    }
    ++one.comm->outstanding;
    if (!one.comm->nonblocking) {
      const Calling calling(*one.comm);
      CallConnectHook();
      LaunchGathered(one);
    } else if (MutexLock lock(one.comm->mutex); polls > 0) {
      one.comm->polls_left = polls;
      one.comm->in_progress.emplace_back([one] { LaunchGathered(one); });
      result = kInProgress;
    } else {
      LaunchGathered(one);
    }
  }
  return result;
}

Gathered& GetGathered(const std::shared_ptr<HostComm>& comm,
                      cuda::Stream stream) {
  for (Gathered& one : t_gathered) {
    if (one.comm == comm && one.stream == stream) return one;
  }
  t_gathered.push_back({.comm = comm, .stream = stream});
  return t_gathered.back();
}

bool IsOnDevice(const void* data, size_t bytes, absl::string_view what) {
  if (bytes == 0 || cuda::testing::IsDeviceMemory(data, bytes)) return true;
  Misuse(kInvalidArgument,
         absl::StrCat(what, " of memory that is not on a device"));
  return false;
}

// A collective: `finish` gets all ranks' calls and returns what to do once no
// rank reads any more.
using Finish = std::function<std::function<void()>(const std::vector<Call>&)>;

Result Enqueue(const Ready& ready, cuda::Stream stream, const Call& call,
               const Finish& finish) {
  GetGathered(ready.comm, stream).works.push_back([ready, call, finish] {
    ready.team->Arrive(ready.step, ready.rank, call);
    const auto calls = ready.team->Await(ready.step, ready.over);
    if (!calls.has_value()) return;
    for (const Call& other : *calls) {
      if (other.what == call.what) continue;
      Misuse(kInvalidUsage, absl::StrCat(call.what, " meets ", other.what));
      return;
    }
    const std::function<void()> write = finish(*calls);
    ready.team->Part(ready.step, ready.over);
    if (write != nullptr && !ready.over()) write();
  });
  return t_group_depth == 0 ? Flush() : kSuccess;
}

std::function<void()> Write(void* to, std::vector<char> bytes) {
  return [to, bytes = std::move(bytes)] {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  };
}

std::vector<char> Copied(const Call& call) {
  const char* const begin = static_cast<const char*>(call.from);
  return {begin, begin + call.bytes};
}

double GetFactor(const Ready& ready, RedOp op) {
  MutexLock lock(ready.comm->mutex);
  const auto found = ready.comm->factors.find(op);
  return found == ready.comm->factors.end() ? 1 : found->second;
}

Result ReduceParts(absl::string_view name, const void* from, size_t read,
                   void* to, size_t offset_in_ranks, size_t count, int writer,
                   DataType type, RedOp op, Comm comm, cuda::Stream stream) {
  const std::optional<Ready> ready = Use(comm, name, /*collective=*/true);
  if (!ready.has_value()) return kInvalidUsage;
  const bool writes = writer < 0 || writer == ready->rank;
  if (!FindDataType(type).has_value()) {
    return Misuse(kInvalidArgument, absl::StrCat(name, " of type ", type));
  }
  // NCCL's kernel that multiplies the elements of a single rank.
  if (ready->team->size() == 1 && op >= kAvg && IsFloat8(*FindDataType(type))) {
    return kInvalidArgument;
  }
  if (!IsOnDevice(from, read * GetElementBytes(type), name) ||
      (writes && !IsOnDevice(to, count * GetElementBytes(type), name))) {
    return kInvalidArgument;
  }
  const size_t offset =
      offset_in_ranks * count * static_cast<size_t>(ready->rank);
  const Call call = {
      .what = absl::StrCat(name, " of ", count, " of type ", type, ", op ",
                           std::min(op, kAvg + 1), ", writer ", writer),
      .from = from,
      .bytes = read * GetElementBytes(type),
      .factor = GetFactor(*ready, op)};
  return Enqueue(*ready, stream, call,
                 [=](const std::vector<Call>& calls) -> std::function<void()> {
                   if (!writes) return nullptr;
                   return Write(to, Reduced(calls, type, op, offset, count));
                 });
}

Result AllReduce(const void* from, void* to, size_t count, DataType type,
                 RedOp op, Comm comm, cuda::Stream stream) {
  return ReduceParts("AllReduce", from, count, to, 0, count, -1, type, op, comm,
                     stream);
}

Result Reduce(const void* from, void* to, size_t count, DataType type, RedOp op,
              int root, Comm comm, cuda::Stream stream) {
  return ReduceParts("Reduce", from, count, to, 0, count, root, type, op, comm,
                     stream);
}

Result ReduceScatter(const void* from, void* to, size_t count, DataType type,
                     RedOp op, Comm comm, cuda::Stream stream) {
  const std::optional<Ready> ready =
      Use(comm, "ReduceScatter", /*collective=*/false);
  if (!ready.has_value()) return kInvalidUsage;
  const size_t read = count * static_cast<size_t>(ready->team->size());
  return ReduceParts("ReduceScatter", from, read, to, 1, count, -1, type, op,
                     comm, stream);
}

Result Broadcast(const void* from, void* to, size_t count, DataType type,
                 int root, Comm comm, cuda::Stream stream) {
  const std::optional<Ready> ready =
      Use(comm, "Broadcast", /*collective=*/true);
  if (!ready.has_value()) return kInvalidUsage;
  const size_t bytes = count * GetElementBytes(type);
  const bool is_root = ready->rank == root;
  if ((is_root && !IsOnDevice(from, bytes, "Broadcast")) ||
      !IsOnDevice(to, bytes, "Broadcast")) {
    return kInvalidArgument;
  }
  const Call call = {.what = absl::StrCat("Broadcast of ", count, " of type ",
                                          type, " from ", root),
                     .from = is_root ? from : nullptr,
                     .bytes = bytes};
  return Enqueue(*ready, stream, call, [=](const std::vector<Call>& calls) {
    return Write(to, Copied(calls[static_cast<size_t>(root)]));
  });
}

Result AllGather(const void* from, void* to, size_t count, DataType type,
                 Comm comm, cuda::Stream stream) {
  const std::optional<Ready> ready =
      Use(comm, "AllGather", /*collective=*/true);
  if (!ready.has_value()) return kInvalidUsage;
  const size_t bytes = count * GetElementBytes(type);
  if (!IsOnDevice(from, bytes, "AllGather") ||
      !IsOnDevice(to, bytes * static_cast<size_t>(ready->team->size()),
                  "AllGather")) {
    return kInvalidArgument;
  }
  const Call call = {
      .what = absl::StrCat("AllGather of ", count, " of type ", type),
      .from = from,
      .bytes = bytes};
  return Enqueue(*ready, stream, call, [=](const std::vector<Call>& calls) {
    std::vector<char> all;
    for (const Call& each : calls) {
      const std::vector<char> part = Copied(each);
      all.insert(all.end(), part.begin(), part.end());
    }
    return Write(to, std::move(all));
  });
}

Result Send(const void* from, size_t count, DataType type, int peer, Comm comm,
            cuda::Stream stream) {
  const std::optional<Ready> ready = Use(comm, "Send", /*collective=*/false);
  if (!ready.has_value()) return kInvalidUsage;
  if (peer < 0 || peer >= ready->team->size()) {
    return Misuse(kInvalidArgument, absl::StrCat("Send to rank ", peer));
  }
  const size_t bytes = count * GetElementBytes(type);
  if (!IsOnDevice(from, bytes, "Send")) return kInvalidArgument;
  const Call call = {.what = absl::StrCat(count, " of type ", type),
                     .from = from,
                     .bytes = bytes};
  Gathered& gathered = GetGathered(ready->comm, stream);
  gathered.sends.push_back([=] { ready->team->Post(ready->rank, peer, call); });
  gathered.awaits.push_back(
      [=] { ready->team->AwaitTaken(ready->rank, peer, ready->over); });
  return t_group_depth == 0 ? Flush() : kSuccess;
}

Result Recv(void* to, size_t count, DataType type, int peer, Comm comm,
            cuda::Stream stream) {
  const std::optional<Ready> ready = Use(comm, "Recv", /*collective=*/false);
  if (!ready.has_value()) return kInvalidUsage;
  if (peer < 0 || peer >= ready->team->size()) {
    return Misuse(kInvalidArgument, absl::StrCat("Recv from rank ", peer));
  }
  if (!IsOnDevice(to, count * GetElementBytes(type), "Recv"))
    return kInvalidArgument;
  const std::string what = absl::StrCat(count, " of type ", type);
  GetGathered(ready->comm, stream).works.push_back([=] {
    const auto call = ready->team->Look(peer, ready->rank, ready->over);
    if (!call.has_value()) return;
    if (call->what != what) {
      Misuse(kInvalidUsage,
             absl::StrCat("Recv of ", what, " meets Send of ", call->what));
    } else if (call->bytes > 0) {
      std::memcpy(to, call->from, call->bytes);
    }
    ready->team->Took(peer, ready->rank);
  });
  return t_group_depth == 0 ? Flush() : kSuccess;
}

Result GroupStart();
Result GroupEnd();

// Sends and receives, as in NCCL without copy engines.
Result AlltoAll(const void* from, void* to, size_t count, DataType type,
                Comm comm, cuda::Stream stream) {
  const std::optional<Ready> ready =
      Use(comm, "AlltoAll", /*collective=*/false);
  if (!ready.has_value()) return kInvalidUsage;
  ++g_copy_engine_calls;
  const size_t bytes = count * GetElementBytes(type);
  GroupStart();
  Result result = kSuccess;
  for (int peer = 0; peer < ready->team->size(); ++peer) {
    const size_t offset = bytes * static_cast<size_t>(peer);
    for (const Result each : {Send(static_cast<const char*>(from) + offset,
                                   count, type, peer, comm, stream),
                              Recv(static_cast<char*>(to) + offset, count, type,
                                   peer, comm, stream)}) {
      if (result == kSuccess) result = each;
    }
  }
  const Result ended = GroupEnd();
  return result == kSuccess ? ended : result;
}

Result Scatter(const void* from, void* to, size_t count, DataType type,
               int root, Comm comm, cuda::Stream stream) {
  const std::optional<Ready> ready = Use(comm, "Scatter", /*collective=*/false);
  if (!ready.has_value()) return kInvalidUsage;
  ++g_copy_engine_calls;
  const size_t bytes = count * GetElementBytes(type);
  GroupStart();
  Result result = Recv(to, count, type, root, comm, stream);
  for (int peer = 0; ready->rank == root && peer < ready->team->size();
       ++peer) {
    const Result sent =
        Send(static_cast<const char*>(from) + bytes * static_cast<size_t>(peer),
             count, type, peer, comm, stream);
    if (result == kSuccess) result = sent;
  }
  const Result ended = GroupEnd();
  return result == kSuccess ? ended : result;
}

Result GroupStart() {
  ++t_group_depth;
  return kSuccess;
}

Result GroupEnd() {
  if (t_group_depth == 0) {
    return Misuse(kInvalidUsage, "GroupEnd without GroupStart");
  }
  if (--t_group_depth > 0) return kSuccess;
  EndAborts();
  return Flush();
}

Result GetVersion(int* version) {
  *version = g_version;
  return kSuccess;
}

const char* GetErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kInProgress:
      return "in progress";
    default:
      return "unhandled error";
  }
}

const char* GetLastError(Comm) { return ""; }

Result RedOpCreatePreMulSum(RedOp* op, void* scalar, DataType type, int,
                            Comm comm) {
  const std::optional<Ready> ready = Use(comm, "RedOpCreatePreMulSum", false);
  if (!ready.has_value()) return kInvalidUsage;
  double factor = 0;
  if (type == kFloat64) {
    std::memcpy(&factor, scalar, sizeof(factor));
  } else if (IsFloat8(*FindDataType(type))) {
    uint8_t element = 0;
    std::memcpy(&element, scalar, sizeof(element));
    factor = FromFloat8(*FindDataType(type), element);
  } else {
    // The element may be a half, so it is loaded into a float32 accumulator.
    const Reduction& reduction =
        Reduction::Of(*FindDataType(type), ReduceOp::kSum);
    float value = 0;
    reduction.Load(&value, scalar, 1, 1);
    factor = value;
  }
  MutexLock lock(ready->comm->mutex);
  *op = ready->comm->next_op++;
  ready->comm->factors[*op] = factor;
  return kSuccess;
}

Result RedOpDestroy(RedOp op, Comm comm) {
  const std::optional<Ready> ready = Use(comm, "RedOpDestroy", false);
  if (!ready.has_value()) return kInvalidUsage;
  bool known = false;
  {
    MutexLock lock(ready->comm->mutex);
    known = ready->comm->factors.erase(op) > 0;
  }
  return known ? kSuccess
               : Misuse(kInvalidArgument, "RedOpDestroy of no operation");
}

}  // namespace

Api HostNcclApi(int version) {
  g_version = version;
  Api api = {.GetVersion = &GetVersion,
             .GetErrorString = &GetErrorString,
             .GetLastError = &GetLastError,
             .GetUniqueId = &GetUniqueId,
             .CommInitRankConfig = &CommInitRankConfig,
             .CommSplit = &CommSplit,
             .CommFinalize = &CommFinalize,
             .CommDestroy = &CommDestroy,
             .CommAbort = &CommAbort,
             .CommGetAsyncError = &CommGetAsyncError,
             .RedOpCreatePreMulSum = &RedOpCreatePreMulSum,
             .RedOpDestroy = &RedOpDestroy,
             .GroupStart = &GroupStart,
             .GroupEnd = &GroupEnd,
             .AllReduce = &AllReduce,
             .Broadcast = &Broadcast,
             .Reduce = &Reduce,
             .AllGather = &AllGather,
             .ReduceScatter = &ReduceScatter,
             .Send = &Send,
             .Recv = &Recv};
  if (version >= 21900) {
    api.MemAlloc = &MemAlloc;
    api.MemFree = &MemFree;
  }
  if (version >= 22700) {
    api.CommShrink = &CommShrink;
    api.CommWindowRegister = &CommWindowRegister;
    api.CommWindowDeregister = &CommWindowDeregister;
  }
  if (version >= 22800) {
    api.AlltoAll = &AlltoAll;
    api.Scatter = &Scatter;
  }
  return api;
}

Api HostNcclApi() { return HostNcclApi(22809); }

void SetPolls(int polls) { g_polls = polls; }

int TakeCopyEngineCalls() { return g_copy_engine_calls.exchange(0); }

std::vector<size_t> TakeLaunches() {
  MutexLock lock(g_launches_mutex);
  return std::exchange(g_launches, {});
}

int OpenGroups() { return t_group_depth; }

}  // namespace muster::dataplane::nccl::testing
