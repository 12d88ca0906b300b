// SPDX-License-Identifier: Apache-2.0
//
// What layouts of several groups cannot do yet, and configurations that cannot work: every one is refused with a reason
// and changes nothing. And the presets of hybrid models, which open.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"
#include "quire/budget.h"

namespace quire {
namespace {

// Calls

struct Layout {
  const char* name;
  std::vector<CacheGroup> groups;
};

std::vector<Layout> hybrid_layouts() {
  return {{"window", {full_group(), window_group(20)}},
          {"state", {full_group(), state_group(2, every(32))}},
          {"compressed", {full_group(), compressed_group(4)}},
          {"entries alone", {compressed_group(4)}},
          {"windows alone", {window_group(20)}},
          {"all", {full_group(), compressed_group(4), window_group(20), ring_group(10, 14, every(32))}}};
}

class CacheGroupsInputTest : public CacheGroupsTest {
 protected:
  // Refused with Unsupported and a reason, in the middle of a sequence's life, without a trace.
  void expect_refused(const char* reason, const std::function<Status(GroupsRequest&)>& call) {
    for (Layout& layout : hybrid_layouts()) {
      SCOPED_TRACE(layout.name);
      open(groups_config(std::move(layout.groups), 8, 64, 256));
      GroupsRequest request = start(token_range(0, 100));
      step({{&request, 50}});
      const std::string before = dump({&request});
      const Status status = call(request);
      expect_error(status, ErrorCode::Unsupported, reason);
      EXPECT_EQ(dump({&request}), before);
      run_all(request);
      end(request);
    }
  }
};

TEST_F(CacheGroupsInputTest, AWindowOfASequencesOwnNeedsGroupsThatStoreUnrotatedKeys) {
  expect_refused("set_window: sequence 0 cannot have one: ",
                 [&](GroupsRequest& request) { return cache_->set_window(request.sequence, {.visible_tokens = 16}); });
  // All that keep everything, and no others.
  std::vector<CacheGroup> groups = {full_group(), compressed_group(4), window_group(20)};
  for (const char* rotated : {"full", "entries"}) {
    for (CacheGroup& group : groups) group.keys_rotated = group.name == rotated || group.name == "window";
    open(groups_config(groups, 8, 64, 256));
    GroupsRequest request = start(token_range(0, 100));
    const std::string before = dump({&request});
    expect_error(cache_->set_window(request.sequence, {.visible_tokens = 16}), ErrorCode::Unsupported,
                 "group '" + std::string(rotated) + "' stores K rotated for its position");
    EXPECT_EQ(dump({&request}), before);
  }
  for (CacheGroup& group : groups) group.keys_rotated = group.name == "window";
  open(groups_config(groups, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 100));
  EXPECT_TRUE(cache_->set_window(request.sequence, {.visible_tokens = 16}).has_value());
}

TEST_F(CacheGroupsInputTest, AWindowOfASequencesOwnNeedsAGroupThatKeepsEverything) {
  open(groups_config({window_group(20)}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 100));
  expect_error(cache_->set_window(request.sequence, {.visible_tokens = 16}), ErrorCode::Unsupported,
               "no group of its layout keeps everything");
}

// What a state has gone through could not be gone through again.
TEST_F(CacheGroupsInputTest, AWindowOfASequenceWithStateIsSetBeforeItIsOutgrown) {
  const CacheGroup full = unrotated(full_group());
  open(groups_config({full, state_group(2, every(32))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 100));
  step({{&request, 20}});
  const std::string before = dump({&request});
  expect_error(cache_->set_window(request.sequence, {.visible_tokens = 19}), ErrorCode::Unsupported,
               "group 'state' keeps state");
  EXPECT_EQ(dump({&request}), before);
  set_window(request, {.visible_tokens = 20});
  run_all(request, {}, 9);
}

TEST_F(CacheGroupsInputTest, AWindowOfASequenceIsNotSetInTheMiddleOfAReplay) {
  const CacheGroup full = unrotated(full_group());
  const CacheGroup window = rebuilt(window_group(9, kNone), 8);
  open(groups_config({full, window}, 4, 64, 256));
  run_request(token_range(0, 40));
  GroupsRequest request = start(token_range(0, 50));
  ASSERT_GT(view(request).replay_tokens, 0U);
  const std::string before = dump({&request});
  expect_error(cache_->set_window(request.sequence, {.visible_tokens = 16}), ErrorCode::InvalidArgument,
               "is being rebuilt up to its token 40; compute those first");
  EXPECT_EQ(dump({&request}), before);
  set_window(request, {.visible_tokens = 45});
  run_all(request, {}, 6);
}

TEST_F(CacheGroupsInputTest, PagesAreSavedOnTheHost) {
  expect_refused("Preempt::Drop",
                 [&](GroupsRequest& request) { return cache_->preempt(request.sequence, Preempt::Save); });
}

TEST_F(CacheGroupsInputTest, TreesAreForGroupsWhoseRowsCanBeMoved) {
  for (Layout& layout : hybrid_layouts()) {
    SCOPED_TRACE(layout.name);
    const bool allows_trees = std::ranges::none_of(
        layout.groups, [](const CacheGroup& group) { return has_slot(group) || group.kind == GroupKind::Compressed; });
    open(groups_config(std::move(layout.groups), 8, 64, 256));
    GroupsRequest request = start(token_range(0, 50));
    run_all(request, {600});
    const std::string before = dump({&request});
    const std::vector<std::int32_t> parents = {-1, 0, 0};
    const StepEntry entry{.sequence = &request.sequence, .tree_parents = parents};
    const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
    EXPECT_EQ(outcome.has_value(), allows_trees);
    if (allows_trees) {
      ASSERT_TRUE(cache_->abort_step(*outcome->step).has_value());
    } else {
      expect_error(outcome, ErrorCode::Unsupported, "use draft_count");
      EXPECT_EQ(dump({&request}), before);
    }
    decode(request, 10);
    end(request);
  }
}

TEST_F(CacheGroupsInputTest, DraftsOnAnyLayoutMayBeRejected) {
  for (Layout& layout : hybrid_layouts()) {
    SCOPED_TRACE(layout.name);
    open(groups_config(std::move(layout.groups), 8, 64, 256));
    GroupsRequest request = start(token_range(0, 50));
    run_all(request, {600});
    for (TokenId i = 0; i < 20; ++i) {
      step({{.request = &request, .drafts = {700 + i, 800 + i}, .accepted = i % 3U, .sampled = {900 + i}}});
    }
    end(request);
  }
}

TEST_F(CacheGroupsInputTest, SleepGivesUpThePagesOfAllGroups) {
  open(groups_config({full_group(), compressed_group(4), window_group(20), state_group(0, every(32))}, 8, 64, 256));
  run_request(token_range(0, 100));
  for (const Sleep how : {Sleep::DropAll, Sleep::KeepHost}) {
    EXPECT_TRUE(cache_->sleep(how).value());
    for (std::uint32_t g = 0; g < group_count(); ++g) {
      const std::byte* bytes = cache_->device_memory(g);
      EXPECT_TRUE(std::all_of(bytes, bytes + cache_->geometry(g).pool_bytes(), [](std::byte b) {
        return b == std::byte{0};
      })) << g;
    }
    ASSERT_TRUE(cache_->wake().has_value());
    EXPECT_EQ(run_request(token_range(0, 100)), 0U);
    EXPECT_EQ(run_request(token_range(0, 100)), 96U);
  }
}

TEST_F(CacheGroupsInputTest, AGroupThatIsNotThereHasNoStats) {
  open(groups_config({full_group(), window_group(20)}, 8, 64, 256));
  expect_error(cache_->group_stats(2), ErrorCode::InvalidArgument, "the layout has 2 groups");
  EXPECT_EQ(cache_->device_memory(2), nullptr);
}

// Configurations

class CacheGroupsConfigTest : public ::testing::Test {
 protected:
  static CacheConfig hybrid() {
    return groups_config({full_group(), window_group(20), state_group(0, every(32))}, 8, 64, 256);
  }
  static void expect_refused(CacheConfig config, ErrorCode code, const std::string& reason) {
    expect_error(Cache::open(std::move(config)), code, reason);
  }
};

TEST_F(CacheGroupsConfigTest, EveryGroupHasANumberOfPages) {
  CacheConfig config = hybrid();
  config.device.group_page_counts = {64, 10};
  expect_refused(std::move(config), ErrorCode::InvalidArgument,
                 "device.group_page_counts has 2 numbers; layout 'groups' has 3 groups");
}

// W - 1 + 1 in flight = 20 tokens, which lie in 4 pages of 8 at most.
TEST_F(CacheGroupsConfigTest, AWindowHasPagesForOneSequence) {
  CacheConfig config = hybrid();
  config.device.group_page_counts = {0, 3, 4};
  expect_refused(std::move(config), ErrorCode::InvalidArgument,
                 "group 'window' has 3 pages; one sequence of 256 tokens needs 4 of them: raise "
                 "device.group_page_counts[1]");
  config = hybrid();
  config.device.group_page_counts = {0, 4, 4};
  EXPECT_TRUE(Cache::open(std::move(config)).has_value());
}

TEST_F(CacheGroupsConfigTest, ASnapshotGroupHasAPage) {
  CacheConfig config = hybrid();
  config.device.group_page_counts = {0, 10, 0};
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "group 'state' has 0 pages");
}

TEST_F(CacheGroupsConfigTest, PlacesForSnapshotsHave32Bits) {
  CacheGroup tail = tail_group(1U << 31U, 1, 4, kLast);
  expect_refused(groups_config({full_group(), tail}, 3, 100, 256), ErrorCode::InvalidArgument,
                 "group 'tail': its snapshots are taken at multiples of page_tokens = 3 and of its boundary, "
                 "2,147,483,648 tokens: the first place for both is 6,442,450,944");
  tail.boundary_tokens = 65'537;
  expect_refused(groups_config({full_group(), state_group(0, kLast), tail}, 1U << 16U, 1, 256),
                 ErrorCode::InvalidArgument, "the first place for both is 4,295,032,832");
  CacheConfig config = groups_config({full_group(), tail}, 8, 64, 256);
  EXPECT_TRUE(Cache::open(std::move(config)).has_value());  // in no sequence that it serves
}

TEST_F(CacheGroupsConfigTest, IntervalsOfSnapshotsHave32Bits) {
  expect_refused(groups_config({full_group(), state_group(0, every(UINT32_MAX))}, 8, 64, 256),
                 ErrorCode::InvalidArgument,
                 "retention.interval_tokens is 4,294,967,295: snapshots are taken at multiples of 8 tokens, and the "
                 "next one, 4,294,967,296, does not fit in 32 bits");
  EXPECT_TRUE(
      Cache::open(groups_config({full_group(), state_group(0, every(UINT32_MAX - 7))}, 8, 64, 256)).has_value());
}

TEST_F(CacheGroupsConfigTest, StateSlotsHave64BitsOfBytes) {
  CacheGroup state = state_group(0, kNone);
  state.components[0].dim = UINT32_MAX;
  state.slot_history = (1U << 30U) - 1;
  CacheConfig config = groups_config({full_group(), state}, 8, 64, 256);
  config.device.memory = DeviceMemory::None;
  expect_refused(std::move(config), ErrorCode::InvalidArgument,
                 "8 state slots of 4,611,686,017,353,646,080 bytes each do not fit in 64 bits: lower "
                 "device.state_slot_count");
}

TEST_F(CacheGroupsConfigTest, BytesAndPagesOfGroupsAreGivenOneAtATime) {
  CacheConfig config = hybrid();
  config.device.page_count = 0;
  config.device.capacity_bytes = 1U << 20U;
  config.device.group_page_counts = {0, 10, 10};
  expect_refused(std::move(config), ErrorCode::InvalidArgument,
                 "device.group_page_counts and device.capacity_bytes are both set");
}

TEST_F(CacheGroupsConfigTest, BytesAreSharedForAGreatestContext) {
  CacheConfig config = hybrid();
  config.device.page_count = 0;
  config.device.capacity_bytes = 1U << 20U;
  config.context_tokens_max = 0;
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "set context_tokens_max");
}

TEST_F(CacheGroupsConfigTest, BytesThatDoNotHoldOneSequenceShowTheArithmetic) {
  CacheConfig config = hybrid();
  config.device.page_count = 0;
  config.device.capacity_bytes = 1'000;
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "256 tokens / 8 rounded up = 32 pages");
}

TEST_F(CacheGroupsConfigTest, AContextFitsTheHistorysPages) {
  CacheConfig config = hybrid();
  config.context_tokens_max = 1'000;
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "the device pool has 64 pages: 512 tokens");
}

TEST_F(CacheGroupsConfigTest, AdoptedMemoryIsThereForEveryGroup) {
  std::vector<std::byte> memory(1U << 16U);
  CacheConfig config = hybrid();
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_memory = memory.data();
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "device.adopted_group_memory has 0 pointers");
  config = hybrid();
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_group_memory = {memory.data(), nullptr, memory.data()};
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "device.adopted_group_memory[1] is null");
  config = hybrid();
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_group_memory = {memory.data(), memory.data(), memory.data()};
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "device.adopted_state_memory is null");
}

TEST_F(CacheGroupsConfigTest, WhatGroupsHaveOnDiskMustFitThem) {
  const auto refused = [&](const auto& change, const std::string& text) {
    CacheConfig config = hybrid();
    config.page.page_tokens = 16;
    config.host.page_count = 10;
    config.disk.directories = {"unused"};
    config.disk.capacity_bytes = 1U << 30U;
    config.disk.group_retention.resize(config.layout.groups().size());
    change(config.disk);
    expect_refused(std::move(config), ErrorCode::InvalidArgument, text);
  };
  refused([](DiskConfig& disk) { disk.group_retention.pop_back(); }, "disk.group_retention has 2 entries");
  refused([](DiskConfig& disk) { disk.group_capacity_bytes = {1}; }, "disk.group_capacity_bytes has 1 entries");
  refused([](DiskConfig& disk) { disk.group_retention[0].rule = RetentionRule::None; }, "is history");
  refused([](DiskConfig& disk) { disk.group_retention[1].rule = RetentionRule::Last; }, "use Dense, Every or None");
  refused([](DiskConfig& disk) { disk.group_retention[1] = every(24); }, "a multiple of page_tokens = 16");
  refused([](DiskConfig& disk) { disk.group_retention[1].rule = RetentionRule::Every; }, "interval_tokens 0");
  refused([](DiskConfig& disk) { disk.group_retention[1] = kNone; }, "declares no replay");
  refused([](DiskConfig& disk) { disk.group_capacity_bytes = {0, 1'000, 1U << 20U}; },
          "raise disk.group_capacity_bytes[1]");
  refused([](DiskConfig& disk) { disk.group_capacity_bytes = {0, 1U << 29U, 1U << 29U}; }, "the history needs");
  refused([](DiskConfig& disk) { disk.group_capacity_bytes = {0, 1ULL << 63U, 1ULL << 63U}; }, "the history needs");
}

TEST_F(CacheGroupsConfigTest, AHostTierOfSeveralGroupsIsGivenInPagesOrBytes) {
  CacheConfig config = hybrid();
  config.host.capacity_bytes = 100;
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "the host tier's 100 bytes do not hold a page of each");
  config = hybrid();
  config.host.capacity_bytes = 200;  // of 64 + 64 + 8
  EXPECT_TRUE(Cache::open(std::move(config)).has_value());
  config = hybrid();
  config.host.capacity_bytes = 1U << 20U;
  config.host.group_page_counts = {10, 4, 3};
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "are both set");
  config = hybrid();
  config.host.capacity_bytes = 1U << 20U;
  const std::uint32_t group_count = static_cast<std::uint32_t>(config.layout.groups().size());
  const Result<std::unique_ptr<Cache>> shared = Cache::open(std::move(config));
  ASSERT_TRUE(shared.has_value()) << shared.error().message;
  std::uint64_t bytes = 0;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    const GroupStats stats = (*shared)->group_stats(g).value();
    EXPECT_GT(stats.host_page_count, 0U) << g;
    bytes += stats.host_page_count * (*shared)->geometry(g).page().page_bytes();
  }
  EXPECT_LE(bytes, 1U << 20U);
  EXPECT_GT(bytes, 9U << 16U) << "most of it is used";
  config = hybrid();
  config.host.page_count = 10;
  config.host.group_page_counts = {10, 4};
  expect_refused(std::move(config), ErrorCode::InvalidArgument, "host.group_page_counts has 2 numbers");
  config = hybrid();
  config.host.page_count = 10;
  EXPECT_TRUE(Cache::open(std::move(config)).has_value());
}

TEST_F(CacheGroupsConfigTest, WindowsOfLayersNeedAFullGroup) {
  CacheConfig config = hybrid();
  config.plan.layer_windows = {64};
  EXPECT_TRUE(Cache::open(std::move(config)).has_value());
  for (const CacheGroup& group : {compressed_group(4), window_group(20)}) {
    config = groups_config({group, state_group(2, every(32))}, 8, 64, 256);
    config.plan.layer_windows = {64};
    expect_refused(std::move(config), ErrorCode::Unsupported, "has no full group, whose pages plan.layer_windows");
  }
}

// Memory of the engine's own

TEST_F(CacheGroupsTest, AdoptedMemoryIsWhereTheCacheSaysItIs) {
  CacheConfig config = groups_config({full_group(), window_group(20), state_group(0, every(32))}, 8, 64, 256);
  std::vector<std::vector<std::byte>> memory(4, std::vector<std::byte>(1U << 16U));
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_group_memory = {memory[0].data(), memory[1].data(), memory[2].data()};
  config.device.adopted_state_memory = memory[3].data();
  open(std::move(config));
  for (std::uint32_t g = 0; g < 3; ++g) EXPECT_EQ(cache_->device_memory(g), memory[g].data());
  EXPECT_EQ(cache_->state_memory(), memory[3].data());
}

// Presets

class CacheGroupsPresetTest : public CacheGroupsTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(CacheGroupsPresetTest, OpensWithTheBudgetsPagesAndServesRequests) {
  const ModelLayout layout = preset(GetParam()).value();
  const std::uint32_t page_tokens = std::max(layout.page_multiple_tokens(), 64U);
  CacheConfig config{.layout = layout,
                     .page = {.page_tokens = page_tokens},
                     .device = {.capacity_bytes = 40ULL << 30U, .memory = DeviceMemory::None},
                     .sequence_count_max = 8,
                     .context_tokens_max = 32'768,
                     .step_tokens_max = 4'096};
  const BudgetRequest request{.page = config.page,
                              .device_bytes = config.device.capacity_bytes,
                              .context_tokens_max = 32'768,
                              .sequence_count_max = 8,
                              .in_flight_tokens = 2,
                              .step_tokens = 4'096,
                              .mix = {{.context_tokens = 32'768}}};  // eight of them fit
  const Budget budget = solve_budget(layout, request).value();
  cache_ = open_cache(std::move(config));
  ASSERT_EQ(cache_->config().expected_requests.size(), 1U);
  EXPECT_EQ(cache_->config().expected_requests[0].context_tokens, 32'768U);
  space_ = cache_->key_space({.model = GetParam()}).value();
  std::uint64_t history = UINT64_MAX;
  for (const GroupBudget& group : budget.tiers[0].groups) {
    const GroupKind kind = layout.groups()[group.group_index].kind;
    if (kind == GroupKind::Full || kind == GroupKind::Compressed) history = std::min(history, group.page_count);
  }
  for (const GroupBudget& group : budget.tiers[0].groups) {
    const GroupKind kind = layout.groups()[group.group_index].kind;
    const bool is_history = kind == GroupKind::Full || kind == GroupKind::Compressed;
    EXPECT_EQ(group_stats(group.group_index).page_count, is_history ? history : group.page_count);
  }

  const std::vector<TokenId> shared = token_range(0, 9'000);
  std::uint32_t found = 0;
  for (TokenId i = 0; i < 4; ++i) {
    GroupsRequest request_of = start(with_tail(shared, i, 300));
    found = request_of.admission.matched_tokens - request_of.admission.replay_tokens;
    for (std::uint32_t steps = 0; steps < 40 && view(request_of).pending_tokens > 0; ++steps) {
      const StepEntry entry{&request_of.sequence, std::min(view(request_of).pending_tokens, 1'024U)};
      const Step step = cache_->plan_step({&entry, 1})->step.value();
      const bool is_last =
          step.plan.entries[0].position + step.plan.entries[0].token_count == view(request_of).token_count;
      const TokenId sampled = 5;
      StepResult result;
      if (is_last && steps < 30) result.tokens = {&sampled, 1};
      ASSERT_TRUE(cache_->finish_step(step, {&result, 1}).has_value());
    }
    end(request_of);
    expect_invariants();
  }
  EXPECT_GE(found, 8'192U) << "the last of the requests with one beginning";
  expect_empty_after_reset();
}

INSTANTIATE_TEST_SUITE_P(HybridModels, CacheGroupsPresetTest,
                         ::testing::Values("gpt-oss-120b", "qwen3-next-80b", "deepseek-v4-flash", "gemma-3-27b",
                                           "jamba-1.5-mini"),
                         [](const ::testing::TestParamInfo<const char*>& each) {
                           std::string name = each.param;
                           std::ranges::replace_if(name, [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace quire
