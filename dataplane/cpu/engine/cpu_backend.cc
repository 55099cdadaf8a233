#include "dataplane/cpu/engine/cpu_backend.h"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/collectives/selection.h"
#include "dataplane/cpu/engine/engine.h"
#include "dataplane/cpu/engine/multi_interface_backend.h"
#include "dataplane/cpu/transport/tcp_transport.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/gloo/gloo_transport.h"
#include "dataplane/reduction.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::dataplane {
namespace cpu {
namespace {

class EngineBackend : public Backend {
 public:
  EngineBackend(absl::string_view name, std::shared_ptr<Engine> engine)
      : name_(name), engine_(std::move(engine)) {}
  // Stop it: others may hold the engine, too.
  ~EngineBackend() override { engine_->Stop(); }

  std::string name() const override { return std::string(name_); }

  std::span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCpu};
    return kDevices;
  }

  Status Supports(const Collective& collective) const override {
    if (!IsPointToPoint(collective.kind) &&
        FindFunction(collective.kind) == nullptr) {
      return NoSuchKind(name(), collective.kind);
    }
    // All tensors of a collective are on one device.
    const Tensor* const tensor = collective.first_tensor();
    if (tensor != nullptr && tensor->device().type != DeviceType::kCpu) {
      return UnimplementedError(absl::StrCat("the ", name_,
                                             " backend takes CPU tensors, got ",
                                             tensor->Describe()));
    }
    if (IsUserReduction(collective)) return OkStatus();
    return CheckReducible(name_, collective);
  }

  // Up to this size recursive doubling is used (all_reduce.cc,
  // reduce_scatter.cc).
  size_t fusable_bytes() const override { return kNotePayloadBytesMax; }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    return engine_->Start(collective);
  }
  std::unique_ptr<Prepared> Prepare(const Collective& collective) override {
    return engine_->Prepare(collective);
  }
  Ticket Enter(const Collective& collective) override {
    return engine_->Enter(collective);
  }
  Completion Run(const Collective& collective, Prepared* prepared,
                 const Ticket& ticket) override {
    return engine_->Run(collective, prepared, ticket);
  }

  LastRun last_run(DeviceType) const override {
    const Transport& transport = engine_->transport();
    return {
        .backend = std::string(name_),
        .algorithm = transport.world_size() == 1 ? "" : transport.algorithm()};
  }

  void Abort(Status cause) override { engine_->Abort(cause); }

 private:
  const absl::string_view name_;
  const std::shared_ptr<Engine> engine_;
};

// Checks c10d's variable, with c10d's values. It has no effect: ranks always
// connect when the group forms, so that an unreachable rank is named then.
Status CheckLazyInit() {
  constexpr char kLazyInit[] = "TORCH_GLOO_LAZY_INIT";
  const char* const variable = std::getenv(kLazyInit);
  const std::string value =
      absl::AsciiStrToLower(variable == nullptr ? "" : variable);
  if (value.empty()) return OkStatus();
  for (const char* const no : {"0", "n", "no", "f", "false"}) {
    if (value == no) return OkStatus();
  }
  for (const char* const yes : {"1", "y", "yes", "t", "true"}) {
    if (value != yes) continue;
    LOG_FIRST_N(WARNING, 1)
        << kLazyInit << "=" << variable
        << " has no effect: the ranks of a group connect when it forms, so "
           "that one that cannot be reached is named then; the extra "
           "connections of sends and receives are made at their first use in "
           "any case";
    return OkStatus();
  }
  return InvalidArgumentError(
      absl::StrCat("environment variable ", kLazyInit,
                   " must be 0 or 1 (or n, no, f, false, y, yes, t, true) but "
                   "was \"",
                   variable, "\""));
}

Status CheckEnvironment() {
  const char* const memory = std::getenv("MUSTER_GLOO_PEER_MEMORY");
  const absl::string_view value = memory == nullptr ? "" : memory;
  if (!value.empty() && value != "0" && value != "1") {
    return InvalidArgumentError(
        absl::StrCat("environment variable MUSTER_GLOO_PEER_MEMORY must be 0 "
                     "or 1 but was ",
                     base::Quote(value)));
  }
  if (Status bad = CheckLazyInit(); !bad.ok()) return bad;
  return FindForcedAlgorithm(Medium::kConnections).status();
}

// Connects the transport that the options or, if they name none, the
// environment names.
StatusOr<std::unique_ptr<Transport>> Connect(absl::string_view backend,
                                             const BackendOptions& options) {
  constexpr char kTransport[] = "MUSTER_CPU_TRANSPORT";
  const char* const variable = std::getenv(kTransport);
  absl::string_view name = variable == nullptr ? "" : variable;
  if (!options.cpu_transport.empty()) name = options.cpu_transport;
  if (!Tuning::Loaded().ok()) return Tuning::Loaded().status();
  const uint64_t tuning = Tuning::Loaded()->digest();
  if (name.empty() || name == "tcp") {
    return ConnectTcp(backend, options, {.tuning = tuning});
  }
  if (name == "gloo") return ConnectGloo(backend, options, tuning);
  return InvalidArgumentError(absl::StrCat("environment variable ", kTransport,
                                           " must be tcp or gloo but was ",
                                           base::Quote(name)));
}

// Waits until all ranks are connected. A rank is connected when its peers have
// opened their sockets; no rank may leave before all have come that far.
Status Meet(const BackendOptions& options, Engine& engine) {
  Collective meeting;
  meeting.kind = CollectiveKind::kBarrier;
  meeting.step = Step::kFormGroup;
  meeting.deadline = options.deadline;
  meeting.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      options.deadline - Clock::now());
  return engine.RunStep(meeting);
}

}  // namespace

StatusOr<std::shared_ptr<Engine>> JoinGroup(absl::string_view name,
                                            const BackendOptions& options) {
  if (Status bad = CheckEnvironment(); !bad.ok()) return bad;
  StatusOr<std::unique_ptr<Transport>> transport = Connect(name, options);
  if (!transport.ok()) return transport.status();
  auto engine =
      std::make_shared<Engine>(options.group_name, *std::move(transport));
  if (options.world_size == 1) return engine;
  const InterruptedAbort interrupted(options, *engine);
  Status met = Meet(options, *engine);
  if (!met.ok()) return met;
  return engine;
}

// If a member has left in peace, it may have sent everything that was needed.
// So the engine does not abort then; it detects a missing rank itself.
InterruptedAbort::InterruptedAbort(const BackendOptions& options,
                                   Engine& engine)
    : callback_(options.interruption.token(), [&] {
        const Status why = options.interruption.status();
        if (!IsCancelled(why)) engine.Abort(why);
      }) {}

std::unique_ptr<Backend> MakeBackend(absl::string_view name,
                                     std::shared_ptr<Engine> engine) {
  return std::make_unique<EngineBackend>(name, std::move(engine));
}

}  // namespace cpu

StatusOr<std::unique_ptr<Backend>> CreateGlooBackend(
    const BackendOptions& options) {
  return cpu::CreateMultiInterfaceBackend(
      options,
      [](const BackendOptions& single)
          -> StatusOr<cpu::SingleInterfaceBackend> {
        auto engine = cpu::JoinGroup("gloo", single);
        if (!engine.ok()) return engine.status();
        return cpu::SingleInterfaceBackend{
            .backend = cpu::MakeBackend("gloo", *std::move(engine)),
            .is_on_one_host = single.world_size == 1};
      });
}

}  // namespace muster::dataplane
