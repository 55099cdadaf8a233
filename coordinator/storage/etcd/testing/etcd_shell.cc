// A client of etcd that is driven by lines on stdin, for tests:
//
//   put KEY VALUE | get KEY | fill KEY BYTES | grant SECONDS | keep LEASE
//   MEMBER_TIMEOUT_MS | revoke LEASE
//
// Prints a line for each: OK and a result, or the error. The arguments are
// NAME=VALUE, with the names of EtcdOptions.

#include <chrono>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/storage/etcd/etcd.pb.h"
#include "coordinator/storage/etcd/etcd_client.h"

namespace muster::coordinator {
namespace {

Status Put(EtcdKv& etcd, const std::string& key, const std::string& value) {
  etcdserverpb::TxnRequest request;
  auto* put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(value);
  etcdserverpb::TxnResponse response;
  return etcd.Txn(request, response);
}

StatusOr<std::string> Get(EtcdKv& etcd, const std::string& key) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  etcdserverpb::RangeResponse response;
  Status status = etcd.Range(request, response);
  if (!status.ok()) return status;
  if (response.kvs_size() == 0) return NotFoundError(key);
  return response.kvs(0).value();
}

StatusOr<std::string> Run(EtcdKv& etcd, const std::string& line) {
  std::istringstream words(line);
  std::string command, key;
  words >> command;
  Status status = InvalidArgumentError(line);
  if (command == "put") {
    std::string value;
    words >> key >> value;
    status = Put(etcd, key, value);
  } else if (command == "fill") {
    size_t bytes = 0;
    words >> key >> bytes;
    status = Put(etcd, key, std::string(bytes, 'x'));
  } else if (command == "get") {
    words >> key;
    return Get(etcd, key);
  } else if (command == "grant") {
    int64_t seconds = 0;
    words >> seconds;
    const auto lease = etcd.GrantLease(std::chrono::seconds(seconds));
    if (lease.ok()) return absl::StrCat(*lease);
    status = lease.status();
  } else if (command == "keep") {
    int64_t lease = 0, timeout_ms = 0;
    words >> lease >> timeout_ms;
    status = etcd.KeepLeaseAlive(lease, std::chrono::milliseconds(timeout_ms));
  } else if (command == "revoke") {
    int64_t lease = 0;
    words >> lease;
    status = etcd.RevokeLease(lease);
  }
  if (!status.ok()) return status;
  return std::string();
}

int Main(const std::vector<std::string>& arguments) {
  EtcdOptions options;
  for (const std::string& argument : arguments) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    const auto& [name, value] = option;
    if (name == "endpoints") options.endpoints = absl::StrSplit(value, ',');
    if (name == "ca") options.ca = value;
    if (name == "cert") options.cert = value;
    if (name == "key") options.key = value;
    if (name == "user") options.user = value;
  }
  const auto etcd = MakeEtcdClient(options);
  if (!etcd.ok()) {
    std::cout << etcd.status() << std::endl;
    return 1;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    const StatusOr<std::string> result = Run(**etcd, line);
    if (result.ok()) {
      std::cout << "OK " << *result << std::endl;
    } else {
      std::cout << result.status() << std::endl;
    }
  }
  return 0;
}

}  // namespace
}  // namespace muster::coordinator

int main(int argc, char** argv) {
  return muster::coordinator::Main({argv + 1, argv + argc});
}
