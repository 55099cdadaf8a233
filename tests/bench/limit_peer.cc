// A bare all_reduce among processes of one host, as a peer of muster-bench
// (worker/bench/peer.h). It shows the speed without failure handling: the
// tensors are in shared memory, each process adds up its part of all tensors
// and writes the sum to all, and there are two flags. float32 sums only. If a
// process dies, the others wait for ever.
//
//   muster-bench all_reduce --nproc=2 --backend=shm --memory=symmetric
//       --peer=bin/limit_peer

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "tests/bench/peer_request.h"

namespace {

using muster::tests::bench::PeerRequest;

// The size of one process's tensor.
constexpr size_t kTensorBytes = size_t{64} << 20;
constexpr int kRanksMax = 64;

struct alignas(64) Flag {
  std::atomic<uint64_t> count;
};

int GetNumber(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? -1 : std::atoi(value);
}

[[noreturn]] void Fail(const std::string& why) {
  std::cout << "limit_peer: " << why << std::endl;
  std::exit(1);
}

// Adds up `count` elements of the tensors of all `size` processes, from one
// index on, and writes the sum to all of them. Works in pieces that fit into
// the L1 cache.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void SumEverywhere(float* const* tensors, int size, size_t count) {
  constexpr size_t kBlock = 1024;
  std::array<float, kBlock> sum;
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t block = std::min(kBlock, count - first);
    const float* const a = tensors[0] + first;
    const float* const b = tensors[1] + first;
    for (size_t i = 0; i < block; ++i) sum[i] = a[i] + b[i];
    for (int rank = 2; rank < size; ++rank) {
      const float* const more = tensors[rank] + first;
      for (size_t i = 0; i < block; ++i) sum[i] += more[i];
    }
    for (int rank = 0; rank < size; ++rank) {
      std::copy_n(sum.data(), block, tensors[rank] + first);
    }
  }
}

class Limit {
 public:
  Limit(int rank, int size)
      : rank_(rank),
        size_(size),
        gives_way_(std::thread::hardware_concurrency() <
                   static_cast<unsigned>(size)) {
    const size_t flags = sizeof(Flag) * kRanksMax;
    const size_t bytes = flags + kTensorBytes * size;
    // The folder belongs to this run, so the name is unique.
    const std::string folder = std::getenv("MUSTER_BENCH_FOLDER");
    const std::string name =
        "/muster-limit-" + folder.substr(folder.rfind('/') + 1);
    const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
      Fail("no shared memory of " + std::to_string(bytes) + " bytes");
    }
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) Fail("shared memory cannot be mapped");
    flags_ = static_cast<Flag*>(memory);
    auto* const first =
        reinterpret_cast<float*>(static_cast<std::byte*>(memory) + flags);
    for (int peer = 0; peer < size; ++peer) {
      tensors_[peer] = first + peer * (kTensorBytes / sizeof(float));
    }
    // All processes have opened the memory.
    Meet();
    shm_unlink(name.c_str());
  }

  void AllReduce(size_t count) {
    Meet();
    const size_t part = (count + size_ - 1) / size_;
    const size_t begin = std::min(count, part * rank_);
    std::array<float*, kRanksMax> parts;
    for (int peer = 0; peer < size_; ++peer) {
      parts[peer] = tensors_[peer] + begin;
    }
    SumEverywhere(parts.data(), size_, std::min(part, count - begin));
    Meet();
  }

  // Whether a call gives the correct result. Leaves zeros behind.
  bool Verify(size_t count) {
    std::fill_n(tensors_[rank_], count, static_cast<float>(rank_ + 1));
    AllReduce(count);
    const auto sum = static_cast<float>(size_ * (size_ + 1) / 2);
    const bool right =
        std::all_of(tensors_[rank_], tensors_[rank_] + count,
                    [sum](float element) { return element == sum; });
    // Others may still be reading.
    Meet();
    std::fill_n(tensors_[rank_], count, 0.0f);
    Meet();
    return right;
  }

 private:
  void Meet() {
    flags_[rank_].count.store(++meetings_, std::memory_order_release);
    for (int peer = 0; peer < size_; ++peer) {
      while (flags_[peer].count.load(std::memory_order_acquire) < meetings_) {
        if (gives_way_) {
          sched_yield();
        } else {
#if defined(__x86_64__)
          __builtin_ia32_pause();
#endif
        }
      }
    }
  }

  const int rank_;
  const int size_;
  const bool gives_way_;
  Flag* flags_ = nullptr;
  std::array<float*, kRanksMax> tensors_ = {};
  uint64_t meetings_ = 0;
};

}  // namespace

int main() {
  const int rank = GetNumber("RANK");
  const int size = GetNumber("WORLD_SIZE");
  if (rank < 0 || size < 2 || size > kRanksMax || rank >= size ||
      std::getenv("MUSTER_BENCH_FOLDER") == nullptr) {
    Fail("muster-bench starts it, with 2 to 64 ranks");
  }
  std::cout << "ready limit" << std::endl;
  Limit limit(rank, size);
  std::string verified;
  muster::tests::bench::ServeRequests(
      std::cin, std::cout, [&](const PeerRequest& request) -> std::string {
        if (request.operation != "all_reduce" ||
            request.data_type != "float32" || request.reduce_op != "sum" ||
            request.count > kTensorBytes / sizeof(float)) {
          return "none";
        }
        if (verified != request.Key()) {
          if (!limit.Verify(request.count)) return "wrong result";
          verified = request.Key();
        }
        return muster::tests::bench::TimeCalls(
            [&] { limit.AllReduce(request.count); }, request.calls);
      });
  return 0;
}
