#include "worker/bench/options.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "muster/base/status.h"
#include "worker/bench/tune.h"

namespace muster::worker::bench {
namespace {

using Asked = base::Options::Asked;
using base::OptionValue;

constexpr int kMany = 1 << 20;
constexpr int64_t kSizeMax = int64_t{1} << 40;

Status Wrong(absl::string_view option, absl::string_view want,
             absl::string_view got) {
  return InvalidArgumentError(
      absl::StrCat(option, " must be ", want, ", got ", base::Quote(got)));
}

// Parses a number from `min` to `max`.
template <typename T = int>
OptionValue Int(int initial, int min, int max, T* target = nullptr) {
  return {initial, [=](absl::string_view name, int value) {
            if (target != nullptr) *target = static_cast<T>(value);
            if (value >= min && value <= max) return OkStatus();
            return Wrong(name, absl::StrCat(min, " to ", max),
                         absl::StrCat(value));
          }};
}

StatusOr<int64_t> ParseSize(absl::string_view name, const std::string& text) {
  absl::string_view digits = text;
  int64_t size = 0;
  int shift = 0;
  if (!digits.empty()) {
    const char unit =
        absl::ascii_toupper(static_cast<unsigned char>(digits.back()));
    shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
  }
  if (shift > 0) digits.remove_suffix(1);
  if (!absl::SimpleAtoi(digits, &size) || size < 0 ||
      size > kSizeMax >> shift) {
    return Wrong(name, "bytes, or a number with K, M or G, up to 1024G", text);
  }
  return size << shift;
}

// Parses names that are separated by commas, or "all".
template <typename T>
OptionValue List(const char* initial,
                 std::optional<T> (*find)(absl::string_view),
                 const std::vector<T>& all, std::vector<T>* target,
                 bool* is_all) {
  return {initial,
          [=](absl::string_view name, const std::string& text) -> Status {
            *is_all = text == "all";
            if (*is_all) {
              *target = all;
              return OkStatus();
            }
            for (const absl::string_view word : absl::StrSplit(text, ',')) {
              const std::optional<T> found = find(word);
              if (!found.has_value()) {
                return InvalidArgumentError(
                    absl::StrCat(name, " does not know ", base::Quote(word),
                                 "; --help lists what it knows"));
              }
              target->push_back(*found);
            }
            return OkStatus();
          }};
}

Status ReadPlace(BenchOptions* options, absl::string_view name,
                 const std::string& place) {
  options->out_of_place = place == "out" || place == "both";
  options->in_place = place == "in" || place == "both";
  if (options->out_of_place || options->in_place) return OkStatus();
  return Wrong(name, "out, in or both", place);
}

// Returns whether the memory is symmetric.
StatusOr<bool> ParseMemory(absl::string_view name, const std::string& memory) {
  if (memory == "symmetric" || memory == "2") return true;
  if (memory == "ordinary" || memory == "0") return false;
  return Wrong(name, "ordinary (0) or symmetric (2)", memory);
}

Status ReadRoot(BenchOptions* options, absl::string_view name,
                const std::string& root) {
  options->all_roots = root == "all";
  if (options->all_roots ||
      (absl::SimpleAtoi(root, &options->root) && options->root >= 0)) {
    return OkStatus();
  }
  return Wrong(name, "a rank, from 0 on, or all", root);
}

StatusOr<std::vector<std::string>> ParsePeers(absl::string_view,
                                              const std::string& text) {
  return absl::StrSplit(text, ',', absl::SkipWhitespace());
}

StatusOr<std::chrono::milliseconds> ParseTimeout(absl::string_view name,
                                                 const std::string& text) {
  absl::Duration timeout = absl::ZeroDuration();
  int seconds = 0;
  if (absl::SimpleAtoi(text, &seconds)) {
    timeout = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &timeout)) {
    return Wrong(name, "a duration such as 500ms or 5s, or seconds", text);
  }
  const std::chrono::milliseconds time = absl::ToChronoMilliseconds(timeout);
  if (time.count() > 0) return time;
  return Wrong(name, "more than 0s", text);
}

// Stores the values in `options`. The letters are nccl-tests'. The function is
// one table.
// NOLINTNEXTLINE(readability-function-size)
base::Options Table(BenchOptions& options) {
  std::vector<base::Option> table = {
      {"nproc", "N", Int(0, 0, 1024, &options.nproc),
       "ranks to start on this host, 1 to 1024; without it this process is a "
       "rank of whoever set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as "
       "muster-run does"},
      {"minbytes", "SIZE", base::Parsed("4", ParseSize, &options.bytes_min),
       "smallest size: bytes, or with K, M, G", 'b'},
      {"maxbytes", "SIZE", base::Parsed("64M", ParseSize, &options.bytes_max),
       "largest size: bytes, or with K, M, G", 'e'},
      {"stepfactor", "N", Int(4, 2, kMany, &options.step_factor),
       "from one size to the next: times this, 2 to 1M", 'f'},
      {"stepbytes", "SIZE", base::Parsed("0", ParseSize, &options.step_bytes),
       "from one size to the next: bytes, or with K, M, G; 0: by --stepfactor",
       'i'},
      {"datatype", "TYPES",
       List("float", &FindDataType, AllDataTypes(), &options.data_types,
            &options.all_types),
       "int8, uint8, int16, int32, int64, half, bfloat16, float, double, bool, "
       "complex64, complex128, f8e4m3, f8e5m2, uint16, uint32, uint64, opaque, "
       "float32_int32, float64_int64, int32_int32, int64_int64, some of them "
       "with commas, or all",
       'd'},
      {"redop", "OPS",
       List("sum", &FindReduceOp, AllReduceOps(), &options.reduce_ops,
            &options.all_ops),
       "sum, avg, prod, min, max, band, bor, bxor, mulsum, minloc, maxloc, "
       "user (a sum by a function), some of them with commas, or all",
       'o', "op"},
      {"root", "RANK|all",
       OptionValue("0", std::bind_front(ReadRoot, &options)),
       "rank that gives or gets, of operations with one, or all: each rank in "
       "its turn",
       'r'},
      {"place", "out|in|both",
       OptionValue("both", std::bind_front(ReadPlace, &options)),
       "out: results go to other memory than they come from; in: to the same; "
       "both, as far as the operation has them"},
      {"iters", "N", Int(0, 0, kMany, &options.iters),
       "calls of one cycle, back to back, 0 to 1M; 0: as many as take 20 ms (2 "
       "to 20000)",
       'n'},
      {"warmup_iters", "N", Int(2, 0, kMany, &options.warmup_iters),
       "calls before each cycle that are not timed, 0 to 1M", 'w'},
      {"run_cycles", "N", Int(5, 1, 10000, &options.run_cycles),
       "how many times each size is timed, 1 to 10000: the figures are the "
       "least, the median and the most of these; a peer takes its turn in each",
       'N'},
      {"agg_iters", "N", Int(1, 1, 1000, &options.agg_iters),
       "calls that are started together, 1 to 1000, of which each counts", 'm'},
      {"average", "0|1|2|3", Int(3, 0, 3, &options.average),
       "whose time counts: 0 rank 0's, 1 the mean of the ranks, 2 the fastest "
       "one's, 3 the slowest one's",
       'a'},
      {"check", "0|1", Int(1, 0, 1, &options.check),
       "verify the result of every size, before it is timed and after: 1, or 0 "
       "for not",
       'c'},
      {"blocking", "-1|0|1", Int(-1, -1, 1),
       "wait for each call before the next one: 1, or 0 to start all calls of "
       "a cycle and wait at its end; -1: 1 of CPU tensors, 0 of CUDA tensors, "
       "whose calls wait for each other in their stream",
       'z'},
      {"report_cputime", "0|1", Int(0, 0, 1, &options.report_cputime),
       "1: of CUDA tensors, with --blocking=0, the time in which a call is "
       "given to the stream, instead of that until it is done",
       'C'},
      {"report_timestamps", "0|1", Int(0, 0, 1, &options.report_timestamps),
       "1: the table says of each line when it was measured", 'S'},
      {"memory_report", "0|1", Int(0, 0, 1, &options.memory_report),
       "1: after the table, and in the file, how much memory of the host each "
       "rank had at most, and how much of it was shared",
       'M'},
      {"backend", "NAME", &options.backend,
       "backend of the group: shm, gloo, nccl, or one of a library that "
       "MUSTER_BACKEND_LIBRARIES names. Empty: what groups have, shm of CPU "
       "tensors (gloo where ranks share no memory), nccl of CUDA tensors"},
      {"device", "cpu|cuda", std::string(),
       "where the tensors are: cpu, or cuda, of which each rank takes the "
       "device that its LOCAL_RANK says; of gloo, ranks share a device where "
       "there are more of them. Empty: cuda of nccl, else cpu"},
      {"memory", "MEMORY",
       base::Parsed("ordinary", ParseMemory, &options.is_symmetric),
       "what the tensors are in: ordinary (or 0), or symmetric (or 2), which "
       "the ranks of a group share: AllocateSymmetric, of shm and nccl",
       'R', "local_register"},
      {"prepared", "0|1", Int(0, 0, 1, &options.is_prepared),
       "1: the collectives of a size are prepared once, and run by "
       "PreparedCollective"},
      {"cta_policy", "-1|0|1|2", Int(-1, -1, 2),
       "of nccl, how many processors of the device a collective takes: 0 "
       "NCCL's default, 1 as few as do, 2 none where copy engines can do it, "
       "in symmetric memory; -1: not set",
       'x'},
      {"ngpus", "N", Int(0, 0, 32),
       "ranks to start on this host, each with a CUDA device: as --nproc, "
       "which is to be 0 then. 0: not given",
       'g'},
      {"nthreads", "N", Int(0, 0, 32),
       "times so many of these ranks, which are processes here. 0: not given",
       't'},
      {"cudagraph", "0", 0, "0: calls cannot be captured in CUDA graphs", 'G'},
      {"peer", "PROGRAM", base::Parsed("", ParsePeers, &options.peers),
       "program that measures the same beside each rank, with its arguments; "
       "several with commas"},
      {"json", "FILE", &options.json, "file for the figures; none if empty",
       'J', "output_file"},
      {"tune", "FILE", &options.tune,
       "measure each algorithm that the backend (shm, gloo) has for the "
       "operations, and write the fastest of each size to this file, which "
       "MUSTER_TUNE_FILE loads; needs --nproc"},
      {"timeout", "DURATION",
       base::Parsed("2m", ParseTimeout, &options.timeout),
       "how long a collective may take, and a peer for a cycle: a duration, "
       "such as 500ms, or seconds",
       'T'},
  };
  return base::Options(std::move(table),
                       {.separator = '_', .variables = {"MUSTER_BENCH_"}});
}

Status ReadCtaPolicy(const base::Options& given, BenchOptions& options) {
  const int policy = given.Get<int>("cta_policy");
  if (policy < 0) return OkStatus();
  if (options.backend.find("nccl") == std::string::npos) {
    return InvalidArgumentError(
        absl::StrCat(given.Name("cta_policy"), " needs --backend=nccl"));
  }
  options.cta_policy = static_cast<NcclOptions::CtaPolicy>(policy);
  return OkStatus();
}

bool IsForCuda(const BenchOptions& options) {
  return options.device == DeviceType::kCuda;
}

// Reads the device and the options that depend on it.
Status ReadDevice(const base::Options& given, BenchOptions& options) {
  const std::string device = given.Get<std::string>("device");
  if (!device.empty() && device != "cpu" && device != "cuda") {
    return Wrong(given.Name("device"), "cpu or cuda", device);
  }
  if (device == "cuda" || (device.empty() && options.backend == "nccl")) {
    options.device = DeviceType::kCuda;
  }
  const int blocking = given.Get<int>("blocking");
  options.blocking = blocking == -1 ? !IsForCuda(options) : blocking == 1;
  const int gpus = given.Get<int>("ngpus");
  const int threads = given.Get<int>("nthreads");
  if (gpus + threads > 0 && options.nproc > 0) {
    return InvalidArgumentError(
        absl::StrCat(given.Name(gpus > 0 ? "ngpus" : "nthreads"),
                     " says how many ranks to start, and so does --nproc: give "
                     "one of them"));
  }
  if (gpus + threads > 0) {
    options.nproc = std::max(gpus, 1) * std::max(threads, 1);
  }
  Status status;
  const auto needs_cuda = [&](absl::string_view option, bool is_given) {
    if (is_given && !IsForCuda(options)) {
      status.Update(InvalidArgumentError(
          absl::StrCat(given.Name(option), " needs --device=cuda")));
    }
  };
  needs_cuda("ngpus", gpus > 0);
  needs_cuda("nthreads", threads > 0);
  needs_cuda("report_cputime", options.report_cputime);
  if (status.ok() && options.report_cputime && options.blocking) {
    return InvalidArgumentError(
        absl::StrCat(given.Name("report_cputime"), " needs --blocking=0"));
  }
  if (status.ok() && given.Get<int>("cudagraph") != 0) {
    return InvalidArgumentError(
        absl::StrCat(given.Name("cudagraph"), " must be 0, got \"",
                     given.Get<int>("cudagraph"),
                     "\": calls cannot be captured in CUDA graphs"));
  }
  return status;
}

// Checks options that only the CPU has.
Status CheckCpuAlone(const base::Options& given, const BenchOptions& options) {
  const auto refuse = [&](absl::string_view option) {
    return InvalidArgumentError(absl::StrCat(
        given.Name(option), " measures CPU tensors, not with --device=cuda"));
  };
  if (!IsForCuda(options)) return OkStatus();
  if (!options.tune.empty()) return refuse("tune");
  return options.peers.empty() ? OkStatus() : refuse("peer");
}

// A prepared collective has one run at a time.
Status CheckPrepared(const base::Options& given, const BenchOptions& options) {
  if (!options.is_prepared) return OkStatus();
  for (const Operation* const operation : options.operations) {
    if (operation->prepare != nullptr) continue;
    return InvalidArgumentError(absl::StrCat(given.Name("prepared"),
                                             " is for collectives, not for ",
                                             operation->name));
  }
  if (IsForCuda(options) || (options.blocking && options.agg_iters == 1)) {
    return OkStatus();
  }
  return InvalidArgumentError(absl::StrCat(
      given.Name("prepared"),
      " of CPU tensors needs --blocking=1 and --agg_iters=1: a prepared "
      "collective has one run at a time"));
}

Status Finish(base::Options& given, BenchOptions& options) {
  Status status = given.Finish();
  if (!status.ok()) return status;
  if (options.bytes_max < options.bytes_min) {
    return Wrong(given.Name("maxbytes"),
                 absl::StrCat("at least --minbytes (", options.bytes_min, ")"),
                 absl::StrCat(options.bytes_max));
  }
  status = ReadDevice(given, options);
  if (options.backend.empty()) {
    options.backend = IsForCuda(options) ? "nccl" : "shm";
  }
  status.Update(ReadCtaPolicy(given, options));
  status.Update(CheckCpuAlone(given, options));
  status.Update(CheckPrepared(given, options));
  if (status.ok() && !options.tune.empty() && options.nproc == 0) {
    return InvalidArgumentError(
        absl::StrCat(given.Name("tune"), " needs --nproc"));
  }
  if (status.ok() && !options.tune.empty() &&
      FindTunable(options.backend) == nullptr) {
    return InvalidArgumentError(
        absl::StrCat(given.Name("tune"), " needs --backend=shm or gloo, got ",
                     base::Quote(options.backend)));
  }
  if (status.ok() && options.operations.empty()) {
    return InvalidArgumentError(
        absl::StrCat("no operation given: ", OperationNames()));
  }
  return status;
}

}  // namespace

std::string BenchOptions::BackendSpec() const {
  const bool is_spec = backend.find(':') != std::string::npos;
  if (device == DeviceType::kCpu || is_spec) return backend;
  // A barrier, which has no tensors, uses the first backend.
  return absl::StrCat("cuda:", backend, ",cpu:gloo");
}

StatusOr<BenchOptions> ParseBenchOptions(
    const std::vector<std::string>& arguments,
    const base::Environment& environment) {
  BenchOptions options;
  base::Options table = Table(options);
  Status status = table.ReadEnvironment(environment);
  if (!status.ok()) return status;
  std::vector<std::string> words;
  const StatusOr<Asked> asked = table.Read(arguments, words);
  if (!asked.ok()) return asked.status();
  options.help = *asked == Asked::kHelp;
  options.version = *asked == Asked::kVersion;
  if (*asked != Asked::kNothing) return options;
  for (const std::string& name : words) {
    options.operations.push_back(FindOperation(name));
    if (options.operations.back() != nullptr) continue;
    return InvalidArgumentError(absl::StrCat(
        "unknown operation ", base::Quote(name), ": ", OperationNames()));
  }
  status = Finish(table, options);
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
  BenchOptions defaults;
  absl::StrAppend(&text, "      ", base::FillLines(OperationNames(), 6, 78),
                  "\nOptions (also with dashes; MUSTER_BENCH_<OPTION> in the\n"
                  "environment stands for one that is not given):\n");
  absl::StrAppend(&text, Table(defaults).Help(),
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
