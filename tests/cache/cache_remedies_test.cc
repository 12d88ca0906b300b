// SPDX-License-Identifier: Apache-2.0
//
// Refusals that say what to do instead: whoever does that gets on. Each test meets a refusal and follows its words.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"
#include "sequence_changes_fixture.h"

namespace quire {
namespace {

// Sequences with state

class CacheStateRemedies : public CacheGroupsTest {
 protected:
  [[nodiscard]] static CacheConfig state_config(std::uint32_t slot_history) {
    CacheConfig config = groups_config({full_group(), state_group(slot_history, every(64))}, 8, 64, 256);
    config.sequence_count_max = 4;
    return config;
  }
  template <typename T>
  [[nodiscard]] static std::string message(const Result<T>& result) {
    EXPECT_FALSE(result.has_value());
    return result.has_value() ? "" : result.error().message;
  }
};

TEST_F(CacheStateRemedies, AForkThatFindsNoStateSaysHowManyVersionsWouldDo) {
  open(state_config(2));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  EXPECT_EQ(message(cache_->fork(request.sequence, 25)),
            "fork: sequence 0 cannot be forked at 25: group 'state' no longer has the state behind 25 tokens: it keeps "
            "2 earlier versions, and tokens up to 30 were computed; declare a slot_history of 5 or more, or begin() a "
            "sequence with these 25 tokens, which finds what is cached of them");
  GroupsRequest instead = start(token_range(0, 25));
  run_all(instead);
  decode(instead, 10);
  for (const std::uint32_t slot_history : {4U, 5U}) {
    open(state_config(slot_history));
    GroupsRequest again = start(token_range(0, 30));
    run_all(again);
    ASSERT_EQ(cache_->fork(again.sequence, 25).has_value(), slot_history == 5);
    if (slot_history < 5) continue;
    GroupsRequest child = fork(again, 25);
    append(child, {900});
    decode(child, 10);
  }
}

TEST_F(CacheStateRemedies, AForkBeforeTheSnapshotThatASequenceBeganWithDoesNotAskForMoreVersions) {
  open(state_config(40));
  run_request(token_range(0, 65));  // leaves a snapshot behind 64
  GroupsRequest request = start(with_tail(token_range(0, 64), 1, 10));
  ASSERT_EQ(request.admission.matched_tokens, 64U);
  for (const bool is_restored : {false, true}) {
    if (is_restored) run_all(request);
    const std::string text = message(cache_->fork(request.sequence, 50));
    EXPECT_EQ(text.find("slot_history"), std::string::npos) << text;
    EXPECT_NE(text.find("the sequence began further on, from a snapshot, or was taken back before; begin() a sequence "
                        "with these 50 tokens"),
              std::string::npos)
        << text;
  }
  GroupsRequest instead = start(token_range(0, 50));
  run_all(instead);
  decode(instead, 10);
}

TEST_F(CacheStateRemedies, AForkThatFindsNoRowsSaysHowManyEntriesWouldDo) {
  const auto config = [](std::uint32_t entries) {
    return groups_config({full_group(), ring_group(10, entries, every(64))}, 8, 64, 256);
  };
  open(config(14));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  const std::string text = message(cache_->fork(request.sequence, 22));
  EXPECT_NE(text.find("declare slot_entries of 17 or more, or begin() a sequence with these 22 tokens"),
            std::string::npos)
      << text;
  for (const std::uint32_t entries : {16U, 17U}) {
    open(config(entries));
    GroupsRequest again = start(token_range(0, 30));
    run_all(again);
    EXPECT_EQ(cache_->fork(again.sequence, 22).has_value(), entries == 17) << entries;
  }
}

TEST_F(CacheStateRemedies, ASlotIsFreedByPreemptDropAndNotBySave) {
  CacheConfig config = state_config(2);
  config.device.state_slot_count = 2;
  config.host.page_count = 64;
  open(std::move(config));
  GroupsRequest a = start(token_range(0, 30));
  GroupsRequest b = start(token_range(1'000, 30));
  run_all(a);
  run_all(b);
  EXPECT_EQ(message(cache_->fork(a.sequence, 30)),
            "fork: all 2 state slots are taken: end a sequence, preempt one with Preempt::Drop (a saved one keeps its "
            "slot), or raise device.state_slot_count");
  ASSERT_TRUE(cache_->preempt(b.sequence, Preempt::Save));
  drain(*cache_);
  expect_error(cache_->fork(a.sequence, 30), ErrorCode::Unavailable, "state slots are taken");
  ASSERT_TRUE(cache_->resume(b.sequence));
  drain(*cache_);
  ASSERT_TRUE(cache_->preempt(b.sequence, Preempt::Drop));
  GroupsRequest child = fork(a, 30);
  append(child, {900});
  decode(child, 5);
}

TEST_F(CacheStateRemedies, WithASlotForEverySequenceMoreSequencesAreWhatIsMissing) {
  for (const std::uint32_t slot_count : {0U, 2U}) {
    CacheConfig config = state_config(2);
    config.sequence_count_max = 2;
    config.device.state_slot_count = slot_count;
    open(std::move(config));
    GroupsRequest a = start(token_range(0, 30));
    GroupsRequest b = start(token_range(1'000, 30));
    run_all(a);
    run_all(b);
    const std::string text = message(cache_->fork(a.sequence, 30));
    const std::string wanted =
        slot_count == 0 ? "or raise sequence_count_max" : "or raise device.state_slot_count and sequence_count_max";
    EXPECT_NE(text.find(wanted), std::string::npos) << text;
    config = state_config(2);
    config.sequence_count_max = 3;
    config.device.state_slot_count = slot_count == 0 ? 0 : 3;
    open(std::move(config));
    GroupsRequest again = start(token_range(0, 30));
    GroupsRequest other = start(token_range(1'000, 30));
    run_all(again);
    run_all(other);
    EXPECT_TRUE(cache_->fork(again.sequence, 30));
  }
}

TEST_F(CacheStateRemedies, DraftsFitIntoTheLayoutThatTheRefusalNames) {
  open(state_config(1));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  append(request, {700});
  const StepEntry entry{.sequence = &request.sequence, .draft_count = 3};
  expect_error(cache_->plan_step({&entry, 1}), ErrorCode::InvalidArgument, "layout.with_drafts(3) does");
  CacheConfig config = state_config(1);
  config.layout = *config.layout.with_drafts(3);
  open(std::move(config));
  GroupsRequest again = start(token_range(0, 30));
  run_all(again);
  append(again, {700});
  step({{.request = &again, .drafts = {1, 2, 3}, .accepted = 1, .sampled = {9}}});
}

// Windows and replays

TEST_F(CacheStateRemedies, AWindowKeepsWhatWindowRewindTokensSays) {
  for (const std::uint32_t rewind_tokens : {0U, 40U}) {
    CacheConfig config = groups_config({full_group(), window_group(16)}, 8, 64, 256);
    config.window_rewind_tokens = rewind_tokens;
    open(std::move(config));
    GroupsRequest request = start(token_range(0, 100));
    run_all(request);
    if (rewind_tokens == 0) {
      expect_error(cache_->fork(request.sequence, 60), ErrorCode::InvalidArgument,
                   "a larger window_rewind_tokens keeps more");
    } else {
      GroupsRequest child = fork(request, 60);
      append(child, {900});
      decode(child, 5);
    }
  }
}

TEST_F(CacheStateRemedies, APageCountThatIsTooSmallForAWindowIsRaisedWhereTheRefusalSays) {
  CacheConfig config = groups_config({full_group(), window_group(40)}, 8, 64, 256);
  config.device.capacity_bytes = 0;
  config.device.page_count = 64;
  config.device.group_page_counts = {64, 2};
  const Result<std::unique_ptr<Cache>> refused = Cache::open(std::move(config));
  const std::string text = message(refused);
  EXPECT_NE(text.find("raise device.group_page_counts[1]"), std::string::npos) << text;
  const std::size_t at = text.find("tokens needs ");
  ASSERT_NE(at, std::string::npos) << text;
  config = groups_config({full_group(), window_group(40)}, 8, 64, 256);
  config.device.capacity_bytes = 0;
  config.device.page_count = 64;
  config.device.group_page_counts = {64, static_cast<std::uint32_t>(std::stoul(text.substr(at + 13)))};
  open(std::move(config));
  run_request(token_range(0, 100), {}, 8);
}

TEST_F(CacheStateRemedies, BytesThatAreSharedByGroupsNeedTheLongestContext) {
  const auto config = [] {
    CacheConfig made = groups_config({full_group(), window_group(16)}, 8, 64, 256);
    made.device.page_count = 0;
    made.device.group_page_counts = {};
    made.device.capacity_bytes = 1U << 20U;
    return made;
  };
  CacheConfig refused = config();
  refused.context_tokens_max = 0;
  expect_error(Cache::open(std::move(refused)), ErrorCode::InvalidArgument,
               "set context_tokens_max, or device.page_count");
  EXPECT_TRUE(Cache::open(config()));
}

TEST_F(CacheStateRemedies, LayerWindowsOpenOnEveryPresetThatHasAFullGroup) {
  for (const std::string_view name : preset_names()) {
    CacheConfig config{.layout = *preset(name),
                       .page = {.page_tokens = 128},
                       .device = {.page_count = 64, .memory = DeviceMemory::None},
                       .sequence_count_max = 2,
                       .context_tokens_max = 2'048,
                       .step_tokens_max = 256};
    bool has_full = false;
    for (const CacheGroup& group : config.layout.groups()) has_full |= group.kind == GroupKind::Full;
    config.plan.layer_windows = {128};
    const Result<std::unique_ptr<Cache>> cache = Cache::open(std::move(config));
    EXPECT_EQ(cache.has_value(), has_full) << name << ": " << (cache ? "" : cache.error().message);
    if (!has_full) expect_error(cache, ErrorCode::Unsupported, "has no full group");
  }
}

// Sleeping, saving and resizing

TEST_F(CacheStateRemedies, ACacheSleepsOnceEverySequenceIsEndedOrDropped) {
  CacheConfig config = state_config(2);
  config.host.page_count = 64;
  open(std::move(config));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  expect_error(cache_->sleep(Sleep::KeepHost), ErrorCode::Unavailable,
               "is admitted; end every sequence, or preempt it with Preempt::Drop, first");
  ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Save));
  drain(*cache_);
  expect_error(cache_->sleep(Sleep::KeepHost), ErrorCode::Unavailable,
               "end it, or resume it and preempt it with Preempt::Drop, first");
  ASSERT_TRUE(cache_->resume(request.sequence));
  drain(*cache_);
  ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Drop));
  while (!cache_->sleep(Sleep::KeepHost).value()) drain(*cache_);
  expect_error(cache_->resume(request.sequence), ErrorCode::Unavailable, "wake() comes first");
  ASSERT_TRUE(cache_->wake());
  ASSERT_TRUE(cache_->resume(request.sequence));
  drain(*cache_);
}

class CacheRemedies : public SequenceChangesTest {};

TEST_F(CacheRemedies, ASequenceThatCannotBeDroppedIsSavedAndTheOtherWayRoundOnlyWhereThatHelps) {
  CacheConfig config = changes_config();
  config.host = {};
  open(std::move(config));
  Live live = computed(token_range(0, 40));
  expect_error(cache_->preempt(live.sequence, Preempt::Save), ErrorCode::Unsupported,
               "use Preempt::Drop, or set host.page_count or host.capacity_bytes");
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 12, .sink_tokens = 2}));
  // Neither way is open without a host tier: both refusals say that.
  expect_error(cache_->preempt(live.sequence, Preempt::Drop), ErrorCode::Unsupported,
               "use Preempt::Save, which needs a host tier: set host.page_count or host.capacity_bytes");
  const Status refused = cache_->preempt(live.sequence, Preempt::Save);
  expect_error(refused, ErrorCode::Unsupported, "set host.page_count or host.capacity_bytes");
  EXPECT_EQ(refused.error().message.find("Drop"), std::string::npos) << refused.error().message;

  open(changes_config());
  live = computed(token_range(0, 40));
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 12, .sink_tokens = 2}));
  expect_error(cache_->preempt(live.sequence, Preempt::Drop), ErrorCode::Unsupported, "use Preempt::Save");
  ASSERT_TRUE(save(live.sequence));
}

TEST_F(CacheRemedies, TheFirstCallThatARefusalNamesLetsTheSecondThrough) {
  Live live{.sequence = cache_->begin(space_, {.tokens = token_range(0, 9)}).value(), .tokens = token_range(0, 9)};
  expect_error(cache_->fork(live.sequence, 4), ErrorCode::InvalidArgument, "is waiting; admit it first");
  ASSERT_TRUE(cache_->admit(live.sequence));
  EXPECT_TRUE(cache_->fork(live.sequence, 4));
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Drop));
  expect_error(cache_->fork(live.sequence, 4), ErrorCode::InvalidArgument, "is preempted; resume it first");
  expect_error(cache_->admit(live.sequence), ErrorCode::InvalidArgument, "resume() continues it");
  ASSERT_TRUE(cache_->resume(live.sequence));
  EXPECT_TRUE(cache_->fork(live.sequence, 4));
  const Step step = plan({{&live.sequence}});
  expect_error(cache_->rewind(live.sequence, 1), ErrorCode::Unavailable, "finish or abort them first");
  expect_error(cache_->resize(80), ErrorCode::Unavailable, "finish or abort it first");
  ASSERT_TRUE(cache_->abort_step(step));
  EXPECT_TRUE(cache_->rewind(live.sequence, 1));
  EXPECT_TRUE(cache_->resize(80));
  expect_error(cache_->reset(), ErrorCode::Unavailable, "end them before reset()");
  ASSERT_TRUE(cache_->end(live.sequence));
  EXPECT_TRUE(cache_->reset());
}

TEST_F(CacheRemedies, ATreeIsDecidedBeforeItsSequenceIsChanged) {
  Live live = computed(token_range(0, 9));
  append(live, {50});
  const std::vector<std::int32_t> parents = {-1, 0};
  const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  expect_error(cache_->commit_tree(live.sequence, 1), ErrorCode::Unavailable, "finish that step first");
  const std::vector<TokenId> values = {51, 52};
  const StepResult result{.tokens = values};
  ASSERT_TRUE(cache_->finish_step(step, {&result, 1}));
  expect_error(cache_->rewind(live.sequence, 1), ErrorCode::Unavailable, "commit_tree decides");
  ASSERT_TRUE(cache_->commit_tree(live.sequence, 1));
  EXPECT_TRUE(cache_->rewind(live.sequence, 1));
}

TEST_F(CacheRemedies, AReceiveEndsBeforeTheSequenceIsChanged) {
  Live live = admitted(token_range(0, 16));
  ASSERT_TRUE(cache_->prepare_receive(live.sequence, 8));
  expect_error(cache_->rewind(live.sequence, 1), ErrorCode::Unavailable, "finish_receive or abort_receive comes first");
  ASSERT_TRUE(cache_->abort_receive(live.sequence));
  EXPECT_TRUE(cache_->rewind(live.sequence, 1));
}

TEST_F(CacheRemedies, AReceiveBehindACopiedPageBeginsAtAWholeOneOrBehindAStep) {
  Live first = computed(token_range(0, 11));
  ASSERT_TRUE(cache_->end(first.sequence));
  std::vector<TokenId> tokens = token_range(0, 7);
  for (TokenId token = 100; token < 110; ++token) tokens.push_back(token);
  Live live = admitted(tokens);
  expect_error(cache_->prepare_receive(live.sequence, 2), ErrorCode::Unavailable,
               "begin it with match_tokens_max at a multiple of page_tokens, or receive what a step has left");
  Live whole = admitted(tokens, {.match_tokens_max = 4});
  EXPECT_TRUE(cache_->prepare_receive(whole.sequence, 2));
  ASSERT_TRUE(cache_->abort_receive(whole.sequence));
  const Step step = plan({{.sequence = &live.sequence, .token_count = 1}});
  const StepResult result;
  ASSERT_TRUE(cache_->finish_step(step, {&result, 1}));
  EXPECT_TRUE(cache_->prepare_receive(live.sequence, 2));
  ASSERT_TRUE(cache_->abort_receive(live.sequence));
}

TEST_F(CacheRemedies, LimitsThatARefusalNamesAreTheOnesToRaise) {
  const auto limited = [](std::uint32_t more) {
    CacheConfig config = test_config(4, 64);
    config.sequence_count_max = 1 + more;
    config.key_space_count_max = 1 + more;
    config.keep_count_max = 1 + more;
    return config;
  };
  for (const std::uint32_t more : {0U, 1U}) {
    open(limited(more));
    run_request(token_range(0, 8));
    Sequence live = cache_->begin(space_, {.tokens = token_range(0, 8)}).value();
    const Result<Sequence> second = cache_->begin(space_, {.tokens = token_range(0, 8)});
    const Result<KeySpaceId> other = cache_->key_space({.model = "other"});
    ASSERT_TRUE(cache_->keep(space_, {.tokens = token_range(0, 4)}));
    const Result<Kept> kept = cache_->keep(space_, {.tokens = token_range(0, 8)});
    if (more == 0) {
      expect_error(second, ErrorCode::Unavailable, "end one, or raise sequence_count_max");
      expect_error(other, ErrorCode::Unavailable, "end or unkeep some, or raise key_space_count_max");
      expect_error(kept, ErrorCode::Unavailable, "unkeep one, or raise keep_count_max");
    } else {
      EXPECT_TRUE(second.has_value() && other.has_value() && kept.has_value());
    }
  }
}

TEST_F(CacheRemedies, AKeySpaceMakesRoomWhenItsSequenceEndsAndItsPrefixIsKeptNoLonger) {
  CacheConfig config = test_config(4, 64);
  config.key_space_count_max = 1;
  open(std::move(config));
  run_request(token_range(0, 8));
  const Kept kept = cache_->keep(space_, {.tokens = token_range(0, 8)}).value();
  expect_error(cache_->key_space({.model = "other"}), ErrorCode::Unavailable, "end or unkeep some");
  ASSERT_TRUE(cache_->unkeep(kept.id));
  EXPECT_TRUE(cache_->key_space({.model = "other"}));
}

TEST_F(CacheRemedies, WhatAConfigurationIsToldToSetMakesItOpen) {
  struct Case {
    const char* text;
    ErrorCode code;
    void (*wrong)(CacheConfig&);
    void (*right)(CacheConfig&);
  };
  constexpr ErrorCode kInvalid = ErrorCode::InvalidArgument;
  const Case cases[] = {
      {"set device.page_count or device.capacity_bytes", kInvalid, [](CacheConfig& c) { c.device.page_count = 0; },
       [](CacheConfig& c) { c.device.capacity_bytes = 1U << 20U; }},
      {"give one of them", kInvalid, [](CacheConfig& c) { c.device.capacity_bytes = 1U << 20U; },
       [](CacheConfig& c) { c.device.capacity_bytes = 0; }},
      {"use Rows or Csr, or 1", kInvalid,
       [](CacheConfig& c) { c.plan = {.page_tables = PageTables::Block, .cascade_levels_max = 2}; },
       [](CacheConfig& c) { c.plan.cascade_levels_max = 1; }},
      {"needs page_tables Rows or Csr", ErrorCode::Unsupported,
       [](CacheConfig& c) { c.plan = {.page_tables = PageTables::Block, .layer_windows = {4}}; },
       [](CacheConfig& c) { c.plan.page_tables = PageTables::Rows; }},
      {"use 1 to copy whatever matches", kInvalid, [](CacheConfig& c) { c.partial_reuse_min_tokens = 0; },
       [](CacheConfig& c) { c.partial_reuse_min_tokens = 1; }},
      {"or page_tokens to never copy", kInvalid, [](CacheConfig& c) { c.partial_reuse_min_tokens = 0; },
       [](CacheConfig& c) { c.partial_reuse_min_tokens = c.page.page_tokens; }},
      {"set it, or use DeviceMemory::Host", kInvalid, [](CacheConfig& c) { c.device.memory = DeviceMemory::None; },
       [](CacheConfig& c) { c.host.external_mover = true; }},
      {"set it, or use DeviceMemory::Host", kInvalid, [](CacheConfig& c) { c.device.memory = DeviceMemory::None; },
       [](CacheConfig& c) { c.device.memory = DeviceMemory::Host; }},
      {"moves one rank: set external_mover", kInvalid, [](CacheConfig& c) { c.host.rank_count = 2; },
       [](CacheConfig& c) { c.host.external_mover = true; }},
      {"use WritePolicy::WriteThrough for that", kInvalid,
       [](CacheConfig& c) {
         c.host.write_policy = WritePolicy::Selective;
         c.host.write_hits_min = 0;
       },
       [](CacheConfig& c) {
         c.host.write_policy = WritePolicy::WriteThrough;
         c.host.write_hits_min = 1;
       }},
      {"lower it, or raise context_tokens_max", kInvalid,
       [](CacheConfig& c) {
         c.context_tokens_max = 16;
         c.expected_requests = {{.context_tokens = 32}};
       },
       [](CacheConfig& c) { c.context_tokens_max = 32; }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.text);
    CacheConfig config = changes_config();
    each.wrong(config);
    expect_error(Cache::open(std::move(config)), each.code, each.text);
    config = changes_config();
    each.wrong(config);
    each.right(config);
    const Result<std::unique_ptr<Cache>> cache = Cache::open(std::move(config));
    EXPECT_TRUE(cache.has_value()) << cache.error().message;
  }
}

TEST_F(CacheRemedies, ASequenceWindowWorksOnceKeysAreStoredUnrotated) {
  for (const bool is_rotated : {true, false}) {
    CacheConfig config = test_config(4, 64);
    CacheGroup group{.name = "full", .layers = {0}, .components = {{.name = "k", .heads = 1, .dim = 4}}};
    group.keys_rotated = is_rotated;
    config.layout = ModelLayout::create("one", {group}).value();
    const auto cache = open_cache(std::move(config));
    const KeySpaceId space = cache->key_space({.model = "test"}).value();
    const Sequence sequence = cache->begin(space, {.tokens = token_range(0, 8)}).value();
    const Status status = cache->set_window(sequence, {.visible_tokens = 4, .sink_tokens = 1});
    EXPECT_EQ(status.has_value(), !is_rotated);
    if (is_rotated) expect_error(status, ErrorCode::Unsupported, "declare keys_rotated = false");
  }
}

TEST_F(CacheRemedies, TransfersInFlightArePausedBeforeAResize) {
  CacheConfig config = changes_config();
  config.host.page_count = 64;
  config.host.write_policy = WritePolicy::WriteThrough;
  config.host.external_mover = true;
  open(std::move(config));
  run_request(token_range(0, 40));
  std::vector<TransferPlan> plans(16);
  std::vector<Completion> completions;
  for (const TransferPlan& each : *cache_->take_transfers(plans)) {
    completions.push_back({.id = each.id, .good_pages = static_cast<std::uint32_t>(each.pages.size())});
  }
  ASSERT_FALSE(completions.empty());
  expect_error(cache_->resize(80), ErrorCode::Unavailable,
               "apply() their completions until pause_transfers() returns true, and call resume_transfers() behind "
               "resize()");
  ASSERT_FALSE(cache_->pause_transfers().value());
  ASSERT_TRUE(cache_->apply(completions, 0));
  ASSERT_TRUE(cache_->pause_transfers().value());
  EXPECT_TRUE(cache_->resize(80));
  EXPECT_TRUE(cache_->resume_transfers());
}

}  // namespace
}  // namespace quire
