// Helpers for tests of symmetric memory: parts of it as float32 tensors.

#ifndef MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_TESTING_H_
#define MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_TESTING_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "dataplane/communicator.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane {

using Memory = std::shared_ptr<SymmetricMemory>;

inline StatusOr<Memory> Allocate(Communicator& communicator, size_t bytes) {
  return communicator.AllocateSymmetric(
      {.bytes = bytes,
       .device = DeviceType::kCpu,
       .deadline = Clock::now() + std::chrono::seconds(60)});
}

// `count` float32 elements from element `first` on.
inline Tensor Part(const Memory& memory, size_t first, size_t count) {
  return Tensor(static_cast<float*>(memory->data()) + first, DataType::kFloat32,
                {static_cast<int64_t>(count)});
}

inline absl::Span<float> Values(const Tensor& tensor) {
  return {static_cast<float*>(tensor.data()),
          static_cast<size_t>(tensor.element_count())};
}

inline void Fill(const Tensor& tensor, float value) {
  for (float& one : Values(tensor)) one = value;
}

inline bool AllAre(absl::Span<const float> values, float value) {
  return std::all_of(values.begin(), values.end(),
                     [value](float one) { return one == value; });
}

inline Status Do(Communicator& communicator, const Collective& collective) {
  return communicator.Start(collective)->Wait();
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_TESTING_H_
