// SPDX-License-Identifier: Apache-2.0
//
// An engine's loop for a model with full layers, windows and a recurrent state, without the model: where a layer would
// compute, it writes numbers that depend on all tokens so far, and where it would read, it checks them. Two requests
// share the beginning of their prompts; the second goes on from the snapshot that the first left there. With a
// directory as its argument it keeps what it computes on disk, and finds it there the next time. The document
// docs/hybrid_models.md shows parts of this.
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kChunkTokens = 200;

void stop(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

template <typename T>
T must(quire::Result<T> result) {
  if (!result) stop(result.error().message.c_str());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

void keep_on_disk(quire::CacheConfig& config, const std::string& directory) {
  // [disk]
  config.host.page_count = 256;
  config.disk.directories = {directory};
  config.disk.capacity_bytes = 64ULL << 20U;
  // In the layout's order: all of `far` and of `state`, and of `near` what requests need at multiples of 256 tokens.
  config.disk.group_retention = {{}, {quire::RetentionRule::Every, 256}, {}};
  // [disk]
}

std::unique_ptr<quire::Cache> open_cache(const std::string& directory) {
  // One number per token, or per state, is enough to see that it is the right one.
  const std::vector<quire::Component> number = {{.name = "number", .element = quire::ElementType::Int32, .dim = 1}};
  // [open]
  const quire::CacheGroup far{.name = "far", .layers = {0}, .components = number};
  const quire::CacheGroup near{
      .name = "near", .kind = quire::GroupKind::Window, .layers = {1}, .components = number, .window_tokens = 64};
  const quire::CacheGroup state{.name = "state",
                                .kind = quire::GroupKind::Snapshot,
                                .layers = {2},
                                .components = number,
                                .retention = {.rule = quire::RetentionRule::Every, .interval_tokens = 256},
                                .slot_entries = 1};
  quire::CacheConfig config{.layout = must(quire::ModelLayout::create("three-kinds", {far, near, state}))};
  config.page.page_tokens = kPageTokens;
  config.device.page_count = 128;                   // of `far`, and of every group that keeps everything
  config.device.group_page_counts = {128, 48, 12};  // of `near` and `state`, too
  config.device.state_slot_count = 2;               // sequences that run at once
  config.sequence_count_max = 4;
  config.context_tokens_max = 1'024;
  config.plan.page_tables = quire::PageTables::Block;
  if (!directory.empty()) keep_on_disk(config, directory);
  std::unique_ptr<quire::Cache> cache = must(quire::Cache::open(std::move(config)));
  // [open]
  return cache;
}

/// What a token stores depends on every token up to it.
std::vector<std::int32_t> numbers_of(std::span<const quire::TokenId> tokens) {
  std::vector<std::int32_t> numbers;
  std::uint32_t number = 1;
  for (const quire::TokenId token : tokens) {
    number = (number * 31) + static_cast<std::uint32_t>(token);
    numbers.push_back(static_cast<std::int32_t>(number));
  }
  return numbers;
}

/// A model of three layers that computes nothing.
class Model {
 public:
  explicit Model(const quire::Cache& cache) : cache_(cache) {}

  void run(const quire::AttentionPlan& plan, std::span<const std::int32_t> numbers) {
    const quire::AttentionPlanEntry& entry = plan.entries[0];
    const std::uint32_t begin = entry.position;
    const std::uint32_t end = begin + entry.token_count;
    // A layer of each group reads what its first token sees …
    for (std::uint32_t i = 0; i < begin; ++i) expect(row(0, entry.pages[i / kPageTokens], i % kPageTokens), numbers[i]);
    for (std::uint32_t i = begin - std::min(begin, 63U); i < begin; ++i) {
      const auto page = static_cast<std::uint32_t>(plan.groups[1].block_table[i / kPageTokens]);
      expect(row(1, quire::PageId{page}, i % kPageTokens), numbers[i]);
    }
    std::byte* const state = cache_.state_memory() + (entry.state_slot * cache_.state_slots().slot_bytes());
    expect(state, begin == 0 ? 0 : numbers[begin - 1]);
    // … and writes what the next ones will see.
    for (std::uint32_t i = begin; i < end; ++i) {
      for (std::uint32_t group = 0; group < 2; ++group) {
        const std::int64_t slot = plan.groups[group].append_slots[i - begin];
        const quire::PageId page{static_cast<std::uint32_t>(slot / kPageTokens)};
        if (slot != quire::kNoSlot) std::memcpy(row(group, page, slot % kPageTokens), &numbers[i], sizeof(numbers[i]));
      }
    }
    std::memcpy(state, &numbers[end - 1], sizeof(numbers[end - 1]));
  }

 private:
  [[nodiscard]] std::byte* row(std::uint32_t group, quire::PageId page, std::int64_t token_index) const {
    const auto index = static_cast<std::uint32_t>(token_index);
    return cache_.device_memory(group) + cache_.geometry(group).offset_of({.page = page, .token_index = index});
  }
  static void expect(const std::byte* bytes, std::int32_t number) {
    if (std::memcmp(bytes, &number, sizeof(number)) != 0) stop("a layer read a number that is not the one written");
  }
  const quire::Cache& cache_;
};

/// Pages are on their way between device, host and disk.
void wait_for_tiers(quire::Cache& cache) {
  pollfd event{.fd = cache.event_fd(), .events = POLLIN, .revents = 0};
  (void)::poll(&event, 1, /*timeout=*/10);
  must(cache.apply(must(cache.poll()), 0));
}

void serve(quire::Cache& cache, quire::KeySpaceId space, std::span<const quire::TokenId> prompt) {
  Model model(cache);
  const std::vector<std::int32_t> numbers = numbers_of(prompt);
  const std::span<const quire::CacheGroup> groups = cache.config().layout.groups();
  // [serve]
  quire::Sequence sequence = must(cache.begin(space, {.tokens = prompt}));
  must(cache.admit(sequence));  // Unavailable while all state slots are taken
  while (must(cache.view(sequence)).is_loading) wait_for_tiers(cache);
  const quire::SequenceView found = must(cache.view(sequence));
  std::printf("%zu tokens, %u found", prompt.size(), found.token_count - found.pending_tokens);
  if (found.miss.reason == quire::MissReason::NotHeld) {
    std::printf("; '%s' does not hold what it needs to go on later", groups[found.miss.group].name.c_str());
  }
  std::printf("\n");
  for (;;) {
    const quire::SequenceView view = must(cache.view(sequence));
    if (view.pending_tokens == 0) break;
    const quire::StepEntry asked{.sequence = &sequence, .token_count = std::min(view.pending_tokens, kChunkTokens)};
    quire::PlanOutcome outcome = must(cache.plan_step({&asked, 1}));
    while (!outcome.step && outcome.shortage.pages_leaving > 0) {  // those are being copied to the host: room comes
      wait_for_tiers(cache);
      outcome = must(cache.plan_step({&asked, 1}));
    }
    if (!outcome.step) {  // nothing was planned, in any group
      std::fprintf(stderr, "group '%s' is short of pages\n", groups[outcome.shortage.group_index].name.c_str());
      std::exit(1);
    }
    const quire::Step& step = *outcome.step;
    const quire::AttentionPlanEntry& entry = step.plan.entries[0];  // may end earlier than asked: at a checkpoint
    must(cache.apply_copies(step));  // moves, copies of pages, then state_copies: reset, restore, fork
    model.run(step.plan, numbers);
    must(cache.apply_saves(step));  // state_saves: the snapshot, if entry.checkpoint is not 0
    std::printf("  [%u, %u)%s%s\n", entry.position, entry.position + entry.token_count,
                step.plan.state_copies.empty() ? "" : ", the state slot is filled",
                entry.checkpoint == 0 ? "" : ", a snapshot is taken");
    const quire::StepResult result;  // an engine that samples gives the new token here
    must(cache.finish_step(step, {&result, 1}));
  }
  must(cache.end(sequence));
  // [serve]
}

}  // namespace

int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : "";
  const std::unique_ptr<quire::Cache> cache = open_cache(directory);
  const quire::KeySpaceId space = must(cache->key_space({.model = "three-kinds"}));
  std::vector<quire::TokenId> prompt(700);
  std::iota(prompt.begin(), prompt.end(), 1);
  serve(*cache, space, prompt);
  std::vector<quire::TokenId> next = prompt;  // the next turn
  for (quire::TokenId token = 5'000; token < 5'060; ++token) next.push_back(token);
  serve(*cache, space, next);
  for (const quire::TokenId other : {6'000, 7'000}) {  // two that part from it in the middle
    next.assign(prompt.begin(), prompt.begin() + 400);
    for (quire::TokenId i = 0; i < 60; ++i) next.push_back(other + i);
    serve(*cache, space, next);
  }
  // [stats]
  for (std::uint32_t i = 0; i < cache->config().layout.groups().size(); ++i) {
    const quire::GroupStats stats = must(cache->group_stats(i));
    std::printf("%-5s  %3u of %3u pages cached, %llu evicted, %llu dropped, %llu snapshots restored\n",
                cache->config().layout.groups()[i].name.c_str(), stats.sealed_pages, stats.page_count,
                static_cast<unsigned long long>(stats.evicted_page_total),
                static_cast<unsigned long long>(stats.dropped_page_total),
                static_cast<unsigned long long>(stats.restored_snapshot_total));
  }
  // [stats]
  if (!directory.empty()) {
    while (!must(cache->flush())) wait_for_tiers(*cache);
  }
  std::printf("every number was the one written\n");
  return 0;
}
