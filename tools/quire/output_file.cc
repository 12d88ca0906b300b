// SPDX-License-Identifier: Apache-2.0
#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace quire {

namespace {

constexpr std::string_view kReportBegin = "<!doctype html>";

tl::unexpected<Error> cannot_write(const std::string& path, int error) {
  return fail(ErrorCode::Io, fmt::format("cannot write '{}': {}", path, std::strerror(error)));
}

}  // namespace

Status check_writable(const std::string& path) {
  if (path.empty()) return fail(ErrorCode::InvalidArgument, "the path is empty: name a file");
  struct stat info{};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return cannot_write(path, EISDIR);
    return access(path.c_str(), W_OK) == 0 ? Status{} : cannot_write(path, errno);
  }
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return cannot_write(path, errno);
  close(file);
  unlink(path.c_str());
  return {};
}

Status check_report_path(const std::string& path) {
  QUIRE_TRY(check_writable(path));
  if (!std::filesystem::is_regular_file(path)) return {};
  std::array<char, kReportBegin.size()> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), begin.size());
  const std::string_view found(begin.data(), static_cast<std::size_t>(file.gcount()));
  if (found.empty() || found == kReportBegin) return {};
  return fail(ErrorCode::InvalidArgument,
              fmt::format("'{}' exists and is no report; remove it, or choose another name", path));
}

Status write_file(const std::string& path, std::string_view text) {
  // What is no file, such as a pipe, can only be written in place, and so can a file in a folder that takes no new
  // ones. Of a link, what it leads to is replaced.
  std::error_code error;
  const bool is_special = std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error);
  const std::string target = is_special ? path : std::filesystem::weakly_canonical(path, error).string();
  std::string part = target + ".XXXXXX";
  int file = is_special ? -1 : mkstemp(part.data());
  const bool is_part = file >= 0;
  if (is_part) {
    struct stat before{};
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(file, stat(target.c_str(), &before) == 0 ? before.st_mode & 0777U : 0666U & ~mask);
  } else {
    file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }
  if (file < 0) return cannot_write(path, errno);

  int failure = 0;
  while (!text.empty() && failure == 0) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    if (written < 0 && errno != EINTR) failure = errno;
  }
  if (close(file) != 0 && failure == 0) failure = errno;
  if (is_part && failure == 0 && std::rename(part.c_str(), target.c_str()) != 0) failure = errno;
  if (failure == 0) return {};
  if (is_part) unlink(part.c_str());
  return cannot_write(path, failure);
}

}  // namespace quire
