// SPDX-License-Identifier: Apache-2.0
//
// Processes that write to a real directory and are killed at any moment, one after the other, hundreds of times. What
// each has reported as flushed is there for the next one, what it dropped and flushed is not, and no wrong byte is
// read. Every second one finds what a killed process left, opens it, and is killed as well.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/file_store.h"
#include "store/system_files.h"
#include "testing/child_process.h"
#include "testing/file_pages.h"
#include "testing/refused_calls.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/temp_directory.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kPageBytes = 6'000;  // two blocks with its header
constexpr std::uint64_t kSegmentBytes = 32 * kSegmentBlockBytes;
constexpr std::uint32_t kChainPages = 4;

/// Pages have numbers, in the order they are written.
TestPage page_of(std::uint64_t number) {
  return {static_cast<std::uint32_t>(number / kChainPages), static_cast<std::uint32_t>(number % kChainPages)};
}

/// What a child says, in the highest byte; a page's number is below it.
enum Report : std::uint64_t {
  kWriting = std::uint64_t{1} << 56U,  ///< pages below the number, from here on
  kFlushed = std::uint64_t{2} << 56U,  ///< all of those
  kDropping = std::uint64_t{3} << 56U,
  kWrong = std::uint64_t{4} << 56U,
};
constexpr std::uint64_t kReportMask = std::uint64_t{0xff} << 56U;

class KilledWriters {
 public:
  struct Options {
    std::uint64_t capacity_bytes = 0;
    int zstd_level = 0;
  };
  KilledWriters(const Options& options, std::uint64_t seed) : random_(seed) {
    config_.directories = {temp_.path() + "/a", temp_.path() + "/b"};
    config_.capacity_bytes = options.capacity_bytes;
    config_.segment_bytes = kSegmentBytes;
    config_.layout = {.page_bytes = kPageBytes, .hash = 7};
    config_.queue_depth = 4;
    config_.zstd_level = options.zstd_level;
  }

  void run(std::uint32_t kill_count, bool has_room_for_all) {
    has_room_for_all_ = has_room_for_all;
    for (std::uint32_t i = 0; i < kill_count && !::testing::Test::HasFailure(); ++i) {
      kill_one();
      if (i % 2 == 1) look(/*at_all=*/i % 15 == 14);
    }
    look(/*at_all=*/true);
    EXPECT_GT(flush_count_, kill_count / 4) << "they ended too early to prove anything";
  }

 private:
  static void skip_syncs(FileCalls& calls) {
    calls.sync_data = [](int) { return 0; };
    calls.sync_directory = [](int) { return 0; };
  }

  void kill_one() {
    config_.random_seed = random_.next();
    const std::uint64_t child_seed = random_.next();
    ChildProcess child([&](const ChildProcess::Reporter& report) { write_for_ever(report, child_seed); });
    const std::uint32_t reports_wanted = random_.below(24);
    for (std::uint32_t i = 0; i < reports_wanted; ++i) {
      const std::optional<std::uint64_t> report = child.hear();
      if (!report) break;
      note(*report);
    }
    idle_work(random_.below(300'000));
    child.kill();
    EXPECT_TRUE(child.was_well());
    while (const std::optional<std::uint64_t> report = child.hear()) note(*report);
    dropping_.clear();  // those may be there or not
    next_page_ = (writing_end_ + kChainPages - 1) / kChainPages * kChainPages;
  }

  void note(std::uint64_t report) {
    const std::uint64_t number = report & ~kReportMask;
    switch (report & kReportMask) {
      case kWriting:
        writing_end_ = number;
        break;
      case kFlushed:
        for (std::uint64_t page = flushed_end_; page < number; ++page) {
          if (page >= next_page_ && !dropping_.contains(page) && !dropped_.contains(page)) flushed_.insert(page);
        }
        flushed_end_ = number;
        ++flush_count_;
        dropped_.insert(dropping_.begin(), dropping_.end());
        dropping_.clear();
        break;
      case kDropping:
        dropping_.insert(number);
        flushed_.erase(number);
        break;
      default:
        ADD_FAILURE() << "a child found page " << number << " wrong, or could not write it";
    }
  }

  // The child's part.
  void write_for_ever(const ChildProcess::Reporter& report, std::uint64_t seed) {
    Random random(seed);
    FileCalls calls = calls_without({.uring = random.below(2) == 0, .direct = random.below(4) == 0});
    // The system goes on, so it has what was written, synced or not. Most do not wait for the disk, and get further.
    if (random.below(8) != 0) skip_syncs(calls);
    SystemFiles files(calls);
    auto opened = FileStore::open(config_, files);
    if (!opened) {
      (void)std::fprintf(stderr, "%s\n", opened.error().message.c_str());
      report(kWrong);
      return;
    }
    FileStore& store = **opened;
    store.check_invariants();
    for (std::uint64_t end = next_page_;;) {
      const std::uint64_t first = end;
      end += 1 + random.below(8);
      report(kWriting | end);
      std::vector<std::vector<std::byte>> bytes;
      std::vector<FileWrite> writes;
      for (std::uint64_t number = first; number < end; ++number) {
        const TestPage page = page_of(number);
        bytes.push_back(bytes_of(page, kPageBytes, page.chain % 2 == 0));
        writes.push_back({.name = name_of(page), .parent = parent_of(page), .page_index = page.index});
        writes.back().bytes = bytes.back();
      }
      store.write(test_key_space(), writes, 1);
      for (const FileWrite& write : writes) {
        if (write.outcome != FileOutcome::Ok) report(kWrong | first);
      }
      const std::uint64_t some = random.next() % end;
      if (const std::string answer = read_page(store, some); !answer.empty() && answer != "absent") {
        report(kWrong | some);
      }
      if (random.below(6) == 0) {
        report(kDropping | some);
        store.drop_page(name_of(page_of(some)), 1);
      }
      if (random.below(3) == 0) {
        if (!store.flush()) report(kWrong | end);
        report(kFlushed | end);
      }
    }
  }

  [[nodiscard]] static std::string read_page(FileStore& store, std::uint64_t number) {
    const TestPage page = page_of(number);
    std::vector<std::byte> bytes(kPageBytes);
    FileRead read{.name = name_of(page), .bytes = bytes};
    store.read({&read, 1});
    if (read.outcome == FileOutcome::Absent) return "absent";
    if (read.outcome != FileOutcome::Ok) return "not readable";
    return bytes == bytes_of(page, kPageBytes, page.chain % 2 == 0) ? "" : "wrong bytes";
  }

  void look(bool at_all) {
    FileCalls calls = FileCalls::real();
    if (!at_all) skip_syncs(calls);
    SystemFiles files(calls);
    auto opened = FileStore::open(config_, files);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    FileStore& store = **opened;
    store.check_invariants();
    EXPECT_LE(store.stats().used_bytes, config_.capacity_bytes);
    EXPECT_EQ(store.stats().last_error, "");
    EXPECT_EQ(store.stats().corrupt_records, 0U);
    for (std::uint64_t number = 0; number < writing_end_; ++number) {
      const bool is_there = has_page(store, page_of(number));
      const bool must_be = flushed_.contains(number) && has_room_for_all_;
      EXPECT_TRUE(is_there || !must_be) << number << " of " << writing_end_;
      EXPECT_FALSE(is_there && dropped_.contains(number)) << number << " was dropped";
      if (!is_there || !(at_all || number + 100 > writing_end_)) continue;
      EXPECT_EQ(read_page(store, number), "") << number;
    }
    // Killed processes leave short segments behind, so there are fewer pages than would fit.
    EXPECT_TRUE(!at_all || has_room_for_all_ || store.stats().live_bytes > config_.capacity_bytes / 8);
    EXPECT_TRUE(store.close());
  }

  TempDirectory temp_;
  FileStoreConfig config_;
  Random random_;
  bool has_room_for_all_ = true;
  std::uint64_t next_page_ = 0;
  std::uint64_t writing_end_ = 0;  // pages that were begun lie below
  std::uint64_t flushed_end_ = 0;
  std::uint64_t flush_count_ = 0;
  std::set<std::uint64_t> flushed_;
  std::set<std::uint64_t> dropping_;
  std::set<std::uint64_t> dropped_;
};

// Some hundred in all; a new directory after each thirty, so that opening stays cheap.
constexpr std::uint64_t kSeedCount = kIsSanitized ? 1 : 4;
constexpr std::uint32_t kKillCount = kIsSanitized ? 16 : 30;

TEST(FileStoreKilled, WhatWasFlushedIsThereForTheNextProcess) {
  for (std::uint64_t seed = 1; seed <= kSeedCount; ++seed) {
    KilledWriters writers({.capacity_bytes = 4096 * kSegmentBytes}, seed);
    writers.run(kKillCount, /*has_room_for_all=*/true);
  }
}

TEST(FileStoreKilled, WhatWasFlushedIsThereWhenItIsCompressed) {
  for (std::uint64_t seed = 11; seed < 11 + kSeedCount; ++seed) {
    KilledWriters writers({.capacity_bytes = 4096 * kSegmentBytes, .zstd_level = 1}, seed);
    writers.run(kKillCount, /*has_room_for_all=*/true);
  }
}

TEST(FileStoreKilled, AStoreThatMakesRoomStaysWithinItAndServesRightBytes) {
  for (std::uint64_t seed = 21; seed < 21 + kSeedCount; ++seed) {
    KilledWriters writers({.capacity_bytes = 16 * kSegmentBytes}, seed);
    writers.run(kKillCount, /*has_room_for_all=*/false);
  }
}

}  // namespace
}  // namespace quire::testing
