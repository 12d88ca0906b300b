// SPDX-License-Identifier: Apache-2.0
//
// Engines that hand out device pages of several groups themselves, at random: one with memory of its own serves
// requests, and a naive twin says what each must find and which pages come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "cache_groups_fixture.h"
#include "external_groups.h"
#include "testing/sanitized.h"

namespace quire {
namespace {

// An engine that owns the pages of all groups. What a token stores depends on all before it: it is computed from the
// state, which is taken from a snapshot where a match gives one. So wrong pages make wrong numbers.
class ExternalEngine {
 public:
  static constexpr std::uint32_t kPageTokens = 4;

  ExternalEngine(Cache& cache, KeySpaceId space)
      : cache_(cache), space_(space), groups_(cache.config().layout.groups()) {
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      Pool& pool = pools_.emplace_back();
      // Groups of the history have ids in common: those of the first.
      is_history_.push_back(groups_[g].kind == GroupKind::Full || groups_[g].kind == GroupKind::Compressed);
      const std::uint32_t page_count = cache.group_stats(g)->page_count;
      pool.rows.assign(std::size_t{page_count} * kPageTokens, 0);
      if (pool_of(g) != g) continue;
      own_pools_.push_back(g);
      for (std::uint32_t i = page_count; i > 0; --i) pool.free.push_back(PageId{i - 1});
      pool.owners.assign(page_count, Owner::Engine);
    }
  }

  /// Finds what is cached of a prompt, checks it, computes the rest, and offers it. Gives what is wrong.
  std::string serve(const std::vector<TokenId>& tokens, std::uint64_t draw, bool keeps_match) {
    Result<ExternalMatch> found = cache_.match(space_, {.tokens = tokens});
    if (!found) {
      held_.clear();
      found = cache_.match(space_, {.tokens = tokens});
    }
    const std::vector<std::uint64_t> numbers = numbers_of(tokens);
    if (const std::string wrong = check_match(tokens, numbers, *found); !wrong.empty()) return wrong;
    found_tokens_ += found->token_count;
    const std::string wrong = compute_and_offer(tokens, numbers, *found, draw);
    if (keeps_match) held_.push_back(std::move(*found));
    if (held_.size() > 3) held_.erase(held_.begin());
    return wrong;
  }

  /// Asks for pages of a group back, and hears which.
  std::string reclaim(std::uint32_t group, std::uint32_t count) {
    const std::uint32_t given = cache_.reclaim(count, group).value();
    std::uint32_t released = 0;
    const std::string wrong = take_released(group, released);
    if (!wrong.empty()) return wrong;
    return released >= given ? "" : "fewer pages are named than were given up";
  }
  std::string drop_all() {
    held_.clear();
    if (const Status status = cache_.reset(); !status) return status.error().message;
    std::uint32_t released = 0;
    if (std::string wrong = take_released(0, released); !wrong.empty()) return wrong;
    return twin_.empty() && by_page_.empty() ? "" : "something is left behind a reset";
  }

  /// Every page is in exactly one's hands, and both say the same.
  [[nodiscard]] std::string check() const {
    for (const std::uint32_t g : own_pools_) {
      const std::size_t held = static_cast<std::size_t>(std::ranges::count(pools_[g].owners, Owner::Cache));
      const GroupStats stats = cache_.group_stats(g).value();
      if (stats.sealed_pages != held) return "group " + std::to_string(g) + ": the cache holds other pages";
      if (pools_[g].free.size() + held != pools_[g].owners.size()) return "a page is nobody's, or has two owners";
      std::size_t in_twin = 0;
      for (const auto& [at, page] : twin_) in_twin += at.first == g ? 1 : 0;
      if (in_twin != held) return "group " + std::to_string(g) + ": the twin has other pages";
    }
    const Status status = cache_.check_invariants();
    return status ? "" : status.error().message;
  }
  [[nodiscard]] std::uint64_t found_tokens() const { return found_tokens_; }
  [[nodiscard]] std::uint64_t duplicates() const { return duplicates_; }
  [[nodiscard]] std::uint64_t released(std::uint32_t group) const { return pools_[group].released; }

 private:
  enum class Owner : std::uint8_t { Engine, Cache };
  struct Pool {
    std::vector<PageId> free;
    std::vector<Owner> owners;        // by page
    std::vector<std::uint64_t> rows;  // the memory
    std::uint64_t released = 0;
  };
  using Prefix = std::vector<TokenId>;  // names a page of a path: all tokens up to its end
  using Place = std::pair<std::uint32_t, Prefix>;

  // Numbers of all lengths, from scratch: what everything is compared with.
  [[nodiscard]] static std::vector<std::uint64_t> numbers_of(const std::vector<TokenId>& tokens) {
    std::vector<std::uint64_t> numbers = {0};
    for (const TokenId token : tokens) numbers.push_back(PrefixNumbers::next(numbers.back(), token));
    return numbers;
  }
  // A snapshot is the number itself, from which the engine goes on.
  [[nodiscard]] std::uint64_t row_of(std::uint32_t group, std::uint64_t number) const {
    return has_slot(groups_[group]) ? number : mix64(number + group);
  }
  [[nodiscard]] static Prefix prefix(const std::vector<TokenId>& tokens, std::uint32_t page) {
    return {tokens.begin(), tokens.begin() + ((page + 1) * kPageTokens)};
  }
  [[nodiscard]] bool has(std::uint32_t group, const std::vector<TokenId>& tokens, std::uint32_t page) const {
    return twin_.contains({group, prefix(tokens, page)});
  }

  // Groups of the history have their pages in common: the first's.
  [[nodiscard]] std::uint32_t pool_of(std::uint32_t group) const { return is_history_[group] ? 0 : group; }
  // Pages of a path that a group needs besides the history to go on behind b tokens, by looking at all tokens.
  [[nodiscard]] std::set<std::uint32_t> needed_pages(std::uint32_t g, std::uint32_t b, bool runs_again) const {
    const CacheGroup& group = groups_[g];
    std::set<std::uint32_t> pages;
    for (std::uint32_t t = 0; t < b && !is_history_[g]; ++t) {
      const bool is_in_window = t + group.window_tokens - (runs_again ? 0 : 1) >= b;
      const bool is_seen = has_slot(group) ? t + 1 == b : t < group.sink_tokens || is_in_window;
      if (is_seen) pages.insert(t / kPageTokens);
    }
    return pages;
  }
  // Whether a group can go on behind b tokens: what the cache must come to, by trying.
  [[nodiscard]] bool can_go_on(std::uint32_t g, const std::vector<TokenId>& tokens, std::uint32_t b) const {
    const CacheGroup& group = groups_[g];
    if (is_history_[g]) return b % group.tokens_per_entry == 0;
    if (has_slot(group) && b % boundary_multiple(group) != 0) return false;
    const std::set<std::uint32_t> needed = needed_pages(g, b, b == tokens.size());
    return std::ranges::all_of(needed, [&](std::uint32_t page) { return has(g, tokens, page); });
  }
  [[nodiscard]] std::uint32_t expected(const std::vector<TokenId>& tokens) const {
    const bool has_state = std::ranges::any_of(groups_, [](const CacheGroup& group) { return has_slot(group); });
    std::uint32_t history = 0;
    while ((history + 1) * kPageTokens <= tokens.size() && has(0, tokens, history)) ++history;
    for (std::uint32_t b = history * kPageTokens; b > 0; b -= kPageTokens) {
      bool is_held = !has_state || b < tokens.size();
      for (std::uint32_t g = 0; g < groups_.size(); ++g) is_held = is_held && can_go_on(g, tokens, b);
      if (is_held) return b;
    }
    return 0;
  }

  [[nodiscard]] std::string check_match(const std::vector<TokenId>& tokens, const std::vector<std::uint64_t>& numbers,
                                        const ExternalMatch& found) const {
    const std::uint32_t wanted = expected(tokens);
    if (found.token_count != wanted) {
      return std::to_string(found.token_count) + " tokens were found, not " + std::to_string(wanted);
    }
    if (found.pages.size() * kPageTokens != wanted) return "other pages of the history than tokens";
    // What is given is what was offered for these very tokens, and holds their numbers.
    const auto check_page = [&](std::uint32_t g, std::uint32_t page, PageId id) -> std::string {
      const auto at = twin_.find({pool_of(g), prefix(tokens, page)});
      if (at == twin_.end() || at->second != id) return "a page that was not offered there";
      if (pools_[pool_of(g)].owners[id.value] != Owner::Cache) return "a page that is not the cache's";
      const bool is_state = has_slot(groups_[g]);
      for (std::uint32_t i = 0; i < (is_state ? 1 : kPageTokens); ++i) {
        const std::uint32_t length = (page * kPageTokens) + (is_state ? kPageTokens : i + 1);
        if (pools_[g].rows[(id.value * kPageTokens) + i] != row_of(g, numbers[length])) return "wrong bytes";
      }
      return "";
    };
    std::vector<std::set<std::uint32_t>> given(groups_.size());
    const auto check_pages = [&](std::uint32_t g, std::uint32_t first, std::span<const PageId> page_ids) {
      std::string wrong;
      for (std::uint32_t i = 0; i < page_ids.size() && wrong.empty(); ++i) {
        wrong = check_page(g, first + i, page_ids[i]);
        given[g].insert(first + i);
      }
      return wrong.empty() ? "" : "group " + std::to_string(g) + ": " + wrong;
    };
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      if (!is_history_[g]) continue;
      if (std::string wrong = check_pages(g, 0, found.pages); !wrong.empty()) return wrong;
    }
    for (const GroupPages& piece : found.groups) {
      if (is_history_[piece.group_index]) return "history among the groups";
      std::string wrong = check_pages(piece.group_index, piece.first_page, piece.page_ids);
      if (!wrong.empty()) return wrong;
    }
    // And it is all that the group needs.
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      const std::set<std::uint32_t> needed = needed_pages(g, wanted, wanted == tokens.size());
      if (!std::ranges::includes(given[g], needed)) return "a page that is needed is not given";
    }
    return "";
  }

  // A page of the engine's own, if need be one that the cache gives up for it.
  [[nodiscard]] std::optional<PageId> take(std::uint32_t g, std::string& wrong) {
    Pool& pool = pools_[g];
    if (pool.free.empty()) wrong = reclaim(g, 2);
    if (pool.free.empty() || !wrong.empty()) return std::nullopt;
    const PageId page = pool.free.back();
    pool.free.pop_back();
    return page;
  }

  std::string compute_and_offer(const std::vector<TokenId>& tokens, const std::vector<std::uint64_t>& numbers,
                                const ExternalMatch& found, std::uint64_t draw) {
    const auto page_count = static_cast<std::uint32_t>(tokens.size()) / kPageTokens;
    // Now and then what was found is computed once more, and stays the engine's.
    const std::uint32_t first = draw % 8 == 0 ? 0 : std::min(found.token_count / kPageTokens, page_count);
    // The state goes on from the snapshot, or from nothing.
    std::vector<std::uint64_t> computed(numbers.size());
    computed[first * kPageTokens] = numbers[first * kPageTokens];
    for (const GroupPages& piece : found.groups) {
      if (!has_slot(groups_[piece.group_index]) || first == 0) continue;
      computed[first * kPageTokens] = pools_[piece.group_index].rows[piece.page_ids[0].value * kPageTokens];
    }
    for (std::size_t i = std::size_t{first} * kPageTokens; i < tokens.size(); ++i) {
      computed[i + 1] = PrefixNumbers::next(computed[i], tokens[i]);
    }
    if (computed.back() != numbers.back()) return "the numbers are not those of all tokens";
    std::string wrong;
    const auto fill = [&](std::uint32_t g, std::uint32_t page) -> PageId {
      const std::optional<PageId> taken = take(pool_of(g), wrong);
      if (!taken) return PageId::none();
      for (std::uint32_t i = 0; i < kPageTokens; ++i) {
        const std::uint32_t length = (page * kPageTokens) + (has_slot(groups_[g]) ? kPageTokens : i + 1);
        for (std::uint32_t h = 0; h < groups_.size(); ++h) {
          if (pool_of(h) != pool_of(g)) continue;
          pools_[h].rows[(taken->value * kPageTokens) + i] = row_of(h, computed[length]);
        }
      }
      return *taken;
    };
    // Pages that are taken must not be asked back meanwhile: they are in no free list.
    std::vector<PageId> history;
    for (std::uint32_t page = first; page < page_count; ++page) {
      const PageId filled = fill(0, page);
      if (filled.is_none()) break;
      history.push_back(filled);
    }
    const auto end = static_cast<std::uint32_t>(first + history.size());
    std::vector<std::vector<PageId>> of_groups;
    std::vector<GroupPages> offered;
    of_groups.reserve(groups_.size() * page_count);
    for (std::uint32_t g = 0; g < groups_.size() && wrong.empty(); ++g) {
      if (is_history_[g]) continue;
      const std::uint32_t last = end > 0 ? end - 1 : 0;
      for (std::uint32_t page = first; page < end; ++page) {
        // All of a window or its last pages; a snapshot at the end, and now and then another.
        draw = mix64(draw + 1);
        const bool is_near = page + 3 > last || page == 0;
        const bool is_wanted = has_slot(groups_[g]) ? page == last || draw % 8 == 0 : is_near || draw % 3 != 0;
        if (!is_wanted || (page + 1) * kPageTokens % boundary_multiple(groups_[g]) != 0) continue;
        const PageId filled = fill(g, page);
        if (filled.is_none()) continue;
        of_groups.push_back({filled});
        offered.push_back({.group_index = g, .first_page = page, .page_ids = of_groups.back()});
      }
    }
    if (!wrong.empty() || (history.empty() && offered.empty())) return give_back(history, offered), wrong;
    const std::span<const TokenId> path(tokens.data(), std::size_t{end} * kPageTokens);
    const Result<OfferOutcome> outcome =
        cache_.offer(space_, {.prompt = {.tokens = path}, .first_page = first, .page_ids = history, .groups = offered});
    if (!outcome) return outcome.error().message;
    if (outcome->prefix_pages < first) return give_back(history, offered), "";
    return note_offer(tokens, first, history, offered, *outcome);
  }
  void give_back(const std::vector<PageId>& history, const std::vector<GroupPages>& offered) {
    pools_[0].free.insert(pools_[0].free.end(), history.begin(), history.end());
    for (const GroupPages& piece : offered) pools_[piece.group_index].free.push_back(piece.page_ids[0]);
  }
  // Who has which page from here on.
  std::string note_offer(const std::vector<TokenId>& tokens, std::uint32_t first, const std::vector<PageId>& history,
                         const std::vector<GroupPages>& offered, const OfferOutcome& outcome) {
    std::uint32_t adopted = 0;
    duplicates_ += outcome.duplicate_pages + outcome.group_duplicates.size();
    for (std::uint32_t i = 0; i < history.size(); ++i) {
      if (has(0, tokens, first + i) != (i < outcome.duplicate_pages)) return "other duplicates of the history";
      if (i < outcome.duplicate_pages) {
        pools_[0].free.push_back(history[i]);
      } else {
        adopt(0, prefix(tokens, first + i), history[i]);
      }
    }
    for (const GroupPages& piece : offered) {
      const GroupPage page{piece.group_index, piece.page_ids[0]};
      const bool is_duplicate = std::ranges::count(outcome.group_duplicates, page) > 0;
      if (has(page.group_index, tokens, piece.first_page) != is_duplicate) return "other duplicates of a group";
      if (is_duplicate) {
        pools_[page.group_index].free.push_back(page.page);
      } else {
        adopt(page.group_index, prefix(tokens, piece.first_page), page.page);
        ++adopted;
      }
    }
    return adopted == outcome.adopted_group_pages ? "" : "another number of adopted pages";
  }
  void adopt(std::uint32_t g, const Prefix& at, PageId page) {
    pools_[g].owners[page.value] = Owner::Cache;
    twin_[{g, at}] = page;
    by_page_[{g, page.value}] = at;
  }

  // All that the cache has given up, of all groups: with a page of the history goes what hangs on it.
  std::string take_released(std::uint32_t group, std::uint32_t& count) {
    for (const std::uint32_t g : own_pools_) {
      std::vector<PageId> buffer(5);
      for (;;) {
        const std::span<PageId> taken = cache_.take_released(buffer, g).value();
        if (taken.empty()) break;
        for (const PageId page : taken) {
          if (pools_[g].owners[page.value] != Owner::Cache) return "a page is released that was the engine's";
          for (const ExternalMatch& match : held_) {
            if (is_of(match, g, page)) return "a page is released that a match holds";
          }
          pools_[g].owners[page.value] = Owner::Engine;
          pools_[g].free.push_back(page);
          ++pools_[g].released;
          count += g == group ? 1 : 0;
          const auto at = by_page_.find({g, page.value});
          twin_.erase({g, at->second});
          by_page_.erase(at);
        }
      }
    }
    for (const auto& [at, page] : twin_) {
      if (at.first > 0 && !twin_.contains({0, at.second})) return "a page of a group hangs on nothing";
    }
    return "";
  }
  [[nodiscard]] bool is_of(const ExternalMatch& match, std::uint32_t g, PageId page) const {
    if (is_history_[g]) return std::ranges::count(match.pages, page) > 0;
    return std::ranges::any_of(match.groups, [&](const GroupPages& piece) {
      return piece.group_index == g && std::ranges::count(piece.page_ids, page) > 0;
    });
  }

  Cache& cache_;
  KeySpaceId space_;
  std::span<const CacheGroup> groups_;
  std::vector<bool> is_history_;
  std::vector<Pool> pools_;               // by group; the history's pages are the first group's
  std::vector<std::uint32_t> own_pools_;  // groups that have pages of their own
  std::map<Place, PageId> twin_;          // what the cache has been given and has not given up
  std::map<std::pair<std::uint32_t, std::uint32_t>, Prefix> by_page_;
  std::vector<ExternalMatch> held_;
  std::uint64_t found_tokens_ = 0;
  std::uint64_t duplicates_ = 0;
};

struct ExternalCase {
  std::string name;
  std::vector<CacheGroup> groups;
  std::vector<std::uint32_t> page_counts;
};

std::vector<ExternalCase> external_cases() {
  return {
      {"Plain", {full_group()}, {40}},
      {"Window", {full_group(), window_group(6)}, {40, 24}},
      {"Sink", {full_group(), with_sink(window_group(7), 5)}, {40, 30}},
      {"State", {full_group(), state_group(0, kLast)}, {40, 12}},
      {"Compressed", {full_group(), compressed_group(4), window_group(5)}, {40, 40, 30}},
      {"Everything",
       {full_group(), compressed_group(4), with_sink(window_group(9), 2), named(window_group(4), "short"),
        state_group(0, kLast), tail_group(8, 2, 16, kLast)},
       {48, 48, 40, 30, 20, 20}},
  };
}

class CacheGroupsExternalRandomTest : public ::testing::TestWithParam<ExternalCase> {};

TEST_P(CacheGroupsExternalRandomTest, PagesAreWhereTheTwinSays) {
  constexpr std::uint32_t kSeeds = testing::kIsSanitized ? 2 : 6;
  std::uint64_t found = 0;
  std::uint64_t duplicates = 0;
  std::vector<std::uint64_t> released(GetParam().groups.size());
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::unique_ptr<Cache> cache = open_cache(external_config(GetParam().groups, GetParam().page_counts));
    ExternalEngine engine(*cache, cache->key_space({.model = "test"}).value());
    std::uint64_t state = mix64(seed);
    const auto below = [&](std::uint32_t end) {
      state = mix64(state + 1);
      return static_cast<std::uint32_t>(state % end);
    };
    for (std::uint32_t call = 0; call < 250; ++call) {
      std::string wrong;
      const std::uint32_t kind = below(40);
      if (kind == 0) {
        wrong = engine.drop_all();
      } else if (kind < 8) {
        const std::uint32_t group = below(static_cast<std::uint32_t>(GetParam().groups.size()));
        const CacheGroup& of = GetParam().groups[group];
        const bool is_history = of.kind == GroupKind::Full || of.kind == GroupKind::Compressed;
        wrong = engine.reclaim(is_history ? 0 : group, 1 + below(6));
      } else {
        // Few beginnings, which part at a few places.
        std::vector<TokenId> tokens = with_tail({}, static_cast<TokenId>(below(3)), 4 + below(20));
        tokens = with_tail(tokens, static_cast<TokenId>(10 + below(3)), below(24));
        wrong = engine.serve(tokens, state, below(4) == 0);
      }
      if (wrong.empty()) wrong = engine.check();
      ASSERT_EQ(wrong, "") << GetParam().name << ", seed " << seed << ", call " << call;
    }
    found += engine.found_tokens();
    duplicates += engine.duplicates();
    for (std::uint32_t g = 0; g < released.size(); ++g) released[g] += engine.released(g);
  }
  EXPECT_GT(found, 0U);
  EXPECT_GT(duplicates, 0U);
  for (std::uint32_t g = 0; g < released.size(); ++g) {
    const GroupKind kind = GetParam().groups[g].kind;
    const bool has_pool = g == 0 || kind == GroupKind::Window || kind == GroupKind::Snapshot;
    EXPECT_EQ(released[g] > 0, has_pool) << g;
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheGroupsExternalRandomTest, ::testing::ValuesIn(external_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace quire
