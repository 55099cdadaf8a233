// Defines a backend in a shared library, which a program loads at run time with
// LoadBackend:
//
//   class StoreBackend : public muster::dataplane::Backend { ... };
//
//   StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions&);
//
//   MUSTER_BACKEND_PLUGIN("store", Create, muster::dataplane::DeviceType::kCpu)
//
// C++ has no stable binary interface: build library and program with the same
// muster and standard library. LoadBackend checks this as far as it can.

#ifndef MUSTER_DATAPLANE_PLUGIN_H_
#define MUSTER_DATAPLANE_PLUGIN_H_

#include <cstddef>
#include <memory>
#include <string>

#include "muster/base/export.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// The properties of the binary interface that must be equal in program and
// library.
struct PluginAbi {
  // Incremented when the interface changes its meaning without changing a size.
  int interface = 11;
  int compiler = __GXX_ABI_VERSION;
  size_t collective_bytes = sizeof(Collective);
  size_t options_bytes = sizeof(BackendOptions);
  size_t work_bytes = sizeof(PromisedWork);

  friend bool operator==(const PluginAbi&, const PluginAbi&) = default;

  std::string ToString() const {
    return "interface " + std::to_string(interface) + " (compiler ABI " +
           std::to_string(compiler) + ", sizes " +
           std::to_string(collective_bytes) + " " +
           std::to_string(options_bytes) + " " + std::to_string(work_bytes) +
           ")";
  }
};

struct BackendPlugin {
  PluginAbi abi;
  const char* name;
  const DeviceType* devices;
  size_t device_count;
  StatusOr<std::unique_ptr<Backend>> (*create)(const BackendOptions& options);
};

// The name of the function that a library exports.
inline constexpr char kBackendPluginSymbol[] = "muster_backend_plugin";

}  // namespace dataplane
}  // namespace muster

// Defines the exported function. The arguments are the backend's name, its
// factory function, and the kinds of device whose tensors it takes.
#define MUSTER_BACKEND_PLUGIN(backend_name, create_function, ...)   \
  extern "C" __attribute__((visibility("default")))                 \
  const ::muster::dataplane::BackendPlugin*                         \
  muster_backend_plugin() {                                         \
    static constexpr ::muster::dataplane::DeviceType kDevices[] = { \
        __VA_ARGS__};                                               \
    static const ::muster::dataplane::BackendPlugin plugin = {      \
        {},                                                         \
        backend_name,                                               \
        kDevices,                                                   \
        sizeof(kDevices) / sizeof(kDevices[0]),                     \
        create_function};                                           \
    return &plugin;                                                 \
  }

#endif  // MUSTER_DATAPLANE_PLUGIN_H_
