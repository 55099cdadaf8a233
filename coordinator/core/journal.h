// Collects the names of the records that a step has changed.

#ifndef MUSTER_COORDINATOR_CORE_JOURNAL_H_
#define MUSTER_COORDINATOR_CORE_JOURNAL_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/ids.h"

namespace muster::coordinator::core {

// Journal collects the names of the records (records.h) that have changed since
// it was last cleared. Their contents are read when the step is over, so a key
// that a batch writes a hundred times is written to storage once. A job that is
// not durable has a disabled journal.
class Journal {
 public:
  explicit Journal(bool on) : on_(on) {}

  bool on() const { return on_; }

  void Key(absl::string_view key) {
    if (on_) keys.emplace(key);
  }
  void Item(absl::string_view key, int64_t number) {
    if (on_) items.emplace(key, number);
  }
  // `fresh`: the change has no record yet.
  void Change(int64_t revision, absl::string_view key, bool fresh) {
    if (on_) changes.emplace(std::pair(revision, std::string(key)), fresh);
  }
  // A change whose record was never written needs no erasure.
  void ForgetChange(int64_t revision, absl::string_view key) {
    if (!on_) return;
    const auto [it, absent] =
        changes.emplace(std::pair(revision, std::string(key)), false);
    if (it->second) changes.erase(it);
  }
  // Storing the changes has begun or ended.
  void History() { history = on_; }
  void Member(const MemberId& member) {
    if (on_) members.insert(member);
  }
  void Reply(const MemberId& member, SequenceNumber sequence) {
    if (on_) replies.emplace(member, sequence);
  }
  void Generation() { generation = on_; }
  void Series(const std::string& group, const std::string& barrier) {
    if (on_) series.emplace(group, barrier);
  }
  // Returns whether the decision is new in the journal.
  bool Decision(const std::string& group, const std::string& barrier,
                int64_t instance) {
    return on_ && decisions.emplace(group, barrier, instance).second;
  }
  // Returns whether the journal had the decision. If so, it was never written.
  bool ForgetDecision(const std::string& group, const std::string& barrier,
                      int64_t instance) {
    return decisions.erase({group, barrier, instance}) > 0;
  }
  void Taken(const std::string& group, const std::string& barrier, Rank rank) {
    if (on_) taken.emplace(group, barrier, rank);
  }

  void Group(const std::string& group) {
    if (on_) groups.insert(group);
  }
  void GroupRank(const std::string& group, Rank rank) {
    if (on_) group_ranks.emplace(group, rank);
  }

  void GroupFailure(const std::string& group, const std::string& instance) {
    if (on_) group_failures.emplace(group, instance);
  }

  void Clear() { *this = Journal(on_); }

  // Sets of names. Coordinator::TakeChanges reads them.
  absl::btree_set<std::string> keys;
  absl::btree_set<std::pair<std::string, int64_t>> items;  // queue items
  absl::btree_map<std::pair<int64_t, std::string>, bool> changes;
  bool history = false;
  absl::btree_set<MemberId> members;
  absl::btree_set<std::pair<MemberId, SequenceNumber>> replies;
  bool generation = false;
  absl::btree_set<std::pair<std::string, std::string>> series;
  absl::btree_set<std::tuple<std::string, std::string, int64_t>> decisions;
  absl::btree_set<std::tuple<std::string, std::string, Rank>> taken;
  absl::btree_set<std::string> groups;
  absl::btree_set<std::pair<std::string, Rank>> group_ranks;
  absl::btree_set<std::pair<std::string, std::string>> group_failures;

 private:
  bool on_;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_JOURNAL_H_
