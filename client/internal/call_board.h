// Whether the ranks that make a call together mean the same by it.

#ifndef MUSTER_CLIENT_INTERNAL_CALL_BOARD_H_
#define MUSTER_CLIENT_INTERNAL_CALL_BOARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/session.h"

namespace muster::internal {

// The same in every process: 16 hexadecimal digits.
std::string StableHash(absl::string_view text);

// A call in which ranks of the default group wait for each other.
struct SharedCall {
  // Counts those that all ranks make in the same order, from 1; 0: another.
  int64_t number = 0;
  // What it counts: splits of one group, by that; empty: what all ranks of the
  // default group make.
  std::string series = {};
  // The same on all ranks that meet.
  std::string place = {};
  // What the caller does, for people: `makes group "1" of 2 ranks (0, 1)`.
  std::string meaning = {};
  // Who meets there, ascending.
  std::vector<int> ranks = {};
};

// CallBoard is where ranks that wait in such calls tell each other which, in
// the job's store. Two that wait for each other in different calls, or that
// mean different things by the call of one number, would wait in vain: they and
// all that wait with them get an error that says who does what. What differs by
// ranks alone that are known to be gone is no quarrel: one of the two is about
// to hear of it.
//
// Nothing is told before a call has waited for a while, but by ranks that do
// not wait in it, and of calls that may come to their end on a rank that means
// something else by them than one that waits. Thread-safe.
class CallBoard {
 public:
  struct Options {
    std::shared_ptr<Session> session;
    // Of its keys; of this generation.
    std::string key_prefix;
    std::vector<Seat> seats;
    int rank = -1;
    std::function<bool(int rank)> is_gone;
  };

  explicit CallBoard(Options options) : options_(std::move(options)) {}

  // This rank has made the call and does not wait in it (any more): it has no
  // part in it, or it worked; or it was refused, which `meaning` says then.
  void Pass(const SharedCall& call) const;
  void Refuse(SharedCall call, const std::string& why) const;

  // While this rank waits in a call.
  class Waiting;

 private:
  // What a rank has told, as its key says.
  struct Entry {
    int rank = -1;
    std::string place = {};  // hash of the call's; empty: it does not wait
    std::string key = {};
  };

  std::string KeyOf(absl::string_view kind, const Entry& entry) const;
  std::vector<Entry> Entries() const;
  absl::Status QuarrelWith(const SharedCall& call, const Entry& other,
                           const std::vector<Entry>& entries) const;
  void SpreadTo(const std::vector<int>& ranks, const std::string& place,
                const std::vector<Entry>& entries,
                const std::string& text) const;
  bool IsInTheWay(const SharedCall& call, const SharedCall& other, bool waits,
                  bool refused) const;
  void Tell(absl::string_view stand, const SharedCall& told) const;
  std::string NameOf(int rank) const;

  const Options options_;
};

// Of one thread.
class CallBoard::Waiting {
 public:
  // The board must outlive it.
  Waiting(const CallBoard* board, SharedCall call);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Tells of the call, and looks what the others do; asks the coordinator. To
  // be called several times in the first second, and once in a while later.
  // kInvalidArgument: the ranks do not mean the same.
  absl::Status Look();

 private:
  const CallBoard& board_;
  const SharedCall call_;
  const Entry own_;
  int64_t looks_ = 0;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_INTERNAL_CALL_BOARD_H_
