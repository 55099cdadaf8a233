// Measures durable writes on an etcd of three members: its own puts, the Set of
// a coordinator that keeps its jobs there, and two designs of the storage, each
// without a coordinator around it.

#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/records.h"
#include "coordinator/server/jobs/commit_queue.h"
#include "coordinator/storage/etcd/etcd.pb.h"
#include "coordinator/storage/etcd/etcd_client.h"
#include "coordinator/storage/etcd/etcd_storage.h"
#include "muster/session.h"
#include "tests/bench/callers.h"
#include "tests/bench/child.h"
#include "tests/bench/figure.h"
#include "tests/bench/folder.h"
#include "tests/bench/keys_storage.h"
#include "tests/bench/load.h"
#include "tests/bench/peers.h"

ABSL_FLAG(std::string, coordinator, "bin/muster-coordinator",
          "path of the muster-coordinator to measure");
ABSL_FLAG(std::vector<std::string>, callers,
          (std::vector<std::string>{"1", "64"}),
          "numbers of concurrent callers, comma-separated");
ABSL_FLAG(int, members, 3, "members of etcd");
ABSL_FLAG(int, rounds, 5, "rounds of each load; medians are reported");
ABSL_FLAG(int, duration_ms, 2000, "length of one round, in milliseconds");
ABSL_FLAG(int, warm_up_ms, 500,
          "uncounted start of each round, in milliseconds");
ABSL_FLAG(int, value_bytes, 100, "size of a value, in bytes");
ABSL_FLAG(int, batch, 1000, "changes in one write of the storage");
ABSL_FLAG(std::string, json, "", "file to write the figures to");
ABSL_FLAG(std::string, storage, "/tmp", "folder on the disk of etcd's members");

namespace muster::bench {
namespace {

using coordinator::CommitQueue;
using coordinator::EtcdKv;
using coordinator::Storage;
using std::chrono::milliseconds;

// Ratios to etcd's puts: of 64 callers' throughput, and of one caller's p50.
constexpr double kCrowdThroughputRatio = 3;
constexpr double kLoneP50Ratio = 1.3;
constexpr char kOwner[] = "bench/owner";

void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

struct Row {
  Load load;
  std::string reference;  // name of another row; empty: none
  std::vector<Figures> rounds = {};
};

// The storages of the two designs in one etcd, and their commit queues.
class Storages {
 public:
  explicit Storages(const EtcdPeer& peer) {
    coordinator::EtcdOptions options;
    options.endpoints = peer.endpoints();
    auto etcd = coordinator::MakeEtcdClient(options);
    Require(etcd.status());
    etcd_ = *std::move(etcd);
    etcdserverpb::TxnRequest request;
    request.add_success()->mutable_request_put()->set_key(kOwner);
    etcdserverpb::TxnResponse response;
    Require(etcd_->Txn(request, response));
    revision_ = response.header().revision();
  }

  std::unique_ptr<Storage> Make(const std::string& design) {
    const std::string prefix = absl::StrCat("bench/", made_++, "/");
    if (design == "keys") {
      return std::make_unique<KeysStorage>(*etcd_, prefix, kOwner, revision_);
    }
    coordinator::EtcdStorageOptions options;
    options.prefix = prefix;
    options.owner_key = kOwner;
    options.owner_revision = revision_;
    options.try_again = [](const Status&) { return true; };
    auto storage =
        std::make_unique<coordinator::EtcdStorage>(*etcd_, std::move(options));
    Require(storage->Load([](auto, auto) { return OkStatus(); }));
    return storage;
  }

 private:
  std::unique_ptr<EtcdKv> etcd_;
  int64_t revision_ = 0;
  int made_ = 0;
};

Operation Commit(const std::shared_ptr<CommitQueue>& queue,
                 const std::string& payload, int caller) {
  coordinator::core::EntryRecord record;
  record.key = absl::StrCat("key/", caller);
  record.value = std::make_shared<const std::string>(payload);
  return [queue, record] {
    std::promise<void> done;
    queue->Append("bench", {record}, [&](const auto&...) { done.set_value(); });
    done.get_future().wait();
  };
}

// Writes that many changes at once.
Operation WriteBatch(std::shared_ptr<Storage> storage,
                     const std::string& payload, int changes) {
  std::vector<coordinator::StorageChange> batch;
  for (int i = 0; i < changes; ++i) {
    batch.push_back({absl::StrCat("key/", i), payload});
  }
  return [storage = std::move(storage), batch = std::move(batch)] {
    Require(storage->Write(batch));
  };
}

class Bed {
 public:
  Bed(EtcdPeer& etcd, const std::string& address, int coordinator_pid)
      : etcd_(etcd),
        address_(address),
        coordinator_pid_(coordinator_pid),
        storages_(etcd),
        payload_(static_cast<size_t>(absl::GetFlag(FLAGS_value_bytes)), 'v') {}

  void Plan(int callers, std::vector<Row>& rows) {
    const std::string suffix = absl::StrCat("/", callers);
    const std::string puts = "etcd put" + suffix;
    rows.push_back(
        {{.name = puts,
          .callers = callers,
          .connect = [this](int caller) { return etcd_.Set(payload_, caller); },
          .server_pid = etcd_.pid()},
         ""});
    for (const bool shared : {false, true}) {
      if (shared && callers == 1) continue;
      rows.push_back({PlanSets(shared, callers), puts});
    }
    for (const std::string design : {"log", "keys"}) {
      const auto queue = std::make_shared<CommitQueue>(
          storages_.Make(design), coordinator::SyncPolicy(),
          CommitQueue::Observer());
      rows.push_back({{.name = design + suffix,
                       .callers = callers,
                       .connect =
                           [this, queue](int caller) {
                             return Commit(queue, payload_, caller);
                           }},
                      puts});
    }
  }

  void PlanBatches(int changes, std::vector<Row>& rows) {
    const auto name = [&](const std::string& design) {
      return absl::StrCat(design, ", batch of ", changes, "/1");
    };
    for (const std::string design : {"log", "keys"}) {
      const std::shared_ptr<Storage> storage = storages_.Make(design);
      rows.push_back({{.name = name(design),
                       .connect =
                           [this, storage, changes](int) {
                             return WriteBatch(storage, payload_, changes);
                           }},
                      design == "log" ? "" : name("log")});
    }
  }

 private:
  // Callers have a session each or are threads that share one.
  Load PlanSets(bool shared, int callers) {
    return {
        .name = absl::StrCat("durable set", shared ? ", one session" : "", "/",
                             callers),
        .callers = callers,
        .connect =
            [this, shared,
             session = std::make_shared<std::weak_ptr<Session>>()](int caller) {
              std::shared_ptr<Session> own = session->lock();
              if (own == nullptr || !shared) {
                own = Connect(address_);
                *session = own;
              }
              return StoreOperation(own, "set", payload_, caller);
            },
        .server_pid = coordinator_pid_};
  }

  EtcdPeer& etcd_;
  const std::string address_;
  const int coordinator_pid_;
  Storages storages_;
  const std::string payload_;
};

std::vector<Figure> Report(const std::vector<Row>& rows) {
  std::vector<Figure> figures;
  std::map<std::string, Figures> medians;
  for (const Row& row : rows) medians[row.load.name] = Median(row.rounds);
  std::cout << absl::StrFormat("%-28s %9s %9s %9s   %s\n", "load", "op/s",
                               "p50 us", "p99 us", "beside it: op/s, p50");
  for (const Row& row : rows) {
    const std::string& name = row.load.name;
    const Figures& mine = medians[name];
    const Figures& other = medians[row.reference];
    std::cout << absl::StrFormat("%-28s %9.0f %9.1f %9.1f", name,
                                 mine.operations_per_second, mine.p50_us,
                                 mine.p99_us);
    if (!row.reference.empty()) {
      std::cout << absl::StrFormat(
          "   x %.2f, x %.2f",
          mine.operations_per_second / other.operations_per_second,
          mine.p50_us / other.p50_us);
    }
    std::cout << "\n";
    const bool durable = absl::StartsWith(name, "durable");
    figures.push_back({.name = name + " throughput",
                       .value = mine.operations_per_second,
                       .unit = "op/s",
                       .reference = row.reference,
                       .reference_value = other.operations_per_second,
                       .target = durable && absl::EndsWith(name, "/64")
                                     ? kCrowdThroughputRatio
                                     : 0,
                       .less_is_better = false});
    figures.push_back(
        {.name = name + " p50",
         .value = mine.p50_us,
         .unit = "us",
         .reference = row.reference,
         .reference_value = other.p50_us,
         .target = durable && absl::EndsWith(name, "/1") ? kLoneP50Ratio : 0});
  }
  return figures;
}

int Bench() {
  const Folder folder(absl::GetFlag(FLAGS_storage));
  const std::unique_ptr<EtcdPeer> etcd =
      StartEtcd(folder.path(), absl::GetFlag(FLAGS_members));
  if (etcd == nullptr) throw std::runtime_error("etcd is not installed");
  Child coordinator(
      {absl::GetFlag(FLAGS_coordinator), "--listen=127.0.0.1:0",
       "--http_listen=", "--storage=etcd",
       "--etcd_endpoints=" + absl::StrJoin(etcd->endpoints(), ",")});
  Bed bed(*etcd, ReadGrpcAddress(coordinator), coordinator.pid());
  std::vector<Row> rows;
  for (const std::string& text : absl::GetFlag(FLAGS_callers)) {
    int callers = 0;
    if (!absl::SimpleAtoi(text, &callers) || callers < 1 || callers > 4096) {
      throw std::runtime_error(
          "--callers must be numbers from 1 to 4096, got " + text);
    }
    bed.Plan(callers, rows);
  }
  bed.PlanBatches(absl::GetFlag(FLAGS_batch), rows);
  const int rounds = absl::GetFlag(FLAGS_rounds);
  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) {
      std::cerr << absl::StrFormat("\rround %d of %d: %-28s", round + 1, rounds,
                                   row.load.name);
      row.rounds.push_back(
          RunLoad(row.load, milliseconds(absl::GetFlag(FLAGS_warm_up_ms)),
                  milliseconds(absl::GetFlag(FLAGS_duration_ms))));
    }
  }
  std::cerr << "\n";
  const std::vector<Figure> figures = Report(rows);
  PrintTargets(figures);
  const std::string path = absl::GetFlag(FLAGS_json);
  if (path.empty()) return 0;
  std::ofstream out(path);
  out << ToJson(figures).dump(2) << "\n";
  if (!out.flush()) throw std::runtime_error("--json: cannot write " + path);
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Measures durable writes on an etcd of three members: etcd's own puts, a "
      "coordinator's Set on that etcd, and two designs of its storage: a log "
      "with one put for each group of commits, and a key for each record with "
      "transactions of at most 128 operations.");
  absl::ParseCommandLine(argc, argv);
  try {
    return muster::bench::Bench();
  } catch (const std::exception& error) {
    std::cerr << "etcd_bench: " << error.what() << "\n";
    return 1;
  }
}
