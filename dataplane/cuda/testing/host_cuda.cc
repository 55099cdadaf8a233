#include "dataplane/cuda/testing/host_cuda.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::cuda::testing {
namespace {

constexpr Error kInvalidValue = 1;
constexpr Error kMemoryAllocation = 2;
constexpr Error kInvalidDevice = 101;
constexpr Error kInvalidResourceHandle = 400;
constexpr Error kStreamCaptureUnsupported = 900;
constexpr CaptureStatus kCaptureActive = 1;

// Runs its tasks one after the other, on its own thread.
class HostStream {
 public:
  HostStream() : thread_([this] { Run(); }) {}
  // Waits for all tasks.
  ~HostStream() {
    Give(nullptr);
    thread_.join();
  }

  // Null ends the thread.
  void Give(std::function<void()> work) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
    ++given_;
    changed_.NotifyAll();
  }

  void Await() {
    MutexLock lock(mutex_);
    const uint64_t all = given_;
    while (done_ < all) changed_.Wait(mutex_);
  }

 private:
  void Run() {
    for (;;) {
      std::function<void()> work;
      {
        MutexLock lock(mutex_);
        while (queue_.empty()) changed_.Wait(mutex_);
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (work == nullptr) return;
      work();
      MutexLock lock(mutex_);
      ++done_;
      changed_.NotifyAll();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ MUSTER_GUARDED_BY(mutex_);
  uint64_t given_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t done_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

// The position in a stream that was recorded last.
class HostEvent {
 public:
  uint64_t Record() {
    MutexLock lock(mutex_);
    return ++recorded_;
  }
  void Reach(uint64_t place) {
    MutexLock lock(mutex_);
    reached_ = place;
    changed_.NotifyAll();
  }
  uint64_t recorded() {
    MutexLock lock(mutex_);
    return recorded_;
  }
  bool HasReached(uint64_t place) {
    MutexLock lock(mutex_);
    return reached_ >= place;
  }
  void Await(uint64_t place) {
    MutexLock lock(mutex_);
    while (reached_ < place) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t recorded_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t reached_ MUSTER_GUARDED_BY(mutex_) = 0;
};

struct World {
  Mutex mutex;
  int devices MUSTER_GUARDED_BY(mutex) = 0;
  std::map<Stream, std::shared_ptr<HostStream>> streams
      MUSTER_GUARDED_BY(mutex);
  // The default streams, by device.
  std::map<int, std::shared_ptr<HostStream>> defaults MUSTER_GUARDED_BY(mutex);
  std::map<Event, std::shared_ptr<HostEvent>> events MUSTER_GUARDED_BY(mutex);
  std::map<const char*, size_t> device_memory MUSTER_GUARDED_BY(mutex);
  std::set<const void*> host_memory MUSTER_GUARDED_BY(mutex);
  std::set<int> contexts MUSTER_GUARDED_BY(mutex);
  std::set<Stream> captured MUSTER_GUARDED_BY(mutex);
  std::vector<std::string> misuses MUSTER_GUARDED_BY(mutex);
};

World& GlobalWorld() {
  static World* const world = new World;
  return *world;
}

thread_local int t_device = 0;
thread_local CaptureMode t_capture_mode = kCaptureGlobal;
thread_local Error t_last_error = kSuccess;

Error Misuse(Error error, absl::string_view what) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.misuses.emplace_back(what);
  return error;
}

// Refuses a call that could wait for the device while a stream is captured.
Error Unsafe(absl::string_view what) {
  if (t_capture_mode == kCaptureRelaxed) return kSuccess;
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    if (world.captured.empty()) return kSuccess;
  }
  return Misuse(kStreamCaptureUnsupported,
                absl::StrCat(what, " while a stream is captured"));
}

// Null if the stream does not exist or nothing may be enqueued in it.
std::shared_ptr<HostStream> FindStream(Stream stream) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  if (world.captured.contains(stream)) return nullptr;
  if (stream == nullptr) {
    std::shared_ptr<HostStream>& made = world.defaults[t_device];
    if (made == nullptr) made = std::make_shared<HostStream>();
    return made;
  }
  const auto found = world.streams.find(stream);
  return found == world.streams.end() ? nullptr : found->second;
}

std::shared_ptr<HostEvent> FindEvent(Event event) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  const auto found = world.events.find(event);
  return found == world.events.end() ? nullptr : found->second;
}

int DeviceCount() {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  return world.devices;
}

Error GetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

const char* GetErrorName(Error error) {
  switch (error) {
    case kSuccess:
      return "cudaSuccess";
    case kNotReady:
      return "cudaErrorNotReady";
    case kInvalidValue:
      return "cudaErrorInvalidValue";
    case kMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case kInvalidDevice:
      return "cudaErrorInvalidDevice";
    case kInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    default:
      return "cudaErrorUnknown";
  }
}

Error GetLastError() { return std::exchange(t_last_error, kSuccess); }

Error GetDeviceCount(int* count) {
  *count = DeviceCount();
  return kSuccess;
}

Error GetDevice(int* device) {
  *device = t_device;
  return kSuccess;
}

Error SetDevice(int device) {
  if (device < 0 || device >= DeviceCount()) {
    return Misuse(kInvalidDevice, absl::StrCat("SetDevice of ", device));
  }
  t_device = device;
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.contexts.insert(device);
  return kSuccess;
}

Error DeviceGetAttribute(int* value, DeviceAttribute attribute, int device) {
  if (attribute != kComputeCapabilityMajor || device < 0 ||
      device >= DeviceCount()) {
    return Misuse(kInvalidValue,
                  absl::StrCat("DeviceGetAttribute of ", device));
  }
  *value = 9;
  return kSuccess;
}

Error DeviceGetPCIBusId(char* id, int bytes, int device) {
  std::snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", device);
  return kSuccess;
}

Error DeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

Error StreamCreateWithPriority(Stream* stream, unsigned, int) {
  auto made = std::make_shared<HostStream>();
  *stream = made.get();
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.streams[*stream] = std::move(made);
  return kSuccess;
}

Error StreamDestroy(Stream stream) {
  std::shared_ptr<HostStream> last;
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    const auto found = world.streams.find(stream);
    if (found != world.streams.end()) {
      last = std::move(found->second);
      world.streams.erase(found);
    }
  }
  if (last == nullptr) {
    return Misuse(kInvalidResourceHandle, "StreamDestroy of no stream");
  }
  return kSuccess;
}

Error StreamSynchronize(Stream stream) {
  const auto known = FindStream(stream);
  if (known == nullptr) {
    return Misuse(kInvalidResourceHandle, "StreamSynchronize of no stream");
  }
  known->Await();
  return kSuccess;
}

Error StreamWaitEvent(Stream stream, Event event, unsigned) {
  const auto known = FindStream(stream);
  const auto awaited = FindEvent(event);
  if (known == nullptr || awaited == nullptr) {
    return Misuse(kInvalidResourceHandle,
                  "StreamWaitEvent of no stream or no event");
  }
  known->Give(
      [awaited, place = awaited->recorded()] { awaited->Await(place); });
  return kSuccess;
}

Error StreamIsCapturing(Stream stream, CaptureStatus* status) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  *status = world.captured.contains(stream) ? kCaptureActive : kCaptureNone;
  return kSuccess;
}

Error ThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  std::swap(*mode, t_capture_mode);
  return kSuccess;
}

Error EventCreateWithFlags(Event* event, unsigned) {
  auto made = std::make_shared<HostEvent>();
  *event = made.get();
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.events[*event] = std::move(made);
  return kSuccess;
}

Error EventDestroy(Event event) {
  World& world = GlobalWorld();
  bool known = false;
  {
    MutexLock lock(world.mutex);
    known = world.events.erase(event) > 0;
  }
  return known ? kSuccess
               : Misuse(kInvalidResourceHandle, "EventDestroy of no event");
}

Error EventRecord(Event event, Stream stream) {
  const auto known = FindStream(stream);
  const auto recorded = FindEvent(event);
  if (known == nullptr || recorded == nullptr) {
    return Misuse(kInvalidResourceHandle,
                  "EventRecord of no event or no stream");
  }
  known->Give(
      [recorded, place = recorded->Record()] { recorded->Reach(place); });
  return kSuccess;
}

Error EventQuery(Event event) {
  if (const Error error = Unsafe("EventQuery"); error != kSuccess) return error;
  const auto known = FindEvent(event);
  if (known == nullptr) {
    return Misuse(kInvalidResourceHandle, "EventQuery of no event");
  }
  if (known->HasReached(known->recorded())) return kSuccess;
  t_last_error = kNotReady;
  return kNotReady;
}

Error EventSynchronize(Event event) {
  const auto known = FindEvent(event);
  if (known == nullptr) {
    return Misuse(kInvalidResourceHandle, "EventSynchronize of no event");
  }
  known->Await(known->recorded());
  return kSuccess;
}

Error Malloc(void** data, size_t bytes) {
  *data = nullptr;
  if (const Error error = Unsafe("Malloc"); error != kSuccess) return error;
  if (bytes == 0) return kSuccess;
  // The alignment that CUDA guarantees.
  constexpr size_t kAlignment = 256;
  *data = std::aligned_alloc(
      kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (*data == nullptr) return kMemoryAllocation;
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.device_memory[static_cast<const char*>(*data)] = bytes;
  return kSuccess;
}

Error Free(void* data) {
  if (data == nullptr) return kSuccess;
  World& world = GlobalWorld();
  bool known = false;
  {
    MutexLock lock(world.mutex);
    known = world.device_memory.erase(static_cast<const char*>(data)) > 0;
  }
  if (!known) return Misuse(kInvalidValue, "Free of no device memory");
  std::free(data);
  return kSuccess;
}

Error HostAlloc(void** data, size_t bytes, unsigned) {
  if (const Error error = Unsafe("HostAlloc"); error != kSuccess) return error;
  *data = std::malloc(bytes);
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.host_memory.insert(*data);
  return kSuccess;
}

Error FreeHost(void* data) {
  if (data == nullptr) return kSuccess;
  World& world = GlobalWorld();
  bool known = false;
  {
    MutexLock lock(world.mutex);
    known = world.host_memory.erase(data) > 0;
  }
  if (!known) return Misuse(kInvalidValue, "FreeHost of no pinned memory");
  std::free(data);
  return kSuccess;
}

Error MemcpyAsync(void* to, const void* from, size_t bytes, MemcpyKind,
                  Stream stream) {
  const auto known = FindStream(stream);
  if (known == nullptr) {
    return Misuse(kInvalidResourceHandle, "MemcpyAsync on no stream");
  }
  known->Give([=] { std::memcpy(to, from, bytes); });
  return kSuccess;
}

Error MemsetAsync(void* data, int value, size_t bytes, Stream stream) {
  const auto known = FindStream(stream);
  if (known == nullptr) {
    return Misuse(kInvalidResourceHandle, "MemsetAsync on no stream");
  }
  known->Give([=] { std::memset(data, value, bytes); });
  return kSuccess;
}

}  // namespace

Api HostCudaApi(int devices) {
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    if (world.devices == 0) world.devices = devices;
  }
  return {.RuntimeGetVersion = &GetVersion,
          .DriverGetVersion = &GetVersion,
          .GetErrorName = &GetErrorName,
          .GetErrorString = &GetErrorName,
          .GetLastError = &GetLastError,
          .GetDeviceCount = &GetDeviceCount,
          .GetDevice = &GetDevice,
          .SetDevice = &SetDevice,
          .DeviceGetPCIBusId = &DeviceGetPCIBusId,
          .DeviceGetAttribute = &DeviceGetAttribute,
          .DeviceGetStreamPriorityRange = &DeviceGetStreamPriorityRange,
          .StreamCreateWithPriority = &StreamCreateWithPriority,
          .StreamDestroy = &StreamDestroy,
          .StreamSynchronize = &StreamSynchronize,
          .StreamWaitEvent = &StreamWaitEvent,
          .StreamIsCapturing = &StreamIsCapturing,
          .ThreadExchangeStreamCaptureMode = &ThreadExchangeStreamCaptureMode,
          .EventCreateWithFlags = &EventCreateWithFlags,
          .EventDestroy = &EventDestroy,
          .EventRecord = &EventRecord,
          .EventQuery = &EventQuery,
          .EventSynchronize = &EventSynchronize,
          .Malloc = &Malloc,
          .Free = &Free,
          .HostAlloc = &HostAlloc,
          .FreeHost = &FreeHost,
          .MemcpyAsync = &MemcpyAsync,
          .MemsetAsync = &MemsetAsync};
}

void Launch(Stream stream, std::function<void()> kernel) {
  const auto known = FindStream(stream);
  if (known == nullptr) {
    Misuse(kInvalidResourceHandle, "a kernel on no stream");
    return;
  }
  known->Give(std::move(kernel));
}

void SynchronizeAll() {
  std::vector<std::shared_ptr<HostStream>> all;
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    for (const auto& [stream, host] : world.streams) all.push_back(host);
    for (const auto& [device, host] : world.defaults) all.push_back(host);
  }
  for (const auto& stream : all) stream->Await();
}

bool IsDeviceMemory(const void* data, size_t bytes) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  const char* const begin = static_cast<const char*>(data);
  auto after = world.device_memory.upper_bound(begin);
  if (after == world.device_memory.begin()) return false;
  --after;
  return begin + bytes <= after->first + after->second;
}

void BeginCapture(Stream stream) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.captured.insert(stream);
}

void EndCapture(Stream stream) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.captured.erase(stream);
}

bool HasContext(int device) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  return world.contexts.contains(device);
}

std::vector<std::string> TakeMisuses() {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  return std::exchange(world.misuses, {});
}

Leaks CountLeaks() {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  return {.streams = world.streams.size(),
          .events = world.events.size(),
          .memory = world.device_memory.size() + world.host_memory.size()};
}

}  // namespace muster::dataplane::cuda::testing
