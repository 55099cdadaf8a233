#ifndef MUSTER_DATAPLANE_TESTING_TENSOR_COPIES_H_
#define MUSTER_DATAPLANE_TESTING_TENSOR_COPIES_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::testing {

// A kind of memory for copies of tensors.
struct CopyPlace {
  Device device = {};
  // Must not return null.
  std::function<void*(size_t bytes)> allocate;
  std::function<void(void* memory)> free;
  // Copies to or from that memory.
  std::function<void(void* to, const void* from, size_t bytes)> copy;
};

// Copies of one collective's tensors in other memory. Tensors that share memory
// share it there, too.
class TensorCopies {
 public:
  TensorCopies(const Collective& collective, CopyPlace place);
  ~TensorCopies();

  TensorCopies(const TensorCopies&) = delete;
  TensorCopies& operator=(const TensorCopies&) = delete;

  // The collective on the copies.
  Collective There() const;

  // Copies the written tensors back.
  void TakeBack();

 private:
  // A range of memory and its copy.
  struct Piece {
    char* begin = nullptr;
    char* end = nullptr;
    char* copy = nullptr;
  };

  void* FindCopy(const Tensor& tensor) const;

  const Collective here_;
  const CopyPlace place_;
  std::vector<Piece> pieces_;
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_TENSOR_COPIES_H_
