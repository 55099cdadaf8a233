#include "coordinator/storage/etcd/testing/model_etcd.h"

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/storage/etcd/etcd.pb.h"

namespace muster::coordinator::testing {
namespace {

constexpr size_t kRequestBytesMax = 3 << 19;
constexpr int kOpsMax = 128;

}  // namespace

void ModelEtcd::SetFates(std::function<Fate()> next) {
  MutexLock lock(mu_);
  fates_ = std::move(next);
}

void ModelEtcd::Put(const std::string& key, const std::string& value) {
  MutexLock lock(mu_);
  ++revision_;
  Set(key, value, false);
}

void ModelEtcd::Erase(const std::string& key) {
  MutexLock lock(mu_);
  ++revision_;
  Set(key, "", true);
}

void ModelEtcd::CompactBefore(int64_t request) {
  MutexLock lock(mu_);
  compact_at_ = requests_ + request;
}

int64_t ModelEtcd::CreateRevision(const std::string& key) {
  MutexLock lock(mu_);
  const Value* value = Find(key, revision_);
  return value == nullptr ? 0 : value->create_revision;
}

std::vector<std::string> ModelEtcd::Keys() {
  MutexLock lock(mu_);
  std::vector<std::string> keys;
  for (const auto& [key, values] : keys_) {
    if (Find(key, revision_) != nullptr) keys.push_back(key);
  }
  return keys;
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

void ModelEtcd::Set(const std::string& key, const std::string& bytes,
                    bool erased) {
  const Value* before = Find(key, revision_);
  if (erased && before == nullptr) return;
  Value value;
  value.bytes = bytes;
  value.mod_revision = revision_;
  value.create_revision =
      before == nullptr ? revision_ : before->create_revision;
  value.version = erased ? 0 : before == nullptr ? 1 : before->version + 1;
  keys_[key][revision_] = std::move(value);
}

Status ModelEtcd::Begin(bool writes, Fate* fate) {
  if (++requests_ == compact_at_) {
    ++revision_;
    Set("another client's", "", false);
    compacted_ = revision_;
  }
  *fate = fates_ == nullptr ? Fate::kAnswered : fates_();
  if (*fate == Fate::kNotApplied) return UnavailableError("no leader");
  if (*fate == Fate::kNoSpace && writes) {
    return ResourceExhaustedError("database space exceeded");
  }
  return OkStatus();
}

Status ModelEtcd::ReadRange(const etcdserverpb::RangeRequest& request,
                            etcdserverpb::RangeResponse& response) {
  const int64_t revision =
      request.revision() == 0 ? revision_ : request.revision();
  if (revision < compacted_) return OutOfRangeError("compacted");
  if (revision > revision_) return OutOfRangeError("future revision");
  response.mutable_header()->set_revision(revision_);
  auto it = keys_.lower_bound(request.key());
  const auto end = request.range_end().empty()
                       ? keys_.upper_bound(request.key())
                       : keys_.lower_bound(request.range_end());
  for (; it != end; ++it) {
    const Value* value = Find(it->first, revision);
    if (value == nullptr) continue;
    if (request.limit() > 0 && response.kvs_size() == request.limit()) {
      response.set_more(true);
      break;
    }
    auto* kv = response.add_kvs();
    kv->set_key(it->first);
    kv->set_value(value->bytes);
    kv->set_create_revision(value->create_revision);
    kv->set_mod_revision(value->mod_revision);
    kv->set_version(value->version);
  }
  return OkStatus();
}

Status ModelEtcd::Range(const etcdserverpb::RangeRequest& request,
                        etcdserverpb::RangeResponse& response) {
  MutexLock lock(mu_);
  response.Clear();
  Fate fate;
  Status status = Begin(/*writes=*/false, &fate);
  if (!status.ok()) return status;
  status = ReadRange(request, response);
  return fate == Fate::kLost ? UnavailableError("lost") : status;
}

Status ModelEtcd::Txn(const etcdserverpb::TxnRequest& request,
                      etcdserverpb::TxnResponse& response) {
  MutexLock lock(mu_);
  response.Clear();
  Fate fate;
  Status status = Begin(/*writes=*/true, &fate);
  if (!status.ok()) return status;
  if (request.ByteSizeLong() > kRequestBytesMax) {
    return InvalidArgumentError("request is too large");
  }
  if (std::max({request.compare_size(), request.success_size(),
                request.failure_size()}) > kOpsMax) {
    return InvalidArgumentError("too many operations in txn request");
  }
  bool holds = true;
  for (const auto& compare : request.compare()) {
    const Value* value = Find(compare.key(), revision_);
    if (compare.target() == etcdserverpb::Compare::VERSION) {
      holds &= (value == nullptr ? 0 : value->version) == compare.version();
    } else if (compare.target() == etcdserverpb::Compare::CREATE) {
      holds &= (value == nullptr ? 0 : value->create_revision) ==
               compare.create_revision();
    } else {
      return InvalidArgumentError("the model lacks this comparison");
    }
  }
  const auto& ops = holds ? request.success() : request.failure();
  std::set<std::string> written;
  bool changes = false;
  for (const auto& op : ops) changes |= !op.has_request_range();
  if (changes) ++revision_;
  response.set_succeeded(holds);
  response.mutable_header()->set_revision(revision_);
  for (const auto& op : ops) {
    auto* answer = response.add_responses();
    if (op.has_request_range()) {
      status = ReadRange(op.request_range(), *answer->mutable_response_range());
      if (!status.ok()) return status;
    } else if (op.has_request_put()) {
      if (!written.insert(op.request_put().key()).second) {
        return InvalidArgumentError("duplicate key given in txn request");
      }
      Set(op.request_put().key(), op.request_put().value(), false);
    } else {
      const auto& range = op.request_delete_range();
      std::vector<std::string> keys;
      for (auto it = keys_.lower_bound(range.key());
           it != keys_.end() && it->first < range.range_end(); ++it) {
        keys.push_back(it->first);
      }
      for (const std::string& key : keys) Set(key, "", true);
    }
  }
  return fate == Fate::kLost ? UnavailableError("lost") : OkStatus();
}

Status ModelEtcd::Compact(const etcdserverpb::CompactionRequest& request,
                          etcdserverpb::CompactionResponse&) {
  MutexLock lock(mu_);
  Fate fate;
  Status status = Begin(/*writes=*/false, &fate);
  if (!status.ok()) return status;
  if (request.revision() <= compacted_) return OutOfRangeError("compacted");
  if (request.revision() > revision_) return OutOfRangeError("future revision");
  compacted_ = request.revision();
  return fate == Fate::kLost ? UnavailableError("lost") : OkStatus();
}

}  // namespace muster::coordinator::testing
