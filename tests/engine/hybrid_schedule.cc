// SPDX-License-Identifier: Apache-2.0
#include "hybrid_schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "quire/budget.h"

namespace quire::testing {

using tiny_engine::HybridLayer;
using tiny_engine::LayerKind;

namespace {

template <typename Value, std::size_t kCount>
Value pick(Random& random, const std::array<Value, kCount>& values) {
  return values[random.below(kCount)];
}

bool draw_chance(Random& random, std::uint32_t percent) {
  return random.below(100) < percent;
}

std::uint32_t size32(const auto& container) {
  return static_cast<std::uint32_t>(container.size());
}

HybridLayer draw_layer(Random& random, std::uint32_t page_tokens) {
  HybridLayer layer{.kind =
                        pick(random, std::array{LayerKind::Full, LayerKind::Window, LayerKind::Ring,
                                                LayerKind::Compressed, LayerKind::Overlapped, LayerKind::Recurrent})};
  if (layer.kind == LayerKind::Window || layer.kind == LayerKind::Ring) {
    layer.window_tokens = pick(random, std::array{1U, 2U, 3U, 5U, 6U, 7U, 9U, 13U});
  }
  if (tiny_engine::is_compressor(layer.kind)) {
    std::vector<std::uint32_t> ratios;
    for (std::uint32_t ratio = 2; ratio <= page_tokens; ++ratio) {
      if (page_tokens % ratio == 0) ratios.push_back(ratio);
    }
    if (ratios.empty()) return {.kind = LayerKind::Recurrent};
    layer.ratio = ratios[random.below(size32(ratios))];
  }
  return layer;
}

// The tree is of pages that keep everything, so there must be such.
bool keeps_everything(const HybridLayer& layer) {
  return layer.kind == LayerKind::Full || tiny_engine::is_compressor(layer.kind);
}

GroupRetention draw_retention(Random& random, std::uint32_t page_tokens, RetentionRule usual) {
  if (draw_chance(random, 55)) {
    return {.rule = RetentionRule::Every, .interval_tokens = page_tokens * (1 + random.below(3))};
  }
  if (draw_chance(random, 15)) return {.rule = RetentionRule::None};
  return {.rule = usual};
}

// A layer that keeps all tokens may see the last ones only; block tables have no lists for that.
void draw_layer_windows(HybridSetup& setup, Random& random) {
  if (setup.page_tables == PageTables::Block) return;
  for (HybridLayer& layer : setup.shape.layers) {
    if (layer.kind == LayerKind::Full && draw_chance(random, 40)) {
      layer.window_tokens = pick(random, std::array{1U, 2U, 5U, 6U, 9U, 17U});
    }
  }
}

// Often more than the device has, sometimes less.
void draw_host(HybridSetup& setup, Random& random) {
  const auto draw_count = [&](std::uint32_t device_pages) {
    return 1 + (device_pages * pick(random, std::array{1U, 4U, 8U, 20U}) / 4);
  };
  setup.host_page_count = draw_count(setup.page_count);
  if (draw_chance(random, 70)) {
    for (const std::uint32_t count : setup.group_page_counts) setup.host_group_page_counts.push_back(draw_count(count));
  }
  setup.write_policy =
      pick(random, std::array{WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective});
  setup.transfer_count_max = pick(random, std::array{2U, 4U, 16U});
  setup.transfer_pages_max = pick(random, std::array{1U, 3U, 8U, 64U});
  setup.has_own_mover = draw_chance(random, 25);
  setup.transfer_chances = {.delay = pick(random, std::array{0U, 30U, 70U, 90U}),
                            .fault = pick(random, std::array{0U, 0U, 5U, 30U})};
  setup.transfer_seed = random.next();
}

// In half of the seeds with a host, whose draws are their own: all others stay what they are. Most requests come back
// for pages that have gone down.
void draw_ahead(HybridSetup& setup) {
  Random random(setup.transfer_seed);
  setup.plans_while_loading = draw_chance(random, 50);
  if (!setup.plans_while_loading) return;
  setup.layer_bands = static_cast<std::uint16_t>(1 + random.below(size32(setup.shape.layers)));
  setup.host_page_count = std::max(setup.host_page_count, 2 * setup.page_count);
  for (std::size_t i = 0; i < setup.host_group_page_counts.size(); ++i) {
    setup.host_group_page_counts[i] = std::max(setup.host_group_page_counts[i], 3 * setup.group_page_counts[i]);
  }
  if (draw_chance(random, 70)) setup.write_policy = WritePolicy::WriteThrough;
  if (draw_chance(random, 70)) setup.transfer_pages_max = 64;
  setup.transfer_count_max = std::max(setup.transfer_count_max, 8U);
}

}  // namespace

std::string_view to_string(HybridTier tier) {
  switch (tier) {
    case HybridTier::Device:
      return "Device";
    case HybridTier::Host:
      return "Host";
    case HybridTier::Disk:
      return "Disk";
  }
  return "";
}

HybridSetup draw_hybrid_setup(Random& random, HybridTier tier) {
  const bool has_disk = tier == HybridTier::Disk;  // whose pages are no smaller
  HybridSetup setup;
  setup.page_tokens =
      has_disk ? pick(random, std::array{16U, 24U}) : pick(random, std::array{1U, 2U, 3U, 4U, 4U, 6U, 8U, 12U});
  for (std::uint32_t i = 1 + random.below(6); i > 0; --i) {
    setup.shape.layers.push_back(draw_layer(random, setup.page_tokens));
  }
  if (std::ranges::none_of(setup.shape.layers, keeps_everything)) {
    const auto at = random.below(size32(setup.shape.layers) + 1);
    setup.shape.layers.insert(setup.shape.layers.begin() + at, {.kind = LayerKind::Full});
  }
  setup.shape.kv_heads = 1 + random.below(2);
  setup.shape.rewind_tokens = pick(random, std::array{0U, 1U, 3U, 4U});
  setup.shape.state_retention = draw_retention(random, setup.page_tokens, RetentionRule::Last);
  setup.shape.window_retention = draw_retention(random, setup.page_tokens, RetentionRule::Dense);
  if (draw_chance(random, 40)) setup.shape.window_retention = {};
  setup.shape.declares_replay = draw_chance(random, 40);
  setup.shape.keys_rotated = draw_chance(random, 40);
  setup.adopts_memory = draw_chance(random, 60);
  setup.resizes = !setup.adopts_memory;
  setup.context_tokens_max = pick(random, std::array{24U, 40U, 60U}) * (has_disk ? 2 : 1);
  setup.sequence_count_max = pick(random, std::array{3U, 6U, 9U});
  setup.state_slot_count = draw_chance(random, 30) ? 1 + random.below(setup.sequence_count_max) : 0;
  setup.step_tokens_max = pick(random, std::array{24U, 48U, 96U});
  setup.steps_in_flight_max = 1 + random.below(3);
  setup.page_tables = pick(random, std::array{PageTables::Rows, PageTables::Csr, PageTables::Block});
  draw_layer_windows(setup, random);
  setup.cascade_levels_max = setup.page_tables == PageTables::Block ? 1 : 1 + random.below(3);
  setup.byte_layout = pick(random, std::array{ByteLayout::PageFirst, ByteLayout::LayerFirst});
  setup.head_order = pick(random, std::array{HeadOrder::Nhd, HeadOrder::Hnd});
  setup.policy = std::string(policy_names()[random.below(size32(policy_names()))]);
  setup.dedup = !draw_chance(random, 20);
  // Often just enough for one sequence, so that eviction never stops.
  const BudgetRequest request{.page = {.page_tokens = setup.page_tokens},
                              .context_tokens_max = setup.context_tokens_max,
                              .in_flight_tokens = setup.step_tokens_max,
                              .rewind_tokens = setup.shape.rewind_tokens};
  const std::uint32_t largest = (setup.context_tokens_max + setup.page_tokens - 1) / setup.page_tokens;
  setup.page_count = largest + pick(random, std::array{0U, 1U, 2U, largest, 3 * largest});
  for (const CacheGroup& group : tiny_engine::hybrid_groups(setup.shape).groups) {
    const auto needed = static_cast<std::uint32_t>(pages_of_request(group, request, setup.context_tokens_max));
    setup.group_page_counts.push_back(std::max(needed, 1U) + pick(random, std::array{0U, 1U, 2U, needed, 3 * needed}));
  }
  if (tier != HybridTier::Device) {
    draw_host(setup, random);
    draw_ahead(setup);
  }
  if (has_disk) {
    setup.has_own_mover = true;
    setup.disk_capacity_bytes = std::uint64_t{256} << 20U;
  }
  const std::uint64_t path = setup.transfer_seed % 4;
  if (setup.adopts_memory && setup.has_own_mover && path < 3) setup.accelerator_path = static_cast<SwapPath>(path);
  return setup;
}

std::string HybridSchedule::apply(Random& random) {
  rig_.set_call(++call_);
  // Steps come most often; the rest is drawn evenly enough that all of it meets in one schedule.
  constexpr std::array<std::pair<Operation, std::uint32_t>, 16> kOperations = {{{&HybridSchedule::plan, 10},
                                                                                {&HybridSchedule::finish, 8},
                                                                                {&HybridSchedule::run, 2},
                                                                                {&HybridSchedule::abort, 1},
                                                                                {&HybridSchedule::begin, 4},
                                                                                {&HybridSchedule::admit, 4},
                                                                                {&HybridSchedule::append, 2},
                                                                                {&HybridSchedule::fork, 2},
                                                                                {&HybridSchedule::rewind, 2},
                                                                                {&HybridSchedule::set_window, 2},
                                                                                {&HybridSchedule::preempt, 1},
                                                                                {&HybridSchedule::end, 2},
                                                                                {&HybridSchedule::reclaim, 1},
                                                                                {&HybridSchedule::resize, 1},
                                                                                {&HybridSchedule::race, 8},
                                                                                {&HybridSchedule::restart, 1}}};
  const auto weight_of = [&](const auto& drawn) {
    const bool is_off = (drawn.first == &HybridSchedule::restart && rig_.setup().disk_directory.empty()) ||
                        (drawn.first == &HybridSchedule::race && !rig_.setup().plans_while_loading);
    return is_off ? 0 : drawn.second;
  };
  std::uint32_t total = 0;
  for (const auto& drawn : kOperations) total += weight_of(drawn);
  std::uint32_t at = random.below(total);
  std::string problem;
  for (const auto& drawn : kOperations) {
    const auto [operation, weight] = std::pair(drawn.first, weight_of(drawn));
    if (at < weight) {
      problem = (this->*operation)(random);
      break;
    }
    at -= weight;
  }
  if (problem.empty()) problem = rig_.collect(/*all=*/false);
  return problem.empty() ? rig_.check() : problem;
}

std::string HybridSchedule::drain() {
  Random random(call_);
  while (!rig_.flights().empty()) {
    if (std::string problem = finish(random); !problem.empty()) return problem;
  }
  while (!rig_.lives().empty()) {
    if (std::string problem = rig_.end(*rig_.lives().front()); !problem.empty()) return problem;
  }
  return rig_.check_empty();
}

TokenId HybridSchedule::draw_token(Random& random) const {
  return static_cast<TokenId>(random.below(rig_.setup().shape.vocabulary));
}

HybridLive* HybridSchedule::draw_resting(Random& random) {
  std::vector<HybridLive*> resting;
  for (const auto& live : rig_.lives()) {
    if (rig_.is_resting(*live)) resting.push_back(live.get());
  }
  return resting.empty() ? nullptr : resting[random.below(size32(resting))];
}

// Sequences

std::string HybridSchedule::begin(Random& random) {
  if (rig_.lives().size() + 1 > rig_.setup().sequence_count_max) return "";
  std::vector<TokenId> tokens;
  // Most prompts begin like an earlier one, so that shared prefixes branch at several depths.
  if (!prompts_.empty() && draw_chance(random, 80)) {
    const std::vector<TokenId>& earlier = prompts_[random.below(size32(prompts_))];
    const std::uint32_t count = draw_chance(random, 40) ? size32(earlier) : 1 + random.below(size32(earlier));
    tokens.assign(earlier.begin(), earlier.begin() + count);
  }
  const std::uint32_t room = rig_.setup().context_tokens_max - 4;
  const std::uint32_t wanted = size32(tokens) + (tokens.empty() ? 1 : 0) + random.below(20);
  while (tokens.size() < std::min(wanted, room)) tokens.push_back(draw_token(random));
  if (tokens.size() > room) tokens.resize(room);
  SequenceOptions options;
  options.use_cache = !draw_chance(random, 5);
  if (draw_chance(random, 10)) options.match_tokens_max = random.below(size32(tokens));
  if (draw_chance(random, 12)) options.publish = draw_chance(random, 50) ? Publish::Prompt : Publish::None;
  options.plan_while_loading = rig_.setup().plans_while_loading && draw_chance(random, 80);
  HybridLive* live = nullptr;
  std::string problem = rig_.begin(tokens, options, live);
  if (!problem.empty() || live == nullptr) return problem;
  // With a host tier they come back for longer.
  const bool has_host = rig_.setup().host_page_count > 0;
  if (prompts_.size() < 10) {
    prompts_.push_back(std::move(tokens));
  } else if (!has_host || draw_chance(random, 20)) {
    prompts_[random.below(10)] = std::move(tokens);
  }
  return "";
}

std::string HybridSchedule::admit(Random& random) {
  std::vector<HybridLive*> waiting;
  for (const auto& live : rig_.lives()) {
    if (!live->is_admitted) waiting.push_back(live.get());
  }
  return waiting.empty() ? "" : rig_.admit(*waiting[random.below(size32(waiting))]);
}

std::string HybridSchedule::append(Random& random) {
  HybridLive* live = draw_resting(random);
  if (live == nullptr) return "";
  const std::uint32_t room = rig_.setup().context_tokens_max - size32(live->tokens);
  if (room == 0) return "";
  std::vector<TokenId> added(1 + random.below(std::min(room, 9U)));
  for (TokenId& token : added) token = draw_token(random);
  return rig_.append(*live, added);
}

std::string HybridSchedule::fork(Random& random) {
  if (rig_.lives().size() + 1 > rig_.setup().sequence_count_max) return "";
  std::vector<HybridLive*> sources;
  for (const auto& live : rig_.lives()) {
    if (live->is_admitted && !live->is_loading && !live->is_ahead) sources.push_back(live.get());
  }
  if (sources.empty()) return "";
  HybridLive& source = *sources[random.below(size32(sources))];
  const std::size_t limit = rig_.is_in_flight(source) ? source.texts.size() : source.tokens.size();
  // Most forks are where the sequence is: that is where it has a state.
  std::uint32_t at = random.below(static_cast<std::uint32_t>(limit) + 1);
  if (draw_chance(random, 60)) at = static_cast<std::uint32_t>(draw_chance(random, 50) ? limit : source.texts.size());
  HybridLive* live = nullptr;
  return rig_.fork(source, at, live);
}

std::string HybridSchedule::rewind(Random& random) {
  HybridLive* live = draw_resting(random);
  if (live == nullptr || live->tokens.empty()) return "";
  const std::uint32_t known = size32(live->tokens);
  const std::uint32_t near = std::min(known, rig_.setup().shape.rewind_tokens + 1);
  return rig_.rewind(*live, 1 + random.below(draw_chance(random, 60) ? near : known));
}

std::string HybridSchedule::set_window(Random& random) {
  HybridLive* live = draw_resting(random);
  for (const auto& other : rig_.lives()) {
    const bool may_wait = !other->is_admitted && !other->is_saved;
    if (may_wait && (live == nullptr || draw_chance(random, 30))) live = other.get();
  }
  if (live == nullptr) return "";
  Window window{.visible_tokens = 1 + random.below(draw_chance(random, 50) ? 12U : 30U)};
  if (draw_chance(random, 60)) window.sink_tokens = random.below(window.visible_tokens);
  return rig_.set_window(*live, window);
}

std::string HybridSchedule::preempt(Random& random) {
  HybridLive* live = draw_resting(random);
  const bool saves = rig_.setup().host_page_count > 0 && draw_chance(random, 40);
  return live == nullptr ? "" : rig_.preempt(*live, saves ? Preempt::Save : Preempt::Drop);
}

std::string HybridSchedule::end(Random& random) {
  if (rig_.lives().empty()) return "";
  return rig_.end(*rig_.lives()[random.below(size32(rig_.lives()))]);
}

std::string HybridSchedule::reclaim(Random& random) {
  // All of it: what is on the host as well comes back from there.
  const bool is_all = rig_.setup().host_page_count > 0 && draw_chance(random, 60);
  const Result<std::uint32_t> count = rig_.cache().reclaim(is_all ? rig_.setup().page_count : random.below(4));
  if (!count) return "reclaim: " + count.error().message;
  counts_.add("pages reclaimed", *count);
  return "";
}

std::string HybridSchedule::resize(Random& random) {
  if (!rig_.setup().resizes) return "";
  // Steps and transfers would be in the way, and so would idle pages.
  while (draw_chance(random, 80) && !rig_.flights().empty()) {
    if (std::string problem = finish(random); !problem.empty()) return problem;
  }
  if (draw_chance(random, 50)) {
    const Result<std::uint32_t> count = rig_.cache().reclaim(rig_.setup().page_count);
    if (!count) return "reclaim: " + count.error().message;
  }
  if (draw_chance(random, 80)) {
    if (std::string problem = rig_.collect(); !problem.empty()) return problem;
  }
  const HybridSetup& setup = rig_.setup();
  const std::uint32_t least = (setup.context_tokens_max + setup.page_tokens - 1) / setup.page_tokens;
  return rig_.resize(draw_chance(random, 50) ? least + random.below(3) : least + random.below(3 * least));
}

// Steps

bool HybridSchedule::describe(HybridLive& live, std::uint32_t tokens_left, Random& random, HybridAsk& ask) {
  const HybridSetup& setup = rig_.setup();
  const SequenceView view = rig_.cache().view(live.handle).value();
  const bool is_busy = rig_.is_in_flight(live);
  if (!view.is_ready || live.is_in_doubt || (is_busy && rig_.is_undecided(live))) return false;
  // A step that computes the last known token brings the next one.
  const bool brings = is_busy && view.pending_tokens == 0;
  const std::uint32_t missing = view.pending_tokens + (brings ? 1 : 0);
  const std::uint32_t most = std::min(missing, tokens_left);
  std::uint32_t in_flight = 0;
  for (const auto& flight : rig_.flights()) {
    for (const auto& entry : flight.entries) in_flight += entry.number == live.number && !entry.is_void ? 1 : 0;
  }
  const std::uint32_t used = size32(live.tokens) + in_flight;
  if (most == 0 || used > setup.context_tokens_max) return false;
  ask = {.live = &live, .token_count = draw_chance(random, 50) ? most : 1 + random.below(most)};
  ask.brings = draw_token(random);
  const bool runs_again = !is_busy && rig_.planned_count(live) == live.tokens.size();
  const std::uint32_t room = std::min(setup.context_tokens_max - used, tokens_left - most);
  const bool has_slots = std::ranges::any_of(rig_.cache().config().layout.groups(), has_slot);
  const std::uint32_t drafts_max = std::min(has_slots ? setup.shape.rewind_tokens : 5U, room > 0 ? room - 1 : 0U);
  if (!runs_again && most == missing && drafts_max > 0 && draw_chance(random, 30)) {
    ask.token_count = brings ? 1 : 0;
    ask.drafts.resize(1 + random.below(drafts_max));
    for (TokenId& token : ask.drafts) token = draw_token(random);
  }
  return true;
}

std::string HybridSchedule::plan(Random& random) {
  const HybridSetup& setup = rig_.setup();
  if (rig_.flights().size() == setup.steps_in_flight_max) return finish(random);
  std::vector<HybridLive*> lives;
  for (const auto& live : rig_.lives()) {
    if (live->is_admitted && draw_chance(random, 70)) lives.push_back(live.get());
  }
  for (std::size_t i = lives.size(); i > 1; --i) {
    std::swap(lives[i - 1], lives[random.below(static_cast<std::uint32_t>(i))]);
  }
  std::vector<HybridAsk> asks;
  std::uint32_t tokens_left = setup.step_tokens_max;
  for (HybridLive* live : lives) {
    HybridAsk ask;
    if (!describe(*live, tokens_left, random, ask)) continue;
    const SequenceView view = rig_.cache().view(live->handle).value();
    const std::uint32_t known = ask.drafts.empty() ? ask.token_count : std::max(view.pending_tokens, 1U);
    tokens_left -= known + size32(ask.drafts);
    asks.push_back(std::move(ask));
  }
  if (asks.empty()) return rig_.flights().empty() ? "" : finish(random);
  PlanShape shape;
  if (draw_chance(random, 25)) {
    shape.entries = size32(asks) + random.below(setup.sequence_count_max - size32(asks) + 1);
    shape.tokens = setup.step_tokens_max - random.below(tokens_left + 1);
    shape.columns = (setup.context_tokens_max + setup.page_tokens - 1) / setup.page_tokens;
  }
  bool planned = false;
  std::uint32_t fitting = 0;
  if (std::string problem = rig_.plan(asks, shape, planned, fitting); !problem.empty() || planned) return problem;
  if (fitting == 0) return make_room(random);
  asks.resize(fitting);
  if (std::string problem = rig_.plan(asks, {}, planned, fitting); !problem.empty()) return problem;
  return planned ? "" : "entries that fit do not fit";
}

// Nothing fits. With steps or transfers in flight their end may help; otherwise somebody has to go.
std::string HybridSchedule::make_room(Random& random) {
  if (draw_chance(random, 30)) {
    if (std::string problem = rig_.collect(); !problem.empty()) return problem;
  }
  if (!rig_.flights().empty()) return finish(random);
  return draw_chance(random, 60) ? preempt(random) : end(random);
}

// A request for something that has gone down to the host, if it can be: it is planned while its pages are on their way.
std::string HybridSchedule::race(Random& random) {
  if (rig_.lives().size() == rig_.setup().sequence_count_max) {
    if (std::string problem = end(random); !problem.empty()) return problem;
  }
  if (draw_chance(random, 60)) {
    const Result<std::uint32_t> count = rig_.cache().reclaim(rig_.setup().page_count);
    if (!count) return "reclaim: " + count.error().message;
  }
  if (std::string problem = begin(random); !problem.empty()) return problem;
  if (std::string problem = admit(random); !problem.empty()) return problem;
  if (std::string problem = rig_.start_transfers(); !problem.empty()) return problem;
  return draw_chance(random, 80) ? plan(random) : "";
}

// The process ends, with whatever it was at.
std::string HybridSchedule::restart(Random& random) {
  return draw_chance(random, 10) ? rig_.restart(draw_chance(random, 70)) : "";
}

std::string HybridSchedule::run(Random& random) {
  if (rig_.flights().empty()) return "";
  return rig_.run_up_to(random.below(size32(rig_.flights())));
}

std::string HybridSchedule::finish(Random& random) {
  if (rig_.flights().empty()) return "";
  return rig_.finish([&](const HybridRig::FlightEntry& entry, const HybridLive& live) {
    HybridAnswer answer;
    if (draw_chance(random, 4)) {
      answer.discard = true;
      return answer;
    }
    if (entry.must_bring) {
      answer.next.push_back(entry.brings);
      return answer;
    }
    answer.accepted_count = random.below(entry.draft_count + 1);
    const bool reaches_end = entry.position + entry.known_count == live.tokens.size();
    const std::uint32_t room = rig_.setup().context_tokens_max - size32(live.tokens) - answer.accepted_count;
    std::uint32_t more = std::min(room, draw_chance(random, 75) ? 1U : random.below(4));
    while (reaches_end && more-- > 0) answer.next.push_back(draw_token(random));
    return answer;
  });
}

std::string HybridSchedule::abort(Random& random) {
  if (rig_.flights().empty()) return "";
  return rig_.abort(random.below(size32(rig_.flights())), draw_chance(random, 40));
}

}  // namespace quire::testing
