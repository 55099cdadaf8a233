#include "coordinator/core/payload_bytes.h"

#include <string>
#include <variant>

namespace muster::coordinator::core {
namespace {

int64_t ValueBytes(const Value& value) {
  return value == nullptr ? 0 : static_cast<int64_t>(value->size());
}

struct Visitor {
  int64_t operator()(const ValueReply& r) const { return ValueBytes(r.value); }
  int64_t operator()(const ValuesReply& r) const {
    int64_t bytes = 0;
    for (const ValueReply& each : r.values) {
      bytes += static_cast<int64_t>(sizeof(each)) + ValueBytes(each.value);
    }
    return bytes;
  }
  int64_t operator()(const CompareSetReply& r) const {
    return ValueBytes(r.value);
  }
  int64_t operator()(const KeysReply& r) const {
    int64_t bytes = 0;
    for (const std::string& key : r.keys) {
      bytes += static_cast<int64_t>(sizeof(std::string) + key.size());
    }
    return bytes;
  }
  int64_t operator()(const WatchReply& r) const {
    int64_t bytes = 0;
    for (const auto& change : r.changes) {
      bytes += static_cast<int64_t>(sizeof(*change) + change->key.size()) +
               ValueBytes(change->value);
    }
    return bytes;
  }
  int64_t operator()(const BarrierReply& r) const {
    return r == nullptr ? 0 : CountBytes(*r);
  }
  int64_t operator()(const GroupsReply& r) const {
    return static_cast<int64_t>(sizeof(r.registered[0]) * r.registered.size());
  }
  int64_t operator()(const GroupFailureReply& r) const {
    if (r == nullptr) return 0;
    return static_cast<int64_t>(sizeof(*r) + r->error.text.size());
  }
  template <typename Other>
  int64_t operator()(const Other&) const {
    return 0;
  }
};

}  // namespace

int64_t HeldBytes(const Payload& payload) {
  return std::visit(Visitor(), payload);
}

}  // namespace muster::coordinator::core
