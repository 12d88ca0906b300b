// SPDX-License-Identifier: Apache-2.0
//
// For tests of the host tier: a mover that the test drives by hand. It copies real bytes when it is told to, so that
// what is planned, what has moved and what the cache knows of it can be held apart.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "cache_fixture.h"

namespace quire {

/// Host pages as a mover keeps them, and transfers that have been taken.
class HandMover {
 public:
  struct Taken {
    TransferPlan plan;
    std::vector<PageTransfer> pages;
  };

  explicit HandMover(Cache& cache) : cache_(cache) {}

  /// Takes what the cache wants moved.
  void take() {
    std::array<TransferPlan, 4> plans;
    for (;;) {
      const auto taken = cache_.take_transfers(plans).value();
      for (const TransferPlan& plan : taken) {
        waiting.push_back({plan, {plan.pages.begin(), plan.pages.end()}});
        order.push_back(plan.kind);
      }
      if (taken.size() < plans.size()) return;
    }
  }
  /// Moves the bytes of a transfer that was taken, and says what became of it.
  [[nodiscard]] Completion move(std::size_t index) {
    Taken taken = std::move(waiting[index]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(index));
    Completion completion{.id = taken.plan.id};
    const std::uint64_t page_bytes = cache_.geometry().page().page_bytes();
    for (const PageTransfer& page : taken.pages) {
      std::byte* const device = cache_.device_memory() + (page.device_page.value * page_bytes);
      HostPage& host = host_pages[page.host_page.value];
      if (taken.plan.kind == TransferKind::Store) {
        host = {page.host_generation, page.name_tag, {device, device + page_bytes}};
      } else {
        if (host.generation != page.host_generation) completion.fault = TransferFault::Generation;
        if (host.name_tag != page.name_tag) completion.fault = TransferFault::NameTag;
        if (host.is_bad) completion.fault = TransferFault::Checksum;
        if (completion.fault != TransferFault::None) {
          completion.outcome = TransferOutcome::Failed;
          return completion;
        }
        std::memcpy(device, host.bytes.data(), page_bytes);
      }
      ++completion.good_pages;
      completion.moved_bytes += page_bytes;
    }
    completion.busy_ns = static_cast<TimeNs>(completion.moved_bytes);  // one byte per nanosecond
    return completion;
  }
  /// Drops a transfer that was taken without moving anything.
  [[nodiscard]] Completion fail_it(std::size_t index, TransferOutcome outcome, std::uint32_t good_pages = 0) {
    const Completion completion{.id = waiting[index].plan.id,
                                .outcome = outcome,
                                .fault = outcome == TransferOutcome::Failed ? TransferFault::Io : TransferFault::None,
                                .good_pages = good_pages};
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(index));
    return completion;
  }

  struct HostPage {
    std::uint32_t generation = 0;
    std::uint64_t name_tag = 0;
    std::vector<std::byte> bytes;
    bool is_bad = false;
  };
  std::vector<Taken> waiting;
  std::vector<TransferKind> order;  ///< of all that were ever taken
  std::map<std::uint32_t, HostPage> host_pages;

 private:
  Cache& cache_;
};

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
  /// Moves everything until nothing is left to move.
  void settle() {
    for (mover_->take(); !mover_->waiting.empty(); mover_->take()) apply({mover_->move(0)});
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

  std::unique_ptr<HandMover> mover_;
  TimeNs now_ = 0;
};

}  // namespace quire
