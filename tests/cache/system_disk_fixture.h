// SPDX-License-Identifier: Apache-2.0
//
// For tests of the disk tier as users have it: a cache with threads and a mover of its own, on files of the system.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_for_tests.h"
#include "cache_fixture.h"
#include "engine_copies.h"
#include "testing/temp_directory.h"

namespace quire {

class SystemDiskTest : public CacheTest {
 protected:
  static constexpr std::uint32_t kPageTokens = 16;

  [[nodiscard]] CacheConfig disk_config(std::uint32_t page_count = 64, std::uint32_t host_page_count = 128) const {
    CacheConfig config = test_config(kPageTokens, page_count);
    config.host.page_count = host_page_count;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.disk.directories = {directory_.path() + "/pages"};
    config.disk.capacity_bytes = 64 << 20U;
    config.disk.segment_bytes = 1 << 20U;
    return config;
  }
  using CacheTest::open;
  /// With files that the test can make fail; they must outlive the cache.
  void open(CacheConfig config, FileSystem& files) {
    Result<std::unique_ptr<Cache>> cache = CacheForTests::open(std::move(config), files);
    ASSERT_TRUE(cache.has_value()) << cache.error().message;
    cache_ = std::move(*cache);
    engine_ = std::make_unique<ByteEngine>(*cache_);
    space_ = cache_->key_space({.model = "test"}).value();
  }
  void close() {
    engine_.reset();
    cache_.reset();
  }
  void flush() {
    for (;;) {
      const Result<bool> done = cache_->flush();
      ASSERT_TRUE(done.has_value()) << done.error().message;
      if (*done) return;
      drain(*cache_, now_);
    }
  }
  void restart(CacheConfig config) {
    flush();
    close();
    open(std::move(config));
  }
  /// A whole request; gives the tokens that it did not have to compute.
  std::uint32_t serve(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) {
    return serve_in(space_, 0, tokens, options);
  }
  std::uint32_t serve_in(KeySpaceId space, std::uint64_t salt, const std::vector<TokenId>& tokens,
                         const SequenceOptions& options = {}) {
    Sequence sequence = cache_->begin(space, {.tokens = tokens}, options).value();
    Result<Admission> admission = cache_->admit(sequence);
    if (!admission && admission.error().code == ErrorCode::Unavailable) {  // pages leave for the host to make room
      drain(*cache_, now_);
      admission = cache_->admit(sequence);
    }
    EXPECT_TRUE(admission.has_value()) << admission.error().message;
    drain(*cache_, now_);
    const SequenceView view = cache_->view(sequence).value();
    EXPECT_FALSE(view.is_loading);
    miss_ = view.miss;
    view_ = view;
    const StepEntry entry{&sequence};
    for (;;) {
      const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
      if (!outcome.step) {
        EXPECT_GT(outcome.shortage.pages_leaving, 0U);
        drain(*cache_, now_);
        continue;
      }
      EXPECT_TRUE(testing::apply_copies(*cache_, *outcome.step));
      engine_->run(outcome.step->plan.entries[0], salt, tokens);
      const StepResult result;
      EXPECT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
      break;
    }
    EXPECT_TRUE(cache_->end(sequence));
    drain(*cache_, now_);
    expect_invariants();
    return view.computed_tokens;
  }

  testing::TempDirectory directory_;
  TimeNs now_ = 0;
  Miss miss_;
  SequenceView view_;  // of the last request, as it was admitted
};

}  // namespace quire
