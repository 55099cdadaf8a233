#include "dataplane/cpu/transport/address_exchange.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/culprit.h"
#include "muster/base/status.h"
#include "muster/dataplane/bootstrap_store.h"

namespace muster::dataplane::cpu {
namespace {

// The first byte of the value. Change it with this layout or with the protocol
// between ranks.
constexpr char kLayout = 6;

// Stands before the socket address.
struct Head {
  char layout = kLayout;
  char unused = 0;
  // The number of interfaces less one.
  uint16_t more_interfaces = 0;
  int32_t world_size = 0;
  uint64_t nonce = 0;
  uint64_t tuning = 0;
  char backend[8] = {};
  char transport[8] = {};
};

Status Unreadable(const std::string& value, int world_size) {
  return InvalidArgumentError(absl::StrCat(
      "unreadable gloo address of ", value.size(), " bytes for a group of ",
      world_size,
      "; does every rank run the same version with the same world size?"));
}

std::string DescribeInterfaces(int count) {
  return absl::StrCat(count, " network interface", count == 1 ? "" : "s");
}

std::string DescribeTuning(uint64_t digest) {
  return digest == 0 ? "none" : absl::StrCat("one (", absl::Hex(digest), ")");
}

std::string MakeKey(int rank) { return absl::StrCat("gloo/", rank); }

}  // namespace

size_t AddressSize(const AddressBytes& address) {
  sa_family_t family = 0;
  std::memcpy(&family, address.data(), sizeof(family));
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::string EncodeAddress(const RankAddress& address, int world_size) {
  Head head = {.more_interfaces = static_cast<uint16_t>(address.interfaces - 1),
               .world_size = world_size,
               .nonce = address.nonce,
               .tuning = address.tuning};
  address.backend.copy(head.backend, sizeof(head.backend));
  address.transport.copy(head.transport, sizeof(head.transport));
  std::string value(reinterpret_cast<const char*>(&head), sizeof(head));
  value.append(address.socket.data(), AddressSize(address.socket));
  return value;
}

StatusOr<RankAddress> DecodeAddress(const std::string& value, int world_size) {
  Head head;
  if (value.size() < sizeof(head) + sizeof(sockaddr_in)) {
    return Unreadable(value, world_size);
  }
  std::memcpy(&head, value.data(), sizeof(head));
  RankAddress address = {
      .socket = {value.begin() + sizeof(head), value.end()},
      .nonce = head.nonce,
      .backend = std::string(head.backend,
                             strnlen(head.backend, sizeof(head.backend))),
      .transport = std::string(head.transport,
                               strnlen(head.transport, sizeof(head.transport))),
      .interfaces = 1 + head.more_interfaces,
      .tuning = head.tuning};
  if (head.layout != kLayout || head.world_size != world_size ||
      address.socket.size() != AddressSize(address.socket)) {
    return Unreadable(value, world_size);
  }
  return address;
}

namespace {

// The error of a rendezvous that timed out. Asks for each key without waiting.
Status NameTheMissing(const Status& timeout, const std::vector<int>& peers,
                      const BackendOptions& options) {
  std::vector<int> missing;
  for (const int peer : peers) {
    const Status came =
        options.store->Get({MakeKey(peer)}, Clock::now()).status();
    if (IsDeadlineExceeded(came)) missing.push_back(peer);
  }
  if (missing.empty()) return timeout;
  Status status = DeadlineExceededError(absl::StrCat(
      options.world_size - missing.size(), " of ", options.world_size,
      " ranks came to the rendezvous in time; missing ",
      base::RanksText(missing)));
  SetCulpritRanks(status, missing);
  return status;
}

// Returns how the address of `peer` shows that it was set up differently, or
// an empty text.
std::string FindDifference(int peer, const RankAddress& theirs, int rank,
                           const RankAddress& own) {
  if (theirs.backend != own.backend) {
    return absl::StrCat("rank ", peer, " has backend ",
                        base::Quote(theirs.backend), ", rank ", rank, " ",
                        base::Quote(own.backend),
                        ": the ranks of a group must have the same");
  }
  if (theirs.transport != own.transport) {
    return absl::StrCat(
        "rank ", peer, " has transport ", base::Quote(theirs.transport),
        ", rank ", rank, " ", base::Quote(own.transport),
        ": cpu_transport, MUSTER_CPU_TRANSPORT and GLOO_DEVICE_TRANSPORT must "
        "be the same on every rank");
  }
  if (theirs.interfaces != own.interfaces) {
    return absl::StrCat("rank ", peer, " uses ",
                        DescribeInterfaces(theirs.interfaces), ", rank ", rank,
                        " ", DescribeInterfaces(own.interfaces),
                        ": GLOO_SOCKET_IFNAME must name as many on every rank");
  }
  if (theirs.tuning != own.tuning) {
    return absl::StrCat(
        "environment variable MUSTER_TUNE_FILE must name a file with the "
        "same rows on every rank: rank ",
        peer, " has ", DescribeTuning(theirs.tuning), ", rank ", rank, " ",
        DescribeTuning(own.tuning));
  }
  return "";
}

}  // namespace

StatusOr<std::vector<RankAddress>> ExchangeAddresses(
    const RankAddress& own, const BackendOptions& options) {
  Status set = options.store->Set(MakeKey(options.rank),
                                  EncodeAddress(own, options.world_size));
  if (!set.ok()) return set;

  std::vector<int> peers;
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (rank == options.rank) continue;
    peers.push_back(rank);
    keys.push_back(MakeKey(rank));
  }
  StatusOr<std::vector<std::string>> values =
      options.store->Get(keys, options.deadline);
  if (IsDeadlineExceeded(values.status())) {
    return NameTheMissing(values.status(), peers, options);
  }
  if (!values.ok()) return values.status();
  if (values->size() != peers.size()) {
    return InternalError(absl::StrCat("the bootstrap store returned ",
                                      values->size(), " values for ",
                                      peers.size(), " keys"));
  }
  std::vector<RankAddress> addresses(options.world_size);
  for (size_t i = 0; i < peers.size(); ++i) {
    const int peer = peers[i];
    StatusOr<RankAddress> decoded =
        DecodeAddress((*values)[i], options.world_size);
    Status status;
    if (!decoded.ok()) {
      status =
          Status(decoded.status().code(),
                 absl::StrCat("rank ", peer, ": ", decoded.status().message()));
    } else if (const std::string difference =
                   FindDifference(peer, *decoded, options.rank, own);
               !difference.empty()) {
      status = InvalidArgumentError(difference);
    }
    if (!status.ok()) {
      SetCulpritRank(status, peer);
      return status;
    }
    addresses[peer] = *std::move(decoded);
  }
  return addresses;
}

}  // namespace muster::dataplane::cpu
