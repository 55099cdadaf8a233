#include "dataplane/nccl/nccl_backend.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/text.h"
#include "base/thread_annotations.h"
#include "dataplane/cuda/device_work.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "dataplane/nccl/aborter.h"
#include "dataplane/nccl/comm_stream.h"
#include "dataplane/nccl/communicator_maker.h"
#include "dataplane/nccl/config.h"
#include "dataplane/nccl/issue.h"
#include "dataplane/nccl/return_if_error.h"
#include "dataplane/nccl/roll_call.h"
#include "dataplane/nccl/split.h"
#include "dataplane/nccl/symmetric.h"

namespace muster::dataplane::nccl {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How often the ends of collectives are looked for: while somebody waits for
// one on the host, and while nobody does.
constexpr microseconds kLook(50);
constexpr milliseconds kLazyLook(1);
// The same of NCCL's errors.
constexpr milliseconds kErrorLook(100);
// How long a communicator that is destroyed in peace may take to part from its
// peers, and how long it, or one that is aborted, may take to be no more: alone
// on a device that is half a second, and a second, as threads of NCCL's look
// twice a second whether they are to end. What takes longer is left alone, and
// may be in the way of the process's end.
constexpr milliseconds kPart(1000);
constexpr milliseconds kDrain(3000);

// The key of the communicator of all ranks.
constexpr char kGroupStream[] = "nccl";

class NcclBackend : public Backend {
 public:
  NcclBackend(const Platform& platform, const BackendOptions& options)
      : platform_(platform),
        kept_options_(std::make_shared<const BackendOptions>(options)),
        options_(*kept_options_),
        roll_call_(options.store, options.rank, options.world_size),
        parent_handle_(
            std::dynamic_pointer_cast<NcclParentHandle>(options.parent_handle)),
        supply_(platform_),
        aborter_(platform_),
        watchdog_([this] { Watch(); }) {}

  ~NcclBackend() override {
    Part();
    Abort(CancelledError(absl::StrCat(
        "group ", base::Quote(options_.group_name), " was destroyed")));
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      waiters_->came.NotifyAll();
    }
    watchdog_.join();
    roll_call_.Stop();
    for (std::thread& maker : makers_) maker.join();
    Free(AwaitAborted());
    returns_->Close();
  }

  // Makes the communicator of all ranks.
  Status Bind(int device) {
    MutexLock lock(mutex_);
    device_ = device;
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    return GroupLane(options_.deadline).status();
  }

  std::string name() const override { return "nccl"; }

  std::span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCuda};
    return kDevices;
  }

  Status Supports(const Collective& collective) const override {
    int device = -1;
    {
      MutexLock lock(mutex_);
      device = device_;
    }
    return CheckSupported(platform_, collective, device, options_.rank,
                          options_.world_size);
  }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    std::shared_ptr<cuda::DeviceWork> work;
    Status status;
    EventPool::Spent spent;
    {
      MutexLock lock(mutex_);
      spent = supply_.TakeSpent();
      status = status_;
      if (status.ok()) status = ChooseDevice(collective.cuda_device());
      work = std::make_shared<cuda::DeviceWork>(
          collective, platform_.cuda, device_,
          options_.nccl.blocking_wait ||
              collective.kind == CollectiveKind::kBarrier,
          waiters_);
      if (status.ok()) status = Labelled(collective, Add(work));
      End(status);
    }
    if (!status.ok()) {
      work->Over();
      work->Complete(status);
    }
    return work;
  }

  void BeginTogether() override {
    MutexLock lock(mutex_);
    gathers_ = true;
  }

  void EndTogether() override {
    MutexLock lock(mutex_);
    gathers_ = false;
    for (auto& [key, comm_stream] : comm_streams_) {
      const cuda::DeviceGuard guard(platform_.cuda, device_);
      comm_stream->Close();
      if (status_.ok()) End(GiveWaiting(*comm_stream));
    }
  }

  std::shared_ptr<ParentHandle> Split(const SplitOptions& options) override {
    // Nothing could end such a call while ranks are missing: they meet anew.
    const bool blocks = IsBlocking(options_.nccl) || IsBlocking(options.nccl);
    if (!options.excluded.empty()) return Shrink(options, blocks);
    // There is nothing to split before the first collective, which the ranks
    // may be at different sides of.
    if (options_.device < 0 || blocks) return nullptr;
    auto split =
        std::make_shared<nccl::Split>(platform_, options, options_.rank);
    MutexLock lock(mutex_);
    if (!status_.ok()) {
      split->End(status_);
      return split;
    }
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    CommStream& comm_stream = *group_stream_;
    comm_stream.Add(split);
    End(GiveWaiting(comm_stream));
    return split;
  }

  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override {
    const auto over = [this] {
      MutexLock lock(mutex_);
      return status_;
    };
    const auto piece = AllocatePiece(options.bytes);
    if (!piece.ok()) return OfThisRank(piece.status());
    Status status = AgreeOnBytes(options_, **piece, options.deadline, over);
    if (status.ok()) status = Register(*piece, options.deadline);
    if (status.ok()) {
      status = (*piece)->Await(options.deadline, options_.group_name, over);
    }
    if (!status.ok()) {
      MutexLock lock(mutex_);
      End(status);
      GiveBack(*piece);
      return OfThisRank(status);
    }
    ForgetBytes(options_, **piece, options.deadline);
    return std::make_shared<OwnedPiece>(*piece, returns_);
  }

  CommunicatorStates communicator_states() const override {
    MutexLock lock(mutex_);
    CommunicatorStates states;
    for (const auto& [key, comm_stream] : comm_streams_)
      states[key] = comm_stream->Texts();
    return states;
  }

  void Abort(Status cause) override {
    MutexLock lock(mutex_);
    End(std::move(cause));
  }

 private:
  // In the same hold of the lock in which something has failed: the watchdog
  // takes for complete what was not given to the stream.
  void End(Status cause) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!status_.ok() || cause.ok()) return;
    status_ = std::move(cause);
    waiters_->came.NotifyAll();
  }

  // An error of CUDA's or NCCL's, as that of the collective.
  Status Labelled(const Collective& collective, const Status& status) const {
    if (status.ok()) return status;
    return dataplane::Labelled(FailedCall::Of(collective), options_.group_name,
                               status);
  }

  // The same, as that of the oldest one on the stream.
  Status Labelled(const CommStream& comm_stream, const Status& status) const {
    const Entry* const oldest = comm_stream.Oldest();
    return oldest == nullptr ? status : Labelled(oldest->collective(), status);
  }

  // A communicator that has failed was aborted: nothing can come of it.
  std::shared_ptr<ParentHandle> Shrink(const SplitOptions& options,
                                       bool blocks) {
    MutexLock lock(mutex_);
    Comm comm = nullptr;
    if (platform_.nccl.CommShrink != nullptr && !blocks && status_.ok() &&
        group_stream_ != nullptr) {
      GiveBackAll();
      comm = group_stream_->TakeComm();
    }
    if (comm != nullptr) {
      End(AbortedError(absl::StrCat("group ", base::Quote(options_.group_name),
                                    " was shrunk")));
    }
    return std::make_shared<nccl::Shrink>(platform_, options, comm, device_);
  }

  // Symmetric memory on the group's device, of nobody else's yet.
  StatusOr<std::shared_ptr<SymmetricPiece>> AllocatePiece(size_t bytes) {
    MutexLock lock(mutex_);
    if (!status_.ok()) return status_;
    MUSTER_RETURN_IF_ERROR(ChooseDevice(-1));
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    auto piece =
        SymmetricPiece::Allocate(platform_, device_, allocations_, bytes);
    if (piece.ok()) ++allocations_;
    return piece;
  }

  // In its turn among the collectives.
  Status Register(const std::shared_ptr<SymmetricPiece>& piece,
                  Instant deadline) {
    MutexLock lock(mutex_);
    if (!status_.ok()) return status_;
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    const auto comm_stream = GroupLane(deadline);
    if (!comm_stream.ok()) return comm_stream.status();
    (*comm_stream)->Add(piece);
    std::erase_if(pieces_, [](const auto& old) { return old.expired(); });
    pieces_.push_back(piece);
    End(GiveWaiting(**comm_stream));
    return status_;
  }

  Status Add(const std::shared_ptr<cuda::DeviceWork>& work)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    const StatusOr<CommStream*> comm_stream = FindStream(work->collective());
    if (!comm_stream.ok()) return comm_stream.status();
    MUSTER_RETURN_IF_ERROR((*comm_stream)->Add(work, gathers_));
    return gathers_ ? OkStatus() : GiveWaiting(**comm_stream);
  }

  // Of the first collective, and then always the same.
  Status ChooseDevice(int wanted) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (device_ >= 0) return OkStatus();
    if (wanted < 0) {
      return cuda::ToStatus(platform_.cuda, platform_.cuda.GetDevice(&device_),
                            "cudaGetDevice");
    }
    device_ = wanted;
    return OkStatus();
  }

  StatusOr<CommStream*> GroupLane(Instant deadline)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (group_stream_ != nullptr) return group_stream_;
    return FindStream(kGroupStream, options_.rank, options_.world_size,
                      deadline);
  }

  StatusOr<CommStream*> FindStream(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // What sends and receives begin together goes through one communicator,
    // as one operation of NCCL.
    if (!IsPointToPoint(collective.kind) || gathers_) {
      return GroupLane(collective.deadline);
    }
    const bool sends = collective.kind == CollectiveKind::kSend;
    return FindStream(
        absl::StrCat("nccl/", sends ? options_.rank : collective.peer, "-",
                     sends ? collective.peer : options_.rank),
        sends ? 0 : 1, 2, collective.deadline);
  }

  StatusOr<CommStream*> FindStream(const std::string& key, int rank, int size,
                                   Instant deadline)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::unique_ptr<CommStream>& comm_stream = comm_streams_[key];
    if (comm_stream != nullptr) return comm_stream.get();
    comm_stream = std::make_unique<CommStream>(
        platform_, supply_,
        CommStream::Options{
            .key = key,
            .rank = rank,
            .size = size,
            .device = device_,
            .is_pair = key != kGroupStream,
            .is_high_priority = options_.nccl.is_high_priority_stream,
            .wants_copy_engines = WantsCopyEngines(options_.nccl),
            .is_blocking = IsBlocking(options_.nccl)});
    MUSTER_RETURN_IF_ERROR(comm_stream->Open());
    CommStream* const made = comm_stream.get();
    if (key == kGroupStream) group_stream_ = made;
    makers_.emplace_back([this, made, deadline] { Make(*made, deadline); });
    return made;
  }

  // On a thread of the stream's: its communicator, and what waits for it.
  void Make(CommStream& comm_stream, Instant deadline) {
    cuda::BeginOwnThread(platform_.cuda);
    const CommStream::Options& place = comm_stream.options();
    const cuda::DeviceGuard guard(platform_.cuda, place.device);
    StatusOr<Comm> comm = MakeCommunicator(
        {.platform = platform_,
         .group = kept_options_,
         .device = place.device,
         .caller = comm_stream.caller(),
         .parent = place.key == kGroupStream ? parent_handle_ : nullptr,
         .key = place.key,
         .rank = place.rank,
         .size = place.size,
         .deadline = deadline,
         .over = [this] {
           MutexLock lock(mutex_);
           return status_;
         }});
    Status status = comm.status();
    if (IsDeadlineExceeded(status)) {
      {
        MutexLock lock(mutex_);
        // The watchdog says whom the collective waits for.
        if (comm_stream.Overdue(Clock::now()) != nullptr) return;
      }
      status = roll_call_.NotMade(status, options_.group_name);
    }
    MutexLock lock(mutex_);
    if (comm.ok() && !status_.ok()) {
      platform_.nccl.CommAbort(*comm);
    } else if (comm.ok()) {
      comm_stream.SetComm(*comm);
      status = Labelled(comm_stream, GiveWaiting(comm_stream));
    }
    End(status);
  }

  Status GiveWaiting(CommStream& comm_stream)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    MUSTER_RETURN_IF_ERROR(comm_stream.GiveWaiting());
    // It looks by itself while something is under way: to wake it each time
    // would take longer than all the rest.
    if (std::exchange(sleeps_, false)) waiters_->came.NotifyAll();
    return OkStatus();
  }

  std::vector<Ended> TakeEnded() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Ended> ended;
    CommStream::End end = CommStream::End::kNo;
    if (!status_.ok()) {
      end = Clock::now() >= give_up_at_ ? CommStream::End::kGivesUp
            : aborter_.IsDone()         ? CommStream::End::kAborted
                                        : CommStream::End::kBegun;
    }
    for (auto& [key, comm_stream] : comm_streams_)
      comm_stream->TakeEnded(end, status_, ended);
    return ended;
  }

  // The deadlines of all that is on its way, and what NCCL says.
  void LookForErrors(Instant now) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool asks = now >= next_error_look_;
    if (asks) next_error_look_ = now + kErrorLook;
    for (auto& [key, comm_stream] : comm_streams_) {
      if (!status_.ok()) return;
      LookAtTime(*comm_stream, now);
      End(Labelled(*comm_stream, comm_stream->Look(asks)));
    }
  }

  void LookAtTime(CommStream& comm_stream, Instant now)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Entry* const overdue = comm_stream.Overdue(now);
    const bool has_peer =
        overdue != nullptr && IsPointToPoint(overdue->collective().kind);
    if (overdue != nullptr && (has_peer || options_.world_size == 1)) {
      End(TimedOut(overdue->collective(), options_.group_name,
                   has_peer ? std::vector{overdue->collective().peer}
                            : std::vector<int>()));
      return;
    }
    const Entry* const oldest = comm_stream.Oldest();
    if (oldest == nullptr || oldest->number == 0 ||
        oldest->collective().deadline == Instant::max()) {
      return;
    }
    if (overdue != nullptr) {
      if (asked_ == overdue->number) return;
      asked_ = overdue->number;
      roll_call_.FindMissing(
          overdue->number, overdue->collective().timeout,
          [this, &comm_stream, number = overdue->number,
           collective =
               overdue->collective()](const std::vector<int>& missing) {
            MutexLock lock(mutex_);
            // It may have ended after all.
            const Entry* const still = comm_stream.Overdue(Clock::now());
            if (still == nullptr || still->number != number) return;
            End(TimedOut(collective, options_.group_name, missing));
          });
    } else if (now - oldest->since >=
               RollCall::TellAfter(oldest->collective().timeout)) {
      roll_call_.Tell(oldest->number);
    }
  }

  // Nobody writes to the tensors any more, soon. Communicators that are being
  // made are ended by those who make them.
  void AbortCommunicators() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (give_up_at_ == Instant::max()) {
      give_up_at_ = Clock::now() + kDrain;
      Aborter::Comms comms = {.parted = std::move(parted_)};
      for (auto& [key, comm_stream] : comm_streams_) comm_stream->GiveUp(comms);
      aborter_.Begin(device_, std::move(comms),
                     {kept_options_, parent_handle_});
    }
    if (aborter_.IsDone()) late_pieces_.clear();
  }

  // Whether it is so at the end of the group.
  bool AwaitAborted() {
    MutexLock lock(mutex_);
    Aborter::Keeps keeps(late_pieces_.begin(), late_pieces_.end());
    late_pieces_.clear();
    return aborter_.Await(std::max(give_up_at_, Clock::now()),
                          std::move(keeps));
  }

  void Watch() {
    cuda::BeginOwnThread(platform_.cuda);
    MutexLock lock(mutex_);
    Instant awake_until = Instant::min();
    for (;;) {
      LookForErrors(Clock::now());
      if (!status_.ok()) AbortCommunicators();
      std::vector<Ended> ended = TakeEnded();
      if (!ended.empty()) {
        mutex_.Unlock();
        for (Ended& each : ended) each.Complete();
        mutex_.Lock();
        for (Ended& each : ended) supply_.GiveBack(std::move(each));
        awake_until = Clock::now() + kErrorLook;
        // Who waits is in a hurry. Else those who start more are: to look
        // without a pause would keep them from it, and so would it to wake.
        if (waiters_->count > 0 || !status_.ok()) continue;
      }
      if (stopping_ && AreIdle(comm_streams_)) return;
      sleeps_ = AreIdle(comm_streams_) && Clock::now() >= awake_until;
      const bool hurries =
          waiters_->count > 0 || (!AreIdle(comm_streams_) && !status_.ok());
      waiters_->came.WaitUntil(
          mutex_, Clock::now() + (sleeps_   ? microseconds(kErrorLook)
                                  : hurries ? kLook
                                            : microseconds(kLazyLook)));
      sleeps_ = false;
    }
  }

  void GiveBack(std::shared_ptr<SymmetricPiece> piece)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!status_.ok()) {
      // When the communicator is no more.
      late_pieces_.push_back(std::move(piece));
      return;
    }
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    CommStream& comm_stream = *group_stream_;
    comm_stream.Add(SymmetricPiece::GivingBack(std::move(piece), late_pieces_));
    End(GiveWaiting(comm_stream));
  }

  // The windows of those that have owners yet: the communicator goes.
  void GiveBackAll() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const std::weak_ptr<SymmetricPiece>& piece : pieces_) {
      if (auto owned = piece.lock(); owned != nullptr) GiveBack(owned);
    }
  }

  // The communicators of a group that is idle and well, given back in peace:
  // what they hold at their peers goes, too. All are begun before one is waited
  // for, so that the ranks need no order among them; one that is not done soon
  // is aborted with the rest.
  void Part() {
    MutexLock lock(mutex_);
    const Instant until = Clock::now() + kPart;
    GiveBackAll();
    // Others may need this rank for a split that it is in no part of.
    while (status_.ok() && RunTasksAlone(comm_streams_) &&
           Clock::now() < until) {
      waiters_->came.WaitUntil(mutex_, Clock::now() + kLook);
    }
    if (device_ < 0 || !status_.ok() || !AreIdle(comm_streams_)) return;
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    std::vector<CommStream*> parting;
    for (auto& [key, comm_stream] : comm_streams_) {
      if (comm_stream->BeginToPart()) parting.push_back(comm_stream.get());
    }
    for (CommStream* const comm_stream : parting) {
      while (!comm_stream->HasParted() && Clock::now() < until) {
        waiters_->came.WaitUntil(mutex_, Clock::now() + kLook);
      }
      parted_.push_back(comm_stream->EndParting());
    }
  }

  // After all threads, of which one may go on alone.
  void Free(bool aborted) {
    MutexLock lock(mutex_);
    if (device_ < 0) return;
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    for (auto& [key, comm_stream] : comm_streams_) comm_stream->Free();
    supply_.Free(/*is_stuck=*/!aborted);
  }

  const Platform platform_;
  const std::shared_ptr<const BackendOptions> kept_options_;
  const BackendOptions& options_;
  RollCall roll_call_;
  // That the communicator of all ranks comes of; null: of none.
  const std::shared_ptr<NcclParentHandle> parent_handle_;

  // Its condition is that of the watchdog: also that something else is to do.
  const std::shared_ptr<cuda::HostWaiters> waiters_ =
      std::make_shared<cuda::HostWaiters>();

  mutable Mutex mutex_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // The watchdog has nothing to look at until it is told.
  bool sleeps_ MUSTER_GUARDED_BY(mutex_) = false;
  // Between BeginTogether and EndTogether.
  bool gathers_ MUSTER_GUARDED_BY(mutex_) = false;
  // Why the group is at its end; OK while it is not.
  Status status_ MUSTER_GUARDED_BY(mutex_);
  int device_ MUSTER_GUARDED_BY(mutex_) = -1;
  EventPool supply_ MUSTER_GUARDED_BY(mutex_);
  Aborter aborter_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Comm> parted_ MUSTER_GUARDED_BY(mutex_);
  // The overdue collective whose missing ranks are looked for; 0: none.
  uint64_t asked_ MUSTER_GUARDED_BY(mutex_) = 0;
  Instant give_up_at_ MUSTER_GUARDED_BY(mutex_) = Instant::max();
  Instant next_error_look_ MUSTER_GUARDED_BY(mutex_) = Instant::min();
  CommStreams comm_streams_ MUSTER_GUARDED_BY(mutex_);
  // Of the communicator of all ranks; null: nobody has asked for it.
  CommStream* group_stream_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  // Of symmetric memory: how often it was asked for, what is registered, and
  // what is to be freed when the communicators are no more.
  uint64_t allocations_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<SymmetricPiece>> pieces_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<SymmetricPiece>> late_pieces_
      MUSTER_GUARDED_BY(mutex_);
  const std::shared_ptr<SymmetricReturns> returns_ =
      std::make_shared<SymmetricReturns>(
          [this](std::shared_ptr<SymmetricPiece> piece) {
            MutexLock lock(mutex_);
            GiveBack(std::move(piece));
          });
  // One for each of them. A start adds to it, and nothing starts any more when
  // they are joined.
  std::vector<std::thread> makers_;

  std::thread watchdog_;
};

}  // namespace

StatusOr<std::unique_ptr<Backend>> CreateNcclBackend(
    const Platform& platform, const BackendOptions& options) {
  Status status = CheckOptions(platform, options);
  if (!status.ok()) return status;
  auto backend = std::make_unique<NcclBackend>(platform, options);
  if (options.device >= 0) status = backend->Bind(options.device);
  if (!status.ok()) return status;
  return backend;
}

}  // namespace muster::dataplane::nccl
