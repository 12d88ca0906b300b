// SPDX-License-Identifier: Apache-2.0
//
// The hybrid engine with page ids of its own: it makes its plans itself, offers what it has computed, and goes on from
// what a match gives it of the history, of windows and of snapshots. Pages that were released are written over at once.
// Every logit is the oracle's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hand_made_plans.h"
#include "hybrid_schedule.h"
#include "oracle_texts.h"
#include "quire/cache.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kSeedCount = kIsSanitized ? 80 : 300;
constexpr std::uint32_t kCallCount = 150;

struct Page {
  std::uint32_t user_count = 0;  // sequences that have it as their own, and the cache
  bool is_held = false;          // by the cache
};
using Place = std::pair<std::uint32_t, std::uint32_t>;  // pool and column
struct Running {
  ExternalMatch match;
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> texts;  // of all tokens
  std::uint32_t start = 0;          // the first token that is computed
  std::uint32_t computed = 0;
  std::uint32_t hidden_end = 0;    // what tokens before it give is nothing to anyone
  std::uint32_t cached_pages = 0;  // of the history, as far as is known
  std::map<Place, PageId> own;
  std::map<Place, PageId> snapshots;  // not offered yet
  std::vector<StateCopy> states;      // to begin with
};

class ExternalEngine {
 public:
  ExternalEngine(const HybridSetup& setup, Random& random, ScheduleCounts& counts)
      : counts_(counts),
        page_tokens_(setup.page_tokens),
        context_tokens_(std::min(setup.context_tokens_max, HandMadePlans::kColumns * setup.page_tokens)),
        groups_(tiny_engine::hybrid_groups(setup.shape).groups),
        plans_(setup.shape, setup.page_tokens) {
    // Enough for one sequence, or for what others leave behind as well.
    const std::uint32_t columns = (context_tokens_ + page_tokens_ - 1) / page_tokens_;
    const auto draw_count = [&] { return std::min(columns * (1 + random.below(4)), HandMadePlans::kPageCount - 1); };
    CacheConfig config{.layout = ModelLayout::create("hybrid", groups_).value(),
                       .page = {.page_tokens = page_tokens_},
                       .device = {.pool = DevicePool::External, .page_count = draw_count()},
                       .sequence_count_max = HandMadePlans::kSequenceCount,
                       .context_tokens_max = context_tokens_,
                       .policy = setup.policy};
    for (std::uint32_t i = 0; i < groups_.size(); ++i) {
      if (is_history(i)) history_ = i;
      replays_windows_ = replays_windows_ || (groups_[i].kind == GroupKind::Window && groups_[i].replay.tokens > 0);
      config.device.group_page_counts.push_back(is_history(i) ? config.device.page_count : draw_count());
      pools_.emplace_back(config.device.group_page_counts.back());
    }
    cache_ = Cache::open(std::move(config)).value();
    space_ = cache_->key_space({.model = "hybrid"}).value();
  }

  /// One random call. Empty, or what is wrong.
  std::string apply(Random& random) {
    ++call_;
    const std::uint32_t at = random.below(HandMadePlans::kSequenceCount);
    const std::uint32_t pool = random.below(size32(groups_));
    const std::uint32_t draw = random.below(20);
    if (!running_[at]) {
      begin(at, random);
    } else if (draw < 2) {
      offer(*running_[at], random);
    } else if (draw < 6) {
      end(at, random);
    } else if (draw == 6 && has_pages(groups_[pool])) {
      reclaim(1 + random.below(3), pool);
    } else {
      step(random);
    }
    check();
    return problem_;
  }
  std::string drain(Random& random) {
    for (std::uint32_t at = 0; at < running_.size(); ++at) end(at, random);
    if (const Status status = cache_->reset(); !status) fail_with("reset: " + status.error().message);
    take_released();
    check();
    for (const std::vector<Page>& pool : pools_) {
      if (std::ranges::any_of(pool, [](const Page& page) { return page.user_count > 0; })) fail_with("a page is lost");
    }
    return problem_;
  }
  [[nodiscard]] std::optional<OracleTexts::Mismatch> compare() const {
    counts_.add("logits compared", texts_.note_count());
    return texts_.compare(plans_.weights(), 1e-9);
  }

 private:
  [[nodiscard]] static std::uint32_t size32(const auto& container) {
    return static_cast<std::uint32_t>(container.size());
  }
  [[nodiscard]] bool is_history(std::uint32_t group) const {
    return groups_[group].kind == GroupKind::Full || groups_[group].kind == GroupKind::Compressed;
  }
  /// Groups of the history have page ids in common.
  [[nodiscard]] std::uint32_t pool_of(std::uint32_t group) const { return is_history(group) ? history_ : group; }
  [[nodiscard]] static std::int32_t device_page(PageId page) { return static_cast<std::int32_t>(page.value) + 1; }
  void fail_with(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  // Pages

  void reclaim(std::uint32_t count, std::uint32_t pool) {
    if (const auto given = cache_->reclaim(count, pool); !given) fail_with("reclaim: " + given.error().message);
    take_released();
  }
  void take_released() {
    for (std::uint32_t pool = 0; pool < groups_.size(); ++pool) {
      if (pool_of(pool) != pool || !has_pages(groups_[pool])) continue;
      std::array<PageId, HandMadePlans::kPageCount> buffer;
      const std::span<PageId> released = cache_->take_released(buffer, pool).value();
      for (const PageId page : released) {
        if (!std::exchange(pools_[pool][page.value].is_held, false)) fail_with("a page is released that was not held");
        release(pool, page);
        const bool is_ring = has_slot(groups_[pool]) && groups_[pool].kind == GroupKind::Window;
        counts_.add("pages released of a " + (is_ring ? "ring" : std::string(to_string(groups_[pool].kind))));
      }
    }
  }
  void release(std::uint32_t pool, PageId page) { --pools_[pool][page.value].user_count; }
  void hold(std::uint32_t pool, PageId page) {
    pools_[pool][page.value].is_held = true;
    ++pools_[pool][page.value].user_count;
  }
  /// The first page that is free, so that those released last are soon written over.
  std::optional<PageId> take(std::uint32_t pool) {
    for (;;) {
      const auto free = std::ranges::find(pools_[pool], 0U, &Page::user_count);
      if (free != pools_[pool].end()) {
        free->user_count = 1;
        return PageId{static_cast<std::uint32_t>(free - pools_[pool].begin())};
      }
      if (cache_->group_stats(pool)->evictable_pages == 0) return std::nullopt;
      reclaim(1, pool);
    }
  }
  /// Room for the tokens before `end`.
  bool provide(Running& running, std::uint32_t at, std::uint32_t end) {
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
      if (has_slot(groups_[group])) continue;
      for (std::uint32_t column = running.computed / page_tokens_; column * page_tokens_ < end; ++column) {
        HandPage& entry = plans_.page_at(group, at, column);
        if (entry.page != 0) continue;
        const Place place{pool_of(group), column};
        if (!running.own.contains(place)) {
          const std::optional<PageId> page = take(place.first);
          if (!page) return false;
          running.own[place] = *page;
        }
        entry = {.page = device_page(running.own[place])};
      }
    }
    return true;
  }
  /// What a window has left behind may go.
  void trim(Running& running, std::uint32_t at) {
    std::erase_if(running.own, [&](const auto& each) {
      const auto& [pool, column] = each.first;
      const std::uint32_t window = groups_[pool].window_tokens;
      if (window == 0 || ((column + 1) * page_tokens_) + window - 1 > running.computed) return false;
      plans_.page_at(pool, at, column) = {};
      release(pool, each.second);
      return true;
    });
  }

  // Sequences

  void begin(std::uint32_t at, Random& random) {
    Running& running = running_[at].emplace();
    if (!prompts_.empty() && random.below(5) > 0) {
      running.tokens = prompts_[random.below(size32(prompts_))];
      if (random.below(2) == 0) running.tokens.resize(1 + random.below(size32(running.tokens)));
    }
    std::uint32_t wanted = size32(running.tokens) + random.below(12);
    if (random.below(2) == 0) wanted -= wanted % page_tokens_;
    wanted = std::clamp(wanted, 1U, context_tokens_);
    running.tokens.resize(std::min(size32(running.tokens), wanted));
    while (running.tokens.size() < wanted) running.tokens.push_back(draw_token(random));
    if (prompts_.size() < 10) prompts_.push_back(running.tokens);
    prompts_[random.below(size32(prompts_))] = running.tokens;
    running.match = cache_->match(space_, {.tokens = running.tokens}).value();
    const ExternalMatch& match = running.match;
    running.computed = match.token_count - match.replay_tokens;
    counts_.add("tokens matched", match.token_count);
    if (match.replay_tokens > 0) counts_.add("match with a replay");
    if (running.computed == running.tokens.size()) {
      --running.computed;
      counts_.add("last token run again");
    }
    running.start = running.computed;
    if (replays_windows_) running.hidden_end = std::min(match.token_count, size32(running.tokens) - 1);
    running.cached_pages = size32(match.pages);
    if (match.pages.size() * page_tokens_ != match.token_count) fail_with("match: other pages than tokens");
    use_match(running, at);
  }
  void use_match(Running& running, std::uint32_t at) {
    const auto use = [&](std::uint32_t group, std::uint32_t first, std::span<const PageId> pages) {
      for (std::uint32_t i = 0; i < pages.size(); ++i) {
        plans_.page_at(group, at, first + i) = {.page = device_page(pages[i]), .is_shared = true};
      }
    };
    std::map<std::uint32_t, PageId> restored;
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
      for (std::uint32_t i = 0; i < HandMadePlans::kColumns; ++i) plans_.page_at(group, at, i) = {};
      if (is_history(group)) use(group, 0, running.match.pages);
    }
    for (const GroupPages& piece : running.match.groups) {
      if (has_slot(groups_[piece.group_index])) {
        if ((piece.first_page + 1) * page_tokens_ != running.start) fail_with("match: a state of another place");
        restored[piece.group_index] = piece.page_ids.front();
        counts_.add("states restored");
      } else {
        use(piece.group_index, piece.first_page, piece.page_ids);
        counts_.add("window pages matched", piece.page_ids.size());
      }
    }
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
      if (!has_slot(groups_[group])) continue;
      const auto from = restored.find(group);
      const bool restores = from != restored.end();
      running.states.push_back({.kind = restores ? StateCopyKind::Restore : StateCopyKind::Reset,
                                .group = static_cast<std::int32_t>(group),
                                .source = restores ? device_page(from->second) : 0,
                                .target = static_cast<std::int32_t>(at),
                                .position = static_cast<std::int32_t>(running.start)});
    }
  }
  void end(std::uint32_t at, Random& random) {
    if (!running_[at]) return;
    if (random.below(4) > 0) offer(*running_[at], random);
    for (const auto* pages : {&running_[at]->own, &running_[at]->snapshots}) {
      for (const auto& [place, page] : *pages) release(place.first, page);
    }
    running_[at].reset();
  }

  // Steps

  void step(Random& random) {
    std::vector<HandEntry> entries;
    HandStates states;
    bool is_short = false;
    for (std::uint32_t at = 0; at < running_.size(); ++at) {
      if (!running_[at] || random.below(3) == 0) continue;
      Running& running = *running_[at];
      if (running.computed == context_tokens_) continue;
      if (running.computed == running.tokens.size()) running.tokens.push_back(draw_token(random));
      const std::uint32_t left = size32(running.tokens) - running.computed;
      std::uint32_t end = running.computed + (random.below(2) == 0 ? left : 1 + random.below(left));
      const std::uint32_t page_end = end / page_tokens_ * page_tokens_;
      if (page_end > running.computed && random.below(3) > 0) end = page_end;
      if (!provide(running, at, end)) {
        is_short = true;
        continue;
      }
      entries.push_back({.sequence = at,
                         .position = running.computed,
                         .tokens = {running.tokens.begin() + running.computed, running.tokens.begin() + end}});
      states.before.insert(states.before.end(), running.states.begin(), running.states.end());
      running.states.clear();
      if (random.below(5) > 0) save_states(running, at, end, states);
    }
    if (is_short && entries.empty()) {
      counts_.add("short of pages");
      const auto count = std::ranges::count_if(running_, [](const auto& each) { return each.has_value(); });
      if (count == 1) return fail_with("a lone sequence is short of pages");
      return end(random.below(size32(running_)), random);
    }
    std::vector<double> logits;
    if (const std::string problem = plans_.step(entries, logits, states); !problem.empty()) fail_with(problem);
    std::size_t row = 0;
    for (const HandEntry& entry : entries) {
      Running& running = *running_[entry.sequence];
      for (std::size_t i = running.texts.size(); i < running.tokens.size(); ++i) {
        const std::int32_t previous = i == 0 ? OracleTexts::kBegin : running.texts.back();
        running.texts.push_back(texts_.intern(previous, running.tokens[i], 0, 0));
      }
      for (std::size_t i = 0; i < entry.tokens.size() && problem_.empty(); ++i, ++row) {
        const std::size_t vocabulary = plans_.weights().shape.vocabulary;
        if (running.computed++ < running.hidden_end) continue;
        texts_.note(running.texts[running.computed - 1], std::span(logits).subspan(row * vocabulary, vocabulary),
                    call_);
      }
      if (random.below(2) == 0) trim(running, entry.sequence);
    }
  }
  /// Snapshots of where the step ends, as far as there is room.
  void save_states(Running& running, std::uint32_t at, std::uint32_t end, HandStates& states) {
    if (end % page_tokens_ != 0 || end < running.match.token_count) return;
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
      const bool is_saved = has_slot(groups_[group]) && has_pages(groups_[group]);
      if (!is_saved || end % boundary_multiple(groups_[group]) != 0) continue;
      const std::optional<PageId> page = take(group);
      if (!page) continue;
      running.snapshots[{group, (end / page_tokens_) - 1}] = *page;
      states.after.push_back({.kind = StateCopyKind::Save,
                              .group = static_cast<std::int32_t>(group),
                              .source = static_cast<std::int32_t>(at),
                              .target = device_page(*page),
                              .position = static_cast<std::int32_t>(end)});
    }
  }

  // Offers

  void offer(Running& running, Random& random) {
    const std::uint32_t page_count = running.computed / page_tokens_;
    if (running.computed < running.match.token_count) return;
    std::vector<PageId> history;
    for (std::uint32_t i = running.cached_pages; i < page_count; ++i) history.push_back(running.own.at({history_, i}));
    std::deque<std::vector<PageId>> lists;
    std::vector<GroupPages> pieces;
    const auto add = [&](Place place, PageId page) {
      const bool follows = !pieces.empty() && pieces.back().group_index == place.first &&
                           pieces.back().first_page + lists.back().size() == place.second;
      if (!follows) {
        lists.emplace_back();
        pieces.push_back({.group_index = place.first, .first_page = place.second, .page_ids = {}});
      }
      lists.back().push_back(page);
      pieces.back().page_ids = lists.back();
    };
    for (const auto& [place, page] : running.own) {
      // A window that was rebuilt may have a part of its first page only.
      const bool is_whole = place.second * page_tokens_ >= running.start && place.second < page_count;
      const bool is_mine = place.first != history_ && !pools_[place.first][page.value].is_held;
      if (is_whole && is_mine && random.below(8) > 0) add(place, page);
    }
    for (const auto& [place, page] : running.snapshots) add(place, page);
    if (history.empty() && pieces.empty()) return;
    const Result<OfferOutcome> outcome =
        cache_->offer(space_, {.prompt = {.tokens = std::span(running.tokens).first(running.computed)},
                               .first_page = running.cached_pages,
                               .page_ids = history,
                               .groups = pieces});
    if (!outcome) return fail_with("offer: " + outcome.error().message);
    if (outcome->prefix_pages < running.cached_pages) {
      counts_.add("offer behind pages that were given up");
      running.cached_pages = outcome->prefix_pages;
      return offer(running, random);
    }
    counts_.add("duplicates", outcome->duplicate_pages + outcome->group_duplicates.size());
    for (std::size_t i = outcome->duplicate_pages; i < history.size(); ++i) hold(history_, history[i]);
    for (const GroupPages& piece : pieces) {
      for (const PageId page : piece.page_ids) {
        const GroupPage own{.group_index = piece.group_index, .page = page};
        if (std::ranges::count(outcome->group_duplicates, own) == 0) hold(piece.group_index, page);
      }
    }
    for (const auto& [place, page] : running.snapshots) release(place.first, page);
    running.snapshots.clear();
    running.cached_pages = page_count;
  }

  void check() {
    if (const Status status = cache_->check_invariants(); !status) fail_with("invariant: " + status.error().message);
    for (std::uint32_t pool = 0; pool < groups_.size(); ++pool) {
      if (pool_of(pool) != pool || !has_pages(groups_[pool])) continue;
      if (cache_->group_stats(pool)->sealed_pages != std::ranges::count(pools_[pool], true, &Page::is_held)) {
        fail_with("the cache holds other pages than it says");
      }
    }
  }
  [[nodiscard]] TokenId draw_token(Random& random) const {
    return static_cast<TokenId>(random.below(plans_.weights().shape.vocabulary));
  }

  ScheduleCounts& counts_;
  const std::uint32_t page_tokens_;
  const std::uint32_t context_tokens_;
  const std::vector<CacheGroup> groups_;
  HandMadePlans plans_;
  std::uint32_t history_ = 0;  // a group of it
  bool replays_windows_ = false;
  std::vector<std::vector<Page>> pools_;  // by group
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::array<std::optional<Running>, HandMadePlans::kSequenceCount> running_;
  std::vector<std::vector<TokenId>> prompts_;  // what new ones begin like
  OracleTexts texts_;
  std::uint64_t call_ = 0;
  std::string problem_;
};

std::string run_seed(std::uint64_t seed, ScheduleCounts& counts) {
  Random random(seed);
  HybridSetup setup = draw_hybrid_setup(random, HybridTier::Device);
  for (tiny_engine::HybridLayer& layer : setup.shape.layers) {
    if (layer.kind == tiny_engine::LayerKind::Full) layer.window_tokens = 0;  // whose lists are not made by hand
  }
  ExternalEngine engine(setup, random, counts);
  std::string problem;
  for (std::uint32_t i = 0; i < kCallCount && problem.empty(); ++i) problem = engine.apply(random);
  if (const auto mismatch = engine.compare()) problem = mismatch->text;  // perhaps why the rest went wrong
  if (problem.empty()) problem = engine.drain(random);
  if (problem.empty()) return "";
  return "\nQUIRE_SEED=" + std::to_string(seed) + " bin/hybrid_external_test\n" + problem + "\n" + to_string(setup);
}

TEST(HybridExternalTest, EveryLogitIsTheOraclesWhereTheEngineHandsOutThePages) {
  ScheduleCounts counts;
  if (const char* const seed = std::getenv("QUIRE_SEED")) {
    counts.log = &std::cout;
    EXPECT_EQ(run_seed(std::strtoull(seed, nullptr, 10), counts), "");
    return;
  }
  const char* const seeds = std::getenv("QUIRE_SEEDS");
  const std::uint64_t seed_count = seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : kSeedCount;
  for (std::uint64_t seed = 1; seed <= seed_count; ++seed) ASSERT_EQ(run_seed(seed, counts), "");
  for (const auto& [name, count] : counts.by_name) std::cout << "  " << name << ": " << count << "\n";
  for (const char* const name :
       {"logits compared", "tokens matched", "states restored", "window pages matched", "match with a replay",
        "last token run again", "duplicates", "offer behind pages that were given up", "short of pages",
        "pages released of a full", "pages released of a compressed", "pages released of a window",
        "pages released of a ring", "pages released of a snapshot"}) {
    EXPECT_GT(counts.by_name[name], kIsSanitized ? 0U : 10U) << name;
  }
}

}  // namespace
}  // namespace quire::testing
