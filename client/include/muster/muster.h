/* The C interface of muster (C11; also a C++ header). Other languages are bound
 * to it.
 *
 *   muster_init_options init = {.size = sizeof(init)};
 *   if (muster_init_process_group(&init) != MUSTER_OK) {
 *     fprintf(stderr, "%s\n", muster_error_message(muster_last_error()));
 *     return 1;
 *   }
 *   float sums[1000] = ...;
 *   muster_tensor tensor = {.data = sums, .dtype = MUSTER_FLOAT32,
 *                           .count = 1000};
 *   muster_all_reduce(&tensor, MUSTER_SUM, NULL, NULL);
 *   muster_destroy_process_group(NULL);
 *
 * The functions are torch.distributed's, with its names. muster/muster.hpp is
 * the C++ interface to the same functions; its comments say more about what
 * each one does.
 *
 * Errors. Functions that can fail return a muster_status: MUSTER_OK or an error
 * code. The calling thread's muster_last_error() then says more: kind, text and
 * culprits. No C++ exception leaves a function. All other functions cannot
 * fail: given NULL they return 0, NULL or do nothing. After a failure an output
 * that is a handle is NULL, and other outputs have not changed. A NULL where a
 * value is needed is MUSTER_INVALID_ARGUMENT, and the text names the argument.
 * The first collective that fails after its arguments were accepted ends its
 * group: all ranks get the error.
 *
 * Handles. A pointer to an incomplete struct (muster_group, muster_work, ...)
 * is a handle. The function that returns one through its last argument gives it
 * to the caller, who ends it with the release function of its kind, once, while
 * no other thread uses it. Release functions accept NULL. Where a muster_group
 * is an argument, NULL is the default group.
 *
 * Memory. Arguments, and what they point to, are read during the call alone;
 * arrays of tensors, shapes, ranks and strings are copied. The memory of
 * tensors belongs to a collective until that is complete, which it is when a
 * synchronous call returns, also with an error. A callback and its context must
 * live as long as the comment of the function says.
 *
 * Threads. Functions may be called from any thread, and handles be used by
 * several threads at once, except where a comment says "one thread at a time".
 * A handle must live until every call with it has returned, also one that
 * waits. Threads that start collectives on one group must agree on their order.
 * A callback must not throw, and must not end the thread by longjmp or
 * pthread_exit; nor must a thread be cancelled in a call (pthread_cancel).
 *
 * Processes. A forked child cannot use its parent's groups, works, stores and
 * sessions: calls fail with MUSTER_FAILED_PRECONDITION. Fork before
 * muster_init_process_group, or let the child execute a program. End the works
 * of a group before the group, and everything before the process; a process
 * that just exits leaves the job in good order, too.
 *
 * Options. A struct of options begins with `size`: set it to sizeof the struct,
 * and all other fields to zero except those that are meant. Zero is every
 * field's default, and NULL instead of the struct is all defaults. Later
 * versions add fields at the end. A library that is older than the caller
 * refuses a struct in which fields that it does not know are not zero. Structs
 * that the library fills (muster_member_info, ...) begin with `size` as well:
 * the caller sets it, and the library writes no more than that. Structs without
 * `size` do not change.
 *
 * Strings are UTF-8 or ASCII and end with a zero byte; NULL is the empty
 * string. Truth values are int32_t, 0 or 1. Times are milliseconds. The numbers
 * of constants never change. A rank is global, that is, in the default group,
 * unless it is said to be in the group.
 */

#ifndef MUSTER_MUSTER_H_
#define MUSTER_MUSTER_H_

#include <stddef.h>
#include <stdint.h>

#include "muster/muster_control.h"
#include "muster/muster_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library exports these functions. */
#pragma GCC visibility push(default)

/* ----------------------------------------------------------------- Tensors */

/* Element types. */
typedef int32_t muster_dtype;
enum {
  MUSTER_UINT8 = 0,
  MUSTER_INT8 = 1,
  MUSTER_INT16 = 2,
  MUSTER_INT32 = 3,
  MUSTER_INT64 = 4,
  MUSTER_FLOAT16 = 5,
  MUSTER_BFLOAT16 = 6,
  MUSTER_FLOAT32 = 7,
  MUSTER_FLOAT64 = 8,
  MUSTER_BOOL = 9,
  MUSTER_COMPLEX64 = 10,
  MUSTER_COMPLEX128 = 11,
  MUSTER_FLOAT8_E4M3FN = 12,
  MUSTER_FLOAT8_E5M2 = 13,
  MUSTER_UINT16 = 14,
  MUSTER_UINT32 = 15,
  MUSTER_UINT64 = 16,
  /* Elements of `element_size` bytes of which muster knows nothing. They are
   * moved, and reduced by a muster_op alone. */
  MUSTER_OPAQUE = 17,
  /* Pairs of a value and an index, for MUSTER_MINLOC and MUSTER_MAXLOC: C
   * structs of the two, which have no gaps. */
  MUSTER_FLOAT32_INT32 = 18,
  MUSTER_FLOAT64_INT64 = 19,
  MUSTER_INT32_INT32 = 20,
  MUSTER_INT64_INT64 = 21
};

/* "float32"; "" for a number that is no type. */
const char* muster_dtype_name(muster_dtype dtype);
/* The bytes of one element; 0 for MUSTER_OPAQUE and for a number that is no
 * type. */
size_t muster_dtype_size(muster_dtype dtype);

typedef int32_t muster_device_type;
enum { MUSTER_CPU = 0, MUSTER_CUDA = 1 };

/* A view of contiguous, row-major elements. */
typedef struct muster_tensor {
  void* data;
  muster_dtype dtype;
  muster_device_type device_type;
  /* The GPU; 0 for the CPU. */
  int32_t device_index;
  /* The number of dimensions in `shape`; 0 with a shape is a scalar. */
  int32_t ndim;
  /* NULL: one dimension of `count` elements. */
  const int64_t* shape;
  /* Not used if there is a shape. */
  int64_t count;
  /* The bytes of an element; for MUSTER_OPAQUE only. */
  uint64_t element_size;
} muster_tensor;

/* -------------------------------------------------------------- Reductions */

typedef int32_t muster_reduce_op;
enum {
  MUSTER_SUM = 0,
  /* The sum divided by the number of ranks. Integers truncate toward zero. */
  MUSTER_AVG = 1,
  /* Floating point: NaN if any rank has NaN at that element. */
  MUSTER_MIN = 2,
  MUSTER_MAX = 3,
  MUSTER_PRODUCT = 4,
  /* Bitwise, on integers and bool. */
  MUSTER_BAND = 5,
  MUSTER_BOR = 6,
  MUSTER_BXOR = 7,
  /* The sum of every rank's tensor times that rank's
   * muster_reduction_options::factor. Floating point and complex. */
  MUSTER_PREMUL_SUM = 8,
  /* The pair with the smallest, or the largest value; of equal values, that
   * with the smallest index. A NaN is the result. */
  MUSTER_MINLOC = 9,
  MUSTER_MAXLOC = 10,
  /* muster_reduction_options::user_op. */
  MUSTER_USER_OP = 11
};

/* A reduction of the program's own. */
typedef struct muster_op muster_op;

/* Combines `count` elements, at least one, of `in` with those of `inout`:
 * inout[i] = in[i] op inout[i]. The op must be associative. `in` has the
 * operands of lower ranks. The two do not overlap. `count` may be any part of a
 * tensor. Runs on the thread that makes the call or on one of the library's;
 * collectives of several groups may call it at once. It must not call the
 * group. Anything but MUSTER_OK fails the collective on this rank and ends the
 * group; other ranks get the error from this call or the next. This rank is the
 * culprit. */
typedef muster_status (*muster_op_function)(const void* in, void* inout,
                                            size_t count, void* context);

typedef struct muster_op_options {
  size_t size;
  /* 1: in op inout is not inout op in. Equal on all ranks, which the library
   * checks. Operands are combined in the order of ranks in any case. */
  int32_t not_commutative;
  int32_t reserved;
  /* The bytes of an element; tensors with other elements are refused. 0: any.
   */
  size_t element_size;
  /* Called with `context` when nothing uses the op any more, on any thread. */
  void (*release_context)(void* context);
  /* A name for error texts. */
  const char* name;
} muster_op_options;

/* All ranks must give equal ops to one collective; the library compares
 * element sizes and commutativity. The handle may be released while works
 * that use the op run. On an error the caller still owns `context`. */
muster_status muster_op_create(muster_op_function function, void* context,
                               const muster_op_options* options,
                               muster_op** op);
void muster_op_release(muster_op* op);

/* --------------------------------------------------------- Initialization */

typedef struct muster_group muster_group;
typedef struct muster_work muster_work;
typedef struct muster_prepared muster_prepared;

/* Bits of muster_nccl_options::given. */
enum {
  MUSTER_NCCL_CGA_CLUSTER_SIZE = 1 << 0,
  MUSTER_NCCL_MIN_CTAS = 1 << 1,
  MUSTER_NCCL_MAX_CTAS = 1 << 2,
  MUSTER_NCCL_SPLIT_SHARE = 1 << 3,
  MUSTER_NCCL_TRAFFIC_CLASS = 1 << 4,
  MUSTER_NCCL_COLLNET_ENABLE = 1 << 5,
  MUSTER_NCCL_CTA_POLICY = 1 << 6,
  MUSTER_NCCL_SHRINK_SHARE = 1 << 7,
  MUSTER_NCCL_NVLS_CTAS = 1 << 8,
  MUSTER_NCCL_CHANNELS_PER_NET_PEER = 1 << 9,
  MUSTER_NCCL_NVLINK_CENTRIC_SCHED = 1 << 10
};

/* Settings of the nccl backend, with the meanings of ncclConfig_t's fields.
 * NCCL chooses every number whose bit is not set in `given`. */
typedef struct muster_nccl_options {
  size_t size;
  uint32_t given;
  int32_t is_high_priority_stream;
  int32_t blocking_wait;
  int32_t blocking;
  int32_t cga_cluster_size;
  int32_t min_ctas;
  int32_t max_ctas;
  int32_t split_share;
  int32_t traffic_class;
  int32_t collnet_enable;
  int32_t cta_policy;
  int32_t shrink_share;
  int32_t nvls_ctas;
  int32_t channels_per_net_peer;
  int32_t nvlink_centric_sched;
  int32_t reserved;
  const char* net_name;
} muster_nccl_options;

typedef struct muster_init_options {
  size_t size;
  /* The name of a backend, or one for each device: "cpu:gloo,cuda:nccl". NULL:
   * "cpu:shm,cuda:nccl" where there are CUDA devices and NCCL, else "shm". */
  const char* backend;
  /* env://, tcp://HOST:PORT?rank=R&world_size=N, file:///PATH?..., or
   * muster://HOST:PORT/JOB, where HOST:PORT may be several coordinators with
   * commas between. NULL: env://, unless there is a store. */
  const char* init_method;
  /* Instead of `init_method`; becomes the default store. Needs a rank and a
   * world size. */
  muster_store* store;
  /* The timeout of the rendezvous and then of each collective; 0: 30 minutes.
   */
  int64_t timeout_ms;
  /* Override the values in `init_method`; 0: not given. The rank counts only if
   * has_rank is 1. */
  int32_t world_size;
  int32_t has_rank;
  int32_t rank;
  /* For an elastic group, instead of `world_size`; muster:// only. */
  int32_t min_world_size;
  int32_t max_world_size;
  int32_t has_last_call;
  int64_t last_call_ms;
  /* The CUDA device of this process, if has_device_id is 1. */
  int32_t has_device_id;
  int32_t device_id;
  const muster_nccl_options* nccl;
  /* "tcp" or "gloo"; NULL: MUSTER_CPU_TRANSPORT, without that "tcp". */
  const char* cpu_transport;
  /* The job on the coordinator; NULL: as the URL or MUSTER_JOB says. */
  const char* job;
  /* The port of this process's metrics and debug pages, if has_http_port is 1;
   * 0: any free port. Not given: MUSTER_HTTP_PORT, without that none. */
  int32_t has_http_port;
  int32_t http_port;
  /* How long a failed collective waits for the coordinator's verdict; 0: 2 s.
   */
  int64_t verdict_timeout_ms;
} muster_init_options;

/* Forms the default group. Returns when all ranks are connected. */
muster_status muster_init_process_group(const muster_init_options* options);
muster_status muster_is_initialized(int32_t* initialized);

/* NULL: ends all groups, leaves the job and ends the library's threads.
 * Collectives must be complete. Otherwise ends that group alone. Returns the
 * error of a failed group if no call has returned it yet; the group is ended
 * even then. Does not release the handle. */
muster_status muster_destroy_process_group(muster_group* group);

/* Whether a launcher (muster-run or torchrun) has started this process. */
muster_status muster_is_torchelastic_launched(int32_t* launched);
/* LOCAL_RANK, which the launcher sets, else `fallback_rank`; an error if that
 * is negative. */
muster_status muster_get_node_local_rank(int32_t fallback_rank, int32_t* rank);
/* The job's store. */
muster_status muster_get_default_store(muster_store** store);
/* host:port of this process's metrics and debug pages; "": none. */
muster_status muster_get_debug_address(muster_strings** address);

/* ------------------------------------------------------------------ Groups */

/* Releases a handle. The group itself lives on until
 * muster_destroy_process_group; one that is not the default group also ends
 * when all its handles and works are released and the next group is made. */
void muster_group_release(muster_group* group);

/* A handle of the default group. */
muster_status muster_world_group(muster_group** group);

/* This process's rank in the group, and the number of ranks. Both are -1 in a
 * group that this process is not in. */
muster_status muster_get_rank(muster_group* group, int32_t* rank);
muster_status muster_get_world_size(muster_group* group, int32_t* world_size);
muster_status muster_get_backend(muster_group* group, muster_strings** backend);
/* The global ranks of the group, by rank in the group. Writes at most
 * `capacity` of them; `count` becomes their number. */
muster_status muster_get_process_group_ranks(muster_group* group,
                                             int32_t* ranks, size_t capacity,
                                             size_t* count);
/* Convert between global ranks and ranks in the group. */
muster_status muster_get_group_rank(muster_group* group, int32_t global_rank,
                                    int32_t* group_rank);
muster_status muster_get_global_rank(muster_group* group, int32_t group_rank,
                                     int32_t* global_rank);
muster_status muster_group_name(muster_group* group, muster_strings** name);
muster_status muster_group_description(muster_group* group,
                                       muster_strings** description);
/* The timeout of collectives whose options give none. */
muster_status muster_group_timeout(muster_group* group, int64_t* timeout_ms);
/* The backend and the algorithm that ran this rank's last collective of tensors
 * on such a device: two strings. */
muster_status muster_group_last_run(muster_group* group,
                                    muster_device_type device,
                                    muster_strings** last_run);
/* Ends the group on every rank: running and later calls fail, and this rank is
 * the culprit. On the default group, ends all groups. */
muster_status muster_group_abort(muster_group* group, const char* reason);
/* Returns MUSTER_OK, or the error that ended the group, which is the last
 * error, too. Does not block. */
muster_status muster_group_status(muster_group* group);

typedef struct muster_new_group_options {
  size_t size;
  /* 0: the default group's. */
  int64_t timeout_ms;
  /* NULL: the default group's. */
  const char* backend;
  const muster_nccl_options* nccl;
  const char* cpu_transport;
  /* The CUDA device of this process, if has_device_id is 1. */
  int32_t has_device_id;
  int32_t device_id;
  /* 1: only the members make the call. */
  int32_t use_local_synchronization;
  int32_t reserved;
  const char* description;
  const char* name;
} muster_new_group_options;

/* Makes a group of these global ranks; `ranks` NULL: of all. All ranks of the
 * default group make the call, in the same order. A rank that is not a member
 * gets a group on which collectives do nothing. */
muster_status muster_new_group(const int32_t* ranks, size_t rank_count,
                               const muster_new_group_options* options,
                               muster_group** group);

/* A list of ranks. */
typedef struct muster_ranks {
  const int32_t* ranks;
  size_t count;
} muster_ranks;

typedef struct muster_subgroup_options {
  size_t size;
  int64_t timeout_ms;
  /* Not used by muster_split_group. */
  const char* backend;
  const char* description;
} muster_subgroup_options;

/* Makes groups of `group_size` ranks each, or one for each list of global
 * ranks. `current` becomes the group with this process; a rank in no list gets
 * a group on which collectives do nothing. `all`, which may be NULL, is an
 * array for as many handles as there are groups. After a failure
 * they are NULL. */
muster_status muster_new_subgroups(int32_t group_size,
                                   const muster_subgroup_options* options,
                                   muster_group** all, muster_group** current);
muster_status muster_new_subgroups_by_enumeration(
    const muster_ranks* lists, size_t list_count,
    const muster_subgroup_options* options, muster_group** all,
    muster_group** current);

/* Splits `parent` into lists of ranks in the parent. `group` becomes the part
 * with this process; a rank in no list gets a group on which collectives do
 * nothing. */
muster_status muster_split_group(muster_group* parent,
                                 const muster_ranks* lists, size_t list_count,
                                 const muster_subgroup_options* options,
                                 muster_group** group);

typedef struct muster_shrink_options {
  size_t size;
  int64_t timeout_ms;
  const char* description;
  /* 1: aborts the group first, so that all work in it fails. */
  int32_t abort;
  int32_t reserved;
} muster_shrink_options;

/* Makes a group of the ranks of `group` without `ranks_to_exclude`, which are
 * ranks in the group. Only the ranks that stay make the call. Ends the old
 * group, unless it fails; it can be repeated then. With the default group
 * `shrunk` is the new default group, and all other groups end. */
muster_status muster_shrink_group(const int32_t* ranks_to_exclude,
                                  size_t rank_count, muster_group* group,
                                  const muster_shrink_options* options,
                                  muster_group** shrunk);

/* ------------------------------------------------------------------ Meshes */

/* An array of ranks with named dimensions, and a group for each line of each
 * dimension. One thread at a time. */
typedef struct muster_device_mesh muster_device_mesh;

typedef struct muster_device_mesh_options {
  size_t size;
  /* One name for each dimension, or NULL: no names. */
  const char* const* dim_names;
  /* One backend for each dimension, or NULL: the default group's. A NULL in the
   * array is the default group's, too. */
  const char* const* backends;
} muster_device_mesh_options;

void muster_device_mesh_release(muster_device_mesh* mesh);

/* Makes a mesh of the ranks from 0 on, row-major, and the default group if
 * there is none. All ranks of the default group make the calls that make
 * meshes, in the same order. */
muster_status muster_init_device_mesh(const char* device_type,
                                      const int64_t* shape, size_t ndim,
                                      const muster_device_mesh_options* options,
                                      muster_device_mesh** mesh);
/* Makes a mesh of `ranks`, row-major. `rank_count` must be the product of the
 * shape. */
muster_status muster_device_mesh_from_array(
    const char* device_type, const int64_t* shape, size_t ndim,
    const int32_t* ranks, size_t rank_count,
    const muster_device_mesh_options* options, muster_device_mesh** mesh);
/* Makes a mesh of one dimension, with a name or NULL, from a group's ranks. */
muster_status muster_device_mesh_from_group(muster_group* group,
                                            const char* device_type,
                                            const char* dim_name,
                                            muster_device_mesh** mesh);
/* Makes a mesh of `ranks`, as above. `groups` has this process's group along
 * each of the `ndim` dimensions. Backends in the options are not used. */
muster_status muster_device_mesh_from_groups(
    muster_group* const* groups, const char* device_type, const int64_t* shape,
    size_t ndim, const int32_t* ranks, size_t rank_count,
    const muster_device_mesh_options* options, muster_device_mesh** mesh);
/* Joins the dimensions of meshes with one root. */
muster_status muster_device_mesh_concatenate(muster_device_mesh* const* meshes,
                                             size_t count,
                                             muster_device_mesh** mesh);
/* The slice along these dimensions. */
muster_status muster_device_mesh_slice(muster_device_mesh* mesh,
                                       const char* const* dim_names,
                                       size_t count,
                                       muster_device_mesh** slice);
/* A mesh with all dimensions as one; name and backend may be NULL. */
muster_status muster_device_mesh_flatten(muster_device_mesh* mesh,
                                         const char* name, const char* backend,
                                         muster_device_mesh** flat);
/* A mesh with dimension `dim` split into `count` dimensions. */
muster_status muster_device_mesh_unflatten(
    muster_device_mesh* mesh, int32_t dim, const int64_t* sizes, size_t count,
    const muster_device_mesh_options* options, muster_device_mesh** result);

muster_status muster_device_mesh_ndim(muster_device_mesh* mesh, int32_t* ndim);
/* Writes at most `capacity` sizes. */
muster_status muster_device_mesh_shape(muster_device_mesh* mesh, int64_t* shape,
                                       size_t capacity, size_t* count);
muster_status muster_device_mesh_dim_names(muster_device_mesh* mesh,
                                           muster_strings** names);
muster_status muster_device_mesh_device_type(muster_device_mesh* mesh,
                                             muster_strings** type);
/* The ranks, row-major; writes at most `capacity`. */
muster_status muster_device_mesh_ranks(muster_device_mesh* mesh, int32_t* ranks,
                                       size_t capacity, size_t* count);
/* This process's group along a dimension, by index or by name. */
muster_status muster_device_mesh_get_group(muster_device_mesh* mesh,
                                           int32_t dim, muster_group** group);
muster_status muster_device_mesh_get_group_by_name(muster_device_mesh* mesh,
                                                   const char* dim_name,
                                                   muster_group** group);
/* This process's rank along a dimension; -1: it is not in the mesh. */
muster_status muster_device_mesh_get_local_rank(muster_device_mesh* mesh,
                                                int32_t dim, int32_t* rank);
muster_status muster_device_mesh_get_local_rank_by_name(
    muster_device_mesh* mesh, const char* dim_name, int32_t* rank);
/* The coordinates of this process; writes at most `capacity`. `count` becomes
 * 0 if it is not in the mesh. */
muster_status muster_device_mesh_get_coordinate(muster_device_mesh* mesh,
                                                int64_t* coordinate,
                                                size_t capacity, size_t* count);
/* "DeviceMesh((dp=2, tp=4), cpu)". */
muster_status muster_device_mesh_to_string(muster_device_mesh* mesh,
                                           muster_strings** text);
/* Whether both have the same dimensions of the same root. */
muster_status muster_device_mesh_equal(muster_device_mesh* mesh,
                                       muster_device_mesh* other,
                                       int32_t* equal);

/* ------------------------------------------------------------------- Works */

/* One started collective. Destroying it waits for completion, without an error.
 * One thread at a time. */

void muster_work_release(muster_work* work);

/* Waits for completion and returns the collective's status; with CUDA tensors
 * it makes the calling thread's current stream wait. */
muster_status muster_work_wait(muster_work* work);
/* As muster_work_wait, but `completed` becomes 0 if `timeout_ms` passes first;
 * the collective goes on. */
muster_status muster_work_wait_for(muster_work* work, int64_t timeout_ms,
                                   int32_t* completed);
/* Do not block. */
muster_status muster_work_is_completed(muster_work* work, int32_t* completed);
muster_status muster_work_is_success(muster_work* work, int32_t* success);
/* What muster_work_wait would return, which is the last error, too; MUSTER_OK
 * while it runs. Does not block. */
muster_status muster_work_status(muster_work* work);
/* The global rank that sent the message of a completed receive, else -1. */
muster_status muster_work_source_rank(muster_work* work, int32_t* rank);
/* The tensors that a completed collective has written. Writes at most
 * `capacity`; their shapes are valid until the work is released. */
muster_status muster_work_result(muster_work* work, muster_tensor* tensors,
                                 size_t capacity, size_t* count);

/* `error` is valid during the call; of kind MUSTER_ERROR_NONE if the collective
 * has succeeded. */
typedef void (*muster_work_callback)(void* context, muster_status status,
                                     const muster_error* error);

/* Calls `callback` once when the collective is complete, also if it has failed.
 * All callbacks of a group run on one thread, which is neither the caller's nor
 * one that moves data, one after the other in the order in which their
 * collectives were started; those of sends and receives, in the order in which
 * they are complete. They may take long, start collectives and wait for
 * them. After the end of the group a callback runs at once, on the thread that
 * adds it. Releasing the work does not cancel it. */
muster_status muster_work_add_done_callback(muster_work* work,
                                            muster_work_callback callback,
                                            void* context);

/* ------------------------------------------------------------- Collectives */

/* `timeout_ms` 0 is the group's timeout. */
typedef struct muster_collective_options {
  size_t size;
  int64_t timeout_ms;
} muster_collective_options;

/* Options of collectives in which one rank gives data to all, or gets it. */
typedef struct muster_root_options {
  size_t size;
  int64_t timeout_ms;
  /* 1: the argument `src` or `dst` is a rank in the group. */
  int32_t is_group_rank;
  int32_t reserved;
} muster_root_options;

/* Options of collectives that reduce. */
typedef struct muster_reduction_options {
  size_t size;
  int64_t timeout_ms;
  /* For MUSTER_PREMUL_SUM, if has_factor is 1; else 1. */
  double factor;
  int32_t has_factor;
  /* muster_reduce: 1: `dst` is a rank in the group. */
  int32_t is_group_rank;
  /* For MUSTER_USER_OP. */
  muster_op* user_op;
} muster_reduction_options;

typedef struct muster_barrier_options {
  size_t size;
  int64_t timeout_ms;
  /* If 1, the barrier runs on nccl and comes after the work in the current
   * stream of that CUDA device. */
  int32_t has_device_id;
  int32_t device_id;
} muster_barrier_options;

/* Each collective has three functions. muster_NAME returns when it is complete.
 * muster_NAME_async returns at once, with a work. muster_prepare_NAME checks
 * the arguments and finds the path once, for calls that are repeated with the
 * same memory: see muster_prepared_run.
 *
 * With a bad argument muster_NAME and muster_NAME_async start nothing and do
 * not end the group, but the call is counted. If the argument is bad on every
 * rank, all ranks can go on with the next call. If it is bad on one rank only,
 * the others wait for the refused call, and another call in its place ends the
 * group. The other functions count no call that they refuse:
 * muster_prepare_NAME and those of coalescing, objects and messages.
 *
 * A list of tensors is an array of as many as the group has ranks; tensor r
 * belongs to the group's rank r. Memory that is written must not overlap other
 * memory of the call, except that a rank's own part may be in place. */

/* `tensor` becomes the reduction of all ranks' tensors, bitwise equal on all
 * ranks. */
muster_status muster_all_reduce(const muster_tensor* tensor,
                                muster_reduce_op op, muster_group* group,
                                const muster_reduction_options* options);
muster_status muster_all_reduce_async(const muster_tensor* tensor,
                                      muster_reduce_op op, muster_group* group,
                                      const muster_reduction_options* options,
                                      muster_work** work);
muster_status muster_prepare_all_reduce(const muster_tensor* tensor,
                                        muster_reduce_op op,
                                        muster_group* group,
                                        const muster_reduction_options* options,
                                        muster_prepared** prepared);

/* `tensor` becomes the tensor of rank `src`. */
muster_status muster_broadcast(const muster_tensor* tensor, int32_t src,
                               muster_group* group,
                               const muster_root_options* options);
muster_status muster_broadcast_async(const muster_tensor* tensor, int32_t src,
                                     muster_group* group,
                                     const muster_root_options* options,
                                     muster_work** work);
muster_status muster_prepare_broadcast(const muster_tensor* tensor, int32_t src,
                                       muster_group* group,
                                       const muster_root_options* options,
                                       muster_prepared** prepared);

/* `tensor` of rank `dst` becomes the reduction of all ranks' tensors; the other
 * ranks' tensors do not change. */
muster_status muster_reduce(const muster_tensor* tensor, int32_t dst,
                            muster_reduce_op op, muster_group* group,
                            const muster_reduction_options* options);
muster_status muster_reduce_async(const muster_tensor* tensor, int32_t dst,
                                  muster_reduce_op op, muster_group* group,
                                  const muster_reduction_options* options,
                                  muster_work** work);
muster_status muster_prepare_reduce(const muster_tensor* tensor, int32_t dst,
                                    muster_reduce_op op, muster_group* group,
                                    const muster_reduction_options* options,
                                    muster_prepared** prepared);

/* Every rank gets all ranks' `tensor`s in `tensor_list`. Sizes may differ from
 * rank to rank. */
muster_status muster_all_gather(const muster_tensor* tensor_list,
                                size_t tensor_count,
                                const muster_tensor* tensor,
                                muster_group* group,
                                const muster_collective_options* options);
muster_status muster_all_gather_async(const muster_tensor* tensor_list,
                                      size_t tensor_count,
                                      const muster_tensor* tensor,
                                      muster_group* group,
                                      const muster_collective_options* options,
                                      muster_work** work);
muster_status muster_prepare_all_gather(
    const muster_tensor* tensor_list, size_t tensor_count,
    const muster_tensor* tensor, muster_group* group,
    const muster_collective_options* options, muster_prepared** prepared);

/* Every rank gets all ranks' `input`s, one after the other, in `output`. */
muster_status muster_all_gather_into_tensor(
    const muster_tensor* output, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options);
muster_status muster_all_gather_into_tensor_async(
    const muster_tensor* output, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options,
    muster_work** work);
muster_status muster_prepare_all_gather_into_tensor(
    const muster_tensor* output, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options,
    muster_prepared** prepared);

/* Every rank gets all ranks' `input`s in `output`: `counts[r]` elements of rank
 * r, from element `displacements[r]` on. `rank_count` is the length of both
 * arrays. `displacements` NULL: one after the other. A displacement must lie in
 * the tensor also where the count is 0. */
muster_status muster_all_gather_v(const muster_tensor* output,
                                  const int64_t* counts,
                                  const int64_t* displacements,
                                  size_t rank_count, const muster_tensor* input,
                                  muster_group* group,
                                  const muster_collective_options* options);
muster_status muster_all_gather_v_async(
    const muster_tensor* output, const int64_t* counts,
    const int64_t* displacements, size_t rank_count, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options,
    muster_work** work);
muster_status muster_prepare_all_gather_v(
    const muster_tensor* output, const int64_t* counts,
    const int64_t* displacements, size_t rank_count, const muster_tensor* input,
    muster_group* group, const muster_collective_options* options,
    muster_prepared** prepared);

/* Rank `dst` gets all ranks' `tensor`s in `gather_list`; the other ranks give
 * no list (NULL, 0). */
muster_status muster_gather(const muster_tensor* tensor,
                            const muster_tensor* gather_list,
                            size_t tensor_count, int32_t dst,
                            muster_group* group,
                            const muster_root_options* options);
muster_status muster_gather_async(const muster_tensor* tensor,
                                  const muster_tensor* gather_list,
                                  size_t tensor_count, int32_t dst,
                                  muster_group* group,
                                  const muster_root_options* options,
                                  muster_work** work);
muster_status muster_prepare_gather(const muster_tensor* tensor,
                                    const muster_tensor* gather_list,
                                    size_t tensor_count, int32_t dst,
                                    muster_group* group,
                                    const muster_root_options* options,
                                    muster_prepared** prepared);

/* `tensor` becomes this rank's element of the `scatter_list` of rank `src`; the
 * other ranks give no list (NULL, 0). */
muster_status muster_scatter(const muster_tensor* tensor,
                             const muster_tensor* scatter_list,
                             size_t tensor_count, int32_t src,
                             muster_group* group,
                             const muster_root_options* options);
muster_status muster_scatter_async(const muster_tensor* tensor,
                                   const muster_tensor* scatter_list,
                                   size_t tensor_count, int32_t src,
                                   muster_group* group,
                                   const muster_root_options* options,
                                   muster_work** work);
muster_status muster_prepare_scatter(const muster_tensor* tensor,
                                     const muster_tensor* scatter_list,
                                     size_t tensor_count, int32_t src,
                                     muster_group* group,
                                     const muster_root_options* options,
                                     muster_prepared** prepared);

/* `output` becomes the reduction of element r of all ranks' `input_list`, where
 * r is this rank in the group. Sizes may differ from element to element. */
muster_status muster_reduce_scatter(const muster_tensor* output,
                                    const muster_tensor* input_list,
                                    size_t tensor_count, muster_reduce_op op,
                                    muster_group* group,
                                    const muster_reduction_options* options);
muster_status muster_reduce_scatter_async(
    const muster_tensor* output, const muster_tensor* input_list,
    size_t tensor_count, muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_work** work);
muster_status muster_prepare_reduce_scatter(
    const muster_tensor* output, const muster_tensor* input_list,
    size_t tensor_count, muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_prepared** prepared);

/* `output` becomes the reduction of part r of all ranks' `input`s, which are
 * cut into equal parts. */
muster_status muster_reduce_scatter_tensor(
    const muster_tensor* output, const muster_tensor* input,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options);
muster_status muster_reduce_scatter_tensor_async(
    const muster_tensor* output, const muster_tensor* input,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_work** work);
muster_status muster_prepare_reduce_scatter_tensor(
    const muster_tensor* output, const muster_tensor* input,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_prepared** prepared);

/* As muster_reduce_scatter_tensor; part r has `counts[r]` elements, from
 * element `displacements[r]` on. `displacements` are as in muster_all_gather_v,
 * but parts may overlap. */
muster_status muster_reduce_scatter_v(const muster_tensor* output,
                                      const muster_tensor* input,
                                      const int64_t* counts,
                                      const int64_t* displacements,
                                      size_t rank_count, muster_reduce_op op,
                                      muster_group* group,
                                      const muster_reduction_options* options);
muster_status muster_reduce_scatter_v_async(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* counts, const int64_t* displacements, size_t rank_count,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_work** work);
muster_status muster_prepare_reduce_scatter_v(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* counts, const int64_t* displacements, size_t rank_count,
    muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_prepared** prepared);

/* Every rank sends element r of `input_list`, of any size, to rank r, and
 * receives element r of `output_list` from rank r. */
muster_status muster_all_to_all(const muster_tensor* output_list,
                                size_t output_count,
                                const muster_tensor* input_list,
                                size_t input_count, muster_group* group,
                                const muster_collective_options* options);
muster_status muster_all_to_all_async(const muster_tensor* output_list,
                                      size_t output_count,
                                      const muster_tensor* input_list,
                                      size_t input_count, muster_group* group,
                                      const muster_collective_options* options,
                                      muster_work** work);
muster_status muster_prepare_all_to_all(
    const muster_tensor* output_list, size_t output_count,
    const muster_tensor* input_list, size_t input_count, muster_group* group,
    const muster_collective_options* options, muster_prepared** prepared);

/* Does the same with one input and one output, cut along dimension 0.
 * `output_splits` and `input_splits` say how many elements of dimension 0 come
 * from each rank and go to each rank; NULL: equal parts. `rank_count` is the
 * length of each of them, not 0. */
muster_status muster_all_to_all_single(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* output_splits, const int64_t* input_splits,
    size_t rank_count, muster_group* group,
    const muster_collective_options* options);
muster_status muster_all_to_all_single_async(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* output_splits, const int64_t* input_splits,
    size_t rank_count, muster_group* group,
    const muster_collective_options* options, muster_work** work);
muster_status muster_prepare_all_to_all_single(
    const muster_tensor* output, const muster_tensor* input,
    const int64_t* output_splits, const int64_t* input_splits,
    size_t rank_count, muster_group* group,
    const muster_collective_options* options, muster_prepared** prepared);

/* Waits until every rank has made the call. */
muster_status muster_barrier(muster_group* group,
                             const muster_barrier_options* options);
muster_status muster_barrier_async(muster_group* group,
                                   const muster_barrier_options* options,
                                   muster_work** work);
muster_status muster_prepare_barrier(muster_group* group,
                                     const muster_barrier_options* options,
                                     muster_prepared** prepared);

typedef struct muster_monitored_barrier_options {
  size_t size;
  int64_t timeout_ms;
  /* 0: fails as soon as a rank is known to be gone. 1: waits for the whole
   * timeout and names every missing rank. */
  int32_t wait_all_ranks;
  int32_t reserved;
} muster_monitored_barrier_options;

/* A barrier that the coordinator decides. If ranks are missing, the culprits of
 * the error are all of them. A late rank does not end the group. */
muster_status muster_monitored_barrier(
    muster_group* group, const muster_monitored_barrier_options* options);

/* A collective with its arguments. Each run counts as a call of the collective.
 * The memory of the tensors must stay until it is released and its last work is
 * complete. It has one run at a time. */
void muster_prepared_release(muster_prepared* prepared);
/* Runs the collective and returns when it is complete. */
muster_status muster_prepared_run(muster_prepared* prepared);
/* Starts the collective and returns at once. A call that is refused because it
 * still runs, or because `work` is NULL, is counted, too. */
muster_status muster_prepared_start(muster_prepared* prepared,
                                    muster_work** work);

/* -------------------------------------------------------------- Coalescing */

/* Collects collectives of one verb and one reduction, which start together as
 * one. One thread at a time. */
typedef struct muster_coalescing muster_coalescing;

muster_status muster_coalescing_create(muster_group* group,
                                       const muster_collective_options* options,
                                       muster_coalescing** coalescing);
/* Nothing is started of what was added since the last run. */
void muster_coalescing_release(muster_coalescing* coalescing);
/* Add a collective. They copy the arguments, and
 * muster_coalescing_run checks them. */
muster_status muster_coalescing_all_reduce(
    muster_coalescing* coalescing, const muster_tensor* tensor,
    muster_reduce_op op, const muster_reduction_options* options);
muster_status muster_coalescing_all_gather(muster_coalescing* coalescing,
                                           const muster_tensor* tensor_list,
                                           size_t tensor_count,
                                           const muster_tensor* tensor);
muster_status muster_coalescing_all_gather_into_tensor(
    muster_coalescing* coalescing, const muster_tensor* output,
    const muster_tensor* input);
muster_status muster_coalescing_reduce_scatter_tensor(
    muster_coalescing* coalescing, const muster_tensor* output,
    const muster_tensor* input, muster_reduce_op op,
    const muster_reduction_options* options);
/* Runs all that was added, or starts it. Afterwards the list is empty and can
 * be filled again. If one collective has bad arguments or does not go with the
 * first one, nothing is started. */
muster_status muster_coalescing_run(muster_coalescing* coalescing);
muster_status muster_coalescing_run_async(muster_coalescing* coalescing,
                                          muster_work** work);

/* Coalesce one verb over the tensors of a list, which must not be empty. */
muster_status muster_all_reduce_coalesced(
    const muster_tensor* tensors, size_t tensor_count, muster_reduce_op op,
    muster_group* group, const muster_reduction_options* options);
muster_status muster_all_reduce_coalesced_async(
    const muster_tensor* tensors, size_t tensor_count, muster_reduce_op op,
    muster_group* group, const muster_reduction_options* options,
    muster_work** work);
/* Tensor i of rank r becomes `output_lists[r * input_count + i]`. */
muster_status muster_all_gather_coalesced(
    const muster_tensor* output_lists, size_t output_count,
    const muster_tensor* inputs, size_t input_count, muster_group* group,
    const muster_collective_options* options);
muster_status muster_all_gather_coalesced_async(
    const muster_tensor* output_lists, size_t output_count,
    const muster_tensor* inputs, size_t input_count, muster_group* group,
    const muster_collective_options* options, muster_work** work);
muster_status muster_all_gather_into_tensor_coalesced(
    const muster_tensor* outputs, const muster_tensor* inputs,
    size_t tensor_count, muster_group* group,
    const muster_collective_options* options);
muster_status muster_all_gather_into_tensor_coalesced_async(
    const muster_tensor* outputs, const muster_tensor* inputs,
    size_t tensor_count, muster_group* group,
    const muster_collective_options* options, muster_work** work);
muster_status muster_reduce_scatter_tensor_coalesced(
    const muster_tensor* outputs, const muster_tensor* inputs,
    size_t tensor_count, muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options);
muster_status muster_reduce_scatter_tensor_coalesced_async(
    const muster_tensor* outputs, const muster_tensor* inputs,
    size_t tensor_count, muster_reduce_op op, muster_group* group,
    const muster_reduction_options* options, muster_work** work);

/* ---------------------------------------------------------- Point to point */

/* As `src` of a receive: from the rank that sends first. */
enum { MUSTER_ANY_SOURCE = -1 };

typedef struct muster_p2p_options {
  size_t size;
  int64_t timeout_ms;
  /* Not negative. A send matches a receive with the same tag. */
  int32_t tag;
  /* 1: `dst` or `src` is a rank in the group. */
  int32_t is_group_rank;
} muster_p2p_options;

/* Sends and receives have no order with the collectives. Send returns when the
 * tensor may be used again. `source` becomes the global rank that has sent the
 * message; it may be NULL. */
muster_status muster_send(const muster_tensor* tensor, int32_t dst,
                          muster_group* group,
                          const muster_p2p_options* options);
muster_status muster_recv(const muster_tensor* tensor, int32_t src,
                          muster_group* group,
                          const muster_p2p_options* options, int32_t* source);
muster_status muster_isend(const muster_tensor* tensor, int32_t dst,
                           muster_group* group,
                           const muster_p2p_options* options,
                           muster_work** work);
muster_status muster_irecv(const muster_tensor* tensor, int32_t src,
                           muster_group* group,
                           const muster_p2p_options* options,
                           muster_work** work);

enum { MUSTER_ISEND = 0, MUSTER_IRECV = 1 };

typedef struct muster_p2p_op {
  const muster_tensor* tensor;
  /* MUSTER_ISEND or MUSTER_IRECV. */
  int32_t kind;
  int32_t peer;
  /* 1: `peer` is a rank in the group. */
  int32_t is_group_rank;
  int32_t tag;
  /* Must be 0. */
  uint64_t reserved;
  uint64_t reserved_2;
} muster_p2p_op;

/* Starts `count` operations together. `works` is an array for as many handles,
 * which the caller releases. */
muster_status muster_batch_isend_irecv(const muster_p2p_op* ops, size_t count,
                                       muster_group* group,
                                       muster_work** works);

/* ----------------------------------------------------------------- Objects */

typedef struct muster_object_options {
  size_t size;
  int64_t timeout_ms;
  /* The largest object, in bytes; 0: 1 GiB. */
  int64_t object_bytes_max;
  /* 1: `src` or `dst` is a rank in the group. */
  int32_t is_group_rank;
  /* For sends and receives. */
  int32_t tag;
} muster_object_options;

/* Collectives of byte strings. All of them wait until they are complete.
 * Outputs are NULL on a rank that has nothing to get. */

/* `result` becomes the list of rank `src`. All ranks give lists of the same
 * length; those of the other ranks are ignored. */
muster_status muster_broadcast_object_list(const muster_bytes* objects,
                                           size_t count, int32_t src,
                                           muster_group* group,
                                           const muster_object_options* options,
                                           muster_strings** result);
/* `result` becomes the objects of all ranks, by rank in the group. */
muster_status muster_all_gather_object(const void* object, size_t object_size,
                                       muster_group* group,
                                       const muster_object_options* options,
                                       muster_strings** result);
/* The same on rank `dst` alone; the other ranks may give NULL for `result`. */
muster_status muster_gather_object(const void* object, size_t object_size,
                                   int32_t dst, muster_group* group,
                                   const muster_object_options* options,
                                   muster_strings** result);
/* `result` becomes this rank's object of the list of rank `src`, which has one
 * for each rank of the group. The lists of other ranks are ignored. */
muster_status muster_scatter_object_list(const muster_bytes* objects,
                                         size_t count, int32_t src,
                                         muster_group* group,
                                         const muster_object_options* options,
                                         muster_strings** result);
muster_status muster_send_object_list(const muster_bytes* objects, size_t count,
                                      int32_t dst, muster_group* group,
                                      const muster_object_options* options);
/* Receives `count` objects. `source`, which may be NULL, becomes the rank that
 * has sent them. */
muster_status muster_recv_object_list(size_t count, int32_t src,
                                      muster_group* group,
                                      const muster_object_options* options,
                                      int32_t* source, muster_strings** result);

/* -------------------------------------------------------- Symmetric memory */

/* Memory of this rank that all ranks of a group can access: collectives combine
 * and copy data there directly. One thread at a time. */
typedef struct muster_symmetric muster_symmetric;

typedef struct muster_symmetric_options {
  size_t size;
  int64_t timeout_ms;
  /* The kind of memory, if has_device_type is 1; else CUDA if the group takes
   * CUDA tensors, else the CPU. */
  int32_t has_device_type;
  muster_device_type device_type;
} muster_symmetric_options;

/* Allocates memory for `count` elements on every rank. All ranks make the call,
 * in one order with the collectives. `element_size` is for MUSTER_OPAQUE. */
muster_status muster_allocate_symmetric(muster_group* group, muster_dtype dtype,
                                        uint64_t element_size, int64_t count,
                                        const muster_symmetric_options* options,
                                        muster_symmetric** memory);
/* Frees the memory; everything that works on it must be complete. */
void muster_symmetric_release(muster_symmetric* memory);
/* A tensor of all elements; its address is aligned to 256 bytes at least. It
 * has no elements if this process is not in the group. */
muster_status muster_symmetric_tensor(muster_symmetric* memory,
                                      muster_tensor* tensor);

/* ------------------------------------------------ CUDA streams and devices */

/* The calling thread's current stream of a device, a cudaStream_t: collectives
 * of CUDA tensors come after the work in it, and waiting makes it wait. NULL is
 * the default stream. */
muster_status muster_current_stream(int32_t device, void** stream);
muster_status muster_set_current_stream(int32_t device, void* stream);
/* Blocks the host until the current stream has done its work. */
muster_status muster_synchronize_current_stream(int32_t device);
/* How many CUDA devices this process can use. */
muster_status muster_cuda_device_count(int32_t* count);

/* Memory of a device, for programs that are built without CUDA. One thread at a
 * time. */
typedef struct muster_device_memory muster_device_memory;

muster_status muster_device_memory_new(int32_t device, size_t bytes,
                                       muster_device_memory** memory);
void muster_device_memory_release(muster_device_memory* memory);
void* muster_device_memory_data(const muster_device_memory* memory);
/* Copy bytes between host memory and this memory at `offset`, and return when
 * they have arrived. Ordered with the current stream. */
muster_status muster_device_memory_write(muster_device_memory* memory,
                                         const void* from, size_t bytes,
                                         size_t offset);
muster_status muster_device_memory_read(muster_device_memory* memory, void* to,
                                        size_t bytes, size_t offset);
muster_status muster_device_memory_clear(muster_device_memory* memory);

/* --------------------------------------------------------------- Debugging */

typedef int32_t muster_debug_level;
enum {
  MUSTER_DEBUG_OFF = 0,
  /* Logs one line when a group forms or ends. */
  MUSTER_DEBUG_INFO = 1,
  /* Also compares each collective on all ranks before it runs. */
  MUSTER_DEBUG_DETAIL = 2
};

/* The level is MUSTER_DEBUG, else TORCH_DISTRIBUTED_DEBUG. A new level applies
 * to groups that are formed later. */
muster_status muster_get_debug_level(muster_debug_level* level);
muster_status muster_set_debug_level(muster_debug_level level);
muster_status muster_set_debug_level_from_env(void);
/* The content of the flight recorder as JSON, with c10d's fields. */
muster_status muster_flight_recorder_json(muster_strings** json);
muster_status muster_dump_flight_recorder(const char* path);
/* Makes global rank `rank` wait for a debugger and stop in it; the other ranks
 * wait until it goes on. `timeout_ms` 0: 24 hours. */
muster_status muster_breakpoint(int32_t rank, muster_group* group,
                                int64_t timeout_ms);

/* ---------------------------------------------------------------- Backends */

/* The names of the backends that this process can use. */
muster_status muster_list_backends(muster_strings** names);
muster_status muster_is_backend_available(const char* name, int32_t* available);
/* Loads a backend from a shared library; `name`, which may be NULL, becomes its
 * name. */
muster_status muster_load_backend(const char* path, muster_strings** name);
/* The backend for tensors on "cpu", "cuda" or "cuda:1" in a group that names
 * none. */
muster_status muster_get_default_backend_for_device(const char* device,
                                                    muster_strings** backend);

/* ------------------------------------------------------------------ DLPack */

/* The structs of DLPack's header. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* A tensor of another library, without a copy. */
typedef struct muster_dlpack muster_dlpack;

/* Takes over `managed`, which must be contiguous, aligned, on the CPU or a CUDA
 * device, and of a type in muster_dtype. On an error the caller still owns it.
 * A read-only tensor is refused unless `allow_read_only` is 1: then pass it
 * only as an input. */
muster_status muster_from_dlpack(struct DLManagedTensor* managed,
                                 muster_dlpack** imported);
muster_status muster_from_dlpack_versioned(
    struct DLManagedTensorVersioned* managed, int32_t allow_read_only,
    muster_dlpack** imported);
/* A view, valid until the release. */
muster_status muster_dlpack_tensor(const muster_dlpack* imported,
                                   muster_tensor* tensor);
/* Calls the deleter of the managed tensor. */
void muster_dlpack_release(muster_dlpack* imported);

/* Make a managed tensor for another library. When that is done with it, it
 * calls the deleter, which calls `release` (may be NULL) with `owner`, on any
 * thread. On an error the caller still owns `owner`. */
muster_status muster_to_dlpack(const muster_tensor* tensor,
                               void (*release)(void* owner), void* owner,
                               struct DLManagedTensor** managed);
muster_status muster_to_dlpack_versioned(
    const muster_tensor* tensor, void (*release)(void* owner), void* owner,
    struct DLManagedTensorVersioned** managed);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* MUSTER_MUSTER_H_ */
