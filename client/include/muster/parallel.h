// The training layer: data, sharded, tensor and pipeline parallel training,
// checkpoints. muster.hpp does not include it.

#ifndef MUSTER_PARALLEL_H_
#define MUSTER_PARALLEL_H_

#include "muster/averaging.h"
#include "muster/checkpoint.h"
#include "muster/checkpoint_storage.h"
#include "muster/communication_hooks.h"
#include "muster/data_parallel.h"
#include "muster/dtensor.h"
#include "muster/fully_shard.h"
#include "muster/join.h"
#include "muster/pipeline.h"
#include "muster/pipeline_schedule.h"
#include "muster/placement.h"
#include "muster/sharded_optimizer.h"
#include "muster/tensor_parallel.h"

#endif  // MUSTER_PARALLEL_H_
