#include "tests/bench/figure.h"

#include <iostream>

#include "absl/strings/str_format.h"

namespace muster::bench {

double Figure::Ratio() const {
  return reference_value > 0 ? value / reference_value : 0;
}

bool Figure::Met() const {
  const double judged = reference.empty() ? value : Ratio();
  return less_is_better ? judged <= target : judged >= target;
}

nlohmann::json ToJson(const std::vector<Figure>& figures) {
  nlohmann::json list = nlohmann::json::array();
  for (const Figure& figure : figures) {
    nlohmann::json json = {
        {"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}};
    const bool compared = !figure.reference.empty();
    json["reference"] = compared ? nlohmann::json(figure.reference) : nullptr;
    json["reference_value"] =
        compared ? nlohmann::json(figure.reference_value) : nullptr;
    json["ratio"] = compared ? nlohmann::json(figure.Ratio()) : nullptr;
    const bool wanted = figure.target > 0;
    json["target"] = wanted ? nlohmann::json(figure.target) : nullptr;
    json["met"] = wanted ? nlohmann::json(figure.Met()) : nullptr;
    list.push_back(std::move(json));
  }
  return list;
}

void PrintTargets(const std::vector<Figure>& figures) {
  for (const Figure& figure : figures) {
    const bool wanted = figure.target > 0;
    // The other figures are in the table.
    if (!wanted && !figure.reference.empty()) continue;
    const char* const verdict = figure.Met() ? "met" : "MISSED";
    std::cout << absl::StrFormat("%-6s %s: %.6g %s", wanted ? verdict : "",
                                 figure.name, figure.value, figure.unit);
    if (!wanted) {
      std::cout << "\n";
      continue;
    }
    if (!figure.reference.empty()) {
      std::cout << absl::StrFormat(", %.2f x %s", figure.Ratio(),
                                   figure.reference);
    }
    std::cout << absl::StrFormat(" (wanted: at %s %g)\n",
                                 figure.less_is_better ? "most" : "least",
                                 figure.target);
  }
}

}  // namespace muster::bench
