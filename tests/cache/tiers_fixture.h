// SPDX-License-Identifier: Apache-2.0
//
// For tests of the host tier of a layout of one group, with a mover that the test drives by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "hand_mover.h"
#include "sequence_changes_fixture.h"

namespace quire {

/// What dump() shows, and the host tier with it.
[[nodiscard]] inline std::string dump_tiers(const Cache& cache, std::span<const Sequence* const> sequences = {}) {
  std::ostringstream out;
  out << dump(cache, sequences);
  const Stats s = cache.stats().value();
  out << "host " << s.host_page_count << ' ' << s.host_free_pages << ' ' << s.host_only_pages << ' '
      << s.host_copy_pages << ' ' << s.host_filling_pages << "\nmoving " << s.leaving_pages << ' '
      << s.clean_reserve_pages << ' ' << s.transfers_in_flight << ' ' << s.loading_sequence_count << "\nmoved "
      << s.host_hit_tokens << ' ' << s.lost_page_total << ' ' << s.host_evicted_page_total << ' ' << s.loaded_page_total
      << ' ' << s.stored_page_total << ' ' << s.loaded_bytes << ' ' << s.stored_bytes << "\noutcomes";
  for (const std::uint64_t count : s.load_outcomes) out << ' ' << count;
  for (const std::uint64_t count : s.store_outcomes) out << ' ' << count;
  for (const std::uint64_t count : s.miss_requests) out << ' ' << count;
  for (const std::uint64_t count : s.miss_tokens) out << ' ' << count;
  out << '\n';
  for (const Sequence* const sequence : sequences) {
    const Result<SequenceView> view = cache.view(*sequence);
    if (view) out << "loading " << view->is_loading << " miss " << to_string(view->miss.reason) << '\n';
  }
  return out.str();
}

class TiersTest : public CacheTest {
 protected:
  [[nodiscard]] static CacheConfig tiers_config(std::uint32_t page_count, std::uint32_t host_page_count,
                                                WritePolicy write_policy = WritePolicy::WriteBack) {
    CacheConfig config = test_config(4, page_count);
    config.host.page_count = host_page_count;
    config.host.write_policy = write_policy;
    config.host.external_mover = true;
    config.host.clean_reserve_pages = 2;
    return config;
  }
  void open_tiers(CacheConfig config) {
    open(std::move(config));
    mover_ = std::make_unique<HandMover>(*cache_);
  }
  void apply(std::vector<Completion> completions) {
    const Status status = cache_->apply(completions, now_);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    expect_invariants();
  }
  /// Moves everything until nothing is left to move. Every rank reports the same.
  void settle() {
    for (mover_->take(); !mover_->waiting.empty(); mover_->take()) {
      Completion completion = mover_->move(0);
      for (std::uint32_t rank = 0; rank < cache_->config().host.rank_count; ++rank) {
        completion.rank = static_cast<std::uint16_t>(rank);
        apply({completion});
      }
    }
  }
  /// A whole request with everything moved as it comes; gives the tokens it did not have to compute.
  std::uint32_t serve(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    Sequence sequence = cache_->begin(space_, {.tokens = tokens}, options).value();
    for (int i = 0; i < 100; ++i) {
      const auto admission = cache_->admit(sequence);
      settle();
      if (!admission) continue;
      const SequenceView view = cache_->view(sequence).value();
      EXPECT_FALSE(view.is_loading);
      const std::uint32_t computed = view.computed_tokens;
      const StepEntry entry{&sequence};
      for (int tries = 0; tries < 100; ++tries) {
        const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
        settle();
        if (!outcome.step) continue;
        EXPECT_TRUE(cache_->apply_copies(*outcome.step));
        engine_->run(outcome.step->plan.entries[0], 0, tokens);
        const StepResult result;
        EXPECT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
        EXPECT_TRUE(cache_->end(sequence));
        settle();
        return computed;
      }
      ADD_FAILURE() << "short of pages for ever";
      return 0;
    }
    ADD_FAILURE() << "never admitted";
    return 0;
  }

  /// Caches tokens on the host alone; for WriteThrough.
  void put_on_host(const std::vector<TokenId>& tokens) {
    serve(tokens);
    EXPECT_TRUE(cache_->reclaim(UINT32_MAX));
    EXPECT_EQ(lookup(tokens).matched_tokens, 0U);
    EXPECT_EQ(lookup(tokens).host_tokens, tokens.size() / 4 * 4);
  }
  [[nodiscard]] Lookup lookup(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) const {
    return cache_->lookup(space_, {.tokens = tokens}, options).value();
  }
  [[nodiscard]] Live begun(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    Live live{.sequence = cache_->begin(space_, {.tokens = tokens}, options).value()};
    live.tokens = std::move(tokens);
    return live;
  }
  /// Begun and admitted; nothing has moved.
  [[nodiscard]] Live admitted(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    Live live = begun(std::move(tokens), options);
    const Result<Admission> admission = cache_->admit(live.sequence);
    EXPECT_TRUE(admission.has_value()) << admission.error().message;
    return live;
  }
  /// Admitted, and everything computed; nothing has moved.
  [[nodiscard]] Live computed(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    Live live = admitted(std::move(tokens), options);
    step(live.sequence, live.tokens);
    return live;
  }
  [[nodiscard]] SequenceView view(const Live& live) const { return cache_->view(live.sequence).value(); }
  void end(Live& live) { EXPECT_TRUE(cache_->end(live.sequence)); }
  /// What is pending is computed, all before it was right, and the sequence ends.
  void finish(Live& live) {
    if (view(live).pending_tokens > 0) step(live.sequence, live.tokens);
    end(live);
  }
  /// When nobody is left, every page of both tiers comes back.
  void expect_all_free() {
    const Status status = cache_->reset();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    settle();
    EXPECT_EQ(stats().free_pages, stats().page_count);
    EXPECT_EQ(stats().host_free_pages, stats().host_page_count);
    EXPECT_EQ(stats().transfers_in_flight, 0U);
    expect_invariants();
  }

  std::unique_ptr<HandMover> mover_;
  TimeNs now_ = 0;
};

}  // namespace quire
