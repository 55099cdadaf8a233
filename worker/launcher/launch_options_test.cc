#include "worker/launcher/launch_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "client/control/endpoint.h"
#include "muster/base/status.h"

namespace muster::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Arguments = std::vector<std::string>;

StatusOr<LaunchOptions> Parse(const Arguments& arguments,
                              const Environment& environment = {}) {
  return ParseLaunchOptions(arguments, environment);
}

template <typename T>
std::string ErrorIn(const StatusOr<T>& parsed) {
  if (parsed.ok()) return "no error";
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

std::string GetError(const Arguments& arguments,
                     const Environment& environment = {}) {
  return ErrorIn(Parse(arguments, environment));
}

TEST(LaunchOptionValuesTest, NodeCountIsANumberOrARange) {
  EXPECT_EQ(ParseNodeCount("--n", "3")->min, 3);
  EXPECT_EQ(ParseNodeCount("--n", "3")->max, 3);
  EXPECT_EQ(ParseNodeCount("--n", "1:4")->min, 1);
  EXPECT_EQ(ParseNodeCount("--n", "1:4")->max, 4);
  for (const char* value :
       {"", "0", "x", "2:1", "0:3", "1:2:3", ":", "1:", "65537", "1:65537"}) {
    EXPECT_THAT(ErrorIn(ParseNodeCount("--nnodes", value)),
                HasSubstr("--nnodes must be N or MIN:MAX, of 1 to 65536 hosts, "
                          "got \"" +
                          std::string(value) + "\""));
  }
}

TEST(LaunchOptionValuesTest, NprocCountsWhatTheHostHas) {
  const Devices with = {.cpus = 16, .gpus = 8};
  const Devices without = {.cpus = 16};
  EXPECT_EQ(*ParseNproc("--n", "4", without), 4);
  EXPECT_EQ(*ParseNproc("--n", "cpu", with), 16);
  EXPECT_EQ(*ParseNproc("--n", "gpu", with), 8);
  EXPECT_EQ(*ParseNproc("--n", "auto", with), 8);
  EXPECT_EQ(*ParseNproc("--n", "auto", without), 16);
  EXPECT_EQ(ErrorIn(ParseNproc("--n", "gpu", without)),
            "--n=gpu: this host has no GPU, or CUDA_VISIBLE_DEVICES hides it");
  EXPECT_EQ(ErrorIn(ParseNproc("--n", "four", with)),
            "--n must be 1 to 1024, auto, cpu or gpu, got \"four\"");
  EXPECT_THAT(ErrorIn(ParseNproc("--n", "0", with)), HasSubstr("got \"0\""));
}

TEST(LaunchOptionValuesTest, ThisHostHasACpu) {
  EXPECT_GE(DevicesOfHost({}).cpus, 1);
  EXPECT_EQ(DevicesOfHost({{"CUDA_VISIBLE_DEVICES", ""}}).gpus, 0);
  EXPECT_EQ(DevicesOfHost({{"CUDA_VISIBLE_DEVICES", "-1"}}).gpus, 0);
}

TEST(LaunchOptionValuesTest, StreamsAreOfAllRanksOrByRank) {
  const Streams none = *Streams::Parse("--tee", "0");
  EXPECT_TRUE(none.empty());
  const Streams err = *Streams::Parse("--tee", "2");
  EXPECT_FALSE(err.HasOut(5));
  EXPECT_TRUE(err.HasErr(5));
  const Streams mixed = *Streams::Parse("--tee", "0:3,1:1");
  EXPECT_TRUE(mixed.HasOut(0) && mixed.HasErr(0));
  EXPECT_TRUE(mixed.HasOut(1) && !mixed.HasErr(1));
  EXPECT_TRUE(!mixed.HasOut(2) && !mixed.HasErr(2));
  for (const char* value : {"", "4", "-1", "0:4", "0:", "a:1", "1,2"}) {
    EXPECT_THAT(ErrorIn(Streams::Parse("--tee", value)),
                HasSubstr("--tee must be 0 to 3"))
        << value;
  }
}

TEST(LaunchOptionValuesTest, LocalRanks) {
  EXPECT_THAT(*ParseLocalRanks("--f", ""), IsEmpty());
  EXPECT_THAT(*ParseLocalRanks("--f", "2,0,2"), ElementsAre(0, 2));
  for (const char* value : {"a", "1,", "-1"}) {
    EXPECT_THAT(ErrorIn(ParseLocalRanks("--f", value)), HasSubstr("--f must"));
  }
}

TEST(LaunchOptionValuesTest, SignalsHaveNames) {
  EXPECT_THAT(*ParseSignals("--s", "SIGTERM, usr1"),
              ElementsAre(SIGTERM, SIGUSR1));
  for (const char* value :
       {"", "SIGKILL", "SIGCHLD", "SIGSEGV", "SIGNONE", "15"}) {
    EXPECT_THAT(ErrorIn(ParseSignals("--s", value)),
                HasSubstr("--s must be names of signals"))
        << value;
  }
}

TEST(LaunchOptionValuesTest, RendezvousConf) {
  using std::chrono::milliseconds;
  RendezvousTimes times = *ParseRendezvousConf("--c", "");
  EXPECT_EQ(times.join_timeout, std::chrono::seconds(600));
  EXPECT_EQ(times.last_call, std::chrono::seconds(30));
  times = *ParseRendezvousConf("--c", "timeout=900,last_call_timeout=0.5");
  EXPECT_EQ(times.join_timeout, std::chrono::seconds(900));
  EXPECT_EQ(times.last_call, milliseconds(500));
  EXPECT_EQ(ErrorIn(ParseRendezvousConf("--c", "is_host=1")),
            "--c has no \"is_host\"; it has join_timeout (or timeout) and "
            "last_call_timeout, in seconds");
  EXPECT_EQ(ErrorIn(ParseRendezvousConf("--c", "join_timeout=soon")),
            "--c: join_timeout must be 0 to 86400 seconds, got \"soon\"");
  for (const char* value :
       {"timeout=-1", "timeout=nan", "timeout", "timeout="}) {
    EXPECT_THAT(ErrorIn(ParseRendezvousConf("--c", value)),
                HasSubstr("must be 0 to 86400 seconds"))
        << value;
  }
}

TEST(LaunchOptionsTest, ProgramAloneRunsOneRankStandalone) {
  const auto options = Parse({"./train"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->nproc_per_node, 1);
  EXPECT_FALSE(options->several_hosts());
  EXPECT_EQ(options->rendezvous_host, "");
  EXPECT_EQ(options->max_restarts, 0);
  EXPECT_THAT(options->signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(options->command, ElementsAre("./train"));
}

TEST(LaunchOptionsTest, DashesUnderscoresAndBothFormsOfValuesAreAccepted) {
  for (const Arguments& arguments : std::vector<Arguments>{
           {"--standalone", "--nproc-per-node=4", "--", "./train", "-x"},
           {"--standalone", "--nproc_per_node=4", "./train", "-x"},
           {"--no-python", "--nproc-per-node=4", "./train", "-x"},
           {"--standalone=true", "--nproc-per-node", "4", "./train", "-x"},
           {"-nproc_per_node", "4", "--", "./train", "-x"}}) {
    const auto options = Parse(arguments);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->nproc_per_node, 4);
    EXPECT_THAT(options->command, ElementsAre("./train", "-x"));
  }
}

TEST(LaunchOptionsTest, OptionsAfterTheProgramAreItsOwn) {
  const auto options =
      Parse({"--nproc-per-node=2", "./train", "--nproc-per-node=9", "--", "a"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->nproc_per_node, 2);
  EXPECT_THAT(options->command,
              ElementsAre("./train", "--nproc-per-node=9", "--", "a"));
}

TEST(LaunchOptionsTest, MetricsPortsAreOnesThatThereAre) {
  const auto options =
      Parse({"--nproc-per-node=8", "--metrics-port-base=65528", "./train"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->metrics_port_base, 65528);
  EXPECT_EQ(
      GetError({"--nproc-per-node=8", "--metrics-port-base=65529", "./train"}),
      "--metrics-port-base must be 1 to 65528, got 65529");
}

TEST(LaunchOptionsTest, ExternalCoordinatorWithTwoHosts) {
  const auto options =
      Parse({"--rdzv-endpoint=coordinator:7070", "--rdzv-id=job7", "--nnodes=2",
             "--node-rank=1", "--nproc-per-node=4", "./train"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rendezvous_host, "coordinator");
  EXPECT_EQ(options->rendezvous_port, 7070);
  EXPECT_EQ(options->rendezvous_id, "job7");
  EXPECT_EQ(options->nnodes.min, 2);
  EXPECT_EQ(options->nnodes.max, 2);
  EXPECT_EQ(options->node_rank, 1);
}

TEST(LaunchOptionsTest, EndpointHasADefaultPortAndKnowsIpv6) {
  const std::vector<std::pair<std::string, std::pair<std::string, int>>> cases =
      {{"coordinator", {"coordinator", 7070}},
       {"[::1]:29500", {"::1", 29500}},
       {"[fe80::1]", {"fe80::1", 7070}},
       {"10.0.0.1:1", {"10.0.0.1", 1}}};
  for (const auto& [endpoint, want] : cases) {
    const auto options =
        Parse({"--rdzv-endpoint=" + endpoint, "--rdzv-id=j", "p"});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->rendezvous_host, want.first) << endpoint;
    EXPECT_EQ(options->rendezvous_port, want.second) << endpoint;
  }
}

TEST(LaunchOptionsTest, EndpointMayBeAList) {
  const auto options =
      Parse({"--rdzv-endpoint=a,b:1,a:7070,[::1]", "--rdzv-id=j", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rendezvous_host, "a");
  EXPECT_EQ(options->rendezvous_port, 7070);
  EXPECT_EQ(internal::JoinEndpoints(options->rendezvous_others),
            "b:1,[::1]:7070");
  EXPECT_EQ(GetError({"--rdzv-endpoint=a,,b", "--rdzv-id=j", "p"}),
            "--rdzv-endpoint \"a,,b\": address 2 is empty");
  EXPECT_EQ(GetError({"--rdzv-endpoint=a,b:0", "--rdzv-id=j", "p"}),
            "--rdzv-endpoint must be HOST:PORT (an IPv6 host in brackets, a "
            "port of 1 to 65535), got \"a,b:0\"");
  EXPECT_EQ(GetError({"--rdzv-backend=c10d", "--rdzv-endpoint=a,b",
                      "--rdzv-id=j", "p"}),
            "--rdzv-backend=c10d serves a coordinator at one address, and "
            "--rdzv-endpoint has 2: \"a,b\"");
}

TEST(LaunchOptionsTest, EnvironmentStandsForOptionsThatAreNotGiven) {
  const Environment environment = {{"PET_NPROC_PER_NODE", "3"},
                                   {"MUSTER_STOP_GRACE", "250ms"},
                                   {"PET_STOP_GRACE", "9s"},
                                   {"PET_ROLE", ""}};
  auto options = Parse({"./train"}, environment);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->nproc_per_node, 3);
  EXPECT_EQ(options->stop_grace, std::chrono::milliseconds(250));
  EXPECT_EQ(options->role, "default");
  options = Parse({"--nproc-per-node=5", "./train"}, environment);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->nproc_per_node, 5);
}

TEST(LaunchOptionsTest, WrongValueIsAnErrorThatNamesOptionAndValue) {
  EXPECT_EQ(GetError({"--nproc-per-node=four", "p"}),
            "--nproc-per-node must be 1 to 1024, auto, cpu or gpu, got "
            "\"four\"");
  EXPECT_EQ(GetError({"p"}, {{"PET_MAX_RESTARTS", "many"}}),
            "PET_MAX_RESTARTS must be a number, got \"many\"");
  EXPECT_EQ(GetError({"--max-restarts=-1", "p"}),
            "--max-restarts must be 0 to 1000000, got -1");
  EXPECT_EQ(GetError({"--restart=some", "p"}),
            "--restart must be one of all, rank, none, got \"some\"");
  EXPECT_EQ(GetError({"--rdzv-backend=etcd", "p"}),
            "--rdzv-backend must be one of static, c10d, muster, got \"etcd\"");
  EXPECT_EQ(GetError({"--numa-binding=all", "p"}),
            "--numa-binding must be one of node, socket, exclusive, "
            "core-complex, got \"all\"");
  EXPECT_EQ(GetError({"--nnodes=2", "--node-rank=2", "p"}),
            "--node-rank must be 0 to 1, got 2");
  for (const char* port : {"0", "65536", "-1"}) {
    EXPECT_EQ(GetError({std::string("--master-port=") + port, "p"}),
              std::string("--master-port must be 1 to 65535, got ") + port);
  }
  for (const char* interval : {"-1", "nan", "inf"}) {
    EXPECT_EQ(GetError({std::string("--monitor-interval=") + interval, "p"}),
              std::string("--monitor-interval must be 0 to 86400 seconds, "
                          "got ") +
                  interval);
  }
  EXPECT_EQ(GetError({"--stop-grace=10", "p"}),
            "--stop-grace must be a duration such as 500ms or 5s, got \"10\"");
  EXPECT_EQ(GetError({"--stop-grace=-1s", "p"}),
            "--stop-grace must be 0s to 24h, got -1s");
  EXPECT_EQ(GetError({"--standalone=maybe", "p"}),
            "--standalone must be true or false, got \"maybe\"");
}

TEST(LaunchOptionsTest, AJobOfItsOwnHostsIsServedByNodeRankZero) {
  const auto options =
      Parse({"--nnodes=2", "--node-rank=1", "--master-addr=host-a",
             "--master-port=1234", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->rendezvous_on_node_0);
  EXPECT_EQ(options->rendezvous_host, "host-a");
  EXPECT_EQ(Parse({"--master-addr=[fe80::1%eth0]", "p"})->rendezvous_host,
            "fe80::1%eth0");
  EXPECT_EQ(options->rendezvous_port, 1234);
  EXPECT_EQ(options->rendezvous_id, "default");
}

TEST(LaunchOptionsTest, OneHostWithAMasterServesThere) {
  auto options = Parse({"--master-addr=host-a", "--node-rank=0", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->rendezvous_on_node_0);
  EXPECT_EQ(options->node_rank, 0);
  EXPECT_EQ(options->rendezvous_host, "host-a");
  EXPECT_EQ(options->rendezvous_port, 29500);
  options = Parse({"p"}, {{"PET_MASTER_PORT", "29500"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->rendezvous_on_node_0);
  EXPECT_EQ(options->rendezvous_host, "127.0.0.1");
  options = Parse({"--standalone", "p"}, {{"PET_MASTER_PORT", "29500"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rendezvous_host, "");
}

TEST(LaunchOptionsTest, StandaloneIsNotUndoneByAClustersVariable) {
  const Environment cluster = {{"PET_RDZV_ENDPOINT", "host-a:7070"}};
  const auto options = Parse({"--standalone", "p"}, cluster);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rendezvous_host, "");
  EXPECT_EQ(GetError({"--rdzv-endpoint=h:1", "p"}, {{"PET_STANDALONE", "1"}}),
            "PET_STANDALONE and --rdzv-endpoint=h:1 exclude each other");
  EXPECT_EQ(GetError({"p"}, {{"PET_STANDALONE", "1"},
                             {"PET_RDZV_ENDPOINT", "host-a:7070"}}),
            "PET_STANDALONE and PET_RDZV_ENDPOINT=host-a:7070 exclude each "
            "other");
}

TEST(LaunchOptionsTest, WithC10dTheHostOfTheEndpointServes) {
  auto options = Parse({"--rdzv-backend=c10d", "--rdzv-endpoint=host-a:1234",
                        "--rdzv-id=j", "--nnodes=1:4", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->rendezvous_on_its_host);
  EXPECT_EQ(options->rendezvous_host, "host-a");
  options = Parse({"--rdzv-endpoint=host-a:1234", "--rdzv-id=j", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_FALSE(options->rendezvous_on_its_host);
  options = Parse({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rendezvous_host, "");
  EXPECT_THAT(GetError({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
                        "--nnodes=2", "p"}),
              HasSubstr("a port of 1 to 65535"));
}

TEST(LaunchOptionsTest, AWrongVariableIsNamedWhereverItIsNoticed) {
  EXPECT_EQ(GetError({"p"}, {{"PET_NPROC_PER_NODE", "four"}}),
            "PET_NPROC_PER_NODE must be 1 to 1024, auto, cpu or gpu, got "
            "\"four\"");
  EXPECT_EQ(GetError({"--nnodes=2", "p"}, {{"PET_NODE_RANK", "2"}}),
            "PET_NODE_RANK must be 0 to 1, got 2");
  EXPECT_EQ(GetError({"--nnodes=2", "p"}, {{"MUSTER_STANDALONE", "1"}}),
            "MUSTER_STANDALONE and --nnodes=2 exclude each other");
  EXPECT_EQ(GetError({"p"}, {{"PET_TEE", "1:3"}}),
            "PET_TEE must be of local ranks 0 to 0, got 1");
  EXPECT_EQ(GetError({"p"}, {{"PET_RDZV_ENDPOINT", "h"}}),
            "PET_RDZV_ENDPOINT=h needs --rdzv-id: the job's name on that "
            "coordinator");
}

TEST(LaunchOptionsTest, ALogFolderAloneGetsACopyOfEverything) {
  auto options = Parse({"--log-dir=logs", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->tee.HasOut(0) && options->tee.HasErr(0));
  options = Parse({"--log-dir=logs", "-r", "2", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->tee.empty());
  EXPECT_TRUE(options->redirects.HasErr(0));
  // muster-run creates a folder.
  options = Parse({"-r", "2", "p"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->redirects.HasErr(0));
  EXPECT_EQ(options->log_dir, "");
}

TEST(LaunchOptionsTest, WrongEndpointIsAnError) {
  for (const char* endpoint :
       {":7070", "host:", "host:0", "host:65536", "host:port", "[::1", "[]:1",
        "[::1]x", "fe80::1"}) {
    EXPECT_THAT(GetError({std::string("--rdzv-endpoint=") + endpoint,
                          "--rdzv-id=j", "p"}),
                HasSubstr(std::string("got \"") + endpoint + "\""));
  }
}

TEST(LaunchOptionsTest, WhatDoesNotFitTogetherIsAnError) {
  EXPECT_EQ(GetError({"--nnodes=2", "p"}),
            "--nnodes=2 needs --rdzv-endpoint, a coordinator that every host "
            "reaches, or --master-addr, the host of node rank 0");
  // Must not give advice that the next error contradicts.
  for (const Arguments& more : {Arguments{}, Arguments{"--master-addr=h"}}) {
    Arguments arguments = {"--nnodes=1:2", "p"};
    arguments.insert(arguments.begin(), more.begin(), more.end());
    EXPECT_EQ(GetError(arguments),
              "--nnodes=1:2 needs --rdzv-endpoint, a coordinator that every "
              "host reaches (with --rdzv-backend=c10d, a host that serves "
              "one)");
  }
  EXPECT_EQ(GetError({"--nnodes=2", "--standalone", "p"}),
            "--standalone and --nnodes=2 exclude each other");
  EXPECT_EQ(GetError({"--nnodes=2", "--master-addr=h", "p"}),
            "--master-addr=h needs --node-rank: number 0 serves the "
            "coordinator");
  EXPECT_THAT(GetError({"--nnodes=1:2", "--node-rank=0", "--rdzv-endpoint=h",
                        "--rdzv-id=j", "p"}),
              HasSubstr("--node-rank=0 and --nnodes=1:2 exclude each other"));
  EXPECT_EQ(GetError({"--nnodes=2", "--restart=rank", "--rdzv-endpoint=h",
                      "--rdzv-id=j", "p"}),
            "--restart=rank and --nnodes=2 exclude each other");
  EXPECT_EQ(GetError({"--restart=none", "--max-restarts=3", "p"}),
            "--restart=none and --max-restarts=3 exclude each other");
  EXPECT_EQ(GetError({"--local-ranks-filter=0,1", "p"}),
            "--local-ranks-filter must be of local ranks 0 to 0, got 1");
  EXPECT_EQ(GetError({"--redirects=0:1,9:1", "--log-dir=l", "p"}),
            "--redirects must be of local ranks 0 to 0, got 9");
  EXPECT_EQ(GetError({"-t", "1:3", "--log-dir=l", "p"}),
            "--tee must be of local ranks 0 to 0, got 1");
  EXPECT_EQ(GetError({"--standalone", "--rdzv-endpoint=h:1", "p"}),
            "--standalone and --rdzv-endpoint=h:1 exclude each other");
  EXPECT_EQ(GetError({"--rdzv-endpoint=h:1", "p"}),
            "--rdzv-endpoint=h:1 needs --rdzv-id: the job's name on that "
            "coordinator");
  EXPECT_THAT(GetError({"--rdzv-id=a/b", "p"}), HasSubstr("got \"a/b\""));
  EXPECT_EQ(GetError({"--rdzv-id=..", "p"}),
            "--rdzv-id must not be \"..\", which is no folder's name");
  EXPECT_THAT(GetError({"--rdzv-id=" + std::string(129, 'j'), "p"}),
              HasSubstr("--rdzv-id must be 1 to 128"));
}

TEST(LaunchOptionsTest, UnknownOptionMissingValueAndMissingProgramAreErrors) {
  EXPECT_THAT(GetError({"--max-restart=3", "p"}),
              HasSubstr("unknown option \"--max-restart=3\""));
  EXPECT_EQ(GetError({"--rdzv-id"}), "--rdzv-id needs a value");
  EXPECT_THAT(GetError({}), HasSubstr("no program given"));
  EXPECT_THAT(GetError({"--nproc-per-node=2", "--"}),
              HasSubstr("no program given"));
}

TEST(LaunchOptionsTest, HelpIsFoundBeforeOtherOptionsAreChecked) {
  for (const char* help : {"--help", "-h"}) {
    const auto options = Parse({"--nnodes=2", help});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_TRUE(options->help);
  }
}

TEST(LaunchOptionsTest, VersionIsFoundBeforeOtherOptionsAreChecked) {
  const auto options = Parse({"--nnodes=2", "--version"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->version);
  // An argument of the program.
  const auto other = Parse({"--", "train", "--version"});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(other->version);
}

TEST(LaunchOptionsTest, HelpTextFitsATerminalAndNamesEveryOption) {
  const std::string text = LaunchHelpText();
  for (const char* option :
       {"--standalone\n", "--nproc-per-node=N", "--rdzv-endpoint=HOST:PORT",
        "--rdzv-id=JOB", "--nnodes=N", "--node-rank=K", "--role=NAME",
        "--max-restarts=N", "--redirects=STREAMS", "--numa-binding=WHAT",
        "--log-dir=FOLDER", "--failure-grace=DURATION",
        "--stop-grace=DURATION"}) {
    EXPECT_THAT(text, HasSubstr(option));
  }
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    EXPECT_LE(end - begin, 80u) << text.substr(begin, end - begin);
  }
}

}  // namespace
}  // namespace muster::worker
