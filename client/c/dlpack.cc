#include "muster/dlpack.h"

#include <memory>
#include <utility>

#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/muster.h"

struct muster_dlpack {
  muster::dlpack::Imported imported;
};

namespace muster::c {
namespace {

// Calls the caller's function when no library uses the tensor any more, but not
// if there is no tensor because the export has failed.
struct Owner {
  ~Owner() {
    if (is_exported && release != nullptr) release(owner);
  }

  void (*const release)(void*);
  void* const owner;
  bool is_exported = false;
};

// Calls `make` with the tensor and its owner.
template <typename Make>
auto Export(const muster_tensor* tensor, void (*release)(void*), void* owner,
            Make make) {
  const auto kept = std::shared_ptr<Owner>(new Owner{release, owner});
  auto* const managed = make(ToTensor(tensor, "tensor"), kept);
  kept->is_exported = true;
  return managed;
}

}  // namespace
}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;

// DLPack's types, of which muster.h knows only the names, are laid out as
// those of muster/dlpack.h.
using Managed = muster::dlpack::DLManagedTensor;
using ManagedVersioned = muster::dlpack::DLManagedTensorVersioned;

muster_status muster_from_dlpack(struct DLManagedTensor* managed,
                                 muster_dlpack** imported) {
  return GuardHandle(__func__, imported, "imported", [&] {
    auto* const from = reinterpret_cast<Managed*>(managed);
    auto handle = std::make_unique<muster_dlpack>();
    handle->imported = muster::FromDLPack(&Need(from, "managed"));
    return handle.release();
  });
}

muster_status muster_from_dlpack_versioned(
    struct DLManagedTensorVersioned* managed, int32_t allow_read_only,
    muster_dlpack** imported) {
  return GuardHandle(__func__, imported, "imported", [&] {
    auto* const from = reinterpret_cast<ManagedVersioned*>(managed);
    auto handle = std::make_unique<muster_dlpack>();
    handle->imported = muster::FromDLPack(
        &Need(from, "managed"), {.allow_read_only = allow_read_only != 0});
    return handle.release();
  });
}

muster_status muster_dlpack_tensor(const muster_dlpack* imported,
                                   muster_tensor* tensor) {
  return Guard(__func__, [&] {
    const muster::Tensor& from = Need(imported, "imported").imported.tensor();
    Need(tensor, "tensor") = muster::c::FromTensor(from);
  });
}

void muster_dlpack_release(muster_dlpack* imported) { delete imported; }

muster_status muster_to_dlpack(const muster_tensor* tensor,
                               void (*release)(void* owner), void* owner,
                               struct DLManagedTensor** managed) {
  return GuardHandle(__func__, managed, "managed", [&] {
    return reinterpret_cast<struct DLManagedTensor*>(muster::c::Export(
        tensor, release, owner, [](const auto& from, auto kept) {
          return muster::ToDLPack(from, std::move(kept));
        }));
  });
}

muster_status muster_to_dlpack_versioned(
    const muster_tensor* tensor, void (*release)(void* owner), void* owner,
    struct DLManagedTensorVersioned** managed) {
  return GuardHandle(__func__, managed, "managed", [&] {
    return reinterpret_cast<struct DLManagedTensorVersioned*>(muster::c::Export(
        tensor, release, owner, [](const auto& from, auto kept) {
          return muster::ToDLPackVersioned(from, std::move(kept));
        }));
  });
}
