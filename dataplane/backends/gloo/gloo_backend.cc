#include "dataplane/backends/gloo/gloo_backend.h"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/gloo/engine.h"
#include "dataplane/backends/gloo/exchange.h"
#include "dataplane/backends/gloo/mesh.h"
#include "dataplane/backends/gloo/selection.h"

namespace muster::dataplane {
namespace {

class GlooBackend : public Backend {
 public:
  explicit GlooBackend(std::shared_ptr<gloo_internal::Engine> engine)
      : engine_(std::move(engine)) {}
  ~GlooBackend() override { engine_->Stop(); }

  absl::string_view name() const override { return "gloo"; }

  absl::Span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCpu};
    return kDevices;
  }

  absl::Status Supports(const Collective& collective) const override {
    // All of a collective's tensors are on one device.
    for (const auto* list :
         {&collective.tensors, &collective.inputs, &collective.outputs}) {
      if (!list->empty() && list->front().device().type != DeviceType::kCpu) {
        return absl::UnimplementedError(
            absl::StrCat("the gloo backend takes CPU tensors, got ",
                         list->front().Describe()));
      }
    }
    return absl::OkStatus();
  }

  // Recursive doubling: all_reduce.cc, reduce_scatter.cc.
  size_t fusable_bytes() const override {
    return gloo_internal::kNotePayloadBytesMax;
  }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    return engine_->Start(collective);
  }

  void Abort(absl::Status cause) override { engine_->Abort(cause); }

 private:
  const std::shared_ptr<gloo_internal::Engine> engine_;
};

absl::Status CheckEnvironment() {
  const char* const memory = std::getenv("MUSTER_GLOO_PEER_MEMORY");
  const absl::string_view value = memory == nullptr ? "" : memory;
  if (!value.empty() && value != "0" && value != "1") {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable MUSTER_GLOO_PEER_MEMORY must be 0 "
                     "or 1 but was \"",
                     value, "\""));
  }
  const char* const algorithm = std::getenv("MUSTER_GLOO_ALGORITHM");
  return gloo_internal::CheckForced(algorithm == nullptr ? "" : algorithm);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateGlooBackend(
    const BackendOptions& options) {
  if (absl::Status bad = CheckEnvironment(); !bad.ok()) return bad;
  absl::StatusOr<std::unique_ptr<gloo_internal::Mesh>> mesh =
      gloo_internal::Mesh::Connect(options);
  if (!mesh.ok()) return mesh.status();
  auto backend =
      std::make_unique<GlooBackend>(std::make_shared<gloo_internal::Engine>(
          options.group_name, *std::move(mesh)));
  if (options.world_size == 1) return backend;
  // A rank is connected when its peers have opened their sockets. Nobody may
  // leave before everybody has come that far.
  Collective opening;
  opening.kind = CollectiveKind::kBarrier;
  opening.deadline = options.deadline;
  opening.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      options.deadline - Clock::now());
  const absl::Status opened = backend->Start(opening)->Wait(Instant::max());
  if (!opened.ok()) return opened;
  return backend;
}

}  // namespace muster::dataplane
