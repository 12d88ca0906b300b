// SPDX-License-Identifier: Apache-2.0
//
// AnchoredPages: which pages of one window or snapshot group hang on the pages of the prefix tree. The tree's own pages
// hold the groups that keep every token. A window group's page hangs on the tree's page with the same tokens, a
// snapshot on the tree's page at whose end it was taken. An anchored page may be given up before the tree's page, and
// leaves a hole; it never outlives the tree's page.
//
//     tree's pages      [0][1][2][3][4][5]      one path
//     a window group     .  .  .  3  4  5       the last ones; holes behind them
//     a snapshot group   .  .  s  .  .  s       where one was taken
//
// An anchored page is pinned as often as somebody uses it, held as often as somebody wants it to stay where it is, and
// idle if it is neither. Idle ones go in this order: those that sequences went past and nobody has asked for (passed),
// then the others, least recently used first. So a long answer that drags its window along never pushes out what
// requests come back to. A held page goes with the tree's page all the same; a pinned one cannot.
//
// This is bookkeeping about ids: pages that are given up are returned to the caller, who has the pool. Nothing
// allocates after create() but grow().
//
// single-threaded
#pragma once

#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

struct AnchoredPagesConfig {
  std::uint32_t tree_page_end = 0;  ///< ids of the tree's pages lie below it
  std::uint32_t page_end = 0;       ///< ids of anchored pages lie below it; 0 is none of them
};

class AnchoredPages {
 public:
  /// How a page is wanted once nobody uses it.
  enum class Worth : std::uint8_t {
    Passed,  ///< first to go
    Kept,    ///< last to go, and so until it is gone
  };

  [[nodiscard]] static Result<AnchoredPages> create(const AnchoredPagesConfig& config);
  [[nodiscard]] Status grow(std::uint32_t tree_page_end);

  /// The page that hangs on a page of the tree, or none.
  [[nodiscard]] PageId at(PageId tree_page) const { return PageId{anchored_[tree_page.value] - 1}; }
  [[nodiscard]] bool has(PageId tree_page) const { return anchored_[tree_page.value] != 0; }
  /// The page of the tree that a page hangs on.
  [[nodiscard]] PageId tree_page_of(PageId page) const { return PageId{entries_[page.value].tree_page - 1}; }
  [[nodiscard]] bool is_attached(PageId page) const { return entries_[page.value].tree_page != 0; }
  [[nodiscard]] bool is_kept(PageId page) const { return entries_[page.value].is_kept; }
  [[nodiscard]] bool is_pinned(PageId page) const { return entries_[page.value].pins > 0; }
  [[nodiscard]] std::uint32_t pin_count(PageId page) const { return entries_[page.value].pins; }
  [[nodiscard]] std::uint32_t hold_count(PageId page) const { return entries_[page.value].holds; }

  /// Hangs a page on one of the tree's that has none, pinned once.
  void attach(PageId tree_page, PageId page);
  void pin(PageId page);
  /// Pins a page for somebody who came back to it: that is what keeps it from then on.
  void pin_found(PageId page);
  /// When the last pin goes, the page is idle. Worth::Kept holds from the first time it is said.
  void unpin(PageId page, Worth worth);
  /// Keeps a page from being evicted, until it is released as often or taken off the tree's page.
  void hold(PageId page, std::uint32_t count = 1);
  /// When the last hold goes too, the page is idle, and Worth::Kept.
  void release_hold(PageId page);
  /// Takes a page that nobody pins off the tree's page; the caller owns it. Its holds end.
  void detach(PageId page);
  /// A page of the tree gets another id, on which nothing hangs: what hangs on it stays as it is.
  void renumber(PageId tree_page, PageId renumbered) {
    const std::uint32_t page = std::exchange(anchored_[tree_page.value], 0);
    QUIRE_CHECK(!has(renumbered), "a page of the tree has two pages of a group");
    anchored_[renumbered.value] = page;
    if (page != 0) entries_[page - 1].tree_page = renumbered.value + 1;
  }

  /// The idle page that is to be evicted first, of those with at most this worth; or none.
  [[nodiscard]] PageId first_idle(Worth worth = Worth::Kept) const;
  /// Takes that page off the tree's page; the caller owns it.
  [[nodiscard]] PageId evict(Worth worth = Worth::Kept);
  /// The tree gives up a page: detaches the page that hangs on it, which the caller owns; or none.
  [[nodiscard]] PageId drop(PageId tree_page);

  [[nodiscard]] std::uint32_t attached_count() const { return attached_count_; }
  [[nodiscard]] std::uint32_t idle_count() const { return idle_.size(); }

  /// Calls visit(tree_page, page) for all of them.
  template <typename Visitor>
  void for_each(Visitor&& visit) const {
    for (std::uint32_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].tree_page != 0) visit(PageId{entries_[i].tree_page - 1}, PageId{i});
    }
  }
  /// Names the first rule that does not hold, if any. O(pages).
  [[nodiscard]] Status check_invariants() const;

 private:
  friend struct AnchoredPagesPeer;  // tests corrupt what check_invariants() must notice
  enum List : std::uint32_t { kPassed, kKept, kListCount };

  // Of an anchored page. Ids are stored + 1, so that untouched memory means none.
  struct Entry {
    std::uint32_t tree_page = 0;
    std::uint32_t pins = 0;
    std::uint32_t holds = 0;
    bool is_kept = false;
    [[nodiscard]] bool is_idle() const { return tree_page != 0 && pins == 0 && holds == 0; }
  };
  void enter_idle(std::uint32_t page) { idle_.push_back(page, entries_[page].is_kept ? kKept : kPassed); }

  LazyArray<std::uint32_t> anchored_;  // by the tree's page
  LazyArray<Entry> entries_;           // by anchored page
  IndexLists idle_;
  std::uint32_t attached_count_ = 0;
};

}  // namespace quire
