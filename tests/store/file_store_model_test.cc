// SPDX-License-Identifier: Apache-2.0
//
// The file store and a naive twin, a set of pages, under random operations: in a store that has room for everything
// they agree about every page; in one that has not, nothing is found that the twin does not have.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/file_store.h"
#include "testing/file_pages.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/sim_disk.h"

namespace quire::testing {
namespace {

constexpr std::uint32_t kChains = 12;
constexpr std::uint32_t kChainPages = 8;
constexpr std::uint32_t kKeySpaces = 3;

class Model {
 public:
  Model(Random& random, bool is_small) : is_small_(is_small), disk_(std::make_unique<SimDisk>(random.next())) {
    const std::uint32_t directories = 1 + random.below(3);
    for (std::uint32_t i = 0; i < directories; ++i) config_.directories.emplace_back(1, static_cast<char>('a' + i));
    config_.layout = {.page_bytes = 1 + random.below(9'000), .hash = 7};
    config_.segment_bytes = (20 + random.below(30)) * kSegmentBlockBytes;
    config_.capacity_bytes = config_.segment_bytes * directories * (is_small ? 4 : 60);
    config_.queue_depth = 1 + random.below(8);
    config_.zstd_level = random.below(2) == 0 ? 0 : 1;
    store_ = open();
  }

  std::string apply(const Op& op) {
    now_ns_ += 1'000;
    const TestPage page{op.draws[0] % kChains, op.draws[1] % kChainPages};
    std::string difference;
    switch (op.kind % 16) {
      case 0:
        if (!store_->flush()) difference = "flush() failed";
        break;
      case 1:
        if (op.draws[2] % 4 == 0) difference = drop(page.chain % kKeySpaces);
        break;
      case 2:
        twin_.erase(page);
        store_->drop_page(name_of(page), now_ns_);
        break;
      case 3:
        if (op.draws[2] % 2 == 0) reopen(op.draws[3] % 2 == 0);
        break;
      case 4:
      case 5:
      case 6:
      case 7:
        difference = read(page, 1 + (op.draws[2] % 12));
        break;
      default:
        difference = write(page, 1 + (op.draws[2] % 12));
    }
    if (!difference.empty()) return difference;
    store_->check_invariants();
    return compare();
  }

 private:
  std::unique_ptr<FileStore> open() {
    auto opened = FileStore::open(config_, *disk_);
    return opened ? std::move(*opened) : nullptr;
  }

  // The process ends, with or without closing the store: either way everything that was written is there. What was
  // dropped and neither written down nor flushed may be back.
  void reopen(bool is_closed) {
    if (is_closed) {
      (void)store_->close();
      store_ = open();
      return;
    }
    (void)store_->flush();
    auto next = disk_->kill(1);
    store_.reset();
    disk_ = std::move(next);
    store_ = open();
  }

  bool is_plain(TestPage page) const { return page.index % 2 == 0; }

  std::string write(TestPage first, std::uint32_t count) {
    std::vector<std::vector<std::byte>> bytes(count);
    std::vector<FileWrite> writes(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      // Twice around: the same page may be in it more than once.
      const TestPage page{first.chain, (first.index + i) % kChainPages};
      bytes[i] = bytes_of(page, config_.layout.page_bytes, is_plain(page));
      writes[i] = {.name = name_of(page), .parent = parent_of(page), .page_index = page.index, .bytes = bytes[i]};
      if (i % 3 == 0) writes[i].checksum = checksum_of(bytes[i]);
      twin_.insert(page);
    }
    store_->write(test_key_space(first.chain % kKeySpaces), writes, now_ns_);
    const auto is_ok = [](const FileWrite& page) { return page.outcome == FileOutcome::Ok; };
    return std::ranges::all_of(writes, is_ok) ? "" : "a page was not written: " + store_->stats().last_error;
  }

  std::string read(TestPage first, std::uint32_t count) {
    std::vector<std::vector<std::byte>> bytes(count, std::vector<std::byte>(config_.layout.page_bytes));
    std::vector<FileRead> reads(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      reads[i] = {.name = name_of({first.chain, (first.index + i) % kChainPages}), .bytes = bytes[i]};
    }
    store_->read(reads);
    for (std::uint32_t i = 0; i < count; ++i) {
      const TestPage page{first.chain, (first.index + i) % kChainPages};
      if (reads[i].outcome == FileOutcome::Absent) {
        if (twin_.contains(page) && !is_small_) return "a page is absent";
        continue;
      }
      if (reads[i].outcome != FileOutcome::Ok) return "a page cannot be read: " + store_->stats().last_error;
      if (!twin_.contains(page)) return "a page is there that should not be";
      if (bytes[i] != bytes_of(page, config_.layout.page_bytes, is_plain(page))) return "wrong bytes";
      if (reads[i].checksum != checksum_of(bytes[i])) return "a wrong checksum";
    }
    return "";
  }

  std::string drop(std::uint32_t key_space) {
    std::erase_if(twin_, [key_space](TestPage page) { return page.chain % kKeySpaces == key_space; });
    return store_->drop(key_space_name(test_key_space(key_space)), now_ns_) ? "" : "drop() failed";
  }

  std::string compare() {
    if (!store_) return "the store does not open";
    std::uint64_t found_count = 0;
    for (std::uint32_t chain = 0; chain < kChains; ++chain) {
      std::vector<PageName> names;
      std::uint32_t leading = 0;
      for (std::uint32_t index = 0; index < kChainPages; ++index) {
        const TestPage page{chain, index};
        names.push_back(name_of(page));
        const bool is_found = has_page(*store_, page);
        found_count += is_found ? 1 : 0;
        if (is_found && leading == index) ++leading;
        if (is_found && !twin_.contains(page)) return "a page is found that should not be";
        if (!is_found && twin_.contains(page) && !is_small_) return "a page is not found";
      }
      if (store_->find(names) != leading) return "find() counts wrongly";
    }
    const FileStoreStats stats = store_->stats();
    if (stats.record_count != found_count) return "records are counted wrongly";
    if (stats.used_bytes > stats.capacity_bytes) return "more than the capacity is used";
    if (stats.corrupt_records + stats.failed_segments + stats.failed_directories > 0) return "something failed";
    return "";
  }

  bool is_small_;
  std::unique_ptr<SimDisk> disk_;
  FileStoreConfig config_;
  std::unique_ptr<FileStore> store_;
  std::set<TestPage> twin_;
  TimeNs now_ns_ = 0;
};

TEST(FileStoreModel, AStoreWithRoomForAllAgreesWithASet) {
  EXPECT_EQ(run_seeds({.test = "bin/file_store_model_test --gtest_filter=FileStoreModel.AStoreWithRoomForAll*",
                       .seed_count = kIsSanitized ? 10U : 60U,
                       .step_count = 300},
                      [](Random& random) { return Model(random, false); }),
            "");
}

TEST(FileStoreModel, AStoreThatMustMakeRoomHasNothingThatASetHasNot) {
  EXPECT_EQ(run_seeds({.test = "bin/file_store_model_test --gtest_filter=FileStoreModel.AStoreThatMustMakeRoom*",
                       .seed_count = kIsSanitized ? 10U : 60U,
                       .step_count = 300},
                      [](Random& random) { return Model(random, true); }),
            "");
}

}  // namespace
}  // namespace quire::testing
