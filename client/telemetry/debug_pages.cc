#include "client/telemetry/debug_pages.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace muster::worker {
namespace {

constexpr int kVerbosityMax = 9;

// Names, or their prefixes, of variables that configure a job. Any other
// variable may be a secret.
constexpr absl::string_view kShownPrefixes[] = {
    "CUDA_", "CUBLAS_", "GLOG_",  "GLOO_",         "GRPC_",   "KMP_",
    "MKL_",  "MUSTER_", "NCCL_",  "NVIDIA_",       "OMP_",    "OPENBLAS_",
    "PET_",  "SLURM_",  "TORCH_", "TORCHELASTIC_", "PYTORCH_"};
constexpr absl::string_view kShown[] = {"GROUP_RANK",
                                        "GROUP_WORLD_SIZE",
                                        "HOME",
                                        "HOSTNAME",
                                        "LANG",
                                        "LC_ALL",
                                        "LD_PRELOAD",
                                        "LD_LIBRARY_PATH",
                                        "LOCAL_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "LOCAL_WORLD_SIZE",
                                        "PATH",
                                        "PWD",
                                        "RANK",
                                        "ROLE_NAME",
                                        "ROLE_RANK",
                                        "TMPDIR",
                                        "TZ",
                                        "USER",
                                        "ROLE_WORLD_SIZE",
                                        "WORLD_SIZE"};

bool IsShown(absl::string_view name) {
  for (const absl::string_view word : {"TOKEN", "SECRET", "PASSWORD", "PASSWD",
                                       "CREDENTIAL", "_KEY", "AUTH", "JWT"}) {
    if (absl::StrContains(name, word)) return false;
  }
  return std::any_of(std::begin(kShownPrefixes), std::end(kShownPrefixes),
                     [&](absl::string_view prefix) {
                       return absl::StartsWith(name, prefix);
                     }) ||
         std::count(std::begin(kShown), std::end(kShown), name) > 0;
}

std::string Text(const nlohmann::json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace

std::string EnvironmentJson() {
  nlohmann::json json = nlohmann::json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = variable.substr(0, equals);
    json[name] = IsShown(name) ? variable.substr(equals + 1) : "(hidden)";
  }
  return Text(json);
}

std::string LogJson() {
  return Text({{"minloglevel", FLAGS_minloglevel}, {"v", FLAGS_v}});
}

Status SetLog(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return InvalidArgumentError(
        "the body must be a JSON object such as {\"minloglevel\": 0, \"v\": "
        "1}");
  }
  int minloglevel = FLAGS_minloglevel;
  int v = FLAGS_v;
  for (const auto& [name, value] : json.items()) {
    const bool is_v = name == "v";
    if (!is_v && name != "minloglevel") {
      return InvalidArgumentError(
          absl::StrCat("there is no ", base::Quote(name),
                       ", only \"minloglevel\" and \"v\""));
    }
    const int max = is_v ? kVerbosityMax : google::GLOG_FATAL;
    if (!value.is_number_integer() || value < 0 || value > max) {
      return InvalidArgumentError(
          absl::StrCat(name, " must be 0 to ", max, ", got ",
                       value.dump(-1, ' ', false,
                                  nlohmann::json::error_handler_t::replace)));
    }
    (is_v ? v : minloglevel) = value.get<int>();
  }
  FLAGS_minloglevel = minloglevel;
  FLAGS_v = v;
  return OkStatus();
}

}  // namespace muster::worker
