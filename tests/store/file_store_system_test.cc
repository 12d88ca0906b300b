// SPDX-License-Identifier: Apache-2.0
//
// The file store on files of the system: in every mode that a system leaves it, and when the disk fills up, breaks,
// becomes read-only or is taken away under it.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "store/file_store.h"
#include "store/system_files.h"
#include "testing/failing_calls.h"
#include "testing/file_pages.h"
#include "testing/sanitized.h"
#include "testing/temp_directory.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kPageBytes = 6'000;  // two blocks with its header
constexpr std::uint64_t kSegmentBytes = 20 * kSegmentBlockBytes;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class SystemStoreTest : public ::testing::Test {
 protected:
  explicit SystemStoreTest(const Refused& refused = {}) : calls_(failing_calls(refused)) {
    config_.directories = {temp_.path() + "/a"};
    config_.capacity_bytes = 8 * kSegmentBytes;
    config_.segment_bytes = kSegmentBytes;
    config_.layout = {.page_bytes = kPageBytes, .hash = 7};
    config_.queue_depth = 4;
  }
  ~SystemStoreTest() override {
    store_.reset();
    call_failures.clear();
  }

  FileStore& open() {
    store_.reset();
    files_ = std::make_unique<SystemFiles>(calls_);
    auto opened = FileStore::open(config_, *files_);
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    store_ = std::move(*opened);
    store_->check_invariants();
    return *store_;
  }
  Error refusal() {
    store_.reset();
    files_ = std::make_unique<SystemFiles>(calls_);
    auto opened = FileStore::open(config_, *files_);
    EXPECT_FALSE(opened.has_value());
    return opened ? Error{} : opened.error();
  }
  FileOutcome write(TestPage page) { return write_one(*store_, page, config_); }
  std::string read(TestPage page) { return read_one(*store_, page, config_); }
  void write_chain(std::uint32_t chain, std::uint32_t count) {
    for (std::uint32_t index = 0; index < count; ++index) EXPECT_EQ(write({chain, index}), FileOutcome::Ok);
  }
  void read_chain(std::uint32_t chain, std::uint32_t count) {
    for (std::uint32_t index = 0; index < count; ++index) EXPECT_EQ(read({chain, index}), "") << chain << " " << index;
  }
  /// Right bytes, or a miss.
  void read_whatever_is_there(std::uint32_t chain_count) {
    for (std::uint32_t chain = 0; chain < chain_count; ++chain) {
      const std::string answer = read({chain, 0});
      EXPECT_TRUE(answer.empty() || answer == "absent" || answer == "failed") << answer;
    }
    store_->check_invariants();
  }
  /// The files as they are, opened by a store of their own: as if this process had been killed.
  std::unique_ptr<FileStore> open_copy(SystemFiles& files) {
    const std::string copy = temp_.path() + "/copy";
    std::filesystem::remove_all(copy);
    std::filesystem::create_directory(copy);
    for (const auto& file : std::filesystem::directory_iterator(config_.directories[0])) {
      if (file.path().filename() != "quire-lock") std::filesystem::copy(file.path(), copy);
    }
    FileStoreConfig config = config_;
    config.directories = {copy};
    auto opened = FileStore::open(config, files);
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    return std::move(*opened);
  }

  TempDirectory temp_;
  FileCalls calls_;
  FileStoreConfig config_;
  std::unique_ptr<SystemFiles> files_;
  std::unique_ptr<FileStore> store_;
};

// ── Modes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Mode {
  const char* name;
  Refused refused;
  const char* refusal;  ///< what is said of it
};
constexpr std::array<Mode, 8> kModes{
    {{"NothingRefused", {}, ""},
     {"WithoutUring", {.uring = true}, "io_uring: Operation not permitted"},
     {"WithoutDirect", {.direct = true}, "O_DIRECT in "},
     {"WithoutRegisteredBuffers", {.registered_buffers = true}, "registered buffers: Cannot allocate memory"},
     {"OnAnOldKernel",
      {.plain_requests = true, .registered_buffers = true},
      "io_uring: without requests for memory that is not registered, as before Linux 5.6"},
     {"WithoutReservedSpace", {.reserved_space = true}, "reserved space in "},
     {"BlockByBlock", {.whole_transfers = true}, ""},
     {"WithoutAnything",
      {.uring = true, .registered_buffers = true, .direct = true, .reserved_space = true},
      "io_uring: Operation not permitted"}}};

class FileStoreMode : public SystemStoreTest, public ::testing::WithParamInterface<Mode> {
 protected:
  FileStoreMode() : SystemStoreTest(GetParam().refused) {}
  // A system may refuse more than the test does.
  void expect_mode() {
    const Refused& refused = GetParam().refused;
    const IoMode mode = store_->stats().mode;
    const auto is_excused = [&mode](const std::string& what) { return contains(mode.refusals, what); };
    EXPECT_EQ(mode.engine == IoMode::Engine::Uring, !refused.uring && !is_excused("io_uring: "));
    EXPECT_EQ(mode.is_direct, !refused.direct && !is_excused("O_DIRECT in "));
    EXPECT_EQ(mode.has_registered_buffers,
              mode.engine == IoMode::Engine::Uring && !refused.registered_buffers && !is_excused("registered buffers"));
    const bool may_be_unsaid = refused.registered_buffers && mode.engine != IoMode::Engine::Uring;
    EXPECT_TRUE(may_be_unsaid || contains(mode.refusals, GetParam().refusal)) << mode.refusals;
  }
};

TEST_P(FileStoreMode, AStoreLivesAWholeLife) {
  open();
  write_chain(0, 8);
  ASSERT_TRUE(store_->flush());
  expect_mode();
  read_chain(0, 8);
  store_->drop_page(name_of({0, 5}), 1);
  EXPECT_FALSE(has_page(*store_, {0, 5}));
  ASSERT_TRUE(store_->flush());
  {
    // A scan, of what a killed process leaves.
    SystemFiles files(calls_);
    const auto copy = open_copy(files);
    EXPECT_GT(copy->stats().read_bytes, 0U);
    for (std::uint32_t index = 0; index < 8; ++index) {
      EXPECT_EQ(read_one(*copy, {0, index}, config_), index == 5 ? "absent" : "");
    }
  }
  ASSERT_TRUE(store_->close());
  open();
  EXPECT_EQ(store_->stats().read_bytes, 0U) << "the footers are there";
  EXPECT_FALSE(has_page(*store_, {0, 5}));
  read_chain(0, 5);
  // Segments go, and what is read is carried over.
  for (std::uint32_t chain = 1; chain < 150; ++chain) {
    ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
    read_chain(0, 2);
  }
  EXPECT_LE(store_->stats().used_bytes, config_.capacity_bytes);
  EXPECT_GT(store_->stats().carried_bytes, 0U);
  ASSERT_TRUE(store_->drop(key_space_name(test_key_space()), 1));
  ASSERT_TRUE(store_->close());
  config_.zstd_level = 1;
  open();
  EXPECT_EQ(store_->stats().record_count, 0U);
  write_chain(1, 3);
  const std::vector<std::byte> plain = bytes_of({9, 0}, kPageBytes, true);
  FileWrite write{.name = name_of({9, 0}), .parent = parent_of({9, 0}), .bytes = plain};
  store_->write(test_key_space(), {&write, 1}, 1);
  EXPECT_EQ(write.outcome, FileOutcome::Ok);
  expect_mode();
  ASSERT_TRUE(store_->close());
  open();
  read_chain(1, 3);
  std::vector<std::byte> bytes(kPageBytes);
  FileRead read{.name = name_of({9, 0}), .bytes = bytes};
  store_->read({&read, 1});
  EXPECT_EQ(read.outcome, FileOutcome::Ok);
  EXPECT_EQ(bytes, plain);
  EXPECT_EQ(store_->stats().last_error, "");
  store_->check_invariants();
}

TEST_P(FileStoreMode, WhatAnotherModeWroteIsRead) {
  open();
  write_chain(1, 12);
  ASSERT_TRUE(store_->close());
  for (const Mode& mode : kModes) {
    calls_ = failing_calls(mode.refused);
    open();
    read_chain(1, 12);
    ASSERT_TRUE(store_->close());
  }
}

INSTANTIATE_TEST_SUITE_P(OfASystem, FileStoreMode, ::testing::ValuesIn(kModes),
                         [](const auto& test) { return std::string(test.param.name); });

// ── Failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────

class FileStoreFailure : public SystemStoreTest, public ::testing::WithParamInterface<bool> {
 protected:
  FileStoreFailure() : SystemStoreTest({.uring = !GetParam()}) {}
};

TEST_P(FileStoreFailure, AFullDiskIsSaidAndPassesWithItsReason) {
  open();
  write_chain(0, 3);
  ASSERT_TRUE(store_->flush());
  call_failures.reserve = ENOSPC;
  FileOutcome outcome = FileOutcome::Ok;
  std::uint32_t chain = 1;
  for (; chain < 40 && outcome == FileOutcome::Ok; ++chain) outcome = write({chain, 0});
  EXPECT_EQ(outcome, FileOutcome::Full);
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  EXPECT_TRUE(contains(store_->stats().last_error, "No space left on device")) << store_->stats().last_error;
  read_whatever_is_there(chain);
  EXPECT_TRUE(store_->flush()) << "nothing that was written is lost";
  call_failures.clear();
  write_chain(100, 5);
  read_chain(100, 5);
  ASSERT_TRUE(store_->flush());
}

TEST_P(FileStoreFailure, ADiskThatStaysFullDoesNotEmptyTheStore) {
  config_.capacity_bytes = 40 * kSegmentBytes;
  open();
  std::uint32_t chain = 0;
  for (; store_->stats().segment_count < 31; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  ASSERT_TRUE(store_->flush());
  // The file system has room enough, but not for us: a quota, say.
  call_failures.reserve = ENOSPC;
  std::uint32_t full_count = 0;
  for (std::uint32_t i = 0; i < 30; ++i) full_count += write({chain + i, 0}) == FileOutcome::Full ? 1 : 0;
  EXPECT_GT(full_count, 10U) << "the open segment has room for some";
  EXPECT_LE(store_->stats().reclaimed_segments, 1U);
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  ASSERT_TRUE(store_->flush());
  // Each time that it is full is another one.
  for (std::uint32_t round = 1; round < 4; ++round) {
    call_failures.clear();
    std::uint32_t index = 0;
    for (const std::uint32_t before = store_->stats().segment_count; store_->stats().segment_count == before; ++index) {
      ASSERT_EQ(write({1'000 * round, index}), FileOutcome::Ok);
    }
    call_failures.reserve = ENOSPC;
    for (std::uint32_t i = 0; i < 20; ++i) (void)write({(1'000 * round) + 1, i});
    EXPECT_LE(store_->stats().reclaimed_segments, 1U + round);
  }
}

TEST_P(FileStoreFailure, ADiskThatFillsUpUnderAWriteLosesThatPageOnly) {
  open();
  write_chain(0, 3);
  call_failures.write = ENOSPC;
  EXPECT_EQ(write({1, 0}), FileOutcome::Full);
  call_failures.clear();
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  EXPECT_EQ(store_->stats().failed_segments, 1U);
  EXPECT_TRUE(contains(store_->stats().last_error, "No space left on device")) << store_->stats().last_error;
  read_chain(0, 3);
  EXPECT_EQ(read({1, 0}), "absent");
  write_chain(1, 2);
  ASSERT_TRUE(store_->close());
  open();
  read_chain(0, 3);
  read_chain(1, 2);
}

TEST_P(FileStoreFailure, ADiskThatBreaksUnderWritesIsGivenUp) {
  open();
  write_chain(0, 3);
  ASSERT_TRUE(store_->flush());
  call_failures.write = EIO;
  for (std::uint32_t chain = 1; chain < 8; ++chain) EXPECT_EQ(write({chain, 0}), FileOutcome::Failed);
  EXPECT_EQ(store_->stats().failed_directories, 1U);
  EXPECT_TRUE(contains(store_->stats().last_error, "Input/output error")) << store_->stats().last_error;
  read_whatever_is_there(8);
  EXPECT_FALSE(store_->flush());
  EXPECT_FALSE(store_->drop(key_space_name(test_key_space()), 1));
  (void)store_->close();
  call_failures.clear();
  open();
  read_chain(0, 3);
}

TEST_P(FileStoreFailure, ASyncThatFailsIsNotRepeatedUntilItSucceeds) {
  open();
  write_chain(0, 3);
  ASSERT_TRUE(store_->flush());
  write_chain(1, 3);
  call_failures.sync_data = EIO;
  EXPECT_FALSE(store_->flush());
  call_failures.clear();
  EXPECT_TRUE(contains(store_->stats().last_error, "Input/output error")) << store_->stats().last_error;
  read_chain(0, 3);
  for (std::uint32_t index = 0; index < 3; ++index) EXPECT_EQ(read({1, index}), "absent");
  write_chain(1, 3);
  ASSERT_TRUE(store_->flush());
  ASSERT_TRUE(store_->close());
  open();
  read_chain(0, 3);
  read_chain(1, 3);
}

TEST_P(FileStoreFailure, ASyncOfADirectoryThatFailsGivesItUp) {
  open();
  write_chain(0, 3);
  call_failures.sync_directory = EIO;
  EXPECT_FALSE(store_->flush());
  EXPECT_EQ(store_->stats().failed_directories, 1U);
  EXPECT_EQ(read({0, 0}), "absent");
  EXPECT_TRUE(contains(store_->stats().last_error, "Input/output error")) << store_->stats().last_error;
}

TEST_P(FileStoreFailure, AReadThatFailsIsAMiss) {
  open();
  write_chain(0, 3);
  call_failures.read = EIO;
  EXPECT_EQ(read({0, 1}), "failed");
  call_failures.clear();
  EXPECT_EQ(read({0, 1}), "absent");
  EXPECT_TRUE(contains(store_->stats().last_error, "Input/output error")) << store_->stats().last_error;
  EXPECT_EQ(read({0, 0}), "");
  EXPECT_EQ(write({0, 1}), FileOutcome::Ok);
  read_chain(0, 3);
}

TEST_P(FileStoreFailure, ADirectoryThatCannotBeReadIsNotOpened) {
  open();
  write_chain(0, 3);
  ASSERT_TRUE(store_->close());
  call_failures.read = EIO;
  EXPECT_TRUE(contains(refusal().message, "Input/output error"));
  call_failures.clear();
  open();
  read_chain(0, 3);
}

TEST_P(FileStoreFailure, ADiskThatBecomesReadOnlyIsGivenUpAndNotOpened) {
  open();
  write_chain(0, 3);
  ASSERT_TRUE(store_->flush());
  call_failures.make_read_only();
  for (std::uint32_t chain = 1; chain < 8; ++chain) EXPECT_EQ(write({chain, 0}), FileOutcome::Failed);
  EXPECT_EQ(store_->stats().failed_directories, 1U);
  EXPECT_TRUE(contains(store_->stats().last_error, "Read-only file system")) << store_->stats().last_error;
  read_whatever_is_there(8);
  (void)store_->close();
  EXPECT_TRUE(contains(refusal().message, "Read-only file system"));
  call_failures.clear();
  open();
  read_chain(0, 3);
}

TEST_P(FileStoreFailure, TooManyOpenFilesAreSaidWhenOpening) {
  open();
  write_chain(0, 3);
  ASSERT_TRUE(store_->close());
  call_failures.open = EMFILE;
  EXPECT_TRUE(contains(refusal().message, "Too many open files; see ulimit -n"));
  call_failures.clear();
  open();
  read_chain(0, 3);
}

TEST_P(FileStoreFailure, TooManyOpenFilesAreAsAFullDisk) {
  open();
  std::uint32_t chain = 0;
  for (; store_->stats().segment_count < 5; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  call_failures.create = EMFILE;
  FileOutcome outcome = FileOutcome::Ok;
  for (const std::uint32_t end = chain + 40; chain < end; ++chain) outcome = write({chain, 0});
  EXPECT_EQ(outcome, FileOutcome::Full);
  EXPECT_LE(store_->stats().reclaimed_segments, 1U);
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  EXPECT_TRUE(contains(store_->stats().last_error, "Too many open files")) << store_->stats().last_error;
  read_whatever_is_there(chain);
  EXPECT_TRUE(store_->flush());
  call_failures.clear();
  write_chain(100, 5);
  ASSERT_TRUE(store_->close());
  open();
  read_chain(100, 5);
}

/// Sets how many files the process may have open, for a while.
class OpenFilesMax {
 public:
  explicit OpenFilesMax(rlim_t count) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    struct rlimit now = before_;
    now.rlim_cur = count;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~OpenFilesMax() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  OpenFilesMax(const OpenFilesMax&) = delete;
  OpenFilesMax& operator=(const OpenFilesMax&) = delete;

 private:
  struct rlimit before_{};
};

TEST_P(FileStoreFailure, AStoreOfManySegmentsGetsByWithFewOpenFiles) {
  const OpenFilesMax few(64);
  config_.capacity_bytes = 200 * kSegmentBytes;
  calls_.sync_data = [](int) { return 0; };
  open();
  for (std::uint32_t chain = 0; chain < 2'000; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok) << chain;
  EXPECT_GT(store_->stats().reclaimed_segments, 0U) << "it was full";
  EXPECT_LE(store_->stats().segment_count, 32U);
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  EXPECT_EQ(store_->stats().last_error, "");
  ASSERT_TRUE(store_->close());
  open();
  EXPECT_GT(store_->stats().record_count, 1'200U);
  EXPECT_EQ(read({1'999, 0}), "");
}

TEST_P(FileStoreFailure, ADirectoryThatIsRemovedUnderTheStoreIsGivenUp) {
  open();
  write_chain(0, 3);
  ASSERT_TRUE(store_->flush());
  std::filesystem::remove_all(config_.directories[0]);
  FileOutcome outcome = FileOutcome::Ok;
  std::uint32_t chain = 1;
  for (; chain < 60 && outcome == FileOutcome::Ok; ++chain) {
    outcome = write({chain, 0});
    if (chain % 5 == 0) (void)store_->flush();
  }
  EXPECT_EQ(outcome, FileOutcome::Failed);
  EXPECT_EQ(store_->stats().failed_directories, 1U);
  EXPECT_TRUE(contains(store_->stats().last_error, "No such file or directory")) << store_->stats().last_error;
  read_whatever_is_there(chain);
  EXPECT_FALSE(store_->flush());
  (void)store_->close();
  open();
  EXPECT_EQ(store_->stats().record_count, 0U) << "a new one";
  write_chain(0, 3);
  read_chain(0, 3);
}

TEST_P(FileStoreFailure, AFileThatIsRemovedUnderTheStoreTakesItsPagesOnly) {
  config_.capacity_bytes = 32 * kSegmentBytes;
  open();
  for (std::uint32_t chain = 0; chain < 40; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  ASSERT_TRUE(store_->close());
  open();
  std::filesystem::remove(config_.directories[0] + "/" + segment_file_name(2));
  for (std::uint32_t chain = 0; chain < 40; ++chain) EXPECT_EQ(read({chain, 0}), "") << "it is still open";
  write_chain(100, 3);
  ASSERT_TRUE(store_->close());
  open();
  std::uint32_t there_count = 0;
  for (std::uint32_t chain = 0; chain < 40; ++chain) there_count += has_page(*store_, {chain, 0}) ? 1 : 0;
  EXPECT_LT(there_count, 40U);
  EXPECT_GT(there_count, 25U);
  read_whatever_is_there(40);
  read_chain(100, 3);
  EXPECT_EQ(store_->stats().last_error, "");
}

TEST_P(FileStoreFailure, AFileThatIsGoneWhenItsRoomIsNeededIsNoMishap) {
  open();
  for (std::uint32_t chain = 0; chain < 20; ++chain) ASSERT_EQ(write({chain, 0}), FileOutcome::Ok);
  ASSERT_TRUE(store_->flush());
  std::filesystem::remove(config_.directories[0] + "/" + segment_file_name(1));
  for (std::uint32_t chain = 20; chain < 100; ++chain) EXPECT_EQ(write({chain, 0}), FileOutcome::Ok) << chain;
  EXPECT_EQ(store_->stats().failed_directories, 0U);
  EXPECT_GE(store_->stats().reclaimed_segments, 4U);
  EXPECT_EQ(store_->stats().last_error, "");
  read_whatever_is_there(100);
  EXPECT_EQ(read({99, 0}), "");
  EXPECT_TRUE(store_->flush());
  EXPECT_TRUE(store_->close());
  open();
  read_whatever_is_there(100);
  EXPECT_EQ(read({99, 0}), "");
  EXPECT_EQ(write({200, 0}), FileOutcome::Ok);
}

INSTANTIATE_TEST_SUITE_P(OfADisk, FileStoreFailure, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "WithUring" : "WithThreads"); });

// ── Foreign files ────────────────────────────────────────────────────────────────────────────────────────────────────

class FileStoreForeign : public SystemStoreTest {};

TEST_F(FileStoreForeign, ASegmentOfAnotherStoreIsIgnoredAndCounted) {
  open();
  write_chain(0, 3);
  ASSERT_TRUE(store_->close());
  const std::string first = config_.directories[0];
  config_.directories = {temp_.path() + "/b"};
  config_.random_seed = 5;
  open();
  write_chain(1, 3);
  ASSERT_TRUE(store_->close());
  std::filesystem::copy(first + "/" + segment_file_name(1), config_.directories[0] + "/" + segment_file_name(9));
  std::filesystem::copy(first + "/" + segment_file_name(1), config_.directories[0] + "/" + segment_file_name(1),
                        std::filesystem::copy_options::skip_existing);
  open();
  EXPECT_EQ(store_->stats().ignored_files, 1U);
  EXPECT_EQ(read({0, 0}), "absent");
  read_chain(1, 3);
  EXPECT_TRUE(std::filesystem::exists(config_.directories[0] + "/" + segment_file_name(9))) << "left alone";
}

TEST_F(FileStoreForeign, ADirectoryWithSomethingElseInItIsRefusedAndLeftAlone) {
  const std::string& path = config_.directories[0];
  const std::map<std::string, std::string> mine = {
      {"quire-lock", "precious"}, {"lock", "1\n"}, {"thesis.txt", "Chapter 1"}};
  std::filesystem::create_directory(path);
  for (const auto& [name, text] : mine) std::ofstream(std::filesystem::path(path) / name) << text;
  EXPECT_EQ(refusal().code, ErrorCode::InvalidArgument);
  std::map<std::string, std::string> left;
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    std::ifstream in(file.path());
    left[file.path().filename()] = {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  EXPECT_EQ(left, mine);
}

// A head of a newer version: of both kinds of file.
TEST_F(FileStoreForeign, ANewerFormatIsRefusedAndLeftAlone) {
  for (const std::string& name : {std::string(kManifestFileName), segment_file_name(1)}) {
    config_.directories = {temp_.path() + "/newer-" + name};
    open();
    write_chain(0, 3);
    ASSERT_TRUE(store_->close());
    const std::string path = config_.directories[0] + "/" + name;
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    std::array<char, 64> head{};
    file.read(head.data(), head.size());
    head[8] = 99;
    const std::uint64_t checksum = hash_bytes(head.data(), 56, 0);
    std::copy_n(reinterpret_cast<const char*>(&checksum), sizeof(checksum), head.data() + 56);
    file.seekp(0);
    file.write(head.data(), head.size());
    file.close();
    const auto bytes = std::filesystem::file_size(path);
    const Error error = refusal();
    EXPECT_EQ(error.code, ErrorCode::Unsupported) << error.message;
    EXPECT_TRUE(contains(error.message, "newer quire")) << error.message;
    EXPECT_TRUE(contains(error.message, path)) << error.message;
    EXPECT_EQ(std::filesystem::file_size(path), bytes);
  }
}

// ── Size ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

// Without the disk's own speed.
class FileStoreSize : public SystemStoreTest {
 protected:
  FileStoreSize() : SystemStoreTest({.direct = true}) {
    calls_.sync_data = [](int) { return 0; };
  }
};

TEST_F(FileStoreSize, ManyPagesAreAllThereAgain) {
  constexpr std::uint32_t kCount = kIsSanitized ? 10'000 : 100'000;
  constexpr std::uint32_t kChainPages = 16;
  config_.layout.page_bytes = 64;  // a block each
  config_.capacity_bytes = std::uint64_t{1} << 30U;
  config_.segment_bytes = std::uint64_t{16} << 20U;
  config_.queue_depth = 32;
  open();
  std::vector<std::byte> bytes(std::size_t{64} * kChainPages);
  for (std::uint32_t chain = 0; chain < kCount / kChainPages; ++chain) {
    std::array<FileWrite, kChainPages> writes;
    for (std::uint32_t index = 0; index < kChainPages; ++index) {
      const std::span<std::byte> page = std::span(bytes).subspan(std::size_t{64} * index, 64);
      fill_page({chain, index}, page);
      writes[index] = {.name = name_of({chain, index}), .parent = parent_of({chain, index}), .page_index = index};
      writes[index].bytes = page;
    }
    store_->write(test_key_space(), writes, 1);
    for (const FileWrite& write : writes) ASSERT_EQ(write.outcome, FileOutcome::Ok);
  }
  ASSERT_TRUE(store_->close());
  open();
  EXPECT_EQ(store_->stats().record_count, kCount);
  EXPECT_EQ(store_->stats().read_bytes, 0U);
  std::vector<std::byte> expected(64);
  for (std::uint32_t chain = 0; chain < kCount / kChainPages; ++chain) {
    std::array<FileRead, kChainPages> reads;
    std::array<PageName, kChainPages> names;
    for (std::uint32_t index = 0; index < kChainPages; ++index) {
      names[index] = name_of({chain, index});
      reads[index] = {.name = names[index], .bytes = std::span(bytes).subspan(std::size_t{64} * index, 64)};
    }
    ASSERT_EQ(store_->find(names), kChainPages);
    if (chain % 8 != 0) continue;
    store_->read(reads);
    for (std::uint32_t index = 0; index < kChainPages; ++index) {
      ASSERT_EQ(reads[index].outcome, FileOutcome::Ok);
      fill_page({chain, index}, expected);
      ASSERT_TRUE(std::ranges::equal(reads[index].bytes, expected));
    }
  }
}

}  // namespace
}  // namespace quire::testing
