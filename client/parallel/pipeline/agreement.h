// Checks of a pipeline's arguments, on one rank and over all ranks.

#ifndef MUSTER_CLIENT_PARALLEL_PIPELINE_AGREEMENT_H_
#define MUSTER_CLIENT_PARALLEL_PIPELINE_AGREEMENT_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "muster/pipeline.h"
#include "muster/pipeline_schedule.h"
#include "muster/process_group.h"

namespace muster::internal {

// "float32[2,4]", or "(float32[2,4], int64[3])".
std::string DescribeShape(const PipelineShape& shape);

// The size of the tensor of `shape`, rounded up to a multiple of 64 bytes.
size_t CountAlignedBytes(const PipelineShape& shape);

// Returns the tensor of `shape` at `memory`.
Tensor MakeTensor(void* memory, const PipelineShape& shape);
// Returns a tensor without memory of its own, for its size and its text.
Tensor MakeView(const PipelineShape& shape);

// Exchanges the arguments of all ranks. Throws DistError (kInvalidArgument) on
// every rank if they are bad or do not agree. All ranks of the group make the
// call.
void AgreeOnPipeline(const std::shared_ptr<ProcessGroup>& group,
                     const PipelineSchedule& schedule,
                     const std::vector<PipelineStage>& stages);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_PIPELINE_AGREEMENT_H_
