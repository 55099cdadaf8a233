#include "client/examples/transformer/loss_curve.h"

#include <cstdlib>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace muster::examples {

LossCurve::LossCurve(const std::string& path, int64_t steps) {
  if (path.empty()) return;
  std::ostringstream kept;
  std::ifstream before(path);
  std::string line;
  while (std::getline(before, line)) {
    if (std::atoll(line.c_str()) <= steps) kept << line << "\n";
  }
  file_.open(path, std::ios::trunc);
  file_.precision(std::numeric_limits<double>::max_digits10);
  file_ << kept.str() << std::flush;
  if (!file_) throw std::runtime_error("cannot write \"" + path + "\"");
}

void LossCurve::Add(int64_t step, double loss) {
  // The file has the line even if this process is killed.
  if (file_.is_open()) file_ << step << " " << loss << std::endl;
}

}  // namespace muster::examples
