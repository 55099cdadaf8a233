#include "proto/muster/v1/status_wire.h"

#include <cstddef>
#include <cstdint>
#include <string>

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
  Culprits fitting;
  // The room of `omitted` itself.
  size_t used = 8;
  for (const MemberInfo& member : culprits.members()) {
    // Tag and length take four bytes for any member that fits at all.
    used += member.ByteSizeLong() + 4;
    if (used > bytes_max) break;
    *fitting.add_members() = member;
  }
  fitting.set_omitted(culprits.omitted() + culprits.members_size() -
                      fitting.members_size());
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
