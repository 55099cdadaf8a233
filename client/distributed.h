// The functions that mirror torch.distributed, on the default group.

#ifndef MUSTER_CLIENT_DISTRIBUTED_H_
#define MUSTER_CLIENT_DISTRIBUTED_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/process_group.h"
#include "client/store.h"

namespace muster {

struct InitProcessGroupOptions {
  std::string backend = "gloo";

  // How the ranks find each other; empty is "env://", unless `store` is given.
  //   env://                from RANK, WORLD_SIZE, MASTER_ADDR and
  //                         MASTER_PORT; ?rank=R&world_size=N goes before the
  //                         first two
  //   tcp://HOST:PORT?rank=R&world_size=N
  //   file:///PATH?rank=R&world_size=N  the ranks meet in a FileStore: in a
  //   file
  //                         that no job has used before, in a folder that all
  //                         hosts share; without a coordinator, as in `store`
  //   muster://HOST:PORT/JOB  an external coordinator. Without a rank it gives
  //                         one out; the world size is the option below,
  //                         ?world_size=N or WORLD_SIZE.
  // With env:// and tcp:// rank 0 serves the coordinator itself, at that
  // address, unless TORCHELASTIC_USE_AGENT_STORE=True says that the launcher
  // has one.
  std::string init_method = {};

  // For the rendezvous, and for the group's collectives afterwards.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);

  // Override what `init_method` says; -1: not given.
  int world_size = -1;
  int rank = -1;

  // Instead of `world_size`, with muster:// alone: the group has as many ranks
  // as come, and GetWorldSize tells. It forms as soon as the maximum is there,
  // or `last_call` (not given: 30 s) after the minimum. All must give the same
  // three. Ranks are given out, and cannot be claimed; a process that forms the
  // group again has its rank of before, where there is such a one. While a
  // group of the job lives, a newcomer waits: until a rank of it fails, or
  // forms it again.
  int min_world_size = -1;
  int max_world_size = -1;
  std::optional<std::chrono::milliseconds> last_call = std::nullopt;

  // Instead of `init_method`: rank 0 serves the coordinator, and tells the
  // others in this store where. That is on the first interface of
  // GLOO_SOCKET_IFNAME, else at the address of its host name, else on loopback,
  // where other hosts cannot reach it. Needs `rank` and `world_size`. It
  // becomes the default store. One group at a time can meet in a store: give
  // each a PrefixStore.
  std::shared_ptr<Store> store = nullptr;

  // The job's name on the coordinator. Empty: the URL's, else MUSTER_JOB, else
  // TORCHELASTIC_RUN_ID, else "default".
  std::string job = {};

  // Serves metrics and debug pages of this process on this port, 0 for any
  // free one. Not given: MUSTER_HTTP_PORT; without that, nothing is served.
  std::optional<int> http_port = std::nullopt;

  // How long the error of a broken collective waits for the coordinator to say
  // who is to blame.
  std::chrono::milliseconds verdict_timeout = std::chrono::milliseconds(2000);
};

// Forms the default group: returns when all ranks are connected.
// Throws DistError: kFailedPrecondition (there is a default group),
// kInvalidArgument (an option, a URL, an environment variable; the text names
// it), kAlreadyExists (the rank is taken, the text names both claimants),
// kDeadlineExceeded (ranks are missing, the text and culprits() list them; or
// the group is full), kOutOfRange (the job's rendezvous was closed).
// Throws DistNetworkError: no coordinator at the address, the port is in use,
// a peer cannot be reached. DistBackendError: the backend does not start.
// DistStoreError: the file or the store refuses.
void InitProcessGroup(const InitProcessGroupOptions& options = {});

bool IsInitialized();

// Ends the default group: leaves the job, closes the connections, ends the
// threads. Collectives must be complete. Afterwards InitProcessGroup works
// again. Rank 0, when it serves the coordinator, stays for the other ranks'
// farewell, at most ten seconds.
// Throws DistError: kFailedPrecondition (there is no default group). Throws
// the group's error when the group failed and nobody has seen that; the group
// is gone even so.
void DestroyProcessGroup();

// The default group. Throws DistError (kFailedPrecondition) without one.
std::shared_ptr<ProcessGroup> WorldGroup();

// `group`: null is the default group. All throw DistError
// (kFailedPrecondition) when there is no default group.
int GetRank(const std::shared_ptr<ProcessGroup>& group = nullptr);
int GetWorldSize(const std::shared_ptr<ProcessGroup>& group = nullptr);
std::string GetBackend(const std::shared_ptr<ProcessGroup>& group = nullptr);

// The job's store, with a timeout of its own (300 s). Keys that begin with
// "muster/" are the SDK's.
std::shared_ptr<Store> GetDefaultStore();

// host:port of this process's metrics and debug pages; empty when it serves
// none.
std::string GetDebugAddress();

// As the methods of ProcessGroup.
Work AllReduce(Tensor tensor, const AllReduceOptions& options = {});
Work Broadcast(Tensor tensor, int src, const BroadcastOptions& options = {});
Work Reduce(Tensor tensor, int dst, const ReduceOptions& options = {});
Work AllGather(std::vector<Tensor> tensor_list, Tensor tensor,
               const AllGatherOptions& options = {});
Work AllGatherIntoTensor(Tensor output, Tensor input,
                         const AllGatherOptions& options = {});
Work Gather(Tensor tensor, std::vector<Tensor> gather_list = {}, int dst = 0,
            const GatherOptions& options = {});
Work Scatter(Tensor tensor, std::vector<Tensor> scatter_list = {}, int src = 0,
             const ScatterOptions& options = {});
Work ReduceScatter(Tensor output, std::vector<Tensor> input_list,
                   const ReduceScatterOptions& options = {});
Work ReduceScatterTensor(Tensor output, Tensor input,
                         const ReduceScatterOptions& options = {});
Work AllToAll(std::vector<Tensor> output_tensor_list,
              std::vector<Tensor> input_tensor_list,
              const AllToAllOptions& options = {});
Work AllToAllSingle(Tensor output, Tensor input,
                    const AllToAllSingleOptions& options = {});
void Send(Tensor tensor, int dst, const SendOptions& options = {});
int Recv(Tensor tensor, std::optional<int> src = std::nullopt,
         const RecvOptions& options = {});
Work Isend(Tensor tensor, int dst, const SendOptions& options = {});
Work Irecv(Tensor tensor, std::optional<int> src = std::nullopt,
           const RecvOptions& options = {});
Work Barrier(const BarrierOptions& options = {});
void MonitoredBarrier(const MonitoredBarrierOptions& options = {});

// Starts all of `p2p_op_list`, in its order, and returns a handle for each. All
// must have one group. Throws DistError (kInvalidArgument) before anything is
// started if they do not, or if there are none.
std::vector<Work> BatchIsendIrecv(const std::vector<P2POp>& p2p_op_list);

}  // namespace muster

#endif  // MUSTER_CLIENT_DISTRIBUTED_H_
