// A RoundBuffer for tests, with all of its ranks in this process.

#ifndef MUSTER_DATAPLANE_CPU_SHM_ROUND_BUFFER_RANKS_H_
#define MUSTER_DATAPLANE_CPU_SHM_ROUND_BUFFER_RANKS_H_

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/transport/spin_wait.h"

namespace muster::dataplane::shm {

// The memory of a RoundBuffer and its ranks. One thread may use each rank.
class Ranks {
 public:
  explicit Ranks(int world_size,
                 const RoundBufferTraits& traits = {.is_crowded = true},
                 cpu::Yielding::Yield yield = sched_yield)
      : memory_(RoundBuffer::BytesFor(world_size, traits.ring_bytes) /
                sizeof(Line)),
        awaited_(world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      awaited_[rank].store(-1);
      round_buffers_.push_back(std::make_unique<RoundBuffer>(
          memory_.data(), rank, world_size, traits,
          [this, rank](int peer) { awaited_[rank].store(peer); },
          /*reserve=*/nullptr, yield));
    }
  }

  RoundBuffer& at(int rank) { return *round_buffers_[rank]; }
  int world_size() const { return static_cast<int>(round_buffers_.size()); }
  // The first words of a rank's memory in RoundBuffer: the number of rings of
  // its bell, and the rank for which it sleeps.
  std::atomic<uint32_t>& rings(int rank) { return GetWords(rank)[0]; }
  std::atomic<uint32_t>& sleeps_for(int rank) { return GetWords(rank)[1]; }
  // Behind the memory of all ranks: the number of sleepers.
  std::atomic<uint32_t>& sleepers() { return GetWords(world_size())[0]; }
  // The rank that `rank` waits for, or -1.
  int awaited_by(int rank) const { return awaited_[rank].load(); }

  void OnEach(const std::function<void(RoundBuffer&)>& body) {
    std::vector<std::thread> threads;
    threads.reserve(round_buffers_.size());
    for (const auto& round_buffer : round_buffers_) {
      threads.emplace_back(
          [&, round_buffer = round_buffer.get()] { body(*round_buffer); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };

  std::atomic<uint32_t>* GetWords(int rank) {
    // The memory of so many ranks is whole pages.
    constexpr size_t kMany = 1024;
    static const size_t place_bytes = (RoundBuffer::SlotsBytesFor(kMany + 1) -
                                       RoundBuffer::SlotsBytesFor(1)) /
                                      kMany;
    return reinterpret_cast<std::atomic<uint32_t>*>(
        reinterpret_cast<std::byte*>(memory_.data()) + rank * place_bytes);
  }

  std::vector<Line> memory_;
  std::vector<std::atomic<int>> awaited_;
  std::vector<std::unique_ptr<RoundBuffer>> round_buffers_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_ROUND_BUFFER_RANKS_H_
