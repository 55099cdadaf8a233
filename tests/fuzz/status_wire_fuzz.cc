// Decodes statuses from a hostile coordinator, or one of another version.

#include <string>

#include "grpcpp/support/status.h"
#include "muster/base/status.h"
#include "muster/v1/common.pb.h"
#include "proto/muster/v1/status_wire.h"
#include "tests/fuzz/fuzz.h"

namespace muster::fuzz {

void FuzzOne(absl::string_view input) {
  v1::WireStatus wire;
  if (wire.ParseFromArray(input.data(), static_cast<int>(input.size()))) {
    const Status status = v1::FromWire(wire);
    Require(status.ok() == (wire.code() == 0), "OK made of an error");
    const Status again = v1::FromWire(v1::ToWire(status));
    Require(again == status, "a status that changes on its way");
    if (!status.ok()) {
      const grpc::Status trailers = v1::ToGrpc(status);
      Require(trailers.error_details().size() <= 8192, "trailers too large");
      Require(v1::FromGrpc(trailers).code() == status.code(),
              "a code that changes on its way");
      if (const auto culprits = v1::GetCulprits(status)) {
        const v1::Culprits fitting = v1::FitCulprits(*culprits, 100);
        Require(fitting.SerializeAsString().size() <= 110,
                "culprits that do not fit");
        Require(fitting.others_size() % 2 == 0 && fitting.omitted() >= 0,
                "ranges that nobody can mean");
        for (int i = 0; i + 1 < fitting.others_size(); i += 2) {
          Require(
              fitting.others(i + 1) > 0 && (i == 0 || fitting.others(i) > 0),
              "ranges that are not merged");
        }
      }
    }
  }
  // Uses the input as the details of a failed call, which anybody may send.
  const grpc::Status foreign(grpc::UNAVAILABLE, "x", std::string(input));
  Require(v1::FromGrpc(foreign).code() == StatusCode::kUnavailable,
          "details that change the code");
}

}  // namespace muster::fuzz
