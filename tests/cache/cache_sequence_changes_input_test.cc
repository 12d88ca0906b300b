// SPDX-License-Identifier: Apache-2.0
//
// Bad input to the calls that change sequences: an error that names the sequence and the limit, and nothing changed.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sequence_changes_fixture.h"

namespace quire {
namespace {

class ChangesInput : public SequenceChangesTest {
 protected:
  /// Calls, expects the error, and compares all that the cache shows before and after.
  template <typename Call>
  void refused(const Call& call, ErrorCode code, const std::string& text) {
    const std::string before = dump(*cache_, watched_);
    expect_error(call(), code, text);
    EXPECT_EQ(dump(*cache_, watched_), before) << text;
  }
  template <typename Call>
  void bad(const Call& call, const std::string& text) {
    refused(call, ErrorCode::InvalidArgument, text);
  }
  template <typename Call>
  void not_now(const Call& call, const std::string& text) {
    refused(call, ErrorCode::Unavailable, text);
  }
  void refused_plan(const std::vector<StepEntry>& entries, const std::string& text, const PlanShape& shape = {}) {
    bad([&] { return cache_->plan_step(entries, shape); }, text);
  }
  void refused_result(const Step& step, const StepResult& result, const std::string& text) {
    bad([&] { return cache_->finish_step(step, {&result, 1}); }, text);
  }
  void watch(const Live& live) { watched_.push_back(&live.sequence); }

  std::vector<const Sequence*> watched_;
};

TEST_F(ChangesInput, UnknownAndEndedSequencesAreRefusedEverywhere) {
  Live live = admitted(token_range(0, 10));
  watch(live);
  Live ended = computed(token_range(20, 6));
  end(ended);
  EXPECT_FALSE(ended.sequence);
  const std::unique_ptr<Cache> other = open_cache(test_config(4, 8));
  const KeySpaceId space = other->key_space({.model = "test"}).value();
  const Sequence foreign = other->begin(space, {.tokens = token_range(0, 4)}).value();
  const Sequence never;
  const SlotRun slots{.first_slot = 0, .token_count = 4};
  const auto everywhere = [&](const Sequence& sequence, const std::string& text) {
    bad([&] { return cache_->admit(sequence); }, text);
    bad([&] { return cache_->fork(sequence, 0); }, text);
    bad([&] { return cache_->rewind(sequence, 0); }, text);
    bad([&] { return cache_->set_window(sequence, {.visible_tokens = 4}); }, text);
    bad([&] { return cache_->commit_tree(sequence, -1); }, text);
    bad([&] { return cache_->preempt(sequence, Preempt::Drop); }, text);
    bad([&] { return cache_->resume(sequence); }, text);
    bad([&] { return cache_->prepare_receive(sequence, 1); }, text);
    bad([&] { return cache_->finish_receive(sequence); }, text);
    bad([&] { return cache_->abort_receive(sequence); }, text);
    bad([&] { return cache_->mark_send(sequence, 0, {&slots, 1}, 0); }, text);
    bad([&] { return cache_->append(sequence, {.tokens = token_range(0, 1)}); }, text);
    bad([&] { return cache_->view(sequence); }, text);
    refused_plan({{&live.sequence, 1}, {&sequence, 1}}, "entry 1: " + text);
  };
  bad([&] { return cache_->end(ended.sequence); }, "sequence 1 has ended");
  everywhere(ended.sequence, "sequence 1 has ended");
  everywhere(never, "the handle is empty");
  everywhere(foreign, "sequence 0 belongs to another cache");
}

TEST_F(ChangesInput, CallsOnAnExternalPoolAreRefused) {
  const std::unique_ptr<Cache> cache =
      open_cache({.layout = ModelLayout::opaque(8).value(),
                  .page = {.page_tokens = 4},
                  .device = {.pool = DevicePool::External, .page_count = 8, .memory = DeviceMemory::None}});
  const Sequence none;
  expect_error(cache->fork(none, 0), ErrorCode::Unsupported, "fork: this cache's device pool is external");
  expect_error(cache->rewind(none, 0), ErrorCode::Unsupported, "rewind: this cache's device pool is external");
  expect_error(cache->set_window(none, {.visible_tokens = 1}), ErrorCode::Unsupported, "set_window: this cache's");
  expect_error(cache->commit_tree(none, 0), ErrorCode::Unsupported, "commit_tree: this cache's");
  expect_error(cache->preempt(none, Preempt::Drop), ErrorCode::Unsupported, "preempt: this cache's");
  expect_error(cache->prepare_receive(none, 1), ErrorCode::Unsupported, "prepare_receive: this cache's");
  expect_error(cache->mark_send(none, 0, {}, 0), ErrorCode::Unsupported, "mark_send: this cache's");
}

TEST_F(ChangesInput, AForkBeyondTheTokensIsRefused) {
  Live live = computed(token_range(0, 10));
  watch(live);
  append(live, {50, 51});
  bad([&] { return cache_->fork(live.sequence, 13); }, "fork: sequence 0 has 12 tokens; at is 13");
  bad([&] { return cache_->fork(live.sequence, UINT32_MAX); }, "at is 4,294,967,295");
  (void)plan({{&live.sequence}});
  bad([&] { return cache_->fork(live.sequence, 11); },
      "fork: sequence 0 has 10 computed tokens, and more in flight; at is 11");
}

TEST_F(ChangesInput, AForkBeyondTheSequencesThereCanBeIsRefused) {
  CacheConfig config = changes_config();
  config.sequence_count_max = 2;
  open(std::move(config));
  Live live = computed(token_range(0, 10));
  Live fork = forked(live, 4);
  watch(live);
  watch(fork);
  not_now([&] { return cache_->fork(live.sequence, 6); }, "all 2 sequences are live; end one, or raise sequence_count");
}

TEST_F(ChangesInput, WhatIsNotAdmittedCannotBeChanged) {
  const Sequence waiting = cache_->begin(space_, {.tokens = token_range(0, 10)}).value();
  watched_.push_back(&waiting);
  const SlotRun slots{.first_slot = 0, .token_count = 4};
  bad([&] { return cache_->fork(waiting, 0); }, "fork: sequence 0 is waiting; admit it first");
  bad([&] { return cache_->rewind(waiting, 1); }, "rewind: sequence 0 is waiting; admit it first");
  bad([&] { return cache_->preempt(waiting, Preempt::Save); }, "preempt: sequence 0 is waiting; admit it first");
  bad([&] { return cache_->resume(waiting); }, "resume: sequence 0 is not preempted");
  bad([&] { return cache_->prepare_receive(waiting, 1); }, "prepare_receive: sequence 0 is waiting");
  bad([&] { return cache_->mark_send(waiting, 0, {&slots, 1}, 0); }, "mark_send: sequence 0 is waiting");
  bad([&] { return cache_->commit_tree(waiting, 0); }, "commit_tree: sequence 0 has no undecided tree");
  refused_plan({{&waiting}}, "entry 0: sequence 0 is waiting; admit it first");
}

TEST_F(ChangesInput, WhatIsPreemptedIsResumedBeforeItIsChanged) {
  for (const Preempt how : {Preempt::Drop, Preempt::Save}) {
    Live live = computed(token_range(0, 10));
    watched_ = {&live.sequence};
    bad([&] { return cache_->admit(live.sequence); }, "sequence 0 was admitted before");
    ASSERT_TRUE(cache_->preempt(live.sequence, how));
    drain(*cache_);
    bad([&] { return cache_->admit(live.sequence); }, "sequence 0 is preempted: resume() continues it");
    bad([&] { return cache_->fork(live.sequence, 0); }, "fork: sequence 0 is preempted; resume it first");
    bad([&] { return cache_->rewind(live.sequence, 1); }, "rewind: sequence 0 is preempted; resume it first");
    bad([&] { return cache_->preempt(live.sequence, how); }, "preempt: sequence 0 is preempted; resume it first");
    bad([&] { return cache_->prepare_receive(live.sequence, 1); }, "sequence 0 is preempted; resume it first");
    refused_plan({{&live.sequence}}, "entry 0: sequence 0 is preempted; resume it first");
    ASSERT_TRUE(resume(live.sequence));
    bad([&] { return cache_->resume(live.sequence); }, "resume: sequence 0 is not preempted");
    bad([&] { return cache_->admit(live.sequence); }, "sequence 0 was admitted before");
    end(live);
  }
}

TEST_F(ChangesInput, ASavedSequenceGetsItsWindowWhenItIsBack) {
  Live live = computed(token_range(0, 10));
  watch(live);
  ASSERT_TRUE(save(live.sequence));
  bad([&] { return cache_->set_window(live.sequence, {.visible_tokens = 4}); }, "set_window: sequence 0 is preempted");
}

TEST_F(ChangesInput, WhatIsInAStepCannotBeChanged) {
  Live live = computed(token_range(0, 10));
  watch(live);
  append(live, {50, 51});
  const Step step = plan({{&live.sequence, 1}});
  const std::string busy = "sequence 0 is part of 1 steps in flight; finish or abort them first";
  const SlotRun slots{.first_slot = 0, .token_count = 4};
  not_now([&] { return cache_->rewind(live.sequence, 1); }, "rewind: " + busy);
  not_now([&] { return cache_->set_window(live.sequence, {.visible_tokens = 4}); }, "set_window: " + busy);
  not_now([&] { return cache_->preempt(live.sequence, Preempt::Save); }, "preempt: " + busy);
  not_now([&] { return cache_->prepare_receive(live.sequence, 1); }, "prepare_receive: " + busy);
  not_now([&] { return cache_->mark_send(live.sequence, 0, {&slots, 1}, 0); }, "mark_send: " + busy);
  not_now([&] { return cache_->append(live.sequence, {.tokens = token_range(0, 1)}); },
          "append: sequence 0 is part of");
  compute(step, 0, live.tokens);
  finish(step, {{}});
}

TEST_F(ChangesInput, ARewindPastTheStartIsRefused) {
  Live live = computed(token_range(0, 10));
  watch(live);
  bad([&] { return cache_->rewind(live.sequence, 11); },
      "rewind: sequence 0 has 10 tokens; it cannot be rewound by 11");
  bad([&] { return cache_->rewind(live.sequence, UINT32_MAX); }, "rewound by 4,294,967,295");
}

TEST_F(ChangesInput, WindowsThatCannotWorkAreRefused) {
  Live live = computed(token_range(0, 10));
  watch(live);
  const auto set = [&](std::uint32_t window, std::uint32_t sink) {
    return [this, &live, window, sink] {
      return cache_->set_window(live.sequence, {.visible_tokens = window, .sink_tokens = sink});
    };
  };
  bad(set(0, 0), "set_window: sequence 0 needs a window of at least 1 token; visible_tokens is 0");
  bad(set(8, 8), "set_window: sequence 0 needs a sink smaller than its window: sink_tokens is 8, visible_tokens 8");
  bad(set(8, UINT32_MAX), "sink_tokens is 4,294,967,295");
  ASSERT_TRUE(set(8, 2)());
  bad(set(9, 2), "set_window: sequence 0 has a window of 8 tokens already; it is set once");
}

TEST_F(ChangesInput, AWindowOverRotatedKeysIsRefusedNamingTheGroup) {
  CacheConfig config = changes_config();
  config.layout =
      ModelLayout::simple({.name = "small", .layers = 2, .kv_heads = 1, .head_dim = 4, .keys_rotated = true}).value();
  open(std::move(config));
  const Sequence sequence = begin_admitted(token_range(0, 10));
  watched_ = {&sequence};
  const std::string group = std::string(cache_->geometry().page().group().name);
  refused([&] { return cache_->set_window(sequence, {.visible_tokens = 8}); }, ErrorCode::Unsupported,
          "group '" + group + "' stores K rotated");
}

TEST_F(ChangesInput, WhatTheWindowHasLeftIsRefusedNamingTheGroup) {
  Live live = computed(token_range(0, 40));
  watch(live);
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 12, .sink_tokens = 2}));
  // Held: tokens [0, 4) and [28, 40).
  const std::string group = "group '" + std::string(cache_->geometry().page().group().name) + "' no longer holds";
  bad([&] { return cache_->fork(live.sequence, 37); }, "fork: sequence 0 cannot be forked at 37: " + group);
  bad([&] { return cache_->fork(live.sequence, 5); }, "tokens [4, 5), which the window of 12 tokens has left");
  bad([&] { return cache_->rewind(live.sequence, 3); }, "rewind: sequence 0 cannot be rewound to 37: " + group);
  bad([&] { return cache_->rewind(live.sequence, 30); }, "window_rewind_tokens keeps more");
  Live fork = forked(live, 4);
  ASSERT_TRUE(cache_->rewind(live.sequence, 2));
}

TEST_F(ChangesInput, EntriesThatCannotBeComputedAreRefused) {
  CacheConfig config = changes_config();
  config.step_tokens_max = 12;
  config.context_tokens_max = 16;
  config.tree_tokens_max = 4;
  open(std::move(config));
  Live live = computed(token_range(0, 8));
  Live other = computed(token_range(20, 10));
  Live again = forked(live, 8);
  watch(live);
  watch(other);
  watch(again);
  append(other, token_range(40, 4));
  const Sequence* const s = &live.sequence;
  const Sequence* const o = &other.sequence;
  const std::vector<std::int32_t> chain = {-1, 0, 1};
  const std::vector<std::int32_t> five = {-1, 0, 1, 2, 3};
  const std::vector<std::int32_t> own_parent = {-1, 1};
  const std::vector<std::int32_t> later_parent = {-1, 2, 0};
  const std::vector<std::int32_t> low_parent = {-1, -2};
  refused_plan({}, "a step has at least one entry");
  refused_plan({{nullptr}}, "entry 0: its sequence is null");
  refused_plan({{s}}, "entry 0: sequence 0 has no pending tokens");
  refused_plan({{o, 1}, {&again.sequence, 1}, {o, 1}}, "entry 2: sequence 1 is in the step already");
  refused_plan({{o, 5}}, "entry 0: sequence 1 has 4 pending tokens, but token_count is 5");
  refused_plan({{o, UINT32_MAX}}, "token_count is 4,294,967,295");
  refused_plan({{&again.sequence, 2}}, "sequence 2 has 1 pending tokens, but token_count is 2");
  refused_plan({{s, 0, 2, chain}}, "entry 0: sequence 0 has both draft_count and tree_parents");
  refused_plan({{o, 2, 2}}, "sequence 1 has drafts, which stand behind all pending tokens");
  refused_plan({{&again.sequence, 0, 2}}, "entry 0: sequence 2 runs its last token again: plan that without drafts");
  refused_plan({{.sequence = &again.sequence, .tree_parents = chain}}, "sequence 2 runs its last token again");
  refused_plan({{.sequence = s, .tree_parents = five}},
               "sequence 0 would have 5 undecided tree tokens; tree_tokens_max is 4");
  refused_plan({{.sequence = s, .tree_parents = own_parent}}, "sequence 0: the parent of tree token 1 is 1");
  refused_plan({{.sequence = s, .tree_parents = later_parent}}, "sequence 0: the parent of tree token 1 is 2");
  refused_plan({{.sequence = s, .tree_parents = low_parent}}, "sequence 0: the parent of tree token 1 is -2");
  refused_plan({{s, 0, 9}}, "entry 0: sequence 0 would have 17 tokens; context_tokens_max is 16");
  refused_plan({{s, 0, UINT32_MAX}}, "context_tokens_max is 16");
  refused_plan({{s, 0, 8}, {o, 0, 1}}, "the step computes 13 tokens; step_tokens_max is 12");
  refused_plan({{o}}, "shape.entries is 0: this step needs 1, and the most is 16", {.entries = 0, .tokens = 9});
  refused_plan({{o}}, "shape.entries is 17", {.entries = 17, .tokens = 9});
  refused_plan({{o}}, "shape.tokens is 3: this step needs 4, and the most is 12", {.entries = 1, .tokens = 3});
  refused_plan({{o}}, "shape.tokens is 13", {.entries = 1, .tokens = 13});
  EXPECT_TRUE(cache_->plan_step(std::vector<StepEntry>{{o}}, {.entries = 3, .tokens = 12})->step.has_value());
}

TEST_F(ChangesInput, ABlockTableWithTooFewColumnsIsRefused) {
  CacheConfig config = changes_config();
  config.plan.page_tables = PageTables::Block;
  config.context_tokens_max = 40;
  open(std::move(config));
  const Live live = admitted(token_range(0, 10));
  watch(live);
  const PlanShape shape{.entries = 1, .tokens = 10, .columns = 2};
  refused_plan({{&live.sequence}}, "shape.columns is 2: this step needs 3, and the most is 10", shape);
  refused_plan({{&live.sequence}}, "shape.columns is 11", {.entries = 1, .tokens = 10, .columns = 11});
}

TEST_F(ChangesInput, UndecidedSequencesAreDecidedFirst) {
  Live live = computed(token_range(0, 6));
  watch(live);
  const std::vector<std::int32_t> parents = {-1, -1};
  const std::vector<TokenId> values = {70, 71};
  Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  not_now([&] { return cache_->plan_step(std::vector<StepEntry>{{&live.sequence, 1}}); },
          "entry 0: sequence 0 has undecided tokens in a step in flight");
  not_now([&] { return cache_->commit_tree(live.sequence, 0); },
          "commit_tree: sequence 0 has tree tokens in a step in flight; finish that step first");
  compute_tree(step, 0, live, parents, values);
  finish(step, {{.tokens = values}});
  refused_plan({{&live.sequence, 1}}, "entry 0: sequence 0 has 2 undecided tree tokens: commit_tree decides");
  refused_plan({{&live.sequence, 0, 2}}, "sequence 0 has 2 undecided tree tokens");
  const std::vector<std::int32_t> ahead = {2};
  refused_plan({{.sequence = &live.sequence, .tree_parents = ahead}}, "the parent of tree token 2 is 2");
  refused_plan({{.sequence = &live.sequence, .token_count = 1, .tree_parents = parents}}, "sequence 0");
  not_now([&] { return cache_->rewind(live.sequence, 1); }, "rewind: sequence 0 has 2 undecided tree tokens");
  not_now([&] { return cache_->append(live.sequence, {.tokens = values}); }, "append: sequence 0 has undecided");
  bad([&] { return cache_->fork(live.sequence, 7); }, "fork: sequence 0 has 6 computed tokens");
  bad([&] { return cache_->commit_tree(live.sequence, 2); },
      "commit_tree: sequence 0 has tree tokens 0 to 1; leaf is 2 (-1 keeps none)");
  bad([&] { return cache_->commit_tree(live.sequence, -2); }, "leaf is -2");
  bad([&] { return cache_->commit_tree(live.sequence, std::numeric_limits<std::int32_t>::max()); },
      "leaf is 2147483647");
  ASSERT_TRUE(cache_->commit_tree(live.sequence, 1));
  bad([&] { return cache_->commit_tree(live.sequence, 1); },
      "commit_tree: sequence 0 has no undecided tree: none was planned, or it was committed");
  bad([&] { return cache_->commit_tree(live.sequence, -1); }, "sequence 0 has no undecided tree");
  (void)plan({{.sequence = &live.sequence, .draft_count = 2}});
  not_now([&] { return cache_->plan_step(std::vector<StepEntry>{{&live.sequence, 1}}); },
          "entry 0: sequence 0 has undecided tokens in a step in flight");
}

TEST_F(ChangesInput, StepsFinishInTheirOrderAndNotTooManyAreInFlight) {
  CacheConfig config = changes_config();
  config.steps_in_flight_max = 2;
  open(std::move(config));
  Live live = admitted(token_range(0, 20));
  watch(live);
  const Step first = plan({{&live.sequence, 4}});
  const Step second = plan({{&live.sequence, 4}});
  not_now([&] { return cache_->plan_step(std::vector<StepEntry>{{&live.sequence, 4}}); },
          "step 1 is in flight, and 2 in all; steps_in_flight_max is 2");
  const StepResult none{};
  bad([&] { return cache_->finish_step(second, {&none, 1}); },
      "step 2 was planned after step 1, which is in flight: steps finish in the order");
  bad([&] { return cache_->finish_step(first, {}); }, "the step has 1 entries, but 0 results were given");
  Step unknown = first;
  unknown.number = 9;
  bad([&] { return cache_->finish_step(unknown, {&none, 1}); }, "step 9 is not in flight");
  bad([&] { return cache_->abort_step(unknown); }, "step 9 is not in flight");
  bad([&] { return cache_->apply_copies(unknown); }, "step 9 is not in flight");
  not_now([&] { return cache_->reset(); }, "live sequences: 1");
  not_now([&] { return cache_->resize(70); }, "step 1 is in flight");
  ASSERT_TRUE(cache_->abort_step(first));
  bad([&] { return cache_->abort_step(first); }, "step 1 is not in flight");
  finish(second, {{}});
  bad([&] { return cache_->finish_step(second, {&none, 1}); }, "step 2 is not in flight");
}

TEST_F(ChangesInput, CopiesAreAppliedBeforeAStepFinishesAndInOrder) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  Live other = forked(source, 9);
  watch(source);
  watch(fork);
  append(fork, {70});
  append(other, {71});
  const StepEntry entry{&fork.sequence};
  const StepEntry next{&other.sequence};
  const Step first = *cache_->plan_step({&entry, 1})->step;
  const Step second = *cache_->plan_step({&next, 1})->step;
  bad([&] { return cache_->apply_copies(second); },
      "apply_copies: those of step 2, which was planned before, come first");
  const StepResult none{};
  bad([&] { return cache_->finish_step(first, {&none, 1}); }, "step 2 has copies that were not applied");
  ASSERT_TRUE(cache_->apply_copies(first));
  ASSERT_TRUE(cache_->apply_copies(first));  // once is enough, twice is no harm
  ASSERT_TRUE(cache_->apply_copies(second));
  finish(first, {{}});
  finish(second, {{}});
}

TEST_F(ChangesInput, CopiesInMemoryThatIsNotQuiresOwnAreTheEngines) {
  CacheConfig config = changes_config();
  config.device.memory = DeviceMemory::None;
  config.host = {};
  open(std::move(config));
  EXPECT_EQ(cache_->device_memory(), nullptr);
  const Sequence sequence = begin_admitted(token_range(0, 10));
  watched_ = {&sequence};
  const StepEntry entry{&sequence};
  const Step step = *cache_->plan_step({&entry, 1})->step;
  refused([&] { return cache_->apply_copies(step); }, ErrorCode::Unsupported, "apply_copies: the pool's memory");
  finish(step, {{}});
}

TEST_F(ChangesInput, ResultsThatDoNotFitTheirEntriesAreRefused) {
  CacheConfig config = changes_config();
  config.context_tokens_max = 12;
  open(std::move(config));
  Live live = computed(token_range(0, 6));
  watch(live);
  append(live, {50});
  const std::vector<TokenId> three = {60, 61, 62};
  const std::vector<TokenId> many(8, 60);
  const std::vector<TokenId> negative = {60, -1};
  const Step drafts = plan({{.sequence = &live.sequence, .draft_count = 2}});
  refused_result(drafts, {.tokens = three, .accepted_count = 3},
                 "result 0: sequence 0: it has 2 drafts in this step; accepted_count is 3");
  refused_result(drafts, {.tokens = std::span(three).first(1), .accepted_count = 2},
                 "result 0: sequence 0: accepted_count is 2, but only 1 tokens were given");
  refused_result(drafts, {.tokens = three, .discard = true}, "result 0: sequence 0: discard is set, but so are tokens");
  refused_result(drafts, {.accepted_count = 1, .discard = true}, "discard is set, but so are tokens or accepted_count");
  refused_result(drafts, {.tokens = many}, "with 8 new tokens the sequence has 15; context_tokens_max is 12");
  refused_result(drafts, {.tokens = negative}, "result 0: sequence 0: token 8 is -1");
  finish(drafts, {{.tokens = std::span(three).first(2), .accepted_count = 1}});

  const std::vector<std::int32_t> parents = {-1, -1, 0};
  const Step tree = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  refused_result(tree, {.tokens = std::span(three).first(2)},
                 "result 0: sequence 0: it has 3 tree tokens in this step, but 2 token values were given");
  refused_result(tree, {}, "it has 3 tree tokens in this step, but 0 token values");
  refused_result(tree, {.tokens = three, .accepted_count = 1}, "commit_tree decides about its tree");
  const std::vector<TokenId> bad_value = {60, -7, 61};
  refused_result(tree, {.tokens = bad_value}, "is -7: token ids are not negative");
  finish(tree, {{.tokens = three}});
}

TEST_F(ChangesInput, TokensOfChunksComeWithTheLastOne) {
  Live live = admitted(token_range(0, 8));
  watch(live);
  const Step first = plan({{&live.sequence, 4}});
  const Step second = plan({{&live.sequence, 4}});
  const Step ahead = plan({{&live.sequence, 1}});
  const std::vector<TokenId> token = {60};
  refused_result(first, {.tokens = token}, "result 0: sequence 0: new tokens, but the known ones are not all computed");
  finish(first, {{}});
  finish(second, {{}});
  refused_result(ahead, {}, "result 0: sequence 0: the token at position 8 was computed but is not known");
  refused_result(ahead, {.tokens = token}, "the token at position 8 was computed but is not known");
  finish(ahead, {{.discard = true}});
}

TEST_F(ChangesInput, SavingNeedsAHost) {
  CacheConfig config = changes_config();
  config.host = {};
  open(std::move(config));
  Live live = computed(token_range(0, 10));
  watch(live);
  refused([&] { return cache_->preempt(live.sequence, Preempt::Save); }, ErrorCode::Unsupported,
          "preempt: sequence 0 can be saved on the host only; use Preempt::Drop, or set host.page_count");
}

TEST_F(ChangesInput, WhatMovesInAdoptedMemoryIsNotSavedBefore) {
  std::vector<std::byte> memory(std::size_t{65} * 4 * kTestTokenBytes);
  CacheConfig config = changes_config();
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_memory = memory.data();
  open(std::move(config));
  {
    Live live{begin_admitted(token_range(0, 5)), token_range(0, 5)};
    watched_ = {&live.sequence};
    const std::vector<std::int32_t> parents = {-1, -1};
    const StepEntry entry{.sequence = &live.sequence, .tree_parents = parents};
    const std::vector<TokenId> values = {8, 9};
    finish(*cache_->plan_step({&entry, 1})->step, {{.tokens = values}});
    ASSERT_TRUE(cache_->commit_tree(live.sequence, 1));
    not_now([&] { return cache_->preempt(live.sequence, Preempt::Save); },
            "preempt: sequence 0: moves of a committed tree are not made yet");
    ASSERT_TRUE(cache_->append(live.sequence, {.tokens = std::vector<TokenId>{10}}));
    const StepEntry next{&live.sequence};
    const Step step = *cache_->plan_step({&next, 1})->step;
    finish(step, {{}});
    EXPECT_TRUE(save(live.sequence));
    EXPECT_EQ(resume(live.sequence)->matched_tokens, 7U);
  }
  expect_all_free();
  cache_.reset();  // before its memory goes
}

TEST_F(ChangesInput, WhatCannotBeComputedAgainIsNotDropped) {
  Live live = computed(token_range(0, 20));
  watch(live);
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 8}));
  refused([&] { return cache_->preempt(live.sequence, Preempt::Drop); }, ErrorCode::Unsupported,
          "preempt: sequence 0 saw 20 tokens before its window of 8 was set");
}

TEST_F(ChangesInput, ReceivingWhatCannotArriveIsRefused) {
  open(changes_config(4));
  Live live = admitted(token_range(0, 12));
  watch(live);
  bad([&] { return cache_->prepare_receive(live.sequence, 0); },
      "prepare_receive: sequence 0 has 12 tokens without K and V; token_count is 0");
  bad([&] { return cache_->prepare_receive(live.sequence, 13); }, "token_count is 13");
  bad([&] { return cache_->finish_receive(live.sequence); }, "finish_receive: sequence 0 is not receiving");
  bad([&] { return cache_->abort_receive(live.sequence); }, "abort_receive: sequence 0 is not receiving");
  Live other = computed(token_range(40, 8), {.publish = Publish::None});
  watch(other);
  not_now([&] { return cache_->prepare_receive(live.sequence, 12); },
          "prepare_receive: sequence 0 needs 3 pages; 2 are free or can be evicted");
  ASSERT_TRUE(cache_->prepare_receive(live.sequence, 6));
  const std::string busy = "sequence 0 is receiving tokens; finish_receive or abort_receive comes first";
  const SlotRun slots{.first_slot = 0, .token_count = 4};
  not_now([&] { return cache_->prepare_receive(live.sequence, 1); }, "prepare_receive: " + busy);
  not_now([&] { return cache_->rewind(live.sequence, 1); }, "rewind: " + busy);
  not_now([&] { return cache_->preempt(live.sequence, Preempt::Drop); }, "preempt: " + busy);
  not_now([&] { return cache_->set_window(live.sequence, {.visible_tokens = 4}); }, "set_window: " + busy);
  not_now([&] { return cache_->mark_send(live.sequence, 0, {&slots, 1}, 0); }, "mark_send: " + busy);
  refused_plan({{&live.sequence, 1}}, "entry 0: " + busy);
  bad([&] { return cache_->fork(live.sequence, 1); }, "fork: sequence 0 has 0 computed tokens, and more in flight");
  ASSERT_TRUE(cache_->abort_receive(live.sequence));
}

TEST_F(ChangesInput, AReceiverBeginsBetweenPagesAndWithinItsWindow) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  watch(source);
  watch(fork);
  append(fork, token_range(70, 12));
  not_now([&] { return cache_->prepare_receive(fork.sequence, 2); },
          "prepare_receive: sequence 1 begins inside a page that a step has to copy first");
  Live windowed = admitted(token_range(40, 20));
  watch(windowed);
  ASSERT_TRUE(cache_->set_window(windowed.sequence, {.visible_tokens = 8}));
  refused([&] { return cache_->prepare_receive(windowed.sequence, 9); }, ErrorCode::Unsupported,
          "prepare_receive: sequence 2 has a window of 8 tokens and cannot receive beyond it; token 8 was asked for");
}

TEST_F(ChangesInput, SlotsThatCannotBeSentToAreRefused) {
  CacheConfig config = changes_config();
  config.context_tokens_max = 20;
  open(std::move(config));
  Live live = computed(token_range(0, 10));
  watch(live);
  const auto mark = [&](std::uint32_t begin, const std::vector<SlotRun>& slots, std::int32_t receiver) {
    return [this, &live, begin, slots, receiver] { return cache_->mark_send(live.sequence, begin, slots, receiver); };
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  bad(mark(0, {{0, 4}}, -1), "mark_send: sequence 0 needs a receiver from 0 on; receiver is -1");
  bad(mark(0, {{0, 4}, {8, 0}}, 0), "mark_send: sequence 0 has a run of slots without slots: run 1 begins at 8");
  bad(mark(0, {{-1, 4}}, 0), "run 0 begins at -1 and has 4 tokens");
  bad(mark(0, {{0, 21}}, 0), "21 from 0 on were given");
  bad(mark(15, {{0, 6}}, 0), "6 from 15 on were given");
  bad(mark(UINT32_MAX, {{0, 1}}, 0), "1 from 4,294,967,295 on were given");
  bad(mark(4, {{0, kMost}, {0, kMost}}, 0), "context_tokens_max = 20");
  bad(mark(0, std::vector<SlotRun>(21, {0, 1}), 0), "21 from 0 on were given");
  ASSERT_TRUE(mark(0, {{0, 20}}, 0)());
  append(live, {50});
  refused_plan({{.sequence = &live.sequence, .draft_count = 2}}, "sequence 0 is marked for sending");
  bad([&] { return cache_->set_window(live.sequence, {.visible_tokens = 4}); },
      "set_window: sequence 0 is marked for sending");
  Live windowed = admitted(token_range(40, 8));
  ASSERT_TRUE(cache_->set_window(windowed.sequence, {.visible_tokens = 4}));
  bad([&] { return cache_->mark_send(windowed.sequence, 0, std::vector<SlotRun>{{0, 4}}, 0); },
      "mark_send: sequence 1 has a window; its tokens cannot be sent");
}

TEST_F(ChangesInput, ARefusedResizeLeavesPendingMovesAlone) {
  CacheConfig config = changes_config(8);
  config.context_tokens_max = 16;
  open(std::move(config));
  Live live = computed(token_range(0, 4));
  watch(live);
  const std::vector<std::int32_t> parents(8, -1);
  const std::vector<TokenId> values = token_range(70, 8);
  const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  compute_tree(step, 0, live, parents, values);
  finish(step, {{.tokens = values}});
  const Live high = computed(token_range(20, 16), {.publish = Publish::None});
  watch(high);
  ASSERT_TRUE(cache_->commit_tree(live.sequence, 7));
  live.tokens.push_back(77);
  EXPECT_EQ(stats().fenced_pages, 1U);
  not_now([&] { return cache_->resize(5); }, "cannot shrink the pool from 8 to 5 pages: page 6 is private");
  expect_good(live);
}

TEST_F(ChangesInput, AStepOfAnotherCacheIsRefused) {
  const Live live = admitted(token_range(0, 8));
  const Step mine = plan({{&live.sequence}});
  const std::unique_ptr<Cache> other = open_cache(changes_config());
  const Sequence theirs = other->begin(other->key_space({.model = "test"}).value(), {.tokens = live.tokens}).value();
  ASSERT_TRUE(other->admit(theirs));
  const StepEntry entry{&theirs};
  const Step step = *other->plan_step({&entry, 1})->step;
  ASSERT_EQ(step.number, mine.number);
  const std::vector<StepResult> results(1);
  expect_error(cache_->finish_step(step, results), ErrorCode::InvalidArgument, "step 1 was planned by another cache");
  expect_error(cache_->abort_step(step), ErrorCode::InvalidArgument, "step 1 was planned by another cache");
  expect_error(cache_->apply_copies(step), ErrorCode::InvalidArgument, "step 1 was planned by another cache");
  expect_error(cache_->finish_step({}, results), ErrorCode::InvalidArgument, "step 0 was never planned");
  finish(mine, {{}});
}

TEST_F(ChangesInput, DraftsWithoutEndAreRefusedAtOnce) {
  const Live live = admitted(token_range(0, 8));
  const StepEntry entry{.sequence = &live.sequence, .draft_count = UINT32_MAX};
  expect_error(cache_->plan_step({&entry, 1}), ErrorCode::InvalidArgument,
               "entry 0: sequence 0 would have 4,294,967,303 tokens; context_tokens_max is 256");
}

TEST_F(ChangesInput, AShapeForAWindowHoldsForEver) {
  CacheConfig config = changes_config();
  config.plan.page_tables = PageTables::Block;
  open(std::move(config));
  Live live = admitted(token_range(0, 8));
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 8, .sink_tokens = 2}));
  const std::vector<TokenId> next = {5};
  for (std::uint32_t i = 0; i < 40; ++i) {
    const StepEntry entry{&live.sequence};
    const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1}, {.entries = 1, .tokens = 8, .columns = 4});
    ASSERT_TRUE(outcome.has_value()) << outcome.error().message;
    finish(*outcome->step, {{.tokens = next}});
  }
}

}  // namespace
}  // namespace quire
