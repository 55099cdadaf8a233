#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LOSS_CURVE_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LOSS_CURVE_H_

#include <cstdint>
#include <fstream>
#include <string>

namespace muster::examples {

// LossCurve is a file with a line for each step: its number, from 1 on, and its
// loss.
class LossCurve {
 public:
  // Keeps the lines of the first `steps` steps, after which a training goes on.
  // An empty path: no file. Throws std::runtime_error, with the path.
  LossCurve(const std::string& path, int64_t steps);

  void Add(int64_t step, double loss);

 private:
  std::ofstream file_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LOSS_CURVE_H_
