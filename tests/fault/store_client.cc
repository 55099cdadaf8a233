// A client process of linearizability_kills_test: random operations on a few
// keys that all clients share.
//
//   store_client ADDRESS CLIENT SEED OPERATIONS
//
// Writes two lines for each operation, before it and after it:
//   call NANOSECONDS VERB KEY ARGUMENTS...
//   answer NANOSECONDS RESULT

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

void Say(const std::string& line) {
  printf("%s\n", line.c_str());
  fflush(stdout);
}

class Client {
 public:
  Client(const std::string& address, int index, uint64_t seed)
      : index_(index),
        random_(seed),
        store_(Session::Connect({.address = address,
                                 .job = "linearizability",
                                 .member = absl::StrCat("client-", index)})) {}

  void Step() {
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
        return Do("pop", Key("q"), {}, [&](const std::string& key) {
          try {
            return store_.QueuePop(key, /*block=*/false);
          } catch (const DistError& error) {
            if (!IsNotFound(error.status())) throw;
            return std::string("empty");
          }
        });
      default:
        return Delete(Key(random_() % 8 == 0 ? "n" : "q"));
    }
  }

 private:
  // There are two keys of each kind.
  std::string Key(const char* kind) {
    return absl::StrCat(kind, random_() % 2);
  }

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
  int64_t unique_ = 0;
  std::string last_seen_;
  std::string last_expected_;
};

}  // namespace
}  // namespace muster::fault

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: store_client ADDRESS CLIENT SEED OPERATIONS\n");
    return 2;
  }
  try {
    muster::fault::Client client(argv[1], std::atoi(argv[2]),
                                 std::strtoull(argv[3], nullptr, 10));
    for (int64_t i = std::atoll(argv[4]); i > 0; --i) client.Step();
  } catch (const muster::DistError& error) {
    printf("error %s\n", error.what());
    return 1;
  }
  return 0;
}
