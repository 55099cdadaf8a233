#ifndef MUSTER_CLIENT_SESSION_H_
#define MUSTER_CLIENT_SESSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "client/errors.h"

namespace muster {

namespace internal {
class StreamSession;
}  // namespace internal

// What became of a member of the job: of another one, or of this one when it
// reported a failure. Or that members wait for the next generation.
struct MemberEvent {
  enum class Kind {
    // It said that it goes.
    kLeft,
    // Its heartbeats stopped, or its connection closed.
    kLost,
    // It reported its own failure.
    kFailed,
    // A process with the same name and a new incarnation took its place.
    kReplaced,
    // It waits for a seat in the next generation, while this one runs: see
    // `waiting`.
    kWaiting,
  };
  Kind kind = Kind::kLeft;
  // With rank, host, cause and last progress.
  MemberInfo member;
  // The generation in which it held its rank; 0 when it held none. kWaiting:
  // the one that runs.
  int64_t generation = 0;
  // Whether this event ended that generation; of all events one does.
  bool generation_ended = false;
  // kFailed: the code of the reported error and who is to blame for it. kOk and
  // nobody: the report had a text only (`member.cause`).
  StatusCode code = StatusCode::kOk;
  std::vector<MemberInfo> culprits;
  // The ranks of all others that are to blame.
  std::vector<RankRange> other_culprits;
  // How many more there are of whom nothing is known: anybody may be one. 0
  // but for a coordinator or a report of another make.
  int unknown_culprits = 0;
  // kWaiting: how many wait; `member` has waited for longest. They get seats
  // when a generation forms that has room, which this member can bring about by
  // Session::Join. Told when the first begins to wait, when a generation forms
  // without all (then maybe before Join returns), and after a reconnection.
  int waiting = 0;
  // kLeft: members that leave soon after one another are told in one event.
  // Then this is all of them, `member` too, in ascending order; else empty.
  std::vector<RankRange> left_ranks;
  // Some of those, at most 8, with cause and last progress.
  std::vector<MemberInfo> left_members;
};

// A send or a receive that runs.
struct PeerCall {
  bool sends = false;
  // Among the sends and receives of the group, from 1.
  int64_t number = 0;
  // A rank of the group; -1: whoever sends first.
  int peer = 0;
};

// How far one process group of this member has come: what heartbeats carry.
struct GroupProgress {
  std::string group;
  // Sequence numbers of the group's collectives, counted from 1; 0: none yet.
  int64_t last_enqueued = 0;
  int64_t last_completed = 0;
  // The collective that runs now, for people; empty when none does. Where none
  // is enqueued yet the group connects, and this is the call that makes it.
  std::string current;
  std::chrono::milliseconds running_for{0};
  // When that is a send or a receive.
  std::optional<PeerCall> peer_call = std::nullopt;
};

struct SessionOptions {
  // host:port of the coordinator; an IPv6 host stands in brackets. Resolved
  // anew for every connection.
  std::string address = {};
  // 1 to 128 of [A-Za-z0-9._-].
  std::string job = "default";
  // TLS to the coordinator. PEM files, read anew for every connection; what is
  // empty is taken from the environment: MUSTER_TLS_CA, MUSTER_TLS_CERT,
  // MUSTER_TLS_KEY, MUSTER_TLS_SERVER_NAME.
  // The authorities of the coordinator's certificate; empty (the variable, too)
  // speaks plain text.
  std::string tls_ca = {};
  // This process's certificate and key, for a coordinator that asks for one.
  std::string tls_cert = {};
  std::string tls_key = {};
  // The name in the coordinator's certificate; empty: the host of `address`.
  std::string tls_server_name = {};
  // What the coordinator knows its clients by, or the file of it, which is read
  // anew for every connection; empty: MUSTER_TOKEN, MUSTER_TOKEN_FILE.
  std::string token = {};
  std::string token_file = {};
  // False: no token is sent, wherever it may come from.
  bool use_token = true;
  // Allows a token in plain text to an address beyond loopback; also
  // MUSTER_INSECURE=1.
  bool insecure = false;
  // The member's name in the job; empty makes one of host, pid and a random
  // number.
  std::string member = {};
  // The process that this member is, as others are told; 0: this one. For who
  // speaks in the place of another process of this host.
  int64_t pid = 0;
  // How long Connect may take, and the default for the calls below that have
  // no timeout of their own.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  // What error texts call that timeout.
  std::string connect_timeout_name = "SessionOptions::connect_timeout";
  // A stop ends Connect, with kCancelled; later it has no effect.
  std::stop_token stop_connecting = {};
  // How often the log repeats that no coordinator has answered yet.
  std::chrono::milliseconds unreached_log_interval = std::chrono::seconds(30);
  // host:port of this process's debug and metrics server, for the status pages
  // of the coordinator.
  std::string debug_address = {};
  // What error texts call the coordinator beside its address; for instance
  // "embedded in rank 0".
  std::string coordinator_note = {};
  // After this long without a connection the session is over, and status()
  // says so. 0: it tries to reconnect for as long as it lives.
  std::chrono::milliseconds give_up_after{0};
  // A coordinator that says nothing for so long, although asked, is no
  // connection any more: its host, its network or its process stands still.
  // Less than 2.4 s counts as that; 0: 30 s.
  std::chrono::milliseconds silence_max{0};
  // Called on the session's own thread, in the coordinator's order: that in
  // which members went, but that a new connection begins with all that left
  // this generation, the event that ended it, and who waits, told before or
  // not. Must not block, and must not call or destroy the session.
  std::function<void(const MemberEvent&)> on_event = nullptr;
  // Called once, on the session's own thread, when the session is over for
  // another reason than Leave and Close; the same rules.
  std::function<void(const Status&)> on_over = nullptr;
  // Called before every heartbeat, on another thread of the session.
  std::function<std::vector<GroupProgress>()> progress = nullptr;
};

// One seat of a formed generation.
struct Seat {
  int rank = -1;
  std::string member = {};
  std::string host = {};
  int64_t pid = 0;
};

// The result of a rendezvous, the same on every member but for `rank`.
struct Formation {
  int64_t generation = 0;
  // This member's.
  int rank = -1;
  int world_size = 0;
  // Ordered by rank; empty with JoinOptions::without_seats.
  std::vector<Seat> seats;
};

// Static form: `world_size`. Elastic form: `min_world_size` and
// `max_world_size`.
struct JoinOptions {
  // The rank to claim, in the static form only. -1: the one that a member of
  // this name had in the generation before, else the lowest free one.
  int rank = -1;
  int world_size = 0;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // What error texts call the timeout.
  std::string timeout_name = "JoinOptions::timeout";
  // All that wait must give the same sizes and last call.
  int min_world_size = 0;
  int max_world_size = 0;
  // How long more members than the minimum are waited for; not given: 30 s.
  std::optional<std::chrono::milliseconds> last_call = std::nullopt;
  // Leaves out Formation::seats. What all members are told of all members grows
  // with the square of their number.
  bool without_seats = false;
};

// A process group, for the coordinator to know of.
struct GroupDefinition {
  // At most 256 bytes.
  std::string name = {};
  // Of the world, ascending; this member's among them.
  std::vector<int> ranks = {};
  // For people; the first definition's counts.
  std::string description = {};
};

struct SessionBarrierOptions {
  std::string name = {};
  // Barriers of different groups do not meet. Of a group that RegisterGroups
  // has told of, its ranks take part; else the whole world.
  std::string group = "world";
  // Counted from the first arrival.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // False: fails as soon as a participant is known to be gone. True: waits for
  // the whole timeout and names all that are missing.
  bool wait_all_ranks = false;
};

// Session is one process's membership in a job on a coordinator: one
// connection, over which everything goes that this process asks of it. It is
// the control plane alone; nothing of the data plane is linked with it.
//
// A broken connection is made again, with back-off, and calls in progress
// resume on the new one: a mutation is applied once however often it was sent.
// A call fails with DistNetworkError when its own timeout passes first.
// A durable coordinator (--storage=rocksdb) may restart meanwhile: all of that
// still holds. One that has lost its state ends the session: calls in progress
// and all later ones fail with code kAborted.
//
// Thread-safe. Two threads of its own.
class Session {
 public:
  // Connects and registers.
  // Throws DistError (kInvalidArgument: an option; kUnauthenticated: no token,
  // or none that counts; kPermissionDenied: it is not for this job;
  // kResourceExhausted: threads have no room, the text names the limit),
  // DistNetworkError (nobody answers at the address within connect_timeout, or
  // the two do not agree on TLS: the text says why).
  static std::shared_ptr<Session> Connect(SessionOptions options);

  // As Close(), and leaves before that if Leave was not called and no exception
  // is on its way. Takes at most three seconds when the coordinator does not
  // answer.
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Rendezvous: waits until a generation forms in which this member has a seat.
  // Where this member is in the running one, that ends: the others get an
  // event. Static form: it forms when `world_size` members have joined. Elastic
  // form: when `max_world_size` have, or at the end of the last call, which
  // begins when `min_world_size` have. Members of the generation before have
  // their ranks again, and the last call to come before newcomers get their
  // seats; newcomers wait for the end of a running generation.
  // Throws DistError: kInvalidArgument (rank or sizes out of range, or other
  // ones than the others'), kAlreadyExists (the rank is another living
  // member's), kDeadlineExceeded (the text lists who is missing, or says that
  // the world is full), kOutOfRange (the rendezvous was closed), kAborted (the
  // coordinator drains or was restarted).
  // Throws DistNetworkError.
  Formation Join(const JoinOptions& options);

  // Closes the job's rendezvous for good: joins that wait and all later ones
  // fail with kOutOfRange and `reason`. The running generation goes on.
  // Throws DistNetworkError.
  void CloseRendezvous(const std::string& reason);

  // Tells the coordinator of process groups of the formed generation that this
  // member is in, any number in one call: of all or, on an error, of none.
  // Waits for nobody else. Returns for each how many of its ranks have done so
  // by now. Throws DistError: kInvalidArgument (a name or ranks, or other ranks
  // than another member means: the text names both), kAborted (the generation
  // is over), kFailedPrecondition (no rank before Join), kResourceExhausted.
  // Throws DistNetworkError.
  std::vector<int> RegisterGroups(const std::vector<GroupDefinition>& groups);

  // Arrives at a monitored barrier of the formed generation and waits for the
  // coordinator's decision, which is the same on every rank.
  // Throws DistError: kDeadlineExceeded (ranks are missing: see
  // culprits()), kAborted (a participant is gone, or the generation is over),
  // kInvalidArgument (arguments that conflict with another rank's; the text
  // names both), kFailedPrecondition (no rank before Join).
  // Throws DistNetworkError.
  void AwaitBarrier(const SessionBarrierOptions& options);

  // Tells the coordinator that this member failed: the generation is over, and
  // every member, this one too, is told `error`. The session goes on to bring
  // events; calls other than Leave and Close are refused.
  // Throws DistNetworkError.
  void ReportFailure(const std::string& error);

  // Leaves the job in peace; the session is over afterwards. Never throws:
  // when the coordinator does not answer within `timeout`, it will see the
  // connection close.
  void Leave(const std::string& reason,
             std::chrono::milliseconds timeout = std::chrono::seconds(2));

  // Ends the connection and the threads. Others see this member as lost unless
  // it has left. Not from a callback.
  void Close();

  const std::string& address() const;
  const std::string& job() const;
  const std::string& member() const;
  uint64_t incarnation() const;
  // The random id of the coordinator's start.
  uint64_t coordinator_epoch() const;
  // OK while the session lasts, connected or not; then why it is over.
  Status status() const;

  // For the rest of the SDK.
  internal::StreamSession& stream() { return *stream_; }

 private:
  // The place in a generation that a call needs.
  struct Place {
    int64_t generation = 0;
    int rank = -1;
  };

  explicit Session(std::unique_ptr<internal::StreamSession> stream);

  // Throws when there is none; `caller` begins the text.
  Place PlaceFor(const std::string& caller);

  const std::unique_ptr<internal::StreamSession> stream_;

  Mutex mutex_;
  // Of the last formation; rank -1: none.
  Place place_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster

#endif  // MUSTER_CLIENT_SESSION_H_
