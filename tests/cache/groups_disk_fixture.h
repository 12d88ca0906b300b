// SPDX-License-Identifier: Apache-2.0
//
// For tests of layouts of several groups with a disk tier in a directory of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_for_tests.h"
#include "cache_groups_fixture.h"
#include "store/system_files.h"
#include "testing/failing_calls.h"
#include "testing/temp_directory.h"
#include "wire/segment.h"

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
  using CacheGroupsTest::open;
  /// With files that the test can make fail; they must outlive the cache.
  void open(CacheConfig config, FileSystem& files) {
    Result<std::unique_ptr<Cache>> cache = CacheForTests::open(std::move(config), files);
    ASSERT_TRUE(cache.has_value()) << cache.error().message;
    use(std::move(*cache));
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
    EXPECT_FALSE(view_.is_loading);
    run_all(request, {}, chunk);
    end(request);
    drain(*cache_, now_);
    expect_invariants();
    return view_.token_count - view_.pending_tokens;
  }
  /// Changes a byte of every record of a group, while the cache is closed; gives how many there were.
  std::uint32_t spoil(const std::string& group) const {
    std::uint32_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(directory_.path() + "/pages/group-" + group)) {
      if (!file.path().filename().string().starts_with("segment-")) continue;
      std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      const std::uint64_t end = std::min<std::uint64_t>(file.file_size(), 13 * kSegmentBlockBytes);
      for (std::uint64_t block = kSegmentBlockBytes; block < end; block += kSegmentBlockBytes, ++count) {
        const auto at = static_cast<std::streamoff>(block + kRecordHeaderBytes + 5);
        bytes.seekg(at);
        const auto byte = static_cast<char>(bytes.get());
        bytes.seekp(at);
        bytes.put(static_cast<char>(byte ^ 1));
      }
    }
    return count;
  }

  testing::TempDirectory directory_;
  TimeNs now_ = 0;
  SequenceView view_;  // of the last request, as it was admitted
};

/// On a disk that fills up or breaks when a test says so, with testing::call_failures.
class CacheGroupsFailingDiskTest : public CacheGroupsDiskTest {
 protected:
  ~CacheGroupsFailingDiskTest() override {
    close();  // before its files go
    testing::call_failures.clear();
  }
  /// What has been written by then is all that there is.
  void open_failing(CacheConfig config) {
    close();
    open(std::move(config), files_);
  }

  FileCalls calls_ = testing::failing_calls({});
  SystemFiles files_{calls_};
};

/// Of a prompt of 200 tokens that goes on with others, 192 are found.
[[nodiscard]] inline std::vector<GroupMix> mixes() {
  return {
      {"Plain", {full_group()}},
      {"Draft", {full_group(), draft_group(1)}},
      {"DraftOnly", {draft_group(1)}},
      {"DraftAndState", {full_group(), draft_group(1), state_group(0, every(64))}},
      {"Window", {full_group(), window_group(40)}},
      {"Sink", {full_group(), with_sink(window_group(40), 5)}},
      {"State", {full_group(), state_group(0, every(64))}},
      {"StateWithHistory", {full_group(), state_group(3, every(64))}},
      {"Ring", {full_group(), ring_group(40, 48, every(64))}},
      {"Compressed", {full_group(), compressed_group(4), named(compressed_group(16), "more")}},
      {"Tail", {compressed_group(4), tail_group(4, 4, 8, every(32)), window_group(33)}},
      {"WindowOnly", {window_group(20)}},
      {"StateOnly", {state_group(0, every(64))}},
      {"Everything",
       {compressed_group(4), named(compressed_group(16), "more"), window_group(50), named(window_group(20), "short"),
        state_group(0, every(96)), ring_group(24, 32, every(64))}},
  };
}

}  // namespace quire
