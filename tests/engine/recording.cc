// SPDX-License-Identifier: Apache-2.0
#include "recording.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace quire::testing {

using tiny_engine::DevicePlan;
using tiny_engine::Engine;
using tiny_engine::StagedNumbers;

namespace {

constexpr std::uint32_t kContextTokens = 64;
constexpr std::uint32_t kSequenceCount = 8;
constexpr std::uint32_t kPageCount = 80;
constexpr std::int32_t kReceiver = 3;
// What counts as wrong: the same as for the engine itself.
constexpr double kLogitTolerance = 1e-4;

/// The value, or the end of the program with the error: scripts are fixed, so what fails is a mistake.
template <typename Value>
Value must(Result<Value> result) {
  if (!result) {
    std::fprintf(stderr, "recording: %s\n", result.error().message.c_str());
    std::abort();
  }
  return *std::move(result);
}
void must(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "recording: %s\n", status.error().message.c_str());
  std::abort();
}

}  // namespace

Recording::Recording(const RecordingShape& shape)
    : shape_(shape),
      weights_(tiny_engine::make_weights({.attention = shape.attention, .layer_window = shape.layer_window}, 21)) {
  const CacheGroup group = tiny_engine::cache_group(weights_.shape, shape.keys_rotated);
  for (std::uint32_t i = 0; i < shape.cache_count; ++i) {
    CacheConfig config{.layout = must(ModelLayout::create("tiny", {group})),
                       .page = {.page_tokens = shape.page_tokens},
                       .device = {.page_count = kPageCount, .memory = DeviceMemory::Adopted},
                       .sequence_count_max = kSequenceCount,
                       .context_tokens_max = kContextTokens,
                       .step_tokens_max = 128,
                       .tree_tokens_max = 16,
                       .plan = {.page_tables = shape.page_tables, .cascade_levels_max = shape.cascade_levels_max},
                       .partial_reuse_min_tokens = 1};
    if (shape.layer_window > 0) config.plan.layer_windows = {shape.layer_window};
    const PageGeometry page = must(PageGeometry::create(group, config.page));
    memories_.emplace_back((kPageCount + 1) * page.page_bytes());
    config.device.adopted_memory = memories_.back().data();
    caches_.push_back(must(Cache::open(std::move(config))));
    spaces_.push_back(must(caches_.back()->key_space({.model = "tiny"})));
  }
}

Recording::LiveId Recording::begin(std::vector<TokenId> tokens, std::size_t cache_index) {
  Live& live = lives_.emplace_back();
  live.cache_index = cache_index;
  live.tokens = std::move(tokens);
  live.handle = must(cache_of(live).begin(spaces_[cache_index], {.tokens = live.tokens}));
  const Admission admission = must(cache_of(live).admit(live.handle));
  std::int32_t previous = OracleTexts::kBegin;
  for (std::uint32_t i = 0; i < admission.matched_tokens; ++i) {
    previous = texts_.intern(previous, live.tokens[i], 0, 0);
    live.texts.push_back(previous);
  }
  return lives_.size() - 1;
}

Recording::LiveId Recording::fork(LiveId live, std::uint32_t at) {
  Live& source = lives_[live];
  Live& target = lives_.emplace_back();
  target.cache_index = source.cache_index;
  target.handle = must(cache_of(source).fork(source.handle, at));
  target.tokens.assign(source.tokens.begin(), source.tokens.begin() + at);
  const std::size_t computed = std::min<std::size_t>(at, source.texts.size());
  target.texts.assign(source.texts.begin(), source.texts.begin() + static_cast<std::ptrdiff_t>(computed));
  target.window = source.window;
  return lives_.size() - 1;
}

void Recording::rewind(LiveId live, std::uint32_t count) {
  Live& it = lives_[live];
  must(cache_of(it).rewind(it.handle, count));
  it.tokens.resize(it.tokens.size() - count);
  it.texts.resize(std::min(it.texts.size(), it.tokens.size()));
}

void Recording::append(LiveId live, std::vector<TokenId> tokens) {
  Live& it = lives_[live];
  must(cache_of(it).append(it.handle, {.tokens = tokens}));
  it.tokens.insert(it.tokens.end(), tokens.begin(), tokens.end());
}

void Recording::set_window(LiveId live, const Window& window) {
  Live& it = lives_[live];
  must(cache_of(it).set_window(it.handle, window));
  it.window = window;
}

void Recording::commit_tree(LiveId live, std::int32_t leaf) {
  Live& it = lives_[live];
  must(cache_of(it).commit_tree(it.handle, leaf));
  std::vector<Live::TreeToken> path;
  for (std::int32_t at = leaf; at >= 0; at = path.back().parent) path.push_back(it.tree[static_cast<std::size_t>(at)]);
  for (std::size_t i = path.size(); i-- > 0;) {
    it.tokens.push_back(path[i].token);
    it.texts.push_back(path[i].text);
  }
  it.tree.clear();
}

void Recording::step(const std::vector<Ask>& asks) {
  Cache& cache = cache_of(lives_[asks.front().live]);
  std::vector<StepEntry> entries;
  std::vector<StepResult> results;
  std::vector<std::vector<TokenId>> values(asks.size());
  for (std::size_t i = 0; i < asks.size(); ++i) {
    const Ask& ask = asks[i];
    const bool is_tree = !ask.parents.empty();
    entries.push_back({.sequence = &lives_[ask.live].handle,
                       .token_count = ask.token_count,
                       .draft_count = is_tree ? 0 : static_cast<std::uint32_t>(ask.drafts.size()),
                       .tree_parents = ask.parents});
    values[i].assign(ask.drafts.begin(), ask.drafts.begin() + (is_tree ? static_cast<std::ptrdiff_t>(ask.drafts.size())
                                                                       : ask.accepted_count));
    values[i].insert(values[i].end(), ask.next.begin(), ask.next.end());
    results.push_back({.tokens = values[i], .accepted_count = ask.accepted_count});
  }
  const PlanOutcome outcome = must(cache.plan_step(entries));
  if (!outcome.step) must(Status(fail(ErrorCode::Unavailable, "short of pages")));
  const AttentionPlan& plan = outcome.step->plan;
  RecordedStep recorded{.cache_index = lives_[asks.front().live].cache_index,
                        .plan = must(DevicePlan::upload(plan)),
                        .entry_count = plan.entry_count};
  for (const AttentionPlanEntry& entry : plan.entries) {
    const Ask& ask = asks[entry.entry_index];
    Live& live = lives_[ask.live];
    const std::uint32_t known_count = entry.token_count - entry.draft_count;
    const bool runs_again = entry.draft_count == 0 && entry.position < live.texts.size();
    std::int32_t previous = entry.position == 0
                                ? OracleTexts::kBegin
                                : live.texts[std::min<std::size_t>(entry.position, live.texts.size()) - 1];
    const auto add = [&](TokenId token) {
      previous = texts_.intern(previous, token, live.window.visible_tokens, live.window.sink_tokens);
      recorded.tokens.push_back(token);
      recorded.texts.push_back(previous);
    };
    for (std::uint32_t j = 0; j < known_count; ++j) {
      add(live.tokens[entry.position + j]);
      if (!runs_again) live.texts.push_back(previous);
    }
    const std::int32_t root = live.texts.back();
    for (std::size_t j = 0; j < ask.drafts.size(); ++j) {
      if (!ask.parents.empty()) {
        previous = ask.parents[j] < 0 ? root : live.tree[static_cast<std::size_t>(ask.parents[j])].text;
      }
      add(ask.drafts[j]);
      if (!ask.parents.empty()) {
        live.tree.push_back({.token = ask.drafts[j], .parent = ask.parents[j], .text = previous});
      } else if (j < ask.accepted_count) {
        live.texts.push_back(previous);
        live.tokens.push_back(ask.drafts[j]);
      }
    }
    live.tokens.insert(live.tokens.end(), ask.next.begin(), ask.next.end());
    recorded.numbers.push_back(ask.live + 1);
    if (!std::exchange(live.has_state, true)) {
      recorded.new_slots.push_back(entry.state_slot);
      recorded.new_numbers.push_back(ask.live + 1);
    }
  }
  steps_.push_back(std::move(recorded));
  must(cache.finish_step(*outcome.step, results));
}

void Recording::prepare_transfer(LiveId source, LiveId target, std::uint32_t count) {
  Live& from = lives_[source];
  Live& to = lives_[target];
  const std::span<const SlotRun> slots = must(cache_of(to).prepare_receive(to.handle, count));
  must(cache_of(from).mark_send(from.handle, static_cast<std::uint32_t>(to.texts.size()), slots, kReceiver));
  std::int32_t previous = to.texts.empty() ? OracleTexts::kBegin : to.texts.back();
  for (std::uint32_t i = 0; i < count; ++i) {
    previous = texts_.intern(previous, to.tokens[to.texts.size()], 0, 0);
    to.texts.push_back(previous);
  }
}

void Recording::finish_transfer(LiveId target) {
  must(cache_of(lives_[target]).finish_receive(lives_[target].handle));
}

// Replays

Recording::World Recording::make_world(bool appends_first) const {
  World world;
  for (const auto& cache : caches_) {
    std::vector<std::byte>& pool = world.pools.emplace_back(cache->geometry().pool_bytes(), std::byte{0x41});
    std::fill_n(pool.begin(), cache->geometry().page().page_bytes(), std::byte{0});
    world.engines.emplace_back(
        weights_, tiny_engine::PoolMemory{.geometry = cache->geometry(), .bytes = nullptr},
        tiny_engine::EngineOptions{.sequence_count_max = kSequenceCount,
                                   .row_columns = (kContextTokens + shape_.page_tokens - 1) / shape_.page_tokens,
                                   .keys_rotated = shape_.keys_rotated,
                                   .appends_first = appends_first});
  }
  world.states.assign(lives_.size() + 1, 0);
  for (std::size_t i = 0; i < world.states.size(); ++i) world.states[i] = i;
  connect(world);
  return world;
}

Recording::World Recording::copy_world(const World& world) const {
  World copy = world;
  connect(copy);
  return copy;
}

// The first engine sends to the second, as the only receiver it has.
void Recording::connect(World& world) const {
  for (std::size_t i = 0; i < world.engines.size(); ++i) world.engines[i].set_pool(world.pools[i].data());
  if (world.engines.size() < 2) return;
  world.engines[0].set_receiver(kReceiver, {.geometry = caches_[1]->geometry(), .bytes = world.pools[1].data()});
}

std::string Recording::replay_step(World& world, const RecordedStep& step, const DevicePlan& plan) const {
  Engine& engine = world.engines[step.cache_index];
  for (std::size_t i = 0; i < step.new_slots.size(); ++i) engine.state(step.new_slots[i]) = step.new_numbers[i];
  if (std::string problem = engine.prepare(plan); !problem.empty()) return problem;
  std::vector<double> logits;
  if (std::string problem = engine.forward(plan, step.tokens, logits); !problem.empty()) return problem;
  std::vector<std::uint64_t> states;
  if (std::string problem = engine.fold_states(plan, step.numbers, states); !problem.empty()) return problem;
  for (std::size_t i = 0; i < states.size(); ++i) {
    std::uint64_t& state = world.states[step.numbers[i]];
    if (states[i] != state) return "a state is another sequence's";
    state = tiny_engine::scramble(state ^ step.numbers[i]);
  }
  const std::size_t vocabulary = weights_.shape.vocabulary;
  for (std::size_t i = 0; i < step.texts.size(); ++i) {
    const std::vector<double>& right = expected_[static_cast<std::size_t>(step.texts[i])];
    double largest = 0.0;
    double difference = 0.0;
    for (std::size_t j = 0; j < vocabulary; ++j) {
      largest = std::max(largest, std::abs(right[j]));
      const double off = std::abs(right[j] - logits[(i * vocabulary) + j]);
      difference = off <= difference ? difference : off;  // NaN stays
    }
    if (difference <= kLogitTolerance * largest) continue;
    return "logits of query " + std::to_string(i) + " are off by " + std::to_string(difference / largest);
  }
  return "";
}

std::string Recording::replay() {
  expected_ = texts_.logits(weights_);
  for (const bool appends_first : {false, true}) {
    World world = make_world(appends_first);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      before_[appends_first ? 1 : 0].push_back(copy_world(world));
      const std::string problem = replay_step(world, steps_[i], steps_[i].plan);
      if (!problem.empty()) return "step " + std::to_string(i) + ": " + problem;
    }
  }
  return "";
}

std::string Recording::replay(const Mutation& mutation) const {
  DevicePlan changed = steps_[mutation.step_index].plan;
  changed.set_number(mutation.numbers, mutation.index, mutation.value);
  for (const std::vector<World>& before : before_) {
    World world = copy_world(before.at(mutation.step_index));
    for (std::size_t i = mutation.step_index; i < steps_.size(); ++i) {
      const std::string problem = replay_step(world, steps_[i], i == mutation.step_index ? changed : steps_[i].plan);
      if (!problem.empty()) return "step " + std::to_string(i) + ": " + problem;
    }
  }
  return "";
}

std::vector<Mutation> Recording::places() const {
  std::vector<Mutation> places;
  for (std::size_t i = 0; i < probes_begin_.value_or(steps_.size()); ++i) {
    const DevicePlan& plan = steps_[i].plan;
    for (const StagedNumbers& numbers : plan.numbers()) {
      for (std::uint64_t index = 0; index < numbers.count; ++index) {
        if (!is_used(steps_[i], numbers, index)) continue;
        places.push_back({.step_index = i, .numbers = numbers, .index = index, .value = plan.number(numbers, index)});
      }
    }
  }
  return places;
}

bool Recording::is_used(const RecordedStep& step, const StagedNumbers& numbers, std::uint64_t index) const {
  const DevicePlan& plan = step.plan;
  const std::int64_t value = plan.number(numbers, index);
  if (numbers.name.starts_with("levels.")) {
    const auto query_indptr = plan.read(plan.groups[0].levels[numbers.level_index].query_indptr);
    const auto page_indptr = plan.read(plan.groups[0].levels[numbers.level_index].page_indptr);
    const bool is_padding = index > 0 && query_indptr[index - 1] == static_cast<std::int32_t>(step.tokens.size());
    const auto has_pages = [&page_indptr](std::uint64_t slice) {
      return slice + 1 < page_indptr.size() && page_indptr[slice] < page_indptr[slice + 1];
    };
    if (numbers.name == "levels.page_indptr") return !is_padding;
    // Where two slices without pages meet is nothing to anyone.
    if (numbers.name == "levels.query_indptr") {
      return !is_padding && ((index > 0 && has_pages(index - 1)) || has_pages(index));
    }
    return has_pages(index);
  }
  if (numbers.name == "block_table") {
    const auto page_indptr = plan.read(plan.groups[0].levels[0].page_indptr);
    const std::uint64_t entry = index / plan.shape.columns;
    const auto listed = static_cast<std::uint64_t>(page_indptr[entry + 1] - page_indptr[entry]);
    if (index % plan.shape.columns >= listed) return false;
  }
  // A hole that a window has left: listed, so that what follows is in its place, and read by nobody.
  const bool is_page = numbers.name == "page_indices" || numbers.name == "block_table" || numbers.name == "deltas.page";
  if (is_page && value == kNullPage.value) return false;
  // The first token of a text sees itself alone, from no distance.
  return shape_.keys_rotated || numbers.name != "query_positions" || value != 0;
}

}  // namespace quire::testing
