#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "client/control/throw.h"
#include "muster/distributed.h"
#include "muster/muster.h"

namespace muster::c {
namespace {

std::vector<std::vector<int>> ToLists(const muster_ranks* lists, size_t count,
                                      const char* name) {
  std::vector<std::vector<int>> ranks;
  for (const muster_ranks& list : ToSpan(lists, count, name)) {
    ranks.push_back(ToVector(list.ranks, list.count, name));
  }
  return ranks;
}

NewSubgroupsOptions ToSubgroupOptions(const muster_subgroup_options* options) {
  const muster_subgroup_options from = ReadOptions(options);
  return {.timeout = ToMilliseconds(from.timeout_ms),
          .backend = ToString(from.backend),
          .description = ToString(from.description)};
}

// Returns the handle of the group with this process, and writes those of all
// groups to the array `all`, unless it is null.
muster_group* MakeSubgroups(const Subgroups& made, muster_group** all) {
  std::vector<std::unique_ptr<muster_group>> handles;
  if (all != nullptr) {
    for (const auto& group : made.all) handles.emplace_back(MakeGroup(group));
  }
  muster_group* const current = MakeGroup(made.current);
  for (size_t i = 0; i < handles.size(); ++i) all[i] = handles[i].release();
  return current;
}

}  // namespace
}  // namespace muster::c

using muster::c::GroupRef;
using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::MakeGroup;
using muster::c::MakeStrings;
using muster::c::Need;
using muster::c::ReadOptions;
using muster::c::ToGroup;
using muster::c::ToMilliseconds;
using muster::c::ToString;

void muster_group_release(muster_group* group) { delete group; }

muster_status muster_world_group(muster_group** group) {
  return GuardHandle(__func__, group, "group",
                     [] { return MakeGroup(muster::WorldGroup()); });
}

muster_status muster_get_rank(muster_group* group, int32_t* rank) {
  return Guard(__func__, [&] { Need(rank, "rank") = GroupRef(group)->rank(); });
}

muster_status muster_get_world_size(muster_group* group, int32_t* world_size) {
  return Guard(__func__, [&] {
    Need(world_size, "world_size") = GroupRef(group)->size();
  });
}

muster_status muster_get_backend(muster_group* group,
                                 muster_strings** backend) {
  return GuardHandle(__func__, backend, "backend",
                     [&] { return MakeStrings(GroupRef(group)->backend()); });
}

muster_status muster_get_process_group_ranks(muster_group* group,
                                             int32_t* ranks, size_t capacity,
                                             size_t* count) {
  return Guard(__func__, [&] {
    muster::c::WriteArray(muster::GetProcessGroupRanks(ToGroup(group)), ranks,
                          "ranks", capacity, count);
  });
}

muster_status muster_get_group_rank(muster_group* group, int32_t global_rank,
                                    int32_t* group_rank) {
  return Guard(__func__, [&] {
    Need(group_rank, "group_rank") =
        muster::GetGroupRank(ToGroup(group), global_rank);
  });
}

muster_status muster_get_global_rank(muster_group* group, int32_t group_rank,
                                     int32_t* global_rank) {
  return Guard(__func__, [&] {
    Need(global_rank, "global_rank") =
        muster::GetGlobalRank(ToGroup(group), group_rank);
  });
}

muster_status muster_group_name(muster_group* group, muster_strings** name) {
  return GuardHandle(__func__, name, "name",
                     [&] { return MakeStrings(GroupRef(group)->name()); });
}

muster_status muster_group_description(muster_group* group,
                                       muster_strings** description) {
  return GuardHandle(__func__, description, "description", [&] {
    return MakeStrings(GroupRef(group)->description());
  });
}

muster_status muster_group_timeout(muster_group* group, int64_t* timeout_ms) {
  return Guard(__func__, [&] {
    Need(timeout_ms, "timeout_ms") = GroupRef(group)->timeout().count();
  });
}

muster_status muster_group_last_run(muster_group* group,
                                    muster_device_type device,
                                    muster_strings** last_run) {
  return GuardHandle(__func__, last_run, "last_run", [&] {
    const muster::LastRun run =
        GroupRef(group)->last_run(muster::c::ToDeviceType(device, "device"));
    return MakeStrings(std::vector{run.backend, run.algorithm});
  });
}

muster_status muster_group_abort(muster_group* group, const char* reason) {
  return Guard(__func__, [&] { GroupRef(group)->Abort(ToString(reason)); });
}

muster_status muster_group_status(muster_group* group) {
  return Guard(__func__, [&] {
    muster::internal::ThrowIfFailed(muster::internal::ErrorSource::kBackend,
                                    GroupRef(group)->status());
  });
}

muster_status muster_new_group(const int32_t* ranks, size_t rank_count,
                               const muster_new_group_options* options,
                               muster_group** group) {
  return GuardHandle(__func__, group, "group", [&] {
    const muster_new_group_options from = ReadOptions(options);
    muster::NewGroupOptions to;
    if (ranks != nullptr || rank_count != 0) {
      to.ranks = muster::c::ToVector(ranks, rank_count, "ranks");
    }
    to.timeout = ToMilliseconds(from.timeout_ms);
    to.backend = ToString(from.backend);
    to.nccl = muster::c::ToNcclOptions(from.nccl, "options.nccl");
    to.cpu_transport = ToString(from.cpu_transport);
    if (from.has_device_id != 0) to.device_id = from.device_id;
    to.use_local_synchronization = from.use_local_synchronization != 0;
    to.description = ToString(from.description);
    to.name = ToString(from.name);
    return MakeGroup(muster::NewGroup(to));
  });
}

muster_status muster_new_subgroups(int32_t group_size,
                                   const muster_subgroup_options* options,
                                   muster_group** all, muster_group** current) {
  return GuardHandle(__func__, current, "current", [&] {
    const int size = GroupRef(nullptr)->size();
    if (all != nullptr && group_size > 0) {
      std::fill_n(all, size / group_size, nullptr);
    }
    return muster::c::MakeSubgroups(
        muster::NewSubgroups(group_size, muster::c::ToSubgroupOptions(options)),
        all);
  });
}

muster_status muster_new_subgroups_by_enumeration(
    const muster_ranks* lists, size_t list_count,
    const muster_subgroup_options* options, muster_group** all,
    muster_group** current) {
  return GuardHandle(__func__, current, "current", [&] {
    if (all != nullptr) std::fill_n(all, list_count, nullptr);
    return muster::c::MakeSubgroups(
        muster::NewSubgroupsByEnumeration(
            muster::c::ToLists(lists, list_count, "lists"),
            muster::c::ToSubgroupOptions(options)),
        all);
  });
}

muster_status muster_split_group(muster_group* parent,
                                 const muster_ranks* lists, size_t list_count,
                                 const muster_subgroup_options* options,
                                 muster_group** group) {
  return GuardHandle(__func__, group, "group", [&] {
    const muster_subgroup_options from = ReadOptions(options);
    if (from.backend != nullptr) {
      muster::c::ThrowArgument("options", "a part has the parent's backend");
    }
    return MakeGroup(muster::SplitGroup(
        ToGroup(parent), muster::c::ToLists(lists, list_count, "lists"),
        {.timeout = ToMilliseconds(from.timeout_ms),
         .description = ToString(from.description)}));
  });
}

muster_status muster_shrink_group(const int32_t* ranks_to_exclude,
                                  size_t rank_count, muster_group* group,
                                  const muster_shrink_options* options,
                                  muster_group** shrunk) {
  return GuardHandle(__func__, shrunk, "shrunk", [&] {
    using Flags = muster::ShrinkGroupOptions::Flags;
    const muster_shrink_options from = ReadOptions(options);
    return MakeGroup(muster::ShrinkGroup(
        muster::c::ToVector(ranks_to_exclude, rank_count, "ranks_to_exclude"),
        ToGroup(group),
        {.shrink_flags = from.abort != 0 ? Flags::kAbort : Flags::kDefault,
         .timeout = ToMilliseconds(from.timeout_ms),
         .description = ToString(from.description)}));
  });
}
