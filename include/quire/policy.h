// SPDX-License-Identifier: Apache-2.0
//
// Policy: keeps an order over runs and names the next victim. It changes neither the tree nor the pools: the tree
// tells it what happened through the hooks, and asks next_victim() when pages are needed. Write your own by
// implementing this interface and passing it in CacheConfig::custom_policy; docs/policies.md shows how.
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
// trimmed and removed without becoming idle first. A policy may name a run that has children: the tree then takes pages
// from the least recently used of the leaves below it, which are idle too.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/types.h"

namespace quire {

struct PolicyLimits {
  std::uint32_t run_count_max = 0;   ///< run ids lie in [0, run_count_max)
  std::uint32_t page_count_max = 0;  ///< pages that all runs together can have
};

/// What a sequence wants for the pages it uses or adds. The policy "priority" heeds it.
struct Retention {
  std::int8_t priority = 0;                                      ///< higher ones stay longer
  TimeNs expires_at = std::numeric_limits<std::int64_t>::max();  ///< from then on, the first to go
};

/// A 64-bit hash of a page and of everything before it in its path. Equal for equal content as long as its key space is
/// known, so that a policy can recognise pages that were evicted before.
using PageFingerprint = std::uint64_t;

/// Pages that a run gained or lost, all at its end.
struct PageChange {
  std::uint32_t page_count = 0;
  std::uint32_t pages_left = 0;  ///< the run's pages after the change
  /// One per page, in the order of the path; empty unless the policy wants them, and for pages that were dropped rather
  /// than evicted.
  std::span<const PageFingerprint> fingerprints = {};
  Retention retention = {};  ///< of the sequence that added them
};

class Policy {
 public:
  virtual ~Policy() = default;

  /// The only call that may allocate. Data of known runs is kept.
  [[nodiscard]] virtual Status reserve(const PolicyLimits& limits) = 0;
  /// Whether PageChange::fingerprints should be filled in, which costs a hash of each page's tokens. Asked once.
  [[nodiscard]] virtual bool wants_fingerprints() const { return false; }

  /// `run` gained pages: a new run (its first on_seal), or one that grew in place. Its own sequence's appends are not
  /// uses.
  virtual void on_seal(RunId /*run*/, const PageChange& /*added*/) {}
  /// `prefix` is a new run that took the first `prefix_pages` pages of `suffix`; it stands directly before it in the
  /// tree, is idle or pinned as `suffix` is, and starts with a copy of its data.
  virtual void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) = 0;
  /// A request matched `run` and uses its pages. `run` is pinned.
  virtual void on_use(RunId /*run*/, const Retention& /*retention*/) {}
  /// A sequence whose path leads through `run`, which is pinned, adds pages behind it and wants this for all of its
  /// path. Gives whether that changed anything; if not, the runs before `run` are not told.
  virtual bool on_retain(RunId /*run*/, const Retention& /*retention*/) { return false; }
  /// `run` may no longer be a victim.
  virtual void on_pin(RunId run) = 0;
  /// `run` may be a victim again.
  virtual void on_idle(RunId run) = 0;
  /// `run` has a child now and had none; a run that on_split made has one from the start.
  virtual void on_branch(RunId /*run*/) {}
  /// `run` has lost its last child.
  virtual void on_leaf(RunId /*run*/) {}
  /// `run` lost its last pages, but not all.
  virtual void on_trim(RunId /*run*/, const PageChange& /*lost*/) {}
  /// `run` is gone; its id may come back as another run.
  virtual void on_remove(RunId run, const PageChange& lost) = 0;
  /// Time has gone on, as Cache::advance() was told.
  virtual void on_advance(TimeNs /*now*/) {}

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
