#ifndef MUSTER_CLIENT_PARALLEL_DATA_BLOCK_QUANTIZATION_H_
#define MUSTER_CLIENT_PARALLEL_DATA_BLOCK_QUANTIZATION_H_

#include <cstddef>
#include <cstdint>

namespace muster::internal {

enum class EightBits { kInt8, kFloat8E4m3fn };

// Blocks of this many elements share a scale.
inline constexpr size_t kBlockElements = 256;

// Bytes of `count` elements, a multiple of kBlockElements, with their scales.
constexpr size_t QuantizedBytes(size_t count) {
  return count + count / kBlockElements * sizeof(float);
}

// Rounds `count` elements to 8 bits; the largest of a block becomes the largest
// value of the format. A block with a NaN or an infinity becomes NaN, and one
// of numbers that are too small for a scale, zeros. `count` need not be a
// multiple of kBlockElements; then zeros follow. `to` has QuantizedBytes of the
// next multiple and is aligned to 4 bytes.
void Quantize(EightBits format, const float* from, size_t count, uint8_t* to);

// Reverses Quantize. The version that adds does so in place of writing.
void Dequantize(EightBits format, const uint8_t* from, size_t count, float* to);
void DequantizeAndAdd(EightBits format, const uint8_t* from, size_t count,
                      float* to);

// Subtracts from `exact` what Dequantize makes of `rounded`: the rounding
// errors. Those of a block of NaN are zero.
void SubtractQuantized(EightBits format, const uint8_t* rounded, size_t count,
                       float* exact);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_BLOCK_QUANTIZATION_H_
