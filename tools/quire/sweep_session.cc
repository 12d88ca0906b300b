// SPDX-License-Identifier: Apache-2.0
#include "sweep_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>

#include "amounts.h"
#include "terminal.h"

namespace quire {

namespace {

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

}  // namespace quire
