// SPDX-License-Identifier: Apache-2.0
//
// ChildProcess: a copy of this process that does something and reports numbers on the way, until it is killed. Nothing
// that it leaves behind was tidied up, and what it has reported is heard even after its end.
//
// single-threaded; so must this process be when it is made.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/check.h"

namespace quire::testing {

class ChildProcess {
 public:
  /// In the child.
  class Reporter {
   public:
    explicit Reporter(int pipe_end) : pipe_end_(pipe_end) {}
    void operator()(std::uint64_t number) const {
      const ssize_t written = ::write(pipe_end_, &number, sizeof(number));
      if (written != sizeof(number)) ::_exit(1);  // nobody hears it
    }

   private:
    int pipe_end_;
  };

  template <typename Body>
  explicit ChildProcess(Body body) {
    std::array<int, 2> ends{};
    QUIRE_CHECK(::pipe(ends.data()) == 0, "there is no pipe");
    pid_ = ::fork();
    QUIRE_CHECK(pid_ >= 0, "there is no process");
    if (pid_ == 0) {
      (void)::close(ends[0]);
      body(Reporter(ends[1]));
      ::_exit(0);  // as if killed: no destructors of what was there before
    }
    (void)::close(ends[1]);
    reports_ = ends[0];
  }
  ~ChildProcess() {
    kill();
    (void)::close(reports_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Waits for the next report; none when the child has ended and all were heard.
  [[nodiscard]] std::optional<std::uint64_t> hear() {
    std::uint64_t number = 0;
    ssize_t bytes = 0;
    do {
      bytes = ::read(reports_, &number, sizeof(number));
    } while (bytes < 0 && errno == EINTR);
    if (bytes != sizeof(number)) return std::nullopt;
    return number;
  }
  /// With SIGKILL, if it is still there, and waits for its end.
  void kill() {
    if (has_ended_) return;
    (void)::kill(pid_, SIGKILL);
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) continue;
    has_ended_ = true;
  }
  /// After kill(): nothing else ended it.
  [[nodiscard]] bool was_well() const {
    return (WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL) || (WIFEXITED(status_) && WEXITSTATUS(status_) == 0);
  }

 private:
  pid_t pid_ = 0;
  int reports_ = -1;
  int status_ = 0;
  bool has_ended_ = false;
};

/// Some work that nobody needs, so that what happens next comes at another moment.
inline std::uint64_t idle_work(std::uint64_t steps) {
  volatile std::uint64_t value = 1;
  for (std::uint64_t i = 0; i < steps; ++i) value = value * 6'364'136'223'846'793'005U + i;
  return value;
}

}  // namespace quire::testing
