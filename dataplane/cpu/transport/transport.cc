#include "dataplane/cpu/transport/transport.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dataplane/cpu/transport/goodbye_message.h"
#include "dataplane/cpu/transport/control_connections.h"
#include "dataplane/cpu/transport/transport_errors.h"
#include "dataplane/cpu/transport/listener.h"
#include "dataplane/cpu/transport/interface.h"
#include "dataplane/cpu/transport/tcp_connections.h"
#include "dataplane/cpu/transport/gloo_pairs.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/culprit.h"
#include "base/mutex.h"
#include "glog/logging.h"

namespace muster::dataplane::gloo_internal {
namespace {

// Gloo closes every connection of a context when one of its waits times out.
// So its timeouts are out of reach, and whoever owns the deadline calls
// Mesh::Abort.
constexpr std::chrono::milliseconds kNever = std::chrono::hours(24 * 365 * 10);

// How long the end of a peer may take to be seen on all connections, once it
// is seen on one.
constexpr std::chrono::milliseconds kClosing = std::chrono::seconds(5);

// A connection that the peer has closed answers a write with SIGPIPE, whose
// default kills the process, and Gloo writes without MSG_NOSIGNAL.
void IgnoreBrokenPipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 &&
      (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

class GlooMesh;

// Memory of a collective: moves on the lines. What has failed leaves parts
// under way, but nobody moves them any more.
class LineBuffer : public Buffer {
 public:
  LineBuffer(GlooMesh& mesh, void* data)
      : mesh_(mesh), data_(static_cast<std::byte*>(data)) {}

  absl::Status Receive(int peer, uint64_t slot, size_t offset,
                       size_t bytes) override;
  absl::Status Send(int peer, uint64_t slot, size_t offset,
                    size_t bytes) override;
  absl::Status WaitReceive(int peer) override;
  absl::Status WaitSend(int peer) override;

 private:
  // A send or receive that was not waited for.
  struct Posted {
    int peer;
    uint64_t number;
  };
  // The oldest with `peer`.
  static uint64_t Take(std::deque<Posted>& posted, int peer);

  GlooMesh& mesh_;
  std::byte* const data_;
  std::deque<Posted> sends_;
  std::deque<Posted> receives_;
};

// Memory of sends and receives, which several threads move, and of large
// tensors.
class GlooBuffer : public Buffer {
 public:
  GlooBuffer(GlooMesh& mesh, void* data, size_t bytes, bool quiet);
  ~GlooBuffer() override;

  absl::Status Receive(int peer, uint64_t slot, size_t offset,
                       size_t bytes) override;
  absl::Status Send(int peer, uint64_t slot, size_t offset,
                    size_t bytes) override;
  absl::Status WaitReceive(int peer) override;
  absl::Status WaitSend(int peer) override;

  // After the first Post.
  void WakeWaiters() {
    buffer_->abortWaitRecv();
    buffer_->abortWaitSend();
  }

 private:
  template <typename Function>
  absl::Status Post(int peer, Function&& function);
  template <typename Function>
  absl::Status Await(int peer, Function&& function);

  GlooMesh& mesh_;
  void* const data_;
  const size_t bytes_;
  const bool quiet_;  // See CreateQuietBuffer.
  // Null until a pair is open.
  std::unique_ptr<transport::UnboundBuffer> buffer_;
};

class GlooMesh : public Mesh {
 public:
  explicit GlooMesh(const BackendOptions& options)
      : Mesh(options.rank, options.world_size),
        greeter_(options.rank, options.world_size),
        pairs_(options.rank, options.world_size, greeter_),
        lines_(options.rank, options.world_size),
        farewells_(options.world_size),
        how_gone_(options.world_size) {}
  ~GlooMesh() override { greeter_.Stop(); }

  absl::Status Open(absl::string_view backend, const BackendOptions& options);

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override {
    return std::make_unique<LineBuffer>(*this, data);
  }
  std::unique_ptr<Buffer> CreateGlooBuffer(void* data, size_t bytes) override {
    return std::make_unique<GlooBuffer>(*this, data, bytes, /*quiet=*/false);
  }
  std::unique_ptr<Buffer> CreateQuietBuffer(void* data, size_t bytes) override {
    return std::make_unique<GlooBuffer>(*this, data, bytes, /*quiet=*/true);
  }
  absl::Status OpenQuiet(int peer) override;
  absl::Status Write(int peer, const void* head, size_t head_bytes,
                     const void* body, size_t body_bytes) override;
  absl::Status Read(int peer, void* data, size_t bytes) override;
  void Abort(const absl::Status& cause) override;
  absl::Status abort_cause() const override;
  absl::Status CheckPeers() override;
  absl::Status Gone(int peer) override {
    return Gone(peer, /*quiet=*/false, absl::OkStatus());
  }
  void Close(const absl::Status& farewell) override;

 private:
  friend class GlooBuffer;
  friend class LineBuffer;

  // Makes the pair with `peer`, unless that was done.
  absl::Status OpenPair(int peer, bool quiet);
  // Does what waits for `peer` on its line.
  template <typename Function>
  absl::Status OnLine(int peer, Function&& function);
  // Looks whether `peer` has gone, and how.
  void Look(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);
  void NoteGone(int peer, const Farewells::End& end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);
  // How `peer` went, one of whose connections has just failed: its pair with
  // `failure`, or its line.
  absl::Status Gone(int peer, bool quiet, const absl::Status& failure);

  // Destroyed from below. The greeter's thread, which uses the pairs, ends
  // before.
  Greeter greeter_;
  Pairs pairs_;
  Lines lines_;
  Farewells farewells_;
  // All lines are there.
  bool connected_ = false;

  mutable Mutex mutex_;
  absl::Status abort_cause_ ABSL_GUARDED_BY(mutex_);
  // Those whose waiters an abort must wake.
  std::unordered_set<GlooBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);

  Mutex peers_mutex_;
  // By rank: how it went, or OK.
  std::vector<absl::Status> how_gone_ ABSL_GUARDED_BY(peers_mutex_);
  // How the first peer went that did not leave in peace.
  absl::Status first_broken_ ABSL_GUARDED_BY(peers_mutex_);
};

template <typename Function>
absl::Status GlooMesh::OnLine(int peer, Function&& function) {
  waiting_for_.store(peer);
  // Looked at after waiting_for_ is set and before the wait: an abort that
  // comes later wakes it.
  absl::Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  switch (function()) {
    case Lines::Outcome::kDone:
      waiting_for_.store(-1);
      return absl::OkStatus();
    case Lines::Outcome::kWoken:
      return abort_cause();
    case Lines::Outcome::kBroken:
      break;
  }
  if (!lines_.bad_memory().ok()) return lines_.bad_memory();
  return Gone(lines_.broken_peer(), /*quiet=*/false, absl::OkStatus());
}

uint64_t LineBuffer::Take(std::deque<Posted>& posted, int peer) {
  const auto oldest =
      std::find_if(posted.begin(), posted.end(),
                   [peer](const Posted& one) { return one.peer == peer; });
  CHECK(oldest != posted.end()) << "nothing under way with rank " << peer;
  const uint64_t number = oldest->number;
  posted.erase(oldest);
  return number;
}

absl::Status LineBuffer::Receive(int peer, uint64_t, size_t offset,
                                 size_t bytes) {
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  receives_.push_back(
      {peer, mesh_.lines_.PostReceive(peer, data_ + offset, bytes)});
  return absl::OkStatus();
}

absl::Status LineBuffer::Send(int peer, uint64_t, size_t offset, size_t bytes) {
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  sends_.push_back({peer, mesh_.lines_.PostSend(peer, data_ + offset, bytes)});
  return absl::OkStatus();
}

absl::Status LineBuffer::WaitReceive(int peer) {
  return mesh_.OnLine(peer, [&] {
    return mesh_.lines_.AwaitReceive(peer, Take(receives_, peer));
  });
}

absl::Status LineBuffer::WaitSend(int peer) {
  return mesh_.OnLine(
      peer, [&] { return mesh_.lines_.AwaitSend(peer, Take(sends_, peer)); });
}

GlooBuffer::GlooBuffer(GlooMesh& mesh, void* data, size_t bytes, bool quiet)
    : mesh_(mesh), data_(data), bytes_(bytes), quiet_(quiet) {}

GlooBuffer::~GlooBuffer() {
  MutexLock lock(mesh_.mutex_);
  mesh_.buffers_.erase(this);
}

template <typename Function>
absl::Status GlooBuffer::Post(int peer, Function&& function) {
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  absl::Status opened = mesh_.OpenPair(peer, quiet_);
  if (!opened.ok()) return opened;
  if (buffer_ == nullptr) {
    buffer_ = mesh_.pairs_.context().createUnboundBuffer(data_, bytes_);
    MutexLock lock(mesh_.mutex_);
    mesh_.buffers_.insert(this);
  }
  mesh_.pairs_.Posting(true);
  absl::Status posted = Guard(function);
  mesh_.pairs_.Posting(false);
  return posted.ok() ? posted : mesh_.Gone(peer, quiet_, posted);
}

template <typename Function>
absl::Status GlooBuffer::Await(int peer, Function&& function) {
  if (!quiet_) mesh_.waiting_for_.store(peer);
  // As in OnLine.
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  bool done = false;
  absl::Status waited = Guard([&] { done = function(); });
  // If the connection ends right after what is waited for, Gloo may report its
  // end first; but only to who was waiting already.
  if (!waited.ok()) waited = Guard([&] { done = function(); });
  if (!waited.ok()) return mesh_.Gone(peer, quiet_, waited);
  if (!done) return mesh_.abort_cause();
  if (!quiet_) mesh_.waiting_for_.store(-1);
  return absl::OkStatus();
}

absl::Status GlooBuffer::Receive(int peer, uint64_t slot, size_t offset,
                                 size_t bytes) {
  return Post(peer, [&] { buffer_->recv(peer, slot, offset, bytes); });
}

absl::Status GlooBuffer::Send(int peer, uint64_t slot, size_t offset,
                              size_t bytes) {
  return Post(peer, [&] { buffer_->send(peer, slot, offset, bytes); });
}

absl::Status GlooBuffer::WaitReceive(int peer) {
  return Await(peer, [&] { return buffer_->waitRecv(nullptr, kNever); });
}

absl::Status GlooBuffer::WaitSend(int peer) {
  return Await(peer, [&] { return buffer_->waitSend(nullptr, kNever); });
}

absl::Status GlooMesh::Open(absl::string_view backend,
                            const BackendOptions& options) {
  IgnoreBrokenPipes();
  absl::StatusOr<AddressBytes> host = pairs_.Start(options);
  if (!host.ok()) return host.status();
  if (world_size() == 1) return absl::OkStatus();
  const std::stop_callback interrupted(options.interruption.token(), [&] {
    absl::Status why = options.interruption.status();
    // For its peers: it does not leave in peace itself.
    if (absl::IsCancelled(why)) {
      const std::vector<int> culprits = CulpritRanks(why);
      why = absl::UnavailableError(why.message());
      SetCulpritRanks(why, culprits);
    }
    Abort(why);
  });
  absl::StatusOr<RankAddress> own = greeter_.Listen(*std::move(host));
  if (!own.ok()) return own.status();
  own->backend = std::string(backend);
  own->interfaces =
      std::max(1, static_cast<int>(NamedInterfaces(options).size()));
  absl::StatusOr<std::vector<RankAddress>> addresses =
      ExchangeAddresses(*own, options);
  if (!addresses.ok()) return addresses.status();
  absl::StatusOr<Greeter::Sockets> sockets =
      greeter_.Connect(*addresses, options.deadline);
  if (!sockets.ok()) {
    absl::Status why = sockets.status();
    farewells_.Take(greeter_.TakeFarewells()).IgnoreError();
    if (absl::IsUnavailable(why)) {
      // A peer may have said why it, or another one, has gone.
      const absl::Status first = CheckPeers();
      if (!first.ok()) why = first;
    }
    if (const absl::Status aborted = abort_cause(); !aborted.ok()) {
      why = aborted;
    }
    // Those who have connected shall not take this rank for the culprit.
    farewells_.Close(EncodeFarewell(why));
    return why;
  }
  absl::Status taken = lines_.Take(sockets->lines, sockets->memories);
  taken.Update(farewells_.Take(sockets->farewells));
  if (!taken.ok()) return taken;
  memories_ = sockets->memories;
  greeter_.Serve([this](int peer, int socket, const auto& tell) {
    pairs_.Take(peer, socket, tell);
  });
  connected_ = true;
  return absl::OkStatus();
}

absl::Status GlooMesh::OpenPair(int peer, bool quiet) {
  if (pairs_.IsOpen(peer)) return absl::OkStatus();
  if (!quiet) waiting_for_.store(peer);
  // As in OnLine.
  absl::Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  absl::Status opened = pairs_.Open(peer);
  if (absl::IsResourceExhausted(opened)) return opened;
  if (!opened.ok()) return Gone(peer, quiet, opened);
  if (!quiet) waiting_for_.store(-1);
  return opened;
}

absl::Status GlooMesh::OpenQuiet(int peer) {
  return OpenPair(peer, /*quiet=*/true);
}

void GlooMesh::Abort(const absl::Status& cause) {
  MutexLock lock(mutex_);
  if (!abort_cause_.ok()) return;
  abort_cause_ = cause;
  for (GlooBuffer* buffer : buffers_) buffer->WakeWaiters();
  lines_.Wake();
  farewells_.Wake();
  greeter_.Wake();
  pairs_.Abort();
}

absl::Status GlooMesh::Write(int peer, const void* head, size_t head_bytes,
                             const void* body, size_t body_bytes) {
  return OnLine(peer, [&] {
    return lines_.Write(peer, head, head_bytes, body, body_bytes);
  });
}

absl::Status GlooMesh::Read(int peer, void* data, size_t bytes) {
  return OnLine(peer, [&] { return lines_.Read(peer, data, bytes); });
}

absl::Status GlooMesh::abort_cause() const {
  MutexLock lock(mutex_);
  return abort_cause_;
}

absl::Status GlooMesh::CheckPeers() {
  MutexLock lock(peers_mutex_);
  for (int peer = 0; peer < world_size(); ++peer) Look(peer);
  return first_broken_;
}

void GlooMesh::Look(int peer) {
  if (!how_gone_[peer].ok()) return;
  const std::optional<Farewells::End> end = farewells_.Look(peer);
  if (end.has_value()) NoteGone(peer, *end);
}

absl::Status GlooMesh::Gone(int peer, bool quiet, const absl::Status& failure) {
  // Gloo says so in words alone, and not where.
  if (absl::StrContains(failure.message(), std::strerror(EFAULT))) {
    return BadMemory(rank(),
                     absl::StrCat("a tensor cannot be read or written: ",
                                  WithoutSourcePosition(failure.message())));
  }
  // So that a deadline that passes meanwhile names it.
  if (!quiet) waiting_for_.store(peer);
  absl::Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  const std::optional<Farewells::End> end =
      farewells_.AwaitEnd(peer, Clock::now() + kClosing);
  aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  // A peer that went earlier may be the reason why this one went.
  absl::Status first = CheckPeers();
  if (!first.ok()) return first;
  if (!end.has_value()) {
    absl::Status status = absl::UnavailableError(absl::StrCat(
        "rank ", peer,
        " closed a connection: ", WithoutSourcePosition(failure.message())));
    SetCulpritRank(status, peer);
    return status;
  }
  MutexLock lock(peers_mutex_);
  return how_gone_[peer];
}

void GlooMesh::NoteGone(int peer, const Farewells::End& end) {
  how_gone_[peer] = InterpretFarewell(peer, end.farewell, end.text);
  if (first_broken_.ok() && !LeftInPeace(end.farewell)) {
    first_broken_ = how_gone_[peer];
  }
}

void GlooMesh::Close(const absl::Status& farewell) {
  pairs_.Abort();
  greeter_.Stop();
  // One that never opened has nobody to take leave of.
  if (!connected_) return;
  // First the farewells: whoever sees another connection end looks for one.
  farewells_.Close(EncodeFarewell(farewell));
  pairs_.Close();
  lines_.Close();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mesh>> Mesh::Connect(
    absl::string_view backend, const BackendOptions& options) {
  auto mesh = std::make_unique<GlooMesh>(options);
  absl::Status status = mesh->Open(backend, options);
  if (!status.ok()) {
    return status;
  }
  return mesh;
}

}  // namespace muster::dataplane::gloo_internal
