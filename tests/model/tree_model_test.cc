// SPDX-License-Identifier: Apache-2.0
//
// Random operations on PrefixTree and on TreeTwin. After each, everything that can be seen of the tree is
// compared: which runs there are, what they hold, who pins them, in which order siblings stand, every count;
// and the invariants hold. Tokens are few, so that prompts share pages, part within runs and within pages,
// and are given up and come back.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "generated_ops.h"
#include "policy/lru.h"
#include "prefix/prefix_tree.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/tree_twin.h"

namespace quire::testing {
namespace {

struct ModelConfig {
  std::uint32_t page_tokens = 1;
  std::uint32_t page_count_max = 16;
  bool whole_runs = false;
  bool has_extra_keys = false;
};

constexpr std::uint32_t kRootCountMax = 3;
constexpr std::size_t kPinCountMax = 8;
constexpr std::uint32_t kSuffixPagesMax = 8;
// How often a kind of operation comes up is how often it stands here.
enum class Kind : std::uint8_t {
  Match,
  Pin,
  PinPartial,
  Unpin,
  Clone,
  PinPrefix,
  PinPage,
  Insert,
  Add,
  SoftPin,
  DropSoftPin,
  Evict,
  EvictAll,
  Roots,
  Grow
};
constexpr std::array kKinds = {
    Kind::Match, Kind::Pin,       Kind::Insert,     Kind::Add,   Kind::Unpin,  Kind::SoftPin, Kind::DropSoftPin,
    Kind::Evict, Kind::Insert,    Kind::PinPartial, Kind::Clone, Kind::Add,    Kind::Match,   Kind::Unpin,
    Kind::Unpin, Kind::Pin,       Kind::Evict,      Kind::Add,   Kind::Insert, Kind::Unpin,   Kind::SoftPin,
    Kind::Match, Kind::Roots,     Kind::Add,        Kind::Pin,   Kind::Insert, Kind::Unpin,   Kind::EvictAll,
    Kind::Grow,  Kind::PinPrefix, Kind::PinPage,    Kind::Unpin};

std::vector<std::uint32_t> sorted_values(const std::vector<PageId>& pages) {
  std::vector<std::uint32_t> values;
  values.reserve(pages.size());
  for (const PageId page : pages) values.push_back(page.value);
  std::ranges::sort(values);
  return values;
}

class TreeModel {
 public:
  explicit TreeModel(const ModelConfig& config)
      : config_(config),
        policy_(std::make_unique<LruPolicy>()),
        tree_(*PrefixTree::create({.page_tokens = config.page_tokens,
                                   .page_count_max = config.page_count_max,
                                   .root_count_max = kRootCountMax,
                                   .whole_runs = config.whole_runs,
                                   .finds_runs = true},
                                  *policy_, nullptr)),
        twin_({.page_tokens = config.page_tokens,
               .run_pages_max = tree_->storage().run_pages_max(),
               .whole_runs = config.whole_runs}) {
    add_root();
  }

  std::string apply(const Op& op) {
    difference_.clear();
    draws_ = op.draws;
    switch (kKinds[op.kind % kKinds.size()]) {
      case Kind::Match:
        match();
        break;
      case Kind::Pin:
        pin();
        break;
      case Kind::PinPartial:
        pin_with_partial();
        break;
      case Kind::Unpin:
        unpin();
        break;
      case Kind::Clone:
        clone();
        break;
      case Kind::PinPrefix:
        pin_prefix();
        break;
      case Kind::PinPage:
        pin_page();
        break;
      case Kind::Insert:
        insert();
        break;
      case Kind::Add:
        add();
        break;
      case Kind::SoftPin:
        soft_pin();
        break;
      case Kind::DropSoftPin:
        drop_soft_pin();
        break;
      case Kind::Evict:
        evict(draws_[0] % (kSuffixPagesMax + 1));
        break;
      case Kind::EvictAll:
        evict_all();
        break;
      case Kind::Roots:
        add_or_remove_root();
        break;
      case Kind::Grow:
        grow();
        break;
    }
    if (difference_.empty()) compare();
    return difference_;
  }

 private:
  struct HeldPin {
    PrefixTree::Pin real;
    TreeTwin::PinNumber twin;
  };
  struct HeldSoftPin {
    PrefixTree::SoftPin real;
    TreeTwin::PinNumber twin;
  };
  struct Found {
    PrefixTree::Match real;
    TreeTwin::Match twin;
  };

  template <typename T>
  void expect_equal(const T& real, const T& twin, const char* what) {
    if (real == twin || !difference_.empty()) return;
    difference_ = what;
    if constexpr (std::is_integral_v<T>) {
      difference_ += ": the tree says " + std::to_string(real) + ", the twin " + std::to_string(twin);
    }
  }

  // Prompts

  // Pages have one of three contents each, which share their first tokens.
  void append_page(Prompt& prompt, std::uint32_t content, std::uint32_t token_count) const {
    for (std::uint32_t i = 0; i < token_count; ++i) {
      const bool is_late = i >= config_.page_tokens * (2 - content) / 2;
      prompt.tokens.push_back(config_.page_tokens == 1 ? static_cast<TokenId>(content) : (is_late ? 1 : 0));
    }
  }

  // A suffix of a few pages and a broken one, and, now and then, an item over part of it.
  void extend(Prompt& prompt, std::uint32_t draw) const {
    const auto old_end = static_cast<std::uint32_t>(prompt.tokens.size());
    const std::uint32_t page_count = draw % (kSuffixPagesMax + 1);
    std::uint64_t contents = mix64(draw);
    for (std::uint32_t i = 0; i < page_count; ++i, contents /= 3) {
      append_page(prompt, static_cast<std::uint32_t>(contents % 3), config_.page_tokens);
    }
    append_page(prompt, static_cast<std::uint32_t>(contents % 3),
                static_cast<std::uint32_t>(mix64(contents) % config_.page_tokens));
    if (!config_.has_extra_keys || draw % 2 == 0) return;
    std::uint64_t items = mix64(draw / 2);
    std::uint32_t begin = old_end;
    if (!prompt.extra_keys.empty()) begin = std::max(begin, prompt.extra_keys.back().end);
    for (std::uint32_t i = 0; i < 1 + items % 2; ++i, items /= 64) {
      begin += static_cast<std::uint32_t>(items % 3) * config_.page_tokens / 2;
      const std::uint32_t length = 1 + static_cast<std::uint32_t>(items / 4 % 4) * config_.page_tokens / 2;
      prompt.extra_keys.push_back(extra_key(begin, begin + length, static_cast<std::uint8_t>(items / 16 % 2)));
      begin += length;
    }
  }

  // From the root, or along a path that the tree has, cut off somewhere and continued.
  [[nodiscard]] Prompt draw_prompt(TreeTwin::Label root) {
    Prompt prompt;
    std::vector<TreeTwin::Label> ends;
    for (const auto& [label, run] : twin_.runs()) {
      if (root_of(label) == root) ends.push_back(label);
    }
    prompt = twin_.path(ends[draws_[1] % ends.size()]);
    const auto page_count = static_cast<std::uint32_t>(prompt.tokens.size() / config_.page_tokens);
    prompt.tokens.resize(std::size_t{page_count - (draws_[2] % (page_count + 1))} * config_.page_tokens);
    std::erase_if(prompt.extra_keys, [&](const ExtraKey& key) { return key.begin >= prompt.tokens.size(); });
    extend(prompt, draws_[3]);
    return prompt;
  }

  [[nodiscard]] TreeTwin::Label root_of(TreeTwin::Label label) const {
    while (const std::optional<TreeTwin::Label> parent = twin_.run(label).parent) label = *parent;
    return label;
  }

  [[nodiscard]] TreeTwin::Label draw_root() const {
    auto root = roots_.begin();
    std::advance(root, draws_[0] % roots_.size());
    return *root;
  }

  // Operations

  Found match(TreeTwin::Label root, const Prompt& prompt) {
    Found found{.real = tree_->match(run_ids_.at(root), prompt.key()), .twin = twin_.match(root, prompt)};
    expect_equal(found.real.run, run_ids_.at(found.twin.run), "run of a match");
    expect_equal(found.real.pages_in_run, found.twin.pages_in_run, "pages of the match in its run");
    expect_equal(std::size_t{found.real.page_count}, found.twin.pages.size(), "pages of a match");
    expect_equal(found.real.partial_tokens, found.twin.partial_tokens, "tokens of a partial match");
    expect_equal(found.real.partial_run, found.twin.partial_run ? run_ids_.at(*found.twin.partial_run) : RunId::none(),
                 "run of a partial match");
    expect_equal(found.real.partial_page, found.twin.partial_page, "page of a partial match");
    if (!difference_.empty()) return found;
    std::vector<PageId> pages(found.real.page_count);
    tree_->copy_pages(found.real, 0, pages);
    expect_equal(pages, found.twin.pages, "page ids of a match");
    const std::uint32_t first = found.real.page_count / 2;
    std::vector<PageId> tail(found.real.page_count - first);
    tree_->copy_pages(found.real, first, tail);
    expect_equal(tail, std::vector<PageId>(pages.begin() + first, pages.end()), "page ids of the end of a match");
    if (found.twin.partial_run) {
      expect_equal(tree_->partial_page(found.real),
                   twin_.run(*found.twin.partial_run).pages[found.twin.partial_page].id, "page id of a partial match");
    }
    return found;
  }

  void match() {
    const TreeTwin::Label root = draw_root();
    match(root, draw_prompt(root));
  }

  void pin() {
    const TreeTwin::Label root = draw_root();
    const Found found = match(root, draw_prompt(root));
    if (difference_.empty()) hold({.real = tree_->pin(found.real), .twin = twin_.pin(found.twin)});
  }

  void pin_with_partial() {
    const TreeTwin::Label root = draw_root();
    const Found found = match(root, draw_prompt(root));
    if (!difference_.empty() || !found.twin.partial_run) return;
    PrefixTree::PinnedMatch real = tree_->pin_with_partial(found.real);
    const auto [path, partial] = twin_.pin_with_partial(found.twin);
    hold({.real = std::move(real.path), .twin = path});
    hold({.real = std::move(real.partial), .twin = partial});
  }

  void hold(HeldPin pin) {
    pins_.push_back(std::move(pin));
    if (pins_.size() > kPinCountMax) unpin();
  }

  void unpin() {
    if (pins_.empty()) return;
    const auto pin = pins_.begin() + static_cast<std::ptrdiff_t>(draws_[0] % pins_.size());
    pin->real.reset();
    twin_.unpin(pin->twin);
    pins_.erase(pin);
  }

  void clone() {
    if (pins_.empty()) return;
    const HeldPin& pin = pins_[draws_[0] % pins_.size()];
    hold({.real = tree_->clone(pin.real), .twin = twin_.pin_run(twin_.run_of_pin(pin.twin))});
  }

  void pin_prefix() {
    if (pins_.empty()) return;
    const HeldPin& pin = pins_[draws_[0] % pins_.size()];
    const std::uint32_t page_count = draws_[1] % (twin_.end_page(twin_.run_of_pin(pin.twin)) + 1);
    hold({.real = tree_->pin_prefix(pin.real, page_count), .twin = twin_.pin_prefix(pin.twin, page_count)});
  }

  void pin_page() {
    if (pins_.empty()) return;
    const HeldPin& pin = pins_[draws_[0] % pins_.size()];
    const std::uint32_t end = twin_.end_page(twin_.run_of_pin(pin.twin));
    if (end == 0) return;
    const std::uint32_t page = draws_[1] % end;
    hold({.real = tree_->pin_page(pin.real, page), .twin = twin_.pin_page(pin.twin, page)});
  }

  // Continues the path of a pin, or first takes one on a root.
  void insert() {
    if (pins_.empty()) {
      const TreeTwin::Label root = draw_root();
      const Found found = match(root, {});
      hold({.real = tree_->pin(found.real), .twin = twin_.pin(found.twin)});
    }
    HeldPin& pin = pins_[draws_[0] % pins_.size()];
    Prompt prompt = twin_.path(twin_.run_of_pin(pin.twin));
    extend(prompt, draws_[3]);
    insert(pin, prompt);
  }

  // Never more than the tree has room for.
  void insert(HeldPin& pin, const Prompt& prompt) {
    const std::uint32_t room = config_.page_count_max - twin_.page_count();
    const std::size_t wanted =
        (prompt.tokens.size() / config_.page_tokens) - twin_.end_page(twin_.run_of_pin(pin.twin));
    std::vector<PageId> pages;
    while (pages.size() < std::min<std::size_t>(wanted, room)) pages.push_back(take_page());

    TreeTwin::Insertion twin = twin_.insert(pin.twin, prompt, pages);
    std::vector<PageId> duplicates(pages.size());
    duplicates.resize(tree_->insert(pin.real, prompt.key(), pages, duplicates));
    expect_equal(pages, twin.pages, "pages of an inserted path");
    expect_equal(duplicates, twin.duplicates, "duplicates of an insertion");
    give_back(duplicates);
  }

  // What a request does from its start to its end.
  void add() {
    const TreeTwin::Label root = draw_root();
    const Prompt prompt = draw_prompt(root);
    const Found found = match(root, prompt);
    if (!difference_.empty()) return;
    HeldPin pin{.real = tree_->pin(found.real), .twin = twin_.pin(found.twin)};
    const auto needed =
        static_cast<std::uint32_t>((prompt.tokens.size() / config_.page_tokens) - found.twin.pages.size());
    const std::uint32_t room = config_.page_count_max - twin_.page_count();
    if (needed > room) evict(needed - room);
    if (difference_.empty()) insert(pin, prompt);
    pin.real.reset();
    twin_.unpin(pin.twin);
  }

  void soft_pin() {
    const TreeTwin::Label root = draw_root();
    const Found found = match(root, draw_prompt(root));
    if (!difference_.empty()) return;
    soft_pins_.push_back({.real = tree_->soft_pin(found.real), .twin = twin_.soft_pin(found.twin)});
    if (soft_pins_.size() > kPinCountMax) drop_soft_pin();
  }

  void drop_soft_pin() {
    if (soft_pins_.empty()) return;
    const auto pin = soft_pins_.begin() + static_cast<std::ptrdiff_t>(draws_[0] % soft_pins_.size());
    pin->real.reset();
    twin_.drop_soft_pin(pin->twin);
    soft_pins_.erase(pin);
  }

  void evict(std::uint32_t page_count) {
    std::vector<std::vector<PageId>> evicted;
    const std::uint32_t count = tree_->evict(
        page_count, [&](std::span<const PageId> pages) { evicted.emplace_back(pages.begin(), pages.end()); });
    const std::vector<std::vector<PageId>> expected = twin_.evict(page_count);
    expect_equal(evicted, expected, "pages given up by an eviction");
    std::size_t total = 0;
    for (const std::vector<PageId>& pages : evicted) {
      total += pages.size();
      give_back(pages);
    }
    expect_equal(std::size_t{count}, total, "count of pages given up");
  }

  void evict_all() {
    const TreeTwin::Label root = draw_root();
    std::vector<PageId> evicted;
    const std::uint32_t count = tree_->evict_all(
        run_ids_.at(root), ResidencyCause::Dropped,
        [&](std::span<const PageId> pages) { evicted.insert(evicted.end(), pages.begin(), pages.end()); });
    expect_equal(sorted_values(evicted), sorted_values(twin_.evict_all(root)), "pages given up by evicting all");
    expect_equal(std::size_t{count}, evicted.size(), "count of pages given up");
    give_back(evicted);
  }

  void add_root() {
    const TreeTwin::Label root = twin_.add_root();
    run_ids_[root] = tree_->add_root();
    roots_.push_back(root);
  }

  void add_or_remove_root() {
    const TreeTwin::Label root = draw_root();
    if (roots_.size() > 1 && twin_.is_empty(root)) {
      expect_equal(tree_->is_empty(run_ids_.at(root)), true, "emptiness of a key space");
      tree_->remove_root(run_ids_.at(root));
      twin_.remove_root(root);
      run_ids_.erase(root);
      std::erase(roots_, root);
    } else if (roots_.size() < kRootCountMax) {
      add_root();
    }
  }

  void grow() {
    if (config_.page_count_max >= 64) return;
    config_.page_count_max += draws_[0] % 3;
    expect_equal(tree_->grow(config_.page_count_max).has_value(), true, "success of growing");
  }

  PageId take_page() {
    if (free_pages_.empty()) return PageId{page_count_++};
    const PageId page = free_pages_.back();
    free_pages_.pop_back();
    return page;
  }

  void give_back(const std::vector<PageId>& pages) {
    free_pages_.insert(free_pages_.end(), pages.begin(), pages.end());
  }

  // Comparison

  void compare() {
    using Use = TreeTwin::Use;
    expect_equal(tree_->pinned_pages(), twin_.page_count(Use::Pinned), "pinned pages");
    expect_equal(tree_->soft_pinned_pages(), twin_.page_count(Use::SoftlyPinned), "softly pinned pages");
    expect_equal(tree_->evictable_pages(), twin_.page_count(Use::Idle) + twin_.page_count(Use::SoftlyPinned),
                 "evictable pages");
    expect_equal(tree_->page_count(), twin_.page_count(), "pages");
    expect_equal(std::size_t{tree_->run_count()}, twin_.runs().size() - roots_.size(), "runs");
    std::erase_if(run_ids_, [&](const auto& entry) { return !twin_.runs().contains(entry.first); });
    for (const TreeTwin::Label root : roots_) compare_below(root);
    for (const HeldPin& pin : pins_) {
      expect_equal(pin.real.run(), run_ids_.at(twin_.run_of_pin(pin.twin)), "run of a pin");
    }
    if (const Status status = tree_->check_invariants(); !status.has_value() && difference_.empty()) {
      difference_ = status.error().message;
    }
  }

  void compare_below(TreeTwin::Label root) {
    // The labels in the order the tree should visit them: parents first, siblings by recency.
    std::vector<TreeTwin::Label> to_visit = {root};
    tree_->for_each_run(run_ids_.at(root), [&](const RunView& run) {
      if (!difference_.empty()) return;
      if (to_visit.empty()) {
        difference_ = "the tree has a run that the twin has not";
        return;
      }
      const TreeTwin::Label label = to_visit.back();
      to_visit.pop_back();
      compare_run(run, label);
      const std::vector<TreeTwin::Label> children = twin_.children(label);
      to_visit.insert(to_visit.end(), children.rbegin(), children.rend());
    });
    expect_equal(to_visit.empty(), true, "whether all runs of the twin are in the tree");
  }

  void compare_run(const RunView& real, TreeTwin::Label label) {
    const TreeTwin::Run& twin = twin_.run(label);
    // A run keeps its id for life.
    expect_equal(real.run, run_ids_.try_emplace(label, real.run).first->second, "identity of a run");
    expect_equal(real.parent, twin.parent ? run_ids_.at(*twin.parent) : RunId::none(), "parent of a run");
    expect_equal(real.first_page, twin.first_page, "first page of a run");
    expect_equal(real.pin_count, twin_.pin_count(label), "pins of a run");
    expect_equal(real.soft_pin_count, twin_.soft_pin_count(label), "soft pins of a run");
    expect_equal(std::size_t{real.child_count}, twin_.children(label).size(), "children of a run");
    expect_equal(real.pages.size(), twin.pages.size(), "pages of a run");
    if (!difference_.empty()) return;
    for (std::size_t i = 0; i < twin.pages.size(); ++i) {
      expect_equal(real.pages[i], twin.pages[i].id, "page ids of a run");
      expect_equal(
          std::ranges::equal(real.tokens.subspan(i * config_.page_tokens, config_.page_tokens), twin.pages[i].tokens),
          true, "tokens of a run");
    }
  }

  ModelConfig config_;
  std::unique_ptr<LruPolicy> policy_;
  std::unique_ptr<PrefixTree> tree_;
  TreeTwin twin_;
  std::map<TreeTwin::Label, RunId> run_ids_;
  std::vector<TreeTwin::Label> roots_;
  std::vector<HeldPin> pins_;
  std::vector<HeldSoftPin> soft_pins_;
  std::vector<PageId> free_pages_;
  std::uint32_t page_count_ = 0;
  std::array<std::uint32_t, 4> draws_{};
  std::string difference_;
};

struct ModelRun {
  const char* name;
  ModelConfig config;
  std::uint64_t seed_count;
  std::uint32_t page_count_limit = 32;
};

constexpr ModelRun kRuns[] = {
    {"PagesOfOneToken", {.page_tokens = 1}, 75},
    {"PagesOfTwoTokens", {.page_tokens = 2}, 75},
    {"PagesOfFourTokens", {.page_tokens = 4}, 75},
    {"PagesOfSixteenTokens", {.page_tokens = 16}, 50},
    {"OneTokenWithExtraKeys", {.page_tokens = 1, .has_extra_keys = true}, 75},
    {"TwoTokensWithExtraKeys", {.page_tokens = 2, .has_extra_keys = true}, 75},
    {"FourTokensWithExtraKeys", {.page_tokens = 4, .has_extra_keys = true}, 75},
    {"SixteenTokensWithExtraKeys", {.page_tokens = 16, .has_extra_keys = true}, 50},
    {"RunsOfAtMostTwoPages", {.page_tokens = 1024}, 20},
    {"RunsOfOnePage", {.page_tokens = 2048, .has_extra_keys = true}, 10},
    {"WholeRuns", {.page_tokens = 1, .whole_runs = true}, 50},
    {"WholeRunsWithExtraKeys", {.page_tokens = 4, .whole_runs = true, .has_extra_keys = true}, 50},
    {"ATinyTree", {.page_tokens = 2, .has_extra_keys = true}, 75, 3},
};

void PrintTo(const ModelRun& run, std::ostream* out) {
  *out << run.name;
}

std::string run_name(const ::testing::TestParamInfo<ModelRun>& info) {
  return info.param.name;
}

class PrefixTreeModel : public ::testing::TestWithParam<ModelRun> {};

TEST_P(PrefixTreeModel, AgreesWithItsTwinAfterEveryStep) {
  const auto index = static_cast<std::uint64_t>(std::ranges::find(kRuns, GetParam().name, &ModelRun::name) - kRuns);
  const SeedPlan plan{.test = "bin/tree_model_test --gtest_filter='*AgreesWithItsTwinAfterEveryStep/" +
                              std::string(GetParam().name) + "'",
                      .first_seed = 1 + (1000 * index),
                      .seed_count = kIsSanitized ? 1 + (GetParam().seed_count / 50) : GetParam().seed_count,
                      .step_count = 2000};
  EXPECT_EQ(run_seeds(plan,
                      [](Random& random) {
                        ModelConfig config = GetParam().config;
                        config.page_count_max = 1 + random.below(GetParam().page_count_limit);
                        return TreeModel(config);
                      }),
            "");
}

TEST_P(PrefixTreeModel, AgreesWithItsTwinOnGeneratedOperations) {
  EXPECT_TRUE(check_generated([] { return TreeModel(GetParam().config); }));
}

INSTANTIATE_TEST_SUITE_P(On, PrefixTreeModel, ::testing::ValuesIn(kRuns), run_name);

}  // namespace
}  // namespace quire::testing
