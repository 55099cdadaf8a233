// Shared by the tests of the state machines: artificial time, calls, and
// matchers for an outbox.

#ifndef MUSTER_COORDINATOR_CORE_TESTING_CORE_TEST_UTIL_H_
#define MUSTER_COORDINATOR_CORE_TESTING_CORE_TEST_UTIL_H_

#include <chrono>
#include <ostream>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "gmock/gmock.h"

namespace muster::coordinator::core {

using namespace std::chrono_literals;  // NOLINT(build/namespaces)

// The start of time in all tests.
inline const Instant t0{1000s};

// A call of a client without a name.
inline Call Anonymous(uint64_t waiter) {
  Call call;
  call.waiter = WaiterId(waiter);
  return call;
}

inline Call From(const std::string& member, uint64_t incarnation,
                 uint64_t waiter, uint64_t sequence = 0,
                 uint64_t acknowledged_through = 0) {
  Call call;
  call.member = MemberId(member);
  call.incarnation = Incarnation(incarnation);
  call.waiter = WaiterId(waiter);
  call.sequence = SequenceNumber(sequence);
  call.acknowledged_through = SequenceNumber(acknowledged_through);
  return call;
}

// Lets a failed expectation show the reply.
inline void PrintTo(const Reply& reply, std::ostream* out) {
  *out << "waiter " << reply.waiter.value() << " " << reply.status;
}

// The message as a std::string, for gmock's matchers.
inline std::string GetMessage(const Reply& reply) {
  return reply.status.message();
}

MATCHER_P2(AnsweredTo, waiter, code, "") {
  return arg.waiter == WaiterId(waiter) && arg.status.code() == code;
}

MATCHER_P3(FailedWith, waiter, code, text, "") {
  return arg.waiter == WaiterId(waiter) && arg.status.code() == code &&
         testing::Value(GetMessage(arg),
                        testing::SafeMatcherCast<std::string>(text));
}

MATCHER_P2(ValueTo, waiter, value, "") {
  const auto* reply = std::get_if<ValueReply>(&arg.payload);
  return arg.waiter == WaiterId(waiter) && arg.status.ok() &&
         reply != nullptr && reply->value != nullptr && *reply->value == value;
}

MATCHER_P2(NumberTo, waiter, number, "") {
  const auto* reply = std::get_if<NumberReply>(&arg.payload);
  return arg.waiter == WaiterId(waiter) && arg.status.ok() &&
         reply != nullptr && reply->number == number;
}

MATCHER_P2(FlagTo, waiter, flag, "") {
  const auto* reply = std::get_if<FlagReply>(&arg.payload);
  return arg.waiter == WaiterId(waiter) && arg.status.ok() &&
         reply != nullptr && reply->flag == flag;
}

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_TESTING_CORE_TEST_UTIL_H_
