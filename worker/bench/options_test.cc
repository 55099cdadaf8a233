#include "worker/bench/options.h"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::worker::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string GetError(const std::vector<std::string>& arguments) {
  const auto options = ParseBenchOptions(arguments, {});
  EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

TEST(BenchOptionsTest, SizesHaveUnits) {
  const auto options = ParseBenchOptions(
      {"all_reduce", "--minbytes=1K", "--maxbytes", "2g", "-i", "3M"}, {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->bytes_min, 1 << 10);
  EXPECT_EQ(options->bytes_max, int64_t{2} << 30);
  EXPECT_EQ(options->step_bytes, 3 << 20);
}

TEST(BenchOptionsTest, AWrongVariableIsNamed) {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"MUSTER_BENCH_MINBYTES", "x"},
                                          {"MUSTER_BENCH_ITERS", "-1"},
                                          {"MUSTER_BENCH_PLACE", "x"},
                                          {"MUSTER_BENCH_DATATYPE", "x"},
                                          {"MUSTER_BENCH_TIMEOUT", "0s"}}) {
    const auto options = ParseBenchOptions({"all_reduce"}, {{name, value}});
    EXPECT_THAT(std::string(options.status().message()), StartsWith(name));
  }
}

TEST(BenchOptionsTest, LettersAndNamesAreThoseOfNcclTests) {
  const auto options = ParseBenchOptions(
      {"-b", "8",  "-e", "64",     "-f",        "2",  "-n",
       "7",  "-w", "3",  "-o",     "prod",      "-d", "half,f8e4m3",
       "-r", "1",  "-c", "0",      "-z",        "0",  "-m",
       "4",  "-a", "1",  "reduce", "all_gather"},
      {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->step_factor, 2);
  EXPECT_EQ(options->iters, 7);
  EXPECT_EQ(options->warmup_iters, 3);
  EXPECT_THAT(options->reduce_ops, ElementsAre(ReduceOp::kProduct));
  EXPECT_THAT(options->data_types,
              ElementsAre(DataType::kFloat16, DataType::kFloat8E4m3fn));
  EXPECT_EQ(options->root, 1);
  EXPECT_FALSE(options->check);
  EXPECT_FALSE(options->blocking);
  EXPECT_EQ(options->agg_iters, 4);
  EXPECT_EQ(options->average, Average::kMean);
  ASSERT_EQ(options->operations.size(), 2u);
  EXPECT_STREQ(options->operations[1]->name, "all_gather");
}

TEST(BenchOptionsTest, SoAreThoseOfNewerOnes) {
  const auto options = ParseBenchOptions(
      {"all_gather", "--backend=nccl", "-R", "2", "-x", "2", "-S", "1", "-J",
       "figures.json", "--op=max", "-r", "all", "-T", "30", "-M", "1"},
      {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->is_symmetric);
  EXPECT_EQ(options->cta_policy, NcclOptions::CtaPolicy::kZero);
  EXPECT_TRUE(options->report_timestamps);
  EXPECT_TRUE(options->memory_report);
  EXPECT_EQ(options->json, "figures.json");
  EXPECT_THAT(options->reduce_ops, ElementsAre(ReduceOp::kMax));
  EXPECT_TRUE(options->all_roots);
  EXPECT_EQ(options->timeout, std::chrono::seconds(30));
  const auto other = ParseBenchOptions(
      {"all_gather", "--backend=gloo", "--local_register=0", "--cta_policy=-1",
       "--report_timestamps=0", "--output_file=", "--root=1",
       "--timeout=1500ms", "--memory_report=0"},
      {});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(other->is_symmetric);
  EXPECT_FALSE(other->memory_report);
  EXPECT_EQ(other->cta_policy, std::nullopt);
  EXPECT_FALSE(other->all_roots);
  EXPECT_EQ(other->root, 1);
  EXPECT_EQ(other->timeout, std::chrono::milliseconds(1500));
}

TEST(BenchOptionsTest, AllIsEveryTypeAndOperation) {
  const auto options =
      ParseBenchOptions({"all_reduce", "--datatype=all", "--redop=all"}, {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->data_types.size(), 22u);
  EXPECT_EQ(options->reduce_ops.size(), 12u);
  EXPECT_TRUE(options->all_types);
}

TEST(BenchOptionsTest, TheEnvironmentStandsForWhatIsNotGiven) {
  const auto options = ParseBenchOptions(
      {"barrier", "--iters=5"},
      {{"MUSTER_BENCH_ITERS", "9"}, {"MUSTER_BENCH_RUN_CYCLES", "2"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->iters, 5);
  EXPECT_EQ(options->run_cycles, 2);
}

TEST(BenchOptionsTest, ErrorsNameTheOptionAndItsValue) {
  EXPECT_THAT(GetError({}), HasSubstr("no operation given: all_reduce, "));
  EXPECT_THAT(GetError({"all_redude"}),
              HasSubstr("unknown operation \"all_redude\""));
  EXPECT_EQ(GetError({"barrier", "--iterations=3"}),
            "unknown option \"--iterations=3\"");
  EXPECT_EQ(GetError({"barrier", "--iters=many"}),
            "--iters must be a number, got \"many\"");
  EXPECT_EQ(GetError({"barrier", "--iters"}), "--iters needs a value");
  EXPECT_EQ(GetError({"barrier", "--tune=rows"}), "--tune needs --nproc");
  EXPECT_EQ(GetError({"barrier", "--root=-1"}),
            "--root must be a rank, from 0 on, or all, got \"-1\"");
  EXPECT_EQ(GetError({"barrier", "--timeout=soon"}),
            "--timeout must be a duration such as 500ms or 5s, or seconds, got "
            "\"soon\"");
  EXPECT_EQ(GetError({"barrier", "--timeout=0"}),
            "--timeout must be more than 0s, got \"0\"");
  EXPECT_EQ(GetError({"barrier", "--cta_policy=1"}),
            "--cta_policy needs --backend=nccl");
  EXPECT_EQ(GetError({"barrier", "--cta_policy=3"}),
            "--cta_policy must be -1 to 2, got \"3\"");
  EXPECT_EQ(GetError({"barrier", "-M", "2"}),
            "--memory_report must be 0 to 1, got \"2\"");
  EXPECT_THAT(GetError({"barrier", "--redop=xor"}),
              HasSubstr("--redop does not know \"xor\""));
}

TEST(BenchOptionsTest, TheBackendSaysWhereTensorsAreUnlessToldOtherwise) {
  const auto parse = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {"all_reduce"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto options = ParseBenchOptions(all, {});
    EXPECT_TRUE(options.ok()) << options.status();
    return options.value_or(BenchOptions());
  };
  const BenchOptions on_cpu = parse({});
  EXPECT_EQ(on_cpu.device, DeviceType::kCpu);
  EXPECT_EQ(on_cpu.BackendSpec(), "shm");
  EXPECT_TRUE(on_cpu.blocking);

  const BenchOptions nccl = parse({"--backend=nccl", "-g", "4", "-t", "2"});
  EXPECT_EQ(nccl.device, DeviceType::kCuda);
  EXPECT_EQ(nccl.BackendSpec(), "cuda:nccl,cpu:gloo");
  EXPECT_FALSE(nccl.blocking);
  EXPECT_EQ(nccl.nproc, 8);

  EXPECT_EQ(parse({"--device=cuda"}).BackendSpec(), "cuda:nccl,cpu:gloo");
  const BenchOptions gloo = parse({"--backend=gloo", "--device=cuda",
                                   "--blocking=1", "--nproc=2", "--ngpus=0"});
  EXPECT_EQ(gloo.BackendSpec(), "cuda:gloo,cpu:gloo");
  EXPECT_TRUE(gloo.blocking);
  EXPECT_EQ(gloo.nproc, 2);
  EXPECT_EQ(parse({"--device=cuda", "--backend=cpu:a,cuda:b"}).BackendSpec(),
            "cpu:a,cuda:b");
  EXPECT_TRUE(parse({"--device=cuda", "-C", "1"}).report_cputime);
}

TEST(BenchOptionsTest, WhatIsForOneKindOfTensorsIsNotForTheOther) {
  EXPECT_EQ(GetError({"barrier", "--device=tpu"}),
            "--device must be cpu or cuda, got \"tpu\"");
  EXPECT_EQ(GetError({"barrier", "--ngpus=2"}), "--ngpus needs --device=cuda");
  EXPECT_EQ(GetError({"barrier", "--report_cputime=1"}),
            "--report_cputime needs --device=cuda");
  EXPECT_EQ(GetError({"barrier", "--device=cuda", "-C", "1", "--blocking=1"}),
            "--report_cputime needs --blocking=0");
  EXPECT_EQ(GetError({"barrier", "--cudagraph=2"}),
            "--cudagraph must be 0, got \"2\": calls cannot be captured in "
            "CUDA graphs");
  EXPECT_EQ(GetError({"barrier", "--nproc=2", "--ngpus=2"}),
            "--ngpus says how many ranks to start, and so does --nproc: give "
            "one of them");
  EXPECT_EQ(GetError({"barrier", "--device=cuda", "--tune=rows"}),
            "--tune measures CPU tensors, not with --device=cuda");
  EXPECT_EQ(GetError({"barrier", "--device=cuda", "--peer=x"}),
            "--peer measures CPU tensors, not with --device=cuda");
  EXPECT_EQ(GetError({"barrier", "--memory=shared"}),
            "--memory must be ordinary (0) or symmetric (2), got \"shared\"");
  // nccl-tests registers ordinary memory with it.
  EXPECT_EQ(GetError({"barrier", "-R", "1"}),
            "--memory must be ordinary (0) or symmetric (2), got \"1\"");
  EXPECT_EQ(GetError({"barrier", "--tune=rows", "--nproc=2", "--backend=mpi"}),
            "--tune needs --backend=shm or gloo, got \"mpi\"");
}

TEST(BenchOptionsTest, APreparedCollectiveHasOneRunAtATime) {
  EXPECT_EQ(GetError({"all_reduce", "sendrecv", "--prepared=1"}),
            "--prepared is for collectives, not for sendrecv");
  for (const char* const option : {"--blocking=0", "--agg_iters=2"}) {
    EXPECT_EQ(GetError({"barrier", "--prepared=1", option}),
              "--prepared of CPU tensors needs --blocking=1 and "
              "--agg_iters=1: a prepared collective has one run at a time");
    EXPECT_TRUE(ParseBenchOptions(
                    {"barrier", "--prepared=1", "--device=cuda", option}, {})
                    .ok());
  }
}

TEST(BenchOptionsTest, SizesMustBeInOrder) {
  EXPECT_EQ(GetError({"barrier", "--minbytes=8", "--maxbytes=4"}),
            "--maxbytes must be at least --minbytes (8), got \"4\"");
  EXPECT_EQ(GetError({"barrier", "--minbytes=8X"}),
            "--minbytes must be bytes, or a number with K, M or G, up to "
            "1024G, got \"8X\"");
  // The value must not be taken modulo 2^64.
  EXPECT_EQ(GetError({"barrier", "--minbytes=8", "--maxbytes=1099511627776G"}),
            "--maxbytes must be bytes, or a number with K, M or G, up to "
            "1024G, got \"1099511627776G\"");
}

TEST(BenchOptionsTest, HelpNamesEveryOperationAndOption) {
  EXPECT_THAT(BenchHelpText(), HasSubstr("reduce_scatter_tensor"));
  EXPECT_THAT(BenchHelpText(), HasSubstr("--minbytes=SIZE, -b SIZE"));
}

}  // namespace
}  // namespace muster::worker::bench
