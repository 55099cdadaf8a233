#include "worker/bench/options.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "worker/bench/tune.h"

ABSL_FLAG(int, nproc, 0,
          "ranks to start on this host, 1 to 1024; without it this process is "
          "a rank of whoever set RANK, WORLD_SIZE, MASTER_ADDR and "
          "MASTER_PORT, as muster-run does");
ABSL_FLAG(std::string, minbytes, "4", "smallest size: bytes, or with K, M, G");
ABSL_FLAG(std::string, maxbytes, "64M", "largest size: bytes, or with K, M, G");
ABSL_FLAG(std::string, stepbytes, "0",
          "from one size to the next: bytes, or with K, M, G; 0: by "
          "--stepfactor");
ABSL_FLAG(int, stepfactor, 4, "from one size to the next: times this, 2 to 1M");
ABSL_FLAG(int, iters, 0,
          "calls of one cycle, back to back, 0 to 1M; 0: as many as take 20 ms "
          "(2 to 20000)");
ABSL_FLAG(int, warmup_iters, 2,
          "calls before each cycle that are not timed, 0 to 1M");
ABSL_FLAG(int, run_cycles, 5,
          "how many times each size is timed, 1 to 10000: the figures are the "
          "least, the median and the most of these; a peer takes its turn in "
          "each");
ABSL_FLAG(int, agg_iters, 1,
          "calls that are started together, 1 to 1000, of which each counts");
ABSL_FLAG(int, average, 3,
          "whose time counts: 0 rank 0's, 1 the mean of the ranks, 2 the "
          "fastest one's, 3 the slowest one's");
ABSL_FLAG(int, check, 1,
          "verify the result of every size, before it is timed and after: 1, "
          "or 0 for not");
ABSL_FLAG(int, blocking, -1,
          "wait for each call before the next one: 1, or 0 to start all calls "
          "of a cycle and wait at its end; -1: 1 of CPU tensors, 0 of CUDA "
          "tensors, whose calls wait for each other in their stream");
ABSL_FLAG(int, report_cputime, 0,
          "1: of CUDA tensors, with --blocking=0, the time in which a call is "
          "given to the stream, instead of that until it is done");
ABSL_FLAG(std::string, redop, "sum",
          "sum, avg, prod, min, max, band, bor, bxor, mulsum, some of them "
          "with commas, or all");
ABSL_FLAG(std::string, datatype, "float",
          "int8, uint8, int16, int32, int64, half, bfloat16, float, double, "
          "bool, complex64, complex128, f8e4m3, f8e5m2, some of them with "
          "commas, or all");
ABSL_FLAG(std::string, root, "0",
          "rank that gives or gets, of operations with one, or all: each rank "
          "in its turn");
ABSL_FLAG(std::string, place, "both",
          "out: results go to other memory than they come from; in: to the "
          "same; both, as far as the operation has them");
ABSL_FLAG(std::string, backend, "",
          "backend of the group: shm, gloo, nccl, or one of a library that "
          "MUSTER_BACKEND_LIBRARIES names. Empty: what groups have, shm of CPU "
          "tensors (gloo where ranks share no memory), nccl of CUDA tensors");
ABSL_FLAG(
    std::string, device, "",
    "where the tensors are: cpu, or cuda, of which each rank takes the "
    "device that its LOCAL_RANK says; of gloo, ranks share a device where "
    "there are more of them. Empty: cuda of nccl, else cpu");
ABSL_FLAG(std::string, memory, "ordinary",
          "what the tensors are in: ordinary (or 0), or symmetric (or 2), "
          "which the ranks of a group share: AllocateSymmetric, of shm and "
          "nccl");
ABSL_FLAG(int, cta_policy, -1,
          "of nccl, how many processors of the device a collective takes: 0 "
          "NCCL's default, 1 as few as do, 2 none where copy engines can do "
          "it, in symmetric memory; -1: not set");
ABSL_FLAG(int, ngpus, 0,
          "ranks to start on this host, each with a CUDA device: as --nproc, "
          "which is to be 0 then. 0: not given");
ABSL_FLAG(int, nthreads, 0,
          "times so many of these ranks, which are processes here. 0: not "
          "given");
ABSL_FLAG(int, cudagraph, 0, "0: calls cannot be captured in CUDA graphs");
ABSL_FLAG(int, report_timestamps, 0,
          "1: the table says of each line when it was measured");
ABSL_FLAG(int, memory_report, 0,
          "1: after the table, and in the file, how much memory of the host "
          "each rank had at most, and how much of it was shared");
ABSL_FLAG(std::string, peer, "",
          "program that measures the same beside each rank, with its "
          "arguments; several with commas");
ABSL_FLAG(std::string, json, "", "file for the figures; none if empty");
ABSL_FLAG(int, tune, 0,
          "1: measure each algorithm that the backend (shm, gloo) has for the "
          "operations, and print the fastest of each size as rows of its "
          "table; needs --nproc");
ABSL_FLAG(std::string, timeout, "2m",
          "how long a collective may take, and a peer for a cycle: a duration, "
          "such as 500ms, or seconds");

namespace muster::worker::bench {
namespace {

constexpr int kMany = 1 << 20;
constexpr int64_t kSizeMax = int64_t{1} << 40;

// The letters are nccl-tests'.
OptionTable Table() {
  return OptionTable(
      {
          {"nproc", "N"},
          {"minbytes", "SIZE", 'b'},
          {"maxbytes", "SIZE", 'e'},
          {"stepfactor", "N", 'f'},
          {"stepbytes", "SIZE", 'i'},
          {"datatype", "TYPES", 'd'},
          {"redop", "OPS", 'o', "op"},
          {"root", "RANK|all", 'r'},
          {"place", "out|in|both"},
          {"iters", "N", 'n'},
          {"warmup_iters", "N", 'w'},
          {"run_cycles", "N", 'N'},
          {"agg_iters", "N", 'm'},
          {"average", "0|1|2|3", 'a'},
          {"check", "0|1", 'c'},
          {"blocking", "-1|0|1", 'z'},
          {"report_cputime", "0|1", 'C'},
          {"report_timestamps", "0|1", 'S'},
          {"memory_report", "0|1", 'M'},
          {"backend", "NAME"},
          {"device", "cpu|cuda"},
          {"memory", "MEMORY", 'R', "local_register"},
          {"cta_policy", "-1|0|1|2", 'x'},
          {"ngpus", "N", 'g'},
          {"nthreads", "N", 't'},
          {"cudagraph", "0", 'G'},
          {"peer", "PROGRAM"},
          {"json", "FILE", 'J', "output_file"},
          {"tune", "0|1"},
          {"timeout", "DURATION", 'T'},
      },
      {.separator = '_', .variables = {"MUSTER_BENCH_"}});
}

absl::Status Wrong(absl::string_view option, absl::string_view want,
                   absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(option, " must be ", want, ", got ", base::Quote(got)));
}

absl::Status ReadArguments(const std::vector<std::string>& arguments,
                           OptionTable& table, BenchOptions& options) {
  for (size_t next = 0; next < arguments.size();) {
    const absl::StatusOr<OptionTable::Argument> read =
        table.ReadArgument(arguments, next);
    if (!read.ok()) return read.status();
    options.help = *read == OptionTable::Argument::kHelp;
    options.version = *read == OptionTable::Argument::kVersion;
    if (options.help || options.version) return absl::OkStatus();
    if (*read != OptionTable::Argument::kOther) continue;
    const std::string& name = arguments[next++];
    const Operation* const operation = FindOperation(name);
    if (operation == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown operation ", base::Quote(name), ": ", OperationNames()));
    }
    options.operations.push_back(operation);
  }
  return absl::OkStatus();
}

absl::Status ReadInt(absl::string_view name, int value, int min, int max,
                     int& out) {
  out = value;
  if (value >= min && value <= max) return absl::OkStatus();
  return Wrong(name, absl::StrCat(min, " to ", max), absl::StrCat(value));
}

absl::Status ReadBool(absl::string_view name, int value, bool& out) {
  int number = 0;
  absl::Status status = ReadInt(name, value, 0, 1, number);
  out = number != 0;
  return status;
}

absl::Status ReadSize(absl::string_view name, const std::string& text,
                      int64_t& out) {
  absl::string_view digits = text;
  int shift = 0;
  if (!digits.empty()) {
    const char unit =
        absl::ascii_toupper(static_cast<unsigned char>(digits.back()));
    shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
  }
  if (shift > 0) digits.remove_suffix(1);
  if (!absl::SimpleAtoi(digits, &out) || out < 0 || out > kSizeMax >> shift) {
    return Wrong(name, "bytes, or a number with K, M or G, up to 1024G", text);
  }
  out <<= shift;
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadList(absl::string_view name, const std::string& text,
                      std::optional<T> (*find)(absl::string_view),
                      const std::vector<T>& all, std::vector<T>& out,
                      bool& is_all) {
  is_all = text == "all";
  if (is_all) {
    out = all;
    return absl::OkStatus();
  }
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const std::optional<T> found = find(word);
    if (!found.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " does not know ", base::Quote(word),
                       "; --help lists what it knows"));
    }
    out.push_back(*found);
  }
  return absl::OkStatus();
}

absl::Status ReadPlace(const OptionTable& given, BenchOptions& options) {
  const std::string place = absl::GetFlag(FLAGS_place);
  options.out_of_place = place == "out" || place == "both";
  options.in_place = place == "in" || place == "both";
  if (options.out_of_place || options.in_place) return absl::OkStatus();
  return Wrong(given.Name("place"), "out, in or both", place);
}

absl::Status ReadSizes(const OptionTable& given, BenchOptions& options) {
  int factor = 0;
  absl::Status status = ReadSize(
      given.Name("minbytes"), absl::GetFlag(FLAGS_minbytes), options.bytes_min);
  status.Update(ReadSize(given.Name("maxbytes"), absl::GetFlag(FLAGS_maxbytes),
                         options.bytes_max));
  status.Update(ReadSize(given.Name("stepbytes"),
                         absl::GetFlag(FLAGS_stepbytes), options.step_bytes));
  status.Update(ReadInt(given.Name("stepfactor"),
                        absl::GetFlag(FLAGS_stepfactor), 2, kMany, factor));
  options.step_factor = factor;
  if (status.ok() && options.bytes_max < options.bytes_min) {
    return Wrong(given.Name("maxbytes"),
                 absl::StrCat("at least --minbytes (", options.bytes_min, ")"),
                 absl::StrCat(options.bytes_max));
  }
  return status;
}

absl::Status ReadMemory(const OptionTable& given, BenchOptions& options) {
  const std::string memory = absl::GetFlag(FLAGS_memory);
  options.is_symmetric = memory == "symmetric" || memory == "2";
  if (options.is_symmetric || memory == "ordinary" || memory == "0") {
    return absl::OkStatus();
  }
  return Wrong(given.Name("memory"), "ordinary (0) or symmetric (2)", memory);
}

absl::Status ReadRoot(const OptionTable& given, BenchOptions& options) {
  const std::string root = absl::GetFlag(FLAGS_root);
  options.all_roots = root == "all";
  if (options.all_roots) return absl::OkStatus();
  if (absl::SimpleAtoi(root, &options.root) && options.root >= 0) {
    return absl::OkStatus();
  }
  return Wrong(given.Name("root"), "a rank, from 0 on, or all", root);
}

absl::Status ReadCtaPolicy(const OptionTable& given, BenchOptions& options) {
  int policy = 0;
  absl::Status status = ReadInt(given.Name("cta_policy"),
                                absl::GetFlag(FLAGS_cta_policy), -1, 2, policy);
  if (!status.ok() || policy < 0) return status;
  if (options.backend.find("nccl") == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.Name("cta_policy"), " needs --backend=nccl"));
  }
  options.cta_policy = static_cast<NcclOptions::CtaPolicy>(policy);
  return absl::OkStatus();
}

absl::Status ReadTimeout(const OptionTable& given, BenchOptions& options) {
  const std::string text = absl::GetFlag(FLAGS_timeout);
  absl::Duration timeout = absl::ZeroDuration();
  int seconds = 0;
  if (absl::SimpleAtoi(text, &seconds)) {
    timeout = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &timeout)) {
    return Wrong(given.Name("timeout"),
                 "a duration such as 500ms or 5s, or seconds", text);
  }
  options.timeout = absl::ToChronoMilliseconds(timeout);
  if (options.timeout.count() > 0) return absl::OkStatus();
  return Wrong(given.Name("timeout"), "more than 0s", text);
}

bool IsForCuda(const BenchOptions& options) {
  return options.device == DeviceType::kCuda;
}

// The device, and what stands or falls with it.
absl::Status ReadDevice(const OptionTable& given, BenchOptions& options) {
  const std::string device = absl::GetFlag(FLAGS_device);
  if (!device.empty() && device != "cpu" && device != "cuda") {
    return Wrong(given.Name("device"), "cpu or cuda", device);
  }
  if (device == "cuda" || (device.empty() && options.backend == "nccl")) {
    options.device = DeviceType::kCuda;
  }
  int blocking = 0;
  absl::Status status = ReadInt(given.Name("blocking"),
                                absl::GetFlag(FLAGS_blocking), -1, 1, blocking);
  options.blocking = blocking == -1 ? !IsForCuda(options) : blocking == 1;
  status.Update(ReadBool(given.Name("report_cputime"),
                         absl::GetFlag(FLAGS_report_cputime),
                         options.report_cputime));
  int gpus = 0;
  int threads = 0;
  status.Update(
      ReadInt(given.Name("ngpus"), absl::GetFlag(FLAGS_ngpus), 0, 32, gpus));
  status.Update(ReadInt(given.Name("nthreads"), absl::GetFlag(FLAGS_nthreads),
                        0, 32, threads));
  if (!status.ok()) return status;
  if (gpus + threads > 0 && options.nproc > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.Name(gpus > 0 ? "ngpus" : "nthreads"),
                     " says how many ranks to start, and so does --nproc: give "
                     "one of them"));
  }
  if (gpus + threads > 0) {
    options.nproc = std::max(gpus, 1) * std::max(threads, 1);
  }
  const auto needs_cuda = [&](absl::string_view option, bool is_given) {
    if (is_given && !IsForCuda(options)) {
      status.Update(absl::InvalidArgumentError(
          absl::StrCat(given.Name(option), " needs --device=cuda")));
    }
  };
  needs_cuda("ngpus", gpus > 0);
  needs_cuda("nthreads", threads > 0);
  needs_cuda("report_cputime", options.report_cputime);
  if (status.ok() && options.report_cputime && options.blocking) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.Name("report_cputime"), " needs --blocking=0"));
  }
  if (status.ok() && absl::GetFlag(FLAGS_cudagraph) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.Name("cudagraph"), " must be 0, got \"",
                     absl::GetFlag(FLAGS_cudagraph),
                     "\": calls cannot be captured in CUDA graphs"));
  }
  return status;
}

// What is for CPU tensors alone.
absl::Status CheckCpuAlone(const OptionTable& given,
                           const BenchOptions& options) {
  const auto refuse = [&](absl::string_view option) {
    return absl::InvalidArgumentError(absl::StrCat(
        given.Name(option), " measures CPU tensors, not with --device=cuda"));
  };
  if (!IsForCuda(options)) return absl::OkStatus();
  if (options.tune) return refuse("tune");
  return options.peers.empty() ? absl::OkStatus() : refuse("peer");
}

absl::Status ReadFlags(const OptionTable& given, BenchOptions& options) {
  absl::Status status = ReadSizes(given, options);
  int average = 0;
  status.Update(ReadInt(given.Name("nproc"), absl::GetFlag(FLAGS_nproc), 0,
                        1024, options.nproc));
  status.Update(ReadInt(given.Name("iters"), absl::GetFlag(FLAGS_iters), 0,
                        kMany, options.iters));
  status.Update(ReadInt(given.Name("warmup_iters"),
                        absl::GetFlag(FLAGS_warmup_iters), 0, kMany,
                        options.warmup_iters));
  status.Update(ReadInt(given.Name("run_cycles"),
                        absl::GetFlag(FLAGS_run_cycles), 1, 10000,
                        options.run_cycles));
  status.Update(ReadInt(given.Name("agg_iters"), absl::GetFlag(FLAGS_agg_iters),
                        1, 1000, options.agg_iters));
  status.Update(ReadInt(given.Name("average"), absl::GetFlag(FLAGS_average), 0,
                        3, average));
  options.average = static_cast<Average>(average);
  status.Update(
      ReadBool(given.Name("check"), absl::GetFlag(FLAGS_check), options.check));
  status.Update(ReadRoot(given, options));
  status.Update(ReadList(given.Name("datatype"), absl::GetFlag(FLAGS_datatype),
                         &FindDataType, AllDataTypes(), options.data_types,
                         options.all_types));
  status.Update(ReadList(given.Name("redop"), absl::GetFlag(FLAGS_redop),
                         &FindReduceOp, AllReduceOps(), options.reduce_ops,
                         options.all_ops));
  status.Update(ReadPlace(given, options));
  status.Update(ReadMemory(given, options));
  options.backend = absl::GetFlag(FLAGS_backend);
  status.Update(ReadDevice(given, options));
  if (options.backend.empty()) {
    options.backend = IsForCuda(options) ? "nccl" : "shm";
  }
  status.Update(ReadCtaPolicy(given, options));
  status.Update(ReadBool(given.Name("report_timestamps"),
                         absl::GetFlag(FLAGS_report_timestamps),
                         options.report_timestamps));
  status.Update(ReadBool(given.Name("memory_report"),
                         absl::GetFlag(FLAGS_memory_report),
                         options.memory_report));
  options.peers =
      absl::StrSplit(absl::GetFlag(FLAGS_peer), ',', absl::SkipWhitespace());
  options.json = absl::GetFlag(FLAGS_json);
  status.Update(
      ReadBool(given.Name("tune"), absl::GetFlag(FLAGS_tune), options.tune));
  status.Update(CheckCpuAlone(given, options));
  if (status.ok() && options.tune && options.nproc == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.Name("tune"), " needs --nproc"));
  }
  if (status.ok() && options.tune && FindTunable(options.backend) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.Name("tune"), " needs --backend=shm or gloo, got ",
                     base::Quote(options.backend)));
  }
  status.Update(ReadTimeout(given, options));
  if (status.ok() && options.operations.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no operation given: ", OperationNames()));
  }
  return status;
}

}  // namespace

std::string BenchOptions::BackendSpec() const {
  const bool is_spec = backend.find(':') != std::string::npos;
  if (device == DeviceType::kCpu || is_spec) return backend;
  // What has no tensors, a barrier, goes to the first.
  return absl::StrCat("cuda:", backend, ",cpu:gloo");
}

absl::StatusOr<BenchOptions> ParseBenchOptions(
    const std::vector<std::string>& arguments, const Environment& environment) {
  BenchOptions options;
  OptionTable table = Table();
  absl::Status status = table.ReadEnvironment(environment);
  status.Update(ReadArguments(arguments, table, options));
  if (!status.ok()) return status;
  if (options.help || options.version) return options;
  status = ReadFlags(table, options);
  if (!status.ok()) return status;
  return options;
}

std::string BenchHelpText() {
  std::string text =
      "usage: muster-bench OPERATION... [OPTIONS]\n"
      "\n"
      "Times collectives and verifies their results, with nccl-tests' sizes,\n"
      "columns and bus bandwidths.\n"
      "\n"
      "  muster-bench all_reduce --nproc=4 --minbytes=4 --maxbytes=64M\n"
      "  muster-run --nproc-per-node=4 -- muster-bench all_reduce all_gather\n"
      "  muster-bench all_reduce --backend=nccl --ngpus=8 --maxbytes=8G\n"
      "\n"
      "Operations:\n";
  OptionTable::AppendWrapped(OperationNames(), text);
  absl::StrAppend(&text,
                  "\nOptions (also with dashes; MUSTER_BENCH_<OPTION> in the\n"
                  "environment stands for one that is not given):\n");
  text += Table().Help();
  absl::StrAppend(&text,
                  "\n  --help\n      this text\n"
                  "\n  --version\n      the version\n"
                  "\n"
                  "Exit status: 0; 1 when a result was wrong or a collective "
                  "failed; 2 for\n"
                  "wrong options; 128 + N when signal N has ended a rank, or "
                  "muster-bench.\n");
  return text;
}

}  // namespace muster::worker::bench
