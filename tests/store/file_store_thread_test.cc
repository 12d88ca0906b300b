// SPDX-License-Identifier: Apache-2.0
//
// Threads on one file store, with real files, in a store so small that segments go while they are read.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store/file_store.h"
#include "store/system_files.h"
#include "testing/file_pages.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

constexpr std::uint32_t kChains = 16;
constexpr std::uint32_t kChainPages = 8;
constexpr std::uint32_t kRounds = kIsSanitized ? 60 : 300;

class FileStoreThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire-file-store-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    config_.directories = {root_ + "/a", root_ + "/b"};
    config_.layout = {.page_bytes = 6'000, .hash = 7};
    config_.segment_bytes = 20 * kSegmentBlockBytes;
    config_.capacity_bytes = 10 * config_.segment_bytes;
    config_.queue_depth = 4;
    auto opened = FileStore::open(config_, files_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    store_ = std::move(*opened);
  }
  void TearDown() override {
    store_.reset();
    std::filesystem::remove_all(root_);
  }

  void write_some(std::uint64_t seed) {
    Random random(seed);
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const std::uint32_t chain = random.below(kChains);
      const std::uint32_t count = 1 + random.below(kChainPages);
      std::vector<std::vector<std::byte>> bytes(count);
      std::vector<FileWrite> writes(count);
      for (std::uint32_t index = 0; index < count; ++index) {
        const TestPage page{chain, index};
        bytes[index] = bytes_of(page, config_.layout.page_bytes);
        writes[index] = {.name = name_of(page), .parent = parent_of(page), .page_index = index, .bytes = bytes[index]};
      }
      store_->write(test_key_space(chain % 2), writes, 1);
      for (const FileWrite& write : writes) {
        if (write.outcome != FileOutcome::Ok) ++wrong_count_;
      }
      if (round % 16 == 15 && !store_->flush()) ++wrong_count_;
    }
  }

  void read_some(std::uint64_t seed) {
    Random random(seed);
    std::vector<std::vector<std::byte>> bytes(kChainPages, std::vector<std::byte>(config_.layout.page_bytes));
    while (!is_over_.load()) {
      const std::uint32_t chain = random.below(kChains);
      std::vector<FileRead> reads(kChainPages);
      for (std::uint32_t index = 0; index < kChainPages; ++index) {
        reads[index] = {.name = name_of({chain, index}), .bytes = bytes[index]};
      }
      store_->read(reads);
      for (std::uint32_t index = 0; index < kChainPages; ++index) {
        if (reads[index].outcome == FileOutcome::Absent) continue;
        ++read_count_;
        if (reads[index].outcome != FileOutcome::Ok ||
            bytes[index] != bytes_of({chain, index}, config_.layout.page_bytes)) {
          ++wrong_count_;
        }
      }
    }
  }

  void look_around(std::uint64_t seed) {
    Random random(seed);
    while (!is_over_.load()) {
      const TestPage page{random.below(kChains), random.below(kChainPages)};
      (void)has_page(*store_, page);
      if (random.below(50) == 0) store_->drop_page(name_of(page), 1);
      if (random.below(200) == 0 && !store_->drop(key_space_name(test_key_space(random.below(2))), 1)) ++wrong_count_;
      if (store_->stats().failed_directories > 0) ++wrong_count_;
    }
  }

  std::string root_;
  SystemFiles files_;
  FileStoreConfig config_;
  std::unique_ptr<FileStore> store_;
  std::atomic<bool> is_over_ = false;
  std::atomic<std::uint64_t> wrong_count_ = 0;
  std::atomic<std::uint64_t> read_count_ = 0;
};

TEST_F(FileStoreThreads, ReadersWritersAndDropsDoNotDisturbEachOther) {
  std::vector<std::thread> others;
  others.emplace_back([this] { read_some(1); });
  others.emplace_back([this] { read_some(2); });
  others.emplace_back([this] { look_around(3); });
  std::thread second_writer([this] { write_some(4); });
  write_some(5);
  second_writer.join();
  is_over_ = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(wrong_count_.load(), 0U) << store_->stats().last_error;
  EXPECT_GT(read_count_.load(), 0U);
  EXPECT_GT(store_->stats().reclaimed_segments, 0U);
  store_->check_invariants();
  EXPECT_TRUE(store_->close());
}

TEST_F(FileStoreThreads, AStoreIsClosedWhileItIsUsed) {
  std::thread reader([this] { read_some(1); });
  std::thread writer([this] {
    while (!is_over_.load()) (void)write_one(*store_, {1, 0}, config_);
  });
  for (std::uint32_t chain = 0; chain < 20; ++chain) (void)write_one(*store_, {chain, 0}, config_);
  EXPECT_TRUE(store_->close());
  EXPECT_EQ(write_one(*store_, {1, 1}, config_), FileOutcome::Failed);
  is_over_ = true;
  reader.join();
  writer.join();
  EXPECT_EQ(wrong_count_.load(), 0U);
}

}  // namespace
}  // namespace quire::testing
