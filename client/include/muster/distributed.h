// The functions that mirror torch.distributed.

#ifndef MUSTER_DISTRIBUTED_H_
#define MUSTER_DISTRIBUTED_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/backends.h"
#include "muster/base/export.h"
#include "muster/device_mesh.h"
#include "muster/process_group.h"
#include "muster/store.h"

namespace MUSTER_EXPORT muster {

struct InitProcessGroupOptions {
  // The name of a backend, or one for each device: "cpu:gloo,cuda:mine". Case
  // does not matter. backends.h adds backends that are not built in. Empty:
  // "cpu:shm,cuda:nccl" if IsNcclAvailable(), which looks for CUDA devices,
  // else "shm". shm works in memory that the ranks of a host share, and between
  // hosts as gloo does.
  std::string backend = {};

  // The index of the CUDA device on which this process works. The default
  // group, and groups made from it, are bound to that device and connect their
  // nccl backend at once; groups made later get their communicators from those
  // of existing groups. Either all ranks give one, or none does. Not given: the
  // first collective of each group binds the group.
  std::optional<int> device_id = std::nullopt;

  // Settings of the nccl backend, also for groups that are made from the
  // default group.
  NcclOptions nccl = {};

  // How the shm and gloo backends move the data of collectives between hosts,
  // also in groups that are made from the default group: "tcp", or "gloo" for
  // the Gloo library. The same on all ranks. Empty: MUSTER_CPU_TRANSPORT,
  // without that "tcp".
  std::string cpu_transport = {};

  // How the ranks find each other. Empty: "env://", unless `store` is given.
  //   env://                from RANK, WORLD_SIZE, MASTER_ADDR and
  //                         MASTER_PORT; ?rank=R&world_size=N overrides the
  //                         first two
  //   tcp://HOST:PORT?rank=R&world_size=N
  //   file:///PATH?rank=R&world_size=N  the ranks meet in a FileStore, in a
  //                         folder that all hosts share; rank 0 serves the
  //                         coordinator, as with `store`
  //   muster://HOST:PORT/JOB  an external coordinator, which assigns a rank if
  //                         none is given; the world size is the option below,
  //                         ?world_size=N or WORLD_SIZE. HOST:PORT may be
  //                         several with commas between, as
  //                         SessionOptions::address
  // With env:// and tcp:// rank 0 itself serves the coordinator at that
  // address, unless TORCHELASTIC_USE_AGENT_STORE=True says that the launcher
  // serves one.
  std::string init_method = {};

  // The timeout of the rendezvous, and afterwards of each collective of the
  // group. If rank 0 serves the coordinator, it stays in the rendezvous longer
  // by a tenth, at most 1 s, so that the other ranks learn from it which ranks
  // are missing.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);

  // Override the values in `init_method`; -1: not given.
  int world_size = -1;
  int rank = -1;

  // For an elastic group, instead of `world_size`; with muster:// only. The
  // group has as many ranks as come; GetWorldSize returns the number. It forms
  // as soon as `max_world_size` ranks are there, or `last_call` (default 30 s)
  // after `min_world_size` ranks are. All processes must give the same three
  // values. The coordinator assigns the ranks; a process cannot claim one. A
  // process that forms the group again keeps its previous rank, if the new
  // group has that rank. While a group of the job lives, a newcomer waits until
  // a rank of it fails or forms it again.
  int min_world_size = -1;
  int max_world_size = -1;
  std::optional<std::chrono::milliseconds> last_call = std::nullopt;

  // Instead of `init_method`: rank 0 serves the coordinator and puts its
  // address into this store. It serves on the first interface of
  // GLOO_SOCKET_IFNAME, else at the address of its host name, else on loopback,
  // where other hosts cannot reach it. Needs `rank` and `world_size`. This
  // store becomes the default store. One group at a time can meet in a store:
  // give each its own PrefixStore.
  std::shared_ptr<Store> store = nullptr;

  // The job's name on the coordinator. Empty: the name in the URL, else
  // MUSTER_JOB, else TORCHELASTIC_RUN_ID, else "default".
  std::string job = {};

  // The port on which this process serves its metrics and debug pages; 0: any
  // free port. Not given: MUSTER_HTTP_PORT; without that, nothing is served.
  std::optional<int> http_port = std::nullopt;

  // How long a failed collective waits for the coordinator, and the coordinator
  // for the departure that explains a broken connection. A coordinator that has
  // the report may take longer to find the culprit, at most 6 seconds.
  std::chrono::milliseconds verdict_timeout = std::chrono::milliseconds(2000);
};

// Forms the default group. Returns when all ranks are connected.
// Throws DistError: kFailedPrecondition (there is a default group, or there was
// one in the process that forked this one), kInvalidArgument (an option, a URL,
// an environment variable; the text names it), kAlreadyExists (the rank is
// taken; the text names both claimants), kDeadlineExceeded (ranks are missing,
// which the text and culprits() list; or the group is full), kOutOfRange (the
// job's rendezvous was closed), kResourceExhausted (no room for threads; the
// text names the limit).
// Throws DistNetworkError: there is no coordinator at the address, the port is
// in use, or a peer cannot be reached. Throws DistBackendError: the backend
// does not start. Throws DistStoreError: the file or the store refuses a call.
void InitProcessGroup(const InitProcessGroupOptions& options = {});

bool IsInitialized();

// Without a group: ends all groups (the default group last, the others in
// descending order of their names), leaves the job, closes the connections and
// ends the threads. Collectives must be complete. Afterwards InitProcessGroup
// works again. If rank 0 serves the coordinator, it waits for the other ranks
// to leave, at most ten seconds.
//
// With a group of NewGroup: ends that group alone. Does nothing for the
// non-member group.
//
// Throws DistError: kFailedPrecondition (there is no default group),
// kInvalidArgument (no such group). Throws the error of a failed group if no
// call has thrown it yet; when it ends all groups, only if no call has thrown
// the error of any of them. The group is ended even then.
void DestroyProcessGroup(const std::shared_ptr<ProcessGroup>& group = nullptr);

// Returns the default group. Throws DistError (kFailedPrecondition) if there is
// none.
std::shared_ptr<ProcessGroup> WorldGroup();

// `group`: null is the default group; if there is none, all throw DistError
// (kFailedPrecondition). Rank and size are -1 if this process is not in the
// group.
int GetRank(const std::shared_ptr<ProcessGroup>& group = nullptr);
int GetWorldSize(const std::shared_ptr<ProcessGroup>& group = nullptr);
// Returns the backend with which the group was made, by device if it has
// several. This is shm also for a group of shm whose ranks cannot share memory
// and which works as gloo; then its log says so, and its metrics say gloo.
std::string GetBackend(const std::shared_ptr<ProcessGroup>& group = nullptr);

struct NewGroupOptions {
  // Global ranks, in any order. Not given: all ranks.
  std::optional<std::vector<int>> ranks = std::nullopt;
  // The timeout for forming the group, and of its collectives; zero: the
  // default group's.
  std::chrono::milliseconds timeout{0};
  // Empty: the default group's backend.
  std::string backend = {};
  // Not given: the default group's settings.
  std::optional<NcclOptions> nccl = std::nullopt;
  // Empty: the default group's.
  std::string cpu_transport = {};
  // The CUDA device of this process. Either all members give one, or none does.
  // Not given: the default group's device. If the default group has one, this
  // must be the same.
  std::optional<int> device_id = std::nullopt;
  // True: only the members make the call, and they need not agree with other
  // ranks on the order of such calls.
  bool use_local_synchronization = false;
  // A description for people, which the coordinator shows.
  std::string description = {};
  // At most 256 bytes (else kResourceExhausted). Empty: a number; with local
  // synchronization, a hash of the ranks and a number.
  std::string name = {};
};

// Makes a group of some ranks. All ranks of the default group must make the
// call, members or not, and in the same order, unless use_local_synchronization
// is set. It returns when the members are connected; a rank that is not a
// member does not wait for that.
//
// Ranks in the group have the order of the global ranks. On a rank that is not
// a member, the result is the non-member group: its rank and size are -1,
// collectives on it log a warning and do nothing, and destroying it does
// nothing. (It is not null, which means the default group.)
//
// A group is independent of the default group and of other groups. It fails if
// one of its members is gone, and goes on if another rank is. A failure of its
// own, for instance a timeout, ends it on its members only.
//
// DestroyProcessGroup ends the group. If its last shared_ptr and all its Works
// are gone, the next NewGroup, SplitGroup or DestroyProcessGroup on this rank
// ends it on this rank. As long as a group on the CPU runs nothing but small
// collectives (some hundred bytes), and none with async_op, it has no thread of
// its own and takes at most 64 KiB, four descriptors, and two more for each
// other rank.
//
// If ranks pass different arguments to one call, or wait for each other in
// different calls, every rank that waits fails with kInvalidArgument within a
// second of the last rank's call; the text says which rank makes which call.
// This also holds for the functions below.
// Throws DistError: kInvalidArgument (ranks, backend, timeout, or a name that
// is taken), kFailedPrecondition (no default group), kDeadlineExceeded (members
// did not come; the text names them), kAborted (a rank has reported a failure,
// or the default group is over); DistNetworkError, DistBackendError: as
// InitProcessGroup.
std::shared_ptr<ProcessGroup> NewGroup(const NewGroupOptions& options = {});

struct NewSubgroupsOptions {
  // These are the options of NewGroupOptions.
  std::chrono::milliseconds timeout{0};
  std::string backend = {};
  std::string description = {};
};

struct Subgroups {
  // The group that contains this process, or the non-member group if none does.
  std::shared_ptr<ProcessGroup> current;
  std::vector<std::shared_ptr<ProcessGroup>> all;
};

// Makes groups of `group_size` ranks each, in ascending order of the ranks. The
// world size must be a multiple of `group_size`. Otherwise as NewGroup.
Subgroups NewSubgroups(int group_size, const NewSubgroupsOptions& options = {});

// Makes a group for each list of global ranks. No rank may be in two lists.
// Otherwise as NewGroup.
Subgroups NewSubgroupsByEnumeration(
    const std::vector<std::vector<int>>& ranks_per_subgroup_list,
    const NewSubgroupsOptions& options = {});

struct SplitGroupOptions {
  // Zero: the parent's timeout.
  std::chrono::milliseconds timeout{0};
  std::string description = {};
};

// Splits `parent` (null: the default group) into parts, which are lists of
// ranks in the parent, and returns the part that contains this process. A rank
// outside every list gets the non-member group, as with NewGroup. All ranks of
// the parent must make the call, in the same order. No rank may be in two
// lists. Throws as NewGroup.
std::shared_ptr<ProcessGroup> SplitGroup(
    const std::shared_ptr<ProcessGroup>& parent,
    const std::vector<std::vector<int>>& split_ranks,
    const SplitGroupOptions& options = {});

struct ShrinkGroupOptions {
  enum class Flags {
    // Aborts nothing before the group is shrunk. Wait first for all work that
    // still runs in the group on this rank: otherwise it fails when the old
    // group ends, as with DestroyProcessGroup, and on other ranks at its
    // timeout.
    kDefault,
    // Aborts the group first: all work that runs in it fails on all its ranks,
    // if it has not failed yet.
    kAbort,
  };
  Flags shrink_flags = Flags::kDefault;
  // The timeout for forming the group, and of its collectives; zero: the old
  // group's.
  std::chrono::milliseconds timeout{0};
  // A description for people; not used for the default group.
  std::string description = {};
};

// Makes a group of the ranks of `group` (null: the default group) without
// `ranks_to_exclude`, which are ranks in the group, usually those that have
// failed. All ranks that stay make the call after they have seen the error, and
// give the same ranks. The excluded ranks do not make it; those that live end
// the group with DestroyProcessGroup. Ranks in the new group keep their order.
// The call ends the old group on this rank, unless it throws. A call that threw
// can be repeated: it meets the calls of other ranks that exclude the same
// ranks, however many of those calls have failed.
//
// If more ranks are gone than were excluded, also if they are lost during the
// call, it throws as soon as the coordinator reports them, with those ranks in
// culprits(): call it again and exclude them, too. For the default group it
// cannot do so if the coordinator is gone with them, or if this rank has
// reported a failure (see below): then it throws when its timeout has passed.
//
// A group other than the default one can be shrunk only as long as this rank
// has not reported a failure of the default group, as it does after a timeout
// there: after that the coordinator forms no more groups with it
// (kFailedPrecondition). Shrink the default group instead.
//
// A smaller default group replaces the old one. It is formed anew as by
// DestroyProcessGroup and InitProcessGroup, with new ranks from 0 on, and all
// other groups end, whether or not it forms. If it does not form on some rank,
// the old group stays on all ranks, but only this call and DestroyProcessGroup
// work on it. Ranks that have met form the new group within 30 s. If the rank
// that served the coordinator is gone, the new rank 0 serves it at the same
// address, which must be its host's own and free: a stopped process keeps its
// port. With an external coordinator that is not needed. An elastic default
// group cannot be shrunk (kFailedPrecondition): it forms again by
// DestroyProcessGroup and InitProcessGroup.
//
// Throws DistError (kInvalidArgument) if `ranks_to_exclude` is empty, has all
// ranks or this one, or has a rank twice or one that is not in the group. Also
// throws what NewGroup or InitProcessGroup throws.
std::shared_ptr<ProcessGroup> ShrinkGroup(
    const std::vector<int>& ranks_to_exclude,
    const std::shared_ptr<ProcessGroup>& group = nullptr,
    const ShrinkGroupOptions& options = {});

// Convert between global ranks and ranks in `group`. Throw DistError
// (kInvalidArgument) if the rank is not in the group, or if there is no such
// group.
int GetGroupRank(const std::shared_ptr<ProcessGroup>& group, int global_rank);
int GetGlobalRank(const std::shared_ptr<ProcessGroup>& group, int group_rank);

// Returns the global ranks of the group, by rank in the group.
std::vector<int> GetProcessGroupRanks(
    const std::shared_ptr<ProcessGroup>& group = nullptr);

// Returns whether a launcher (muster-run or torchrun) has started this process.
bool IsTorchElasticLaunched();

// Returns the rank of this process on its host: LOCAL_RANK, which the launcher
// sets, else `fallback_rank`.
// Throws DistError (kInvalidArgument) if there is neither, or if LOCAL_RANK is
// no number.
int GetNodeLocalRank(std::optional<int> fallback_rank = std::nullopt);

// Returns the default group for the functions of DeviceMesh. NewGroup makes the
// mesh's groups: one for each line of a dimension, in the order of the mesh.
MeshWorld DefaultMeshWorld();

// Calls DeviceMesh::Init on the default group, after InitProcessGroup() if
// there is none. All ranks of the default group must make the call, which waits
// for them. If ranks make different meshes, they fail as in NewGroup.
DeviceMesh InitDeviceMesh(const std::string& device_type,
                          const std::vector<int64_t>& shape,
                          const DeviceMeshOptions& options = {});

// Returns the job's store, with a timeout of its own (300 s). Keys that begin
// with "muster/" belong to the SDK. Under muster-run each attempt has its own
// keys: when all ranks are started again, they do not see the keys that they
// had set before. Other programs find these under "attempts/NUMBER/". Put keys
// that must outlive an attempt into a CoordinatorStore with a Session of your
// own.
std::shared_ptr<Store> GetDefaultStore();

// Returns host:port of this process's metrics and debug pages; empty if it
// serves none.
std::string GetDebugAddress();

// These functions call the methods of ProcessGroup on `group` of the options.
Work AllReduce(const Tensor& tensor, const AllReduceOptions& options = {});
Work Broadcast(const Tensor& tensor, std::optional<int> src,
               const BroadcastOptions& options = {});
Work Reduce(const Tensor& tensor, std::optional<int> dst,
            const ReduceOptions& options = {});
Work AllGather(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
               const AllGatherOptions& options = {});
Work AllGatherIntoTensor(const Tensor& output, const Tensor& input,
                         const AllGatherOptions& options = {});
Work AllGatherV(const Tensor& output, const Tensor& input,
                const std::vector<int64_t>& counts,
                const AllGatherVOptions& options = {});
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
Work ReduceScatterV(const Tensor& output, const Tensor& input,
                    const std::vector<int64_t>& counts,
                    const ReduceScatterVOptions& options = {});
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

// Starts all operations of `p2p_op_list`, in order, and returns a handle for
// each. No operation waits for another to begin, so all ranks may send first.
// All operations must have the same group, and each must have a peer in it.
// Otherwise, or if there are none, throws DistError (kInvalidArgument) before
// anything is started.
//
// On nccl the operations are one NCCL group (ncclGroupStart, ncclGroupEnd) in
// the group's own communicator, in order with the group's collectives. As with
// c10d, the other side of each operation must also be in a BatchIsendIrecv. If
// it is the first call of a group that is not bound to a device, all ranks of
// the group must make one. Put many operations, or operations both ways, into
// one call there: separate operations may block each other in CUDA's queues
// (dataplane/README.md, "The nccl backend").
std::vector<Work> BatchIsendIrecv(const std::vector<P2POp>& p2p_op_list);

}  // namespace muster

#endif  // MUSTER_DISTRIBUTED_H_
