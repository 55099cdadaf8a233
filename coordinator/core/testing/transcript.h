// Golden transcripts: the answers of a coordinator to a list of commands.

#ifndef MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_H_
#define MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace muster::coordinator::core {

// Returns `transcript` with every answer replaced by the coordinator's current
// one.
//
// A transcript is a list of steps after one comment: lines of commands, a line
// `----`, the answers, an empty line. Lines that begin with `#` stay. A command
// is a verb, a member with its incarnation (`b/2`; `-` for a client without a
// name), and arguments `name=value`; `seq=`, `ack=` and `open=` (the unanswered
// ones) belong to the call. Calls are numbered from w1. The verbs with a
// capital letter are the rpcs of proto/muster/v1/verbs.inc:
//
//   Register a/1                       Heartbeat a/1 progress=world:3:2:barrier
//   Set|Append a/1 k=KEY v=VALUE       Get|MultiGet|Wait a/1 k=KEY,KEY t=1s
//   Add a/1 k=KEY by=5                 TryGet|Delete|Check a/1 k=KEY
//   Set a/1 k=KEY v=VALUE ttl=5s ephemeral=1
//   CompareAndSet a/1 k=KEY at=3 v=VALUE ttl=5s ephemeral=1
//   CompareSet a/1 k=KEY old=VALUE new=VALUE
//   MultiSet a/1 k=KEY,KEY v=VALUE,VALUE
//   QueuePush a/1 k=KEY v=VALUE        QueuePop a/1 k=KEY t=1s
//   QueueLen a/1 k=KEY                 DeletePrefix a/1 prefix=KEY
//   Watch a/1 k=KEY after=3 t=1s       Watch a/1 prefix=KEY after=3 t=1s
//   NumKeys a/1                        ListKeys a/1 prefix=KEY after=KEY max=2
//   ReportGroupFailure a/1 group=tp kind=symptom|timeout|mismatch|decision
//       why=TEXT blames=1,2 ran=OP:SHAPE late=1 over=10ms wait=2s
//   Join a/1 rank=0 world=2 t=30s      Leave|ReportFailure a/1 why=TEXT
//   RegisterGroups a/1 of=tp:0,1;dp:0,2 left=pp
//   RegisterGroups a/1 waits|passes|refused=SERIES:1:0,1 does=TEXT callers=4
//   RegisterGroups a/1 still|gave_up=SERIES:1
//   AwaitBarrier a/1 rank=0 name=b t=30s all=1
//   CloseRendezvous a/1 why=TEXT
//
//   disconnect a/1                     cancel w3        detach w3
//   advance 10s alive=a/1,b/1          status             restart
//
// `advance` lets time pass as a driver does: it ticks at every deadline on the
// way, and the members in `alive` send a heartbeat every second. A plus in TEXT
// means a blank. Without `t` a pop does not wait; without `after` a watch
// begins now. `restart` ends the coordinator and starts a new one from its
// records; parked calls end without an answer.
std::string Replay(absl::string_view transcript);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_H_
