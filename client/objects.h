// Collectives of objects: byte strings, and what becomes one (ObjectCodec).
//
//   std::vector<std::string> names;
//   muster::AllGatherObject(names, std::string("trainer-3"));

#ifndef MUSTER_CLIENT_OBJECTS_H_
#define MUSTER_CLIENT_OBJECTS_H_

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/process_group.h"

namespace muster {

// How an object becomes a byte string, and back. object_messages.h has it for
// messages of protobuf; a program may add it for types of its own:
//
//   template <>
//   struct muster::ObjectCodec<Config> {
//     static bool ToBytes(const Config& object, std::string& bytes);
//     static bool FromBytes(const std::string& bytes, Config& object);
//   };
//
// False: it cannot be done with this object, or with these bytes.
template <typename T>
struct ObjectCodec;

// What can be sent: a byte string as it is, or what has an ObjectCodec.
template <typename T>
concept Object = std::same_as<T, std::string> ||
    requires(const T& from, T& to, std::string& out, const std::string& bytes) {
  { ObjectCodec<T>::ToBytes(from, out) } -> std::convertible_to<bool>;
  { ObjectCodec<T>::FromBytes(bytes, to) } -> std::convertible_to<bool>;
};

struct ObjectOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // For the whole of it; zero is the group's.
  std::chrono::milliseconds timeout{0};
  // The largest object, in bytes. The least of what the ranks give holds.
  int64_t object_bytes_max = int64_t{1} << 30;
};

// Of what one rank gives to all, or gets from all: the same, and that rank's
// number in the group, instead of the argument `src` or `dst`.
struct ObjectSourceOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  int64_t object_bytes_max = int64_t{1} << 30;
  std::optional<int> group_src = std::nullopt;
};

struct ObjectDestinationOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  int64_t object_bytes_max = int64_t{1} << 30;
  std::optional<int> group_dst = std::nullopt;
};

// Of sends and receives.
struct ObjectSendOptions {
  // Not negative. A send meets a receive of the same tag.
  int tag = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  // The largest object, in bytes. Each side's holds, and bounds the memory that
  // a receiver takes.
  int64_t object_bytes_max = int64_t{1} << 30;
  std::optional<int> group_dst = std::nullopt;
};

struct ObjectRecvOptions {
  int tag = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  int64_t object_bytes_max = int64_t{1} << 30;
  std::optional<int> group_src = std::nullopt;
};

namespace internal {

// Objects as byte strings.
struct ObjectBytes {
  std::vector<std::string> owned = {};
  // Of the objects themselves if those are byte strings, else of `owned`.
  std::vector<std::string_view> views = {};
  // Which one could not be serialized; empty: none.
  std::string fault = {};
};

std::string UnserializableObject(size_t index);

// What a list of objects that is sent begins with.
inline constexpr int64_t kObjectsMagic = 0x6d75737465726f62;

// Where objects come from.
struct ObjectSource {
  const char* verb;
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group;
  // None: the group's rank i gave the i-th.
  std::optional<RankArgument> rank = std::nullopt;
};

[[noreturn]] void ThrowUnparsableObject(const ObjectSource& source,
                                        size_t index, size_t bytes);

template <Object T>
ObjectBytes BytesOfObjects(std::span<const T> objects) {
  ObjectBytes bytes;
  if constexpr (std::same_as<T, std::string>) {
    bytes.views.assign(objects.begin(), objects.end());
  } else {
    bytes.owned.resize(objects.size());
    for (size_t i = 0; i < objects.size(); ++i) {
      if (!ObjectCodec<T>::ToBytes(objects[i], bytes.owned[i])) {
        bytes.fault = UnserializableObject(i);
      }
    }
    bytes.views.assign(bytes.owned.begin(), bytes.owned.end());
  }
  return bytes;
}

template <Object T>
void ParseObject(std::string bytes, T& object, const ObjectSource& source,
                 size_t index = 0) {
  if constexpr (std::same_as<T, std::string>) {
    object = std::move(bytes);
  } else {
    if (!ObjectCodec<T>::FromBytes(bytes, object)) {
      ThrowUnparsableObject(source, index, bytes.size());
    }
  }
}

template <Object T>
void ParseObjects(std::vector<std::string> bytes, std::vector<T>& objects,
                  const ObjectSource& source) {
  objects.resize(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    ParseObject(std::move(bytes[i]), objects[i], source, i);
  }
}

// The functions below on bytes. Nothing comes where there is nothing to write:
// on the source, on ranks that are not the destination, on who is not a member.
std::optional<std::vector<std::string>> BroadcastBytes(
    const ObjectBytes& objects, const RankArgument& src,
    const ObjectOptions& options);
std::optional<std::vector<std::string>> AllGatherBytes(
    const ObjectBytes& object, const ObjectOptions& options);
std::optional<std::vector<std::string>> GatherBytes(
    const ObjectBytes& object, bool has_list, const RankArgument& dst,
    const ObjectOptions& options);
std::optional<std::string> ScatterBytes(size_t outputs,
                                        const ObjectBytes& objects,
                                        const RankArgument& src,
                                        const ObjectOptions& options);
void SendBytes(const ObjectBytes& objects, std::optional<int> dst,
               const ObjectSendOptions& options);
// The rank that they have come from, or -1.
std::pair<int, std::vector<std::string>> RecvBytes(
    size_t count, std::optional<int> src, const ObjectRecvOptions& options);

}  // namespace internal

// All of them wait until they are complete, and are made of several collectives
// of the group, so that two threads may not run them there at a time. Memory is
// bounded by the sum of the objects' sizes: those are exchanged first.
//
// Throw what Work::Wait throws, and DistError, kInvalidArgument: bad arguments,
// objects that are too large or cannot be serialized, ranks that do not run the
// same. All ranks of the group throw then, nothing was sent, and the group is
// as before; but bytes that a receiver cannot parse (kDataLoss) are its alone.
//
// Ranks are global, or in the group where the options give them; without both
// it is global rank 0. On who is not in the group they warn and do nothing.

// `object_list` becomes that of rank `src`. It has the same length on all
// ranks.
template <Object T>
void BroadcastObjectList(std::vector<T>& object_list,
                         std::optional<int> src = std::nullopt,
                         const ObjectSourceOptions& options = {}) {
  const internal::RankArgument from = {src, options.group_src};
  auto bytes = internal::BroadcastBytes(
      internal::BytesOfObjects<T>(object_list), from,
      {options.group, options.timeout, options.object_bytes_max});
  if (bytes.has_value()) {
    internal::ParseObjects(*std::move(bytes), object_list,
                           {"broadcast_object_list", options.group, from});
  }
}

// `object_list` becomes all ranks' objects, by rank in the group.
template <Object T>
void AllGatherObject(std::vector<T>& object_list, const T& object,
                     const ObjectOptions& options = {}) {
  auto bytes = internal::AllGatherBytes(
      internal::BytesOfObjects<T>(std::span(&object, 1)), options);
  if (bytes.has_value()) {
    internal::ParseObjects(*std::move(bytes), object_list,
                           {"all_gather_object", options.group});
  }
}

// Rank `dst` gets all ranks' objects, by rank in the group, in
// `object_gather_list`, which is null on the others.
template <Object T>
void GatherObject(const T& object, std::vector<T>* object_gather_list = nullptr,
                  std::optional<int> dst = std::nullopt,
                  const ObjectDestinationOptions& options = {}) {
  auto bytes = internal::GatherBytes(
      internal::BytesOfObjects<T>(std::span(&object, 1)),
      object_gather_list != nullptr, {dst, options.group_dst},
      {options.group, options.timeout, options.object_bytes_max});
  if (bytes.has_value()) {
    internal::ParseObjects(*std::move(bytes), *object_gather_list,
                           {"gather_object", options.group});
  }
}

// The first of `scatter_object_output_list`, which has one at least, becomes
// this rank's of `scatter_object_input_list` of rank `src`, which has one for
// each rank of the group. Those of other ranks are ignored.
template <Object T>
void ScatterObjectList(std::vector<T>& scatter_object_output_list,
                       const std::vector<T>& scatter_object_input_list = {},
                       std::optional<int> src = std::nullopt,
                       const ObjectSourceOptions& options = {}) {
  const internal::RankArgument from = {src, options.group_src};
  auto bytes = internal::ScatterBytes(
      scatter_object_output_list.size(),
      internal::BytesOfObjects<T>(scatter_object_input_list), from,
      {options.group, options.timeout, options.object_bytes_max});
  if (bytes.has_value()) {
    internal::ParseObject(*std::move(bytes), scatter_object_output_list[0],
                          {"scatter_object_list", options.group, from});
  }
}

// Sends and receives; they have no order with collectives, and are made of two
// messages each of the tag.
//
// RecvObjectList gets as many objects as `object_list` has, from rank `src`,
// else from whoever sends first; returns who that was. If the sender's list is
// of another length it throws (kInvalidArgument) when it has received that.
// What cannot be a list of these objects, or is larger than object_bytes_max
// allows, is refused with who sent it in culprits() (kInvalidArgument,
// kDataLoss); objects that are too large in all are not received then, nor is
// what follows them with this tag.
template <Object T>
void SendObjectList(const std::vector<T>& object_list, std::optional<int> dst,
                    const ObjectSendOptions& options = {}) {
  internal::SendBytes(internal::BytesOfObjects<T>(object_list), dst, options);
}

template <Object T>
int RecvObjectList(std::vector<T>& object_list,
                   std::optional<int> src = std::nullopt,
                   const ObjectRecvOptions& options = {}) {
  auto [from, bytes] = internal::RecvBytes(object_list.size(), src, options);
  if (from >= 0) {
    internal::ParseObjects(std::move(bytes), object_list,
                           {"recv_object_list", options.group,
                            internal::RankArgument{.global = from}});
  }
  return from;
}

// The same of one object.
template <Object T>
void SendObject(const T& object, std::optional<int> dst,
                const ObjectSendOptions& options = {}) {
  internal::SendBytes(internal::BytesOfObjects<T>(std::span(&object, 1)), dst,
                      options);
}

template <Object T>
int RecvObject(T& object, std::optional<int> src = std::nullopt,
               const ObjectRecvOptions& options = {}) {
  auto [from, bytes] = internal::RecvBytes(1, src, options);
  if (from >= 0) {
    internal::ParseObject(std::move(bytes[0]), object,
                          {"recv_object_list", options.group,
                           internal::RankArgument{.global = from}});
  }
  return from;
}

}  // namespace muster

#endif  // MUSTER_CLIENT_OBJECTS_H_
