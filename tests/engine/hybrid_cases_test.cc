// SPDX-License-Identifier: Apache-2.0
//
// Small scripts on caches of several groups, each for something that a random schedule has come across: where a
// sequence goes on after a rewind, a replay or a fork, and what its layers need there.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hybrid_rig.h"
#include "seeded_text.h"
#include "testing/temp_directory.h"

namespace quire::testing {
namespace {

using tiny_engine::HybridLayer;
using tiny_engine::LayerKind;

constexpr HybridLayer kFull{.kind = LayerKind::Full};

std::vector<TokenId> text(std::uint64_t seed, std::size_t count) {
  std::vector<TokenId> tokens = seeded_text(seed, count);
  for (TokenId& token : tokens) token %= static_cast<TokenId>(tiny_engine::HybridShape{}.vocabulary);
  return tokens;
}

HybridSetup setup_of(std::vector<HybridLayer> layers) {
  HybridSetup setup;
  setup.shape.layers = std::move(layers);
  setup.page_count = 64;
  setup.group_page_counts.assign(tiny_engine::hybrid_groups(setup.shape).groups.size(), 64);
  setup.adopts_memory = true;
  return setup;
}

class HybridCases : public ::testing::Test {
 protected:
  void open(const HybridSetup& setup) { rig_ = std::make_unique<HybridRig>(setup, counts_); }
  void TearDown() override {
    EXPECT_EQ(rig_->check(), "");
    const auto mismatch = rig_->compare();
    EXPECT_FALSE(mismatch) << mismatch->text;
  }
  HybridLive* begin(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    HybridLive* live = nullptr;
    EXPECT_EQ(rig_->begin(std::move(tokens), options, live), "");
    EXPECT_EQ(rig_->admit(*live), "");
    EXPECT_EQ(rig_->check(), "");
    return live;
  }
  /// Computes all pending tokens; the last step brings `next`.
  void compute(HybridLive* live, std::vector<TokenId> next = {}) {
    for (;;) {
      const std::uint32_t pending = rig_->cache().view(live->handle).value().pending_tokens;
      const bool is_last = pending <= 1;
      ASSERT_GT(pending, 0U);
      HybridAnswer answer;
      if (is_last) answer.next = std::move(next);
      ASSERT_EQ(rig_->step({{.live = live, .token_count = is_last ? 1 : pending - 1}}, {answer}), "");
      ASSERT_EQ(rig_->check(), "");
      if (is_last) return;
    }
  }

  /// A request, perhaps one that waits for the host; gives the tokens that it found.
  std::size_t serve(std::vector<TokenId> tokens, std::vector<TokenId> next = {}) {
    HybridLive* live = begin_waiting(std::move(tokens));
    const std::size_t found = live->texts.size();
    compute(live, std::move(next));
    EXPECT_EQ(rig_->end(*live), "");
    EXPECT_EQ(rig_->collect(), "");
    return found;
  }
  HybridLive* begin_waiting(std::vector<TokenId> tokens) {
    HybridLive* live = nullptr;
    EXPECT_EQ(rig_->begin(std::move(tokens), {}, live), "");
    for (int i = 0; i < 9 && !live->is_admitted; ++i) {
      EXPECT_EQ(rig_->admit(*live), "");
      EXPECT_EQ(rig_->collect(), "");
    }
    EXPECT_TRUE(live->is_admitted);
    EXPECT_EQ(rig_->check(), "");
    return live;
  }
  [[nodiscard]] std::uint64_t loaded_pages(std::uint32_t group) {
    return rig_->cache().group_stats(group).value().loaded_page_total;
  }

  ScheduleCounts counts_;
  std::unique_ptr<HybridRig> rig_;
};

// A hit pins what the next token needs of a window. When that token is taken back, the one before runs again, and sees
// one more.
TEST_F(HybridCases, ALastTokenThatRunsAgainSeesItsWholeWindow) {
  HybridSetup setup = setup_of({kFull, {.kind = LayerKind::Window, .window_tokens = 5}});
  open(setup);
  compute(begin(text(1, 12)));
  HybridLive* live = begin(join(text(1, 12), text(2, 1)));
  ASSERT_EQ(live->texts.size(), 12U);
  ASSERT_EQ(rig_->rewind(*live, 1), "");
  if (rig_->cache().view(live->handle)->pending_tokens > 0) compute(live);
}

// Tokens that are computed to rebuild a window do not see all of it. One that stands behind them must be left to be
// asked what follows.
TEST_F(HybridCases, AReplayLeavesTheLastTokenOfAPromptEnoughToSee) {
  for (const LayerKind kind : {LayerKind::Window, LayerKind::Ring}) {
    HybridSetup setup = setup_of({{.kind = kind, .window_tokens = 5}, kFull});
    setup.shape.declares_replay = true;
    setup.shape.window_retention = {.rule = RetentionRule::None};
    setup.shape.state_retention = {.rule = RetentionRule::None};
    open(setup);
    compute(begin(text(1, 12)));
    HybridLive* live = begin(text(1, 12));
    EXPECT_GT(live->replay_end, 0U);
    compute(live, text(2, 1));
    compute(live);
    if (kind == LayerKind::Window) TearDown();
  }
}

// The history ends inside a page, and what is replayed begins before that.
TEST_F(HybridCases, AReplayMayBeginInThePageThatAHitEndsIn) {
  HybridSetup setup = setup_of({{.kind = LayerKind::Overlapped, .ratio = 2}, kFull});
  setup.shape.declares_replay = true;
  setup.page_tokens = 8;
  setup.shape.state_retention = {.rule = RetentionRule::Last};
  open(setup);
  compute(begin(text(1, 9)));
  HybridLive* live = begin(join(text(1, 4), text(2, 3)));
  EXPECT_GT(live->replay_end, 0U);
  compute(live);
}

// The entry that is made again reads rows before the first token: they have closed gates, whatever was there since.
TEST_F(HybridCases, ARewindToTheFirstEntryFindsNothingBeforeIt) {
  for (const std::uint32_t rewind : {0U, 1U, 3U}) {
    HybridSetup setup = setup_of({kFull, {.kind = LayerKind::Overlapped, .ratio = 4}});
    setup.shape.rewind_tokens = rewind;
    open(setup);
    for (std::uint32_t computed = 5; computed <= 8 + rewind; ++computed) {
      for (std::uint32_t left = 1; left < 4; ++left) {
        HybridLive* live = begin(text((computed * 10) + left, computed));
        compute(live);
        ASSERT_EQ(rig_->rewind(*live, computed - left), "");
        if (live->tokens.size() == left) {
          ASSERT_EQ(rig_->append(*live, text((computed * 10) + left + 500, 6)), "");
          compute(live);
        }
        ASSERT_EQ(rig_->end(*live), "");
      }
    }
    if (rewind < 3) TearDown();
  }
}

// A snapshot brings the rows of its tokens, and none for tokens before the first.
TEST_F(HybridCases, AForkBelowASnapshotIsRefusedWhereRowsAreMissing) {
  HybridSetup setup = setup_of({kFull, {.kind = LayerKind::Overlapped, .ratio = 4}});
  setup.shape.rewind_tokens = 3;
  setup.shape.state_retention = {.rule = RetentionRule::Every, .interval_tokens = 4};
  open(setup);
  compute(begin(text(1, 9)));
  HybridLive* live = begin(join(text(1, 4), text(2, 5)));
  ASSERT_EQ(live->texts.size(), 4U);
  HybridLive* fork = nullptr;
  ASSERT_EQ(rig_->fork(*live, 2, fork), "");
  if (fork != nullptr) {
    ASSERT_EQ(rig_->append(*fork, text(3, 4)), "");
    compute(fork);
  }
  compute(live);
}

// What a source has overwritten since is no reason to refuse a fork its drafts, where the fork writes all that it
// needs.
TEST_F(HybridCases, AForkBehindABoundaryMayHaveDrafts) {
  HybridSetup setup = setup_of({kFull, {.kind = LayerKind::Compressed, .ratio = 4}});
  setup.shape.rewind_tokens = 4;
  open(setup);
  HybridLive* source = begin(text(1, 8));
  compute(source);
  ASSERT_EQ(rig_->append(*source, text(2, 20)), "");
  std::vector<HybridAsk> asks = {{.live = source, .token_count = 20}};
  bool planned = false;
  std::uint32_t fitting = 0;
  ASSERT_EQ(rig_->plan(asks, {}, planned, fitting), "");
  HybridLive* fork = nullptr;
  ASSERT_EQ(rig_->fork(*source, 8, fork), "");
  ASSERT_NE(fork, nullptr);
  ASSERT_EQ(rig_->finish([](const auto&, const auto&) { return HybridAnswer{}; }), "");
  ASSERT_EQ(rig_->append(*fork, text(3, 3)), "");
  ASSERT_EQ(rig_->step({{.live = fork, .drafts = text(4, 4)}}, {{.accepted_count = 0, .next = text(5, 6)}}), "");
  compute(fork);
}

// A step in flight copies the begin of a page for its sequence. A fork there takes it from where it comes, in all
// groups.
TEST_F(HybridCases, AForkOfASequenceThatCopiesATailLeavesTheCopyAlone) {
  HybridSetup setup = setup_of({kFull, {.kind = LayerKind::Window, .window_tokens = 5}});
  open(setup);
  HybridLive* live = begin(text(1, 9));
  compute(live);
  ASSERT_EQ(rig_->rewind(*live, 3), "");
  ASSERT_EQ(live->texts.size(), 6U);
  ASSERT_EQ(rig_->append(*live, text(2, 2)), "");
  std::vector<HybridAsk> asks = {{.live = live, .token_count = 2}};
  bool planned = false;
  std::uint32_t fitting = 0;
  ASSERT_EQ(rig_->plan(asks, {}, planned, fitting), "");
  HybridLive* fork = nullptr;
  ASSERT_EQ(rig_->fork(*live, 6, fork), "");
  ASSERT_NE(fork, nullptr);
  ASSERT_EQ(rig_->finish([](const auto&, const auto&) { return HybridAnswer{}; }), "");
  ASSERT_EQ(rig_->rewind(*live, 1), "");
  ASSERT_EQ(rig_->append(*live, text(3, 3)), "");
  ASSERT_EQ(rig_->append(*fork, text(4, 3)), "");
  compute(live);
  compute(fork);
}

// Forks wait for the next plan, and slots of sequences that have ended are taken again meanwhile.
TEST_F(HybridCases, AForkOfAForkThatWaitsHasItsState) {
  open(setup_of({kFull, {.kind = LayerKind::Recurrent}}));
  HybridLive* first = begin(text(1, 6));
  HybridLive* other = begin(text(2, 6));
  compute(first);
  compute(other);
  HybridLive* fork = nullptr;
  ASSERT_EQ(rig_->fork(*first, 6, fork), "");
  ASSERT_EQ(rig_->end(*first), "");
  HybridLive* taker = nullptr;  // of the slot that the first one had
  ASSERT_EQ(rig_->fork(*other, 6, taker), "");
  HybridLive* forked_again = nullptr;
  ASSERT_EQ(rig_->fork(*fork, 6, forked_again), "");
  ASSERT_EQ(rig_->end(*fork), "");
  HybridLive* last = nullptr;
  ASSERT_EQ(rig_->fork(*other, 6, last), "");
  for (HybridLive* live : {forked_again, taker, last}) {
    ASSERT_NE(live, nullptr);
    ASSERT_EQ(rig_->append(*live, text(3, 2)), "");
    compute(live);
  }
}

// All kinds of layers go down to the host and come back. Drafts behind that are taken back over a state, of which the
// slot has the versions that were computed since.
TEST_F(HybridCases, ASequenceThatHasComeBackFromTheHostTakesBackItsDrafts) {
  for (const bool has_own_mover : {false, true}) {
    HybridSetup setup = setup_of({{.kind = LayerKind::Recurrent},
                                  {.kind = LayerKind::Window, .window_tokens = 6},
                                  {.kind = LayerKind::Overlapped, .ratio = 2},
                                  kFull,
                                  {.kind = LayerKind::Ring, .window_tokens = 5},
                                  {.kind = LayerKind::Compressed, .ratio = 4}});
    setup.shape.rewind_tokens = 4;
    setup.shape.state_retention = {.rule = RetentionRule::Every, .interval_tokens = 8};
    const std::vector<CacheGroup> groups = tiny_engine::hybrid_groups(setup.shape).groups;
    setup.page_count = 24;
    setup.group_page_counts.assign(groups.size(), 14);
    setup.host_page_count = 80;
    setup.host_group_page_counts.assign(groups.size(), 80);
    setup.has_own_mover = has_own_mover;
    open(setup);
    serve(text(1, 30));
    for (std::uint64_t other = 2; other < 8; ++other) serve(text(other, 40));
    HybridLive* live = begin_waiting(join(text(1, 29), text(9, 3)));
    EXPECT_EQ(live->texts.size(), 28U);
    for (std::uint32_t i = 0; i < groups.size(); ++i) {
      if (has_pages(groups[i])) {
        EXPECT_GT(loaded_pages(i), 0U) << groups[i].name;
      }
    }
    compute(live, text(10, 1));
    for (std::uint64_t round = 0; round < 3; ++round) {
      const auto accepted = static_cast<std::uint32_t>(round);
      ASSERT_EQ(rig_->step({{.live = live, .drafts = text(20 + round, 4)}},
                           {{.accepted_count = accepted, .next = text(30 + round, 1)}}),
                "");
      ASSERT_EQ(rig_->collect(), "");
    }
    ASSERT_EQ(rig_->rewind(*live, 3), "");
    EXPECT_EQ(live->tokens.size(), 32U + 1 + 3 + 3 - 3);
    ASSERT_EQ(rig_->append(*live, text(40, 2)), "");
    compute(live);
    EXPECT_GT(counts_.by_name["rewind over a recurrent state"], 0U);
    EXPECT_EQ(counts_.by_name["rewind refused by a group"], 0U);
    if (!has_own_mover) TearDown();
  }
}

// Layers of one full group, of which some see the last tokens only, beside layers of other groups.
TEST_F(HybridCases, LayersOfAFullGroupHaveWindowsOfTheirOwn) {
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr}) {
    for (const bool is_first : {false, true}) {
      std::vector<HybridLayer> layers = {kFull,
                                         {.kind = LayerKind::Full, .window_tokens = 6},
                                         {.kind = LayerKind::Window, .window_tokens = 5},
                                         {.kind = LayerKind::Full, .window_tokens = 3},
                                         {.kind = LayerKind::Recurrent}};
      layers.insert(is_first ? layers.begin() : layers.end(), {.kind = LayerKind::Compressed, .ratio = 2});
      HybridSetup setup = setup_of(std::move(layers));
      setup.page_tables = tables;
      open(setup);
      compute(begin(text(1, 17)), text(2, 1));
      compute(begin(join(text(1, 17), text(3, 20))), text(4, 1));
      EXPECT_GT(counts_.by_name["list trimmed for layers"], 0U);
      if (tables == PageTables::Rows || !is_first) TearDown();
    }
  }
}

// Layers that keep everything see the sink and the window; others go on as if there were none. Nothing behind the
// window is found by a sequence without one, of any group.
TEST_F(HybridCases, ASequenceWithAWindowOfItsOwnGoesThroughAllKindsOfLayers) {
  const std::vector<std::vector<HybridLayer>> mixes = {
      {kFull, {.kind = LayerKind::Window, .window_tokens = 6}},
      {kFull, {.kind = LayerKind::Window, .window_tokens = 25}},
      {{.kind = LayerKind::Compressed, .ratio = 4}, {.kind = LayerKind::Window, .window_tokens = 6}},
      {{.kind = LayerKind::Overlapped, .ratio = 2}, kFull, {.kind = LayerKind::Full, .window_tokens = 5}},
      {{.kind = LayerKind::Recurrent},
       {.kind = LayerKind::Window, .window_tokens = 6},
       {.kind = LayerKind::Overlapped, .ratio = 2},
       kFull,
       {.kind = LayerKind::Ring, .window_tokens = 5},
       {.kind = LayerKind::Compressed, .ratio = 4}}};
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    for (std::vector<HybridLayer> mix : mixes) {
      if (tables == PageTables::Block) {
        std::erase_if(mix,
                      [](const HybridLayer& layer) { return layer.kind == LayerKind::Full && layer.window_tokens; });
      }
      HybridSetup setup = setup_of(std::move(mix));
      setup.shape.keys_rotated = false;
      setup.shape.state_retention = {.rule = RetentionRule::Every, .interval_tokens = 8};
      setup.page_tables = tables;
      setup.host_page_count = 64;
      setup.has_own_mover = true;
      open(setup);
      HybridLive* live = nullptr;
      ASSERT_EQ(rig_->begin(text(1, 30), {}, live), "");
      ASSERT_EQ(rig_->set_window(*live, {.visible_tokens = 13, .sink_tokens = 3}), "");
      ASSERT_EQ(rig_->admit(*live), "");
      compute(live, text(2, 1));
      for (std::uint64_t i = 0; i < 5; ++i) compute(live, text(3 + i, 1));
      HybridLive* fork = nullptr;
      ASSERT_EQ(rig_->fork(*live, static_cast<std::uint32_t>(live->texts.size()), fork), "");
      ASSERT_NE(fork, nullptr);
      ASSERT_EQ(rig_->append(*fork, text(20, 4)), "");
      compute(fork);
      for (const Preempt how : {Preempt::Save, Preempt::Drop}) {
        ASSERT_EQ(rig_->collect(), "");
        ASSERT_EQ(rig_->preempt(*live, how), "");
        for (int i = 0; i < 9 && !live->is_admitted; ++i) {
          ASSERT_EQ(rig_->collect(), "");
          ASSERT_EQ(rig_->resume(*live), "");
        }
        ASSERT_EQ(rig_->collect(), "");
        compute(live, text(30, 3));
      }
      ASSERT_EQ(rig_->end(*live), "");
      ASSERT_EQ(rig_->end(*fork), "");
      ASSERT_EQ(rig_->collect(), "");
      EXPECT_LE(serve(text(1, 30)), 13U);
      EXPECT_EQ(counts_.by_name["set_window refused"], 0U);
      TearDown();
    }
  }
}

// A step that replays reads the history, also where its last tokens are so far on that the window has left that.
TEST_F(HybridCases, ALongStepThatReplaysUnderAWindowReadsTheTailOfItsHit) {
  for (const LayerKind kind : {LayerKind::Window, LayerKind::Ring}) {
    HybridSetup setup = setup_of({{.kind = kind, .window_tokens = 7}, kFull});
    setup.shape.keys_rotated = false;
    setup.shape.declares_replay = true;
    setup.shape.window_retention = {.rule = RetentionRule::None};
    setup.shape.state_retention = {.rule = RetentionRule::None};
    setup.page_tokens = 3;
    open(setup);
    compute(begin(text(1, 30)));
    HybridLive* live = nullptr;
    ASSERT_EQ(rig_->begin(join(text(1, 30), text(2, 10)), {}, live), "");
    ASSERT_EQ(rig_->set_window(*live, {.visible_tokens = 14, .sink_tokens = 2}), "");
    ASSERT_EQ(rig_->admit(*live), "");
    EXPECT_EQ(live->replay_end, 14U);
    ASSERT_EQ(rig_->step({{.live = live, .token_count = 30}}, {}), "");
    compute(live, text(3, 1));
    if (kind == LayerKind::Window) TearDown();
  }
}

HybridSetup disk_setup_of(const std::string& directory) {
  HybridSetup setup = setup_of({{.kind = LayerKind::Recurrent},
                                {.kind = LayerKind::Window, .window_tokens = 6},
                                {.kind = LayerKind::Overlapped, .ratio = 2},
                                kFull,
                                {.kind = LayerKind::Ring, .window_tokens = 5},
                                {.kind = LayerKind::Compressed, .ratio = 4}});
  setup.shape.state_retention = {.rule = RetentionRule::Every, .interval_tokens = 16};
  setup.page_tokens = 16;
  setup.context_tokens_max = 64;
  setup.host_page_count = 16;
  setup.has_own_mover = true;
  setup.disk_directory = directory;
  setup.disk_capacity_bytes = std::uint64_t{256} << 20U;
  return setup;
}

// What was flushed is found by the process that comes next, of all kinds of layers.
TEST_F(HybridCases, ARestartFindsWhatIsOnDisk) {
  const TempDirectory directory;
  open(disk_setup_of(directory.path()));
  EXPECT_EQ(serve(text(1, 50)), 0U);
  ASSERT_EQ(rig_->restart(/*flushes=*/true), "");
  EXPECT_EQ(serve(join(text(1, 50), text(2, 5))), 48U);
  EXPECT_EQ(counts_.by_name["tokens found on disk"], 48U);
}

// What one cache has computed is read straight from its disk and written to another's, which goes on with it in all
// kinds of layers as if it had computed it.
TEST_F(HybridCases, BytesOfDirectCallsServeAnotherCache) {
  const TempDirectory first;
  const TempDirectory second;
  const std::vector<TokenId> prompt = text(1, 50);
  const auto ask = [&](auto&& call) {
    DiskAnswer answer;
    const KeySpaceId space = rig_->cache().key_space({.model = "hybrid"}).value();
    const Status status = call(space, [&](const DiskAnswer& given) { answer = given; });
    EXPECT_TRUE(status.has_value()) << status.error().message;
    EXPECT_EQ(rig_->collect(), "");
    return answer.token_count;
  };
  open(disk_setup_of(first.path()));
  EXPECT_EQ(serve(prompt), 0U);
  ASSERT_EQ(rig_->restart(/*flushes=*/true), "");
  std::vector<std::byte> bytes(rig_->cache().direct_bytes(50).value().byte_count);
  EXPECT_EQ(ask([&](KeySpaceId space, auto callback) {
              return rig_->cache().get_from_disk(space, {.tokens = prompt}, bytes, callback);
            }),
            48U);
  TearDown();
  open(disk_setup_of(second.path()));
  EXPECT_EQ(ask([&](KeySpaceId space, auto callback) {
              return rig_->cache().put_on_disk(space, {.tokens = prompt}, bytes, callback);
            }),
            48U);
  counts_ = {};
  EXPECT_EQ(serve(join(prompt, text(2, 5))), 48U);
  EXPECT_EQ(counts_.by_name["tokens found on disk"], 48U);
}

}  // namespace
}  // namespace quire::testing
