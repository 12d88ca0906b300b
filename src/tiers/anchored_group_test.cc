// SPDX-License-Identifier: Apache-2.0
#include "tiers/anchored_group.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

// Whether some boundary needs a page, tried one by one.
TEST(AnchoredGroupTest, RetentionKeepsWhatSomeBoundaryNeeds) {
  StepFence fence;
  testing::TestTree tree(testing::kOneToken);
  AnchoredGroup group(1, fence, *tree);
  for (const std::uint32_t page_tokens : {1U, 3U, 16U}) {
    for (const std::uint32_t interval_pages : {1U, 2U, 7U}) {
      for (const std::uint32_t window_tokens : {0U, 1U, 2U, 5U, 33U}) {
        CacheGroup config{.window_tokens = window_tokens};
        group.group = &config;
        group.is_window = window_tokens > 0;
        group.sink_pages = group.is_window ? 1 : 0;
        const std::uint32_t interval = interval_pages * page_tokens;
        for (std::uint32_t column = 0; column < 25; ++column) {
          const std::uint32_t begin = column * page_tokens;
          bool is_needed = column < group.sink_pages;
          for (std::uint32_t boundary = interval; boundary <= begin + (40 * page_tokens) + 40; boundary += interval) {
            // The token at the boundary sees the window_tokens - 1 before it. A state lies in the page before it.
            const std::uint32_t seen = group.is_window ? window_tokens - 1 : 1;
            const std::uint32_t first = boundary - std::min(boundary, seen);
            is_needed = is_needed || (first < begin + page_tokens && begin < boundary && first < boundary);
          }
          const GroupRetention every{.rule = RetentionRule::Every, .interval_tokens = interval};
          // A page more than needed costs room, one less a hit.
          const bool is_kept = group.is_kept_at(column, every, page_tokens);
          EXPECT_TRUE(is_kept || !is_needed);
          EXPECT_TRUE(group.is_window || is_kept == is_needed);
          EXPECT_TRUE(group.is_kept_at(column, {.rule = RetentionRule::Dense}, page_tokens));
          EXPECT_FALSE(group.is_kept_at(column, {.rule = RetentionRule::None}, page_tokens));
        }
      }
    }
  }
}

// Two pages with no room on the host: the one that a hold waits for was used when the hold asked first, and not since.
TEST(AnchoredGroupTest, AHoldThatWaitsForItsCopyUsesThePageOnce) {
  StepFence fence;
  testing::TestTree tree({.page_tokens = 1, .page_count_max = 2, .host_page_count_max = 1});
  const PrefixTree::Pin path = tree.insert(testing::token_range(0, 2));
  CacheGroup config{.window_tokens = 2};
  AnchoredGroup group(1, fence, *tree);
  group.group = &config;
  group.is_window = true;
  ASSERT_TRUE(group.open_device(DevicePool::Owned, 2, 2));
  ASSERT_TRUE(group.open_host({.page_count = 1, .tree_page_count = 2, .tree_host_page_count = 1, .path_pages_max = 2}));
  std::array<PageId, 2> pages;
  ASSERT_TRUE(group.pages.device.try_allocate(pages));
  group.pages.device.seal(pages);
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    group.on_device.attach(PageId{i}, pages[i]);
    group.release(pages[i], AnchoredGroup::Worth::Kept);
  }
  const AnchoredGroup::HostHold asked = group.hold_on_host({Tier::Device, PageId{0}}, 0, {});
  EXPECT_TRUE(asked.is_wanted);
  EXPECT_EQ(group.on_device.first_idle(), pages[1]);
  group.on_device.pin_found(pages[1]);
  group.on_device.unpin(pages[1], AnchoredGroup::Worth::Kept);
  ASSERT_EQ(group.on_device.first_idle(), pages[0]);
  EXPECT_TRUE(group.hold_on_host({Tier::Device, PageId{0}}, 0, asked).is_wanted);
  EXPECT_EQ(group.on_device.first_idle(), pages[0]);
}

// Pages of a group whose content is a number: that of the tree's page they were made for. The tree's pages come and go,
// change tiers and get new numbers; whatever hangs on one has its number, or nothing does.
class GroupModel {
 public:
  explicit GroupModel(testing::Random& random) : group_(1, fence_, *tree_) {
    path_ = tree_.insert(testing::token_range(0, kTreePages));
    config_.name = "window";
    group_.group = &config_;
    group_.is_window = true;
    device_.resize(2 + random.below(kTreePages));
    host_.resize(2 + random.below(kTreePages));
    const auto device_count = static_cast<std::uint32_t>(device_.size() - 1);
    const auto host_count = static_cast<std::uint32_t>(host_.size() - 1);
    EXPECT_TRUE(group_.open_device(DevicePool::Owned, device_count, kTreePages));
    EXPECT_TRUE(group_.open_host({.page_count = host_count,
                                  .tree_page_count = kTreePages,
                                  .tree_host_page_count = kTreeHostPages,
                                  .path_pages_max = kTreePages}));
    on_device_.resize(kTreePages);
    on_host_.resize(kTreeHostPages + 1);
    for (std::uint32_t& number : on_device_) number = ++last_number_;
  }

  std::string apply(const testing::Op& op) {
    const PageId tree_page{op.draws[0] % kTreePages};
    const PageId tree_host_page{1 + (op.draws[1] % kTreeHostPages)};
    switch (op.kind % 14) {
      case 0:
      case 1:
        hang(tree_page, op.draws[1] % 2 == 0 ? AnchoredGroup::Worth::Kept : AnchoredGroup::Worth::Passed);
        break;
      case 2:
      case 3:
        start_copy();
        break;
      case 4:
        if (!copies_.empty()) end_copy(op.draws[0] % copies_.size(), op.draws[1] % 4 != 0);
        break;
      case 5:
        group_.drop_anchor(tree_page);
        on_device_[tree_page.value] = ++last_number_;
        break;
      case 6:  // the tree's page leaves the device
        if (on_host_[tree_host_page.value] != 0) break;
        group_.on_demote(tree_page, tree_host_page);
        group_.drop_anchor(tree_page);
        on_host_[tree_host_page.value] = on_device_[tree_page.value];
        on_device_[tree_page.value] = ++last_number_;
        break;
      case 7:  // and comes back to another place
        if (on_host_[tree_host_page.value] == 0) break;
        group_.drop_anchor(tree_page);
        group_.on_promote(tree_host_page, tree_page);
        on_device_[tree_page.value] = on_host_[tree_host_page.value];
        on_host_[tree_host_page.value] = 0;
        break;
      case 8:
        group_.drop_host_anchor(tree_host_page);
        on_host_[tree_host_page.value] = 0;
        break;
      case 9:
        make_room(op);
        break;
      case 10:
        if (op.draws[2] % 2 == 0) {
          hold({Tier::Device, tree_page}, on_device_[tree_page.value]);
        } else {
          hold({Tier::Host, tree_host_page}, on_host_[tree_host_page.value]);
        }
        break;
      case 11:
        if (!holds_.empty()) release(op.draws[0] % holds_.size());
        break;
      case 12:
        if (group_.on_device.has(tree_page)) group_.drop(group_.on_device.at(tree_page));
        break;
      default:
        load(op);
    }
    return told_.empty() ? difference() : told_;
  }

 private:
  static constexpr std::uint32_t kTreePages = 7;
  static constexpr std::uint32_t kTreeHostPages = 5;
  [[nodiscard]] static std::uint32_t column_of(std::uint32_t number) { return number % 13; }

  void hang(PageId tree_page, AnchoredGroup::Worth worth) {
    PageId page;
    if (group_.on_device.has(tree_page) || !group_.pages.device.try_allocate({&page, 1})) return;
    device_[page.value] = on_device_[tree_page.value];
    group_.pages.device.seal({&page, 1});
    group_.on_device.attach(tree_page, page);
    group_.want_copy(page, column_of(device_[page.value]));
    group_.release(page, worth);
  }

  void start_copy() {
    const PageId page = group_.next_wanted();
    if (page.is_none()) return;
    PageId host_page = group_.pages.try_take_host();
    if (host_page.is_none() && group_.evict_host()) host_page = group_.pages.try_take_host();
    if (host_page.is_none()) return;
    if (group_.host_of_device().has(group_.on_device.tree_page_of(page))) told_ = "a page that has a copy wants one";
    host_[host_page.value] = 0;
    copies_.push_back(group_.start_copy(page, host_page));
    group_.pages.begin_device_read(page);
  }

  void end_copy(std::size_t index, bool is_good) {
    const PageTransfer copy = copies_[index];
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(index));
    if (is_good) host_[copy.host_page.value] = device_[copy.device_page.value];
    const PageHome::CopyEnd end = group_.end_copy(copy, is_good);
    if (!is_good && end == PageHome::CopyEnd::Taken) told_ = "a copy that failed is taken";
    if (end == PageHome::CopyEnd::Taken) {
      group_.pages.host.seal({&copy.host_page, 1});
    } else {
      group_.pages.host.release({&copy.host_page, 1});
    }
    group_.pages.end_device_read(copy.device_page);
  }

  /// A host page that somebody holds, and its content.
  struct NaiveHold {
    AnchoredGroup::HostHold hold;
    std::uint32_t number = 0;
  };
  void hold(const NamedPage& tree_page, std::uint32_t number) {
    const PageId host_page = group_.host_page_at(tree_page);
    const bool is_on_device = tree_page.tier == Tier::Device && group_.on_device.has(tree_page.page);
    const AnchoredGroup::HostHold held = group_.hold_on_host(tree_page, column_of(number), {});
    if (held.page != host_page) told_ = "another page is held than hangs there";
    if (held.is_wanted != (host_page.is_none() && is_on_device)) told_ = "a page is to be copied that need not be";
    if (!held.page.is_none()) holds_.push_back({held, number});
  }
  void release(std::size_t index) {
    group_.release_host_hold(holds_[index].hold);
    holds_.erase(holds_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  /// The tree has given up what a host page hangs on: nothing of it is left. Otherwise whatever is held is there.
  [[nodiscard]] std::string held_difference() const {
    std::vector<std::uint32_t> counts(host_.size());
    for (const NaiveHold& held : holds_) {
      const bool has_number = std::ranges::find(on_device_, held.number) != on_device_.end() ||
                              std::ranges::find(on_host_, held.number) != on_host_.end();
      if (group_.is_there(held.hold) != has_number) return "a held page that is not where it was";
      if (!has_number) continue;
      if (host_[held.hold.page.value] != held.number) return "a held page with another's content";
      ++counts[held.hold.page.value];
    }
    for (std::uint32_t i = 1; i < counts.size(); ++i) {
      if (group_.host_hold_count(PageId{i}) != counts[i]) return "a page is held more or less often than asked for";
    }
    return "";
  }

  // What is held stays, however much room is asked for.
  void make_room(const testing::Op& op) {
    std::vector<PageId> row(kTreePages);
    for (std::uint32_t i = 0; i < kTreePages; ++i) row[i] = PageId{i};
    const std::uint32_t first = op.draws[0] % kTreePages;
    const WindowColumns columns{.first = first, .last = first + (op.draws[1] % 3)};
    const TierPath path{.pages = row, .host_pages = {}};
    std::vector<PageId> held;
    group_.hold(path, columns, Tier::Device, /*is_held=*/true);
    for_each_column(columns,
                    [&](std::uint32_t i) { held.push_back(i < kTreePages ? group_.on_device.at(row[i]) : PageId()); });
    const std::uint32_t evictable = group_.evictable_pages() + group_.pages.device.free_count();
    const std::uint32_t wanted = 1 + (op.draws[2] % static_cast<std::uint32_t>(device_.size()));
    group_.make_room(wanted);
    if (group_.pages.device.free_count() < std::min(wanted, evictable)) told_ = "room that was counted is not there";
    std::size_t place = 0;
    for_each_column(columns, [&](std::uint32_t i) {
      if (i < kTreePages && group_.on_device.at(row[i]) != held[place]) told_ = "a page that was held has gone";
      ++place;
    });
    group_.hold(path, columns, Tier::Device, /*is_held=*/false);
  }

  // Brings what the host has of some columns, in one go.
  void load(const testing::Op& op) {
    std::vector<PageTransfer> room(1 + (op.draws[0] % 3));
    const WindowColumns columns{.sink_pages = op.draws[1] % 2, .first = 2, .last = kTreePages};
    const PageHome::Listed listed = group_.list_loads(path_, {.columns = columns, .from = 0}, room);
    const std::span<PageTransfer> pages = std::span(room).first(listed.page_count);
    group_.note_load(path_, pages, 6);
    if (!pages.empty() && !group_.brings(6, path_, columns)) told_ = "a load brings what it does not say";
    group_.forget_load(path_, pages, 6);
    for (PageTransfer& page : pages) {
      if (!group_.pages.device.try_allocate({&page.device_page, 1})) return;
      device_[page.device_page.value] = host_[page.host_page.value];
      Transfer load{.pool = group_.pool};
      load.pin = tree_->clone(path_);
      group_.attach(load, {&page, 1});
      if (!page.device_page.is_none()) told_ = "the tree does not take what it lacks";
    }
  }

  [[nodiscard]] std::string difference() const {
    std::uint32_t evictable = 0;
    std::uint32_t in_time = 0;
    std::vector<std::uint32_t> reads(device_.size());
    for (const PageTransfer& copy : copies_) ++reads[copy.device_page.value];
    for (std::uint32_t i = 1; i < device_.size(); ++i) {
      const bool is_idle = group_.on_device.is_attached(PageId{i}) && !group_.on_device.is_pinned(PageId{i});
      evictable += is_idle && reads[i] == 0 ? 1 : 0;
      in_time += is_idle || (reads[i] > 0 && !group_.on_device.is_attached(PageId{i})) ? 1 : 0;
    }
    if (group_.evictable_pages() != evictable || group_.pages_in_time() != in_time) return "pages that can be had";
    for (std::uint32_t i = 0; i < kTreePages; ++i) {
      const PageId page = group_.on_device.at(PageId{i});
      if (!page.is_none() && device_[page.value] != on_device_[i]) return "another page's content on the device";
      const PageId copy = group_.host_page_at({Tier::Device, PageId{i}});
      if (!is_right(copy, {Tier::Device, PageId{i}}, on_device_[i])) return "another page's content on the host";
    }
    for (std::uint32_t i = 1; i <= kTreeHostPages; ++i) {
      const PageId page = group_.host_page_at({Tier::Host, PageId{i}});
      if (!is_right(page, {Tier::Host, PageId{i}}, on_host_[i])) return "another page's content below the host's page";
    }
    if (std::string held = held_difference(); !held.empty()) return held;
    if (const Status status = group_.check_invariants(); !status) return status.error().message;
    const Status status = group_.pages.check(reads, std::vector<std::uint32_t>(host_.size()));
    return status ? "" : status.error().message;
  }

  [[nodiscard]] bool is_right(PageId host_page, const NamedPage& tree_page, std::uint32_t number) const {
    if (host_page.is_none()) return true;
    const NamedPage name = group_.name_of(host_page);
    return host_[host_page.value] == number && name.tier == tree_page.tier && name.page == tree_page.page &&
           group_.column_of(host_page) == column_of(number);
  }

  StepFence fence_;
  testing::TestTree tree_{{.page_tokens = 1, .page_count_max = kTreePages, .host_page_count_max = kTreeHostPages}};
  PrefixTree::Pin path_;
  CacheGroup config_;
  AnchoredGroup group_;
  std::vector<std::uint32_t> device_;  // by the group's page: its content
  std::vector<std::uint32_t> host_;
  std::vector<std::uint32_t> on_device_;  // by the tree's page: its number
  std::vector<std::uint32_t> on_host_;
  std::uint32_t last_number_ = 0;
  std::vector<PageTransfer> copies_;
  std::vector<NaiveHold> holds_;
  std::string told_;
};

TEST(AnchoredGroupTest, WhatHangsOnAPageIsThePagesOwn) {
  struct Kept {
    std::unique_ptr<GroupModel> model;
    std::string apply(const testing::Op& op) { return model->apply(op); }
  };
  EXPECT_EQ(testing::run_seeds({.test = "bin/anchored_group_test", .seed_count = 100, .step_count = 500},
                               [](testing::Random& random) { return Kept{std::make_unique<GroupModel>(random)}; }),
            "");
}

}  // namespace
}  // namespace quire
