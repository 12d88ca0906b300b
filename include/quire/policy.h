// SPDX-License-Identifier: Apache-2.0
//
// Policy: keeps an order over runs and names the next victim. It changes neither the tree nor the pools: the tree
// tells it what happened through the hooks, and asks next_victim() when pages are needed. Write your own by
// implementing this interface and passing it in CacheConfig::custom_policy.
//
// single-threaded. No hook may allocate: reserve() is called first, and again when the cache is resized.
//
// The life of a run, as a policy sees it. A run is pinned when it appears; only idle ones are victims:
//
//     on_seal ──► pinned ──on_idle──► idle ──on_trim … on_remove──► gone
//                    ▲◄───on_pin──────┘
//
// A run that becomes idle does so after all its children, so "least recently idle first" is leaf-first by itself.
// Runs that a waiting sequence asked to be evicted last count as pinned here; when nothing else is left, they are
// trimmed and removed without becoming idle first. A policy may still name a run that has children: the tree then takes
// pages from its deepest descendant, which is idle too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/types.h"

namespace quire {

class Policy {
 public:
  virtual ~Policy() = default;

  /// Run ids will lie in [0, run_count_max). The only call that may allocate. Data of known runs is kept.
  [[nodiscard]] virtual Status reserve(std::uint32_t run_count_max) = 0;

  /// `run` gained pages: a new run (its first on_seal), or one that grew in place. Its own sequence's appends are
  /// not uses.
  virtual void on_seal(RunId run, std::uint32_t pages_added) = 0;
  /// `prefix` is a new run that took the first `prefix_pages` pages of `suffix`; it stands directly before it in the
  /// tree, is idle or pinned as `suffix` is, and starts with a copy of its data.
  virtual void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) = 0;
  /// A request matched `run` and uses its pages.
  virtual void on_use(RunId run) = 0;
  /// `run` may no longer be a victim.
  virtual void on_pin(RunId run) = 0;
  /// `run` may be a victim again.
  virtual void on_idle(RunId run) = 0;
  /// `run` lost its last pages and has `pages_left` > 0.
  virtual void on_trim(RunId run, std::uint32_t pages_left) = 0;
  /// `run` is gone; its id may come back as another run.
  virtual void on_remove(RunId run) = 0;

  /// The idle run whose pages are to go first, or nothing when no run is idle. Asking changes nothing a second ask
  /// would see. O(1) amortised.
  [[nodiscard]] virtual std::optional<RunId> next_victim() = 0;

  /// How many runs are idle, for consistency checks.
  [[nodiscard]] virtual std::uint32_t idle_run_count() const = 0;
};

/// A policy by name; an unknown name is an error that lists policy_names().
[[nodiscard]] Result<std::unique_ptr<Policy>> make_policy(std::string_view name);
/// The names make_policy() knows.
[[nodiscard]] std::vector<std::string_view> policy_names();

}  // namespace quire
