#include "dataplane/observe/flight_recorder.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "muster/base/mutex.h"

namespace muster::dataplane {
namespace {

int64_t Nanoseconds(auto since_epoch) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch)
      .count();
}

// The names in c10.
absl::string_view ScalarTypeName(DataType type) {
  static constexpr std::array<absl::string_view, kDataTypeCount> kNames = {
      "Byte",          "Char",        "Short",        "Int",
      "Long",          "Half",        "BFloat16",     "Float",
      "Double",        "Bool",        "ComplexFloat", "ComplexDouble",
      "Float8_e4m3fn", "Float8_e5m2", "UInt16",       "UInt32",
      "UInt64",        "Opaque",      "FloatInt",     "DoubleLong",
      "IntInt",        "LongLong"};
  return kNames.at(static_cast<size_t>(type));
}

struct Thread {
  pid_t id = 0;
  std::array<char, 16> name = {};
};

// Filled in once, so a thread that is renamed keeps its first name here.
// Constant-initialised: checking an initialisation guard takes longer than
// reading the id.
thread_local constinit Thread this_thread;

const Thread& ThisThread() {
  if (this_thread.id == 0) {
    this_thread.id = gettid();
    pthread_getname_np(pthread_self(), this_thread.name.data(),
                       this_thread.name.size());
  }
  return this_thread;
}

// The size of a cache line.
constexpr size_t kLineBytes = 64;

// The types and sizes of a collective's tensors. For each tensor one word with
// the data type and, from bit 8 on, the number of dimensions; then the
// dimensions.
class Shapes {
 public:
  using Memory = std::unique_ptr<int64_t[]>;

  // The memory for Write; null if none is needed.
  static Memory Allocate(const Collective& collective) {
    size_t words = 0;
    for (const Collective::Tensors* const list : collective.lists()) {
      for (const Tensor& tensor : *list) words += 1 + tensor.shape().size();
    }
    return words <= kFew ? nullptr : std::make_unique<int64_t[]>(words);
  }
  void Write(const Collective& collective, Memory memory) {
    many_ = std::move(memory);
    int64_t* next = many_ != nullptr ? many_.get() : few_;
    for (const Collective::Tensors* const list : collective.lists()) {
      for (const Tensor& tensor : *list) {
        const std::span<const int64_t> shape = tensor.shape();
        *next++ = static_cast<int64_t>(tensor.data_type()) |
                  static_cast<int64_t>(shape.size()) << 8;
        for (const int64_t extent : shape) *next++ = extent;
      }
    }
  }
  const int64_t* data() const { return many_ != nullptr ? many_.get() : few_; }

 private:
  static constexpr size_t kFew = 7;

  // Null: all are in few_.
  Memory many_;
  int64_t few_[kFew];
};

int64_t CountElements(const Collective::Tensors& tensors) {
  int64_t elements = 0;
  for (const Tensor& tensor : tensors) elements += tensor.element_count();
  return elements;
}

class Object {
 public:
  explicit Object(std::string& json) : json_(json) { json_ += '{'; }
  ~Object() { json_ += '}'; }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  // Appends a key. The caller appends its value.
  std::string& Key(absl::string_view name) {
    if (!first_) json_ += ',';
    first_ = false;
    AppendJsonString(name, json_);
    json_ += ':';
    return json_;
  }
  void Number(absl::string_view name, int64_t value) {
    absl::StrAppend(&Key(name), value);
  }
  void Bool(absl::string_view name, bool value) {
    Key(name) += value ? "true" : "false";
  }
  void String(absl::string_view name, absl::string_view value) {
    AppendJsonString(value, Key(name));
  }
  // Null if `ns` is 0.
  void Time(absl::string_view name, int64_t ns) {
    if (ns == 0) {
      Key(name) += "null";
    } else {
      Number(name, ns);
    }
  }

 private:
  std::string& json_;
  bool first_ = true;
};

// The length of the UTF-8 character at the beginning of `text`, which is not
// empty; 0 if there is none.
size_t CharacterBytes(absl::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  size_t bytes = 0;
  // The least value that needs so many bytes: an overlong form is not valid.
  uint32_t least = 0;
  uint32_t value = 0;
  if ((first & 0xe0) == 0xc0) {
    bytes = 2, least = 0x80, value = first & 0x1f;
  } else if ((first & 0xf0) == 0xe0) {
    bytes = 3, least = 0x800, value = first & 0x0f;
  } else if ((first & 0xf8) == 0xf0) {
    bytes = 4, least = 0x10000, value = first & 0x07;
  }
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3f);
  }
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  return value < least || value > 0x10ffff || surrogate ? 0 : bytes;
}

}  // namespace

void AppendJsonString(absl::string_view text, std::string& json) {
  json += '"';
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t bytes = CharacterBytes(text.substr(at));
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&json, "\\u%04x", static_cast<int>(c));
    } else if (bytes == 0) {
      absl::StrAppendFormat(&json, "\\\\x%02x",
                            static_cast<int>(static_cast<unsigned char>(c)));
    } else {
      json.append(text.data() + at, bytes);
    }
    at += std::max<size_t>(bytes, 1);
  }
  json += '"';
}

struct FlightRecorder::GroupRecord {
  // The newest collective that reached a state; -1: none.
  struct Last {
    // Ignores an older one: threads may report two in another order than they
    // ended.
    void Reach(int64_t next, int64_t its_elements) {
      if (next > sequence) *this = {next, its_elements};
    }

    int64_t sequence = -1;
    int64_t elements = -1;
  };

  Group group;
  int64_t number = 0;
  bool ended = false;
  size_t entries = 0;
  int64_t collective_sequence = 0;
  int64_t point_to_point_sequence = 0;
  int64_t op = 0;
  Last enqueued;
  Last started;
  Last completed;
  // Records of the running collectives, in their order.
  std::deque<int64_t> running;
};

// An entry holds everything in whole cache lines: collectives write them one
// after the other, and none reads what another has written. The times tell its
// state. A time is 0 if it has not come yet.
struct alignas(kLineBytes) FlightRecorder::Entry {
  GroupRecord* group = nullptr;
  int64_t collective_sequence = 0;
  int64_t point_to_point_sequence = 0;
  int64_t op = 0;
  int64_t created_ns = 0;
  int64_t started_ns = 0;
  int64_t completed_ns = 0;
  // Null if it has not failed.
  std::unique_ptr<std::string> error;
  int64_t timeout_ms = 0;
  // The element count of tensors and inputs.
  int64_t elements = 0;
  Thread thread;
  CollectiveKind kind = CollectiveKind::kBarrier;
  // The lengths of the lists tensors, inputs and outputs.
  std::array<uint32_t, 3> lists = {};
  // The types and sizes of the tensors in these lists.
  Shapes shapes;
};

// Reads the clocks, so that a time is never 0.
FlightRecorder::FlightRecorder(size_t capacity) : capacity_(capacity) {
  ReadClocks();
}

FlightRecorder::~FlightRecorder() = default;

void FlightRecorder::ReadClocks() {
  anchor_ = Clock::now();
  wall_clock_ahead_ns_ =
      Nanoseconds(std::chrono::system_clock::now().time_since_epoch()) -
      Nanoseconds(anchor_.time_since_epoch());
}

std::shared_ptr<FlightRecorder::GroupRecord> FlightRecorder::AddGroup(
    Group group) {
  auto record = std::make_shared<GroupRecord>();
  record->group = std::move(group);
  MutexLock lock(mutex_);
  // Reserved now, so that no collective waits while thousands of entries are
  // moved. The system provides the memory when it is first used.
  ring_.reserve(capacity_);
  record->number = next_group_;
  // With capacity 0 the group is not shown: it would look as if it had run
  // nothing.
  if (capacity_ > 0) groups_.emplace(next_group_, record);
  ++next_group_;
  return record;
}

void FlightRecorder::RemoveGroup(GroupRecord& group) {
  MutexLock lock(mutex_);
  group.ended = true;
  group.group.communicators = nullptr;
  Tidy(group);
}

void FlightRecorder::Tidy(const GroupRecord& group) {
  // Copied, because erasing may destroy `group`.
  const int64_t number = group.number;
  if (group.ended && group.entries == 0) groups_.erase(number);
}

FlightRecorder::Entry* FlightRecorder::Find(int64_t record) {
  const auto age = static_cast<size_t>(next_record_ - record);
  if (age == 0 || age > ring_.size()) return nullptr;
  return &ring_[next_place_ + (age > next_place_ ? capacity_ : 0) - age];
}

inline FlightRecorder::Entry& FlightRecorder::NextEntry(GroupRecord& group) {
  if (next_place_ == ring_.size()) ring_.emplace_back();
  Entry& entry = ring_[next_place_];
  if (++next_place_ == capacity_) next_place_ = 0;
  ++next_record_;
  // Fetches the cache lines of the entry after it, for the next collective.
  const auto* const line =
      reinterpret_cast<const std::byte*>(ring_.data() + next_place_);
  for (size_t i = 0; i < sizeof(Entry); i += kLineBytes) {
    __builtin_prefetch(line + i, /*rw=*/1);
  }
  if (GroupRecord* const before = entry.group; before != &group) {
    entry.group = &group;
    ++group.entries;
    if (before != nullptr) {
      --before->entries;
      Tidy(*before);
    }
  }
  return entry;
}

int64_t FlightRecorder::Add(GroupRecord& group, const Collective& collective) {
  if (capacity_ == 0) return -1;
  const bool point_to_point = IsPointToPoint(collective.kind);
  Shapes::Memory memory = Shapes::Allocate(collective);
  MutexLock lock(mutex_);
  const int64_t record = next_record_;
  const bool runs = point_to_point || group.running.empty();
  // The last step that may throw: the ring is reserved.
  if (!point_to_point) group.running.push_back(record);
  Entry& entry = NextEntry(group);
  entry.shapes.Write(collective, std::move(memory));
  const auto lists = collective.lists();
  for (size_t i = 0; i < lists.size(); ++i) {
    entry.lists[i] = static_cast<uint32_t>(lists[i]->size());
  }
  entry.elements =
      CountElements(collective.tensors) + CountElements(collective.inputs);
  entry.kind = collective.kind;
  entry.thread = ThisThread();
  entry.timeout_ms = collective.timeout.count();
  if (entry.error != nullptr) entry.error = nullptr;
  entry.created_ns = WallClockNs(collective.started);
  entry.started_ns = runs ? entry.created_ns : 0;
  entry.completed_ns = 0;
  const auto sequence = static_cast<int64_t>(collective.sequence);
  if (point_to_point) {
    group.point_to_point_sequence = sequence;
  } else {
    group.collective_sequence = sequence;
    group.enqueued = {sequence, entry.elements};
    if (runs) group.started = group.enqueued;
  }
  entry.collective_sequence = group.collective_sequence;
  entry.point_to_point_sequence = group.point_to_point_sequence;
  entry.op = ++group.op;
  return record;
}

void FlightRecorder::MarkStarted(Entry& entry, int64_t now_ns) {
  if (entry.started_ns != 0) return;
  entry.started_ns = now_ns;
  if (IsPointToPoint(entry.kind)) return;
  entry.group->started = {entry.collective_sequence, entry.elements};
}

void FlightRecorder::StartFirst(const GroupRecord& group, int64_t now_ns) {
  if (group.running.empty()) return;
  Entry* const first = Find(group.running.front());
  if (first != nullptr) MarkStarted(*first, now_ns);
}

void FlightRecorder::Complete(GroupRecord& group, int64_t record,
                              const Status& status, Instant at) {
  if (capacity_ == 0) return;
  std::unique_ptr<std::string> error;
  if (!status.ok()) error = std::make_unique<std::string>(status.message());
  MutexLock lock(mutex_);
  const int64_t now_ns = WallClockNs(at);
  // The entry may have been overwritten.
  if (Entry* const entry = Find(record); entry != nullptr) {
    if (status.ok()) {
      MarkStarted(*entry, now_ns);
      // The wall clock may have been set back since the start.
      entry->completed_ns = std::max(now_ns, entry->started_ns);
      if (!IsPointToPoint(entry->kind)) {
        group.completed.Reach(entry->collective_sequence, entry->elements);
      }
    } else {
      entry->error = std::move(error);
    }
  }
  std::deque<int64_t>& running = group.running;
  if (!running.empty() && running.front() == record) {
    running.pop_front();
  } else {
    running.erase(std::remove(running.begin(), running.end(), record),
                  running.end());
  }
  // After a failure nothing starts in the group.
  if (status.ok()) StartFirst(group, now_ns);
}

void FlightRecorder::AppendEntry(int64_t record, const Entry& entry,
                                 std::string& json) const {
  const GroupRecord& of_group = *entry.group;
  // Writes the sizes and types of two of the three lists, as texts.
  const auto shapes = [&](Object& object, absl::string_view sizes_name,
                          absl::string_view dtypes_name, size_t left_out) {
    std::vector<std::string> sizes;
    std::vector<std::string> dtypes;
    const int64_t* next = entry.shapes.data();
    for (size_t list = 0; list < entry.lists.size(); ++list) {
      for (size_t i = 0; i < entry.lists[list]; ++i) {
        const auto type = static_cast<DataType>(*next & 0xff);
        const auto shape = std::span(next + 1, *next >> 8);
        next = shape.data() + shape.size();
        if (list == left_out) continue;
        sizes.push_back(absl::StrCat("[", absl::StrJoin(shape, ","), "]"));
        dtypes.push_back(absl::StrCat("\"", ScalarTypeName(type), "\""));
      }
    }
    absl::StrAppend(&object.Key(sizes_name), "[", absl::StrJoin(sizes, ","),
                    "]");
    absl::StrAppend(&object.Key(dtypes_name), "[", absl::StrJoin(dtypes, ","),
                    "]");
  };
  const bool completed = entry.completed_ns != 0;
  Object object(json);
  object.Number("record_id", record);
  object.Number("pg_id", of_group.number);
  object.Key("process_group") += '[';
  AppendJsonString(of_group.group.name, json);
  json += ',';
  AppendJsonString(of_group.group.description, json);
  json += ']';
  object.Number("collective_seq_id", entry.collective_sequence);
  object.Number("p2p_seq_id", entry.point_to_point_sequence);
  object.Number("op_id", entry.op);
  object.String("profiling_name", absl::StrCat(of_group.group.backend, ":",
                                               CollectiveKindName(entry.kind)));
  shapes(object, "input_sizes", "input_dtypes", /*left_out=*/2);
  shapes(object, "output_sizes", "output_dtypes", /*left_out=*/1);
  object.Number("time_created_ns", entry.created_ns);
  if (completed) {
    absl::StrAppendFormat(
        &object.Key("duration_ms"), "%.6f",
        static_cast<double>(entry.completed_ns - entry.started_ns) / 1e6);
  }
  object.Number("timeout_ms", entry.timeout_ms);
  object.String("state", completed               ? "completed"
                         : entry.started_ns != 0 ? "started"
                                                 : "scheduled");
  object.Time("time_discovered_started_ns", entry.started_ns);
  object.Time("time_discovered_completed_ns", entry.completed_ns);
  object.Bool("retired", completed || entry.error != nullptr);
  object.Bool("is_p2p", IsPointToPoint(entry.kind));
  object.String("thread_id", absl::StrCat(entry.thread.id));
  object.String("thread_name", entry.thread.name.data());
  object.Key("frames") += "[]";
  if (entry.error != nullptr) object.String("error", *entry.error);
}

void FlightRecorder::AppendCommunicators(std::string& json) const {
  Object all(json);
  for (const auto& [id, of_group] : groups_) {
    if (of_group->group.communicators == nullptr) continue;
    for (const auto& [name, texts] : of_group->group.communicators()) {
      all.Key(absl::StrCat(of_group->group.name, "/", name));
      Object state(json);
      for (const auto& [key, text] : texts) state.String(key, text);
    }
  }
}

void FlightRecorder::AppendConfig(std::string& json) const {
  Object configs(json);
  for (const auto& [id, of_group] : groups_) {
    configs.Key(absl::StrCat(id));
    Object config(json);
    config.String("name", of_group->group.name);
    config.String("desc", of_group->group.description);
    config.String(
        "ranks",
        absl::StrCat("[", absl::StrJoin(of_group->group.ranks, ", "), "]"));
  }
}

void FlightRecorder::AppendStatus(std::string& json) const {
  Object statuses(json);
  for (const auto& [id, of_group] : groups_) {
    statuses.Key(absl::StrCat(id));
    Object status(json);
    const std::pair<absl::string_view, const GroupRecord::Last*> lasts[] = {
        {"last_enqueued", &of_group->enqueued},
        {"last_started", &of_group->started},
        {"last_completed", &of_group->completed}};
    for (const auto& [name, last] : lasts) {
      status.Number(absl::StrCat(name, "_collective"), last->sequence);
      status.Number(absl::StrCat(name, "_numel"), last->elements);
    }
  }
}

std::string FlightRecorder::ToJson() const {
  std::string json;
  {
    MutexLock lock(mutex_);
    Object top(json);
    top.String("version", "2.10");
    top.String("comm_lib_version", "muster");
    top.Key("nccl_comm_state");
    AppendCommunicators(json);
    top.Key("pg_config");
    AppendConfig(json);
    top.Key("pg_status");
    AppendStatus(json);
    top.Key("entries") += '[';
    // Oldest first.
    const size_t oldest = ring_.empty() ? 0 : next_place_ % ring_.size();
    int64_t record = next_record_ - static_cast<int64_t>(ring_.size());
    for (size_t i = 0; i < ring_.size(); ++i, ++record) {
      if (i > 0) json += ',';
      AppendEntry(record, ring_[(oldest + i) % ring_.size()], json);
    }
    json += ']';
  }
  return json;
}

Status FlightRecorder::WriteTo(const std::string& path) const {
  const std::string json = ToJson();
  // Each writer has its own draft file, also threads of this process and
  // processes with the same id in different containers.
  static std::atomic<int64_t> drafts = 0;
  std::string draft;
  std::FILE* file = nullptr;
  do {
    draft = absl::StrCat(path, ".", getpid(), ".", drafts++, ".tmp");
    file = std::fopen(draft.c_str(), "wx");
  } while (file == nullptr && errno == EEXIST);
  const auto failed = [&](absl::string_view what) {
    const int error = errno;
    std::remove(draft.c_str());
    const StatusCode code = ErrnoToStatusCode(error);
    return Status(
        // Elsewhere kUnavailable means that a peer or the coordinator is gone.
        code == StatusCode::kUnavailable ? StatusCode::kUnknown : code,
        absl::StrCat("cannot ", what, " ", base::Quote(path), ": ",
                     std::strerror(error)));
  };
  if (file == nullptr) return failed("write");
  const bool written =
      std::fwrite(json.data(), 1, json.size(), file) == json.size();
  if (std::fclose(file) != 0 || !written) return failed("write");
  if (std::rename(draft.c_str(), path.c_str()) != 0) return failed("rename");
  return OkStatus();
}

}  // namespace muster::dataplane
