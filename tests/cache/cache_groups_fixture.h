// SPDX-License-Identifier: Apache-2.0
//
// For tests of the cache on layouts of several groups: requests that remember their tokens, and steps whose every byte
// is checked by the GroupsEngine.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cache_fixture.h"
#include "engine_copies.h"
#include "groups_fixture.h"

namespace quire {

/// A small cache of these groups; the first that keeps everything has `page_count` pages.
[[nodiscard]] inline CacheConfig groups_config(std::vector<CacheGroup> groups, std::uint32_t page_tokens,
                                               std::uint32_t page_count, std::uint32_t context_tokens_max) {
  Result<ModelLayout> layout = ModelLayout::create("groups", std::move(groups));
  EXPECT_TRUE(layout.has_value()) << layout.error().message;
  return {.layout = std::move(*layout),
          .page = {.page_tokens = page_tokens},
          .device = {.page_count = page_count},
          .sequence_count_max = 8,
          .context_tokens_max = context_tokens_max,
          .step_tokens_max = 8'192};
}

[[nodiscard]] inline CacheGroup named(CacheGroup group, std::string name) {
  group.name = std::move(name);
  return group;
}

[[nodiscard]] inline CacheGroup unrotated(CacheGroup group) {
  group.keys_rotated = false;
  return group;
}
/// Its first tokens stay in sight.
[[nodiscard]] inline CacheGroup with_sink(CacheGroup group, std::uint32_t sink_tokens) {
  group.sink_tokens = sink_tokens;
  return unrotated(std::move(group));
}
/// What it lacks is computed again from so many tokens.
[[nodiscard]] inline CacheGroup rebuilt(CacheGroup group, std::uint32_t replay_tokens, bool is_exact = true) {
  group.replay = {.tokens = replay_tokens, .is_exact = is_exact};
  return group;
}
[[nodiscard]] inline CacheGroup draft_group(std::uint32_t lookahead_tokens) {
  CacheGroup group = full_group("draft");
  group.lookahead_tokens = lookahead_tokens;
  return group;
}

inline constexpr GroupRetention kLast{.rule = RetentionRule::Last};
inline constexpr GroupRetention kNone{.rule = RetentionRule::None};
[[nodiscard]] constexpr GroupRetention every(std::uint32_t interval_tokens) {
  return {.rule = RetentionRule::Every, .interval_tokens = interval_tokens};
}

/// Groups that tests go through one mix after the other.
struct GroupMix {
  std::string name;
  std::vector<CacheGroup> groups;

  friend void PrintTo(const GroupMix& mix, std::ostream* out) { *out << mix.name; }
};

/// One request and all its tokens so far.
struct GroupsRequest {
  Sequence sequence;
  std::vector<TokenId> tokens;
  Admission admission;
  Window window;
  std::uint32_t full_tokens = UINT32_MAX;  // those before have seen all before them

  /// What the sequence's tokens amount to; behind its window, something else than without.
  [[nodiscard]] PrefixNumbers numbers(std::span<const TokenId> drafts = {}) const {
    PrefixNumbers result;
    const auto add = [&](TokenId token) {
      const bool is_full = result.length() < full_tokens;
      result.add(is_full ? token : token + 50'000'000 + static_cast<TokenId>(window.visible_tokens));
    };
    for (const TokenId token : tokens) add(token);
    for (const TokenId token : drafts) add(token);
    return result;
  }
  /// So many of its tokens are computed, after a fork or a rewind.
  void cut(std::uint32_t computed_tokens) {
    if (window.visible_tokens > 0)
      full_tokens = std::max(window.visible_tokens, std::min(full_tokens, computed_tokens));
  }
};

/// What a step does with one request.
struct GroupsWork {
  GroupsRequest* request = nullptr;
  std::uint32_t token_count = 0;  // 0: all that are pending
  std::vector<TokenId> drafts = {};
  std::uint32_t accepted = 0;         // of them
  std::vector<TokenId> sampled = {};  // given if all known ones are computed
  bool discard = false;
};

struct GroupsFlight {
  Step step;
  std::vector<GroupsWork> works;
  std::vector<SequenceView> views = {};  // when it was planned
};

class CacheGroupsTest : public ::testing::Test {
 public:
  void open(CacheConfig config) { use(open_cache(std::move(config))); }
  void use(std::unique_ptr<Cache> cache) {
    cache_ = std::move(cache);
    engine_ = std::make_unique<GroupsEngine>(*cache_);
    space_ = cache_->key_space({.model = "test"}).value();
  }
  void TearDown() override {
    if (cache_) expect_invariants();
  }
  void expect_invariants() const {
    const Status status = cache_->check_invariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }

  [[nodiscard]] GroupsRequest start(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    GroupsRequest request{.tokens = std::move(tokens)};
    Result<Sequence> sequence = cache_->begin(space_, {.tokens = request.tokens}, options);
    EXPECT_TRUE(sequence.has_value()) << sequence.error().message;
    request.sequence = std::move(*sequence);
    Result<Admission> admission = cache_->admit(request.sequence);
    while (!admission && admission.error().code == ErrorCode::Unavailable && wait_for_pages()) {
      admission = cache_->admit(request.sequence);
    }
    EXPECT_TRUE(admission.has_value()) << admission.error().message;
    if (admission) request.admission = *admission;
    return request;
  }
  [[nodiscard]] GroupsRequest fork(const GroupsRequest& request, std::uint32_t at) {
    Result<Sequence> sequence = cache_->fork(request.sequence, at);
    EXPECT_TRUE(sequence.has_value()) << sequence.error().message;
    GroupsRequest child{.sequence = std::move(*sequence)};
    child.tokens.assign(request.tokens.begin(), request.tokens.begin() + at);
    child.window = request.window;
    child.full_tokens = request.full_tokens;
    child.cut(view(child).computed_tokens);
    return child;
  }
  void append(GroupsRequest& request, std::vector<TokenId> tokens) {
    const Status status = cache_->append(request.sequence, {.tokens = tokens});
    ASSERT_TRUE(status.has_value()) << status.error().message;
    request.tokens.insert(request.tokens.end(), tokens.begin(), tokens.end());
  }
  void rewind(GroupsRequest& request, std::uint32_t count) {
    const Status status = cache_->rewind(request.sequence, count);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    request.tokens.resize(request.tokens.size() - count);
    request.cut(view(request).computed_tokens);
  }
  void set_window(GroupsRequest& request, const Window& window) {
    const Status status = cache_->set_window(request.sequence, window);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    request.window = window;
    request.full_tokens = std::max(window.visible_tokens, view(request).computed_tokens);
  }
  void end(GroupsRequest& request) { ASSERT_TRUE(cache_->end(request.sequence).has_value()); }
  [[nodiscard]] SequenceView view(const GroupsRequest& request) const { return cache_->view(request.sequence).value(); }

  /// Pages are on their way to the host: false when the test does not wait for them.
  virtual bool wait_for_pages() { return false; }
  [[nodiscard]] GroupsFlight plan(std::vector<GroupsWork> works) {
    std::vector<StepEntry> entries;
    for (const GroupsWork& work : works) {
      entries.push_back({.sequence = &work.request->sequence,
                         .token_count = work.token_count,
                         .draft_count = static_cast<std::uint32_t>(work.drafts.size())});
    }
    Result<PlanOutcome> outcome = cache_->plan_step(entries);
    EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
    while (!outcome->step && outcome->shortage.pages_leaving > 0 && wait_for_pages()) {
      outcome = cache_->plan_step(entries);
    }
    EXPECT_TRUE(outcome->step.has_value()) << "short of pages in group " << outcome->shortage.group_index;
    GroupsFlight flight{.step = *outcome->step, .works = std::move(works)};
    for (const GroupsWork& work : flight.works) flight.views.push_back(view(*work.request));
    return flight;
  }
  /// Computes a step that was planned, after reading everything that it needs. Those before it were computed.
  void run(const GroupsFlight& flight) {
    EXPECT_EQ(engine_->start(flight.step), "");
    const AttentionPlan& plan = flight.step.plan;
    for (std::size_t place = 0; place < plan.entries.size(); ++place) {
      const std::uint32_t index = plan.entries[place].entry_index;
      const GroupsWork& work = flight.works[index];
      EXPECT_EQ(engine_->run(plan, place, work.request->numbers(work.drafts), flight.views[index]), "")
          << plan.entries[place].token_count << " tokens at " << plan.entries[place].position;
    }
    const Status saved = testing::apply_saves(*cache_, flight.step);
    EXPECT_TRUE(saved.has_value()) << saved.error().message;
  }
  /// The device work of a step none of whose entries happened.
  void spoil(const GroupsFlight& flight) {
    EXPECT_EQ(engine_->start(flight.step), "");
    for (std::size_t place = 0; place < flight.step.plan.entries.size(); ++place) {
      engine_->spoil(flight.step.plan, place);
    }
    const Status saved = testing::apply_saves(*cache_, flight.step);
    EXPECT_TRUE(saved.has_value()) << saved.error().message;
  }
  [[nodiscard]] GroupsFlight compute(std::vector<GroupsWork> works) {
    GroupsFlight flight = plan(std::move(works));
    run(flight);
    return flight;
  }
  void abort(const GroupsFlight& flight) {
    EXPECT_EQ(engine_->start(flight.step), "");
    const Status status = cache_->abort_step(flight.step);
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
  void finish(const GroupsFlight& flight) {
    std::vector<StepResult> results(flight.works.size());
    std::vector<std::vector<TokenId>> added(flight.works.size());
    for (const AttentionPlanEntry& entry : flight.step.plan.entries) {
      const GroupsWork& work = flight.works[entry.entry_index];
      StepResult& result = results[entry.entry_index];
      result.discard = work.discard;
      if (work.discard) continue;
      std::vector<TokenId>& tokens = added[entry.entry_index];
      const bool is_last = entry.position + entry.token_count - entry.draft_count >= work.request->tokens.size();
      if (is_last) {
        result.accepted_count = std::min(work.accepted, entry.draft_count);
        tokens.assign(work.drafts.begin(), work.drafts.begin() + result.accepted_count);
        tokens.insert(tokens.end(), work.sampled.begin(), work.sampled.end());
      }
      result.tokens = tokens;
    }
    const Status status = cache_->finish_step(flight.step, results);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (std::size_t i = 0; i < added.size(); ++i) {
      std::vector<TokenId>& tokens = flight.works[i].request->tokens;
      tokens.insert(tokens.end(), added[i].begin(), added[i].end());
    }
  }
  void step(std::vector<GroupsWork> works) { finish(compute(std::move(works))); }
  void step(GroupsRequest& request, std::vector<TokenId> sampled = {}) {
    step({{.request = &request, .sampled = std::move(sampled)}});
  }
  /// Steps of at most `chunk` tokens until all known ones are computed.
  void run_all(GroupsRequest& request, std::vector<TokenId> sampled = {}, std::uint32_t chunk = UINT32_MAX) {
    const std::size_t known = request.tokens.size();
    while (view(request).pending_tokens > 0 && request.tokens.size() == known && !HasFailure()) {
      const std::uint32_t count = std::min(view(request).pending_tokens, chunk);
      step({{.request = &request, .token_count = count, .sampled = sampled}});
    }
  }
  /// A whole request; gives the tokens that it did not have to compute.
  std::uint32_t run_request(std::vector<TokenId> tokens, const SequenceOptions& options = {},
                            std::uint32_t chunk = UINT32_MAX) {
    GroupsRequest request = start(std::move(tokens), options);
    run_all(request, {}, chunk);
    end(request);
    return request.admission.matched_tokens - request.admission.replay_tokens;
  }
  /// One token after the other.
  void decode(GroupsRequest& request, std::uint32_t count, TokenId first = 100'000) {
    for (std::uint32_t i = 0; i < count && !HasFailure(); ++i) {
      if (view(request).pending_tokens == 0) append(request, {first + static_cast<TokenId>(i)});
      step(request, {first + static_cast<TokenId>(i) + 1});
    }
  }
  [[nodiscard]] Lookup lookup(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) const {
    return cache_->lookup(space_, {.tokens = tokens}, options).value();
  }

  [[nodiscard]] GroupStats group_stats(std::uint32_t group) const { return cache_->group_stats(group).value(); }
  /// Pages of a group that sequences hold: not free, and not just cached.
  [[nodiscard]] std::uint32_t held_pages(std::uint32_t group) const {
    const GroupStats stats = group_stats(group);
    return stats.page_count - stats.free_pages - stats.evictable_pages;
  }
  [[nodiscard]] std::uint32_t group_count() const {
    return static_cast<std::uint32_t>(cache_->config().layout.groups().size());
  }
  /// Everything that can be told about all groups and these requests, but for counts of calls.
  [[nodiscard]] std::string dump(const std::vector<const GroupsRequest*>& requests) const {
    std::string text;
    const auto add = [&](auto... numbers) { ((text += std::to_string(numbers) + " "), ...); };
    for (std::uint32_t g = 0; g < group_count(); ++g) {
      const GroupStats stats = group_stats(g);
      add(stats.page_count, stats.free_pages, stats.open_pages, stats.sealed_pages, stats.private_pages,
          stats.fenced_pages, stats.pinned_pages, stats.evictable_pages, stats.sealed_page_total,
          stats.duplicate_page_total, stats.evicted_page_total, stats.dropped_page_total, stats.skipped_snapshot_total,
          stats.restored_snapshot_total, stats.slot_count, stats.used_slots);
      EXPECT_TRUE(cache_->visit_group_pages(g, [&](PageId page, PageId own) { add(page.value, own.value); }));
      text += "\n";
    }
    for (const GroupsRequest* request : requests) {
      const SequenceView seen = view(*request);
      add(seen.is_waiting, seen.is_planned, seen.is_receiving, seen.token_count, seen.computed_tokens,
          seen.pending_tokens, seen.tree_tokens, seen.steps_in_flight, seen.window.visible_tokens, seen.state_slot,
          seen.next_checkpoint, seen.replay_tokens);
      for (const PageId page : seen.pages()) add(page.value);
      text += "\n";
    }
    return text;
  }
  /// All pages are free and no slot is used, once nobody lives and everything is given up.
  void expect_empty_after_reset() {
    ASSERT_TRUE(cache_->reset().has_value());
    for (std::uint32_t g = 0; g < group_count(); ++g) {
      const GroupStats stats = group_stats(g);
      EXPECT_EQ(stats.free_pages, stats.page_count) << "group " << g;
      EXPECT_EQ(stats.used_slots, 0U) << "group " << g;
    }
  }

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<GroupsEngine> engine_;
  KeySpaceId space_;
};

/// `head`, then tokens that no other tail of these tests has.
[[nodiscard]] inline std::vector<TokenId> with_tail(std::vector<TokenId> head, TokenId tail, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) head.push_back(1'000'000 + (tail * 1'000) + static_cast<TokenId>(i));
  return head;
}

}  // namespace quire
