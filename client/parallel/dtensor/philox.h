// Philox4x32-10, a counter-based random number generator: the numbers are a
// function of a counter and a key, and there is no state. After Salmon, Moraes,
// Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (2011).

#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_PHILOX_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_PHILOX_H_

#include <array>
#include <cstdint>

namespace muster::internal {

constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Two numbers of 64 bits, for the elements 2 * pair and 2 * pair + 1.
constexpr std::array<uint64_t, 2> RandomBits(uint64_t seed, uint64_t pair) {
  const auto words = Philox4x32(
      {static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {uint64_t{words[1]} << 32 | words[0],
          uint64_t{words[3]} << 32 | words[2]};
}

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_PHILOX_H_
