#include "dataplane/coalescing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "dataplane/data_types.h"
#include "dataplane/extents.h"
#include "dataplane/reduction.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane {
namespace {

// The largest fused collective: its copies stay in the cache.
constexpr size_t kFusedBytesMax = 1 << 20;
// Fusing does not help a larger collective: bytes take its time, not steps.
constexpr size_t kFusedOneBytesMax = 128 << 10;

const Tensor& GetInput(const Collective& collective) {
  return collective.read()[0];
}

const Tensor& GetOutput(const Collective& collective) {
  return collective.written()[0];
}

// The largest fused collective that `collective` may be part of, in bytes as
// ComputeCost counts them; 0: it may not be fused.
size_t ComputeLimit(const Collective& collective, size_t fusable_bytes) {
  if (GetInput(collective).device().type != DeviceType::kCpu) return 0;
  // The collective has several outputs.
  if (GetTraits(collective.kind).outputs == TensorList::kPerRank) return 0;
  const bool any_order = !IsReduction(collective.kind) ||
                         IsIntegral(collective.data_type()) ||
                         // The order is always that of the ranks.
                         collective.reduce_op == ReduceOp::kUser;
  return any_order ? kFusedBytesMax : fusable_bytes;
}

size_t ComputeCost(const Collective& collective) {
  if (!IsReduction(collective.kind) ||
      collective.reduce_op == ReduceOp::kUser ||
      !Reduction::Has(collective.data_type())) {
    return GetOutput(collective).bytes();
  }
  return static_cast<size_t>(GetInput(collective).element_count()) *
         Reduction::Of(collective.data_type(), collective.reduce_op)
             .accumulator_bytes();
}

std::byte* GetBytes(const Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data());
}

void Copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Collectives that are fused into one.
class Bin {
 public:
  explicit Bin(int world_size) : world_size_(world_size) {}

  // Whether `collective` may join. Always true for the first.
  bool Takes(const Collective& collective, size_t fusable_bytes) const {
    if (members_.empty()) return true;
    const size_t cost = ComputeCost(collective);
    return !closed_ && cost <= kFusedOneBytesMax && IsOfType(collective) &&
           cost_ + cost <= ComputeLimit(collective, fusable_bytes);
  }

  void Add(Collective collective, size_t fusable_bytes) {
    const size_t cost = ComputeCost(collective);
    const size_t limit = ComputeLimit(collective, fusable_bytes);
    closed_ = limit == 0 || cost > limit || cost > kFusedOneBytesMax;
    cost_ += cost;
    members_.push_back(std::move(collective));
  }

  // Whether its members have the elements of `collective`.
  bool IsOfType(const Collective& collective) const {
    return members_[0].data_type() == collective.data_type() &&
           members_[0].opaque_bytes == collective.opaque_bytes;
  }

  // The collective to start. If there are several members, it uses this
  // object's memory.
  Collective Fuse() {
    Collective fused = members_[0];
    if (members_.size() == 1) return fused;
    for (const Collective& member : members_) {
      fused.parts.push_back(GetInput(member).element_count());
      input_bytes_ += GetInput(member).bytes();
      output_bytes_ += GetOutput(member).bytes();
    }
    const Tensor input = Allocate(input_, input_bytes_);
    if (!fused.tensors.empty()) {
      fused.tensors = {input};
    } else {
      fused.inputs = {input};
      fused.outputs = {Allocate(output_, output_bytes_)};
    }
    Walk(input_.get(), GivesEachItsOwn(fused.kind) ? world_size_ : 1, &GetInput,
         [](std::byte* here, std::byte* theirs, size_t bytes) {
           Copy(here, theirs, bytes);
         });
    return fused;
  }

  // Copies the results to the members' outputs.
  void TakeApart() {
    if (members_.size() == 1) return;
    const Collective& first = members_[0];
    std::byte* const from =
        first.tensors.empty() ? output_.get() : input_.get();
    Walk(from, TakesFromEach(first.kind) ? world_size_ : 1, &GetOutput,
         [](std::byte* here, std::byte* theirs, size_t bytes) {
           Copy(theirs, here, bytes);
         });
  }

 private:
  Tensor Allocate(std::unique_ptr<std::byte[]>& memory, size_t bytes) const {
    memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    const DataType type = members_[0].data_type();
    return {memory.get(),
            type,
            {static_cast<int64_t>(bytes / DataTypeBytes(type))}};
  }

  // The memory at `here` consists of part 0 of all members' tensors, then part
  // 1, and so on up to `parts`, which are equal parts of each tensor.
  template <typename CopyFunction>
  void Walk(std::byte* here, int parts,
            const Tensor& (*tensor_of)(const Collective&),
            const CopyFunction& copy) const {
    for (int part = 0; part < parts; ++part) {
      for (const Collective& member : members_) {
        const Tensor& tensor = tensor_of(member);
        const size_t bytes = tensor.bytes() / static_cast<size_t>(parts);
        copy(here, GetBytes(tensor) + static_cast<size_t>(part) * bytes, bytes);
        here += bytes;
      }
    }
  }

  const int world_size_;
  std::vector<Collective> members_;
  size_t cost_ = 0;
  bool closed_ = false;
  size_t input_bytes_ = 0;
  size_t output_bytes_ = 0;
  std::unique_ptr<std::byte[]> input_;
  std::unique_ptr<std::byte[]> output_;
};

// Collects the results of the fused collectives. Thread-safe.
class CoalescedResult {
 public:
  CoalescedResult(std::string description, std::vector<Bin> bins)
      : done_(std::move(description)),
        bins_(std::move(bins)),
        running_(bins_.size()),
        first_failed_(bins_.size()) {}

  PromisedWork& done() { return done_; }
  std::vector<Bin>& bins() { return bins_; }

  void Completed(size_t index, const Status& status)
      MUSTER_LOCKS_EXCLUDED(mutex_) {
    if (status.ok()) bins_[index].TakeApart();
    Status result;
    {
      MutexLock lock(mutex_);
      if (!status.ok() && index < first_failed_) {
        first_failed_ = index;
        error_ = status;
      }
      if (--running_ > 0) return;
      result = error_;
    }
    done_.Complete(result);
  }

 private:
  PromisedWork done_;
  // Each is used by one thread at a time: the starter, then the completing
  // thread.
  std::vector<Bin> bins_;
  Mutex mutex_;
  size_t running_ MUSTER_GUARDED_BY(mutex_);
  size_t first_failed_ MUSTER_GUARDED_BY(mutex_);
  Status error_ MUSTER_GUARDED_BY(mutex_);
};

class CoalescedWork : public Work {
 public:
  CoalescedWork(std::shared_ptr<CoalescedResult> outcome,
                std::vector<std::shared_ptr<Work>> works)
      : outcome_(std::move(outcome)), works_(std::move(works)) {}

  Status Wait(Instant deadline) override {
    // Waits for each, because a backend may run a collective on the waiting
    // thread.
    for (const auto& work : works_) work->Wait(deadline).IgnoreError();
    return outcome_->done().Wait(deadline);
  }
  Status Synchronize() override {
    Status first;
    for (const auto& work : works_) first.Update(work->Synchronize());
    return first;
  }
  bool IsCompleted() const override { return outcome_->done().IsCompleted(); }
  Status status() const override { return outcome_->done().status(); }
  void OnCompletion(Callback callback) override {
    outcome_->done().OnCompletion(std::move(callback));
  }
  const std::string& description() const override {
    return outcome_->done().description();
  }
  int source_rank() const override { return -1; }

 private:
  const std::shared_ptr<CoalescedResult> outcome_;
  const std::vector<std::shared_ptr<Work>> works_;
};

// Members of one fused collective must not write what another one reads or
// writes.
Status CheckOverlap(const std::vector<Collective>& collectives) {
  Extents written;
  for (size_t i = 0; i < collectives.size(); ++i) {
    for (const Tensor& tensor : collectives[i].written()) {
      written.Add(tensor, i);
    }
  }
  auto clash = written.Clash();
  for (size_t i = 0; i < collectives.size() && !clash.has_value(); ++i) {
    for (const Tensor& input : collectives[i].inputs) {
      const auto touched =
          written.Touching(input, [i](size_t other) { return other == i; });
      if (touched.has_value()) clash = std::minmax(i, *touched);
    }
  }
  if (!clash.has_value()) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("coalesced ", CollectiveKindName(collectives[0].kind),
                   ": number ", clash->second, " of ", collectives.size(),
                   " overlaps number ", clash->first));
}

Status CheckAll(Communicator& communicator,
                const std::vector<Collective>& collectives) {
  const Collective& first = collectives[0];
  Status able = CanCoalesce(first.kind);
  if (!able.ok()) return able;
  for (size_t i = 0; i < collectives.size(); ++i) {
    const Collective& one = collectives[i];
    Status status = CanCoalesceWith(first, one);
    if (status.ok()) {
      status = communicator.Check(one);
      // Starts nothing, but tells the other ranks of the error.
      if (!status.ok()) communicator.Start(one);
    }
    if (status.ok()) continue;
    return Status(
        status.code(),
        absl::StrCat("coalesced ", CollectiveKindName(first.kind), " on group ",
                     base::Quote(communicator.group_name()), ": number ", i,
                     " of ", collectives.size(), ": ", status.message()));
  }
  return CheckOverlap(collectives);
}

std::vector<Bin> Sort(std::vector<Collective> collectives, int world_size,
                      size_t fusable_bytes) {
  std::vector<Bin> bins;
  for (Collective& collective : collectives) {
    OpaqueToBytes(collective);
    // The last bin of its data type: the earlier ones are full.
    Bin* bin = nullptr;
    for (Bin& one : bins) {
      if (one.IsOfType(collective)) bin = &one;
    }
    if (bin == nullptr || !bin->Takes(collective, fusable_bytes)) {
      bin = &bins.emplace_back(world_size);
    }
    bin->Add(std::move(collective), fusable_bytes);
  }
  return bins;
}

}  // namespace

Status CanCoalesce(CollectiveKind kind) {
  if (GetTraits(kind).can_coalesce) return OkStatus();
  std::vector<absl::string_view> able;
  for (const CollectiveTraits& traits : kCollectiveTraits) {
    if (traits.can_coalesce) able.push_back(traits.name);
  }
  return InvalidArgumentError(absl::StrCat("cannot coalesce ",
                                           CollectiveKindName(kind), ": only ",
                                           absl::StrJoin(able, ", ")));
}

Status CanCoalesceWith(const Collective& first, const Collective& next) {
  if (next.kind != first.kind) {
    return InvalidArgumentError(
        absl::StrCat("cannot coalesce ", CollectiveKindName(next.kind),
                     " with ", CollectiveKindName(first.kind)));
  }
  if (next.reduce_op != first.reduce_op) {
    return InvalidArgumentError(absl::StrCat(
        "cannot coalesce reductions by ", ReduceOpName(next.reduce_op), " and ",
        ReduceOpName(first.reduce_op)));
  }
  if (next.function != first.function) {
    return InvalidArgumentError(
        "cannot coalesce reductions by different functions");
  }
  if (next.factor != first.factor) {
    return InvalidArgumentError(absl::StrCat(
        "cannot coalesce reductions by ", ReduceOpName(next.reduce_op),
        " of the factors ", next.factor, " and ", first.factor));
  }
  return OkStatus();
}

Status RunCoalesced(Communicator& communicator,
                    std::vector<Collective> collectives) {
  if (collectives.empty()) return OkStatus();
  Status status = CheckAll(communicator, collectives);
  if (!status.ok()) return status;
  for (Bin& bin : Sort(std::move(collectives), communicator.world_size(),
                       communicator.fusable_bytes())) {
    status = communicator.Run(bin.Fuse());
    if (!status.ok()) return status;
    bin.TakeApart();
  }
  return OkStatus();
}

std::shared_ptr<Work> StartCoalesced(Communicator& communicator,
                                     std::vector<Collective> collectives) {
  std::string description = absl::StrCat(
      "coalesced ", collectives.size(), " ",
      collectives.empty() ? "collectives"
                          : CollectiveKindName(collectives[0].kind));
  Status status =
      collectives.empty() ? OkStatus() : CheckAll(communicator, collectives);
  if (collectives.empty() || !status.ok()) {
    auto work = std::make_shared<PromisedWork>(std::move(description));
    work->Complete(status);
    return work;
  }
  const auto outcome = std::make_shared<CoalescedResult>(
      std::move(description),
      Sort(std::move(collectives), communicator.world_size(),
           communicator.fusable_bytes()));
  std::vector<Collective> fused;
  fused.reserve(outcome->bins().size());
  for (Bin& bin : outcome->bins()) fused.push_back(bin.Fuse());
  std::vector<std::shared_ptr<Work>> works =
      communicator.StartTogether(std::move(fused));
  for (size_t index = 0; index < works.size(); ++index) {
    works[index]->OnCompletion([outcome, index](const Status& result) {
      outcome->Completed(index, result);
    });
  }
  return std::make_shared<CoalescedWork>(outcome, std::move(works));
}

}  // namespace muster::dataplane
