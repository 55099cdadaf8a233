// A fake NCCL for tests, without a GPU.

#ifndef MUSTER_DATAPLANE_NCCL_TESTING_HOST_NCCL_H_
#define MUSTER_DATAPLANE_NCCL_TESTING_HOST_NCCL_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "dataplane/nccl/api.h"

namespace muster::dataplane::nccl::testing {

// Functions that do on the host what NCCL does, between ranks that are threads
// of this process, on the streams of cuda::testing::HostCudaApi. As with NCCL:
//
// - A collective is an entry in a stream. It begins when the streams of all
//   ranks have reached theirs. If one never does, there is no error: it waits
//   until its communicator is aborted.
// - Calls between GroupStart and GroupEnd form a group. Sends and receives of a
//   group make progress together; groups run one after the other.
// - Making a communicator waits for all ranks or, with blocking = 0, is in
//   progress until they have come. Calls on such a communicator are in
//   progress, too, until CommGetAsyncError was called SetPolls(n) times; only
//   then are they in the stream.
// - A split or shrink of a non-blocking communicator leaves it in progress
//   until all ranks have come; only then does the new one exist.
// - Calls on a blocking communicator are done when they return. No other thread
//   may use, query or abort it before.
//
// A call that NCCL forbids returns an error and is recorded as a misuse: groups
// that are not balanced; communicators that are destroyed, aborted or in
// progress, that are split or shrunk while something is in progress, or
// destroyed though they must be aborted; windows of memory that is not from
// MemAlloc, or that outlive their memory or communicator; configurations that
// NCCL refuses, or whose strings do not outlive the communicator; tensors that
// are not on the device; calls of the ranks that do not match. Thread-safe.
Api HostNcclApi();

// As HostNcclApi(), for the NCCL of this version: newer functions are null.
Api HostNcclApi(int version);

// The misuses since the last call.
std::vector<std::string> TakeMisuses();

// The number of GroupStarts of this thread without a GroupEnd.
int OpenGroups();

// The number of polls for which a call on a non-blocking communicator stays in
// progress; initially 0.
void SetPolls(int polls);

// For each launch since the last call, the number of NCCL calls in it.
std::vector<size_t> TakeLaunches();

// The number of calls of AlltoAll and Scatter since the last call.
int TakeCopyEngineCalls();

// Whether 8 and 16 bit numbers are rounded at each rank, as in NCCL's rings and
// trees, or once (the default).
void SetRoundsAtEachRank(bool rounds);

// The configuration of the last communicator.
Config LastConfig();

// The number of communicators begun since the last TakeMade.
struct Made {
  int by_id = 0;
  int by_split = 0;
  int by_shrink = 0;

  friend bool operator==(const Made&, const Made&) = default;
};
Made TakeMade();

// The number of CommAborts since the last TakeAborts.
int TakeAborts();

// Sets a hook for the calls that free memory, in which CUDA waits for
// everything on the device: each CommDestroy, and each CommAbort that is the
// last of its NCCL group or in none, after the communicators are marked as
// aborted. Null: none.
void SetFreeHook(std::function<void()> hook);

// Sets a hook for each collective, send, receive or group of them on a blocking
// communicator, called before it is in its stream: there NCCL connects ranks
// and waits for them. Null: none.
void SetConnectHook(std::function<void()> hook);

// Communicators and reduce operations that were not destroyed.
struct Leaks {
  size_t comms = 0;
  size_t ops = 0;
};
Leaks CountLeaks();

// Makes CommGetAsyncError of this rank's communicator return `error` from now
// on.
void SetAsyncError(Comm comm, Result error);

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_HOST_NCCL_H_
