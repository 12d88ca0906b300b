// SPDX-License-Identifier: Apache-2.0
#include "testing/sim_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire::testing {
namespace {

constexpr std::uint64_t kBlock = kIoBlockBytes;
constexpr std::uint64_t kCrashSeeds = 200;
const std::string kPath = "/store";

std::vector<std::byte> blocks_of(std::uint32_t value, std::uint64_t block_count = 1) {
  return std::vector<std::byte>(block_count * kBlock, static_cast<std::byte>(value));
}

std::unique_ptr<StoreDirectory> open_store(SimDisk& disk) {
  return disk.open_directory(kPath).value();
}

// A file with blocks of 1, synced with its name.
FileId make_synced(StoreDirectory& directory, const std::string& name, std::uint64_t block_count) {
  const FileId file = directory.create(name, block_count * kBlock).value();
  EXPECT_TRUE(directory.write(file, 0, blocks_of(1, block_count)));
  EXPECT_TRUE(directory.sync_file(file, SyncPoint::Flush));
  EXPECT_TRUE(directory.sync_directory(SyncPoint::SegmentDirectory));
  return file;
}

bool has_file(const SimDisk& disk, const std::string& name) {
  const std::vector<std::string> names = disk.file_names(kPath);
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The first byte of each sector; 0xff where a sector is not all the same byte.
std::vector<int> sectors_of(const SimDisk& disk, const std::string& name) {
  const std::vector<std::byte> bytes = disk.file_bytes(kPath, name);
  std::vector<int> sectors;
  for (std::uint64_t i = 0; i < bytes.size(); i += kSectorBytes) {
    const auto sector = std::span(bytes).subspan(i, std::min(kSectorBytes, bytes.size() - i));
    const bool is_one = std::all_of(sector.begin(), sector.end(), [&](std::byte b) { return b == sector[0]; });
    sectors.push_back(is_one ? static_cast<int>(sector[0]) : 0xff);
  }
  return sectors;
}

// What is seen after the crashes of many seeds, of a disk on which `work` was done.
std::set<std::vector<int>> sectors_after_crashes(const std::function<void(SimDisk&, StoreDirectory&)>& work,
                                                 const std::string& name) {
  std::set<std::vector<int>> seen;
  SimDisk disk(1);
  {
    const auto directory = open_store(disk);
    work(disk, *directory);
  }
  for (std::uint64_t seed = 0; seed < kCrashSeeds; ++seed) {
    const auto crashed = disk.crash(seed);
    seen.insert(has_file(*crashed, name) ? sectors_of(*crashed, name) : std::vector<int>{-1});
  }
  return seen;
}

TEST(SimDisk, WhatIsWrittenIsRead) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const FileId file = directory->create("a", 2 * kBlock).value();
  EXPECT_EQ(directory->length(file).value(), 2 * kBlock);
  std::vector<std::byte> read = blocks_of(9, 2);
  ASSERT_TRUE(directory->read(file, 0, read));
  EXPECT_EQ(read, blocks_of(0, 2)) << "a new file is zero";
  ASSERT_TRUE(directory->write(file, kBlock, blocks_of(7, 2)));
  EXPECT_EQ(directory->length(file).value(), 3 * kBlock) << "a write behind the end makes a file longer";
  ASSERT_TRUE(directory->read(file, kBlock, read));
  EXPECT_EQ(read, blocks_of(7, 2));
  const Status short_read = directory->read(file, 2 * kBlock, read);
  ASSERT_FALSE(short_read);
  EXPECT_EQ(short_read.error().code, ErrorCode::Io);
  directory->close(file);
}

TEST(SimDisk, BytesBehindAShorterLengthAreGone) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const FileId file = make_synced(*directory, "a", 2);
  ASSERT_TRUE(directory->set_length(file, kBlock));
  ASSERT_TRUE(directory->set_length(file, 2 * kBlock));
  std::vector<std::byte> read = blocks_of(9);
  ASSERT_TRUE(directory->read(file, kBlock, read));
  EXPECT_EQ(read, blocks_of(0));
  directory->close(file);
}

TEST(SimDisk, WhatIsSyncedSurvivesEveryCrash) {
  const auto seen = sectors_after_crashes(
      [](SimDisk&, StoreDirectory& directory) { directory.close(make_synced(directory, "a", 2)); }, "a");
  EXPECT_EQ(seen, (std::set{std::vector<int>(16, 1)}));
}

TEST(SimDisk, UnsyncedWritesAreTornBySectors) {
  const auto seen = sectors_after_crashes(
      [](SimDisk&, StoreDirectory& directory) {
        const FileId file = make_synced(directory, "a", 1);
        EXPECT_TRUE(directory.write(file, 0, blocks_of(2)));
        directory.close(file);
      },
      "a");
  EXPECT_TRUE(seen.contains(std::vector<int>(8, 1))) << "nothing";
  EXPECT_TRUE(seen.contains(std::vector<int>(8, 2))) << "everything";
  std::set<int> values;
  bool has_later_without_earlier = false;
  for (const std::vector<int>& sectors : seen) {
    EXPECT_EQ(sectors.size(), 8U);
    values.insert(sectors.begin(), sectors.end());
    has_later_without_earlier |= sectors.front() == 1 && sectors.back() == 2;
  }
  EXPECT_EQ(values, (std::set{1, 2}));
  EXPECT_TRUE(has_later_without_earlier);
  EXPECT_GT(seen.size(), 10U);
}

TEST(SimDisk, UnsyncedWritesAreReordered) {
  const auto seen = sectors_after_crashes(
      [](SimDisk&, StoreDirectory& directory) {
        const FileId file = make_synced(directory, "a", 2);
        EXPECT_TRUE(directory.write(file, 0, blocks_of(2)));
        EXPECT_TRUE(directory.write(file, kBlock, blocks_of(2)));
        directory.close(file);
      },
      "a");
  std::vector<int> second_only(16, 1);
  std::fill(second_only.begin() + 8, second_only.end(), 2);
  EXPECT_TRUE(seen.contains(second_only));
  std::vector<int> first_only(16, 2);
  std::fill(first_only.begin() + 8, first_only.end(), 1);
  EXPECT_TRUE(seen.contains(first_only));
}

TEST(SimDisk, AnUnsyncedLengthIsAnyBetween) {
  std::set<std::uint64_t> grown;
  std::set<std::uint64_t> shrunk;
  SimDisk disk(1);
  {
    const auto directory = open_store(disk);
    const FileId longer = make_synced(*directory, "longer", 1);
    const FileId shorter = make_synced(*directory, "shorter", 3);
    ASSERT_TRUE(directory->set_length(longer, 3 * kBlock));
    ASSERT_TRUE(directory->set_length(shorter, kBlock));
    directory->close(longer);
    directory->close(shorter);
  }
  for (std::uint64_t seed = 0; seed < kCrashSeeds; ++seed) {
    const auto crashed = disk.crash(seed);
    grown.insert(crashed->file_bytes(kPath, "longer").size());
    shrunk.insert(crashed->file_bytes(kPath, "shorter").size());
  }
  for (const auto& lengths : {grown, shrunk}) {
    EXPECT_EQ(*lengths.begin(), kBlock);
    EXPECT_EQ(*lengths.rbegin(), 3 * kBlock);
    EXPECT_GT(lengths.size(), 5U);
  }
}

TEST(SimDisk, UnsyncedNamesAreThereOrNotEachOnItsOwn) {
  std::set<std::vector<std::string>> seen;
  SimDisk disk(1);
  {
    const auto directory = open_store(disk);
    for (const char* name : {"removed", "renamed"}) directory->close(make_synced(*directory, name, 1));
    directory->close(directory->create("made", kBlock).value());
    ASSERT_TRUE(directory->rename("renamed", "target"));
    ASSERT_TRUE(directory->remove("removed"));
    EXPECT_EQ(directory->list().value(), (std::vector<std::string>{"made", "target"}));
  }
  for (std::uint64_t seed = 0; seed < kCrashSeeds; ++seed) seen.insert(disk.crash(seed)->file_names(kPath));
  EXPECT_EQ(seen.size(), 8U) << "two ways for each of three changes";
  EXPECT_TRUE(seen.contains({"removed", "renamed"}));
  EXPECT_TRUE(seen.contains({"made", "target"}));
  EXPECT_TRUE(seen.contains({"made", "removed", "renamed"}));
}

TEST(SimDisk, ASyncedNameHasUnsyncedBytesAndTheOtherWayRound) {
  const auto without_file_sync = sectors_after_crashes(
      [](SimDisk&, StoreDirectory& directory) {
        const FileId file = directory.create("a", kBlock).value();
        EXPECT_TRUE(directory.write(file, 0, blocks_of(3)));
        EXPECT_TRUE(directory.sync_directory(SyncPoint::SegmentDirectory));
        directory.close(file);
      },
      "a");
  EXPECT_TRUE(without_file_sync.contains({})) << "empty";
  EXPECT_TRUE(without_file_sync.contains(std::vector<int>(8, 0))) << "as it was made";
  EXPECT_TRUE(without_file_sync.contains(std::vector<int>(8, 3))) << "as it was written";
  EXPECT_FALSE(without_file_sync.contains({-1})) << "its name was synced";
  const auto without_name_sync = sectors_after_crashes(
      [](SimDisk&, StoreDirectory& directory) {
        const FileId file = directory.create("a", kBlock).value();
        EXPECT_TRUE(directory.write(file, 0, blocks_of(3)));
        EXPECT_TRUE(directory.sync_file(file, SyncPoint::Flush));
        directory.close(file);
      },
      "a");
  EXPECT_EQ(without_name_sync, (std::set<std::vector<int>>{{-1}, std::vector<int>(8, 3)}));
}

TEST(SimDisk, ARenameOverAFileLeavesTheOldOneOrTheNewOne) {
  const auto seen = sectors_after_crashes(
      [](SimDisk&, StoreDirectory& directory) {
        directory.close(make_synced(directory, "target", 1));
        const FileId file = make_synced(directory, "source", 1);
        EXPECT_TRUE(directory.write(file, 0, blocks_of(2)));
        EXPECT_TRUE(directory.sync_file(file, SyncPoint::ManifestFile));
        directory.close(file);
        EXPECT_TRUE(directory.rename("source", "target"));
      },
      "target");
  EXPECT_EQ(seen, (std::set<std::vector<int>>{std::vector<int>(8, 1), std::vector<int>(8, 2)}));
}

TEST(SimDisk, AKilledProcessLeavesEverythingWrittenButNotDurable) {
  SimDisk disk(1);
  {
    const auto directory = open_store(disk);
    const FileId file = make_synced(*directory, "a", 1);
    ASSERT_TRUE(directory->write(file, 0, blocks_of(2)));
    directory->close(directory->create("b", 0).value());
    directory->close(file);
  }
  std::set<std::vector<int>> seen;
  std::set<bool> has_b;
  for (std::uint64_t seed = 0; seed < kCrashSeeds; ++seed) {
    const auto killed = disk.kill(seed);
    EXPECT_EQ(sectors_of(*killed, "a"), std::vector<int>(8, 2));
    EXPECT_TRUE(has_file(*killed, "b"));
    const auto crashed = killed->crash(seed);
    seen.insert(sectors_of(*crashed, "a"));
    has_b.insert(has_file(*crashed, "b"));
  }
  EXPECT_TRUE(seen.contains(std::vector<int>(8, 1)));
  EXPECT_GT(seen.size(), 10U);
  EXPECT_EQ(has_b.size(), 2U);
  // The next process can sync what the first one wrote.
  const auto next = disk.kill(0);
  {
    const auto directory = open_store(*next);
    const FileId file = directory->open("a").value();
    ASSERT_TRUE(directory->sync_file(file, SyncPoint::Flush));
    directory->close(file);
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(sectors_of(*next->crash(seed), "a"), std::vector<int>(8, 2));
  }
}

TEST(SimDisk, ADeadProcessGetsNothingDone) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const FileId file = make_synced(*directory, "a", 1);
  const auto queue = disk.make_queue({.depth = 2, .buffer_bytes = kBlock}).value();
  const std::uint64_t operations = disk.operation_count();
  disk.crash_after(1);
  std::vector<std::byte> read = blocks_of(0);
  EXPECT_TRUE(directory->read(file, 0, read)) << "one more";
  EXPECT_FALSE(disk.is_dead());
  EXPECT_FALSE(directory->remove("a")) << "the one that is cut off";
  EXPECT_TRUE(disk.is_dead());
  EXPECT_FALSE(directory->read(file, 0, read));
  EXPECT_FALSE(directory->write(file, 0, read));
  EXPECT_FALSE(directory->sync_file(file, SyncPoint::Flush));
  EXPECT_FALSE(directory->sync_directory(SyncPoint::Flush));
  EXPECT_FALSE(directory->create("b", 0));
  EXPECT_FALSE(directory->open("a"));
  EXPECT_FALSE(directory->list());
  EXPECT_FALSE(directory->length(file));
  EXPECT_FALSE(directory->set_length(file, 0));
  EXPECT_FALSE(directory->rename("a", "b"));
  EXPECT_FALSE(directory->free_bytes());
  EXPECT_FALSE(disk.open_directory("/other"));
  queue->submit({.kind = IoKind::Write, .file = file, .offset = 0, .buffer = queue->memory().first(kBlock)});
  std::array<IoResult, 1> results;
  EXPECT_EQ(queue->wait(results)[0].status.error().code, ErrorCode::Io);
  EXPECT_EQ(disk.operation_count(), operations + 2) << "nothing counts after the end";
  directory->close(file);
  EXPECT_EQ(sectors_of(*disk.crash(1), "a").front() == 1 || !has_file(*disk.crash(1), "a"), true);
}

TEST(SimDisk, TheOperationThatIsCutOffMayBeDoneInPart) {
  for (const bool is_write : {true, false}) {
    std::set<std::vector<int>> seen;
    std::set<bool> has_b;
    SimDisk disk(1);
    {
      const auto directory = open_store(disk);
      const FileId file = make_synced(*directory, "a", 1);
      disk.crash_after(0);
      if (is_write) {
        EXPECT_FALSE(directory->write(file, 0, blocks_of(2)));
      } else {
        EXPECT_FALSE(directory->create("b", kBlock));
      }
      directory->close(file);
    }
    for (std::uint64_t seed = 0; seed < kCrashSeeds; ++seed) {
      const auto crashed = disk.crash(seed);
      seen.insert(sectors_of(*crashed, "a"));
      has_b.insert(has_file(*crashed, "b"));
    }
    EXPECT_EQ(seen.size() > 10, is_write);
    EXPECT_EQ(has_b.size(), is_write ? 1U : 2U);
  }
}

TEST(SimDisk, WritesInFlightAreTornByTheEnd) {
  for (const bool is_kill : {false, true}) {
    std::set<std::vector<int>> seen;
    SimDisk disk(1);
    const auto directory = open_store(disk);
    const FileId file = make_synced(*directory, "a", 1);
    auto queue = disk.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
    std::fill(queue->memory().begin(), queue->memory().end(), std::byte{2});
    queue->submit({.kind = IoKind::Write, .file = file, .offset = 0, .buffer = queue->memory()});
    EXPECT_TRUE(directory->sync_file(file, SyncPoint::Flush)) << "does not cover what is in flight";
    for (std::uint64_t seed = 0; seed < kCrashSeeds; ++seed) {
      seen.insert(sectors_of(is_kill ? *disk.kill(seed) : *disk.crash(seed), "a"));
    }
    EXPECT_TRUE(seen.contains(std::vector<int>(8, 1)));
    EXPECT_TRUE(seen.contains(std::vector<int>(8, 2)));
    EXPECT_GT(seen.size(), 10U);
    queue.reset();
    directory->close(file);
  }
}

TEST(SimDisk, AQueueCompletesInAnyOrder) {
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimDisk disk(seed);
    const auto directory = open_store(disk);
    const FileId file = make_synced(*directory, "a", 3);
    auto queue = disk.make_queue({.depth = 3, .buffer_bytes = kBlock}).value();
    EXPECT_EQ(queue->depth(), 3U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(queue->memory().data()) % kIoBlockBytes, 0U);
    ASSERT_EQ(queue->memory().size(), 3 * kBlock);
    for (std::uint64_t i = 0; i < 3; ++i) {
      const auto buffer = queue->memory().subspan(i * kBlock, kBlock);
      queue->submit({.kind = IoKind::Read, .file = file, .offset = i * kBlock, .buffer = buffer, .tag = i});
      EXPECT_NE(buffer[0], std::byte{1}) << "a read in flight shows rubbish";
    }
    std::vector<std::uint64_t> order;
    std::array<IoResult, 2> results;
    while (order.size() < 3) {
      for (const IoResult& result : queue->wait(results)) {
        EXPECT_TRUE(result.status);
        EXPECT_EQ(queue->memory()[result.tag * kBlock], std::byte{1});
        order.push_back(result.tag);
      }
    }
    orders.insert(order);
    queue.reset();
    directory->close(file);
  }
  EXPECT_EQ(orders.size(), 6U);
}

TEST(SimDisk, AQueueThatGoesFinishesItsWrites) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const FileId file = make_synced(*directory, "a", 1);
  auto queue = disk.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  std::fill(queue->memory().begin(), queue->memory().end(), std::byte{2});
  queue->submit({.kind = IoKind::Write, .file = file, .offset = 0, .buffer = queue->memory()});
  queue.reset();
  directory->close(file);
  EXPECT_EQ(sectors_of(disk, "a"), std::vector<int>(8, 2));
}

TEST(SimDisk, AFailureComesWhenAskedForAndOnce) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const FileId file = make_synced(*directory, "a", 1);
  disk.fail_once(SimOperation::Create);
  disk.fail_once(SimOperation::Write, 1);
  const auto refused = directory->create("b", 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::Io);
  EXPECT_FALSE(has_file(disk, "b"));
  directory->close(directory->create("b", 0).value());
  EXPECT_TRUE(directory->write(file, 0, blocks_of(2)));
  EXPECT_FALSE(directory->write(file, 0, blocks_of(3)));
  EXPECT_TRUE(directory->write(file, 0, blocks_of(4)));
  directory->close(file);
}

TEST(SimDisk, AFailedWriteMayBeThereInPart) {
  std::set<std::vector<int>> seen;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimDisk disk(seed);
    const auto directory = open_store(disk);
    const FileId file = make_synced(*directory, "a", 1);
    disk.fail_once(SimOperation::Write);
    EXPECT_FALSE(directory->write(file, 0, blocks_of(2)));
    directory->close(file);
    seen.insert(sectors_of(disk, "a"));
  }
  EXPECT_GT(seen.size(), 10U);
}

TEST(SimDisk, AFailedReadSaysSoAndGivesRubbishOrAPart) {
  bool was_short = false;
  bool was_refused = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimDisk disk(seed);
    const auto directory = open_store(disk);
    const FileId file = make_synced(*directory, "a", 2);
    disk.fail_once(SimOperation::Read);
    std::vector<std::byte> read = blocks_of(5, 2);
    const Status status = directory->read(file, 0, read);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::Io);
    was_short |= status.error().message.find("came") != std::string::npos && read.front() == std::byte{1};
    was_refused |= status.error().message.find("Input/output error") != std::string::npos;
    directory->close(file);
  }
  EXPECT_TRUE(was_short);
  EXPECT_TRUE(was_refused);
}

TEST(SimDisk, ARateOfFailuresIsMet) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const FileId file = make_synced(*directory, "a", 1);
  disk.set_failures(SimOperation::Write, 250);
  int failed = 0;
  for (int i = 0; i < 1000; ++i) failed += directory->write(file, 0, blocks_of(2)) ? 0 : 1;
  EXPECT_GT(failed, 150);
  EXPECT_LT(failed, 350);
  directory->close(file);
}

TEST(SimDisk, AFailedSyncIsNotMadeGoodByALaterOne) {
  std::set<std::vector<int>> after_crash;
  std::set<std::vector<int>> before_crash;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimDisk disk(seed);
    {
      const auto directory = open_store(disk);
      const FileId file = make_synced(*directory, "a", 1);
      EXPECT_TRUE(directory->write(file, 0, blocks_of(2)));
      disk.fail_once(SimOperation::SyncFile);
      EXPECT_FALSE(directory->sync_file(file, SyncPoint::Flush));
      EXPECT_TRUE(directory->sync_file(file, SyncPoint::Flush));
      directory->close(file);
      before_crash.insert(sectors_of(disk, "a"));
    }
    after_crash.insert(sectors_of(*disk.crash(1), "a"));
  }
  EXPECT_GT(before_crash.size(), 5U) << "what is read may be the old or the new";
  EXPECT_TRUE(after_crash.contains(std::vector<int>(8, 1))) << "nothing may be there";
  EXPECT_TRUE(after_crash.contains(std::vector<int>(8, 2))) << "everything may be there";
  EXPECT_GT(after_crash.size(), 5U);
}

TEST(SimDisk, WhatIsWrittenAfterAFailedSyncCanBeSynced) {
  SimDisk disk(1);
  {
    const auto directory = open_store(disk);
    const FileId file = make_synced(*directory, "a", 1);
    EXPECT_TRUE(directory->write(file, 0, blocks_of(2)));
    disk.fail_once(SimOperation::SyncFile);
    EXPECT_FALSE(directory->sync_file(file, SyncPoint::Flush));
    EXPECT_TRUE(directory->write(file, 0, blocks_of(3)));
    EXPECT_TRUE(directory->sync_file(file, SyncPoint::Flush));
    directory->close(file);
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(sectors_of(*disk.crash(seed), "a"), std::vector<int>(8, 3));
  }
}

TEST(SimDisk, AFailedDirectorySyncIsNotMadeGoodByALaterOne) {
  std::set<bool> has_a;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimDisk disk(seed);
    {
      const auto directory = open_store(disk);
      directory->close(directory->create("a", 0).value());
      disk.fail_once(SimOperation::SyncDirectory);
      EXPECT_FALSE(directory->sync_directory(SyncPoint::SegmentDirectory));
      EXPECT_TRUE(directory->sync_directory(SyncPoint::SegmentDirectory));
      EXPECT_TRUE(has_file(disk, "a"));
    }
    has_a.insert(has_file(*disk.crash(1), "a"));
  }
  EXPECT_EQ(has_a.size(), 2U);
}

TEST(SimDisk, AnIgnoredSyncSucceedsAndMakesNothingDurable) {
  for (const bool is_ignored : {false, true}) {
    SimDisk disk(1);
    disk.ignore_syncs(SyncPoint::Carry);
    disk.ignore_syncs(SyncPoint::RemoveDirectory);
    if (!is_ignored) {
      disk.ignore_syncs(SyncPoint::Carry, false);
      disk.ignore_syncs(SyncPoint::RemoveDirectory, false);
    }
    {
      const auto directory = open_store(disk);
      const FileId file = make_synced(*directory, "a", 1);
      EXPECT_TRUE(directory->write(file, 0, blocks_of(2)));
      EXPECT_TRUE(directory->sync_file(file, SyncPoint::Carry));
      directory->close(directory->create("b", 0).value());
      EXPECT_TRUE(directory->sync_directory(SyncPoint::RemoveDirectory));
      directory->close(file);
    }
    std::set<std::vector<int>> seen;
    std::set<bool> has_b;
    for (std::uint64_t seed = 0; seed < kCrashSeeds; ++seed) {
      const auto crashed = disk.crash(seed);
      seen.insert(sectors_of(*crashed, "a"));
      has_b.insert(has_file(*crashed, "b"));
    }
    EXPECT_EQ(seen.size() > 1, is_ignored);
    EXPECT_EQ(has_b.size() > 1, is_ignored);
  }
}

TEST(SimDisk, AFullDiskIsNoticedByCreateLengthAndWrite) {
  SimDisk disk(1);
  disk.set_capacity(4 * kBlock);
  const auto directory = open_store(disk);
  const FileId file = directory->create("a", 2 * kBlock).value();
  EXPECT_EQ(directory->free_bytes().value(), 2 * kBlock);
  const auto refused = directory->create("b", 3 * kBlock);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
  EXPECT_FALSE(has_file(disk, "b")) << "nothing is left of it";
  EXPECT_EQ(directory->set_length(file, 5 * kBlock).error().code, ErrorCode::Unavailable);
  EXPECT_EQ(directory->write(file, 4 * kBlock, blocks_of(1)).error().code, ErrorCode::Unavailable);
  EXPECT_TRUE(directory->write(file, 3 * kBlock, blocks_of(1)));
  EXPECT_EQ(directory->free_bytes().value(), 0U);
  EXPECT_TRUE(directory->remove("a"));
  EXPECT_EQ(directory->free_bytes().value(), 0U) << "an open file keeps its room";
  directory->close(file);
  EXPECT_EQ(directory->free_bytes().value(), 4 * kBlock);
}

TEST(SimDisk, ABrokenDirectoryFailsAndOthersGoOn) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const auto other = disk.open_directory("/other").value();
  disk.set_broken(kPath);
  EXPECT_EQ(directory->create("a", 0).error().code, ErrorCode::Io);
  EXPECT_FALSE(directory->list());
  other->close(other->create("a", 0).value());
  disk.set_broken(kPath, false);
  EXPECT_TRUE(directory->list());
}

TEST(SimDisk, ADirectoryIsLockedUntilItIsClosed) {
  SimDisk disk(1);
  {
    const auto directory = open_store(disk);
    const auto second = disk.open_directory(kPath);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
  }
  EXPECT_TRUE(disk.open_directory(kPath));
  disk.set_lock_owner(kPath, 4711);
  const auto foreign = disk.open_directory(kPath);
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code, ErrorCode::Unavailable);
  EXPECT_NE(foreign.error().message.find("4711"), std::string::npos);
  disk.set_lock_owner(kPath, 0);
  EXPECT_TRUE(disk.open_directory(kPath));
}

TEST(SimDisk, TheEndOfAProcessUnlocks) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  EXPECT_TRUE(disk.crash(1)->open_directory(kPath));
  EXPECT_TRUE(disk.kill(1)->open_directory(kPath));
}

TEST(SimDisk, OperationsAndSyncsAreCounted) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const FileId file = make_synced(*directory, "a", 1);
  const auto queue = disk.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  queue->submit({.kind = IoKind::Read, .file = file, .offset = 0, .buffer = queue->memory()});
  std::array<IoResult, 1> results;
  EXPECT_TRUE(queue->wait(results)[0].status);
  directory->close(file);
  EXPECT_EQ(disk.operation_count(SimOperation::Create), 1U);
  EXPECT_EQ(disk.operation_count(SimOperation::Write), 1U);
  EXPECT_EQ(disk.operation_count(SimOperation::Read), 1U);
  EXPECT_EQ(disk.operation_count(SimOperation::SyncFile), 1U);
  EXPECT_EQ(disk.operation_count(), 7U);
  EXPECT_EQ(disk.sync_count(SyncPoint::Flush), 1U);
  EXPECT_EQ(disk.sync_count(SyncPoint::SegmentDirectory), 1U);
  EXPECT_EQ(disk.sync_count(SyncPoint::Carry), 0U);
}

TEST(SimDisk, AStrangerPutsRemovesAndFlips) {
  SimDisk disk(1);
  std::vector<std::byte> odd(700, std::byte{3});
  disk.put_file(kPath, "odd", odd);
  EXPECT_EQ(disk.file_bytes(kPath, "odd"), odd);
  disk.flip_bit(kPath, "odd", (8 * 600) + 2);
  odd[600] = std::byte{7};
  EXPECT_EQ(disk.file_bytes(kPath, "odd"), odd);
  EXPECT_EQ(disk.crash(1)->file_bytes(kPath, "odd"), odd);
  disk.remove_file(kPath, "odd");
  EXPECT_TRUE(disk.file_names(kPath).empty());
}

TEST(SimDisk, TheSameSeedsGiveTheSameRemains) {
  const auto run = [](std::uint64_t seed) {
    SimDisk disk(seed);
    const auto directory = open_store(disk);
    const FileId file = make_synced(*directory, "a", 4);
    disk.set_failures(SimOperation::Write, 300);
    for (std::uint32_t i = 2; i < 20; ++i) (void)directory->write(file, (i % 4) * kBlock, blocks_of(i));
    directory->close(file);
    return sectors_of(*disk.crash(seed), "a");
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

using SimDiskDeathTest = ::testing::Test;

TEST(SimDiskDeathTest, ABufferThatChangesInFlightIsFound) {
  SimDisk disk(1);
  const auto directory = open_store(disk);
  const FileId file = make_synced(*directory, "a", 1);
  auto queue = disk.make_queue({.depth = 2, .buffer_bytes = kBlock}).value();
  const IoRequest request{
      .kind = IoKind::Write, .file = file, .offset = 0, .buffer = queue->memory().first(kBlock), .tag = 0};
  std::array<IoResult, 1> results;
  queue->submit(request);
  EXPECT_DEATH(queue->submit(request), "share a buffer");
  EXPECT_DEATH(directory->close(file), "before its requests are done");
  queue->memory()[17] = std::byte{1};
  EXPECT_DEATH((void)queue->wait(results), "changed while its write was in flight");
  queue->memory()[17] = std::byte{0};
  queue.reset();
  directory->close(file);
}

}  // namespace
}  // namespace quire::testing
