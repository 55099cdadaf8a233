#include "muster/backends.h"

#include <cstdint>
#include <string>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "muster/dataplane/factory.h"
#include "muster/muster.h"

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::MakeStrings;
using muster::c::Need;
using muster::c::ToString;

muster_status muster_list_backends(muster_strings** names) {
  return GuardHandle(__func__, names, "names",
                     [] { return MakeStrings(muster::dataplane::Backends()); });
}

muster_status muster_is_backend_available(const char* name,
                                          int32_t* available) {
  return Guard(__func__, [&] {
    const bool is_available = muster::IsBackendAvailable(ToString(name));
    Need(available, "available") = is_available ? 1 : 0;
  });
}

muster_status muster_load_backend(const char* path, muster_strings** name) {
  return Guard(__func__, [&] {
    if (name != nullptr) *name = nullptr;
    Need(path, "path");
    std::string loaded = muster::LoadBackend(path);
    if (name != nullptr) *name = MakeStrings(std::move(loaded));
  });
}

muster_status muster_get_default_backend_for_device(const char* device,
                                                    muster_strings** backend) {
  return GuardHandle(__func__, backend, "backend", [&] {
    return MakeStrings(muster::GetDefaultBackendForDevice(ToString(device)));
  });
}
