// Texts for people: escaping, quoting, durations.

#ifndef MUSTER_BASE_TEXT_H_
#define MUSTER_BASE_TEXT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster::base {

// A text of the public API, which has the standard library's type, as Abseil's
// functions take it; and back. Debian's Abseil has a type of its own.
inline absl::string_view ToAbsl(std::string_view text) {
  return {text.data(), text.size()};
}
inline std::string_view ToStd(absl::string_view text) {
  return {text.data(), text.size()};
}

inline constexpr uint32_t kNoCharacter = 0xFFFFFFFF;

// Takes the first UTF-8 character off `text`, which is not empty. Returns
// kNoCharacter, and takes nothing, when `text` does not begin with one.
uint32_t TakeCharacter(absl::string_view& text);

// U+0000 to U+001F and U+007F to U+009F.
bool IsControl(uint32_t character);

// The characters that turn the direction of a text, U+202E among them.
bool IsDirectionMark(uint32_t character);

// Whether the character shows nothing of itself: control and format characters
// (Unicode's Cc and Cf), line separators, noncharacters.
bool IsInvisible(uint32_t character);

// The text for use within double quotes. Those, backslashes, invisible
// characters and bytes that are not UTF-8 become escape sequences of C (`\"`,
// `\n`, `\xe2\x80\xae`), so that absl::CUnescape gives the text back. Every
// text of a user in a log, an error or a page goes through this function or one
// of those below.
std::string Escape(absl::string_view text);

// The same for use without quotes: quotes and backslashes stay as they are.
std::string Printable(absl::string_view text);

// The same of a text of several lines: newlines and tabs stay, too.
std::string PrintableLines(absl::string_view text);

// Escape(text) in double quotes; of a longer text the first `bytes_max` bytes
// and `..."`.
std::string Quote(absl::string_view text,
                  size_t bytes_max = absl::string_view::npos);

// The first 32 bytes in quotes; of a longer text also its length:
// `"abc"... (100 bytes)`.
std::string Excerpt(absl::string_view bytes);

// A value in `key=value` of a log line: as it is if it is a word of ASCII
// letters, digits and any of `-_.,:;/@%+*#()[]`, else in quotes.
std::string LogValue(absl::string_view value);

// "10s", "1.5s", "250ms"; cut, not rounded.
std::string FormatDuration(std::chrono::nanoseconds duration);

// The text of every store when keys did not come in time:
// `wait timeout after 100ms, keys: a, b`. Names at most 8 keys.
std::string WaitTimeoutText(std::chrono::nanoseconds timeout,
                            absl::Span<const absl::string_view> missing);

}  // namespace muster::base

#endif  // MUSTER_BASE_TEXT_H_
