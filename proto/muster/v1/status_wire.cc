#include "proto/muster/v1/status_wire.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster::v1 {
namespace {

constexpr char kCulpritsUrl[] = "type.googleapis.com/muster.v1.Culprits";
constexpr char kJobOwnerUrl[] = "type.googleapis.com/muster.v1.JobOwner";

// The message is sent twice (as grpc-message and in the details, where clients
// of other languages compare the two): percent-encoded first, then in base64.
constexpr size_t kGrpcMessageBytesMax = 1'200;
constexpr size_t kGrpcDetailsBytesMax = 4'000;

// The length of the well-formed UTF-8 sequence at the start of `text`; 0: there
// is none.
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

// Cuts valid UTF-8 at a character boundary.
std::string Cut(std::string text, size_t bytes_max) {
  constexpr absl::string_view kMark = "...";
  if (text.size() <= bytes_max) return text;
  size_t keep = bytes_max - kMark.size();
  while (keep > 0 && (static_cast<uint8_t>(text[keep]) & 0xC0) == 0x80) --keep;
  text.resize(keep);
  absl::StrAppend(&text, kMark);
  return text;
}

Status Make(int code, absl::string_view message, const WireStatus& wire) {
  Status status(static_cast<StatusCode>(code), std::string(message));
  for (const StatusPayload& payload : wire.payloads()) {
    status.SetPayload(payload.type_url(), payload.value());
  }
  return status;
}

// The most ranges, and members without a description, that are sorted, to bound
// the work for one message.
constexpr int kSortedMax = 1 << 16;

// Ranks as [first, end).
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

void Omit(int64_t count, Culprits& culprits) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  culprits.set_omitted(static_cast<int32_t>(
      std::min(kMax, std::max<int64_t>(0, culprits.omitted()) + count)));
}

// The ranks of `others`, merged with those of the members from `kept` on.
// Members without a rank, and entries beyond kSortedMax, are counted in
// `fitting`.
Ranges AddOthers(const Culprits& culprits, int kept, Culprits& fitting) {
  // Larger ranks are invalid.
  constexpr int64_t kRankEnd = std::numeric_limits<int32_t>::max();
  Ranges ranges;
  int64_t end = 0;
  for (int i = 0; i + 1 < culprits.others_size(); i += 2) {
    const int64_t first = end + culprits.others(i);
    end = first + culprits.others(i + 1);
    if (end > kRankEnd) break;
    if (i < 2 * kSortedMax) {
      ranges.emplace_back(first, end);
    } else {
      Omit(end - first, fitting);
    }
  }
  for (int i = kept; i < culprits.members_size(); ++i) {
    const int64_t rank = culprits.members(i).rank();
    if (rank >= 0 && i < kSortedMax) {
      ranges.emplace_back(rank, rank + 1);
    } else {
      Omit(1, fitting);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  Ranges merged;
  for (const auto& [first, range_end] : ranges) {
    if (!merged.empty() && first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, range_end);
    } else if (first < range_end) {
      merged.emplace_back(first, range_end);
    }
  }
  return merged;
}

template <typename Message>
absl::optional<Message> GetPayload(const char* url, const Status& status) {
  const std::optional<std::string> bytes = status.GetPayload(url);
  Message message;
  if (!bytes.has_value() || !message.ParseFromString(*bytes)) {
    return absl::nullopt;
  }
  return message;
}

// Appends as many of `ranges` as take `bytes_max` bytes, and counts the rest.
// Returns the bytes taken.
size_t AddRanges(const Ranges& ranges, size_t bytes_max, Culprits* culprits) {
  size_t bytes = 0;
  int64_t end = 0;
  for (const auto& [first, range_end] : ranges) {
    const auto gap = static_cast<uint32_t>(first - end);
    const auto count = static_cast<uint32_t>(range_end - first);
    bytes += VarintBytes(gap) + VarintBytes(count);
    end = range_end;
    if (culprits == nullptr) continue;
    if (bytes > bytes_max) {
      // Later ranges are left out, too: gaps count from the previous one.
      Omit(count, *culprits);
      continue;
    }
    culprits->add_others(gap);
    culprits->add_others(count);
  }
  return bytes;
}

}  // namespace

WireStatus ToWire(const Status& status) {
  WireStatus wire;
  if (status.ok()) return wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(Utf8(status.message()));
  status.ForEachPayload([&](const std::string& url, const std::string& bytes) {
    StatusPayload* payload = wire.add_payloads();
    payload->set_type_url(std::string(url));
    payload->set_value(std::string(bytes));
  });
  return wire;
}

Status FromWire(const WireStatus& wire) {
  return Make(wire.code(), wire.message(), wire);
}

grpc::Status ToGrpc(const Status& status) {
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

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  WireStatus wire;
  if (!wire.ParseFromString(status.error_details()) ||
      wire.code() != status.error_code()) {
    wire.Clear();
  }
  return Make(status.error_code(), status.error_message(), wire);
}

Culprits FitCulprits(const Culprits& culprits, size_t bytes_max) {
  if (culprits.others_size() == 0 && culprits.omitted() >= 0 &&
      culprits.ByteSizeLong() <= bytes_max) {
    return culprits;
  }
  // The bytes of `omitted` and of the tag and length of `others`.
  constexpr size_t kFrame = 16;
  Culprits counted;
  const size_t all_ranges =
      AddRanges(AddOthers(culprits, 0, counted), 0, nullptr);
  // A rank is worth more than a description, but some room is for descriptions.
  const size_t for_members =
      std::max(bytes_max / 4,
               bytes_max - std::min(bytes_max - kFrame, all_ranges) - kFrame);
  Culprits fitting;
  Omit(std::max(0, culprits.omitted()), fitting);
  size_t used = kFrame;
  int kept = 0;
  for (; kept < culprits.members_size(); ++kept) {
    // Tag and length take four bytes for any member that fits at all.
    const size_t bytes = culprits.members(kept).ByteSizeLong() + 4;
    if (used + bytes > for_members + kFrame) break;
    used += bytes;
    *fitting.add_members() = culprits.members(kept);
  }
  AddRanges(AddOthers(culprits, kept, fitting),
            bytes_max - std::min(bytes_max, used), &fitting);
  return fitting;
}

void SetCulprits(const Culprits& culprits, Status* status) {
  status->SetPayload(kCulpritsUrl, culprits.SerializeAsString());
}

absl::optional<Culprits> GetCulprits(const Status& status) {
  return GetPayload<Culprits>(kCulpritsUrl, status);
}

void SetJobOwner(const JobOwner& owner, Status* status) {
  status->SetPayload(kJobOwnerUrl, owner.SerializeAsString());
}

absl::optional<JobOwner> GetJobOwner(const Status& status) {
  return GetPayload<JobOwner>(kJobOwnerUrl, status);
}

}  // namespace muster::v1
