// SPDX-License-Identifier: Apache-2.0
#include "tiers/tier_pages.h"

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using CopyState = LowerCopies::State;

// Who uses a page, written down page by page: a device page is not free while a store reads it or a step that was
// planned before it went back runs, and is free when none does. Host pages have copies for two lower tiers, and for a
// third one that keeps nothing.
class PagesModel {
 public:
  explicit PagesModel(testing::Random& random)
      : device_(1 + random.below(9)), host_(1 + random.below(9)), pages_(fence_) {
    EXPECT_TRUE(pages_.open_device(size(device_)));
    EXPECT_TRUE(
        pages_.open_host({.page_count = size(host_), .looks_ahead = random.below(2) == 0, .lists_reads = true}));
    for (const bool keeps_pages : {true, false, true}) EXPECT_TRUE(pages_.add_lower(keeps_pages));
    for (HostTwin& twin : host_) twin.copies.resize(pages_.lower.size());
    waiting_.resize(pages_.lower.size());
  }

  std::string apply(const testing::Op& op) {
    switch (op.kind % 5) {
      case 0:
        run_steps(op);
        break;
      case 1:
      case 2:
        use_device(op.draws[0] % size(device_), op);
        break;
      default:
        use_host(op.draws[0] % size(host_), op);
    }
    if (!told_.empty()) return told_;
    return difference();
  }

 private:
  struct DeviceTwin {
    std::uint32_t readers = 0;
    bool is_held = false;
    std::set<std::uint64_t> steps;  // that may use the page though nobody holds it
    bool waits_for_moves = false;
  };
  struct HostTwin {
    std::uint32_t readers = 0;
    bool is_held = false;
    std::uint32_t generation = 0;
    std::vector<CopyState> copies;
  };
  template <typename Twin>
  [[nodiscard]] static std::uint32_t size(const std::vector<Twin>& twins) {
    return static_cast<std::uint32_t>(twins.size());
  }

  // The next step makes the moves, or somebody makes them without one.
  void run_steps(const testing::Op& op) {
    fence_.begin_call();
    if (op.draws[0] % 4 == 0) {
      running_.insert(fence_.next_number());
      for (DeviceTwin& twin : device_) {
        if (twin.waits_for_moves) twin.steps.insert(fence_.next_number());
      }
      fence_.plan_step();
      set_moves(false);
    } else if (op.draws[0] % 4 == 1) {
      set_moves(op.draws[1] % 2 == 0);
    } else if (!running_.empty()) {
      const std::uint64_t step = *std::next(running_.begin(), op.draws[1] % running_.size());
      running_.erase(step);
      fence_.end_step(step);
      for (DeviceTwin& twin : device_) twin.steps.erase(step);
    }
    pages_.free_fenced();
    if (fence_.is_quiet()) {
      for (std::uint32_t i = 0; i < size(device_); ++i) {
        const bool is_free = !device_[i].is_held && device_[i].readers == 0;
        if (is_free && pages_.device.state(PageId{i + 1}) != PageState::Free) told_ = "a page waits for nobody";
      }
    }
  }

  void set_moves(bool has_moves) {
    fence_.set_moves(has_moves);
    for (DeviceTwin& twin : device_) twin.waits_for_moves = twin.waits_for_moves && has_moves;
  }

  void use_device(std::uint32_t index, const testing::Op& op) {
    DeviceTwin& twin = device_[index];
    const PageId page{index + 1};
    switch (op.draws[1] % 5) {
      case 0:
        take_targets(1 + (op.draws[2] % size(device_)));
        return;
      case 1:
        if (!twin.is_held) return;
        pages_.begin_device_read(page);
        ++twin.readers;
        return;
      case 2:
        if (twin.readers == 0) return;
        pages_.end_device_read(page);
        --twin.readers;
        if (!twin.is_held) leave(twin);
        return;
      case 3:
        if (twin.is_held) pages_.settle_later(page);
        return;
      default:
        if (!twin.is_held) return;
        twin.is_held = false;
        if (op.draws[2] % 2 == 0) {
          pages_.give_back(page);
          leave(twin);
        } else {
          pages_.release_device(page);
        }
    }
  }

  void leave(DeviceTwin& twin) const {
    twin.steps.insert(running_.begin(), running_.end());
    twin.waits_for_moves = fence_.has_moves();
  }

  void take_targets(std::uint32_t count) {
    std::uint32_t settled = 0;
    for (std::uint32_t i = 1; i <= size(device_); ++i) {
      settled += pages_.device.state(PageId{i}) == PageState::Free && pages_.is_settled(PageId{i}) ? 1 : 0;
    }
    std::vector<PageId> out(count);
    const bool is_taken = pages_.try_take_targets(out);
    if (is_taken != (count <= settled)) told_ = "targets that may be written";
    for (const PageId page : out) {
      if (is_taken && !pages_.is_settled(page)) told_ = "a target that moves still write";
      if (is_taken) device_[page.value - 1].is_held = true;
    }
  }

  void use_host(std::uint32_t index, const testing::Op& op) {
    HostTwin& twin = host_[index];
    const PageId page{index + 1};
    switch (op.draws[1] % 8) {
      case 0: {
        const PageId taken = pages_.try_take_host();
        if (taken.is_none()) return;
        host_[taken.value - 1].is_held = true;
        if (pages_.generation(taken) != ++host_[taken.value - 1].generation) told_ = "a generation";
        pages_.host.seal({&taken, 1});
        return;
      }
      case 1:
        if (!twin.is_held) return;
        pages_.begin_host_read(page);
        ++twin.readers;
        return;
      case 2:
        if (twin.readers == 0) return;
        pages_.end_host_read(page);
        --twin.readers;
        return;
      case 3:
        if (!twin.is_held) return;
        pages_.release_host(page);
        twin.is_held = false;
        for (std::size_t lower = 0; lower < waiting_.size(); ++lower) forget(lower, index);
        return;
      default:
        if (twin.is_held) mark(index, op.draws[2] % 2 == 0 ? 0 : 2, op);
    }
  }

  void mark(std::uint32_t index, std::size_t lower, const testing::Op& op) {
    LowerCopies& copies = pages_.lower[lower];
    CopyState& state = host_[index].copies[lower];
    const PageId page{index + 1};
    if (op.draws[3] % 3 == 0) {
      copies.forget(page);
      forget(lower, index);
    } else if (state == CopyState::None || state == CopyState::Lost) {
      const bool is_hot = op.draws[3] % 2 == 0;
      copies.want(page, is_hot);
      state = is_hot ? CopyState::Hot : CopyState::Cold;
      waiting_[lower].push_back(index);
    } else if (state == CopyState::Hot || state == CopyState::Cold) {
      copies.forget(page);
      forget(lower, index);
      copies.set_there(page);
      state = CopyState::There;
    }
  }

  void forget(std::size_t lower, std::uint32_t index) {
    host_[index].copies[lower] = CopyState::None;
    std::erase(waiting_[lower], index);
  }

  [[nodiscard]] std::string difference() const {
    std::vector<std::uint32_t> device_reads(device_.size() + 1);
    std::vector<std::uint32_t> host_reads(host_.size() + 1);
    for (std::uint32_t i = 0; i < size(device_); ++i) {
      const DeviceTwin& twin = device_[i];
      device_reads[i + 1] = twin.readers;
      const bool is_used = twin.is_held || twin.readers > 0 || !twin.steps.empty() || twin.waits_for_moves;
      const PageState state = pages_.device.state(PageId{i + 1});
      if (is_used && state == PageState::Free) return "a free page that somebody may use";
      if (twin.is_held != (state == PageState::Open)) return "who holds a page";
      if (pages_.is_read(PageId{i + 1}) != (twin.readers > 0)) return "who reads a page";
    }
    for (std::uint32_t i = 0; i < size(host_); ++i) {
      const HostTwin& twin = host_[i];
      host_reads[i + 1] = twin.readers;
      const PageState expected = twin.is_held       ? PageState::Sealed
                                 : twin.readers > 0 ? PageState::Fenced
                                                    : PageState::Free;
      if (pages_.host.state(PageId{i + 1}) != expected) return "the state of a host page";
      for (std::size_t lower = 0; lower < waiting_.size(); ++lower) {
        const LowerCopies& copies = pages_.lower[lower];
        if (copies.is_on() && copies.states[i + 1] != twin.copies[lower]) return "the state of a copy";
      }
    }
    std::uint32_t read_count = 0;
    pages_.for_each_read([&](PageId page) { read_count += device_reads[page.value] > 0 ? 1 : 0; });
    if (read_count != pages_.read_page_count()) return "the pages that are read";
    for (std::size_t lower = 0; lower < waiting_.size(); ++lower) {
      for (const auto& [list, state] :
           {std::pair{LowerCopies::kHot, CopyState::Hot}, {LowerCopies::kCold, CopyState::Cold}}) {
        const auto is_there = [&](std::uint32_t index) { return host_[index].copies[lower] == state; };
        const auto first = std::ranges::find_if(waiting_[lower], is_there);
        const std::uint32_t expected = first == waiting_[lower].end() ? IndexLists::kNone : *first + 1;
        if (pages_.lower[lower].is_on() && pages_.lower[lower].waiting.front(list) != expected) return "who is next";
      }
    }
    const Status status = pages_.check(device_reads, host_reads);
    return status ? "" : status.error().message;
  }

  StepFence fence_;
  std::vector<DeviceTwin> device_;
  std::vector<HostTwin> host_;
  TierPages pages_;
  std::set<std::uint64_t> running_;
  std::vector<std::deque<std::uint32_t>> waiting_;  // by lower tier: host pages to be written, oldest first
  std::string told_;
};

TEST(TierPagesTest, NoPageIsUsedTwice) {
  // The model points to its own fence, and so stays where it is.
  struct Kept {
    std::unique_ptr<PagesModel> model;
    std::string apply(const testing::Op& op) { return model->apply(op); }
  };
  EXPECT_EQ(testing::run_seeds({.test = "bin/tier_pages_test", .seed_count = 150, .step_count = 600},
                               [](testing::Random& random) { return Kept{std::make_unique<PagesModel>(random)}; }),
            "");
}

TEST(TierPagesTest, AGrownPoolHasReadersAndStepsForItsNewPages) {
  StepFence fence;
  TierPages pages(fence);
  ASSERT_TRUE(pages.open_device(1));
  ASSERT_TRUE(pages.open_host({.page_count = 1, .looks_ahead = true, .lists_reads = true}));
  ASSERT_TRUE(pages.grow_device(70'000));
  ASSERT_TRUE(pages.device.resize(70'000));
  std::vector<PageId> taken(70'000);
  ASSERT_TRUE(pages.device.try_allocate(taken));
  fence.plan_step();
  for (const PageId page : taken) pages.settle_later(page);
  pages.begin_device_read(taken.back());
  for (const PageId page : taken) pages.give_back(page);
  EXPECT_EQ(pages.device.count(PageState::Fenced), 70'000U);
  fence.end_step(1);
  pages.free_fenced();
  EXPECT_EQ(pages.device.free_count(), 69'999U);  // the store goes on
  pages.end_device_read(taken.back());
  EXPECT_EQ(pages.device.free_count(), 70'000U);
}

TEST(TierPagesTest, PagesThatWaitForMovesAreInTimeForTheNextPlan) {
  StepFence fence;
  TierPages pages(fence);
  ASSERT_TRUE(pages.open_device(3));
  std::vector<PageId> taken(3);
  ASSERT_TRUE(pages.device.try_allocate(taken));
  fence.set_moves(true);
  for (const PageId page : taken) pages.give_back(page);
  EXPECT_EQ(pages.free_for_plan(), 3U);
  pages.unfence(2);
  EXPECT_EQ(pages.device.free_count(), 2U);
  fence.plan_step();
  EXPECT_EQ(pages.free_for_plan(), 2U);
  pages.unfence(3);  // a step runs: the last page may be in it
  EXPECT_EQ(pages.device.free_count(), 2U);
}

TEST(TierPagesDeathTest, WhoReadsNothingCannotEndReading) {
  StepFence fence;
  TierPages pages(fence);
  ASSERT_TRUE(pages.open_device(1));
  ASSERT_TRUE(pages.open_host({.page_count = 1}));
  EXPECT_DEATH(pages.end_device_read(PageId{1}), "a store ends that does not read the page");
  EXPECT_DEATH(pages.end_host_read(PageId{1}), "a transfer ends that does not read the page");
}

}  // namespace
}  // namespace quire
