#include "coordinator/storage/record_codec.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/storage/record_values.h"
#include "coordinator/storage/records.pb.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

// A byte that no job's name contains.
constexpr char kJobEnd = '\0';

// The kinds of records, after the job's name. A value is never reused.
constexpr char kJob = 'j';
constexpr char kEntry = 'k';
constexpr char kItem = 'q';
constexpr char kStore = 's';
constexpr char kChange = 'c';
constexpr char kMember = 'm';
constexpr char kReply = 'r';
constexpr char kGeneration = 'g';
constexpr char kSeries = 'b';
constexpr char kDecision = 'd';
constexpr char kTaken = 't';
constexpr char kGroup = 'p';
constexpr char kGroupRank = 'n';
constexpr char kGroupFailure = 'f';

// Appends a name and its length, so that another name can follow.
void AppendSized(absl::string_view name, std::string& key) {
  const uint32_t size = static_cast<uint32_t>(name.size());
  for (int shift = 24; shift >= 0; shift -= 8) {
    key.push_back(static_cast<char>(size >> shift));
  }
  key.append(name.data(), name.size());
}

void AppendNumber(uint64_t number, std::string& key) {
  for (int shift = 56; shift >= 0; shift -= 8) {
    key.push_back(static_cast<char>(number >> shift));
  }
}

uint64_t ReadNumber(absl::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) {
    number = (number << 8) | static_cast<uint8_t>(byte);
  }
  return number;
}

// Removes from the front of `key` the name that AppendSized has written.
bool TakeSized(absl::string_view& key, std::string& name) {
  constexpr size_t kSizeBytes = 4;
  if (key.size() < kSizeBytes) return false;
  const uint64_t size = ReadNumber(key.substr(0, kSizeBytes));
  key.remove_prefix(kSizeBytes);
  if (key.size() < size) return false;
  name = std::string(key.substr(0, size));
  key.remove_prefix(size);
  return true;
}

struct AppendName {
  std::string& key;

  void operator()(const core::JobRecord&) { key.push_back(kJob); }
  void operator()(const core::EntryRecord& record) {
    key.push_back(kEntry);
    key += record.key;
  }
  void operator()(const core::ItemRecord& record) {
    key.push_back(kItem);
    AppendSized(record.key, key);
    AppendNumber(static_cast<uint64_t>(record.number), key);
  }
  void operator()(const core::StoreRecord&) { key.push_back(kStore); }
  void operator()(const core::ChangeRecord& record) {
    key.push_back(kChange);
    AppendNumber(static_cast<uint64_t>(record.revision), key);
    key += record.key;
  }
  void operator()(const core::MemberRecord& record) {
    key.push_back(kMember);
    key += record.id.value();
  }
  void operator()(const core::ReplyRecord& record) {
    key.push_back(kReply);
    AppendSized(record.member.value(), key);
    AppendNumber(record.sequence.value(), key);
  }
  void operator()(const core::GenerationRecord&) { key.push_back(kGeneration); }
  void operator()(const core::SeriesRecord& record) {
    key.push_back(kSeries);
    AppendSized(record.group, key);
    key += record.barrier;
  }
  void operator()(const core::DecisionRecord& record) {
    key.push_back(kDecision);
    AppendSized(record.group, key);
    AppendSized(record.barrier, key);
    AppendNumber(static_cast<uint64_t>(record.instance), key);
  }
  void operator()(const core::TakenRecord& record) {
    key.push_back(kTaken);
    AppendSized(record.group, key);
    AppendSized(record.barrier, key);
    AppendNumber(static_cast<uint64_t>(record.rank.value()), key);
  }
  void operator()(const core::GroupRecord& record) {
    key.push_back(kGroup);
    key += record.name;
  }
  void operator()(const core::GroupRankRecord& record) {
    key.push_back(kGroupRank);
    AppendSized(record.group, key);
    AppendNumber(static_cast<uint64_t>(record.rank.value()), key);
  }
  void operator()(const core::GroupFailureRecord& record) {
    key.push_back(kGroupFailure);
    AppendSized(record.group, key);
    key += record.instance;
  }
};

std::string Serialize(const core::JobRecord& record) {
  storage::v1::Job message;
  message.set_epoch(record.epoch.value());
  return message.SerializeAsString();
}

std::string Serialize(const core::EntryRecord& record) {
  storage::v1::Entry message;
  message.set_value(*record.value);
  message.set_revision(record.revision);
  if (record.lifetime.ttl.has_value()) {
    message.set_ttl_ns(record.lifetime.ttl->count());
  }
  message.set_owner(record.lifetime.owner.value());
  return message.SerializeAsString();
}

std::string Serialize(const core::ItemRecord& record) {
  storage::v1::Item message;
  message.set_value(*record.value);
  return message.SerializeAsString();
}

std::string Serialize(const core::StoreRecord& record) {
  storage::v1::Store message;
  message.set_revision(record.revision);
  if (record.history_after.has_value()) {
    message.set_history_after(*record.history_after);
  }
  return message.SerializeAsString();
}

std::string Serialize(const core::ChangeRecord& record) {
  storage::v1::Change message;
  message.set_kind(static_cast<int32_t>(record.kind));
  if (record.value != nullptr) message.set_value(*record.value);
  return message.SerializeAsString();
}

std::string Serialize(const core::MemberRecord& record) {
  storage::v1::Member message;
  message.set_incarnation(record.incarnation.value());
  message.set_host(record.registration.host);
  message.set_pid(record.registration.pid);
  message.set_debug_address(record.registration.debug_address);
  message.set_state(static_cast<int32_t>(record.state));
  message.set_cause(record.cause);
  if (record.rank.has_value()) message.set_rank(record.rank->value());
  message.set_generation(record.generation.value());
  for (const core::Incarnation& incarnation : record.retired) {
    message.add_retired(incarnation.value());
  }
  return message.SerializeAsString();
}

std::string Serialize(const core::ReplyRecord& record) {
  storage::v1::Reply message;
  message.set_acknowledged_through(
      static_cast<int64_t>(record.acknowledged_through.value()));
  for (const core::SequenceNumber number : record.open) {
    message.add_open(static_cast<int64_t>(number.value()));
  }
  message.set_method(record.method);
  if (!record.status.ok()) FillStatus(record.status, message.mutable_status());
  FillPayload(record.payload, &message);
  return message.SerializeAsString();
}

void FillEnd(const core::Event& end, storage::v1::Generation::End* message) {
  message->set_kind(static_cast<int32_t>(end.kind));
  message->set_member(end.member.value());
  message->set_incarnation(end.incarnation.value());
  if (end.rank.has_value()) message->set_rank(end.rank->value());
  message->set_host(end.host);
  message->set_pid(end.pid);
  message->set_cause(end.cause);
  message->set_last_progress(end.last_progress);
  message->set_generation(end.generation.value());
  message->set_generation_over(end.generation_over);
  if (!end.verdict.ok()) FillStatus(end.verdict, message->mutable_verdict());
  if (end.culprits != nullptr) {
    FillBarrier(*end.culprits, message->mutable_culprits());
  }
}

std::string Serialize(const core::GenerationRecord& record) {
  storage::v1::Generation message;
  if (record.formation != nullptr) {
    message.set_generation(record.formation->generation.value());
    for (const core::Seat& seat : record.formation->world) {
      storage::v1::Generation::Seat* to = message.add_world();
      to->set_member(seat.member.value());
      to->set_incarnation(seat.incarnation.value());
      to->set_host(seat.host);
      to->set_pid(seat.pid);
      to->set_address(seat.address);
    }
  }
  message.set_running(record.running);
  if (record.end.has_value()) FillEnd(*record.end, message.mutable_end());
  message.set_closed(record.closed);
  return message.SerializeAsString();
}

std::string Serialize(const core::SeriesRecord& record) {
  storage::v1::Series message;
  for (const core::Rank rank : record.participants) {
    message.add_participants(rank.value());
  }
  message.set_founder(record.founder.value());
  message.set_newest(record.newest);
  message.set_dropped_results(record.dropped_results);
  for (const auto& [rank, instance] : record.taken) {
    while (message.taken_size() < rank.value()) message.add_taken(0);
    message.add_taken(instance);
  }
  return message.SerializeAsString();
}

std::string Serialize(const core::DecisionRecord& record) {
  storage::v1::Decision message;
  FillStatus(record.status, message.mutable_status());
  FillBarrier(*record.result, message.mutable_result());
  return message.SerializeAsString();
}

std::string Serialize(const core::TakenRecord& record) {
  storage::v1::Taken message;
  message.set_instance(record.instance);
  return message.SerializeAsString();
}

std::string Serialize(const core::GroupRecord& record) {
  storage::v1::Group message;
  for (const core::Rank rank : record.ranks) message.add_ranks(rank.value());
  message.set_description(record.description);
  message.set_founder(record.founder.value());
  return message.SerializeAsString();
}

std::string Serialize(const core::GroupRankRecord&) {
  return storage::v1::GroupRank().SerializeAsString();
}

std::string Serialize(const core::GroupFailureRecord& record) {
  storage::v1::GroupFailure message;
  const core::FailureReport& error = record.verdict->error;
  message.set_generation(record.verdict->generation.value());
  message.set_text(error.text);
  if (!error.verdict.ok()) FillStatus(error.verdict, message.mutable_verdict());
  if (error.culprits != nullptr) {
    FillBarrier(*error.culprits, message.mutable_culprits());
  }
  return message.SerializeAsString();
}

template <typename Message>
bool Parse(absl::string_view bytes, Message& message) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

std::optional<core::Record> DecodeEntry(absl::string_view name,
                                        absl::string_view value) {
  storage::v1::Entry message;
  if (!Parse(value, message)) return std::nullopt;
  core::EntryRecord record;
  record.key = std::string(name);
  record.value =
      std::make_shared<const std::string>(std::move(*message.mutable_value()));
  record.revision = message.revision();
  if (message.has_ttl_ns()) {
    record.lifetime.ttl = core::Duration(message.ttl_ns());
  }
  record.lifetime.owner = core::MemberId(message.owner());
  return record;
}

std::optional<core::Record> DecodeItem(absl::string_view name,
                                       absl::string_view value) {
  storage::v1::Item message;
  core::ItemRecord record;
  if (!TakeSized(name, record.key) || name.size() != sizeof(uint64_t) ||
      !Parse(value, message)) {
    return std::nullopt;
  }
  record.number = static_cast<int64_t>(ReadNumber(name));
  record.value =
      std::make_shared<const std::string>(std::move(*message.mutable_value()));
  return record;
}

std::optional<core::Record> DecodeChange(absl::string_view name,
                                         absl::string_view value) {
  constexpr auto kKindMax = static_cast<int32_t>(core::ChangeKind::kOrphaned);
  storage::v1::Change message;
  if (name.size() < sizeof(uint64_t) || !Parse(value, message) ||
      message.kind() < 0 || message.kind() > kKindMax) {
    return std::nullopt;
  }
  core::ChangeRecord record;
  record.revision =
      static_cast<int64_t>(ReadNumber(name.substr(0, sizeof(uint64_t))));
  record.key = std::string(name.substr(sizeof(uint64_t)));
  record.kind = static_cast<core::ChangeKind>(message.kind());
  if (message.has_value()) {
    record.value = std::make_shared<const std::string>(
        std::move(*message.mutable_value()));
  }
  return record;
}

std::optional<core::Record> DecodeMember(absl::string_view name,
                                         absl::string_view value) {
  storage::v1::Member message;
  if (!Parse(value, message)) return std::nullopt;
  core::MemberRecord record;
  record.id = core::MemberId(std::string(name));
  record.incarnation = core::Incarnation(message.incarnation());
  record.registration.host = message.host();
  record.registration.pid = message.pid();
  record.registration.debug_address = message.debug_address();
  if (message.state() < 0 || message.state() >= core::kMemberStateCount) {
    return std::nullopt;
  }
  record.state = static_cast<core::MemberState>(message.state());
  record.cause = message.cause();
  if (message.has_rank()) record.rank = core::Rank(message.rank());
  record.generation = core::Generation(message.generation());
  for (const uint64_t incarnation : message.retired()) {
    record.retired.push_back(core::Incarnation(incarnation));
  }
  return record;
}

std::optional<core::Record> DecodeReply(absl::string_view name,
                                        absl::string_view value) {
  storage::v1::Reply message;
  std::string member;
  if (!TakeSized(name, member) || name.size() != sizeof(uint64_t) ||
      !Parse(value, message)) {
    return std::nullopt;
  }
  core::ReplyRecord record;
  record.member = core::MemberId(std::move(member));
  record.sequence = core::SequenceNumber(ReadNumber(name));
  record.acknowledged_through = core::SequenceNumber(
      static_cast<uint64_t>(message.acknowledged_through()));
  for (const int64_t number : message.open()) {
    record.open.emplace_back(static_cast<uint64_t>(number));
  }
  record.method = message.method();
  if (message.has_status()) record.status = ToStatus(message.status());
  record.payload = ToPayload(message);
  return record;
}

std::optional<core::Record> DecodeGeneration(absl::string_view value) {
  storage::v1::Generation message;
  if (!Parse(value, message)) return std::nullopt;
  core::GenerationRecord record;
  if (message.generation() != 0) {
    auto formation = std::make_shared<core::Formation>();
    formation->generation = core::Generation(message.generation());
    for (const storage::v1::Generation::Seat& from : message.world()) {
      core::Seat& seat = formation->world.emplace_back();
      seat.member = core::MemberId(from.member());
      seat.incarnation = core::Incarnation(from.incarnation());
      seat.host = from.host();
      seat.pid = from.pid();
      seat.address = from.address();
    }
    core::RankAll(*formation);
    record.formation = std::move(formation);
  }
  record.running = message.running();
  record.closed = message.closed();
  if (message.has_end()) {
    const storage::v1::Generation::End& from = message.end();
    core::Event& end = record.end.emplace();
    end.kind = static_cast<core::EventKind>(from.kind());
    end.member = core::MemberId(from.member());
    end.incarnation = core::Incarnation(from.incarnation());
    if (from.has_rank()) end.rank = core::Rank(from.rank());
    end.host = from.host();
    end.pid = from.pid();
    end.cause = from.cause();
    end.last_progress = from.last_progress();
    end.generation = core::Generation(from.generation());
    end.generation_over = from.generation_over();
    if (from.has_verdict()) end.verdict = ToStatus(from.verdict());
    if (from.has_culprits()) end.culprits = ToBarrierReply(from.culprits());
  }
  return record;
}

std::optional<core::Record> DecodeSeries(absl::string_view name,
                                         absl::string_view value) {
  storage::v1::Series message;
  core::SeriesRecord record;
  if (!TakeSized(name, record.group) || !Parse(value, message)) {
    return std::nullopt;
  }
  record.barrier = std::string(name);
  for (const int32_t rank : message.participants()) {
    record.participants.push_back(core::Rank(rank));
  }
  record.founder = core::Rank(message.founder());
  record.newest = message.newest();
  record.dropped_results = message.dropped_results();
  for (int rank = 0; rank < message.taken_size(); ++rank) {
    if (message.taken(rank) == 0) continue;
    record.taken.emplace_back(core::Rank(rank), message.taken(rank));
  }
  return record;
}

std::optional<core::Record> DecodeDecision(absl::string_view name,
                                           absl::string_view value) {
  storage::v1::Decision message;
  core::DecisionRecord record;
  if (!TakeSized(name, record.group) || !TakeSized(name, record.barrier) ||
      name.size() != sizeof(uint64_t) || !Parse(value, message)) {
    return std::nullopt;
  }
  record.instance = static_cast<int64_t>(ReadNumber(name));
  record.status = ToStatus(message.status());
  record.result = ToBarrierReply(message.result());
  return record;
}

std::optional<core::Record> DecodeTaken(absl::string_view name,
                                        absl::string_view value) {
  storage::v1::Taken message;
  core::TakenRecord record;
  if (!TakeSized(name, record.group) || !TakeSized(name, record.barrier) ||
      name.size() != sizeof(uint64_t) || !Parse(value, message)) {
    return std::nullopt;
  }
  record.rank = core::Rank(static_cast<int32_t>(ReadNumber(name)));
  record.instance = message.instance();
  return record;
}

std::optional<core::Record> DecodeGroup(absl::string_view name,
                                        absl::string_view value) {
  storage::v1::Group message;
  if (!Parse(value, message)) return std::nullopt;
  core::GroupRecord record;
  record.name = std::string(name);
  for (const int32_t rank : message.ranks()) record.ranks.emplace_back(rank);
  record.description = message.description();
  record.founder = core::Rank(message.founder());
  return record;
}

std::optional<core::Record> DecodeGroupRank(absl::string_view name) {
  core::GroupRankRecord record;
  if (!TakeSized(name, record.group) || name.size() != sizeof(uint64_t)) {
    return std::nullopt;
  }
  record.rank = core::Rank(static_cast<int32_t>(ReadNumber(name)));
  return record;
}

std::optional<core::Record> DecodeGroupFailure(absl::string_view name,
                                               absl::string_view value) {
  storage::v1::GroupFailure message;
  core::GroupFailureRecord record;
  if (!TakeSized(name, record.group) || !Parse(value, message)) {
    return std::nullopt;
  }
  record.instance = std::string(name);
  auto verdict = std::make_shared<core::GroupFailure>();
  verdict->generation = core::Generation(message.generation());
  verdict->group = record.group;
  verdict->instance = record.instance;
  verdict->error.text = message.text();
  if (message.has_verdict()) {
    verdict->error.verdict = ToStatus(message.verdict());
  }
  if (message.has_culprits()) {
    verdict->error.culprits = ToBarrierReply(message.culprits());
  }
  record.verdict = std::move(verdict);
  return record;
}

std::optional<core::Record> Decode(char kind, absl::string_view name,
                                   absl::string_view value) {
  switch (kind) {
    case kJob: {
      storage::v1::Job message;
      if (!Parse(value, message)) return std::nullopt;
      return core::JobRecord{core::JobEpoch(message.epoch())};
    }
    case kEntry:
      return DecodeEntry(name, value);
    case kItem:
      return DecodeItem(name, value);
    case kStore: {
      storage::v1::Store message;
      if (!Parse(value, message)) return std::nullopt;
      core::StoreRecord record{message.revision()};
      if (message.has_history_after()) {
        record.history_after = message.history_after();
      }
      return record;
    }
    case kChange:
      return DecodeChange(name, value);
    case kMember:
      return DecodeMember(name, value);
    case kReply:
      return DecodeReply(name, value);
    case kGeneration:
      return DecodeGeneration(value);
    case kSeries:
      return DecodeSeries(name, value);
    case kDecision:
      return DecodeDecision(name, value);
    case kTaken:
      return DecodeTaken(name, value);
    case kGroup:
      return DecodeGroup(name, value);
    case kGroupRank:
      return DecodeGroupRank(name);
    case kGroupFailure:
      return DecodeGroupFailure(name, value);
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string JobPrefix(absl::string_view job) {
  std::string prefix(job);
  prefix.push_back(kJobEnd);
  return prefix;
}

std::string EncodeKey(absl::string_view job, const core::Record& record) {
  std::string key = JobPrefix(job);
  std::visit(AppendName{key}, record);
  return key;
}

std::optional<std::string> EncodeValue(const core::Record& record) {
  if (core::IsErased(record)) return std::nullopt;
  return std::visit([](const auto& of) { return Serialize(of); }, record);
}

StatusOr<DecodedRecord> DecodeRecord(absl::string_view key,
                                     absl::string_view value) {
  const size_t end = key.find(kJobEnd);
  if (end != absl::string_view::npos && end > 0 && end + 1 < key.size()) {
    std::optional<core::Record> record =
        Decode(key[end + 1], key.substr(end + 2), value);
    if (record.has_value()) {
      return DecodedRecord{std::string(key.substr(0, end)), *std::move(record)};
    }
  }
  return DataLossError(absl::StrCat(
      "the record ", base::Quote(key), " (", value.size(),
      " bytes) is not one of this version: corrupt, or of a newer version"));
}

}  // namespace muster::coordinator
