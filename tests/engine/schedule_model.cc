// SPDX-License-Identifier: Apache-2.0
//
// What random schedules do to sequences; schedule_steps.cc has what they do to steps, schedule_transfers.cc what they
// send.
#include "schedule_model.h"

#include <algorithm>
#include <array>
#include <utility>

namespace quire::testing {

using tiny_engine::AttentionKind;
using tiny_engine::Engine;
using tiny_engine::Weights;

namespace {

// The same weights for all seeds: they are no part of what is tested. The window is.
Weights weights_of(const ScheduleSetup& setup) {
  static const Weights gqa = tiny_engine::make_weights({.attention = AttentionKind::Gqa}, 11);
  static const Weights mla = tiny_engine::make_weights({.attention = AttentionKind::Mla}, 12);
  Weights weights = setup.attention == AttentionKind::Gqa ? gqa : mla;
  weights.shape.layer_window = setup.layer_window;
  return weights;
}

template <typename Value, std::size_t kCount>
Value pick(Random& random, const std::array<Value, kCount>& values) {
  return values[random.below(kCount)];
}

std::uint32_t pages_for(std::uint32_t tokens, std::uint32_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

}  // namespace

ScheduleSetup draw_setup(Random& random) {
  ScheduleSetup setup;
  setup.attention = draw_chance(random, 40) ? AttentionKind::Mla : AttentionKind::Gqa;
  setup.keys_rotated = draw_chance(random, 35);
  setup.appends_first = draw_chance(random, 50);
  setup.adopts_memory = draw_chance(random, 50);
  setup.page_tokens = pick(random, std::array{1U, 2U, 3U, 4U, 5U, 8U, 16U});
  setup.context_tokens_max = pick(random, std::array{24U, 40U, 64U});
  setup.sequence_count_max = pick(random, std::array{3U, 6U, 10U});
  const std::uint32_t largest = pages_for(setup.context_tokens_max, setup.page_tokens);
  // Often just enough for one sequence, so that eviction never stops.
  setup.page_count = largest + pick(random, std::array{0U, 1U, 2U, largest / 2, largest, 4 * largest});
  setup.step_tokens_max = pick(random, std::array{24U, 48U, 96U});
  setup.steps_in_flight_max = 1 + random.below(3);
  setup.tree_tokens_max = pick(random, std::array{4U, 10U, 20U});
  setup.window_rewind_tokens = pick(random, std::array{0U, 0U, 3U, 9U});
  setup.host_page_count = pick(random, std::array{0U, largest / 2, 2 * largest});
  setup.page_tables = pick(random, std::array{PageTables::Rows, PageTables::Csr, PageTables::Block});
  setup.cascade_levels_max = setup.page_tables == PageTables::Block ? 1 : 1 + random.below(5);
  setup.byte_layout = pick(random, std::array{ByteLayout::PageFirst, ByteLayout::LayerFirst});
  setup.head_order = pick(random, std::array{HeadOrder::Nhd, HeadOrder::Hnd});
  setup.policy = std::string(policy_names()[random.below(static_cast<std::uint32_t>(policy_names().size()))]);
  setup.whole_runs = draw_chance(random, 15);
  if (setup.page_tables != PageTables::Block && draw_chance(random, 40)) {
    setup.layer_window = pick(random, std::array{1U, 2U, 5U, 9U, 17U, 100U});
  }
  setup.dedup = !draw_chance(random, 30);
  return setup;
}

std::string to_string(const ScheduleSetup& setup) {
  const auto number = [](const char* name, std::uint32_t value) {
    return std::string(", ") + name + std::to_string(value);
  };
  std::string text = setup.attention == AttentionKind::Mla ? "mla" : "gqa";
  text += setup.keys_rotated ? ", rotated" : ", unrotated";
  text += setup.appends_first ? ", appends first" : ", appends last";
  text += setup.adopts_memory ? ", own memory" : ", quire's memory";
  text += number("page_tokens ", setup.page_tokens) + number("pages ", setup.page_count) +
          number("context ", setup.context_tokens_max) + number("sequences ", setup.sequence_count_max) +
          number("step tokens ", setup.step_tokens_max) + number("in flight ", setup.steps_in_flight_max) +
          number("tree ", setup.tree_tokens_max) + number("slack ", setup.window_rewind_tokens) +
          number("saved ", setup.host_page_count) + number("levels ", setup.cascade_levels_max) +
          number("layer window ", setup.layer_window);
  text += setup.page_tables == PageTables::Rows ? ", rows" : setup.page_tables == PageTables::Csr ? ", csr" : ", block";
  return text + ", " + setup.policy + (setup.whole_runs ? ", whole runs" : "") + (setup.dedup ? "" : ", no dedup");
}

ScheduleModel::ScheduleModel(const ScheduleSetup& setup, ScheduleCounts& counts, const ScheduleDevice& device)
    : setup_(setup), counts_(counts), weights_(weights_of(setup)) {
  const CacheGroup group = tiny_engine::cache_group(weights_.shape, setup.keys_rotated);
  CacheConfig config{.layout = ModelLayout::create("tiny", {group}).value(),
                     .page = {.page_tokens = setup.page_tokens, .head_order = setup.head_order},
                     .device = {.page_count = setup.page_count, .byte_layout = setup.byte_layout},
                     .host = {.page_count = setup.host_page_count,
                              .write_policy = WritePolicy::Selective,
                              .write_hits_min = UINT32_MAX},
                     .sequence_count_max = setup.sequence_count_max,
                     .context_tokens_max = setup.context_tokens_max,
                     .step_tokens_max = setup.step_tokens_max,
                     .dedup = setup.dedup,
                     .steps_in_flight_max = setup.steps_in_flight_max,
                     .tree_tokens_max = setup.tree_tokens_max,
                     .window_rewind_tokens = setup.window_rewind_tokens,
                     .plan = {.page_tables = setup.page_tables, .cascade_levels_max = setup.cascade_levels_max},
                     .partial_reuse_min_tokens = 1,
                     .policy = setup.policy,
                     .whole_runs = setup.whole_runs};
  // Another window beside it, so that its lists are not the first.
  if (setup.layer_window > 0) config.plan.layer_windows = {3, setup.layer_window};
  if (device.device != nullptr) {
    setup_.adopts_memory = false;
    config.device.memory = DeviceMemory::Accelerator;
    config.device.accelerator = device.device;
    config.host.staging_bytes = std::uint64_t{1} << 20U;
    // As the seed has it: nothing is measured, and all ways are gone.
    const SwapPath path = setup.page_tokens % 2 == 0   ? SwapPath::Direct
                          : setup.page_tokens % 3 == 0 ? SwapPath::Whole
                                                       : SwapPath::Staged;
    config.host.load_paths = config.host.store_paths = SwapPaths{.few = path, .many = path};
  }
  if (setup_.adopts_memory) {
    const PageGeometry page = PageGeometry::create(group, config.page).value();
    memory_.resize((std::size_t{setup.page_count} + 1) * page.page_bytes());
    // Not zeros: pages that were never written must not look harmless.
    std::fill(memory_.begin() + static_cast<std::ptrdiff_t>(page.page_bytes()), memory_.end(), std::byte{0x41});
    config.device.memory = DeviceMemory::Adopted;
    config.device.adopted_memory = memory_.data();
  }
  cache_ = Cache::open(std::move(config)).value();
  const tiny_engine::PoolMemory pool{.geometry = cache_->geometry(), .bytes = cache_->device_memory()};
  const std::uint32_t row_columns = pages_for(setup.context_tokens_max, setup.page_tokens);
  if (device.device != nullptr) {
    device_step_ = tiny_engine::DeviceStep::create({.device = device.device,
                                                    .kernels = device.kernels,
                                                    .pool = pool,
                                                    .shape = weights_.shape,
                                                    .keys_rotated = setup.keys_rotated,
                                                    .page_tables = setup.page_tables,
                                                    .sequence_count_max = setup.sequence_count_max,
                                                    .row_columns = row_columns,
                                                    .step_tokens_max = setup.step_tokens_max,
                                                    .context_tokens_max = setup.context_tokens_max})
                       .value();
  }
  engine_ = std::make_unique<Engine>(weights_, pool,
                                     tiny_engine::EngineOptions{.sequence_count_max = setup.sequence_count_max,
                                                                .row_columns = row_columns,
                                                                .keys_rotated = setup.keys_rotated,
                                                                .appends_first = setup.appends_first,
                                                                .applies_copies = setup_.adopts_memory,
                                                                .device = device_step_.get()});
  engine_->set_receiver(kOwnPool, {.geometry = cache_->geometry(), .bytes = cache_->device_memory()});
  space_ = cache_->key_space({.model = "tiny"}).value();
}

std::string ScheduleModel::apply(Random& random) {
  ++call_count_;
  // Steps come most often; the rest is drawn evenly enough that all of it meets in one schedule.
  constexpr std::array<Operation, 46> kOperations = {
      &ScheduleModel::plan,       &ScheduleModel::plan,        &ScheduleModel::plan,        &ScheduleModel::plan,
      &ScheduleModel::plan,       &ScheduleModel::plan,        &ScheduleModel::plan,        &ScheduleModel::plan,
      &ScheduleModel::plan,       &ScheduleModel::plan,        &ScheduleModel::finish,      &ScheduleModel::finish,
      &ScheduleModel::finish,     &ScheduleModel::finish,      &ScheduleModel::finish,      &ScheduleModel::finish,
      &ScheduleModel::finish,     &ScheduleModel::run,         &ScheduleModel::run,         &ScheduleModel::abort,
      &ScheduleModel::begin,      &ScheduleModel::begin,       &ScheduleModel::begin,       &ScheduleModel::admit,
      &ScheduleModel::admit,      &ScheduleModel::admit,       &ScheduleModel::append,      &ScheduleModel::append,
      &ScheduleModel::append,     &ScheduleModel::fork,        &ScheduleModel::fork,        &ScheduleModel::rewind,
      &ScheduleModel::set_window, &ScheduleModel::commit_tree, &ScheduleModel::commit_tree, &ScheduleModel::commit_tree,
      &ScheduleModel::preempt,    &ScheduleModel::resume,      &ScheduleModel::end,         &ScheduleModel::reclaim,
      &ScheduleModel::receive,    &ScheduleModel::receive,     &ScheduleModel::arrive,      &ScheduleModel::arrive,
      &ScheduleModel::mark_send,  &ScheduleModel::arrive};
  std::string problem = (this->*kOperations[random.below(kOperations.size())])(random);
  if (problem.empty()) {
    const Status status = cache_->check_invariants();
    if (!status) problem = "invariant: " + status.error().message;
  }
  if (problem.empty()) problem = compare_views();
  if (problem.empty()) problem = compare_equal_pages();
  return problem;
}

std::optional<OracleTexts::Mismatch> ScheduleModel::compare() const {
  counts_.add("logits compared", texts_.note_count());
  counts_.add("pages evicted", cache_->stats()->evicted_page_total);
  counts_.add("bytes loaded from the host", cache_->stats()->loaded_bytes);
  counts_.add(setup_.dedup ? "schedule with dedup" : "schedule without dedup");
  // Both sides compute in double, so that they differ by rounding alone: far below what the engine may be off by.
  constexpr double kTolerance = 1e-9;
  return texts_.compare(weights_, kTolerance);
}

// Sequences

std::string ScheduleModel::begin(Random& random) {
  if (lives_.size() + 1 > setup_.sequence_count_max) return "";
  std::vector<TokenId> tokens;
  // Most prompts begin like an earlier one, so that shared prefixes branch at several depths.
  if (!prompts_.empty() && draw_chance(random, 75)) {
    const std::vector<TokenId>& earlier = prompts_[random.below(static_cast<std::uint32_t>(prompts_.size()))];
    const auto count = 1 + random.below(static_cast<std::uint32_t>(earlier.size()));
    tokens.assign(earlier.begin(), earlier.begin() + count);
  }
  const std::uint32_t room = setup_.context_tokens_max - 4;
  const std::uint32_t wanted = static_cast<std::uint32_t>(tokens.size()) + (tokens.empty() ? 1 : 0) + random.below(12);
  while (tokens.size() < std::min(wanted, room)) tokens.push_back(draw_token(random));
  if (tokens.size() > room) tokens.resize(room);

  SequenceOptions options;
  options.use_cache = !draw_chance(random, 8);
  if (draw_chance(random, 15)) options.match_tokens_max = random.below(static_cast<std::uint32_t>(tokens.size()));
  if (draw_chance(random, 20)) options.publish = draw_chance(random, 50) ? Publish::Prompt : Publish::None;
  const std::size_t live_count = lives_.size();
  std::string problem = begin_with(tokens, options);
  if (!problem.empty() || lives_.size() == live_count) return problem;
  if (prompts_.size() < 12) {
    prompts_.push_back(std::move(tokens));
  } else {
    prompts_[random.below(12)] = std::move(tokens);
  }
  return "";
}

std::string ScheduleModel::begin_with(std::vector<TokenId> tokens, const SequenceOptions& options) {
  Result<Sequence> sequence = cache_->begin(space_, {.tokens = tokens}, options);
  if (!sequence) {
    // Sequences that have ended in flight still have their place.
    return flights_.empty() ? "begin: " + sequence.error().message : "";
  }
  counts_.add("begin");
  auto live = std::make_unique<Live>();
  live->number = next_number_++;
  live->handle = *std::move(sequence);
  live->tokens = std::move(tokens);
  live->publishes_all = options.publish == Publish::All;
  lives_.push_back(std::move(live));
  return "";
}

std::string ScheduleModel::admit(Random& random) {
  std::vector<Live*> waiting;
  for (const auto& live : lives_) {
    if (!live->is_admitted && !live->is_preempted) waiting.push_back(live.get());
  }
  if (waiting.empty()) return "";
  return admit_one(*waiting[random.below(static_cast<std::uint32_t>(waiting.size()))]);
}

std::string ScheduleModel::admit_one(Live& live) {
  const Result<Admission> admission = cache_->admit(live.handle);
  if (!admission) return "admit: " + admission.error().message;
  live.is_admitted = true;
  live.may_lose_copy = admission->partial_tokens > 0;
  if (admission->matched_tokens > live.tokens.size()) return "admit matched more than the prompt";
  set_plain_texts(live, admission->matched_tokens);
  counts_.add(admission->matched_tokens > 0 ? "admit with a hit" : "admit without a hit");
  if (admission->partial_tokens > 0) counts_.add("admit with a partial hit");
  return "";
}

std::string ScheduleModel::append(Random& random) {
  Live* live = draw_resting(random);
  if (!transfers_.empty() && draw_chance(random, 20)) live = find(transfers_.back().target);
  if (live == nullptr) return "";
  const auto room = setup_.context_tokens_max - static_cast<std::uint32_t>(live->tokens.size());
  if (room == 0) return "";
  std::vector<TokenId> added;
  for (std::uint32_t i = 1 + random.below(std::min(room, 6U)); i > 0; --i) added.push_back(draw_token(random));
  const Status status = cache_->append(live->handle, {.tokens = added});
  if (!status) return "append: " + status.error().message;
  live->tokens.insert(live->tokens.end(), added.begin(), added.end());
  counts_.add(live->is_receiving ? "append while receiving" : "append");
  return "";
}

std::string ScheduleModel::fork(Random& random) {
  if (lives_.size() + 1 > setup_.sequence_count_max) return "";
  std::vector<Live*> sources;
  for (const auto& live : lives_) {
    if (live->is_admitted) sources.push_back(live.get());
  }
  if (sources.empty()) return "";
  Live& source = *sources[random.below(static_cast<std::uint32_t>(sources.size()))];
  const bool is_busy = is_in_flight(source) || is_undecided(source) || source.is_receiving;
  const std::size_t limit = is_busy ? source.texts.size() : source.tokens.size();
  const std::uint32_t at = draw_chance(random, 5) ? 0 : random.below(static_cast<std::uint32_t>(limit) + 1);
  const SequenceView before = cache_->view(source.handle).value();
  const std::vector<PageId> pages(before.pages().begin(), before.pages().end());
  Result<Sequence> sequence = cache_->fork(source.handle, at);
  if (!sequence) {
    if (sequence.error().code == ErrorCode::Unavailable && !flights_.empty()) return "";
    if (source.window.visible_tokens == 0) return "fork: " + sequence.error().message;
    counts_.add("fork refused by a window");
    return check_unchanged(source, before, pages);
  }
  counts_.add(is_busy ? "fork of a sequence in flight" : "fork");
  if (at == 0) counts_.add("fork at the start");
  if (at % setup_.page_tokens != 0) counts_.add("fork inside a page");
  if (source.window.visible_tokens > 0) counts_.add("fork of a windowed sequence");
  if (source.is_receiving) counts_.add("fork of a receiving sequence");
  if (source.is_new_fork) counts_.add("fork of a fork before any step");
  auto live = std::make_unique<Live>();
  live->number = next_number_++;
  live->handle = *std::move(sequence);
  live->is_admitted = true;
  live->is_new_fork = true;
  live->may_lose_copy = true;
  live->tokens.assign(source.tokens.begin(), source.tokens.begin() + at);
  live->texts.assign(source.texts.begin(), source.texts.begin() + static_cast<std::ptrdiff_t>(
                                                                      std::min<std::size_t>(at, source.texts.size())));
  live->window = source.window;
  live->publishes_all = source.publishes_all;
  lives_.push_back(std::move(live));
  return "";
}

std::string ScheduleModel::rewind(Random& random) {
  Live* live = draw_resting(random);
  if (live == nullptr || live->tokens.empty()) return "";
  const auto known = static_cast<std::uint32_t>(live->tokens.size());
  const std::uint32_t count = draw_chance(random, 5) ? known : 1 + random.below(known);
  const SequenceView before = cache_->view(live->handle).value();
  const std::vector<PageId> pages(before.pages().begin(), before.pages().end());
  const Status status = cache_->rewind(live->handle, count);
  if (!status) {
    if (live->window.visible_tokens == 0) return "rewind: " + status.error().message;
    counts_.add("rewind refused by a window");
    return check_unchanged(*live, before, pages);
  }
  const std::size_t left = live->tokens.size() - count;
  if (left == 0) counts_.add("rewind to nothing");
  if (left + setup_.page_tokens <= live->texts.size()) counts_.add("rewind across pages");
  if (live->window.visible_tokens > 0 && left < live->texts.size()) counts_.add("rewind of a windowed sequence");
  counts_.add("rewind");
  const std::vector<TokenId> cut(live->tokens.begin() + static_cast<std::ptrdiff_t>(left), live->tokens.end());
  live->tokens.resize(left);
  if (live->texts.size() > left) {
    live->texts.resize(left);
    live->may_lose_copy = true;
  }
  return mend_sender(*live, cut, random);
}

std::string ScheduleModel::set_window(Random& random) {
  Live* live = draw_resting(random);
  if (draw_chance(random, 30)) {
    for (const auto& waiting : lives_) {
      if (!waiting->is_admitted && !waiting->is_saved) live = waiting.get();
    }
  }
  if (live == nullptr) return "";
  Window window{.visible_tokens = 2 + random.below(20)};
  window.sink_tokens = random.below(std::min(window.visible_tokens, 8U));
  const Status status = cache_->set_window(live->handle, window);
  const bool is_sender = find_sending(*live) != nullptr;
  if (is_sender) counts_.add("window of a sender");
  if (setup_.keys_rotated || live->window.visible_tokens > 0 || is_sender) {
    return status.has_value() ? "set_window was not refused" : "";
  }
  if (!status) return "set_window: " + status.error().message;
  live->window = window;
  counts_.add(live->is_admitted ? "set_window" : "set_window while waiting");
  if (window.sink_tokens > 0) counts_.add("set_window with a sink");
  return "";
}

std::string ScheduleModel::commit_tree(Random& random) {
  std::vector<Live*> candidates;
  for (const auto& live : lives_) {
    if (!live->tree.empty() && !is_in_flight(*live)) candidates.push_back(live.get());
  }
  if (candidates.empty()) return "";
  Live& live = *candidates[random.below(static_cast<std::uint32_t>(candidates.size()))];
  const std::int32_t leaf =
      static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(live.tree.size()) + 1)) - 1;
  const Status status = cache_->commit_tree(live.handle, leaf);
  if (!status) return "commit_tree: " + status.error().message;
  std::vector<TreeToken> path;
  for (std::int32_t at = leaf; at >= 0; at = path.back().parent)
    path.push_back(live.tree[static_cast<std::size_t>(at)]);
  std::reverse(path.begin(), path.end());
  for (const TreeToken& token : path) {
    live.tokens.push_back(token.token);
    live.texts.push_back(token.text);
  }
  live.tree.clear();
  counts_.add(leaf < 0 ? "tree rejected" : "tree committed");
  if (leaf >= 0 && static_cast<std::size_t>(leaf) + 1 != path.size()) counts_.add("tree committed with moves");
  // The model's answer after the last token is known: it is the next one.
  if (live.tokens.size() == setup_.context_tokens_max || draw_chance(random, 20)) return "";
  const TokenId bonus = draw_token(random);
  const Status appended = cache_->append(live.handle, {.tokens = {&bonus, 1}});
  if (!appended) return "append after commit_tree: " + appended.error().message;
  live.tokens.push_back(bonus);
  return "";
}

// What is saved or brought back has arrived before anything else happens.
void ScheduleModel::drain() {
  while (cache_->stats()->transfers_in_flight > 0) (void)cache_->apply(*cache_->poll(), 0);
}

std::string ScheduleModel::preempt(Random& random) {
  Live* live = draw_resting(random);
  if (live == nullptr) return "";
  const bool saves = draw_chance(random, 50);
  const Status status = cache_->preempt(live->handle, saves ? Preempt::Save : Preempt::Drop);
  drain();
  if (!status) {
    // Computed again, tokens from before the window was set would come out differently.
    if (!saves && live->window.visible_tokens == 0) return "preempt: " + status.error().message;
    counts_.add(saves ? "save refused" : "drop refused by a window");
    return "";
  }
  live->is_admitted = false;
  live->is_preempted = true;
  live->is_saved = saves;
  if (!saves) live->texts.clear();
  counts_.add(saves ? "preempt with save" : "preempt with drop");
  if (find_sending(*live) != nullptr) counts_.add("preempt of a sender");
  return "";
}

std::string ScheduleModel::resume(Random& random) {
  std::vector<Live*> preempted;
  for (const auto& live : lives_) {
    if (live->is_preempted) preempted.push_back(live.get());
  }
  if (preempted.empty()) return "";
  Live& live = *preempted[random.below(static_cast<std::uint32_t>(preempted.size()))];
  const Result<Admission> admission = cache_->resume(live.handle);
  drain();
  if (!admission) {
    if (!live.is_saved || admission.error().code != ErrorCode::Unavailable)
      return "resume: " + admission.error().message;
    counts_.add("resume without room");
    return flights_.empty() && lives_.size() == 1 ? "resume: no room for the only sequence" : "";
  }
  const std::uint32_t computed = cache_->view(live.handle)->computed_tokens;
  if (live.is_saved) {
    if (computed > live.texts.size()) return "resume brought back more than was saved";
    if (computed == live.texts.size()) counts_.add("resume with all that was saved");
    live.texts.resize(computed);
  } else {
    set_plain_texts(live, computed);
    counts_.add("resume after drop");
  }
  live.may_lose_copy = true;
  live.is_admitted = true;
  live.is_preempted = false;
  live.is_saved = false;
  return "";
}

std::string ScheduleModel::end(Random& random) {
  if (lives_.empty()) return "";
  Live& live = *lives_[random.below(static_cast<std::uint32_t>(lives_.size()))];
  if (Transfer* transfer = find_receiving(live)) {
    if (!can_stop_sending(*transfer)) return "";
    if (std::string problem = stop_sending(*transfer); !problem.empty()) return problem;
    counts_.add("end while receiving");
  }
  if (find_sending(live) != nullptr) counts_.add("end of a sender");
  counts_.add(is_in_flight(live) ? "end in flight" : "end");
  if (draw_chance(random, 40)) {
    {
      const Sequence dropped = std::move(live.handle);
    }
  } else {
    const Status status = cache_->end(live.handle);
    if (!status) return "end: " + status.error().message;
    if (live.handle) return "end left a handle";
  }
  remove(live);
  return "";
}

std::string ScheduleModel::reclaim(Random& random) {
  const Result<std::uint32_t> reclaimed = cache_->reclaim(1 + random.below(4));
  if (!reclaimed) return "reclaim: " + reclaimed.error().message;
  counts_.add("pages reclaimed", *reclaimed);
  return "";
}

// Helpers

ScheduleModel::Live* ScheduleModel::find(std::uint64_t number) {
  for (const auto& live : lives_) {
    if (live->number == number) return live.get();
  }
  return nullptr;
}

bool ScheduleModel::is_in_flight(const Live& live) const {
  for (const Flight& flight : flights_) {
    for (const FlightEntry& entry : flight.entries) {
      if (entry.number == live.number && !entry.is_void) return true;
    }
  }
  return false;
}

bool ScheduleModel::is_undecided(const Live& live) const {
  if (!live.tree.empty()) return true;
  for (const Flight& flight : flights_) {
    for (const FlightEntry& entry : flight.entries) {
      if (entry.number == live.number && !entry.is_void && entry.draft_count > 0) return true;
    }
  }
  return false;
}

bool ScheduleModel::is_resting(const Live& live) const {
  return live.is_admitted && !live.is_receiving && live.tree.empty() && !is_in_flight(live);
}

ScheduleModel::Live* ScheduleModel::draw_resting(Random& random) {
  std::vector<Live*> resting;
  for (const auto& live : lives_) {
    if (is_resting(*live)) resting.push_back(live.get());
  }
  return resting.empty() ? nullptr : resting[random.below(static_cast<std::uint32_t>(resting.size()))];
}

TokenId ScheduleModel::draw_token(Random& random) const {
  return static_cast<TokenId>(random.below(weights_.shape.vocabulary));
}

std::vector<std::int32_t> ScheduleModel::planned_texts(const Live& live) const {
  std::vector<std::int32_t> texts = live.texts;
  for (const Flight& flight : flights_) {
    for (const FlightEntry& entry : flight.entries) {
      if (entry.number != live.number || entry.is_void || entry.runs_again) continue;
      texts.insert(texts.end(), entry.texts.begin(), entry.texts.begin() + entry.known_count);
    }
  }
  return texts;
}

void ScheduleModel::set_plain_texts(Live& live, std::uint32_t count) {
  live.texts.clear();
  std::int32_t previous = OracleTexts::kBegin;
  for (std::uint32_t i = 0; i < count; ++i) {
    previous = texts_.intern(previous, live.tokens[i], 0, 0);
    live.texts.push_back(previous);
  }
}

std::string ScheduleModel::compare_views() {
  for (const auto& live : lives_) {
    const Result<SequenceView> view = cache_->view(live->handle);
    const std::string name = "sequence " + std::to_string(live->number);
    if (!view) return name + ": " + view.error().message;
    if (view->token_count != live->tokens.size()) {
      return name + " has " + std::to_string(view->token_count) + " tokens, not " + std::to_string(live->tokens.size());
    }
    if (view->is_waiting == live->is_admitted) return name + " waits, or does not";
    if (view->is_receiving != live->is_receiving) return name + " receives, or does not";
    if (!live->is_admitted) continue;
    const bool is_less =
        view->computed_tokens < live->texts.size() && live->texts.size() - view->computed_tokens < setup_.page_tokens;
    if (is_less && live->may_lose_copy) {
      live->texts.resize(
          view->computed_tokens);  // pages were short: the copy is given up, its tokens are pending again
      live->may_lose_copy = false;
      counts_.add("copy given up");
    }
    if (view->computed_tokens != live->texts.size()) {
      return name + " has " + std::to_string(view->computed_tokens) + " computed tokens, not " +
             std::to_string(live->texts.size());
    }
    if (!is_in_flight(*live) && view->tree_tokens != live->tree.size()) return name + " has another tree";
    if (view->window.visible_tokens != live->window.visible_tokens) return name + " has another window";
  }
  return "";
}

// Of two sequences with the same full page both hold one copy, unless dedup is off: then the later one keeps its own.
std::string ScheduleModel::compare_equal_pages() const {
  if (!setup_.dedup && cache_->stats()->duplicate_page_total > 0) return "a page was given up without dedup";
  std::map<std::int32_t, PageId> pages;  // by the text of their last token
  for (const auto& live : lives_) {
    if (!live->is_admitted || !live->publishes_all || live->window.visible_tokens > 0) continue;
    const SequenceView view = cache_->view(live->handle).value();
    for (std::size_t i = 0; i < live->texts.size() / setup_.page_tokens; ++i) {
      const auto [at, is_new] = pages.try_emplace(live->texts[((i + 1) * setup_.page_tokens) - 1], view.pages()[i]);
      if (is_new || at->second == view.pages()[i]) continue;
      if (setup_.dedup) return "two sequences hold copies of one page";
      counts_.add("page held twice without dedup");
    }
  }
  return "";
}

std::string ScheduleModel::check_unchanged(const Live& live, const SequenceView& before,
                                           std::span<const PageId> pages) const {
  const SequenceView after = cache_->view(live.handle).value();
  const bool is_same = after.token_count == before.token_count && after.computed_tokens == before.computed_tokens &&
                       after.pending_tokens == before.pending_tokens && after.tree_tokens == before.tree_tokens &&
                       std::ranges::equal(after.pages(), pages);
  return is_same ? "" : "a refused call changed the sequence";
}

void ScheduleModel::remove(const Live& live) {
  std::erase_if(transfers_, [&live](const Transfer& transfer) { return transfer.target == live.number; });
  if (Transfer* transfer = find_sending(live)) transfer->source = 0;
  std::erase_if(lives_, [&live](const auto& other) { return other.get() == &live; });
}

}  // namespace quire::testing
