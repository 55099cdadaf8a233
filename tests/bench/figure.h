#ifndef MUSTER_TESTS_BENCH_FIGURE_H_
#define MUSTER_TESTS_BENCH_FIGURE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace muster::bench {

// One measured value, what stands beside it, and what is wanted of it.
struct Figure {
  std::string name{};
  double value = 0;
  std::string unit{};
  // Empty and 0: nothing stands beside it.
  std::string reference{};
  double reference_value = 0;
  // Of the ratio to the reference, or of the value when there is none; 0: no
  // target is set.
  double target = 0;
  bool less_is_better = true;

  double Ratio() const;
  bool Met() const;
};

// {name, value, unit, reference, reference_value, ratio, target, met}; null
// stands for what there is not.
nlohmann::json ToJson(const std::vector<Figure>& figures);

// One line each of those that have a target or nothing beside them.
void PrintTargets(const std::vector<Figure>& figures);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_FIGURE_H_
