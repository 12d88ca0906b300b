// SPDX-License-Identifier: Apache-2.0
//
// Which directories a FileStore opens, which it refuses, and what it makes of files that it finds there.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/file_store_fixture.h"

namespace quire::testing {
namespace {

TEST_F(FileStoreTest, ADirectoryInUseIsRefused) {
  open();
  EXPECT_EQ(FileStore::open(config_, *disk_).error().code, ErrorCode::Unavailable);
}

TEST_F(FileStoreTest, ADirectoryWithForeignFilesIsRefusedAndLeftAlone) {
  open(make_config({"b"}));
  store_.reset();
  disk_->put_file("a", "thesis.txt", std::vector<std::byte>(10));
  const Error error = refusal(make_config());
  EXPECT_EQ(error.code, ErrorCode::InvalidArgument);
  EXPECT_NE(error.message.find("thesis.txt"), std::string::npos) << error.message;
  EXPECT_EQ(disk_->file_names("a"), std::vector<std::string>{"thesis.txt"});
}

TEST_F(FileStoreTest, AManifestThatWasBeingMadeIsRemovedOnlyFromAStoreThatIsOpened) {
  const std::string name = std::string(kManifestFileName) + ".new";
  const auto has_it = [&](const std::string& path) { return std::ranges::count(disk_->file_names(path), name) == 1; };
  open(make_config({"b"}));
  store_.reset();
  disk_->put_file("a", name, std::vector<std::byte>(10));
  disk_->put_file("a", "thesis.txt", std::vector<std::byte>(10));
  EXPECT_EQ(refusal(make_config()).code, ErrorCode::InvalidArgument);
  EXPECT_TRUE(has_it("a")) << "another's directory";

  open(make_config({"c"}));
  store_.reset();
  disk_->put_file("c", name, std::vector<std::byte>(10));
  FileStoreConfig other = make_config({"b", "c"});
  other.random_seed = 5;
  disk_->remove_file("b", std::string(kManifestFileName));
  open([&] {
    FileStoreConfig config = other;
    config.directories = {"b"};
    return config;
  }());
  store_.reset();
  EXPECT_EQ(refusal(other).code, ErrorCode::InvalidArgument);
  EXPECT_TRUE(has_it("c")) << "another store";

  const std::vector<std::byte> manifest = disk_->file_bytes("c", std::string(kManifestFileName));
  disk_->flip_bit("c", std::string(kManifestFileName), 160);
  EXPECT_EQ(refusal(make_config({"c"})).code, ErrorCode::Corrupt);
  EXPECT_TRUE(has_it("c")) << "nobody knows whose";

  disk_->put_file("c", std::string(kManifestFileName), manifest);
  open(make_config({"c"}));
  EXPECT_FALSE(has_it("c"));
}

TEST_F(FileStoreTest, IdsThatNoSegmentHasDoNotLeadOursAstray) {
  open();
  write_chain(1, 3);
  ASSERT_TRUE(store_->close());
  const std::vector<std::string> foreign = {"segment-fffffffffffffffe", "segment-ffffffffffffffff",
                                            "segment-8000000000000000", "segment-7fffffffffffffff"};
  const std::vector<std::byte> bytes(3 * kSegmentBlockBytes, std::byte{7});
  for (const std::string& name : foreign) disk_->put_file("a", name, bytes);
  for (std::uint32_t chain = 2; chain < 6; ++chain) {
    open();
    EXPECT_EQ(store_->stats().ignored_files, foreign.size());
    EXPECT_EQ(write({chain, 0}), FileOutcome::Ok);
    ASSERT_TRUE(store_->close());
  }
  open();
  read_chain(1, 3);
  for (std::uint32_t chain = 2; chain < 6; ++chain) EXPECT_EQ(read({chain, 0}), "") << chain;
  for (const std::string& name : foreign) EXPECT_EQ(disk_->file_bytes("a", name), bytes) << name;
  EXPECT_EQ(std::ranges::count(disk_->file_names("a"), segment_file_name(2)), 1);
}

TEST_F(FileStoreTest, ForeignFilesBesideAStoreAreLeftAlone) {
  open();
  write_chain(1, 1);
  ASSERT_TRUE(store_->close());
  disk_->put_file("a", "notes.txt", std::vector<std::byte>(10));
  disk_->put_file("a", "segment-00000000000000zz", std::vector<std::byte>(10));
  open();
  read_chain(1, 1);
  EXPECT_EQ(std::ranges::count(disk_->file_names("a"), "notes.txt"), 1);
}

TEST_F(FileStoreTest, SegmentsThatDoNotDecodeAreIgnored) {
  open();
  write_chain(1, 1);
  ASSERT_TRUE(store_->close());
  disk_->put_file("a", segment_file_name(0x100), std::vector<std::byte>(3 * kSegmentBlockBytes, std::byte{7}));
  disk_->put_file("a", segment_file_name(0x101), std::vector<std::byte>(17, std::byte{7}));
  // One whose name is another's.
  for (const std::string& name : disk_->file_names("a")) {
    if (segment_id_of(name) == 1) disk_->put_file("a", segment_file_name(0x102), disk_->file_bytes("a", name));
  }
  open();
  read_chain(1, 1);
  EXPECT_EQ(store_->stats().ignored_files, 2U);
  // Shorter than its header: a process ended while it was made.
  EXPECT_EQ(store_->stats().torn_records, 1U);
  EXPECT_EQ(std::ranges::count(disk_->file_names("a"), segment_file_name(0x101)), 0);
  EXPECT_EQ(write({2, 0}), FileOutcome::Ok);
  EXPECT_EQ(std::ranges::count(disk_->file_names("a"), segment_file_name(0x103)), 1) << "names are not used again";
}

TEST_F(FileStoreTest, ADamagedFooterIsMadeUpForByAScan) {
  open();
  write_chain(1, 3);
  ASSERT_TRUE(store_->close());
  for (const std::string& name : disk_->file_names("a")) {
    if (segment_id_of(name)) disk_->flip_bit("a", name, (disk_->file_bytes("a", name).size() * 8) - 32'000);
  }
  open();
  EXPECT_GT(store_->stats().read_bytes, 0U);
  read_chain(1, 3);
}

TEST_F(FileStoreTest, AFooterThatLostItsTrailerIsNoTornRecord) {
  open();
  write_chain(1, 3);
  ASSERT_TRUE(store_->close());
  for (const std::string& name : disk_->file_names("a")) {
    if (!segment_id_of(name)) continue;
    std::vector<std::byte> bytes = disk_->file_bytes("a", name);
    bytes.resize(bytes.size() - kSegmentBlockBytes);
    disk_->put_file("a", name, bytes);
  }
  open();
  read_chain(1, 3);
  EXPECT_EQ(store_->stats().torn_records, 0U);
}

TEST_F(FileStoreTest, ADamagedManifestIsRefused) {
  open();
  store_.reset();
  disk_->flip_bit("a", std::string(kManifestFileName), 100);
  const Error error = refusal(make_config());
  EXPECT_EQ(error.code, ErrorCode::Corrupt);
  EXPECT_NE(error.message.find("a/"), std::string::npos) << error.message;
}

TEST_F(FileStoreTest, SegmentsWithoutAManifestAreRefused) {
  open();
  write_chain(1, 1);
  store_.reset();
  disk_->remove_file("a", std::string(kManifestFileName));
  EXPECT_EQ(refusal(make_config()).code, ErrorCode::InvalidArgument);
}

TEST_F(FileStoreTest, AManifestThatWasNotFinishedIsRemoved) {
  open(make_config({"b"}));
  store_.reset();
  disk_->put_file("a", std::string(kManifestFileName) + ".new", std::vector<std::byte>(10));
  open();
  write_chain(1, 1);
  store_.reset();
  disk_->put_file("a", std::string(kManifestFileName) + ".new", std::vector<std::byte>(10));
  open();
  read_chain(1, 1);
  EXPECT_EQ(std::ranges::count(disk_->file_names("a"), std::string(kManifestFileName) + ".new"), 0);
}

TEST_F(FileStoreTest, DirectoriesOfTwoStoresAreRefused) {
  open(make_config({"a"}));
  FileStoreConfig other = make_config({"b"});
  other.random_seed = 5;
  open(other);
  const Error error = refusal(make_config({"a", "b"}));
  EXPECT_EQ(error.code, ErrorCode::InvalidArgument);
  EXPECT_NE(error.message.find("another file store"), std::string::npos);
}

TEST_F(FileStoreTest, ADirectoryCanBeAdded) {
  open(make_config({"a"}));
  write_chain(1, 3);
  ASSERT_TRUE(store_->close());
  open(make_config({"a", "b"}));
  read_chain(1, 3);
  write_chain(2, 4);
  EXPECT_EQ(count_records(RecordKind::Page, "b"), 2U);
}

TEST_F(FileStoreTest, ConfigurationsThatCannotWorkAreRefusedWithTheArithmetic) {
  const auto refused = [this](auto change) {
    FileStoreConfig config = make_config();
    change(config);
    const Error error = refusal(config);
    EXPECT_EQ(error.code, ErrorCode::InvalidArgument) << error.message;
    return error.message;
  };
  EXPECT_NE(refused([](auto& config) { config.directories.clear(); }), "");
  EXPECT_NE(refused([](auto& config) { config.directories = {"a", "a"}; }).find("twice"), std::string::npos);
  EXPECT_NE(refused([](auto& config) { config.layout.page_bytes = 0; }), "");
  EXPECT_NE(refused([](auto& config) { config.queue_depth = 0; }), "");
  EXPECT_NE(refused([](auto& config) { config.zstd_level = 23; }), "");
  EXPECT_NE(refused([](auto& config) { config.segment_bytes = 4096; }).find("4096"), std::string::npos);
  EXPECT_NE(refused([](auto& config) { config.capacity_bytes = 100'000; }).find("100,000"), std::string::npos);
}

}  // namespace
}  // namespace quire::testing
