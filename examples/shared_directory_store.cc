// SPDX-License-Identifier: Apache-2.0
#include "shared_directory_store.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace {

using quire::RemoteOperation;
using quire::RemoteOutcome;

constexpr quire::TimeNs kOwnLimitNs = 10'000'000'000;  // of batches that have none

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0640)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

template <typename Byte>
std::uint64_t bytes_of(std::span<const std::span<Byte>> pieces) {
  std::uint64_t bytes = 0;
  for (const std::span<Byte> piece : pieces) bytes += piece.size();
  return bytes;
}

// All of it, in as many calls as it takes. False: errno says why, 0 that the file ends.
template <typename Call, typename Byte>
bool move_all(Call call, int fd, std::span<Byte> piece) {
  while (!piece.empty()) {
    const ssize_t moved = call(fd, piece.data(), piece.size());
    if (moved < 0 && errno == EINTR) continue;
    if (moved == 0) errno = 0;
    if (moved <= 0) return false;
    piece = piece.subspan(static_cast<std::size_t>(moved));
  }
  return true;
}

}  // namespace

quire::Result<std::unique_ptr<SharedDirectoryStore>> SharedDirectoryStore::open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory + "/new", error);
  const int event_fd = error ? -1 : ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd < 0) {
    const std::string why = error ? error.message() : std::strerror(errno);
    return quire::fail(quire::ErrorCode::Io, "opening the shared directory " + directory + ": " + why);
  }
  return std::unique_ptr<SharedDirectoryStore>(new SharedDirectoryStore(directory, event_fd));
}

SharedDirectoryStore::SharedDirectoryStore(std::string directory, int event_fd)
    : directory_(std::move(directory)), event_fd_(event_fd) {
  // A name that no other machine, process or store has.
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {};
  new_files_ =
      directory_ + "/new/" + host.data() + "-" + std::to_string(::getpid()) + "-" + std::to_string(event_fd) + "-";
  for (Lane& lane : lanes_) lane.thread = std::thread([this, &lane] { work(lane); });
}

SharedDirectoryStore::~SharedDirectoryStore() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    for (Lane& lane : lanes_) lane.has_work.notify_all();
  }
  for (Lane& lane : lanes_) lane.thread.join();
  ::close(event_fd_);
}

// [submit]
bool SharedDirectoryStore::try_submit(const quire::RemoteBatch& batch) {
  const std::lock_guard lock(mutex_);
  if (batch_count_ == kBatchCountMax) return false;
  ++batch_count_;
  const Clock::time_point now = Clock::now();
  const quire::TimeNs timeout_ns = batch.timeout_ns > 0 ? batch.timeout_ns : kOwnLimitNs;
  auto job =
      std::make_unique<Job>(Job{.batch = batch, .start = now, .deadline = now + std::chrono::nanoseconds(timeout_ns)});
  Lane& lane = lanes_[batch.operation == RemoteOperation::Find ? 0 : 1];
  const auto goes_before = [&](const std::unique_ptr<Job>& other) { return batch.priority < other->batch.priority; };
  lane.jobs.insert(std::ranges::find_if(lane.jobs, goes_before), std::move(job));
  lane.has_work.notify_one();
  return true;
}

void SharedDirectoryStore::cancel(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) {
    for (const std::unique_ptr<Job>& job : lane.jobs) job->is_cancelled = job->is_cancelled || job->batch.id == id;
    if (lane.running && lane.running->batch.id == id) lane.running->is_cancelled = true;
  }
}
// [submit]

// [work]
void SharedDirectoryStore::work(Lane& lane) {
  for (;;) {
    std::unique_lock lock(mutex_);
    lane.has_work.wait(lock, [&] { return is_stopping_ || !lane.jobs.empty(); });
    if (is_stopping_) return;
    lane.running = std::move(lane.jobs.front());
    lane.jobs.pop_front();
    Job& job = *lane.running;
    lock.unlock();
    run(job);
    lock.lock();
    finish(job);
    lane.running = nullptr;
  }
}

void SharedDirectoryStore::run(Job& job) {
  bool is_over_early = false;
  for (quire::RemoteObject& object : job.batch.objects) {
    is_over_early = is_over_early || is_over(job);
    object.outcome = is_over_early ? RemoteOutcome::Late : run(job, object);
    if (job.batch.is_path && object.outcome != RemoteOutcome::Ok && !is_over_early) break;
  }
}

// From here on nobody looks at the batch's memory any more.
void SharedDirectoryStore::finish(const Job& job) {
  const Clock::time_point now = Clock::now();
  const auto ns = [](Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  };
  answers_.push_back({.id = job.batch.id,
                      .first_byte_ns = job.moved_bytes > 0 ? ns(job.first_byte - job.start) : 0,
                      .busy_ns = ns(now - job.start),
                      .moved_bytes = job.moved_bytes});
  constexpr std::uint64_t kOne = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_fd_, &kOne, sizeof(kOne));
}
// [work]

bool SharedDirectoryStore::is_over(const Job& job) const {
  const std::lock_guard lock(mutex_);
  return is_stopping_ || job.is_cancelled || Clock::now() >= job.deadline;
}

// [poll]
std::span<quire::RemoteAnswer> SharedDirectoryStore::poll(std::span<quire::RemoteAnswer> out) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min(out.size(), answers_.size());
  std::copy_n(answers_.begin(), count, out.begin());
  answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(count));
  batch_count_ -= count;
  std::uint64_t marks = 0;
  if (answers_.empty()) [[maybe_unused]]
    const ssize_t read = ::read(event_fd_, &marks, sizeof(marks));
  return out.first(count);
}
// [poll]

quire::RemoteStatus SharedDirectoryStore::status() const {
  const std::lock_guard lock(mutex_);
  return {.node_count = 1, .batch_count = static_cast<std::uint32_t>(batch_count_), .last_error = last_error_};
}

RemoteOutcome SharedDirectoryStore::failed(const std::string& what, int error_number) {
  const std::lock_guard lock(mutex_);
  last_error_ = what + ": " + std::system_category().message(error_number);
  return RemoteOutcome::Failed;
}

// Keys are text that a file system may not like: each part up to a ':' is a directory, and so are 64 letters of a part
// that is longer. What is not a letter, a digit, '-', '_' or ':' is written as two digits.
std::string SharedDirectoryStore::path_below(std::string_view key) const {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  constexpr std::size_t kPartMax = 64;
  std::string path = directory_ + "/values/";
  std::size_t length = 0;
  for (const char c : key) {
    if (length == kPartMax) path += "~/";
    if (length == kPartMax) length = 0;
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == ':';
    if (is_plain) {
      path += c;
    } else {
      path += '%';
      path += kDigits[static_cast<unsigned char>(c) >> 4U];
      path += kDigits[static_cast<unsigned char>(c) & 15U];
    }
    ++length;
    if (c == ':') path += '/';
    if (c == ':') length = 0;
  }
  return path;
}

RemoteOutcome SharedDirectoryStore::run(Job& job, const quire::RemoteObject& object) {
  const std::string path = path_below(object.key) + ".value";
  switch (job.batch.operation) {
    case RemoteOperation::Find:
      return find(path);
    case RemoteOperation::Get:
      return get(job, object, path);
    case RemoteOperation::Put:
      return put(job, object, path);
    case RemoteOperation::Drop:
      if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return RemoteOutcome::Ok;
      return failed("removing " + path, errno);
    case RemoteOperation::DropBelow:
      return drop_below(object.key);
  }
  return RemoteOutcome::Failed;
}

// Asking is using: the file becomes the newest.
RemoteOutcome SharedDirectoryStore::find(const std::string& path) {
  if (::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0) return RemoteOutcome::Ok;
  if (errno == ENOENT || errno == ENOTDIR) return RemoteOutcome::Absent;
  return failed("looking for " + path, errno);
}

// [get]
RemoteOutcome SharedDirectoryStore::get(Job& job, const quire::RemoteObject& object, const std::string& path) {
  const File file(path, O_RDONLY);
  if (file.fd() < 0 && (errno == ENOENT || errno == ENOTDIR)) return RemoteOutcome::Absent;
  struct stat facts = {};
  if (file.fd() < 0 || ::fstat(file.fd(), &facts) != 0) return failed("reading " + path, errno);
  const std::uint64_t bytes = bytes_of(object.target);
  if (static_cast<std::uint64_t>(facts.st_size) != bytes) return RemoteOutcome::Corrupt;
  for (const std::span<std::byte> piece : object.target) {
    if (move_all(::read, file.fd(), piece)) continue;
    return errno == 0 ? RemoteOutcome::Corrupt : failed("reading " + path, errno);
  }
  if (job.moved_bytes == 0) job.first_byte = Clock::now();
  job.moved_bytes += bytes;
  return RemoteOutcome::Ok;
}
// [get]

// [put]
RemoteOutcome SharedDirectoryStore::put(Job& job, const quire::RemoteObject& object, const std::string& path) {
  const std::string beside = new_files_ + std::to_string(++last_file_);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  bool is_written = !error;
  if (is_written) {
    const File file(beside, O_WRONLY | O_CREAT | O_EXCL);
    is_written = file.fd() >= 0 && std::ranges::all_of(object.source, [&](std::span<const std::byte> piece) {
                   return move_all(::write, file.fd(), piece);
                 });
  }
  // Nobody sees half a value, and of two who put it one wins: their bytes are the same.
  if (!is_written || ::rename(beside.c_str(), path.c_str()) != 0) {
    const int error_number = error ? error.value() : errno;
    ::unlink(beside.c_str());
    return failed("writing " + path, error_number);
  }
  if (job.moved_bytes == 0) job.first_byte = Clock::now();
  job.moved_bytes += bytes_of(object.source);
  return RemoteOutcome::Ok;
}
// [put]

// A prefix may end inside a name.
RemoteOutcome SharedDirectoryStore::drop_below(std::string_view prefix) {
  const std::filesystem::path below = path_below(prefix);
  const std::string begin = below.filename().string();
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(below.parent_path(), error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(begin)) continue;
    std::filesystem::remove_all(entry->path(), error);
    if (error == std::errc::directory_not_empty) return failed("dropping what others are putting", error.value());
    if (error) break;
  }
  const bool is_gone = !error || error == std::errc::no_such_file_or_directory;
  return is_gone ? RemoteOutcome::Ok : failed("dropping what is below " + below.string(), error.value());
}
