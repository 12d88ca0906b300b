// SPDX-License-Identifier: Apache-2.0
//
// quire bench: runs the benchmarks that were built beside the tool, and puts the rows they print into one table.
//
// A benchmark binary takes Google Benchmark's flags, --quick and --lines. With --lines it prints what happens, one
// event per line with tabs between the fields: "done NAME", "failed NAME MESSAGE" and "row" with the fields of a Row.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <regex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"
#include "output_file.h"
#include "quire/result.h"
#include "terminal.h"

namespace quire {

namespace {

constexpr std::size_t kFields = 6;
constexpr std::array<std::string_view, kFields> kHeader = {"what", "quire", "beside it", "ratio", "target", ""};
using Row = std::array<std::string, kFields>;  // as kHeader says; the last is ok, short or empty

/// While it lives, the signals that ask a program to end are read from a file. Where the parent ignores one, it stays
/// ignored.
class EndSignals {
 public:
  EndSignals() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
    file_ = signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~EndSignals() {
    if (file_ >= 0) close(file_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  [[nodiscard]] int file() const { return file_; }
  /// Whether one has come, now or before.
  bool have_come() {
    signalfd_siginfo info{};
    has_come_ = has_come_ || read(file_, &info, sizeof(info)) == sizeof(info);
    return has_come_;
  }
  /// What the programs that are started here begin with.
  [[nodiscard]] const sigset_t& mask_before() const { return before_; }

 private:
  sigset_t signals_{};
  sigset_t before_{};
  int file_ = -1;
  bool has_come_ = false;
};

/// How a program ended. With an error: it went wrong.
enum class End : std::uint8_t { Done, Interrupted };

/// Runs a program and calls use(line) for each line it prints, and wait() now and then. A signal ends the program.
Result<End> run_program(const std::vector<std::string>& words, EndSignals& signals,
                        const std::function<void(std::string_view)>& use, const std::function<void()>& wait) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return fail(ErrorCode::Io, fmt::format("no pipe: {}", std::strerror(errno)));

  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setsigmask(&attributes, &signals.mask_before());
  pid_t child = 0;
  const int error = posix_spawn(&child, words.front().c_str(), &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return fail(ErrorCode::Io, fmt::format("cannot run '{}': {}", words.front(), std::strerror(error)));
  }

  constexpr int kWaitMs = 500;
  std::string text;
  for (bool is_open = true; is_open;) {
    std::array<pollfd, 2> polled = {pollfd{.fd = ends[0], .events = POLLIN, .revents = 0},
                                    pollfd{.fd = signals.file(), .events = POLLIN, .revents = 0}};
    poll(polled.data(), polled.size(), kWaitMs);
    if (signals.have_come()) kill(child, SIGTERM);
    if (polled[0].revents != 0 || signals.have_come()) {
      std::array<char, 4096> buffer{};
      const ssize_t size = read(ends[0], buffer.data(), buffer.size());  // until its end after a signal, which is near
      is_open = size > 0 || (size < 0 && errno == EINTR);
      if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
    }
    for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      use(std::string_view(text).substr(0, end));
      text.erase(0, end + 1);
    }
    wait();
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  // At a terminal the program gets the signal as well, and may be gone before it is seen here.
  const bool is_ended_by_user = WIFSIGNALED(status) && (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGTERM);
  if (signals.have_come() || is_ended_by_user) return End::Interrupted;
  const std::string name = std::filesystem::path(words.front()).filename();
  if (WIFSIGNALED(status)) {
    return fail(ErrorCode::Unavailable, fmt::format("{} was ended by signal {}", name, WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) {
    return fail(ErrorCode::Unavailable, fmt::format("{} ended with status {}", name, WEXITSTATUS(status)));
  }
  return End::Done;
}

struct Program {
  std::string path;
  std::vector<std::string> names;  // of the benchmarks to run
};

/// The benchmark binaries beside this program, in the order of their names.
Result<std::vector<Program>> find_programs() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<Program> programs;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const bool is_benchmark = entry.path().filename().string().starts_with("bench_");
    if (is_benchmark && access(entry.path().c_str(), X_OK) == 0)
      programs.push_back({.path = entry.path(), .names = {}});
  }
  if (programs.empty()) {
    return fail(ErrorCode::Unavailable, fmt::format("there are no benchmarks in {}: run './quire bench', which builds "
                                                    "them, or build with QUIRE_BUILD_BENCHMARKS=ON",
                                                    folder.string()));
  }
  std::ranges::sort(programs, {}, &Program::path);
  return programs;
}

/// The name of a benchmark, without what Google Benchmark appends to it.
std::string_view name_of(std::string_view full_name) {
  return full_name.substr(0, full_name.find("/iterations:"));
}

/// One line that is redrawn on a terminal, or a plain line per benchmark.
class Progress {
 public:
  explicit Progress(std::vector<std::string> names) : names_(std::move(names)) {
    is_terminal_ = isatty(fileno(stderr)) == 1;
    show();
  }
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  [[nodiscard]] std::size_t done_count() const { return done_count_; }
  [[nodiscard]] std::size_t count() const { return names_.size(); }
  [[nodiscard]] double elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  [[nodiscard]] std::string running() const { return done_count_ < names_.size() ? names_[done_count_] : "its end"; }

  void one_is_done() {
    ++done_count_;
    show();
  }
  void tick() {
    if (is_terminal_) show();
  }
  void clear() {
    if (is_drawn_) fmt::print(stderr, "\r\033[K");
    is_drawn_ = false;
  }

 private:
  void show() {
    if (done_count_ == names_.size()) return;
    std::string text = fmt::format("{:>3} of {}  {}", done_count_ + 1, names_.size(), running());
    if (!is_terminal_) {
      fmt::print(stderr, "{}\n", text);
      return;
    }
    text += fmt::format("  {:.0f} s", elapsed_s());
    fmt::print(stderr, "\r{}\033[K", cut_to(text, page_width(stderr) - 1));
    std::fflush(stderr);
    is_drawn_ = true;
  }

  std::vector<std::string> names_;
  std::size_t done_count_ = 0;
  bool is_terminal_ = false;
  bool is_drawn_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void print_table(const std::vector<Row>& rows) {
  if (rows.empty()) return;
  const Painter paint(stdout);
  std::array<std::size_t, kFields> widths{};
  for (std::size_t i = 0; i < kFields; ++i) {
    widths[i] = columns_of(kHeader[i]);
    for (const Row& row : rows) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  const auto line = [&](const auto& fields, Ink ink) {
    std::string text;
    for (std::size_t i = 0; i + 1 < kFields; ++i) text += pad_right(std::string(fields[i]), widths[i] + 2);
    const std::string_view verdict = fields[kFields - 1];
    if (verdict.empty()) text.erase(text.find_last_not_of(' ') + 1);
    fmt::print("{}{}\n", paint(ink, text), paint(verdict == "ok" ? Ink::Green : Ink::Red, verdict));
  };
  line(kHeader, Ink::Bold);
  for (const Row& row : rows) line(row, Ink::Plain);
}

std::vector<std::string> split(std::string_view line) {
  std::vector<std::string> fields;
  for (std::size_t end = line.find('\t'); end != std::string_view::npos; end = line.find('\t')) {
    fields.emplace_back(line.substr(0, end));
    line.remove_prefix(end + 1);
  }
  fields.emplace_back(line);
  return fields;
}

/// The benchmarks whose names match, in the programs that have any.
Result<std::vector<Program>> select(const BenchOptions& options, const std::regex& filter, EndSignals& signals) {
  QUIRE_TRY_ASSIGN(std::vector<Program> programs, find_programs());
  for (Program& program : programs) {
    std::vector<std::string> words = {program.path, "--benchmark_list_tests"};
    if (options.quick) words.emplace_back("--quick");
    const auto use = [&](std::string_view line) {
      const std::string name(name_of(line));
      if (std::regex_search(name, filter)) program.names.push_back(name);
    };
    QUIRE_TRY_ASSIGN(const End end, run_program(words, signals, use, [] {}));
    if (end != End::Done) return fail(ErrorCode::Cancelled, "interrupted");
  }
  std::erase_if(programs, [](const Program& program) { return program.names.empty(); });
  return programs;
}

/// Runs what was selected. The rows are in the table even when not all of it ends well.
int run_programs(const std::vector<Program>& programs, const BenchOptions& options, EndSignals& signals) {
  std::vector<std::string> names;
  for (const Program& program : programs) names.insert(names.end(), program.names.begin(), program.names.end());
  Progress progress(names);
  std::vector<Row> rows;
  std::vector<std::string> faults;
  bool is_interrupted = false;
  for (const Program& program : programs) {
    std::vector<std::string> words = {program.path, "--lines"};
    if (options.quick) words.emplace_back("--quick");
    if (!options.json.empty()) words.push_back("--benchmark_out=" + options.json);
    // Names have no characters that mean something in a regular expression.
    if (!options.filter.empty())
      words.push_back(fmt::format("--benchmark_filter=^({})(/|$)", fmt::join(program.names, "|")));
    const auto use = [&](std::string_view line) {
      const std::vector<std::string> fields = split(line);
      if (fields.front() == "done") {
        progress.one_is_done();
      } else if (fields.front() == "failed" && fields.size() == 3) {
        faults.push_back(fmt::format("{} failed: {}", fields[1], fields[2]));
      } else if (fields.front() == "row" && fields.size() == kFields + 1) {
        std::ranges::copy(fields.begin() + 1, fields.end(), rows.emplace_back().begin());
      }
    };
    const Result<End> result = run_program(words, signals, use, [&] { progress.tick(); });
    if (!result) faults.push_back(fmt::format("{}, in {}", result.error().message, progress.running()));
    is_interrupted = result && *result == End::Interrupted;
    if (!result || is_interrupted) break;
  }
  progress.clear();

  print_table(rows);
  if (rows.empty() && faults.empty() && !is_interrupted) {
    fmt::print("These benchmarks have no row in the table; --json FILE has all that they measured.\n");
  }
  std::fflush(stdout);
  for (const std::string& fault : faults) fmt::print(stderr, "quire bench: {}\n", fault);
  if (is_interrupted) {
    fmt::print(stderr, "quire bench: interrupted; {} of {} finished\n", progress.done_count(),
               counted(progress.count(), "benchmark"));
    return kExitInterrupted;
  }
  fmt::print(stderr, "{:.1f} seconds.\n", progress.elapsed_s());
  return faults.empty() ? kExitDone : kExitFailed;
}

}  // namespace

int run_bench(const BenchOptions& options) {
  const auto complain = [](int status, std::string_view message) {
    fmt::print(stderr, "quire bench: {}\n", message);
    return status;
  };
  std::regex filter;
  try {
    filter = std::regex(options.filter);
  } catch (const std::regex_error& error) {
    return complain(kExitUsage,
                    fmt::format("--filter: '{}' is no regular expression: {}", options.filter, error.what()));
  }
  EndSignals signals;
  const Result<std::vector<Program>> programs = select(options, filter, signals);
  if (!programs) {
    const bool is_interrupted = programs.error().code == ErrorCode::Cancelled;
    return complain(is_interrupted ? kExitInterrupted : kExitFailed, programs.error().message);
  }
  if (programs->empty()) {
    return complain(kExitUsage,
                    fmt::format("no benchmark's name has a match of '{}'; see quire bench --list", options.filter));
  }
  if (options.list) {
    for (const Program& program : *programs) fmt::print("{}\n", fmt::join(program.names, "\n"));
    return kExitDone;
  }
  if (!options.json.empty()) {
    if (programs->size() > 1) {
      return complain(kExitUsage,
                      fmt::format("--json: these benchmarks are in {} programs, and each writes a file of its "
                                  "own: choose some with --filter",
                                  programs->size()));
    }
    const Status writable = check_writable(options.json);
    if (!writable) return complain(kExitUsage, "--json: " + writable.error().message);
  }
  return run_programs(*programs, options, signals);
}

}  // namespace quire
