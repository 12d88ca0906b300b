// SPDX-License-Identifier: Apache-2.0
//
// HostStores: which pages are copied from the device to the host, and when. With write-through, pages of the history
// are copied when they come into the tree; with the selective policy, when they have been used often enough; with
// write-back, when the device is about to need their room. Windows and snapshots are copied at once with any policy.
// Pools take turns, so that no group starves.
//
// With write-back, a page is clean when the host has a copy of it. A run is leaving while its pages are copied, and has
// left when they are: then evict() takes it first (prefix_tree.h).
//
// single-threaded
#pragma once

#include <cstdint>

#include "tiers/lower_stores.h"
#include "tiers/tier_parts.h"

namespace quire {

class HostStores {
 public:
  HostStores(TierParts& parts, LowerStores& lower) : parts_(parts), lower_(lower) {}
  void open(std::uint32_t clean_reserve_pages) {
    clean_reserve_pages_ = clean_reserve_pages;
    pages_.resize(parts_.book.pages_max());
    copied_.resize(parts_.book.pages_max());
  }

  /// Columns [first_page, end_page) of a sequence's row have just come into the tree. With any policy, notes when their
  /// bytes will be complete (TierPages::settle_later()); with write-through, has them copied.
  void want_copies(std::uint32_t sequence, std::uint32_t first_page, std::uint32_t end_page);
  /// With WritePolicy::Selective: has the runs of a path copied that have been used often enough.
  void want_copies_of_path(const PrefixTree::Pin& path);
  /// For flush(): has all pages copied that the policies let go to a lower tier, and that have no copy on the host yet.
  void want_all_copies();
  /// Starts stores of the pages that are wanted, as far as there are transfers and host pages.
  void start();
  /// With write-back: starts to copy idle runs, until so many device pages are free, have left, or will have left when
  /// the stores under way have ended.
  void start_leaving(std::uint32_t page_count);
  /// With write-back: keeps a reserve of clean pages, which can be evicted at once.
  void keep_reserve() {
    if (parts_.history.writes_back()) start_leaving(clean_reserve_pages_);
  }
  /// Makes the moves of committed token trees, so that pages they write can be copied or loaded into. With write-back,
  /// also starts to copy idle device pages, so that so many can be taken; never pages of `match`.
  void make_clean(std::uint32_t page_count, const PrefixTree::Match& match);
  /// A store has ended: its good pages become host copies, and are wanted by the lower tiers.
  void finish(std::uint32_t transfer);

  void set_clean_reserve(std::uint32_t page_count) { clean_reserve_pages_ = page_count; }

 private:
  [[nodiscard]] bool start_one(PageHome& home);
  [[nodiscard]] bool add_page(std::uint32_t transfer, PageHome& home, PageId device_page);

  TierParts& parts_;
  LowerStores& lower_;
  std::uint32_t clean_reserve_pages_ = 0;
  std::uint32_t next_pool_ = 0;              // the pool whose turn it is
  std::vector<PageId> pages_;                // scratch
  std::vector<LowerStores::Copied> copied_;  // scratch
};

}  // namespace quire
