// SPDX-License-Identifier: Apache-2.0
#include "quire/budget.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "quire/state_slots.h"

namespace quire {
namespace {

constexpr std::uint32_t kUint32Max = std::numeric_limits<std::uint32_t>::max();

std::vector<Component> row_of(std::uint32_t bytes) {
  return {{.name = "row", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = bytes}};
}

CacheGroup full_group(std::uint32_t bytes) {
  return {.name = "full", .layers = {0}, .components = row_of(bytes)};
}

CacheGroup window_group(std::uint32_t bytes, std::uint32_t window_tokens) {
  return {.name = "window",
          .kind = GroupKind::Window,
          .layers = {0},
          .components = row_of(bytes),
          .window_tokens = window_tokens};
}

CacheGroup compressed_group(std::uint32_t bytes, std::uint32_t tokens_per_entry) {
  return {.name = "compressed",
          .kind = GroupKind::Compressed,
          .layers = {0},
          .components = row_of(bytes),
          .tokens_per_entry = tokens_per_entry};
}

CacheGroup state_group(std::uint32_t bytes, GroupRetention retention) {
  return {.name = "state",
          .kind = GroupKind::Snapshot,
          .layers = {0},
          .components = row_of(bytes),
          .retention = retention,
          .slot_entries = 1};
}

CacheGroup ring_group(std::uint32_t bytes, std::uint32_t window_tokens, std::uint32_t interval_tokens) {
  CacheGroup group = window_group(bytes, window_tokens);
  group.name = "ring";
  group.window_form = WindowForm::Ring;
  group.slot_entries = window_tokens;
  group.retention = {.rule = RetentionRule::Every, .interval_tokens = interval_tokens};
  return group;
}

ModelLayout layout_of(std::vector<CacheGroup> groups) {
  auto layout = ModelLayout::create("m", std::move(groups));
  EXPECT_TRUE(layout.has_value()) << layout.error().message;
  return *layout;
}

Budget solved(const ModelLayout& layout, const BudgetRequest& request) {
  auto budget = solve_budget(layout, request);
  EXPECT_TRUE(budget.has_value()) << budget.error().message;
  return *budget;
}

std::string error_of(const ModelLayout& layout, const BudgetRequest& request) {
  const auto budget = solve_budget(layout, request);
  if (budget) return "no error";
  EXPECT_EQ(budget.error().code, ErrorCode::InvalidArgument);
  return budget.error().message;
}

std::vector<std::uint64_t> page_counts(const TierBudget& tier) {
  std::vector<std::uint64_t> counts;
  counts.reserve(tier.groups.size());
  for (const GroupBudget& group : tier.groups) counts.push_back(group.page_count);
  return counts;
}

// ── Pages of one request ──

TEST(Budget, AMillionTokensInPagesOf128Need7813Pages) {
  const BudgetRequest request{.page = {.page_tokens = 128}};
  EXPECT_EQ(pages_of_request(full_group(1), request, 1'000'000), 7'813U);
  EXPECT_EQ(pages_of_request(compressed_group(1, 4), request, 1'000'000), 7'813U);
  EXPECT_EQ(pages_of_request(compressed_group(1, 128), request, 1'000'000), 7'813U);
  EXPECT_EQ(pages_of_request(full_group(1), request, 128), 1U);
  EXPECT_EQ(pages_of_request(full_group(1), request, 129), 2U);
}

TEST(Budget, AWindowNeedsItsTokensThoseInFlightAndASlackedPageMore) {
  BudgetRequest request{.page = {.page_tokens = 16}};
  EXPECT_EQ(pages_of_request(window_group(1, 128), request, 100'000), 8U + 1);
  request.in_flight_tokens = 1;
  EXPECT_EQ(pages_of_request(window_group(1, 128), request, 100'000), 8U + 1);
  request.in_flight_tokens = 2;
  EXPECT_EQ(pages_of_request(window_group(1, 128), request, 100'000), 9U + 1);
  request.rewind_tokens = 16;
  EXPECT_EQ(pages_of_request(window_group(1, 128), request, 100'000), 10U + 1);
  CacheGroup sink = window_group(1, 128);
  sink.sink_tokens = 17;
  EXPECT_EQ(pages_of_request(sink, request, 100'000), 10U + 1 + 2);
  EXPECT_EQ(pages_of_request(sink, request, 40), 3U);  // no more than all tokens
  EXPECT_EQ(pages_of_request(window_group(1, 1), {.page = {.page_tokens = 16}}, 100'000), 1U);
}

// The window's pages, counted by walking: in the worst place, the tokens that must be held touch this many pages.
TEST(Budget, AWindowsFormulaCoversEveryPlaceOfTheWindow) {
  for (std::uint32_t page_tokens = 1; page_tokens <= 9; ++page_tokens) {
    for (std::uint32_t window = 1; window <= 20; ++window) {
      for (std::uint32_t slack = 0; slack <= 6; ++slack) {
        const BudgetRequest request{
            .page = {.page_tokens = page_tokens}, .in_flight_tokens = slack / 2, .rewind_tokens = slack - (slack / 2)};
        for (std::uint32_t end = 1; end <= 60; ++end) {  // positions [end - window + 1 - slack, end) are held
          const std::uint32_t held = window - 1 + slack;
          if (held == 0) continue;
          const std::uint32_t begin = end > held ? end - held : 0;
          const std::uint64_t touched = ((end - 1) / page_tokens) - (begin / page_tokens) + 1;
          ASSERT_LE(touched, pages_of_request(window_group(1, window), request, 60));
        }
      }
    }
  }
}

TEST(Budget, SnapshotsFollowTheirRetention) {
  BudgetRequest request{.page = {.page_tokens = 16}};
  const CacheGroup every = state_group(1, {.rule = RetentionRule::Every, .interval_tokens = 4'096});
  EXPECT_EQ(pages_of_request(every, request, 4'095), 1U);
  EXPECT_EQ(pages_of_request(every, request, 4'096), 2U);
  EXPECT_EQ(pages_of_request(every, request, 100'000), 25U);
  EXPECT_EQ(pages_of_request(ring_group(1, 8, 1'000), request, 100'000), 101U);
  EXPECT_EQ(pages_of_request(state_group(1, {.rule = RetentionRule::Last}), request, 100'000), 1U);
  EXPECT_EQ(pages_of_request(state_group(1, {.rule = RetentionRule::None}), request, 100'000), 0U);
  request.snapshot_interval_tokens = 10'000;
  EXPECT_EQ(pages_of_request(every, request, 100'000), 11U);
}

// ── Sharing out ──

TEST(Budget, OneFullGroupGetsEverything) {
  const Budget budget =
      solved(layout_of({full_group(10)}),
             {.page = {.page_tokens = 16}, .device_bytes = std::uint64_t{160} * 101, .context_tokens_max = 160});
  ASSERT_EQ(budget.tiers.size(), 1U);
  EXPECT_EQ(budget.slot_count, 0U);
  EXPECT_EQ(page_counts(budget.tiers[0]), (std::vector<std::uint64_t>{100}));  // and the null page
  EXPECT_EQ(budget.tiers[0].used_bytes, 160U * 101);
  EXPECT_EQ(budget.tiers[0].capacity_tokens, 1'600U);
  EXPECT_EQ(budget.tiers[0].request_count, 10U);
}

TEST(Budget, GroupsRunOutTogether) {
  const ModelLayout layout = layout_of({full_group(10), window_group(10, 33)});
  const Budget budget =
      solved(layout, {.page = {.page_tokens = 16}, .device_bytes = 1 << 20, .context_tokens_max = 1'600});
  const TierBudget& device = budget.tiers[0];
  // 100 pages of the one for 3 of the other.
  EXPECT_EQ(device.groups[0].request_pages, 100U);
  EXPECT_EQ(device.groups[1].request_pages, 3U);
  EXPECT_NEAR(static_cast<double>(device.groups[0].page_count) / static_cast<double>(device.groups[1].page_count), 33.3,
              0.4);
  EXPECT_GT(device.used_bytes + 160, std::uint64_t{1} << 20U);
}

TEST(Budget, ShortRequestsInTheMixAskForMoreWindows) {
  const ModelLayout layout = layout_of({full_group(10), window_group(10, 33)});
  BudgetRequest request{.page = {.page_tokens = 16}, .device_bytes = 1 << 20, .context_tokens_max = 1'600};
  const Budget long_only = solved(layout, request);
  request.mix = {{.context_tokens = 1'600, .weight = 1}, {.context_tokens = 160, .weight = 9}};
  const Budget mixed = solved(layout, request);
  EXPECT_GT(mixed.tiers[0].groups[1].page_count, 2 * long_only.tiers[0].groups[1].page_count);
  EXPECT_GT(mixed.tiers[0].request_count, long_only.tiers[0].request_count);
}

TEST(Budget, AStepsPagesOfWindowsAreThereOnceBesideThoseOfTheMix) {
  const ModelLayout layout = layout_of({full_group(10), window_group(10, 33)});
  BudgetRequest request{.page = {.page_tokens = 16},
                        .device_bytes = (100 + 23 + 2 + 2) * 160,  // one request, two pages more, and null pages
                        .context_tokens_max = 1'600,
                        .in_flight_tokens = 1,
                        .step_tokens = 320};
  const TierBudget alone = solved(layout, request).tiers[0];
  EXPECT_EQ(alone.groups[1].request_pages, 23U);  // (32 + 320) / 16 rounded up + 1
  EXPECT_EQ(page_counts(alone), (std::vector<std::uint64_t>{101, 24}));
  request.device_bytes -= 3 * 160;
  EXPECT_EQ(error_of(layout, request),
            "budget of layout 'm': one request of 1,600 tokens does not fit in the device's 19,840 bytes: it needs "
            "20,000\n"
            "  group 'full': 1,600 tokens / 16 rounded up = 100 pages; with the null page 101 x 160 bytes = 16,160\n"
            "  group 'window': (32 + 320 in flight + 0 to rewind) / 16 rounded up + 1 = 23 pages; with the null page "
            "24 x 160 bytes = 3,840\n"
            "give more bytes, a shorter context, smaller steps, fewer sequences or rarer snapshots");
  request.device_bytes = (10 * 104 + 20 + 2) * 160;  // ten requests of 100 and 4, a step's 20, and null pages
  const TierBudget ten = solved(layout, request).tiers[0];
  EXPECT_EQ(page_counts(ten), (std::vector<std::uint64_t>{1'000, 60}));
  EXPECT_EQ(ten.request_count, 10U);
  EXPECT_EQ(ten.capacity_tokens, 16'000U);
}

TEST(Budget, TheScarcestGroupIsNamedAndGivesTheCapacity) {
  const ModelLayout layout = layout_of({full_group(1), state_group(1'000, {.rule = RetentionRule::Last})});
  const TierBudget device =
      solved(layout, {.page = {.page_tokens = 16}, .device_bytes = 20'000, .context_tokens_max = 160}).tiers[0];
  EXPECT_EQ(device.capacity_tokens, std::min(device.groups[0].capacity_tokens, device.groups[1].capacity_tokens));
  EXPECT_EQ(device.groups[device.limiting_index].capacity_tokens, device.capacity_tokens);
}

TEST(Budget, EverySequenceHasAStateSlot) {
  const ModelLayout layout = layout_of({full_group(1), state_group(1'000, {.rule = RetentionRule::None})});
  const Budget budget = solved(layout, {.page = {.page_tokens = 10},
                                        .device_bytes = 8'000 + 10 * 21,
                                        .context_tokens_max = 100,
                                        .sequence_count_max = 8});
  EXPECT_EQ(budget.slot_bytes, 1'000U);
  EXPECT_EQ(budget.slot_count, 8U);
  ASSERT_EQ(budget.tiers[0].groups.size(), 1U);  // what is never kept has no pages
  EXPECT_EQ(page_counts(budget.tiers[0]), (std::vector<std::uint64_t>{20}));
}

TEST(Budget, TiersBelowHaveNoSlotsNoNullPageAndNoSlackForSteps) {
  const ModelLayout layout =
      layout_of({full_group(1), window_group(1, 11), state_group(100, {.rule = RetentionRule::Last})});
  const Budget budget = solved(layout, {.page = {.page_tokens = 10},
                                        .device_bytes = 100'000,
                                        .host_bytes = std::uint64_t{10} * (100 + 2 * 10 + 100),
                                        .disk_bytes = 1'000'000,
                                        .context_tokens_max = 100,
                                        .sequence_count_max = 2,
                                        .in_flight_tokens = 30,
                                        .rewind_tokens = 10});
  ASSERT_EQ(budget.tiers.size(), 3U);
  EXPECT_EQ(budget.tiers[1].tier, Tier::Host);
  EXPECT_EQ(budget.tiers[2].tier, Tier::Disk);
  EXPECT_EQ(budget.tiers[0].groups[1].request_pages, 6U);
  EXPECT_EQ(budget.tiers[1].groups[1].request_pages, 2U);
  EXPECT_EQ(page_counts(budget.tiers[1]), (std::vector<std::uint64_t>{100, 20, 10}));
  EXPECT_EQ(budget.tiers[1].used_bytes, budget.tiers[1].bytes);
  EXPECT_EQ(budget.tiers[1].capacity_tokens, 1'000U);
}

// ── Refusals ──

TEST(Budget, ATierThatDoesNotHoldTheLongestRequestIsRefusedWithTheSum) {
  CacheGroup sink = window_group(8, 128);
  sink.sink_tokens = 4;
  sink.keys_rotated = false;
  const ModelLayout layout = layout_of(
      {compressed_group(584, 4), sink, state_group(1'000, {.rule = RetentionRule::Every, .interval_tokens = 2'048})});
  const BudgetRequest request{.page = {.page_tokens = 128},
                              .device_bytes = 1'000'000,
                              .context_tokens_max = 1'000'000,
                              .sequence_count_max = 4,
                              .in_flight_tokens = 64,
                              .rewind_tokens = 8};
  EXPECT_EQ(
      error_of(layout, request),
      "budget of layout 'm': one request of 1,000,000 tokens does not fit in the device's 1,000,000 bytes: it "
      "needs 146,527,152\n"
      "  group 'compressed': 1,000,000 tokens / 128 rounded up = 7,813 pages; with the null page 7,814 x 18,688 "
      "bytes = 146,028,032\n"
      "  group 'window': (127 + 64 in flight + 8 to rewind) / 128 rounded up + 1 + 4 of the sink / 128 rounded up "
      "= 4 pages; with the null page 5 x 1,024 bytes = 5,120\n"
      "  group 'state': 1,000,000 tokens / 2,048 rounded down + 1 = 489 snapshots; with the null page 490 x 1,000 "
      "bytes = 490,000\n"
      "  state: 4 slots x 1,000 bytes = 4,000\n"
      "give more bytes, a shorter context, fewer sequences or rarer snapshots");
}

TEST(Budget, TheSmallestTierThatHoldsTheLongestRequestHoldsExactlyThat) {
  const ModelLayout layout = layout_of({full_group(10), window_group(7, 33)});
  BudgetRequest request{.page = {.page_tokens = 16}, .context_tokens_max = 161};
  request.device_bytes = (12 * 160) + (4 * 112);
  const Budget budget = solved(layout, request);
  EXPECT_EQ(page_counts(budget.tiers[0]), (std::vector<std::uint64_t>{11, 3}));
  EXPECT_EQ(budget.tiers[0].used_bytes, request.device_bytes);
  --request.device_bytes;
  EXPECT_NE(error_of(layout, request).find("it needs 2,368\n"), std::string::npos);
}

TEST(Budget, TiersBelowHoldAPageOfEachGroup) {
  const ModelLayout layout = layout_of({full_group(10), window_group(7, 33)});
  BudgetRequest request{
      .page = {.page_tokens = 16}, .device_bytes = 10'000, .host_bytes = 271, .context_tokens_max = 16};
  EXPECT_EQ(error_of(layout, request),
            "budget of layout 'm': the host tier's 271 bytes do not hold a page of each group: 160 + 112 = 272: give "
            "more bytes, or leave it out");
  request.host_bytes = 272;
  EXPECT_EQ(page_counts(solved(layout, request).tiers[1]), (std::vector<std::uint64_t>{1, 1}));
}

TEST(Budget, RequestsThatMakeNoSenseAreRefusedByField) {
  const ModelLayout layout = layout_of({full_group(10)});
  const BudgetRequest good{.device_bytes = 100'000, .context_tokens_max = 100};
  const auto refused = [&](auto change) {
    BudgetRequest request = good;
    change(request);
    return error_of(layout, request);
  };
  EXPECT_EQ(refused([](BudgetRequest&) {}), "no error");
  EXPECT_NE(refused([](BudgetRequest& r) { r.page.page_tokens = 0; }).find("page_tokens is 0"), std::string::npos);
  EXPECT_NE(refused([](BudgetRequest& r) { r.page.rank_count = 0; }).find("rank_count is 0"), std::string::npos);
  EXPECT_NE(refused([](BudgetRequest& r) { r.context_tokens_max = 0; }).find("context_tokens_max is 0"),
            std::string::npos);
  EXPECT_NE(refused([](BudgetRequest& r) { r.sequence_count_max = 0; }).find("sequence_count_max is 0"),
            std::string::npos);
  EXPECT_NE(refused([](BudgetRequest& r) { r.mix = {{.context_tokens = 0}}; }).find("the mix has requests of 0 tokens"),
            std::string::npos);
  EXPECT_NE(refused([](BudgetRequest& r) { r.mix = {{.context_tokens = 101}}; }).find("use 1 to context_tokens_max"),
            std::string::npos);
  EXPECT_NE(refused([](BudgetRequest& r) { r.mix = {{.context_tokens = 100, .weight = 0}}; }).find("weight 0"),
            std::string::npos);
  CacheGroup state = state_group(1, {.rule = RetentionRule::Every, .interval_tokens = 128});
  state.boundary_tokens = 128;
  EXPECT_EQ(error_of(layout_of({full_group(10), state}),
                     {.device_bytes = 100'000, .context_tokens_max = 100, .snapshot_interval_tokens = 100}),
            "budget of layout 'm': snapshot_interval_tokens is 100, but group 'state' resumes at multiples of 128");
  EXPECT_EQ(error_of(layout_of({state_group(1, {.rule = RetentionRule::None})}), good),
            "budget of layout 'm': no group has pages");
  EXPECT_NE(error_of(layout_of({compressed_group(1, 128)}), good).find("holds no whole number of entries"),
            std::string::npos);
}

// ── Extremes ──

TEST(Budget, NumbersBeyond64BitsAreRefusedOrCapped) {
  const ModelLayout huge = layout_of({full_group(kUint32Max)});
  BudgetRequest request{.page = {.page_tokens = kUint32Max},
                        .device_bytes = std::numeric_limits<std::uint64_t>::max(),
                        .context_tokens_max = kUint32Max};
  EXPECT_NE(error_of(huge, request).find("it needs more than 64 bits can count"), std::string::npos);

  // As many pages as there are ids, and not one more.
  const ModelLayout small = layout_of({full_group(1), window_group(1, 5)});
  request.page.page_tokens = 1;
  request.context_tokens_max = 100;
  const TierBudget device = solved(small, request).tiers[0];
  EXPECT_EQ(device.groups[0].page_count, kUint32Max - 1U);
  EXPECT_LE(device.used_bytes, device.bytes);

  request.context_tokens_max = kUint32Max;  // one request more than has ids
  EXPECT_NE(error_of(small, request).find("does not fit"), std::string::npos);
  request.context_tokens_max = kUint32Max - 1;
  EXPECT_EQ(solved(small, request).tiers[0].groups[0].page_count, kUint32Max - 1U);

  request.mix.assign(9, {.context_tokens = kUint32Max - 1, .weight = kUint32Max});
  EXPECT_NE(error_of(small, request).find("use smaller weights"), std::string::npos);
}

// ── Beside a naive twin ──

// A page at a time, to whoever has the least for the mix.
std::optional<std::vector<std::uint64_t>> share_out_naively(const ModelLayout& layout, const BudgetRequest& request) {
  std::uint64_t used = 0;
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> page_bytes;
  std::vector<std::uint64_t> demand;
  std::vector<std::uint64_t> of_step;
  const std::uint32_t step_tokens = std::min(request.step_tokens, request.context_tokens_max);
  BudgetRequest alone = request;
  alone.in_flight_tokens = std::max(request.in_flight_tokens, step_tokens);
  for (const CacheGroup& group : layout.groups()) {
    if (has_slot(group)) {
      used += request.sequence_count_max * PageGeometry::create_slot(group, request.page)->page_bytes();
    }
    if (!has_pages(group)) continue;
    page_bytes.push_back(PageGeometry::create(group, request.page)->page_bytes());
    counts.push_back(pages_of_request(group, alone, request.context_tokens_max));
    const bool is_paged_window = group.kind == GroupKind::Window && !has_slot(group);
    const std::uint32_t page_tokens = request.page.page_tokens;
    of_step.push_back(is_paged_window ? (step_tokens + page_tokens - 1) / page_tokens : 0);
    used += (counts.back() + 1) * page_bytes.back();
    demand.push_back(0);
    for (const ExpectedRequest& expected : request.mix) {
      demand.back() += expected.weight * pages_of_request(group, request, expected.context_tokens);
    }
  }
  if (used > request.device_bytes) return std::nullopt;
  for (;;) {
    std::size_t next = 0;
    for (std::size_t i = 1; i < counts.size(); ++i) {
      if ((counts[i] - of_step[i]) * demand[next] < (counts[next] - of_step[next]) * demand[i]) next = i;
    }
    if (used + page_bytes[next] > request.device_bytes) return counts;
    ++counts[next];
    used += page_bytes[next];
  }
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed * 1'000'003) {}
  std::uint32_t operator()(std::uint32_t from, std::uint32_t to) {  // both included
    return from + static_cast<std::uint32_t>((mix64(state_++) >> 32U) % (to - from + 1));
  }

 private:
  std::uint64_t state_;
};

ModelLayout draw_layout(Draw& draw) {
  std::vector<CacheGroup> groups;
  if (draw(0, 3) > 0) groups.push_back(full_group(draw(1, 20)));
  if (draw(0, 2) > 0) groups.push_back(window_group(draw(1, 20), draw(1, 40)));
  if (draw(0, 2) == 0) groups.push_back(compressed_group(draw(1, 20), 4));
  if (draw(0, 2) == 0) groups.push_back(ring_group(draw(1, 5), draw(1, 10), 8 * draw(1, 10)));
  if (groups.empty() || draw(0, 1) == 0) {
    groups.push_back(state_group(
        draw(1, 300), {.rule = groups.empty() || draw(0, 1) == 0 ? RetentionRule::Last : RetentionRule::None}));
  }
  return layout_of(std::move(groups));
}

BudgetRequest draw_request(Draw& draw) {
  BudgetRequest request{.page = {.page_tokens = 4 * draw(1, 4)},
                        .device_bytes = draw(1, 60'000),
                        .context_tokens_max = draw(1, 300),
                        .sequence_count_max = draw(1, 4),
                        .in_flight_tokens = draw(0, 20),
                        .step_tokens = draw(0, 1) == 0 ? 0 : draw(1, 200),
                        .rewind_tokens = draw(0, 8),
                        .snapshot_interval_tokens = draw(0, 1) == 0 ? 0 : 8 * draw(1, 9)};
  for (std::uint32_t i = 0, count = draw(1, 3); i < count; ++i) {
    request.mix.push_back({.context_tokens = draw(1, request.context_tokens_max), .weight = draw(1, 5)});
  }
  return request;
}

TEST(Budget, AgreesWithGivingPagesOneByOne) {
  int fitting = 0;
  for (std::uint64_t seed = 1; seed <= 4'000; ++seed) {
    Draw draw(seed);
    const ModelLayout layout = draw_layout(draw);
    const BudgetRequest request = draw_request(draw);
    const auto expected = share_out_naively(layout, request);
    const auto budget = solve_budget(layout, request);
    ASSERT_EQ(budget.has_value(), expected.has_value()) << "seed " << seed;
    if (!budget || !expected) continue;
    ++fitting;
    ASSERT_EQ(page_counts(budget->tiers[0]), *expected) << "seed " << seed;
  }
  EXPECT_GT(fitting, 1'000);
}

TEST(Budget, MoreBytesNeverGiveFewerPagesAndAreNeverOverspent) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Draw draw(seed);
    const ModelLayout layout = draw_layout(draw);
    BudgetRequest request = draw_request(draw);
    std::vector<std::uint64_t> before;
    std::uint64_t capacity_before = 0;
    for (request.device_bytes = 0; request.device_bytes < 30'000; request.device_bytes += draw(1, 500)) {
      const auto budget = solve_budget(layout, request);
      if (!budget) {
        ASSERT_TRUE(before.empty()) << "seed " << seed << ": more bytes, and refused";
        continue;
      }
      const TierBudget& device = budget->tiers[0];
      std::uint64_t bytes = budget->slot_bytes * budget->slot_count;
      for (std::size_t i = 0; i < device.groups.size(); ++i) {
        const GroupBudget& group = device.groups[i];
        bytes += (group.page_count + 1) * group.page_bytes;
        ASSERT_GE(group.page_count,
                  pages_of_request(layout.groups()[group.group_index], request, request.context_tokens_max));
        if (!before.empty()) {
          ASSERT_GE(group.page_count, before[i]) << "seed " << seed;
        }
        ASSERT_GE(group.capacity_tokens, device.capacity_tokens);
      }
      ASSERT_EQ(bytes, device.used_bytes);
      ASSERT_LE(bytes, request.device_bytes);
      ASSERT_GT(bytes + device.groups[device.limiting_index].page_bytes, request.device_bytes) << "seed " << seed;
      ASSERT_GE(device.capacity_tokens, capacity_before);
      before = page_counts(device);
      capacity_before = device.capacity_tokens;
    }
  }
}

TEST(Budget, TheDescriptionIsATableForEachTier) {
  const ModelLayout layout =
      layout_of({full_group(64), window_group(64, 128), state_group(4'096, {.rule = RetentionRule::Last})});
  const Budget budget = solved(layout, {.page = {.page_tokens = 16},
                                        .device_bytes = 1 << 20,
                                        .host_bytes = 4 << 20,
                                        .context_tokens_max = 4'096,
                                        .sequence_count_max = 16,
                                        .mix = {{.context_tokens = 1'024}}});
  EXPECT_EQ(describe(budget, layout),
            "device: 1 MiB of 1 MiB used, room for 12,640 tokens in 12 expected requests\n"
            "  group        pages  bytes each    bytes  longest request  room for tokens\n"
            "  full           790       1,024  790 KiB              256           12,640\n"
            "  window         112       1,024  112 KiB                9           12,743\n"
            "  state           13       4,096   52 KiB                1           13,312\n"
            "  state slots     16       4,096   64 KiB                1                -\n"
            "  group 'full' runs out first\n"
            "host: 4 MiB of 4 MiB used, room for 54,416 tokens in 53 expected requests\n"
            "  group   pages  bytes each     bytes  longest request  room for tokens\n"
            "  full    3,401       1,024  3.32 MiB              256           54,416\n"
            "  window    479       1,024   479 KiB                9           54,499\n"
            "  state      54       4,096   216 KiB                1           55,296\n"
            "  group 'full' runs out first\n");
}

}  // namespace
}  // namespace quire
