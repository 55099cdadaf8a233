#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/parallel/agreement/agreement.h"
#include "client/parallel/dtensor/tensor_memory.h"
#include "client/parallel/tensor/arguments.h"
#include "muster/tensor_parallel.h"

namespace muster {
namespace {

// Rows of numbers that are read and written as doubles.
class Rows {
 public:
  // `width` is the length of a row.
  Rows(const Tensor& tensor, int64_t width)
      : type_(tensor.data_type()),
        data_(static_cast<std::byte*>(tensor.data())),
        width_(width),
        row_bytes_(static_cast<size_t>(width) * tensor.element_bytes()) {}

  void Read(size_t row, std::vector<double>& values) const {
    internal::ToDoubles(type_, data_ + row * row_bytes_, width_, values.data());
  }
  void Write(size_t row, const std::vector<double>& values) const {
    internal::FromDoubles(type_, values.data(), width_,
                          data_ + row * row_bytes_);
  }

 private:
  const DataType type_;
  std::byte* const data_;
  const int64_t width_;
  const size_t row_bytes_;
};

// The largest element; NaN if there is one; -infinity if there is none.
double FindLargest(const std::vector<double>& values) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const double value : values) {
    if (std::isnan(value)) return value;
    largest = std::max(largest, value);
  }
  return largest;
}

// Where the target's logit is in this rank's part of its row; -1: elsewhere.
int64_t FindTarget(int64_t target, const VocabularyRange& range) {
  const int64_t at = target - range.first;
  return at < range.count ? std::max<int64_t>(at, -1) : -1;
}

// FNV-1a, of numbers in place of bytes.
std::string HashText(std::span<const int64_t> ids) {
  uint64_t hash = 14695981039346656037U;
  for (const int64_t id : ids) {
    hash = (hash ^ static_cast<uint64_t>(id)) * 1099511628211U;
  }
  return absl::StrCat(absl::Hex(hash));
}

}  // namespace

void ParallelCrossEntropyForward(const Tensor& loss, const Tensor& softmax,
                                 const Tensor& logits, const Tensor& targets,
                                 int64_t vocabulary,
                                 const TensorParallelOptions& options) {
  constexpr auto kFunction = "ParallelCrossEntropyForward";
  const auto group = internal::FindGroup(options, kFunction);
  if (group == nullptr) return;
  VocabularyRange range;
  std::span<const int64_t> ids;
  const auto check = [&](internal::Agreement& agreement) {
    range = GetVocabularyRange(vocabulary, options);
    internal::CheckFloats("loss", loss);
    internal::CheckFloats("softmax", softmax);
    internal::CheckFloats("logits", logits);
    ids = internal::CheckIds("targets", targets, vocabulary);
    internal::CheckShape("loss", loss, targets.shape(), {});
    internal::CheckShape("softmax", softmax, targets.shape(), {range.count});
    internal::CheckShape("logits", logits, targets.shape(), {range.count});
    internal::CheckSameType("softmax", softmax, "logits", logits);
    agreement.Add("argument vocabulary", absl::StrCat(vocabulary));
    agreement.Add("argument targets",
                  absl::StrCat(internal::DescribeForAllRanks(targets),
                               " with the hash ", HashText(ids)));
  };
  internal::CheckOnAllRanks(
      group, kFunction, dataplane::CollectiveKind::kAllReduce, options, check);

  const Rows in(logits, range.count);
  const Rows out(softmax, range.count);
  std::vector<double> row(static_cast<size_t>(range.count));
  std::vector<double> largest(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    in.Read(i, row);
    largest[i] = FindLargest(row);
  }
  group->AllReduce(largest, {.op = ReduceOp::kMax});

  // The sums, then the targets' logits.
  std::vector<double> sums(2 * ids.size());
  const std::span<double> target_logits = std::span(sums).subspan(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    in.Read(i, row);
    for (const double value : row) sums[i] += std::exp(value - largest[i]);
    const int64_t at = FindTarget(ids[i], range);
    if (at >= 0) target_logits[i] = row[static_cast<size_t>(at)] - largest[i];
  }
  group->AllReduce(sums);

  std::vector<double> losses(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    losses[i] = std::log(sums[i]) - target_logits[i];
    in.Read(i, row);
    for (double& value : row) value = std::exp(value - largest[i]) / sums[i];
    out.Write(i, row);
  }
  internal::FromDoubles(loss.data_type(), losses.data(),
                        static_cast<int64_t>(losses.size()), loss.data());
}

void ParallelCrossEntropyBackward(const Tensor& logits_gradient,
                                  const Tensor& softmax, const Tensor& targets,
                                  const Tensor& loss_gradient,
                                  int64_t vocabulary,
                                  const TensorParallelOptions& options) {
  if (internal::FindGroup(options, "ParallelCrossEntropyBackward") == nullptr) {
    return;
  }
  const VocabularyRange range = GetVocabularyRange(vocabulary, options);
  internal::CheckFloats("logits_gradient", logits_gradient);
  internal::CheckFloats("softmax", softmax);
  internal::CheckFloats("loss_gradient", loss_gradient);
  const auto ids = internal::CheckIds("targets", targets, vocabulary);
  internal::CheckShape("logits_gradient", logits_gradient, targets.shape(),
                       {range.count});
  internal::CheckShape("softmax", softmax, targets.shape(), {range.count});
  internal::CheckShape("loss_gradient", loss_gradient, targets.shape(), {});

  const Rows in(softmax, range.count);
  const Rows out(logits_gradient, range.count);
  std::vector<double> factors(ids.size());
  internal::ToDoubles(loss_gradient.data_type(), loss_gradient.data(),
                      static_cast<int64_t>(ids.size()), factors.data());
  std::vector<double> row(static_cast<size_t>(range.count));
  for (size_t i = 0; i < ids.size(); ++i) {
    in.Read(i, row);
    const int64_t at = FindTarget(ids[i], range);
    if (at >= 0) row[static_cast<size_t>(at)] -= 1;
    for (double& value : row) value *= factors[i];
    out.Write(i, row);
  }
}

}  // namespace muster
