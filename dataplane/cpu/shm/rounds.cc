#include "dataplane/cpu/shm/rounds.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/culprit.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {

using cpu::Mismatch;

namespace {

// The bytes read between two checks for an abort.
constexpr size_t kReadBytes = 4 << 20;

}  // namespace

uint64_t History::ComputeDigest(const MessageHeader& header) {
  const uint64_t what = uint64_t{header.kind} |
                        uint64_t{header.data_type} << 8 |
                        uint64_t{header.reduce_op} << 16 |
                        static_cast<uint64_t>(header.root) << 32;
  uint64_t digest = kBasis;
  for (const uint64_t part : {what, header.element_count, header.sizes_hash}) {
    digest = (digest ^ part) * kPrime;
  }
  return digest;
}

Status Rounds::ToStatus(RoundBuffer::WaitResult outcome) {
  switch (outcome) {
    case RoundBuffer::WaitResult::kDone:
      return OkStatus();
    case RoundBuffer::WaitResult::kWoken:
      return context_.transport.abort_cause();
    case RoundBuffer::WaitResult::kNoRing: {
      Status status = ResourceExhaustedError(
          absl::StrCat("rank ", RankInGroup(rank_), ": ",
                       round_buffer_.ring_status().message()));
      SetCulpritRank(status, RankInGroup(rank_));
      return status;
    }
    case RoundBuffer::WaitResult::kLeft:
      break;
  }
  return context_.transport.Gone(round_buffer_.left_peer());
}

Status Rounds::AwaitOther(int peer, uint64_t count) {
  if (!round_buffer_.HasPublished(peer)) {
    // The data is on its way.
    const RoundBuffer::WaitResult outcome = round_buffer_.Await(peer);
    if (outcome != RoundBuffer::WaitResult::kDone) return ToStatus(outcome);
  }
  if (!is_first() || peer == rank_) return OkStatus();
  if (!context_.runs_steps) {
    return IsSame(peer, count) ? OkStatus() : DescribeDifference(peer, count);
  }
  return IsSameStep(peer) ? OkStatus()
                          : DescribeDifference(peer, header_.element_count);
}

bool Rounds::IsSameStep(int peer) const {
  const Head ours = HeadWith(header_.element_count);
  return std::memcmp(round_buffer_.published_head(peer), &ours, sizeof(ours)) ==
         0;
}

Status Rounds::DescribeDifference(int peer, uint64_t count) const {
  MessageHeader theirs;
  std::memcpy(&theirs, round_buffer_.published_head(peer), sizeof(theirs));
  MessageHeader ours = header_;
  ours.sequence = context_.sequence;
  ours.element_count = count;
  // A step of a reduction has the kind of the reduction, which may have no row.
  const bool has_row_there =
      theirs.kind == ours.kind && (collective_.step_of == nullptr ||
                                   (theirs.reduce_op == ours.reduce_op &&
                                    theirs.sizes_hash == ours.sizes_hash));
  if (has_rows_ && !context_.runs_steps && has_row_there) {
    theirs.element_count = CountFor(rank_, peer);
  }
  if (theirs != ours) {
    return Mismatch(RankInGroup(peer), RankInGroup(rank_), theirs, ours);
  }
  MessageHeader their_last;
  std::memcpy(&their_last, round_buffer_.published_tail(peer),
              sizeof(their_last));
  const MessageHeader our_last = context_.history.last;
  if (their_last != our_last) {
    return Mismatch(RankInGroup(peer), RankInGroup(rank_), their_last,
                    our_last);
  }
  Status status = InvalidArgumentError(
      absl::StrCat("rank ", RankInGroup(peer), " and rank ", RankInGroup(rank_),
                   " ran different collectives, or with different roots, or "
                   "had symmetric memory from another one on, before ",
                   collective_.Label()));
  SetCulpritRank(status, RankInGroup(peer));
  return status;
}

Status Rounds::PublishLocation(const Block& whole, RemoteBuffers& places) {
  // Without factors, everything is in the slot's first cache line.
  static_assert(offsetof(Offer, place) == 0);
  const bool has_factors = collective().reduce_op == ReduceOp::kPremulSum;
  const size_t bytes =
      has_factors ? sizeof(Offer) : sizeof(Regions::BufferLocation);
  Status status = Open(bytes);
  if (!status.ok()) return status;
  const Offer own = {
      .place = regions().Find(whole.data, whole.count * element_bytes_),
      .factor = collective().factor};
  std::memcpy(payload(), &own, bytes);
  Post();
  places.data.resize(world_size_);
  places.data[rank_] = own.place.number == 0 ? nullptr : whole.data;
  places.factors.clear();
  if (has_factors) {
    places.factors.resize(world_size_);
    places.factors[rank_] = own.factor;
  }
  return OkStatus();
}

StatusOr<bool> Rounds::AwaitRemoteBuffers(RemoteBuffers& places) {
  Status status = AwaitAll();
  if (!status.ok()) return status;
  // All ranks return the same here.
  if (places.data[rank_] == nullptr) return false;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const auto& theirs = *reinterpret_cast<const Offer*>(published(peer));
    places.data[peer] = regions().Locate(peer, theirs.place);
    if (places.data[peer] == nullptr) return false;
    if (!places.factors.empty()) places.factors[peer] = theirs.factor;
  }
  return true;
}

void Rounds::WriteRow(absl::Span<const Block> give) {
  auto* const row = reinterpret_cast<uint64_t*>(payload());
  for (int peer = 0; peer < world_size_; ++peer) row[peer] = give[peer].count;
}

Rounds::Access Rounds::FindSource(const Block& block, Scope where,
                                  SourceAddress& origin) {
  const size_t bytes = block.count * element_bytes_;
  origin = {.address = reinterpret_cast<uint64_t>(block.data)};
  if (bytes == 0) return Access::kMapped;
  if (context_.has_regions) origin.place = regions().Find(block.data, bytes);
  if (origin.place.number > 0) return Access::kMapped;
  const bool is_readable = where == Scope::kAnywhere && context_.reads_memory &&
                           cpu::CanBeRead(block.data, bytes);
  return is_readable ? Access::kBySystem : Access::kNone;
}

Status Rounds::Read(int peer, const Source& source, size_t offset,
                    std::byte* to, size_t bytes) {
  const cpu::PeerMemory* const memory = context_.transport.FindMemory(peer);
  while (bytes > 0) {
    Status aborted = context_.transport.abort_cause();
    if (!aborted.ok()) return aborted;
    const size_t now = std::min(bytes, kReadBytes);
    if (source.mapped != nullptr) {
      std::memcpy(to, source.mapped + offset, now);
    } else if (memory == nullptr) {
      return context_.transport.Gone(peer);
    } else if (const uint64_t from = source.address + offset;
               !memory->Read(from, to, now)) {
      Status unread = memory->WhyUnread(RankInGroup(rank_), RankInGroup(peer),
                                        from, to, now);
      return unread.ok() ? context_.transport.Gone(peer) : unread;
    }
    offset += now;
    to += now;
    bytes -= now;
  }
  return OkStatus();
}

Status Rounds::Meet() {
  Status status = Open(0);
  if (!status.ok()) return status;
  Post();
  return AwaitAll();
}

absl::InlinedVector<int, 16> Rounds::Others() const {
  absl::InlinedVector<int, 16> others;
  for (int i = 1; i < world_size_; ++i) {
    others.push_back((rank_ + i) % world_size_);
  }
  return others;
}

std::byte* Rounds::Scratch(size_t bytes) {
  if (context_.scratch.size() < bytes) context_.scratch.resize(bytes);
  return context_.scratch.data();
}

}  // namespace muster::dataplane::shm
