// SPDX-License-Identifier: Apache-2.0
//
// Files of a real store, cut off at every byte, with single bits flipped and with garbage in them. Whatever is done to
// them, the store opens or says why not, serves right bytes only, and counts what it dropped.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/file_store.h"
#include "store/system_files.h"
#include "testing/file_pages.h"
#include "testing/refused_calls.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/temp_directory.h"
#include "wire/segment.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kPageBytes = 6'000;  // two blocks with its header

using Files = std::map<std::string, std::string>;

class FileStoreDamage : public ::testing::Test {
 protected:
  struct Place {
    TestPage page;
    std::string file;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  FileStoreDamage() : calls_(calls_without({.uring = true, .direct = true})) {
    // Nothing here is about what a loss of power leaves.
    calls_.sync_data = [](int) { return 0; };
    calls_.sync_directory = [](int) { return 0; };
    config_.directories = {temp_.path() + "/pages"};
    config_.layout = {.page_bytes = kPageBytes, .hash = 7};
    config_.queue_depth = 1;
  }

  /// Chains of four pages. Closed, or as a process leaves them that is killed.
  void make_store(std::uint64_t segment_bytes, std::uint32_t page_count, bool is_closed) {
    config_.segment_bytes = segment_bytes;
    config_.capacity_bytes = 64 * segment_bytes;
    std::filesystem::remove_all(config_.directories[0]);
    SystemFiles files(calls_);
    const auto store = FileStore::open(config_, files).value();
    pages_.clear();
    for (std::uint32_t i = 0; i < page_count; ++i) {
      pages_.push_back({i / 4, i % 4});
      ASSERT_EQ(write_one(*store, pages_.back(), config_), FileOutcome::Ok);
    }
    ASSERT_TRUE(store->flush());
    ASSERT_TRUE(!is_closed || store->close());
    image_.clear();
    for (const auto& file : std::filesystem::directory_iterator(config_.directories[0])) {
      std::ifstream stream(file.path(), std::ios::binary);
      image_[file.path().filename()] = {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    }
    find_places();
  }
  void find_places() {
    places_.clear();
    for (const auto& [name, text] : image_) {
      if (!segment_id_of(name)) continue;
      const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
      const SegmentHeader segment = decode_segment_header(bytes.first(kSegmentBlockBytes)).value();
      for (std::uint64_t offset = kSegmentBlockBytes; offset < bytes.size(); offset += kSegmentBlockBytes) {
        const auto record = decode_record_header(
            bytes.subspan(offset), {.salt = segment.salt, .offset = offset, .segment_bytes = bytes.size()});
        if (!record || record->kind != RecordKind::Page) continue;
        const auto page = std::ranges::find(pages_, record->name, name_of);
        ASSERT_NE(page, pages_.end());
        places_.push_back({*page, name, offset, offset + record_bytes(record->stored_bytes)});
      }
    }
    ASSERT_EQ(places_.size(), pages_.size());
  }

  /// The directory as it was, but for one file.
  void put_back(const std::string& name, const std::string& bytes) {
    for (const auto& file : std::filesystem::directory_iterator(config_.directories[0])) {
      if (!image_.contains(file.path().filename())) std::filesystem::remove(file.path());
    }
    for (const auto& [each, whole] : image_) {
      if (each == name) {
        write_file(each, bytes);
      } else if (changed_.contains(each)) {
        write_file(each, whole);
      }
    }
    changed_ = {name};
  }
  void write_file(const std::string& name, const std::string& bytes) const {
    const std::string path = config_.directories[0] + "/" + name;
    // Not cut to nothing first: after that some file systems write to the disk at once.
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    ASSERT_GE(file, 0);
    ASSERT_EQ(::pwrite(file, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(::ftruncate(file, static_cast<off_t>(bytes.size())), 0);
    (void)::close(file);
  }

  struct Found {
    bool is_open = false;
    Error error;  ///< why not
    std::set<TestPage> pages;
    FileStoreStats stats;
    [[nodiscard]] std::uint64_t dropped_count() const {
      return stats.corrupt_records + stats.torn_records + stats.ignored_files;
    }
  };
  /// Opens the store and reads everything.
  Found look() {
    Found found;
    SystemFiles files(calls_);
    auto opened = FileStore::open(config_, files);
    found.is_open = opened.has_value();
    if (!opened) {
      found.error = opened.error();
      return found;
    }
    FileStore& store = **opened;
    store.check_invariants();
    for (const TestPage page : pages_) {
      const std::string answer = read_one(store, page, config_);
      EXPECT_TRUE(answer.empty() || answer == "absent" || answer == "corrupt") << answer;
      if (answer.empty()) found.pages.insert(page);
    }
    store.check_invariants();
    found.stats = store.stats();
    return found;
  }

  void expect_cut_at(const std::string& name, std::uint64_t length) {
    put_back(name, image_.at(name).substr(0, length));
    const Found found = look();
    ASSERT_TRUE(found.is_open) << found.error.message;
    const std::uint64_t whole_bytes = length / kSegmentBlockBytes * kSegmentBlockBytes;
    // A segment without its whole header counts as one record, and what was never written as none.
    std::uint64_t torn_count = length > 0 && length < kSegmentBlockBytes ? 1 : 0;
    for (const Place& place : places_) {
      const bool is_there = place.file != name || place.end <= whole_bytes;
      ASSERT_EQ(found.pages.contains(place.page), is_there) << "cut at " << length;
      // What lies wholly behind the end has left no trace.
      if (!is_there && place.begin < whole_bytes) ++torn_count;
    }
    ASSERT_EQ(found.dropped_count(), torn_count) << "cut at " << length;
    ASSERT_EQ(found.stats.record_count, found.pages.size());
  }

  /// A store that one place of is damaged in; gives what is found.
  void expect_damage_is_noticed(const std::string& name, const std::string& bytes, const std::string& what) {
    const std::string& good = image_.at(name);
    put_back(name, bytes);
    const Found found = look();
    if (name == kManifestFileName) {
      ASSERT_FALSE(found.is_open) << what;
      ASSERT_TRUE(found.error.code == ErrorCode::Corrupt || found.error.code == ErrorCode::Unsupported) << what;
      return;
    }
    ASSERT_TRUE(found.is_open) << what << ": " << found.error.message;
    std::uint64_t lost_count = 0;
    for (const Place& place : places_) {
      if (found.pages.contains(place.page)) continue;
      ASSERT_EQ(place.file, name) << what;
      // Without its first bytes a record has left no trace, unless there is a footer.
      if (bytes.compare(place.begin, 8, good, place.begin, 8) == 0) ++lost_count;
    }
    ASSERT_TRUE(lost_count == 0 || found.dropped_count() > 0) << what << ": " << lost_count << " lost, none counted";
    // The next process has what this one had.
    const Found again = look();
    ASSERT_TRUE(again.is_open) << what;
    ASSERT_EQ(again.pages, found.pages) << what;
    ASSERT_EQ(again.stats.corrupt_records, 0U) << what << ": dropped, and there again";
  }

  /// The names of files in the image, the manifest more often than it is large.
  [[nodiscard]] const std::string& draw_file(Random& random) const {
    const auto drawn = std::next(image_.begin(), random.below(static_cast<std::uint32_t>(image_.size())));
    return drawn->first == "quire-lock" || drawn->second.empty() ? image_.find(std::string(kManifestFileName))->first
                                                                 : drawn->first;
  }
  void flip_bits(std::uint32_t count, std::uint64_t seed) {
    Random random(seed);
    for (std::uint32_t i = 0; i < count && !HasFatalFailure(); ++i) {
      const std::string& name = draw_file(random);
      std::string bytes = image_.at(name);
      const std::uint64_t bit = random.next() % (bytes.size() * 8);
      bytes[bit / 8] = static_cast<char>(static_cast<unsigned char>(bytes[bit / 8]) ^ (1U << (bit % 8)));
      expect_damage_is_noticed(name, bytes, "bit " + std::to_string(bit) + " of " + name);
    }
  }
  void put_garbage(std::uint32_t count, std::uint64_t seed) {
    Random random(seed);
    for (std::uint32_t i = 0; i < count && !HasFatalFailure(); ++i) {
      const std::string& name = draw_file(random);
      std::string bytes = image_.at(name);
      const std::uint64_t begin = random.next() % bytes.size();
      const std::uint64_t length = std::min<std::uint64_t>(2 + (random.next() % 9'000), bytes.size() - begin);
      // Random bytes, zeros, or what lies elsewhere in the file.
      const std::uint32_t kind = random.below(3);
      const std::string before = bytes;
      const std::uint64_t from = random.next() % (bytes.size() - length + 1);
      for (std::uint64_t at = 0; at < length; ++at) {
        bytes[begin + at] = kind == 0 ? static_cast<char>(random.next() & 0xffU) : kind == 1 ? '\0' : before[from + at];
      }
      if (bytes == before) continue;
      expect_damage_is_noticed(name, bytes,
                               std::to_string(length) + " bytes at " + std::to_string(begin) + " of " + name +
                                   ", kind " + std::to_string(kind));
    }
  }

  TempDirectory temp_;
  FileCalls calls_;
  FileStoreConfig config_;
  std::vector<TestPage> pages_;
  Files image_;
  std::vector<Place> places_;
  std::set<std::string> changed_;
};

TEST_F(FileStoreDamage, ASegmentThatIsCutAtAnyByteServesWhatIsWhole) {
  make_store(16 * kSegmentBlockBytes, 1, /*is_closed=*/true);
  const std::string name = segment_file_name(1);
  const std::uint64_t bytes = image_.at(name).size();
  ASSERT_LE(bytes, 64U << 10U);
  const std::uint64_t stride = kIsSanitized ? 61 : 1;
  for (std::uint64_t length = 0; length <= bytes && !HasFatalFailure(); length += stride) expect_cut_at(name, length);
  expect_cut_at(name, bytes);
}

TEST_F(FileStoreDamage, AnOpenSegmentThatIsCutAtAnyBlockServesWhatIsWhole) {
  make_store(16 * kSegmentBlockBytes, 4, /*is_closed=*/false);
  const std::string name = segment_file_name(1);
  for (std::uint64_t length = 0; length <= image_.at(name).size() && !HasFatalFailure(); length += 512) {
    expect_cut_at(name, length);
  }
}

TEST_F(FileStoreDamage, ALargeSegmentThatIsCutAtARecordServesThoseBeforeIt) {
  make_store(std::uint64_t{1} << 20U, kIsSanitized ? 30 : 110, /*is_closed=*/true);
  const std::string name = segment_file_name(1);
  for (const Place& place : std::vector(places_)) {
    for (const std::uint64_t length : {place.begin - 1, place.begin, place.begin + 1, place.end - 1}) {
      expect_cut_at(name, length);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(FileStoreDamage, NoFlippedBitIsServed) {
  make_store(16 * kSegmentBlockBytes, 24, /*is_closed=*/true);
  flip_bits(kIsSanitized ? 150 : 1'500, 1);
}

TEST_F(FileStoreDamage, NoFlippedBitIsServedOfWhatAKilledProcessLeft) {
  make_store(16 * kSegmentBlockBytes, 24, /*is_closed=*/false);
  flip_bits(kIsSanitized ? 150 : 800, 2);
}

TEST_F(FileStoreDamage, NoGarbageIsServed) {
  for (const bool is_closed : {true, false}) {
    make_store(16 * kSegmentBlockBytes, 24, is_closed);
    put_garbage(kIsSanitized ? 40 : 250, is_closed ? 3 : 4);
  }
}

}  // namespace
}  // namespace quire::testing
