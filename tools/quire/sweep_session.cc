// SPDX-License-Identifier: Apache-2.0
#include "sweep_session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "amounts.h"
#include "terminal.h"

namespace quire {

namespace {

constexpr std::string_view kReportBegin = "<!doctype html>";

volatile std::sig_atomic_t is_interrupted = 0;  // handlers of signals can reach nothing but globals

extern "C" void note_interrupt(int /*signal*/) {
  is_interrupted = 1;
}

/// While it lives, the first Ctrl-C is only noted. Where the parent ignores them, they stay ignored.
class InterruptGuard {
 public:
  InterruptGuard() {
    is_interrupted = 0;
    sigaction(SIGINT, nullptr, &before_);
    if (before_.sa_handler == SIG_IGN) return;
    struct sigaction action{};
    action.sa_handler = note_interrupt;
    action.sa_flags = SA_RESETHAND | SA_RESTART;  // the second one finds the default: the end
    sigaction(SIGINT, &action, nullptr);
  }
  ~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_{};
};

/// One line that is redrawn on a terminal, or plain lines with some seconds between them.
class ProgressLine {
 public:
  explicit ProgressLine(std::string_view command) : command_(command) { is_terminal_ = isatty(fileno(stderr)) == 1; }
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const SweepProgress& progress) {
    constexpr double kPlainIntervalS = 5;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
    const std::string text = fmt::format("{}: {}", command_, progress_text(progress, elapsed.count()));
    if (is_terminal_) {
      fmt::print(stderr, "\r{}\033[K", cut_to(text, page_width(stderr) - 1));
      std::fflush(stderr);
      is_drawn_ = true;
    } else if (elapsed.count() - last_plain_s_ >= kPlainIntervalS) {
      fmt::print(stderr, "{}\n", text);
      last_plain_s_ = elapsed.count();
    }
  }

  void clear() {
    if (is_drawn_) fmt::print(stderr, "\r\033[K");
    is_drawn_ = false;
  }

 private:
  std::string command_;
  bool is_terminal_ = false;
  bool is_drawn_ = false;
  double last_plain_s_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

tl::unexpected<Error> cannot_write(const std::string& path, int error) {
  return fail(ErrorCode::Io, fmt::format("cannot write '{}': {}", path, std::strerror(error)));
}

}  // namespace

Result<SweepOutcome> run_with_progress(std::string_view command, const Trace& trace, const TraceFacts& facts,
                                       const SweepRequest& request) {
  std::fflush(stdout);
  const InterruptGuard guard;
  ProgressLine line(command);
  return run_sweep(trace, facts, request, [&line](const SweepProgress& progress) {
    line.show(progress);
    return is_interrupted == 0;
  });
}

std::string progress_text(const SweepProgress& progress, double elapsed_s) {
  const double share = progress.all_tokens == 0
                           ? 0
                           : static_cast<double>(progress.done_tokens) / static_cast<double>(progress.all_tokens);
  std::string text =
      fmt::format("{:.0f} % ({} of {})", 100 * share, progress.done_count, counted(progress.count, "replay"));
  if (progress.done_tokens > 0 && elapsed_s > 0) {
    const auto rate = static_cast<std::uint64_t>(static_cast<double>(progress.done_tokens) / elapsed_s);
    const double left_s = elapsed_s * (1 - share) / share;
    text += fmt::format(", {} tokens/s, ", amount_text(rate));
    text += left_s < 120 ? fmt::format("{:.0f} s left", left_s) : fmt::format("{:.0f} min left", left_s / 60);
  }
  return text;
}

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
