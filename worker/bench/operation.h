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
#include "client/muster.h"
#include "worker/bench/buffer.h"
#include "worker/bench/pattern.h"

namespace muster::worker::bench {

// A rank's input or output in the forms that calls take: one rank's part, all
// ranks' parts together, and one by one. They are made once: whoever measures
// MPI makes nothing anew for each call, either.
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
  // As the calls take it: to put one together in each takes a while.
  std::optional<int> root = 0;
  ReductionOptions reduction = {};
};

// Calls a verb as often as it is told, once at the least, and returns the last
// call's work.
using Calls = std::function<Work(bool async, int calls)>;

// One verb of the SDK, and how nccl-tests counts it.
struct Operation {
  // From where to where a rank's data go.
  enum class Flow {
    // There are none.
    kNone,
    // They stay in their tensor.
    kInPlace,
    // From one part to all ranks' parts.
    kGather,
    // From all ranks' parts to one.
    kScatter,
    // From all ranks' parts to all ranks' parts.
    kExchange,
    // To the next rank, by sends and receives.
    kRing,
  };

  const char* name;
  Flow flow;
  bool reduces = false;
  bool has_root = false;
  // The arguments live longer. Null: it is not one collective.
  Calls (*make_calls)(const CallArguments& arguments) = nullptr;

  // Its size is that of all ranks' parts together.
  bool is_cut() const {
    return flow == Flow::kGather || flow == Flow::kScatter ||
           flow == Flow::kExchange;
  }
  // Results may go to other memory than they come from, or to the same.
  bool out_of_place() const { return flow != Flow::kInPlace; }
  bool in_place() const {
    return flow == Flow::kInPlace || flow == Flow::kGather ||
           flow == Flow::kScatter;
  }
};

// Null: there is none of that name.
const Operation* FindOperation(absl::string_view name);

// All names, with commas.
std::string OperationNames();

// Bus bandwidth is that of the algorithm times this.
double BusFactor(const Operation& operation, int world_size);

// nccl-tests' names and c10d's; all but complex ones have both.
std::optional<DataType> FindDataType(absl::string_view name);
std::optional<ReduceOp> FindReduceOp(absl::string_view name);
std::vector<DataType> AllDataTypes();
std::vector<ReduceOp> AllReduceOps();

// What is measured: one operation with all its arguments.
struct Case {
  const Operation* operation = nullptr;
  DataType data_type = DataType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = 0;
  bool in_place = false;
  // Of one rank's part where the operation is cut, else of its tensor.
  size_t count = 0;

  // nccl-tests' columns: size in bytes, and elements.
  size_t Bytes(int world_size) const;
  size_t Elements(int world_size) const;
};

// The elements of a case whose size comes nearest to `bytes` from below; at
// least one each, so that smaller sizes are measured, too. 0 of a barrier.
size_t CountFor(const Case& measured, int64_t bytes, int world_size);

// Trial is one rank's memory for a case, and the call.
class Trial {
 public:
  // `device`: where the tensors are. `is_symmetric`: see Buffer.
  Trial(const Case& measured, int rank, int world_size, Device device = {},
        bool is_symmetric = false);
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // Puts what ranks bring into it, or zeros: sums of zeros stay what they are,
  // so that it may be called any number of times.
  void Bring();
  void Clear();

  // Of the elements that this rank gets in a call after Bring(). Those that are
  // floating point may be `ulps` beside, as units in the last place.
  int64_t CountWrong(int ulps = 0);

  // Starts it; a Work for each that the caller has to wait for. With `wait` it
  // has waited already; on a device its stream does, and not the host.
  std::vector<Work> Call(bool wait);
  // Call(true), so often; on a device each waits until its stream has done it.
  // Nothing else is between two calls: a small collective takes little more.
  void Run(int calls);

  // On a device: waits until its stream has done what it was given.
  void Synchronize() const;

 private:
  // The part of `memory` that belongs to rank `part`.
  std::byte* PartOf(std::byte* memory, int part) const;
  // `is_whole`: it has all ranks' parts.
  void MakeTensors(Operand& operand, bool is_whole) const;
  std::vector<Work> SendAndReceive(bool wait);

  const Case case_;
  const int rank_;
  const int world_size_;
  const Device device_;
  const size_t part_bytes_;
  // What each rank brings, and what comes out of a reduction.
  std::vector<Pattern> inputs_;
  const Pattern reduced_;
  Buffer memory_;
  std::optional<Buffer> other_memory_;
  CallArguments arguments_;
  // Null of operations that are not one collective.
  Calls calls_;
};

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_OPERATION_H_
