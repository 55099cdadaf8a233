// Compares the network functions with plain loops over the data of all ranks,
// which each rank makes by itself.

#include <muster/muster.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "network.h"

namespace {

// A bin of a histogram: sums that are exact in any order.
struct Bin {
  double gradient;
  double hessian;
};

// A candidate for the best split of a leaf; no size of a built-in type.
struct Split {
  float gain;
  int32_t feature;
  unsigned char category[5];
} __attribute__((packed));

int32_t Value(int rank, int index) {
  uint32_t x = static_cast<uint32_t>(rank * 7919 + index + 1) * 2654435761u;
  x ^= x >> 15;
  return static_cast<int32_t>(x % 1000);
}

Bin MakeBin(int rank, int index) {
  return {static_cast<double>(Value(rank, index) - 500),
          static_cast<double>(Value(rank, index + 5000))};
}

Split MakeSplit(int rank, int index) {
  Split split = {
      static_cast<float>(Value(rank, index)), rank * 100 + index, {}};
  for (size_t i = 0; i < sizeof(split.category); ++i)
    split.category[i] = static_cast<unsigned char>(rank + index + i);
  return split;
}

void Add(Bin& to, const Bin& from) {
  to.gradient += from.gradient;
  to.hessian += from.hessian;
}

// The greatest gain, of equal ones that of the smaller feature.
void Best(Split& to, const Split& from) {
  if (from.gain > to.gain ||
      (from.gain == to.gain && from.feature < to.feature)) {
    to = from;
  }
}

template <typename T, void (*kCombine)(T&, const T&)>
void Reduce(const char* from, char* to, int element_bytes, int32_t bytes) {
  for (int32_t at = 0; at < bytes; at += element_bytes) {
    T a, b;
    std::memcpy(&a, to + at, sizeof(T));
    std::memcpy(&b, from + at, sizeof(T));
    kCombine(a, b);
    std::memcpy(to + at, &a, sizeof(T));
  }
}

void Expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("wrong: " + what);
}

// Blocks of rank * 3 + 1 elements, but none for rank 1.
template <typename T, void (*kCombine)(T&, const T&)>
void TestBlocks(int rank, int ranks, T (*make)(int, int), const char* what) {
  std::vector<int32_t> start(ranks), bytes(ranks);
  int32_t all = 0;
  for (int r = 0; r < ranks; ++r) {
    start[r] = all;
    bytes[r] = r == 1 ? 0 : (r * 3 + 1) * static_cast<int32_t>(sizeof(T));
    all += bytes[r];
  }
  const int count = all / static_cast<int>(sizeof(T));
  std::vector<T> mine(count), want(count);
  for (int i = 0; i < count; ++i) {
    mine[i] = make(rank, i);
    want[i] = make(0, i);
    for (int r = 1; r < ranks; ++r) kCombine(want[i], make(r, i));
  }
  // As LightGBM's all_reduce: in the output, then all blocks over it.
  std::vector<T> result(count);
  char* const output = reinterpret_cast<char*>(result.data());
  ReduceScatter(reinterpret_cast<char*>(mine.data()), all, sizeof(T),
                start.data(), bytes.data(), ranks, output, all,
                &Reduce<T, kCombine>);
  Expect(std::memcmp(output, reinterpret_cast<char*>(want.data()) + start[rank],
                     bytes[rank]) == 0,
         std::string("reduce_scatter of ") + what);
  AllGather(output, bytes[rank], start.data(), bytes.data(), ranks, output,
            all);
  Expect(std::memcmp(output, want.data(), all) == 0,
         std::string("all_gather of ") + what);
}

void TestErrors(int ranks) {
  std::vector<int32_t> start(ranks, 0), bytes(ranks, 3);
  char data[64] = {}, output[64];
  try {
    ReduceScatter(data, 64, 4, start.data(), bytes.data(), ranks, output, 64,
                  &Reduce<Bin, Add>);
  } catch (const std::runtime_error& error) {
    Expect(std::string(error.what()).find("at 3 bytes, of 4 each") !=
               std::string::npos,
           error.what());
    return;
  }
  Expect(false, "a block that ends within an element");
}

int Run() {
  if (muster_init_process_group(nullptr) != MUSTER_OK)
    throw std::runtime_error(muster_error_message(muster_last_error()));
  int32_t rank = 0, ranks = 0;
  muster_get_rank(nullptr, &rank);
  muster_get_world_size(nullptr, &ranks);
  TestBlocks<Bin, Add>(rank, ranks, &MakeBin, "bins");
  TestBlocks<Split, Best>(rank, ranks, &MakeSplit, "splits");
  TestErrors(ranks);
  std::printf("rank %d: right\n", rank);
  muster_destroy_process_group(nullptr);
  return 0;
}

}  // namespace

int main() {
  try {
    return Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
