// Libraries that cannot be loaded as backends. TEST_PLUGIN chooses the reason.

#include "muster/dataplane/plugin.h"

namespace muster::dataplane {
namespace {

[[maybe_unused]] StatusOr<std::unique_ptr<Backend>> Create(
    const BackendOptions&) {
  return UnimplementedError("this one is for its name");
}

}  // namespace
}  // namespace muster::dataplane

#if TEST_PLUGIN == 1  // its name is taken
MUSTER_BACKEND_PLUGIN("gloo", muster::dataplane::Create,
                      muster::dataplane::DeviceType::kCpu)
#elif TEST_PLUGIN == 2  // built for another version
extern "C" __attribute__((visibility("default")))
const muster::dataplane::BackendPlugin*
muster_backend_plugin() {
  static const muster::dataplane::BackendPlugin plugin = {
      {.interface = 1000}, nullptr, nullptr, 0, nullptr};
  return &plugin;
}
#elif TEST_PLUGIN == 3  // returns null
extern "C" __attribute__((visibility("default")))
const muster::dataplane::BackendPlugin*
muster_backend_plugin() {
  return nullptr;
}
#elif TEST_PLUGIN == 4  // has no name
MUSTER_BACKEND_PLUGIN(nullptr, muster::dataplane::Create,
                      muster::dataplane::DeviceType::kCpu)
#endif
