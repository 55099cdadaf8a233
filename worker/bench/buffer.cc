#include "worker/bench/buffer.h"

#include <algorithm>

namespace muster::worker::bench {

Buffer::Buffer(Device device, size_t bytes)
    : device_(device),
      memory_(device.type == DeviceType::kCuda
                  ? DeviceMemory(device.index, bytes)
                  : DeviceMemory()),
      host_(bytes) {
  memory_.Clear();
}

std::byte* Buffer::data() {
  return device_.type == DeviceType::kCuda ? memory_.data() : host_.data();
}

void Buffer::Give() {
  if (device_.type == DeviceType::kCuda) {
    memory_.Write(host_.data(), host_.size());
  }
}

void Buffer::Take() {
  if (device_.type == DeviceType::kCuda) {
    memory_.Read(host_.data(), host_.size());
  }
}

void Buffer::Clear() {
  std::fill(host_.begin(), host_.end(), std::byte{0});
  if (device_.type == DeviceType::kCuda) memory_.Clear();
}

}  // namespace muster::worker::bench
