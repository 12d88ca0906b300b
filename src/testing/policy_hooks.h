// SPDX-License-Identifier: Apache-2.0
//
// PolicyHooks: calls a policy's hooks as the prefix tree does, in the few words that tests of one policy need. Runs are
// numbers, and have as many pages as they are given; the fingerprint of a run's page i is run * 100 + i, as long as the
// test does not say otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "quire/policy.h"

namespace quire::testing {

class PolicyHooks {
 public:
  using Runs = std::vector<std::uint32_t>;

  PolicyHooks(std::string_view name, std::uint32_t page_count) : policy_(*make_policy(name)) {
    QUIRE_CHECK(policy_->reserve({.run_count_max = 1'000, .page_count_max = page_count}).has_value(), "reserving");
  }

  [[nodiscard]] Policy& operator*() { return *policy_; }
  [[nodiscard]] Policy* operator->() { return policy_.get(); }

  /// Seals pages of a run that stays pinned.
  void seal(std::uint32_t run, std::uint32_t page_count = 1, const Retention& retention = {}) {
    const std::vector<PageFingerprint> names = names_of(run, pages_[run], page_count);
    pages_[run] += page_count;
    policy_->on_seal(
        RunId{run},
        {.page_count = page_count, .pages_left = pages_[run], .fingerprints = names, .retention = retention});
  }
  /// Seals a run that then becomes idle.
  void add(std::uint32_t run, std::uint32_t page_count = 1, const Retention& retention = {}) {
    seal(run, page_count, retention);
    policy_->on_idle(RunId{run});
  }
  void use(std::uint32_t run, const Retention& retention = {}) {
    policy_->on_pin(RunId{run});
    policy_->on_use(RunId{run}, retention);
    policy_->on_idle(RunId{run});
  }
  void split(std::uint32_t suffix, std::uint32_t prefix, std::uint32_t prefix_pages) {
    pages_[prefix] = prefix_pages;
    pages_[suffix] -= prefix_pages;
    policy_->on_split(RunId{suffix}, RunId{prefix}, prefix_pages);
  }
  /// Takes the last pages of an idle run, all of them if it has no more.
  void evict(std::uint32_t run, std::uint32_t page_count) {
    pages_[run] -= page_count;
    const std::vector<PageFingerprint> names = names_of(run, pages_[run], page_count);
    const PageChange lost{.page_count = page_count, .pages_left = pages_[run], .fingerprints = names};
    if (pages_[run] > 0) return policy_->on_trim(RunId{run}, lost);
    pages_.erase(run);
    policy_->on_remove(RunId{run}, lost);
  }
  /// As drop(key_space) does it: nothing is said about what was lost.
  void drop(std::uint32_t run) {
    const std::uint32_t page_count = pages_[run];
    pages_.erase(run);
    policy_->on_remove(RunId{run}, {.page_count = page_count});
  }
  [[nodiscard]] std::optional<std::uint32_t> victim() {
    const std::optional<RunId> run = policy_->next_victim();
    if (!run) return std::nullopt;
    return run->value;
  }
  /// All victims in order; each is evicted before the next is asked for.
  Runs victims() {
    Runs found;
    while (const std::optional<std::uint32_t> run = victim()) {
      found.push_back(*run);
      evict(*run, pages_[*run]);
    }
    return found;
  }

 private:
  static std::vector<PageFingerprint> names_of(std::uint32_t run, std::uint32_t first_page, std::uint32_t page_count) {
    std::vector<PageFingerprint> names(page_count);
    std::iota(names.begin(), names.end(), (run * 100) + first_page);
    return names;
  }

  std::unique_ptr<Policy> policy_;
  std::map<std::uint32_t, std::uint32_t> pages_;
};

}  // namespace quire::testing
