// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "terminal.h"

namespace quire {

namespace {

volatile std::sig_atomic_t interrupted = 0;  // handlers of signals can reach nothing but globals
int guard_count = 0;                         // the calling thread's, as the guards are

extern "C" void note_interrupt(int /*signal*/) {
  interrupted = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  if (guard_count++ > 0) return;
  interrupted = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN) continue;
    struct sigaction action{};
    action.sa_handler = note_interrupt;
    action.sa_flags = SA_RESETHAND | SA_RESTART;  // the second one finds the default: the end
    sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  if (--guard_count > 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

bool InterruptGuard::is_interrupted() {
  return interrupted != 0;
}

ProgressLine::ProgressLine(std::string_view command) : command_(command) {
  is_terminal_ = isatty(fileno(stderr)) == 1;
}

void ProgressLine::show(std::string_view text) {
  constexpr double kPlainIntervalS = 5;
  const std::string line = fmt::format("{}: {}", command_, text);
  if (is_terminal_) {
    fmt::print(stderr, "\r{}\033[K", cut_to(line, page_width(stderr) - 1));
    std::fflush(stderr);
    is_drawn_ = true;
  } else if (elapsed_s() - last_plain_s_ >= kPlainIntervalS) {
    fmt::print(stderr, "{}\n", line);
    last_plain_s_ = elapsed_s();
  }
}

void ProgressLine::clear() {
  if (is_drawn_) fmt::print(stderr, "\r\033[K");
  is_drawn_ = false;
}

double ProgressLine::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

std::string progress_bar(double share) {
  constexpr std::size_t kColumns = 24;
  const auto filled = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * kColumns));
  return fmt::format("[{}{}]", std::string(filled, '#'), std::string(kColumns - filled, '.'));
}

std::string time_left_text(double elapsed_s, double share) {
  const double left_s = elapsed_s * (1 - share) / share;
  return left_s < 120 ? fmt::format("{:.0f} s left", left_s) : fmt::format("{:.0f} min left", left_s / 60);
}

}  // namespace quire
