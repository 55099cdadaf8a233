// The base class of the tests' transports.

#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_FAKE_TRANSPORT_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_FAKE_TRANSPORT_H_

#include <cstddef>
#include <memory>

#include "dataplane/cpu/transport/transport.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// A transport without a network and without streams. Tests implement what small
// collectives need.
class FakeTransport : public Transport {
 public:
  using Transport::Transport;

  std::unique_ptr<Buffer> CreateBuffer(void*, size_t) override {
    return nullptr;
  }
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_FAKE_TRANSPORT_H_
