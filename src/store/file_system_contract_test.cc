// SPDX-License-Identifier: Apache-2.0
//
// What file_system.h promises, on the simulated disk and on the real one in every mode it falls back to. A scenario
// that needs to know which one it runs on does not belong here.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/file_system.h"
#include "store/system_files.h"
#include "testing/refused_calls.h"
#include "testing/seeded_run.h"
#include "testing/sim_disk.h"
#include "testing/temp_directory.h"

namespace quire {
namespace {

constexpr std::uint64_t kBlock = kIoBlockBytes;

struct Kind {
  std::string name;
  testing::Refused refused;
  bool is_simulated = false;
};

std::vector<Kind> kinds() {
  return {
      {.name = "Simulated", .is_simulated = true},
      {.name = "AsTheSystemAllows"},
      {.name = "WithoutUring", .refused = {.uring = true}},
      {.name = "WithoutRegisteredBuffers", .refused = {.registered_buffers = true}},
      {.name = "WithoutDirect", .refused = {.direct = true}},
      {.name = "WithoutReservedSpace", .refused = {.reserved_space = true}},
      {.name = "WithShortTransfers", .refused = {.whole_transfers = true}},
      {.name = "WithShortTransfersOfThreads", .refused = {.uring = true, .whole_transfers = true}},
      {.name = "WithoutAnything",
       .refused = {.uring = true, .registered_buffers = true, .direct = true, .reserved_space = true}},
  };
}

std::vector<std::byte> drawn_blocks(std::uint64_t seed, std::uint64_t block_count) {
  testing::Random random(seed);
  std::vector<std::byte> bytes(block_count * kBlock);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

class FileSystemContract : public ::testing::TestWithParam<Kind> {
 protected:
  FileSystemContract() : calls_(testing::calls_without(GetParam().refused)) {
    if (GetParam().is_simulated) {
      files_ = std::make_unique<testing::SimDisk>(7);
    } else {
      files_ = std::make_unique<SystemFiles>(calls_);
    }
  }
  ~FileSystemContract() override {
    const IoMode mode = files_->mode();
    RecordProperty("engine", static_cast<int>(mode.engine));
    RecordProperty("is_direct", static_cast<int>(mode.is_direct));
    RecordProperty("refusals", mode.refusals);
  }

  [[nodiscard]] std::string path() const { return temp_.path() + "/a/b"; }
  [[nodiscard]] std::unique_ptr<StoreDirectory> open_store() { return files_->open_directory(path()).value(); }

  const testing::TempDirectory temp_;
  const FileCalls calls_;
  std::unique_ptr<FileSystem> files_;
};

TEST_P(FileSystemContract, ADirectoryIsMadeWithItsParentsAndIsEmpty) {
  const auto directory = open_store();
  EXPECT_EQ(directory->path(), path());
  EXPECT_TRUE(directory->list().value().empty());
  EXPECT_GT(directory->free_bytes().value(), 0U);
}

TEST_P(FileSystemContract, ADirectoryHasOneOwnerAtATime) {
  {
    const auto directory = open_store();
    const auto second = files_->open_directory(path());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
    EXPECT_NE(second.error().message.find(path()), std::string::npos) << second.error().message;
  }
  EXPECT_TRUE(files_->open_directory(path()));
}

TEST_P(FileSystemContract, ADirectoryThatIsOnlyReadHasAnyNumberOfReadersAndNoOwner) {
  EXPECT_FALSE(files_->open_directory_to_read(path())) << "it is not made";
  {
    const auto owner = open_store();
    const FileId file = owner->create("a", kBlock).value();
    owner->close(file);
    const auto refused = files_->open_directory_to_read(path());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
  }
  auto first = files_->open_directory_to_read(path()).value();
  auto second = files_->open_directory_to_read(path()).value();
  EXPECT_EQ(first->list().value(), std::vector<std::string>{"a"});
  const FileId file = second->open("a").value();
  std::vector<std::byte> block(kBlock, std::byte{1});
  EXPECT_TRUE(second->read(file, 0, block));
  EXPECT_EQ(block, std::vector<std::byte>(kBlock));
  first.reset();
  const auto owner = files_->open_directory(path());
  ASSERT_FALSE(owner) << "the other one still reads";
  EXPECT_EQ(owner.error().code, ErrorCode::Unavailable);
  second->close(file);
  second.reset();
  EXPECT_TRUE(files_->open_directory(path()));
}

TEST_P(FileSystemContract, ANewFileIsZeroAndOfItsLength) {
  const auto directory = open_store();
  const FileId file = directory->create("a", 3 * kBlock).value();
  const FileId empty = directory->create("b", 0).value();
  EXPECT_EQ(directory->length(file).value(), 3 * kBlock);
  EXPECT_EQ(directory->length(empty).value(), 0U);
  std::vector<std::byte> read = drawn_blocks(1, 3);
  ASSERT_TRUE(directory->read(file, 0, read));
  EXPECT_EQ(read, std::vector<std::byte>(3 * kBlock));
  EXPECT_EQ(sorted(directory->list().value()), (std::vector<std::string>{"a", "b"}));
  directory->close(file);
  directory->close(empty);
}

TEST_P(FileSystemContract, AFileIsMadeOnceAndOpenedWhenItIsThere) {
  const auto directory = open_store();
  EXPECT_EQ(directory->open("a").error().code, ErrorCode::Io);
  directory->close(directory->create("a", 0).value());
  const auto second = directory->create("a", 0);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::Io);
  EXPECT_NE(second.error().message.find(path() + "/a"), std::string::npos) << second.error().message;
  directory->close(directory->open("a").value());
}

TEST_P(FileSystemContract, WhatIsWrittenIsReadAtAnyAddress) {
  const auto directory = open_store();
  const FileId file = directory->create("a", 8 * kBlock).value();
  // One byte off: O_DIRECT would refuse the address.
  std::vector<std::byte> memory(1 + (3 * kBlock));
  const std::span<std::byte> odd = std::span(memory).subspan(1);
  const std::vector<std::byte> written = drawn_blocks(2, 3);
  std::copy(written.begin(), written.end(), odd.begin());
  ASSERT_TRUE(directory->write(file, kBlock, odd));
  std::fill(odd.begin(), odd.end(), std::byte{9});
  ASSERT_TRUE(directory->read(file, kBlock, odd));
  EXPECT_TRUE(std::equal(odd.begin(), odd.end(), written.begin()));
  ASSERT_TRUE(directory->write(file, 7 * kBlock, written)) << "over the end";
  EXPECT_EQ(directory->length(file).value(), 10 * kBlock);
  ASSERT_TRUE(directory->sync_file(file, SyncPoint::Flush));
  ASSERT_TRUE(directory->sync_directory(SyncPoint::SegmentDirectory));
  directory->close(file);
  const FileId again = directory->open("a").value();
  ASSERT_TRUE(directory->read(again, 7 * kBlock, odd));
  EXPECT_TRUE(std::equal(odd.begin(), odd.end(), written.begin()));
  directory->close(again);
}

TEST_P(FileSystemContract, AReadBehindTheEndIsShort) {
  const auto directory = open_store();
  const FileId file = directory->create("a", kBlock).value();
  std::vector<std::byte> read(2 * kBlock);
  for (const std::uint64_t offset : {std::uint64_t{0}, kBlock, 9 * kBlock}) {
    const Status status = directory->read(file, offset, read);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::Io);
  }
  auto queue = files_->make_queue({.depth = 1, .buffer_bytes = 2 * kBlock}).value();
  queue->submit({.kind = IoKind::Read, .file = file, .offset = 0, .buffer = queue->memory(), .tag = 5});
  std::array<IoResult, 1> results;
  ASSERT_EQ(queue->wait(results).size(), 1U);
  EXPECT_EQ(results[0].tag, 5U);
  ASSERT_FALSE(results[0].status);
  EXPECT_EQ(results[0].status.error().code, ErrorCode::Io);
  queue.reset();
  directory->close(file);
}

TEST_P(FileSystemContract, ALengthGrowsWithZerosAndShrinksForGood) {
  const auto directory = open_store();
  const FileId file = directory->create("a", 0).value();
  ASSERT_TRUE(directory->write(file, 0, drawn_blocks(3, 2)));
  ASSERT_TRUE(directory->set_length(file, kBlock));
  EXPECT_EQ(directory->length(file).value(), kBlock);
  ASSERT_TRUE(directory->set_length(file, 2 * kBlock));
  std::vector<std::byte> read(kBlock, std::byte{1});
  ASSERT_TRUE(directory->read(file, kBlock, read));
  EXPECT_EQ(read, std::vector<std::byte>(kBlock));
  directory->close(file);
}

TEST_P(FileSystemContract, NamesChange) {
  const auto directory = open_store();
  const FileId a = directory->create("a", 0).value();
  ASSERT_TRUE(directory->write(a, 0, drawn_blocks(4, 1)));
  directory->close(a);
  directory->close(directory->create("b", 0).value());
  ASSERT_TRUE(directory->rename("a", "b")) << "over a file";
  EXPECT_EQ(directory->list().value(), std::vector<std::string>{"b"});
  const FileId b = directory->open("b").value();
  EXPECT_EQ(directory->length(b).value(), kBlock);
  ASSERT_TRUE(directory->remove("b"));
  EXPECT_TRUE(directory->list().value().empty());
  std::vector<std::byte> read(kBlock);
  ASSERT_TRUE(directory->read(b, 0, read)) << "a removed file can be read while it is open";
  EXPECT_EQ(read, drawn_blocks(4, 1));
  directory->close(b);
  EXPECT_TRUE(directory->remove("b")) << "it is gone already";
  EXPECT_EQ(directory->rename("b", "c").error().code, ErrorCode::Io);
}

TEST_P(FileSystemContract, AQueueMovesEveryRequestOnce) {
  constexpr std::uint64_t kRequests = 200;
  constexpr std::uint64_t kBlocksEach = 4;
  const auto directory = open_store();
  const FileId file = directory->create("a", kRequests * kBlocksEach * kBlock).value();
  auto queue = files_->make_queue({.depth = 5, .buffer_bytes = kBlocksEach * kBlock}).value();
  EXPECT_EQ(queue->depth(), 5U);
  ASSERT_EQ(queue->memory().size(), 5 * kBlocksEach * kBlock);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(queue->memory().data()) % kBlock, 0U);
  for (const IoKind kind : {IoKind::Write, IoKind::Read}) {
    std::vector<std::uint32_t> free = {0, 1, 2, 3, 4};
    std::set<std::uint64_t> done;
    std::uint64_t next = 0;
    std::array<IoResult, 3> results;
    while (done.size() < kRequests) {
      while (next < kRequests && !free.empty()) {
        const std::uint32_t slot = free.back();
        free.pop_back();
        const auto buffer = queue->memory().subspan(slot * kBlocksEach * kBlock, kBlocksEach * kBlock);
        if (kind == IoKind::Write) {
          const auto bytes = drawn_blocks(next, kBlocksEach);
          std::copy(bytes.begin(), bytes.end(), buffer.begin());
        }
        queue->submit({.kind = kind,
                       .file = file,
                       .offset = next * kBlocksEach * kBlock,
                       .buffer = buffer,
                       .tag = (next << 8U) | slot});
        ++next;
      }
      const auto some = queue->wait(results);
      ASSERT_GE(some.size(), 1U);
      for (const IoResult& result : some) {
        ASSERT_TRUE(result.status) << result.status.error().message;
        const std::uint64_t request = result.tag >> 8U;
        const auto slot = static_cast<std::uint32_t>(result.tag & 0xffU);
        EXPECT_TRUE(done.insert(request).second);
        if (kind == IoKind::Read) {
          const auto bytes = drawn_blocks(request, kBlocksEach);
          EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(),
                                 queue->memory().begin() + static_cast<std::ptrdiff_t>(slot * kBlocksEach * kBlock)));
        }
        free.push_back(slot);
      }
    }
  }
  queue.reset();
  directory->close(file);
}

TEST_P(FileSystemContract, PartsOfBuffersAndSeveralAtOnceCanBeMoved) {
  const auto directory = open_store();
  const FileId file = directory->create("a", 0).value();
  auto queue = files_->make_queue({.depth = 2, .buffer_bytes = 2 * kBlock}).value();
  const auto bytes = drawn_blocks(8, 3);
  std::copy(bytes.begin(), bytes.end(), queue->memory().begin() + kBlock);
  queue->submit({.kind = IoKind::Write, .file = file, .offset = 0, .buffer = queue->memory().subspan(kBlock)});
  std::array<IoResult, 4> results;
  ASSERT_TRUE(queue->wait(results)[0].status);
  std::vector<std::byte> read(3 * kBlock);
  ASSERT_TRUE(directory->read(file, 0, read)) << "what a queue wrote is seen without it";
  EXPECT_EQ(read, bytes);
  ASSERT_TRUE(directory->write(file, kBlock, drawn_blocks(9, 1)));
  queue->submit({.kind = IoKind::Read, .file = file, .offset = kBlock, .buffer = queue->memory().first(kBlock)});
  ASSERT_TRUE(queue->wait(results)[0].status);
  EXPECT_TRUE(std::equal(queue->memory().begin(), queue->memory().begin() + kBlock, drawn_blocks(9, 1).begin()))
      << "and the other way round";
  queue.reset();
  directory->close(file);
}

TEST_P(FileSystemContract, AQueueThatGoesFinishesItsWrites) {
  const auto directory = open_store();
  const FileId file = directory->create("a", 4 * kBlock).value();
  const auto bytes = drawn_blocks(10, 4);
  auto queue = files_->make_queue({.depth = 4, .buffer_bytes = kBlock}).value();
  std::copy(bytes.begin(), bytes.end(), queue->memory().begin());
  for (std::uint64_t i = 0; i < 4; ++i) {
    queue->submit({.kind = IoKind::Write,
                   .file = file,
                   .offset = i * kBlock,
                   .buffer = queue->memory().subspan(i * kBlock, kBlock),
                   .tag = i});
  }
  queue.reset();
  std::vector<std::byte> read(4 * kBlock);
  ASSERT_TRUE(directory->read(file, 0, read));
  EXPECT_EQ(read, bytes);
  directory->close(file);
}

TEST_P(FileSystemContract, QueuesOfSeveralFilesAndDirectoriesGoTogether) {
  const auto first = open_store();
  const auto second = files_->open_directory(temp_.path() + "/other").value();
  const FileId a = first->create("a", kBlock).value();
  const FileId b = second->create("a", kBlock).value();
  auto writer = files_->make_queue({.depth = 2, .buffer_bytes = kBlock}).value();
  auto reader = files_->make_queue({.depth = 2, .buffer_bytes = kBlock}).value();
  std::array<IoResult, 2> results;
  for (const auto& [file, value] : {std::pair{a, 1}, std::pair{b, 2}}) {
    const auto buffer = writer->memory().subspan(value == 1 ? 0 : kBlock, kBlock);
    std::fill(buffer.begin(), buffer.end(), static_cast<std::byte>(value));
    writer->submit({.kind = IoKind::Write, .file = file, .offset = 0, .buffer = buffer});
  }
  for (std::size_t done = 0; done < 2;) done += writer->wait(results).size();
  for (const auto& [file, value] : {std::pair{a, 1}, std::pair{b, 2}}) {
    reader->submit({.kind = IoKind::Read, .file = file, .offset = 0, .buffer = reader->memory().first(kBlock)});
    ASSERT_TRUE(reader->wait(results)[0].status);
    EXPECT_EQ(reader->memory()[kBlock - 1], static_cast<std::byte>(value));
  }
  writer.reset();
  reader.reset();
  first->close(a);
  second->close(b);
}

INSTANTIATE_TEST_SUITE_P(All, FileSystemContract, ::testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace quire
