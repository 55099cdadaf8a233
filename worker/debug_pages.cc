#include "worker/debug_pages.h"

#include <glog/logging.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster::worker {
namespace {

constexpr int kVerbosityMax = 9;

bool IsSecret(absl::string_view name) {
  const std::string upper = absl::AsciiStrToUpper(name);
  for (const char* word :
       {"TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "_KEY"}) {
    if (absl::StrContains(upper, word)) return true;
  }
  return false;
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
    json[name] = IsSecret(name) ? "(hidden)" : variable.substr(equals + 1);
  }
  return Text(json);
}

std::string LogJson() {
  return Text({{"minloglevel", FLAGS_minloglevel}, {"v", FLAGS_v}});
}

absl::Status SetLog(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        "the body must be a JSON object such as {\"minloglevel\": 0, \"v\": "
        "1}");
  }
  int minloglevel = FLAGS_minloglevel;
  int v = FLAGS_v;
  for (const auto& [name, value] : json.items()) {
    const bool is_v = name == "v";
    if (!is_v && name != "minloglevel") {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no \"", name, "\", only \"minloglevel\" and \"v\""));
    }
    const int max = is_v ? kVerbosityMax : google::GLOG_FATAL;
    if (!value.is_number_integer() || value < 0 || value > max) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must be 0 to ", max, ", got ",
                       value.dump(-1, ' ', false,
                                  nlohmann::json::error_handler_t::replace)));
    }
    (is_v ? v : minloglevel) = value.get<int>();
  }
  FLAGS_minloglevel = minloglevel;
  FLAGS_v = v;
  return absl::OkStatus();
}

}  // namespace muster::worker
