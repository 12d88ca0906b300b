// SPDX-License-Identifier: Apache-2.0
//
// HostStores: what goes from the device to the host, and when. With write-through and selective policies, pages of the
// history are copied when they come into the tree or have been used often enough; with write-back, when they are about
// to make room. Windows and snapshots are always copied at once. Pools take turns, so that no group starves.
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
  }

  /// Pages of a sequence have just come into the tree: the columns [first_page, end_page) of its row.
  void want_copies(std::uint32_t sequence, std::uint32_t first_page, std::uint32_t end_page);
  /// With WritePolicy::Selective: pages of a path that has been used often enough.
  void want_copies_of_path(const PrefixTree::Pin& path);
  /// Everything that would be copied some day is to be copied now.
  void want_all_copies();
  /// Starts what is wanted, as long as there are transfers and host pages for it.
  void start();
  /// With write-back: sees to it that so many device pages are free, or can be had at once, when what is on its way has
  /// arrived.
  void start_leaving(std::uint32_t page_count);
  /// With write-back: keeps a reserve of pages that can go at once.
  void keep_reserve() {
    if (parts_.history.writes_back()) start_leaving(clean_reserve_pages_);
  }
  /// With write-back: starts copies of idle device pages to the host, so that loads can take those pages. Never pages
  /// of `match`.
  void make_clean(std::uint32_t page_count, const PrefixTree::Match& match);
  void finish(std::uint32_t transfer);

  void set_clean_reserve(std::uint32_t page_count) { clean_reserve_pages_ = page_count; }

 private:
  [[nodiscard]] bool start_one(PageHome& home);
  [[nodiscard]] bool add_page(std::uint32_t transfer, PageHome& home, PageId device_page);

  TierParts& parts_;
  LowerStores& lower_;
  std::uint32_t clean_reserve_pages_ = 0;
  std::uint32_t next_pool_ = 0;  // whose turn it is
  std::vector<PageId> pages_;    // scratch
};

}  // namespace quire
