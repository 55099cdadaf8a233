#include "muster/dataplane/factory.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/exception_guard.h"
#include "base/text.h"
#include "dataplane/cpu/engine/cpu_backend.h"
#include "dataplane/cpu/shm/shm_backend.h"
#include "dataplane/cuda/api.h"
#include "dataplane/cuda/staging.h"
#include "dataplane/guarded_backend.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/nccl_backend.h"
#include "dataplane/per_device.h"
#include "dataplane/timeout_watchdog.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/dataplane/plugin.h"

namespace muster::dataplane {
namespace {

constexpr size_t kNameBytesMax = 64;

struct Definition {
  std::vector<DeviceType> devices;
  BackendFactory factory;
  // OK, or the reason why a built-in backend cannot be used here. Null: always
  // OK.
  const Status& (*available)() = nullptr;

  // Built in. Such a backend watches its own deadlines.
  bool is_ours = true;

  Status CheckAvailable() const {
    return available == nullptr ? OkStatus() : available();
  }
};

StatusOr<std::unique_ptr<Backend>> CreateNccl(const BackendOptions& options) {
  const auto library = nccl::Load();
  if (!library.ok()) return library.status();
  const auto& runtime = cuda::TheRuntime();
  if (!runtime.ok()) return runtime.status();
  return nccl::CreateNcclBackend({.cuda = runtime->api,
                                  .nccl = library->api,
                                  .nccl_version = library->version},
                                 options);
}

// gloo with connections of its own for CUDA tensors, because collectives on CPU
// and on CUDA tensors are not ordered.
constexpr char kGlooOnCuda[] = "cuda:gloo";

const Status& CudaAvailable() { return cuda::TheRuntime().status(); }

StatusOr<std::unique_ptr<Backend>> CreateGlooOnCuda(
    const BackendOptions& options) {
  auto gloo = CreateGlooBackend(options);
  if (!gloo.ok()) return gloo.status();
  return cuda::CreateStaging(cuda::TheRuntime()->api, *std::move(gloo),
                             {.rank = options.rank,
                              .world_size = options.world_size,
                              .group_name = options.group_name});
}

class Registry {
 public:
  static Registry& Get() {
    static Registry* const registry = new Registry;
    return *registry;
  }

  std::vector<std::string> Names() {
    MutexLock lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, definition] : definitions_) {
      if (definition.CheckAvailable().ok()) names.push_back(name);
    }
    return names;
  }

  bool Add(const std::string& name, Definition definition) {
    definition.is_ours = false;
    MutexLock lock(mutex_);
    return definitions_.emplace(name, std::move(definition)).second;
  }

  StatusOr<Definition> Find(absl::string_view name) {
    MutexLock lock(mutex_);
    const auto found = definitions_.find(std::string(name));
    if (found != definitions_.end()) {
      const Status available = found->second.CheckAvailable();
      if (available.ok()) return found->second;
      return FailedPreconditionError(
          absl::StrCat("backend ", base::Quote(name),
                       " cannot be used here: ", available.message()));
    }
    std::vector<std::string> names;
    for (const auto& [known, definition] : definitions_) {
      if (definition.CheckAvailable().ok()) names.push_back(known);
    }
    return InvalidArgumentError(absl::StrCat(
        "unknown backend ", base::Quote(name), ": this program has ",
        absl::StrJoin(names, ", "),
        "; others are registered (RegisterBackend), or loaded from a library "
        "(LoadBackend, MUSTER_BACKEND_LIBRARIES)"));
  }

 private:
  Registry() {
    definitions_["gloo"] = {{DeviceType::kCpu}, CreateGlooBackend};
    definitions_[kGlooOnCuda] = {
        {DeviceType::kCuda}, CreateGlooOnCuda, &CudaAvailable};
    definitions_["shm"] = {{DeviceType::kCpu}, CreateShmBackend};
    definitions_["nccl"] = {{DeviceType::kCuda}, CreateNccl, &nccl::Available};
  }

  Mutex mutex_;
  std::map<std::string, Definition> definitions_ MUSTER_GUARDED_BY(mutex_);
};

Status Malformed(absl::string_view spec, absl::string_view why) {
  return InvalidArgumentError(absl::StrCat(
      "The custom backend string argument is invalid: ", base::Quote(spec),
      ": ", why,
      "; it is a backend's name, or \"DEVICE:BACKEND\" for each "
      "device, separated by commas"));
}

struct Assignment {
  DeviceType device;
  std::string backend;
};

StatusOr<std::vector<Assignment>> ParseAssignments(absl::string_view spec) {
  std::vector<Assignment> assignments;
  for (const absl::string_view pair : absl::StrSplit(spec, ',')) {
    const std::vector<absl::string_view> words = absl::StrSplit(pair, ':');
    if (words.size() != 2) {
      return Malformed(spec, absl::StrCat("Invalid device:backend pairing: ",
                                          base::Quote(pair)));
    }
    Assignment assignment{DeviceType::kCpu, std::string(words[1])};
    if (words[0] == DeviceTypeName(DeviceType::kCuda)) {
      assignment.device = DeviceType::kCuda;
    } else if (words[0] != DeviceTypeName(DeviceType::kCpu)) {
      return Malformed(spec,
                       absl::StrCat("unknown device ", base::Quote(words[0]),
                                    ", there are cpu, cuda"));
    }
    for (const Assignment& other : assignments) {
      if (other.device != assignment.device) continue;
      return Malformed(spec, absl::StrCat("Duplicate device type ", words[0]));
    }
    if (assignment.backend == "gloo" &&
        assignment.device == DeviceType::kCuda) {
      assignment.backend = kGlooOnCuda;
    }
    assignments.push_back(std::move(assignment));
  }
  return assignments;
}

// A checked spec.
struct Choice {
  Definition single;  // if the spec is one name
  std::vector<Assignment> assignments;
  std::map<std::string, Definition> definitions;  // used by the assignments
};

StatusOr<Choice> Choose(absl::string_view spec) {
  Choice choice;
  if (!absl::StrContains(spec, ':') && !absl::StrContains(spec, ',')) {
    StatusOr<Definition> definition = Registry::Get().Find(spec);
    if (!definition.ok()) return definition.status();
    choice.single = *std::move(definition);
    return choice;
  }
  StatusOr<std::vector<Assignment>> assignments = ParseAssignments(spec);
  if (!assignments.ok()) return assignments.status();
  choice.assignments = *std::move(assignments);
  for (const Assignment& assignment : choice.assignments) {
    StatusOr<Definition> definition = Registry::Get().Find(assignment.backend);
    if (!definition.ok()) return definition.status();
    const std::vector<DeviceType>& devices = definition->devices;
    if (std::find(devices.begin(), devices.end(), assignment.device) ==
        devices.end()) {
      return InvalidArgumentError(absl::StrCat(
          "backend ", base::Quote(spec), ": ", assignment.backend, " takes no ",
          DeviceTypeName(assignment.device), " tensors"));
    }
    choice.definitions.emplace(assignment.backend, *std::move(definition));
  }
  return choice;
}

Status CheckOptions(const BackendOptions& options) {
  if (options.rank < 0 || options.rank >= options.world_size) {
    return InvalidArgumentError(absl::StrCat("argument rank: ", options.rank,
                                             " is not in a group of ",
                                             options.world_size));
  }
  if (options.store == nullptr && options.world_size > 1) {
    return InvalidArgumentError(absl::StrCat("argument store: a group of ",
                                             options.world_size,
                                             " needs one to meet in"));
  }
  return CheckCpuTransport(options.cpu_transport);
}

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
         });
}

}  // namespace

std::vector<std::string> Backends() { return Registry::Get().Names(); }

Status CheckCpuTransport(std::string_view name) {
  if (name.empty() || name == "tcp" || name == "gloo") return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("argument cpu_transport must be tcp or gloo but was ",
                   base::Quote(std::string(name))));
}

Status RegisterBackend(const std::string& name, std::vector<DeviceType> devices,
                       BackendFactory factory) {
  if (!IsName(name)) {
    return InvalidArgumentError(absl::StrCat(
        "argument name: ", base::Quote(name), " is not a name of 1 to ",
        kNameBytesMax, " lower-case letters, digits, _ and -"));
  }
  if (devices.empty()) {
    return InvalidArgumentError(absl::StrCat("argument devices: backend ",
                                             base::Quote(name),
                                             " needs at least one"));
  }
  if (factory == nullptr) {
    return InvalidArgumentError(absl::StrCat("argument factory: backend ",
                                             base::Quote(name), " has none"));
  }
  if (!Registry::Get().Add(name, {std::move(devices), std::move(factory)})) {
    return AlreadyExistsError(
        absl::StrCat("backend ", base::Quote(name), " is registered already"));
  }
  return OkStatus();
}

StatusOr<std::string> LoadBackend(const std::string& path) {
  // Loads one library at a time, because two threads may load the same one.
  static Mutex* const loading = new Mutex;
  MutexLock lock(*loading);
  // Backend names by library handle.
  static auto* const loaded = new std::map<void*, std::string>;
  // Without a slash, dlopen would search the system's directories.
  const std::string file =
      absl::StrContains(path, '/') ? path : absl::StrCat("./", path);
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return NotFoundError(
        absl::StrCat("backend library ", base::Quote(path), ": ", dlerror()));
  }
  const auto refuse = [&](absl::string_view why) {
    dlclose(library);
    return FailedPreconditionError(
        absl::StrCat("backend library ", base::Quote(path), " ", why));
  };
  using Entry = const BackendPlugin* (*)();
  const auto entry =
      reinterpret_cast<Entry>(dlsym(library, kBackendPluginSymbol));
  if (entry == nullptr) {
    return refuse(absl::StrCat("has no ", kBackendPluginSymbol,
                               " (MUSTER_BACKEND_PLUGIN)"));
  }
  const BackendPlugin* const given = entry();
  if (given == nullptr) {
    return refuse(
        absl::StrCat("gives none: ", kBackendPluginSymbol, " returns null"));
  }
  const BackendPlugin& plugin = *given;
  // Checked before any other field is read.
  if (const PluginAbi own; plugin.abi != own) {
    return refuse(absl::StrCat("was built for ", plugin.abi.ToString(),
                               ", this program for ", own.ToString()));
  }
  if (plugin.name == nullptr) return refuse("gives a backend without a name");
  if (plugin.devices == nullptr && plugin.device_count > 0) {
    return refuse(absl::StrCat("gives ", plugin.device_count,
                               " kinds of device, and null for them"));
  }
  if (const auto known = loaded->find(library); known != loaded->end()) {
    return known->second;
  }
  const Status status =
      RegisterBackend(plugin.name,
                      std::vector<DeviceType>(
                          plugin.devices, plugin.devices + plugin.device_count),
                      plugin.create);
  if (!status.ok()) {
    dlclose(library);
    return Status(status.code(),
                  absl::StrCat("backend library ", base::Quote(path), ": ",
                               status.message()));
  }
  return loaded->emplace(library, plugin.name).first->second;
}

std::string DefaultBackend() {
  // CUDA first: its runtime library is small, NCCL's is large.
  return CudaAvailable().ok() && nccl::Available().ok() ? "cpu:shm,cuda:nccl"
                                                        : "shm";
}

Status CheckBackend(std::string_view spec) {
  return Choose(base::ToAbsl(spec)).status();
}

namespace {

// Makes a backend with `definition`, which may be a user's.
StatusOr<std::unique_ptr<Backend>> Make(absl::string_view name,
                                        const Definition& definition,
                                        const BackendOptions& options) {
  Status problem = InternalError("made none");
  try {
    auto made = definition.factory(options);
    if (!made.ok()) return made;
    if (*made != nullptr) {
      auto guarding = std::make_unique<ExceptionGuard>(*std::move(made),
                                                       options.group_name);
      if (definition.is_ours) return guarding;
      return std::make_unique<TimeoutWatchdog>(
          std::move(guarding), WatchdogOptions{.group_name = options.group_name,
                                               .rank = options.rank});
    }
  } catch (...) {
    problem = StatusOfCaught();
  }
  return Status(problem.code(),
                absl::StrCat("backend ", base::Quote(name), ": its factory ",
                             problem.message()));
}

bool ServesCpu(const Choice& choice, const std::string& backend) {
  return std::any_of(choice.assignments.begin(), choice.assignments.end(),
                     [&](const Assignment& assignment) {
                       return assignment.device == DeviceType::kCpu &&
                              assignment.backend == backend;
                     });
}

}  // namespace

StatusOr<std::unique_ptr<Backend>> CreateBackend(
    std::string_view spec, const BackendOptions& options) {
  StatusOr<Choice> choice = Choose(base::ToAbsl(spec));
  if (!choice.ok()) return choice.status();
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (choice->assignments.empty()) {
    return Make(base::ToAbsl(spec), choice->single, options);
  }
  PerDevice::Map by_device;
  std::map<std::string, std::shared_ptr<Backend>> made;
  for (const Assignment& assignment : choice->assignments) {
    std::shared_ptr<Backend>& backend = made[assignment.backend];
    if (backend == nullptr) {
      BackendOptions own = options;
      // Two backends of one group must use different keys. The one for CPU
      // tensors keeps the keys that it would use alone, so that it also finds
      // ranks that have only this one: by default, those on hosts without a
      // GPU.
      if (!ServesCpu(*choice, assignment.backend)) {
        own.store = PrefixedStore(options.store, assignment.backend + "/");
      }
      own.parent_handle =
          PerDevice::FindParentHandle(assignment.device, options.parent_handle);
      auto created = Make(assignment.backend,
                          choice->definitions[assignment.backend], own);
      if (!created.ok()) return created.status();
      backend = *std::move(created);
    }
    by_device.emplace_back(assignment.device, backend);
  }
  return std::make_unique<PerDevice>(std::string(spec), std::move(by_device));
}

}  // namespace muster::dataplane
