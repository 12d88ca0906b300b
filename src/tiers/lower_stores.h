// SPDX-License-Identifier: Apache-2.0
//
// LowerStores: which host pages are written to lower tiers, and when. The write policy of a tier says which pages, its
// write budget how many; pages that were used again go first. Pools take turns. Where a tier keeps the history in
// extents (lower_tier.h), the last page of an extent stands for it: this page waits, and has a state of its own; the
// others are There or not. An extent waits when the host has all its pages. If one of them goes before its turn, the
// extent is left until that page has come back, or somebody uses the path again. LowerStores also sends lower tiers the
// names of pages, drops of key spaces, and flushes; drops and flushes are transfers without pages.
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/result.h"
#include "tiers/tier_parts.h"

namespace quire {

class LowerStores {
 public:
  explicit LowerStores(TierParts& parts) : parts_(parts) {}

  /// So many pages of one extent of the history have room.
  void open(std::uint32_t extent_pages_max) { extent_.resize(extent_pages_max); }

  struct Copied {
    PageId host_page;
    PageId anchor;  // the history's device page that it belongs to
  };
  /// Host pages have just got their bytes from the device.
  void want(PageHome& home, std::span<const Copied> copied);
  /// Somebody uses a path again: pages that were used often are written before others, and those that a tier has lost
  /// are written again. With WritePolicy::Selective, only pages that were used write_hits_min times are written.
  void prefer(const PrefixTree::Pin& path);
  /// Whether one more page of a pool may be copied to the host now. While flush() runs, a full host takes no page as
  /// long as host pages of the pool wait to be written: they would be evicted for it.
  [[nodiscard]] bool may_copy(const PageHome& home) const;

  /// Starts stores as far as there are transfers, and the budgets allow. True: stores of anchored groups are among
  /// them. These name pages by ids of the history's pages, so they are to be handed over before such an id gets another
  /// page.
  [[nodiscard]] bool start();
  void finish(std::uint32_t transfer);
  void refill_budgets(TimeNs elapsed_ns);

  // Names.

  /// Pages of a sequence have just come into the tree: logs their tokens, from which the lower tiers compute their
  /// names.
  void log_names(std::uint32_t sequence, std::uint32_t first_page, std::uint32_t end_page);
  /// A search has brought pages to the host: logs their tokens for the other lower tiers, which do not know their
  /// names.
  void log_arrived(const Search& search, const PrefixTree::Key& key, const NamedPage& parent, std::uint32_t first_page,
                   std::span<const PageId> host_pages);
  /// A key space was dropped, and its sequences still hold pages. Takes the names of these pages away, so that they are
  /// not written any more: a key space that is made anew would find them there under the same names.
  void forget_names(std::uint32_t key_space);

  // Drops and flush().

  /// Has the pages of a key space dropped from all lower tiers. The key space counts as used until that is done, so
  /// that no other key space gets its index meanwhile.
  void drop(std::uint32_t key_space);
  /// Has everything dropped from all lower tiers, of key spaces that this process does not know too.
  void drop_all();
  void start_drops();
  void finish_drop(std::uint32_t transfer);
  /// A key space of this name was dropped, and lower tiers have not been told yet: they would find what it had.
  [[nodiscard]] bool awaits_drop(std::uint32_t key_space) const;
  /// What was written to a tier may be gone: a sync has failed, a whole segment, or the tier.
  void lose_all_of(std::uint16_t lower_index);
  /// A page that flush() wanted on the host was not copied there.
  void note_lost_copy() { has_lost_copies_ = true; }
  /// Begins a flush. False: one is under way.
  [[nodiscard]] bool begin_flush();
  /// True: all tiers are synced, with every page that the host's room and the write budgets allowed. False: call again
  /// after more completions.
  [[nodiscard]] Result<bool> try_flush();
  void finish_flush(std::uint32_t transfer);

 private:
  void log_page(const NamedPage& page, const NamedPage& parent, std::uint32_t key_space, const PrefixTree::Key& key,
                std::uint32_t page_index);
  [[nodiscard]] static bool writes(const Lower& lower, const LowerCopies& copies);
  [[nodiscard]] bool must_write(const Lower& lower, const PageHome& home, const LowerCopies& copies) const;
  [[nodiscard]] bool keeps(const Lower& lower, const PageHome& home, PageId host_page) const;
  [[nodiscard]] bool start_one(std::uint16_t lower_index, PageHome& home);
  template <typename Home>
  void fill(std::uint32_t transfer, Lower& lower, Home& home);
  void fill_extents(std::uint32_t transfer, Lower& lower);
  void finish_extents(const Transfer& store, std::span<const PageTransfer> pages, bool is_lost);
  void want_extents_of(std::uint16_t lower_index, PageId host_page);
  void prefer_extent(std::uint16_t lower_index, RunId run, std::uint32_t last, bool is_hot);
  [[nodiscard]] bool is_used_enough(const Lower& lower, RunId run) const;
  [[nodiscard]] bool list_extent(RunId run, std::uint32_t last, std::uint32_t page_count);
  [[nodiscard]] bool try_start_drop(std::uint32_t key_space);
  void want_lost();
  void prefer_page(std::uint16_t lower_index, PageHome& home, PageId host_page, bool is_hot);
  [[nodiscard]] bool has_unstarted_writes() const;
  template <typename Visitor>
  void for_each_host_page(std::uint16_t lower_index, Visitor&& visit);

  TierParts& parts_;
  std::vector<PageId> extent_;   // scratch: the host pages of one extent
  std::uint32_t next_pool_ = 0;  // the pool whose turn it is
  bool has_unstarted_drop_ = false;
  bool wants_drop_all_ = false;  // drop_all() was called, and its transfers have not begun
  // flush(), while it is wanted.
  std::uint32_t flushes_in_flight_ = 0;
  bool is_flushed_ = false;            // all tiers have answered the last flush
  bool has_lost_copies_ = false;       // pages did not reach the host since the flush began
  bool flushes_again_ = false;         // a key space was dropped meanwhile, and the drop has to be flushed too
  bool has_cancelled_stores_ = false;  // drops kept pages from being written, which are wanted again
  std::uint32_t round_ = 0;            // how often that has happened since the flush began, or since the last drop
};

}  // namespace quire
