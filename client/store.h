#ifndef MUSTER_CLIENT_STORE_H_
#define MUSTER_CLIENT_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

class Session;

// What a key gets besides its value.
struct SetOptions {
  // The store deletes the key when this has passed; anew after a restart of
  // the coordinator. kInvalidArgument unless it is positive.
  std::optional<std::chrono::milliseconds> ttl = std::nullopt;
  // The store deletes the key when this process's session ends: it leaves,
  // fails, is lost or is replaced by another process of its name.
  bool ephemeral = false;
};

struct StoreValue {
  std::string value;
  // Of the mutation that wrote the value.
  int64_t revision = 0;
};

struct CompareAndSetResult {
  bool written = false;
  // Of the mutation that wrote the key's present value; 0 when it is missing.
  int64_t revision = 0;
  // The present value, when nothing was written and there is one.
  std::optional<std::string> present = std::nullopt;
};

// One change of a key.
struct KeyChange {
  enum class Kind {
    // It was written.
    kPut,
    // Somebody deleted it.
    kDeleted,
    // Its time to live was over.
    kExpired,
    // It was ephemeral, and the process that had set it is gone.
    kOrphaned,
  };
  Kind kind = Kind::kPut;
  std::string key;
  // Of kPut.
  std::string value;
  int64_t revision = 0;
};

struct WatchOptions {
  // All keys that begin with the given one, not that key alone.
  bool prefix = false;
  // The changes of later revisions are wanted. None: those after the call.
  std::optional<int64_t> after_revision = std::nullopt;
};

// StoreWatch gives the changes of some keys of a store, each once and in
// order, across reconnections too. Thread-safe, for one Next at a time.
class StoreWatch {
 public:
  virtual ~StoreWatch() = default;

  // The next change; none when there was none within `timeout`, or after
  // Cancel.
  // Throws DistStoreError: kOutOfRange (so much has changed since that the
  // store no longer knows all of it, or the coordinator was restarted: read the
  // keys anew and watch again).
  // Throws DistNetworkError: no answer within `timeout`; the watch goes on.
  virtual std::optional<KeyChange> Next(std::chrono::milliseconds timeout) = 0;

  // A Next that waits returns, and so do later ones, with none.
  virtual void Cancel() = 0;

  // Every change up to this revision has been returned by Next: where another
  // watch can go on.
  virtual int64_t revision() const = 0;
};

// Store is a map from byte strings to byte strings that the processes of a job
// share. Thread-safe.
//
// Every call throws DistStoreError when the store refuses it, with the code of
// the reason, and DistNetworkError when the store does not answer in time.
//
// A store of one's own needs the pure functions only. A verb that a store does
// not have throws DistStoreError (kUnimplemented, `Not implemented.` and its
// name).
class Store {
 public:
  static constexpr std::chrono::milliseconds kDefaultTimeout =
      std::chrono::seconds(300);

  virtual ~Store() = default;

  // Sets `key` to `value` and wakes everybody who waits for it.
  virtual void Set(std::string_view key, std::string_view value) = 0;

  // The value of `key`, waiting up to timeout() for somebody to set it.
  // Throws DistStoreError: kDeadlineExceeded (not set in time).
  virtual std::string Get(std::string_view key) = 0;

  // Adds `delta` to the whole decimal number under `key`, 0 when there is
  // none, and returns the sum. Add(key, 0) creates the key.
  // Throws DistStoreError: kInvalidArgument (the key holds something else),
  // kOutOfRange (the sum leaves int64).
  virtual int64_t Add(std::string_view key, int64_t delta) = 0;

  // Whether all of `keys` exist, at once.
  virtual bool Check(const std::vector<std::string>& keys) = 0;

  // Sets `key` to `desired` if it holds `expected`; a missing key matches the
  // empty `expected`. Returns `desired` when it was written, the present value
  // when that differs, and `expected` when the key is missing and `expected`
  // is not empty.
  virtual std::string CompareSet(std::string_view key,
                                 std::string_view expected,
                                 std::string_view desired) = 0;

  // Whether there was such a key. Nobody is woken.
  virtual bool DeleteKey(std::string_view key);

  // How many keys there are; queues and those with which the SDK forms groups
  // do not count, and each store says what else it counts.
  virtual int64_t NumKeys() = 0;

  // The keys that begin with `prefix`, in byte order. Those of the SDK begin
  // with "muster/" and are listed if `prefix` does.
  virtual std::vector<std::string> ListKeys(std::string_view prefix);

  // Returns when all of `keys` exist. An empty list does at once.
  // Throws DistStoreError: kDeadlineExceeded (the text lists what is missing),
  // kInvalidArgument (`timeout` is not positive).
  virtual void Wait(const std::vector<std::string>& keys,
                    std::chrono::milliseconds timeout) = 0;
  void Wait(const std::vector<std::string>& keys) { Wait(keys, timeout()); }

  // The extended part.

  // Whether the store has the next three.
  virtual bool HasExtendedApi() const { return false; }

  // Appends to the value of `key`, which comes into being when missing.
  virtual void Append(std::string_view key, std::string_view value);

  // The values of all of `keys`, in their order, waiting for all up to
  // timeout().
  virtual std::vector<std::string> MultiGet(
      const std::vector<std::string>& keys);

  // Sets all pairs in one step.
  // Throws DistStoreError: kInvalidArgument (lists of different lengths).
  virtual void MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values);

  // As above; replaces what the key had of a time to live and of an owner.
  // (So does a Set without options. Add, Append and CompareSet do not.)
  virtual void Set(std::string_view key, std::string_view value,
                   const SetOptions& options);

  // The value of `key` if there is one, at once.
  virtual std::optional<StoreValue> TryGet(std::string_view key);

  // Sets `key` to `desired` if its revision is `expected_revision`, or if it is
  // missing when that is 0.
  virtual CompareAndSetResult CompareAndSet(std::string_view key,
                                            int64_t expected_revision,
                                            std::string_view desired,
                                            const SetOptions& options = {});

  // Deletes all keys and queues that begin with `prefix`, in one step; returns
  // how many.
  virtual int64_t DeletePrefix(std::string_view prefix);

  // A key holds a value or a queue of items; for Check and Wait both are there.
  // A queue without items is none. A call for the one that meets the other
  // throws DistStoreError: kInvalidArgument.

  // Appends an item to the queue `key`. One QueuePop gets it, the one that has
  // waited longest, and no other call wakes; if none waits, the item stays, and
  // every Wait for the key sees it.
  virtual void QueuePush(std::string_view key, std::string_view value);

  // Takes the oldest item of the queue `key`, waiting for one up to timeout()
  // if `block`. An item whose answer does not come in time is lost with a call
  // that ends with DistNetworkError; one that only waited takes none.
  // Throws QueueEmptyError (`queue is empty`, not `block`), DistStoreError:
  // kDeadlineExceeded.
  virtual std::string QueuePop(std::string_view key, bool block = true);

  // How many items the queue has; 0 when there is none.
  virtual int64_t QueueLen(std::string_view key);

  // Watches `key`, or all keys that begin with it; not queues.
  virtual std::unique_ptr<StoreWatch> Watch(std::string_view key,
                                            const WatchOptions& options = {});

  // Another handle of the same keys, with a timeout of its own, which begins as
  // this one's.
  virtual std::shared_ptr<Store> Clone();

  // How long a call may take, waiting for keys included.
  // Throws DistStoreError: kInvalidArgument (not positive).
  virtual void SetTimeout(std::chrono::milliseconds timeout) = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
};

// The store of a job on a coordinator. It has all of Store. NumKeys counts the
// user's keys. Values live as long as the job: when a coordinator that is not
// durable restarts, every call throws DistStoreError with code kAborted.
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

// A part of another store: each key becomes prefix + "/" + key. Prefixes nest.
// SetTimeout sets the other store's. NumKeys counts the keys of the prefix.
//
// On a store without the extended part, MultiGet and MultiSet go key by key,
// and Append is made of CompareSet: of two that append the same bytes at the
// same time, one may get lost.
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
  // Under all prefixes.
  const std::shared_ptr<Store>& underlying_non_prefix_store() const;

 private:
  std::string Prefixed(std::string_view key) const;
  std::vector<std::string> Prefixed(const std::vector<std::string>& keys) const;

  const std::string prefix_;  // With the slash.
  const std::shared_ptr<Store> store_;
};

}  // namespace muster

#endif  // MUSTER_CLIENT_STORE_H_
