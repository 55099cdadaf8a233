#include "coordinator/storage/etcd/etcd_fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "coordinator/storage/etcd/etcd.pb.h"
#include "coordinator/storage/etcd/etcd_storage.h"
#include "coordinator/storage/etcd/fleet.pb.h"
#include "glog/logging.h"

namespace muster::coordinator {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr char kFormat[] = "muster fleet 1, 64 shards";
static_assert(kShards == 64);
// Between two looks at the fleet if there are calls for an unknown owner.
constexpr milliseconds kPokeInterval{10};
constexpr milliseconds kRetryInterval{50};
// A coordinator that loads shards for longer is not ready.
constexpr milliseconds kLoadTime{1'000};
// A shard that could not be loaded is tried again after this.
constexpr milliseconds kReloadInterval{1'000};
// The same trouble is in the log this often.
constexpr std::chrono::seconds kLogInterval{10};
constexpr size_t kThreadsMax = 8;

std::string ShardName(int shard) {
  return absl::StrCat(absl::Dec(shard, absl::kZeroPad2));
}

void AddCompare(TxnRequest& request, const std::string& key, int64_t version) {
  Compare* compare = request.add_compare();
  compare->set_target(Compare::VERSION);
  compare->set_key(key);
  compare->set_version(version);
}

void AddPut(TxnRequest& request, const std::string& key,
            const std::string& value, int64_t lease = 0) {
  auto* put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(value);
  put->set_lease(lease);
}

std::string Serialize(const FleetMember& member) {
  storage::v1::FleetMember message;
  message.set_address(member.address);
  message.set_http_address(member.http_address);
  message.set_version(member.version);
  message.set_epoch(member.epoch);
  message.set_draining(member.draining);
  return message.SerializeAsString();
}

StatusOr<FleetMember> ParseMember(const std::string& key,
                                  const std::string& value) {
  storage::v1::FleetMember message;
  if (!message.ParseFromString(value)) {
    return DataLossError(
        absl::StrCat("etcd: the key ", base::Quote(key), " is damaged"));
  }
  FleetMember member;
  member.address = message.address();
  member.http_address = message.http_address();
  member.version = message.version();
  member.epoch = message.epoch();
  member.draining = message.draining();
  return member;
}

// A coordinator whose lease has ended stores nothing, although etcd may still
// take it. The streams that it ends make it believe that members are lost.
Status LeaseEndedError() {
  return UnavailableError("etcd: the lease was not renewed in time");
}

}  // namespace

EtcdTrouble::EtcdTrouble(const EtcdFleetOptions& options)
    : clock_(options.clock), has_threads_(options.has_threads) {}

void EtcdTrouble::Count(const Status& status) {
  MutexLock lock(mu_);
  ++counts_[status.code()];
  const nanoseconds now = clock_();
  if (now < log_at_) return;
  log_at_ = now + kLogInterval;
  LOG(WARNING) << "storage_waits: cause=" << base::Quote(status.message());
}

bool EtcdTrouble::Wait(const Status& status) {
  Count(status);
  if (!has_threads_) return false;
  MutexLock lock(mu_);
  never_.WaitUntil(mu_, steady_clock::now() + kRetryInterval);
  return true;
}

std::map<StatusCode, int64_t> EtcdTrouble::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

// A shard's storage, for one ownership. It may live longer than the fleet.
class EtcdFleet::OwnedStorage final : public Storage {
 public:
  // `fail` is called by Write and ErasePrefix.
  OwnedStorage(std::shared_ptr<EtcdKv> etcd, std::shared_ptr<EtcdLease> lease,
               std::shared_ptr<EtcdTrouble> trouble, EtcdStorageOptions options,
               std::function<void()> fail)
      : etcd_(std::move(etcd)),
        lease_(std::move(lease)),
        trouble_(std::move(trouble)),
        fail_(std::move(fail)),
        storage_(*etcd_, WithRetries(std::move(options))) {}

  Status Load(
      absl::FunctionRef<Status(absl::string_view key, absl::string_view value)>
          entry) override {
    return storage_.Load(entry);
  }
  Status Write(const std::vector<StorageChange>& changes) override {
    return Check(owned() ? storage_.Write(changes) : LeaseEndedError());
  }
  Status ErasePrefix(absl::string_view prefix) override {
    return Check(owned() ? storage_.ErasePrefix(prefix) : LeaseEndedError());
  }
  Status Sync() override { return storage_.Sync(); }
  bool owned() const override { return lease_->valid(); }
  Status health() const override { return storage_.health(); }

 private:
  EtcdStorageOptions WithRetries(EtcdStorageOptions options) {
    options.try_again = [this](const Status& status) {
      return lease_->valid() && trouble_->Wait(status) && lease_->valid();
    };
    return options;
  }

  Status Check(const Status& status) {
    if (status.ok()) return status;
    trouble_->Count(status);
    fail_();
    return status;
  }

  const std::shared_ptr<EtcdKv> etcd_;
  const std::shared_ptr<EtcdLease> lease_;
  const std::shared_ptr<EtcdTrouble> trouble_;
  const std::function<void()> fail_;
  EtcdStorage storage_;
};

EtcdFleet::EtcdFleet(std::shared_ptr<EtcdKv> etcd, EtcdFleetOptions options,
                     FleetMember self, FleetHost& host)
    : etcd_(std::move(etcd)),
      options_(std::move(options)),
      trouble_(std::make_shared<EtcdTrouble>(options_)),
      host_(host),
      self_(std::move(self)) {}

EtcdFleet::~EtcdFleet() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  Resign("the coordinator ends");
}

Status EtcdFleet::Start() {
  const Status status = Step();
  if (!status.ok() && !IsUnavailable(status)) return status;
  if (options_.has_threads) thread_ = std::thread([this] { Loop(); });
  return OkStatus();
}

void EtcdFleet::Loop() {
  while (true) {
    {
      MutexLock lock(mu_);
      const auto start = steady_clock::now();
      while (!stopping_ &&
             steady_clock::now() <
                 start + (poked_ ? kPokeInterval : options_.poll_interval)) {
        changed_.WaitUntil(
            mu_, start + (poked_ ? kPokeInterval : options_.poll_interval));
      }
      if (stopping_) return;
      poked_ = false;
    }
    const Status status = Step();
    if (!status.ok()) trouble_->Count(status);
  }
}

void EtcdFleet::Poke() {
  {
    MutexLock lock(mu_);
    poked_ = true;
  }
  changed_.NotifyAll();
}

std::string EtcdFleet::Key(const char* folder, const std::string& name) const {
  return absl::StrCat(options_.prefix, "fleet/", folder, name);
}

Status EtcdFleet::Step() {
  if (lease_ != nullptr && !lease_->valid()) {
    Resign("the lease was not renewed in time");
  }
  Status status = lease_ == nullptr ? Join() : OkStatus();
  if (!status.ok()) return status;
  bool leaving = false;
  {
    MutexLock lock(mu_);
    leaving = leaving_;
  }
  if (leaving && !self_.draining) {
    self_.draining = true;
    status = PutSelf();
    self_.draining = status.ok();
    if (!status.ok()) return status;
  }
  StatusOr<FleetState> state = Read();
  if (!state.ok()) return state.status();
  FleetPlan plan = MakePlan(*state, id_, IsSettled(*state));
  if (!plan.claim.empty()) {
    status = Claim(plan.claim);
    if (!status.ok()) return status;
    state = Read();
    if (!state.ok()) return state.status();
    plan = MakePlan(*state, id_, false);
  }
  if (!state->members.contains(id_)) {
    // An operator has deleted it, or etcd has an older state.
    Resign("the coordinator's key in etcd is gone");
    return UnavailableError("etcd: the coordinator's key is gone");
  }
  Publish(*state);
  LoseWhatIsGone(*state);
  TakeAll(*state);
  ForEach(plan.hand_over.size(), [&](size_t i) {
    HandOver(plan.hand_over[i].first, plan.hand_over[i].second, *state);
  });
  {
    MutexLock lock(mu_);
    // Without anybody to take them, the shards stay.
    left_ = self_.draining && (mine_.empty() || plan.hand_over.empty());
  }
  changed_.NotifyAll();
  return OkStatus();
}

Status EtcdFleet::Join() {
  EtcdLeaseOptions lease;
  lease.ttl = options_.lease;
  lease.on_end = [this] { Poke(); };
  lease.clock = options_.clock;
  lease.has_thread = options_.has_threads;
  StatusOr<std::shared_ptr<EtcdLease>> granted =
      EtcdLease::Grant(*etcd_, std::move(lease));
  if (!granted.ok()) return granted.status();
  lease_ = *std::move(granted);
  id_ = absl::StrCat(absl::Hex(lease_->id(), absl::kZeroPad16));
  Status status = CheckFormat();
  if (status.ok()) status = PutSelf();
  if (!status.ok()) {
    lease_.reset();
    return status;
  }
  // Frees the shards of before, which nobody uses any more.
  if (earlier_lease_ != 0) etcd_->RevokeLease(earlier_lease_).IgnoreError();
  earlier_lease_ = 0;
  LOG(INFO) << "fleet_joined: id=" << id_ << " address=" << self_.address
            << " lease_s=" << options_.lease.count();
  MutexLock lock(mu_);
  joined_ = lease_;
  return OkStatus();
}

Status EtcdFleet::CheckFormat() {
  const std::string key = Key("format", "");
  TxnRequest request;
  AddCompare(request, key, 0);
  AddPut(request, key, kFormat);
  request.add_failure()->mutable_request_range()->set_key(key);
  TxnResponse response;
  const Status status = etcd_->Txn(request, response);
  if (!status.ok() || response.succeeded()) return status;
  const std::string& format =
      response.responses(0).response_range().kvs(0).value();
  if (format == kFormat) return OkStatus();
  return FailedPreconditionError(
      absl::StrCat("etcd: ", base::Quote(key), " is ", base::Quote(format),
                   ", and this version knows ", base::Quote(kFormat)));
}

Status EtcdFleet::PutSelf() {
  TxnRequest request;
  AddPut(request, Key("members/", id_), Serialize(self_), lease_->id());
  TxnResponse response;
  return etcd_->Txn(request, response);
}

StatusOr<FleetState> EtcdFleet::Read() {
  etcdserverpb::RangeRequest request;
  const std::string folder = Key("", "");
  request.set_key(folder);
  request.set_range_end(folder.substr(0, folder.size() - 1) + '0');
  etcdserverpb::RangeResponse response;
  const Status status = etcd_->Range(request, response);
  if (!status.ok()) return status;
  FleetState state;
  for (const auto& kv : response.kvs()) {
    absl::string_view name = kv.key();
    name.remove_prefix(folder.size());
    int shard = -1;
    if (absl::ConsumePrefix(&name, "members/")) {
      StatusOr<FleetMember> member = ParseMember(kv.key(), kv.value());
      if (!member.ok()) return member.status();
      state.members[std::string(name)] = {*std::move(member), kv.lease(),
                                          kv.create_revision()};
    } else if (absl::ConsumePrefix(&name, "owners/")) {
      if (!absl::SimpleAtoi(name, &shard) || shard < 0 || shard >= kShards) {
        continue;
      }
      state.owners[shard] = {kv.value(), kv.mod_revision()};
    } else if (absl::ConsumePrefix(&name, "pins/")) {
      if (!absl::SimpleAtoi(name, &shard) || shard < 0 || shard >= kShards) {
        continue;
      }
      state.pins[shard] = kv.value();
    }
  }
  return state;
}

void EtcdFleet::Publish(FleetState state) {
  MutexLock lock(mu_);
  state_ = std::move(state);
}

bool EtcdFleet::IsSettled(const FleetState& state) {
  std::vector<std::string> ids;
  std::vector<std::string> addresses;
  for (const auto& [id, member] : state.members) {
    ids.push_back(id + (member.member.draining ? " drains" : ""));
    addresses.push_back(member.member.address);
  }
  const nanoseconds now = options_.clock();
  if (ids != members_) {
    members_ = ids;
    members_since_ = now;
    LOG(INFO) << "fleet_changed: coordinators=" << ids.size()
              << " addresses=" << base::LogValue(absl::StrJoin(addresses, ","));
  }
  return now - members_since_ >= options_.lease * options_.rebalance_leases;
}

// One request with a transaction for each shard: another coordinator may have
// claimed some of them.
Status EtcdFleet::Claim(const std::vector<int>& shards) {
  TxnRequest request;
  for (const int shard : shards) {
    const std::string key = Key("owners/", ShardName(shard));
    TxnRequest& claim = *request.add_success()->mutable_request_txn();
    AddCompare(claim, key, 0);
    AddPut(claim, key, id_, lease_->id());
  }
  TxnResponse response;
  return etcd_->Txn(request, response);
}

void EtcdFleet::TakeAll(const FleetState& state) {
  std::vector<std::pair<int, int64_t>> shards;
  const nanoseconds start = options_.clock();
  {
    MutexLock lock(mu_);
    for (int shard = 0; shard < kShards; ++shard) {
      if (state.owners[shard].id != id_) retry_at_.erase(shard);
      if (state.owners[shard].id != id_ || mine_.contains(shard)) continue;
      const auto retry = retry_at_.find(shard);
      if (retry != retry_at_.end() && start < retry->second) continue;
      shards.emplace_back(shard, state.owners[shard].revision);
    }
    if (shards.empty()) return;
    loading_since_ = start;
  }
  ForEach(shards.size(),
          [&](size_t i) { Take(shards[i].first, shards[i].second); });
  const nanoseconds took = options_.clock() - start;
  MutexLock lock(mu_);
  loading_since_.reset();
  counts_.load_time += took;
  LOG(INFO) << "shards_acquired: count=" << shards.size()
            << " owned=" << mine_.size() << " took_ms="
            << std::chrono::duration_cast<milliseconds>(took).count();
}

void EtcdFleet::Take(int shard, int64_t revision) {
  EtcdStorageOptions options;
  options.prefix =
      absl::StrCat(options_.prefix, "shards/", ShardName(shard), "/");
  options.owner_key = Key("owners/", ShardName(shard));
  options.owner_revision = revision;
  options.space = space_;
  const Status status = host_.Take(
      shard, std::make_unique<OwnedStorage>(
                 etcd_, lease_, trouble_, std::move(options),
                 [this, shard, revision] { Fail(shard, revision); }));
  MutexLock lock(mu_);
  if (status.ok()) {
    mine_[shard] = revision;
    retry_at_.erase(shard);
    ++counts_.acquired;
    return;
  }
  retry_at_[shard] = options_.clock() + kReloadInterval;
  LOG(ERROR) << "shard_not_loaded: shard=" << shard
             << " cause=" << base::Quote(status.message());
}

void EtcdFleet::HandOver(int shard, const std::string& to,
                         const FleetState& state) {
  const FleetState::Member& next = state.members.at(to);
  const std::string& address = next.member.address;
  int64_t revision = 0;
  {
    MutexLock lock(mu_);
    const auto mine = mine_.find(shard);
    if (mine == mine_.end()) return;
    revision = mine->second;
  }
  if (!host_.Hold(shard, address).ok()) {
    return Lose({shard}, "its storage failed");
  }
  TxnRequest request;
  const std::string key = Key("owners/", ShardName(shard));
  Compare* owner = request.add_compare();
  owner->set_target(Compare::MOD);
  owner->set_key(key);
  owner->set_mod_revision(revision);
  // A lease that has ended would fail the request.
  Compare* alive = request.add_compare();
  alive->set_target(Compare::CREATE);
  alive->set_key(Key("members/", to));
  alive->set_create_revision(next.revision);
  AddPut(request, key, to, next.lease);
  TxnResponse response;
  const Status status = etcd_->Txn(request, response);
  const bool done = status.ok() && response.succeeded();
  {
    MutexLock lock(mu_);
    mine_.erase(shard);
    if (done) {
      ++counts_.handed_over;
      state_.owners[shard] = {to, response.header().revision()};
    }
  }
  // The next look shows who has the shard, also if there was no answer.
  host_.Release(shard, done ? address : "");
  LOG(INFO) << "shard_handed_over: shard=" << shard << " to=" << address
            << (done ? "" : " failed=1");
}

void EtcdFleet::LoseWhatIsGone(const FleetState& state) {
  std::vector<int> lost;
  {
    MutexLock lock(mu_);
    for (const auto& [shard, revision] : mine_) {
      const FleetState::Owner& owner = state.owners[shard];
      const auto failed = failed_.find(shard);
      if (owner.id != id_ || owner.revision != revision ||
          (failed != failed_.end() && failed->second == revision)) {
        lost.push_back(shard);
      }
    }
    failed_.clear();
  }
  if (!lost.empty()) Lose(lost, "its storage failed, or has another owner");
}

void EtcdFleet::Resign(const char* cause) {
  std::vector<int> shards;
  {
    MutexLock lock(mu_);
    joined_ = nullptr;
    for (const auto& [shard, revision] : mine_) shards.push_back(shard);
    retry_at_.clear();
    // Nobody knows who has what.
    state_.owners = {};
  }
  if (!shards.empty()) Lose(shards, cause);
  if (lease_ == nullptr) return;
  lease_->End();
  earlier_lease_ = lease_->id();
  lease_ = nullptr;
}

void EtcdFleet::Lose(const std::vector<int>& shards, const char* cause) {
  LOG(WARNING) << "shards_lost: count=" << shards.size()
               << " cause=" << base::Quote(cause);
  host_.Lose(shards);
  MutexLock lock(mu_);
  for (const int shard : shards) mine_.erase(shard);
  counts_.lost += static_cast<int64_t>(shards.size());
}

void EtcdFleet::Fail(int shard, int64_t revision) {
  {
    MutexLock lock(mu_);
    failed_[shard] = revision;
  }
  Poke();
}

void EtcdFleet::ForEach(size_t count,
                        const std::function<void(size_t)>& work) const {
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> threads;
  const size_t more =
      options_.has_threads ? std::min(kThreadsMax, count) : size_t{0};
  for (size_t i = 1; i < more; ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
}

FleetView EtcdFleet::View() const {
  FleetView view;
  MutexLock lock(mu_);
  for (const auto& [id, member] : state_.members) {
    view.members.push_back(member.member);
  }
  std::sort(view.members.begin(), view.members.end(),
            [](const FleetMember& a, const FleetMember& b) {
              return a.address < b.address;
            });
  for (int shard = 0; shard < kShards; ++shard) {
    const auto owner = state_.members.find(state_.owners[shard].id);
    if (owner != state_.members.end()) {
      view.shards[shard].owner = owner->second.member.address;
    }
    view.shards[shard].pin = state_.pins[shard];
  }
  return view;
}

FleetCounts EtcdFleet::Counts() const {
  MutexLock lock(mu_);
  FleetCounts counts = counts_;
  counts.members = static_cast<int64_t>(state_.members.size());
  counts.owned = static_cast<int64_t>(mine_.size());
  counts.errors = trouble_->counts();
  const auto fenced = counts.errors.find(StatusCode::kAborted);
  if (fenced != counts.errors.end()) counts.fenced_writes = fenced->second;
  return counts;
}

std::string EtcdFleet::FindOwner(int shard) {
  Poke();
  MutexLock lock(mu_);
  // Without a lease it may be the only one that does not know.
  if (joined_ == nullptr || !joined_->valid()) return "";
  const auto owner = state_.members.find(state_.owners[shard].id);
  return owner == state_.members.end() ? "" : owner->second.member.address;
}

Status EtcdFleet::Move(int shard, const std::string& address) {
  const std::vector<FleetMember> members = View().members;
  if (!address.empty() && std::none_of(members.begin(), members.end(),
                                       [&](const FleetMember& member) {
                                         return member.address == address;
                                       })) {
    std::vector<std::string> addresses;
    for (const FleetMember& member : members) {
      addresses.push_back(member.address);
    }
    return InvalidArgumentError(absl::StrCat("to is ", base::Quote(address),
                                             ", and the coordinators are ",
                                             absl::StrJoin(addresses, ", ")));
  }
  const std::string key = Key("pins/", ShardName(shard));
  TxnRequest request;
  if (address.empty()) {
    request.add_success()->mutable_request_delete_range()->set_key(key);
  } else {
    AddPut(request, key, address);
  }
  TxnResponse response;
  const Status status = etcd_->Txn(request, response);
  Poke();
  return status;
}

Status EtcdFleet::CheckReady() const {
  const Status space = space_->Check();
  if (!space.ok()) return space;
  MutexLock lock(mu_);
  if (joined_ == nullptr || !joined_->valid()) {
    return UnavailableError("etcd: this coordinator has no lease");
  }
  if (!retry_at_.empty()) {
    return UnavailableError(absl::StrCat("shard ", retry_at_.begin()->first,
                                         " could not be loaded"));
  }
  // A shard that comes from another coordinator takes a moment.
  if (loading_since_.has_value() &&
      options_.clock() - *loading_since_ > kLoadTime) {
    return UnavailableError("shards are being loaded");
  }
  return OkStatus();
}

void EtcdFleet::Leave(milliseconds timeout) {
  {
    MutexLock lock(mu_);
    leaving_ = true;
  }
  Poke();
  const auto deadline = steady_clock::now() + timeout;
  MutexLock lock(mu_);
  while (!left_ && steady_clock::now() < deadline) {
    changed_.WaitUntil(mu_, deadline);
  }
}

OpenFleet MakeOpenEtcdFleet(EtcdOptions etcd, EtcdFleetOptions options) {
  return [etcd = std::move(etcd), options = std::move(options)](
             const FleetMember& self,
             FleetHost& host) -> StatusOr<std::unique_ptr<Fleet>> {
    StatusOr<std::unique_ptr<EtcdKv>> client = MakeEtcdClient(etcd);
    if (!client.ok()) return client.status();
    auto fleet =
        std::make_unique<EtcdFleet>(*std::move(client), options, self, host);
    const Status status = fleet->Start();
    if (!status.ok()) return status;
    return std::unique_ptr<Fleet>(std::move(fleet));
  };
}

}  // namespace muster::coordinator
