// SPDX-License-Identifier: Apache-2.0
//
// For tests of one FileStore on a simulated disk: small pages and segments, and what is in the files.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/file_store.h"
#include "testing/file_pages.h"
#include "testing/sim_disk.h"
#include "wire/segment.h"

namespace quire::testing {

inline constexpr std::uint64_t kPageBytes = 6'000;  // two blocks with its header
inline constexpr std::uint64_t kSegmentBytes = 20 * kSegmentBlockBytes;

inline FileStoreConfig make_config(std::vector<std::string> directories = {"a"}) {
  FileStoreConfig config;
  config.capacity_bytes = directories.size() * 8 * kSegmentBytes;
  config.directories = std::move(directories);
  config.segment_bytes = kSegmentBytes;
  config.layout = {.page_bytes = kPageBytes, .hash = 7};
  config.queue_depth = 4;
  config.random_seed = 99;
  return config;
}

class FileStoreTest : public ::testing::Test {
 protected:
  FileStore& open() { return open(make_config()); }
  FileStore& open(const FileStoreConfig& config) {
    store_.reset();
    config_ = config;
    auto opened = FileStore::open(config, *disk_);
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    store_ = std::move(*opened);
    return *store_;
  }
  Error refusal(const FileStoreConfig& config) {
    store_.reset();
    auto opened = FileStore::open(config, *disk_);
    EXPECT_FALSE(opened.has_value());
    return opened ? Error{} : opened.error();
  }
  FileOutcome write(TestPage page, std::uint32_t key_space = 0) { return write_one(*store_, page, config_, key_space); }
  void write_chain(std::uint32_t chain, std::uint32_t count, std::uint32_t key_space = 0) {
    for (std::uint32_t index = 0; index < count; ++index) {
      EXPECT_EQ(write({chain, index}, key_space), FileOutcome::Ok);
    }
  }
  std::string read(TestPage page) { return read_one(*store_, page, config_); }
  void read_chain(std::uint32_t chain, std::uint32_t count) {
    for (std::uint32_t index = 0; index < count; ++index) EXPECT_EQ(read({chain, index}), "");
  }
  // The process ends, and another one opens what it left.
  FileStore& end_process() {
    auto next = disk_->kill(1);
    store_.reset();
    disk_ = std::move(next);
    return open(config_);
  }
  FileStore& lose_power() {
    auto next = disk_->crash(1);
    store_.reset();
    disk_ = std::move(next);
    return open(config_);
  }

  struct FoundRecord {
    std::string file;
    RecordHeader header;
  };
  // What segments hold, garbage included, read as any program would.
  std::vector<FoundRecord> records(const std::string& directory = "a") {
    std::vector<FoundRecord> found;
    for (const std::string& name : disk_->file_names(directory)) {
      if (!segment_id_of(name)) continue;
      const std::vector<std::byte> bytes = disk_->file_bytes(directory, name);
      const SegmentHeader segment = decode_segment_header(std::span(bytes).first(kSegmentBlockBytes)).value();
      for (std::uint64_t offset = kSegmentBlockBytes; offset < bytes.size(); offset += kSegmentBlockBytes) {
        const auto record = decode_record_header(
            std::span(bytes).subspan(offset), {.salt = segment.salt, .offset = offset, .segment_bytes = bytes.size()});
        if (record) found.push_back({name, *record});
      }
    }
    return found;
  }
  std::uint64_t count_records(RecordKind kind, const std::string& directory = "a") {
    return static_cast<std::uint64_t>(std::ranges::count_if(
        records(directory), [kind](const FoundRecord& record) { return record.header.kind == kind; }));
  }
  void damage(TestPage page) {
    for (const FoundRecord& record : records()) {
      if (record.header.name != name_of(page)) continue;
      disk_->flip_bit("a", record.file, (record.header.offset + kRecordHeaderBytes + 100) * 8);
    }
  }

  std::unique_ptr<SimDisk> disk_ = std::make_unique<SimDisk>(1);
  FileStoreConfig config_;
  std::unique_ptr<FileStore> store_;
};

}  // namespace quire::testing
