#ifndef MUSTER_STORE_H_
#define MUSTER_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {

class Session;

// The properties of a key besides its value.
struct SetOptions {
  // The store deletes the key after this time, which begins anew when the
  // coordinator restarts. kInvalidArgument unless it is positive.
  std::optional<std::chrono::milliseconds> ttl = std::nullopt;
  // True: the store deletes the key when this process's session ends, that is,
  // when the process leaves, fails, is lost, or is replaced by another process
  // with its name.
  bool ephemeral = false;
};

struct StoreValue {
  std::string value;
  // The revision of the mutation that wrote the value.
  int64_t revision = 0;
};

struct CompareAndSetResult {
  bool written = false;
  // The revision of the mutation that wrote the key's present value; 0 if the
  // key is missing.
  int64_t revision = 0;
  // The present value, if nothing was written and the key exists.
  std::optional<std::string> present = std::nullopt;
};

// One change of a key.
struct KeyChange {
  enum class Kind {
    // The key was written.
    kPut,
    // A call deleted the key.
    kDeleted,
    // The key's time to live was over.
    kExpired,
    // The key was ephemeral, and the process that set it is gone.
    kOrphaned,
  };
  Kind kind = Kind::kPut;
  std::string key;
  // The new value, for kPut.
  std::string value;
  int64_t revision = 0;
};

struct WatchOptions {
  // True: watches all keys that begin with the given key, and not that key
  // alone.
  bool prefix = false;
  // Watches changes of later revisions. Not given: changes after the call.
  std::optional<int64_t> after_revision = std::nullopt;
};

// StoreWatch returns the changes of some keys of a store, each once and in
// order, across reconnections too. Thread-safe, but one thread at a time may
// call Next.
class StoreWatch {
 public:
  virtual ~StoreWatch() = default;

  // Returns the next change, or nothing if there was none within `timeout`, or
  // after Cancel.
  // Throws DistStoreError: kOutOfRange (the store no longer has all changes
  // since the last one, or a coordinator that stores nothing was restarted:
  // read the keys again and make a new watch).
  // Throws DistNetworkError: no answer within `timeout`; the watch goes on.
  virtual std::optional<KeyChange> Next(std::chrono::milliseconds timeout) = 0;

  // Makes a waiting Next and all later ones return nothing.
  virtual void Cancel() = 0;

  // Next has returned every change up to this revision. Another watch can start
  // after it.
  virtual int64_t revision() const = 0;
};

// Store is a map from byte strings to byte strings that the processes of a job
// share. Thread-safe.
//
// Every call throws DistStoreError if the store refuses it, with the code of
// the reason, and DistNetworkError if the store does not answer in time.
//
// A store that a program defines must implement only the pure virtual
// functions. A function that a store does not have throws DistStoreError
// (kUnimplemented, `Not implemented.` and its name).
class Store {
 public:
  static constexpr std::chrono::milliseconds kDefaultTimeout =
      std::chrono::seconds(300);

  virtual ~Store() = default;

  // Sets `key` to `value` and wakes every call that waits for it.
  virtual void Set(std::string_view key, std::string_view value) = 0;

  // Returns the value of `key`; waits up to timeout() until it is set.
  // Throws DistStoreError: kDeadlineExceeded (it was not set in time).
  virtual std::string Get(std::string_view key) = 0;

  // Adds `delta` to the decimal integer under `key` (0 if the key is missing),
  // and returns the sum. Add(key, 0) creates the key.
  // Throws DistStoreError: kInvalidArgument (the key holds something else),
  // kOutOfRange (the sum does not fit int64).
  virtual int64_t Add(std::string_view key, int64_t delta) = 0;

  // Returns whether all of `keys` exist. Does not wait.
  virtual bool Check(const std::vector<std::string>& keys) = 0;

  // Sets `key` to `desired` if it holds `expected`; a missing key matches the
  // empty `expected`. Returns `desired` if it was written, the present value if
  // that differs, and `expected` if the key is missing and `expected` is not
  // empty.
  virtual std::string CompareSet(std::string_view key,
                                 std::string_view expected,
                                 std::string_view desired) = 0;

  // Deletes `key` and returns whether it existed. Wakes no waiting call.
  virtual bool DeleteKey(std::string_view key);

  // Returns the number of keys. Queues and the keys with which the SDK forms
  // groups do not count; each store says what else it counts.
  virtual int64_t NumKeys() = 0;

  // Returns the keys that begin with `prefix`, in byte order. Keys of the SDK
  // begin with "muster/" and are listed only if `prefix` does, too.
  virtual std::vector<std::string> ListKeys(std::string_view prefix);

  // Waits until all of `keys` exist. Returns at once if the list is empty.
  // Throws DistStoreError: kDeadlineExceeded (the text lists the missing keys),
  // kInvalidArgument (`timeout` is not positive).
  virtual void Wait(const std::vector<std::string>& keys,
                    std::chrono::milliseconds timeout) = 0;
  void Wait(const std::vector<std::string>& keys) { Wait(keys, timeout()); }

  // The extended part of the interface.

  // True if the store has the next three functions.
  virtual bool HasExtendedApi() const { return false; }

  // Appends `value` to the value of `key`, and creates the key if it is
  // missing.
  virtual void Append(std::string_view key, std::string_view value);

  // Returns the values of all of `keys`, in their order; waits for all up to
  // timeout().
  virtual std::vector<std::string> MultiGet(
      const std::vector<std::string>& keys);

  // Sets all pairs in one step.
  // Throws DistStoreError: kInvalidArgument (lists of different lengths).
  virtual void MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values);

  // Sets `key` to `value`, and sets its time to live and its owner as `options`
  // say. (Set without options removes both. Add, Append and CompareSet keep
  // both.)
  virtual void Set(std::string_view key, std::string_view value,
                   const SetOptions& options);

  // Returns the value of `key`, or nothing if it is missing. Does not wait.
  virtual std::optional<StoreValue> TryGet(std::string_view key);

  // Sets `key` to `desired` if its revision is `expected_revision`; with 0, if
  // the key is missing.
  virtual CompareAndSetResult CompareAndSet(std::string_view key,
                                            int64_t expected_revision,
                                            std::string_view desired,
                                            const SetOptions& options = {});

  // Deletes all keys and queues that begin with `prefix`, in one step, and
  // returns how many.
  virtual int64_t DeletePrefix(std::string_view prefix);

  // A key holds a value or a queue of items; Check and Wait find both. A queue
  // without items does not exist. A call for a value on a queue, or the
  // reverse, throws DistStoreError: kInvalidArgument.

  // Appends an item to the queue `key`. The QueuePop that has waited longest
  // gets it, and no other call wakes. If no QueuePop waits, the item stays, and
  // every Wait for the key sees it.
  virtual void QueuePush(std::string_view key, std::string_view value);

  // Takes the oldest item of the queue `key`; if `block`, waits for one up to
  // timeout(). If the answer with an item does not arrive in time, the item is
  // lost, and the call throws DistNetworkError. A call that has only waited
  // takes no item.
  // Throws QueueEmptyError (`queue is empty`; not `block`), DistStoreError:
  // kDeadlineExceeded.
  virtual std::string QueuePop(std::string_view key, bool block = true);

  // Returns the number of items in the queue; 0 if there is no queue.
  virtual int64_t QueueLen(std::string_view key);

  // Watches `key`, or all keys that begin with it. Does not watch queues.
  virtual std::unique_ptr<StoreWatch> Watch(std::string_view key,
                                            const WatchOptions& options = {});

  // Returns another handle of the same keys, with a timeout of its own, which
  // begins as this one's.
  virtual std::shared_ptr<Store> Clone();

  // Sets how long a call may take, including waiting for keys.
  // Throws DistStoreError: kInvalidArgument (not positive).
  virtual void SetTimeout(std::chrono::milliseconds timeout) = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
};

// CoordinatorStore is the store of a job on a coordinator. It has all of Store.
// NumKeys counts the user's keys. Values live as long as the job: after the
// restart of a coordinator that is not durable, every call throws
// DistStoreError (kAborted).
class CoordinatorStore : public Store {
 public:
  // Several stores may share a session; each has its own timeout.
  explicit CoordinatorStore(std::shared_ptr<Session> session);

  using Store::Wait;
  void Set(std::string_view key, std::string_view value) override;
  std::string Get(std::string_view key) override;
  int64_t Add(std::string_view key, int64_t delta) override;
  bool Check(const std::vector<std::string>& keys) override;
  std::string CompareSet(std::string_view key, std::string_view expected,
                         std::string_view desired) override;
  bool DeleteKey(std::string_view key) override;
  int64_t NumKeys() override;
  std::vector<std::string> ListKeys(std::string_view prefix) override;
  void Wait(const std::vector<std::string>& keys,
            std::chrono::milliseconds timeout) override;
  bool HasExtendedApi() const override { return true; }
  void Append(std::string_view key, std::string_view value) override;
  std::vector<std::string> MultiGet(
      const std::vector<std::string>& keys) override;
  void MultiSet(const std::vector<std::string>& keys,
                const std::vector<std::string>& values) override;
  void Set(std::string_view key, std::string_view value,
           const SetOptions& options) override;
  std::optional<StoreValue> TryGet(std::string_view key) override;
  CompareAndSetResult CompareAndSet(std::string_view key,
                                    int64_t expected_revision,
                                    std::string_view desired,
                                    const SetOptions& options = {}) override;
  int64_t DeletePrefix(std::string_view prefix) override;
  void QueuePush(std::string_view key, std::string_view value) override;
  std::string QueuePop(std::string_view key, bool block = true) override;
  int64_t QueueLen(std::string_view key) override;
  std::unique_ptr<StoreWatch> Watch(std::string_view key,
                                    const WatchOptions& options = {}) override;
  std::shared_ptr<Store> Clone() override;
  void SetTimeout(std::chrono::milliseconds timeout) override;
  std::chrono::milliseconds timeout() const override;

 private:
  const std::shared_ptr<Session> session_;
  std::atomic<std::chrono::milliseconds> timeout_{kDefaultTimeout};
};

// PrefixStore is a part of another store: each key becomes prefix + "/" + key.
// Prefixes nest. SetTimeout sets the other store's timeout. NumKeys counts the
// keys with the prefix.
//
// On a store without the extended part, MultiGet and MultiSet go key by key,
// and Append uses CompareSet: if two calls append the same bytes at the same
// time, one of them may get lost.
class PrefixStore : public Store {
 public:
  // Throws DistStoreError: kInvalidArgument (`store` is null).
  PrefixStore(std::string_view prefix, std::shared_ptr<Store> store);

  using Store::Wait;
  void Set(std::string_view key, std::string_view value) override;
  std::string Get(std::string_view key) override;
  int64_t Add(std::string_view key, int64_t delta) override;
  bool Check(const std::vector<std::string>& keys) override;
  std::string CompareSet(std::string_view key, std::string_view expected,
                         std::string_view desired) override;
  bool DeleteKey(std::string_view key) override;
  int64_t NumKeys() override;
  std::vector<std::string> ListKeys(std::string_view prefix) override;
  void Wait(const std::vector<std::string>& keys,
            std::chrono::milliseconds timeout) override;
  bool HasExtendedApi() const override;
  void Append(std::string_view key, std::string_view value) override;
  std::vector<std::string> MultiGet(
      const std::vector<std::string>& keys) override;
  void MultiSet(const std::vector<std::string>& keys,
                const std::vector<std::string>& values) override;
  void Set(std::string_view key, std::string_view value,
           const SetOptions& options) override;
  std::optional<StoreValue> TryGet(std::string_view key) override;
  CompareAndSetResult CompareAndSet(std::string_view key,
                                    int64_t expected_revision,
                                    std::string_view desired,
                                    const SetOptions& options = {}) override;
  int64_t DeletePrefix(std::string_view prefix) override;
  void QueuePush(std::string_view key, std::string_view value) override;
  std::string QueuePop(std::string_view key, bool block = true) override;
  int64_t QueueLen(std::string_view key) override;
  std::unique_ptr<StoreWatch> Watch(std::string_view key,
                                    const WatchOptions& options = {}) override;
  std::shared_ptr<Store> Clone() override;
  void SetTimeout(std::chrono::milliseconds timeout) override;
  std::chrono::milliseconds timeout() const override;

  const std::shared_ptr<Store>& underlying_store() const { return store_; }
  // The store under all prefixes.
  const std::shared_ptr<Store>& underlying_non_prefix_store() const;

 private:
  std::string Prefixed(std::string_view key) const;
  std::vector<std::string> Prefixed(const std::vector<std::string>& keys) const;

  const std::string prefix_;  // with the slash
  const std::shared_ptr<Store> store_;
};

}  // namespace muster

#endif  // MUSTER_STORE_H_
