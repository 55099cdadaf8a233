#include "dataplane/cpu/shm/topology.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

// FNV-1a.
uint64_t ComputeHash(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return hash == 0 ? 1 : hash;
}

// The contents of a small file.
std::string Contents(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return "";
  std::array<char, 64> bytes;
  const ssize_t count = read(descriptor, bytes.data(), bytes.size());
  const int error = errno;
  close(descriptor);
  errno = error;
  return {bytes.data(), static_cast<size_t>(std::max<ssize_t>(count, 0))};
}

// The target of a symbolic link.
std::string Target(const std::string& path) {
  std::array<char, 64> bytes;
  const ssize_t count = readlink(path.c_str(), bytes.data(), bytes.size());
  return {bytes.data(), static_cast<size_t>(std::max<ssize_t>(count, 0))};
}

}  // namespace

StatusOr<HostIdentity> IdentifyHost(absl::string_view address,
                                    const std::string& root) {
  const auto unreadable = [&](absl::string_view file) {
    return FailedPreconditionError(absl::StrCat(
        "cannot tell on which host it is: ", root, file, ": ",
        errno == 0
            ? "is empty"
            : std::error_code(errno, std::generic_category()).message()));
  };
  constexpr absl::string_view kBoot = "/proc/sys/kernel/random/boot_id";
  constexpr absl::string_view kNetwork = "/proc/self/ns/net";
  errno = 0;
  const std::string boot = Contents(absl::StrCat(root, kBoot));
  if (boot.empty()) return unreadable(kBoot);
  const std::string network = Target(absl::StrCat(root, kNetwork));
  if (network.empty()) return unreadable(kNetwork);
  const std::string processes = Target(root + "/proc/self/ns/pid");
  return HostIdentity{
      .host = ComputeHash(absl::StrCat(boot, network, address)),
      .processes = processes.empty() ? 0 : ComputeHash(processes)};
}

Topology::Topology(const std::vector<uint64_t>& identities, int rank)
    : rank_(rank) {
  std::map<uint64_t, int> numbers;
  for (const uint64_t identity : identities) {
    const int host = numbers.emplace(identity, static_cast<int>(numbers.size()))
                         .first->second;
    if (host == count()) ranks_.emplace_back();
    place_of_.push_back(static_cast<int>(ranks_[host].size()));
    ranks_[host].push_back(static_cast<int>(host_of_.size()));
    host_of_.push_back(host);
  }
  fewest_ = identities.size();
  for (const std::vector<int>& ranks : ranks_) {
    fewest_ = std::min(fewest_, ranks.size());
    most_ = std::max(most_, ranks.size());
  }
}

std::string DescribeStrangers(const Topology& hosts,
                              const std::vector<HostIdentity>& identities) {
  for (int host = 0; host < hosts.count(); ++host) {
    const int first = hosts.ranks(host).front();
    for (const int rank : hosts.ranks(host)) {
      const uint64_t known = identities[first].processes;
      if (identities[rank].processes == known) continue;
      return absl::StrCat(
          "ranks ", first, " and ", rank,
          " are on one host, but in containers with process numbers of their "
          "own, and cannot find each other's memory there (docker: "
          "--pid=host; Kubernetes: shareProcessNamespace, in one pod)");
    }
  }
  return "";
}

}  // namespace muster::dataplane::shm
