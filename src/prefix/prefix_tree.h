// SPDX-License-Identifier: Apache-2.0
//
// PrefixTree: from token runs to the pages that hold them. Each key space has a root; below it, runs of consecutive
// tokens, whole pages each. Two children of a run differ within their first page. Invariants, all checked by
// check_invariants(): a pinned run's ancestors are pinned; every idle run is in exactly one order (the policy's, or the
// soft pins'); sizes are exact at all times; a page is in the tree at most once.
//
//   match   reads only: nothing is split, reordered or counted
//   pin     ends at a run's end: pinning inside a run, softly too, splits it, and the old identity keeps the suffix
//   insert  walks on from a pin, adopts the caller's pages where the tree has none, and says which were duplicates; the
//           pin's own run grows in place when it has no children and no other pin
//   evict   takes pages from the ends of childless idle runs, in the policy's order
//
// The tree decides about pages but never touches a pool: what it gives up it hands to the caller. Nothing recurses, and
// nothing allocates after create() but grow().
//
// With a host tier, a run is on the device or on the host, as a whole, and whatever is on the device hangs below what
// is: a path begins with device runs and goes on with host runs. A device page may have a copy on the host besides. A
// run leaves the device in two ways: evict() turns pages with copies into a host run and drops those without; and, for
// those who write pages out before they give them up, start_leaving() names runs to be copied, which evict() takes
// first, in the same order, once they are. A run that is leaving and gets pinned stays.
//
// single-threaded
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "base/residency_log.h"
#include "prefix/extra_key_lists.h"
#include "prefix/lost_pages.h"
#include "prefix/run.h"
#include "prefix/run_storage.h"
#include "quire/introspect.h"
#include "quire/policy.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

struct PrefixTreeConfig {
  std::uint32_t page_tokens = 16;
  std::uint32_t page_count_max = 0;       ///< device pages the tree may hold at once
  std::uint32_t host_page_count_max = 0;  ///< 0: no host tier. Host page ids lie in [1, this].
  std::uint32_t root_count_max = 1;       ///< key spaces at once
  /// Evict whole runs, and never grow one in place: the node-granular form of other radix caches. It may give up more
  /// pages than asked for.
  bool whole_runs = false;
  bool finds_runs = false;  ///< run_of() will be called
  std::uint64_t hash_seed = 0;
};

/// Hears where pages of the tree go, for those who keep something about them: a page changes its id with its tier.
class TierListener {
 public:
  virtual ~TierListener() = default;
  /// A device page is given up, and its copy is what the tree has from here on.
  virtual void on_demote(PageId device_page, PageId host_page) = 0;
  /// A host page of the tree has become the copy of a device page.
  virtual void on_promote(PageId host_page, PageId device_page) = 0;
  /// The copy of a device page is given up, and the device page stays.
  virtual void on_copy_given_up(PageId device_page, PageId host_page) = 0;
  /// Whether a tier below the host is known to have a page of the tree, or a copy of one.
  [[nodiscard]] virtual bool is_below(Tier tier, PageId page) const = 0;
};

/// How pages come into the tree.
struct Sealing {
  ResidencyCause cause = ResidencyCause::Sealed;
  Retention retention;
};

class PrefixTree {
 public:
  /// What a path is looked up by. Extra keys are sorted by position and do not overlap.
  struct Key {
    std::span<const TokenId> tokens;
    std::span<const ExtraKey> extra_keys;
  };

  /// A prefix that the tree holds. Good until the tree changes.
  struct Match {
    RunId run;                            ///< where it ends on the device; the root when nothing matched
    std::uint32_t pages_in_run = 0;       ///< how many pages of that run belong to it
    std::uint32_t page_count = 0;         ///< whole pages on the device, from the root on
    RunId host_run;                       ///< where it ends on the host, when host_page_count > 0
    std::uint32_t host_pages_in_run = 0;  ///< how many pages of that run belong to it
    std::uint32_t host_page_count = 0;    ///< whole pages that follow on the host
    /// Best effort: a page whose first `partial_tokens` tokens continue the prefix (0: none was found).
    RunId partial_run;
    std::uint32_t partial_page = 0;  ///< index within partial_run
    std::uint32_t partial_tokens = 0;
    std::uint64_t version = 0;
  };

  /// Keeps a path, from the root to the end of one run, from being evicted while it lives. The tree must outlive it.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : tree_(std::exchange(other.tree_, nullptr)), run_(other.run_) {}
    Pin& operator=(Pin&& other) noexcept {
      Pin taken(std::move(other));
      std::swap(tree_, taken.tree_);
      std::swap(run_, taken.run_);
      return *this;
    }
    ~Pin() { reset(); }
    void reset() {
      if (tree_ != nullptr) std::exchange(tree_, nullptr)->remove_pin(run_);
    }
    [[nodiscard]] explicit operator bool() const { return tree_ != nullptr; }
    [[nodiscard]] RunId run() const { return run_; }

   private:
    friend class PrefixTree;
    Pin(PrefixTree* tree, RunId run) : tree_(tree), run_(run) {}
    PrefixTree* tree_ = nullptr;
    RunId run_;
  };

  /// Asks that a path be evicted last. It ends by itself when its last run is evicted all the same.
  class SoftPin {
   public:
    SoftPin() = default;
    SoftPin(SoftPin&& other) noexcept
        : tree_(std::exchange(other.tree_, nullptr)), run_(other.run_), generation_(other.generation_) {}
    SoftPin& operator=(SoftPin&& other) noexcept {
      SoftPin taken(std::move(other));
      std::swap(tree_, taken.tree_);
      std::swap(run_, taken.run_);
      std::swap(generation_, taken.generation_);
      return *this;
    }
    ~SoftPin() { reset(); }
    void reset() {
      if (tree_ != nullptr) std::exchange(tree_, nullptr)->remove_soft_pin(run_, generation_);
    }
    [[nodiscard]] explicit operator bool() const { return tree_ != nullptr; }

   private:
    friend class PrefixTree;
    SoftPin(PrefixTree* tree, RunId run, std::uint32_t generation) : tree_(tree), run_(run), generation_(generation) {}
    PrefixTree* tree_ = nullptr;
    RunId run_;
    std::uint32_t generation_ = 0;
  };

  /// Keeps the host's copies of a path from being evicted. Device pages of it are given up as others are, and are on
  /// the host from then on. It ends by itself when its last run goes all the same: dropped, or without a copy.
  class HostHold {
   public:
    HostHold() = default;
    HostHold(HostHold&& other) noexcept
        : tree_(std::exchange(other.tree_, nullptr)), run_(other.run_), generation_(other.generation_) {}
    HostHold& operator=(HostHold&& other) noexcept {
      HostHold taken(std::move(other));
      std::swap(tree_, taken.tree_);
      std::swap(run_, taken.run_);
      std::swap(generation_, taken.generation_);
      return *this;
    }
    ~HostHold() { reset(); }
    void reset() {
      if (tree_ != nullptr) std::exchange(tree_, nullptr)->remove_host_hold(run_, generation_);
    }
    [[nodiscard]] explicit operator bool() const { return tree_ != nullptr; }
    /// While held_pages() is above 0.
    [[nodiscard]] RunId run() const { return run_; }

   private:
    friend class PrefixTree;
    HostHold(PrefixTree* tree, RunId run, std::uint32_t generation) : tree_(tree), run_(run), generation_(generation) {}
    PrefixTree* tree_ = nullptr;
    RunId run_;
    std::uint32_t generation_ = 0;
  };

  /// All outlive the tree; `log` may be null. `host_policy` orders host runs, where there is a host tier. `lost` hears
  /// of evicted pages, if given.
  [[nodiscard]] static Result<std::unique_ptr<PrefixTree>> create(const PrefixTreeConfig& config, Policy& policy,
                                                                  ResidencyLog* log, Policy* host_policy = nullptr,
                                                                  LostPages* lost = nullptr);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree() = default;

  /// Outlives the tree, or null.
  void set_listener(TierListener* listener) { listener_ = listener; }
  /// Room for so many pages, if there is less; the policy hears the number in any case. The only call that allocates.
  [[nodiscard]] Status grow(std::uint32_t page_count_max);

  // Key spaces.

  /// The root of a new key space; there must be room.
  [[nodiscard]] RunId add_root();
  /// The key space must have no runs and no pins.
  void remove_root(RunId root);

  // Lookup and pins.

  [[nodiscard]] Match match(RunId root, const Key& key) const;
  /// The page ids of a match, from the path's page `first_page` on; `out` has room for the rest.
  void copy_pages(const Match& match, std::uint32_t first_page, std::span<PageId> out) const;
  [[nodiscard]] PageId partial_page(const Match& match) const;
  /// The first `tokens` tokens of a match on the device: whole pages, and a part of the page behind them.
  [[nodiscard]] Match cut(const Match& match, std::uint32_t tokens) const;
  /// The first `page_count` whole pages of a match, in both tiers.
  [[nodiscard]] Match cut_pages(const Match& match, std::uint32_t page_count) const;
  /// The page ids of a match that are on the host; `out` is as long.
  void copy_host_pages(const Match& match, std::span<PageId> out) const;
  /// The page ids of a pinned path on the device, from its page `first_page` on; `out` is as long as the rest.
  void copy_path(const Pin& pin, std::uint32_t first_page, std::span<PageId> out) const {
    copy_path(pin.run_, first_page, out);
  }
  /// The same of the path to the end of a run, in both tiers.
  void copy_path(RunId end_run, std::uint32_t first_page, std::span<PageId> out) const;
  /// How many of the matched whole pages evict() could give up now, and no longer once they are pinned.
  [[nodiscard]] std::uint32_t idle_pages(const Match& match) const;
  /// How many of the matched whole device pages have left but for evict().
  [[nodiscard]] std::uint32_t left_pages(const Match& match) const;

  /// Pins the matched whole pages and counts as a use of their runs.
  [[nodiscard]] Pin pin(const Match& match, const Retention& retention = {});
  /// As pin(), and a pin of its own on the page in which the match ends, match.partial_page: on what lies before that
  /// page too, but on nothing behind it.
  struct PinnedMatch {
    Pin path;
    Pin partial;
  };
  [[nodiscard]] PinnedMatch pin_with_partial(const Match& match, const Retention& retention = {});
  /// Pins all of a run that is in the tree, without splitting it and without counting as a use.
  [[nodiscard]] Pin pin_run(RunId run);
  /// Pins the matched pages of both tiers; no use.
  [[nodiscard]] Pin pin_all(const Match& match);
  /// Asks that the matched whole device pages be evicted last.
  [[nodiscard]] SoftPin soft_pin(const Match& match);
  /// A second pin on the same path.
  [[nodiscard]] Pin clone(const Pin& pin);
  /// A pin on the first `page_count` pages of a pinned path; no use.
  [[nodiscard]] Pin pin_prefix(const Pin& pin, std::uint32_t page_count);
  /// A pin on a run of a pinned path: the one that holds the path's page `page`, without splitting it. No use.
  [[nodiscard]] Pin pin_page(const Pin& pin, std::uint32_t page);

  /// How many more pages evict() could give up if one pin less ended at each of these runs. Changes nothing.
  [[nodiscard]] std::uint32_t pages_idle_without(std::span<const RunId> pinned);

  /// Whether a key space has the key's first page, in any tier.
  [[nodiscard]] bool has_first_page(RunId root, const Key& key) const {
    return key.tokens.size() >= config_.page_tokens && find_child(root.value, key, 0) != kNoRun;
  }

  // Growth.

  /// Whether insert() would find the first of the pages that follow `pin`.
  [[nodiscard]] bool has_next_page(const Pin& pin, const Key& key) const {
    return find_child(pin.run_.value, key, end_page(pin.run_)) != kNoRun;
  }
  /// Continues the path of `pin` by pages.size() pages whose tokens are `key`'s, which is the whole path's. On return
  /// `pin` ends at the last of them and `pages` are the tree's. Gives the number of pages d that the tree already had:
  /// the caller's own, now unused, are the first d of `duplicates`, which is as large as `pages`.
  [[nodiscard]] std::uint32_t insert(Pin& pin, const Key& key, std::span<PageId> pages, std::span<PageId> duplicates,
                                     const Sealing& sealing = {});

  // Eviction. `sink(std::span<const PageId>)` receives what the tree gave up, run by run.

  /// Gives up `page_count` pages, or all evictable ones if there are fewer. Returns how many: exactly as asked, but for
  /// whole_runs.
  template <typename Sink>
  std::uint32_t evict(std::uint32_t page_count, Sink&& sink) {
    std::uint32_t evicted = 0;
    while (evicted < page_count) {
      const std::span<const PageId> pages = evict_from_next_victim(page_count - evicted);
      if (pages.empty()) break;
      evicted += static_cast<std::uint32_t>(pages.size());
      sink(pages);
    }
    return evicted;
  }
  /// Gives up every idle page below `root`; pinned ones stay. Returns how many device pages.
  template <typename Sink>
  std::uint32_t evict_all(RunId root, ResidencyCause cause, Sink&& sink) {
    std::uint32_t evicted = 0;
    for (std::uint32_t run = deepest_first(root.value); run != root.value;) {
      const std::uint32_t next = next_in_postorder(run);
      if (runs_[run].pins == 0) {
        if (runs_[run].is_on_host) {
          give_up_host_tail(run, runs_[run].page_count, cause);
        } else {
          const std::span<const PageId> pages = give_up_tail(run, runs_[run].page_count, cause);
          evicted += static_cast<std::uint32_t>(pages.size());
          sink(pages);
        }
      }
      run = next;
    }
    return evicted;
  }

  // The host tier. Pages that the host has lost are handed over by take_freed_host().

  /// Continues the path of `pin` by host pages whose tokens are `key`'s, the whole path's, none of which the tree has
  /// in any tier. On return `pin` ends at the last of them.
  void insert_host(Pin& pin, const Key& key, std::span<const PageId> host_pages);
  /// Makes a pinned host run a device run. Its host pages become copies of these device pages.
  void promote(RunId run, std::span<const PageId> device_pages,
               const Sealing& sealing = {.cause = ResidencyCause::Loaded, .retention = {}});
  /// Names the run that evict() would come to next, or part of it: at most `page_count_max` pages, and leaves it in the
  /// tree as one that is leaving. None when nothing is evictable.
  [[nodiscard]] RunId start_leaving(std::uint32_t page_count_max);
  /// Moves runs that are leaving, oldest first, to those that evict() takes, until one has pages on their way to the
  /// host.
  void end_leaving();
  /// Gives up so many host pages: copies that were first in line, then the ends of host runs in the order of the host's
  /// policy, then other copies. Returns how many.
  std::uint32_t evict_host(std::uint32_t page_count);
  /// Gives up a host run that nobody pins, with everything below it.
  void drop_host_run(RunId run, ResidencyCause cause);
  /// Holds the matched pages of both tiers on the host. Device pages that it has no copy of are wanted there: they are
  /// held once they have come.
  [[nodiscard]] HostHold hold_on_host(const Match& match);
  /// How many pages the path of a hold has; none when the hold has ended by itself.
  [[nodiscard]] std::uint32_t held_pages(const HostHold& hold) const;
  template <typename Sink>
  void take_freed_host(Sink&& sink) {
    for (std::uint32_t i = 0; i < freed_host_count_; ++i) sink(freed_host_[i]);
    freed_host_count_ = 0;
  }

  /// Whether and where a device page of the tree has a copy on the host.
  enum class Copy : std::uint8_t {
    None,
    Wanted,   ///< in the queue of next_wanted()
    Storing,  ///< on its way
    Ready,
  };
  struct HostCopy {
    Copy state = Copy::None;
    bool is_held = false;  // its run is leaving: the copy is to be all that remains
    bool is_kept = false;  // its run is held on the host: the copy is not evicted
    PageId host_page;
  };
  [[nodiscard]] HostCopy copy_of(PageId device_page) const { return copies_[device_page.value]; }
  /// Queues a page without a copy.
  void want_copy(PageId device_page);
  /// The page that has waited longest for a copy, or none.
  [[nodiscard]] PageId next_wanted() const;
  void start_copy(PageId device_page, PageId host_page);
  /// The copy has arrived. `goes_first`: it is given up before host runs are.
  void end_copy(PageId device_page, bool goes_first);
  /// The copy will not come, or is no longer wanted.
  void forget_copy(PageId device_page);

  [[nodiscard]] bool is_on_host(RunId run) const { return runs_[run.value].is_on_host; }
  /// The highest host run of a pinned path, or none.
  [[nodiscard]] RunId first_host_run(const Pin& pin) const { return first_host_run(pin.run_); }
  [[nodiscard]] RunId first_host_run(RunId end_run) const;
  /// Which load brings a host run to the device, as the caller numbers loads; 0: none. A split copies the number.
  [[nodiscard]] std::uint32_t& load_of(RunId run) { return tiers_[run.value].load; }
  [[nodiscard]] std::uint32_t load_of(RunId run) const { return tiers_[run.value].load; }
  /// How often pin() has used the run.
  [[nodiscard]] std::uint32_t use_count(RunId run) const { return tiers_[run.value].use_count; }
  [[nodiscard]] std::span<const PageId> pages(RunId run) const {
    return {storage_.pages(runs_[run.value]), runs_[run.value].page_count};
  }
  /// The run that holds a device page of the tree. Needs PrefixTreeConfig::finds_runs, or find_runs().
  [[nodiscard]] RunId run_of(PageId device_page) const { return RunId{page_runs_[device_page.value]}; }
  /// The run that holds a host page of the tree, or the device page that it is a copy of.
  [[nodiscard]] RunId run_of_host(PageId host_page) const {
    const HostPlace& place = host_places_[host_page.value];
    return place.is_copy ? run_of(PageId{place.index}) : RunId{place.index};
  }
  /// run_of() and run_of_host() will be called. For a tree without pages.
  [[nodiscard]] Status find_runs();
  /// Visits `top` and all runs below it that have a page number `page` of their paths, as visit(RunId).
  template <typename Visitor>
  void for_each_run_with(RunId top, std::uint32_t page, Visitor&& visit) const {
    for (std::uint32_t run = top.value;;) {
      if (end_page(RunId{run}) > page) {
        visit(RunId{run});
      } else if (runs_[run].first_child != kNoRun) {
        run = runs_[run].first_child;
        continue;
      }
      while (run != top.value && runs_[run].next_sibling == kNoRun) run = runs_[run].parent;
      if (run == top.value) return;
      run = runs_[run].next_sibling;
    }
  }
  /// The hash of a device or host page of the tree and of everything before it in its path.
  [[nodiscard]] PageFingerprint fingerprint(PageId page, Tier tier) const {
    return tier == Tier::Device ? fingerprints_[page.value] : host_fingerprints_[page.value];
  }
  /// That of the last page of a match, or of its root: what next_fingerprint() goes on from.
  [[nodiscard]] PageFingerprint fingerprint_before(const Match& match) const;
  /// That of the last page of a pinned path, or of its root.
  [[nodiscard]] PageFingerprint fingerprint_of(const Pin& pin) const;
  /// That of the key's page `page`, which follows the page whose fingerprint is `before`.
  [[nodiscard]] PageFingerprint next_fingerprint(PageFingerprint before, const Key& key, std::uint32_t page) const;

  // Observers.

  [[nodiscard]] std::uint32_t page_tokens() const { return config_.page_tokens; }
  /// Pages that evict() can give up: idle ones, softly pinned or not, and those that have left but for evict().
  [[nodiscard]] std::uint32_t evictable_pages() const { return idle_pages_ + soft_pages_ + left_pages_; }
  [[nodiscard]] std::uint32_t leaving_pages() const { return leaving_pages_; }  ///< not yet evictable
  [[nodiscard]] std::uint32_t left_pages() const { return left_pages_; }        ///< evict() takes them first
  [[nodiscard]] std::uint32_t host_idle_pages() const { return host_idle_pages_; }
  /// Gives a page of an idle device run another id, which the tree does not have.
  void renumber(RunId run, std::uint32_t index_in_run, PageId page);
  /// Pages that evict_host() can give up.
  [[nodiscard]] std::uint32_t host_evictable_pages() const {
    return host_idle_pages_ + page_lists_.size() - wanted_count_;
  }
  [[nodiscard]] std::uint32_t host_pinned_pages() const { return host_pinned_pages_; }
  /// On the host only, held there and not pinned.
  [[nodiscard]] std::uint32_t host_held_pages() const { return host_held_pages_; }
  [[nodiscard]] std::uint32_t copy_count() const { return ready_copy_count_; }  ///< device pages with a copy
  [[nodiscard]] std::uint32_t storing_count() const { return storing_count_; }
  /// Evicted from the last tier that the tree knows, …
  [[nodiscard]] std::uint64_t given_up_page_total() const { return given_up_page_total_; }
  /// … those among them that no tier below is known to have.
  [[nodiscard]] std::uint64_t lost_page_total() const { return lost_page_total_; }
  [[nodiscard]] std::uint32_t soft_pinned_pages() const { return soft_pages_; }
  [[nodiscard]] std::uint32_t pinned_pages() const { return pinned_pages_; }
  [[nodiscard]] std::uint32_t page_count() const { return evictable_pages() + leaving_pages_ + pinned_pages_; }
  [[nodiscard]] std::uint32_t run_count() const { return run_count_; }                    ///< roots not counted
  [[nodiscard]] RunId parent(RunId run) const { return RunId{runs_[run.value].parent}; }  ///< none for a root
  [[nodiscard]] const RunStorage& storage() const { return storage_; }
  /// Where the path of `run` ends, in pages.
  [[nodiscard]] std::uint32_t end_page(RunId run) const {
    return runs_[run.value].first_page + runs_[run.value].page_count;
  }
  [[nodiscard]] bool is_pinned(RunId run) const { return runs_[run.value].pins > 0; }
  [[nodiscard]] bool is_empty(RunId root) const {
    return runs_[root.value].first_child == kNoRun && runs_[root.value].pins == 0;
  }
  [[nodiscard]] RunView view(RunId run) const;  ///< key_space and depth are left to the caller

  /// Visits root and everything below it, parents first, as visit(const RunView&) with depth filled in.
  template <typename Visitor>
  void for_each_run(RunId root, Visitor&& visit) const {
    std::uint32_t depth = 0;
    for (std::uint32_t run = root.value; run != kNoRun; run = next_in_preorder(root.value, run, depth)) {
      RunView run_view = view(RunId{run});
      run_view.depth = depth;
      visit(run_view);
    }
  }

  /// Names the first rule that does not hold, if any. O(size of the tree).
  [[nodiscard]] Status check_invariants() const;

 private:
  friend struct PrefixTreePeer;

  // What only trees with a host tier know about a run.
  struct RunTier {
    std::uint32_t last_resident_child;  // children stand: those on the device and not leaving, then the others
    std::uint32_t load;
    std::uint32_t use_count;
    std::uint32_t holds;  // host holds that end here, plus one for each held child
  };
  // Lists of device pages, each in at most one.
  enum PageList : std::uint32_t { kFirstCopies, kOtherCopies, kWantedCopies, kPageListCount };

  explicit PrefixTree(const PrefixTreeConfig& config, Policy& policy, ResidencyLog* log, Policy* host_policy,
                      LostPages* lost)
      : config_(config), policy_(policy), log_(log), host_policy_(host_policy), lost_(lost) {}

  // Paths.
  [[nodiscard]] std::uint32_t run_on_path(const Pin& pin, std::uint32_t page) const;
  [[nodiscard]] std::uint32_t find_child(std::uint32_t parent, const Key& key, std::uint32_t first_page) const;
  [[nodiscard]] std::uint32_t matching_pages(std::uint32_t run, const Key& key, std::uint32_t first_page,
                                             std::uint32_t page_count_max) const;
  void match_on_host(const Key& key, std::uint32_t child, std::uint32_t pages_asked, Match& match) const;
  void find_partial(const Key& key, Match& match) const;
  [[nodiscard]] std::uint32_t common_tokens_in_page(std::uint32_t run, std::uint32_t page, const Key& key,
                                                    std::uint32_t position) const;
  [[nodiscard]] TokenRange page_range(std::uint32_t first_page, std::uint32_t page_count) const {
    return {first_page * config_.page_tokens, (first_page + page_count) * config_.page_tokens};
  }
  [[nodiscard]] std::uint32_t deepest_first(std::uint32_t run) const;
  [[nodiscard]] std::uint32_t least_recent_leaf(std::uint32_t run) const;
  [[nodiscard]] std::uint32_t next_in_postorder(std::uint32_t run) const;
  [[nodiscard]] std::uint32_t next_in_preorder(std::uint32_t root, std::uint32_t run, std::uint32_t& depth) const;

  [[nodiscard]] bool agrees_behind(std::uint32_t run, const Key& key) const;

  // Structure.
  [[nodiscard]] std::uint32_t new_run(std::uint32_t parent);
  void remove_run(std::uint32_t run, const PageChange& lost);
  [[nodiscard]] std::uint32_t split(std::uint32_t run, std::uint32_t page_count);
  void link_new(std::uint32_t run);
  void fill(std::uint32_t run, const Key& key, std::span<const PageId> pages, const Sealing& sealing);
  [[nodiscard]] std::span<const PageFingerprint> make_fingerprints(std::uint32_t run, const Key& key,
                                                                   std::span<const PageId> pages);
  [[nodiscard]] std::span<const PageFingerprint> fingerprints_of(std::span<const PageId> pages);
  [[nodiscard]] PageFingerprint root_fingerprint(std::uint32_t root) const;
  /// The run holds these pages, which are device pages or host pages as the run's are.
  void note_run(std::uint32_t run, std::span<const PageId> pages) {
    if (!config_.finds_runs) return;
    for (const PageId page : pages) {
      if (runs_[run].is_on_host) {
        host_places_[page.value] = {.index = run};
      } else {
        page_runs_[page.value] = run;
      }
    }
  }
  void note_copy(PageId device_page, PageId host_page) {
    if (config_.finds_runs) host_places_[host_page.value] = {.index = device_page.value, .is_copy = true};
  }
  void tell_leaf(std::uint32_t parent, std::uint32_t gone);
  void link_child(std::uint32_t parent, std::uint32_t child);
  void unlink_child(std::uint32_t child);
  [[nodiscard]] std::uint32_t& link_before(std::uint32_t child);
  [[nodiscard]] std::uint32_t& link_behind(std::uint32_t child);
  void move_to_front(std::uint32_t child);
  void link_absent(std::uint32_t parent, std::uint32_t child);
  [[nodiscard]] bool is_resident(std::uint32_t run) const {
    return !runs_[run].is_on_host && runs_[run].leaving == Leaving::No;
  }
  /// The least recently used of the children that policies hear of.
  [[nodiscard]] std::uint32_t last_resident(std::uint32_t run) const {
    return has_host() ? tiers_[run].last_resident_child : runs_[run].last_child;
  }
  void add_to_bucket(std::uint32_t run);
  void remove_from_bucket(std::uint32_t run);
  [[nodiscard]] std::uint32_t key_hash(std::uint32_t parent, const TokenId* tokens, std::uint64_t extra) const;
  [[nodiscard]] std::uint32_t key_hash_of(std::uint32_t run) const;

  // Pins.
  void add_pin(std::uint32_t run);
  void remove_pin(RunId run);
  void move_pin(Pin& pin, std::uint32_t run);
  void remove_soft_pin(RunId run, std::uint32_t generation);
  void drop_soft(std::uint32_t run);
  void remove_host_hold(RunId run, std::uint32_t generation);
  void drop_host_hold(std::uint32_t run);
  void end_host_holds(std::uint32_t run);
  void set_held(std::uint32_t run, bool is_held);
  void enter_idle(std::uint32_t run);
  void leave_idle(std::uint32_t run);
  [[nodiscard]] bool is_root(std::uint32_t run) const { return runs_[run].parent == kNoRun; }

  // The host tier.
  [[nodiscard]] bool has_host() const { return host_policy_ != nullptr; }
  [[nodiscard]] Policy& policy_of(std::uint32_t run) { return runs_[run].is_on_host ? *host_policy_ : policy_; }
  [[nodiscard]] std::span<const PageId> evict_to_host(std::uint32_t page_count_max);
  [[nodiscard]] std::span<const PageId> demote(std::uint32_t run, std::uint32_t page_count);
  void become_absent(std::uint32_t run);
  void become_resident(std::uint32_t run);
  void stop_leaving(std::uint32_t run);
  void drop_below(std::uint32_t run, ResidencyCause cause);
  void give_up_host_tail(std::uint32_t run, std::uint32_t page_count, ResidencyCause cause);
  void free_host(PageId host_page) { freed_host_[freed_host_count_++] = host_page; }
  [[nodiscard]] bool take_copy(PageList list);
  [[nodiscard]] std::uint32_t least_recent_host_leaf(std::uint32_t run) const;
  [[nodiscard]] std::uint32_t next_victim_leaf();
  void end_descent(std::uint32_t leaf, std::uint32_t parent);
  void end_soft_pins(std::uint32_t run);
  void drop_copy(PageId device_page, ResidencyCause cause);
  [[nodiscard]] Status check_tiers() const;

  // Eviction.
  [[nodiscard]] std::span<const PageId> evict_from_next_victim(std::uint32_t page_count_max);
  [[nodiscard]] std::span<const PageId> give_up_tail(std::uint32_t run, std::uint32_t page_count, ResidencyCause cause);
  void note_given_up(std::span<const PageId> pages, std::span<const PageFingerprint> fingerprints, Tier tier,
                     ResidencyCause cause);
  void record(std::uint32_t run, std::uint32_t first_page, std::uint32_t page_count, ResidencyCause cause,
              Tier tier = Tier::Device);

  PrefixTreeConfig config_;
  Policy& policy_;
  ResidencyLog* log_;
  Policy* host_policy_;  // null: no host tier
  TierListener* listener_ = nullptr;
  LostPages* lost_;

  LazyArray<Run> runs_;
  LazyArray<std::uint32_t> buckets_;  // the child table: run + 1, so that untouched memory is empty
  std::uint32_t bucket_mask_ = 0;
  RunStorage storage_;
  ExtraKeyLists extra_keys_;
  IndexLists soft_;               // runs that are idle but for soft pins, in the order they became so
  std::vector<PageId> given_up_;  // what the last eviction step gave up
  // Only for policies that want them: by page id, and those of the change being told.
  bool wants_fingerprints_ = false;
  LazyArray<PageFingerprint> fingerprints_;
  std::vector<PageFingerprint> told_fingerprints_;

  // With finds_runs only, of pages of the tree.
  struct HostPlace {
    std::uint32_t index = 0;  // of the run, or of the device page
    bool is_copy = false;
  };
  LazyArray<std::uint32_t> page_runs_;  // by device page: its run
  LazyArray<HostPlace> host_places_;    // by host page

  // With a host tier only.
  LazyArray<RunTier> tiers_;
  IndexLists leaving_;          // list 0: to be copied, list 1: evict() takes them; both oldest first
  LazyArray<HostCopy> copies_;  // by device page
  IndexLists page_lists_;       // device pages by PageList
  LazyArray<PageId> freed_host_;
  std::uint32_t freed_host_count_ = 0;
  LazyArray<PageFingerprint> host_fingerprints_;  // by host page
  std::uint64_t given_up_page_total_ = 0;
  std::uint64_t lost_page_total_ = 0;
  std::uint32_t leaving_pages_ = 0;
  std::uint32_t left_pages_ = 0;
  std::uint32_t host_idle_pages_ = 0;
  std::uint32_t host_pinned_pages_ = 0;
  std::uint32_t host_held_pages_ = 0;
  std::uint32_t ready_copy_count_ = 0;
  std::uint32_t wanted_count_ = 0;
  std::uint32_t storing_count_ = 0;

  std::uint32_t first_free_run_ = kNoRun;
  std::uint32_t fresh_run_ = 0;
  std::uint32_t root_count_ = 0;
  std::uint32_t root_total_ = 0;  // ever added
  std::uint32_t run_count_ = 0;
  std::uint32_t idle_pages_ = 0;
  std::uint32_t soft_pages_ = 0;
  std::uint32_t pinned_pages_ = 0;
  struct {
    std::uint32_t victim = kNoRun;   // what the policy named
    std::uint32_t reached = kNoRun;  // where the way down from it led
    std::uint64_t version = 0;
  } descent_;                  // of the last eviction step
  std::uint64_t version_ = 0;  // grows with every change that makes a Match stale
};

}  // namespace quire
