// SPDX-License-Identifier: Apache-2.0
#include "store/system_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/system_error.h"

namespace quire {
namespace {

// More than the digits of any process.
constexpr std::size_t kLockTextBytesMax = 24;
constexpr std::size_t kBounceBytesMax = std::size_t{1} << 20U;

template <typename Call>
int without_interruption(Call call) {
  int answer = 0;
  do {
    answer = call();
  } while (answer < 0 && errno == EINTR);
  return answer;
}

tl::unexpected<Error> failed(const std::string& what, int error_number) {
  return fail(errno_code(error_number),
              what + ": " + errno_text(error_number) + (error_number == EMFILE ? "; see ulimit -n" : ""));
}

void check_name(const std::string& name) {
  QUIRE_CHECK(
      !name.empty() && name.find('/') == std::string::npos && name != "." && name != ".." && name != kLockFileName,
      "not the name of a file in a store's directory");
}

std::string lock_text(int file) {
  std::array<char, kLockTextBytesMax> text{};
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

// Which process a lock names; empty when it names none.
std::string process_in(const std::string& text) {
  const std::size_t end = text.find('\n');
  const std::string pid = text.substr(0, end);
  return end == std::string::npos || pid.find_first_not_of("0123456789") != std::string::npos ? "" : pid;
}

tl::unexpected<Error> taken(const std::string& path, const std::string& pid) {
  const bool is_this = pid == std::to_string(::getpid());
  const std::string who = pid.empty() ? "another process"
                          : is_this   ? "another store of this process, " + pid + ","
                                      : "the process " + pid;
  return fail(ErrorCode::Unavailable, "locking " + path + ": " + who + " has the directory");
}

// Whether a process wrote it to a lock. Zeros may be left of that when the power fails.
bool is_lock_text(const std::string& text) {
  if (text.find_first_not_of('\0') == std::string::npos) return text.size() < kLockTextBytesMax;
  const std::string pid = process_in(text);
  return !pid.empty() && text.size() == pid.size() + 1;
}

// Blocks at an address that O_DIRECT takes.
class BounceBuffer {
 public:
  explicit BounceBuffer(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kIoBlockBytes}))) {}
  ~BounceBuffer() { ::operator delete(data_, std::align_val_t{kIoBlockBytes}); }
  BounceBuffer(const BounceBuffer&) = delete;
  BounceBuffer& operator=(const BounceBuffer&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

Status sync_directory_at(const std::string& path, const FileCalls& calls) {
  const Descriptor directory(calls.open(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.is_open()) return failed("opening " + path, errno);
  if (without_interruption([&] { return calls.sync_directory(directory.get()); }) != 0) {
    return failed("syncing " + path, errno);
  }
  return {};
}

// A directory that is made is synced into its parent at once, so that a crash does not take a whole store away.
Status make_directories(const std::string& path, const FileCalls& calls) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (part.back() != '/') {
      if (calls.make_directory(part.c_str()) == 0) {
        const std::size_t slash = part.rfind('/');
        const std::string parent = slash == std::string::npos ? "." : part.substr(0, std::max<std::size_t>(slash, 1));
        QUIRE_TRY(sync_directory_at(parent, calls));
      } else if (errno != EEXIST) {
        const int why = errno;
        // A parent that we may not write to, on a file system that we may not write to, can still be there.
        struct stat there{};
        if (::stat(part.c_str(), &there) != 0 || !S_ISDIR(there.st_mode))
          return failed("making the directory " + part, why);
      }
    }
    if (end == std::string::npos) return {};
  }
}

}  // namespace

Result<std::unique_ptr<SystemDirectory>> SystemDirectory::open(const std::string& path, Context context) {
  if (path.empty()) return fail(ErrorCode::InvalidArgument, "the path of a store's directory is empty");
  std::unique_ptr<SystemDirectory> directory(new SystemDirectory(path, std::move(context)));
  const FileCalls& calls = directory->context_.calls;
  const bool is_read_only = directory->context_.is_read_only;
  if (!is_read_only) QUIRE_TRY(make_directories(path, calls));
  directory->directory_ = Descriptor(calls.open(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory->directory_.is_open()) return failed("opening " + path, errno);
  QUIRE_TRY(is_read_only ? directory->share_lock() : directory->lock());
  directory->probe_direct();
  return directory;
}

SystemDirectory::~SystemDirectory() {
  // Not by closing alone: a child that was forked meanwhile has the files open, too.
  if (directory_.is_open()) (void)::flock(directory_.get(), LOCK_UN);
  if (!lock_.is_open()) return;
  struct flock lock{};
  lock.l_type = F_UNLCK;
  lock.l_whence = SEEK_SET;
  (void)::fcntl(lock_.get(), F_OFD_SETLK, &lock);
}

// Two locks: of the directory, which nobody can delete while it is in use, and of a file in it, for file systems that
// cannot lock directories and for whoever looks only at the file.
Status SystemDirectory::lock() {
  const std::string path = path_of(kLockFileName);
  if (without_interruption([&] { return context_.calls.lock_directory(directory_.get()); }) != 0 &&
      errno == EWOULDBLOCK) {
    const Descriptor file(context_.calls.open(directory_.get(), kLockFileName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    return taken(file.is_open() ? path : path_, file.is_open() ? process_in(lock_text(file.get())) : "");
  }
  Descriptor file(context_.calls.open(directory_.get(), kLockFileName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW));
  if (!file.is_open()) return failed("opening " + path, errno);
  if (without_interruption([&] { return context_.calls.lock(file.get()); }) != 0) {
    const int why = errno;
    if (why != EAGAIN && why != EACCES) return failed("locking " + path, why);
    return taken(path, process_in(lock_text(file.get())));
  }
  lock_ = std::move(file);
  // For messages only: a disk that is too full for it can still be read. It is not worth another's bytes: that the
  // directory is a store's is not known yet.
  if (!is_lock_text(lock_text(lock_.get()))) return {};
  const std::string pid = std::to_string(::getpid()) + "\n";
  (void)!::ftruncate(lock_.get(), 0);
  (void)!::pwrite(lock_.get(), pid.data(), pid.size(), 0);
  return {};
}

// Where the file system cannot lock, or has no file to lock and may not be written to, nobody is kept out: what is read
// is verified, and the files stay open.
Status SystemDirectory::share_lock() {
  const std::string path = path_of(kLockFileName);
  Descriptor file(context_.calls.open(directory_.get(), kLockFileName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  const bool is_directory_taken =
      without_interruption([&] { return context_.calls.share_directory_lock(directory_.get()); }) != 0 &&
      errno == EWOULDBLOCK;
  const bool is_file_taken = !is_directory_taken && file.is_open() &&
                             without_interruption([&] { return context_.calls.share_lock(file.get()); }) != 0 &&
                             (errno == EAGAIN || errno == EACCES);
  if (is_directory_taken || is_file_taken) {
    return taken(file.is_open() ? path : path_, file.is_open() ? process_in(lock_text(file.get())) : "");
  }
  lock_ = std::move(file);
  return {};
}

// A file system may refuse to open with O_DIRECT, or take it and ask for larger blocks than ours. Shown by a read of
// the lock, whose length does not matter.
void SystemDirectory::probe_direct() {
  int why = 0;
  const Descriptor file(context_.calls.open(directory_.get(), kLockFileName, O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (file.is_open()) {
    const BounceBuffer buffer(kIoBlockBytes);
    const ssize_t read = context_.calls.read(file.get(), buffer.bytes().data(), kIoBlockBytes, 0);
    why = read < 0 ? errno : 0;
  } else {
    why = errno;
  }
  is_direct_ = why == 0;
  if (!is_direct_) context_.add_refusal("O_DIRECT in " + path_ + ": " + errno_text(why));
}

int SystemDirectory::file_flags() const {
  return (context_.is_read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | (is_direct_ ? O_DIRECT : 0);
}

Result<std::vector<std::string>> SystemDirectory::list() {
  const int again = ::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = again < 0 ? nullptr : ::fdopendir(again);
  if (entries == nullptr) {
    const int why = errno;
    if (again >= 0) (void)::close(again);
    return failed("listing " + path_, why);
  }
  std::vector<std::string> names;
  int why = 0;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(entries);
    if (entry == nullptr) {
      why = errno;
      break;
    }
    bool is_plain = entry->d_type == DT_REG;
    if (entry->d_type == DT_UNKNOWN) {
      struct stat file{};
      is_plain = ::fstatat(directory_.get(), entry->d_name, &file, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(file.st_mode);
    }
    if (is_plain && std::strcmp(entry->d_name, kLockFileName) != 0) names.emplace_back(entry->d_name);
  }
  (void)::closedir(entries);
  if (why != 0) return failed("listing " + path_, why);
  return names;
}

Result<FileId> SystemDirectory::create(const std::string& name, std::uint64_t bytes) {
  check_name(name);
  QUIRE_CHECK(bytes % kIoBlockBytes == 0, "a length that is not made of blocks");
  std::string path = path_of(name);
  Descriptor file(without_interruption(
      [&] { return context_.calls.open(directory_.get(), name.c_str(), file_flags() | O_CREAT | O_EXCL); }));
  if (!file.is_open()) return failed("making " + path, errno);
  const Status reserved = bytes == 0 ? Status{} : reserve(file.get(), bytes, path);
  if (!reserved) {
    (void)context_.calls.remove(directory_.get(), name.c_str());
    return tl::unexpected<Error>(reserved.error());
  }
  return context_.files.add(file.release(), std::move(path));
}

Status SystemDirectory::reserve(int file, std::uint64_t bytes, const std::string& path) {
  if (without_interruption([&] { return context_.calls.reserve(file, bytes); }) == 0) return {};
  const std::string what = "reserving " + std::to_string(bytes) + " bytes for " + path;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return failed(what, errno);
  context_.add_refusal("reserved space in " + path_ + ": " + errno_text(errno));
  if (without_interruption([&] { return context_.calls.set_length(file, bytes); }) != 0) return failed(what, errno);
  return {};
}

Result<FileId> SystemDirectory::open(const std::string& name) {
  check_name(name);
  std::string path = path_of(name);
  Descriptor file(
      without_interruption([&] { return context_.calls.open(directory_.get(), name.c_str(), file_flags()); }));
  if (!file.is_open()) return failed("opening " + path, errno);
  return context_.files.add(file.release(), std::move(path));
}

void SystemDirectory::close(FileId file) {
  context_.files.close(file);
}

Result<std::uint64_t> SystemDirectory::length(FileId file) {
  struct stat facts{};
  if (::fstat(context_.files.descriptor(file), &facts) != 0) {
    return failed("the length of " + context_.files.path(file), errno);
  }
  return static_cast<std::uint64_t>(facts.st_size);
}

Status SystemDirectory::set_length(FileId file, std::uint64_t bytes) {
  QUIRE_CHECK(bytes % kIoBlockBytes == 0, "a length that is not made of blocks");
  const int descriptor = context_.files.descriptor(file);
  if (without_interruption([&] { return context_.calls.set_length(descriptor, bytes); }) != 0) {
    return failed("setting the length of " + context_.files.path(file) + " to " + std::to_string(bytes), errno);
  }
  return {};
}

Status SystemDirectory::read(FileId file, std::uint64_t offset, std::span<std::byte> out) {
  return move_blocks({.kind = IoKind::Read, .offset = offset, .buffer = out}, file);
}

Status SystemDirectory::write(FileId file, std::uint64_t offset, std::span<const std::byte> bytes) {
  // Of a write nothing is changed; one type serves both directions.
  auto* const data = const_cast<std::byte*>(bytes.data());
  return move_blocks({.kind = IoKind::Write, .offset = offset, .buffer = {data, bytes.size()}}, file);
}

Status SystemDirectory::move_blocks(BlockTransfer transfer, FileId file) {
  QUIRE_CHECK((transfer.offset | transfer.buffer.size()) % kIoBlockBytes == 0, "not made of blocks");
  transfer.file = context_.files.descriptor(file);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(transfer.buffer.data()) % kIoBlockBytes == 0;
  if (!is_direct_ || is_aligned) {
    transfer.run(context_.calls);
  } else {
    const BounceBuffer bounce(std::min(transfer.buffer.size(), kBounceBytesMax));
    while (!transfer.rest().empty() && transfer.error_number == 0) {
      const std::span<std::byte> rest = transfer.rest().first(std::min(transfer.rest().size(), kBounceBytesMax));
      BlockTransfer piece{.kind = transfer.kind,
                          .file = transfer.file,
                          .offset = transfer.rest_offset(),
                          .buffer = bounce.bytes().first(rest.size())};
      if (piece.kind == IoKind::Write) std::copy(rest.begin(), rest.end(), piece.buffer.begin());
      piece.run(context_.calls);
      if (piece.kind == IoKind::Read) std::copy_n(piece.buffer.begin(), piece.done_bytes, rest.begin());
      transfer.done_bytes += piece.done_bytes;
      transfer.error_number = piece.error_number;
      if (!piece.rest().empty()) break;
    }
  }
  return transfer.status(context_.files.path(file));
}

Status SystemDirectory::rename(const std::string& from, const std::string& to) {
  check_name(from);
  check_name(to);
  if (context_.calls.rename(directory_.get(), from.c_str(), to.c_str()) != 0) {
    return failed("renaming " + path_of(from) + " to " + to, errno);
  }
  return {};
}

Status SystemDirectory::remove(const std::string& name) {
  check_name(name);
  if (context_.calls.remove(directory_.get(), name.c_str()) == 0 || errno == ENOENT) return {};
  return failed("removing " + path_of(name), errno);
}

Status SystemDirectory::sync_file(FileId file, SyncPoint /*why*/) {
  const int descriptor = context_.files.descriptor(file);
  if (without_interruption([&] { return context_.calls.sync_data(descriptor); }) != 0) {
    return failed("syncing " + context_.files.path(file), errno);
  }
  return {};
}

Status SystemDirectory::sync_directory(SyncPoint /*why*/) {
  if (without_interruption([&] { return context_.calls.sync_directory(directory_.get()); }) != 0) {
    return failed("syncing " + path_, errno);
  }
  return {};
}

Result<std::uint64_t> SystemDirectory::free_bytes() {
  struct statvfs facts{};
  if (::fstatvfs(directory_.get(), &facts) != 0) return failed("the free space of " + path_, errno);
  return static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
}

}  // namespace quire
