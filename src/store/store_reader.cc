// SPDX-License-Identifier: Apache-2.0
#include "store/store_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/system_error.h"
#include "wire/segment_fields.h"

namespace quire {
namespace {

constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 20U;

tl::unexpected<Error> call_failed(const std::string& what, int error_number) {
  return fail(errno_code(error_number), what + ": " + errno_text(error_number));
}

struct SomeRead {
  std::size_t bytes = 0;
  int error_number = 0;  // why there are no more; 0: the file ends there, or nothing more was asked for
};

/// As many of the bytes as can be read before something is in the way.
SomeRead read_some(const FileCalls& calls, int file, std::uint64_t offset, std::span<std::byte> out) {
  SomeRead read;
  while (read.bytes < out.size()) {
    const std::span<std::byte> rest = out.subspan(read.bytes);
    const ssize_t got = calls.read(file, rest.data(), rest.size(), static_cast<off_t>(offset + read.bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) read.error_number = errno;
    if (got <= 0) break;
    read.bytes += static_cast<std::size_t>(got);
  }
  return read;
}

struct NamedFile {
  std::string name;
  bool is_plain = false;
};

Result<std::vector<NamedFile>> list(int directory, const std::string& path) {
  const int again = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = again < 0 ? nullptr : ::fdopendir(again);
  if (entries == nullptr) {
    const int why = errno;
    if (again >= 0) (void)::close(again);
    return call_failed("listing " + path, why);
  }
  std::vector<NamedFile> names;
  int why = 0;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(entries);
    if (entry == nullptr) {
      why = errno;
      break;
    }
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat facts{};
    const bool is_there = ::fstatat(directory, entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_there) names.push_back({.name = entry->d_name, .is_plain = S_ISREG(facts.st_mode)});
  }
  (void)::closedir(entries);
  if (why != 0) return call_failed("listing " + path, why);
  std::ranges::sort(names, {}, &NamedFile::name);
  return names;
}

/// Asks who has the directory, without asking for it.
void look_at_lock(int directory, DiskDirectoryReport& report) {
  const Descriptor file(::openat(directory, kLockFileName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.is_open()) return;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(file.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return;
  report.is_in_use = true;
  std::array<char, 24> text{};
  const ssize_t got = ::pread(file.get(), text.data(), text.size() - 1, 0);
  std::int64_t process = 0;
  if (got <= 0) return;
  const auto [end, error] = std::from_chars(text.data(), text.data() + got, process);
  if (error == std::errc{} && process > 0 && (*end == '\n' || *end == '\0')) report.process = process;
}

Result<Manifest> read_manifest(const FileCalls& calls, int directory, const std::string& path) {
  const std::string name(kManifestFileName);
  const Descriptor file(::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open()) return call_failed("opening " + path + "/" + name, errno);
  std::array<std::byte, kSegmentBlockBytes> block{};
  const SomeRead got = read_some(calls, file.get(), 0, block);
  if (got.error_number != 0) return call_failed(path + "/" + name + ": reading", got.error_number);
  if (got.bytes < block.size()) {
    return fail(ErrorCode::Corrupt, path + "/" + name + " has " + std::to_string(got.bytes) + " bytes instead of 4096");
  }
  Result<Manifest> manifest = decode_manifest(block);
  if (manifest) return manifest;
  const bool is_newer = manifest.error().code == ErrorCode::Unsupported;
  return fail(manifest.error().code, path + "/" + name + ": " + manifest.error().message +
                                         (is_newer ? ". A newer quire wrote it: use that one" : ""));
}

bool is_blank(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

bool begins_like_trailer(std::span<const std::byte> block) {
  return std::memcmp(block.data(), kTrailerMagic.data(), kTrailerMagic.size()) == 0;
}

}  // namespace

Result<std::span<const std::byte>> SegmentBytes::at(std::uint64_t offset, std::uint64_t bytes) {
  if (offset > file_bytes_ || bytes > file_bytes_ - offset) return fail(ErrorCode::Io, "the file ends before that");
  if (offset < begin_ || offset + bytes > begin_ + window_.size()) {
    window_.resize(std::min(std::max(bytes, kWindowBytes), file_bytes_ - offset));
    begin_ = offset;
    SomeRead got = read_some(*calls_, file_.get(), offset, window_);
    // The system may refuse a long read because of one bad sector in it: the shorter one may be without.
    if (got.error_number != 0 && got.bytes < bytes && bytes < window_.size()) {
      got = read_some(*calls_, file_.get(), offset, std::span(window_).first(bytes));
    }
    window_.resize(got.bytes);
    if (got.bytes < bytes && got.error_number != 0) return call_failed("reading", got.error_number);
    if (got.bytes < bytes) return fail(ErrorCode::Io, "the file has become shorter");
  }
  return std::span<const std::byte>(window_).subspan(offset - begin_, bytes);
}

Result<StoreReader> StoreReader::open(std::span<const std::string> directories, const FileCalls& calls) {
  if (directories.empty()) return fail(ErrorCode::InvalidArgument, "no directory of a store is named");
  StoreReader reader(calls);
  for (const std::string& path : directories) QUIRE_TRY(reader.add_directory(path));
  return reader;
}

Status StoreReader::add_directory(const std::string& path) {
  if (path.empty()) return fail(ErrorCode::InvalidArgument, "the path of a store's directory is empty");
  Descriptor handle(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open()) return call_failed("opening " + path, errno);
  struct stat identity{};
  if (::fstat(handle.get(), &identity) != 0) return call_failed("looking at " + path, errno);
  for (const Descriptor& known : handles_) {
    struct stat other{};
    if (::fstat(known.get(), &other) == 0 && other.st_dev == identity.st_dev && other.st_ino == identity.st_ino) {
      return fail(ErrorCode::InvalidArgument, path + " is named twice");
    }
  }
  QUIRE_TRY_ASSIGN(const std::vector<NamedFile> names, list(handle.get(), path));
  if (std::ranges::find(names, kManifestFileName, &NamedFile::name) == names.end()) {
    const bool is_empty = std::ranges::all_of(names, [](const NamedFile& file) { return file.name == kLockFileName; });
    std::string why = is_empty ? path + " is empty: no store was made there"
                               : path + " is not a disk store: it has no " + std::string(kManifestFileName);
    std::vector<std::string> shards;
    for (const NamedFile& file : names) {
      if (!file.is_plain && file.name.starts_with(kShardDirectoryPrefix)) shards.push_back(file.name);
    }
    if (!shards.empty()) {
      why = path + " is no disk store itself, but it has stores of shards in it: give one of them, such as " + path +
            "/" + std::ranges::min(shards);
    }
    return fail(ErrorCode::InvalidArgument, why);
  }
  QUIRE_TRY_ASSIGN(const Manifest manifest, read_manifest(*calls_, handle.get(), path));
  if (reports_.empty()) {
    manifest_ = manifest;
  } else if (manifest.store_id != manifest_.store_id) {
    return fail(ErrorCode::InvalidArgument,
                path + " belongs to another store than " + reports_.front().path + ": look at them one by one");
  }
  DiskDirectoryReport report{.path = path};
  look_at_lock(handle.get(), report);
  struct statvfs space{};
  if (::fstatvfs(handle.get(), &space) == 0) {
    report.free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  }
  for (const NamedFile& file : names) {
    const std::optional<std::uint64_t> id = file.is_plain ? segment_id_of(file.name) : std::nullopt;
    if (id) {
      struct stat facts{};
      if (::fstatat(handle.get(), file.name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0) continue;
      segments_.push_back({.directory_index = static_cast<std::uint32_t>(reports_.size()),
                           .name = file.name,
                           .id = *id,
                           .bytes = static_cast<std::uint64_t>(facts.st_size)});
      report.file_bytes += segments_.back().bytes;
      ++report.segment_count;
    } else if (!file.is_plain &&
               (file.name.starts_with(kGroupDirectoryPrefix) || file.name.starts_with(kShardDirectoryPrefix))) {
      report.group_stores.push_back(file.name);
    } else if (file.name != kLockFileName && file.name != kManifestFileName &&
               file.name != std::string(kManifestFileName) + ".new") {
      report.foreign_files.push_back(file.name);
    }
  }
  handles_.push_back(std::move(handle));
  reports_.push_back(std::move(report));
  return {};
}

Result<std::optional<SegmentBytes>> StoreReader::open_segment(const SegmentFile& file) const {
  Descriptor opened(::openat(handles_[file.directory_index].get(), file.name.c_str(),
                             O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!opened.is_open()) {
    if (errno == ENOENT) return std::optional<SegmentBytes>{};
    return call_failed("opening it", errno);
  }
  struct stat facts{};
  if (::fstat(opened.get(), &facts) != 0) return call_failed("its length", errno);
  return std::optional<SegmentBytes>(std::in_place, std::move(opened), static_cast<std::uint64_t>(facts.st_size),
                                     *calls_);
}

Result<SegmentContents> StoreReader::read_contents(const SegmentFile& file, SegmentBytes& bytes) const {
  SegmentContents contents{.state = DiskSegmentState::Damaged};
  if (bytes.size() < kSegmentBlockBytes) {
    contents.why = "it has " + std::to_string(bytes.size()) + " bytes, too few for a header";
    return contents;
  }
  QUIRE_TRY_ASSIGN(std::span<const std::byte> block, bytes.at(0, kSegmentBlockBytes));
  const Result<SegmentHeader> header = decode_segment_header(block);
  if (!header) {
    const bool is_newer = header.error().code == ErrorCode::Unsupported;
    contents.state = is_newer          ? DiskSegmentState::Newer
                     : is_blank(block) ? DiskSegmentState::Empty
                                       : DiskSegmentState::Damaged;
    if (contents.state != DiskSegmentState::Empty) contents.why = header.error().message;
    return contents;
  }
  if (header->store_id != manifest_.store_id || header->segment_id != file.id) {
    contents.state = DiskSegmentState::Foreign;
    contents.why = header->store_id != manifest_.store_id ? "it is of another store"
                                                          : "it was " + segment_file_name(header->segment_id);
    return contents;
  }
  contents.header = *header;
  contents.is_readable = true;
  contents.state = DiskSegmentState::Open;
  const std::uint64_t whole_bytes = bytes.size() / kSegmentBlockBytes * kSegmentBlockBytes;
  if (whole_bytes != bytes.size()) {
    contents.state = DiskSegmentState::Damaged;
    contents.why = "its length is no multiple of 4096: something was cut off or added";
  } else if (whole_bytes >= 2 * kSegmentBlockBytes) {
    QUIRE_TRY_ASSIGN(block, bytes.at(whole_bytes - kSegmentBlockBytes, kSegmentBlockBytes));
    const bool has_trailer = begins_like_trailer(block);
    const Result<Trailer> trailer = decode_trailer(block, *header, bytes.size());
    std::string why = trailer ? "" : trailer.error().message;
    if (trailer) {
      QUIRE_TRY_ASSIGN(block, bytes.at(trailer->footer_offset, bytes.size() - trailer->footer_offset));
      Result<std::vector<RecordHeader>> records = decode_footer(block, *header, *trailer);
      if (records) {
        contents.state = DiskSegmentState::Sealed;
        contents.records = *std::move(records);
        contents.records_end = trailer->footer_offset;
        contents.is_from_footer = true;
        return contents;
      }
      why = records.error().message;
    }
    if (has_trailer) {
      contents.state = DiskSegmentState::Damaged;
      contents.why = "its footer cannot be used: " + why;
    }
  }
  contents.records_end = kSegmentBlockBytes;
  for (std::uint64_t offset = kSegmentBlockBytes; offset < whole_bytes;) {
    QUIRE_TRY_ASSIGN(block, bytes.at(offset, kSegmentBlockBytes));
    const Result<RecordHeader> record =
        decode_record_header(block, {.salt = header->salt, .offset = offset, .segment_bytes = whole_bytes});
    if (!record) {
      if (begins_like_record(block)) contents.torn.push_back(offset);
      offset += kSegmentBlockBytes;
      continue;
    }
    contents.records.push_back(*record);
    offset += record_bytes(record->stored_bytes);
    contents.records_end = offset;
  }
  // What lies behind the last record of one that has a footer is that footer: headers too, and not in their places.
  if (contents.state == DiskSegmentState::Damaged) {
    std::erase_if(contents.torn, [&](std::uint64_t offset) { return offset >= contents.records_end; });
  }
  return contents;
}

}  // namespace quire
