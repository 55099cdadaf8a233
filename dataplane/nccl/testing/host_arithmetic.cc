#include "dataplane/nccl/testing/host_arithmetic.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "dataplane/nccl/testing/host_nccl.h"
#include "dataplane/reduction.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/float8.h"

namespace muster::dataplane::nccl::testing {
namespace {

std::atomic<bool> g_rounds_at_each_rank{false};

// Converts `count` elements to the type in which they are reduced (float32 for
// 8-bit floats), and back.
std::vector<char> Widened(DataType type, const char* elements, size_t count) {
  const dataplane::DataType own = *FindDataType(type);
  if (!IsFloat8(own))
    return {elements, elements + count * GetElementBytes(type)};
  std::vector<char> wide(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const float value = FromFloat8(own, static_cast<uint8_t>(elements[i]));
    std::memcpy(wide.data() + i * sizeof(float), &value, sizeof(float));
  }
  return wide;
}

std::vector<char> Narrowed(DataType type, std::vector<char> wide) {
  const dataplane::DataType own = *FindDataType(type);
  if (!IsFloat8(own)) return wide;
  std::vector<char> elements(wide.size() / sizeof(float));
  for (size_t i = 0; i < elements.size(); ++i) {
    float value = 0;
    std::memcpy(&value, wide.data() + i * sizeof(float), sizeof(float));
    elements[i] = static_cast<char>(ToFloat8(own, value));
  }
  return elements;
}

ReduceOp ToReduceOp(RedOp op) {
  switch (op) {
    case kSum:
      return ReduceOp::kSum;
    case kProd:
      return ReduceOp::kProduct;
    case kMax:
      return ReduceOp::kMax;
    case kMin:
      return ReduceOp::kMin;
    case kAvg:
      return ReduceOp::kAvg;
    default:
      return ReduceOp::kPremulSum;
  }
}

// As ReducedAtOnce, but rounds to the element type at each rank: the product
// with its factor, if the operation has one, and each sum.
std::vector<char> ReducedInSteps(const std::vector<Call>& calls, DataType type,
                                 RedOp op, size_t offset, size_t count) {
  const dataplane::DataType own = *FindDataType(type);
  const dataplane::DataType wide =
      IsFloat8(own) ? dataplane::DataType::kFloat32 : own;
  const ReduceOp whole = ToReduceOp(op);
  const bool sums = whole == ReduceOp::kAvg || whole == ReduceOp::kPremulSum;
  const ReduceOp step = sums ? ReduceOp::kSum : whole;
  const auto rounded = [&](const Reduction& reduction,
                           const std::vector<char>& values) {
    std::vector<char> elements(count * DataTypeBytes(wide));
    reduction.Store(elements.data(), values.data(), count);
    return Narrowed(type, std::move(elements));
  };
  const auto scaled = [&](const Call& call) {
    const char* const from =
        static_cast<const char*>(call.from) + offset * GetElementBytes(type);
    const Reduction& reduction = Reduction::Of(wide, ReduceOp::kPremulSum);
    std::vector<char> values(count * reduction.accumulator_bytes());
    const double factor = whole == ReduceOp::kAvg
                              ? 1.0 / static_cast<double>(calls.size())
                              : call.factor;
    reduction.Load(values.data(), Widened(type, from, count).data(), count,
                   sums ? factor : 1);
    return rounded(reduction, values);
  };
  const Reduction& reduction = Reduction::Of(wide, step);
  std::vector<char> result = scaled(calls[0]);
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    std::vector<char> values(count * reduction.accumulator_bytes());
    reduction.Load(values.data(), Widened(type, result.data(), count).data(),
                   count, 1);
    reduction.Add(values.data(),
                  Widened(type, scaled(calls[rank]).data(), count).data(),
                  count, 1);
    result = rounded(reduction, values);
  }
  return result;
}

std::vector<char> ReducedAtOnce(const std::vector<Call>& calls, DataType type,
                                RedOp op, size_t offset, size_t count) {
  const dataplane::DataType own = *FindDataType(type);
  const dataplane::DataType wide =
      IsFloat8(own) ? dataplane::DataType::kFloat32 : own;
  const Reduction& reduction = Reduction::Of(wide, ToReduceOp(op));
  const auto part = [&](const Call& call) {
    const char* const from = static_cast<const char*>(call.from);
    return Widened(type, from + offset * GetElementBytes(type), count);
  };
  if (g_rounds_at_each_rank &&
      (type == kFloat16 || type == kBfloat16 || IsFloat8(own))) {
    return ReducedInSteps(calls, type, op, offset, count);
  }
  std::vector<char> sum(count * reduction.accumulator_bytes());
  reduction.Load(sum.data(), part(calls[0]).data(), count, calls[0].factor);
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    reduction.Add(sum.data(), part(calls[rank]).data(), count,
                  calls[rank].factor);
  }
  reduction.Finish(sum.data(), count, static_cast<int>(calls.size()));
  std::vector<char> result(count * DataTypeBytes(wide));
  reduction.Store(result.data(), sum.data(), count);
  return Narrowed(type, std::move(result));
}

// Bytes of the result that NCCL's kernel for one rank writes: each block takes
// count / blocks elements, rounded down, in whole 16 bytes.
size_t WrittenAlone(size_t count, size_t bytes) {
  const size_t blocks =
      std::clamp<size_t>((count * bytes + (16 << 10) - 1) / (16 << 10), 1, 32);
  const size_t each = (count / blocks * bytes + 15) / 16 * 16;
  return std::min(count * bytes, blocks * each);
}

}  // namespace

std::optional<dataplane::DataType> FindDataType(DataType type) {
  switch (type) {
    case kInt8:
      return dataplane::DataType::kInt8;
    case kUint8:
      return dataplane::DataType::kUint8;
    case kInt32:
      return dataplane::DataType::kInt32;
    case kInt64:
      return dataplane::DataType::kInt64;
    case kUint32:
      return dataplane::DataType::kUint32;
    case kUint64:
      return dataplane::DataType::kUint64;
    case kFloat16:
      return dataplane::DataType::kFloat16;
    case kBfloat16:
      return dataplane::DataType::kBfloat16;
    case kFloat32:
      return dataplane::DataType::kFloat32;
    case kFloat64:
      return dataplane::DataType::kFloat64;
    case kFloat8e4m3:
      return dataplane::DataType::kFloat8E4m3fn;
    case kFloat8e5m2:
      return dataplane::DataType::kFloat8E5m2;
    default:
      return std::nullopt;
  }
}

size_t GetElementBytes(DataType type) {
  const auto known = FindDataType(type);
  return known.has_value() ? DataTypeBytes(*known) : 1;
}

std::vector<char> Reduced(const std::vector<Call>& calls, DataType type,
                          RedOp op, size_t offset, size_t count) {
  std::vector<char> result = ReducedAtOnce(calls, type, op, offset, count);
  if (calls.size() == 1 && op >= kAvg) {
    result.resize(WrittenAlone(count, GetElementBytes(type)));
  }
  return result;
}

void SetRoundsAtEachRank(bool rounds) { g_rounds_at_each_rank = rounds; }

}  // namespace muster::dataplane::nccl::testing
