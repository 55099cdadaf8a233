#ifndef MUSTER_WORKER_BENCH_OPERATION_H_
#define MUSTER_WORKER_BENCH_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/muster.hpp"
#include "worker/bench/buffer.h"
#include "worker/bench/pattern.h"

namespace muster::worker::bench {

// A rank's input or output in the forms that calls take: one rank's part, the
// parts of all ranks as one tensor, and as a list. They are made once and not
// for each call, as in benchmarks of MPI.
struct Operand {
  std::byte* data() const { return buffer->data() + offset; }
  std::byte* host() const { return buffer->host() + offset; }
  Buffer* buffer = nullptr;
  size_t offset = 0;
  Tensor one = {};
  Tensor all = {};
  std::vector<Tensor> parts = {};
};

struct CallArguments {
  Operand input = {};
  Operand output = {};
  bool is_root = false;
  // In the form that calls take: making one for each call takes time.
  std::optional<int> root = 0;
  ReductionOptions reduction = {};
  // The sizes of the ranks' parts, all equal.
  std::vector<int64_t> counts = {};
};

// Calls a verb `calls` times, at least once, and returns the last Work.
using Calls = std::function<Work(bool async, int calls)>;

// One verb of the SDK, and how nccl-tests counts it.
struct Operation {
  // How a rank's data move.
  enum class Flow {
    // There are no data.
    kNone,
    // The data stay in their tensor.
    kInPlace,
    // From one part to the parts of all ranks.
    kGather,
    // From the parts of all ranks to one part.
    kScatter,
    // From the parts of all ranks to the parts of all ranks.
    kExchange,
    // To the next rank, by sends and receives.
    kRing,
  };

  const char* name;
  Flow flow;
  bool reduces = false;
  bool has_root = false;
  // `arguments` must outlive the result. Null: not one collective.
  Calls (*make_calls)(const CallArguments& arguments) = nullptr;
  // Prepares it, with the same arguments. Null if make_calls is.
  PreparedCollective (*prepare)(const CallArguments& arguments) = nullptr;

  // Whether the size counts the parts of all ranks together.
  bool is_cut() const {
    return flow == Flow::kGather || flow == Flow::kScatter ||
           flow == Flow::kExchange;
  }
  // Whether results may go to other memory than the input, and to the same.
  bool out_of_place() const { return flow != Flow::kInPlace; }
  bool in_place() const {
    return flow == Flow::kInPlace || flow == Flow::kGather ||
           flow == Flow::kScatter;
  }
};

// Returns null if there is no operation of this name.
const Operation* FindOperation(absl::string_view name);

// All names, separated by commas.
std::string OperationNames();

// Bus bandwidth is algorithm bandwidth times this.
double BusFactor(const Operation& operation, int world_size);

// Accept nccl-tests' names and c10d's; complex types have only one.
std::optional<DataType> FindDataType(absl::string_view name);
std::optional<ReduceOp> FindReduceOp(absl::string_view name);
std::vector<DataType> AllDataTypes();
std::vector<ReduceOp> AllReduceOps();

// One measurement: an operation with all its arguments.
struct Case {
  const Operation* operation = nullptr;
  DataType data_type = DataType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = 0;
  bool in_place = false;
  // Elements of one rank's part if is_cut(), else of its tensor.
  size_t count = 0;

  // nccl-tests' columns: size in bytes, and elements.
  size_t Bytes(int world_size) const;
  size_t Elements(int world_size) const;
};

// The largest element count whose size is at most `bytes`, and at least one
// element per part, so that smaller sizes are measured, too. 0 for a barrier.
size_t CountFor(const Case& measured, int64_t bytes, int world_size);

// Trial is one rank's memory for a case, and the call.
class Trial {
 public:
  // The tensors are on `device`. `is_symmetric`: see Buffer. `is_prepared`:
  // runs a prepared collective.
  Trial(const Case& measured, int rank, int world_size, Device device = {},
        bool is_symmetric = false, bool is_prepared = false);
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // Bring writes the ranks' inputs, Clear writes zeros: sums of zeros do not
  // change, so that calls may be repeated.
  void Bring();
  void Clear();

  // The number of wrong elements on this rank after Bring() and one call.
  // Floating point may differ by `ulps` units in the last place.
  int64_t CountWrong(int ulps = 0);

  // Starts the operation and returns the Works for which the caller must wait.
  // With `wait` it has waited; on a device only the stream has, not the host.
  std::vector<Work> Call(bool wait);
  // Does Call(true) `calls` times; on a device each call waits on the stream.
  // Adds no other work between calls, which would distort small collectives.
  void Run(int calls);

  // On a device, waits until its stream has finished all work.
  void Synchronize() const;

 private:
  // Returns rank `part`'s part of `memory`.
  std::byte* GetPart(std::byte* memory, int part) const;
  // `is_whole`: the operand has the parts of all ranks.
  void MakeTensors(Operand& operand, bool is_whole) const;
  std::vector<Work> SendAndReceive(bool wait);

  const Case case_;
  const int rank_;
  const int world_size_;
  const Device device_;
  const size_t part_bytes_;
  // The input of each rank, and the result of a reduction.
  std::vector<Pattern> inputs_;
  const Pattern reduced_;
  Buffer memory_;
  std::optional<Buffer> other_memory_;
  CallArguments arguments_;
  // Empty if it is not prepared.
  PreparedCollective prepared_;
  // Null for operations that are not one collective.
  Calls calls_;
};

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_OPERATION_H_
