#include "dataplane/testing/tensor_copies.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace muster::dataplane::testing {

TensorCopies::TensorCopies(const Collective& collective, CopyPlace place)
    : here_(collective), place_(std::move(place)) {
  std::vector<Piece> all;
  for (const auto* list : {&here_.tensors, &here_.inputs, &here_.outputs}) {
    for (const Tensor& tensor : *list) {
      char* const begin = static_cast<char*>(tensor.data());
      if (tensor.bytes() > 0) {
        all.push_back({.begin = begin, .end = begin + tensor.bytes()});
      }
    }
  }
  // Merges ranges that overlap or touch.
  std::sort(all.begin(), all.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  for (const Piece& piece : all) {
    if (!pieces_.empty() && piece.begin <= pieces_.back().end) {
      pieces_.back().end = std::max(pieces_.back().end, piece.end);
    } else {
      pieces_.push_back(piece);
    }
  }
  for (Piece& piece : pieces_) {
    const auto bytes = static_cast<size_t>(piece.end - piece.begin);
    piece.copy = static_cast<char*>(place_.allocate(bytes));
    place_.copy(piece.copy, piece.begin, bytes);
  }
}

TensorCopies::~TensorCopies() {
  for (const Piece& piece : pieces_) place_.free(piece.copy);
}

Collective TensorCopies::There() const {
  Collective collective = here_;
  for (auto* list :
       {&collective.tensors, &collective.inputs, &collective.outputs}) {
    for (Tensor& tensor : *list) {
      tensor = Tensor(FindCopy(tensor), tensor.data_type(), tensor.shape(),
                      place_.device);
    }
  }
  return collective;
}

void TensorCopies::TakeBack() {
  for (const auto* list : {&here_.tensors, &here_.outputs}) {
    for (const Tensor& tensor : *list) {
      if (tensor.bytes() == 0) continue;
      place_.copy(tensor.data(), FindCopy(tensor), tensor.bytes());
    }
  }
}

void* TensorCopies::FindCopy(const Tensor& tensor) const {
  char* const begin = static_cast<char*>(tensor.data());
  for (const Piece& piece : pieces_) {
    if (tensor.bytes() > 0 && begin >= piece.begin && begin < piece.end) {
      return piece.copy + (begin - piece.begin);
    }
  }
  return nullptr;
}

}  // namespace muster::dataplane::testing
