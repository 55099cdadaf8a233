/* The training layer for C: data parallel training, and checkpoints. What
 * muster/muster.h says of errors, handles, memory, options and strings holds
 * here, too. muster/data_parallel.h, communication_hooks.h and checkpoint.h are
 * the C++ interface to the same functions; their comments say more.
 *
 *   float weights[1000] = ..., gradients[1000];
 *   muster_tensor value = {.data = weights, .dtype = MUSTER_FLOAT32,
 *                          .count = 1000};
 *   muster_tensor gradient = {.data = gradients, .dtype = MUSTER_FLOAT32,
 *                             .count = 1000};
 *   muster_parameter parameter = {"weights", &value, &gradient};
 *   muster_data_parallel* model;
 *   muster_data_parallel_new(&parameter, 1, NULL, NULL, &model);
 *   for (;;) {
 *     ComputeGradients();
 *     muster_data_parallel_ready(model, 0);
 *     muster_data_parallel_finish_step(model);
 *     UpdateWeights();
 *   }
 */

#ifndef MUSTER_MUSTER_PARALLEL_H_
#define MUSTER_MUSTER_PARALLEL_H_

#include <stddef.h>
#include <stdint.h>

#include "muster/muster.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* ----------------------------------------------------------- Data parallel */

/* Averages the gradients of all ranks while the backward pass goes on. A step
 * is begin_step (needed only if there are buffers to broadcast), ready once for
 * each parameter, and finish_step. All ranks make the same steps. ready may be
 * called by several threads at once; all other functions, including the
 * release, one thread at a time and not while ready runs. */
typedef struct muster_data_parallel muster_data_parallel;

/* Tensors on the CPU, of float16, bfloat16, float32 or float64, that live as
 * long as the muster_data_parallel. */
typedef struct muster_parameter {
  const char* name;
  const muster_tensor* value;
  /* Has the type and shape of `value`. NULL: the gradient lies in a bucket; see
   * muster_data_parallel_gradient. */
  const muster_tensor* gradient;
} muster_parameter;

/* A tensor that is not trained; of any type, and lives as long. */
typedef struct muster_named_tensor {
  const char* name;
  const muster_tensor* tensor;
} muster_named_tensor;

typedef struct muster_power_sgd_options {
  size_t size;
  /* The rank of the matrices; 0: 1. */
  int64_t rank;
  /* Steps at the beginning that average by all_reduce, if has_start_step is 1;
   * else 1000. */
  int64_t start_step;
  int32_t has_start_step;
  int32_t reserved;
  /* 0: 2. */
  double min_compression_rate;
  uint64_t seed;
} muster_power_sgd_options;

typedef struct muster_data_parallel_options {
  size_t size;
  /* 0: 25 MiB. */
  int64_t bucket_bytes;
  /* 0: 1 MiB. */
  int64_t first_bucket_bytes;
  /* Broadcast from the group's rank 0 by muster_data_parallel_new and, unless
   * no_broadcast_buffers is 1, by each begin_step. */
  const muster_named_tensor* buffers;
  size_t buffer_count;
  int32_t no_broadcast_buffers;
  /* 1: a step may leave parameters out. */
  int32_t find_unused_parameters;
  /* 1: every step uses the parameters of the first. */
  int32_t static_graph;
  int32_t reserved;
  /* "all_reduce", "fp16", "bf16", "int8", "fp8" or "power_sgd"; NULL is
   * "all_reduce". */
  const char* hook;
  /* For "power_sgd"; NULL is all defaults. */
  const muster_power_sgd_options* power_sgd;
} muster_data_parallel_options;

/* Compares the arguments over the ranks, and copies the values and buffers of
 * the group's rank 0 to all ranks. All ranks of the group make the call. An
 * argument that is bad, or not the same on all ranks, is an error on all ranks,
 * with the rank as the culprit, and the group goes on. */
muster_status muster_data_parallel_new(
    const muster_parameter* parameters, size_t parameter_count,
    muster_group* group, const muster_data_parallel_options* options,
    muster_data_parallel** model);
/* Waits for what is started. */
void muster_data_parallel_release(muster_data_parallel* model);

/* Begins a step, and broadcasts the buffers. */
muster_status muster_data_parallel_begin_step(muster_data_parallel* model);
/* The gradient of parameter `index` is complete. Its bucket may start. */
muster_status muster_data_parallel_ready(muster_data_parallel* model,
                                         size_t index);
/* Waits until all gradients are averages. MUSTER_FAILED_PRECONDITION on all
 * ranks, and the next step may begin, if a parameter was not ready on some rank
 * and may not be left out. Other errors end the group. */
muster_status muster_data_parallel_finish_step(muster_data_parallel* model);
/* Takes part with zeros in one step of the other ranks, for a rank that has no
 * more input. */
muster_status muster_data_parallel_shadow_step(muster_data_parallel* model);
/* 1: steps that begin from now on only accumulate, until it is 0 again. The
 * first step that begins afterwards reduces what all of them have added. */
muster_status muster_data_parallel_set_no_sync(muster_data_parallel* model,
                                               int32_t no_sync);

/* The gradient of a parameter: memory of the program, or of a bucket. The shape
 * is valid as long as `model`. The memory of a bucket, too, but not beyond the
 * first finish_step that reduces: the gradients may lie elsewhere afterwards.
 */
muster_status muster_data_parallel_gradient(muster_data_parallel* model,
                                            size_t index,
                                            muster_tensor* gradient);
/* DataParallel::LoggingData as JSON, with the names of its fields. Times are
 * nanoseconds. Thread-safe. */
muster_status muster_data_parallel_logging_data_json(
    muster_data_parallel* model, muster_strings** json);

/* ------------------------------------------------------------- Checkpoints */

/* Where checkpoints are kept. */
typedef struct muster_checkpoint_storage muster_checkpoint_storage;

/* A directory of a file system, for several hosts a shared one. It is made when
 * the first checkpoint is. */
muster_status muster_directory_storage_new(const char* directory,
                                           muster_checkpoint_storage** storage);
void muster_checkpoint_storage_release(muster_checkpoint_storage* storage);

/* A box of a tensor, and the memory of its elements. */
typedef struct muster_checkpoint_shard {
  /* The whole tensor's. */
  const char* name;
  /* Its shape is that of the box. */
  const muster_tensor* local;
  /* The whole tensor's shape, and where the box begins: `ndim` numbers each.
   * Both NULL: `local` is the whole tensor. */
  const int64_t* global_shape;
  const int64_t* offsets;
  size_t ndim;
} muster_checkpoint_shard;

/* A text that a checkpoint has beside its tensors. */
typedef struct muster_checkpoint_value {
  const char* name;
  const char* text;
} muster_checkpoint_value;

typedef struct muster_save_checkpoint_options {
  size_t size;
  int64_t timeout_ms;
  /* Those of the group's rank 0 count. */
  const muster_checkpoint_value* values;
  size_t value_count;
  /* Afterwards removes all checkpoints but the `keep_newest` newest ones, of
   * which this is one, and those whose step is a multiple of `keep_every`. 0:
   * no other is removed; no other is kept. */
  int64_t keep_newest;
  int64_t keep_every;
} muster_save_checkpoint_options;

/* Saves a checkpoint, and returns when it is durable. All ranks of the group
 * make the call; their boxes together cover each tensor, and may be the same.
 * The error is the same on all ranks, and then nothing is saved or replaced. */
muster_status muster_save_checkpoint(
    muster_checkpoint_storage* storage, int64_t step,
    const muster_checkpoint_shard* state, size_t shard_count,
    muster_group* group, const muster_save_checkpoint_options* options);

/* Saves checkpoints while the program goes on. One thread at a time. */
typedef struct muster_checkpointer muster_checkpointer;
/* A checkpoint that is being written. */
typedef struct muster_pending_checkpoint muster_pending_checkpoint;

typedef struct muster_checkpointer_options {
  size_t size;
  /* As in muster_save_checkpoint_options. */
  int64_t timeout_ms;
  int64_t keep_newest;
  int64_t keep_every;
} muster_checkpointer_options;

/* `group`: one that nothing else uses as long as the checkpointer lives. NULL:
 * the call makes one of all ranks, and all ranks make the call. */
muster_status muster_checkpointer_new(
    muster_checkpoint_storage* storage, muster_group* group,
    const muster_checkpointer_options* options,
    muster_checkpointer** checkpointer);
/* Waits for the last checkpoint. */
void muster_checkpointer_release(muster_checkpointer* checkpointer);

/* As muster_save_checkpoint, but returns when this rank's part is copied. First
 * waits for the checkpoint before this one. */
muster_status muster_save_checkpoint_async(
    muster_checkpointer* checkpointer, int64_t step,
    const muster_checkpoint_shard* state, size_t shard_count,
    const muster_checkpoint_value* values, size_t value_count,
    muster_pending_checkpoint** pending);
/* Waits until the checkpoint is durable, and returns how the save went. */
muster_status muster_pending_checkpoint_wait(
    muster_pending_checkpoint* pending);
/* Does not block. */
muster_status muster_pending_checkpoint_is_done(
    muster_pending_checkpoint* pending, int32_t* done);
/* The save goes on. */
void muster_pending_checkpoint_release(muster_pending_checkpoint* pending);

typedef struct muster_load_checkpoint_options {
  size_t size;
  /* 1: a tensor that the checkpoint lacks is no error, and does not change. */
  int32_t not_strict;
  int32_t reserved;
} muster_load_checkpoint_options;

/* Fills boxes, of any shape, from a checkpoint. The call is local. `values`
 * becomes a name, its text, the next name and so on; `missing` the names of the
 * tensors that the checkpoint lacks. Both may be NULL. After an error boxes may
 * be filled in part. */
muster_status muster_load_checkpoint(
    muster_checkpoint_storage* storage, int64_t step,
    const muster_checkpoint_shard* shards, size_t shard_count,
    const muster_load_checkpoint_options* options, muster_strings** values,
    muster_strings** missing);

typedef struct muster_load_newest_options {
  size_t size;
  /* For each wait for the other ranks' loading. */
  int64_t timeout_ms;
} muster_load_newest_options;

/* Loads the newest checkpoint that no rank finds damaged. All ranks of the
 * group make the call, each with its own shards. `step` becomes its step, or -1
 * if there is no checkpoint; `values` as above. The error is the same on all
 * ranks: MUSTER_DATA_LOSS if all checkpoints are damaged. */
muster_status muster_load_newest_checkpoint(
    muster_checkpoint_storage* storage, const muster_checkpoint_shard* shards,
    size_t shard_count, muster_group* group,
    const muster_load_newest_options* options, int64_t* step,
    muster_strings** values);

/* Reads a whole checkpoint and compares all checksums. The call is local. */
muster_status muster_verify_checkpoint(muster_checkpoint_storage* storage,
                                       int64_t step);

/* Removes a checkpoint. The call is local: make it on one rank, while no save
 * runs. */
muster_status muster_remove_checkpoint(muster_checkpoint_storage* storage,
                                       int64_t step);

/* The steps of all checkpoints, from the oldest to the newest, which is the one
 * that was saved last. Writes at most `capacity` of them;
 * `count` becomes their number. */
muster_status muster_list_checkpoints(muster_checkpoint_storage* storage,
                                      int64_t* steps, size_t capacity,
                                      size_t* count);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* MUSTER_MUSTER_PARALLEL_H_ */
