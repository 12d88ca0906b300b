// SPDX-License-Identifier: Apache-2.0
#include "quire/disk_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "store/file_store.h"
#include "store/system_files.h"
#include "store/verify_disk_store_with.h"
#include "testing/file_pages.h"
#include "testing/temp_directory.h"
#include "wire/segment.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kPageBytes = 6'000;  // two blocks with its header
constexpr std::uint64_t kSegmentBytes = 20 * kSegmentBlockBytes;
constexpr TimeNs kHourNs = TimeNs{3'600} * 1'000'000'000;

class DiskStoreTest : public ::testing::Test {
 protected:
  DiskStoreTest() {
    config_.directories = {path()};
    config_.capacity_bytes = 64 * kSegmentBytes;
    config_.segment_bytes = kSegmentBytes;
    config_.layout = {.page_bytes = kPageBytes, .hash = 7};
    config_.queue_depth = 4;
    config_.random_seed = 99;
  }
  [[nodiscard]] std::string path() const { return directory_.path() + "/store"; }
  [[nodiscard]] std::string path(const std::string& name) const { return path() + "/" + name; }

  FileStore& open() {
    store_.reset();
    auto opened = FileStore::open(config_, files_);
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    store_ = std::move(*opened);
    return *store_;
  }
  void close() { store_.reset(); }
  void write_chain(std::uint32_t chain, std::uint32_t count, std::uint32_t key_space = 0) {
    for (std::uint32_t index = 0; index < count; ++index) {
      EXPECT_EQ(write_one(*store_, {chain, index}, config_, key_space), FileOutcome::Ok);
    }
  }
  /// Three segments and a bit.
  void make_store(std::uint32_t page_count = 24) {
    open();
    write_chain(1, page_count);
    close();
  }
  DiskStoreReport inspect(TimeNs now_ns = 0) {
    auto report = inspect_disk_store(config_.directories, {.now_ns = now_ns});
    EXPECT_TRUE(report.has_value()) << (report ? "" : report.error().message);
    return report ? *std::move(report) : DiskStoreReport{};
  }
  VerifyReport verify(bool repair = false) {
    VerifyOptions options;
    options.repair = repair;
    auto report = verify_disk_store(config_.directories, options);
    EXPECT_TRUE(report.has_value()) << (report ? "" : report.error().message);
    return report ? *std::move(report) : VerifyReport{};
  }
  Error refusal() {
    const auto inspected = inspect_disk_store(config_.directories);
    const auto verified = verify_disk_store(config_.directories);
    EXPECT_FALSE(inspected.has_value());
    EXPECT_FALSE(verified.has_value());
    if (inspected || verified) return {};
    EXPECT_EQ(inspected.error().message, verified.error().message);
    return inspected.error();
  }
  [[nodiscard]] std::vector<std::string> segments() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      if (segment_id_of(entry.path().filename().string())) names.push_back(entry.path().string());
    }
    std::ranges::sort(names);
    return names;
  }
  static std::vector<char> bytes_in(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  static void replace(const std::string& file, const std::vector<char>& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  static void flip(const std::string& file, std::uint64_t offset) {
    std::vector<char> bytes = bytes_in(file);
    ASSERT_LT(offset, bytes.size());
    bytes[offset] = static_cast<char>(bytes[offset] ^ 0x10);
    replace(file, bytes);
  }
  static void flip_from_end(const std::string& file, std::uint64_t distance) {
    flip(file, std::filesystem::file_size(file) - distance);
  }
  /// How many pages of the chain are found; those that are must be right.
  std::uint32_t readable_pages(std::uint32_t chain, std::uint32_t count) {
    std::uint32_t readable = 0;
    for (std::uint32_t index = 0; index < count; ++index) {
      const PageName name = name_of({chain, index});
      if (store_->find({&name, 1}) == 0) continue;
      EXPECT_EQ(read_one(*store_, {chain, index}, config_), "") << index;
      ++readable;
    }
    return readable;
  }
  /// Finds faults, repairs them, and then neither this nor the store finds any. Gives what the repair said.
  VerifyReport expect_repair() {
    const VerifyReport found = verify();
    EXPECT_FALSE(found.is_clean());
    VerifyReport repaired = verify(/*repair=*/true);
    EXPECT_EQ(repaired.faults.size(), found.faults.size());
    EXPECT_TRUE(repaired.is_clean());
    const VerifyReport again = verify();
    EXPECT_TRUE(again.faults.empty()) << again.faults.front().why;
    EXPECT_EQ(again.record_count, repaired.record_count);
    return repaired;
  }

  TempDirectory directory_;
  SystemFiles files_;
  FileStoreConfig config_;
  std::unique_ptr<FileStore> store_;
};

// ── what a store has ─────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(DiskStoreTest, AStoreIsDescribedByItsFiles) {
  make_store();
  const DiskStoreReport report = inspect();
  EXPECT_EQ(report.page_count, 24U);
  EXPECT_EQ(report.page_bytes, 24 * kPageBytes);
  EXPECT_EQ(report.segments.size(), segments().size());
  std::uint64_t file_bytes = 0;
  for (const std::string& file : segments()) file_bytes += std::filesystem::file_size(file);
  EXPECT_EQ(report.file_bytes, file_bytes);
  EXPECT_EQ(report.garbage_bytes, 0U);
  for (const DiskSegmentReport& segment : report.segments) EXPECT_EQ(segment.state, DiskSegmentState::Sealed);
  ASSERT_EQ(report.layouts.size(), 1U);
  EXPECT_EQ(report.layouts[0].hash, 7U);
  EXPECT_EQ(report.layouts[0].page_bytes, kPageBytes);
  ASSERT_EQ(report.directories.size(), 1U);
  EXPECT_FALSE(report.directories[0].is_in_use);
  EXPECT_EQ(report.store_id.size(), 32U);
}

TEST_F(DiskStoreTest, KeySpacesHaveTheirNamesButNotTheirSalt) {
  open();
  const KeySpace salted{.model = "m", .revision = "r", .adapter = "a", .element = "bf16", .rope = "", .salt = "secret"};
  const std::vector<std::byte> bytes = bytes_of({1, 0}, kPageBytes);
  FileWrite page{.name = name_of({1, 0}), .parent = parent_of({1, 0}), .page_index = 0, .bytes = bytes};
  store_->write(salted, {&page, 1}, 5);
  EXPECT_EQ(page.outcome, FileOutcome::Ok);
  close();
  const DiskStoreReport report = inspect();
  ASSERT_EQ(report.key_spaces.size(), 1U);
  const DiskKeySpaceReport& found = report.key_spaces[0];
  const KeySpace text = found.text.value_or(KeySpace{});
  EXPECT_EQ(text.model, "m");
  EXPECT_EQ(text.element, "bf16");
  EXPECT_EQ(text.salt, "");
  EXPECT_TRUE(found.is_salted);
  EXPECT_EQ(found.name, to_hex(key_space_name(salted)));
  EXPECT_EQ(found.page_count, 1U);
}

TEST_F(DiskStoreTest, DroppedPagesAreGarbage) {
  open();
  write_chain(1, 5, 0);
  write_chain(2, 3, 1);
  const DiskStoreReport before = [&] {
    close();
    return inspect();
  }();
  ASSERT_EQ(before.key_spaces.size(), 2U);
  open();
  const PageName dropped = key_space_name(test_key_space(1));
  ASSERT_TRUE(store_->drop(dropped, 9).has_value());
  store_->drop_page(name_of({1, 4}), 9);
  close();
  const DiskStoreReport report = inspect();
  EXPECT_EQ(report.page_count, 4U);
  EXPECT_EQ(report.tombstone_count, 2U);
  EXPECT_EQ(report.garbage_bytes, 4 * record_bytes(kPageBytes));
}

TEST_F(DiskStoreTest, AgesAreCountedFromTheGivenTime) {
  open();
  for (const TimeNs at_ns : {TimeNs{0}, 20 * kHourNs, 25 * kHourNs}) {
    const TestPage page{7, static_cast<std::uint32_t>(at_ns / kHourNs)};
    const std::vector<std::byte> bytes = bytes_of(page, kPageBytes);
    FileWrite write{.name = name_of(page), .parent = parent_of(page), .page_index = 0, .bytes = bytes};
    store_->write(test_key_space(0), {&write, 1}, at_ns);
  }
  close();
  const DiskStoreReport report = inspect(24 * kHourNs);
  EXPECT_EQ(report.oldest_ns, 0);
  EXPECT_EQ(report.newest_ns, 25 * kHourNs);
  std::map<TimeNs, std::uint64_t> ages;
  for (const DiskAgeReport& age : report.ages) {
    if (age.page_count > 0) ages[age.age_ns_max / kHourNs] = age.page_count;
  }
  // A time that lies ahead is as young as can be.
  EXPECT_EQ(ages, (std::map<TimeNs, std::uint64_t>{{0, 1}, {6, 1}, {24, 1}}));
}

TEST_F(DiskStoreTest, AProcessThatHasTheStoreIsNamedAndNotDisturbed) {
  open();
  write_chain(1, 12);
  const DiskStoreReport report = inspect();
  ASSERT_EQ(report.directories.size(), 1U);
  EXPECT_TRUE(report.directories[0].is_in_use);
  EXPECT_EQ(report.directories[0].process, ::getpid());
  EXPECT_EQ(report.page_count, 12U);
  EXPECT_TRUE(std::ranges::any_of(
      report.segments, [](const DiskSegmentReport& segment) { return segment.state == DiskSegmentState::Open; }));
  EXPECT_TRUE(verify().faults.empty());
  write_chain(2, 12);
  EXPECT_EQ(readable_pages(1, 12) + readable_pages(2, 12), 24U);
}

TEST_F(DiskStoreTest, LookingMakesNoFiles) {
  make_store();
  std::filesystem::remove(path("quire-lock"));
  const auto names = [this] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path())) found.insert(entry.path().string());
    return found;
  };
  const std::set<std::string> before = names();
  (void)inspect();
  (void)verify();
  EXPECT_EQ(names(), before);
}

TEST_F(DiskStoreTest, WhatIsNoStoreIsRefusedAndLeftAlone) {
  EXPECT_EQ(refusal().message, "opening " + path() + ": No such file or directory");
  std::filesystem::create_directories(path());
  EXPECT_EQ(refusal().message, path() + " is empty: no store was made there");
  std::ofstream(path("letters.txt")) << "dear";
  EXPECT_EQ(refusal().message, path() + " is not a disk store: it has no quire-manifest");
  std::ofstream(path("quire-manifest")) << "not one";
  EXPECT_EQ(refusal().code, ErrorCode::Corrupt);
  VerifyOptions options;
  options.repair = true;
  EXPECT_FALSE(verify_disk_store(config_.directories, options).has_value());
  EXPECT_FALSE(std::filesystem::exists(path("quire-lock")));
  config_.directories = {path("letters.txt")};
  EXPECT_EQ(refusal().message, "opening " + path("letters.txt") + ": Not a directory");
  config_.directories = {};
  EXPECT_EQ(refusal().code, ErrorCode::InvalidArgument);
}

/// A user who may read what all may; root may read everything.
class AsNobody {
 public:
  AsNobody() : is_root_(::geteuid() == 0) {
    if (is_root_) {
      EXPECT_EQ(::seteuid(65'534), 0);
    }
  }
  ~AsNobody() {
    if (is_root_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  bool is_root_;
};

TEST_F(DiskStoreTest, WhatMayNotBeReadIsSaid) {
  using std::filesystem::perms;
  make_store();
  for (const std::string& open : {directory_.path(), path(), path("quire-manifest"), path("quire-lock")}) {
    std::filesystem::permissions(open, perms::all);
  }
  const std::vector<std::string> files = segments();
  for (const std::string& file : files) std::filesystem::permissions(file, perms::all);
  std::filesystem::permissions(files[0], perms::none);
  {
    const AsNobody user;
    const VerifyReport report = verify();
    ASSERT_EQ(report.faults.size(), 1U);
    EXPECT_EQ(report.faults[0].why, "opening it: Permission denied");
    EXPECT_EQ(inspect().segments[0].state, DiskSegmentState::Damaged);
  }
  std::filesystem::permissions(path(), perms::none);
  {
    const AsNobody user;
    EXPECT_EQ(refusal().message, "opening " + path() + ": Permission denied");
  }
  std::filesystem::permissions(path(), perms::all);
}

TEST_F(DiskStoreTest, DirectoriesOfSeveralStoresAreRefused) {
  make_store();
  const std::string first = path();
  config_.directories = {directory_.path() + "/other"};
  config_.random_seed = 100;
  open();
  close();
  config_.directories.insert(config_.directories.begin(), first);
  EXPECT_NE(refusal().message.find("belongs to another store"), std::string::npos);
  config_.directories = {first, first + "/."};
  EXPECT_NE(refusal().message.find("is named twice"), std::string::npos);
}

TEST_F(DiskStoreTest, AStoreInSeveralDirectoriesIsOne) {
  config_.directories = {path() + "/a", path() + "/b"};
  open();
  write_chain(1, 24);
  close();
  const DiskStoreReport report = inspect();
  EXPECT_EQ(report.page_count, 24U);
  EXPECT_EQ(report.directories.size(), 2U);
  EXPECT_GT(report.directories[0].segment_count, 0U);
  EXPECT_GT(report.directories[1].segment_count, 0U);
  EXPECT_TRUE(verify().is_clean());
}

TEST_F(DiskStoreTest, ANewerManifestIsNotTouched) {
  make_store();
  std::vector<char> bytes = bytes_in(path("quire-manifest"));
  bytes[8] = 9;
  const std::uint64_t sum = hash_bytes(bytes.data(), 56, 0);
  std::memcpy(bytes.data() + 56, &sum, sizeof(sum));
  replace(path("quire-manifest"), bytes);
  EXPECT_EQ(refusal().code, ErrorCode::Unsupported);
}

TEST_F(DiskStoreTest, StoresOfGroupsAreNamed) {
  make_store();
  std::filesystem::create_directory(path("group-window"));
  std::ofstream(path("group-file")) << "no directory";
  const DiskStoreReport report = inspect();
  EXPECT_EQ(report.directories[0].group_stores, (std::vector<std::string>{"group-window"}));
  EXPECT_EQ(report.directories[0].foreign_files, (std::vector<std::string>{"group-file"}));
}

TEST_F(DiskStoreTest, ForeignFilesAreNamedAndIgnored) {
  make_store();
  std::ofstream(path("letters.txt")) << "dear";
  std::filesystem::create_directory(path("segment-00000000000000aa"));
  std::filesystem::copy_file(segments().front(), path("segment-00000000000000bb"));
  const DiskStoreReport report = inspect();
  EXPECT_EQ(report.directories[0].foreign_files, (std::vector<std::string>{"letters.txt", "segment-00000000000000aa"}));
  EXPECT_EQ(report.page_count, 24U);
  EXPECT_EQ(report.segments.back().state, DiskSegmentState::Foreign);
  EXPECT_EQ(report.segments.back().why, "it was segment-0000000000000001");
  EXPECT_TRUE(verify().is_clean());
}

// ── whether it can be read ───────────────────────────────────────────────────────────────────────────────────────────

TEST_F(DiskStoreTest, AGoodStoreIsReadToTheEnd) {
  make_store();
  std::uint64_t calls = 0;
  VerifyOptions options;
  options.on_progress = [&](const VerifyProgress& progress) {
    ++calls;
    EXPECT_LE(progress.done_bytes, progress.all_bytes);
    return true;
  };
  const auto report = verify_disk_store(config_.directories, options);
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(report->is_clean());
  EXPECT_TRUE(report->is_complete);
  EXPECT_EQ(report->page_count, 24U);
  EXPECT_GE(calls, 1U);
}

TEST_F(DiskStoreTest, CompressedPagesAreVerified) {
  config_.zstd_level = 3;
  open();
  for (std::uint32_t index = 0; index < 8; ++index) {
    const std::vector<std::byte> bytes = bytes_of({1, index}, kPageBytes, /*is_plain=*/true);
    FileWrite page{.name = name_of({1, index}), .parent = parent_of({1, index}), .page_index = index, .bytes = bytes};
    store_->write(test_key_space(0), {&page, 1}, 0);
  }
  close();
  const VerifyReport good = verify();
  EXPECT_TRUE(good.is_clean());
  EXPECT_EQ(good.compressed_pages, 8U);
  EXPECT_EQ(inspect().compressed_pages, 8U);
  flip(segments()[0], (3 * kSegmentBlockBytes) + kRecordHeaderBytes + 200);
  const VerifyReport bad = verify();
  ASSERT_EQ(bad.faults.size(), 1U);
  EXPECT_EQ(bad.faults[0].offset, 3 * kSegmentBlockBytes);
  const VerifyReport repaired = expect_repair();
  EXPECT_EQ(repaired.page_count, 7U);
}

TEST_F(DiskStoreTest, ABadPayloadIsNamedAndDropped) {
  make_store();
  flip(segments()[1], kSegmentBlockBytes + kRecordHeaderBytes + 3'000);
  const VerifyReport report = verify();
  ASSERT_EQ(report.faults.size(), 1U);
  EXPECT_EQ(report.faults[0].offset, kSegmentBlockBytes);
  EXPECT_EQ(report.faults[0].name.size(), 64U);
  EXPECT_EQ(report.faults[0].why, "its payload does not have its checksum");
  EXPECT_EQ(report.page_count, 23U);
  const VerifyReport repaired = expect_repair();
  EXPECT_EQ(repaired.faults[0].repair, DiskRepair::Dropped);
  open();
  EXPECT_EQ(readable_pages(1, 24), 23U);
  EXPECT_EQ(store_->stats().corrupt_records, 0U);
}

TEST_F(DiskStoreTest, ABadHeaderIsMendedFromTheFooter) {
  make_store();
  flip(segments()[1], kSegmentBlockBytes + 80);
  EXPECT_EQ(verify().faults.size(), 1U);
  const VerifyReport repaired = expect_repair();
  EXPECT_EQ(repaired.faults[0].repair, DiskRepair::Mended);
  open();
  EXPECT_EQ(readable_pages(1, 24), 24U);
}

TEST_F(DiskStoreTest, ABadFooterIsWrittenAnew) {
  for (const std::uint64_t distance : {kSegmentBlockBytes - 16, kSegmentBlockBytes + 4'000}) {
    std::filesystem::remove_all(path());
    make_store();
    flip_from_end(segments()[0], distance);
    const VerifyReport report = verify();
    ASSERT_EQ(report.faults.size(), 1U);
    EXPECT_FALSE(report.faults[0].offset.has_value());
    EXPECT_EQ(inspect().segments[0].state, DiskSegmentState::Damaged);
    EXPECT_EQ(inspect().page_count, 24U);
    const VerifyReport repaired = expect_repair();
    EXPECT_EQ(repaired.faults[0].repair, DiskRepair::Mended);
    open();
    EXPECT_EQ(readable_pages(1, 24), 24U);
    close();
  }
}

// What was read may be in the system's memory only, where a sync that failed for another process leaves it, and counts
// as written there.
TEST_F(DiskStoreTest, RecordsWithoutAFooterAreWrittenAgainBeforeTheyGetOne) {
  static std::vector<std::uint64_t> written;  // the calls have no place for it
  static std::optional<std::size_t> written_before_sync;
  make_store(4);
  std::filesystem::resize_file(segments()[0], (9 * kSegmentBlockBytes) + 100);  // a text, two pages, and part of one
  written = {};
  written_before_sync = {};
  FileCalls calls = FileCalls::real();
  calls.write = [](int file, const void* data, std::size_t bytes, off_t offset) {
    written.push_back(static_cast<std::uint64_t>(offset));
    return FileCalls::real().write(file, data, bytes, offset);
  };
  calls.sync_data = [](int file) {
    if (!written_before_sync) written_before_sync = written.size();
    return FileCalls::real().sync_data(file);
  };
  VerifyOptions options;
  options.repair = true;
  const auto repaired = verify_disk_store_with(calls, config_.directories, options);
  ASSERT_TRUE(repaired.has_value()) << repaired.error().message;
  EXPECT_TRUE(repaired->is_clean());
  ASSERT_TRUE(written_before_sync.has_value());
  written.resize(*written_before_sync);
  for (const std::uint64_t block : {0, 1, 2, 4, 6}) {
    EXPECT_EQ(std::ranges::count(written, block * kSegmentBlockBytes), 1) << "block " << block;
  }
  open();
  EXPECT_EQ(readable_pages(1, 4), 3U);
}

TEST_F(DiskStoreTest, ASegmentWithoutAHeaderIsRemoved) {
  make_store();
  flip(segments()[0], 20);
  const DiskStoreReport report = inspect();
  EXPECT_EQ(report.segments[0].state, DiskSegmentState::Damaged);
  EXPECT_EQ(report.segments[0].garbage_bytes, report.segments[0].file_bytes);
  EXPECT_LT(report.page_count, 24U);
  const std::size_t count = segments().size();
  const VerifyReport repaired = expect_repair();
  EXPECT_EQ(repaired.faults[0].repair, DiskRepair::Removed);
  EXPECT_EQ(segments().size(), count - 1);
}

TEST_F(DiskStoreTest, ACutSegmentKeepsWhatIsWhole) {
  for (const std::uint64_t kept_bytes : {(5 * kSegmentBlockBytes) + 100, 7 * kSegmentBlockBytes}) {
    std::filesystem::remove_all(path());
    make_store();
    std::filesystem::resize_file(segments()[0], kept_bytes);
    const VerifyReport repaired = expect_repair();
    EXPECT_GT(repaired.page_count, 16U);
    open();
    EXPECT_EQ(readable_pages(1, 24), repaired.page_count);
    close();
  }
  std::filesystem::resize_file(segments()[0], 0);
  EXPECT_EQ(verify().faults.size(), 1U);
  (void)expect_repair();
}

TEST_F(DiskStoreTest, ASegmentCutBetweenRecordsLooksNeverSealed) {
  make_store();
  std::filesystem::resize_file(segments()[0], 6 * kSegmentBlockBytes);
  EXPECT_EQ(inspect().segments[0].state, DiskSegmentState::Open);
  EXPECT_TRUE(verify().is_clean());
}

TEST_F(DiskStoreTest, ASegmentOfANewerQuireIsLeftAlone) {
  make_store();
  const std::string file = segments()[0];
  std::vector<char> bytes = bytes_in(file);
  bytes[8] = 9;
  const std::uint64_t sum = hash_bytes(bytes.data(), 56, 0);
  std::memcpy(bytes.data() + 56, &sum, sizeof(sum));
  replace(file, bytes);
  EXPECT_EQ(inspect().segments[0].state, DiskSegmentState::Newer);
  const VerifyReport repaired = verify(/*repair=*/true);
  ASSERT_EQ(repaired.faults.size(), 1U);
  EXPECT_EQ(repaired.faults[0].repair, DiskRepair::Left);
  EXPECT_FALSE(repaired.is_clean());
  EXPECT_EQ(bytes_in(file), bytes);
}

TEST_F(DiskStoreTest, ARepairNeedsTheDirectory) {
  open();
  write_chain(1, 3);
  VerifyOptions options;
  options.repair = true;
  const auto refused = verify_disk_store(config_.directories, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(readable_pages(1, 3), 3U);
}

TEST_F(DiskStoreTest, WhatIsOnItsWayIsNotBad) {
  open();
  write_chain(1, 3);
  // As if the payload of the last page had not arrived yet.
  const std::string file = segments().back();
  std::vector<char> bytes = bytes_in(file);
  const std::size_t last = std::string(bytes.begin(), bytes.end()).rfind("QuireRec");
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(last + kSegmentBlockBytes), 1'000, '\0');
  {
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  const VerifyReport running = verify();
  EXPECT_TRUE(running.faults.empty());
  EXPECT_EQ(running.unfinished_count, 1U);
}

TEST_F(DiskStoreTest, AStopIsHeeded) {
  config_.capacity_bytes = std::uint64_t{64} << 20U;
  config_.segment_bytes = std::uint64_t{16} << 20U;
  config_.layout.page_bytes = std::uint64_t{1} << 20U;
  open();
  write_chain(1, 24);
  close();
  VerifyOptions options;
  options.on_progress = [](const VerifyProgress&) { return false; };
  const auto report = verify_disk_store(config_.directories, options);
  ASSERT_TRUE(report.has_value());
  EXPECT_FALSE(report->is_complete);
  EXPECT_LT(report->page_count, 24U);
}

TEST_F(DiskStoreTest, NoDamageCrashesAndEveryRepairHolds) {
  make_store();
  std::map<std::string, std::vector<char>> good;
  for (const std::string& file : segments()) good[file] = bytes_in(file);
  std::uint64_t seed = 5;
  const auto draw = [&seed](std::uint64_t below) { return (seed = mix64(seed)) % below; };
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    for (const std::string& file : segments()) std::filesystem::remove(file);
    for (const auto& [file, bytes] : good) {
      std::vector<char> damaged = bytes;
      for (std::uint64_t i = draw(4); i > 0; --i) {
        // Where headers are, more often than anywhere else.
        const std::uint64_t at = draw(2) == 0 ? draw(damaged.size()) : draw(damaged.size() / 4'096) * 4'096 + draw(192);
        damaged[at] = static_cast<char>(draw(256));
      }
      if (draw(8) == 0) damaged.resize(draw(damaged.size()));
      if (draw(8) == 0) damaged.resize(damaged.size() + draw(9'000));
      if (draw(16) == 0) std::fill(damaged.begin(), damaged.end(), '\0');
      replace(file, damaged);
    }
    (void)inspect();
    const VerifyReport found = verify();
    const VerifyReport repaired = verify(/*repair=*/true);
    EXPECT_EQ(repaired.faults.size(), found.faults.size());
    if (!repaired.is_clean()) continue;  // a version that looks newer
    const VerifyReport again = verify();
    EXPECT_TRUE(again.faults.empty()) << again.faults.front().file << ": " << again.faults.front().why;
    const DiskStoreReport report = inspect();
    open();
    EXPECT_EQ(readable_pages(1, 24), report.page_count);
    close();
  }
}

// ── a sector that cannot be read ─────────────────────────────────────────────────────────────────────────────────────

/// One block of one file is bad: whoever reads over it gets what lies before it, or, from some systems, nothing.
class BadSectorTest : public DiskStoreTest, public ::testing::WithParamInterface<bool> {
 protected:
  ~BadSectorTest() override { bad_file = 0; }

  static FileCalls bad_calls() {
    bad_file = 0;
    is_writable = true;
    FileCalls calls = FileCalls::real();
    calls.read = [](int file, void* data, std::size_t bytes, off_t offset) -> ssize_t {
      const auto begin = static_cast<std::uint64_t>(offset);
      if (!is_over_it(file, begin, bytes)) return FileCalls::real().read(file, data, bytes, offset);
      if (GetParam() && begin < bad_offset) return FileCalls::real().read(file, data, bad_offset - begin, offset);
      errno = EIO;
      return -1;
    };
    // A disk puts another sector in its place, unless it has none left.
    calls.write = [](int file, const void* data, std::size_t bytes, off_t offset) -> ssize_t {
      if (is_over_it(file, static_cast<std::uint64_t>(offset), bytes)) {
        if (!is_writable) {
          errno = EIO;
          return -1;
        }
        bad_file = 0;
      }
      return FileCalls::real().write(file, data, bytes, offset);
    };
    return calls;
  }
  void make_bad(const std::string& path, std::uint64_t offset) {
    struct stat facts{};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0);
    bad_file = facts.st_ino;
    bad_offset = offset;
  }
  VerifyReport verify_with_bad_sector(bool repair) {
    VerifyOptions options;
    options.repair = repair;
    auto report = verify_disk_store_with(calls_, config_.directories, options);
    EXPECT_TRUE(report.has_value()) << (report ? "" : report.error().message);
    return report ? *std::move(report) : VerifyReport{};
  }
  /// Two key spaces in the first segment; in the second a drop of one of them at 4096, and four pages behind it.
  void make_dropped() {
    open();
    write_chain(1, 3, 0);
    write_chain(2, 3, 1);
    close();
    open();
    ASSERT_TRUE(store_->drop(key_space_name(test_key_space(1)), 9).has_value());
    write_chain(3, 4, 0);
    close();
    ASSERT_EQ(segments().size(), 2U);
  }

  FileCalls calls_ = bad_calls();

 private:
  static bool is_over_it(int file, std::uint64_t begin, std::uint64_t bytes) {
    struct stat facts{};
    if (bad_file == 0 || ::fstat(file, &facts) != 0 || facts.st_ino != bad_file) return false;
    return begin < bad_offset + kSegmentBlockBytes && begin + bytes > bad_offset;
  }

 protected:
  inline static ino_t bad_file = 0;
  inline static std::uint64_t bad_offset = 0;
  inline static bool is_writable = true;
};

TEST_P(BadSectorTest, WhatLiesBeforeItIsKept) {
  make_dropped();
  // In the second page behind the tombstone; pages take two blocks.
  make_bad(segments()[1], (2 + 3) * kSegmentBlockBytes);
  const VerifyReport repaired = verify_with_bad_sector(/*repair=*/true);
  ASSERT_EQ(repaired.faults.size(), 1U) << repaired.faults[0].why;
  EXPECT_EQ(repaired.faults[0].name, to_hex(name_of({3, 1})));
  EXPECT_EQ(repaired.faults[0].why, "it cannot be read: reading: Input/output error");
  EXPECT_EQ(repaired.faults[0].repair, DiskRepair::Dropped);
  EXPECT_TRUE(verify_with_bad_sector(/*repair=*/false).faults.empty()) << "nothing needs the sector any more";
  open();
  EXPECT_EQ(readable_pages(1, 3), 3U);
  EXPECT_EQ(readable_pages(2, 3), 0U) << "what was dropped is back";
  EXPECT_EQ(readable_pages(3, 4), 3U);
}

TEST_P(BadSectorTest, ATombstoneUnderItIsWrittenAnew) {
  make_dropped();
  make_bad(segments()[1], kSegmentBlockBytes);
  EXPECT_EQ(verify_with_bad_sector(/*repair=*/false).faults.size(), 1U);
  const VerifyReport repaired = verify_with_bad_sector(/*repair=*/true);
  ASSERT_EQ(repaired.faults.size(), 1U);
  EXPECT_EQ(repaired.faults[0].offset, kSegmentBlockBytes);
  EXPECT_EQ(repaired.faults[0].why, "it cannot be read: reading: Input/output error");
  EXPECT_EQ(repaired.faults[0].repair, DiskRepair::Mended);
  EXPECT_TRUE(verify_with_bad_sector(/*repair=*/false).faults.empty());
  // Its block speaks for itself, too: without a footer the segment is scanned.
  std::filesystem::resize_file(segments()[1], 10 * kSegmentBlockBytes);
  open();
  EXPECT_EQ(readable_pages(1, 3), 3U);
  EXPECT_EQ(readable_pages(2, 3), 0U) << "what was dropped is back";
  EXPECT_EQ(readable_pages(3, 4), 4U);
}

TEST_P(BadSectorTest, ATombstoneThatCannotBeWrittenAnewIsLeftInTheFooter) {
  make_dropped();
  make_bad(segments()[1], kSegmentBlockBytes);
  is_writable = false;
  const VerifyReport repaired = verify_with_bad_sector(/*repair=*/true);
  ASSERT_EQ(repaired.faults.size(), 1U);
  EXPECT_EQ(repaired.faults[0].repair, DiskRepair::Left);
  EXPECT_FALSE(repaired.is_clean());
  open();
  EXPECT_EQ(readable_pages(1, 3), 3U);
  EXPECT_EQ(readable_pages(2, 3), 0U) << "what was dropped is back";
  EXPECT_EQ(readable_pages(3, 4), 4U);
}

INSTANTIATE_TEST_SUITE_P(OfADisk, BadSectorTest, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "ReadUpTo" : "ReadNot"); });

}  // namespace
}  // namespace quire::testing
