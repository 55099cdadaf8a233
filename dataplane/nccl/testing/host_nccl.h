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
// - A collective is an entry in a stream. It begins when the ranks' streams
//   have all come to theirs, and nobody says so when one never does: it waits
//   until its communicator is aborted.
// - Between GroupStart and GroupEnd calls are gathered. Sends and receives of a
//   group go on together, of several groups one after the other.
// - Making a communicator waits for all its ranks, or, if the configuration
//   says so (blocking = 0), is in progress until they are there. What is called
//   of it then is in progress, too, until SetLooks(n) looks at
//   CommGetAsyncError have said so; only then it is in its stream.
// - A split or a shrink of one that does not block leaves that one in progress
//   until all ranks are there; only then there is the new one.
// - Of one that blocks calls are done when they return, and no other thread
//   uses it, asks it or aborts it before.
//
// What NCCL forbids returns an error and is noted as a misuse: groups that are
// not balanced, communicators that are gone, aborted or in progress, those that
// are split or shrunk while something is under way, or destroyed where they are
// to be aborted; windows of memory that is none of MemAlloc's, or whose memory
// or communicator goes before them; configurations that NCCL refuses, and
// texts of one that do not outlive it; tensors that are not on the device,
// ranks whose calls do not fit. Thread-safe.
Api HostNcclApi();

// What GetVersion says; what is not in an NCCL that old is null in the Api.
Api HostNcclApi(int version);

// What was used wrongly since the last call.
std::vector<std::string> TakeMisuses();

// How many GroupStarts of this thread have had no GroupEnd.
int OpenGroups();

// How many looks a call on a communicator that does not block stays in
// progress; 0 at first: none is.
void SetLooks(int looks);

// How many calls each launch since the last TakeLaunches was made of.
std::vector<size_t> TakeLaunches();

// How many calls of AlltoAll and Scatter there were since the last of these.
int TakeCopyEngineCalls();

// Whether 8 and 16 bit numbers are rounded at each rank that adds its own, as
// NCCL's rings and trees do, or once (at first).
void SetRoundsAtEachRank(bool rounds);

// The configuration of the communicator that was begun last.
Config LastConfig();

// How many communicators were begun since the last TakeMade.
struct Made {
  int by_id = 0;
  int by_split = 0;
  int by_shrink = 0;

  friend bool operator==(const Made&, const Made&) = default;
};
Made TakeMade();

// How many CommAborts there have been since the last TakeAborts.
int TakeAborts();

// Called from now on by each CommDestroy, and by each CommAbort that is the
// last of its group of NCCL, or in none, when what it ends knows of it: there
// CUDA waits for all that the device does. Null: nothing.
void SetFreeHook(std::function<void()> hook);

// Called from now on by each collective, send and receive, or group of them, of
// a communicator that blocks, before it is in its stream: there NCCL connects
// ranks, and waits for them. Null: nothing.
void SetConnectHook(std::function<void()> hook);

// Communicators and reduce operations that were made and not given back.
struct Leaks {
  size_t comms = 0;
  size_t ops = 0;
};
Leaks CountLeaks();

// From now on CommGetAsyncError of this rank's communicator says `error`.
void SetAsyncError(Comm comm, Result error);

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_HOST_NCCL_H_
