// SPDX-License-Identifier: Apache-2.0
//
// The shipped policies in their plainest form: vectors for lists, maps for data, linear searches. Model tests run each
// beside the real one.
//
// single-threaded
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "quire/policy.h"

namespace quire::testing {

/// The twin of a policy of that name; the name must be one of policy_names().
[[nodiscard]] std::unique_ptr<Policy> make_policy_twin(std::string_view name);

/// Passes every hook to two policies and compares what they answer. It also knows what every policy must keep to: a
/// victim is idle, and, where it names leaves by itself, has no children.
class ComparedPolicies final : public Policy {
 public:
  explicit ComparedPolicies(std::string_view name)
      : real_(*make_policy(name)), twin_(make_policy_twin(name)), names_leaves_(name != "arc") {}

  [[nodiscard]] Status reserve(const PolicyLimits& limits) override;
  [[nodiscard]] bool wants_fingerprints() const override { return real_->wants_fingerprints(); }
  void on_seal(RunId run, const PageChange& added) override;
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override;
  void on_use(RunId run, const Retention& retention) override;
  bool on_retain(RunId run, const Retention& retention) override;
  void on_pin(RunId run) override;
  void on_idle(RunId run) override;
  void on_branch(RunId run) override;
  void on_leaf(RunId run) override;
  void on_trim(RunId run, const PageChange& lost) override;
  void on_remove(RunId run, const PageChange& lost) override;
  void on_advance(TimeNs now) override;
  [[nodiscard]] std::optional<RunId> next_victim() override;
  [[nodiscard]] std::uint32_t idle_run_count() const override { return real_->idle_run_count(); }

  /// "" or what differed first.
  [[nodiscard]] const std::string& difference() const { return difference_; }

 private:
  std::unique_ptr<Policy> real_;
  std::unique_ptr<Policy> twin_;
  bool names_leaves_;
  std::set<std::uint32_t> idle_;
  std::set<std::uint32_t> parents_;
  std::string difference_;
};

}  // namespace quire::testing
