// SPDX-License-Identifier: Apache-2.0
//
// AnchoredGroup: a window or snapshot group as the tiers see it. Its pages hang on pages of the history
// (prefix/anchored_pages.h). A device page hangs on the history's device page. A host page hangs on the history's
// device page as long as the history has one there, and on its host page afterwards. When the history's page is given
// up, the group's page is given up too; it may be given up earlier.
//
// Pages are copied to the host as soon as the tree has them, with any write policy: they are few, or small, and without
// them a sequence cannot go on where they belong, even if all of the history is there.
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "prefix/anchored_pages.h"
#include "quire/config.h"
#include "quire/layout.h"
#include "tiers/page_home.h"

namespace quire {

/// The pages of a path, in the tiers where they are.
struct TierPath {
  std::span<const PageId> pages;
  std::span<const PageId> host_pages;
  [[nodiscard]] NamedPage at(std::uint32_t column) const {
    QUIRE_DCHECK(column < size(), "a column behind the end of a path");
    return column < pages.size() ? NamedPage{Tier::Device, pages[column]}
                                 : NamedPage{Tier::Host, host_pages[column - pages.size()]};
  }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(pages.size() + host_pages.size()); }
};

class AnchoredGroup final : public PageHome {
 public:
  using Worth = AnchoredPages::Worth;

  AnchoredGroup(std::uint16_t the_pool, const StepFence& fence, PrefixTree& tree)
      : PageHome(the_pool, fence), tree_(tree) {}
  [[nodiscard]] Status open_device(DevicePool owner, std::uint32_t page_count, std::uint32_t tree_page_count);
  struct HostConfig {
    std::uint32_t page_count = 0;
    std::uint32_t tree_page_count = 0;
    std::uint32_t tree_host_page_count = 0;
    std::uint32_t path_pages_max = 0;
    bool looks_ahead = false;
  };
  [[nodiscard]] Status open_host(const HostConfig& config);
  /// A device page of the history gets another id.
  void renumber_anchor(PageId tree_page, PageId renumbered) {
    on_device.renumber(tree_page, renumbered);
    if (has_host()) host_of_device_.renumber(tree_page, renumbered);
  }
  [[nodiscard]] Status grow_tree(std::uint32_t tree_page_count);
  [[nodiscard]] bool has_host() const { return pages.has_host(); }

  // Device pages.

  /// One more sequence uses a page: pins a page of the tree, and shares any other.
  void take(PageId page);
  /// A sequence no longer uses a page of its row. A page of the tree stays there; one of the sequence's own is given
  /// back.
  void release(PageId page, Worth worth);
  /// The tree gives up a device page: the device page and the host page that hang on it are given up too.
  void drop_anchor(PageId tree_page);
  /// Gives up an idle device page, and its copy on the host unless somebody holds that.
  void drop(PageId page);
  /// Has a page copied to the host that has just come into the tree, at this column of its path.
  void want_copy(PageId page, std::uint32_t column);
  /// Has all device pages copied that the host has no copy of, and that no store reads.
  void want_all_copies();
  /// Wanted copies that were not started are not made any more.
  void forget_wanted();

  // Host pages.

  /// The history's page is on the host only from here on: the host page that hung on its device page hangs on its host
  /// page.
  void on_demote(PageId device_page, PageId host_page);
  /// The history's page has come back to the device: the other way round.
  void on_promote(PageId host_page, PageId device_page);
  /// The tree gives up a host page: the host page that hangs on it is given up too.
  void drop_host_anchor(PageId host_page);
  /// The group's host page that hangs on a page of the history, or none.
  [[nodiscard]] PageId host_page_at(const NamedPage& tree_page) const {
    return anchored_in(tree_page.tier).at(tree_page.page);
  }
  [[nodiscard]] bool is_in_memory(const TierPath& path, std::uint32_t column) const;
  /// Hangs a host page, which a lower tier has brought, on a page of the history. False: another one hangs there.
  [[nodiscard]] bool attach_host(const NamedPage& tree_page, PageId host_page, std::uint32_t column);
  /// The column in its path that a cached host page belongs to.
  [[nodiscard]] std::uint32_t column_of(PageId host_page) const { return host_columns_[host_page.value]; }
  /// Whether a retention rule wants the group's page at a column of a path.
  [[nodiscard]] bool is_kept_at(std::uint32_t column, const GroupRetention& retention, std::uint32_t page_tokens) const;
  /// Pins the group's pages in these columns of a path that are in `tier`, or, without `is_held`, unpins them. They
  /// count as Worth::Kept afterwards, because somebody asked for them.
  void hold(const TierPath& path, const WindowColumns& columns, Tier tier, bool is_held);
  /// Holds the host page that hangs on a page of the history, if there is one: it stays there until
  /// release_host_hold(), or until the history's page is given up. A page that only the device has is to be copied;
  /// `before` is what the same call gave the last time, as long as the copy has not come.
  struct HostHold {
    PageId page;  // none: nothing is held yet
    std::uint32_t generation = 0;
    bool is_wanted = false;  // the page is to be copied, or on its way
  };
  [[nodiscard]] HostHold hold_on_host(const NamedPage& tree_page, std::uint32_t column, const HostHold& before);
  void release_host_hold(const HostHold& hold);
  /// The host page is still there, and not another one with its id.
  [[nodiscard]] bool is_there(const HostHold& hold) const;
  /// How often a host page is held; 0 also where none is cached.
  [[nodiscard]] std::uint32_t host_hold_count(PageId host_page) const {
    return host_of_device_.hold_count(host_page) + host_of_host_.hold_count(host_page);
  }
  /// How many pages of `columns` the device lacks and no load brings.
  [[nodiscard]] std::uint32_t count_loads(const TierPath& path, const WindowColumns& columns) const;
  /// The load of what hangs on a page of the history, + 1; 0: none.
  [[nodiscard]] std::uint32_t load_at(const NamedPage& tree_page) const {
    return (tree_page.tier == Tier::Device ? load_of_ : load_of_host_)[tree_page.page.value];
  }
  /// Device pages that can be had besides the free ones, some of them only when the stores that read them have ended.
  [[nodiscard]] std::uint32_t pages_in_time() const;

  // PageHome.
  [[nodiscard]] std::uint32_t evictable_pages() const override;
  std::uint32_t evict(std::uint32_t page_count) override;
  [[nodiscard]] std::uint32_t host_evictable_pages() const override {
    return host_of_device_.idle_count() + host_of_host_.idle_count();
  }
  [[nodiscard]] bool evict_host() override;
  [[nodiscard]] PageId next_wanted() override;
  [[nodiscard]] PageTransfer start_copy(PageId device_page, PageId host_page) override;
  CopyEnd end_copy(const PageTransfer& page, bool is_good) override;
  [[nodiscard]] NamedPage name_of(PageId host_page) const override;
  [[nodiscard]] std::uint64_t tag_of(const NamedPage& tree_page) const override;
  [[nodiscard]] Listed list_loads(const PrefixTree::Pin& path, const Wanted& wanted,
                                  std::span<PageTransfer> out) override;
  void note_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load, std::uint32_t load_index) override;
  void forget_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load, std::uint32_t load_index) override;
  [[nodiscard]] bool brings(std::uint32_t load_index, const PrefixTree::Pin& path,
                            const WindowColumns& columns) override;
  [[nodiscard]] Turn turn_of(const Transfer& load) const override;
  void attach(const Transfer& load, std::span<PageTransfer> good) override;
  [[nodiscard]] RunId drop_bad(const Transfer& load, const PageTransfer& bad, std::uint32_t place) override;

  [[nodiscard]] Status check_invariants() const;
  template <typename Visitor>
  void visit_host_pages(Visitor&& visit) const {
    host_of_device_.for_each([&](PageId page, PageId /*host_page*/) { visit(Tier::Device, page); });
    host_of_host_.for_each([&](PageId page, PageId /*host_page*/) { visit(Tier::Host, page); });
  }

  const CacheGroup* group = nullptr;
  std::uint32_t group_index = 0;  // in the layout
  bool is_window = false;         // false: the group keeps its data in state slots, and its pages are snapshots of them
  bool has_pages = false;
  std::uint32_t sink_pages = 0;
  AnchoredPages on_device;  // by the history's device page
  [[nodiscard]] const AnchoredPages& host_of_device() const { return host_of_device_; }
  [[nodiscard]] const AnchoredPages& host_of_host() const { return host_of_host_; }

 private:
  /// The host pages that hang on pages of the history in `tier`.
  [[nodiscard]] AnchoredPages& anchored_in(Tier tier) { return tier == Tier::Device ? host_of_device_ : host_of_host_; }
  [[nodiscard]] const AnchoredPages& anchored_in(Tier tier) const {
    return tier == Tier::Device ? host_of_device_ : host_of_host_;
  }
  static void move_host_page(AnchoredPages& source, PageId source_anchor, AnchoredPages& target, PageId target_anchor,
                             bool is_kept);
  void keep_host_copy(PageId tree_page);
  void release_device(PageId page);
  [[nodiscard]] bool evict_device();
  void release_host_copy(PageId host_page) {
    if (!host_page.is_none()) pages.release_host(host_page);
  }
  [[nodiscard]] TierPath path_of(const PrefixTree::Pin& pin, const WindowColumns& columns);
  [[nodiscard]] TierPath path_of(const PrefixTree::Pin& pin, std::span<const PageTransfer> load);
  [[nodiscard]] std::uint32_t& load_at(const NamedPage& tree_page) {
    return (tree_page.tier == Tier::Device ? load_of_ : load_of_host_)[tree_page.page.value];
  }

  PrefixTree& tree_;
  AnchoredPages host_of_device_;             // host pages, by the history's device page that they hang on
  AnchoredPages host_of_host_;               // host pages, by the history's host page: its device page is gone
  IndexLists wanted_;                        // device pages to be copied, oldest first
  LazyArray<std::uint32_t> load_of_;         // by the history's device page: the load of what hangs on it, + 1; 0: none
  LazyArray<std::uint32_t> load_of_host_;    // the same by the history's host page, whose own load is under way
  LazyArray<std::uint32_t> device_columns_;  // by device page: its column in its path
  LazyArray<std::uint32_t> host_columns_;    // by host page: the same
  std::vector<PageId> path_;                 // scratch: pages of a path
};

}  // namespace quire
