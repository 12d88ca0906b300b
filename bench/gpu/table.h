// SPDX-License-Identifier: Apache-2.0
//
// The table that the GPU benchmarks end with: each figure with the limit or the alternative of the same run beside it,
// and the target where there is one.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::bench {

struct Row {
  std::string what;
  double value = 0;
  std::string unit;
  std::string beside;           ///< what it is held against, with its figure
  std::optional<double> ratio;  ///< of the value to that
  std::string target;           ///< as people say it; empty: there is none
  std::optional<bool> is_met;
};

class Table {
 public:
  void section(std::string name);
  void add(Row row);
  void note(std::string text);
  /// Prints what was added since the last call to the error output, so that somebody who waits sees something.
  void print_new();
  void print() const;
  /// Rows with a target that was missed.
  [[nodiscard]] int missed_count() const;
  /// Says that a target was not measured, and why.
  void not_measured(std::string what);
  [[nodiscard]] int not_measured_count() const { return not_measured_; }

 private:
  struct Line {
    bool is_row = false;
    std::string text;  // of a section or a note
    Row row;
  };
  static void print_line(std::FILE* to, const Line& line);
  std::vector<Line> lines_;
  std::size_t printed_ = 0;
  int not_measured_ = 0;
};

[[nodiscard]] std::string text_of(double value, int digits = 1);

}  // namespace quire::bench
