#include "client/control/error_file.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace muster::internal {
namespace {

// A longer file is cut, and then is no JSON.
constexpr size_t kFileBytesMax = 64 << 20;
constexpr size_t kMessageBytesMax = 400;
constexpr size_t kCulpritsMax = 1000;

// Returns the value of "message"; null if there is none.
nlohmann::json ReadMessage(const std::string& path) {
  // Opening a FIFO would block.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return nullptr;
  const size_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return nullptr;
  if (bytes > kFileBytesMax) {
    return absl::StrCat("its error file has ", bytes, " bytes, of which ",
                        kFileBytesMax, " would be read");
  }
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  // Without exceptions: malformed input gives "discarded".
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() ? json.value("message", nlohmann::json()) : nullptr;
}

}  // namespace

std::string ReadErrorFile(const std::string& path) {
  nlohmann::json message = ReadMessage(path);
  if (message.is_object()) message = message.value("message", nlohmann::json());
  if (!message.is_string()) return "";
  std::string line = message.get<std::string>();
  line = line.substr(0, line.find('\n'));
  if (line.size() > kMessageBytesMax) line.resize(kMessageBytesMax);
  return line;
}

std::vector<Culprit> ReadErrorFileCulprits(const std::string& path) {
  const nlohmann::json message = ReadMessage(path);
  const nlohmann::json::json_pointer place("/extraInfo/culprits");
  std::vector<Culprit> culprits;
  if (!message.is_object() || !message.contains(place)) return culprits;
  const auto number = [](const nlohmann::json& of, const char* name) {
    const nlohmann::json value =
        of.is_object() ? of.value(name, nlohmann::json()) : nullptr;
    return value.is_number_integer() ? value.get<int64_t>() : int64_t{-1};
  };
  for (const nlohmann::json& culprit : message[place]) {
    const int64_t rank = number(culprit, "rank");
    if (rank < 0 || rank > std::numeric_limits<int>::max()) continue;
    culprits.push_back({.rank = static_cast<int>(rank),
                        .pid = std::max<int64_t>(number(culprit, "pid"), 0)});
  }
  return culprits;
}

void WriteErrorFile(const std::string& path, const std::string& message,
                    std::span<const Culprit> culprits) {
  if (path.empty()) return;
  nlohmann::json json;
  json["message"]["message"] = message;
  json["message"]["extraInfo"]["timestamp"] = absl::StrCat(std::time(nullptr));
  for (const Culprit& culprit :
       culprits.first(std::min(culprits.size(), kCulpritsMax))) {
    json["message"]["extraInfo"]["culprits"].push_back(
        {{"rank", culprit.rank}, {"pid", culprit.pid}});
  }
  // Completely or not at all: the launcher may read it at any time.
  const std::string part = absl::StrCat(path, ".part");
  std::ofstream file(part, std::ios::binary);
  file << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
       << "\n";
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
    std::remove(part.c_str());
  }
}

}  // namespace muster::internal
