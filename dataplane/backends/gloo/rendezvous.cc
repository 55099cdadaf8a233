#include "dataplane/backends/gloo/rendezvous.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "dataplane/bootstrap_store.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::gloo_internal {
namespace {

// First byte of the value; another layout takes another.
constexpr char kLayout = 2;

constexpr size_t kPortOffset = 2;
constexpr size_t kPortBytes = 2;

constexpr size_t kHostOffset = sizeof(kLayout) + sizeof(Published::nonce);

// Gloo leaves what an address does not use uninitialised.
void ClearUnused(AddressBytes& address) {
  const size_t storage_bytes = sizeof(sockaddr_storage);
  if (address.size() < storage_bytes) return;
  sa_family_t family = 0;
  std::memcpy(&family, address.data(), sizeof(family));
  const size_t used_bytes = family == AF_INET ? offsetof(sockaddr_in, sin_zero)
                                              : sizeof(sockaddr_in6);
  std::memset(address.data() + used_bytes, 0, storage_bytes - used_bytes);
}

absl::Status Unreadable(const std::string& value, int world_size) {
  return absl::InvalidArgumentError(absl::StrCat(
      "unreadable gloo address of ", value.size(), " bytes for a group of ",
      world_size,
      "; does every rank run the same version with the same world size?"));
}

std::string KeyOf(int rank) { return absl::StrCat("gloo/", rank); }

}  // namespace

std::string DescribeRanks(const std::vector<int>& ranks) {
  constexpr size_t kShownMax = 8;
  const size_t shown = std::min(ranks.size(), kShownMax);
  std::string text = absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(absl::MakeConstSpan(ranks).first(shown), ", "));
  if (shown < ranks.size()) {
    absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  }
  return text;
}

absl::StatusOr<std::string> EncodeAddresses(const Published& published) {
  AddressBytes host;
  std::string ports;
  for (const AddressBytes& address : published.addresses) {
    if (address.empty()) {  // This rank itself, without lines.
      ports.append(kPortBytes, '\0');
      continue;
    }
    if (address.size() < kPortOffset + kPortBytes) {
      return absl::InternalError(
          absl::StrCat("gloo address of ", address.size(), " bytes"));
    }
    AddressBytes without_port = address;
    const auto port = without_port.begin() + kPortOffset;
    ports.append(port, port + kPortBytes);
    std::fill(port, port + kPortBytes, '\0');
    ClearUnused(without_port);
    if (host.empty()) host = without_port;
    if (host != without_port) {
      return absl::InternalError("gloo pairs listen on different hosts");
    }
  }
  std::string value(kHostOffset, kLayout);
  std::memcpy(value.data() + sizeof(kLayout), &published.nonce,
              sizeof(published.nonce));
  value.append(host.begin(), host.end());
  value.append(ports);
  return value;
}

absl::StatusOr<Published> DecodeAddresses(const std::string& value,
                                          int world_size) {
  const size_t ports_bytes = static_cast<size_t>(world_size) * kPortBytes;
  if (value.size() < kHostOffset + kPortOffset + kPortBytes + ports_bytes ||
      value[0] != kLayout) {
    return Unreadable(value, world_size);
  }
  const char* port = value.data() + value.size() - ports_bytes;
  const AddressBytes host(value.data() + kHostOffset, port);
  Published published = {.addresses =
                             std::vector<AddressBytes>(world_size, host)};
  std::memcpy(&published.nonce, value.data() + sizeof(kLayout),
              sizeof(published.nonce));
  for (AddressBytes& address : published.addresses) {
    std::memcpy(address.data() + kPortOffset, port, kPortBytes);
    port += kPortBytes;
  }
  return published;
}

absl::StatusOr<PeerAddresses> ExchangeAddresses(const Published& published,
                                                const BackendOptions& options) {
  absl::StatusOr<std::string> own = EncodeAddresses(published);
  if (!own.ok()) return own.status();
  absl::Status set = options.store->Set(KeyOf(options.rank), *own);
  if (!set.ok()) return set;

  std::vector<int> peers;
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (rank == options.rank) continue;
    peers.push_back(rank);
    keys.push_back(KeyOf(rank));
  }
  absl::StatusOr<std::vector<std::string>> values =
      options.store->Get(keys, options.deadline);
  if (!values.ok()) {
    if (!absl::IsDeadlineExceeded(values.status())) return values.status();
    // Which of them: ask for each, now that waiting is over.
    std::vector<int> missing;
    for (const int peer : peers) {
      if (!options.store->Get({KeyOf(peer)}, Clock::now()).ok()) {
        missing.push_back(peer);
      }
    }
    if (missing.empty()) return values.status();
    absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        options.world_size - missing.size(), " of ", options.world_size,
        " ranks came to the rendezvous in time; missing ",
        DescribeRanks(missing)));
    SetCulpritRank(status, missing.front());
    return status;
  }
  if (values->size() != peers.size()) {
    return absl::InternalError(absl::StrCat("the bootstrap store returned ",
                                            values->size(), " values for ",
                                            peers.size(), " keys"));
  }
  PeerAddresses result;
  result.pairs.resize(options.world_size);
  result.lines.resize(options.world_size);
  for (size_t i = 0; i < peers.size(); ++i) {
    // All have one length; another is that of another world size, too.
    absl::StatusOr<Published> decoded =
        (*values)[i].size() == own->size()
            ? DecodeAddresses((*values)[i], options.world_size)
            : Unreadable((*values)[i], options.world_size);
    if (!decoded.ok()) {
      absl::Status status(
          decoded.status().code(),
          absl::StrCat("rank ", peers[i], ": ", decoded.status().message()));
      SetCulpritRank(status, peers[i]);
      return status;
    }
    result.pairs[peers[i]] = std::move(decoded->addresses[options.rank]);
    result.lines[peers[i]] = {std::move(decoded->addresses[peers[i]]),
                              decoded->nonce};
  }
  return result;
}

}  // namespace muster::dataplane::gloo_internal
