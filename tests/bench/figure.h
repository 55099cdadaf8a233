#ifndef MUSTER_TESTS_BENCH_FIGURE_H_
#define MUSTER_TESTS_BENCH_FIGURE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace muster::bench {

// One measured value, its reference, and its target.
struct Figure {
  std::string name{};
  double value = 0;
  std::string unit{};
  // Empty and 0: there is no reference.
  std::string reference{};
  double reference_value = 0;
  // For the ratio to the reference, or for the value if there is none; 0: no
  // target.
  double target = 0;
  bool less_is_better = true;

  double Ratio() const;
  bool Met() const;
};

// {name, value, unit, reference, reference_value, ratio, target, met}; missing
// values are null.
nlohmann::json ToJson(const std::vector<Figure>& figures);

// Prints a line for each figure that has a target or no reference.
void PrintTargets(const std::vector<Figure>& figures);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_FIGURE_H_
