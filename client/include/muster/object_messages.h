// Object collectives for messages of protobuf, and for other types that
// serialize themselves with functions of the same names.
//
//   std::vector<TrainerConfig> config(1);         // a protobuf message
//   if (muster::GetRank() == 0) config[0] = Read("trainer.textproto");
//   muster::BroadcastObjectList(config, /*src=*/0);

#ifndef MUSTER_OBJECT_MESSAGES_H_
#define MUSTER_OBJECT_MESSAGES_H_

#include <concepts>
#include <string>

#include "muster/base/export.h"
#include "muster/objects.h"

namespace MUSTER_EXPORT muster {

// A type that serializes itself, as every message of protobuf does.
template <typename T>
concept ObjectMessage = requires(const T& from, T& to, std::string* out,
                                 const std::string& bytes) {
  { from.SerializeToString(out) } -> std::convertible_to<bool>;
  { to.ParseFromString(bytes) } -> std::convertible_to<bool>;
};

template <ObjectMessage T>
struct ObjectCodec<T> {
  static bool ToBytes(const T& object, std::string& bytes) {
    return object.SerializeToString(&bytes);
  }
  static bool FromBytes(const std::string& bytes, T& object) {
    return object.ParseFromString(bytes);
  }
};

}  // namespace muster

#endif  // MUSTER_OBJECT_MESSAGES_H_
