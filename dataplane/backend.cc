#include "dataplane/backend.h"

#include <memory>
#include <utility>

#include "dataplane/releasable_lock.h"

namespace muster::dataplane {

Completion Backend::Run(const Collective& collective, Prepared*,
                        ReleasableLock& order) {
  order.CallLast();
  const std::shared_ptr<Work> work = Start(collective);
  order.Release();
  Status status = work->Wait();
  return {std::move(status), Clock::now()};
}

StatusOr<std::shared_ptr<SymmetricMemory>> Backend::AllocateSymmetric(
    const SymmetricOptions& options) {
  return UnimplementedError("the " + name() +
                            " backend has no symmetric memory");
}

}  // namespace muster::dataplane
