// SPDX-License-Identifier: Apache-2.0
//
// Summary: listens to a run of benchmarks and sets what was measured beside what the design asks for.
#pragma once

#include <benchmark/benchmark.h>

#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace quire::bench {

/// Passes everything on to the reporter that the command line chose, and remembers the counters.
class Summary final : public benchmark::BenchmarkReporter {
 public:
  explicit Summary(std::unique_ptr<benchmark::BenchmarkReporter> shown) : shown_(std::move(shown)) {}

  bool ReportContext(const Context& context) override { return shown_->ReportContext(context); }
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override { shown_->Finalize(); }

  /// One line for each target whose benchmark has run; nothing if none has.
  void print(std::ostream& out) const;

 private:
  /// The median over repetitions.
  [[nodiscard]] std::optional<double> measured(const std::string& benchmark, const std::string& counter) const;

  std::unique_ptr<benchmark::BenchmarkReporter> shown_;
  std::map<std::string, std::vector<double>> values_;  // by benchmark and counter
};

}  // namespace quire::bench
