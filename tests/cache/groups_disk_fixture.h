// SPDX-License-Identifier: Apache-2.0
//
// For tests of layouts of several groups with a disk tier in a directory of its own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"
#include "testing/temp_directory.h"

namespace quire {

inline constexpr std::uint32_t kGroupsDiskPageTokens = 16;

class CacheGroupsDiskTest : public CacheGroupsTest {
 protected:
  [[nodiscard]] CacheConfig disk_config(std::vector<CacheGroup> groups, std::uint32_t page_count = 64) const {
    CacheConfig config = groups_config(std::move(groups), kGroupsDiskPageTokens, page_count, 512);
    config.host.page_count = 2 * page_count;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.disk.directories = {directory_.path() + "/pages"};
    config.disk.capacity_bytes = 64 << 20U;
    config.disk.segment_bytes = 1 << 20U;
    return config;
  }
  void flush() {
    for (;;) {
      const Result<bool> done = cache_->flush();
      ASSERT_TRUE(done.has_value()) << done.error().message;
      if (*done) return;
      drain(*cache_, now_);
    }
  }
  void close() {
    engine_.reset();
    cache_.reset();
  }
  void restart(CacheConfig config) {
    flush();
    close();
    open(std::move(config));
  }
  bool wait_for_pages() override {
    drain(*cache_, now_);
    return true;
  }
  /// A whole request, every byte of which is checked; gives what it found, tokens to be replayed not counted.
  std::uint32_t serve(std::vector<TokenId> tokens, std::uint32_t chunk = UINT32_MAX) {
    GroupsRequest request = start(std::move(tokens));
    drain(*cache_, now_);
    view_ = view(request);
    view_.pages = {};
    EXPECT_FALSE(view_.is_loading);
    run_all(request, {}, chunk);
    end(request);
    drain(*cache_, now_);
    expect_invariants();
    return view_.token_count - view_.pending_tokens;
  }

  testing::TempDirectory directory_;
  TimeNs now_ = 0;
  SequenceView view_;  // of the last request, as it was admitted
};

struct MixCase {
  std::string name;
  std::vector<CacheGroup> groups;
  std::uint32_t found = 0;  // of a prompt of 200 tokens that goes on with others
};

[[nodiscard]] inline std::vector<MixCase> mixes() {
  CacheGroup sink = window_group(40);
  sink.sink_tokens = 5;
  sink.keys_rotated = false;
  CacheGroup draft = full_group("draft");
  draft.lookahead_tokens = 1;
  return {
      {"Draft", {full_group(), draft}, 192},
      {"DraftOnly", {draft}, 192},
      {"DraftAndState", {full_group(), draft, state_group(0, every(64))}, 192},
      {"Window", {full_group(), window_group(40)}, 192},
      {"Sink", {full_group(), sink}, 192},
      {"State", {full_group(), state_group(0, every(64))}, 192},
      {"StateWithHistory", {full_group(), state_group(3, every(64))}, 192},
      {"Ring", {full_group(), ring_group(40, 48, every(64))}, 192},
      {"Compressed", {full_group(), compressed_group(4), named(compressed_group(16), "more")}, 192},
      {"Tail", {compressed_group(4), tail_group(4, 4, 8, every(32)), window_group(33)}, 192},
      {"WindowOnly", {window_group(20)}, 192},
      {"StateOnly", {state_group(0, every(64))}, 192},
      {"Everything",
       {compressed_group(4), named(compressed_group(16), "more"), window_group(50), named(window_group(20), "short"),
        state_group(0, every(96)), ring_group(24, 32, every(64))},
       192},
  };
}

}  // namespace quire
