// SPDX-License-Identifier: Apache-2.0
//
// Summary: what quire bench shows of a run. It sets each figure of interest beside the limit or the alternative that
// was measured in the same run, and beside what the design asks for. On standard output, one line per event, with tabs
// between the fields:
//
//   row     WHAT  QUIRE  BESIDE  RATIO  TARGET  ok, short or nothing
//   failed  NAME  MESSAGE
//   done    NAME, after all its rows that wait for nothing else
#pragma once

#include <benchmark/benchmark.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks.h"

namespace quire::bench {

/// A counter of a benchmark.
struct Figure {
  std::string benchmark;
  std::string counter;
  auto operator<=>(const Figure&) const = default;
};

enum class Bound : std::uint8_t { AtMost, AtLeast };

struct Target {
  double value = 0;
  Bound bound = Bound::AtMost;
};

/// What is measured in the same unit, to divide by.
struct Beside {
  std::string name;
  Figure figure;
};

struct Row {
  std::string what;
  Figure figure;
  std::string unit;
  std::vector<Beside> beside;
  std::optional<Target> target;        ///< for the figure
  std::optional<Target> ratio_target;  ///< for its ratio to the first that is beside it
};

class Summary final : public benchmark::BenchmarkReporter {
 public:
  explicit Summary(const Effort& effort);

  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override;
  /// Rows that wait for something which did not run come without it.
  void Finalize() override;

 private:
  [[nodiscard]] std::optional<double> measured(const Figure& figure) const;
  void print(const Row& row, double value);

  std::vector<Row> rows_;                           // that have not been printed
  std::map<Figure, std::vector<double>> measured_;  // one value per repetition
};

}  // namespace quire::bench
