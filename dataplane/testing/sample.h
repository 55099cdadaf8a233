#ifndef MUSTER_DATAPLANE_TESTING_SAMPLE_H_
#define MUSTER_DATAPLANE_TESTING_SAMPLE_H_

#include <complex>
#include <cstddef>
#include <vector>

#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::testing {

// Every kind that has tensors and is started by all ranks.
std::vector<CollectiveKind> KindsWithTensors();

struct SampleOptions {
  int rank = 0;
  int world_size = 1;
  // Elements of one rank's part: the reduced elements, or those for one rank.
  size_t count = 8;
  DataType data_type = DataType::kFloat32;
  int root = 0;
};

// A valid collective of any kind with its memory, which holds zeros. A send
// goes to the next rank; a receive comes from the one before.
class Sample {
 public:
  Sample(CollectiveKind kind, const SampleOptions& options);

  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  Collective collective;

 private:
  Tensor Add(size_t count);
  void AddList(Collective::Tensors& list, TensorList layout);

  const SampleOptions options_;
  // std::complex<double> is aligned for every type.
  std::vector<std::vector<std::complex<double>>> memory_;
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_SAMPLE_H_
