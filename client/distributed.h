// The functions that mirror torch.distributed.

#ifndef MUSTER_CLIENT_DISTRIBUTED_H_
#define MUSTER_CLIENT_DISTRIBUTED_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/backends.h"
#include "client/device_mesh.h"
#include "client/process_group.h"
#include "client/store.h"

namespace muster {

struct InitProcessGroupOptions {
  // A backend's name, or one for each device: "cpu:gloo,cuda:mine", in small or
  // capital letters. See
  // backends.h for those that are not built in. Empty: "cpu:shm,cuda:nccl"
  // where IsNcclAvailable(), which looks for CUDA devices, and else "shm": in
  // memory that the ranks of a host share, and between hosts as gloo.
  std::string backend = {};

  // The index of the CUDA device that this process works on: the default group,
  // and those made from it, are bound to it, and connect its nccl backend at
  // once; those made later have their communicators from the others'. All ranks
  // give one, or none does. Not given: each group is bound by its first
  // collective.
  std::optional<int> device_id = std::nullopt;

  // Of the nccl backend, also of the groups made from the default one.
  NcclOptions nccl = {};

  // How the ranks find each other; empty is "env://", unless `store` is given.
  //   env://                from RANK, WORLD_SIZE, MASTER_ADDR and
  //                         MASTER_PORT; ?rank=R&world_size=N goes before the
  //                         first two
  //   tcp://HOST:PORT?rank=R&world_size=N
  //   file:///PATH?rank=R&world_size=N  the ranks meet in a FileStore, in a
  //                         folder that all hosts share; rank 0 serves the
  //                         coordinator, as with `store`
  //   muster://HOST:PORT/JOB  an external coordinator. Without a rank it gives
  //                         one out; the world size is the option below,
  //                         ?world_size=N or WORLD_SIZE.
  // With env:// and tcp:// rank 0 serves the coordinator itself, at that
  // address, unless TORCHELASTIC_USE_AGENT_STORE=True says that the launcher
  // has one.
  std::string init_method = {};

  // For the rendezvous, and for the group's collectives afterwards. Rank 0,
  // when it serves the coordinator, stays in the rendezvous for a tenth longer,
  // at most 1 s, so that the others hear from it who is missing.
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
  // who is to blame: it may come so much later than a timeout of its own, while
  // the ranks find out who did not come to the end of it.
  std::chrono::milliseconds verdict_timeout = std::chrono::milliseconds(2000);
};

// Forms the default group: returns when all ranks are connected.
// Throws DistError: kFailedPrecondition (there is a default group, or was in
// the process that forked this one off), kInvalidArgument (an option, a URL, an
// environment variable; the text names it), kAlreadyExists (the rank is taken,
// the text names both claimants), kDeadlineExceeded (ranks are missing, the
// text and culprits() list them; or the group is full), kOutOfRange (the job's
// rendezvous was closed), kResourceExhausted (threads have no room, the text
// names the limit).
// Throws DistNetworkError: no coordinator at the address, the port is in use,
// a peer cannot be reached. DistBackendError: the backend does not start.
// DistStoreError: the file or the store refuses.
void InitProcessGroup(const InitProcessGroupOptions& options = {});

bool IsInitialized();

// Without a group: ends all of them, those beside the default one first, the
// last by name first; leaves the job, closes the connections, ends the threads.
// Collectives must be complete. Afterwards InitProcessGroup works again. Rank
// 0, when it serves the coordinator, stays for the other ranks' farewell, at
// most ten seconds. With a group of NewGroup: ends that alone; of a group that
// this process is not in, nothing. Throws DistError: kFailedPrecondition (there
// is no default group), kInvalidArgument (no such group). Throws the group's
// error when it failed and nobody has seen that; of all groups, when nobody has
// seen any. The group is gone even so.
void DestroyProcessGroup(const std::shared_ptr<ProcessGroup>& group = nullptr);

// The default group. Throws DistError (kFailedPrecondition) without one.
std::shared_ptr<ProcessGroup> WorldGroup();

// `group`: null is the default group. All throw DistError
// (kFailedPrecondition) when there is no default group.
// The rank and the size are -1 where this process is not in the group.
int GetRank(const std::shared_ptr<ProcessGroup>& group = nullptr);
int GetWorldSize(const std::shared_ptr<ProcessGroup>& group = nullptr);
// What the group was made with, by device if it has several. It is shm also
// where ranks cannot share memory: their log says so then, and metrics gloo.
std::string GetBackend(const std::shared_ptr<ProcessGroup>& group = nullptr);

struct NewGroupOptions {
  // Global ranks, in any order. Not given: all.
  std::optional<std::vector<int>> ranks = std::nullopt;
  // For forming the group, and for its collectives; zero: the default group's.
  std::chrono::milliseconds timeout{0};
  // Empty: the default group's.
  std::string backend = {};
  // Not given: the default group's.
  std::optional<NcclOptions> nccl = std::nullopt;
  // As in InitProcessGroupOptions: all members give one, or none does. Not
  // given: the default group's, which it must be where that has one.
  std::optional<int> device_id = std::nullopt;
  // Only the members make the call, and need not agree with others about the
  // order of such calls.
  bool use_local_synchronization = false;
  // For people; the coordinator shows it.
  std::string description = {};
  // At most 256 bytes (kResourceExhausted). Empty: a number, or with local
  // synchronization a hash of the ranks and a number.
  std::string name = {};
};

// A group of some ranks. All ranks of the default group must make the call,
// whether they are members or not, and in the same order, unless it is of local
// synchronization. It returns when the members are connected, which those that
// are not members do not wait for.
//
// The ranks in the group ascend with the global ones. Where this process is not
// a member, the result stands for that: its rank and size are -1, collectives
// on it warn in the log and do nothing, and destroying it does nothing. (It is
// not null, which means the default group.)
//
// A group is independent of the default one and of others: it fails when one of
// its own members is gone, and goes on when it is another one. A failure of its
// own, as a timeout, ends it on its members alone.
//
// DestroyProcessGroup ends it. One whose last shared_ptr is gone, as all its
// Works are, is ended, on this rank alone, by the next NewGroup, SplitGroup or
// DestroyProcessGroup here. As long as nothing but small collectives (of some
// hundred bytes) runs in a group on the CPU, and none with async_op, it takes
// no thread, at most 64 KiB, and four descriptors and two for each other rank.
//
// Ranks that mean different things by one call, or wait for each other in
// different ones, are told so within a second of the last, and who means what:
// all that wait by then (kInvalidArgument). So it is with the functions below.
// Throws DistError: kInvalidArgument (ranks, backend, timeout, or a name that
// is taken), kFailedPrecondition (no default group), kDeadlineExceeded (members
// did not come; the text names them), kAborted; DistNetworkError,
// DistBackendError: as InitProcessGroup.
std::shared_ptr<ProcessGroup> NewGroup(const NewGroupOptions& options = {});

struct NewSubgroupsOptions {
  // As in NewGroupOptions.
  std::chrono::milliseconds timeout{0};
  std::string backend = {};
  std::string description = {};
};

struct Subgroups {
  // The one that this process is in; what NewGroup returns to others if none.
  std::shared_ptr<ProcessGroup> current;
  std::vector<std::shared_ptr<ProcessGroup>> all;
};

// Groups of `group_size` ranks each, in ascending order. The world size must be
// a multiple of it. Otherwise as NewGroup.
Subgroups NewSubgroups(int group_size, const NewSubgroupsOptions& options = {});

// A group for each of these lists of global ranks; no rank may be in two.
// Otherwise as NewGroup.
Subgroups NewSubgroupsByEnumeration(
    const std::vector<std::vector<int>>& ranks_per_subgroup_list,
    const NewSubgroupsOptions& options = {});

struct SplitGroupOptions {
  // Zero: the parent's.
  std::chrono::milliseconds timeout{0};
  std::string description = {};
};

// Cuts `parent` (null: the default group) into parts, of ranks in the parent:
// the part that this process is in. Of those ranks that are in none nothing
// comes, as in NewGroup. All ranks of the parent must make the call, in the
// same order. No rank may be in two. Throws as NewGroup.
std::shared_ptr<ProcessGroup> SplitGroup(
    const std::shared_ptr<ProcessGroup>& parent,
    const std::vector<std::vector<int>>& split_ranks,
    const SplitGroupOptions& options = {});

struct ShrinkGroupOptions {
  enum class Flags {
    // Nothing fails before the call. What still runs in the group here is to
    // be waited for first: it fails when the old group ends, as after
    // DestroyProcessGroup, and on other ranks at its timeout.
    kDefault,
    // What runs in the group fails on all its ranks, if it has not failed yet.
    kAbort,
  };
  Flags shrink_flags = Flags::kDefault;
  // For forming the group, and for its collectives; zero: the old one's.
  std::chrono::milliseconds timeout{0};
  // For people; not of the default group.
  std::string description = {};
};

// What is left of `group` (null: the default group) without some of its ranks,
// which are ranks in the group: those that have failed, as a rule. All ranks
// that stay make the call, once they have seen the error, and give the same
// ranks; the others do not, and end the group by DestroyProcessGroup if they
// live. Ranks in the new group keep their order. The old group is ended on this
// rank, unless the call throws; then it can be made again, and meets the calls
// of other ranks that exclude the same, however many of them have failed.
//
// If more are gone than were excluded, also while the call runs, it throws as
// soon as the coordinator tells of it, with them in culprits(): make it again
// without those, too. For the default group it cannot when it has gone with
// them, nor this rank when it has reported a failure (below): then it throws
// when its timeout has passed.
//
// A group beside the default one can be shrunk as long as this rank has not
// reported a failure of the default group, as it does after a timeout there:
// the coordinator forms no more groups with it then (kFailedPrecondition).
// Shrink the default group instead.
//
// A smaller default group takes the place of the old one, for which it is
// formed anew as by DestroyProcessGroup and InitProcessGroup, with new ranks
// from 0 on: all other groups end, whether or not it forms. If it does not, on
// any of the ranks, the old one stays on all of them, ended but for this call
// and DestroyProcessGroup. Ranks that have met form it within 30 s. If the rank
// that served the coordinator is gone, the new rank 0 serves it, at the same
// address, which must be its own, and free: a process that was stopped holds
// its port. With an external coordinator nobody needs to. An elastic group
// forms again by those two calls instead (kFailedPrecondition).
//
// Throws DistError (kInvalidArgument: no ranks, all of them, this one, or none
// of the group's), and as NewGroup, or InitProcessGroup.
std::shared_ptr<ProcessGroup> ShrinkGroup(
    const std::vector<int>& ranks_to_exclude,
    const std::shared_ptr<ProcessGroup>& group = nullptr,
    const ShrinkGroupOptions& options = {});

// Between global ranks and those in `group`. Throw DistError
// (kInvalidArgument): it is not in the group, or there is no such group.
int GetGroupRank(const std::shared_ptr<ProcessGroup>& group, int global_rank);
int GetGlobalRank(const std::shared_ptr<ProcessGroup>& group, int group_rank);

// Global ranks by the ranks in `group`.
std::vector<int> GetProcessGroupRanks(
    const std::shared_ptr<ProcessGroup>& group = nullptr);

// Whether a launcher has started this process: muster-run, or torchrun.
bool IsTorchElasticLaunched();

// The rank of this process on its host, as the launcher says in LOCAL_RANK; if
// that does not, `fallback_rank`.
// Throws DistError (kInvalidArgument): there is neither, or LOCAL_RANK is no
// number.
int GetNodeLocalRank(std::optional<int> fallback_rank = std::nullopt);

// The default group for the functions of DeviceMesh, whose groups are made with
// NewGroup: one for each line of a dimension, in the order of the mesh.
MeshWorld DefaultMeshWorld();

// DeviceMesh::Init on the default group, which is formed by InitProcessGroup()
// if there is none. All its ranks must make the call, which waits for them; who
// makes another mesh is told as by NewGroup.
DeviceMesh InitDeviceMesh(const std::string& device_type,
                          const std::vector<int64_t>& shape,
                          const DeviceMeshOptions& options = {});

// The job's store, with a timeout of its own (300 s). Keys that begin with
// "muster/" are the SDK's. Under muster-run each attempt has keys of its own:
// when all ranks are started again, those that they had set are gone. Other
// programs find them under "attempts/NUMBER/"; what shall outlive an attempt
// goes into a CoordinatorStore of an own Session.
std::shared_ptr<Store> GetDefaultStore();

// host:port of this process's metrics and debug pages; empty when it serves
// none.
std::string GetDebugAddress();

// As the methods of ProcessGroup.
Work AllReduce(const Tensor& tensor, const AllReduceOptions& options = {});
Work Broadcast(const Tensor& tensor, std::optional<int> src,
               const BroadcastOptions& options = {});
Work Reduce(const Tensor& tensor, std::optional<int> dst,
            const ReduceOptions& options = {});
Work AllGather(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
               const AllGatherOptions& options = {});
Work AllGatherIntoTensor(const Tensor& output, const Tensor& input,
                         const AllGatherOptions& options = {});
Work Gather(const Tensor& tensor, const std::vector<Tensor>& gather_list = {},
            std::optional<int> dst = std::nullopt,
            const GatherOptions& options = {});
Work Scatter(const Tensor& tensor, const std::vector<Tensor>& scatter_list = {},
             std::optional<int> src = std::nullopt,
             const ScatterOptions& options = {});
Work ReduceScatter(const Tensor& output, const std::vector<Tensor>& input_list,
                   const ReduceScatterOptions& options = {});
Work ReduceScatterTensor(const Tensor& output, const Tensor& input,
                         const ReduceScatterOptions& options = {});
Work AllToAll(const std::vector<Tensor>& output_tensor_list,
              const std::vector<Tensor>& input_tensor_list,
              const AllToAllOptions& options = {});
Work AllToAllSingle(const Tensor& output, const Tensor& input,
                    const AllToAllSingleOptions& options = {});
void Send(const Tensor& tensor, std::optional<int> dst,
          const SendOptions& options = {});
int Recv(const Tensor& tensor, std::optional<int> src = std::nullopt,
         const RecvOptions& options = {});
Work Isend(const Tensor& tensor, std::optional<int> dst,
           const SendOptions& options = {});
Work Irecv(const Tensor& tensor, std::optional<int> src = std::nullopt,
           const RecvOptions& options = {});
Work Barrier(const BarrierOptions& options = {});
void MonitoredBarrier(const MonitoredBarrierOptions& options = {});

// Starts all of `p2p_op_list`, in its order, and returns a handle for each:
// none waits for another to begin, so ranks may all send first. All must have
// one group, and each a peer in it. Throws DistError (kInvalidArgument) before
// anything is started if they do not, or if there are none.
// On nccl it is one group of NCCL in the group's own communicator, in its place
// among the group's collectives: as with c10d the other side of each is to be
// in a BatchIsendIrecv, too, and if it is what the group begins with, all ranks
// of the group are to come with one, unless the group is bound to a device.
// Many at once, or both ways, belong into one there: by themselves they may
// hold each other up in CUDA's queues (dataplane/README.md, "The nccl
// backend").
std::vector<Work> BatchIsendIrecv(const std::vector<P2POp>& p2p_op_list);

}  // namespace muster

#endif  // MUSTER_CLIENT_DISTRIBUTED_H_
