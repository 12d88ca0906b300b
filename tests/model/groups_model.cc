// SPDX-License-Identifier: Apache-2.0
#include "tests/model/groups_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "quire/budget.h"
#include "tests/cache/group_pools.h"
#include "tests/cache/held_groups.h"

namespace quire {

namespace {

PrefixNumbers numbers_of(std::span<const TokenId> tokens) {
  PrefixNumbers numbers;
  for (const TokenId token : tokens) numbers.add(token);
  return numbers;
}

std::uint32_t lookahead_of(const Cache& cache) {
  std::uint32_t lookahead = 0;
  for (const CacheGroup& group : cache.config().layout.groups()) {
    lookahead = std::max(lookahead, group.lookahead_tokens);
  }
  return lookahead;
}

// Every text begins with these: of a path's first tokens, as many as rows look ahead, a visitor sees nothing.
constexpr std::array<TokenId, 4> kFirstTokens = {1, 2, 3, 4};

}  // namespace

GroupsCounts& GroupsCounts::operator+=(const GroupsCounts& other) {
  steps += other.steps;
  hits += other.hits;
  sure_hits += other.sure_hits;
  limited_hits += other.limited_hits;
  replays += other.replays;
  partial_hits += other.partial_hits;
  forks += other.forks;
  rewinds += other.rewinds;
  refused_rewinds += other.refused_rewinds;
  rejected_drafts += other.rejected_drafts;
  aborts += other.aborts;
  discards += other.discards;
  overlaps += other.overlaps;
  unknown_tokens += other.unknown_tokens;
  busy_forks += other.busy_forks;
  keeps += other.keeps;
  preemptions += other.preemptions;
  shortages += other.shortages;
  side_evictions += other.side_evictions;
  snapshots += other.snapshots;
  restores += other.restores;
  cut_chunks += other.cut_chunks;
  waits += other.waits;
  loads += other.loads;
  return *this;
}

GroupsModel::GroupsModel(std::uint64_t seed) : random_(seed) {
  Result<std::unique_ptr<Cache>> opened = Cache::open(draw_config());
  if (!opened) {
    error_ = opened.error().message;
    return;
  }
  cache_ = std::move(*opened);
  engine_ = std::make_unique<GroupsEngine>(*cache_);
  space_ = cache_->key_space({.model = "groups"}).value();
  // A few texts that prompts begin with, some of which begin with each other.
  for (std::uint32_t i = 0; i < 4; ++i) {
    std::vector<TokenId> text(kFirstTokens.begin(), kFirstTokens.end());
    if (i > 0 && !one_in(3)) {
      const std::vector<TokenId>& other = texts_[below(i)];
      text.assign(other.begin(), other.begin() + 4 + below(static_cast<std::uint32_t>(other.size()) - 4));
    }
    while (text.size() < 60) text.push_back(static_cast<TokenId>(below(40)));
    texts_.push_back(std::move(text));
  }
}

CacheConfig GroupsModel::draw_config() {
  const std::uint32_t page_tokens = std::array{1U, 2U, 3U, 4U, 6U, 8U}[below(6)];
  std::vector<CacheGroup> groups;
  const auto retention = [&]() -> GroupRetention {
    if (one_in(4)) return {.rule = RetentionRule::Last};
    return {.rule = RetentionRule::Every, .interval_tokens = 1 + below(20)};
  };
  const auto add_replay = [&](CacheGroup& group, std::uint32_t least) {
    if (one_in(3)) group.replay = {.tokens = std::max(least, 1U) + below(6), .is_exact = true};
  };
  if (!one_in(8)) groups.push_back(full_group());
  if (one_in(6)) {
    groups.push_back(full_group("draft"));
    groups.back().lookahead_tokens = 1 + below(3);
  }
  std::uint32_t r = 1;
  if (one_in(3) && page_tokens > 1) {
    r = page_tokens % 2 == 0 ? (one_in(2) ? 2 : page_tokens) : page_tokens;
    groups.push_back(compressed_group(r));
  }
  if (!one_in(3)) {
    CacheGroup group = window_group(1 + below(4 * page_tokens));
    if (one_in(3)) group.retention = {.rule = RetentionRule::Every, .interval_tokens = 1 + below(30)};
    if (one_in(6)) group.retention = {.rule = RetentionRule::Last};
    if (one_in(6)) group.retention = {.rule = RetentionRule::None};
    if (one_in(5) && group.window_tokens > 1) {
      group.sink_tokens = 1 + below(group.window_tokens - 1);
      group.keys_rotated = false;
    } else if (group.window_tokens > 1) {
      add_replay(group, group.window_tokens - 1);
    }
    groups.push_back(group);
    if (one_in(3)) {
      groups.push_back(window_group(1 + below(2 * page_tokens)));
      groups.back().name = "second";
    }
  }
  const std::uint32_t state_kinds = one_in(3) ? 0 : 1 + below(2);
  draft_max_ = below(4);
  compute_one_in_ = 1 + below(8);
  for (std::uint32_t i = 0; i < state_kinds; ++i) {
    CacheGroup group;
    switch (below(4)) {
      case 0: {
        const std::uint32_t window = 1 + below(10);
        const std::uint32_t sink = window > 1 && one_in(3) ? 1 + below(window - 1) : 0;
        group = ring_group(window, sink + window + draft_max_ + below(4), retention());
        group.sink_tokens = sink;
        group.keys_rotated = sink == 0;
        break;
      }
      case 1:
        group = tail_group(r, r > 1 ? r : 1, (2 * r) + 1 + draft_max_ + below(4), retention());
        break;
      case 2:
        group = tail_group(r, 0, (2 * r) + 2 + draft_max_, {.rule = RetentionRule::None});
        break;
      default:
        group = state_group(draft_max_ + below(3), retention());
        break;
    }
    group.name = "state " + std::to_string(i);
    group.retention.interval_tokens *= group.boundary_tokens;
    groups.push_back(group);
  }
  if (groups.empty()) groups.push_back(window_group(1 + below(10)));
  std::ranges::shuffle(groups, random_);

  Result<ModelLayout> layout = ModelLayout::create("random", groups);
  if (!layout) throw std::runtime_error(layout.error().message);
  CacheConfig config{.layout = std::move(*layout)};
  config.page.page_tokens = page_tokens;
  config.context_tokens_max = 96;
  config.sequence_count_max = 6;
  config.step_tokens_max = 640;
  config.steps_in_flight_max = 1 + below(4);
  config.window_rewind_tokens = below(4);
  config.device.state_slot_count = one_in(3) ? 3 : 0;
  config.device.page_count = ((96 + page_tokens - 1) / page_tokens) + below(300 / page_tokens);
  if (one_in(2)) config.partial_reuse_min_tokens = 1 + below(page_tokens);
  for (const CacheGroup& group : groups) {
    BudgetRequest request{.page = config.page, .in_flight_tokens = 16, .rewind_tokens = config.window_rewind_tokens};
    const bool is_window = group.kind == GroupKind::Window && !has_slot(group);
    const std::uint64_t least = is_window ? pages_of_request(group, request, 96) + 1 : 1;
    config.device.group_page_counts.push_back(static_cast<std::uint32_t>(least) + below(is_window ? 60 : 12));
  }
  if (one_in(6)) config.dedup = false;
  if (one_in(2)) {
    config.host.page_count = 20 + below(300 / page_tokens);
    config.host.external_mover = true;
    config.host.write_policy =
        std::array{WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}[below(3)];
    config.host.transfer_count_max = 2 + below(12);
    config.host.transfer_pages_max = 1 + below(8);
    for (std::size_t i = 0; i < groups.size(); ++i) config.host.group_page_counts.push_back(2 + below(40));
  }
  return config;
}

std::string GroupsModel::describe() const {
  std::string text = "pages of " + std::to_string(cache_->config().page.page_tokens) + "\n";
  for (const CacheGroup& group : cache_->config().layout.groups()) {
    text += "  " + group.name + ": " + std::string(to_string(group.kind)) + ", window " +
            std::to_string(group.window_tokens) + " sink " + std::to_string(group.sink_tokens) + ", r " +
            std::to_string(group.tokens_per_entry) + ", slot " + std::to_string(group.slot_entries) + " + " +
            std::to_string(group.slot_history) + ", snapshot " + std::to_string(group.snapshot_entries) +
            ", boundary " + std::to_string(group.boundary_tokens) + ", retention " +
            std::to_string(static_cast<int>(group.retention.rule)) + " every " +
            std::to_string(group.retention.interval_tokens) + ", replay " + std::to_string(group.replay.tokens) + "\n";
  }
  return text;
}

std::vector<TokenId> GroupsModel::draw_prompt() {
  const std::vector<TokenId>& text = texts_[below(static_cast<std::uint32_t>(texts_.size()))];
  std::vector<TokenId> prompt(text.begin(), text.begin() + 1 + below(static_cast<std::uint32_t>(text.size())));
  if (lookahead_of(*cache_) > 0) {
    prompt.resize(std::max<std::size_t>(prompt.size(), kFirstTokens.size()));
    std::ranges::copy(kFirstTokens, prompt.begin());
  }
  if (one_in(2)) {
    for (std::uint32_t i = below(8); i > 0; --i) prompt.push_back(static_cast<TokenId>(below(40)));
  }
  return prompt;
}

std::string GroupsModel::run(std::uint32_t step_count) {
  if (!error_.empty()) return error_;
  for (std::uint32_t i = 0; i < step_count; ++i) {
    ++counts_.steps;
    std::string wrong = act();
    if (wrong.empty() && one_in(8)) {
      if (const Status status = cache_->check_invariants(); !status) wrong = status.error().message;
    }
    if (!wrong.empty()) return "step " + std::to_string(i) + ": " + wrong + "\n" + describe();
  }
  for (std::uint32_t g = 0; g < cache_->config().layout.groups().size(); ++g) {
    const GroupStats stats = cache_->group_stats(g).value();
    counts_.restores += stats.restored_snapshot_total;
    if (has_slot(cache_->config().layout.groups()[g])) counts_.snapshots += stats.sealed_page_total;
    if (cache_->config().layout.groups()[g].kind == GroupKind::Window)
      counts_.side_evictions += stats.evicted_page_total;
  }
  // When everybody is gone nothing is held.
  while (!flights_.empty()) {
    if (std::string wrong = finish(); !wrong.empty()) return "at the end: " + wrong;
  }
  requests_.clear();
  for (const KeepId kept : keeps_) {
    if (const Status status = cache_->unkeep(kept); !status) return "at the end: " + status.error().message;
  }
  for (int i = 0; i < 200 && (!moving_.empty() || i < 20); ++i) move_pages();
  if (!error_.empty()) return "at the end: " + error_;
  if (const Status status = cache_->check_invariants(); !status) return "at the end: " + status.error().message;
  if (const Status status = cache_->reset(); !status) return "at the end: " + status.error().message;
  for (std::uint32_t g = 0; g < cache_->config().layout.groups().size(); ++g) {
    const GroupStats stats = cache_->group_stats(g).value();
    if (stats.free_pages != stats.page_count || stats.used_slots != 0) return "at the end pages or slots are in use";
  }
  return "";
}

// Moves some of what the cache asks for, in any order, and fails at times.
void GroupsModel::move_pages() {
  if (!cache_->config().host.is_on()) return;
  std::array<TransferPlan, 32> plans;
  const std::span<const TransferPlan> taken = cache_->take_transfers(plans).value();
  for (const TransferPlan& plan : taken) {
    Moving moving{.plan = plan, .pages = {plan.pages.begin(), plan.pages.end()}};
    moving_.push_back(std::move(moving));
  }
  for (std::size_t i = 0; i < moving_.size();) {
    if (one_in(3)) {
      ++i;
      continue;
    }
    Moving& moving = moving_[i];
    const bool fails = one_in(12);
    const auto good = static_cast<std::uint32_t>(fails ? below(static_cast<std::uint32_t>(moving.pages.size()))
                                                       : moving.pages.size());
    for (std::uint32_t page = 0; page < good; ++page) move_page(moving.plan, moving.pages[page]);
    const Completion completion{.id = moving.plan.id,
                                .kind = moving.plan.kind,
                                .outcome = fails ? TransferOutcome::Failed : TransferOutcome::Ok,
                                .fault = fails && one_in(2) ? TransferFault::Checksum : TransferFault::None,
                                .good_pages = good};
    completions_.push_back(completion);
    counts_.loads += moving.plan.kind == TransferKind::Load && moving.plan.pool_index > 0 ? good : 0;
    moving_.erase(moving_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const Status status = cache_->apply(completions_, 0);
  if (!status) error_ = status.error().message;
  completions_.clear();
}

// Device pages of a pool are those of all groups that share it.
void GroupsModel::move_page(const TransferPlan& plan, const PageTransfer& page) {
  const std::span<const CacheGroup> groups = cache_->config().layout.groups();
  std::uint32_t side = 0;
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    const bool is_history = groups[g].kind == GroupKind::Full || groups[g].kind == GroupKind::Compressed;
    if (!has_pages(groups[g])) continue;
    if (!is_history) ++side;
    if (plan.pool_index != (is_history ? 0 : side)) continue;
    const PoolGeometry& geometry = cache_->geometry(g);
    std::byte* const device = cache_->device_memory(g) + (page.device_page.value * geometry.page().page_bytes());
    std::vector<std::byte>& host = host_pages_[{g, page.host_page.value}];
    host.resize(geometry.page().page_bytes());
    if (plan.kind == TransferKind::Store) {
      std::memcpy(host.data(), device, host.size());
    } else {
      std::memcpy(device, host.data(), host.size());
    }
  }
}

std::string GroupsModel::act() {
  if (one_in(2)) move_pages();
  if (!error_.empty()) return error_;
  for (const auto& request : requests_) {
    if (!request->is_loading) continue;
    const SequenceView view = cache_->view(request->sequence).value();
    if (view.is_loading || view.is_waiting) continue;
    request->is_loading = false;
    request->is_running = true;
    ++counts_.waits;
  }
  if (one_in(compute_one_in_)) {
    if (std::string wrong = compute_next(); !wrong.empty()) return wrong;
  }
  if (one_in(16)) return keep();
  switch (below(12)) {
    case 0:
    case 1:
      return requests_.size() < 6 ? begin() : "";
    case 2:
      return requests_.empty() || !one_in(3) ? "" : end(below(static_cast<std::uint32_t>(requests_.size())));
    case 3:
      return fork();
    case 4:
      return rewind();
    case 5:
      return preempt();
    case 6:
      return one_in(3) ? abort() : finish();
    case 7:
    case 8:
    case 9:
      return flights_.size() < cache_->config().steps_in_flight_max ? plan() : finish();
    default:
      return flights_.empty() ? plan() : finish();
  }
}

std::string GroupsModel::begin() {
  auto request = std::make_shared<Request>();
  request->tokens = draw_prompt();
  SequenceOptions options;
  if (one_in(8)) options.publish = one_in(2) ? Publish::None : Publish::Prompt;
  if (one_in(10)) options.match_tokens_max = below(60);
  Result<Sequence> sequence = cache_->begin(space_, {.tokens = request->tokens}, options);
  if (!sequence) return sequence.error().code == ErrorCode::Unavailable ? "" : sequence.error().message;
  request->sequence = std::move(*sequence);
  request->is_limited = options.match_tokens_max.has_value();
  Request& added = *requests_.emplace_back(std::move(request));
  return one_in(6) ? "" : admit(added, false);
}

std::string GroupsModel::admit(Request& request, bool resumes) {
  const std::uint32_t partial_min =
      cache_->config().partial_reuse_min_tokens.value_or(std::max(1U, (cache_->config().page.page_tokens + 1) / 2));
  // Which part of a page is found is best effort; whole pages all count.
  const testing::HeldGroups held(*cache_, space_);
  const auto [start_min, end_min] = held.find(request.tokens, UINT32_MAX);
  const auto [start_max, end_max] = held.find(request.tokens, partial_min);
  const Result<Admission> admission = resumes ? cache_->resume(request.sequence) : cache_->admit(request.sequence);
  if (!admission) {
    const bool is_full = admission.error().code == ErrorCode::Unavailable;
    return is_full ? "" : admission.error().message;
  }
  request.is_running = admission->is_ready;
  request.is_loading = !admission->is_ready;
  if (request.is_loading) return "";
  const std::uint32_t found = admission->matched_tokens - admission->replay_tokens;
  const bool is_least = found == start_min && admission->matched_tokens >= end_min;
  const bool is_right = is_least || (found > start_min && found <= start_max && admission->partial_tokens > 0);
  const bool is_sure = start_min == start_max && end_min == end_max;
  counts_.sure_hits += is_sure && found > 0 ? 1 : 0;
  if (!request.is_limited && (!is_right || (is_sure && admission->matched_tokens != end_max))) {
    return "found " + std::to_string(found) + " of " + std::to_string(admission->matched_tokens) +
           " tokens; there are " + std::to_string(start_min) + " to " + std::to_string(start_max) + " of " +
           std::to_string(end_max) + " in " + std::to_string(request.tokens.size());
  }
  counts_.hits += found > 0 ? 1 : 0;
  counts_.limited_hits += admission->miss.reason == MissReason::NotHeld ? 1 : 0;
  counts_.replays += admission->replay_tokens > 0 ? 1 : 0;
  counts_.partial_hits += admission->partial_tokens > 0 ? 1 : 0;
  return "";
}

// Prefixes that are kept, a few at a time.
std::string GroupsModel::keep() {
  if (keeps_.size() >= 3 || (!keeps_.empty() && one_in(2))) {
    const std::size_t place = below(static_cast<std::uint32_t>(keeps_.size()));
    const Status status = cache_->unkeep(keeps_[place]);
    keeps_.erase(keeps_.begin() + static_cast<std::ptrdiff_t>(place));
    return status ? "" : status.error().message;
  }
  const Result<Kept> kept = cache_->keep(space_, {.tokens = draw_prompt()});
  if (!kept) return kept.error().code == ErrorCode::Unavailable ? "" : kept.error().message;
  counts_.keeps += kept->token_count > 0 ? 1 : 0;
  keeps_.push_back(kept->id);
  return "";
}

std::vector<TokenId> GroupsModel::tokens_before(const Request& request, const Flight* end) const {
  std::vector<TokenId> tokens = request.tokens;
  for (const auto& flight : flights_) {
    if (flight.get() == end) break;
    for (const Part& part : flight->parts) {
      if (part.request.get() == &request && !part.is_discarded)
        tokens.insert(tokens.end(), part.brings.begin(), part.brings.end());
    }
  }
  return tokens;
}

std::string GroupsModel::plan() {
  auto flight = std::make_unique<Flight>();
  std::vector<StepEntry> entries;
  std::vector<std::size_t> known;  // for each entry, tokens that its sequence has when the steps in flight are done
  for (const auto& request : requests_) {
    if (!request->is_running || one_in(3)) continue;
    const SequenceView view = cache_->view(request->sequence).value();
    if (view.is_waiting) continue;
    std::size_t future = request->tokens.size();
    std::size_t planned_end = future - view.pending_tokens;
    std::size_t drafts_in_flight = 0;
    for (const auto& other : flights_) {
      for (const AttentionPlanEntry& entry : other->step.plan.entries) {
        const Part& part = other->parts[entry.entry_index];
        if (part.request != request || part.is_discarded) continue;
        planned_end = entry.position + entry.token_count;
        future += part.samples ? 1 : 0;
        drafts_in_flight += part.drafts.size();
      }
    }
    // A token that a step in flight brings may be planned before it is known.
    const auto most = static_cast<std::uint32_t>(future - std::min(future, planned_end));
    if (most == 0 || drafts_in_flight > 0) continue;
    StepEntry entry{.sequence = &request->sequence};
    entry.token_count = one_in(2) ? most : 1 + below(most);
    Part& part = flight->parts.emplace_back();
    part.request = request;
    if (draft_max_ > 0 && entry.token_count == most && one_in(3) && view.computed_tokens < future &&
        future + draft_max_ < 90) {
      entry.draft_count = 1 + below(draft_max_);
    }
    entries.push_back(entry);
    known.push_back(future);
  }
  if (entries.empty()) return "";
  Result<PlanOutcome> outcome = cache_->plan_step(entries);
  if (!outcome) {
    const bool is_expected = outcome.error().code == ErrorCode::Unavailable ||
                             outcome.error().message.find("cannot compute") != std::string::npos;
    return is_expected ? "" : outcome.error().message;
  }
  if (!outcome->step) {
    ++counts_.shortages;
    if (outcome->shortage.pages_needed <= outcome->shortage.pages_available) return "a shortage of nothing";
    return "";
  }
  flight->step = *outcome->step;
  for (const AttentionPlanEntry& entry : flight->step.plan.entries) {
    const std::size_t place = entry.entry_index;
    Part& part = flight->parts[place];
    ++part.request->steps_in_flight;
    // As of now: what was to be copied may have been given up.
    part.view = cache_->view(part.request->sequence).value();
    part.view.pages = {};
    counts_.cut_chunks += entry.token_count < entries[place].token_count + entries[place].draft_count ? 1 : 0;
    for (std::uint32_t i = 0; i < entry.draft_count; ++i) part.drafts.push_back(static_cast<TokenId>(below(40)));
    const std::size_t end = entry.position + entry.token_count - entry.draft_count;
    counts_.unknown_tokens += end > part.request->tokens.size() ? 1 : 0;
    part.samples = end >= known[place] && known[place] + part.drafts.size() < 90;
  }
  flights_.push_back(std::move(flight));
  return "";
}

// Steps are computed in the order they were planned, each at any time before it is finished.
std::string GroupsModel::compute_next() {
  for (const auto& flight : flights_) {
    if (!flight->is_computed) return compute(*flight);
  }
  return "";
}

std::string GroupsModel::compute(Flight& flight) {
  if (std::exchange(flight.is_computed, true)) return "";
  counts_.overlaps += &flight != flights_.back().get() ? 1 : 0;
  if (std::string wrong = engine_->start(flight.step); !wrong.empty()) return wrong;
  const AttentionPlan& plan = flight.step.plan;
  for (std::size_t place = 0; place < plan.entries.size(); ++place) {
    const AttentionPlanEntry& entry = plan.entries[place];
    Part& part = flight.parts[entry.entry_index];
    if (part.is_discarded) {
      // It may have been on its way: what it computes is wrong, and harms nobody.
      if (one_in(2)) engine_->spoil(plan, place);
      continue;
    }
    const std::vector<TokenId> before = tokens_before(*part.request, &flight);
    PrefixNumbers numbers = numbers_of(before);
    for (const TokenId draft : part.drafts) numbers.add(draft);
    if (std::string wrong = engine_->run(plan, place, numbers, part.view); !wrong.empty()) {
      return "entry of " + std::to_string(entry.token_count) + " tokens at " + std::to_string(entry.position) + ": " +
             wrong;
    }
    if (part.samples) {
      part.accepted = below(entry.draft_count + 1);
      counts_.rejected_drafts += entry.draft_count - part.accepted;
      part.brings.assign(part.drafts.begin(), part.drafts.begin() + part.accepted);
      part.brings.push_back(static_cast<TokenId>(below(40)));
    }
    numbers.cut(before.size());
    for (const TokenId token : part.brings) numbers.add(token);
    engine_->complete(plan, place, numbers);
  }
  const Status status = cache_->apply_saves(flight.step);
  return status ? "" : status.error().message;
}

std::string GroupsModel::finish() {
  if (flights_.empty()) return "";
  if (std::string wrong = compute(*flights_.front()); !wrong.empty()) return wrong;
  const std::unique_ptr<Flight> flight = std::move(flights_.front());
  flights_.erase(flights_.begin());
  std::vector<StepResult> results(flight->parts.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    Part& part = flight->parts[i];
    if (part.is_discarded) continue;
    --part.request->steps_in_flight;
    if (one_in(24)) {
      ++counts_.discards;
      results[i].discard = true;
      discard_later(*part.request, 0);
      continue;
    }
    results[i].tokens = part.brings;
    results[i].accepted_count = part.accepted;
    part.request->tokens.insert(part.request->tokens.end(), part.brings.begin(), part.brings.end());
  }
  const Status status = cache_->finish_step(flight->step, results);
  return status ? "" : status.error().message;
}

void GroupsModel::discard_later(Request& request, std::size_t place) {
  for (; place < flights_.size(); ++place) {
    for (Part& part : flights_[place]->parts) {
      if (part.request.get() != &request || part.is_discarded) continue;
      part.is_discarded = true;
      --request.steps_in_flight;
    }
  }
}

std::string GroupsModel::abort() {
  if (flights_.empty()) return "";
  ++counts_.aborts;
  const std::size_t place = below(static_cast<std::uint32_t>(flights_.size()));
  // What comes with its plan comes behind the work of the steps before it.
  for (std::size_t i = 0; i < place; ++i) {
    if (std::string wrong = compute(*flights_[i]); !wrong.empty()) return wrong;
  }
  if (!flights_[place]->is_computed) {
    if (std::string wrong = engine_->start(flights_[place]->step); !wrong.empty()) return wrong;
  }
  const std::unique_ptr<Flight> flight = std::move(flights_[place]);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(place));
  if (const Status status = cache_->abort_step(flight->step); !status) return status.error().message;
  for (Part& part : flight->parts) {
    if (part.is_discarded) continue;
    --part.request->steps_in_flight;
    discard_later(*part.request, place);
  }
  return "";
}

GroupsModel::Request* GroupsModel::any_request() {
  return requests_.empty() ? nullptr : requests_[below(static_cast<std::uint32_t>(requests_.size()))].get();
}

GroupsModel::Request* GroupsModel::quiet_request() {
  Request* request = any_request();
  return request != nullptr && request->is_running && request->steps_in_flight == 0 ? request : nullptr;
}

std::string GroupsModel::fork() {
  Request* source = any_request();
  if (source == nullptr || !source->is_running || requests_.size() >= 6) return "";
  const SequenceView view = cache_->view(source->sequence).value();
  const bool is_busy = source->steps_in_flight > 0;
  const std::uint32_t most = is_busy ? view.computed_tokens : view.token_count;
  const std::uint32_t at = one_in(2) ? view.computed_tokens : below(most + 1);
  if (lookahead_of(*cache_) > 0 && at < kFirstTokens.size()) return "";
  Result<Sequence> sequence = cache_->fork(source->sequence, at);
  if (!sequence) return "";
  ++counts_.forks;
  counts_.busy_forks += is_busy ? 1 : 0;
  auto request = std::make_shared<Request>();
  request->sequence = std::move(*sequence);
  request->tokens.assign(source->tokens.begin(), source->tokens.begin() + at);
  request->is_running = true;
  request->is_limited = source->is_limited;
  const TokenId next = static_cast<TokenId>(below(40));
  if (const Status status = cache_->append(request->sequence, {.tokens = {&next, 1}}); !status)
    return status.error().message;
  request->tokens.push_back(next);
  requests_.push_back(std::move(request));
  return "";
}

std::string GroupsModel::rewind() {
  Request* request = quiet_request();
  if (request == nullptr) return "";
  const SequenceView before = cache_->view(request->sequence).value();
  const std::uint32_t count = below(std::min(before.token_count, one_in(3) ? 30U : 5U) + 1);
  if (lookahead_of(*cache_) > 0 && before.token_count - count < kFirstTokens.size()) return "";
  if (const Status status = cache_->rewind(request->sequence, count); !status) {
    ++counts_.refused_rewinds;
    const SequenceView after = cache_->view(request->sequence).value();
    return after.token_count == before.token_count && after.computed_tokens == before.computed_tokens
               ? ""
               : "a refusal changed something";
  }
  ++counts_.rewinds;
  request->tokens.resize(request->tokens.size() - count);
  const TokenId next = static_cast<TokenId>(below(40));
  if (const Status status = cache_->append(request->sequence, {.tokens = {&next, 1}}); !status)
    return status.error().message;
  request->tokens.push_back(next);
  return "";
}

std::string GroupsModel::preempt() {
  Request* request = quiet_request();
  if (request == nullptr) {
    if (requests_.empty()) return "";
    request = requests_[below(static_cast<std::uint32_t>(requests_.size()))].get();
    if (request->is_running) return "";
    const SequenceView view = cache_->view(request->sequence).value();
    if (!view.is_waiting) return "";
    Result<Admission> first = cache_->admit(request->sequence);
    if (first) {
      request->is_running = first->is_ready;
      request->is_loading = !first->is_ready;
      return "";
    }
    return first.error().code == ErrorCode::InvalidArgument ? admit(*request, true) : "";
  }
  if (const Status status = cache_->preempt(request->sequence, Preempt::Drop); !status) return status.error().message;
  ++counts_.preemptions;
  request->is_running = false;
  return one_in(2) ? admit(*request, true) : "";
}

std::string GroupsModel::end(std::size_t index) {
  std::optional<Publish> publish;
  if (one_in(5)) publish = Publish::All;
  if (const Status status = cache_->end(requests_[index]->sequence, publish); !status) return status.error().message;
  requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(index));
  return "";
}

}  // namespace quire
