// SPDX-License-Identifier: Apache-2.0
//
// Every shipped policy beside its plain twin, on a real prefix tree that random operations change: requests with pins
// that overlap, soft pins, evictions, dropped key spaces, priorities, times and growth. After every operation both name
// the same victim, it is idle, and, but for arc, a leaf.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "testing/policy_twins.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "tests/model/generated_ops.h"

namespace quire {
namespace {

using testing::Op;

constexpr std::uint32_t kPromptPagesMax = 10;
constexpr std::size_t kPinsMax = 4;

enum class Kind : std::uint8_t {
  Request,
  HeldRequest,
  Extend,
  Unpin,
  SoftPin,
  DropSoftPin,
  Evict,
  EvictAll,
  Advance,
  Grow,
};
constexpr std::array kKinds = {Kind::Request,     Kind::HeldRequest, Kind::Request, Kind::Unpin,   Kind::Evict,
                               Kind::SoftPin,     Kind::Request,     Kind::Advance, Kind::Request, Kind::HeldRequest,
                               Kind::DropSoftPin, Kind::Unpin,       Kind::Request, Kind::Evict,   Kind::EvictAll,
                               Kind::Unpin,       Kind::Grow,        Kind::Request, Kind::Extend,  Kind::Extend,
                               Kind::HeldRequest, Kind::Extend};

class PolicyModel {
 public:
  PolicyModel(std::string_view name, std::uint32_t page_tokens, std::uint32_t page_count)
      : page_tokens_(page_tokens),
        policies_(std::make_unique<testing::ComparedPolicies>(name)),
        tree_(*PrefixTree::create({.page_tokens = page_tokens, .page_count_max = page_count, .root_count_max = 2},
                                  *policies_, nullptr)),
        roots_{tree_->add_root(), tree_->add_root()} {
    add_pages(page_count);
  }

  std::string apply(const Op& op) {
    draws_ = op.draws;
    switch (kKinds[op.kind % kKinds.size()]) {
      case Kind::Request:
        (void)request();
        break;
      case Kind::HeldRequest:
        held_.push_back(request());
        if (held_.size() > kPinsMax) held_.erase(held_.begin());
        break;
      case Kind::Extend:
        if (!held_.empty()) extend(held_[draws_[3] % held_.size()]);
        break;
      case Kind::Unpin:
        if (!held_.empty()) held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(draws_[0] % held_.size()));
        break;
      case Kind::SoftPin:
        make_prompt();
        soft_pins_.push_back(tree_->soft_pin(tree_->match(root(), key())));
        if (soft_pins_.size() > kPinsMax) soft_pins_.erase(soft_pins_.begin());
        break;
      case Kind::DropSoftPin:
        if (!soft_pins_.empty()) soft_pins_.pop_back();
        break;
      case Kind::Evict:
        evict(draws_[0] % kPromptPagesMax);
        break;
      case Kind::EvictAll:
        tree_->evict_all(root(), ResidencyCause::Dropped, [this](auto pages) { take_back(pages); });
        break;
      case Kind::Advance:
        now_ += draws_[0] % 20;
        policies_->on_advance(now_);
        break;
      case Kind::Grow:
        if (page_count_ < 200 && draws_[0] % 8 == 0) {
          QUIRE_CHECK(tree_->grow(page_count_ + 5).has_value(), "growing");
          add_pages(5);
        }
        break;
    }
    (void)policies_->next_victim();
    if (!policies_->difference().empty()) return policies_->difference();
    const Status status = tree_->check_invariants();
    return status ? "" : status.error().message;
  }

 private:
  [[nodiscard]] RunId root() const { return roots_[draws_[3] % roots_.size()]; }
  [[nodiscard]] PrefixTree::Key key() const { return {.tokens = tokens_, .extra_keys = {}}; }

  // Few tokens, so that prompts share prefixes of all lengths.
  void make_prompt() {
    testing::Random random(draws_[0]);
    tokens_.resize(std::size_t{1 + (draws_[1] % kPromptPagesMax)} * page_tokens_);
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<TokenId>(random.below(i < std::size_t{3} * page_tokens_ ? 2 : 5));
    }
  }

  [[nodiscard]] Retention retention() const {
    Retention wanted{.priority = static_cast<std::int8_t>((draws_[2] % 3) - 1)};
    if (draws_[2] % 2 == 0) wanted.expires_at = now_ + 1 + (draws_[2] % 50);
    return wanted;
  }

  /// A path that is held, by the tokens that lead to its end.
  struct Held {
    PrefixTree::Pin pin;
    std::vector<TokenId> tokens;
  };

  Held request() {
    make_prompt();
    const PrefixTree::Match match = tree_->match(root(), key());
    Held held{.pin = tree_->pin(match, retention()),
              .tokens = {tokens_.begin(), tokens_.begin() + (std::ptrdiff_t{match.page_count} * page_tokens_)}};
    insert(held);
    return held;
  }

  // Later, and with other wishes than it began with. What it adds may be there already, from another one.
  void extend(Held& held) {
    make_prompt();
    tokens_.insert(tokens_.begin(), held.tokens.begin(), held.tokens.end());
    tokens_.resize(std::min<std::size_t>(tokens_.size(), held.tokens.size() + (3 * std::size_t{page_tokens_})));
    insert(held);
  }

  /// Continues the path to the end of tokens_, or as far as there are pages.
  void insert(Held& held) {
    const std::size_t missing = (tokens_.size() - held.tokens.size()) / page_tokens_;
    if (missing > free_.size()) evict(static_cast<std::uint32_t>(missing - free_.size()));
    const std::size_t count = std::min(missing, free_.size());
    if (count == 0) return;
    std::vector<PageId> pages(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
    free_.erase(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
    std::vector<PageId> duplicates(count);
    tokens_.resize(held.tokens.size() + (count * page_tokens_));
    const std::uint32_t known = tree_->insert(held.pin, key(), pages, duplicates, {.retention = retention()});
    take_back(std::span(duplicates).first(known));
    held.tokens = tokens_;
  }

  void evict(std::uint32_t page_count) {
    tree_->evict(page_count, [this](auto pages) { take_back(pages); });
  }
  void take_back(std::span<const PageId> pages) { free_.insert(free_.end(), pages.begin(), pages.end()); }
  void add_pages(std::uint32_t page_count) {
    for (std::uint32_t i = 0; i < page_count; ++i) free_.push_back(PageId{++page_count_});
  }

  std::uint32_t page_tokens_;
  std::unique_ptr<testing::ComparedPolicies> policies_;
  std::unique_ptr<PrefixTree> tree_;
  std::array<RunId, 2> roots_;
  std::vector<Held> held_;
  std::vector<PrefixTree::SoftPin> soft_pins_;
  std::vector<PageId> free_;
  std::vector<TokenId> tokens_;
  std::uint32_t page_count_ = 0;
  TimeNs now_ = 0;
  std::array<std::uint32_t, 4> draws_{};
};

class PolicyTwins : public ::testing::TestWithParam<std::string_view> {};

TEST_P(PolicyTwins, NameTheSameVictimsOverRandomOperations) {
  const testing::SeedPlan plan{
      .test = "bin/policy_model_test --gtest_filter=*RandomOperations/" + std::string(GetParam()),
      .seed_count = testing::kIsSanitized ? 40U : 200U,
      .step_count = 1'000};
  EXPECT_EQ(testing::run_seeds(plan,
                               [](testing::Random& random) {
                                 return PolicyModel(GetParam(), 1 + random.below(2), 8 + random.below(60));
                               }),
            "");
}

TEST_P(PolicyTwins, NameTheSameVictimsOverGeneratedOperations) {
  EXPECT_TRUE(testing::check_generated([] { return PolicyModel(GetParam(), 1, 20); }));
}

INSTANTIATE_TEST_SUITE_P(Each, PolicyTwins, ::testing::ValuesIn(policy_names()),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace quire
