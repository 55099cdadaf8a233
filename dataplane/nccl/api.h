// NCCL as a table of function pointers, loaded at run time.

#ifndef MUSTER_DATAPLANE_NCCL_API_H_
#define MUSTER_DATAPLANE_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <string>

#include "dataplane/cuda/api.h"
#include "muster/base/status.h"

namespace muster::dataplane::nccl {

// NCCL's types, for builds without its header. api_abi_check.cc compares them
// with the header where there is one.
using Result = int;    // ncclResult_t
using Comm = void*;    // ncclComm_t
using Window = void*;  // ncclWindow_t
using DataType = int;  // ncclDataType_t
using RedOp = int;     // ncclRedOp_t

inline constexpr Result kSuccess = 0;
inline constexpr Result kInProgress = 7;

inline constexpr DataType kInt8 = 0;
inline constexpr DataType kUint8 = 1;
inline constexpr DataType kInt32 = 2;
inline constexpr DataType kUint32 = 3;
inline constexpr DataType kInt64 = 4;
inline constexpr DataType kUint64 = 5;
inline constexpr DataType kFloat16 = 6;
inline constexpr DataType kFloat32 = 7;
inline constexpr DataType kFloat64 = 8;
inline constexpr DataType kBfloat16 = 9;
inline constexpr DataType kFloat8e4m3 = 10;
inline constexpr DataType kFloat8e5m2 = 11;

inline constexpr RedOp kSum = 0;
inline constexpr RedOp kProd = 1;
inline constexpr RedOp kMax = 2;
inline constexpr RedOp kMin = 3;
inline constexpr RedOp kAvg = 4;

inline constexpr int kScalarHostImmediate = 1;
inline constexpr int kSplitNoColor = -1;
inline constexpr int kShrinkDefault = 0;
inline constexpr int kShrinkAbort = 1;
inline constexpr int kWindowSymmetric = 1;
inline constexpr int kCtaPolicyEfficiency = 1;
inline constexpr int kCtaPolicyZero = 2;

// The alignment of a window's address and size.
inline constexpr size_t kWindowAlignment = 4096;

// ncclUniqueId, with which the ranks of a communicator find each other.
struct UniqueId {
  char internal[128] = {};
};

inline constexpr int kUndefined = INT_MIN;

// ncclConfig_t of NCCL 2.28. Set `version` to the version of the loaded NCCL:
// an older one reads only the fields that it has.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 0;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
};

// Api holds the NCCL functions that the backend uses. All calls go through it,
// so that one program runs with and without NCCL, and tests can substitute a
// fake. NCCL documents them under the same names with the prefix `nccl`.
struct Api {
  Result (*GetVersion)(int* version) = nullptr;
  const char* (*GetErrorString)(Result result) = nullptr;
  const char* (*GetLastError)(Comm comm) = nullptr;

  Result (*GetUniqueId)(UniqueId* id) = nullptr;
  Result (*CommInitRankConfig)(Comm* comm, int size, UniqueId id, int rank,
                               Config* config) = nullptr;
  Result (*CommSplit)(Comm comm, int color, int key, Comm* made,
                      Config* config) = nullptr;
  Result (*CommFinalize)(Comm comm) = nullptr;
  Result (*CommDestroy)(Comm comm) = nullptr;
  Result (*CommAbort)(Comm comm) = nullptr;
  Result (*CommGetAsyncError)(Comm comm, Result* error) = nullptr;

  Result (*RedOpCreatePreMulSum)(RedOp* op, void* scalar, DataType type,
                                 int residence, Comm comm) = nullptr;
  Result (*RedOpDestroy)(RedOp op, Comm comm) = nullptr;

  Result (*GroupStart)() = nullptr;
  Result (*GroupEnd)() = nullptr;

  Result (*AllReduce)(const void* from, void* to, size_t count, DataType type,
                      RedOp op, Comm comm, cuda::Stream stream) = nullptr;
  Result (*Broadcast)(const void* from, void* to, size_t count, DataType type,
                      int root, Comm comm, cuda::Stream stream) = nullptr;
  Result (*Reduce)(const void* from, void* to, size_t count, DataType type,
                   RedOp op, int root, Comm comm,
                   cuda::Stream stream) = nullptr;
  Result (*AllGather)(const void* from, void* to, size_t count, DataType type,
                      Comm comm, cuda::Stream stream) = nullptr;
  Result (*ReduceScatter)(const void* from, void* to, size_t count,
                          DataType type, RedOp op, Comm comm,
                          cuda::Stream stream) = nullptr;
  Result (*Send)(const void* from, size_t count, DataType type, int peer,
                 Comm comm, cuda::Stream stream) = nullptr;
  Result (*Recv)(void* to, size_t count, DataType type, int peer, Comm comm,
                 cuda::Stream stream) = nullptr;

  // Null in older versions of NCCL.
  Result (*CommShrink)(Comm comm, int* excluded, int count, Comm* made,
                       Config* config, int flags) = nullptr;  // 2.27
  Result (*MemAlloc)(void** data, size_t bytes) = nullptr;    // 2.19
  Result (*MemFree)(void* data) = nullptr;
  Result (*CommWindowRegister)(Comm comm, void* data, size_t bytes,
                               Window* window, int flags) = nullptr;  // 2.27
  Result (*CommWindowDeregister)(Comm comm, Window window) = nullptr;
  // 2.28. ncclGather is not used: with copy engines, it takes the address of
  // the root's results from the other ranks, which have no results.
  Result (*AlltoAll)(const void* from, void* to, size_t count, DataType type,
                     Comm comm, cuda::Stream stream) = nullptr;
  Result (*Scatter)(const void* from, void* to, size_t count, DataType type,
                    int root, Comm comm, cuda::Stream stream) = nullptr;
};

// The result of Load.
struct Library {
  Api api;
  std::string path;
  int version = 0;  // 22809 is 2.28.9
};

// The oldest NCCL with all functions of Api that may not be null, in particular
// ncclCommSplit, and with ncclConfig_t.
inline constexpr int kOldestVersion = 21800;

// Loads NCCL for the rest of the process: the library that the environment
// variable MUSTER_NCCL_LIBRARY names or, without it, libnccl.so.2, also from
// CUDA_HOME (or /usr/local/cuda) if the system does not find it. Does not probe
// for devices (cuda::Load does).
// Errors: kNotFound (no such library; the text has the names tried and the
// results), kFailedPrecondition (older than kOldestVersion, or functions are
// missing).
StatusOr<Library> Load();

// OK if this process can use nccl: it has NCCL, the CUDA runtime and a device.
// Otherwise the error of the first of them that is missing. Found out once;
// later calls return the same.
const Status& Available();

// "2.28.9".
std::string VersionText(int version);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_API_H_
