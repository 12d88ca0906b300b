// SPDX-License-Identifier: Apache-2.0
//
// Layouts of several groups on disk: what each group keeps there, and what requests find of it after a restart.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cache_groups_fixture.h"
#include "testing/sanitized.h"
#include "testing/temp_directory.h"

namespace quire {
namespace {

constexpr std::uint32_t kPageTokens = 16;

class CacheGroupsDiskTest : public CacheGroupsTest {
 protected:
  [[nodiscard]] CacheConfig disk_config(std::vector<CacheGroup> groups, std::uint32_t page_count = 64) const {
    CacheConfig config = groups_config(std::move(groups), kPageTokens, page_count, 512);
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

std::vector<MixCase> mixes() {
  CacheGroup sink = window_group(40);
  sink.sink_tokens = 5;
  sink.keys_rotated = false;
  return {
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

class CacheGroupsDiskMixTest : public CacheGroupsDiskTest, public ::testing::WithParamInterface<MixCase> {};

TEST_P(CacheGroupsDiskMixTest, AfterARestartEveryGroupIsFound) {
  open(disk_config(GetParam().groups));
  const std::vector<TokenId> prompt = token_range(0, 200);
  EXPECT_EQ(serve(prompt), 0U);
  const std::uint32_t before = serve(with_tail(prompt, 1, 30));
  EXPECT_EQ(before, GetParam().found);
  restart(disk_config(GetParam().groups));
  EXPECT_EQ(serve(with_tail(prompt, 2, 30)), before);
  EXPECT_GT(view_.disk_tokens, 0U);
  EXPECT_GE(serve(with_tail(prompt, 3, 30)), before) << "from memory";
  EXPECT_EQ(view_.disk_tokens, 0U);
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheGroupsDiskMixTest, ::testing::ValuesIn(mixes()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace quire
