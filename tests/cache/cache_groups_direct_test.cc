// SPDX-License-Identifier: Apache-2.0
//
// Direct calls to the disk tier with layouts of several groups: what they say is what admit() finds, and bytes that one
// cache reads and another writes serve the other's requests.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "groups_disk_fixture.h"
#include "store/system_files.h"
#include "testing/refused_calls.h"

namespace quire {
namespace {

class CacheGroupsDirectTest : public CacheGroupsDiskTest {
 protected:
  [[nodiscard]] CacheConfig config_in(const std::string& name, std::vector<CacheGroup> groups) const {
    CacheConfig config = disk_config(std::move(groups));
    config.disk.directories = {directory_.path() + "/" + name};
    return config;
  }
  [[nodiscard]] DirectBytes direct(const std::vector<TokenId>& tokens) const {
    return cache_->direct_bytes(static_cast<std::uint32_t>(tokens.size())).value();
  }
  [[nodiscard]] DiskAnswer look(const std::vector<TokenId>& tokens, std::span<const ExtraKey> extra_keys = {}) {
    return ask([&](auto callback) { return cache_->lookup_on_disk(space_, {tokens, extra_keys}, callback); });
  }
  [[nodiscard]] DiskAnswer put(const std::vector<TokenId>& tokens, std::span<const std::byte> bytes,
                               std::span<const ExtraKey> extra_keys = {}) {
    return ask([&](auto callback) { return cache_->put_on_disk(space_, {tokens, extra_keys}, bytes, callback); });
  }
  /// Reads to bytes_.
  [[nodiscard]] DiskAnswer get(const std::vector<TokenId>& tokens, std::span<const ExtraKey> extra_keys = {}) {
    bytes_.assign(direct(tokens).byte_count, std::byte{0xEE});
    return ask([&](auto callback) { return cache_->get_from_disk(space_, {tokens, extra_keys}, bytes_, callback); });
  }
  template <typename Call>
  DiskAnswer ask(Call&& call) {
    std::optional<DiskAnswer> answer;
    const Status status = call([&](const DiskAnswer& given) { answer = given; });
    EXPECT_TRUE(status.has_value()) << status.error().message;
    drain(*cache_, now_);
    EXPECT_TRUE(answer.has_value());
    expect_invariants();
    return answer.value_or(DiskAnswer{});
  }

  std::vector<std::byte> bytes_;
};

// Where bytes lie

TEST_F(CacheGroupsDirectTest, BytesLieGroupByGroupBehindTheHistory) {
  const CacheGroup sink = with_sink(window_group(40), 5);
  open(disk_config({state_group(0, every(64)), full_group(), sink, compressed_group(4)}));
  const DirectBytes bytes = cache_->direct_bytes(200).value();
  const std::uint64_t record = cache_->geometry(1).page().page_bytes() + cache_->geometry(3).page().page_bytes();
  EXPECT_EQ(bytes.token_count, 192U);
  ASSERT_EQ(bytes.parts.size(), 4U);
  for (std::uint32_t g = 0; g < 4; ++g) {
    EXPECT_EQ(bytes.parts[g].group_index, g);
    EXPECT_EQ(bytes.parts[g].page_bytes, cache_->geometry(g).page().page_bytes());
  }
  const auto& [state, full, window, entries] = std::tie(bytes.parts[0], bytes.parts[1], bytes.parts[2], bytes.parts[3]);
  EXPECT_EQ(full.page_count(), 12U);
  EXPECT_EQ(full.stride_bytes, record);
  EXPECT_EQ(*entries.offset_of(3), (3 * record) + full.page_bytes);
  // The snapshot behind 192 tokens, then of the window the sink and the 39 tokens before 192: pages 0 and [9, 12).
  EXPECT_EQ(*state.offset_of(11), 12 * record);
  EXPECT_EQ(state.page_count(), 1U);
  EXPECT_FALSE(state.offset_of(10).has_value());
  EXPECT_EQ(window.page_count(), 4U);
  EXPECT_EQ(*window.offset_of(0), (12 * record) + state.page_bytes);
  EXPECT_FALSE(window.offset_of(8).has_value());
  EXPECT_EQ(*window.offset_of(9), *window.offset_of(0) + window.page_bytes);
  EXPECT_FALSE(window.offset_of(12).has_value());
  EXPECT_EQ(bytes.byte_count, (12 * record) + state.page_bytes + (4 * window.page_bytes));
  EXPECT_EQ(cache_->direct_bytes(15)->byte_count, 0U);
}

TEST_F(CacheGroupsDirectTest, BytesEndWhereEveryGroupMayGoOn) {
  open(disk_config({full_group(), tail_group(24, 4, 48, every(96))}));
  const DirectBytes bytes = cache_->direct_bytes(200).value();
  EXPECT_EQ(bytes.token_count, 192U) << "a multiple of 48";
  EXPECT_EQ(cache_->direct_bytes(191)->token_count, 144U);
  EXPECT_EQ(cache_->direct_bytes(191)->parts[0].page_count(), 9U);
}

TEST_F(CacheGroupsDirectTest, WrongSizesAreRefusedWithTheRightOne) {
  open(disk_config({full_group(), window_group(20)}));
  const std::vector<TokenId> tokens = token_range(0, 64);
  const std::uint64_t wanted = direct(tokens).byte_count;
  std::vector<std::byte> bytes(4 * cache_->geometry(0).page().page_bytes());
  const auto nothing = [](const DiskAnswer&) { FAIL(); };
  for (const Status& status : {cache_->put_on_disk(space_, {.tokens = tokens}, bytes, nothing),
                               cache_->get_from_disk(space_, {.tokens = tokens}, bytes, nothing)}) {
    expect_error(status, ErrorCode::InvalidArgument, "which have " + std::to_string(wanted));
    expect_error(status, ErrorCode::InvalidArgument, "direct_bytes() tells");
  }
  CacheConfig without = disk_config({full_group(), window_group(20)});
  without.disk = {};
  close();
  open(std::move(without));
  expect_error(cache_->direct_bytes(64), ErrorCode::Unsupported, "no disk tier");
  expect_error(cache_->put_on_disk(space_, {.tokens = tokens}, bytes, nothing), ErrorCode::Unsupported, "no disk tier");
}

// Round trips

class CacheGroupsDirectMixTest : public CacheGroupsDirectTest, public ::testing::WithParamInterface<GroupMix> {};

// What one cache has computed and flushed is read, written to the files of another, and found by its requests, which
// read every byte of it.
TEST_P(CacheGroupsDirectMixTest, BytesOfOneCacheServeAnother) {
  const std::vector<CacheGroup>& groups = GetParam().groups;
  const std::vector<TokenId> prompt = token_range(0, 200);
  open(config_in("first", groups));
  EXPECT_EQ(look(prompt).token_count, 0U);
  serve(prompt);
  flush();
  EXPECT_EQ(look(prompt).token_count, 192U);
  const DiskAnswer read = get(prompt);
  EXPECT_EQ(read.outcome, TransferOutcome::Ok);
  EXPECT_EQ(read.token_count, 192U);
  EXPECT_EQ(read.replay_tokens, 0U);
  const std::vector<std::byte> bytes = bytes_;
  close();
  open(config_in("second", groups));
  EXPECT_EQ(get(prompt).token_count, 0U);
  const DiskAnswer written = put(prompt, bytes);
  EXPECT_EQ(written.outcome, TransferOutcome::Ok);
  EXPECT_EQ(written.token_count, 192U);
  EXPECT_EQ(get(prompt).token_count, 192U);
  EXPECT_EQ(bytes_, bytes);
  EXPECT_EQ(serve(with_tail(prompt, 1, 30)), 192U);
  EXPECT_GT(view_.disk_tokens, 0U);
  restart(config_in("second", groups));
  EXPECT_EQ(serve(with_tail(prompt, 2, 30)), 192U);
  EXPECT_EQ(cache_->disk_status()->last_error, "");
}

// After a restart memory has nothing, and a request finds what the direct call says.
TEST_P(CacheGroupsDirectMixTest, LookupsSayWhatRequestsFind) {
  const auto config = [&] {
    CacheConfig made = config_in("pages", GetParam().groups);
    for (const CacheGroup& group : GetParam().groups) {
      made.disk.group_retention.push_back(has_slot(group) || group.kind == GroupKind::Window ? every(48)
                                                                                             : GroupRetention{});
    }
    return made;
  };
  open(config());
  serve(token_range(0, 200));
  serve(with_tail(token_range(0, 90), 5, 150));
  std::vector<std::vector<TokenId>> prompts = {with_tail(with_tail(token_range(0, 90), 5, 150), 6, 5)};
  for (const std::uint32_t shared : {200U, 130U, 90U, 50U, 10U}) {
    prompts.push_back(with_tail(token_range(0, shared), static_cast<TokenId>(shared), 21));
  }
  for (const std::vector<TokenId>& prompt : prompts) {
    restart(config());
    const DiskAnswer answer = look(prompt);
    EXPECT_EQ(serve(prompt), answer.token_count - answer.replay_tokens) << prompt.size();
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheGroupsDirectMixTest, ::testing::ValuesIn(mixes()),
                         [](const auto& param) { return param.param.name; });

// Prompts of one page to many, and extra keys, as many as there may be.
TEST_F(CacheGroupsDirectTest, ShortPromptsAndExtraKeysGoThroughToo) {
  const CacheGroup draft = draft_group(2);
  for (const bool has_draft : {false, true}) {
    std::vector<CacheGroup> groups = {full_group(), window_group(40), state_group(0, every(16))};
    if (has_draft) groups.push_back(draft);
    CacheConfig config = config_in(has_draft ? "draft" : "plain", groups);
    config.extra_key_count_max = 3;
    open(std::move(config));
    for (std::uint32_t length = 5; length < 100; length += 7) {
      const std::vector<TokenId> tokens = with_tail({}, static_cast<TokenId>(length), length);
      std::array<ExtraKey, 3> keys;
      for (std::uint32_t i = 0; i < 3; ++i) keys[i] = {.begin = i, .end = i + 1, .item = {std::uint8_t(i)}};
      if (length > 60) keys[2] = {.begin = 40, .end = 60, .item = {9}};
      std::vector<std::byte> bytes(direct(tokens).byte_count);
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(mix64(i + length) & 0xFFU);
      const std::uint32_t wanted = (length - (has_draft ? 2 : 0)) / 16 * 16;
      EXPECT_EQ(put(tokens, bytes, keys).token_count, wanted) << length;
      EXPECT_EQ(look(tokens, keys).token_count, wanted);
      EXPECT_EQ(look(tokens).token_count, 0U) << "without its images it is another prompt";
      EXPECT_EQ(get(tokens, keys).token_count, wanted);
      EXPECT_EQ(bytes_, bytes);
    }
    close();
  }
}

// What does not come

TEST_F(CacheGroupsDirectTest, AShorterHistoryServesNothingThatItsWindowLacks) {
  open(disk_config({full_group(), window_group(40)}));
  const std::vector<TokenId> prompt = token_range(0, 200);
  serve(token_range(0, 70));
  flush();
  // 64 tokens of the history are there, and of the pages that a window needs at 192 none.
  EXPECT_EQ(look(prompt).token_count, 64U);
  EXPECT_EQ(get(prompt).token_count, 0U);
  EXPECT_EQ(get(token_range(0, 64)).token_count, 64U);
}

TEST_F(CacheGroupsDirectTest, AWindowThatDoesNotReadWellServesNothing) {
  const auto config = [&] { return disk_config({full_group(), window_group(20), state_group(0, every(64))}); };
  const std::vector<TokenId> prompt = token_range(0, 200);
  open(config());
  serve(prompt);
  flush();
  close();
  ASSERT_GT(spoil("window"), 0U);
  open(config());
  const DiskAnswer answer = get(prompt);
  EXPECT_EQ(answer.outcome, TransferOutcome::Failed);
  EXPECT_EQ(answer.token_count, 0U);
  EXPECT_GT(cache_->disk_status(1)->corrupt_page_total, 0U);
  EXPECT_EQ(look(prompt).token_count, 128U) << "two of its pages are known to be bad by now";
}

TEST_F(CacheGroupsDirectTest, AWindowThatCanBeRebuiltIsSaidToBeMissing) {
  const CacheGroup window = rebuilt(window_group(20), 24);
  const auto config = [&] { return disk_config({full_group(), window}); };
  const std::vector<TokenId> prompt = token_range(0, 200);
  open(config());
  serve(prompt);
  flush();
  EXPECT_TRUE(get(prompt).rebuilt_groups.empty());
  close();
  ASSERT_GT(spoil("window"), 0U);
  open(config());
  const DiskAnswer answer = get(prompt);
  EXPECT_EQ(answer.outcome, TransferOutcome::Failed);
  EXPECT_EQ(answer.token_count, 192U);
  EXPECT_EQ(answer.replay_tokens, 24U);
  EXPECT_EQ(answer.rebuilt_groups, std::vector<std::uint32_t>{1});
}

TEST_F(CacheGroupsDirectTest, AGroupThatIsNotOnDiskHasNoBytes) {
  const CacheGroup window = rebuilt(window_group(20), 24);
  CacheConfig config = disk_config({full_group(), window});
  config.disk.group_retention = {{}, kNone};
  open(std::move(config));
  const std::vector<TokenId> prompt = token_range(0, 200);
  EXPECT_EQ(direct(prompt).parts.size(), 1U);
  serve(prompt);
  flush();
  for (const DiskAnswer& answer : {look(prompt), get(prompt)}) {
    EXPECT_EQ(answer.outcome, TransferOutcome::Ok);
    EXPECT_EQ(answer.token_count, 192U);
    EXPECT_EQ(answer.replay_tokens, 24U);
    EXPECT_EQ(answer.rebuilt_groups, std::vector<std::uint32_t>{1});
  }
}

TEST_F(CacheGroupsDirectTest, WhatWasDroppedMeanwhileIsNotRead) {
  open(disk_config({full_group(), window_group(20)}));
  const std::vector<TokenId> prompt = token_range(0, 64);
  serve(prompt);
  flush();
  bytes_.resize(direct(prompt).byte_count);
  std::optional<DiskAnswer> answer;
  ASSERT_TRUE(cache_->drop(space_));
  space_ = cache_->key_space({.model = "test"}).value();
  ASSERT_TRUE(
      cache_->get_from_disk(space_, {.tokens = prompt}, bytes_, [&](const DiskAnswer& given) { answer = given; }));
  drain(*cache_, now_);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->token_count, 0U);
}

// Calls on files of one group fail, while the others' go well.
std::atomic<int> failing_writes = 0;
std::atomic<int> failing_reads = 0;
std::atomic<int> failing_reserves = 0;

bool is_in_failing_group(int file) {
  std::array<char, 512> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  return ::readlink(link.c_str(), path.data(), path.size() - 1) > 0 &&
         std::strstr(path.data(), "/group-window/") != nullptr;
}

FileCalls calls_failing_in_a_group() {
  failing_writes = 0;
  failing_reads = 0;
  failing_reserves = 0;
  FileCalls calls = testing::calls_without({.uring = true});
  calls.write = [](int file, const void* data, std::size_t bytes, off_t offset) -> ssize_t {
    if (failing_writes == 0 || !is_in_failing_group(file)) return FileCalls::real().write(file, data, bytes, offset);
    errno = failing_writes;
    return -1;
  };
  calls.read = [](int file, void* data, std::size_t bytes, off_t offset) -> ssize_t {
    if (failing_reads == 0 || !is_in_failing_group(file)) return FileCalls::real().read(file, data, bytes, offset);
    errno = failing_reads;
    return -1;
  };
  calls.reserve = [](int file, std::uint64_t bytes) {
    if (failing_reserves == 0 || !is_in_failing_group(file)) return FileCalls::real().reserve(file, bytes);
    errno = failing_reserves;
    return -1;
  };
  return calls;
}

class CacheGroupsFailingDirectTest : public CacheGroupsDirectTest {
 protected:
  ~CacheGroupsFailingDirectTest() override { close(); }  // before its files go

  FileCalls calls_ = calls_failing_in_a_group();
  SystemFiles files_{calls_};
};

TEST_F(CacheGroupsFailingDirectTest, AWriteThatFailsInOneGroupLeavesNothingToGoOnFrom) {
  const auto config = [&] { return disk_config({full_group(), window_group(20), state_group(0, every(64))}); };
  const std::vector<TokenId> prompt = token_range(0, 200);
  open(config_in("first", {full_group(), window_group(20), state_group(0, every(64))}));
  serve(prompt);
  flush();
  ASSERT_EQ(get(prompt).token_count, 192U);
  const std::vector<std::byte> bytes = bytes_;
  close();
  open(config(), files_);
  for (const bool is_full : {true, false}) {
    // A full disk takes pages again when it has room, a broken one when the cache is opened again.
    SCOPED_TRACE(is_full);
    const std::vector<TokenId> other = with_tail({}, is_full ? 1 : 2, 200);
    (is_full ? failing_reserves : failing_writes) = is_full ? ENOSPC : EIO;
    const DiskAnswer failed = put(other, bytes);
    EXPECT_EQ(failed.outcome, TransferOutcome::Failed);
    EXPECT_EQ(failed.token_count, 0U);
    EXPECT_EQ(cache_->disk_status(0)->page_count, is_full ? 12U : 24U);
    EXPECT_EQ(look(other).token_count, 0U) << "the history is there, and the state, but no window";
    EXPECT_EQ(get(other).token_count, 0U);
    failing_reserves = 0;
    failing_writes = 0;
    if (!is_full) {
      close();
      open(config(), files_);
    }
    const DiskAnswer written = put(other, bytes);
    EXPECT_EQ(written.outcome, TransferOutcome::Ok);
    EXPECT_EQ(written.token_count, 192U);
    EXPECT_EQ(get(other).token_count, 192U);
    EXPECT_EQ(bytes_, bytes);
  }
  EXPECT_EQ(put(prompt, bytes).token_count, 192U);
  EXPECT_EQ(serve(with_tail(prompt, 1, 5)), 192U);
}

TEST_F(CacheGroupsFailingDirectTest, AReadThatFailsInOneGroupServesNothing) {
  const auto config = [&] { return disk_config({full_group(), window_group(20), state_group(0, every(64))}); };
  const std::vector<TokenId> prompt = token_range(0, 200);
  open(config(), files_);
  serve(prompt);
  flush();
  ASSERT_EQ(get(prompt).token_count, 192U);
  failing_reads = EIO;
  const DiskAnswer failed = get(prompt);
  EXPECT_EQ(failed.outcome, TransferOutcome::Failed);
  EXPECT_EQ(failed.token_count, 0U);
  failing_reads = 0;
  EXPECT_LT(look(prompt).token_count, 192U) << "pages that could not be read are gone";
}

}  // namespace
}  // namespace quire
