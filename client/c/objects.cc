#include "muster/objects.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/muster.h"

// The C++ functions for objects are templates over these functions for bytes.

namespace muster::c {
namespace {

struct ObjectArguments {
  ObjectArguments(int32_t rank, muster_group* group,
                  const muster_object_options* given)
      : ObjectArguments(rank, group, ReadOptions(given)) {}
  ObjectArguments(int32_t rank, muster_group* group,
                  const muster_object_options& given)
      : root(rank, given.is_group_rank), tag(given.tag) {
    options.group = ToGroup(group);
    options.timeout = ToMilliseconds(given.timeout_ms);
    if (given.object_bytes_max != 0) {
      options.object_bytes_max = given.object_bytes_max;
    }
  }

  internal::RankArgument rank_argument() const {
    return {root.global, root.in_group};
  }

  RankChoice root;
  int tag;
  ObjectOptions options;
};

internal::ObjectBytes ToObjects(const muster_bytes* objects, size_t count) {
  internal::ObjectBytes bytes;
  for (const muster_bytes& object : ToSpan(objects, count, "objects")) {
    bytes.views.push_back(ToView(object.data, object.size, "objects"));
  }
  return bytes;
}

internal::ObjectBytes ToObject(const void* object, size_t size) {
  internal::ObjectBytes bytes;
  bytes.views.push_back(ToView(object, size, "object"));
  return bytes;
}

muster_strings* ToResult(std::optional<std::vector<std::string>> objects) {
  return objects.has_value() ? MakeStrings(*std::move(objects)) : nullptr;
}

}  // namespace
}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::ObjectArguments;
using muster::c::ToObject;
using muster::c::ToObjects;
using muster::c::ToResult;

muster_status muster_broadcast_object_list(const muster_bytes* objects,
                                           size_t count, int32_t src,
                                           muster_group* group,
                                           const muster_object_options* options,
                                           muster_strings** result) {
  return GuardHandle(__func__, result, "result", [&] {
    const ObjectArguments arguments(src, group, options);
    const auto given = ToObjects(objects, count);
    auto received = muster::internal::BroadcastBytes(
        given, arguments.rank_argument(), arguments.options);
    if (received.has_value()) return ToResult(std::move(received));
    // This is the source, or a rank that is not in the group.
    if (muster::c::GroupRef(group)->rank() < 0) return ToResult(std::nullopt);
    return ToResult(
        std::vector<std::string>(given.views.begin(), given.views.end()));
  });
}

muster_status muster_all_gather_object(const void* object, size_t object_size,
                                       muster_group* group,
                                       const muster_object_options* options,
                                       muster_strings** result) {
  return GuardHandle(__func__, result, "result", [&] {
    return ToResult(muster::internal::AllGatherBytes(
        ToObject(object, object_size),
        ObjectArguments(0, group, options).options));
  });
}

muster_status muster_gather_object(const void* object, size_t object_size,
                                   int32_t dst, muster_group* group,
                                   const muster_object_options* options,
                                   muster_strings** result) {
  return Guard(__func__, [&] {
    if (result != nullptr) *result = nullptr;
    const ObjectArguments arguments(dst, group, options);
    const muster::c::GroupRef ref(group);
    // The C++ function wants a list on the destination alone, C has a result on
    // all ranks.
    const bool is_destination =
        ref->rank() >= 0 &&
        (arguments.root.in_group.has_value()
             ? ref->rank() == *arguments.root.in_group
             : ref->ranks()[static_cast<size_t>(ref->rank())] ==
                   *arguments.root.global);
    // Without a result on the destination the call fails on all ranks.
    muster_strings* const gathered = ToResult(muster::internal::GatherBytes(
        ToObject(object, object_size), is_destination && result != nullptr,
        arguments.rank_argument(), arguments.options));
    if (gathered != nullptr) *result = gathered;
  });
}

muster_status muster_scatter_object_list(const muster_bytes* objects,
                                         size_t count, int32_t src,
                                         muster_group* group,
                                         const muster_object_options* options,
                                         muster_strings** result) {
  return GuardHandle(__func__, result, "result", [&]() -> muster_strings* {
    const ObjectArguments arguments(src, group, options);
    std::optional<std::string> object = muster::internal::ScatterBytes(
        1, ToObjects(objects, count), arguments.rank_argument(),
        arguments.options);
    if (!object.has_value()) return nullptr;
    return muster::c::MakeStrings(*std::move(object));
  });
}

muster_status muster_send_object_list(const muster_bytes* objects, size_t count,
                                      int32_t dst, muster_group* group,
                                      const muster_object_options* options) {
  return Guard(__func__, [&] {
    const ObjectArguments arguments(dst, group, options);
    muster::internal::SendBytes(
        ToObjects(objects, count), arguments.root.global,
        {.tag = arguments.tag,
         .group = arguments.options.group,
         .timeout = arguments.options.timeout,
         .object_bytes_max = arguments.options.object_bytes_max,
         .group_dst = arguments.root.in_group});
  });
}

muster_status muster_recv_object_list(size_t count, int32_t src,
                                      muster_group* group,
                                      const muster_object_options* options,
                                      int32_t* source,
                                      muster_strings** result) {
  return GuardHandle(__func__, result, "result", [&]() -> muster_strings* {
    const ObjectArguments arguments(src, group, options);
    const bool from_any = src == MUSTER_ANY_SOURCE;
    auto [from, objects] = muster::internal::RecvBytes(
        count, from_any ? std::nullopt : arguments.root.global,
        {.tag = arguments.tag,
         .group = arguments.options.group,
         .timeout = arguments.options.timeout,
         .object_bytes_max = arguments.options.object_bytes_max,
         .group_src = from_any ? std::nullopt : arguments.root.in_group});
    if (from < 0) return nullptr;
    muster_strings* const received = muster::c::MakeStrings(std::move(objects));
    if (source != nullptr) *source = from;
    return received;
  });
}
