// SPDX-License-Identifier: Apache-2.0
//
// What commands that take a while have in common: a line of progress on standard error, and an end at Ctrl-C.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>

namespace quire {

/// While it lives, the first Ctrl-C is only noted, as are the first SIGTERM and SIGHUP, and the second one ends the
/// program. Those that the parent ignores stay ignored. One within another changes nothing.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  [[nodiscard]] static bool is_interrupted();

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// One line that is redrawn on a terminal and in the end removed; elsewhere plain lines with some seconds between them.
class ProgressLine {
 public:
  explicit ProgressLine(std::string_view command);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::string_view text);
  void clear();
  [[nodiscard]] double elapsed_s() const;

 private:
  std::string command_;
  bool is_terminal_ = false;
  bool is_drawn_ = false;
  double last_plain_s_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// "[#####.....]"
[[nodiscard]] std::string progress_bar(double share);
/// "12 s left", "3 min left"
[[nodiscard]] std::string time_left_text(double elapsed_s, double share);

}  // namespace quire
