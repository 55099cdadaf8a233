// The two functions that LightGBM takes for its network of machines
// (LGBM_NetworkInitWithFunctions), by muster's C interface:
//
//   muster_init_process_group(nullptr);
//   LGBM_NetworkInitWithFunctions(world_size, rank,
//                                 reinterpret_cast<void*>(&ReduceScatter),
//                                 reinterpret_cast<void*>(&AllGather));
//
// Sizes and places of blocks are in bytes. A failure is a std::runtime_error,
// which LightGBM turns into an error of its own.

#ifndef MUSTER_TESTS_CONSUMERS_LIGHTGBM_NETWORK_H_
#define MUSTER_TESTS_CONSUMERS_LIGHTGBM_NETWORK_H_

#include <cstdint>
#include <functional>

// Combines `bytes` bytes of elements of `element_bytes` each: to = from op to.
using Reducer = std::function<void(const char* from, char* to,
                                   int element_bytes, int32_t bytes)>;

// `output` becomes the reduction of this rank's block of all ranks' `input`.
void ReduceScatter(char* input, int32_t input_bytes, int element_bytes,
                   const int32_t* block_start, const int32_t* block_bytes,
                   int block_count, char* output, int32_t output_bytes,
                   const Reducer& reducer);

// Every rank gets all ranks' blocks in `output`. This rank's is `input`, which
// may lie anywhere in `output`: LightGBM's own all_reduce gives the result of
// ReduceScatter to AllGather where it is.
void AllGather(char* input, int32_t input_bytes, const int32_t* block_start,
               const int32_t* block_bytes, int block_count, char* output,
               int32_t output_bytes);

#endif  // MUSTER_TESTS_CONSUMERS_LIGHTGBM_NETWORK_H_
