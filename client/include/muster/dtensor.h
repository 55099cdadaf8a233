// Distributed tensors: one tensor of which each rank of a device mesh has a
// part. The design and the names are those of PyTorch's DTensor.
//
//   using namespace muster;
//   DeviceMesh mesh = InitDeviceMesh("cpu", {2, 2});
//   // A weight with the same values for every mesh and every placement.
//   DTensor weight = DTensor::Zeros({1024, 512}, DataType::kFloat32, mesh,
//                                   {Shard(0), Shard(1)});
//   weight.FillNormal(/*seed=*/7, /*mean=*/0, /*stddev=*/0.02);
//   Tensor mine = weight.ToLocal();              // float32[512,256]
//   DTensor rows = weight.Redistribute({Shard(0), Replicate()});
//   DTensor whole = weight.FullTensor();         // float32[1024,512]
//   everywhere

#ifndef MUSTER_DTENSOR_H_
#define MUSTER_DTENSOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/device_mesh.h"
#include "muster/placement.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

struct FromLocalOptions {
  // The shape of the whole tensor. Not given: it is computed from the local
  // tensors, which the ranks then tell each other.
  std::optional<std::vector<int64_t>> shape = std::nullopt;
};

// DTensor is a handle of a whole shape, an element type, a mesh, a placement
// for each dimension of the mesh, and this rank's part, the local tensor, which
// has the elements of box() in row-major order. It owns the local tensor's
// memory, except after FromLocal, when it views the caller's. Copies share the
// memory, and so may the result of a redistribution that moves nothing.
//
// Functions that communicate (FromLocal, Distribute, Redistribute, FullTensor)
// are collective: all ranks of the mesh call them in the same order. They first
// check that the ranks' arguments agree and fit, by an all_reduce of 16 bytes
// along each dimension of the mesh. If not, every rank throws the same
// DistError (kInvalidArgument), which names the ranks, the argument and the
// values, and the mesh can go on. They also throw what the collectives throw.
// If a rank has no memory for its part of the work, every rank throws
// kResourceExhausted before anything moves. Data that is only moved does not
// change. A reduction along a dimension of the mesh is the same bits on all
// ranks of one line of it. Lines may add in another order, if their ranks lie
// on hosts in another way, so that ranks of different lines with the same part
// may differ by the rounding of sums.
//
// On a rank that is not in the mesh the functions log a warning and do nothing;
// the local tensor has no elements.
//
// Local tensors are on the CPU. A DTensor of tensors on a CUDA device can be
// made and viewed, but not redistributed (kUnimplemented).
//
// One thread at a time.
class DTensor {
 public:
  // Makes a DTensor of the local tensors, whose memory must live as long as it
  // and what is made from it. Each rank's tensor must have the shape of its
  // box: uneven parts are cut as Shard says.
  static DTensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                           const std::vector<Placement>& placements,
                           const FromLocalOptions& options = {});

  // Gives each rank its part of the tensor of the first rank of the mesh, which
  // this function only reads. The others' `full` is not read and may be empty.
  // Placements are Shard and Replicate. The first rank needs memory for one
  // more copy of what it sends.
  static DTensor Distribute(const Tensor& full, const DeviceMesh& mesh,
                            const std::vector<Placement>& placements);

  // Allocates the local tensor, with zeros. Does not communicate. Throws
  // DistError (kInvalidArgument, kResourceExhausted).
  static DTensor Zeros(const std::vector<int64_t>& shape, DataType data_type,
                       const DeviceMesh& mesh,
                       const std::vector<Placement>& placements);

  // Returns the same tensor with other placements, by the steps that
  // PlanRedistribute finds. This DTensor does not change.
  DTensor Redistribute(const std::vector<Placement>& placements) const;

  // Redistribute to Replicate in all dimensions: every rank gets all elements.
  DTensor FullTensor() const;

  // A view of the local tensor.
  Tensor ToLocal() const;

  const DeviceMesh& mesh() const;
  // The shape of the whole tensor.
  const std::vector<int64_t>& shape() const;
  DataType data_type() const;
  const std::vector<Placement>& placements() const;
  TensorLayout layout() const;
  // The part of this rank. On a rank that is not in the mesh, of no elements.
  const ShardBox& box() const;

  // Write random numbers to the local tensor: float16, bfloat16, float32 or
  // float64, without Partial placements. An element's number depends only on
  // `seed` and its index in the whole tensor, so it is the same for every mesh
  // and every placement. The generator is Philox4x32-10 (Salmon, Moraes, Dror,
  // Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; 2011). Give each tensor
  // a seed of its own. They do not communicate. They throw DistError
  // (kInvalidArgument, kUnimplemented).
  //
  // Uniform from `low` on, below `high` (but for the rounding to the type).
  void FillUniform(uint64_t seed, double low = 0, double high = 1);
  // Normal, by the method of Box and Muller.
  void FillNormal(uint64_t seed, double mean = 0, double stddev = 1);

  // "float32[8,16] (S(0), R) on DeviceMesh((2, 2), cpu)".
  std::string ToText() const;

 private:
  struct MUSTER_HIDDEN State;

  explicit DTensor(std::shared_ptr<const State> state);

  std::shared_ptr<const State> state_;
};

}  // namespace muster

#endif  // MUSTER_DTENSOR_H_
