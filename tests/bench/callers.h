// The measured operations.

#ifndef MUSTER_TESTS_BENCH_CALLERS_H_
#define MUSTER_TESTS_BENCH_CALLERS_H_

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "muster/session.h"
#include "tests/bench/load.h"

namespace muster::bench {

// A separate connection, as separate processes would have.
std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address);

// A session with the coordinator's job `bench`.
std::shared_ptr<Session> Connect(const std::string& address);

// `echo unary`, `set unary`, `get unary`, `echo stream`, `set stream`, `get
// stream` or `add stream`, over a connection of its own. `caller` makes the
// key. Throws on an unknown kind and on failure.
Operation MakeOperation(const std::string& kind, const std::string& address,
                        const std::string& payload, int caller);

// `set`, `get` or `add` over a session that may be shared.
Operation StoreOperation(std::shared_ptr<Session> session,
                         const std::string& verb, const std::string& payload,
                         int caller);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_CALLERS_H_
