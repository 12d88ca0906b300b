// SPDX-License-Identifier: Apache-2.0
#include "store/system_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/block_transfer.h"
#include "store/file_table.h"
#include "testing/refused_calls.h"
#include "testing/temp_directory.h"

namespace quire {
namespace {

using testing::calls_without;
using testing::TempDirectory;

constexpr std::uint64_t kBlock = kIoBlockBytes;

std::vector<std::byte> blocks_of(std::uint32_t value, std::uint64_t block_count = 1) {
  return std::vector<std::byte>(block_count * kBlock, static_cast<std::byte>(value));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

mode_t permissions_of(const std::string& path) {
  struct stat facts{};
  EXPECT_EQ(::stat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 0777U;
}

int refuse(int error_number) {
  errno = error_number;
  return -1;
}

// One request of one block, and what came of it.
Status move_one_block(IoQueue& queue, IoKind kind, FileId file) {
  queue.submit({.kind = kind, .file = file, .offset = 0, .buffer = queue.memory().first(kBlock), .tag = 3});
  std::array<IoResult, 2> results;
  const auto some = queue.wait(results);
  EXPECT_EQ(some.size(), 1U);
  EXPECT_EQ(some[0].tag, 3U);
  return some[0].status;
}

TEST(SystemFiles, FilesAndDirectoriesAreTheirOwnersOnly) {
  const TempDirectory temp;
  SystemFiles files;
  const std::string path = temp.path() + "/made/here";
  const auto directory = files.open_directory(path).value();
  directory->close(directory->create("a", kBlock).value());
  EXPECT_EQ(permissions_of(temp.path() + "/made"), 0700U);
  EXPECT_EQ(permissions_of(path), 0700U);
  EXPECT_EQ(permissions_of(path + "/a"), 0600U);
  EXPECT_EQ(permissions_of(path + "/quire-lock"), 0600U);
}

TEST(SystemFiles, ASlashAtTheEndAndADirectoryThatIsThereAreFine) {
  const TempDirectory temp;
  SystemFiles files;
  EXPECT_TRUE(files.open_directory(temp.path() + "/a//b/"));
  EXPECT_TRUE(files.open_directory(temp.path()));
  EXPECT_EQ(files.open_directory("").error().code, ErrorCode::InvalidArgument);
}

TEST(SystemFiles, OnlyPlainFilesAreListed) {
  const TempDirectory temp;
  SystemFiles files;
  const auto directory = files.open_directory(temp.path()).value();
  std::filesystem::create_directory(temp.path() + "/directory");
  std::filesystem::create_symlink("/etc/passwd", temp.path() + "/link");
  std::ofstream(temp.path() + "/plain") << "x";
  EXPECT_EQ(directory->list().value(), std::vector<std::string>{"plain"});
  EXPECT_FALSE(directory->open("link")) << "nobody leads us elsewhere";
}

TEST(SystemFiles, TheModeSaysWhatIsInUse) {
  const TempDirectory temp;
  SystemFiles files;
  const auto directory = files.open_directory(temp.path()).value();
  const auto queue = files.make_queue({.depth = 4, .buffer_bytes = kBlock}).value();
  const IoMode mode = files.mode();
  // A system may refuse anything; then it says so, and the rest of these tests ran in that mode.
  std::string text = mode.engine == IoMode::Engine::Uring ? "io_uring" : "threads";
  if (mode.is_direct) text += ", O_DIRECT";
  if (mode.has_registered_buffers) text += ", registered buffers";
  RecordProperty("mode", text);
  std::cout << "mode in " << temp.path() << ": " << text << (mode.refusals.empty() ? "" : "; refused: ")
            << mode.refusals << "\n";
  EXPECT_EQ(mode.refusals.empty(),
            mode.engine == IoMode::Engine::Uring && mode.is_direct && mode.has_registered_buffers);
}

TEST(SystemFiles, EachRefusalIsTold) {
  const TempDirectory temp;
  SystemFiles untroubled;
  (void)untroubled.make_queue({.depth = 4, .buffer_bytes = kBlock}).value();
  const bool has_uring = untroubled.mode().engine == IoMode::Engine::Uring;
  {
    const FileCalls calls = calls_without({.uring = true});
    SystemFiles files(calls);
    const auto queue = files.make_queue({.depth = 4, .buffer_bytes = kBlock}).value();
    EXPECT_EQ(files.mode().engine, IoMode::Engine::Threads);
    EXPECT_FALSE(files.mode().has_registered_buffers);
    EXPECT_EQ(files.mode().refusals, "io_uring: Operation not permitted");
  }
  for (const bool is_registered : {true, false}) {
    const FileCalls calls = calls_without({.plain_requests = true, .registered_buffers = !is_registered});
    SystemFiles files(calls);
    const auto queue = files.make_queue({.depth = 4, .buffer_bytes = kBlock}).value();
    EXPECT_EQ(files.mode().engine, IoMode::Engine::Threads);
    if (!has_uring) continue;
    EXPECT_EQ(files.mode().refusals,
              "io_uring: without requests for memory that is not registered, as before Linux 5.6");
  }
  {
    const FileCalls calls = calls_without({.registered_buffers = true});
    SystemFiles files(calls);
    const auto queue = files.make_queue({.depth = 4, .buffer_bytes = kBlock}).value();
    if (has_uring) {
      EXPECT_EQ(files.mode().refusals, "registered buffers: Cannot allocate memory; see ulimit -l");
    }
    EXPECT_FALSE(files.mode().has_registered_buffers);
  }
  {
    const FileCalls calls = calls_without({.direct = true});
    SystemFiles files(calls);
    const auto directory = files.open_directory(temp.path()).value();
    EXPECT_FALSE(files.mode().is_direct);
    EXPECT_EQ(files.mode().refusals, "O_DIRECT in " + temp.path() + ": Invalid argument");
  }
  {
    const FileCalls calls = calls_without({.direct = true, .reserved_space = true});
    SystemFiles files(calls);
    const auto directory = files.open_directory(temp.path()).value();
    for (const char* name : {"a", "b"}) {
      const FileId file = directory->create(name, 4 * kBlock).value();
      EXPECT_EQ(directory->length(file).value(), 4 * kBlock);
      directory->close(file);
    }
    EXPECT_EQ(files.mode().refusals, "O_DIRECT in " + temp.path() + ": Invalid argument; reserved space in " +
                                         temp.path() + ": Operation not supported")
        << "once, however many files there are";
  }
}

// Some file systems take the flag and refuse every read.
TEST(SystemFiles, DirectReadsThatFailAreNoticedAtOnce) {
  const TempDirectory temp;
  FileCalls calls = FileCalls::real();
  calls.open = [](int directory, const char* name, int flags) {
    return FileCalls::real().open(directory, name, flags & ~O_DIRECT);  // So that the file system does not decide.
  };
  calls.read = [](int, void*, std::size_t, off_t) { return static_cast<ssize_t>(refuse(EINVAL)); };
  SystemFiles files(calls);
  EXPECT_TRUE(files.open_directory(temp.path()));
  EXPECT_FALSE(files.mode().is_direct);
}

TEST(SystemFiles, AModeHasWhatAllQueuesAndDirectoriesHave) {
  static std::atomic<int> refused_rings = 0;
  FileCalls calls = FileCalls::real();
  calls.start_ring = [](unsigned entries, io_uring* ring) {
    return refused_rings-- > 0 ? -ENOSYS : FileCalls::real().start_ring(entries, ring);
  };
  SystemFiles files(calls);
  refused_rings = 1;
  const auto threads = files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  EXPECT_EQ(files.mode().engine, IoMode::Engine::Threads);
  const auto ring = files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  EXPECT_EQ(files.mode().engine, IoMode::Engine::Threads);
}

TEST(SystemFiles, AFullDiskStaysAnErrorAndLeavesNothing) {
  const TempDirectory temp;
  FileCalls calls = FileCalls::real();
  calls.reserve = [](int, std::uint64_t) { return refuse(ENOSPC); };
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp.path()).value();
  const auto refused = directory->create("a", 4 * kBlock);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(refused.error().message, "reserving 16384 bytes for " + temp.path() + "/a: No space left on device");
  EXPECT_TRUE(directory->list().value().empty());
}

TEST(SystemFiles, AFullDiskUnderAWriteIsUnavailable) {
  const TempDirectory temp;
  FileCalls calls = calls_without({.uring = true});
  calls.write = [](int, const void*, std::size_t, off_t) { return static_cast<ssize_t>(refuse(ENOSPC)); };
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp.path()).value();
  const FileId file = directory->create("a", kBlock).value();
  EXPECT_EQ(directory->write(file, 0, blocks_of(1)).error().code, ErrorCode::Unavailable);
  auto queue = files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  EXPECT_EQ(move_one_block(*queue, IoKind::Write, file).error().code, ErrorCode::Unavailable);
  queue.reset();
  directory->close(file);
}

TEST(SystemFiles, ErrorsSayWhatWasTriedOnWhat) {
  const TempDirectory temp;
  FileCalls calls = calls_without({.uring = true, .direct = true});
  calls.read = [](int, void*, std::size_t, off_t) { return static_cast<ssize_t>(refuse(EIO)); };
  calls.write = [](int, const void*, std::size_t, off_t) { return static_cast<ssize_t>(refuse(EIO)); };
  calls.sync_data = [](int) { return refuse(EIO); };
  calls.rename = [](int, const char*, const char*) { return refuse(EROFS); };
  calls.remove = [](int, const char*) { return refuse(EROFS); };
  calls.set_length = [](int, std::uint64_t) { return refuse(EFBIG); };
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp.path()).value();
  const FileId file = directory->create("a", kBlock).value();
  const std::string path = temp.path() + "/a";
  std::vector<std::byte> bytes = blocks_of(0);
  EXPECT_EQ(directory->read(file, kBlock, bytes).error().message,
            "reading 4096 bytes at 4096 of " + path + ": Input/output error");
  EXPECT_EQ(directory->write(file, 0, bytes).error().message,
            "writing 4096 bytes at 0 of " + path + ": Input/output error");
  EXPECT_EQ(directory->sync_file(file, SyncPoint::Flush).error().message, "syncing " + path + ": Input/output error");
  EXPECT_EQ(directory->rename("a", "b").error().message, "renaming " + path + " to b: Read-only file system");
  EXPECT_EQ(directory->remove("a").error().message, "removing " + path + ": Read-only file system");
  EXPECT_EQ(directory->set_length(file, 0).error().message, "setting the length of " + path + " to 0: File too large");
  auto queue = files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  EXPECT_EQ(move_one_block(*queue, IoKind::Read, file).error().message,
            "reading 4096 bytes at 0 of " + path + ": Input/output error");
  queue.reset();
  directory->close(file);
}

TEST(SystemFiles, AFailedDirectorySyncIsTold) {
  const TempDirectory temp;
  static std::atomic<bool> is_failing;
  is_failing = false;
  FileCalls calls = FileCalls::real();
  calls.sync_directory = [](int directory) {
    return is_failing ? refuse(EIO) : FileCalls::real().sync_directory(directory);
  };
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp.path()).value();
  EXPECT_TRUE(directory->sync_directory(SyncPoint::SegmentDirectory));
  is_failing = true;
  EXPECT_EQ(directory->sync_directory(SyncPoint::SegmentDirectory).error().message,
            "syncing " + temp.path() + ": Input/output error");
  EXPECT_FALSE(files.open_directory(temp.path() + "/new")) << "its name might be lost";
}

TEST(SystemFiles, AReadOnlyPlaceIsRefusedWithItsReason) {
  FileCalls calls = FileCalls::real();
  calls.make_directory = [](const char*) { return refuse(EROFS); };
  SystemFiles files(calls);
  const TempDirectory temp;
  const auto refused = files.open_directory(temp.path() + "/new");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::Io);
  EXPECT_EQ(refused.error().message, "making the directory " + temp.path() + "/new: Read-only file system");
  EXPECT_TRUE(files.open_directory(temp.path())) << "nothing had to be made";
  EXPECT_FALSE(files.open_directory("/dev/null/store")) << "a file is in the way";
}

TEST(SystemFiles, ADirectoryThatIsRemovedMeanwhileFails) {
  const TempDirectory temp;
  const std::string path = temp.path() + "/store";
  SystemFiles files;
  const auto directory = files.open_directory(path).value();
  const FileId file = directory->create("a", kBlock).value();
  std::filesystem::remove_all(path);
  EXPECT_EQ(directory->create("b", kBlock).error().code, ErrorCode::Io);
  EXPECT_EQ(directory->open("a").error().code, ErrorCode::Io);
  EXPECT_EQ(directory->rename("a", "b").error().code, ErrorCode::Io);
  EXPECT_TRUE(directory->write(file, 0, blocks_of(1))) << "an open file is there until it is closed";
  directory->close(file);
}

TEST(SystemFiles, ASecondStoreInThisProcessIsRefused) {
  const TempDirectory temp;
  SystemFiles files;
  SystemFiles others;
  auto directory = files.open_directory(temp.path()).value();
  const auto second = others.open_directory(temp.path());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(second.error().message, "locking " + temp.path() + "/quire-lock: another store of this process, " +
                                        std::to_string(::getpid()) + ", has the directory");
  directory.reset();
  EXPECT_TRUE(others.open_directory(temp.path()));
}

TEST(SystemFiles, ASecondProcessIsRefusedAndToldWhoHasTheDirectory) {
  const TempDirectory temp;
  std::array<int, 2> ready{};
  std::array<int, 2> end{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  ASSERT_EQ(::pipe(end.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  char byte = 0;
  if (child == 0) {
    (void)::close(end[1]);
    SystemFiles files;
    const auto directory = files.open_directory(temp.path());
    byte = directory ? 'y' : 'n';
    (void)!::write(ready[1], &byte, 1);
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);  // Without giving the lock back, as a process that is killed.
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  SystemFiles files;
  const auto refused = files.open_directory(temp.path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(refused.error().message,
            "locking " + temp.path() + "/quire-lock: the process " + std::to_string(child) + " has the directory");
  (void)::close(end[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(files.open_directory(temp.path())) << "its end gave the lock back";
  for (const int pipe_end : {ready[0], ready[1], end[0]}) (void)::close(pipe_end);
}

TEST(SystemFiles, AChildDoesNotKeepALockThatWasGivenBack) {
  const TempDirectory temp;
  SystemFiles files;
  auto directory = files.open_directory(temp.path()).value();
  std::array<int, 2> end{};
  ASSERT_EQ(::pipe(end.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  char byte = 0;
  if (child == 0) {
    (void)::close(end[1]);
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);
  }
  directory.reset();
  EXPECT_TRUE(files.open_directory(temp.path()));
  (void)::close(end[1]);
  (void)::close(end[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

TEST(SystemFiles, ALockWithoutANameIsStillALock) {
  const TempDirectory temp;
  SystemFiles files;
  const auto directory = files.open_directory(temp.path()).value();
  std::ofstream(temp.path() + "/quire-lock", std::ios::trunc) << "rubbish";
  EXPECT_EQ(files.open_directory(temp.path()).error().message,
            "locking " + temp.path() + "/quire-lock: another process has the directory");
}

std::string text_in(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void put_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

TEST(SystemFiles, AFileThatIsOnlyCalledLikeTheLockIsNotWrittenTo) {
  const TempDirectory temp;
  const std::string path = temp.path() + "/quire-lock";
  SystemFiles files;
  for (const std::string text : {"precious", "4711", "4711\nand more", "\n", "123456789012345678901234567890\n"}) {
    put_text(path, text);
    {
      const auto directory = files.open_directory(temp.path());
      ASSERT_TRUE(directory) << directory.error().message;
      EXPECT_FALSE(files.open_directory(temp.path())) << "it locks all the same";
    }
    EXPECT_EQ(text_in(path), text);
  }
}

TEST(SystemFiles, ALockThatAProcessLeftIsTakenOver) {
  const TempDirectory temp;
  const std::string path = temp.path() + "/quire-lock";
  SystemFiles files;
  // The last two are what may become of it when the power fails.
  for (const std::string& text :
       {std::string("4711\n"), std::string("12345678\n"), std::string(), std::string(5, '\0')}) {
    put_text(path, text);
    ASSERT_TRUE(files.open_directory(temp.path()));
    EXPECT_EQ(text_in(path), std::to_string(::getpid()) + "\n");
  }
}

TEST(SystemFiles, ALockThatSomebodyDeletesIsStillALock) {
  const TempDirectory temp;
  SystemFiles files;
  SystemFiles others;
  auto directory = files.open_directory(temp.path()).value();
  ASSERT_TRUE(std::filesystem::remove(temp.path() + "/quire-lock"));
  const auto second = others.open_directory(temp.path());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(second.error().message, "locking " + temp.path() + ": another process has the directory");
  EXPECT_FALSE(std::filesystem::exists(temp.path() + "/quire-lock")) << "who is refused leaves nothing";
  directory.reset();
  EXPECT_TRUE(others.open_directory(temp.path()));
}

// As on some file systems of the network.
TEST(SystemFiles, ADirectoryThatCannotBeLockedItselfHasItsFileForThat) {
  const TempDirectory temp;
  for (const int why : {EOPNOTSUPP, EINVAL, EBADF, ENOSYS, ENOLCK}) {
    static std::atomic<int> refusal;
    refusal = why;
    FileCalls calls = FileCalls::real();
    calls.lock_directory = [](int) { return refuse(refusal); };
    SystemFiles files(calls);
    const auto directory = files.open_directory(temp.path());
    ASSERT_TRUE(directory) << directory.error().message;
    EXPECT_FALSE(files.open_directory(temp.path()));
  }
}

TEST(SystemFiles, AFileSystemWithoutLocksIsRefused) {
  const TempDirectory temp;
  FileCalls calls = FileCalls::real();
  calls.lock = [](int) { return refuse(ENOLCK); };
  SystemFiles files(calls);
  EXPECT_EQ(files.open_directory(temp.path()).error().message,
            "locking " + temp.path() + "/quire-lock: No locks available");
}

TEST(SystemFiles, InterruptedCallsAreRepeated) {
  const TempDirectory temp;
  static std::atomic<int> interruptions;
  static const auto is_interrupted = [] {
    errno = EINTR;
    return interruptions++ % 2 == 0;
  };
  interruptions = 0;
  FileCalls calls = calls_without({.uring = true});
  calls.sync_data = [](int file) { return is_interrupted() ? -1 : FileCalls::real().sync_data(file); };
  calls.sync_directory = [](int file) { return is_interrupted() ? -1 : FileCalls::real().sync_directory(file); };
  calls.reserve = [](int file, std::uint64_t bytes) {
    return is_interrupted() ? -1 : FileCalls::real().reserve(file, bytes);
  };
  calls.set_length = [](int file, std::uint64_t bytes) {
    return is_interrupted() ? -1 : FileCalls::real().set_length(file, bytes);
  };
  calls.write = [](int file, const void* data, std::size_t bytes, off_t offset) {
    return is_interrupted() ? -1 : FileCalls::real().write(file, data, bytes, offset);
  };
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp.path()).value();
  const FileId file = directory->create("a", kBlock).value();
  EXPECT_TRUE(directory->write(file, 0, blocks_of(1)));
  EXPECT_TRUE(directory->set_length(file, 2 * kBlock));
  EXPECT_TRUE(directory->sync_file(file, SyncPoint::Flush));
  EXPECT_TRUE(directory->sync_directory(SyncPoint::Flush));
  auto queue = files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  EXPECT_TRUE(move_one_block(*queue, IoKind::Write, file));
  queue.reset();
  EXPECT_GE(interruptions, 12);
  directory->close(file);
}

// ── Transfers ──────────────────────────────────────────────────────────────────────────────────────────────────

TEST(BlockTransfer, GoesOnAtTheLastWholeBlock) {
  std::vector<std::byte> memory = blocks_of(0, 4);
  BlockTransfer transfer{.offset = 8 * kBlock, .buffer = memory};
  EXPECT_TRUE(transfer.advance(kBlock + 512));
  EXPECT_EQ(transfer.rest_offset(), 9 * kBlock);
  EXPECT_EQ(transfer.rest().size(), 3 * kBlock);
  EXPECT_TRUE(transfer.advance(-EINTR));
  EXPECT_FALSE(transfer.advance(3 * kBlock));
  EXPECT_TRUE(transfer.status("x"));
}

TEST(BlockTransfer, ComesShortWhenNoBlockIsMoved) {
  std::vector<std::byte> memory = blocks_of(0, 2);
  for (const IoKind kind : {IoKind::Read, IoKind::Write}) {
    BlockTransfer transfer{.kind = kind, .buffer = memory};
    EXPECT_TRUE(transfer.advance(kBlock));
    EXPECT_FALSE(transfer.advance(kBlock - 1));
    EXPECT_EQ(transfer.status("x").error().code, ErrorCode::Io);
    EXPECT_EQ(transfer.status("x").error().message, kind == IoKind::Read
                                                        ? "reading 8192 bytes at 0 of x: only 4096 are there"
                                                        : "writing 8192 bytes at 0 of x: only 4096 were taken");
  }
}

// ── Queues ─────────────────────────────────────────────────────────────────────────────────────────────────────

class UringCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    SystemFiles files;
    (void)files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
    if (files.mode().engine != IoMode::Engine::Uring) GTEST_SKIP() << "no io_uring: " << files.mode().refusals;
    submits_before_failures = 0;
    interrupted_waits = 0;
    submit_failures = 0;
    error_number = EAGAIN;
    submit_count = 0;
  }

  // Submissions that the kernel refuses, after so many that it takes.
  static FileCalls failing_submits() {
    FileCalls calls = FileCalls::real();
    calls.submit = [](io_uring* ring) {
      ++submit_count;
      if (submits_before_failures > 0) {
        --submits_before_failures;
      } else if (submit_failures > 0) {
        --submit_failures;
        return -error_number;
      }
      return FileCalls::real().submit(ring);
    };
    calls.wait = [](io_uring* ring, unsigned count) {
      const int waited = interrupted_waits > 0 ? -EINTR : FileCalls::real().wait(ring, count);
      --interrupted_waits;
      return waited;
    };
    return calls;
  }

  static constexpr std::uint64_t kLarge = std::uint64_t{1} << 20U;

  inline static int submits_before_failures = 0;
  inline static int submit_failures = 0;
  inline static int submit_count = 0;
  inline static int interrupted_waits = 0;
  inline static int error_number = 0;
  const TempDirectory temp_;
};

TEST_F(UringCalls, ARefusedSubmissionFailsItsRequestAndNoOther) {
  const FileCalls calls = failing_submits();
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp_.path()).value();
  const FileId file = directory->create("a", 16 * kBlock).value();
  auto queue = files.make_queue({.depth = 2, .buffer_bytes = kBlock}).value();
  // More often than the ring has entries: what the kernel did not take must not fill it for ever.
  for (int round = 0; round < 8; ++round) {
    submit_failures = 1;
    const Status refused = move_one_block(*queue, IoKind::Write, file);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
    EXPECT_TRUE(contains(refused.error().message, temp_.path() + "/a: Resource temporarily unavailable"));
    EXPECT_TRUE(move_one_block(*queue, IoKind::Write, file));
  }
  submit_failures = 40;
  for (int round = 0; round < 20; ++round) EXPECT_FALSE(move_one_block(*queue, IoKind::Write, file));
  submit_failures = 0;
  EXPECT_TRUE(move_one_block(*queue, IoKind::Write, file));
  queue.reset();
  directory->close(file);
}

TEST_F(UringCalls, ARefusedSubmissionIsTriedAgainWhenAnotherIsDone) {
  const FileCalls calls = failing_submits();
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp_.path()).value();
  const FileId file = directory->create("a", 2 * kLarge).value();
  auto queue = files.make_queue({.depth = 2, .buffer_bytes = kLarge}).value();
  submits_before_failures = 1;
  submit_failures = 1;
  interrupted_waits = 3;
  for (std::uint64_t i = 0; i < 2; ++i) {
    queue->submit({.kind = IoKind::Write,
                   .file = file,
                   .offset = i * kLarge,
                   .buffer = queue->memory().subspan(i * kLarge, kLarge),
                   .tag = i});
  }
  EXPECT_EQ(submit_failures, 0);
  std::array<IoResult, 2> results;
  for (std::size_t done = 0; done < 2;) {
    for (const IoResult& result : queue->wait(results)) {
      EXPECT_TRUE(result.status);
      ++done;
    }
  }
  EXPECT_EQ(submit_count, 3);
  queue.reset();
  directory->close(file);
}

TEST_F(UringCalls, SmallRequestsStartTogetherAndLargeOnesAtOnce) {
  const FileCalls calls = failing_submits();
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp_.path()).value();
  const FileId file = directory->create("a", 4 * kLarge).value();
  auto queue = files.make_queue({.depth = 4, .buffer_bytes = kLarge}).value();
  const auto submit = [&](std::uint64_t index, std::uint64_t bytes) {
    const std::uint64_t offset = index * kLarge;
    queue->submit(
        {.kind = IoKind::Write, .file = file, .offset = offset, .buffer = queue->memory().subspan(offset, bytes)});
  };
  submit(0, kBlock);
  submit(1, kBlock);
  EXPECT_EQ(submit_count, 0);
  submit(2, kLarge);
  EXPECT_EQ(submit_count, 1);
  submit(3, kBlock);
  EXPECT_EQ(submit_count, 1);
  std::array<IoResult, 4> results;
  std::size_t done = queue->wait(results).size();
  while (done < 4) done += queue->wait(results).size();
  EXPECT_EQ(submit_count, 2);
  queue.reset();
  directory->close(file);
}

TEST_F(UringCalls, AnInterruptedSubmissionIsRepeated) {
  const FileCalls calls = failing_submits();
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp_.path()).value();
  const FileId file = directory->create("a", kBlock).value();
  auto queue = files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  error_number = EINTR;
  submit_failures = 3;
  EXPECT_TRUE(move_one_block(*queue, IoKind::Write, file));
  EXPECT_GE(submit_count, 4);
  queue.reset();
  directory->close(file);
}

// The ring has eight entries for five requests, and five of them mean nothing after a refusal: the fourth request that
// follows finds it full, and hands over what is there.
TEST_F(UringCalls, WhatAFullRingHandsOverIsNotReportedAsRefused) {
  constexpr std::uint32_t kDepth = 5;
  const FileCalls calls = failing_submits();
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp_.path()).value();
  const FileId file = directory->create("a", kDepth * kBlock).value();
  auto queue = files.make_queue({.depth = kDepth, .buffer_bytes = kBlock}).value();
  std::array<IoResult, kDepth> results;
  const auto write_all = [&](std::uint32_t value) {
    for (std::uint64_t i = 0; i < kDepth; ++i) {
      const std::span<std::byte> buffer = queue->memory().subspan(i * kBlock, kBlock);
      std::ranges::fill(buffer, static_cast<std::byte>(value));
      queue->submit({.kind = IoKind::Write, .file = file, .offset = i * kBlock, .buffer = buffer, .tag = i});
    }
  };
  write_all(1);
  submit_failures = 1;
  ASSERT_EQ(queue->wait(results).size(), kDepth);
  for (const IoResult& result : results) EXPECT_FALSE(result.status);

  submit_count = 0;
  write_all(2);
  ASSERT_EQ(submit_count, 1) << "the ring was not full";
  submit_failures = 2;
  std::array<bool, kDepth> is_answered{};
  std::array<bool, kDepth> is_written{};
  for (std::uint32_t done = 0; done < kDepth;) {
    for (const IoResult& result : queue->wait(results)) {
      EXPECT_FALSE(is_answered[result.tag]) << "a second answer for " << result.tag;
      is_answered[result.tag] = true;
      is_written[result.tag] = result.status.has_value();
      ++done;
    }
  }
  submit_failures = 0;
  std::vector<std::byte> bytes = blocks_of(0, kDepth);
  ASSERT_TRUE(directory->read(file, 0, bytes));
  for (std::uint64_t i = 0; i < kDepth; ++i) {
    EXPECT_EQ(bytes[i * kBlock] == std::byte{2}, is_written[i]) << "of " << i << " the answer is not what was done";
    EXPECT_TRUE(is_written[i] || i >= 3) << "the kernel had taken it";
  }
  EXPECT_TRUE(move_one_block(*queue, IoKind::Write, file));
  queue.reset();
  directory->close(file);
}

TEST_F(UringCalls, AnErrorOfTheDiskComesWithTheResult) {
  SystemFiles files;
  const auto directory = files.open_directory(temp_.path()).value();
  const FileId file = directory->create("a", kBlock).value();
  // Longer than any file system takes.
  auto queue = files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  queue->submit({.kind = IoKind::Write,
                 .file = file,
                 .offset = (std::uint64_t{1} << 63U) - kBlock,
                 .buffer = queue->memory(),
                 .tag = 1});
  std::array<IoResult, 1> results;
  EXPECT_FALSE(queue->wait(results)[0].status);
  queue.reset();
  directory->close(file);
}

TEST(SystemFiles, AQueueMayGoToAnotherThread) {
  const TempDirectory temp;
  for (const bool is_uring : {true, false}) {
    const FileCalls calls = calls_without({.uring = !is_uring});
    SystemFiles files(calls);
    const auto directory = files.open_directory(temp.path()).value();
    const FileId file = directory->create(is_uring ? "a" : "b", kBlock).value();
    auto queue = files.make_queue({.depth = 2, .buffer_bytes = kBlock}).value();
    for (int round = 0; round < 10; ++round) {
      const auto value = static_cast<std::byte>(round);
      std::thread([&] {
        std::fill(queue->memory().begin(), queue->memory().end(), value);
        EXPECT_TRUE(move_one_block(*queue, IoKind::Write, file));
      }).join();
      std::fill(queue->memory().begin(), queue->memory().end(), std::byte{99});
      EXPECT_TRUE(move_one_block(*queue, IoKind::Read, file));
      EXPECT_EQ(queue->memory()[7], value);
    }
    queue.reset();
    directory->close(file);
  }
}

TEST(SystemFiles, ManyQueuesWorkBesideEachOther) {
  const TempDirectory temp;
  const FileCalls calls = calls_without({.uring = true});
  SystemFiles files(calls);
  const auto directory = files.open_directory(temp.path()).value();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const FileId file = directory->create(std::to_string(i), 8 * kBlock).value();
      auto queue = files.make_queue({.depth = 8, .buffer_bytes = kBlock}).value();
      std::array<IoResult, 8> results;
      for (std::uint32_t round = 0; round < 20; ++round) {
        for (const IoKind kind : {IoKind::Write, IoKind::Read}) {
          for (std::uint64_t block = 0; block < 8; ++block) {
            const auto buffer = queue->memory().subspan(block * kBlock, kBlock);
            if (kind == IoKind::Write) std::fill(buffer.begin(), buffer.end(), static_cast<std::byte>(round + i));
            queue->submit({.kind = kind, .file = file, .offset = block * kBlock, .buffer = buffer, .tag = block});
          }
          for (std::size_t done = 0; done < 8;) {
            for (const IoResult& result : queue->wait(results)) {
              EXPECT_TRUE(result.status);
              EXPECT_EQ(queue->memory()[result.tag * kBlock], static_cast<std::byte>(round + i));
              ++done;
            }
          }
        }
      }
      queue.reset();
      directory->close(file);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

using SystemFilesDeathTest = ::testing::Test;

TEST(SystemFilesDeathTest, MistakesOfTheCallerAreFound) {
  const TempDirectory temp;
  SystemFiles files;
  const auto directory = files.open_directory(temp.path()).value();
  const FileId file = directory->create("a", kBlock).value();
  directory->close(file);
  EXPECT_DEATH((void)directory->length(file), "the file is not open");
  EXPECT_DEATH((void)directory->create("../a", 0), "not the name of a file");
  EXPECT_DEATH((void)directory->remove("quire-lock"), "not the name of a file");
  EXPECT_DEATH((void)directory->create("b", 1), "not made of blocks");
  const auto queue = files.make_queue({.depth = 1, .buffer_bytes = kBlock}).value();
  std::array<IoResult, 1> results;
  EXPECT_DEATH((void)queue->wait(results), "waiting for nothing");
}

}  // namespace
}  // namespace quire
