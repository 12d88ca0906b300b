// SPDX-License-Identifier: Apache-2.0
#include "tiered_conversations.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include "quire/cache.h"
#include "seeded_text.h"
#include "tools/tiny_engine/check.h"
#include "tools/tiny_engine/device_step.h"
#include "tools/tiny_engine/engine.h"
#include "tools/tiny_engine/scheduler.h"

namespace quire::testing {

using tiny_engine::AttentionKind;
using tiny_engine::Output;
using tiny_engine::Request;
using tiny_engine::Weights;

namespace {

constexpr std::uint32_t kPageTokens = 16;  // the least that a disk tier takes
constexpr std::uint32_t kContextTokens = 128;
constexpr std::uint32_t kSequences = 12;
constexpr std::uint32_t kStepTokens = 96;
constexpr std::uint64_t kConversations = 6;
constexpr std::uint64_t kTurns = 4;
constexpr std::uint64_t kTurnsBeforeRestart = 3;
constexpr double kTolerance = 1e-9;

Weights weights_of(std::uint64_t seed) {
  return tiny_engine::make_weights(
      {.attention = seed % 2 == 0 ? AttentionKind::Gqa : AttentionKind::Mla, .layer_window = seed % 5 == 4 ? 20U : 0U},
      40 + (seed % 2));
}

/// A cache and the engine on it, as long as a process lives.
class Process {
 public:
  Process(const Weights& weights, const ScheduleDevice& device, std::uint64_t seed, const std::string& directory) {
    const bool keys_rotated = seed / 2 % 2 == 0;
    PageTables page_tables = static_cast<PageTables>(seed % 3);
    if (weights.shape.layer_window > 0 && page_tables == PageTables::Block) page_tables = PageTables::Csr;
    CacheConfig config{
        .layout = ModelLayout::create("tiny", {tiny_engine::cache_group(weights.shape, keys_rotated)}).value(),
        .page = {.page_tokens = kPageTokens, .head_order = seed % 4 == 3 ? HeadOrder::Hnd : HeadOrder::Nhd},
        .device = {.page_count = 14, .byte_layout = seed / 2 % 2 == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst},
        .host = {.page_count = 48,
                 .layer_bands =
                     static_cast<std::uint16_t>(seed < kFirstEarlySeed ? 1 + (seed % 2) : weights.shape.layer_count)},
        .disk = {.directories = {directory}, .capacity_bytes = std::uint64_t{32} << 20U},
        .sequence_count_max = kSequences,
        .context_tokens_max = kContextTokens,
        .step_tokens_max = kStepTokens,
        .tree_tokens_max = 16,
        .plan = {.page_tables = page_tables,
                 .cascade_levels_max =
                     page_tables == PageTables::Block ? 1 : 1 + (static_cast<std::uint32_t>(seed) % 3)},
        .partial_reuse_min_tokens = 1};
    if (weights.shape.layer_window > 0) config.plan.layer_windows = {weights.shape.layer_window};
    if (device.device != nullptr) {
      config.device.memory = DeviceMemory::Accelerator;
      config.device.accelerator = device.device;
      config.host.staging_bytes = std::uint64_t{1} << 20U;
      const auto path = static_cast<SwapPath>(seed % 3);
      config.host.load_paths = config.host.store_paths = SwapPaths{.few = path, .many = path};
    }
    cache = Cache::open(std::move(config)).value();
    const tiny_engine::PoolMemory pool{.geometry = cache->geometry(), .bytes = cache->device_memory()};
    if (device.device != nullptr) {
      device_step_ = tiny_engine::DeviceStep::create({.device = device.device,
                                                      .kernels = device.kernels,
                                                      .pool = pool,
                                                      .shape = weights.shape,
                                                      .keys_rotated = keys_rotated,
                                                      .page_tables = page_tables,
                                                      .sequence_count_max = kSequences,
                                                      .row_columns = kContextTokens / kPageTokens,
                                                      .step_tokens_max = kStepTokens,
                                                      .context_tokens_max = kContextTokens})
                         .value();
    }
    engine =
        std::make_unique<tiny_engine::Engine>(weights, pool,
                                              tiny_engine::EngineOptions{.sequence_count_max = kSequences,
                                                                         .row_columns = kContextTokens / kPageTokens,
                                                                         .keys_rotated = keys_rotated,
                                                                         .appends_first = seed % 2 == 0,
                                                                         .applies_copies = false,
                                                                         .device = device_step_.get()});
    space = cache->key_space({.model = "tiny", .revision = "1"}).value();
  }

  /// Until whatever is cached would survive this process.
  [[nodiscard]] std::string flush() const {
    while (true) {
      const Result<bool> is_done = cache->flush();
      if (!is_done) return "flush: " + is_done.error().message;
      if (*is_done) return "";
      const auto completions = cache->poll();
      if (!completions) return "poll: " + completions.error().message;
      if (const Status applied = cache->apply(*completions, 0); !applied) return "apply: " + applied.error().message;
      if (completions->empty()) std::this_thread::yield();
    }
  }

  std::unique_ptr<Cache> cache;

 private:
  std::unique_ptr<tiny_engine::DeviceStep> device_step_;  // before the engine, behind the cache

 public:
  std::unique_ptr<tiny_engine::Engine> engine;
  KeySpaceId space;
};

/// How conversation `i` is decoded in a turn: everything that the scheduler can do, in turn.
Request request_of(std::uint64_t seed, std::uint64_t conversation, std::uint64_t turn, std::vector<TokenId> prompt) {
  Request request{.prompt = std::move(prompt), .new_tokens_max = 5};
  switch ((seed + conversation + turn) % 6) {
    case 0:
      request.sample_count = 3;
      request.temperature = 0.9;
      request.seed = seed + conversation;
      break;
    case 1:
      request.speculation = tiny_engine::Speculation::Tree;
      break;
    case 2:
      request.beam_width = 2;
      break;
    case 3:
      request.speculation = tiny_engine::Speculation::Chain;
      break;
    default:
      break;
  }
  return request;
}

std::string check(const Weights& weights, const tiny_engine::Scheduler& scheduler) {
  for (const Output& output : scheduler.outputs()) {
    const Request& request = scheduler.requests()[output.request_index];
    const std::string name = "request " + std::to_string(output.request_index) + ": ";
    if (output.tokens.size() != output.prompt_tokens + request.new_tokens_max) return name + "too few tokens";
    const tiny_engine::Verdict verdict = tiny_engine::check_output(weights, request, output);
    if (verdict.equal_count != verdict.token_count) return name + "a token is not the oracle's";
    // False for NaN too.
    if (!(verdict.difference <= kTolerance)) return name + "logits are off by " + std::to_string(verdict.difference);
  }
  return "";
}

void count(const Stats& stats, bool is_restarted, ConversationsResult& result) {
  result.evicted_pages += stats.evicted_page_total;
  result.stored_pages += stats.stored_page_total;
  result.loaded_pages += stats.loaded_page_total;
  result.disk_stored_pages += stats.disk_stored_page_total;
  result.disk_loaded_pages += stats.disk_loaded_page_total;
  if (!is_restarted) return;
  result.restarted_loaded_pages += stats.loaded_page_total;
  result.restarted_disk_loaded_pages += stats.disk_loaded_page_total;
}

std::string run_turn(Process& process, const Weights& weights, std::uint64_t seed, std::uint64_t turn,
                     std::vector<std::vector<TokenId>>& texts, ConversationsResult& result) {
  tiny_engine::Scheduler scheduler(*process.cache, *process.engine, process.space,
                                   {.chunk_tokens_max = 24,
                                    .running_max = 4,
                                    .steps_in_flight = 1 + static_cast<std::uint32_t>(seed / 3 % 2),
                                    .preempt = seed % 2 == 0 ? Preempt::Save : Preempt::Drop,
                                    .plans_while_loading = seed >= kFirstEarlySeed});
  for (std::uint64_t i = 0; i < kConversations; ++i) {
    texts[i] = join(std::move(texts[i]), seeded_text((seed * 100) + (turn * 10) + i, 9 + ((seed + i) % 8)));
    scheduler.add(request_of(seed, i, turn, texts[i]));
  }
  const Status status = scheduler.run();
  if (!status) return status.error().message;
  if (std::string problem = check(weights, scheduler); !problem.empty()) return problem;
  const Status invariants = process.cache->check_invariants();
  if (!invariants) return invariants.error().message;

  std::vector<Output> outputs = scheduler.outputs();
  std::ranges::sort(outputs, {},
                    [](const Output& output) { return std::tuple(output.request_index, output.sample_index); });
  for (Output& output : outputs) {
    if (output.sample_index == 0) texts[output.request_index] = output.tokens;
    result.outputs.push_back(std::move(output));
  }
  result.found_tokens += scheduler.counts().found_tokens;
  result.fork_count += scheduler.counts().fork_count;
  result.preempt_count += scheduler.counts().preempt_count;
  result.copied_pages += scheduler.counts().copied_pages;
  result.moved_tokens += scheduler.counts().moved_tokens;
  result.early_steps += scheduler.counts().early_steps;
  return "";
}

}  // namespace

ConversationsResult run_conversations(const ScheduleDevice& device, std::uint64_t seed, const std::string& directory) {
  const Weights weights = weights_of(seed);
  ConversationsResult result;
  // Half of the conversations begin with the same words.
  std::vector<std::vector<TokenId>> texts(kConversations);
  for (std::uint64_t i = 0; i < kConversations; i += 2) texts[i] = seeded_text(seed, 37);
  auto process = std::make_unique<Process>(weights, device, seed, directory);
  for (std::uint64_t turn = 0; turn < kTurns && result.problem.empty(); ++turn) {
    if (turn == kTurnsBeforeRestart) {
      result.problem = process->flush();
      count(*process->cache->stats(), false, result);
      process.reset();
      process = std::make_unique<Process>(weights, device, seed, directory);
    }
    if (result.problem.empty()) result.problem = run_turn(*process, weights, seed, turn, texts, result);
    if (!result.problem.empty()) {
      result.problem = "seed " + std::to_string(seed) + ", turn " + std::to_string(turn) + ": " + result.problem;
    }
  }
  count(*process->cache->stats(), true, result);
  return result;
}

void add_counts(ConversationsResult& sum, const ConversationsResult& added) {
  sum.evicted_pages += added.evicted_pages;
  sum.stored_pages += added.stored_pages;
  sum.loaded_pages += added.loaded_pages;
  sum.restarted_loaded_pages += added.restarted_loaded_pages;
  sum.disk_stored_pages += added.disk_stored_pages;
  sum.disk_loaded_pages += added.disk_loaded_pages;
  sum.restarted_disk_loaded_pages += added.restarted_disk_loaded_pages;
  sum.found_tokens += added.found_tokens;
  sum.fork_count += added.fork_count;
  sum.preempt_count += added.preempt_count;
  sum.copied_pages += added.copied_pages;
  sum.moved_tokens += added.moved_tokens;
  sum.early_steps += added.early_steps;
}

std::string to_string(const ConversationsResult& result) {
  const auto number = [](const char* name, std::uint64_t value) {
    return std::string("  ") + name + ": " + std::to_string(value) + "\n";
  };
  return number("pages evicted", result.evicted_pages) + number("pages stored", result.stored_pages) +
         number("pages loaded", result.loaded_pages) + number("pages written to disk", result.disk_stored_pages) +
         number("pages read from disk", result.disk_loaded_pages) +
         number("of them after a restart", result.restarted_disk_loaded_pages) +
         number("tokens found", result.found_tokens) + number("forks", result.fork_count) +
         number("preemptions", result.preempt_count) + number("copies", result.copied_pages) +
         number("moves", result.moved_tokens);
}

std::string compare_outputs(const std::vector<Output>& left, const std::vector<Output>& right) {
  if (left.size() != right.size()) return "there are other outputs";
  for (std::size_t i = 0; i < left.size(); ++i) {
    const std::string name = "output " + std::to_string(i) + ": ";
    if (left[i].tokens != right[i].tokens) return name + "tokens differ";
    if (left[i].logits.size() != right[i].logits.size()) return name + "there are other logits";
    for (std::size_t j = 0; j < left[i].logits.size(); ++j) {
      const std::vector<double>& one = left[i].logits[j];
      const std::vector<double>& other = right[i].logits[j];
      const bool is_same =
          one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(double)) == 0;
      if (!is_same) return name + "logits of new token " + std::to_string(j) + " differ";
    }
  }
  return "";
}

}  // namespace quire::testing
