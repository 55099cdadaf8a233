#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_SUBSET_TRANSPORT_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_SUBSET_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dataplane/cpu/transport/transport.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// SubsetTransport presents some of the ranks of another transport under numbers
// of their own, so that code for all ranks of a group works for a subset. It
// uses the other transport's connections; both share one order of messages on
// each. Errors use the group's rank numbers.
class SubsetTransport : public Transport {
 public:
  // `ranks[n]` is the rank in `whole` of number n here. It must contain
  // `whole.rank()`. `whole` must live longer.
  SubsetTransport(Transport& whole, std::vector<int> ranks);

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override;
  Status Write(int peer, const void* head, size_t head_bytes, const void* body,
               size_t body_bytes) override {
    return whole_.Write(ranks_[peer], head, head_bytes, body, body_bytes);
  }
  Status Read(int peer, void* data, size_t bytes) override {
    return whole_.Read(ranks_[peer], data, bytes);
  }
  void Abort(const Status& cause) override { whole_.Abort(cause); }
  Status abort_cause() const override { return whole_.abort_cause(); }
  Status CheckPeers() override { return whole_.CheckPeers(); }
  Status Gone(int peer) override { return whole_.Gone(ranks_[peer]); }
  void Close(const Status& goodbye) override { whole_.Close(goodbye); }
  int RankInGroup(int rank) const override {
    return whole_.RankInGroup(ranks_[rank]);
  }

 private:
  Transport& whole_;
  const std::vector<int> ranks_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_SUBSET_TRANSPORT_H_
