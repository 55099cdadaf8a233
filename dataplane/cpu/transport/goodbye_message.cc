#include "dataplane/cpu/transport/goodbye_message.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::cpu {
namespace {

// The mark of a goodbye. Not zero, because bytes that were never sent are zero.
constexpr uint32_t kMark = 0x6d747266;

// The payload holds the rank that failed first and its text. It is passed on
// unchanged, so that a text does not grow from rank to rank.
constexpr char kOriginUrl[] = "muster/failure_origin";

struct Layout {
  uint32_t mark;
  int32_t code;
  int32_t culprit;  // -1: none
  int32_t origin;   // -1: the sender
  // length of the verdict that begins the text; -1: none
  int32_t verdict_bytes;
  uint32_t text_bytes;
  char text[512 - 24];
};
static_assert(sizeof(Layout) == sizeof(GoodbyeBytes));

Layout ParseLayout(const GoodbyeBytes& bytes) {
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  return layout;
}

bool IsGoodbye(const Layout& layout) {
  return layout.mark == kMark && layout.text_bytes <= sizeof(layout.text) &&
         layout.verdict_bytes <= static_cast<int64_t>(layout.text_bytes);
}

bool IsPeaceful(const Layout& layout) {
  const auto code = static_cast<StatusCode>(layout.code);
  return code == StatusCode::kCancelled || code == StatusCode::kOk;
}

}  // namespace

GoodbyeBytes EncodeGoodbye(const Status& reason) {
  Layout layout = {};
  layout.mark = kMark;
  layout.code = static_cast<int32_t>(reason.code());
  layout.culprit = CulpritRank(reason).value_or(-1);
  layout.origin = -1;
  layout.verdict_bytes = -1;
  std::string text(reason.message());
  const auto origin = reason.GetPayload(kOriginUrl);
  if (const auto verdict = Verdict(reason); verdict.has_value()) {
    layout.verdict_bytes = static_cast<int32_t>(verdict->size());
    text = *verdict + text;
  } else if (origin.has_value() && origin->size() >= sizeof(layout.origin)) {
    std::memcpy(&layout.origin, origin->data(), sizeof(layout.origin));
    text = origin->substr(sizeof(layout.origin));
  }
  layout.text_bytes =
      static_cast<uint32_t>(std::min(text.size(), sizeof(layout.text)));
  std::memcpy(layout.text, text.data(), layout.text_bytes);
  GoodbyeBytes bytes;
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  return bytes;
}

Status InterpretGoodbye(int peer, const GoodbyeBytes& bytes,
                        absl::string_view transport_error) {
  const Layout layout = ParseLayout(bytes);
  Status status;
  if (!IsGoodbye(layout)) {
    status = UnavailableError(
        absl::StrCat("rank ", peer,
                     " closed its connection without leaving the group; its "
                     "process may have died (",
                     transport_error, ")"));
    SetCulpritRank(status, peer);
    return status;
  }
  if (IsPeaceful(layout)) {
    status = UnavailableError(absl::StrCat("rank ", peer, " left the group"));
    SetCulpritRank(status, peer);
    return status;
  }
  const auto code = static_cast<StatusCode>(layout.code);
  const int32_t origin = layout.origin >= 0 ? layout.origin : peer;
  const std::string text(layout.text, layout.text_bytes);
  if (layout.verdict_bytes >= 0) {
    const auto bytes = static_cast<size_t>(layout.verdict_bytes);
    status = Status(code, text.substr(bytes));
    SetVerdict(status, text.substr(0, bytes));
  } else {
    status = Status(code, absl::StrCat("rank ", origin, " failed: ", text));
    status.SetPayload(
        kOriginUrl,
        std::string(reinterpret_cast<const char*>(&origin), sizeof(origin)) +
            text);
  }
  SetCulpritRank(status, layout.culprit >= 0 ? layout.culprit : peer);
  return status;
}

bool LeftInPeace(const GoodbyeBytes& bytes) {
  const Layout layout = ParseLayout(bytes);
  return IsGoodbye(layout) && IsPeaceful(layout);
}

}  // namespace muster::dataplane::cpu
