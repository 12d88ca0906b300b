// SPDX-License-Identifier: Apache-2.0
//
// For tests of steps whose pages arrive while they are computed, brought by the cache's own mover: its workers stand at
// a gate of the test's, and every layer of every page has bytes of its own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_for_tests.h"
#include "cache_groups_fixture.h"
#include "layer_bytes.h"
#include "testing/mover_gate.h"
#include "transfer/mover_peer.h"

namespace quire {

inline constexpr TimeNs kAheadLongNs = TimeNs{200} * 1'000'000'000;  // less than the tests' own limit

/// A group of so many layers; what a layer of a page holds has no size that anything is aligned to.
[[nodiscard]] inline CacheGroup layered(CacheGroup group, std::uint32_t layer_count, std::uint32_t first_layer = 0) {
  group.layers = layer_range(first_layer, layer_count);
  group.components[0].dim = 9;
  return group;
}

/// A request that runs ahead.
struct AheadRequest {
  Sequence sequence;
  std::vector<TokenId> tokens;
  Admission admission;
};

class CacheAheadTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kPageTokens = 4;

  ~CacheAheadTest() override { close(); }

  /// Written to the host as soon as pages are full; loads have so many bands.
  [[nodiscard]] static CacheConfig ahead_config(std::vector<CacheGroup> groups, std::uint16_t layer_bands) {
    CacheConfig config = groups_config(std::move(groups), kPageTokens, 64, 128);
    config.steps_in_flight_max = 3;
    config.host.page_count = 128;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.host.layer_bands = layer_bands;
    config.host.region.huge_pages = false;
    return config;
  }
  void open(CacheConfig config) {
    close();
    cache_ = open_cache(std::move(config));
    if (!cache_->config().host.external_mover && cache_->config().host.page_count > 0) {
      MoverPeer::set_hooks(mover(), {.before_piece = [this](const PieceStart& piece) { return gate_.pass(piece); }});
    }
    engine_ = std::make_unique<testing::LayerBytes>(*cache_);
    space_ = cache_->key_space({.model = "test"}).value();
  }
  void close() {
    gate_.open();
    gate_.break_pieces(nullptr);
    engine_.reset();
    cache_.reset();
  }
  [[nodiscard]] Mover& mover() { return CacheForTests::mover(*cache_); }
  void expect_invariants() const {
    const Status status = cache_->check_invariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }

  [[nodiscard]] AheadRequest admitted(std::vector<TokenId> tokens, const SequenceOptions& options) {
    AheadRequest request{.tokens = std::move(tokens)};
    request.sequence = cache_->begin(space_, {.tokens = request.tokens}, options).value();
    const Result<Admission> admission = cache_->admit(request.sequence);
    EXPECT_TRUE(admission.has_value()) << admission.error().message;
    if (admission) request.admission = *admission;
    return request;
  }
  /// Admitted, with its loads on their way.
  [[nodiscard]] AheadRequest ahead(std::vector<TokenId> tokens) {
    AheadRequest request = admitted(std::move(tokens), {.plan_while_loading = true});
    EXPECT_TRUE(request.admission.is_ready);
    EXPECT_GT(request.admission.loading_tokens, 0U);
    return request;
  }
  [[nodiscard]] SequenceView view(const AheadRequest& request) const { return cache_->view(request.sequence).value(); }
  [[nodiscard]] Step plan(const std::vector<const AheadRequest*>& requests) {
    std::vector<StepEntry> entries;
    for (const AheadRequest* request : requests) entries.push_back({&request->sequence});
    const Result<PlanOutcome> outcome = cache_->plan_step(entries);
    EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
    EXPECT_TRUE(outcome->step.has_value()) << "short of pages";
    engine_->start(*outcome->step);
    const Status applied = testing::apply_copies(*cache_, *outcome->step);
    EXPECT_TRUE(applied.has_value()) << applied.error().message;
    return *outcome->step;
  }
  [[nodiscard]] static std::size_t place_of(const Step& step, std::uint32_t entry_index) {
    std::size_t place = 0;
    while (step.plan.entries[place].entry_index != entry_index) ++place;
    return place;
  }
  /// Every layer of what an entry finds is right, and what it fills is written.
  void compute(const Step& step, const AheadRequest& request, std::uint32_t entry_index = 0) {
    const std::size_t place = place_of(step, entry_index);
    for (const GroupLayer layer : engine_->layers()) {
      EXPECT_TRUE(engine_->check(step, place, request.tokens, layer).is_right)
          << "group " << layer.group_index << ", layer " << layer.layer_index;
    }
    engine_->write(step, place, request.tokens);
  }
  void finish(const Step& step) {
    const std::vector<StepResult> results(step.plan.entries.size());
    const Status status = cache_->finish_step(step, results);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    expect_invariants();
  }
  /// What is pending of a request that runs, then its end.
  void complete(AheadRequest& request) {
    drain(*cache_);
    if (view(request).pending_tokens > 0) {
      const Step step = plan({&request});
      compute(step, request);
      finish(step);
    }
    ASSERT_TRUE(cache_->end(request.sequence));
    drain(*cache_);
    expect_invariants();
  }
  /// A whole request; then only the host has its pages, and the device's memory is something else.
  void put_on_host(const std::vector<TokenId>& tokens) {
    AheadRequest request = admitted(tokens, {});
    complete(request);
    forget_device();
    EXPECT_EQ(lookup(tokens).host_tokens, tokens.size() / kPageTokens * kPageTokens);
  }
  void forget_device() {
    ASSERT_TRUE(cache_->reclaim(UINT32_MAX));
    engine_->scrub();
  }
  [[nodiscard]] Lookup lookup(const std::vector<TokenId>& tokens) const {
    return cache_->lookup(space_, {.tokens = tokens}).value();
  }
  /// The cache hears of everything that has ended by now.
  void hear() {
    const Result<std::span<const Completion>> completions = cache_->poll();
    ASSERT_TRUE(completions.has_value()) << completions.error().message;
    ASSERT_TRUE(cache_->apply(*completions, 0));
    expect_invariants();
  }
  [[nodiscard]] std::vector<std::uint32_t> lost(const Step& step) {
    const std::span<const std::uint32_t> entries = cache_->lost_entries(step).value();
    return {entries.begin(), entries.end()};
  }
  [[nodiscard]] TransferOutcome wait(const Step& step, GroupLayer layer, TimeNs timeout_ns = kAheadLongNs) const {
    const Result<TransferOutcome> outcome = cache_->wait_for_layer(step, layer, timeout_ns);
    EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
    return outcome.value_or(TransferOutcome::Empty);
  }

  testing::MoverGate gate_;  // outlives the cache
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<testing::LayerBytes> engine_;
  KeySpaceId space_;
};

/// What the loads of a step consist of. Each comes with the history's pages and what hangs on them.
[[nodiscard]] inline std::vector<GroupMix> ahead_mixes() {
  return {{"History", {layered(full_group(), 7)}},
          {"Compressed", {layered(full_group(), 5), layered(compressed_group(4), 3, 5)}},
          {"Window", {layered(full_group(), 4), layered(window_group(10), 6, 4)}},
          {"Sink", {layered(unrotated(full_group()), 3), layered(with_sink(window_group(10), 5), 5, 3)}},
          {"All",
           {layered(compressed_group(2), 2), layered(window_group(10), 4, 2), layered(full_group(), 5, 6),
            layered(named(window_group(6), "short"), 3, 11)}}};
}

}  // namespace quire
