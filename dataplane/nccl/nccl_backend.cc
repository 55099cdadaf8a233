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
#include "base/text.h"
#include "dataplane/cuda/device_work.h"
#include "dataplane/cuda/stream.h"
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
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::nccl {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The polling interval for the ends of collectives while a host thread waits
// for one, and while none does.
constexpr microseconds kLook(50);
constexpr milliseconds kLazyLook(1);
// The polling interval for NCCL's errors.
constexpr milliseconds kErrorLook(100);
// Time limits for finalizing communicators, and for aborting and destroying
// them. If nothing else runs on the device, that takes half a second and a
// second, because NCCL's threads check only twice a second whether to end. An
// operation that takes longer is left running and may delay the process's end.
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
    return GetGroupStream(options_.deadline).status();
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
          GetNcclOptions(options_).blocking_wait ||
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
    // A blocking call could not be ended while ranks are missing, so the new
    // groups connect from scratch.
    const bool blocks = IsBlocking(GetNcclOptions(options_)) ||
                        IsBlocking(GetNcclOptions(options));
    if (!options.excluded.empty()) return Shrink(options, blocks);
    // Without a device there is no communicator before the first collective,
    // and only some of the ranks may have started that.
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
  // Must be called without releasing the lock after the failure: the watchdog
  // takes a batch that was not enqueued for complete.
  void End(Status cause) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!status_.ok() || cause.ok()) return;
    status_ = std::move(cause);
    waiters_->came.NotifyAll();
  }

  // Labels an error of CUDA or NCCL with the collective.
  Status Labelled(const Collective& collective, const Status& status) const {
    if (status.ok()) return status;
    return dataplane::Labelled(FailedCall::Of(collective), options_.group_name,
                               status);
  }

  // Labels it with the oldest collective of the stream.
  Status Labelled(const CommStream& comm_stream, const Status& status) const {
    const Entry* const oldest = comm_stream.Oldest();
    return oldest == nullptr ? status : Labelled(oldest->collective(), status);
  }

  // If the group has failed, its communicator was aborted and cannot be shrunk.
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

  // Allocates memory on the group's device. It is not registered yet.
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

  // Adds the registration, ordered with the collectives.
  Status Register(const std::shared_ptr<SymmetricPiece>& piece,
                  Instant deadline) {
    MutexLock lock(mutex_);
    if (!status_.ok()) return status_;
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    const auto comm_stream = GetGroupStream(deadline);
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
    const StatusOr<CommStream*> comm_stream = GetStream(work->collective());
    if (!comm_stream.ok()) return comm_stream.status();
    MUSTER_RETURN_IF_ERROR((*comm_stream)->Add(work, gathers_));
    return gathers_ ? OkStatus() : GiveWaiting(**comm_stream);
  }

  // Fixes the group's device at the first collective.
  Status ChooseDevice(int wanted) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (device_ >= 0) return OkStatus();
    if (wanted < 0) {
      return cuda::ToStatus(platform_.cuda, platform_.cuda.GetDevice(&device_),
                            "cudaGetDevice");
    }
    device_ = wanted;
    return OkStatus();
  }

  StatusOr<CommStream*> GetGroupStream(Instant deadline)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (group_stream_ != nullptr) return group_stream_;
    return GetStream(kGroupStream, options_.rank, options_.world_size,
                     deadline);
  }

  StatusOr<CommStream*> GetStream(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // A batch of sends and receives goes through the group's communicator as
    // one NCCL group.
    if (!IsPointToPoint(collective.kind) || gathers_) {
      return GetGroupStream(collective.deadline);
    }
    const bool sends = collective.kind == CollectiveKind::kSend;
    return GetStream(
        absl::StrCat("nccl/", sends ? options_.rank : collective.peer, "-",
                     sends ? collective.peer : options_.rank),
        sends ? 0 : 1, 2, collective.deadline);
  }

  StatusOr<CommStream*> GetStream(const std::string& key, int rank, int size,
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
            .is_high_priority =
                GetNcclOptions(options_).is_high_priority_stream,
            .wants_copy_engines = WantsCopyEngines(GetNcclOptions(options_)),
            .is_blocking = IsBlocking(GetNcclOptions(options_))});
    MUSTER_RETURN_IF_ERROR(comm_stream->Open());
    CommStream* const made = comm_stream.get();
    if (key == kGroupStream) group_stream_ = made;
    makers_.emplace_back([this, made, deadline] { Make(*made, deadline); });
    return made;
  }

  // Makes the stream's communicator, on a thread of its own, and gives it what
  // waits.
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
        // The watchdog names the ranks that the collective waits for.
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
    // Wakes the watchdog only if it sleeps. It polls while something is in
    // progress, and waking it each time would take longer than everything else.
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

  // Checks all deadlines and NCCL's errors.
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
            // The collective may have ended in the meantime.
            const Entry* const still = comm_stream.Overdue(Clock::now());
            if (still == nullptr || still->number != number) return;
            End(TimedOut(collective, options_.group_name, missing));
          });
    } else if (now - oldest->since >=
               RollCall::TellAfter(oldest->collective().timeout)) {
      roll_call_.Tell(oldest->number);
    }
  }

  // Aborts all communicators, after which NCCL does not write to tensors any
  // more. Those still being made are aborted by the threads that make them.
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

  // Waits for the aborts. Returns whether they are done.
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
        // Polls without a pause only if a host thread waits. Otherwise that, or
        // waking up often, would slow down the threads that start collectives.
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
      // Freed after the communicators are destroyed.
      late_pieces_.push_back(std::move(piece));
      return;
    }
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    CommStream& comm_stream = *group_stream_;
    comm_stream.Add(SymmetricPiece::GivingBack(std::move(piece), late_pieces_));
    End(GiveWaiting(comm_stream));
  }

  // Deregisters the windows of all pieces that still have owners.
  void GiveBackAll() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const std::weak_ptr<SymmetricPiece>& piece : pieces_) {
      if (auto owned = piece.lock(); owned != nullptr) GiveBack(owned);
    }
  }

  // Finalizes the communicators of an idle group that has not failed, so that
  // peers free their resources, too. Starts all before it waits for any, so
  // that ranks need no common order. Those that take too long are aborted
  // later.
  void Part() {
    MutexLock lock(mutex_);
    const Instant until = Clock::now() + kPart;
    GiveBackAll();
    // Other ranks may need this rank for a split whose groups it is not in.
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

  // Called after all threads have ended; the aborter's may still run.
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
  // The source of the communicator of all ranks; null without a parent.
  const std::shared_ptr<NcclParentHandle> parent_handle_;

  // The condition in it also wakes the watchdog for other reasons.
  const std::shared_ptr<cuda::HostWaiters> waiters_ =
      std::make_shared<cuda::HostWaiters>();

  mutable Mutex mutex_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // The watchdog sleeps until it is woken: nothing is in progress.
  bool sleeps_ MUSTER_GUARDED_BY(mutex_) = false;
  // Between BeginTogether and EndTogether.
  bool gathers_ MUSTER_GUARDED_BY(mutex_) = false;
  // The error that ended the group; OK before.
  Status status_ MUSTER_GUARDED_BY(mutex_);
  int device_ MUSTER_GUARDED_BY(mutex_) = -1;
  EventPool supply_ MUSTER_GUARDED_BY(mutex_);
  Aborter aborter_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Comm> parted_ MUSTER_GUARDED_BY(mutex_);
  // The overdue collective that RollCall is looking at; 0: none.
  uint64_t asked_ MUSTER_GUARDED_BY(mutex_) = 0;
  Instant give_up_at_ MUSTER_GUARDED_BY(mutex_) = Instant::max();
  Instant next_error_look_ MUSTER_GUARDED_BY(mutex_) = Instant::min();
  CommStreams comm_streams_ MUSTER_GUARDED_BY(mutex_);
  // The stream of the communicator of all ranks; null before its first use.
  CommStream* group_stream_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  // Symmetric memory: number of allocations, registered pieces, and pieces to
  // free after the communicators are destroyed.
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
  // One thread per communicator. Only a start adds one, and nothing starts any
  // more when they are joined.
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
