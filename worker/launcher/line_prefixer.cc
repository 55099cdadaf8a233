#include "worker/launcher/line_prefixer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::worker {
namespace {

constexpr size_t kTailLines = 10;
constexpr size_t kTailLineBytes = 400;

}  // namespace

LinePrefixer::LinePrefixer(std::string prefix, size_t line_bytes_max)
    : prefix_(std::move(prefix)), line_bytes_max_(line_bytes_max) {}

std::string LinePrefixer::Push(absl::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t piece = std::min(std::min(newline, bytes.size()),
                                  line_bytes_max_ - line_.size());
    line_.append(bytes.data(), piece);
    bytes.remove_prefix(piece);
    if (!bytes.empty() && bytes[0] == '\n') {
      bytes.remove_prefix(1);
      EndLine(out);
    } else if (line_.size() == line_bytes_max_ && !bytes.empty()) {
      EndLine(out);
    }
  }
  return out;
}

std::string LinePrefixer::Finish() {
  std::string out;
  if (!line_.empty()) EndLine(out);
  return out;
}

void LinePrefixer::EndLine(std::string& out) {
  absl::StrAppend(&out, prefix_, line_, "\n");
  if (tail_.size() == kTailLines) tail_.pop_front();
  tail_.push_back(line_.substr(0, kTailLineBytes));
  line_.clear();
}

}  // namespace muster::worker
