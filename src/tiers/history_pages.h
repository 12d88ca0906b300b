// SPDX-License-Identifier: Apache-2.0
//
// HistoryPages: the pages of the groups that keep every token, which are the prefix tree's own. The tree says which
// pages are given up, and in which order; pages of anchored groups that hang on a page are given up with it. A path
// begins with device runs and goes on with host runs. Loaded pages become device pages of the tree when their load has
// arrived, in the order of the path. Until then the load pins the host runs, and the tree notes for each of them which
// load brings it, so that later requests wait for the same load.
//
// single-threaded
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/lazy_array.h"
#include "prefix/prefix_tree.h"
#include "quire/chunk_index.h"
#include "quire/config.h"
#include "quire/stats.h"
#include "tiers/anchored_group.h"
#include "tiers/page_home.h"
#include "transfer/page_names.h"

namespace quire {

class HistoryPages final : public PageHome, public TierListener {
 public:
  struct Parts {
    PrefixTree& tree;
    std::vector<std::unique_ptr<AnchoredGroup>>& groups;
    Stats& counters;
    WritePolicy write_policy = WritePolicy::WriteBack;
  };
  HistoryPages(const StepFence& fence, const Parts& parts) : PageHome(0, fence), parts_(parts), tree_(parts.tree) {}
  [[nodiscard]] Status open_host(const TierPages::HostConfig& config, std::uint32_t path_pages_max);
  [[nodiscard]] Status open_lower(NameLog& name_log);
  /// Pages that leave the device leave the index too, in the same call. It outlives the tiers.
  void set_chunk_index(ChunkIndex& chunks) { chunks_ = &chunks; }

  // What leaves the tree.

  /// Gives up everything of a key space that nobody pins. Returns how many device pages.
  std::uint32_t drop_all(RunId root, ResidencyCause cause);
  /// Releases host pages that the tree has given up, with the pages of anchored groups that hang on them.
  void release_freed_host();
  void drop_host_run(RunId run, ResidencyCause cause) {
    tree_.drop_host_run(run, cause);
    release_freed_host();
  }

  // What can be had.

  [[nodiscard]] bool writes_back() const { return pages.has_host() && parts_.write_policy == WritePolicy::WriteBack; }
  /// Device pages that a plan can take besides the pages of a match.
  [[nodiscard]] std::uint32_t available_besides(const PrefixTree::Match& match) const;
  /// Device pages that a load can take besides the pages of a match. A load writes at any time: pages that wait for
  /// moves of the next plan are of no use to it.
  [[nodiscard]] std::uint32_t available_for_loads(const PrefixTree::Match& match) const {
    return available_besides(match) - (pages.free_for_plan() - pages.device.free_count());
  }
  /// Device pages that can be had besides, once stores under way have ended. `is_full`: the book of transfers is full,
  /// and with write-back the other idle pages can be copied when a transfer has ended.
  [[nodiscard]] std::uint32_t pages_leaving(bool is_full) const;
  /// Saves of sequences that have ended still read so many pages: these can be evicted, but are not free at once.
  void add_abandoned_reads(std::uint32_t page_count) { abandoned_reads_ += page_count; }
  void end_abandoned_reads(std::uint32_t page_count) {
    QUIRE_CHECK(page_count <= abandoned_reads_, "more reads of ended sequences end than began");
    abandoned_reads_ -= page_count;
  }

  // Lower tiers.

  /// Whether a device page was used so often that its copy is to be written first: to some lower tier, or to this one.
  [[nodiscard]] bool is_hot(PageId device_page) const { return hot_[device_page.value] != 0; }
  [[nodiscard]] bool is_hot(PageId device_page, std::uint16_t lower) const {
    return (hot_[device_page.value] >> lower & 1U) != 0;
  }
  void set_hot(PageId device_page, std::uint16_t lower) {
    hot_[device_page.value] = static_cast<std::uint8_t>(hot_[device_page.value] | (1U << lower));
  }
  /// A page comes to the device: nothing is known of it yet.
  void set_cold(PageId device_page) { hot_[device_page.value] = below_[device_page.value] = 0; }
  /// What was written to a lower tier may be gone.
  void forget_below(std::uint16_t lower);

  // Extents, for lower tiers that have some.

  /// To be called before the first page comes: columns are known from here on.
  [[nodiscard]] Status open_extents();
  /// Where a page that comes into the tree stands in its path.
  void set_column(const NamedPage& page, std::uint32_t column) {
    if (has_extents()) columns_of(page.tier)[page.page.value] = column;
  }
  [[nodiscard]] std::uint32_t column_of_host(PageId host_page) const { return host_columns_[host_page.value]; }
  /// The host page at a column of a run; none: the host lacks it.
  [[nodiscard]] PageId host_page_at(RunId run, std::uint32_t column) const;
  /// Lists the host pages of a path, those of out.size() columns that end with column `last` of `run`. False: the host
  /// lacks one.
  [[nodiscard]] bool list_on_host(RunId run, std::uint32_t last, std::span<PageId> out) const;

  [[nodiscard]] Status grow_device(std::uint32_t page_count);
  /// Gives a device page of an idle run the id `page`, which was taken for it and has got its bytes.
  void renumber(RunId run, std::uint32_t index_in_run, PageId page);

  // PageHome.
  [[nodiscard]] std::uint32_t evictable_pages() const override;
  std::uint32_t evict(std::uint32_t page_count) override;
  [[nodiscard]] std::uint32_t host_evictable_pages() const override { return tree_.host_evictable_pages(); }
  [[nodiscard]] bool evict_host() override;
  [[nodiscard]] PageId next_wanted() override { return tree_.next_wanted(); }
  [[nodiscard]] PageTransfer start_copy(PageId device_page, PageId host_page) override;
  CopyEnd end_copy(const PageTransfer& page, bool is_good) override;
  [[nodiscard]] NamedPage name_of(PageId host_page) const override { return {Tier::Host, host_page}; }
  [[nodiscard]] std::uint64_t tag_of(const NamedPage& tree_page) const override {
    return tree_.fingerprint(tree_page.page, tree_page.tier);
  }
  [[nodiscard]] Listed list_loads(const PrefixTree::Pin& path, const Wanted& wanted,
                                  std::span<PageTransfer> out) override;
  void note_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load, std::uint32_t load_index) override;
  void forget_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load, std::uint32_t load_index) override;
  [[nodiscard]] bool brings(std::uint32_t load_index, const PrefixTree::Pin& path,
                            const WindowColumns& columns) override;
  [[nodiscard]] Turn turn_of(const Transfer& load) const override;
  void attach(const Transfer& load, std::span<PageTransfer> good) override;
  [[nodiscard]] RunId drop_bad(const Transfer& load, const PageTransfer& bad, std::uint32_t place) override;

  // TierListener: pages of anchored groups that hang on a page of the tree follow it to its new id.
  void on_demote(PageId device_page, PageId host_page) override;
  void on_promote(PageId host_page, PageId device_page) override;
  void on_copy_given_up(PageId device_page, PageId host_page) override;
  [[nodiscard]] bool is_below(Tier tier, PageId page) const override;

 private:
  void give_up(std::span<const PageId> device_pages);
  void list_host_runs(const PrefixTree::Pin& path);
  [[nodiscard]] bool has_extents() const { return host_columns_.size() > 0; }
  [[nodiscard]] LazyArray<std::uint32_t>& columns_of(Tier tier) {
    return tier == Tier::Host ? host_columns_ : device_columns_;
  }

  Parts parts_;
  PrefixTree& tree_;
  NameLog* name_log_ = nullptr;   // null: there is no lower tier
  ChunkIndex* chunks_ = nullptr;  // null: pages are not found by their own tokens
  // By device page, with a bit for each lower tier:
  LazyArray<std::uint8_t> hot_;    // for which the page is hot
  LazyArray<std::uint8_t> below_;  // that got the page from a host copy which was given up since
  // With extents: where a page stands in its path.
  LazyArray<std::uint32_t> device_columns_;
  LazyArray<std::uint32_t> host_columns_;
  std::uint32_t abandoned_reads_ = 0;
  std::vector<RunId> runs_;      // scratch: the host runs of a path, from its end up
  std::vector<PageId> targets_;  // scratch: device pages of one run
};

}  // namespace quire
