// SPDX-License-Identifier: Apache-2.0
//
// Callbacks that admit() and resume() are given: called once, when steps can be planned, also if that is at once.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheReady : public TiersTest {
 protected:
  void open_with_prompt_on_host() {
    open_tiers(tiers_config(8, 16, WritePolicy::WriteThrough));
    put_on_host(token_range(0, 16));
  }
  [[nodiscard]] ReadyCallback noting() {
    return [this](SequenceId id) { called_.push_back(id); };
  }
  std::vector<SequenceId> called_;
};

TEST_F(CacheReady, ACallbackComesBeforeAdmitReturnsWhenThereIsNothingToWaitFor) {
  open(4, 8);  // without a host tier, where nobody calls apply()
  Live live = begun(token_range(0, 8));
  EXPECT_TRUE(cache_->admit(live.sequence, noting()).value().is_ready);
  EXPECT_EQ(called_, std::vector{live.sequence.id()});
  EXPECT_TRUE(cache_->apply({}, 0));
  EXPECT_EQ(called_.size(), 1U) << "once";
  finish(live);
}

TEST_F(CacheReady, ACallbackComesWithTheEndOfTheLoad) {
  open_with_prompt_on_host();
  Live live = begun(token_range(0, 17));
  std::vector<SequenceId> of_all;
  ASSERT_TRUE(cache_->set_ready_callback([&](SequenceId id) { of_all.push_back(id); }));
  EXPECT_FALSE(cache_->admit(live.sequence, noting()).value().is_ready);
  EXPECT_TRUE(called_.empty());
  settle();
  EXPECT_EQ(called_, std::vector{live.sequence.id()});
  EXPECT_EQ(of_all, called_) << "the callback for all sequences stays";
  apply({});
  EXPECT_EQ(called_.size(), 1U);
  finish(live);
}

TEST_F(CacheReady, ACallThatFailsKeepsNoCallback) {
  open_with_prompt_on_host();
  const auto captured = std::make_shared<int>(0);
  Live live = begun(token_range(0, 17));
  EXPECT_TRUE(cache_->admit(live.sequence));
  EXPECT_FALSE(cache_->admit(live.sequence, [captured, this](SequenceId id) { called_.push_back(id); }));
  EXPECT_EQ(captured.use_count(), 1);
  settle();
  EXPECT_TRUE(called_.empty());
  finish(live);
}

TEST_F(CacheReady, StopLoadingCallsIt) {
  open_with_prompt_on_host();
  Live live = begun(token_range(0, 17));
  ASSERT_TRUE(cache_->admit(live.sequence, noting()));
  ASSERT_TRUE(cache_->stop_loading(live.sequence));
  EXPECT_EQ(called_, std::vector{live.sequence.id()});
  settle();
  EXPECT_EQ(called_.size(), 1U);
  finish(live);
}

TEST_F(CacheReady, ASequenceThatEndsBeforeTakesItsCallbackAlong) {
  open_with_prompt_on_host();
  const auto captured = std::make_shared<int>(0);
  for (const bool is_dropped : {false, true}) {
    Live live = begun(token_range(0, 17));
    ASSERT_TRUE(cache_->admit(live.sequence, [captured, this](SequenceId id) { called_.push_back(id); }));
    EXPECT_EQ(captured.use_count(), 2);
    if (is_dropped) {
      live.sequence = {};
      EXPECT_TRUE(cache_->advance(0));
    } else {
      end(live);
    }
    EXPECT_EQ(captured.use_count(), 1);
    Live next = admitted(token_range(0, 17));  // in the same place, and nobody asked for it
    settle();
    EXPECT_TRUE(called_.empty());
    finish(next);
    settle();
    EXPECT_TRUE(cache_->reclaim(UINT32_MAX));
  }
}

TEST_F(CacheReady, ACallbackMayCallTheCache) {
  open_with_prompt_on_host();
  Live first = begun(token_range(0, 17));
  Live second = begun(token_range(0, 17));
  const SequenceId first_id = first.sequence.id();
  // The first one's ends it, and admits another, which is ready then and there.
  ASSERT_TRUE(cache_->admit(first.sequence, [&](SequenceId id) {
    called_.push_back(id);
    EXPECT_TRUE(cache_->end(first.sequence));
    EXPECT_TRUE(cache_->admit(second.sequence, noting()).value().is_ready);
  }));
  settle();
  EXPECT_EQ(called_, (std::vector{first_id, second.sequence.id()}));
  finish(second);
}

TEST_F(CacheReady, ResumeTakesOneToo) {
  open_tiers(tiers_config(8, 16));
  for (const Preempt how : {Preempt::Drop, Preempt::Save}) {
    called_.clear();
    Live live = computed(token_range(100, 10));
    ASSERT_TRUE(cache_->preempt(live.sequence, how));
    settle();
    const Admission admission = cache_->resume(live.sequence, noting()).value();
    EXPECT_EQ(admission.is_ready, called_.size() == 1);
    settle();
    EXPECT_EQ(called_, std::vector{live.sequence.id()});
    finish(live);
    settle();
  }
}

}  // namespace
}  // namespace quire
