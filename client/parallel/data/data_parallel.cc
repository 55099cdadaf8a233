#include "muster/data_parallel.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/agreement/agreement.h"
#include "client/parallel/data/buckets.h"
#include "client/parallel/data/parameter_checks.h"
#include "client/parallel/data/step_log.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"
#include "muster/debug.h"
#include "muster/distributed.h"
#include "muster/objects.h"

namespace muster {

using internal::Bucket;

namespace {

constexpr size_t kNamesInTextMax = 8;

std::string NamesText(const std::vector<std::string>& names) {
  const size_t shown = GetDebugLevel() == DebugLevel::kOff
                           ? std::min(names.size(), kNamesInTextMax)
                           : names.size();
  std::vector<std::string> quoted;
  for (size_t i = 0; i < shown; ++i) quoted.push_back(base::Quote(names[i]));
  std::string text = absl::StrJoin(quoted, ", ");
  if (shown < names.size()) {
    absl::StrAppend(&text, " and ", names.size() - shown, " more");
  }
  return text;
}

void CopyElements(const Tensor& from, const Tensor& to) {
  std::memcpy(to.data(), from.data(), from.bytes());
}

}  // namespace

// Counts, orders and moves what the functions of DataParallel describe.
class DataParallel::Reducer {
 public:
  Reducer(std::vector<Parameter> parameters, const DataParallelOptions& options)
      : parameters_(std::move(parameters)),
        options_(options),
        group_(options.group == nullptr ? WorldGroup() : options.group),
        hook_(options.hook == nullptr ? MakeAllReduceHook() : options.hook),
        is_member_(!group_->state()->IsForOthers("data_parallel")),
        log_(MakeLoggingData()),
        buckets_(
            group_, GetValues(),
            {.first_bytes = static_cast<size_t>(options.first_bucket_bytes),
             .bytes = static_cast<size_t>(options.bucket_bytes)}),
        used_anywhere_(parameters_.size(), 1),
        ready_(parameters_.size(), 0),
        contributes_(parameters_.size(), 0),
        expected_(parameters_.size(), 1) {
    if (!is_member_) return;
    internal::MakeAgreement(parameters_, options_, *hook_).Check({group_});
    Broadcast(GetValues(), 0);
    Broadcast(GetBuffers(), 0);
    hook_->BucketsRebuilt();
    // Gradients come from the last layer to the first.
    order_.resize(parameters_.size());
    std::iota(order_.rbegin(), order_.rend(), size_t{0});
    internal::Agreement built("data_parallel");
    try {
      buckets_.Build(order_, [](size_t) { return false; });
    } catch (const std::bad_alloc&) {
      built.AddFault(ResourceExhaustedError("no memory for the buckets"));
    }
    built.Check({group_});
    log_.SetBuckets(buckets_, /*rebuilt=*/false);
    log_.LogStart();
  }

  void BeginStep() {
    if (!is_member_) return;
    {
      const MutexLock lock(mutex_);
      CheckNotFailed();
      CheckNothingReady("BeginStep");
      if (armed_) return;
      Arm();
      if (!reduces_ || !HasBuffersToSend()) return;
    }
    Guard([&] { SendBuffers(/*is_shadow=*/false); });
  }

  void Ready(size_t index) {
    if (!is_member_) return;
    CheckIndex(index);
    {
      const MutexLock lock(mutex_);
      MarkReady(index);
      if (!reduces_) return;
      ++running_;
    }
    CopyIn(index);
    {
      const MutexLock lock(mutex_);
      --buckets_.Find(index).pending;
    }
    StartCompleteBuckets();
    const MutexLock lock(mutex_);
    --running_;
  }

  void FinishStep() {
    if (!is_member_) return;
    {
      const MutexLock lock(mutex_);
      CheckNotFailed();
      if (running_ > 0) {
        internal::Throw(internal::ErrorSource::kControl,
                        FailedPreconditionError(absl::StrCat(
                            "data_parallel: FinishStep while ", running_,
                            " calls of Ready have not returned")));
      }
      if (!armed_) ArmOrThrow();
      if (!reduces_) {
        armed_ = false;
        return;
      }
    }
    Reduce(/*is_shadow=*/false);
  }

  void ShadowStep() {
    if (!is_member_) return;
    {
      const MutexLock lock(mutex_);
      CheckNotFailed();
      CheckNothingReady("ShadowStep");
      if (armed_) {
        internal::Throw(
            internal::ErrorSource::kControl,
            FailedPreconditionError("data_parallel: ShadowStep in a step that "
                                    "BeginStep has begun"));
      }
      if (no_sync_ > 0) {
        internal::Throw(
            internal::ErrorSource::kControl,
            FailedPreconditionError("data_parallel: ShadowStep within NoSync"));
      }
      Arm();
    }
    if (HasBuffersToSend()) Guard([&] { SendBuffers(/*is_shadow=*/true); });
    Reduce(/*is_shadow=*/true);
  }

  void FinishJoin(const JoinResult& result) {
    if (!is_member_) return;
    {
      const MutexLock lock(mutex_);
      CheckNotFailed();
    }
    const std::vector<int> ranks = group_->ranks();
    const auto last =
        result.last_ranks.empty()
            ? ranks.end()
            : std::find(ranks.begin(), ranks.end(), result.last_ranks.back());
    if (last == ranks.end()) {
      internal::Throw(
          internal::ErrorSource::kControl,
          InvalidArgumentError("data_parallel: argument result: last_ranks has "
                               "no rank of the group"));
    }
    const auto source = static_cast<int>(last - ranks.begin());
    Guard([&] {
      Broadcast(GetValues(), source);
      if (options_.broadcast_buffers) Broadcast(GetBuffers(), source);
    });
  }

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  bool RunsInStep() const {
    const MutexLock lock(mutex_);
    return no_sync_ == 0;
  }

  void AddNoSync(int change) {
    const MutexLock lock(mutex_);
    no_sync_ += change;
  }

  Tensor Gradient(size_t index) const {
    CheckIndex(index);
    if (!is_member_ || !LiesInBucket(index)) return parameters_[index].gradient;
    return buckets_.View(index);
  }

  const std::vector<Parameter>& parameters() const { return parameters_; }

  LoggingData logging_data() const { return log_.data(); }

 private:
  std::vector<Tensor> GetValues() const {
    std::vector<Tensor> values;
    for (const Parameter& parameter : parameters_) {
      values.push_back(parameter.value);
    }
    return values;
  }

  std::vector<Tensor> GetBuffers() const {
    std::vector<Tensor> tensors;
    for (const NamedTensor& buffer : options_.buffers) {
      tensors.push_back(buffer.tensor);
    }
    return tensors;
  }

  LoggingData MakeLoggingData() const {
    LoggingData data;
    data.rank = group_->rank();
    data.world_size = group_->size();
    data.comm_hook = hook_->Describe();
    data.parameter_count = parameters_.size();
    for (const Parameter& parameter : parameters_) {
      data.total_parameter_bytes +=
          static_cast<int64_t>(parameter.value.bytes());
    }
    return data;
  }

  bool LiesInBucket(size_t index) const {
    return parameters_[index].gradient.data() == nullptr;
  }

  bool HasBuffersToSend() const {
    return options_.broadcast_buffers && !options_.buffers.empty();
  }

  void CheckIndex(size_t index) const {
    if (index < parameters_.size()) return;
    internal::Invalid(absl::StrCat("data_parallel: parameter ", index, " of ",
                                   parameters_.size()));
  }

  std::string Name(size_t index) const {
    return absl::StrCat("data_parallel: parameter ",
                        base::Quote(parameters_[index].name));
  }

  // Keeps what `work` throws: then the ranks no longer agree on what comes
  // next, and the group ends, so that no rank waits for this one.
  template <typename F>
  void Guard(F work) {
    try {
      work();
    } catch (const std::exception& error) {
      Fail(error.what());
      throw;
    } catch (...) {
      Fail("an exception");
      throw;
    }
  }

  // Called in a handler.
  void Fail(const char* why) {
    {
      const MutexLock lock(mutex_);
      if (failure_ != nullptr) return;
      failure_ = std::current_exception();
    }
    group_->Abort(absl::StrCat("data_parallel: ", why));
  }

  void CheckNotFailed() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

  void CheckNothingReady(const char* call) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto at = std::find(ready_.begin(), ready_.end(), 1);
    if (!armed_ || at == ready_.end()) return;
    internal::Throw(
        internal::ErrorSource::kControl,
        FailedPreconditionError(absl::StrCat(
            Name(static_cast<size_t>(at - ready_.begin())),
            " is ready in a step that FinishStep has not ended, before ",
            call)));
  }

  // Begins a step without BeginStep.
  void ArmOrThrow() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (HasBuffersToSend() && no_sync_ == 0) {
      internal::Throw(
          internal::ErrorSource::kControl,
          FailedPreconditionError("data_parallel: BeginStep is missing, which "
                                  "broadcasts the buffers"));
    }
    Arm();
  }

  // Begins a step.
  void Arm() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    armed_ = true;
    reduces_ = no_sync_ == 0;
    std::fill(ready_.begin(), ready_.end(), uint8_t{0});
    arrivals_.clear();
    if (!reduces_) return;
    next_ = 0;
    for (Bucket& bucket : buckets_.all()) {
      bucket.pending = bucket.gradients.parameters.size();
      bucket.times.clear();
    }
    kept_.clear();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      // Its bucket does not wait for it.
      if (expected_[i] == 0) {
        LeaveOut(i);
        --buckets_.Find(i).pending;
      }
    }
  }

  void MarkReady(size_t index) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    CheckNotFailed();
    if (!armed_) ArmOrThrow();
    if (ready_[index] != 0) {
      internal::Throw(
          internal::ErrorSource::kControl,
          FailedPreconditionError(absl::StrCat(
              Name(index), " is ready twice in step ", steps_ + 1)));
    }
    if (expected_[index] == 0) {
      internal::Throw(internal::ErrorSource::kControl,
                      FailedPreconditionError(absl::StrCat(
                          Name(index), " is ready in step ", steps_ + 1,
                          ", but was not in the first step of the static "
                          "graph")));
    }
    ready_[index] = 1;
    contributes_[index] = 1;
    if (!reduces_) return;
    times_.last_ready = Clock::now();
    if (arrivals_.empty()) times_.first_ready = times_.last_ready;
    arrivals_.push_back(index);
  }

  void CopyIn(size_t index) {
    if (LiesInBucket(index)) return;
    CopyElements(parameters_[index].gradient, buckets_.View(index));
  }

  // Gives zeros for a parameter. A gradient that lies there is kept if it may
  // be that no rank uses the parameter.
  void LeaveOut(size_t index) {
    const Tensor& tensor = buckets_.View(index);
    if (LiesInBucket(index) && (FindsUnused() || used_anywhere_[index] == 0)) {
      const auto* const bytes = static_cast<const std::byte*>(tensor.data());
      kept_[index].assign(bytes, bytes + tensor.bytes());
    }
    std::memset(tensor.data(), 0, tensor.bytes());
  }

  // Starts the next buckets as long as they are complete. One thread at a time
  // does so, in the order of the buckets; it also starts those that other
  // threads complete meanwhile.
  void StartCompleteBuckets() {
    for (;;) {
      Bucket* bucket = nullptr;
      {
        const MutexLock lock(mutex_);
        CheckNotFailed();
        if (is_starting_ || next_ == buckets_.all().size()) return;
        bucket = &buckets_.all()[next_];
        if (bucket->pending > 0) return;
        ++next_;
        is_starting_ = true;
      }
      Guard([&] {
        RunHook(*bucket, [&] { return hook_->Start(bucket->gradients); });
      });
      const MutexLock lock(mutex_);
      is_starting_ = false;
    }
  }

  // Runs a function of the hook, and notes when what it starts is complete.
  template <typename F>
  void RunHook(Bucket& bucket, F function) {
    internal::ReductionTime time{.begin = Clock::now()};
    bucket.stage = function();
    // A stage that has a Work has waited for it.
    if (!bucket.times.empty()) SetIfUnknown(*bucket.times.back().end);
    if (bucket.stage.empty()) {
      SetIfUnknown(*time.end);
    } else if (bucket.stage.work() != nullptr) {
      internal::GroupState::OnCompletion(
          *bucket.stage.work(), [end = time.end] { SetIfUnknown(*end); });
    }
    bucket.times.push_back(std::move(time));
  }

  static void SetIfUnknown(std::atomic<Instant>& end) {
    if (end.load() == Instant()) end.store(Clock::now());
  }

  // Whether all ranks tell each other in this step which parameters they use.
  bool FindsUnused() const {
    return options_.static_graph ? !knows_graph_
                                 : options_.find_unused_parameters;
  }

  // Ends a step that reduces.
  void Reduce(bool is_shadow) {
    const bool finds_unused = FindsUnused();
    std::vector<std::string> missing;
    std::vector<std::string> all_missing;
    bool is_incomplete = false;
    Guard([&] {
      missing = CompleteBuckets(is_shadow);
      // The parameters that each rank uses, or whether one is missing; then
      // whether a rank is a shadow.
      std::vector<uint8_t> flags(1, missing.empty() ? 0 : 1);
      if (finds_unused) flags = GetContributions();
      flags.push_back(is_shadow ? 1 : 0);
      Work agreement =
          group_->AllReduce(flags, {.op = ReduceOp::kMax, .async_op = true});
      // Without flags of parameters, what is averaged is copied while the next
      // buckets are on their way.
      RunStages(/*copies=*/!finds_unused);
      agreement.Wait();
      const bool has_shadows = flags.back() != 0;
      flags.pop_back();
      if (finds_unused) {
        used_anywhere_ = flags;
        LogUnused();
        for (const Bucket& bucket : buckets_.all()) CopyOut(bucket);
      } else {
        is_incomplete = flags[0] != 0;
      }
      LogStep(is_shadow);
      FinishReduced(has_shadows);
      if (is_incomplete) {
        AllGatherObject(all_missing, NamesText(missing), {.group = group_});
      }
    });
    if (is_incomplete) ThrowMissing(all_missing);
  }

  // `missing` has the names of each rank's missing parameters, by rank.
  [[noreturn]] void ThrowMissing(
      const std::vector<std::string>& missing) const {
    const std::vector<int> ranks = group_->ranks();
    std::vector<std::string> parts;
    internal::Culprits culprits;
    for (size_t rank = 0; rank < missing.size(); ++rank) {
      if (missing[rank].empty()) continue;
      culprits.members.push_back(
          group_->state()->GetMember(static_cast<int>(rank)));
      if (parts.size() < base::kRanksInTextMax) {
        parts.push_back(
            absl::StrCat("rank ", ranks[rank], ": ", missing[rank]));
      }
    }
    if (culprits.size() > parts.size()) {
      parts.push_back(
          absl::StrCat("and ", culprits.size() - parts.size(), " more ranks"));
    }
    internal::Throw(
        internal::ErrorSource::kControl,
        internal::WithCulprits(
            FailedPreconditionError(absl::StrCat(
                "data_parallel: parameters without a gradient in step ", steps_,
                options_.static_graph
                    ? ", which had one in the first step of the static graph"
                    : " (find_unused_parameters allows that)",
                ": ", absl::StrJoin(parts, "; "))),
            culprits));
  }

  std::vector<uint8_t> GetContributions() const {
    const MutexLock lock(mutex_);
    return contributes_;
  }

  // Starts the buckets that are left. Returns the names of parameters that this
  // rank should have used.
  std::vector<std::string> CompleteBuckets(bool is_shadow) {
    std::vector<std::string> missing;
    {
      const MutexLock lock(mutex_);
      for (size_t i = 0; i < parameters_.size(); ++i) {
        // The bucket of one that is not expected may be under way.
        if (ready_[i] != 0 || expected_[i] == 0) continue;
        if (contributes_[i] != 0) {
          CopyIn(i);  // accumulated within NoSync
          continue;
        }
        if (!FindsUnused() && !is_shadow) {
          missing.push_back(parameters_[i].name);
        }
        LeaveOut(i);
      }
      for (Bucket& bucket : buckets_.all()) bucket.pending = 0;
    }
    StartCompleteBuckets();
    return missing;
  }

  void RunStages(bool copies) {
    for (bool is_done = false; !is_done;) {
      is_done = true;
      for (Bucket& bucket : buckets_.all()) {
        if (bucket.stage.empty()) continue;
        RunHook(bucket, [&] { return bucket.stage.Run(); });
        if (!bucket.stage.empty()) {
          is_done = false;
        } else if (copies) {
          CopyOut(bucket);
        }
      }
    }
  }

  void CopyOut(const Bucket& bucket) {
    const std::vector<size_t>& parameters = bucket.gradients.parameters;
    for (size_t at = 0; at < parameters.size(); ++at) {
      const size_t i = parameters[at];
      if (used_anywhere_[i] == 0) {
        hook_->Discard(bucket.gradients, at);
        const auto kept = kept_.find(i);
        if (kept == kept_.end()) continue;
        std::copy(kept->second.begin(), kept->second.end(),
                  static_cast<std::byte*>(buckets_.View(i).data()));
      } else if (!LiesInBucket(i)) {
        CopyElements(buckets_.View(i), parameters_[i].gradient);
      }
    }
  }

  // Prepares what comes after a reduced step.
  void FinishReduced(bool has_shadows) {
    std::vector<size_t> arrivals;
    {
      const MutexLock lock(mutex_);
      if (options_.static_graph && !knows_graph_ && !has_shadows) {
        expected_.assign(contributes_.begin(), contributes_.end());
        knows_graph_ = true;
      }
      std::fill(contributes_.begin(), contributes_.end(), uint8_t{0});
      armed_ = false;
      ++steps_;
      arrivals = arrivals_;
    }
    if (is_final_ || has_shadows ||
        (options_.find_unused_parameters && !options_.static_graph)) {
      return;
    }
    Rebuild(arrivals);
    is_final_ = true;
  }

  void Rebuild(const std::vector<size_t>& arrivals) {
    std::vector<int64_t> order(arrivals.begin(), arrivals.end());
    const std::set<size_t> came(arrivals.begin(), arrivals.end());
    for (const size_t i : order_) {
      if (!came.contains(i)) order.push_back(static_cast<int64_t>(i));
    }
    Broadcast({Tensor(order)}, 0);
    order_.assign(order.begin(), order.end());
    const bool is_new =
        buckets_.Build(order_, [&](size_t i) { return LiesInBucket(i); });
    if (!is_new) return;
    hook_->BucketsRebuilt();
    log_.SetBuckets(buckets_, /*rebuilt=*/true);
  }

  void LogUnused() {
    std::vector<std::string> unused;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (used_anywhere_[i] == 0) unused.push_back(parameters_[i].name);
    }
    log_.SetUnused(std::move(unused));
  }

  void LogStep(bool is_shadow) {
    if (is_shadow) return log_.AddShadow();
    internal::StepTimes times;
    {
      const MutexLock lock(mutex_);
      if (!arrivals_.empty()) times = times_;
    }
    for (const Bucket& bucket : buckets_.all()) {
      for (const internal::ReductionTime& time : bucket.times) {
        times.reductions.push_back({time.begin, time.end->load()});
      }
    }
    log_.AddStep(std::move(times));
  }

  void Broadcast(const std::vector<Tensor>& tensors, int source) {
    std::vector<Work> works;
    works.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
      works.push_back(group_->Broadcast(
          tensor, std::nullopt, {.async_op = true, .group_src = source}));
    }
    for (Work& work : works) work.Wait();
  }

  // Broadcasts from the first rank that is no shadow.
  void SendBuffers(bool is_shadow) {
    std::vector<int64_t> source(1, is_shadow ? group_->size() : group_->rank());
    group_->AllReduce(source, {.op = ReduceOp::kMin});
    if (source[0] == group_->size()) return;
    Broadcast(GetBuffers(), static_cast<int>(source[0]));
  }

  // Constant after construction.
  const std::vector<Parameter> parameters_;
  const DataParallelOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<CommunicationHook> hook_;
  const bool is_member_;

  internal::StepLog log_;

  // Change only while no Ready runs, but what the buckets wait for is guarded
  // by mutex_.
  std::vector<size_t> order_;
  internal::Buckets buckets_;
  // Reduced steps.
  int64_t steps_ = 0;
  // Whether `expected_` and `used_anywhere_` are those of the static graph, and
  // whether the buckets are not built anew any more.
  bool knows_graph_ = false;
  bool is_final_ = false;
  // By parameter, 1 or 0. Whether some rank used it when that was last asked.
  std::vector<uint8_t> used_anywhere_;
  // By parameter, the gradients in buckets that were left out in this step.
  std::map<size_t, std::vector<std::byte>> kept_;

  mutable Mutex mutex_;
  std::exception_ptr failure_ MUSTER_GUARDED_BY(mutex_);
  int no_sync_ MUSTER_GUARDED_BY(mutex_) = 0;
  // Whether a step has begun, and whether it reduces.
  bool armed_ MUSTER_GUARDED_BY(mutex_) = false;
  bool reduces_ MUSTER_GUARDED_BY(mutex_) = false;
  // Calls of Ready that have not returned.
  int running_ MUSTER_GUARDED_BY(mutex_) = 0;
  // The bucket to start next, and whether a thread starts one.
  size_t next_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool is_starting_ MUSTER_GUARDED_BY(mutex_) = false;
  // By parameter, 1 or 0. Whether it is ready in this step; whether it has been
  // since the last reduced step; whether each step uses it.
  std::vector<uint8_t> ready_ MUSTER_GUARDED_BY(mutex_);
  std::vector<uint8_t> contributes_ MUSTER_GUARDED_BY(mutex_);
  std::vector<uint8_t> expected_ MUSTER_GUARDED_BY(mutex_);
  // The parameters of this step, in the order of Ready.
  std::vector<size_t> arrivals_ MUSTER_GUARDED_BY(mutex_);
  internal::StepTimes times_ MUSTER_GUARDED_BY(mutex_) = {};
};

DataParallel::DataParallel(std::vector<Parameter> parameters,
                           const DataParallelOptions& options)
    : reducer_(std::make_unique<Reducer>(std::move(parameters), options)) {}

DataParallel::~DataParallel() = default;

void DataParallel::BeginStep() { reducer_->BeginStep(); }
void DataParallel::Ready(size_t index) { reducer_->Ready(index); }
void DataParallel::FinishStep() { reducer_->FinishStep(); }
void DataParallel::ShadowStep() { reducer_->ShadowStep(); }

void DataParallel::FinishJoin(const JoinResult& result) {
  reducer_->FinishJoin(result);
}

std::shared_ptr<ProcessGroup> DataParallel::join_group() const {
  return reducer_->group();
}

bool DataParallel::RunsInStep() const { return reducer_->RunsInStep(); }

std::string DataParallel::DescribeJoin() const {
  // The constructor has compared the rest.
  return absl::StrCat("DataParallel(", parameters().size(), " parameters)");
}

Tensor DataParallel::Gradient(size_t index) const {
  return reducer_->Gradient(index);
}

const std::vector<Parameter>& DataParallel::parameters() const {
  return reducer_->parameters();
}

DataParallel::LoggingData DataParallel::logging_data() const {
  return reducer_->logging_data();
}

DataParallel::NoSync::NoSync(DataParallel& model) : model_(model) {
  model_.reducer_->AddNoSync(1);
}

DataParallel::NoSync::~NoSync() { model_.reducer_->AddNoSync(-1); }

}  // namespace muster
