// SPDX-License-Identifier: Apache-2.0
//
// HybridRig: the cache, the engine, and what happens to sequences; hybrid_rig_steps.cc has the steps.
#include "hybrid_rig.h"

#include <algorithm>
#include <ranges>
#include <thread>
#include <utility>

namespace quire::testing {

using tiny_engine::HybridLayer;
using tiny_engine::LayerKind;

namespace {

std::string name_of(const HybridLayer& layer) {
  switch (layer.kind) {
    case LayerKind::Full:
      return layer.window_tokens > 0 ? "full " + std::to_string(layer.window_tokens) : "full";
    case LayerKind::Window:
      return "window " + std::to_string(layer.window_tokens);
    case LayerKind::Ring:
      return "ring " + std::to_string(layer.window_tokens);
    case LayerKind::Compressed:
      return "compressed " + std::to_string(layer.ratio);
    case LayerKind::Overlapped:
      return "overlapped " + std::to_string(layer.ratio);
    case LayerKind::Recurrent:
      return "recurrent";
  }
  return "";
}

// Refusals that a group is the reason for say which.
bool names_a_group(const std::string& message, std::span<const CacheGroup> groups) {
  return std::ranges::any_of(groups,
                             [&](const CacheGroup& group) { return message.find(group.name) != std::string::npos; });
}

}  // namespace

std::string to_string(const HybridSetup& setup) {
  std::string text = "layers";
  for (const HybridLayer& layer : setup.shape.layers) text += " [" + name_of(layer) + "]";
  const auto add = [&text](const char* name, std::uint64_t value) {
    text += std::string(", ") + name + " " + std::to_string(value);
  };
  add("kv heads", setup.shape.kv_heads);
  add("rewind", setup.shape.rewind_tokens);
  add("window retention", static_cast<std::uint64_t>(setup.shape.window_retention.rule));
  add("state retention", static_cast<std::uint64_t>(setup.shape.state_retention.rule));
  add("interval", setup.shape.state_retention.interval_tokens);
  add("replay", setup.shape.declares_replay ? 1 : 0);
  add("fp8", setup.shape.stores_fp8 ? 1 : 0);
  add("rotated", setup.shape.keys_rotated ? 1 : 0);
  add("own memory", setup.adopts_memory ? 1 : 0);
  add("page_tokens", setup.page_tokens);
  add("pages", setup.page_count);
  for (const std::uint32_t count : setup.group_page_counts) text += " " + std::to_string(count);
  add("context", setup.context_tokens_max);
  add("sequences", setup.sequence_count_max);
  add("slots", setup.state_slot_count);
  add("step tokens", setup.step_tokens_max);
  add("in flight", setup.steps_in_flight_max);
  add("tables", static_cast<std::uint64_t>(setup.page_tables));
  add("levels", setup.cascade_levels_max);
  add("host pages", setup.host_page_count);
  for (const std::uint32_t count : setup.host_group_page_counts) text += " " + std::to_string(count);
  add("write policy", static_cast<std::uint64_t>(setup.write_policy));
  add("transfers", setup.transfer_count_max);
  add("of", setup.transfer_pages_max);
  add("own mover", setup.has_own_mover ? 1 : 0);
  if (setup.plans_while_loading) add("plans while loading, bands", setup.layer_bands);
  if (setup.accelerator_path) text += " (" + std::string(quire::to_string(*setup.accelerator_path)) + ")";
  add("delays", setup.transfer_chances.delay);
  add("faults", setup.transfer_chances.fault);
  return text + ", " + setup.policy + (setup.dedup ? "" : ", no dedup") +
         (setup.disk_directory.empty() ? "" : ", disk");
}

HybridRig::HybridRig(const HybridSetup& setup, ScheduleCounts& counts)
    : setup_(setup),
      counts_(counts),
      weights_(tiny_engine::make_hybrid_weights(setup.shape, 41)),
      ahead_random_(setup.transfer_seed) {
  open();
}

void HybridRig::open() {
  const std::vector<CacheGroup> groups = tiny_engine::hybrid_groups(setup_.shape).groups;
  replays_windows_ = std::ranges::any_of(
      groups, [](const CacheGroup& group) { return group.kind == GroupKind::Window && group.replay.tokens > 0; });
  CacheConfig config{.layout = ModelLayout::create("hybrid", groups).value(),
                     .page = {.page_tokens = setup_.page_tokens, .head_order = setup_.head_order},
                     .device = {.page_count = setup_.page_count,
                                .group_page_counts = setup_.group_page_counts,
                                .state_slot_count = setup_.state_slot_count,
                                .byte_layout = setup_.byte_layout},
                     .host = {.page_count = setup_.host_page_count,
                              .group_page_counts = setup_.host_group_page_counts,
                              .write_policy = setup_.write_policy,
                              .layer_bands = setup_.layer_bands,
                              .external_mover = !setup_.has_own_mover,
                              .transfer_count_max = setup_.transfer_count_max,
                              .transfer_pages_max = setup_.transfer_pages_max},
                     .sequence_count_max = setup_.sequence_count_max,
                     .context_tokens_max = setup_.context_tokens_max,
                     .step_tokens_max = setup_.step_tokens_max,
                     .dedup = setup_.dedup,
                     .steps_in_flight_max = setup_.steps_in_flight_max,
                     .window_rewind_tokens = setup_.shape.rewind_tokens,
                     .plan = {.page_tables = setup_.page_tables, .cascade_levels_max = setup_.cascade_levels_max},
                     .partial_reuse_min_tokens = 1,
                     .policy = setup_.policy};
  for (const HybridLayer& layer : setup_.shape.layers) {
    std::vector<std::uint32_t>& windows = config.plan.layer_windows;
    const bool is_listed = std::ranges::count(windows, layer.window_tokens) > 0;
    if (layer.kind == LayerKind::Full && layer.window_tokens > 0 && !is_listed) windows.push_back(layer.window_tokens);
  }
  if (!setup_.disk_directory.empty()) {
    config.disk = {.directories = {setup_.disk_directory}, .capacity_bytes = setup_.disk_capacity_bytes};
  }
  if (setup_.adopts_memory) {
    // Nothing is zero that was not written, but for null pages.
    constexpr std::byte kGarbage{0x41};
    memories_.assign(groups.size(), {});
    for (std::size_t i = 0; i < groups.size(); ++i) {
      config.device.adopted_group_memory.push_back(nullptr);
      if (!has_pages(groups[i])) continue;
      const bool keeps_all = groups[i].kind == GroupKind::Full || groups[i].kind == GroupKind::Compressed;
      const PoolGeometry pool =
          PoolGeometry::create(
              PageGeometry::create(groups[i], config.page).value(),
              {.page_count = 1 + std::uint64_t{keeps_all ? setup_.page_count : setup_.group_page_counts[i]},
               .byte_layout = setup_.byte_layout})
              .value();
      memories_[i].assign(pool.pool_bytes(), kGarbage);
      const PageGeometry& page = pool.page();
      for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
        std::fill_n(memories_[i].begin() + static_cast<std::ptrdiff_t>(layer * pool.strides().layer),
                    page.layer_bytes(), std::byte{0});
      }
      config.device.adopted_group_memory.back() = memories_[i].data();
    }
    config.device.memory = DeviceMemory::Adopted;
    config.device.adopted_memory = config.device.adopted_group_memory.front();
    const StateSlots slots = StateSlots::create(config.layout, config.page).value();
    const std::uint32_t slot_count = setup_.state_slot_count > 0 ? setup_.state_slot_count : setup_.sequence_count_max;
    state_memory_.assign(slots.slot_bytes() * slot_count, kGarbage);
    config.device.adopted_state_memory = state_memory_.empty() ? nullptr : state_memory_.data();
  }
  if (setup_.device.device != nullptr) {
    config.device.memory = DeviceMemory::Accelerator;
    config.device.accelerator = setup_.device.device;
  }
  if (setup_.accelerator_path) {
    if (setup_.device.device == nullptr) {
      accelerator_ = std::make_unique<FakeDevice>(FakeDeviceConfig{.seed = setup_.transfer_seed});
      for (std::vector<std::byte>& memory : memories_) accelerator_->adopt(memory);
      config.device.accelerator = accelerator_.get();
    }
    config.host.staging_bytes = 4096;
    config.host.load_paths = SwapPaths{.few = *setup_.accelerator_path, .many = *setup_.accelerator_path};
    config.host.store_paths = config.host.load_paths;
    counts_.add("opened on an accelerator");
  }
  Result<std::unique_ptr<Cache>> cache = Cache::open(std::move(config));
  if (!cache) std::fprintf(stderr, "open: %s\n%s\n", cache.error().message.c_str(), to_string(setup_).c_str());
  cache_ = std::move(cache).value();
  const std::uint32_t row_columns = (setup_.context_tokens_max + setup_.page_tokens - 1) / setup_.page_tokens;
  if (setup_.device.device != nullptr) {
    device_ = tiny_engine::HybridDevice::create({.device = setup_.device.device,
                                                 .kernels = setup_.device.kernels,
                                                 .groups = groups,
                                                 .memory = tiny_engine::memory_of(*cache_),
                                                 .sequence_count_max = setup_.sequence_count_max,
                                                 .row_columns = row_columns})
                  .value();
  }
  engine_ = std::make_unique<tiny_engine::HybridEngine>(
      weights_, tiny_engine::memory_of(*cache_),
      tiny_engine::HybridEngineOptions{.sequence_count_max = setup_.sequence_count_max,
                                       .row_columns = row_columns,
                                       .page_tokens = setup_.page_tokens,
                                       .applies_copies = setup_.adopts_memory,
                                       .device = device_.get(),
                                       .key_watch = watches_keys() ? &key_writers_ : nullptr});
  space_ = cache_->key_space({.model = "hybrid"}).value();
  const bool moves_pages = setup_.host_page_count > 0 && !setup_.has_own_mover;
  mover_ = moves_pages ? std::make_unique<HybridMover>(*cache_, setup_.transfer_seed, counts_) : nullptr;
}

std::string HybridRig::restart(bool flushes) {
  if (std::string problem = collect(); !problem.empty()) return problem;
  for (bool is_done = !flushes; !is_done;) {
    const Result<bool> flushed = cache_->flush();
    if (!flushed) return "flush: " + flushed.error().message;
    is_done = *flushed;
    if (std::string problem = collect(/*all=*/false); !problem.empty()) return problem;
  }
  count_groups();
  lives_.clear();
  flights_.clear();
  engine_.reset();
  device_.reset();
  cache_.reset();
  open();
  counts_.add("restart");
  return "";
}

std::string HybridRig::resize(std::uint32_t page_count) {
  const auto pages_now = [this] { return cache_->stats().value().page_count; };
  const std::uint32_t before = pages_now();
  const Status status = cache_->resize(page_count);
  if (pages_now() != (status ? page_count : before)) return "resize: the pool has another number of pages";
  if (!status) {
    counts_.add("resize refused");
    return status.error().code == ErrorCode::Unavailable ? "" : "resize: " + status.error().message;
  }
  setup_.page_count = page_count;
  engine_->memory() = tiny_engine::memory_of(*cache_);  // it may have moved
  if (page_count == before) return "";
  const bool is_used = std::ranges::any_of(lives_, [](const auto& live) { return !live->texts.empty(); });
  counts_.add(std::string(page_count > before ? "pool grown" : "pool shrunk") + (is_used ? " below sequences" : ""));
  return "";
}

// Tiers

std::string HybridRig::move_pages(bool all) {
  if (mover_ != nullptr) {
    HybridTransferChances chances = setup_.transfer_chances;
    if (all) chances.delay = 0;
    return mover_->move(chances);
  }
  // Without a disk, where one transfer may wait for the end of another, the cache hears of all that is in flight at
  // once and in one order: then a seed always does the same.
  std::vector<Completion> ended;
  const bool has_disk = !setup_.disk_directory.empty();
  do {
    const Result<std::span<const Completion>> completions = cache_->poll();
    if (!completions) return "poll: " + completions.error().message;
    ended.insert(ended.end(), completions->begin(), completions->end());
    if (completions->empty()) std::this_thread::yield();
  } while (!has_disk && ended.size() < cache_->stats().value().transfers_in_flight);
  std::ranges::sort(ended, {}, [](const Completion& each) { return each.id.index; });
  const Status applied = cache_->apply(ended, 0);
  return applied ? "" : "apply: " + applied.error().message;
}

std::string HybridRig::collect(bool all) {
  if (setup_.host_page_count == 0) return "";
  // The cache's own mover is waited for; or it is not asked at all, and the steps that are planned meanwhile wait for
  // what they read.
  const bool lets_arrive = mover_ == nullptr && !all && setup_.plans_while_loading && ahead_random_.below(100) < 60;
  bool is_over = lets_arrive;
  while (!is_over) {
    if (std::string problem = move_pages(all); !problem.empty()) return problem;
    is_over = (mover_ != nullptr && !all) || cache_->stats().value().transfers_in_flight == 0;
  }
  if (std::string problem = follow_loads(); !problem.empty()) return problem;
  // Where the device has no room, a sequence waits for those that run; and a lost one for its steps.
  const bool runs =
      std::ranges::any_of(lives_, [](const auto& live) { return live->is_admitted && !live->is_loading; });
  const bool waits = !runs && std::ranges::any_of(lives_, [&](const auto& live) {
    return live->is_loading && cache_->view(live->handle)->steps_in_flight == 0;
  });
  return waits && cache_->stats().value().transfers_in_flight == 0 ? "a sequence waits for nothing" : "";
}

// Of what was found on the host less may have come, and of what was there more may have gone.
std::string HybridRig::follow_loads() {
  for (const auto& live : lives_) {
    if (std::string problem = follow_ahead(*live); !problem.empty()) return problem;
    const SequenceView view = cache_->view(live->handle).value();
    if (live->is_saved && !view.is_waiting && !view.is_loading) {
      counts_.add("save that failed");  // it runs on
      live->is_admitted = true;
      live->is_preempted = live->is_saved = false;
      set_computed(*live, view.computed_tokens);
    }
    if (!live->is_loading || view.is_loading) continue;
    live->is_loading = false;
    if (view.is_waiting) {
      counts_.add("saved pages lost");
      live->is_admitted = false;
      live->is_preempted = live->is_saved = true;
      live->texts.clear();
      continue;
    }
    counts_.add(view.computed_tokens > live->texts.size()   ? "load with a longer hit"
                : view.computed_tokens < live->texts.size() ? "load with a shorter hit"
                                                            : "load in vain");
    counts_.add("tokens found on disk", view.disk_tokens);
    set_computed(*live, view.computed_tokens);
    live->replay_end = view.replay_tokens > 0 ? view.computed_tokens + view.replay_tokens : 0;
    live->may_lose_copy = true;
  }
  return "";
}

// Sequences

std::string HybridRig::begin(std::vector<TokenId> tokens, const SequenceOptions& options, HybridLive*& live) {
  live = nullptr;
  Result<Sequence> sequence = cache_->begin(space_, {.tokens = tokens}, options);
  // Sequences that have ended in flight still have their place.
  if (!sequence) return flights_.empty() ? "begin: " + sequence.error().message : "";
  counts_.add("begin");
  auto added = std::make_unique<HybridLive>();
  added->number = next_number_++;
  added->handle = *std::move(sequence);
  added->options = options;
  added->tokens = std::move(tokens);
  live = added.get();
  lives_.push_back(std::move(added));
  return "";
}

std::string HybridRig::admit(HybridLive& live) {
  std::optional<Lookup> lookup;
  if (!live.is_preempted) {
    const Result<Lookup> found = cache_->lookup(space_, {.tokens = live.tokens}, live.options);
    if (!found) return "lookup: " + found.error().message;
    lookup = *found;
  }
  const Result<Admission> admission = live.is_preempted ? cache_->resume(live.handle) : cache_->admit(live.handle);
  if (!admission && admission.error().code == ErrorCode::Unavailable) {
    counts_.add("admission refused for want of room");
    return "";
  }
  if (!admission && admission.error().code == ErrorCode::Corrupt && live.is_saved) {
    counts_.add("resume of what is lost");
    return "";
  }
  const char* const name = live.is_preempted ? "resume" : "admit";
  if (!admission) return std::string(name) + ": " + admission.error().message;
  if (lookup && live.window.visible_tokens > 0) lookup.reset();  // it knows nothing of windows
  const bool has_all = admission->is_ready && admission->loading_tokens == 0;
  if (lookup && has_all) {
    const bool is_as_told =
        lookup->matched_tokens == admission->matched_tokens && lookup->replay_tokens == admission->replay_tokens;
    if (!is_as_told) return "lookup told something else than admit";
  }
  if (lookup && !has_all && lookup->host_tokens != admission->loading_tokens) {
    return "lookup told of other tokens on the host than admit";
  }
  return take_admission(live, *admission, name);
}

std::string HybridRig::resume(HybridLive& live) {
  return admit(live);
}

std::string HybridRig::take_admission(HybridLive& live, const Admission& admission, const char* name) {
  const std::string prefix = std::string(name) + " ";
  if (admission.matched_tokens > live.tokens.size()) return prefix + "matched more than the tokens";
  if (admission.replay_tokens > admission.matched_tokens) return prefix + "replays more than it matched";
  if (counts_.log != nullptr) {
    *counts_.log << "    sequence " << live.number << " of " << live.tokens.size() << " tokens: matched "
                 << admission.matched_tokens << ", replay " << admission.replay_tokens << ", partial "
                 << admission.partial_tokens << '\n';
  }
  live.is_admitted = true;
  live.is_ahead = false;
  live.is_loading = !admission.is_ready || cache_->view(live.handle).value().is_loading;
  live.is_preempted = false;
  live.is_saved = false;
  live.texts.clear();
  set_computed(live, admission.matched_tokens - admission.replay_tokens);
  live.is_in_doubt = false;
  live.replay_end = admission.replay_tokens > 0 ? admission.matched_tokens : 0;
  live.may_lose_copy = admission.partial_tokens > 0;
  counts_.add(prefix + (admission.matched_tokens > 0 ? "with a hit" : "without a hit"));
  if (admission.partial_tokens > 0) counts_.add(prefix + "with a partial hit");
  if (admission.replay_tokens > 0) counts_.add(prefix + "with a replay");
  if (live.is_loading) counts_.add(prefix + "that loads");
  if (std::string problem = follow_ahead(live); !problem.empty()) return problem;
  if (admission.miss.reason == MissReason::NotHeld) {
    const auto groups = cache_->config().layout.groups();
    if (admission.miss.group >= groups.size()) return prefix + "was limited by no group";
    counts_.add("hit limited by a " + std::string(to_string(groups[admission.miss.group].kind)));
  }
  return "";
}

std::string HybridRig::append(HybridLive& live, const std::vector<TokenId>& tokens) {
  const Status status = cache_->append(live.handle, {.tokens = tokens});
  if (!status) return "append: " + status.error().message;
  live.tokens.insert(live.tokens.end(), tokens.begin(), tokens.end());
  counts_.add("append");
  return "";
}

std::string HybridRig::fork(HybridLive& source, std::uint32_t at, HybridLive*& live) {
  live = nullptr;
  if (counts_.log != nullptr) {
    *counts_.log << "    sequence " << source.number << " with " << source.texts.size() << " computed tokens: fork at "
                 << at << '\n';
  }
  Result<Sequence> sequence = cache_->fork(source.handle, at);
  if (!sequence) {
    if (sequence.error().code == ErrorCode::Unavailable) {
      counts_.add("fork refused for want of room");
      return "";
    }
    if (source.texts.size() < source.replay_end) {
      counts_.add("fork refused during a replay");
      return "";
    }
    if (!names_a_group(sequence.error().message, cache_->config().layout.groups())) {
      return "fork: " + sequence.error().message;
    }
    counts_.add("fork refused by a group");
    return "";
  }
  counts_.add(is_in_flight(source) ? "fork of a sequence in flight" : "fork");
  if (at % setup_.page_tokens != 0) counts_.add("fork inside a page");
  if (at < source.texts.size()) counts_.add("fork of a part");
  auto added = std::make_unique<HybridLive>();
  added->number = next_number_++;
  added->handle = *std::move(sequence);
  added->is_admitted = true;
  added->tokens.assign(source.tokens.begin(), source.tokens.begin() + at);
  const auto computed = static_cast<std::ptrdiff_t>(std::min<std::size_t>(at, source.texts.size()));
  added->texts.assign(source.texts.begin(), source.texts.begin() + computed);
  added->options = source.options;
  added->window = source.window;
  added->may_lose_copy = true;
  added->replay_end = source.replay_end;
  live = added.get();
  lives_.push_back(std::move(added));
  return follow(*live, "fork");
}

std::string HybridRig::rewind(HybridLive& live, std::uint32_t count) {
  if (counts_.log != nullptr) {
    *counts_.log << "    sequence " << live.number << " with " << live.texts.size() << " computed tokens: rewind to "
                 << live.tokens.size() - count << '\n';
  }
  const SequenceView before = cache_->view(live.handle).value();
  const Status status = cache_->rewind(live.handle, count);
  if (!status) {
    const bool is_replaying = live.texts.size() < live.replay_end;
    if (!is_replaying && !names_a_group(status.error().message, cache_->config().layout.groups())) {
      return "rewind: " + status.error().message;
    }
    counts_.add(is_replaying ? "rewind refused during a replay" : "rewind refused by a group");
    const SequenceView after = cache_->view(live.handle).value();
    return after.token_count == before.token_count && after.computed_tokens == before.computed_tokens
               ? ""
               : "a rewind that was refused has changed the sequence";
  }
  const std::size_t left = live.tokens.size() - count;
  counts_.add("rewind");
  if (left < live.texts.size()) {
    live.may_lose_copy = true;
    counts_.add("rewind of computed tokens");
    if (has_kind(LayerKind::Recurrent)) counts_.add("rewind over a recurrent state");
    if (has_kind(LayerKind::Ring)) counts_.add("rewind over a ring");
    if (has_kind(LayerKind::Overlapped)) counts_.add("rewind over a compressor");
    if (left / setup_.page_tokens < live.texts.size() / setup_.page_tokens) counts_.add("rewind across pages");
  }
  live.tokens.resize(left);
  live.texts.resize(std::min(live.texts.size(), left));
  live.saved_texts.resize(std::min(live.saved_texts.size(), left));
  return follow(live, "rewind");
}

std::string HybridRig::set_window(HybridLive& live, const Window& window) {
  const Status status = cache_->set_window(live.handle, window);
  if (!status) {
    if (cache_->view(live.handle)->window.visible_tokens != live.window.visible_tokens) {
      return "a window that was refused is set";
    }
    const bool is_replaying = live.texts.size() < live.replay_end;
    const bool is_set = live.window.visible_tokens > 0;
    if (!is_replaying && !is_set && !names_a_group(status.error().message, cache_->config().layout.groups())) {
      return "set_window: " + status.error().message;
    }
    counts_.add(is_replaying ? "set_window refused during a replay" : "set_window refused");
    return "";
  }
  counts_.add(live.is_admitted ? "set_window" : "set_window while waiting");
  if (live.texts.size() > window.visible_tokens) counts_.add("set_window of a sequence that saw more");
  live.window = window;
  return "";
}

std::string HybridRig::preempt(HybridLive& live, Preempt how) {
  const Status status = cache_->preempt(live.handle, how);
  if (!status) {
    counts_.add("preempt refused");
    // What saw more than its window before that was set cannot be computed again.
    const bool may_refuse = how == Preempt::Save || live.window.visible_tokens > 0;
    return may_refuse ? "" : "preempt: " + status.error().message;
  }
  counts_.add(how == Preempt::Drop ? "preempt" : "save");
  if (live.window.visible_tokens > 0)
    counts_.add(how == Preempt::Drop ? "preempt with a window" : "save with a window");
  live.is_preempted = true;
  live.is_admitted = false;
  live.is_saved = how == Preempt::Save;
  live.saved_texts.clear();
  if (live.is_saved) live.saved_texts = live.texts;
  live.texts.clear();
  return "";
}

std::string HybridRig::end(HybridLive& live) {
  if (is_in_flight(live)) counts_.add("end in flight");
  const Status status = cache_->end(live.handle);
  if (!status) return "end: " + status.error().message;
  counts_.add("end");
  remove(live);
  return "";
}

std::string HybridRig::prepare_receive(HybridLive& live, std::uint32_t count, std::optional<HybridReceive>& receive) {
  const Result<std::span<const SlotRun>> slots = cache_->prepare_receive(live.handle, count);
  if (!slots) {
    counts_.add("receive refused");
    return slots.error().code == ErrorCode::Unavailable ? "" : "prepare_receive: " + slots.error().message;
  }
  counts_.add("receive");
  receive = {.begin = static_cast<std::uint32_t>(live.texts.size()),
             .slots = *slots,
             .targets = cache_->receive_targets(live.handle).value()};
  return "";
}

std::string HybridRig::finish_receive(HybridLive& live, std::uint32_t count) {
  const Status status = cache_->finish_receive(live.handle);
  if (!status) return "finish_receive: " + status.error().message;
  counts_.add("tokens received", count);
  set_computed(live, static_cast<std::uint32_t>(live.texts.size()) + count);
  return "";
}

std::string HybridRig::abort_receive(HybridLive& live) {
  const Status status = cache_->abort_receive(live.handle);
  if (!status) return "abort_receive: " + status.error().message;
  counts_.add("receive aborted");
  const SequenceView view = cache_->view(live.handle).value();
  const bool has_state = std::ranges::any_of(cache_->config().layout.groups(), has_slot);
  if (view.computed_tokens != live.texts.size() && !has_state) return "abort_receive: other tokens are computed";
  if (view.computed_tokens < live.texts.size()) counts_.add("state lost by an aborted receive");
  set_computed(live, view.computed_tokens);
  live.replay_end = view.replay_tokens > 0 ? view.computed_tokens + view.replay_tokens : 0;
  live.may_lose_copy = true;
  return "";
}

std::string HybridRig::mark_send(HybridLive& live, const HybridReceive& receive, bool& is_marked) {
  const Status status = cache_->mark_send(live.handle, receive.begin, receive.slots, 1, receive.targets);
  is_marked = status.has_value();
  if (is_marked) return "";
  counts_.add("send refused");
  const bool is_allowed = status.error().code == ErrorCode::Unavailable ||
                          names_a_group(status.error().message, cache_->config().layout.groups());
  return is_allowed ? "" : "mark_send: " + status.error().message;
}

void HybridRig::set_computed(HybridLive& live, std::uint32_t count) {
  live.texts.resize(std::min<std::size_t>(live.texts.size(), count));
  while (live.texts.size() < std::min<std::size_t>(count, live.tokens.size())) {
    const std::size_t at = live.texts.size();
    const std::int32_t previous = live.texts.empty() ? OracleTexts::kBegin : live.texts.back();
    live.texts.push_back(at < live.saved_texts.size() ? live.saved_texts[at] : intern(live, previous, live.tokens[at]));
  }
}

// Observers

HybridLive* HybridRig::find(std::uint64_t number) {
  const auto at = std::ranges::find_if(lives_, [&](const auto& live) { return live->number == number; });
  return at == lives_.end() ? nullptr : at->get();
}

void HybridRig::remove(const HybridLive& live) {
  std::erase_if(lives_, [&](const auto& other) { return other.get() == &live; });
}

bool HybridRig::is_in_flight(const HybridLive& live) const {
  return std::ranges::any_of(flights_, [&](const Flight& flight) {
    return std::ranges::any_of(flight.entries,
                               [&](const FlightEntry& entry) { return entry.number == live.number && !entry.is_void; });
  });
}

bool HybridRig::is_undecided(const HybridLive& live) const {
  return std::ranges::any_of(flights_, [&](const Flight& flight) {
    return std::ranges::any_of(flight.entries, [&](const FlightEntry& entry) {
      return entry.number == live.number && entry.draft_count > 0 && !entry.is_void;
    });
  });
}

bool HybridRig::is_resting(const HybridLive& live) const {
  if (!live.is_admitted || live.is_in_doubt) return false;
  const SequenceView view = cache_->view(live.handle).value();
  return view.steps_in_flight == 0 && !view.is_loading;
}

bool HybridRig::has_kind(LayerKind kind) const {
  return std::ranges::any_of(setup_.shape.layers, [&](const HybridLayer& layer) { return layer.kind == kind; });
}

std::string HybridRig::check() {
  const Status status = cache_->check_invariants();
  if (!status) return "invariant: " + status.error().message;
  for (const auto& live : lives_) {
    const SequenceView view = cache_->view(live->handle).value();
    if (view.token_count != live->tokens.size()) return "a sequence has another number of tokens";
    if (!live->is_admitted || view.is_loading || is_in_flight(*live)) continue;
    if (live->is_in_doubt && view.steps_in_flight == 0) {
      live->is_in_doubt = false;
      if (view.computed_tokens != live->texts.size() || view.replay_tokens > 0) {
        counts_.add("sequence begun anew after a step that did not happen");
        set_computed(*live, view.computed_tokens);
        live->replay_end = view.replay_tokens > 0 ? view.computed_tokens + view.replay_tokens : 0;
      }
    }
    if (live->may_lose_copy && view.computed_tokens != live->texts.size()) {
      live->may_lose_copy = false;
      follow_copy(*live);
    }
    if (view.computed_tokens != live->texts.size()) return "a sequence has another number of computed tokens";
  }
  return "";
}

std::optional<OracleTexts::Mismatch> HybridRig::compare() const {
  counts_.add("logits compared", texts_.note_count());
  // Both sides compute in double, so that they differ by rounding alone.
  constexpr double kTolerance = 1e-9;
  return texts_.compare(weights_, kTolerance);
}

std::string HybridRig::check_empty() {
  if (std::string problem = collect(); !problem.empty()) return problem;
  if (std::string problem = check(); !problem.empty()) return problem;
  count_groups();
  if (const Status status = cache_->reset(); !status) return "reset: " + status.error().message;
  if (std::string problem = collect(); !problem.empty()) return problem;
  const auto groups = cache_->config().layout.groups();
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    const GroupStats stats = cache_->group_stats(i).value();
    const bool is_empty = stats.free_pages == stats.page_count && stats.host_free_pages == stats.host_page_count;
    if (!is_empty || stats.used_slots > 0) return "group '" + groups[i].name + "' holds something for nobody";
  }
  return check();
}

void HybridRig::count_groups() {
  const auto groups = cache_->config().layout.groups();
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    if (!has_pages(groups[i])) continue;
    const GroupStats stats = cache_->group_stats(i).value();
    std::string kind(to_string(groups[i].kind));
    if (groups[i].kind == GroupKind::Window && has_slot(groups[i])) kind = "ring";
    counts_.add("pages evicted of a " + kind, stats.evicted_page_total);
    counts_.add("pages sealed of a " + kind, stats.sealed_page_total);
    counts_.add("snapshots restored of a " + kind, stats.restored_snapshot_total);
    counts_.add("snapshots skipped", stats.skipped_snapshot_total);
    counts_.add("pages loaded of a " + kind, stats.loaded_page_total);
    counts_.add("pages read of a " + kind, stats.disk_loaded_page_total);
  }
}

}  // namespace quire::testing
