// A client process of tests that check linearizability: random operations on a
// few keys that all clients of a job share.
//
//   store_client ADDRESS JOB CLIENT SEED OPERATIONS
//
// With 0 OPERATIONS it goes on until SIGTERM. Writes two lines for each
// operation, before it and after it:
//   call NANOSECONDS VERB KEY ARGUMENTS...
//   answer NANOSECONDS RESULT

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/session.h"
#include "muster/store.h"

namespace muster::fault {
namespace {

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// All clients go on to new keys after so long, because the search for an order
// takes long if there are many operations on one key.
constexpr int64_t kKeysNanoseconds = 20'000'000'000;

volatile sig_atomic_t stopping = 0;

void Say(const std::string& line) {
  printf("%s\n", line.c_str());
  fflush(stdout);
}

class Client {
 public:
  Client(const std::string& address, const std::string& job, int index,
         uint64_t seed)
      : index_(index),
        random_(seed),
        store_(Session::Connect({.address = address,
                                 .job = job,
                                 .member = absl::StrCat("client-", index),
                                 // A coordinator that is stopped is left soon.
                                 .silence_max = std::chrono::seconds(3)})) {}

  void Step() {
    if (const int64_t now = Now() / kKeysNanoseconds; now != keys_) {
      ReadAll();
      keys_ = now;
    }
    // Distinct values show which client wrote a value.
    const std::string unique =
        absl::StrCat(index_, "-", getpid(), "-", ++unique_);
    switch (random_() % 10) {
      case 0:
        return Do("set", Key("v"), {unique}, [&](const std::string& key) {
          store_.Set(key, unique);
          return "-";
        });
      case 1:
        return Get(Key("v"));
      case 2:
        last_expected_ = random_() % 4 == 0 ? "" : last_seen_;
        return Do("cas", Key("v"), {last_expected_, unique},
                  [&](const std::string& key) {
                    last_seen_ = store_.CompareSet(key, last_expected_, unique);
                    return last_seen_;
                  });
      case 3:
        return Do("append", Key("v"), {"+"}, [&](const std::string& key) {
          store_.Append(key, "+");
          return "-";
        });
      case 4:
        return Delete(Key("v"));
      case 5:
        return Do("add", Key("n"), {"1"}, [&](const std::string& key) {
          return absl::StrCat(store_.Add(key, 1));
        });
      case 6:
        return Get(Key("n"));
      case 7:
        return Do("push", Key("q"), {unique}, [&](const std::string& key) {
          store_.QueuePush(key, unique);
          return "-";
        });
      case 8:
        Pop(Key("q"));
        return;
      default:
        return Delete(Key(random_() % 8 == 0 ? "n" : "q"));
    }
  }

  // Reads every key, and takes all items of the queues.
  void ReadAll() {
    for (const int i : {0, 1}) {
      Get(Key("v", i));
      Get(Key("n", i));
      while (Pop(Key("q", i))) continue;
    }
  }

 private:
  // There are two keys of each kind.
  std::string Key(const char* kind, uint64_t number) const {
    return absl::StrCat(kind, number, "-", keys_);
  }
  std::string Key(const char* kind) { return Key(kind, random_() % 2); }

  void Do(const char* verb, const std::string& key,
          const std::vector<std::string>& arguments,
          const std::function<std::string(const std::string& key)>& call) {
    std::vector<std::string> quoted;
    for (const std::string& argument : arguments) {
      quoted.push_back(absl::StrCat("'", argument));
    }
    Say(absl::StrCat("call ", Now(), " ", verb, " ", key, " ",
                     absl::StrJoin(quoted, " ")));
    const std::string result = call(key);
    Say(absl::StrCat("answer ", Now(), " ", result));
  }

  // Returns whether there was an item.
  bool Pop(const std::string& key) {
    bool found = true;
    Do("pop", key, {}, [&](const std::string& k) {
      try {
        return store_.QueuePop(k, /*block=*/false);
      } catch (const DistError& error) {
        if (!IsNotFound(error.status())) throw;
        found = false;
        return std::string("empty");
      }
    });
    return found;
  }

  void Get(const std::string& key) {
    Do("get", key, {}, [&](const std::string& k) {
      const std::optional<StoreValue> value = store_.TryGet(k);
      last_seen_ = value.has_value() ? value->value : "";
      return value.has_value() ? value->value : std::string("absent");
    });
  }

  void Delete(const std::string& key) {
    Do("delete", key, {}, [&](const std::string& k) {
      return std::string(store_.DeleteKey(k) ? "1" : "0");
    });
  }

  const int index_;
  std::mt19937_64 random_;
  CoordinatorStore store_;
  int64_t keys_ = Now() / kKeysNanoseconds;
  int64_t unique_ = 0;
  std::string last_seen_;
  std::string last_expected_;
};

void Run(Client& client, int64_t operations) {
  if (operations > 0) {
    for (int64_t i = 0; i < operations; ++i) client.Step();
    return;
  }
  while (stopping == 0) client.Step();
  client.ReadAll();
}

}  // namespace
}  // namespace muster::fault

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: store_client ADDRESS JOB CLIENT SEED OPERATIONS\n");
    return 2;
  }
  signal(SIGTERM, [](int) { muster::fault::stopping = 1; });
  try {
    muster::fault::Client client(argv[1], argv[2], std::atoi(argv[3]),
                                 std::strtoull(argv[4], nullptr, 10));
    muster::fault::Run(client, std::atoll(argv[5]));
  } catch (const muster::DistError& error) {
    printf("error %s\n", error.what());
    return 1;
  }
  return 0;
}
