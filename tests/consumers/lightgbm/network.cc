#include "network.h"

#include <muster/muster.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void Check(muster_status status) {
  if (status == MUSTER_OK) return;
  throw std::runtime_error(muster_error_message(muster_last_error()));
}

muster_tensor Elements(char* data, int64_t bytes, int element_bytes) {
  muster_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = MUSTER_OPAQUE;
  tensor.element_size = static_cast<uint64_t>(element_bytes);
  tensor.count = bytes / element_bytes;
  return tensor;
}

std::vector<int64_t> InElements(const int32_t* bytes, int count,
                                int element_bytes) {
  std::vector<int64_t> elements(bytes, bytes + count);
  for (int64_t& element : elements) {
    if (element % element_bytes != 0) {
      throw std::runtime_error("a block begins or ends within an element: at " +
                               std::to_string(element) + " bytes, of " +
                               std::to_string(element_bytes) + " each");
    }
    element /= element_bytes;
  }
  return elements;
}

struct Context {
  const Reducer* reducer;
  int element_bytes;
};

muster_status Reduce(const void* in, void* inout, size_t count, void* to) {
  const auto& context = *static_cast<const Context*>(to);
  try {
    (*context.reducer)(static_cast<const char*>(in), static_cast<char*>(inout),
                       context.element_bytes,
                       static_cast<int32_t>(count) * context.element_bytes);
  } catch (...) {
    return MUSTER_INTERNAL;
  }
  return MUSTER_OK;
}

}  // namespace

void ReduceScatter(char* input, int32_t input_bytes, int element_bytes,
                   const int32_t* block_start, const int32_t* block_bytes,
                   int block_count, char* output, int32_t output_bytes,
                   const Reducer& reducer) {
  // Lives until the call is complete.
  Context context = {&reducer, element_bytes};
  muster_op_options op_options = {};
  op_options.size = sizeof(op_options);
  op_options.element_size = static_cast<size_t>(element_bytes);
  op_options.name = "lightgbm";
  muster_op* created = nullptr;
  Check(muster_op_create(&Reduce, &context, &op_options, &created));
  const std::unique_ptr<muster_op, decltype(&muster_op_release)> op(
      created, &muster_op_release);
  muster_reduction_options options = {};
  options.size = sizeof(options);
  options.user_op = op.get();

  int32_t rank = 0;
  Check(muster_get_rank(nullptr, &rank));
  const auto starts = InElements(block_start, block_count, element_bytes);
  const auto counts = InElements(block_bytes, block_count, element_bytes);
  if (block_bytes[rank] > output_bytes) {
    throw std::runtime_error("the output has " + std::to_string(output_bytes) +
                             " bytes, the block " +
                             std::to_string(block_bytes[rank]));
  }
  const muster_tensor in = Elements(input, input_bytes, element_bytes);
  const muster_tensor out = Elements(output, block_bytes[rank], element_bytes);
  Check(muster_reduce_scatter_v(&out, &in, counts.data(), starts.data(),
                                counts.size(), MUSTER_USER_OP, nullptr,
                                &options));
}

void AllGather(char* input, int32_t input_bytes, const int32_t* block_start,
               const int32_t* block_bytes, int block_count, char* output,
               int32_t output_bytes) {
  int32_t rank = 0;
  Check(muster_get_rank(nullptr, &rank));
  char* const own = output + block_start[rank];
  std::memmove(own, input, static_cast<size_t>(input_bytes));
  const auto starts = InElements(block_start, block_count, 1);
  const auto counts = InElements(block_bytes, block_count, 1);
  const muster_tensor out = Elements(output, output_bytes, 1);
  const muster_tensor in = Elements(own, input_bytes, 1);
  Check(muster_all_gather_v(&out, counts.data(), starts.data(), counts.size(),
                            &in, nullptr, nullptr));
}
