#include "dataplane/cpu/collectives/exchange.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// The head of a note.
struct NoteHead {
  MessageHeader header;
  uint64_t payload_bytes = 0;
};

// Whether each pair of ranks has its own size.
bool IsDirected(CollectiveKind kind) {
  return GivesEachItsOwn(kind) || TakesFromEach(kind);
}

// FNV-1a, which gives the same value in every process.
class CountsHash {
 public:
  void Add(int64_t count) {
    auto rest = static_cast<uint64_t>(count);
    for (int i = 0; i < 8; ++i, rest >>= 8) {
      hash_ = (hash_ ^ (rest & 0xff)) * 1099511628211u;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 14695981039346656037u;
};

uint64_t HashOfCounts(const Collective::Tensors& tensors) {
  CountsHash hash;
  for (const Tensor& tensor : tensors) hash.Add(tensor.element_count());
  return hash.value();
}

uint64_t HashOfCounts(const std::vector<int64_t>& counts) {
  CountsHash hash;
  for (const int64_t count : counts) hash.Add(count);
  return hash.value();
}

uint64_t ComputeTotal(const Collective::Tensors& tensors) {
  uint64_t total = 0;
  for (const Tensor& tensor : tensors) total += tensor.element_count();
  return total;
}

std::string TypeText(const MessageHeader& header) {
  // The value came over the network and may be invalid.
  return header.data_type < kDataTypeCount
             ? std::string(
                   DataTypeName(static_cast<DataType>(header.data_type)))
             : absl::StrCat("type ", header.data_type);
}

std::string LabelText(const MessageHeader& header) {
  const auto step = static_cast<Step>(header.step);
  if (step != Step::kNone) return std::string(StepName(step));
  return absl::StrCat(
      CollectiveKindName(static_cast<CollectiveKind>(header.kind)), " #",
      header.sequence);
}

ReduceOp GetReduceOp(const MessageHeader& header) {
  return static_cast<ReduceOp>(header.reduce_op &
                               ~unsigned{MessageHeader::kNotCommutative});
}

bool IsByUser(const MessageHeader& header) {
  return IsReduction(static_cast<CollectiveKind>(header.kind)) &&
         GetReduceOp(header) == ReduceOp::kUser;
}

// Changes `header` to that of a step of `reduction`.
void DescribeReduction(const Collective& reduction, MessageHeader& header) {
  header.kind = static_cast<uint8_t>(reduction.kind);
  header.reduce_op = static_cast<uint8_t>(ReduceOp::kUser);
  if (!reduction.function.options().is_commutative) {
    header.reduce_op |= MessageHeader::kNotCommutative;
  }
  header.root = IsRooted(reduction.kind) ? reduction.root : 0;
  CountsHash hash;
  for (const Tensor& tensor : reduction.read()) {
    hash.Add(tensor.element_count());
  }
  for (const int64_t part : reduction.parts) hash.Add(part);
  header.sizes_hash = uint64_t{reduction.function_element_bytes()} << 32 |
                      (hash.value() & 0xffffffffu);
}

// Describes two headers of reductions by functions of the user that differ in
// sizes only.
std::string UserSizeMismatch(int peer, int rank, const MessageHeader& theirs,
                             const MessageHeader& ours) {
  const uint64_t their_bytes = theirs.sizes_hash >> 32;
  const uint64_t our_bytes = ours.sizes_hash >> 32;
  if (their_bytes != our_bytes) {
    return absl::StrCat("rank ", peer, " reduces elements of ", their_bytes,
                        " bytes in ", LabelText(theirs), ", rank ", rank,
                        " of ", our_bytes);
  }
  return absl::StrCat("rank ", peer, " and rank ", rank,
                      " reduce different sizes in ", LabelText(theirs));
}

// Describes two headers of a directed kind that differ in sizes only.
std::string SizeMismatch(int peer, int rank, const MessageHeader& theirs,
                         const MessageHeader& ours) {
  if (theirs.element_count != ours.element_count) {
    return absl::StrCat("rank ", peer, " gives rank ", rank, " ",
                        theirs.element_count, " ", TypeText(theirs), " in ",
                        LabelText(theirs), ", rank ", rank, " takes ",
                        ours.element_count);
  }
  if (KnowsAllSizes(static_cast<CollectiveKind>(theirs.kind))) {
    return absl::StrCat("rank ", peer, " and rank ", rank,
                        " expect different sizes of other ranks in ",
                        LabelText(theirs));
  }
  return absl::StrCat("rank ", peer, " and rank ", rank,
                      " have coalesced other sizes, or in another order, in ",
                      LabelText(theirs));
}

}  // namespace

// Names both ranks by number, because all ranks of the group see the text.
Status Mismatch(int peer, int rank, const MessageHeader& theirs,
                const MessageHeader& ours) {
  MessageHeader ours_with_their_sizes = ours;
  ours_with_their_sizes.element_count = theirs.element_count;
  ours_with_their_sizes.sizes_hash = theirs.sizes_hash;
  const bool sizes_alone = theirs == ours_with_their_sizes;
  Status status = InvalidArgumentError(
      sizes_alone && IsByUser(ours) ? UserSizeMismatch(peer, rank, theirs, ours)
      : sizes_alone && (IsDirected(static_cast<CollectiveKind>(ours.kind)) ||
                        theirs.element_count == ours.element_count)
          ? SizeMismatch(peer, rank, theirs, ours)
          : absl::StrCat("rank ", peer, " runs ", theirs.Describe(), ", rank ",
                         rank, " ", ours.Describe()));
  SetCulpritRank(status, peer);
  return status;
}

MessageHeader MessageHeader::Of(const Collective& collective) {
  MessageHeader header;
  header.sequence = collective.sequence;
  header.kind = static_cast<uint8_t>(collective.kind);
  header.step = static_cast<uint8_t>(collective.step);
  // Fields that a kind does not use stay zero, so that ranks do not differ in
  // them.
  if (HasTensors(collective.kind)) {
    header.data_type = static_cast<uint8_t>(collective.data_type());
  }
  if (IsReduction(collective.kind)) {
    header.reduce_op = static_cast<uint8_t>(collective.reduce_op);
  }
  if (IsRooted(collective.kind)) header.root = collective.root;
  // A kind with a part for each peer has its count in each message; a
  // reduction has a total that all ranks share.
  if (!collective.tensors.empty()) {
    header.element_count = collective.tensors[0].element_count();
  } else if (IsReduction(collective.kind)) {
    header.element_count = ComputeTotal(collective.inputs);
  }
  if (KnowsAllSizes(collective.kind)) {
    header.sizes_hash = HashOfCounts(*collective.common());
  }
  if (!collective.parts.empty()) {
    header.sizes_hash = HashOfCounts(collective.parts);
  }
  if (collective.step_of != nullptr) {
    DescribeReduction(*collective.step_of, header);
  }
  return header;
}

std::string MessageHeader::Describe() const {
  const auto collective_kind = static_cast<CollectiveKind>(kind);
  std::string text = LabelText(*this);
  if (static_cast<Step>(step) != Step::kNone) return text;
  if (collective_kind == CollectiveKind::kBarrier) return text;
  absl::StrAppend(&text, " of ");
  // In a directed kind the size is one rank's own. In a reduction by a function
  // of the user it is that of a step.
  if (!IsByUser(*this) && (element_count > 0 || !IsDirected(collective_kind))) {
    absl::StrAppend(&text, element_count, " ");
  }
  absl::StrAppend(&text, TypeText(*this));
  if (IsReduction(collective_kind)) {
    absl::StrAppend(
        &text, " ", ReduceOpName(GetReduceOp(*this)),
        (reduce_op & kNotCommutative) != 0 ? " (not commutative)" : "");
  }
  if (IsRooted(collective_kind)) absl::StrAppend(&text, " root ", root);
  return text;
}

Status MessageConnection::Send(const MessageHeader& header, const void* payload,
                               size_t bytes) {
  CHECK_LE(bytes, kNotePayloadBytesMax);
  const NoteHead head = {.header = header, .payload_bytes = bytes};
  return transport_.Write(peer_, &head, sizeof(head), payload, bytes);
}

StatusOr<const std::byte*> MessageConnection::Receive(
    const MessageHeader& expected) {
  NoteHead head;
  Status received = transport_.Read(peer_, &head, sizeof(head));
  if (!received.ok()) return received;
  if (head.header != expected) {
    return Mismatch(transport_.RankInGroup(peer_),
                    transport_.RankInGroup(transport_.rank()), head.header,
                    expected);
  }
  if (head.payload_bytes > kNotePayloadBytesMax) {
    const int culprit = transport_.RankInGroup(peer_);
    Status status = InvalidArgumentError(
        absl::StrCat("rank ", culprit, " sends a note of ", head.payload_bytes,
                     " bytes in ", LabelText(expected)));
    SetCulpritRank(status, culprit);
    return status;
  }
  if (payload_ == nullptr) {
    payload_ =
        std::make_unique_for_overwrite<std::byte[]>(kNotePayloadBytesMax);
  }
  received = transport_.Read(peer_, payload_.get(), head.payload_bytes);
  if (!received.ok()) return received;
  return payload_.get();
}

Workspace::Workspace(Transport& transport)
    : transport_(transport), connections_(transport.world_size()) {}

MessageConnection& Workspace::ConnectionTo(int peer) {
  std::unique_ptr<MessageConnection>& connection = connections_[peer];
  if (connection == nullptr)
    connection = std::make_unique<MessageConnection>(transport_, peer);
  return *connection;
}

void Workspace::Clear() {
  for (auto& connection : connections_) connection.reset();
  scratch_.reset();
  scratch_bytes_ = 0;
}

std::byte* Workspace::Scratch(size_t bytes) {
  if (scratch_bytes_ < bytes) {
    scratch_.reset();  // Frees the old memory first.
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

Exchange::Exchange(Workspace& workspace, const Collective& collective)
    : workspace_(workspace),
      header_(MessageHeader::Of(collective)),
      element_bytes_(DataTypeBytes(collective.data_type())),
      directed_(IsDirected(collective.kind)) {}

Exchange::Exchange(Workspace& workspace, const Collective& step,
                   const MessageHeader& header)
    : workspace_(workspace),
      header_(header),
      element_bytes_(DataTypeBytes(step.data_type())),
      directed_(false) {}

MessageHeader Exchange::HeaderFor(size_t element_count) const {
  MessageHeader header = header_;
  if (directed_) header.element_count = element_count;
  return header;
}

Status Exchange::SendNote(int peer, const void* payload, size_t bytes) {
  return workspace_.ConnectionTo(peer).Send(header_, payload, bytes);
}

StatusOr<const std::byte*> Exchange::ReceiveNote(int peer) {
  return workspace_.ConnectionTo(peer).Receive(header_);
}

Status Exchange::SendNote(int peer, const void* payload, size_t bytes,
                          size_t element_count) {
  return workspace_.ConnectionTo(peer).Send(HeaderFor(element_count), payload,
                                            bytes);
}

StatusOr<const std::byte*> Exchange::ReceiveNote(int peer,
                                                 size_t element_count) {
  return workspace_.ConnectionTo(peer).Receive(HeaderFor(element_count));
}

Status Exchange::Handshake(const std::vector<int>& receivers,
                           const std::vector<int>& senders) {
  for (const int peer : receivers) {
    Status sent = SendNote(peer, nullptr, 0);
    if (!sent.ok()) return sent;
  }
  for (const int peer : senders) {
    Status received = ReceiveNote(peer).status();
    if (!received.ok()) return received;
  }
  return OkStatus();
}

}  // namespace muster::dataplane::cpu
