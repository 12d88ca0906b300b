// SPDX-License-Identifier: Apache-2.0
//
// Random operations on PagePool and on a twin that keeps a state and a count of owners for each page, and two queues of
// free ones.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "generated_ops.h"
#include "pool/page_pool.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

struct PoolModelConfig {
  std::uint32_t page_count = 0;
  std::uint32_t first_page = 0;
  std::uint32_t page_count_max = 24;
  std::uint32_t batch_max = 6;  ///< pages of one operation
};

class PoolModel {
 public:
  explicit PoolModel(const PoolModelConfig& config)
      : config_(config), pool_(*PagePool::create({.page_count = config.page_count, .first_page = config.first_page})) {
    resize_twin(config.page_count);
  }

  std::string apply(const Op& op) {
    difference_.clear();
    switch (op.kind % 14) {
      case 0:
      case 1:
      case 2:
        allocate(op.draws[0] % (config_.batch_max + 2));
        break;
      case 3:
        pool_.seal(move_twin(draw_alone(op, PageState::Open), PageState::Sealed));
        break;
      case 4:
        pool_.make_private(move_twin(draw(op, PageState::Open), PageState::Private));
        break;
      case 5:
        release(draw(op, PageState::Open));
        break;
      case 6:
        release(draw(op, op.draws[2] % 2 == 0 ? PageState::Sealed : PageState::Private));
        break;
      case 7:
        for (const PageId page : draw(op, op.draws[2] % 2 == 0 ? PageState::Open : PageState::Private)) {
          pool_.share(page);
          ++twin_extra_owners(page);
        }
        break;
      case 8:
        for (const PageId page : draw(op, op.draws[2] % 2 == 0 ? PageState::Open : PageState::Private)) {
          if (twin_extra_owners(page) == 0) continue;
          pool_.unshare(page);
          --twin_extra_owners(page);
        }
        break;
      case 9:
        for (const PageId page : move_twin(draw_alone(op, PageState::Private), PageState::Open)) pool_.reopen(page);
        break;
      case 10:
      case 11:
        pool_.fence(
            move_twin(draw_alone(op, op.draws[2] % 2 == 0 ? PageState::Open : PageState::Private), PageState::Fenced));
        break;
      case 12:
        release(draw(op, PageState::Fenced));
        break;
      default:
        if (op.draws[2] % 4 == 0) resize(op.draws[0] % (config_.page_count_max + 1));
        break;
    }
    compare();
    return difference_;
  }

 private:
  void differ(const std::string& what) {
    if (difference_.empty()) difference_ = what;
  }

  [[nodiscard]] PageState& twin_state(PageId page) { return states_[page.value - config_.first_page]; }

  /// Some pages of one state, in an order that the draws choose.
  [[nodiscard]] std::vector<PageId> draw(const Op& op, PageState state) {
    std::vector<PageId> pages;
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      if (states_[i] == state) pages.push_back(PageId{config_.first_page + i});
    }
    if (pages.empty()) return pages;
    std::ranges::rotate(pages, pages.begin() + static_cast<std::ptrdiff_t>(op.draws[0] % pages.size()));
    if (op.draws[1] % 2 == 1) std::ranges::reverse(pages);
    pages.resize(std::min<std::size_t>(pages.size(), op.draws[1] % config_.batch_max));
    return pages;
  }

  /// Only those with one owner.
  [[nodiscard]] std::vector<PageId> draw_alone(const Op& op, PageState state) {
    std::vector<PageId> pages = draw(op, state);
    std::erase_if(pages, [this](PageId page) { return twin_extra_owners(page) > 0; });
    return pages;
  }

  [[nodiscard]] std::uint32_t& twin_extra_owners(PageId page) { return extra_owners_[page.value - config_.first_page]; }

  std::vector<PageId> move_twin(std::vector<PageId> pages, PageState to) {
    for (const PageId page : pages) twin_state(page) = to;
    return pages;
  }

  void allocate(std::uint32_t count) {
    std::vector<PageId> expected(count);
    const bool is_possible = count <= never_used_.size() + came_back_.size();
    if (is_possible) {
      for (PageId& page : expected) {
        std::deque<PageId>& queue = never_used_.empty() ? came_back_ : never_used_;
        page = queue.front();
        queue.pop_front();
        twin_state(page) = PageState::Open;
      }
    }
    std::vector<PageId> pages(count);
    if (pool_.try_allocate(pages) != is_possible) differ("whether an allocation succeeds");
    if (pages != expected) differ("pages of an allocation");
  }

  void release(const std::vector<PageId>& pages) {
    pool_.release(pages);
    for (const PageId page : pages) {
      const bool is_last = twin_extra_owners(page) == 0;
      twin_state(page) = is_last ? PageState::Free : PageState::Private;
      if (is_last) {
        came_back_.push_back(page);
      } else {
        --twin_extra_owners(page);
      }
    }
  }

  void resize(std::uint32_t page_count) {
    bool is_possible = true;
    bool would_be_possible = true;
    for (std::uint32_t i = page_count; i < states_.size(); ++i) {
      is_possible = is_possible && states_[i] == PageState::Free;
      would_be_possible = would_be_possible && (states_[i] == PageState::Free || states_[i] == PageState::Fenced);
    }
    if (pool_.check_resize(page_count).has_value() != would_be_possible) differ("whether resizing would succeed");
    if (pool_.resize(page_count).has_value() != is_possible) differ("whether resizing succeeds");
    if (is_possible) resize_twin(page_count);
  }

  void resize_twin(std::uint32_t page_count) {
    for (auto i = static_cast<std::uint32_t>(states_.size()); i < page_count; ++i) {
      never_used_.push_back(PageId{config_.first_page + i});
    }
    states_.resize(page_count, PageState::Free);
    extra_owners_.resize(page_count);
    const auto is_gone = [&](PageId page) { return page.value >= config_.first_page + page_count; };
    std::erase_if(never_used_, is_gone);
    std::erase_if(came_back_, is_gone);
  }

  void compare() {
    if (pool_.page_count() != states_.size()) differ("page count");
    for (const PageState state :
         {PageState::Free, PageState::Open, PageState::Sealed, PageState::Private, PageState::Fenced}) {
      if (pool_.count(state) != std::ranges::count(states_, state)) {
        differ("count of " + std::string(to_string(state)) + " pages");
      }
    }
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      const PageId page{config_.first_page + i};
      if (pool_.state(page) != states_[i]) differ("state of page " + std::to_string(i));
      const bool is_owned = states_[i] == PageState::Open || states_[i] == PageState::Private;
      if (pool_.owner_count(page) != (is_owned ? 1 + extra_owners_[i] : 0))
        differ("owners of page " + std::to_string(i));
    }
    if (const Status status = pool_.check_invariants(); !status.has_value()) differ(status.error().message);
  }

  PoolModelConfig config_;
  PagePool pool_;
  std::vector<PageState> states_;
  std::vector<std::uint32_t> extra_owners_;
  std::deque<PageId> never_used_;
  std::deque<PageId> came_back_;
  std::string difference_;
};

TEST(PagePoolModel, AgreesWithItsTwinAfterEveryStep) {
  const SeedPlan plan{.test = "bin/pool_model_test --gtest_filter='*AgreesWithItsTwinAfterEveryStep'",
                      .seed_count = kIsSanitized ? 20 : 3000,
                      .step_count = 2000};
  EXPECT_EQ(run_seeds(plan,
                      [](Random& random) {
                        const std::uint32_t page_count = random.below(25);
                        return PoolModel({.page_count = page_count, .first_page = random.below(3) * 100});
                      }),
            "");
}

// Large enough for the ring of free pages to be moved to its front.
TEST(PagePoolModel, OfThousandsOfPagesAgreesWithItsTwinAfterEveryStep) {
  const SeedPlan plan{.test = "bin/pool_model_test --gtest_filter='*OfThousandsOfPages*'",
                      .first_seed = 10'001,
                      .seed_count = kIsSanitized ? 1 : 20,
                      .step_count = 2000};
  EXPECT_EQ(run_seeds(plan,
                      [](Random& random) {
                        return PoolModel({.page_count = 3000 + random.below(3000),
                                          .first_page = 1,
                                          .page_count_max = 6000,
                                          .batch_max = 900});
                      }),
            "");
}

TEST(PagePoolModel, AgreesWithItsTwinOnGeneratedOperations) {
  EXPECT_TRUE(check_generated([] { return PoolModel({.page_count = 8, .first_page = 1}); }));
}

}  // namespace
}  // namespace quire::testing
