#ifndef MUSTER_DATAPLANE_GUARDED_BACKEND_H_
#define MUSTER_DATAPLANE_GUARDED_BACKEND_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane {

// ExceptionGuard wraps a backend that may be a user's. If the backend throws,
// or its Start returns null, the collective fails, so that no layer above has
// to handle that.
class ExceptionGuard : public BackendDecorator {
 public:
  ExceptionGuard(std::unique_ptr<Backend> inner, std::string group_name);

  Status Supports(const Collective& collective) const override;
  std::shared_ptr<Work> Start(const Collective& collective) override;
  std::unique_ptr<Prepared> Prepare(const Collective& collective) override;
  Ticket Enter(const Collective& collective) override;
  Completion Run(const Collective& collective, Prepared* prepared,
                 const Ticket& ticket) override;
  void BeginTogether() override;
  void EndTogether() override;
  void Refused(const Collective& collective, const Status& why) override;
  std::shared_ptr<ParentHandle> Split(const SplitOptions& options) override;
  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override;
  void Abort(Status cause) override;

 private:
  // A failed work with the error that MakeError returns.
  std::shared_ptr<Work> MakeFailed(const Collective& collective,
                                   absl::string_view call,
                                   const std::string& problem) const;
  // The error of `collective` if `call` has thrown or returned null.
  Status MakeError(const Collective& collective, absl::string_view call,
                   const std::string& problem) const;
  // Logs `problem`, the text that `call` has thrown. Ignores an empty text.
  void Note(absl::string_view call, const std::string& problem) const;

  const std::string group_name_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_GUARDED_BACKEND_H_
