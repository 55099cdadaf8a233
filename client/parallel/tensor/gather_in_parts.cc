// An all_gather as a ring, whose parts are used as they come.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <vector>

#include "client/control/throw.h"
#include "client/parallel/agreement/agreement.h"
#include "client/parallel/tensor/arguments.h"
#include "muster/base/status.h"
#include "muster/placement.h"
#include "muster/tensor_parallel.h"

namespace muster {

void GatherSequenceInParts(
    const Tensor& output, const Tensor& input,
    const std::function<void(const Tensor& rows, int64_t first_row)>& compute,
    const TensorParallelOptions& options) {
  constexpr auto kFunction = "GatherSequenceInParts";
  const auto group = internal::FindGroup(options, kFunction);
  if (group == nullptr) return;
  const std::vector<int64_t> shape(output.shape().begin(),
                                   output.shape().end());
  const int ranks = group->size();
  const auto find_box = [&](int rank) {
    return ComputeShardBox(shape, {Shard(0)}, {ranks}, {rank});
  };
  const auto find_rows = [&](int rank) {
    const ShardBox box = find_box(rank);
    const size_t row_bytes =
        shape[0] == 0 ? 0 : output.bytes() / static_cast<size_t>(shape[0]);
    return Tensor(static_cast<std::byte*>(output.data()) +
                      static_cast<size_t>(box.offsets[0]) * row_bytes,
                  output.data_type(), box.lengths);
  };
  const int own = group->rank();
  const auto check = [&](internal::Agreement& agreement) {
    internal::CheckHost("output", output);
    internal::CheckHost("input", input);
    internal::CheckSameType("output", output, "input", input);
    if (options.dim != 0) {
      internal::Invalid("argument dim: parts are rows, along dimension 0");
    }
    internal::CheckShape("input", input, find_box(own).lengths, {});
    agreement.Add("argument output", internal::DescribeForAllRanks(output));
  };
  internal::CheckOnAllRanks(
      group, kFunction, dataplane::CollectiveKind::kAllGather, options, check);
  if (input.bytes() > 0 && find_rows(own).data() != input.data()) {
    std::memcpy(find_rows(own).data(), input.data(), input.bytes());
  }

  std::exception_ptr failure;
  const int next = (own + 1) % ranks;
  const int previous = (own + ranks - 1) % ranks;
  for (int step = 0; step < ranks; ++step) {
    const int rank = (own + ranks - step) % ranks;
    const Tensor rows = find_rows(rank);
    const Tensor coming = find_rows((rank + ranks - 1) % ranks);
    Work sent;
    Work received;
    const bool is_last = step + 1 == ranks;
    if (!is_last && coming.element_count() > 0) {
      received =
          group->Irecv(coming, {}, {.tag = kGatherTag, .group_src = previous});
    }
    if (!is_last && rows.element_count() > 0) {
      sent = group->Isend(rows, {}, {.tag = kGatherTag, .group_dst = next});
    }
    try {
      if (failure == nullptr) compute(rows, find_box(rank).offsets[0]);
    } catch (...) {
      failure = std::current_exception();
    }
    received.Wait();
    sent.Wait();
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace muster
