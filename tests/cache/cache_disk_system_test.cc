// SPDX-License-Identifier: Apache-2.0
//
// The disk tier on files of the system that refuse or fail: the cache serves on, with right bytes, and says what is in
// use and what went wrong.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/hash.h"
#include "store/system_files.h"
#include "system_disk_fixture.h"
#include "testing/failing_calls.h"
#include "wire/segment.h"

namespace quire {
namespace {

using testing::call_failures;
using testing::failing_calls;
using testing::Refused;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class CacheDiskSystem : public SystemDiskTest {
 protected:
  ~CacheDiskSystem() override {
    close();  // before its files go
    call_failures.clear();
  }
  void open_failing(CacheConfig config, const Refused& refused = {}) {
    close();
    calls_ = failing_calls(refused);
    files_ = std::make_unique<SystemFiles>(calls_);
    open(std::move(config), *files_);
  }
  [[nodiscard]] CacheConfig small_segments() const {
    CacheConfig config = disk_config();
    config.disk.segment_bytes = 64 << 10U;
    return config;
  }
  [[nodiscard]] std::string pages_path() const { return directory_.path() + "/pages"; }
  /// Requests of four pages each; each is served a second time, from memory.
  void serve_some(TokenId first, TokenId count) {
    for (TokenId i = first; i < first + count; ++i) {
      (void)serve(token_range(1'000 * i, 65));
      EXPECT_EQ(serve(token_range(1'000 * i, 65)), 64U) << i;
    }
  }
  void forget_memory() {
    EXPECT_TRUE(cache_->sleep(Sleep::DropAll).value());
    EXPECT_TRUE(cache_->wake());
  }
  void expect_failed(const std::string& why) {
    EXPECT_TRUE(stats().disk_has_failed);
    EXPECT_FALSE(stats().disk_is_on);
    EXPECT_TRUE(contains(cache_->disk_status()->last_error, why)) << cache_->disk_status()->last_error;
    EXPECT_EQ(cache_->disk_status()->failed_directory_count, 1U);
    const Result<bool> flushed = cache_->flush();
    ASSERT_FALSE(flushed.has_value());
    EXPECT_TRUE(contains(flushed.error().message, why)) << flushed.error().message;
    EXPECT_FALSE(cache_->lookup_on_disk(space_, {.tokens = token_range(0, 64)}, nullptr));
    serve_some(500, 3);
  }

  FileCalls calls_ = FileCalls::real();
  std::unique_ptr<SystemFiles> files_;
};

// ── Modes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(CacheDiskSystem, TheModeInUseIsSaidAndEachServes) {
  for (const Refused& refused :
       {Refused{}, Refused{.uring = true}, Refused{.registered_buffers = true}, Refused{.direct = true},
        Refused{.uring = true, .registered_buffers = true, .direct = true, .reserved_space = true}}) {
    std::filesystem::remove_all(pages_path());
    for (const std::uint32_t known_tokens : {0U, 64U}) {
      open_failing(small_segments(), refused);
      for (TokenId i = 0; i < 10; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 65)), known_tokens);
      flush();
      const DiskStatus status = cache_->disk_status().value();
      // A system may refuse more than the test does.
      EXPECT_EQ(status.uses_io_uring, !contains(status.refusals, "io_uring: ")) << status.refusals;
      EXPECT_EQ(status.is_direct, !contains(status.refusals, "O_DIRECT in ")) << status.refusals;
      EXPECT_TRUE(!refused.uring || contains(status.refusals, "io_uring: Operation not permitted"));
      EXPECT_TRUE(!refused.direct || contains(status.refusals, "O_DIRECT in " + pages_path() + ": Invalid argument"));
      EXPECT_EQ(status.has_registered_buffers,
                status.uses_io_uring && !contains(status.refusals, "registered buffers: "));
      EXPECT_FALSE(refused.registered_buffers && status.has_registered_buffers);
      EXPECT_EQ(status.last_error, "");
      EXPECT_EQ(status.page_count, 40U);
      EXPECT_TRUE(stats().disk_is_on);
    }
  }
}

// ── Failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(CacheDiskSystem, AFullDiskIsSaidAndTheCacheGoesOnUntilThereIsRoom) {
  open_failing(small_segments());
  call_failures.reserve = ENOSPC;
  serve_some(0, 10);
  EXPECT_TRUE(stats().disk_is_on);
  EXPECT_FALSE(stats().disk_has_failed);
  EXPECT_TRUE(contains(cache_->disk_status()->last_error, "No space left on device"));
  EXPECT_EQ(cache_->disk_status()->page_count, 0U);
  call_failures.clear();
  serve_some(20, 5);
  flush();
  forget_memory();
  for (TokenId i = 20; i < 25; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 65)), 64U) << "from disk";
}

TEST_F(CacheDiskSystem, WithoutADiskThatBreaksUnderWritesTheCacheGoesOn) {
  for (const bool has_uring : {true, false}) {
    std::filesystem::remove_all(pages_path());
    open_failing(small_segments(), {.uring = !has_uring});
    serve_some(0, 5);
    call_failures.write = EIO;
    serve_some(5, 10);
    expect_failed("Input/output error");
  }
}

TEST_F(CacheDiskSystem, ASyncThatFailsFailsTheFlush) {
  open_failing(small_segments());
  serve_some(0, 2);
  call_failures.sync_data = EIO;
  Result<bool> flushed = false;
  while (flushed.has_value() && !*flushed) {
    flushed = cache_->flush();
    drain(*cache_);
  }
  ASSERT_FALSE(flushed.has_value());
  EXPECT_TRUE(contains(flushed.error().message, "Input/output error")) << flushed.error().message;
  call_failures.clear();
  EXPECT_TRUE(stats().disk_is_on) << "once is not always";
  serve_some(10, 3);
  flush();
  close();
  open(small_segments());
  for (TokenId i = 10; i < 13; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 65)), 64U);
}

TEST_F(CacheDiskSystem, ReadsThatFailAreMisses) {
  for (const bool has_uring : {true, false}) {
    std::filesystem::remove_all(pages_path());
    open_failing(small_segments(), {.uring = !has_uring});
    serve_some(0, 4);
    flush();
    forget_memory();
    call_failures.read = EIO;
    EXPECT_EQ(serve(token_range(0, 65)), 0U);
    EXPECT_EQ(miss_.reason, MissReason::LoadFailed);
    EXPECT_TRUE(contains(cache_->disk_status()->last_error, "Input/output error"));
    call_failures.clear();
    EXPECT_EQ(serve(token_range(1'000, 65)), 64U) << "others are still there";
    EXPECT_TRUE(stats().disk_is_on);
  }
}

TEST_F(CacheDiskSystem, WithoutADiskThatBecomesReadOnlyTheCacheGoesOn) {
  open_failing(small_segments());
  serve_some(0, 5);
  call_failures.make_read_only();
  serve_some(5, 10);
  expect_failed("Read-only file system");
  close();
  const auto refused = CacheForTests::open(small_segments(), *files_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(contains(refused.error().message, "Read-only file system")) << refused.error().message;
}

TEST_F(CacheDiskSystem, WithoutADirectoryThatIsRemovedTheCacheGoesOn) {
  open_failing(small_segments());
  serve_some(0, 3);
  std::filesystem::remove_all(pages_path());
  serve_some(3, 20);
  expect_failed("No such file or directory");
}

TEST_F(CacheDiskSystem, AFileThatIsRemovedTakesItsPagesOnly) {
  open_failing(small_segments());
  serve_some(0, 20);
  flush();
  std::filesystem::remove(pages_path() + "/" + segment_file_name(2));
  serve_some(20, 5);
  flush();
  open_failing(small_segments());
  std::uint32_t hit_count = 0;
  for (TokenId i = 0; i < 25; ++i) hit_count += serve(token_range(1'000 * i, 65)) == 64 ? 1 : 0;
  EXPECT_GE(hit_count, 18U);
  EXPECT_LT(hit_count, 25U);
  EXPECT_TRUE(stats().disk_is_on);
}

TEST_F(CacheDiskSystem, WithoutFilesToOpenTheCacheGoesOnUntilThereAreSome) {
  open_failing(small_segments());
  serve_some(0, 3);
  call_failures.create = EMFILE;
  serve_some(3, 20);
  EXPECT_TRUE(stats().disk_is_on);
  EXPECT_FALSE(stats().disk_has_failed);
  EXPECT_TRUE(contains(cache_->disk_status()->last_error, "Too many open files"));
  call_failures.clear();
  serve_some(30, 5);
  flush();
  forget_memory();
  for (TokenId i = 30; i < 35; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 65)), 64U) << "from disk";
  close();
  call_failures.create = EMFILE;
  const auto refused = CacheForTests::open(small_segments(), *files_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(contains(refused.error().message, "Too many open files")) << refused.error().message;
}

TEST_F(CacheDiskSystem, OneOfTwoDirectoriesThatIsRemovedLeavesTheOther) {
  const auto config = [this] {
    CacheConfig made = small_segments();
    made.disk.directories = {directory_.path() + "/a", directory_.path() + "/b"};
    return made;
  };
  open_failing(config());
  serve_some(0, 5);
  std::filesystem::remove_all(directory_.path() + "/a");
  serve_some(5, 30);
  EXPECT_TRUE(stats().disk_is_on);
  EXPECT_FALSE(stats().disk_has_failed);
  EXPECT_EQ(cache_->disk_status()->failed_directory_count, 1U);
  EXPECT_NE(cache_->disk_status()->last_error, "");
  forget_memory();
  EXPECT_EQ(serve(token_range(1'000 * 34, 65)), 64U);
}

// ── Foreign files ────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(CacheDiskSystem, AForeignDirectoryIsRefusedByName) {
  std::filesystem::create_directories(pages_path());
  std::ofstream(pages_path() + "/thesis.txt") << "not a page";
  const auto refused = Cache::open(small_segments());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_TRUE(contains(refused.error().message, "thesis.txt")) << refused.error().message;
  EXPECT_TRUE(std::filesystem::exists(pages_path() + "/thesis.txt"));
}

TEST_F(CacheDiskSystem, ANewerFormatIsRefused) {
  open_failing(small_segments());
  serve_some(0, 2);
  flush();
  close();
  std::fstream file(pages_path() + "/" + std::string(kManifestFileName),
                    std::ios::binary | std::ios::in | std::ios::out);
  std::array<char, 64> head{};
  file.read(head.data(), head.size());
  head[8] = 99;
  const std::uint64_t checksum = hash_bytes(head.data(), 56, 0);
  std::copy_n(reinterpret_cast<const char*>(&checksum), sizeof(checksum), head.data() + 56);
  file.seekp(0);
  file.write(head.data(), head.size());
  file.close();
  const auto refused = Cache::open(small_segments());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unsupported);
  EXPECT_TRUE(contains(refused.error().message, "newer quire")) << refused.error().message;
}

TEST_F(CacheDiskSystem, ASegmentOfAnotherStoreIsNotServed) {
  open_failing(small_segments());
  serve_some(0, 2);
  flush();
  close();
  const std::string others = directory_.path() + "/others";
  std::filesystem::rename(pages_path(), others);
  open_failing(small_segments());
  serve_some(10, 2);
  flush();
  close();
  std::filesystem::copy(others + "/" + segment_file_name(1), pages_path() + "/" + segment_file_name(7));
  open_failing(small_segments());
  EXPECT_EQ(serve(token_range(0, 65)), 0U);
  EXPECT_EQ(serve(token_range(10'000, 65)), 64U);
  EXPECT_EQ(cache_->disk_status()->ignored_file_count, 1U);
}

}  // namespace
}  // namespace quire
