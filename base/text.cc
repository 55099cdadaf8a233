#include "base/text.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::base {
namespace {

constexpr size_t kExcerptBytesMax = 32;
constexpr size_t kKeysInTextMax = 8;

struct Characters {
  uint32_t first;
  uint32_t last;
};

// Unicode 15: Cc, Cf, Zl, Zp and noncharacters, ascending.
constexpr Characters kInvisible[] = {
    {0x0000, 0x001F},   {0x007F, 0x009F},   {0x00AD, 0x00AD},
    {0x0600, 0x0605},   {0x061C, 0x061C},   {0x06DD, 0x06DD},
    {0x070F, 0x070F},   {0x0890, 0x0891},   {0x08E2, 0x08E2},
    {0x180E, 0x180E},   {0x200B, 0x200F},   {0x2028, 0x202E},
    {0x2060, 0x206F},   {0xFDD0, 0xFDEF},   {0xFEFF, 0xFEFF},
    {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD},
    {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3},
    {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF}};

bool IsWordByte(char c) {
  return absl::ascii_isalnum(c) ||
         absl::string_view("-_.,:;/@%+*#()[]").find(c) !=
             absl::string_view::npos;
}

// Keeps visible characters beyond ASCII. Passes the rest to `escape` in runs,
// because a hexadecimal escape depends on the character after it.
template <typename EscapeRun>
std::string EscapeWith(absl::string_view text, EscapeRun escape) {
  std::string out;
  absl::string_view rest = text;
  size_t run = 0;  // where the pending bytes begin
  while (!rest.empty()) {
    const size_t at = text.size() - rest.size();
    const uint32_t character = TakeCharacter(rest);
    if (character == kNoCharacter) rest.remove_prefix(1);
    if (character < 0x80 || character == kNoCharacter ||
        IsInvisible(character)) {
      continue;
    }
    const size_t end = text.size() - rest.size();
    absl::StrAppend(&out, escape(text.substr(run, at - run)),
                    text.substr(at, end - at));
    run = end;
  }
  absl::StrAppend(&out, escape(text.substr(run)));
  return out;
}

// Escapes all bytes but those of `kept`.
std::string EscapeExcept(absl::string_view kept, absl::string_view text) {
  return EscapeWith(text, [kept](absl::string_view run) {
    std::string out;
    while (!run.empty()) {
      const size_t plain = std::min(run.find_first_of(kept), run.size());
      absl::StrAppend(&out, absl::CHexEscape(run.substr(0, plain)),
                      run.substr(plain, 1));
      run.remove_prefix(std::min(plain + 1, run.size()));
    }
    return out;
  });
}

}  // namespace

uint32_t TakeCharacter(absl::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  size_t size = 1;
  uint32_t character = lead;
  uint32_t least = 0;  // only a character's shortest encoding is valid
  if (lead >= 0xF0) {
    size = lead <= 0xF4 ? 4 : 0;
    character = lead & 0x07;
    least = 0x10000;
  } else if (lead >= 0xE0) {
    size = 3;
    character = lead & 0x0F;
    least = 0x800;
  } else if (lead >= 0x80) {
    size = lead >= 0xC0 ? 2 : 0;
    character = lead & 0x1F;
    least = 0x80;
  }
  if (size == 0 || text.size() < size) return kNoCharacter;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return kNoCharacter;
    character = character << 6 | (byte(i) & 0x3F);
  }
  const bool surrogate = character >= 0xD800 && character <= 0xDFFF;
  if (character < least || character > 0x10FFFF || surrogate) {
    return kNoCharacter;
  }
  text.remove_prefix(size);
  return character;
}

bool IsControl(uint32_t character) {
  return character < 0x20 || (character >= 0x7F && character <= 0x9F);
}

bool IsDirectionMark(uint32_t character) {
  return character == 0x061C || character == 0x200E || character == 0x200F ||
         (character >= 0x202A && character <= 0x202E) ||
         (character >= 0x2066 && character <= 0x2069);
}

bool IsInvisible(uint32_t character) {
  const auto* const range = std::lower_bound(
      std::begin(kInvisible), std::end(kInvisible), character,
      [](const Characters& each, uint32_t c) { return each.last < c; });
  if (range != std::end(kInvisible) && range->first <= character) return true;
  return (character & 0xFFFE) == 0xFFFE;
}

std::string Escape(absl::string_view text) { return EscapeExcept("'", text); }

std::string Printable(absl::string_view text) {
  return EscapeExcept("\"'\\", text);
}

std::string PrintableLines(absl::string_view text) {
  return EscapeExcept("\"'\\\n\t", text);
}

std::string Quote(absl::string_view text, size_t bytes_max) {
  return absl::StrCat("\"", Escape(text.substr(0, bytes_max)),
                      text.size() > bytes_max ? "...\"" : "\"");
}

std::string Excerpt(absl::string_view bytes) {
  std::string text = Quote(bytes.substr(0, kExcerptBytesMax));
  if (bytes.size() > kExcerptBytesMax) {
    absl::StrAppend(&text, "... (", bytes.size(), " bytes)");
  }
  return text;
}

std::string LogValue(absl::string_view value) {
  const bool word =
      !value.empty() && std::all_of(value.begin(), value.end(), IsWordByte);
  return word ? std::string(value) : Quote(value);
}

namespace {

// "3, 5 and 120 more"
std::string JoinRanks(absl::Span<const int> first, size_t count) {
  const size_t shown = std::min(count, kRanksInTextMax);
  return absl::StrCat(
      absl::StrJoin(first.subspan(0, shown), ", "),
      shown < count ? absl::StrCat(" and ", count - shown, " more") : "");
}

}  // namespace

std::string RanksText(absl::Span<const int> ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      JoinRanks(ranks, ranks.size()));
}

std::string CountedRanksText(absl::Span<const int> first, size_t count) {
  return absl::StrCat(count, count == 1 ? " rank (" : " ranks (",
                      JoinRanks(first, count), ")");
}

std::string FormatDuration(std::chrono::nanoseconds duration) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const int64_t ms = duration_cast<milliseconds>(duration).count();
  if (ms < 1000 && ms > -1000) return absl::StrCat(ms, "ms");
  const int64_t tenths = ms / 100;
  if (tenths % 10 == 0) return absl::StrCat(tenths / 10, "s");
  return absl::StrCat(tenths / 10, ".", tenths % 10, "s");
}

std::string WaitTimeoutText(std::chrono::nanoseconds timeout,
                            absl::Span<const absl::string_view> missing) {
  std::string text =
      absl::StrCat("wait timeout after ", FormatDuration(timeout), ", keys: ");
  const size_t named = std::min(missing.size(), kKeysInTextMax);
  for (size_t i = 0; i < named; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", Escape(missing[i]));
  }
  if (named < missing.size()) {
    absl::StrAppend(&text, " and ", missing.size() - named, " more");
  }
  return text;
}

}  // namespace muster::base
