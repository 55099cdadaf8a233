#include "proto/muster/v1/status_wire.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster::v1 {
namespace {

constexpr char kCulpritsUrl[] = "type.googleapis.com/muster.v1.Culprits";

// The message travels twice (as grpc-message and in the details, where clients
// of other languages compare the two), percent-encoded the first time and in
// base64 the second.
constexpr size_t kGrpcMessageBytesMax = 1'200;
constexpr size_t kGrpcDetailsBytesMax = 4'000;

// The length of the well-formed UTF-8 sequence at the start of `text`, 0 when
// there is none.
size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  size_t length = 0;
  // The second byte's range excludes overlong forms, surrogates and code
  // points past U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  if (length == 0 || text.size() < length) return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

std::string Utf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) {
      absl::StrAppend(
          &out, "\\x",
          absl::Hex(static_cast<uint8_t>(text[0]), absl::kZeroPad2));
      text.remove_prefix(1);
    } else {
      out.append(text.data(), length);
      text.remove_prefix(length);
    }
  }
  return out;
}

// Cuts valid UTF-8 between characters.
std::string Cut(std::string text, size_t bytes_max) {
  constexpr absl::string_view kMark = "...";
  if (text.size() <= bytes_max) return text;
  size_t keep = bytes_max - kMark.size();
  while (keep > 0 && (static_cast<uint8_t>(text[keep]) & 0xC0) == 0x80) --keep;
  text.resize(keep);
  absl::StrAppend(&text, kMark);
  return text;
}

absl::Status Make(int code, absl::string_view message, const WireStatus& wire) {
  // code() maps what absl does not know to kUnknown; the constructor alone
  // would keep the odd number inside, and the status would equal no other.
  const absl::Status raw(static_cast<absl::StatusCode>(code), "");
  absl::Status status(raw.code(), message);
  for (const StatusPayload& payload : wire.payloads()) {
    status.SetPayload(payload.type_url(), absl::Cord(payload.value()));
  }
  return status;
}

// Those of `culprits` that are described after the first `kept`, and those that
// are not, without any member.
Culprits OthersOf(const Culprits& culprits, int kept) {
  Culprits others;
  others.set_omitted(culprits.omitted());
  std::vector<std::pair<int64_t, int64_t>> ranges;  // first, end
  int64_t end = 0;
  for (int i = 0; i + 1 < culprits.others_size(); i += 2) {
    const int64_t first = end + culprits.others(i);
    end = first + culprits.others(i + 1);
    // Of nonsense nobody can be meant.
    if (end > std::numeric_limits<int32_t>::max()) break;
    ranges.emplace_back(first, end);
  }
  for (int i = kept; i < culprits.members_size(); ++i) {
    const int64_t rank = culprits.members(i).rank();
    if (rank >= 0) {
      ranges.emplace_back(rank, rank + 1);
    } else {
      others.set_omitted(others.omitted() + 1);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  end = 0;
  for (const auto& [first, range_end] : ranges) {
    if (range_end <= end) continue;
    const int64_t start = std::max(first, end);
    if (others.others_size() == 0 || start > end) {
      others.add_others(static_cast<uint32_t>(start - end));
      others.add_others(0);
    }
    const int last = others.others_size() - 1;
    others.set_others(
        last, others.others(last) + static_cast<uint32_t>(range_end - start));
    end = range_end;
  }
  return others;
}

}  // namespace

WireStatus ToWire(const absl::Status& status) {
  WireStatus wire;
  if (status.ok()) return wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(Utf8(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& bytes) {
    StatusPayload* payload = wire.add_payloads();
    payload->set_type_url(std::string(url));
    payload->set_value(std::string(bytes));
  });
  return wire;
}

absl::Status FromWire(const WireStatus& wire) {
  return Make(wire.code(), wire.message(), wire);
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  WireStatus wire = ToWire(status);
  wire.set_message(Cut(wire.message(), kGrpcMessageBytesMax));
  if (wire.ByteSizeLong() > kGrpcDetailsBytesMax) {
    const absl::optional<Culprits> culprits = GetCulprits(status);
    wire.clear_payloads();
    if (culprits.has_value()) {
      // Leaves room for the URL and the tags around the payload.
      const size_t room = kGrpcDetailsBytesMax - wire.ByteSizeLong() - 64;
      StatusPayload* payload = wire.add_payloads();
      payload->set_type_url(kCulpritsUrl);
      payload->set_value(FitCulprits(*culprits, room).SerializeAsString());
    }
  }
  // Details without payloads would only repeat code and message.
  return grpc::Status(
      static_cast<grpc::StatusCode>(wire.code()), wire.message(),
      wire.payloads().empty() ? std::string() : wire.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  WireStatus wire;
  if (!wire.ParseFromString(status.error_details()) ||
      wire.code() != status.error_code()) {
    wire.Clear();
  }
  return Make(status.error_code(), status.error_message(), wire);
}

Culprits FitCulprits(const Culprits& culprits, size_t bytes_max) {
  if (culprits.ByteSizeLong() <= bytes_max) return culprits;
  // Without any member: the most that the ranges can need.
  const size_t for_ranges =
      std::min(bytes_max / 4, OthersOf(culprits, 0).ByteSizeLong());
  int kept = 0;
  // Of the tag and the length of `others`.
  size_t used = for_ranges + 8;
  for (const MemberInfo& member : culprits.members()) {
    // Tag and length take four bytes for any member that fits at all.
    used += member.ByteSizeLong() + 4;
    if (used > bytes_max) break;
    ++kept;
  }
  Culprits fitting = OthersOf(culprits, kept);
  // Numbers above 127 take two bytes or more; a range has two.
  while (fitting.ByteSizeLong() > for_ranges + 8 && fitting.others_size() > 1) {
    const int pairs = fitting.others_size() / 2;
    const int dropped = std::max(1, pairs / 16);
    for (int i = 2 * (pairs - dropped); i < 2 * pairs; i += 2) {
      fitting.set_omitted(fitting.omitted() +
                          static_cast<int32_t>(fitting.others(i + 1)));
    }
    fitting.mutable_others()->Truncate(2 * (pairs - dropped));
  }
  for (int i = 0; i < kept; ++i) *fitting.add_members() = culprits.members(i);
  return fitting;
}

void SetCulprits(const Culprits& culprits, absl::Status* status) {
  status->SetPayload(kCulpritsUrl, absl::Cord(culprits.SerializeAsString()));
}

absl::optional<Culprits> GetCulprits(const absl::Status& status) {
  const absl::optional<absl::Cord> bytes = status.GetPayload(kCulpritsUrl);
  Culprits culprits;
  if (!bytes.has_value() || !culprits.ParseFromString(std::string(*bytes))) {
    return absl::nullopt;
  }
  return culprits;
}

}  // namespace muster::v1
