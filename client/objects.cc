#include "muster/objects.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/throw.h"
#include "client/groups/device_copies.h"
#include "client/groups/group_state.h"
#include "muster/base/status.h"
#include "muster/distributed.h"
#include "muster/errors.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::string>;

// Makes a view; `bytes` must outlive it. Collectives only read it.
Tensor MakeView(std::string_view bytes) {
  return {const_cast<char*>(bytes.data()),
          DataType::kUint8,
          {static_cast<int64_t>(bytes.size())}};
}

Tensor MakeView(std::string& bytes) {
  return {bytes.data(), DataType::kUint8, {static_cast<int64_t>(bytes.size())}};
}

int64_t ComputeTotal(const ObjectBytes& objects) {
  int64_t total = 0;
  for (const std::string_view object : objects.views) {
    total += static_cast<int64_t>(object.size());
  }
  return total;
}

int64_t FindLargest(const ObjectBytes& objects) {
  size_t largest = 0;
  for (const std::string_view object : objects.views) {
    largest = std::max(largest, object.size());
  }
  return static_cast<int64_t>(largest);
}

// The text of an error.
std::string TooLarge(int64_t bytes, int64_t limit) {
  return absl::StrCat("an object of ", bytes,
                      " bytes is larger than object_bytes_max (", limit, ")");
}

// Throws DistError: `status`, with `global_rank` as the culprit.
[[noreturn]] void ThrowBlaming(const ProcessGroup& group, int global_rank,
                               const Status& status) {
  MemberInfo culprit{.rank = global_rank};
  for (const Seat& seat : group.state()->options().seats) {
    if (seat.rank != global_rank) continue;
    culprit.member = seat.member;
    culprit.host = seat.host;
    culprit.pid = seat.pid;
  }
  Throw(ErrorSource::kControl, WithCulprits(status, {{culprit}}));
}

// Returns the sizes of the objects, followed by the objects.
std::string Concatenate(const ObjectBytes& objects) {
  std::string all;
  all.reserve(objects.views.size() * sizeof(int64_t) +
              static_cast<size_t>(ComputeTotal(objects)));
  for (const std::string_view object : objects.views) {
    const auto size = static_cast<int64_t>(object.size());
    all.append(reinterpret_cast<const char*>(&size), sizeof(size));
  }
  for (const std::string_view object : objects.views) {
    all.append(object.data(), object.size());
  }
  return all;
}

// Reverses Concatenate. `all` comes from another rank and may be malformed.
// Errors: kInvalidArgument (an object of more than `limit` bytes), kDataLoss.
StatusOr<Bytes> TakeApart(std::string_view all, size_t count, int64_t limit) {
  if (all.size() / sizeof(int64_t) < count) {
    return DataLossError(absl::StrCat(all.size(),
                                      " bytes have no room for the sizes of ",
                                      count, " objects"));
  }
  Bytes objects(count);
  size_t at = count * sizeof(int64_t);
  for (size_t i = 0; i < count; ++i) {
    int64_t size = 0;
    std::memcpy(&size, all.data() + i * sizeof(size), sizeof(size));
    if (size > limit) {
      return InvalidArgumentError(
          absl::StrCat("object ", i, ": ", TooLarge(size, limit)));
    }
    if (size < 0 || static_cast<size_t>(size) > all.size() - at) {
      return DataLossError(absl::StrCat(
          "object ", i, " of ", count, " is said to have ", size, " bytes, ",
          all.size() - at, " are left of those that came"));
    }
    objects[i] = std::string(all.substr(at, static_cast<size_t>(size)));
    at += static_cast<size_t>(size);
  }
  if (at != all.size()) {
    return DataLossError(absl::StrCat(
        all.size() - at, " bytes came after the last of ", count, " objects"));
  }
  return objects;
}

enum class Verb : int64_t { kBroadcast, kAllGather, kGather, kScatter };

constexpr absl::string_view GetName(Verb verb) {
  constexpr std::array<absl::string_view, 4> kNames = {
      "broadcast_object_list", "all_gather_object", "gather_object",
      "scatter_object_list"};
  const auto index = static_cast<size_t>(verb);
  return index < kNames.size() ? kNames[index] : "something else";
}

// The message that each rank sends first. All fields are int64.
struct Notice {
  int64_t verb = 0;
  // Rank in the group.
  int64_t root = 0;
  // The number of objects in its list.
  int64_t count = 0;
  // Bytes of the largest object that it gives, and of all.
  int64_t largest = 0;
  int64_t total = 0;
  // ObjectOptions::object_bytes_max.
  int64_t limit = 0;
  // Not 0 if its arguments are bad; then it throws.
  int64_t faulty = 0;
};
constexpr int64_t kNoticeFields = sizeof(Notice) / sizeof(int64_t);

// One object collective on one rank.
class Exchange {
 public:
  Exchange(Verb verb, const ObjectOptions& options)
      : verb_(verb),
        group_(options.group == nullptr ? WorldGroup() : options.group),
        limit_(options.object_bytes_max),
        deadline_(
            Deadline::After(options.timeout.count() > 0
                                ? options.timeout
                                : std::max(group_->timeout(), milliseconds(1)),
                            "ObjectOptions::timeout")) {
    if (options.timeout.count() < 0) {
      fault_ = absl::StrCat("timeout must not be negative but was ",
                            options.timeout.count(), " ms");
    }
    if (limit_ < 0) {
      SetFault(absl::StrCat("object_bytes_max must not be negative but was ",
                            limit_));
    }
  }

  // Returns true, after a warning in the log, if this process is not in the
  // group.
  bool IsForOthers() const {
    return group_->state()->IsForOthers(GetName(verb_));
  }

  // Records that this rank's arguments are bad; the first fault counts.
  void SetFault(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
  }

  void SetRoot(const RankArgument& rank, std::string_view name) {
    try {
      root_ = group_->state()->ToGroupRank(OrZero(rank), base::ToAbsl(name));
      // Checks the rank for the default group, too, where ToGroupRank does not.
      if (rank.global.has_value()) {
        (void)group_->state()->ToMemberRank(*rank.global);
      }
    } catch (const DistError& error) {
      root_ = 0;
      SetFault(error.what());
    }
  }

  // Exchanges the ranks' notices, and throws on all ranks unless they run the
  // same. Afterwards notices() has all of them.
  void Agree(size_t count, const ObjectBytes* given) {
    Notice mine = {.verb = static_cast<int64_t>(verb_),
                   .root = root_,
                   .count = static_cast<int64_t>(count),
                   .limit = limit_};
    if (given != nullptr) {
      SetFault(given->fault);
      mine.largest = FindLargest(*given);
      mine.total = ComputeTotal(*given);
    }
    mine.faulty = fault_.empty() ? 0 : 1;
    notices_.resize(static_cast<size_t>(group_->size()));
    DeviceCopies copies(*group_);
    const Tensor all(reinterpret_cast<int64_t*>(notices_.data()),
                     {group_->size() * kNoticeFields});
    const Tensor own(reinterpret_cast<int64_t*>(&mine), {kNoticeFields});
    copies.End(
        group_->AllGatherIntoTensor(copies.Out(all), copies.In(own), Step()));
    if (!fault_.empty()) Invalid(absl::StrCat(Label(), fault_));
    for (int rank = 0; rank < group_->size(); ++rank) CheckNotice(rank);
    CheckLimit();
  }

  // Returns the objects that the root has broadcast.
  Bytes TakeApartOfRoot(std::string_view all, size_t count) const {
    StatusOr<Bytes> objects = TakeApart(all, count, limit_);
    if (objects.ok()) return *std::move(objects);
    const int root = GlobalRank(root_);
    ThrowBlaming(*group_, root,
                 Status(objects.status().code(),
                        absl::StrCat(Label(), "rank ", root, ": ",
                                     objects.status().message())));
  }

  bool IsRoot() const { return group_->rank() == root_; }
  int root() const { return root_; }
  ProcessGroup& group() { return *group_; }
  const std::vector<Notice>& notices() const { return notices_; }

  // The time that is left for the next collective.
  milliseconds Left() const {
    return std::max(deadline_.Remaining(Clock::now()), milliseconds(1));
  }
  CollectiveOptions Step() const { return {.timeout = Left()}; }
  // Options of a collective from the root.
  SourceOptions StepOfRoot() const {
    return {.timeout = Left(), .group_src = root_};
  }

 private:
  std::string Label() const {
    return absl::StrCat(GetName(verb_), " on group ",
                        base::Quote(group_->name()), ": ");
  }

  int GlobalRank(int64_t rank) const {
    return group_->state()->ToGlobalRank(static_cast<int>(rank));
  }

  // Returns "gather_object with rank 3", "broadcast_object_list of 2 objects of
  // rank 0".
  std::string Describe(const Notice& notice) const {
    const auto verb = static_cast<Verb>(notice.verb);
    std::string text(GetName(verb));
    if (verb == Verb::kBroadcast) {
      absl::StrAppend(&text, " of ", notice.count, " objects");
    }
    if (verb != Verb::kAllGather) {
      absl::StrAppend(&text, verb == Verb::kGather ? " to" : " of", " rank ",
                      GlobalRank(notice.root));
    }
    return text;
  }

  [[noreturn]] void Blame(int rank, std::string_view text) const {
    ThrowBlaming(
        *group_, GlobalRank(rank),
        InvalidArgumentError(absl::StrCat(Label(), base::ToAbsl(text))));
  }

  // Compares with the group's first rank, so that all ranks throw the same.
  void CheckNotice(int rank) const {
    const Notice& first = notices_.front();
    const Notice& other = notices_[static_cast<size_t>(rank)];
    if (other.faulty != 0) {
      Blame(rank, absl::StrCat("the arguments of rank ", GlobalRank(rank),
                               " are bad, its own error says how"));
    }
    if (other.verb == first.verb && other.root == first.root &&
        (verb_ != Verb::kBroadcast || other.count == first.count)) {
      return;
    }
    Blame(rank,
          absl::StrCat("rank ", GlobalRank(rank), " runs ", Describe(other),
                       ", rank ", GlobalRank(0), " ", Describe(first)));
  }

  void CheckLimit() const {
    int64_t limit = limit_;
    for (const Notice& notice : notices_) limit = std::min(limit, notice.limit);
    for (int rank = 0; rank < group_->size(); ++rank) {
      const int64_t largest = notices_[static_cast<size_t>(rank)].largest;
      if (largest <= limit) continue;
      Blame(rank, absl::StrCat("rank ", GlobalRank(rank),
                               " gives too much: ", TooLarge(largest, limit)));
    }
  }

  const Verb verb_;
  const std::shared_ptr<ProcessGroup> group_;
  const int64_t limit_;
  const Deadline deadline_;
  int root_ = 0;
  std::string fault_;
  std::vector<Notice> notices_;
};

std::vector<Tensor> EmptyTensors(int count) {
  return std::vector<Tensor>(static_cast<size_t>(count),
                             Tensor(nullptr, DataType::kUint8, {0}));
}

}  // namespace

std::string UnserializableObject(size_t index) {
  return absl::StrCat("object ", index, " cannot be serialized");
}

void ThrowUnparsableObject(const ObjectSource& source, size_t index,
                           size_t bytes) {
  const std::shared_ptr<ProcessGroup> group =
      source.group == nullptr ? WorldGroup() : source.group;
  const internal::GroupState& state = *group->state();
  const int rank = state.ToGlobalRank(
      source.rank.has_value() ? state.ToGroupRank(OrZero(*source.rank), "src")
                              : static_cast<int>(index));
  ThrowBlaming(
      *group, rank,
      DataLossError(absl::StrCat(
          source.verb, " on group ", base::Quote(group->name()), ": object ",
          source.rank.has_value() ? index : 0, " of rank ", rank, ", of ",
          bytes,
          " bytes, cannot be parsed: do sender and receiver use one type?")));
}

std::optional<Bytes> BroadcastBytes(const ObjectBytes& objects,
                                    const RankArgument& src,
                                    const ObjectOptions& options) {
  Exchange exchange(Verb::kBroadcast, options);
  if (exchange.IsForOthers()) return std::nullopt;
  exchange.SetRoot(src, "src");
  const size_t count = objects.views.size();
  exchange.Agree(count, exchange.IsRoot() ? &objects : nullptr);
  const Notice& root = exchange.notices()[static_cast<size_t>(exchange.root())];
  std::string all = exchange.IsRoot()
                        ? Concatenate(objects)
                        : std::string(count * sizeof(int64_t) +
                                          static_cast<size_t>(root.total),
                                      '\0');
  if (!all.empty()) {
    DeviceCopies copies(exchange.group());
    const Tensor view = MakeView(all);
    copies.End(exchange.group().Broadcast(
        exchange.IsRoot() ? copies.In(view) : copies.Out(view), {},
        exchange.StepOfRoot()));
  }
  if (exchange.IsRoot()) return std::nullopt;
  return exchange.TakeApartOfRoot(all, count);
}

std::optional<Bytes> AllGatherBytes(const ObjectBytes& object,
                                    const ObjectOptions& options) {
  Exchange exchange(Verb::kAllGather, options);
  if (exchange.IsForOthers()) return std::nullopt;
  exchange.Agree(1, &object);
  Bytes all(exchange.notices().size());
  std::vector<Tensor> outputs;
  outputs.reserve(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    all[rank].resize(static_cast<size_t>(exchange.notices()[rank].total));
    outputs.push_back(MakeView(all[rank]));
  }
  DeviceCopies copies(exchange.group());
  copies.End(exchange.group().AllGather(copies.Out(outputs),
                                        copies.In(MakeView(object.views[0])),
                                        exchange.Step()));
  return all;
}

// Uses an all_to_all with only one non-empty column: the data plane's gather
// and scatter need equal sizes.
std::optional<Bytes> GatherBytes(const ObjectBytes& object, bool has_list,
                                 const RankArgument& dst,
                                 const ObjectOptions& options) {
  Exchange exchange(Verb::kGather, options);
  if (exchange.IsForOthers()) return std::nullopt;
  exchange.SetRoot(dst, "dst");
  if (exchange.IsRoot() && !has_list) {
    exchange.SetFault(
        "Argument ``object_gather_list`` must be specified on destination "
        "rank.");
  } else if (!exchange.IsRoot() && has_list) {
    exchange.SetFault(
        "Argument ``object_gather_list`` must NOT be specified on "
        "non-destination ranks.");
  }
  exchange.Agree(1, &object);
  const int size = exchange.group().size();
  std::vector<Tensor> inputs = EmptyTensors(size);
  std::vector<Tensor> outputs = EmptyTensors(size);
  inputs[static_cast<size_t>(exchange.root())] = MakeView(object.views[0]);
  Bytes all(static_cast<size_t>(size));
  if (exchange.IsRoot()) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      all[rank].resize(static_cast<size_t>(exchange.notices()[rank].total));
      outputs[rank] = MakeView(all[rank]);
    }
  }
  DeviceCopies copies(exchange.group());
  copies.End(exchange.group().AllToAll(copies.Out(outputs), copies.In(inputs),
                                       exchange.Step()));
  if (!exchange.IsRoot()) return std::nullopt;
  return all;
}

std::optional<std::string> ScatterBytes(size_t outputs,
                                        const ObjectBytes& objects,
                                        const RankArgument& src,
                                        const ObjectOptions& options) {
  Exchange exchange(Verb::kScatter, options);
  if (exchange.IsForOthers()) return std::nullopt;
  exchange.SetRoot(src, "src");
  const int size = exchange.group().size();
  if (outputs == 0) {
    exchange.SetFault(
        "Expected argument scatter_object_output_list to be a list of size at "
        "least 1.");
  }
  const bool is_root = exchange.IsRoot();
  if (is_root && objects.views.size() != static_cast<size_t>(size)) {
    exchange.SetFault(absl::StrCat(
        "scatter_object_input_list has ", objects.views.size(),
        " objects, must have one for each of the group's ", size, " ranks"));
  }
  exchange.Agree(1, is_root ? &objects : nullptr);
  std::vector<int64_t> sizes;
  std::vector<Tensor> size_list;
  std::vector<Tensor> parts = EmptyTensors(size);
  if (is_root) {
    for (const std::string_view object : objects.views) {
      sizes.push_back(static_cast<int64_t>(object.size()));
    }
    for (size_t rank = 0; rank < sizes.size(); ++rank) {
      size_list.emplace_back(&sizes[rank], std::initializer_list<int64_t>{1});
      parts[rank] = MakeView(objects.views[rank]);
    }
  }
  std::vector<int64_t> my_size(1);
  DeviceCopies sizes_placed(exchange.group());
  sizes_placed.End(exchange.group().Scatter(sizes_placed.Out(Tensor(my_size)),
                                            sizes_placed.In(size_list), {},
                                            exchange.StepOfRoot()));
  std::string mine(static_cast<size_t>(my_size[0]), '\0');
  std::vector<Tensor> taken = EmptyTensors(size);
  taken[static_cast<size_t>(exchange.root())] = MakeView(mine);
  DeviceCopies copies(exchange.group());
  copies.End(exchange.group().AllToAll(copies.Out(taken), copies.In(parts),
                                       exchange.Step()));
  return mine;
}

namespace {

// Precedes the objects of a SendObjectList: kObjectsMagic, the number of
// objects, and the bytes of Concatenate.
using Letterhead = std::array<int64_t, 3>;

Tensor MakeView(Letterhead& letterhead) {
  return {letterhead.data(), {static_cast<int64_t>(letterhead.size())}};
}

Deadline MakeDeadline(milliseconds timeout, const ProcessGroup& group) {
  return Deadline::After(
      CheckNotNegative(timeout).count() > 0 ? timeout : group.timeout(),
      "timeout of ObjectSendOptions or ObjectRecvOptions");
}

milliseconds Left(const Deadline& deadline) {
  return std::max(deadline.Remaining(Clock::now()), milliseconds(1));
}

// The bytes after a letterhead come in pieces of this size, and a smaller last
// one: a receiver that refuses them can drop them without room for all.
constexpr size_t kPieceBytes = 16 << 20;

// Returns OK if `letterhead` is plausible.
Status CheckLetterhead(const Letterhead& letterhead) {
  const auto [magic, sent, bytes] = letterhead;
  if (magic != kObjectsMagic) {
    return InvalidArgumentError(absl::StrCat(
        "sends something else than objects: it begins with ", magic));
  }
  constexpr auto kSizeBytes = static_cast<int64_t>(sizeof(int64_t));
  if (sent < 0 || bytes < 0 || sent > bytes / kSizeBytes) {
    return DataLossError(
        absl::StrCat("announces ", sent, " objects in ", bytes, " bytes"));
  }
  return OkStatus();
}

// Returns OK, or why a receiver of `count` objects of at most `limit` bytes has
// no room for the objects of `letterhead`.
Status CheckRoom(const Letterhead& letterhead, int64_t count, int64_t limit) {
  constexpr auto kSizeBytes = static_cast<int64_t>(sizeof(int64_t));
  const auto [magic, sent, bytes] = letterhead;
  // A list of another length is received, too, if it is not larger.
  const int64_t objects = std::max<int64_t>(count, 1);
  const int64_t each =
      std::min(limit, std::numeric_limits<int64_t>::max() - kSizeBytes) +
      kSizeBytes;
  if (bytes > 0 && (bytes - 1) / objects >= each) {
    return InvalidArgumentError(absl::StrCat(
        "announces ", sent, " objects in ", bytes, " bytes, taken are ", count,
        " of at most object_bytes_max (", limit, ") bytes each"));
  }
  return OkStatus();
}

}  // namespace

void SendBytes(const ObjectBytes& objects, std::optional<int> dst,
               const ObjectSendOptions& options) {
  const std::shared_ptr<ProcessGroup> group =
      options.group == nullptr ? WorldGroup() : options.group;
  if (group->state()->IsForOthers("send_object_list")) return;
  group->state()->CheckIsOther(
      group->state()->ToGroupRank({dst, options.group_dst}, "dst"),
      "send_object_list");
  const Deadline deadline = MakeDeadline(options.timeout, *group);
  const std::string label = absl::StrCat("send_object_list on group ",
                                         base::Quote(group->name()), ": ");
  if (!objects.fault.empty()) Invalid(absl::StrCat(label, objects.fault));
  if (FindLargest(objects) > options.object_bytes_max) {
    Invalid(absl::StrCat(
        label, TooLarge(FindLargest(objects), options.object_bytes_max)));
  }
  std::string all = Concatenate(objects);
  Letterhead letterhead = {kObjectsMagic,
                           static_cast<int64_t>(objects.views.size()),
                           static_cast<int64_t>(all.size())};
  const auto step = [&]() -> SendOptions {
    return {.tag = options.tag,
            .timeout = Left(deadline),
            .group_dst = options.group_dst};
  };
  DeviceCopies first_placed(*group);
  Work first = group->Isend(first_placed.In(MakeView(letterhead)), dst, step());
  for (std::string_view rest = all; !rest.empty();) {
    const std::string_view piece = rest.substr(0, kPieceBytes);
    DeviceCopies copies(*group);
    copies.End(group->Isend(copies.In(MakeView(piece)), dst, step()));
    rest.remove_prefix(piece.size());
  }
  first_placed.End(std::move(first));
}

std::pair<int, Bytes> RecvBytes(size_t count, std::optional<int> src,
                                const ObjectRecvOptions& options) {
  const std::shared_ptr<ProcessGroup> group =
      options.group == nullptr ? WorldGroup() : options.group;
  if (group->state()->IsForOthers("recv_object_list")) return {-1, {}};
  const Deadline deadline = MakeDeadline(options.timeout, *group);
  const int64_t limit = options.object_bytes_max;
  if (limit < 0) {
    Invalid(
        absl::StrCat("object_bytes_max must not be negative but was ", limit));
  }
  Letterhead letterhead = {};
  const auto receive = [&](const Tensor& tensor, std::optional<int> source,
                           std::optional<int> group_source) {
    DeviceCopies copies(*group);
    return copies.End(group->Irecv(copies.Out(tensor), source,
                                   {.tag = options.tag,
                                    .timeout = Left(deadline),
                                    .group_src = group_source}));
  };
  const int from = receive(MakeView(letterhead), src, options.group_src);
  const auto check = [&](const Status& status) {
    if (status.ok()) return;
    ThrowBlaming(*group, from,
                 Status(status.code(),
                        absl::StrCat("recv_object_list on group ",
                                     base::Quote(group->name()), ": rank ",
                                     from, " ", status.message())));
  };
  check(CheckLetterhead(letterhead));
  // Receives the bytes in any case, because the sender waits for that, and then
  // the next list can be received.
  const auto bytes = static_cast<size_t>(letterhead[2]);
  const Status room = CheckRoom(letterhead, static_cast<int64_t>(count), limit);
  std::string all(room.ok() ? bytes : std::min(bytes, kPieceBytes), '\0');
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, bytes - at);
    receive({all.data() + (room.ok() ? at : 0),
             DataType::kUint8,
             {static_cast<int64_t>(piece)}},
            from, std::nullopt);
  }
  check(room);
  if (static_cast<size_t>(letterhead[1]) != count) {
    check(InvalidArgumentError(absl::StrCat("sends ", letterhead[1],
                                            " objects, the list has ", count)));
  }
  StatusOr<Bytes> objects = TakeApart(all, count, limit);
  if (!objects.ok()) {
    check(Status(
        objects.status().code(),
        absl::StrCat("sends bad objects: ", objects.status().message())));
  }
  return {from, *std::move(objects)};
}

}  // namespace muster::internal
