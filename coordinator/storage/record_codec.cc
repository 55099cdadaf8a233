#include "coordinator/storage/record_codec.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/storage/records.pb.h"

namespace muster::coordinator {
namespace {

// A job's name has no such byte.
constexpr char kJobEnd = '\0';

// The kind of a record, after the job's name. Never given to another kind.
constexpr char kJob = 'j';
constexpr char kEntry = 'k';
constexpr char kItem = 'q';
constexpr char kStore = 's';
constexpr char kMember = 'm';
constexpr char kReply = 'r';
constexpr char kGeneration = 'g';
constexpr char kSeries = 'b';

// Two names in one key: the first one's length tells where the second begins.
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

// Takes what AppendSized wrote off the front of `key`.
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
};

void FillStatus(const absl::Status& status, storage::v1::Status* message) {
  message->set_code(static_cast<int32_t>(status.code()));
  message->set_message(std::string(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& bytes) {
    storage::v1::Status::Payload* payload = message->add_payloads();
    payload->set_type_url(std::string(url));
    payload->set_value(std::string(bytes));
  });
}

absl::Status StatusOf(const storage::v1::Status& message) {
  absl::Status status(static_cast<absl::StatusCode>(message.code()),
                      message.message());
  for (const storage::v1::Status::Payload& payload : message.payloads()) {
    status.SetPayload(payload.type_url(), absl::Cord(payload.value()));
  }
  return status;
}

void FillBarrier(const core::BarrierResult& result,
                 storage::v1::Barrier* message) {
  message->set_group(result.group);
  message->set_barrier(result.barrier);
  message->set_instance(result.instance);
  message->set_outcome(static_cast<int32_t>(result.outcome));
  message->set_expected(result.expected);
  message->set_arrived(result.arrived);
  message->set_first_to_arrive(result.first_to_arrive.value());
  message->set_waited_ns(result.waited.count());
  for (const core::MissingRank& rank : result.missing) {
    storage::v1::Barrier::Missing* missing = message->add_missing();
    missing->set_rank(rank.rank.value());
    missing->set_member(rank.member.value());
    missing->set_host(rank.host);
    missing->set_pid(rank.pid);
    missing->set_cause(static_cast<int32_t>(rank.cause));
    missing->set_cause_text(rank.cause_text);
    missing->set_last_progress(rank.last_progress);
    missing->set_last_heard_ago_ns(rank.last_heard_ago.count());
  }
}

core::BarrierReply BarrierOf(const storage::v1::Barrier& message) {
  auto result = std::make_shared<core::BarrierResult>();
  result->group = message.group();
  result->barrier = message.barrier();
  result->instance = message.instance();
  result->outcome = static_cast<core::BarrierOutcome>(message.outcome());
  result->expected = message.expected();
  result->arrived = message.arrived();
  result->first_to_arrive = core::Rank(message.first_to_arrive());
  result->waited = core::Duration(message.waited_ns());
  for (const storage::v1::Barrier::Missing& missing : message.missing()) {
    core::MissingRank& rank = result->missing.emplace_back();
    rank.rank = core::Rank(missing.rank());
    rank.member = core::MemberId(missing.member());
    rank.host = missing.host();
    rank.pid = missing.pid();
    rank.cause = static_cast<core::MissingCause>(missing.cause());
    rank.cause_text = missing.cause_text();
    rank.last_progress = missing.last_progress();
    rank.last_heard_ago = core::Duration(missing.last_heard_ago_ns());
  }
  return result;
}

struct FillPayload {
  storage::v1::Reply& message;

  void operator()(const std::monostate&) {}
  void operator()(const core::RevisionReply& reply) {
    message.set_revision(reply.revision);
  }
  void operator()(const core::NumberReply& reply) {
    message.mutable_number()->set_number(reply.number);
    message.mutable_number()->set_revision(reply.revision);
  }
  void operator()(const core::FlagReply& reply) {
    message.mutable_flag()->set_flag(reply.flag);
    message.mutable_flag()->set_revision(reply.revision);
  }
  void operator()(const core::ValueReply& reply) {
    if (reply.value == nullptr) return;
    message.mutable_popped()->set_value(*reply.value);
    message.mutable_popped()->set_revision(reply.revision);
  }
  void operator()(const core::CompareSetReply& reply) {
    storage::v1::Reply::CompareSet* set = message.mutable_compare_set();
    if (reply.value != nullptr) set->set_value(*reply.value);
    set->set_stored(reply.stored);
    set->set_revision(reply.revision);
  }
  void operator()(const core::FormationReply& reply) {
    if (reply != nullptr) message.set_formation(reply->generation.value());
  }
  void operator()(const core::BarrierReply& reply) {
    if (reply != nullptr) FillBarrier(*reply, message.mutable_barrier());
  }
  // Answers of reads are not kept, but for that of a pop.
  template <typename Other>
  void operator()(const Other&) {}
};

core::Payload PayloadOf(const storage::v1::Reply& message) {
  switch (message.payload_case()) {
    case storage::v1::Reply::kRevision:
      return core::RevisionReply{message.revision()};
    case storage::v1::Reply::kNumber:
      return core::NumberReply{message.number().number(),
                               message.number().revision()};
    case storage::v1::Reply::kFlag:
      return core::FlagReply{message.flag().flag(), message.flag().revision()};
    case storage::v1::Reply::kCompareSet: {
      const storage::v1::Reply::CompareSet& set = message.compare_set();
      core::CompareSetReply reply;
      if (set.has_value()) {
        reply.value = std::make_shared<const std::string>(set.value());
      }
      reply.stored = set.stored();
      reply.revision = set.revision();
      return reply;
    }
    case storage::v1::Reply::kPopped:
      return core::ValueReply{
          std::make_shared<const std::string>(message.popped().value()),
          message.popped().revision()};
    case storage::v1::Reply::kFormation: {
      // By its number; Coordinator::Restore puts the newest one in its place.
      auto formation = std::make_shared<core::Formation>();
      formation->generation = core::Generation(message.formation());
      return core::FormationReply(std::move(formation));
    }
    case storage::v1::Reply::kBarrier:
      return BarrierOf(message.barrier());
    case storage::v1::Reply::PAYLOAD_NOT_SET:
      break;
  }
  return std::monostate();
}

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
  std::visit(FillPayload{message}, record.payload);
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
  for (const core::SeriesRecord::Decision& decision : record.decisions) {
    storage::v1::Series::Decision* to = message.add_decisions();
    FillStatus(decision.status, to->mutable_status());
    FillBarrier(*decision.result, to->mutable_result());
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
  if (message.has_status()) record.status = StatusOf(message.status());
  record.payload = PayloadOf(message);
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
    if (from.has_verdict()) end.verdict = StatusOf(from.verdict());
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
  for (const storage::v1::Series::Decision& decision : message.decisions()) {
    record.decisions.push_back({decision.result().instance(),
                                StatusOf(decision.status()),
                                BarrierOf(decision.result())});
  }
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
      return core::StoreRecord{message.revision()};
    }
    case kMember:
      return DecodeMember(name, value);
    case kReply:
      return DecodeReply(name, value);
    case kGeneration:
      return DecodeGeneration(value);
    case kSeries:
      return DecodeSeries(name, value);
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

absl::StatusOr<DecodedRecord> DecodeRecord(absl::string_view key,
                                           absl::string_view value) {
  const size_t end = key.find(kJobEnd);
  if (end != absl::string_view::npos && end > 0 && end + 1 < key.size()) {
    std::optional<core::Record> record =
        Decode(key[end + 1], key.substr(end + 2), value);
    if (record.has_value()) {
      return DecodedRecord{std::string(key.substr(0, end)), *std::move(record)};
    }
  }
  return absl::DataLossError(absl::StrCat(
      "the record \"", absl::CHexEscape(key), "\" (", value.size(),
      " bytes) is not one of this version: corrupt, or of a newer version"));
}

}  // namespace muster::coordinator
