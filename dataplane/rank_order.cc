#include "dataplane/rank_order.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/culprit.h"

namespace muster::dataplane {
namespace {

constexpr std::align_val_t kAlignment{64};

// The elements that are combined at once: they stay in the nearest cache.
constexpr size_t kAtOnceBytes = 16 << 10;

Status Threw(const ReduceFunction& function, int rank, absl::string_view what) {
  Status status = InternalError(
      absl::StrCat("rank ", rank, ": the reduction ",
                   base::Quote(function.options().name), " threw ", what));
  SetCulpritRank(status, rank);
  return status;
}

}  // namespace

void RankOrderOperands::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, kAlignment);
}

void RankOrderOperands::Reset(int world_size, size_t count,
                              size_t element_bytes) {
  world_size_ = world_size;
  count_ = count;
  element_bytes_ = element_bytes;
  const size_t bytes = static_cast<size_t>(world_size) * count * element_bytes;
  if (bytes <= memory_bytes_) return;
  memory_.reset();
  memory_bytes_ = 0;
  memory_.reset(static_cast<std::byte*>(::operator new[](bytes, kAlignment)));
  memory_bytes_ = bytes;
}

StatusOr<const std::byte*> RankOrderOperands::Combine(
    const ReduceFunction& function, int rank) {
  std::byte* const result = of(world_size_ - 1);
  const size_t at_once = std::max<size_t>(kAtOnceBytes / element_bytes_, 1);
  try {
    for (size_t done = 0; done < count_; done += at_once) {
      const size_t count = std::min(at_once, count_ - done);
      const size_t offset = done * element_bytes_;
      for (int operand = world_size_ - 2; operand >= 0; --operand) {
        function(of(operand) + offset, result + offset, count);
      }
    }
  } catch (const std::exception& error) {
    return Threw(function, rank, base::Quote(error.what()));
  } catch (...) {
    return Threw(function, rank, "something that is no std::exception");
  }
  return result;
}

}  // namespace muster::dataplane
