// Golden transcripts: the answers of a coordinator to a list of commands.

#ifndef MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_H_
#define MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace muster::coordinator::core {

// Returns `transcript` with every answer replaced by what a coordinator says
// today.
//
// A transcript is a list of steps after one comment: lines of commands, a line
// `----`, the answers, an empty line. Lines that begin with `#` stay. A command
// is a verb, a member with its incarnation (`b/2`; `-` for a client without a
// name), and arguments `name=value`; `seq=`, `ack=` and `open=` (the unanswered
// ones) belong to the call. Calls are numbered from w1.
//
//   register a/1                       heartbeat a/1 progress=world:3:2:barrier
//   set|append a/1 k=KEY v=VALUE       get|multiget|wait a/1 k=KEY,KEY t=1s
//   add a/1 k=KEY by=5                 tryget|delete|check a/1 k=KEY
//   set a/1 k=KEY v=VALUE ttl=5s ephemeral=1
//   cas_revision a/1 k=KEY at=3 v=VALUE ttl=5s ephemeral=1
//   push a/1 k=KEY v=VALUE             pop a/1 k=KEY t=1s
//   len a/1 k=KEY                      delete_prefix a/1 prefix=KEY
//   watch a/1 k=KEY after=3 t=1s       watch a/1 prefix=KEY after=3 t=1s
//   cas a/1 k=KEY old=VALUE new=VALUE  multiset a/1 k=KEY,KEY v=VALUE,VALUE
//   numkeys a/1                        list a/1 prefix=KEY after=KEY max=2
//   join a/1 rank=0 world=2 t=30s      arrive a/1 rank=0 name=b t=30s all=1
//   leave a/1 why=TEXT                 fail a/1 why=TEXT
//   disconnect a/1                     cancel w3        detach w3
//   advance 10s alive=a/1,b/1          status             restart
//
// `advance` lets time pass as a driver does: it ticks at every deadline on the
// way, and the members in `alive` send a heartbeat every second. A plus in TEXT
// stands for a blank. Without `t` a pop does not wait, without `after` a watch
// begins now. `restart` is the end of the coordinator, and a new one
// with the records of the old; parked calls end without an answer.
std::string Replay(absl::string_view transcript);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_TESTING_TRANSCRIPT_H_
