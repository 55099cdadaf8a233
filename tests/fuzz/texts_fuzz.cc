// Parses texts from people and environments: a token file, the URL and the
// variables of InitProcessGroup, muster-run's command line. The input is a byte
// for the parser, and the text; NUL bytes separate arguments.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/groups/init_method.h"
#include "coordinator/server/auth/tokens.h"
#include "muster/base/status.h"
#include "tests/fuzz/fuzz.h"
#include "worker/launcher/launch_options.h"

namespace muster::fuzz {
namespace {

void IsClear(const Status& status) {
  if (status.ok()) return;
  Require(IsInvalidArgument(status), status.ToString());
  Require(!status.message().empty(), "an error without a text");
}

}  // namespace

void FuzzOne(absl::string_view input) {
  if (input.empty()) return;
  const char which = input[0];
  input.remove_prefix(1);
  const std::vector<std::string> words = absl::StrSplit(input, '\0');
  switch (which % 3) {
    case 0: {
      const auto table = coordinator::TokenTable::Parse(input);
      IsClear(table.status());
      if (!table.ok()) return;
      const Status known =
          table->Know(coordinator::ComputeDigest("token"), absl::UnixEpoch());
      Require(known.ok() || IsUnauthenticated(known), known.ToString());
      return;
    }
    case 1: {
      constexpr const char* kNames[] = {"RANK",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "MUSTER_JOB",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE"};
      std::map<std::string, std::string> variables;
      for (size_t i = 1; i < words.size() && i <= std::size(kNames); ++i) {
        variables[kNames[i - 1]] = words[i];
      }
      const auto plan = internal::PlanInit(
          {.init_method = words[0]}, [&](const char* name) -> const char* {
            const auto found = variables.find(name);
            return found == variables.end() ? nullptr : found->second.c_str();
          });
      IsClear(plan.status());
      if (!plan.ok()) return;
      Require(plan->rank >= -1 && plan->world_size != 0 &&
                  plan->world_size >= -1 &&
                  (plan->world_size < 0 || plan->rank < plan->world_size),
              "a rank outside of its world");
      return;
    }
    default: {
      const auto options = worker::ParseLaunchOptions(words, {});
      IsClear(options.status());
      if (!options.ok() || options->help || options->version) return;
      Require(options->nnodes.min >= 1 &&
                  options->nnodes.max >= options->nnodes.min &&
                  options->nproc_per_node >= 1 && options->node_rank >= -1 &&
                  options->node_rank < options->nnodes.max &&
                  !options->command.empty(),
              "options that start nothing");
      return;
    }
  }
}

}  // namespace muster::fuzz
