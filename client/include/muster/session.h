#ifndef MUSTER_SESSION_H_
#define MUSTER_SESSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/errors.h"

namespace muster::internal {
class StreamSession;
}  // namespace muster::internal

namespace MUSTER_EXPORT muster {

// Reports that a member of the job is gone: another member, or this one after
// it reported a failure. kWaiting reports that members wait for the next
// generation, kGroupFailed that a group failed.
struct MemberEvent {
  enum class Kind {
    // The member left the job.
    kLeft,
    // The member's heartbeats stopped, or its connection closed.
    kLost,
    // The member reported its own failure.
    kFailed,
    // A process with the member's name and a new incarnation replaced it.
    kReplaced,
    // The member waits for a seat in the next generation while one runs: see
    // `waiting`.
    kWaiting,
    // A group of this member failed: see `group`.
    kGroupFailed,
  };
  Kind kind = Kind::kLeft;
  // The member, with rank, host, cause and last progress.
  MemberInfo member;
  // The generation in which it held its rank; 0 if it held none. kWaiting: the
  // generation that runs.
  int64_t generation = 0;
  // True for the one event that ended that generation.
  bool generation_ended = false;
  // kFailed: the code of the reported error, and its culprits. kOk and empty if
  // the report had only a text (`member.cause`).
  StatusCode code = StatusCode::kOk;
  std::vector<MemberInfo> culprits;
  // The ranks of all other culprits.
  std::vector<RankRange> other_culprits;
  // The number of further culprits of which nothing is known: any member may be
  // one of them. 0 unless a coordinator or a report is of another
  // implementation.
  int unknown_culprits = 0;
  // kWaiting: how many members wait; `member` has waited longest. They get
  // seats when a generation forms that has room; this member can start that
  // with Session::Join. The event comes when the first member begins to wait,
  // when a generation forms without all of them (then maybe before Join
  // returns), and after a reconnection.
  int waiting = 0;
  // kLeft: one event covers members that leave soon after one another. Then
  // these are the ranks of all of them, including `member`, ascending;
  // otherwise empty.
  std::vector<RankRange> left_ranks;
  // Some of those members, at most 8, with cause and last progress.
  std::vector<MemberInfo> left_members;
  // kGroupFailed: the group's name, and which group of this name. All members
  // of the group get the same error: `code`, `member.cause` and the culprits.
  // With kOk there is no error yet: a rank reports that its collective timed
  // out.
  std::string group;
  std::string group_instance;
};

// A running send or receive.
struct PeerCall {
  bool sends = false;
  // Its number among the sends and receives of the group, from 1.
  int64_t number = 0;
  // The peer's rank in the group; -1: the rank that sends first.
  int peer = 0;
};

// The progress of one process group of this member, which heartbeats carry.
struct GroupProgress {
  std::string group;
  // Sequence numbers of the group's collectives, counted from 1; 0: none yet.
  int64_t last_enqueued = 0;
  int64_t last_completed = 0;
  // The running collective, for people; empty if none runs. If no collective
  // was enqueued yet, the group is connecting, and this is the call that makes
  // it.
  std::string current;
  std::chrono::milliseconds running_for{0};
  // Set if `current` is a send or a receive.
  std::optional<PeerCall> peer_call = std::nullopt;
  // Set if `current` is a collective: a hash of the arguments that all ranks
  // must pass alike, by which tools tell whether they do.
  std::optional<uint64_t> arguments_hash = std::nullopt;
};

struct SessionOptions {
  // host:port of the coordinator; an IPv6 host is in brackets. Resolved again
  // for every connection. Up to 64 with commas between ("a:7070,b:7070") for
  // coordinators that share their jobs: the session finds the one that has the
  // job, and goes there again when the job moves. The same TLS and token
  // settings are for all of them.
  std::string address = {};
  // The job: 1 to 128 characters of [A-Za-z0-9._-].
  std::string job = "default";
  // TLS to the coordinator. The files are PEM and are read again for every
  // connection. Empty options are taken from the environment: MUSTER_TLS_CA,
  // MUSTER_TLS_CERT, MUSTER_TLS_KEY, MUSTER_TLS_SERVER_NAME.
  // The authorities of the coordinator's certificate. If this and the variable
  // are empty, the connection is plain text.
  std::string tls_ca = {};
  // This process's certificate and key, if the coordinator asks for one.
  std::string tls_cert = {};
  std::string tls_key = {};
  // The name in the coordinator's certificate; empty: the host of the address
  // to which the session connects.
  std::string tls_server_name = {};
  // The token that identifies this client to the coordinator, or the file that
  // has it, which is read again for every connection. Empty: MUSTER_TOKEN,
  // MUSTER_TOKEN_FILE.
  std::string token = {};
  std::string token_file = {};
  // False: sends no token, not even one of the environment.
  bool use_token = true;
  // True: allows a token in plain text to an address beyond loopback; also set
  // by MUSTER_INSECURE=1.
  bool insecure = false;
  // The member's name in the job. Empty: a name made of host, pid and a random
  // number.
  std::string member = {};
  // The process id that other members see; 0: this process. For a program that
  // acts for another process of this host.
  int64_t pid = 0;
  // How long Connect may take, and the default for calls that have no timeout
  // of their own.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  // The name of connect_timeout in error texts.
  std::string connect_timeout_name = "SessionOptions::connect_timeout";
  // A stop request ends Connect with kCancelled; later it has no effect.
  std::stop_token stop_connecting = {};
  // How often the log repeats that no coordinator has answered yet.
  std::chrono::milliseconds unreached_log_interval = std::chrono::seconds(30);
  // host:port of this process's debug and metrics server, for the coordinator's
  // status pages.
  std::string debug_address = {};
  // A note that error texts add to the coordinator's address, for instance
  // "embedded in rank 0".
  std::string coordinator_note = {};
  // After this long without a connection the session is over, and status() says
  // so. 0: it tries to reconnect for as long as it lives.
  std::chrono::milliseconds give_up_after{0};
  // If the coordinator does not answer keepalive pings for this long, the
  // connection counts as broken: its host, its network or its process has
  // stopped. Values below 2.4 s count as 2.4 s; 0: 30 s.
  std::chrono::milliseconds silence_max{0};
  // Called for each event on the session's own thread, in the coordinator's
  // order: the order in which members went. But a new connection begins with
  // all members that left this generation, the errors of its groups, the event
  // that ended it, and the members that wait, whether they were reported before
  // or not. Must not block, and must not call or destroy the session.
  std::function<void(const MemberEvent&)> on_event = nullptr;
  // Called once on the session's own thread if the session is over for another
  // reason than Leave and Close. The rules of on_event apply.
  std::function<void(const Status&)> on_over = nullptr;
  // Returns the progress of this member's groups. Called before every
  // heartbeat, on another thread of the session.
  std::function<std::vector<GroupProgress>()> progress = nullptr;
};

// One seat of a formed generation.
struct Seat {
  int rank = -1;
  std::string member = {};
  std::string host = {};
  int64_t pid = 0;
};

// The result of a rendezvous. All of it but `rank` is the same on every member.
struct Formation {
  int64_t generation = 0;
  // This member's rank.
  int rank = -1;
  int world_size = 0;
  // Ordered by rank; empty with JoinOptions::without_seats.
  std::vector<Seat> seats;
};

// The static form sets `world_size`; the elastic form sets `min_world_size` and
// `max_world_size`.
struct JoinOptions {
  // The rank to claim, in the static form only. -1: the rank that a member with
  // this name had in the previous generation, else the lowest free one.
  int rank = -1;
  int world_size = 0;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // The name of `timeout` in error texts.
  std::string timeout_name = "JoinOptions::timeout";
  // All waiting members must give the same sizes and the same last call.
  int min_world_size = 0;
  int max_world_size = 0;
  // How long the rendezvous waits for more members than the minimum; not given:
  // 30 s.
  std::optional<std::chrono::milliseconds> last_call = std::nullopt;
  // True: leaves out Formation::seats, whose total over all members grows with
  // the square of their number.
  bool without_seats = false;
};

// A process group that this member registers with the coordinator.
struct GroupDefinition {
  // At most 256 bytes.
  std::string name = {};
  // Global ranks, ascending, including this member's.
  std::vector<int> ranks = {};
  // For people; the description of the first definition counts.
  std::string description = {};
};

struct SessionBarrierOptions {
  std::string name = {};
  // Barriers of different groups are independent. The participants are the
  // ranks of the group if RegisterGroups has registered it, else the whole
  // world.
  std::string group = "world";
  // Counted from the first arrival.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // False: fails as soon as a participant is known to be gone. True: waits for
  // the whole timeout and names all missing participants.
  bool wait_all_ranks = false;
};

// Session is one process's membership in a job on a coordinator. All calls of
// this process to the coordinator go over its one connection. It is the control
// plane alone and links no data plane.
//
// It reconnects a broken connection, with back-off, and calls in progress
// resume on the new one: a mutation is applied once, however often it was sent.
// A call fails with DistNetworkError if its own timeout passes first. A durable
// coordinator (--storage=rocksdb) may restart meanwhile, and the job may move
// to another coordinator (--storage=etcd). A coordinator that has lost its
// state ends the session: calls in progress and all later ones fail with
// kAborted.
//
// Thread-safe. Has two threads of its own.
class Session {
 public:
  // Connects to the coordinator and registers the member.
  // Throws DistError: kInvalidArgument (an option), kUnauthenticated (no token,
  // or an invalid one), kPermissionDenied (the token is not for this job),
  // kResourceExhausted (no room for threads; the text names the limit).
  // Throws DistNetworkError: nobody answers at any address within
  // connect_timeout, or the two sides do not agree on TLS (the text says why).
  static std::shared_ptr<Session> Connect(SessionOptions options);

  // Calls Close(), and before that Leave if it was not called and no exception
  // is in flight. Takes at most three seconds if the coordinator does not
  // answer.
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Rendezvous: waits until a generation forms in which this member has a seat.
  // If this member is in the running generation, that ends, and the others get
  // an event. In the static form a generation forms when `world_size` members
  // have joined. In the elastic form it forms when `max_world_size` members
  // have joined, or at the end of the last call, which begins when
  // `min_world_size` have. Members of the previous generation keep their ranks,
  // and have until the end of the last call to come before newcomers get their
  // seats; newcomers wait for the end of a running generation.
  // Throws DistError: kInvalidArgument (rank or sizes are out of range, or
  // differ from the others'), kAlreadyExists (another living member has the
  // rank), kDeadlineExceeded (the text lists the missing ranks, or says that
  // the world is full), kOutOfRange (the rendezvous was closed), kAborted (the
  // coordinator drains or was restarted).
  // Throws DistNetworkError.
  Formation Join(const JoinOptions& options);

  // Closes the job's rendezvous for good: waiting joins and all later ones fail
  // with kOutOfRange and `reason`. The running generation goes on.
  // Throws DistNetworkError.
  void CloseRendezvous(const std::string& reason);

  // Registers process groups of the formed generation that contain this member,
  // any number in one call: all of them, or none on an error. Does not wait for
  // other members. Returns, for each group, how many of its ranks have
  // registered it so far.
  // Throws DistError: kInvalidArgument (a name or ranks, or another member gave
  // other ranks; the text names both), kAborted (the generation is over),
  // kFailedPrecondition (no rank before Join), kResourceExhausted.
  // Throws DistNetworkError.
  std::vector<int> RegisterGroups(const std::vector<GroupDefinition>& groups);

  // Arrives at a monitored barrier of the formed generation and waits for the
  // coordinator's decision, which is the same on every rank.
  // Throws DistError: kDeadlineExceeded (ranks are missing: see culprits()),
  // kAborted (a participant is gone, or the generation is over),
  // kInvalidArgument (arguments that conflict with another rank's; the text
  // names both), kFailedPrecondition (no rank before Join).
  // Throws DistNetworkError.
  void AwaitBarrier(const SessionBarrierOptions& options);

  // Tells the coordinator that this member failed: the generation is over, and
  // the coordinator sends `error` to every member, including this one. The
  // session still delivers events, but refuses calls other than Leave and
  // Close.
  // Throws DistNetworkError.
  void ReportFailure(const std::string& error);

  // Leaves the job without a failure; afterwards the session is over. Never
  // throws: if the coordinator does not answer within `timeout`, it will see
  // the connection close.
  void Leave(const std::string& reason,
             std::chrono::milliseconds timeout = std::chrono::seconds(2));

  // Ends the connection and the threads. Other members see this member as lost
  // unless it has left. Must not be called from a callback.
  void Close();

  // SessionOptions::address.
  const std::string& address() const;
  const std::string& job() const;
  const std::string& member() const;
  uint64_t incarnation() const;
  // The random id that the coordinator chose when it started. It changes when
  // the job moves to another coordinator.
  uint64_t coordinator_epoch() const;
  // OK while the session lasts, connected or not; then the reason why it is
  // over.
  Status status() const;

  // Used by the rest of the SDK only.
  internal::StreamSession& stream() { return *stream_; }

 private:
  // The generation and the rank that a call needs.
  struct FormedRank {
    int64_t generation = 0;
    int rank = -1;
  };

  explicit Session(std::unique_ptr<internal::StreamSession> stream);

  // Throws if this member has no rank; `caller` begins the text.
  FormedRank RequireRank(const std::string& caller);

  const std::unique_ptr<internal::StreamSession> stream_;

  Mutex mutex_;
  // From the last formation; rank -1 if there was none.
  FormedRank place_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster

#endif  // MUSTER_SESSION_H_
