// A ring all-reduce by hand, compared with the library's.
//
//   muster-run --standalone --nproc-per-node=4 -- ring_all_reduce
//
// The array is cut into as many chunks as there are ranks. In the first half
// each rank sends a chunk to its right neighbour and adds the one that it gets
// from the left; after world_size - 1 steps every rank has one chunk with the
// sum. In the second half the sums travel around the ring. Every rank sends
// less than two arrays, 2 (n - 1) / n, for any n: that is why rings are used
// for large arrays.
//
// Messages go through the job's store here, so this shows the algorithm, not
// its speed: AllReduce does the same over direct connections.

#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/muster.hpp"

namespace {

constexpr size_t kElements = 1000;

// Messages between neighbours of a ring.
class Ring {
 public:
  Ring(int rank, int world_size)
      : rank_(rank),
        world_size_(world_size),
        store_("ring", muster::GetDefaultStore()) {}

  void SendRight(int step, std::span<const double> numbers) {
    store_.Set(Key(step, rank_),
               std::string_view(reinterpret_cast<const char*>(numbers.data()),
                                numbers.size_bytes()));
  }

  std::vector<double> ReceiveLeft(int step) {
    const std::string key = Key(step, (rank_ + world_size_ - 1) % world_size_);
    const std::string bytes = store_.Get(key);  // waits for the neighbour
    store_.DeleteKey(key);
    std::vector<double> numbers(bytes.size() / sizeof(double));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }

 private:
  static std::string Key(int step, int from) {
    return std::to_string(step) + "/" + std::to_string(from);
  }

  const int rank_;
  const int world_size_;
  muster::PrefixStore store_;
};

void RingAllReduce(std::vector<double>& numbers, int rank, int world_size) {
  Ring ring(rank, world_size);
  // Chunk c is [c * size / n, (c + 1) * size / n): the sizes differ by one.
  const auto chunk = [&](int index) {
    const size_t c = static_cast<size_t>((index + world_size) % world_size);
    const size_t n = static_cast<size_t>(world_size);
    const size_t begin = c * numbers.size() / n;
    return std::span<double>(numbers).subspan(
        begin, (c + 1) * numbers.size() / n - begin);
  };
  int step = 0;
  for (int i = 0; i < world_size - 1; ++i, ++step) {
    ring.SendRight(step, chunk(rank - i));
    const std::vector<double> left = ring.ReceiveLeft(step);
    const std::span<double> mine = chunk(rank - i - 1);
    for (size_t k = 0; k < mine.size(); ++k) mine[k] += left[k];
  }
  for (int i = 0; i < world_size - 1; ++i, ++step) {
    ring.SendRight(step, chunk(rank + 1 - i));
    const std::vector<double> left = ring.ReceiveLeft(step);
    const std::span<double> mine = chunk(rank - i);
    std::memcpy(mine.data(), left.data(), mine.size_bytes());
  }
}

int Run() {
  muster::InitProcessGroup();
  const int rank = muster::GetRank();
  const int world_size = muster::GetWorldSize();
  std::vector<double> by_hand(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    // Whole numbers, so that the order of the additions does not matter.
    by_hand[i] = static_cast<double>(i * static_cast<size_t>(rank + 1));
  }
  std::vector<double> by_library = by_hand;

  RingAllReduce(by_hand, rank, world_size);
  muster::AllReduce(muster::Tensor(by_library));
  const bool same = by_hand == by_library;
  std::printf("rank %d: element %zu is %g, %s AllReduce\n", rank, kElements - 1,
              by_hand.back(), same ? "as with" : "NOT as with");
  muster::DestroyProcessGroup();
  return same ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return Run();
  } catch (const muster::DistError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
