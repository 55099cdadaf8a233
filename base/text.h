// Formats texts for people: escaping, quoting, durations.

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

// Converts std::string_view, which the public API uses, to absl::string_view,
// which Debian's Abseil defines as a type of its own.
inline absl::string_view ToAbsl(std::string_view text) {
  return {text.data(), text.size()};
}

inline constexpr uint32_t kNoCharacter = 0xFFFFFFFF;

// Removes the first UTF-8 character from `text`, which is not empty, and
// returns it. If `text` does not begin with a valid one, returns kNoCharacter
// and removes nothing.
uint32_t TakeCharacter(absl::string_view& text);

// True for U+0000 to U+001F and U+007F to U+009F.
bool IsControl(uint32_t character);

// True for characters that change the direction of a text, such as U+202E.
bool IsDirectionMark(uint32_t character);

// True for characters that are not visible by themselves: control and format
// characters (Unicode's Cc and Cf), line separators, noncharacters.
bool IsInvisible(uint32_t character);

// Escapes `text` for use within double quotes: double quotes, backslashes,
// invisible characters and bytes that are not UTF-8 become C escape sequences
// (`\"`, `\n`, `\xe2\x80\xae`), so that absl::CUnescape restores the text.
// Every text from a user that goes into a log, an error or a page passes
// through this function or one of those below.
std::string Escape(absl::string_view text);

// Like Escape, for use without quotes: quotes and backslashes stay.
std::string Printable(absl::string_view text);

// Like Printable, for a text of several lines: newlines and tabs stay, too.
std::string PrintableLines(absl::string_view text);

// Escape(text) in double quotes. If the text has more than `bytes_max` bytes,
// only the first `bytes_max`, followed by `...` within the quotes.
std::string Quote(absl::string_view text,
                  size_t bytes_max = absl::string_view::npos);

// Quotes the first 32 bytes. For a longer text also names its length: `"abc"...
// (100 bytes)`.
std::string Excerpt(absl::string_view bytes);

// Formats the value in `key=value` of a log line: unchanged if it consists of
// ASCII letters, digits and `-_.,:;/@%+*#()[]`, otherwise quoted.
std::string LogValue(absl::string_view value);

// Error texts name at most this many ranks, and then the number of the others.
inline constexpr size_t kRanksInTextMax = 8;

// "rank 3"; "ranks 3, 5 and 120 more".
std::string RanksText(absl::Span<const int> ranks);

// "1 rank (3)"; "122 ranks (3, 5 and 120 more)". `first` are the first of
// `count` ranks: all, or at least kRanksInTextMax of them.
std::string CountedRanksText(absl::Span<const int> first, size_t count);

// "10s", "1.5s", "250ms"; truncated, not rounded.
std::string FormatDuration(std::chrono::nanoseconds duration);

// The error text of every store when keys did not appear in time. Names at most
// 8 keys:
//   wait timeout after 100ms, keys: a, b
std::string WaitTimeoutText(std::chrono::nanoseconds timeout,
                            absl::Span<const absl::string_view> missing);

}  // namespace muster::base

#endif  // MUSTER_BASE_TEXT_H_
