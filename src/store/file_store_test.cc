// SPDX-License-Identifier: Apache-2.0
#include "store/file_store.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/file_store_fixture.h"

namespace quire::testing {
namespace {

TEST_F(FileStoreTest, WhatIsWrittenIsFoundAndRead) {
  open();
  EXPECT_EQ(read({1, 0}), "absent");
  write_chain(1, 5);
  read_chain(1, 5);
  const FileStoreStats stats = store_->stats();
  EXPECT_EQ(stats.record_count, 5U);
  EXPECT_EQ(stats.live_bytes, 5 * record_bytes(kPageBytes));
  EXPECT_LE(stats.live_bytes, stats.used_bytes);
  store_->check_invariants();
}

TEST_F(FileStoreTest, ManyPagesAtOnceAreEachAnsweredForThemselves) {
  open();
  write_chain(1, 3);
  std::vector<std::vector<std::byte>> bytes(12, std::vector<std::byte>(kPageBytes));
  std::vector<FileRead> reads(12);
  for (std::uint32_t i = 0; i < 12; ++i) reads[i] = {.name = name_of({i % 2, i / 2}), .bytes = bytes[i]};
  store_->read(reads);
  for (std::uint32_t i = 0; i < 12; ++i) {
    const bool is_there = i % 2 == 1 && i / 2 < 3;
    EXPECT_EQ(reads[i].outcome, is_there ? FileOutcome::Ok : FileOutcome::Absent) << i;
    if (is_there) {
      EXPECT_EQ(bytes[i], bytes_of({1, i / 2}, kPageBytes));
    }
  }
}

TEST_F(FileStoreTest, FindCountsLeadingNames) {
  open();
  write_chain(1, 2);
  ASSERT_EQ(write({1, 3}), FileOutcome::Ok);
  const std::vector<PageName> names = {name_of({1, 0}), name_of({1, 1}), name_of({1, 2}), name_of({1, 3})};
  EXPECT_EQ(store_->find(names), 2U);
  EXPECT_EQ(store_->find({}), 0U);
}

TEST_F(FileStoreTest, APageWrittenTwiceHasOneRecord) {
  open();
  const std::vector<std::byte> bytes = bytes_of({1, 0}, kPageBytes);
  std::vector<FileWrite> writes(3, {.name = name_of({1, 0}), .parent = parent_of({1, 0}), .bytes = bytes});
  store_->write(test_key_space(), writes, 1);
  for (const FileWrite& write : writes) EXPECT_EQ(write.outcome, FileOutcome::Ok);
  EXPECT_EQ(write({1, 0}), FileOutcome::Ok);
  EXPECT_EQ(count_records(RecordKind::Page), 1U);
}

TEST_F(FileStoreTest, APageThatIsNotWhatItsChecksumSaysIsNotWritten) {
  open();
  const std::vector<std::byte> bytes = bytes_of({1, 0}, kPageBytes);
  FileWrite write{.name = name_of({1, 0}), .parent = parent_of({1, 0}), .bytes = bytes};
  write.checksum = checksum_of(bytes) + 1;
  store_->write(test_key_space(), {&write, 1}, 1);
  EXPECT_EQ(write.outcome, FileOutcome::Corrupt);
  EXPECT_FALSE(has_page(*store_, {1, 0}));
  write.checksum = checksum_of(bytes);
  store_->write(test_key_space(), {&write, 1}, 1);
  EXPECT_EQ(write.outcome, FileOutcome::Ok);
}

TEST_F(FileStoreTest, ADamagedRecordIsNotDeliveredAndCanBeWrittenAgain) {
  open();
  write_chain(1, 3);
  damage({1, 1});
  EXPECT_EQ(read({1, 1}), "corrupt");
  EXPECT_EQ(read({1, 1}), "absent");
  EXPECT_EQ(read({1, 2}), "");
  EXPECT_EQ(store_->stats().corrupt_records, 1U);
  EXPECT_EQ(write({1, 1}), FileOutcome::Ok);
  read_chain(1, 3);
  ASSERT_TRUE(store_->close());
  open();
  read_chain(1, 3);
}

TEST_F(FileStoreTest, ADamagedRecordStaysDroppedWhenTheStoreIsOpenedAgain) {
  open();
  write_chain(1, 3);
  ASSERT_TRUE(store_->close());
  open();
  damage({1, 1});
  EXPECT_EQ(read({1, 1}), "corrupt");
  ASSERT_TRUE(store_->close());
  open();
  EXPECT_FALSE(has_page(*store_, {1, 1}));
  EXPECT_TRUE(has_page(*store_, {1, 2}));
}

TEST_F(FileStoreTest, CompressedPagesTakeLessAndThoseThatDoNotCompressStayAsTheyAre) {
  FileStoreConfig config = make_config();
  config.zstd_level = 3;
  open(config);
  const std::vector<std::byte> plain = bytes_of({1, 0}, kPageBytes, true);
  FileWrite write_plain{.name = name_of({1, 0}), .parent = parent_of({1, 0}), .bytes = plain};
  store_->write(test_key_space(), {&write_plain, 1}, 1);
  ASSERT_EQ(write_plain.outcome, FileOutcome::Ok);
  EXPECT_EQ(store_->stats().live_bytes, kSegmentBlockBytes);
  ASSERT_EQ(write({1, 1}), FileOutcome::Ok);
  EXPECT_EQ(store_->stats().live_bytes, 3 * kSegmentBlockBytes);
  for (int process = 0; process < 3; ++process) {
    std::vector<std::byte> bytes(kPageBytes);
    FileRead read_plain{.name = name_of({1, 0}), .bytes = bytes};
    store_->read({&read_plain, 1});
    EXPECT_EQ(read_plain.outcome, FileOutcome::Ok);
    EXPECT_EQ(bytes, plain);
    EXPECT_EQ(read_plain.checksum, checksum_of(plain));
    EXPECT_EQ(read({1, 1}), "");
    // Whether the store compresses has no bearing on what it reads, from a footer or by a scan.
    config_.zstd_level = 0;
    end_process();
  }
}

TEST_F(FileStoreTest, WhatWasClosedIsOpenedWithoutAScan) {
  open();
  write_chain(1, 30);
  ASSERT_TRUE(store_->close());
  open();
  EXPECT_EQ(store_->stats().read_bytes, 0U);
  EXPECT_EQ(store_->stats().record_count, 30U);
  read_chain(1, 30);
}

TEST_F(FileStoreTest, WhatWasNotClosedIsScannedOnce) {
  open();
  write_chain(1, 3);
  end_process();
  EXPECT_GT(store_->stats().read_bytes, 0U);
  read_chain(1, 3);
  end_process();
  EXPECT_EQ(store_->stats().read_bytes, 0U);
  read_chain(1, 3);
}

TEST_F(FileStoreTest, AScanGoesOnBehindATornRecord) {
  open();
  write_chain(1, 3);
  damage({1, 1});
  end_process();
  EXPECT_EQ(read({1, 0}), "");
  EXPECT_EQ(read({1, 1}), "absent");
  EXPECT_EQ(read({1, 2}), "");
  EXPECT_EQ(store_->stats().torn_records, 1U);
  // And so it stays: nothing that was torn gets into the footer.
  end_process();
  EXPECT_EQ(read({1, 1}), "absent");
  EXPECT_EQ(read({1, 2}), "");
}

TEST_F(FileStoreTest, WhatWasFlushedSurvivesALossOfPower) {
  open();
  write_chain(1, 4);
  ASSERT_TRUE(store_->flush());
  lose_power();
  read_chain(1, 4);
}

TEST_F(FileStoreTest, NothingIsSyncedWhenNothingWasWritten) {
  open();
  write_chain(1, 4);
  ASSERT_TRUE(store_->flush());
  const auto syncs = [this] {
    return disk_->operation_count(SimOperation::SyncFile) + disk_->operation_count(SimOperation::SyncDirectory);
  };
  const std::uint64_t before = syncs();
  ASSERT_TRUE(store_->flush());
  EXPECT_EQ(write({1, 2}), FileOutcome::Ok);  // it is there
  ASSERT_TRUE(store_->flush());
  EXPECT_EQ(syncs(), before);
}

TEST_F(FileStoreTest, WhatAProcessThatEndedHadWrittenIsDurableWhenItIsWrittenAgainAndFlushed) {
  open();
  write_chain(1, 4);
  end_process();
  write_chain(1, 4);
  ASSERT_TRUE(store_->flush());
  lose_power();
  read_chain(1, 4);
}

TEST_F(FileStoreTest, ADroppedKeySpaceIsGoneForGoodAndOthersStay) {
  open();
  write_chain(1, 3, 1);
  write_chain(2, 3, 2);
  ASSERT_TRUE(store_->drop(key_space_name(test_key_space(1)), 1));
  EXPECT_FALSE(has_page(*store_, {1, 0}));
  read_chain(2, 3);
  ASSERT_TRUE(store_->flush());
  lose_power();
  for (std::uint32_t index = 0; index < 3; ++index) EXPECT_FALSE(has_page(*store_, {1, index}));
  read_chain(2, 3);
  write_chain(1, 2, 1);
  ASSERT_TRUE(store_->close());
  open();
  read_chain(1, 2);
  EXPECT_FALSE(has_page(*store_, {1, 2}));
}

TEST_F(FileStoreTest, ADroppedPageIsGoneForGood) {
  open();
  write_chain(1, 3);
  ASSERT_TRUE(store_->flush());
  store_->drop_page(name_of({1, 1}), 1);
  EXPECT_FALSE(has_page(*store_, {1, 1}));
  ASSERT_TRUE(store_->flush());
  lose_power();
  EXPECT_FALSE(has_page(*store_, {1, 1}));
  EXPECT_TRUE(has_page(*store_, {1, 2}));
}

TEST_F(FileStoreTest, WhenAllIsDroppedNothingIsFoundForGoodAndNewPagesAre) {
  open();
  write_chain(1, 3, 1);
  ASSERT_TRUE(store_->close());
  open();  // this process has named nothing
  write_chain(2, 3, 2);
  ASSERT_TRUE(store_->drop_all(1));
  EXPECT_EQ(store_->stats().record_count, 0U);
  write_chain(3, 2, 1);
  write_chain(1, 1, 1);
  ASSERT_TRUE(store_->flush());
  lose_power();
  for (std::uint32_t chain = 1; chain <= 3; ++chain) {
    for (std::uint32_t index = 0; index < 3; ++index) {
      const bool is_new = chain == 3 ? index < 2 : chain == 1 && index == 0;
      EXPECT_EQ(has_page(*store_, {chain, index}), is_new) << chain << " " << index;
    }
  }
  EXPECT_EQ(count_records(RecordKind::DropAll), 1U);
}

TEST_F(FileStoreTest, WhatCannotBeDroppedIsSaidByTheNextFlush) {
  open();
  write_chain(1, 3, 1);
  ASSERT_TRUE(store_->flush());
  disk_->fail_once(testing::SimOperation::SyncFile);
  ASSERT_TRUE(store_->drop_all(1));
  EXPECT_FALSE(has_page(*store_, {1, 0})) << "at once";
  EXPECT_FALSE(store_->flush());
  ASSERT_TRUE(store_->flush()) << "the next one writes it again";
  lose_power();
  EXPECT_FALSE(has_page(*store_, {1, 0})) << "and for good";
}

TEST_F(FileStoreTest, TombstonesGoWhenWhatTheyCoverIsGone) {
  open();
  write_chain(1, 3, 1);
  ASSERT_TRUE(store_->drop(key_space_name(test_key_space(1)), 1));
  ASSERT_TRUE(store_->drop_all(1));
  // Everything that is there now goes, and more.
  for (std::uint32_t chain = 10; chain < 400; ++chain) ASSERT_EQ(write({chain, 0}, 2), FileOutcome::Ok);
  EXPECT_EQ(count_records(RecordKind::DropKeySpace), 0U);
  EXPECT_EQ(count_records(RecordKind::DropAll), 0U);
}

TEST_F(FileStoreTest, TheStoreStaysWithinItsCapacityAndKeepsTheNewest) {
  open();
  for (std::uint32_t chain = 0; chain < 500; ++chain) {
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
    ASSERT_LE(store_->stats().used_bytes, config_.capacity_bytes);
    ASSERT_TRUE(has_page(*store_, {chain, 0}));
  }
  store_->check_invariants();
  const FileStoreStats stats = store_->stats();
  EXPECT_GT(stats.reclaimed_segments, 40U);
  EXPECT_GE(stats.evicted_records, 400U);
  // Nearly all of the room is used: but for one segment, which is kept free.
  EXPECT_GT(stats.live_bytes, config_.capacity_bytes / 2);
  for (std::uint32_t chain = 470; chain < 500; ++chain) EXPECT_EQ(read({chain, 0}), "") << chain;
  std::uint64_t file_bytes = 0;
  for (const std::string& name : disk_->file_names("a")) {
    if (segment_id_of(name)) file_bytes += disk_->file_bytes("a", name).size();
  }
  EXPECT_EQ(file_bytes, stats.used_bytes);
}

TEST_F(FileStoreTest, PagesThatAreReadAreCarriedOverAndAgeWhenTheyAreNot) {
  open();
  write_chain(1, 3);
  std::uint32_t chain = 10;
  for (; chain < 300; ++chain) {
    read_chain(1, 3);
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  }
  EXPECT_GT(store_->stats().carried_bytes, 0U);
  EXPECT_TRUE(has_page(*store_, {1, 2}));
  for (; chain < 3'000; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  EXPECT_FALSE(has_page(*store_, {1, 0}));
  store_->check_invariants();
}

TEST_F(FileStoreTest, WhatWasCarriedOverIsThereAfterALossOfPower) {
  open();
  write_chain(1, 3);
  ASSERT_TRUE(store_->flush());
  for (std::uint32_t chain = 10; chain < 200; ++chain) {
    read_chain(1, 3);
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  }
  ASSERT_GT(store_->stats().carried_bytes, 0U);
  lose_power();
  read_chain(1, 3);
}

TEST_F(FileStoreTest, APageWithoutThePageBeforeItIsNotCarriedOver) {
  open();
  ASSERT_EQ(write({1, 5}), FileOutcome::Ok);
  ASSERT_EQ(write({2, 0}), FileOutcome::Ok);
  for (std::uint32_t chain = 10; chain < 300; ++chain) {
    (void)read({1, 5});
    (void)read({2, 0});
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  }
  EXPECT_FALSE(has_page(*store_, {1, 5}));
  EXPECT_TRUE(has_page(*store_, {2, 0}));
}

TEST_F(FileStoreTest, ADamagedRecordIsNotCarriedOver) {
  open();
  write_chain(1, 2);
  read_chain(1, 2);
  damage({1, 1});
  for (std::uint32_t chain = 10; chain < 100; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  EXPECT_EQ(store_->stats().corrupt_records, 1U);
  EXPECT_FALSE(has_page(*store_, {1, 1}));
}

TEST_F(FileStoreTest, OtherLayoutsAreNotFoundAndGoFirst) {
  open();
  for (std::uint32_t chain = 0; chain < 20; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  ASSERT_TRUE(store_->close());
  FileStoreConfig other = make_config();
  other.layout.hash = 8;
  open(other);
  EXPECT_FALSE(has_page(*store_, {0, 0}));
  EXPECT_EQ(store_->stats().other_layout_records, 20U);
  // A page of the same name is another page here.
  for (std::uint32_t chain = 0; chain < 40; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  EXPECT_LT(store_->stats().other_layout_records, 20U);
  EXPECT_EQ(store_->stats().evicted_records, 0U);
  for (std::uint32_t chain = 0; chain < 40; ++chain) EXPECT_EQ(read({chain, 0}), "");
}

TEST_F(FileStoreTest, UnreachablePagesGoBeforeThoseThatCanBeReached) {
  open();
  // Seven pages fill a segment: those of the first can be reached, those of the second not.
  for (std::uint32_t chain = 0; chain < 7; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  for (std::uint32_t chain = 10; chain < 17; ++chain) ASSERT_EQ(write({chain, 4}), FileOutcome::Ok);
  std::uint32_t chain = 20;
  while (store_->stats().reclaimed_segments == 0) ASSERT_EQ(write({chain++, 0}), FileOutcome::Ok);
  EXPECT_TRUE(has_page(*store_, {1, 0}));
  EXPECT_FALSE(has_page(*store_, {13, 4}));
}

TEST_F(FileStoreTest, AKeySpaceIsNamedOnceForPeopleAndAsLongAsItHasPages) {
  open();
  write_chain(1, 2, 1);
  write_chain(2, 2, 1);
  EXPECT_EQ(count_records(RecordKind::KeySpace), 1U);
  for (std::uint32_t chain = 10; chain < 200; ++chain) {
    read_chain(1, 2);
    ASSERT_EQ(write({chain, 0}, 2), FileOutcome::Ok);
  }
  std::map<PageName, int> texts;
  for (const FoundRecord& record : records()) {
    if (record.header.kind == RecordKind::KeySpace) ++texts[record.header.key_space];
  }
  EXPECT_EQ(texts[key_space_name(test_key_space(1))], 1);
  EXPECT_GE(texts[key_space_name(test_key_space(2))], 1);
}

TEST_F(FileStoreTest, PagesAreSpreadOverAllDirectories) {
  open(make_config({"a", "b", "c"}));
  write_chain(1, 9);
  for (const char* directory : {"a", "b", "c"}) EXPECT_EQ(count_records(RecordKind::Page, directory), 3U) << directory;
  ASSERT_TRUE(store_->close());
  open(make_config({"c", "a", "b"}));
  read_chain(1, 9);
}

TEST_F(FileStoreTest, ADirectoryThatFailsIsGivenUpAndTheOthersGoOn) {
  open(make_config({"a", "b"}));
  write_chain(1, 8);
  ASSERT_TRUE(store_->flush());
  disk_->set_broken("a");
  for (std::uint32_t chain = 10; chain < 20; ++chain) (void)write({chain, 0});
  EXPECT_FALSE(store_->flush());  // what was to be written to it is lost
  EXPECT_TRUE(store_->flush());
  const FileStoreStats stats = store_->stats();
  EXPECT_EQ(stats.failed_directories, 1U);
  EXPECT_NE(stats.last_error, "");
  EXPECT_EQ(write({30, 0}), FileOutcome::Ok);
  EXPECT_EQ(read({30, 0}), "");
  std::uint32_t left_count = 0;
  for (std::uint32_t index = 0; index < 8; ++index) left_count += has_page(*store_, {1, index}) ? 1 : 0;
  EXPECT_EQ(left_count, 4U);
  store_->check_invariants();

  disk_->set_broken("b");
  for (std::uint32_t chain = 40; chain < 60; ++chain) (void)write({chain, 0});
  EXPECT_EQ(store_->stats().failed_directories, 2U);
  EXPECT_EQ(write({60, 0}), FileOutcome::Failed);
  EXPECT_EQ(read({30, 0}), "absent");
  EXPECT_FALSE(store_->flush());
  EXPECT_FALSE(store_->drop(key_space_name(test_key_space()), 1));
}

TEST_F(FileStoreTest, AFailedSyncLosesWhatItCoveredAndSaysSoOnce) {
  open();
  write_chain(1, 2);
  ASSERT_TRUE(store_->flush());
  write_chain(2, 2);
  disk_->fail_once(SimOperation::SyncFile);
  EXPECT_FALSE(store_->flush());
  EXPECT_EQ(store_->stats().failed_segments, 1U);
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  read_chain(1, 2);
  EXPECT_FALSE(has_page(*store_, {2, 0}));
  write_chain(2, 2);
  EXPECT_TRUE(store_->flush());
  lose_power();
  read_chain(1, 2);
  read_chain(2, 2);
}

TEST_F(FileStoreTest, AFailedWriteRetiresTheSegmentAndKeepsWhatWasWrittenBefore) {
  open();
  write_chain(1, 2);
  disk_->fail_once(SimOperation::Write);
  EXPECT_EQ(write({1, 2}), FileOutcome::Failed);
  EXPECT_EQ(store_->stats().failed_segments, 1U);
  read_chain(1, 2);
  EXPECT_EQ(read({1, 2}), "absent");
  EXPECT_EQ(write({1, 2}), FileOutcome::Ok);
  EXPECT_TRUE(store_->flush());
  lose_power();
  read_chain(1, 3);
}

TEST_F(FileStoreTest, ASegmentThatIsGivenUpTakesNoMoreThanItHolds) {
  open();
  for (std::uint32_t chain = 1; chain < 6; ++chain) {
    const std::uint64_t used_before = store_->stats().used_bytes;
    EXPECT_EQ(write({chain, 0}), FileOutcome::Ok);
    disk_->fail_once(SimOperation::Write);
    EXPECT_EQ(write({chain, 1}), FileOutcome::Failed);
    // A page, one whose write failed, and perhaps what the key space is called.
    EXPECT_LE(store_->stats().used_bytes, used_before + (6 * kSegmentBlockBytes));
    EXPECT_EQ(write({chain, 2}), FileOutcome::Ok);
    ASSERT_TRUE(store_->close());
    open();
  }
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  for (std::uint32_t chain = 1; chain < 6; ++chain) {
    EXPECT_EQ(read({chain, 0}), "");
    EXPECT_EQ(read({chain, 2}), "");
  }
}

TEST_F(FileStoreTest, ASegmentWithNothingInItIsNotKept) {
  open();
  write_chain(1, 2);
  ASSERT_TRUE(store_->close());
  open();
  const std::size_t file_count = disk_->file_names("a").size();
  disk_->fail_once(SimOperation::Write, 1);  // behind the header of the segment
  EXPECT_EQ(write({2, 0}), FileOutcome::Failed);
  EXPECT_EQ(disk_->file_names("a").size(), file_count);
  EXPECT_EQ(store_->stats().segment_count, 1U);
  EXPECT_EQ(store_->stats().failed_segments, 1U);
  store_->check_invariants();
  EXPECT_EQ(write({2, 0}), FileOutcome::Ok);
  read_chain(1, 2);
}

TEST_F(FileStoreTest, AFailedReadIsAMissAndThePageCanBeWrittenAgain) {
  open();
  write_chain(1, 2);
  disk_->fail_once(SimOperation::Read);
  EXPECT_EQ(read({1, 0}), "failed");
  EXPECT_EQ(read({1, 0}), "absent");
  EXPECT_EQ(write({1, 0}), FileOutcome::Ok);
  read_chain(1, 2);
}

TEST_F(FileStoreTest, AFullDiskTakesNoMoreThanTheStoreCanGiveUpItself) {
  open();
  disk_->set_capacity((3 * kSegmentBytes) + kSegmentBlockBytes);
  for (std::uint32_t chain = 0; chain < 100; ++chain) EXPECT_EQ(write({chain, 0}), FileOutcome::Ok) << chain;
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  EXPECT_EQ(read({99, 0}), "");
  // Others take the rest.
  ASSERT_TRUE(store_->close());
  disk_->put_file("a", "other", std::vector<std::byte>(3 * kSegmentBytes));
  open();
  EXPECT_EQ(write({200, 0}), FileOutcome::Full);
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  store_->check_invariants();
}

TEST_F(FileStoreTest, AFullDiskTakesAsManySegmentsAsANewOneNeeds) {
  open();
  // Short ones: each process writes a page and ends.
  for (std::uint32_t chain = 0; chain < 10; ++chain) {
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
    ASSERT_TRUE(store_->close());
    open();
  }
  const FileStoreStats before = store_->stats();
  ASSERT_EQ(before.segment_count, 10U);
  const std::uint64_t short_bytes = before.used_bytes / 10;
  ASSERT_GE(kSegmentBytes, 3 * short_bytes);
  disk_->set_capacity(before.used_bytes + kSegmentBlockBytes + kSegmentBytes - (3 * short_bytes));
  EXPECT_EQ(write({100, 0}), FileOutcome::Ok);
  EXPECT_EQ(store_->stats().reclaimed_segments, 3U);
  EXPECT_EQ(read({2, 0}), "absent");
  EXPECT_EQ(read({3, 0}), "");
}

TEST_F(FileStoreTest, NothingIsGivenUpForADiskThatIsTooFullForASegment) {
  open();
  for (std::uint32_t chain = 0; chain < 2; ++chain) {
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
    ASSERT_TRUE(store_->close());
    open();
  }
  const FileStoreStats before = store_->stats();
  ASSERT_LT(before.used_bytes, kSegmentBytes);
  disk_->set_capacity(before.used_bytes + kSegmentBlockBytes);
  for (std::uint32_t chain = 2; chain < 5; ++chain) EXPECT_EQ(write({chain, 0}), FileOutcome::Full);
  EXPECT_EQ(store_->stats().reclaimed_segments, 0U);
  EXPECT_EQ(read({0, 0}), "");
  EXPECT_EQ(read({1, 0}), "");
}

TEST_F(FileStoreTest, SegmentsAreLongEnoughForTheFilesThatMayBeOpen) {
  FileStoreConfig config = make_config();
  config.capacity_bytes = 200 * kSegmentBytes;
  disk_->set_open_files_max(64);
  open(config);
  std::uint32_t segments_most = 0;
  for (std::uint32_t chain = 0; chain < 2'500; ++chain) {
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok) << chain;
    segments_most = std::max(segments_most, store_->stats().segment_count);
  }
  store_->check_invariants();
  EXPECT_LE(segments_most, 32U);
  EXPECT_GT(store_->stats().used_bytes, config.capacity_bytes * 9 / 10) << "no less is stored for it";
  ASSERT_TRUE(store_->close());
  open(config);
  EXPECT_EQ(read({2'499, 0}), "");
}

TEST_F(FileStoreTest, ShortSegmentsArePartOfTheFilesThatMayBeOpen) {
  disk_->set_open_files_max(32);
  open();
  for (std::uint32_t chain = 0; chain < 40; ++chain) {
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
    ASSERT_TRUE(store_->close());
    open();
    EXPECT_LE(store_->stats().segment_count, 16U);
  }
  store_->check_invariants();
  EXPECT_EQ(read({0, 0}), "absent");
  for (std::uint32_t chain = 28; chain < 40; ++chain) EXPECT_EQ(read({chain, 0}), "") << chain;
}

TEST_F(FileStoreTest, MoreFilesThanMayBeMadeAreKeptAndDoNotGrow) {
  open();
  for (std::uint32_t chain = 0; chain < 20; ++chain) {
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
    ASSERT_TRUE(store_->close());
    open();
  }
  ASSERT_EQ(store_->stats().segment_count, 20U);
  disk_->set_open_files_max(16);
  open();
  EXPECT_EQ(store_->stats().segment_count, 20U);
  for (std::uint32_t chain = 0; chain < 20; ++chain) EXPECT_EQ(read({chain, 0}), "") << chain;
  for (std::uint32_t chain = 20; chain < 100; ++chain) {
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
    EXPECT_LE(store_->stats().segment_count, 20U);
  }
  EXPECT_EQ(read({99, 0}), "");
}

TEST_F(FileStoreTest, LessCapacityThanBeforeIsKeptToo) {
  open();
  for (std::uint32_t chain = 0; chain < 60; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  ASSERT_TRUE(store_->close());
  FileStoreConfig less = make_config();
  less.capacity_bytes /= 2;
  open(less);
  EXPECT_LE(store_->stats().used_bytes, less.capacity_bytes);
  store_->check_invariants();
  EXPECT_EQ(read({59, 0}), "");
  EXPECT_EQ(read({0, 0}), "absent");
  EXPECT_EQ(write({100, 0}), FileOutcome::Ok);
}

TEST_F(FileStoreTest, AClosedStoreHasNothing) {
  open();
  write_chain(1, 2);
  ASSERT_TRUE(store_->close());
  EXPECT_FALSE(has_page(*store_, {1, 0}));
  EXPECT_EQ(read({1, 0}), "absent");
  EXPECT_EQ(write({1, 0}), FileOutcome::Failed);
  EXPECT_FALSE(store_->flush());
  EXPECT_FALSE(store_->drop(key_space_name(test_key_space()), 1));
  EXPECT_TRUE(store_->close());
  store_->drop_page(name_of({1, 0}), 1);
  // And the directory is free for others.
  auto second = FileStore::open(config_, *disk_);
  EXPECT_TRUE(second.has_value());
}

}  // namespace
}  // namespace quire::testing
