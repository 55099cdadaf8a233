// Collectives of objects: byte strings, and types that have an ObjectCodec.
//
//   std::vector<std::string> names;
//   muster::AllGatherObject(names, std::string("trainer-3"));

#ifndef MUSTER_OBJECTS_H_
#define MUSTER_OBJECTS_H_

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

#include "muster/base/export.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// Converts objects to byte strings and back. object_messages.h defines it for
// messages of protobuf; a program may define it for its own types:
//
//   template <>
//   struct muster::ObjectCodec<Config> {
//     static bool ToBytes(const Config& object, std::string& bytes);
//     static bool FromBytes(const std::string& bytes, Config& object);
//   };
//
// A function returns false if it cannot convert the object or the bytes.
template <typename T>
struct ObjectCodec;

// A type that can be sent: a byte string, or a type with an ObjectCodec.
template <typename T>
concept Object = std::same_as<T, std::string> ||
    requires(const T& from, T& to, std::string& out, const std::string& bytes) {
  { ObjectCodec<T>::ToBytes(from, out) } -> std::convertible_to<bool>;
  { ObjectCodec<T>::FromBytes(bytes, to) } -> std::convertible_to<bool>;
};

struct ObjectOptions {
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // For the whole call; zero: the group's.
  std::chrono::milliseconds timeout{0};
  // The largest object, in bytes. The lowest value of all ranks applies.
  int64_t object_bytes_max = int64_t{1} << 30;
};

// Options of collectives in which one rank gives objects to all, or gets
// objects from all: those of ObjectOptions, and that rank's number in the
// group, instead of the argument `src` or `dst`.
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

// Options of sends and receives.
struct ObjectSendOptions {
  // Not negative. A send matches a receive with the same tag.
  int tag = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  // The largest object, in bytes. Each side applies its own value, which also
  // bounds the memory that a receiver takes.
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
  // Views of the objects themselves if these are byte strings, else of `owned`.
  std::vector<std::string_view> views = {};
  // Says which object could not be serialized; empty: all could.
  std::string fault = {};
};

std::string UnserializableObject(size_t index);

// The first number of a message that announces a list of objects.
inline constexpr int64_t kObjectsMagic = 0x6d75737465726f62;

// Says where objects come from, for error texts.
struct ObjectSource {
  const char* verb;
  // Null is the default group.
  std::shared_ptr<ProcessGroup> group;
  // If not given, the group's rank i gave object i.
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

// These functions do the work of the functions below, on bytes. They return
// nothing on a rank that has nothing to write: the source, a rank that is not
// the destination, or a rank that is not in the group.
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
// Also returns the rank that sent the objects, or -1.
std::pair<int, std::vector<std::string>> RecvBytes(
    size_t count, std::optional<int> src, const ObjectRecvOptions& options);

}  // namespace internal

// All these functions wait until they are complete. Each runs several
// collectives of the group, so two threads must not call them on one group at
// the same time. They take memory for the sum of the objects' sizes, which the
// ranks exchange first.
//
// They throw what Work::Wait throws, and DistError (kInvalidArgument) for bad
// arguments, for objects that are too large or cannot be serialized, and if
// ranks do not run the same function. Then all ranks of the group throw,
// nothing was sent, and the group goes on. If a receiver cannot parse the bytes
// (kDataLoss), that receiver alone throws.
//
// Ranks are global, or ranks in the group where the options give them; without
// both, the rank is global rank 0. On a rank that is not in the group the
// functions log a warning and do nothing.

// `object_list` becomes the list of rank `src`. It must have the same length on
// all ranks.
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

// `object_list` becomes the objects of all ranks, by rank in the group.
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

// On rank `dst`, `object_gather_list` becomes the objects of all ranks, by rank
// in the group. On the other ranks it must be null.
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

// The first element of `scatter_object_output_list`, which must not be empty,
// becomes this rank's element of the `scatter_object_input_list` of rank `src`,
// which has one for each rank of the group. The input lists of other ranks are
// ignored.
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

// Sends and receives. They have no order with collectives. A list is sent as
// several messages with the tag: one that announces it, and its bytes in
// pieces.
//
// RecvObjectList receives as many objects as `object_list` has, from rank
// `src`, or, if it is not given, from the rank that sends first. Returns that
// rank. If the sender's list has another length, it throws (kInvalidArgument)
// after it has received the list. It also refuses data that is not a list of
// these objects, and objects larger than object_bytes_max allows
// (kInvalidArgument, kDataLoss; the sender is in culprits()). Objects that are
// too large together are received without being kept, so the next list with
// this tag can be received.
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

// These functions send and receive one object.
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

#endif  // MUSTER_OBJECTS_H_
