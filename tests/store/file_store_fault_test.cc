// SPDX-License-Identifier: Apache-2.0
//
// Each call to the file system fails, one after the other, in a fixed course of events that uses all of them. Whatever
// fails, the store's bookkeeping agrees with itself, no wrong byte is read, an answer is given for every page, and what
// a flush() that succeeded has promised is there when the power fails next.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/file_store.h"
#include "testing/file_pages.h"
#include "testing/sanitized.h"
#include "testing/sim_disk.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kSegmentBytes = 12 * kSegmentBlockBytes;

class Course {
 public:
  explicit Course(std::vector<std::string> directories) {
    config_.capacity_bytes = directories.size() * 8 * kSegmentBytes;
    config_.directories = std::move(directories);
    config_.segment_bytes = kSegmentBytes;
    config_.layout = {.page_bytes = 3'000, .hash = 7};
    config_.queue_depth = 3;
  }

  SimDisk& disk() { return *disk_; }
  /// Until the power fails.
  [[nodiscard]] std::uint64_t operation_count(SimOperation operation) const {
    return operation_counts_[static_cast<std::size_t>(operation)];
  }
  /// What is there after a crash does not count.
  void promise_nothing() { is_promising_ = false; }
  [[nodiscard]] const std::string& wrong() const { return wrong_; }

  void run() {
    open();
    for (std::uint32_t chain = 0; chain < 60; ++chain) {
      write({chain, 0});
      write({chain, 1});
      if (chain % 3 == 0) read({chain, 0});
      if (chain % 3 == 0) read({0, 0});
      if (chain % 10 == 9) drop_page({chain, 1});
      if (chain % 4 == 3) flush();
      if (chain == 30) drop_key_space(1);
      if (chain % 25 == 24) reopen();
    }
    flush();
    end();
  }

 private:
  static std::uint32_t key_space_of(TestPage page) { return page.chain % 3; }

  bool open() {
    auto opened = FileStore::open(config_, *disk_);
    // Only one call fails: the next try succeeds.
    if (!opened) opened = FileStore::open(config_, *disk_);
    if (!opened) {
      wrong_ = "the store does not open a second time: " + opened.error().message;
      return false;
    }
    store_ = std::move(*opened);
    store_->check_invariants();
    return true;
  }

  void write(TestPage page) {
    if (!store_) return;
    dropped_.erase(page);
    dropped_unflushed_.erase(page);
    const FileOutcome outcome = write_one(*store_, page, config_, key_space_of(page));
    store_->check_invariants();
    if (outcome == FileOutcome::Ok && !has_page(*store_, page)) wrong_ = "a page is written and not found";
    if (outcome != FileOutcome::Ok && has_page(*store_, page)) wrong_ = "a page is not written, but found";
    if (outcome != FileOutcome::Ok && store_->stats().last_error.empty()) wrong_ = "nobody says why";
  }

  void read(TestPage page) {
    if (!store_) return;
    const std::string answer = read_one(*store_, page, config_);
    store_->check_invariants();
    if (!answer.empty() && answer != "absent" && answer != "failed") wrong_ = "a page is " + answer;
    if (answer == "failed" && has_page(*store_, page)) wrong_ = "what cannot be read is still found";
  }

  void drop_page(TestPage page) {
    if (!store_ || !has_page(*store_, page)) return;
    store_->drop_page(name_of(page), 1);
    dropped_unflushed_.insert(page);
  }

  void drop_key_space(std::uint32_t key_space) {
    if (!store_) return;
    const bool is_dropped = store_->drop(key_space_name(test_key_space(key_space)), 1).has_value();
    store_->check_invariants();
    for (std::uint32_t chain = key_space; chain < 31; chain += 3) {
      for (std::uint32_t index = 0; index < 2; ++index) {
        if (has_page(*store_, {chain, index})) wrong_ = "a dropped page is found";
        if (is_dropped) dropped_unflushed_.insert({chain, index});
      }
    }
  }

  void flush() {
    if (!store_) return;
    is_flushed_ = store_->flush().has_value();
    if (is_flushed_) dropped_.merge(dropped_unflushed_);
    store_->check_invariants();
  }

  void reopen() {
    if (!store_) return;
    if (store_->close()) dropped_.merge(dropped_unflushed_);
    dropped_unflushed_.clear();
    store_.reset();
    open();
  }

  void end() {
    if (!store_) return;
    std::set<TestPage> there;
    for (std::uint32_t chain = 0; chain < 60; ++chain) {
      for (std::uint32_t index = 0; index < 2; ++index) {
        if (has_page(*store_, {chain, index})) there.insert({chain, index});
      }
    }
    for (std::size_t i = 0; i < kSimOperationCount; ++i) {
      operation_counts_[i] = disk_->operation_count(static_cast<SimOperation>(i));
    }
    auto next = disk_->crash(7);
    store_.reset();
    disk_ = std::move(next);
    if (!open() || !is_flushed_ || !is_promising_) return;
    for (const TestPage page : there) {
      if (const std::string answer = read_one(*store_, page, config_); !answer.empty()) {
        wrong_ = "after a crash a flushed page is " + answer;
      }
    }
    for (const TestPage page : dropped_) {
      if (has_page(*store_, page)) wrong_ = "after a crash a dropped page is back";
    }
  }

  std::unique_ptr<SimDisk> disk_ = std::make_unique<SimDisk>(3);
  FileStoreConfig config_;
  std::unique_ptr<FileStore> store_;
  std::set<TestPage> dropped_;  // and flushed
  std::set<TestPage> dropped_unflushed_;
  std::array<std::uint64_t, kSimOperationCount> operation_counts_{};
  bool is_flushed_ = false;
  bool is_promising_ = true;
  std::string wrong_;
};

constexpr std::array<const char*, kSimOperationCount> kOperationNames = {
    "OpenDirectory", "MakeQueue", "List",   "Create", "Open",     "Length",        "SetLength",
    "Read",          "Write",     "Rename", "Remove", "SyncFile", "SyncDirectory", "FreeBytes"};

class FileStoreFault : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(FileStoreFault, OneCallFailsAndNothingIsWrong) {
  const auto operation = static_cast<SimOperation>(GetParam());
  for (const std::vector<std::string>& directories : {std::vector<std::string>{"a"}, {"a", "b"}}) {
    Course untroubled(directories);
    untroubled.run();
    ASSERT_EQ(untroubled.wrong(), "");
    const std::uint64_t count = untroubled.operation_count(operation);
    const std::uint64_t stride = kIsSanitized && count > 50 ? 11 : 1;
    for (std::uint64_t successes = 0; successes < count; successes += stride) {
      Course course(directories);
      course.disk().fail_once(operation, successes);
      // Names that a sync was to make durable and did not: no later sync makes up for it, and the store, which gives
      // the directory up, cannot leave word of it for the process that opens it again.
      if (operation == SimOperation::SyncDirectory) course.promise_nothing();
      course.run();
      ASSERT_EQ(course.wrong(), "") << kOperationNames[GetParam()] << " " << successes << " of " << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OfEachKind, FileStoreFault,
                         ::testing::Range(0U, static_cast<std::uint32_t>(kSimOperationCount)),
                         [](const auto& test) { return std::string(kOperationNames[test.param]); });

}  // namespace
}  // namespace quire::testing
