#include "client/tools/missing_recorder.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/tools/ctl_text.h"
#include "client/tools/judge.h"
#include "client/tools/places.h"

namespace muster::tools {
namespace {

constexpr size_t kRanksTold = 8;
constexpr char kVariable[] = "TORCH_FR_DUMP_TEMP_FILE";

std::string FileText(const v1::MemberInfo& member,
                     const std::string& dump_prefix,
                     const std::string& this_host) {
  if (dump_prefix.empty()) {
    return absl::StrCat("it has left no file, for which ", kVariable,
                        " is to be set");
  }
  const std::string path = absl::StrCat(dump_prefix, member.rank());
  if (member.host() != this_host) {
    return absl::StrCat("if it has written one, it is ", path, " on ",
                        member.host());
  }
  std::error_code error;
  return std::filesystem::exists(path, error)
             ? absl::StrCat("one of it is in ", path)
             : absl::StrCat("it has not written ", path,
                            ", as one that is killed does not");
}

}  // namespace

std::string DumpPrefixIn(const std::string& environment_json) {
  const auto json = nlohmann::json::parse(environment_json, nullptr, false);
  if (!json.is_object()) return "";
  const auto found = json.find(kVariable);
  return found != json.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

std::string WhyNoRecorder(const v1::MemberInfo& member, absl::string_view why,
                          const std::string& dump_prefix,
                          const std::string& this_host) {
  const bool gone = IsGone(member);
  if (!gone && dump_prefix.empty()) return std::string(why);
  return absl::StrCat(gone ? GoneText(member) : std::string(why), "; ",
                      FileText(member, dump_prefix, this_host));
}

std::string MissingText(const std::map<int, std::string>& missing,
                        size_t ranks) {
  if (missing.empty()) return "";
  std::string text = absl::StrCat("musterctl: ", missing.size(), " of ", ranks,
                                  " ranks did not answer\n");
  size_t told = 0;
  for (const auto& [rank, why] : missing) {
    if (told++ == kRanksTold) {
      absl::StrAppend(&text, "  and ", missing.size() - kRanksTold, " more\n");
      break;
    }
    absl::StrAppend(&text, "  rank ", rank, ": ", Harmless(why), "\n");
  }
  return text;
}

}  // namespace muster::tools
