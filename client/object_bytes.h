// Objects as byte strings, as they travel. For objects.cc alone.

#ifndef MUSTER_CLIENT_OBJECT_BYTES_H_
#define MUSTER_CLIENT_OBJECT_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "client/objects.h"
#include "client/process_group.h"

namespace muster::internal {

using Bytes = std::vector<std::string>;

// Views, which `bytes` outlives. Data goes out of the first, and is not
// changed.
Tensor ViewOf(absl::string_view bytes);
Tensor ViewOf(std::string& bytes);

int64_t TotalOf(const ObjectBytes& objects);
int64_t LargestOf(const ObjectBytes& objects);

// The text of an error.
std::string TooLarge(int64_t bytes, int64_t limit);

// Throws DistError: kInvalidArgument; `status`, with who is to blame.
[[noreturn]] void Invalid(std::string text);
[[noreturn]] void ThrowBlaming(const ProcessGroup& group, int global_rank,
                               const Status& status);

// The sizes of the objects, and then the objects.
std::string Concatenate(const ObjectBytes& objects);

// The other way. `all` comes from another rank: nothing in it is sure.
// Errors: kInvalidArgument (an object of more than `limit` bytes), kDataLoss.
StatusOr<Bytes> TakeApart(absl::string_view all, size_t count, int64_t limit);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_OBJECT_BYTES_H_
