#include "muster/dataplane/backend.h"

#include <utility>

namespace muster::dataplane {

Completion Backend::Run(const Collective&, Prepared*, const Ticket& ticket) {
  Status status = ticket.work->Wait();
  return {std::move(status), Clock::now()};
}

StatusOr<std::shared_ptr<SymmetricMemory>> Backend::AllocateSymmetric(
    const SymmetricOptions& options) {
  return UnimplementedError("the " + name() +
                            " backend has no symmetric memory");
}

}  // namespace muster::dataplane
