// SPDX-License-Identifier: Apache-2.0
//
// PageHome: where the pages of one pool belong, and the seam between the history and other groups. The history's pages
// are the prefix tree's own (history_pages.h); pages of windows and snapshots hang on them (anchored_group.h). A home
// names the victim when room is needed, says which device pages are to be copied to the host, gives a page its name and
// its tag, and attaches pages that were loaded to the device. So the same code makes the copies, stores and loads of
// all pools. Pages that come from lower tiers do not go through the home. docs/architecture.md lists where other code
// still asks for the pool, and why.
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
  /// Device pages that a plan can take: free ones, evictable ones, and those that only wait for moves of that plan.
  [[nodiscard]] std::uint32_t available_pages() const { return pages.free_for_plan() + evictable_pages(); }
  /// Gives up so many idle device pages, or all there are. Returns how many. Pages that a store still reads are not
  /// free at once.
  virtual std::uint32_t evict(std::uint32_t page_count) = 0;
  /// Gives up idle device pages until so many are free, or no more can be had.
  void make_room(std::uint32_t page_count) {
    while (page_count > pages.device.free_count() && evict(page_count - pages.device.free_count()) > 0) {
    }
  }
  /// Takes device pages that may be written at any time from now on, all of `out` or none. Gives up idle pages only if
  /// there are enough of them.
  [[nodiscard]] bool try_take_targets(std::span<PageId> out) {
    if (out.size() > pages.device.free_count() + evictable_pages()) return false;
    make_room(static_cast<std::uint32_t>(out.size()));
    return pages.try_take_targets(out);
  }
  /// Host pages that evict_host() could give up.
  [[nodiscard]] virtual std::uint32_t host_evictable_pages() const = 0;
  /// Gives up host pages, one at least. False: nobody could spare one.
  [[nodiscard]] virtual bool evict_host() = 0;

  // Copies on the host.

  /// The device page that has waited longest for a copy, or none.
  [[nodiscard]] virtual PageId next_wanted() = 0;
  /// Notes that the host page is being filled as the copy of a device page. Returns the page's entry for the store.
  [[nodiscard]] virtual PageTransfer start_copy(PageId device_page, PageId host_page) = 0;
  enum class CopyEnd : std::uint8_t {
    Taken,     ///< the home has the copy
    Lost,      ///< the copy is wanted, but was not made
    Unwanted,  ///< the device page has left the tree, or has another copy: the caller releases the host page
  };
  /// The store of a page has ended. `is_good`: the host page has the bytes.
  virtual CopyEnd end_copy(const PageTransfer& page, bool is_good) = 0;

  // Lower tiers.

  /// The history's page whose name a cached host page is stored under.
  [[nodiscard]] virtual NamedPage name_of(PageId host_page) const = 0;
  /// A hash of the tokens up to the end of `tree_page` and, of an anchored group, of the group's index. A load fails
  /// when the host page has another tag.
  [[nodiscard]] virtual std::uint64_t tag_of(const NamedPage& tree_page) const = 0;

  // Loads from the host to the device.

  /// Which pages of a path somebody wants: those in `columns`, from column `from` on.
  struct Wanted {
    WindowColumns columns;
    std::uint32_t from = 0;
  };
  struct Listed {
    std::uint32_t page_count = 0;
    std::uint32_t next_column = 0;  // behind the last column that was looked at; the history does not set it
  };
  /// Lists the next wanted pages of a pinned path that are on the host and in no load, in the order of the path, as
  /// many as `out` has room for. Their device pages are none. The history does not look at `wanted`: it wants all
  /// pages.
  [[nodiscard]] virtual Listed list_loads(const PrefixTree::Pin& path, const Wanted& wanted,
                                          std::span<PageTransfer> out) = 0;
  /// Remembers that load `load_index` brings the pages `load`, which belong to the path that it pins: no second load
  /// brings them, and whoever wants them waits for this one.
  virtual void note_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load, std::uint32_t load_index) = 0;
  virtual void forget_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load,
                           std::uint32_t load_index) = 0;
  /// Whether a load brings a page of a pinned path that lies in `columns`; of the history, any page of the path.
  [[nodiscard]] virtual bool brings(std::uint32_t load_index, const PrefixTree::Pin& path,
                                    const WindowColumns& columns) = 0;
  enum class Turn : std::uint8_t {
    Now,
    Later,  ///< another load brings the pages before those of this load
    Never,  ///< the pages before those of this load are missing, and no load brings them
  };
  /// Whether the pages of a load that has arrived may attach.
  [[nodiscard]] virtual Turn turn_of(const Transfer& load) const = 0;
  /// Attaches the good pages of a load on the device, and sets `device_page` of those taken to none. A page that the
  /// home has got from elsewhere meanwhile is not taken: it stays with the load, which releases it.
  virtual void attach(const Transfer& load, std::span<PageTransfer> good) = 0;
  /// `bad`, number `place` in the load, does not have the bytes that the load expected. An anchored group releases the
  /// host page and returns none. The history returns the run that begins with the page, which the caller drops with all
  /// runs behind it; none if the page was computed meanwhile.
  [[nodiscard]] virtual RunId drop_bad(const Transfer& load, const PageTransfer& bad, std::uint32_t place) = 0;

  const std::uint16_t pool;  // 0: the history
  TierPages pages;
};

}  // namespace quire
