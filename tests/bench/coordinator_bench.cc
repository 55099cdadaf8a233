// Measures Set and Get of a coordinator beside a bare gRPC echo of the same
// payload: unary calls and streams, rounds of all of them in turn, so that
// what disturbs the machine disturbs all alike.

#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/session.h"
#include "client/store.h"
#include "muster/v1/store.grpc.pb.h"
#include "tests/bench/echo.grpc.pb.h"
#include "tests/bench/echo_server.h"
#include "tests/bench/load.h"

ABSL_FLAG(std::string, coordinator, "bin/muster-coordinator",
          "path of the muster-coordinator to measure");
ABSL_FLAG(std::vector<std::string>, callers,
          (std::vector<std::string>{"1", "8", "64"}),
          "numbers of concurrent callers, comma-separated");
ABSL_FLAG(std::string, only, "",
          "run the loads whose name contains this, and what they stand beside");
ABSL_FLAG(int, rounds, 5, "rounds of each load; medians are reported");
ABSL_FLAG(int, duration_ms, 700, "length of one round, in milliseconds");
ABSL_FLAG(int, warm_up_ms, 300,
          "uncounted start of each round, in milliseconds");
ABSL_FLAG(int, value_bytes, 100, "size of a value and of an echo, in bytes");
ABSL_FLAG(std::string, json, "", "file to write the figures to");
ABSL_FLAG(bool, serve_echo, false,
          "serve the echo and print its port (how the benchmark starts it)");

namespace muster::bench {
namespace {

// A child process that prints where it listens on its first line of stdout.
// Killed with its parent, and by the destructor.
class Child {
 public:
  explicit Child(const std::vector<std::string>& command) {
    int out[2];
    if (pipe(out) != 0) throw std::runtime_error("pipe failed");
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(out[1], STDOUT_FILENO);
      close(out[0]);
      close(out[1]);
      std::vector<char*> argv;
      for (const std::string& word : command) {
        argv.push_back(const_cast<char*>(word.c_str()));
      }
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(out[1]);
    FILE* reader = fdopen(out[0], "r");
    char line[512] = {0};
    if (fgets(line, sizeof(line), reader) == nullptr) {
      fclose(reader);
      throw std::runtime_error(
          absl::StrCat(command[0], " ended before it listened"));
    }
    fclose(reader);
    first_line_ = line;
  }

  ~Child() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pid() const { return pid_; }
  const std::string& first_line() const { return first_line_; }

 private:
  pid_t pid_ = -1;
  std::string first_line_;
};

// `listening grpc=127.0.0.1:41234 http=...` -> `127.0.0.1:41234`.
std::string GrpcAddressOf(const std::string& line) {
  for (absl::string_view word : absl::StrSplit(line, absl::ByAnyChar(" \n"))) {
    if (absl::StartsWith(word, "grpc=")) return std::string(word.substr(5));
  }
  throw std::runtime_error(absl::StrCat(
      "the coordinator's first line names no grpc= address: ", line));
}

// A connection of its own for each caller, as separate processes would have.
std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

void Require(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

Operation EchoUnary(const std::string& address, const std::string& payload) {
  auto stub = std::shared_ptr<EchoService::Stub>(
      EchoService::NewStub(OwnChannel(address)));
  return [stub, payload] {
    grpc::ClientContext context;
    EchoRequest request;
    request.set_payload(payload);
    EchoResponse response;
    Require(stub->Unary(&context, request, &response));
  };
}

// One stream, one message an operation.
class EchoStream {
 public:
  explicit EchoStream(const std::string& address)
      : stub_(EchoService::NewStub(OwnChannel(address))),
        stream_(stub_->Stream(&context_)) {}

  ~EchoStream() {
    stream_->WritesDone();
    stream_->Finish();
  }

  void Call(const std::string& payload) {
    EchoRequest request;
    request.set_payload(payload);
    EchoResponse response;
    if (!stream_->Write(request) || !stream_->Read(&response)) {
      throw std::runtime_error("the echo's stream broke");
    }
  }

 private:
  std::unique_ptr<EchoService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<EchoRequest, EchoResponse>> stream_;
};

Operation SetUnary(const std::string& address, const std::string& payload,
                   int caller) {
  auto stub = std::shared_ptr<v1::StoreService::Stub>(
      v1::StoreService::NewStub(OwnChannel(address)));
  return [stub, payload, key = absl::StrCat("key/", caller)] {
    grpc::ClientContext context;
    v1::SetRequest request;
    request.mutable_caller()->set_job("bench");
    request.set_key(key);
    request.set_value(payload);
    v1::SetResponse response;
    Require(stub->Set(&context, request, &response));
  };
}

Operation GetUnary(const std::string& address, const std::string& payload,
                   int caller) {
  SetUnary(address, payload, caller)();
  auto stub = std::shared_ptr<v1::StoreService::Stub>(
      v1::StoreService::NewStub(OwnChannel(address)));
  return [stub, key = absl::StrCat("key/", caller)] {
    grpc::ClientContext context;
    v1::GetRequest request;
    request.mutable_caller()->set_job("bench");
    request.set_key(key);
    v1::GetResponse response;
    Require(stub->Get(&context, request, &response));
  };
}

std::shared_ptr<Session> Connect(const std::string& address) {
  return Session::Connect({.address = address, .job = "bench"});
}

Operation StoreOperation(std::shared_ptr<Session> session, bool get,
                         const std::string& payload, int caller) {
  auto store = std::make_shared<CoordinatorStore>(std::move(session));
  const std::string key = absl::StrCat("key/", caller);
  store->Set(key, payload);
  if (get) {
    return [store, key] { store->Get(key); };
  }
  return [store, key, payload] { store->Set(key, payload); };
}

// One figure of one load, beside the same figure of its reference.
struct Row {
  const Load* load;
  const Load* reference;
  // At most this times the reference's p50, or 0 when no target is set.
  double p50_ratio_max = 0;
};

struct Plan {
  std::vector<std::unique_ptr<Load>> loads;
  std::vector<Row> rows;

  int echo_pid = 0;
  int coordinator_pid = 0;

  const Load* Add(std::string name, int callers,
                  std::function<Operation(int)> connect) {
    const int pid = absl::StartsWith(name, "echo") ? echo_pid : coordinator_pid;
    loads.push_back(std::make_unique<Load>(
        Load{std::move(name), callers, std::move(connect), pid}));
    return loads.back().get();
  }
};

// Every load runs over connections of its own for each caller, except "one
// session": there all callers are threads of one process.
void PlanCallers(const std::string& echo, const std::string& coordinator,
                 const std::string& payload, int callers, Plan& plan) {
  const std::string suffix = absl::StrCat("/", callers);
  const Load* echo_unary = plan.Add("echo unary" + suffix, callers, [=](int) {
    return EchoUnary(echo, payload);
  });
  const Load* echo_stream =
      plan.Add("echo stream" + suffix, callers, [=](int) -> Operation {
        auto stream = std::make_shared<EchoStream>(echo);
        return [stream, payload] { stream->Call(payload); };
      });
  plan.rows.push_back({plan.Add("set unary" + suffix, callers,
                                [=](int caller) {
                                  return SetUnary(coordinator, payload, caller);
                                }),
                       echo_unary});
  plan.rows.push_back({plan.Add("get unary" + suffix, callers,
                                [=](int caller) {
                                  return GetUnary(coordinator, payload, caller);
                                }),
                       echo_unary});
  for (const bool get : {false, true}) {
    const std::string verb = get ? "get" : "set";
    plan.rows.push_back({plan.Add(verb + " stream" + suffix, callers,
                                  [=](int caller) {
                                    return StoreOperation(Connect(coordinator),
                                                          get, payload, caller);
                                  }),
                         echo_stream, callers == 1 ? 1.15 : 0});
    if (callers == 1) continue;
    auto shared = std::make_shared<std::weak_ptr<Session>>();
    plan.rows.push_back(
        {plan.Add(verb + " stream, one session" + suffix, callers,
                  [=](int caller) {
                    std::shared_ptr<Session> session = shared->lock();
                    if (session == nullptr) {
                      session = Connect(coordinator);
                      *shared = session;
                    }
                    return StoreOperation(session, get, payload, caller);
                  }),
         echo_stream});
  }
}

// Leaves the rows whose load's name contains `text`, and their references.
void Narrow(const std::string& text, Plan& plan) {
  std::erase_if(plan.rows, [&](const Row& row) {
    return !absl::StrContains(row.load->name, text);
  });
  std::erase_if(plan.loads, [&](const std::unique_ptr<Load>& load) {
    return !absl::StrContains(load->name, text) &&
           std::none_of(
               plan.rows.begin(), plan.rows.end(),
               [&](const Row& row) { return row.reference == load.get(); });
  });
}

nlohmann::json FigureOf(const std::string& name, const std::string& unit,
                        double value, const std::string& reference,
                        double reference_value, double target, bool less) {
  nlohmann::json figure = {{"name", name},
                           {"value", value},
                           {"unit", unit},
                           {"reference", reference},
                           {"reference_value", reference_value}};
  const double ratio = reference_value > 0 ? value / reference_value : 0;
  figure["ratio"] = ratio;
  figure["target"] = target > 0 ? nlohmann::json(target) : nlohmann::json();
  figure["met"] = target > 0
                      ? nlohmann::json(less ? ratio <= target : ratio >= target)
                      : nlohmann::json();
  return figure;
}

nlohmann::json Report(const Plan& plan,
                      const std::map<const Load*, Figures>& medians) {
  std::cout << absl::StrFormat("%-28s %12s %9s %9s %15s   %s\n", "load",
                               "ops/s", "p50 us", "p99 us", "cpu us (server)",
                               "beside the echo: ops/s, p50");
  for (const auto& load : plan.loads) {
    const Figures& figures = medians.at(load.get());
    std::cout << absl::StrFormat(
        "%-28s %12.0f %9.1f %9.1f %7.1f (%5.1f)", load->name,
        figures.operations_per_second, figures.p50_us, figures.p99_us,
        figures.client_cpu_us + figures.server_cpu_us, figures.server_cpu_us);
    for (const Row& row : plan.rows) {
      if (row.load != load.get()) continue;
      const Figures& reference = medians.at(row.reference);
      std::cout << absl::StrFormat(
          "   x %.2f, x %.2f",
          figures.operations_per_second / reference.operations_per_second,
          figures.p50_us / reference.p50_us);
    }
    std::cout << "\n";
  }
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : plan.rows) {
    const Figures& mine = medians.at(row.load);
    const Figures& other = medians.at(row.reference);
    const std::string& name = row.load->name;
    const std::string& reference = row.reference->name;
    list.push_back(FigureOf(name + " throughput", "ops/s",
                            mine.operations_per_second, reference,
                            other.operations_per_second, 0, false));
    list.push_back(FigureOf(name + " p50", "us", mine.p50_us, reference,
                            other.p50_us, row.p50_ratio_max, true));
    list.push_back(FigureOf(name + " p99", "us", mine.p99_us, reference,
                            other.p99_us, 0, true));
  }
  return list;
}

int Bench(const char* self) {
  std::vector<int> caller_counts;
  for (const std::string& text : absl::GetFlag(FLAGS_callers)) {
    int callers = 0;
    if (!absl::SimpleAtoi(text, &callers) || callers < 1 || callers > 4096) {
      std::cerr << "--callers must be numbers from 1 to 4096, got \"" << text
                << "\"\n";
      return 2;
    }
    caller_counts.push_back(callers);
  }
  const int rounds = absl::GetFlag(FLAGS_rounds);
  const int duration_ms = absl::GetFlag(FLAGS_duration_ms);
  if (rounds < 1 || duration_ms < 1 || absl::GetFlag(FLAGS_warm_up_ms) < 0 ||
      absl::GetFlag(FLAGS_value_bytes) < 0) {
    std::cerr
        << "--rounds and --duration_ms must be positive, --warm_up_ms and "
           "--value_bytes not negative\n";
    return 2;
  }

  const Child echo_process({self, "--serve_echo"});
  const Child coordinator_process({absl::GetFlag(FLAGS_coordinator),
                                   "--listen=127.0.0.1:0",
                                   "--http_listen=127.0.0.1:0"});
  const std::string echo = absl::StrCat(
      "127.0.0.1:", absl::StripAsciiWhitespace(echo_process.first_line()));
  const std::string coordinator =
      GrpcAddressOf(coordinator_process.first_line());
  const std::string payload(
      static_cast<size_t>(absl::GetFlag(FLAGS_value_bytes)), 'v');

  Plan plan;
  plan.echo_pid = echo_process.pid();
  plan.coordinator_pid = coordinator_process.pid();
  for (const int callers : caller_counts) {
    PlanCallers(echo, coordinator, payload, callers, plan);
  }
  Narrow(absl::GetFlag(FLAGS_only), plan);
  std::map<const Load*, std::vector<Figures>> figures;
  for (int round = 0; round < rounds; ++round) {
    for (const auto& load : plan.loads) {
      std::cerr << absl::StrFormat("\rround %d of %d: %-28s", round + 1, rounds,
                                   load->name);
      figures[load.get()].push_back(RunLoad(
          *load, std::chrono::milliseconds(absl::GetFlag(FLAGS_warm_up_ms)),
          std::chrono::milliseconds(duration_ms)));
    }
  }
  std::cerr << "\n";
  std::map<const Load*, Figures> medians;
  for (const auto& [load, list] : figures) medians[load] = Median(list);
  const nlohmann::json report = Report(plan, medians);
  const std::string path = absl::GetFlag(FLAGS_json);
  if (!path.empty()) {
    std::ofstream out(path);
    out << report.dump(2) << "\n";
    if (!out.flush()) {
      std::cerr << "--json: cannot write \"" << path << "\"\n";
      return 1;
    }
  }
  return 0;
}

int ServeEcho() {
  // Blocked before the server's threads start, which inherit it.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  const std::unique_ptr<EchoServer> server = EchoServer::Start();
  if (server == nullptr) {
    std::cerr << "the echo cannot listen on 127.0.0.1\n";
    return 1;
  }
  std::cout << server->port() << std::endl;
  int signal = 0;
  sigwait(&stop, &signal);
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Measures Set and Get of a coordinator beside a bare gRPC echo.");
  absl::ParseCommandLine(argc, argv);
  try {
    return absl::GetFlag(FLAGS_serve_echo)
               ? muster::bench::ServeEcho()
               : muster::bench::Bench("/proc/self/exe");
  } catch (const std::exception& error) {
    std::cerr << "coordinator_bench: " << error.what() << "\n";
    return 1;
  }
}
