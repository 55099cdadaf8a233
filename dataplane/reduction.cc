#include "dataplane/reduction.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/reduction_table.h"
#include "glog/logging.h"

namespace muster::dataplane {
namespace {

const KernelTable& TableOf(absl::string_view instruction_set) {
#if defined(__x86_64__)
  if (instruction_set == "avx512") return kernels_avx512::Table();
  if (instruction_set == "avx2") return kernels_avx2::Table();
#endif
  return kernels_baseline::Table();
}

const KernelTable& BestTable() {
  static const KernelTable& table = TableOf(InstructionSets().back());
  return table;
}

const KernelsOfType* KernelsFor(const KernelTable& table, DataType type) {
  switch (type) {
    case DataType::kInt32:
      return &table.int32;
    case DataType::kInt64:
      return &table.int64;
    case DataType::kFloat32:
      return &table.float32;
    case DataType::kFloat64:
      return &table.float64;
    default:
      return nullptr;
  }
}

KernelsOfType::Reduce CombineOf(const KernelsOfType& kernels, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return kernels.sum;
    case ReduceOp::kMin:
      return kernels.min;
    case ReduceOp::kMax:
      return kernels.max;
    case ReduceOp::kProduct:
      return kernels.product;
  }
  return nullptr;
}

}  // namespace

std::vector<absl::string_view> InstructionSets() {
  std::vector<absl::string_view> sets = {"baseline"};
#if defined(__x86_64__)
  // Asked here and not by the loader (ifunc, target_clones): a resolver runs
  // before the sanitizers are set up and crashes under them.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) sets.push_back("avx2");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    sets.push_back("avx512");
  }
#endif
  return sets;
}

absl::Status Reduction::Supports(DataType type, ReduceOp op) {
  if (KernelsFor(BestTable(), type) != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("reduction of ", DataTypeName(type),
                   " is not available on the CPU; int32, int64, float32 and "
                   "float64 are"));
}

Reduction::Reduction(DataType type, ReduceOp op)
    : Reduction(type, op, InstructionSets().back()) {}

Reduction::Reduction(DataType type, ReduceOp op,
                     absl::string_view instruction_set) {
  const KernelsOfType* kernels = KernelsFor(TableOf(instruction_set), type);
  CHECK(kernels != nullptr) << "unsupported " << DataTypeName(type);
  combine_ = CombineOf(*kernels, op);
  divide_ = op == ReduceOp::kAvg ? kernels->divide : nullptr;
}

}  // namespace muster::dataplane
