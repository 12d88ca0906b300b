// SPDX-License-Identifier: Apache-2.0
#include "workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "trace_facts.h"

namespace quire {
namespace {

std::uint64_t digest_of(const Trace& trace) {
  std::uint64_t digest = 14695981039346656037ULL;
  const auto add = [&](std::uint64_t value) { digest = (digest ^ value) * 1099511628211ULL; };
  for (const TraceRequest& request : trace.requests) {
    add(static_cast<std::uint64_t>(request.timestamp_ns));
    add(request.key_space);
    add(static_cast<std::uint8_t>(request.priority));
    add(request.prompt_units);
    add(request.output_units);
  }
  for (const TokenId unit : trace.units) add(static_cast<std::uint64_t>(unit));
  return digest;
}

TEST(DemoWorkload, DependsOnTheSeedAlone) {
  EXPECT_EQ(digest_of(demo_workload(1)), 3441833369824752621U);
  EXPECT_EQ(digest_of(demo_workload(7)), digest_of(demo_workload(7)));
  EXPECT_NE(digest_of(demo_workload(7)), digest_of(demo_workload(8)));
}

TEST(DemoWorkload, IsASoundTrace) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const Trace trace = demo_workload(seed);
    EXPECT_EQ(trace.name, "demo");
    EXPECT_EQ(trace.unit_tokens, 1U);
    EXPECT_EQ(trace.key_spaces.size(), 4U);
    std::uint64_t units = 0;
    TimeNs last_ns = 0;
    for (const TraceRequest& request : trace.requests) {
      ASSERT_EQ(request.first_unit, units);
      ASSERT_GE(request.prompt_units, 1U);
      ASSERT_EQ(request.prompt_tokens, request.prompt_units);
      ASSERT_LT(request.key_space, trace.key_spaces.size());
      ASSERT_GE(request.timestamp_ns, last_ns);
      last_ns = request.timestamp_ns;
      units += trace.path(request).size();
      ASSERT_EQ(request.line, static_cast<std::uint64_t>(&request - trace.requests.data()) + 1);
    }
    EXPECT_EQ(units, trace.units.size());
    EXPECT_GE(*std::min_element(trace.units.begin(), trace.units.end()), 0);
  }
}

TEST(DemoWorkload, HasTheSizeAndTheReuseThatTellPoliciesApart) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const Trace trace = demo_workload(seed);
    const auto facts = TraceFacts::of(trace);
    EXPECT_GT(trace.requests.size(), 2'000U);
    EXPECT_LT(trace.requests.size(), 4'000U);
    EXPECT_GT(facts.prompt_tokens(), 2'000'000U);
    EXPECT_LT(facts.prompt_tokens(), 3'500'000U);
    EXPECT_GT(facts.distinct_tokens(), 400'000U);
    EXPECT_LT(facts.distinct_tokens(), 700'000U);

    // With 64 Ki tokens LRU misses a good part of what could be had, and most of that is the order's fault.
    std::uint64_t lru_tokens = 0;
    for (const ReuseBin& bin : facts.reuse_distances()) {
      if (bin.distance_tokens < 65'536) lru_tokens += bin.token_count;
    }
    const std::uint64_t bound_tokens = facts.belady(65'536).hit_tokens;
    const std::uint64_t lost_tokens = facts.reusable_tokens() - lru_tokens;
    EXPECT_GT(lost_tokens, facts.prompt_tokens() / 10);
    EXPECT_GT(bound_tokens - lru_tokens, lost_tokens / 2);
    EXPECT_LT(bound_tokens, facts.reusable_tokens());
  }
}

TEST(DemoWorkload, TenantsSayTheSameSoThatSharingWouldShow) {
  Trace trace = demo_workload(1);
  const auto apart = TraceFacts::of(trace);
  for (TraceRequest& request : trace.requests) request.key_space = 0;
  const auto together = TraceFacts::of(trace);
  EXPECT_GT(together.reusable_tokens(), apart.reusable_tokens() + 10'000);
}

TEST(DemoWorkload, HasPrioritiesBurstsAndQuietTimes) {
  const Trace trace = demo_workload(1);
  std::map<int, std::uint64_t> by_priority;
  std::map<TimeNs, std::uint64_t> by_minute;
  for (const TraceRequest& request : trace.requests) {
    ++by_priority[request.priority];
    ++by_minute[request.timestamp_ns / 60'000'000'000];
  }
  EXPECT_EQ(by_priority.size(), 4U);
  std::vector<std::uint64_t> counts;
  counts.reserve(30);
  for (TimeNs minute = 0; minute < 30; ++minute) counts.push_back(by_minute[minute]);
  std::sort(counts.begin(), counts.end());
  EXPECT_GT(counts.back(), 3 * counts.front());
  EXPECT_GT(counts.back(), 3 * counts[counts.size() / 2] / 2);
}

}  // namespace
}  // namespace quire
