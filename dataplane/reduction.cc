#include "dataplane/reduction.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/data_types.h"
#include "dataplane/reduction_table.h"
#include "glog/logging.h"

namespace muster::dataplane {
namespace {

// Pieces of this size, accumulators and one operand, fit into the first-level
// cache.
constexpr size_t kCombinedAtOnceBytes = 16 << 10;

const KernelTable& GetTable(absl::string_view instruction_set) {
#if defined(__x86_64__)
  if (instruction_set == "avx512") return kernels_avx512::Table();
  if (instruction_set == "avx2") return kernels_avx2::Table();
#endif
  return kernels_baseline::Table();
}

const KernelsOfType& KernelsFor(const KernelTable& table, DataType type) {
  switch (type) {
    case DataType::kUint8:
      return table.uint8;
    case DataType::kInt8:
      return table.int8;
    case DataType::kInt16:
      return table.int16;
    case DataType::kInt32:
      return table.int32;
    case DataType::kInt64:
      return table.int64;
    case DataType::kFloat16:
      return table.float16;
    case DataType::kBfloat16:
      return table.bfloat16;
    case DataType::kFloat32:
    case DataType::kComplex64:
      return table.float32;
    case DataType::kFloat64:
    case DataType::kComplex128:
      return table.float64;
    case DataType::kBool:
      return table.boolean;
    case DataType::kUint16:
      return table.uint16;
    case DataType::kUint32:
      return table.uint32;
    case DataType::kUint64:
      return table.uint64;
    case DataType::kFloat32Int32:
      return table.float32_int32;
    case DataType::kFloat64Int64:
      return table.float64_int64;
    case DataType::kInt32Int32:
      return table.int32_int32;
    case DataType::kInt64Int64:
      return table.int64_int64;
    case DataType::kFloat8E4m3fn:
    case DataType::kFloat8E5m2:
    case DataType::kOpaque:
      break;
  }
  LOG(FATAL) << "no loops for type " << static_cast<int>(type);
}

KernelsOfType::Reduce GetCombine(const KernelsOfType& kernels, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return kernels.sum;
    case ReduceOp::kMin:
      return kernels.min;
    case ReduceOp::kMax:
      return kernels.max;
    case ReduceOp::kProduct:
      return kernels.product;
    case ReduceOp::kBand:
      return kernels.bit_and;
    case ReduceOp::kBor:
      return kernels.bit_or;
    case ReduceOp::kBxor:
      return kernels.bit_xor;
    case ReduceOp::kMinloc:
      return kernels.min_location;
    case ReduceOp::kMaxloc:
      return kernels.max_location;
    case ReduceOp::kUser:
      break;
  }
  return nullptr;
}

bool IsNarrowFloat(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16;
}

}  // namespace

std::vector<absl::string_view> InstructionSets() {
  std::vector<absl::string_view> sets = {"baseline"};
#if defined(__x86_64__)
  // Checked here, not by a resolver (ifunc, target_clones), which would run
  // before the sanitizers are set up and crash.
  __builtin_cpu_init();
  // Every CPU with AVX2 has F16C, which clang cannot check.
  if (__builtin_cpu_supports("avx2")) sets.push_back("avx2");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    sets.push_back("avx512");
  }
#endif
  return sets;
}

Status NotReducible(absl::string_view backend, DataType type) {
  return UnimplementedError(absl::StrCat(
      "the ", backend, " backend does not reduce ", DataTypeName(type)));
}

Status NoFunctions(absl::string_view backend) {
  return UnimplementedError(absl::StrCat(
      "the ", backend, " backend does not reduce by functions of the user"));
}

const Reduction& Reduction::Of(DataType type, ReduceOp op) {
  static const auto all = [] {
    const KernelTable& table = GetTable(InstructionSets().back());
    std::vector<std::optional<Reduction>> reductions;
    for (int i = 0; i < kDataTypeCount * kReduceOpCount; ++i) {
      const auto each = static_cast<DataType>(i / kReduceOpCount);
      auto& reduction = reductions.emplace_back();
      if (!Has(each)) continue;
      reduction =
          Reduction(each, static_cast<ReduceOp>(i % kReduceOpCount), table);
    }
    return reductions;
  }();
  const auto& found =
      all[static_cast<size_t>(type) * kReduceOpCount + static_cast<size_t>(op)];
  CHECK(found.has_value() && found->combine_ != nullptr)
      << ReduceOpName(op) << " of " << DataTypeName(type);
  return *found;
}

Reduction::Reduction(DataType type, ReduceOp op,
                     absl::string_view instruction_set)
    : Reduction(type, op, GetTable(instruction_set)) {
  CHECK(combine_ != nullptr)
      << ReduceOpName(op) << " of " << DataTypeName(type);
}

Reduction::Reduction(DataType type, ReduceOp op, const KernelTable& table)
    : element_bytes_(DataTypeBytes(type)),
      accumulator_bytes_(element_bytes_),
      at_once_(0),
      parts_(IsComplex(type) ? 2 : 1),
      load_(nullptr),
      add_(nullptr),
      narrow_(nullptr),
      combine_two_(nullptr),
      scales_(op == ReduceOp::kPremulSum) {
  const KernelsOfType* kernels = &KernelsFor(table, type);
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (scales_ || (IsNarrowFloat(type) && !ordered)) {
    load_ = kernels->load;
    add_ = op == ReduceOp::kProduct ? kernels->multiply : kernels->add;
  }
  if (IsNarrowFloat(type) && !ordered) {
    narrow_ = kernels->narrow;
    if (op == ReduceOp::kSum) combine_two_ = kernels->sum;
    accumulator_bytes_ = sizeof(float);
    kernels = &table.float32;
  }
  at_once_ = kCombinedAtOnceBytes / accumulator_bytes_;
  combine_ = GetCombine(*kernels, op);
  divide_ = op == ReduceOp::kAvg ? kernels->divide : nullptr;
  if (combines_elements() && divide_ == nullptr) combine_two_ = combine_;
}

void Reduction::Load(void* out, const void* elements, size_t count,
                     double factor) const {
  if (load_ != nullptr) {
    load_(out, elements, count * parts_, scales_ ? factor : 1);
  } else if (out != elements && count > 0) {
    std::memcpy(out, elements, count * accumulator_bytes_);
  }
}

void Reduction::Add(void* out, const void* elements, size_t count,
                    double factor) const {
  if (add_ != nullptr) {
    add_(out, elements, count * parts_, scales_ ? factor : 1);
  } else {
    Combine(out, out, elements, count);
  }
}

void Reduction::CombineAll(void* result, absl::Span<const void* const> operands,
                           absl::Span<const double> factors, size_t count,
                           int world_size) const {
  if (combine_two_ != nullptr && operands.size() == 2) {
    return combine_two_(result, operands[0], operands[1], count * parts_);
  }
  CombinePieces(result, operands, factors, count, world_size);
}

void Reduction::Accumulate(void* accumulators,
                           absl::Span<const void* const> operands,
                           absl::Span<const double> factors,
                           size_t count) const {
  CombinePieces(accumulators, operands, factors, count, /*world_size=*/0);
}

void Reduction::CombinePieces(void* result,
                              absl::Span<const void* const> operands,
                              absl::Span<const double> factors, size_t count,
                              int world_size) const {
  const bool finishes = world_size > 0;
  const size_t result_bytes = finishes ? element_bytes_ : accumulator_bytes_;
  alignas(64) std::byte room[kCombinedAtOnceBytes];
  for (size_t done = 0; done < count; done += at_once_) {
    const size_t now = std::min(at_once_, count - done);
    const auto operand = [&](size_t i) {
      return static_cast<const std::byte*>(operands[i]) + done * element_bytes_;
    };
    std::byte* const to = static_cast<std::byte*>(result) + done * result_bytes;
    if (combines_elements() && operands.size() > 1) {
      // The last combination writes to the result, which may be one of the
      // operands: all of them have been read by then.
      const void* all = operand(0);
      for (size_t next = 1; next < operands.size(); ++next) {
        std::byte* const out = next + 1 == operands.size() ? to : room;
        Combine(out, all, operand(next), now);
        all = out;
      }
      if (finishes) Finish(to, now, world_size);
      continue;
    }
    const auto factor = [&](size_t i) { return scales_ ? factors[i] : 1; };
    Load(room, operand(0), now, factor(0));
    for (size_t next = 1; next < operands.size(); ++next) {
      Add(room, operand(next), now, factor(next));
    }
    if (finishes) {
      Finish(room, now, world_size);
      Store(to, room, now);
    } else {
      std::memcpy(to, room, now * accumulator_bytes_);
    }
  }
}

void Reduction::Store(void* elements, const void* accumulators,
                      size_t count) const {
  if (narrow_ != nullptr) {
    narrow_(elements, accumulators, count);
  } else if (elements != accumulators && count > 0) {
    std::memcpy(elements, accumulators, count * accumulator_bytes_);
  }
}

}  // namespace muster::dataplane
