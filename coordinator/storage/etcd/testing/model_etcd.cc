#include "coordinator/storage/etcd/testing/model_etcd.h"

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/storage/etcd/etcd.pb.h"

namespace muster::coordinator::testing {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;

constexpr size_t kRequestBytesMax = 3 << 19;
constexpr int kOpsMax = 128;
// Shorter leases are made this long.
constexpr std::chrono::seconds kTtlMin{2};

// The keys that a range or a deletion means.
template <typename Request>
std::pair<std::string, std::string> ToInterval(const Request& request) {
  std::string end = request.range_end();
  // Without an end it is the key alone; the end "\0" is no end.
  if (end.empty()) end = request.key() + '\0';
  if (end == std::string(1, '\0')) end = std::string(64, '\xff');
  return {request.key(), end};
}

bool Puts(const TxnRequest& request) {
  const auto puts = [](const RequestOp& op) {
    return op.has_request_put() ||
           (op.has_request_txn() && Puts(op.request_txn()));
  };
  return std::any_of(request.success().begin(), request.success().end(),
                     puts) ||
         std::any_of(request.failure().begin(), request.failure().end(), puts);
}

// The operations around a nested transaction count with its own.
Status CheckCounts(const TxnRequest& request, int ops_max) {
  const int ops = std::max(
      {request.compare_size(), request.success_size(), request.failure_size()});
  if (ops > ops_max) {
    return InvalidArgumentError("too many operations in txn request");
  }
  for (const auto* branch : {&request.success(), &request.failure()}) {
    for (const RequestOp& op : *branch) {
      if (!op.has_request_txn()) continue;
      Status status = CheckCounts(op.request_txn(), ops_max - ops);
      if (!status.ok()) return status;
    }
  }
  return OkStatus();
}

// The keys that a list of operations may put and delete.
struct Written {
  std::set<std::string> puts;
  std::vector<std::pair<std::string, std::string>> deletions;
};

Status DuplicateError() {
  return InvalidArgumentError("duplicate key given in txn request");
}

bool Deletes(const Written& written, const std::string& key) {
  return std::any_of(written.deletions.begin(), written.deletions.end(),
                     [&](const auto& range) {
                       return range.first <= key && key < range.second;
                     });
}

// Adds what `ops` write to `all`. No key is put twice, or put and deleted; but
// the two branches of one nested transaction may put the same key.
template <typename Ops>
Status CheckKeys(const Ops& ops, Written& all) {
  for (const RequestOp& op : ops) {
    if (op.has_request_delete_range()) {
      all.deletions.push_back(ToInterval(op.request_delete_range()));
    }
  }
  for (const RequestOp& op : ops) {
    if (!op.has_request_txn()) continue;
    Written success, failure;
    Status status = CheckKeys(op.request_txn().success(), success);
    if (!status.ok()) return status;
    status = CheckKeys(op.request_txn().failure(), failure);
    if (!status.ok()) return status;
    std::set<std::string> nested = success.puts;
    nested.insert(failure.puts.begin(), failure.puts.end());
    for (const std::string& key : nested) {
      if (Deletes(all, key) || !all.puts.insert(key).second) {
        return DuplicateError();
      }
    }
    for (const Written* branch : {&success, &failure}) {
      all.deletions.insert(all.deletions.end(), branch->deletions.begin(),
                           branch->deletions.end());
    }
  }
  for (const RequestOp& op : ops) {
    if (!op.has_request_put()) continue;
    const std::string& key = op.request_put().key();
    if (Deletes(all, key) || !all.puts.insert(key).second) {
      return DuplicateError();
    }
  }
  return OkStatus();
}

}  // namespace

void ModelEtcd::SetFates(std::function<Fate()> next) {
  MutexLock lock(mu_);
  fates_ = std::move(next);
}

void ModelEtcd::Put(const std::string& key, const std::string& value) {
  MutexLock lock(mu_);
  Set(key, &value, 0);
  Conclude();
}

void ModelEtcd::Erase(const std::string& key) {
  MutexLock lock(mu_);
  Set(key, nullptr, 0);
  Conclude();
}

void ModelEtcd::CompactBefore(int64_t request) {
  MutexLock lock(mu_);
  compact_at_ = requests_ + request;
}

void ModelEtcd::AdvanceClock(std::chrono::milliseconds time) {
  MutexLock lock(mu_);
  clock_ += time;
  for (auto it = leases_.begin(); it != leases_.end();) {
    const auto lease = it++;
    if (lease->second.end <= clock_) EndLease(lease->first);
  }
}

int64_t ModelEtcd::ModRevision(const std::string& key) {
  MutexLock lock(mu_);
  const Value* value = Find(key, revision_);
  return value == nullptr ? 0 : value->mod_revision;
}

std::vector<std::string> ModelEtcd::Keys() {
  MutexLock lock(mu_);
  return KeysIn({"", std::string(64, '\xff')}, revision_);
}

int64_t ModelEtcd::compacted() {
  MutexLock lock(mu_);
  return compacted_;
}

int64_t ModelEtcd::requests() {
  MutexLock lock(mu_);
  return requests_;
}

const ModelEtcd::Value* ModelEtcd::Find(const std::string& key,
                                        int64_t revision) const {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return nullptr;
  auto it = found->second.upper_bound(revision);
  if (it == found->second.begin()) return nullptr;
  --it;
  return it->second.version == 0 ? nullptr : &it->second;
}

std::vector<std::string> ModelEtcd::KeysIn(const Interval& interval,
                                           int64_t revision) const {
  std::vector<std::string> keys;
  const auto end = keys_.lower_bound(interval.second);
  for (auto it = keys_.lower_bound(interval.first);
       it != end && it->first < interval.second; ++it) {
    if (Find(it->first, revision) != nullptr) keys.push_back(it->first);
  }
  return keys;
}

void ModelEtcd::Set(const std::string& key, const std::string* bytes,
                    int64_t lease) {
  const Value* before = Find(key, Newest());
  if (bytes == nullptr && before == nullptr) return;
  Value value;
  value.mod_revision = revision_ + 1;
  value.create_revision =
      before == nullptr ? value.mod_revision : before->create_revision;
  if (bytes != nullptr) {
    value.bytes = *bytes;
    value.version = before == nullptr ? 1 : before->version + 1;
    value.lease = lease;
  }
  keys_[key][value.mod_revision] = std::move(value);
  changed_ = true;
}

void ModelEtcd::Conclude() {
  revision_ = Newest();
  changed_ = false;
}

void ModelEtcd::EndLease(int64_t lease) {
  leases_.erase(lease);
  for (const auto& [key, values] : keys_) {
    const Value* value = Find(key, revision_);
    if (value != nullptr && value->lease == lease) Set(key, nullptr, 0);
  }
  Conclude();
}

Status ModelEtcd::Begin(bool puts, Fate* fate) {
  if (++requests_ == compact_at_) {
    const std::string nothing;
    Set("another client's", &nothing, 0);
    Conclude();
    compacted_ = revision_;
  }
  RunLate();
  *fate = fates_ == nullptr ? Fate::kAnswered : fates_();
  if (*fate == Fate::kNotApplied) return UnavailableError("no leader");
  if (*fate == Fate::kRefused) {
    return PermissionDeniedError("permission denied");
  }
  if (*fate == Fate::kNoSpace && puts) {
    return ResourceExhaustedError("database space exceeded");
  }
  return OkStatus();
}

Status ModelEtcd::CheckRevision(int64_t revision) const {
  if (revision > revision_) return OutOfRangeError("future revision");
  if (revision > 0 && revision < compacted_) {
    return OutOfRangeError("compacted");
  }
  return OkStatus();
}

void ModelEtcd::ReadRange(const etcdserverpb::RangeRequest& request,
                          etcdserverpb::RangeResponse& response) {
  const int64_t revision =
      request.revision() == 0 ? Newest() : request.revision();
  response.mutable_header()->set_revision(Newest());
  const std::vector<std::string> keys = KeysIn(ToInterval(request), revision);
  response.set_count(static_cast<int64_t>(keys.size()));
  if (request.count_only()) return;
  for (const std::string& key : keys) {
    if (request.limit() > 0 && response.kvs_size() == request.limit()) {
      response.set_more(true);
      break;
    }
    const Value* value = Find(key, revision);
    auto* kv = response.add_kvs();
    kv->set_key(key);
    if (!request.keys_only()) kv->set_value(value->bytes);
    kv->set_create_revision(value->create_revision);
    kv->set_mod_revision(value->mod_revision);
    kv->set_version(value->version);
    kv->set_lease(value->lease);
  }
}

Status ModelEtcd::Range(const etcdserverpb::RangeRequest& request,
                        etcdserverpb::RangeResponse& response) {
  MutexLock lock(mu_);
  response.Clear();
  Fate fate;
  Status status = Begin(/*puts=*/false, &fate);
  if (!status.ok()) return status;
  status = CheckRevision(request.revision());
  if (status.ok()) ReadRange(request, response);
  return fate == Fate::kLost ? UnavailableError("lost") : status;
}

bool ModelEtcd::Holds(const Compare& compare) const {
  const Value* found = Find(compare.key(), revision_);
  // A key that does not exist has no value, and 0 for all numbers.
  if (found == nullptr && compare.target() == Compare::VALUE) return false;
  const Value value = found == nullptr ? Value() : *found;
  const auto order = [](const auto& a, const auto& b) {
    return a < b ? -1 : b < a ? 1 : 0;
  };
  int ordered = 0;
  switch (compare.target()) {
    case Compare::VERSION:
      ordered = order(value.version, compare.version());
      break;
    case Compare::CREATE:
      ordered = order(value.create_revision, compare.create_revision());
      break;
    case Compare::MOD:
      ordered = order(value.mod_revision, compare.mod_revision());
      break;
    case Compare::VALUE:
      ordered = order(value.bytes, compare.value());
      break;
    default:
      ordered = order(value.lease, compare.lease());
  }
  switch (compare.result()) {
    case Compare::EQUAL:
      return ordered == 0;
    case Compare::GREATER:
      return ordered > 0;
    case Compare::LESS:
      return ordered < 0;
    default:
      return ordered != 0;
  }
}

// The outcomes of a transaction and of those nested in the branch it takes, in
// their order.
void ModelEtcd::Decide(const TxnRequest& request,
                       std::vector<bool>& outcomes) const {
  bool holds = true;
  for (const Compare& compare : request.compare()) holds &= Holds(compare);
  outcomes.push_back(holds);
  for (const RequestOp& op : holds ? request.success() : request.failure()) {
    if (op.has_request_txn()) Decide(op.request_txn(), outcomes);
  }
}

Status ModelEtcd::CheckOps(const TxnRequest& request,
                           std::vector<bool>::const_iterator& outcome) const {
  for (const RequestOp& op :
       *outcome++ ? request.success() : request.failure()) {
    Status status;
    if (op.has_request_range()) {
      status = CheckRevision(op.request_range().revision());
    } else if (op.has_request_put()) {
      const int64_t lease = op.request_put().lease();
      if (lease != 0 && !leases_.contains(lease)) {
        status = NotFoundError("requested lease not found");
      }
    } else if (op.has_request_txn()) {
      status = CheckOps(op.request_txn(), outcome);
    }
    if (!status.ok()) return status;
  }
  return OkStatus();
}

void ModelEtcd::Apply(const TxnRequest& request,
                      std::vector<bool>::const_iterator& outcome,
                      etcdserverpb::TxnResponse& response) {
  response.set_succeeded(*outcome++);
  for (const RequestOp& op :
       response.succeeded() ? request.success() : request.failure()) {
    auto* answer = response.add_responses();
    if (op.has_request_range()) {
      ReadRange(op.request_range(), *answer->mutable_response_range());
    } else if (op.has_request_put()) {
      const auto& put = op.request_put();
      answer->mutable_response_put();
      Set(put.key(), &put.value(), put.lease());
    } else if (op.has_request_delete_range()) {
      const std::vector<std::string> keys =
          KeysIn(ToInterval(op.request_delete_range()), Newest());
      for (const std::string& key : keys) Set(key, nullptr, 0);
      answer->mutable_response_delete_range()->set_deleted(
          static_cast<int64_t>(keys.size()));
    } else {
      Apply(op.request_txn(), outcome, *answer->mutable_response_txn());
    }
  }
}

Status ModelEtcd::Txn(const TxnRequest& request,
                      etcdserverpb::TxnResponse& response) {
  MutexLock lock(mu_);
  response.Clear();
  Fate fate;
  Status status = Begin(Puts(request), &fate);
  if (!status.ok()) return status;
  if (request.ByteSizeLong() > kRequestBytesMax) {
    return InvalidArgumentError("request is too large");
  }
  status = CheckCounts(request, kOpsMax);
  for (const auto* branch : {&request.success(), &request.failure()}) {
    Written written;
    if (status.ok()) status = CheckKeys(*branch, written);
  }
  if (!status.ok()) return status;
  if (fate == Fate::kLate) {
    const int64_t delay = 1 + requests_ * 7 % 40;
    late_.emplace(requests_ + delay, request.SerializeAsString());
    return UnavailableError("late");
  }
  status = Run(request, response);
  return fate == Fate::kLost ? UnavailableError("lost") : status;
}

Status ModelEtcd::Run(const TxnRequest& request,
                      etcdserverpb::TxnResponse& response) {
  std::vector<bool> outcomes;
  Decide(request, outcomes);
  auto outcome = outcomes.cbegin();
  Status status = CheckOps(request, outcome);
  if (!status.ok()) return status;
  outcome = outcomes.cbegin();
  Apply(request, outcome, response);
  Conclude();
  response.mutable_header()->set_revision(revision_);
  return OkStatus();
}

void ModelEtcd::RunLate() {
  while (!late_.empty() && late_.begin()->first <= requests_) {
    TxnRequest request;
    request.ParseFromString(late_.begin()->second);
    late_.erase(late_.begin());
    etcdserverpb::TxnResponse response;
    Run(request, response).IgnoreError();
  }
}

Status ModelEtcd::Compact(const etcdserverpb::CompactionRequest& request,
                          etcdserverpb::CompactionResponse&) {
  MutexLock lock(mu_);
  Fate fate;
  Status status = Begin(/*puts=*/false, &fate);
  if (!status.ok()) return status;
  if (request.revision() <= compacted_) return OutOfRangeError("compacted");
  if (request.revision() > revision_) return OutOfRangeError("future revision");
  compacted_ = request.revision();
  return fate == Fate::kLost ? UnavailableError("lost") : OkStatus();
}

StatusOr<int64_t> ModelEtcd::GrantLease(std::chrono::seconds ttl) {
  MutexLock lock(mu_);
  Fate fate;
  Status status = Begin(/*puts=*/true, &fate);
  if (!status.ok()) return status;
  const std::chrono::milliseconds time = std::max(ttl, kTtlMin);
  leases_[++granted_] = {time, clock_ + time};
  if (fate == Fate::kLost) return UnavailableError("lost");
  return granted_;
}

Status ModelEtcd::KeepLeaseAlive(int64_t lease, std::chrono::milliseconds) {
  MutexLock lock(mu_);
  Fate fate;
  Status status = Begin(/*puts=*/false, &fate);
  if (!status.ok()) return status;
  const auto found = leases_.find(lease);
  if (found != leases_.end()) {
    found->second.end = clock_ + found->second.ttl;
  } else {
    status = NotFoundError("requested lease not found");
  }
  return fate == Fate::kLost ? UnavailableError("lost") : status;
}

Status ModelEtcd::RevokeLease(int64_t lease) {
  MutexLock lock(mu_);
  Fate fate;
  Status status = Begin(/*puts=*/false, &fate);
  if (!status.ok()) return status;
  if (leases_.contains(lease)) {
    EndLease(lease);
  } else {
    status = NotFoundError("requested lease not found");
  }
  return fate == Fate::kLost ? UnavailableError("lost") : status;
}

}  // namespace muster::coordinator::testing
