#include "client/object_bytes.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/errors.h"
#include "client/groups/group_state.h"

namespace muster::internal {

Tensor ViewOf(absl::string_view bytes) {
  return {const_cast<char*>(bytes.data()),
          DataType::kUint8,
          {static_cast<int64_t>(bytes.size())}};
}

Tensor ViewOf(std::string& bytes) {
  return {bytes.data(), DataType::kUint8, {static_cast<int64_t>(bytes.size())}};
}

int64_t TotalOf(const ObjectBytes& objects) {
  int64_t total = 0;
  for (const absl::string_view object : objects.views) {
    total += static_cast<int64_t>(object.size());
  }
  return total;
}

int64_t LargestOf(const ObjectBytes& objects) {
  size_t largest = 0;
  for (const absl::string_view object : objects.views) {
    largest = std::max(largest, object.size());
  }
  return static_cast<int64_t>(largest);
}

std::string TooLarge(int64_t bytes, int64_t limit) {
  return absl::StrCat("an object of ", bytes,
                      " bytes is larger than object_bytes_max (", limit, ")");
}

void ThrowBlaming(const ProcessGroup& group, int global_rank,
                  const Status& status) {
  MemberInfo culprit{.rank = global_rank};
  for (const Seat& seat : group.state()->options().seats) {
    if (seat.rank != global_rank) continue;
    culprit.member = seat.member;
    culprit.host = seat.host;
    culprit.pid = seat.pid;
  }
  Throw(Origin::kControl, WithCulprits(status, {{culprit}}));
}

std::string Concatenate(const ObjectBytes& objects) {
  std::string all;
  all.reserve(objects.views.size() * sizeof(int64_t) +
              static_cast<size_t>(TotalOf(objects)));
  for (const absl::string_view object : objects.views) {
    const auto size = static_cast<int64_t>(object.size());
    all.append(reinterpret_cast<const char*>(&size), sizeof(size));
  }
  for (const absl::string_view object : objects.views) {
    all.append(object.data(), object.size());
  }
  return all;
}

StatusOr<Bytes> TakeApart(absl::string_view all, size_t count, int64_t limit) {
  if (all.size() / sizeof(int64_t) < count) {
    return DataLossError(absl::StrCat(all.size(),
                                      " bytes have no room for the sizes of ",
                                      count, " objects"));
  }
  Bytes objects(count);
  size_t at = count * sizeof(int64_t);
  for (size_t i = 0; i < count; ++i) {
    int64_t size = 0;
    std::memcpy(&size, all.data() + i * sizeof(size), sizeof(size));
    if (size > limit) {
      return InvalidArgumentError(
          absl::StrCat("object ", i, ": ", TooLarge(size, limit)));
    }
    if (size < 0 || static_cast<size_t>(size) > all.size() - at) {
      return DataLossError(absl::StrCat(
          "object ", i, " of ", count, " is said to have ", size, " bytes, ",
          all.size() - at, " are left of those that came"));
    }
    objects[i] = std::string(all.substr(at, static_cast<size_t>(size)));
    at += static_cast<size_t>(size);
  }
  if (at != all.size()) {
    return DataLossError(absl::StrCat(
        all.size() - at, " bytes came after the last of ", count, " objects"));
  }
  return objects;
}
}  // namespace muster::internal
