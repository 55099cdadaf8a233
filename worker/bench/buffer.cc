#include "worker/bench/buffer.h"

#include <algorithm>
#include <cstdint>

namespace muster::worker::bench {

Buffer::Buffer(Device device, size_t bytes, bool is_symmetric)
    : device_(device), bytes_(bytes) {
  const bool on_device = device.type == DeviceType::kCuda;
  if (is_symmetric && bytes > 0) {
    symmetric_ = AllocateSymmetric(/*group=*/nullptr, DataType::kUint8,
                                   {static_cast<int64_t>(bytes)},
                                   {.device = device.type});
  }
  void* const data = symmetric_.tensor().data();
  if (on_device) {
    memory_ = data == nullptr ? DeviceMemory(device.index, bytes)
                              : DeviceMemory::Of(device.index, data, bytes);
  }
  if (on_device || data == nullptr) {
    ordinary_.resize(bytes);
    host_ = ordinary_.data();
  } else {
    host_ = static_cast<std::byte*>(data);
  }
  Clear();
}

std::byte* Buffer::data() {
  return device_.type == DeviceType::kCuda ? memory_.data() : host_;
}

void Buffer::Give() {
  if (device_.type == DeviceType::kCuda) memory_.Write(host_, bytes_);
}

void Buffer::Take() {
  if (device_.type == DeviceType::kCuda) memory_.Read(host_, bytes_);
}

void Buffer::Clear() {
  std::fill_n(host_, bytes_, std::byte{0});
  if (device_.type == DeviceType::kCuda) memory_.Clear();
}

}  // namespace muster::worker::bench
