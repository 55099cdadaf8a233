#ifndef MUSTER_DATAPLANE_TESTING_TENSOR_COPIES_H_
#define MUSTER_DATAPLANE_TESTING_TENSOR_COPIES_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "dataplane/collective.h"
#include "dataplane/tensor.h"

namespace muster::dataplane::testing {

// Where copies are: memory that tests do not have their tensors in.
struct CopyPlace {
  Device device = {};
  // Not null.
  std::function<void*(size_t bytes)> allocate;
  std::function<void(void* memory)> free;
  // To there or from there.
  std::function<void(void* to, const void* from, size_t bytes)> copy;
};

// Copies of one collective's tensors, in another place. Tensors that share
// memory do so there, too.
class TensorCopies {
 public:
  TensorCopies(const Collective& collective, CopyPlace place);
  ~TensorCopies();

  TensorCopies(const TensorCopies&) = delete;
  TensorCopies& operator=(const TensorCopies&) = delete;

  // The collective with the copies.
  Collective There() const;

  // What was written comes back.
  void TakeBack();

 private:
  // Memory, and its copy.
  struct Piece {
    char* begin = nullptr;
    char* end = nullptr;
    char* copy = nullptr;
  };

  void* CopyOf(const Tensor& tensor) const;

  const Collective here_;
  const CopyPlace place_;
  std::vector<Piece> pieces_;
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_TENSOR_COPIES_H_
