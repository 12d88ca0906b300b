// SPDX-License-Identifier: Apache-2.0
#include "sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "amounts.h"
#include "terminal.h"
#include "timeline.h"

namespace quire {

namespace {

constexpr std::chrono::milliseconds kProgressInterval{100};

/// Bytes of an engine's pools, the null page included.
std::uint64_t engine_bytes(const ReplayPool& pool) {
  if (!pool.groups.empty()) return pool.device_bytes + pool.host_bytes;
  const std::uint64_t device = ReplayPool{.page_count = pool.page_count + 1, .page_bytes = pool.page_bytes}.bytes();
  const std::uint64_t host = ReplayPool{.page_count = pool.host_page_count, .page_bytes = pool.page_bytes}.bytes();
  std::uint64_t sum = 0;
  return __builtin_add_overflow(device, host, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

/// Bytes of all engines of a replay; none when pages have no bytes.
std::uint64_t pool_bytes(const ReplayPool& pool, const ReplaySettings& settings) {
  if (settings.bytes == BytesMode::None) return 0;
  std::uint64_t product = 0;
  const bool is_too_large = __builtin_mul_overflow(engine_bytes(pool), settings.engine_count, &product);
  return is_too_large ? std::numeric_limits<std::uint64_t>::max() : product;
}

/// What the tiers below the device hold.
struct LowerTokens {
  std::uint64_t host = 0;
  std::uint64_t disk = 0;
};

/// Whatever is moved between them, tiers hold no more than a pool as large as all of them, and engines no more than one
/// that has what all of them have.
BoundOutcome bound_for(const Trace& trace, const TraceFacts& facts, const SweepRequest& sweep,
                       std::uint64_t capacity_tokens, const LowerTokens& lower) {
  const std::uint64_t engine_tokens = capacity_tokens + lower.host + lower.disk;
  // How much servers hold is their business.
  const std::uint64_t tokens = sweep.settings.remote.is_on() ? std::max(engine_tokens, facts.distinct_tokens())
                                                             : sweep.settings.engine_count * engine_tokens;
  const BeladyBound bound = facts.belady(tokens / trace.unit_tokens);
  const Timeline timeline(trace, sweep.settings.bin_count);
  BoundOutcome outcome{.capacity_tokens = capacity_tokens,
                       .host_tokens = lower.host,
                       .disk_tokens = lower.disk,
                       .hit_tokens = bound.hit_tokens,
                       .timeline = timeline.bins()};
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    const std::uint64_t hit_tokens =
        std::min(std::uint64_t{bound.hit_units[i]} * trace.unit_tokens, request.prompt_tokens);
    outcome.prompt_tokens += request.prompt_tokens;
    outcome.timeline[timeline.bin_of(i)].prompt_tokens += request.prompt_tokens;
    outcome.timeline[timeline.bin_of(i)].hit_tokens += hit_tokens;
  }
  return outcome;
}

/// Hands the work of a sweep to its threads, and collects what they find. Bounds come first: they are quick, and what
/// is finished when a sweep ends early can then be judged. thread-safe.
class Work {
 public:
  Work(const Trace& trace, const TraceFacts& facts, const SweepRequest& request, std::vector<std::uint64_t> pool_bytes,
       const LowerTokens& lower)
      : trace_(trace),
        facts_(facts),
        request_(request),
        lower_(lower),
        pool_bytes_(std::move(pool_bytes)),
        controls_(request.configs.size()),
        replays_(request.configs.size()),
        bounds_(request.bound_capacities.size()) {}

  /// A thread's part: one piece after the other, until none is left.
  void run_pieces() {
    while (const auto piece = take_piece()) {
      Status status;
      try {
        status = run_piece(*piece);
      } catch (const std::exception& error) {  // out of memory
        status = fail(ErrorCode::Unavailable, error.what());
      }
      end_piece(*piece, std::move(status));
    }
  }

  /// Waits for some progress, or a moment. False: all is done.
  bool wait() {
    std::unique_lock lock(mutex_);
    const std::size_t seen = ended_count_;
    changed_.wait_for(lock, kProgressInterval, [&] { return ended_count_ != seen || is_over(); });
    return !is_over();
  }

  void stop() {
    const std::scoped_lock lock(mutex_);
    stop_all();
  }

  [[nodiscard]] SweepProgress progress() const {
    SweepProgress progress{.count = static_cast<std::uint32_t>(controls_.size())};
    for (const ReplayControl& control : controls_) {
      progress.done_tokens += control.done_tokens.load(std::memory_order_relaxed);
    }
    progress.all_tokens = facts_.prompt_tokens() * controls_.size();
    const std::scoped_lock lock(mutex_);
    for (const auto& replay : replays_) progress.done_count += replay ? 1 : 0;
    return progress;
  }

  /// After the last thread.
  Result<SweepOutcome> take_outcome() {
    if (error_) return tl::unexpected<Error>(*std::move(error_));
    SweepOutcome outcome;
    for (auto& replay : replays_) {
      outcome.is_complete = outcome.is_complete && replay;
      if (replay) outcome.replays.push_back(std::move(*replay));
    }
    for (auto& bound : bounds_) {
      outcome.is_complete = outcome.is_complete && bound;
      if (bound) outcome.bounds.push_back(std::move(*bound));
    }
    return outcome;
  }

 private:
  [[nodiscard]] std::size_t piece_count() const { return bounds_.size() + replays_.size(); }
  [[nodiscard]] std::uint64_t bytes_of(std::size_t piece) const {
    return piece < bounds_.size() ? 0 : pool_bytes_[piece - bounds_.size()];
  }
  [[nodiscard]] bool is_over() const {  // with the lock held
    return ended_count_ == next_piece_ && (is_stopped_ || next_piece_ == piece_count());
  }

  std::optional<std::size_t> take_piece() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return is_stopped_ || next_piece_ == piece_count() ||
             bytes_of(next_piece_) <= request_.available_bytes - used_bytes_;
    });
    if (is_stopped_ || next_piece_ == piece_count()) return std::nullopt;
    used_bytes_ += bytes_of(next_piece_);
    return next_piece_++;
  }

  Status run_piece(std::size_t piece) {
    if (piece < bounds_.size()) {
      BoundOutcome bound = bound_for(trace_, facts_, request_, request_.bound_capacities[piece], lower_);
      const std::scoped_lock lock(mutex_);
      bounds_[piece] = std::move(bound);
      return {};
    }
    const std::size_t index = piece - bounds_.size();
    QUIRE_TRY_ASSIGN(ReplayOutcome outcome,
                     replay(trace_, facts_, request_.configs[index], request_.settings, controls_[index]));
    const std::scoped_lock lock(mutex_);
    replays_[index] = std::move(outcome);
    return {};
  }

  void end_piece(std::size_t piece, Status status) {
    const std::scoped_lock lock(mutex_);
    used_bytes_ -= bytes_of(piece);
    ++ended_count_;
    if (!status && status.error().code != ErrorCode::Cancelled) {
      if (!error_) error_ = std::move(status).error();
      stop_all();
    }
    changed_.notify_all();
  }

  void stop_all() {  // with the lock held
    is_stopped_ = true;
    for (ReplayControl& control : controls_) control.stop.store(true, std::memory_order_relaxed);
    changed_.notify_all();
  }

  const Trace& trace_;
  const TraceFacts& facts_;
  const SweepRequest& request_;
  const LowerTokens lower_;
  const std::vector<std::uint64_t> pool_bytes_;  // of each configuration
  std::vector<ReplayControl> controls_;

  // Guards everything below.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_piece_ = 0;   // bounds, then configurations
  std::size_t ended_count_ = 0;  // of the pieces that were taken
  std::uint64_t used_bytes_ = 0;
  bool is_stopped_ = false;
  std::optional<Error> error_;
  std::vector<std::optional<ReplayOutcome>> replays_;
  std::vector<std::optional<BoundOutcome>> bounds_;
};

}  // namespace

Status check_sweep(const Trace& trace, const SweepRequest& request) {
  for (const ReplayConfig& config : request.configs) {
    QUIRE_TRY_ASSIGN(const ReplayPool pool, pool_of(trace, config, request.settings));
    if (const DiskTierSettings& disk = request.settings.disk; disk.is_on()) {
      const std::uint64_t least = DiskConfig{.directories = disk.directories}.capacity_bytes_min(pool.page_bytes);
      if (disk.capacity_bytes < least) {
        return fail(ErrorCode::InvalidArgument,
                    fmt::format("--disk-bytes is {}: pages of {} in {} director{} need at least {}",
                                with_commas(disk.capacity_bytes), bytes_text(pool.page_bytes), disk.directories.size(),
                                disk.directories.size() == 1 ? "y" : "ies", with_commas(least)));
      }
    }
    const std::uint64_t needed_bytes = pool_bytes(pool, request.settings);
    if (needed_bytes <= request.available_bytes) continue;
    if (request.settings.engine_count > 1) {
      return fail(ErrorCode::InvalidArgument,
                  fmt::format("the pages of {} engines are {}, {} for each; {} are available: use fewer --engines, a "
                              "smaller --capacity-tokens{}, or --bytes none",
                              request.settings.engine_count, bytes_text(needed_bytes), bytes_text(engine_bytes(pool)),
                              bytes_text(request.available_bytes), pool.host_page_count > 0 ? " or --host-bytes" : ""));
    }
    if (pool.host_page_count > 0 && pool.groups.empty()) {
      return fail(
          ErrorCode::InvalidArgument,
          fmt::format("{} and {} on the host, of {} each, are {}; {} are available: use a smaller "
                      "--capacity-tokens or --host-bytes, or --bytes none",
                      counted(pool.page_count, "page"), with_commas(pool.host_page_count), bytes_text(pool.page_bytes),
                      bytes_text(needed_bytes), bytes_text(request.available_bytes)));
    }
    if (!pool.groups.empty()) {
      return fail(ErrorCode::InvalidArgument,
                  fmt::format("the pages and state slots of all groups{} are {}; {} are available: use a smaller "
                              "--capacity-tokens or --capacity-bytes{}, or --bytes none",
                              pool.host_page_count > 0 ? ", those on the host included," : "", bytes_text(needed_bytes),
                              bytes_text(request.available_bytes), pool.host_page_count > 0 ? " or --host-bytes" : ""));
    }
    return fail(ErrorCode::InvalidArgument,
                fmt::format("{} of {} are {}; {} are available: use a smaller --capacity-tokens, or --bytes none",
                            counted(pool.page_count, "page"), bytes_text(pool.page_bytes), bytes_text(needed_bytes),
                            bytes_text(request.available_bytes)));
  }
  return {};
}

Result<SweepOutcome> run_sweep(const Trace& trace, const TraceFacts& facts, const SweepRequest& request,
                               const std::function<bool(const SweepProgress&)>& on_progress) {
  QUIRE_TRY(check_sweep(trace, request));
  std::vector<std::uint64_t> bytes;
  LowerTokens lower;
  for (const ReplayConfig& config : request.configs) {
    QUIRE_TRY_ASSIGN(const ReplayPool pool, pool_of(trace, config, request.settings));
    bytes.push_back(pool_bytes(pool, request.settings));
    lower.host = std::max(lower.host, std::uint64_t{pool.host_page_count} * config.page_tokens);
    const std::uint64_t disk_pages = request.settings.disk.capacity_bytes / pool.page_bytes;
    lower.disk = std::max(lower.disk, disk_pages * config.page_tokens);
  }
  Work work(trace, facts, request, std::move(bytes), lower);
  std::vector<std::jthread> threads;
  const std::size_t pieces = request.configs.size() + request.bound_capacities.size();
  const std::size_t jobs = request.jobs != 0 ? request.jobs : std::thread::hardware_concurrency();
  const std::size_t thread_count = std::clamp<std::size_t>(jobs, 1, std::max<std::size_t>(1, pieces));
  threads.reserve(thread_count);
  for (std::size_t i = 0; i < thread_count; ++i) threads.emplace_back([&work] { work.run_pieces(); });
  bool is_stopped = false;
  do {
    if (!is_stopped && !on_progress(work.progress())) {
      is_stopped = true;
      work.stop();
    }
  } while (work.wait());
  threads.clear();  // joins them
  if (!is_stopped) on_progress(work.progress());
  return work.take_outcome();
}

std::uint64_t usable_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    if (name != "MemAvailable:") continue;
    std::uint64_t kibibytes = 0;
    if (file >> kibibytes) return (kibibytes - (kibibytes / 16)) * 1'024;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

}  // namespace quire
