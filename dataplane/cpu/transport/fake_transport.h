// What tests make their meshes of.

#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_FAKE_TRANSPORT_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_FAKE_TRANSPORT_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "dataplane/cpu/transport/transport.h"

namespace muster::dataplane::gloo_internal {

// A mesh without a network, and without streams: what small collectives need
// of one is left to tests.
class BareMesh : public Mesh {
 public:
  using Mesh::Mesh;

  std::unique_ptr<Buffer> CreateBuffer(void*, size_t) override {
    return nullptr;
  }
  std::unique_ptr<Buffer> CreateGlooBuffer(void*, size_t) override {
    return nullptr;
  }
  std::unique_ptr<Buffer> CreateQuietBuffer(void*, size_t) override {
    return nullptr;
  }
  absl::Status OpenQuiet(int) override { return absl::OkStatus(); }
};

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_FAKE_TRANSPORT_H_
