#include "client/internal/error_file.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace muster::internal {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr size_t kMessageBytesMax = 400;
constexpr size_t kCulpritsMax = 1000;

// What is "message" in it; null: nothing is.
nlohmann::json ReadMessage(const std::string& path) {
  // Whoever opens a FIFO waits for its other end.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return nullptr;
  std::ifstream file(path, std::ios::binary);
  if (!file) return nullptr;
  std::string text(kFileBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  // Without exceptions: what cannot be read is "discarded".
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

std::vector<int> ReadErrorFileCulprits(const std::string& path) {
  const nlohmann::json message = ReadMessage(path);
  const nlohmann::json::json_pointer place("/extraInfo/culprit_ranks");
  std::vector<int> ranks;
  if (!message.is_object() || !message.contains(place)) return ranks;
  for (const nlohmann::json& rank : message[place]) {
    if (rank.is_number_integer()) ranks.push_back(rank.get<int>());
  }
  return ranks;
}

void WriteErrorFile(const std::string& path, const std::string& message,
                    std::span<const int> culprit_ranks) {
  if (path.empty()) return;
  nlohmann::json json;
  json["message"]["message"] = message;
  json["message"]["extraInfo"]["timestamp"] = absl::StrCat(std::time(nullptr));
  if (!culprit_ranks.empty()) {
    json["message"]["extraInfo"]["culprit_ranks"] =
        culprit_ranks.first(std::min(culprit_ranks.size(), kCulpritsMax));
  }
  // Whole or not at all: the launcher may look at any time.
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
