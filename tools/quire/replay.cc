// SPDX-License-Identifier: Apache-2.0
#include "replay.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "group_pattern.h"
#include "quire/quire.h"
#include "replay_setup.h"
#include "terminal.h"
#include "timeline.h"

namespace quire {

namespace {

constexpr std::size_t kOverPoolLinesMax = 5;
constexpr std::uint64_t kLostPagesMax = 1U << 22U;
constexpr int kMoverTimeoutMs = 60'000;  // without a word of the mover: something is wrong
constexpr std::size_t kLayerBandsMax = 4;
constexpr std::uint32_t kSettlingMax = 1'000;  // rounds of making room for one request

/// "3 14 15 … 92 65 35"
std::string shortened(std::span<const TokenId> tokens) {
  constexpr std::size_t kEachSide = 4;
  if (tokens.size() <= 2 * kEachSide) return fmt::format("{}", fmt::join(tokens, " "));
  return fmt::format("{} … {}", fmt::join(tokens.first(kEachSide), " "), fmt::join(tokens.last(kEachSide), " "));
}

/// One engine of a replay. It gets its requests in the trace's order; those that run are computed together, a chunk of
/// each per step.
class Engine {
 public:
  struct Inputs {
    const Trace& trace;
    const TraceFacts& facts;
    const ReplayConfig& config;
    const ReplaySettings& settings;
    const ReplayControl& control;
    std::atomic<std::uint64_t>& done_tokens;
  };
  Engine(const Inputs& inputs, std::uint32_t engine_index)
      : trace_(inputs.trace),
        config_(inputs.config),
        settings_(inputs.settings),
        stop_(inputs.control.stop),
        done_tokens_(inputs.done_tokens),
        engine_index_(engine_index),
        distinct_tokens_(inputs.facts.distinct_tokens()),
        reusable_units_(inputs.facts.reusable_units()),
        timeline_(inputs.trace, inputs.settings.bin_count) {}

  Status open();
  /// Begins a request, and runs what it has as long as there is no room for another one.
  Status serve(std::size_t index);
  /// Runs all that it has begun.
  Status end_all();
  Result<ReplayOutcome> finish();

  [[nodiscard]] bool has_flipped() const { return has_flipped_; }
  [[nodiscard]] bool has_found_damage() const { return outcome_.corruption.has_value(); }

 private:
  /// A request that is to run, for the first time or again.
  struct Waiting {
    std::size_t index = 0;
    bool is_counted = false;  // it ran before, and its hit was counted then
  };
  struct Running {
    Waiting request;
    std::vector<TokenId> tokens;    // of the path, where the trace has units and the cache tokens
    std::span<const TokenId> path;  // prompt and output, as much of it as the pool can hold
    std::uint32_t known_units = 0;  // of the path, that the cache was given
    Sequence sequence;
    bool has_run = false;
    bool is_found_whole = false;           // nothing is left to compute but the last token, once more
    std::vector<std::uint64_t> histories;  // of the path, when bytes are verified
  };

  [[nodiscard]] std::uint64_t tokens_of(std::uint64_t units, const TraceRequest& request) const {
    return std::min(units * unit_tokens_, request.prompt_tokens);
  }
  /// The trace's units are tokens to the cache.
  [[nodiscard]] bool is_by_unit() const { return unit_tokens_ == trace_.unit_tokens; }
  [[nodiscard]] std::uint32_t prompt_units(const TraceRequest& request) const {
    return is_by_unit() ? request.prompt_units : static_cast<std::uint32_t>(request.prompt_tokens);
  }
  /// What a request begins with. The next turn of a chat has the last unit in another form if that was only begun, so
  /// what both share ends before it: that is where groups have to keep what they need, and the end of the prompt.
  [[nodiscard]] std::uint32_t begun_units(const TraceRequest& request) const {
    const std::uint32_t units = prompt_units(request);
    return is_by_unit() || units < trace_.unit_tokens ? units : units - (units % trace_.unit_tokens);
  }
  [[nodiscard]] std::uint64_t path_units(const TraceRequest& request) const {
    const std::uint64_t output = std::uint64_t{request.output_units} * trace_.unit_tokens / unit_tokens_;
    return std::min(prompt_units(request) + output, pool_units_);
  }
  [[nodiscard]] bool is_over_pool(const TraceRequest& request) const { return prompt_units(request) > pool_units_; }
  void fill_path(Running& running, const TraceRequest& request) const;

  [[nodiscard]] bool plans_while_loading() const {
    return settings_.plans_while_loading && settings_.host.is_on() && settings_.bytes == BytesMode::Verify;
  }
  [[nodiscard]] CacheConfig cache_config(const Setup& setup) const;
  Status open_cache();
  Status add_totals();
  [[nodiscard]] bool has_room() const { return running_.size() < settings_.running_max && !is_crowded_; }
  Status go_on();
  Status pause();
  Status take(std::size_t index);
  Status admit(const Waiting& waiting);
  Result<bool> try_admit(Running& running, Tier tier_max);
  Status run_step();
  Result<PlanOutcome> plan();
  Status run_planned(const Step& step);
  Status put_back_youngest();
  Result<bool> settle(const Step* step = nullptr);
  [[nodiscard]] Result<bool> may_begin() const;
  Status begin_early(const Step& step);
  Status move_at_once();
  Status wait_for_mover();
  Result<std::uint64_t> count_hit(const Running& running, std::uint32_t matched_units);
  Status count_miss(const Running& running, std::uint64_t hit_tokens);
  void skip_over_pool(std::size_t index);
  Status enter_bin(std::size_t bin);
  /// What a request found. A copy that admit() counted on may have been given up, so the plan's word counts.
  [[nodiscard]] static std::uint32_t matched_units_of(const Running& running, const AttentionPlanEntry& planned) {
    const bool runs_again = running.is_found_whole && planned.position + 1 == running.known_units;
    return planned.position + (runs_again ? 1 : 0);
  }
  [[nodiscard]] std::optional<WrongByte> verify(const PatternEntry& entry, std::uint32_t matched_units);
  void report_corruption(const Running& running, const WrongByte& wrong, std::uint32_t matched_units);

  const Trace& trace_;
  const ReplayConfig& config_;
  const ReplaySettings& settings_;
  const std::atomic<bool>& stop_;
  std::atomic<std::uint64_t>& done_tokens_;
  std::uint32_t engine_index_;
  std::uint64_t distinct_tokens_;
  std::span<const std::uint32_t> reusable_units_;
  Timeline timeline_;

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<GroupPattern> pattern_;  // when bytes are verified
  std::uint32_t unit_tokens_ = 1;          // that a token of the cache stands for
  std::uint32_t page_units_ = 0;
  std::uint64_t pool_units_ = 0;
  std::uint32_t chunk_units_ = 0;
  std::vector<KeySpaceId> key_spaces_;

  std::vector<Waiting> put_back_;  // those that ran and had to make room; the last one is the next to run
  bool is_crowded_ = false;        // somebody had to make room: nobody begins before somebody has ended
  std::vector<Running> running_;   // oldest first
  std::vector<StepEntry> entries_;
  std::vector<StepResult> results_;
  std::vector<TransferPlan> transfers_;
  std::vector<Completion> completions_;

  TimeNs now_ = 0;
  std::size_t bin_ = 0;
  bool has_flipped_ = false;
  bool has_paused_ = false;
  ReplayOutcome outcome_;
};

Status Engine::open() {
  QUIRE_TRY_ASSIGN(const Setup setup, setup_of(trace_, config_, settings_));
  if (reusable_units_.size() != trace_.requests.size()) {
    return fail(ErrorCode::InvalidArgument, "these facts are of another trace");
  }
  unit_tokens_ = setup.unit_tokens;
  page_units_ = setup.page_units;
  pool_units_ = setup.pool_units();
  chunk_units_ = setup.chunk_units;
  outcome_.config = config_;
  outcome_.page_count = setup.page_count;
  outcome_.page_bytes = setup.page_bytes;
  outcome_.device_bytes = setup.device_bytes;
  outcome_.groups = setup.groups;
  outcome_.key_spaces.resize(trace_.key_spaces.size());
  outcome_.timeline = timeline_.bins();
  if (settings_.host.is_on()) outcome_.host = HostTierOutcome{.page_count = setup.host_page_count};
  if (settings_.disk.is_on()) outcome_.disk = DiskTierOutcome{.capacity_bytes = settings_.disk.capacity_bytes};
  if (settings_.remote.is_on()) outcome_.remote = RemoteTierOutcome{};
  running_.reserve(settings_.running_max);
  return open_cache();
}

CacheConfig Engine::cache_config(const Setup& setup) const {
  std::uint64_t longest = 1;
  for (const TraceRequest& request : trace_.requests) {
    if (!is_over_pool(request)) longest = std::max(longest, path_units(request));
  }
  CacheConfig cache{.layout = setup.layout, .page = {.page_tokens = page_units_}};
  cache.device.page_count = setup.page_count;
  cache.device.memory = settings_.bytes == BytesMode::Verify ? DeviceMemory::Host : DeviceMemory::None;
  if (setup.has_groups()) {
    for (const GroupOutcome& group : setup.groups) cache.device.group_page_counts.push_back(group.stats.page_count);
    cache.steps_in_flight_max = 1;
    if (settings_.bytes == BytesMode::Verify) cache.plan.page_tables = PageTables::Block;
  }
  cache.sequence_count_max = settings_.running_max;
  cache.context_tokens_max = static_cast<std::uint32_t>(longest);
  cache.step_tokens_max = chunk_units_ * settings_.running_max;
  cache.key_space_count_max = static_cast<std::uint32_t>(std::max<std::size_t>(1, trace_.key_spaces.size()));
  cache.extra_key_count_max = 1;
  cache.keep_count_max = 1;
  cache.policy = config_.policy;
  if (settings_.host.is_on()) {
    cache.host.page_count = setup.host_page_count;
    cache.host.group_page_counts = setup.host_group_page_counts;
    cache.host.policy = settings_.host.policy;
    cache.host.write_policy = settings_.host.write_policy;
    cache.host.external_mover = settings_.bytes == BytesMode::None;
    if (plans_while_loading()) {
      const std::size_t layer_count = setup.layout.groups().front().layers.size();
      cache.host.layer_bands = static_cast<std::uint16_t>(std::min(layer_count, kLayerBandsMax));
    }
    // Reasons for misses are asked for, so every page that is lost is remembered, within reason.
    cache.lost_page_count_max = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(kLostPagesMax, 4 * (4 + distinct_tokens_ / config_.page_tokens)));
  }
  for (std::string directory : settings_.disk.directories) {
    if (!config_.disk_folder.empty()) directory += "/" + config_.disk_folder;
    if (settings_.engine_count > 1) directory += fmt::format("/engine-{}", engine_index_);
    cache.disk.directories.push_back(std::move(directory));
  }
  cache.disk.capacity_bytes = settings_.disk.capacity_bytes;
  cache.disk.write_policy = settings_.disk.write_policy;
  cache.disk.write_bytes_per_day = settings_.disk.write_bytes_per_day;
  if (settings_.remote.is_on()) cache.remote = settings_.remote.config_for(config_.remote_prefix);
  return cache;
}

Status Engine::open_cache() {
  QUIRE_TRY_ASSIGN(const Setup setup, setup_of(trace_, config_, settings_));
  CacheConfig config = cache_config(setup);
  transfers_.resize(config.host.transfer_count_max);
  QUIRE_TRY_ASSIGN(cache_, Cache::open(std::move(config)));
  if (outcome_.disk && !has_paused_) {
    QUIRE_TRY_ASSIGN(const DiskStatus status, cache_->disk_status());
    outcome_.disk->found_pages = status.page_count;
  }
  if (outcome_.host && settings_.bytes == BytesMode::Verify) {
    QUIRE_TRY_ASSIGN(const HostRegionStatus region, cache_->host_region());
    outcome_.host->region = host_region_text(region);
  }
  if (settings_.bytes == BytesMode::Verify) pattern_ = std::make_unique<GroupPattern>(*cache_);
  key_spaces_.clear();
  for (const std::string& name : trace_.key_spaces) {
    QUIRE_TRY_ASSIGN(key_spaces_.emplace_back(), cache_->key_space({.model = "replay", .salt = name}));
  }
  return {};
}

Status Engine::serve(std::size_t index) {
  if (settings_.restart.request_index > 0 && !has_paused_ && index >= settings_.restart.request_index) {
    QUIRE_TRY(end_all());
    if (!has_found_damage()) QUIRE_TRY(pause());
  }
  while (!has_found_damage() && !(has_room() && put_back_.empty())) QUIRE_TRY(go_on());
  if (has_found_damage()) return {};
  QUIRE_TRY(take(index));
  while (!has_found_damage() && running_.size() == settings_.running_max) QUIRE_TRY(go_on());
  return {};
}

Status Engine::end_all() {
  while (!has_found_damage() && !(running_.empty() && put_back_.empty())) QUIRE_TRY(go_on());
  return {};
}

// One step, or the beginning of a request that had to make room.
Status Engine::go_on() {
  if (stop_.load(std::memory_order_relaxed)) return fail(ErrorCode::Cancelled, "stopped");
  if (put_back_.empty() || !has_room()) return run_step();
  const Waiting waiting = put_back_.back();
  put_back_.pop_back();
  return admit(waiting);
}

// Nothing runs. With a new cache, what it finds is what the old one left on disk.
Status Engine::pause() {
  has_paused_ = true;
  QUIRE_TRY(settle());
  if (!settings_.restart.has_new_cache) return {};
  while (outcome_.disk) {
    QUIRE_TRY_ASSIGN(const bool is_flushed, cache_->flush());
    if (is_flushed) break;
    QUIRE_TRY(settle());
  }
  QUIRE_TRY(add_totals());
  if (pattern_) outcome_.verified_bytes += pattern_->verified_bytes();
  pattern_.reset();
  cache_.reset();  // before the next one is opened: a directory has one owner
  QUIRE_TRY(open_cache());
  return cache_->advance(now_);
}

Status Engine::take(std::size_t index) {
  const TraceRequest& request = trace_.requests[index];
  QUIRE_TRY(enter_bin(timeline_.bin_of(index)));
  now_ = std::max(now_, request.timestamp_ns - trace_.requests.front().timestamp_ns);
  QUIRE_TRY(cache_->advance(now_));
  ++outcome_.request_count;
  outcome_.prompt_tokens += request.prompt_tokens;
  outcome_.key_spaces[request.key_space].prompt_tokens += request.prompt_tokens;
  outcome_.timeline[timeline_.bin_of(index)].prompt_tokens += request.prompt_tokens;
  if (is_over_pool(request)) {
    skip_over_pool(index);
    return {};
  }
  return admit({.index = index});
}

void Engine::skip_over_pool(std::size_t index) {
  ++outcome_.over_pool_count;
  const TraceRequest& request = trace_.requests[index];
  if (outcome_.over_pool_lines.size() < kOverPoolLinesMax) outcome_.over_pool_lines.push_back(request.line);
  done_tokens_.fetch_add(request.prompt_tokens, std::memory_order_relaxed);
}

Status Engine::admit(const Waiting& waiting) {
  const TraceRequest& request = trace_.requests[waiting.index];
  Running running{.request = waiting, .known_units = begun_units(request)};
  fill_path(running, request);
  QUIRE_TRY_ASSIGN(bool is_admitted, try_admit(running, Tier::Remote));
  if (!is_admitted && !running_.empty()) {
    put_back_.push_back(waiting);
    is_crowded_ = true;
    return {};
  }
  if (!is_admitted) {
    QUIRE_TRY_ASSIGN(is_admitted, try_admit(running, Tier::Device));
    if (!is_admitted) return fail(ErrorCode::Unavailable, fmt::format("line {} cannot begin", request.line));
  }
  if (pattern_) {
    std::uint64_t history = PagePattern::root(trace_.key_spaces[request.key_space]);
    running.histories.reserve(running.path.size());
    for (const TokenId token : running.path) {
      history = PagePattern::next(history, token);
      running.histories.push_back(history);
    }
  }
  running_.push_back(std::move(running));
  return {};
}

// Where the cache has tokens and the trace units, all tokens of a unit have its number: equal units are equal prefixes,
// and others differ from their first token on.
void Engine::fill_path(Running& running, const TraceRequest& request) const {
  const std::uint64_t count = path_units(request);
  if (is_by_unit()) {
    running.path = trace_.path(request).first(count);
    return;
  }
  running.tokens.reserve(count);
  for (const TokenId unit : trace_.prompt(request)) {
    const std::uint64_t left = prompt_units(request) - running.tokens.size();
    running.tokens.insert(running.tokens.end(), std::min<std::uint64_t>(trace_.unit_tokens, left), unit);
  }
  for (const TokenId unit : trace_.path(request).subspan(request.prompt_units)) {
    running.tokens.insert(running.tokens.end(), trace_.unit_tokens, unit);
  }
  running.tokens.resize(count);
  running.path = running.tokens;
}

// False: the device has no room for what is to be loaded, whatever is given up.
Result<bool> Engine::try_admit(Running& running, Tier tier_max) {
  const TraceRequest& request = trace_.requests[running.request.index];
  QUIRE_TRY_ASSIGN(
      running.sequence,
      cache_->begin(key_spaces_[request.key_space], {.tokens = running.path.first(running.known_units)},
                    {.priority = request.priority, .plan_while_loading = plans_while_loading(), .tier_max = tier_max}));
  for (std::uint32_t i = 0, idle_count = 0; i < kSettlingMax && idle_count < 2; ++i) {
    const Result<Admission> admission = cache_->admit(running.sequence);
    if (admission) return true;
    if (admission.error().code != ErrorCode::Unavailable) return tl::unexpected<Error>(admission.error());
    QUIRE_TRY_ASSIGN(const bool has_moved, settle());
    idle_count = has_moved ? 0 : idle_count + 1;  // pages that had copies already make room without a move
  }
  QUIRE_TRY(cache_->end(running.sequence));
  return false;
}

// Bytes move at once, as far as the cache can see: it goes on when nothing is on its way any more, and hears of
// transfers in the order it began them. So figures do not depend on the pace of a mover's threads. Says whether there
// was anything to move. What a step has lost waits for the step's end.
Result<bool> Engine::settle(const Step* step) {
  bool has_moved = false;
  for (bool was_idle = false; settings_.host.is_on();) {
    completions_.clear();
    QUIRE_TRY(pattern_ ? wait_for_mover() : move_at_once());
    if (completions_.empty()) {
      QUIRE_TRY_ASSIGN(const Stats stats, cache_->stats());
      std::size_t lost_count = 0;
      if (step != nullptr) {
        QUIRE_TRY_ASSIGN(const std::span<const std::uint32_t> lost, cache_->lost_entries(*step));
        lost_count = lost.size();
      }
      if (stats.loading_sequence_count <= lost_count) break;
      if (was_idle) return fail(ErrorCode::Unavailable, "a request waits for pages, and nothing is on its way");
    }
    was_idle = completions_.empty();
    has_moved = has_moved || !was_idle;
    std::ranges::sort(completions_, {}, &Completion::id);
    QUIRE_TRY(cache_->apply(completions_, now_));
  }
  return has_moved;
}

Status Engine::move_at_once() {
  for (;;) {
    QUIRE_TRY_ASSIGN(const std::span<TransferPlan> plans, cache_->take_transfers(transfers_));
    if (plans.empty()) return {};
    for (const TransferPlan& plan : plans) {
      completions_.push_back({.id = plan.id,
                              .good_pages = static_cast<std::uint32_t>(plan.pages.size()),
                              .moved_bytes = plan.pages.size() * outcome_.page_bytes});
    }
  }
}

Status Engine::wait_for_mover() {
  for (;;) {
    QUIRE_TRY_ASSIGN(const std::span<const Completion> ended, cache_->poll());
    completions_.insert(completions_.end(), ended.begin(), ended.end());
    QUIRE_TRY_ASSIGN(const Stats stats, cache_->stats());
    if (completions_.size() >= stats.transfers_moving) return {};
    pollfd event{.fd = cache_->event_fd(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&event, 1, kMoverTimeoutMs);
    if (ready == 0) return fail(ErrorCode::TimedOut, "transfers have not ended for a minute");
  }
}

// What is on its way to the host makes room by going there.
Result<PlanOutcome> Engine::plan() {
  for (std::uint32_t i = 0;; ++i) {
    QUIRE_TRY_ASSIGN(PlanOutcome outcome, cache_->plan_step(entries_));
    if (outcome.step || outcome.shortage.pages_leaving == 0 || i == kSettlingMax) return outcome;
    QUIRE_TRY(settle());
  }
}

// All that run have their pages, or these are on their way: nobody asks the mover before the step has been computed, so
// that it does not matter how fast that is.
Result<bool> Engine::may_begin() const {
  if (!plans_while_loading()) return false;
  for (const Running& running : running_) {
    QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(running.sequence));
    if (!view.is_ready) return false;
  }
  return true;
}

// Waits for every layer of what the step reads, in the order an engine would compute them in.
Status Engine::begin_early(const Step& step) {
  HostTierOutcome& host = *outcome_.host;
  ++host.early_step_count;
  for (const Running& running : std::span(running_).first(step.plan.entries.size())) {
    QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(running.sequence));
    if (view.is_loading && !running.request.is_counted) ++host.early_request_count;
  }
  const auto groups = cache_->config().layout.groups();
  for (std::uint32_t group = 0; group < groups.size(); ++group) {
    for (std::uint32_t layer = 0; has_pages(groups[group]) && layer < groups[group].layers.size(); ++layer) {
      constexpr TimeNs kTimeoutNs = TimeNs{kMoverTimeoutMs} * 1'000'000;
      QUIRE_TRY_ASSIGN(const TransferOutcome arrived, cache_->wait_for_layer(step, {group, layer}, kTimeoutNs));
      if (arrived == TransferOutcome::TimedOut) return fail(ErrorCode::TimedOut, "a layer has not come for a minute");
    }
  }
  return {};
}

Status Engine::run_step() {
  QUIRE_TRY_ASSIGN(const bool begins_early, may_begin());
  if (!begins_early) QUIRE_TRY(settle());
  entries_.clear();
  for (Running& running : running_) {
    QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(running.sequence));
    running.is_found_whole = view.computed_tokens == view.token_count;
    entries_.push_back({&running.sequence, std::min(view.pending_tokens, chunk_units_)});
  }
  QUIRE_TRY_ASSIGN(PlanOutcome outcome, plan());
  if (!outcome.step && outcome.shortage.entries_that_fit > 0) {
    QUIRE_TRY_ASSIGN(outcome, cache_->plan_step(std::span(entries_).first(outcome.shortage.entries_that_fit)));
  }
  if (!outcome.step) return put_back_youngest();
  return run_planned(*outcome.step);
}

Status Engine::put_back_youngest() {
  if (running_.size() == 1) {
    return fail(ErrorCode::Unavailable,
                fmt::format("line {}: a request that runs alone found too few pages, though it needs no more than the "
                            "pool has",
                            trace_.requests[running_.front().request.index].line));
  }
  QUIRE_TRY(cache_->end(running_.back().sequence));
  put_back_.push_back(running_.back().request);
  running_.pop_back();
  is_crowded_ = true;
  return {};
}

// This is where an engine runs its model.
Status Engine::run_planned(const Step& step) {
  const std::span<const AttentionPlanEntry> planned = step.plan.entries;
  const bool is_early = !step.loads.empty();
  if (is_early) QUIRE_TRY(begin_early(step));
  if (pattern_) QUIRE_TRY(cache_->apply_copies(step));
  results_.assign(planned.size(), {});
  // What the layers read counts, before the cache has heard that they have come.
  std::vector<std::optional<WrongByte>> wrong(planned.size());
  for (std::size_t i = 0; i < planned.size() && pattern_; ++i) {
    const Running& running = running_[i];
    if (!running.has_run) wrong[i] = verify({&step.plan, i, running.histories}, matched_units_of(running, planned[i]));
  }
  std::vector<std::uint32_t> lost;
  if (is_early) {
    QUIRE_TRY(settle(&step));
    QUIRE_TRY_ASSIGN(const std::span<const std::uint32_t> entries, cache_->lost_entries(step));
    lost.assign(entries.begin(), entries.end());
  }
  for (std::size_t i = 0; i < planned.size(); ++i) {
    Running& running = running_[i];
    if (std::ranges::count(lost, i) > 0) continue;  // it is planned once more, with what has come
    if (!std::exchange(running.has_run, true)) {
      const std::uint32_t matched_units = matched_units_of(running, planned[i]);
      if (!std::exchange(running.request.is_counted, true)) {
        QUIRE_TRY_ASSIGN(const std::uint64_t hit_tokens, count_hit(running, matched_units));
        QUIRE_TRY(count_miss(running, hit_tokens));
      }
      if (wrong[i]) {
        report_corruption(running, *wrong[i], matched_units);
        return cache_->abort_step(step);
      }
    }
    if (pattern_) pattern_->write({&step.plan, i, running.histories});
    const bool has_output = running.known_units < running.path.size();
    if (has_output && planned[i].context_tokens == running.known_units) {
      results_[i].tokens = running.path.subspan(running.known_units);
    }
  }
  if (pattern_) QUIRE_TRY(cache_->apply_saves(step));
  QUIRE_TRY(cache_->finish_step(step, results_));

  for (std::size_t i = 0; i < planned.size(); ++i) {
    Running& running = running_[i];
    running.known_units += static_cast<std::uint32_t>(results_[i].tokens.size());
    QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(running.sequence));
    if (view.pending_tokens > 0) continue;
    QUIRE_TRY(cache_->end(running.sequence));
    done_tokens_.fetch_add(trace_.requests[running.request.index].prompt_tokens, std::memory_order_relaxed);
    is_crowded_ = false;
  }
  std::erase_if(running_, [](const Running& running) { return !running.sequence; });
  QUIRE_TRY(settle());  // what is full now may have to go to the host before others take its place
  return {};
}

// Gives the tokens that need no computing.
Result<std::uint64_t> Engine::count_hit(const Running& running, std::uint32_t matched_units) {
  const std::size_t index = running.request.index;
  const TraceRequest& request = trace_.requests[index];
  const RestartSettings& restart = settings_.restart;
  const bool is_in_window = has_paused_ && index - restart.request_index < restart.window_count;
  if (is_in_window) outcome_.window.prompt_tokens += request.prompt_tokens;
  if (matched_units == 0) return 0;
  const std::uint64_t hit_tokens = tokens_of(matched_units, request);
  const std::uint64_t whole_units = matched_units - (matched_units % page_units_);
  ++outcome_.hit_request_count;
  outcome_.hit_tokens += hit_tokens;
  outcome_.partial_hit_tokens += hit_tokens - tokens_of(whole_units, request);
  outcome_.key_spaces[request.key_space].hit_tokens += hit_tokens;
  outcome_.timeline[timeline_.bin_of(index)].hit_tokens += hit_tokens;
  if (is_in_window) outcome_.window.hit_tokens += hit_tokens;
  // What an earlier process left may be anybody's of this trace; that bytes are right is verified all the same.
  const bool is_warm =
      (outcome_.disk && outcome_.disk->found_pages > 0) || (outcome_.remote && !settings_.remote.key_prefix.empty());
  if (!is_warm) {
    const std::uint64_t reusable_tokens =
        std::min(std::uint64_t{reusable_units_[index]} * trace_.unit_tokens, request.prompt_tokens);
    outcome_.shared_hit_tokens += hit_tokens - std::min(hit_tokens, reusable_tokens);
  }
  if (!outcome_.host) return hit_tokens;
  QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(running.sequence));
  // From the end of what was found upwards: remote, disk, host.
  std::uint64_t end_units = whole_units;
  const auto take = [&](std::uint64_t tier_units) {
    const std::uint64_t before = end_units - std::min(end_units, tier_units);
    return tokens_of(std::exchange(end_units, before), request) - tokens_of(before, request);
  };
  const std::uint64_t remote_tokens = take(view.remote_tokens);
  const std::uint64_t disk_tokens = take(view.disk_tokens);
  if (outcome_.remote) outcome_.remote->hit_tokens += remote_tokens;
  if (outcome_.disk) outcome_.disk->hit_tokens += disk_tokens;
  outcome_.host->hit_tokens += take(view.host_tokens);
  return hit_tokens;
}

Status Engine::count_miss(const Running& running, std::uint64_t hit_tokens) {
  if (!outcome_.host && outcome_.groups.empty()) return {};
  QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(running.sequence));
  const auto count = [&](MissOutcome& miss) {
    ++miss.request_count;
    miss.token_count += trace_.requests[running.request.index].prompt_tokens - hit_tokens;
  };
  if (outcome_.host) count(outcome_.host->misses[static_cast<std::size_t>(view.miss.reason)]);
  const bool is_limited = !outcome_.groups.empty() && view.miss.reason == MissReason::NotHeld;
  if (is_limited) count(outcome_.groups[view.miss.group].limited);
  return {};
}

Status Engine::enter_bin(std::size_t bin) {
  if (bin <= bin_) return {};
  QUIRE_TRY_ASSIGN(const Stats stats, cache_->stats());
  for (; bin_ < bin; ++bin_) outcome_.timeline[bin_].cached_pages = stats.sealed_pages;
  return {};
}

// All bytes of what the cache said it had, also in a page of which a part was copied.
std::optional<WrongByte> Engine::verify(const PatternEntry& entry, std::uint32_t matched_units) {
  if (settings_.flip_a_byte && matched_units > 0 && !std::exchange(has_flipped_, true)) {
    const auto flipped = static_cast<std::uint32_t>(std::lround(settings_.flip_share * (matched_units - 1)));
    pattern_->byte_of(entry, flipped) ^= std::byte{0x10};
  }
  return pattern_->first_wrong_byte(entry, matched_units);
}

void Engine::report_corruption(const Running& running, const WrongByte& wrong, std::uint32_t matched_units) {
  const TraceRequest& request = trace_.requests[running.request.index];
  const std::uint32_t page_end = wrong.position - (wrong.position % page_units_) + page_units_;
  const std::uint32_t end = std::min(page_end, matched_units);
  const std::string length =
      unit_tokens_ == 1 ? counted(end, "token") : fmt::format("{} of {} tokens", counted(end, "unit"), unit_tokens_);
  outcome_.corruption = Corruption{.line = request.line,
                                   .group = outcome_.groups.empty() ? "" : outcome_.groups[wrong.group_index].name,
                                   .is_slot = wrong.is_slot,
                                   .page = wrong.page,
                                   .offset = wrong.offset,
                                   .prefix = fmt::format("key space '{}', {}: {}", trace_.key_spaces[request.key_space],
                                                         length, shortened(running.path.first(end)))};
}

// What a cache counts goes with it.
Status Engine::add_totals() {
  QUIRE_TRY_ASSIGN(const Stats stats, cache_->stats());
  outcome_.sealed_pages += stats.sealed_page_total;
  outcome_.evicted_pages += stats.evicted_page_total;
  for (std::uint32_t i = 0; i < outcome_.groups.size(); ++i) {
    QUIRE_TRY_ASSIGN(GroupStats now, cache_->group_stats(i));
    const GroupStats& before = outcome_.groups[i].stats;
    now.sealed_page_total += before.sealed_page_total;
    now.duplicate_page_total += before.duplicate_page_total;
    now.evicted_page_total += before.evicted_page_total;
    now.dropped_page_total += before.dropped_page_total;
    now.skipped_snapshot_total += before.skipped_snapshot_total;
    now.restored_snapshot_total += before.restored_snapshot_total;
    outcome_.groups[i].stats = now;
  }
  if (outcome_.host) {
    outcome_.host->stored_bytes += stats.stored_bytes;
    outcome_.host->loaded_bytes += stats.loaded_bytes;
    outcome_.host->evicted_pages += stats.host_evicted_page_total;
    outcome_.host->lost_pages += stats.lost_page_total;
  }
  if (outcome_.disk) {
    QUIRE_TRY_ASSIGN(const DiskStatus status, cache_->disk_status());
    DiskTierOutcome& disk = *outcome_.disk;
    disk.page_count = status.page_count;
    disk.written_bytes += status.written_bytes;
    disk.read_bytes += stats.disk_loaded_bytes;
    disk.evicted_pages += status.evicted_page_total;
    disk.has_failed = disk.has_failed || stats.disk_has_failed;
    if (!status.last_error.empty()) disk.last_error = status.last_error;
    disk.mode = disk_mode_text(status);
  }
  if (outcome_.remote) {
    QUIRE_TRY_ASSIGN(const RemoteTierStatus status, cache_->remote_status());
    RemoteTierOutcome& remote = *outcome_.remote;
    remote.extent_pages = status.extent_pages;
    remote.put_values += status.put_values;
    remote.put_bytes += status.put_bytes;
    remote.kept_values += status.kept_values;
    remote.got_bytes += status.got_bytes;
    remote.absent_values += status.absent_values;
    remote.bad_values += status.corrupt_values + status.foreign_values;
    remote.late_objects += status.late_objects;
    remote.failed_objects += status.failed_objects;
    if (!status.last_error.empty()) remote.last_error = status.last_error;
  }
  return {};
}

Result<ReplayOutcome> Engine::finish() {
  QUIRE_TRY(enter_bin(outcome_.timeline.size()));
  QUIRE_TRY(settle());
  QUIRE_TRY(add_totals());
  if (pattern_) outcome_.verified_bytes += pattern_->verified_bytes();
  QUIRE_TRY(cache_->visit_runs([&](const RunView& run) {
    if (run.pages.empty()) return;  // the root of a key space
    const auto length_class = static_cast<std::size_t>(std::bit_width(run.pages.size()) - 1);
    if (length_class >= outcome_.run_lengths.size()) outcome_.run_lengths.resize(length_class + 1);
    ++outcome_.run_lengths[length_class];
  }));
  QUIRE_TRY(cache_->check_invariants());
  return std::move(outcome_);
}

EngineOutcome engine_outcome_of(const ReplayOutcome& outcome) {
  return {.request_count = outcome.request_count,
          .prompt_tokens = outcome.prompt_tokens,
          .hit_tokens = outcome.hit_tokens,
          .host_hit_tokens = outcome.host ? outcome.host->hit_tokens : 0,
          .disk_hit_tokens = outcome.disk ? outcome.disk->hit_tokens : 0,
          .remote_hit_tokens = outcome.remote ? outcome.remote->hit_tokens : 0};
}

void add(KeySpaceOutcome& sum, const KeySpaceOutcome& other) {
  sum.prompt_tokens += other.prompt_tokens;
  sum.hit_tokens += other.hit_tokens;
}

void add(MissOutcome& sum, const MissOutcome& other) {
  sum.request_count += other.request_count;
  sum.token_count += other.token_count;
}

void add(HostTierOutcome& sum, const HostTierOutcome& other) {
  sum.page_count += other.page_count;
  sum.hit_tokens += other.hit_tokens;
  sum.stored_bytes += other.stored_bytes;
  sum.loaded_bytes += other.loaded_bytes;
  sum.evicted_pages += other.evicted_pages;
  sum.lost_pages += other.lost_pages;
  sum.early_request_count += other.early_request_count;
  sum.early_step_count += other.early_step_count;
  for (std::size_t i = 0; i < sum.misses.size(); ++i) add(sum.misses[i], other.misses[i]);
}

void add(DiskTierOutcome& sum, const DiskTierOutcome& other) {
  sum.capacity_bytes += other.capacity_bytes;
  sum.hit_tokens += other.hit_tokens;
  sum.page_count += other.page_count;
  sum.found_pages += other.found_pages;
  sum.written_bytes += other.written_bytes;
  sum.read_bytes += other.read_bytes;
  sum.evicted_pages += other.evicted_pages;
  sum.has_failed = sum.has_failed || other.has_failed;
  if (sum.last_error.empty()) sum.last_error = other.last_error;
}

void add(RemoteTierOutcome& sum, const RemoteTierOutcome& other) {
  sum.hit_tokens += other.hit_tokens;
  sum.put_values += other.put_values;
  sum.put_bytes += other.put_bytes;
  sum.kept_values += other.kept_values;
  sum.got_bytes += other.got_bytes;
  sum.absent_values += other.absent_values;
  sum.bad_values += other.bad_values;
  sum.late_objects += other.late_objects;
  sum.failed_objects += other.failed_objects;
  if (sum.last_error.empty()) sum.last_error = other.last_error;
}

void add(GroupOutcome& sum, const GroupOutcome& other) {
  GroupStats& stats = sum.stats;
  stats.page_count += other.stats.page_count;
  stats.slot_count += other.stats.slot_count;
  stats.free_pages += other.stats.free_pages;
  stats.sealed_pages += other.stats.sealed_pages;
  stats.sealed_page_total += other.stats.sealed_page_total;
  stats.duplicate_page_total += other.stats.duplicate_page_total;
  stats.evicted_page_total += other.stats.evicted_page_total;
  stats.dropped_page_total += other.stats.dropped_page_total;
  stats.skipped_snapshot_total += other.stats.skipped_snapshot_total;
  stats.restored_snapshot_total += other.stats.restored_snapshot_total;
  add(sum.limited, other.limited);
}

/// Another engine of the same replay.
void add(ReplayOutcome& sum, ReplayOutcome other) {
  sum.page_count += other.page_count;
  sum.device_bytes += other.device_bytes;
  sum.request_count += other.request_count;
  sum.prompt_tokens += other.prompt_tokens;
  sum.hit_tokens += other.hit_tokens;
  sum.partial_hit_tokens += other.partial_hit_tokens;
  sum.hit_request_count += other.hit_request_count;
  sum.shared_hit_tokens += other.shared_hit_tokens;
  sum.over_pool_count += other.over_pool_count;
  sum.over_pool_lines.insert(sum.over_pool_lines.end(), other.over_pool_lines.begin(), other.over_pool_lines.end());
  std::ranges::sort(sum.over_pool_lines);
  if (sum.over_pool_lines.size() > kOverPoolLinesMax) sum.over_pool_lines.resize(kOverPoolLinesMax);
  sum.sealed_pages += other.sealed_pages;
  sum.evicted_pages += other.evicted_pages;
  sum.verified_bytes += other.verified_bytes;
  for (std::size_t i = 0; i < sum.key_spaces.size(); ++i) add(sum.key_spaces[i], other.key_spaces[i]);
  for (std::size_t i = 0; i < sum.timeline.size(); ++i) {
    sum.timeline[i].prompt_tokens += other.timeline[i].prompt_tokens;
    sum.timeline[i].hit_tokens += other.timeline[i].hit_tokens;
    sum.timeline[i].cached_pages += other.timeline[i].cached_pages;
  }
  sum.run_lengths.resize(std::max(sum.run_lengths.size(), other.run_lengths.size()));
  for (std::size_t i = 0; i < other.run_lengths.size(); ++i) sum.run_lengths[i] += other.run_lengths[i];
  for (std::size_t i = 0; i < sum.groups.size(); ++i) add(sum.groups[i], other.groups[i]);
  if (sum.host) add(*sum.host, *other.host);
  if (sum.disk) add(*sum.disk, *other.disk);
  if (sum.remote) add(*sum.remote, *other.remote);
  add(sum.window, other.window);
  if (!sum.corruption) sum.corruption = std::move(other.corruption);
}

/// Requests go to the engines in turn.
Result<ReplayOutcome> run_engines(const Engine::Inputs& inputs) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (std::uint32_t i = 0; i < inputs.settings.engine_count; ++i) {
    engines.push_back(std::make_unique<Engine>(inputs, i));
    QUIRE_TRY(engines.back()->open());
  }
  bool is_damaged = false;
  for (std::size_t index = 0; index < inputs.trace.requests.size() && !is_damaged; ++index) {
    if (inputs.control.stop.load(std::memory_order_relaxed)) return fail(ErrorCode::Cancelled, "stopped");
    if (inputs.control.before_request) inputs.control.before_request();
    Engine& engine = *engines[index % engines.size()];
    QUIRE_TRY(engine.serve(index));
    is_damaged = engine.has_found_damage();
  }
  for (std::size_t i = 0; i < engines.size() && !is_damaged; ++i) {
    QUIRE_TRY(engines[i]->end_all());
    is_damaged = engines[i]->has_found_damage();
  }
  const auto has_flipped = [](const std::unique_ptr<Engine>& engine) { return engine->has_flipped(); };
  if (inputs.settings.flip_a_byte && std::ranges::none_of(engines, has_flipped)) {
    return fail(ErrorCode::Unavailable, "--flip-a-byte: no request found a page that could have been damaged");
  }
  std::optional<ReplayOutcome> all;
  std::vector<EngineOutcome> each;
  for (const std::unique_ptr<Engine>& engine : engines) {
    QUIRE_TRY_ASSIGN(ReplayOutcome outcome, engine->finish());
    each.push_back(engine_outcome_of(outcome));
    if (!all) {
      all = std::move(outcome);
    } else {
      add(*all, std::move(outcome));
    }
  }
  if (each.size() > 1) all->engines = std::move(each);
  return *std::move(all);
}

}  // namespace

Status check_replay(const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings) {
  QUIRE_TRY(setup_of(trace, config, settings));
  return {};
}

Result<ReplayPool> pool_of(const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings) {
  QUIRE_TRY_ASSIGN(const Setup setup, setup_of(trace, config, settings));
  return ReplayPool{.page_count = setup.page_count,
                    .page_bytes = setup.page_bytes,
                    .host_page_count = setup.host_page_count,
                    .groups = setup.groups,
                    .device_bytes = setup.device_bytes,
                    .host_bytes = setup.has_groups() ? setup.host_bytes : setup.host_page_count * setup.page_bytes};
}

Result<ReplayOutcome> replay(const Trace& trace, const TraceFacts& facts, const ReplayConfig& config,
                             const ReplaySettings& settings, ReplayControl& control) {
  QUIRE_TRY(check_replay(trace, config, settings));
  QUIRE_TRY_ASSIGN(ReplayOutcome outcome, run_engines({trace, facts, config, settings, control, control.done_tokens}));
  if (!outcome.remote || outcome.engines.empty() || outcome.corruption) return outcome;
  ReplaySettings without_remote = settings;
  without_remote.remote = {};
  ReplayConfig beside = config;
  beside.disk_folder += "/private";
  std::atomic<std::uint64_t> uncounted = 0;
  QUIRE_TRY_ASSIGN(const ReplayOutcome apart, run_engines({trace, facts, beside, without_remote, control, uncounted}));
  for (std::size_t i = 0; i < outcome.engines.size() && i < apart.engines.size(); ++i) {
    outcome.engines[i].private_hit_tokens = apart.engines[i].hit_tokens;
  }
  return outcome;
}

}  // namespace quire
