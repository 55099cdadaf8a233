// The interface of a fuzz target: one function that takes any bytes.

#ifndef MUSTER_TESTS_FUZZ_FUZZ_H_
#define MUSTER_TESTS_FUZZ_FUZZ_H_

#include "absl/strings/string_view.h"

namespace muster::fuzz {

// Defined by the target. Ends the process on an error.
void FuzzOne(absl::string_view input);

// Ends the process with `what` unless `holds`.
void Require(bool holds, absl::string_view what);

}  // namespace muster::fuzz

#endif  // MUSTER_TESTS_FUZZ_FUZZ_H_
