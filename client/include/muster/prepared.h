// Collectives that are prepared once and run again and again.

#ifndef MUSTER_PREPARED_H_
#define MUSTER_PREPARED_H_

#include <memory>

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace muster::dataplane {
class PreparedCollective;
}  // namespace muster::dataplane

namespace MUSTER_EXPORT muster {

// PreparedCollective is a collective with its arguments, like a persistent
// collective of MPI 4 (MPI_Allreduce_init). What every call checks and looks up
// was checked and looked up once, so that small collectives take less time.
//
//   auto sum = group->PrepareAllReduce(gradients);
//   for (int step = 0; step < steps; ++step) {
//     ComputeGradients();  // writes to the same memory
//     sum.Run();
//   }
//
// Each run counts as a call of the collective: all ranks start the same ones in
// the same order. Ranks need not agree on which ones they prepare.
//
// The memory of the tensors must stay where it is until this object is
// destroyed and its last Work is complete. The group may be destroyed first; a
// run then throws what an ordinary call throws. Each run has the timeout of the
// options. On a rank outside the group a run only warns.
//
// Several threads may use it. It has one run at a time: while a Run has not
// returned or a started Work is not complete, Run and Start throw DistError
// (kInvalidArgument). A refused call uses up its number, as one with bad
// arguments does, so the next collective of the other ranks does not match this
// rank's. With CUDA tensors a run comes after the earlier one in the stream and
// is not refused. Destroy it on any thread, but not while another is in Run.
//
// Movable. Run and Start of a default-constructed or moved-from object throw
// DistError (kInvalidArgument).
class PreparedCollective {
 public:
  PreparedCollective() = default;
  PreparedCollective(PreparedCollective&&) noexcept = default;
  PreparedCollective& operator=(PreparedCollective&&) noexcept = default;

  // Runs the collective and returns when it is complete. With CUDA tensors it
  // makes the current stream wait. Throws what Work::Wait throws.
  void Run();

  // Starts the collective and returns at once (`async_op`).
  Work Start();

 private:
  friend class internal::GroupState;
  void CheckPrepared() const;
  PreparedCollective(std::shared_ptr<internal::GroupState> group,
                     std::shared_ptr<dataplane::PreparedCollective> prepared);

  std::shared_ptr<internal::GroupState> group_;
  std::shared_ptr<dataplane::PreparedCollective> prepared_;
};

}  // namespace muster

#endif  // MUSTER_PREPARED_H_
