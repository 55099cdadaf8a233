#include "dataplane/cpu/transport/subset_transport.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "glog/logging.h"

namespace muster::dataplane::cpu {
namespace {

int FindNumber(const std::vector<int>& ranks, int rank) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank);
  CHECK(place != ranks.end()) << "rank " << rank << " is in no part";
  return static_cast<int>(place - ranks.begin());
}

// Wraps a buffer of the whole transport.
class PartBuffer : public Buffer {
 public:
  PartBuffer(const std::vector<int>& ranks, std::unique_ptr<Buffer> whole)
      : ranks_(ranks), whole_(std::move(whole)) {}

  Status Receive(int peer, size_t offset, size_t bytes) override {
    return whole_->Receive(ranks_[peer], offset, bytes);
  }
  Status Send(int peer, size_t offset, size_t bytes) override {
    return whole_->Send(ranks_[peer], offset, bytes);
  }
  Status WaitReceive(int peer) override {
    return whole_->WaitReceive(ranks_[peer]);
  }
  Status WaitSend(int peer) override { return whole_->WaitSend(ranks_[peer]); }

 private:
  const std::vector<int>& ranks_;
  const std::unique_ptr<Buffer> whole_;
};

}  // namespace

SubsetTransport::SubsetTransport(Transport& whole, std::vector<int> ranks)
    : Transport(FindNumber(ranks, whole.rank()),
                static_cast<int>(ranks.size())),
      whole_(whole),
      ranks_(std::move(ranks)) {}

std::unique_ptr<Buffer> SubsetTransport::CreateBuffer(void* data,
                                                      size_t bytes) {
  return std::make_unique<PartBuffer>(ranks_, whole_.CreateBuffer(data, bytes));
}

}  // namespace muster::dataplane::cpu
