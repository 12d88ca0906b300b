// SPDX-License-Identifier: Apache-2.0
//
// PageHome: where the pages of one pool belong. This is the only seam between the history and other groups. The
// history's pages are the prefix tree's own (history_pages.h); pages of windows and snapshots hang on them
// (anchored_group.h). A home names the victim when room is needed, knows where an arrived page attaches, and gives a
// page its tag. Everything else that moves pages between tiers is the same for all pools.
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>

#include "prefix/hit_rule.h"
#include "prefix/prefix_tree.h"
#include "quire/transfer.h"
#include "quire/types.h"
#include "tiers/tier_pages.h"
#include "tiers/transfer_book.h"
#include "transfer/page_names.h"

namespace quire {

class PageHome {
 public:
  PageHome(std::uint16_t the_pool, const StepFence& fence) : pool(the_pool), pages(fence) {}
  virtual ~PageHome() = default;
  PageHome(const PageHome&) = delete;
  PageHome& operator=(const PageHome&) = delete;

  // Who names the victim.

  /// Device pages that make_room() could free at once.
  [[nodiscard]] virtual std::uint32_t evictable_pages() const = 0;
  /// Gives up idle device pages until so many are free, or no more can be had.
  virtual void make_room(std::uint32_t page_count) = 0;
  /// Host pages that evict_host() could give up.
  [[nodiscard]] virtual std::uint32_t host_evictable_pages() const = 0;
  /// Gives up host pages, one at least. False: nobody could spare one.
  [[nodiscard]] virtual bool evict_host() = 0;

  // Copies on the host.

  /// The device page that has waited longest for a copy, or none.
  [[nodiscard]] virtual PageId next_wanted() = 0;
  /// The host page is to become the copy of a device page: what the store is to say about it.
  [[nodiscard]] virtual PageTransfer start_copy(PageId device_page, PageId host_page) = 0;
  enum class CopyEnd : std::uint8_t {
    Taken,     ///< the tree has the copy
    Lost,      ///< the copy was awaited, and has not come
    Unwanted,  ///< the device page has gone, or has another copy
  };
  virtual CopyEnd end_copy(const PageTransfer& page, bool is_good) = 0;

  // Lower tiers.

  /// The page of the tree by whose name a cached host page is stored.
  [[nodiscard]] virtual NamedPage name_of(PageId host_page) const = 0;
  /// A hash of what the pool's page at `tree_page` holds: a load that finds another tag fails.
  [[nodiscard]] virtual std::uint64_t tag_of(const NamedPage& tree_page) const = 0;

  // Loads from the host to the device.

  /// Which pages of a path somebody wants: those in `columns`, from column `from` on.
  struct Wanted {
    WindowColumns columns;
    std::uint32_t from = 0;
  };
  struct Listed {
    std::uint32_t page_count = 0;
    std::uint32_t next_column = 0;  // behind the last one
  };
  /// The next wanted pages of a pinned path that are on the host and in no load, in the order of the path, without
  /// their device pages: as many as `out` has room for. Of the history, all pages are wanted.
  [[nodiscard]] virtual Listed list_loads(const PrefixTree::Pin& path, const Wanted& wanted,
                                          std::span<PageTransfer> out) = 0;
  /// Remembers which load brings the pages of `load`, which lie on a path that the load pins: no second load brings
  /// them, and whoever wants them waits for this one.
  virtual void note_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load, std::uint32_t load_index) = 0;
  virtual void forget_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load,
                           std::uint32_t load_index) = 0;
  /// Whether a load brings something of a pinned path that lies in `columns`.
  [[nodiscard]] virtual bool brings(std::uint32_t load_index, const PrefixTree::Pin& path,
                                    const WindowColumns& columns) = 0;
  enum class Turn : std::uint8_t {
    Now,
    Later,  ///< another load brings what comes before
    Never,  ///< what comes before is missing
  };
  [[nodiscard]] virtual Turn turn_of(const Transfer& load) const = 0;
  /// The good pages of a load become the tree's on the device. Device pages that the tree takes are none afterwards;
  /// where the tree has got a page meanwhile, the load's came in vain.
  virtual void attach(const Transfer& load, std::span<PageTransfer> good) = 0;
  /// A host page does not have the bytes that its load expected. An anchored page is released here, and none returned.
  /// Of the history, the run that begins with the page is returned: the caller drops it with all runs behind it.
  [[nodiscard]] virtual RunId drop_bad(const Transfer& load, const PageTransfer& bad, std::uint32_t place) = 0;

  const std::uint16_t pool;  // 0: the history
  TierPages pages;
};

}  // namespace quire
