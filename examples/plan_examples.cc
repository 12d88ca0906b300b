// SPDX-License-Identifier: Apache-2.0
//
// plan_examples <name>: prints the arrays of a small plan. These are the worked examples of docs/attention_plans.md,
// and a test compares what is printed here with what stands there. Pages have 4 tokens. Nothing is computed: what a
// step would sample is made up.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

using quire::Cache;
using quire::Sequence;
using quire::StepEntry;
using quire::StepResult;
using quire::TokenId;

template <typename T>
T must(quire::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "plan_examples: %s\n", result.error().message.c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

// A cache of 4-token pages with bookkeeping only.

quire::CacheConfig small_config() {
  quire::CacheConfig config{
      .layout = must(quire::ModelLayout::simple({.layers = 1, .kv_heads = 1, .head_dim = 8, .keys_rotated = false})),
      .page = {.page_tokens = 4},
      .device = {.page_count = 32, .memory = quire::DeviceMemory::None}};
  config.sequence_count_max = 8;
  config.context_tokens_max = 64;
  config.step_tokens_max = 64;
  return config;
}

struct Engine {
  explicit Engine(quire::CacheConfig config)
      : cache(must(Cache::open(std::move(config)))), space(must(cache->key_space({.model = "example"}))) {}
  explicit Engine(const quire::PlanConfig& plan = {}) : Engine(with_plan(plan)) {}

  static quire::CacheConfig with_plan(const quire::PlanConfig& plan) {
    quire::CacheConfig config = small_config();
    config.plan = plan;
    return config;
  }

  Sequence begin(std::span<const TokenId> prompt, quire::Window window = {}) const {
    Sequence sequence = must(cache->begin(space, {.tokens = prompt}));
    if (window.visible_tokens > 0) must(cache->set_window(sequence, window));
    must(cache->admit(sequence));
    return sequence;
  }

  quire::Step plan(std::span<const StepEntry> entries, const quire::PlanShape& shape = {}) const {
    quire::PlanOutcome outcome = must(cache->plan_step(entries, shape));
    if (!outcome.step) std::exit(1);
    return *outcome.step;
  }

  /// Finishes a step of entries that sample nothing yet.
  void finish(const quire::Step& step) const {
    const std::vector<StepResult> results(step.plan.entry_count);
    must(cache->finish_step(step, results));
  }

  /// Computes the next tokens of a sequence, in chunks of at most so many, and samples one token after the last.
  void prefill(const Sequence& sequence, std::uint32_t chunk_tokens_max = 64) const {
    while (true) {
      const std::uint32_t pending = must(cache->view(sequence)).pending_tokens;
      const StepEntry entry{.sequence = &sequence, .token_count = std::min(pending, chunk_tokens_max)};
      const quire::Step step = plan({&entry, 1});
      const TokenId sampled = 99;
      StepResult result;
      if (entry.token_count == pending) result.tokens = {&sampled, 1};
      must(cache->finish_step(step, {&result, 1}));
      if (entry.token_count == pending) return;
    }
  }

  std::unique_ptr<Cache> cache;
  quire::KeySpaceId space;
};

/// first, first + 1, …
std::vector<TokenId> text(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<TokenId> joined(std::vector<TokenId> left, const std::vector<TokenId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// Printing

template <typename T>
void print(const char* name, std::span<const T> values) {
  std::printf("%-17s", name);
  for (const T value : values) std::printf(" %2lld", static_cast<long long>(value));
  std::printf("\n");
}

void print_queries(const quire::AttentionPlan& plan) {
  print("query_indptr", plan.query_indptr);
  print("query_positions", plan.query_positions);
  print("seq_lens", plan.seq_lens);
  print("stored_lens", plan.stored_lens);
  print("append_slots", plan.groups[0].append_slots);
}

void print_level(const quire::CascadeLevel& level) {
  print("query_indptr", level.query_indptr);
  print("page_indptr", level.page_indptr);
  if (!level.rows.empty()) {
    print("rows", level.rows);
    print("first_columns", level.first_columns);
  }
  print("last_page_tokens", level.last_page_tokens);
  print("first_keys", level.first_keys);
}

void print_own_level(const quire::AttentionPlan& plan) {
  const quire::CascadeLevel& level = plan.groups[0].levels.back();
  print("page_indptr", level.page_indptr);
  if (!level.rows.empty()) {
    print("rows", level.rows);
    print("first_columns", level.first_columns);
  }
  print("last_page_tokens", level.last_page_tokens);
}

void print_window(const quire::AttentionPlan& plan) {
  const quire::CascadeLevel& level = plan.groups[0].levels.back();
  print("visible_tokens", plan.visible_tokens);
  print("sink_tokens", level.sink_tokens);
  print("window_offsets", level.window_offsets);
}

void print_row(const quire::AttentionPlan& plan) {
  std::printf("%-17s", "pages");
  for (const quire::PageId page : plan.entries[0].pages) std::printf(" %2u", page.value);
  std::printf("\n");
}

void print_deltas(const quire::AttentionPlan& plan) {
  std::printf("%-17s", "deltas");
  for (const quire::PageDelta& delta : plan.groups[0].deltas) {
    std::printf("  [%d][%d] = %d", delta.row, delta.column, delta.page);
  }
  std::printf("%s\n", plan.groups[0].deltas.empty() ? "  none" : "");
}

void print_copies(const quire::AttentionPlan& plan) {
  std::printf("%-17s", "copies");
  for (const quire::PageCopy& copy : plan.groups[0].copies) {
    std::printf("  page %u -> page %u, %u tokens", copy.source.value, copy.target.value, copy.token_count);
  }
  std::printf("%s\n", plan.groups[0].copies.empty() ? "  none" : "");
}

void print_moves(const quire::AttentionPlan& plan) {
  std::printf("%-17s", "moves");
  for (const quire::TokenMove& move : plan.groups[0].moves) {
    std::printf("  slot %lld -> slot %lld", static_cast<long long>(move.source_slot),
                static_cast<long long>(move.target_slot));
  }
  std::printf("%s\n", plan.groups[0].moves.empty() ? "  none" : "");
  print("move_indptr", plan.groups[0].move_indptr);
}

/// The nodes of the tree, and which of them each query sees.
void print_tree(const quire::AttentionPlan& plan) {
  print("tree_indptr", plan.tree_indptr);
  const std::span<const quire::TreeNode> nodes = plan.tree_nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::printf("tree_nodes[%zu]     begin %d  end %d  depth %d\n", i, nodes[i].begin, nodes[i].end, nodes[i].depth);
  }
  for (std::size_t i = 0; i < plan.token_count; ++i) {
    const quire::TreeNode& query = nodes[nodes.size() - plan.token_count + i];
    std::printf("query %zu sees     ", i);
    for (const quire::TreeNode& key : nodes) {
      std::printf(" %2c", key.begin <= query.begin && query.begin < key.end ? 'x' : '.');
    }
    std::printf("\n");
  }
}

// The examples

void decode() {
  const Engine engine;
  const Sequence a = engine.begin(text(0, 9));
  const Sequence b = engine.begin(text(50, 8));
  engine.prefill(a);
  engine.prefill(b);
  const std::vector<StepEntry> entries = {{&a}, {&b}};
  const quire::Step step = engine.plan(entries);
  print_queries(step.plan);
  print("state_slots", step.plan.state_slots);
  print_own_level(step.plan);
  print_deltas(step.plan);
}

void prefill() {
  const Engine engine;
  const Sequence a = engine.begin(text(0, 10));
  for (const std::uint32_t token_count : {6U, 4U}) {
    const StepEntry entry{.sequence = &a, .token_count = token_count};
    const quire::Step step = engine.plan({&entry, 1});
    std::printf("tokens %u to %u\n", step.plan.entries[0].position,
                step.plan.entries[0].position + step.plan.entries[0].token_count - 1);
    print_queries(step.plan);
    print_own_level(step.plan);
    print_deltas(step.plan);
    engine.finish(step);
  }
}

// One sequence decodes, another one computes a chunk of its prompt.
struct Mixed {
  explicit Mixed(const quire::PlanConfig& plan)
      : engine(plan), a(engine.begin(text(0, 9))), b(engine.begin(text(50, 10))) {
    engine.prefill(a);
    const StepEntry first{.sequence = &b, .token_count = 4};
    engine.finish(engine.plan({&first, 1}));
  }
  quire::Step plan(const quire::PlanShape& shape = {}) const {
    const std::vector<StepEntry> entries = {{&a}, {.sequence = &b, .token_count = 5}};
    return engine.plan(entries, shape);
  }
  Engine engine;
  Sequence a;
  Sequence b;
};

void mixed() {
  const Mixed mixed{{}};
  const quire::Step step = mixed.plan({.entries = 4, .tokens = 8});
  print_queries(step.plan);
  print("state_slots", step.plan.state_slots);
  print_own_level(step.plan);
  print_deltas(step.plan);
}

void tables() {
  const Mixed rows({.page_tables = quire::PageTables::Rows});
  std::printf("Rows\n");
  const quire::Step rows_step = rows.plan();
  print_own_level(rows_step.plan);
  print_deltas(rows_step.plan);

  const Mixed csr({.page_tables = quire::PageTables::Csr});
  std::printf("Csr\n");
  const quire::Step csr_step = csr.plan();
  const quire::FlashInferView flashinfer = must(quire::flashinfer_view(csr_step.plan));
  print("qo_indptr", flashinfer.qo_indptr);
  print("kv_indptr", flashinfer.kv_indptr);
  print("kv_indices", flashinfer.kv_indices);
  print("kv_last_page_len", flashinfer.kv_last_page_len);

  const Mixed block({.page_tables = quire::PageTables::Block});
  std::printf("Block\n");
  const quire::Step block_step = block.plan({.entries = 2, .tokens = 6, .columns = 4});
  const quire::BlockTableView view = must(quire::block_table_view(block_step.plan));
  for (std::size_t i = 0; i < 2; ++i) {
    print(i == 0 ? "block_table[0]" : "block_table[1]", view.block_table.subspan(i * view.columns, view.columns));
  }
  print("slot_mapping", view.slot_mapping);
  print("seq_lens", view.seq_lens);
  print("query_start_loc", view.query_start_loc);
}

void shape() {
  const Mixed mixed{{}};
  const quire::Step step = mixed.plan({.entries = 4, .tokens = 8});
  const quire::AttentionPlan& plan = step.plan;
  const auto offset = [&](const char* name, const auto& array) {
    std::printf("%-17s %4td\n", name, reinterpret_cast<const std::byte*>(array.data()) - plan.staging.data());
  };
  offset("query_positions", plan.query_positions);
  offset("query_indptr", plan.query_indptr);
  offset("seq_lens", plan.seq_lens);
  offset("append_slots", plan.groups[0].append_slots);
  offset("rows", plan.groups[0].levels[0].rows);
  offset("first_keys", plan.groups[0].levels[0].first_keys);
  offset("deltas", plan.groups[0].deltas);
}

// Four sequences: a, b and c begin with one system prompt, a and c with one document behind it, d with neither.
struct Shared {
  explicit Shared(quire::PageTables page_tables)
      : engine(quire::PlanConfig{.page_tables = page_tables, .cascade_levels_max = 3}) {
    const std::vector<TokenId> system = text(0, 8);
    const std::vector<TokenId> document = text(20, 4);
    for (const auto& prompt : {joined(joined(system, document), {40, 41}), joined(system, {42, 43, 44}),
                               joined(joined(system, document), {45}), text(50, 5)}) {
      sequences.push_back(engine.begin(prompt));
      engine.prefill(sequences.back());
    }
  }
  quire::Step plan() const {
    std::vector<StepEntry> entries;
    entries.reserve(sequences.size());
    for (const Sequence& sequence : sequences) entries.push_back({&sequence});
    return engine.plan(entries);
  }
  Engine engine;
  std::vector<Sequence> sequences;
};

void cascade() {
  const Shared shared(quire::PageTables::Csr);
  const quire::Step step = shared.plan();
  std::printf("%-17s", "entries");
  for (const quire::AttentionPlanEntry& entry : step.plan.entries) std::printf("  %c", "abcd"[entry.entry_index]);
  std::printf("\n");
  print("seq_lens", step.plan.seq_lens);
  print("append_slots", step.plan.groups[0].append_slots);
  for (std::size_t i = 0; i < step.plan.groups[0].levels.size(); ++i) {
    std::printf("level %zu\n", i);
    print_level(step.plan.groups[0].levels[i]);
  }
  std::printf("all levels\n");
  print("page_indices", step.plan.groups[0].page_indices);
}

void cascade_rows() {
  const Shared shared(quire::PageTables::Rows);
  const quire::Step step = shared.plan();
  for (std::size_t i = 0; i < step.plan.groups[0].levels.size(); ++i) {
    std::printf("level %zu\n", i);
    print("page_indptr", step.plan.groups[0].levels[i].page_indptr);
    print("rows", step.plan.groups[0].levels[i].rows);
    print("first_columns", step.plan.groups[0].levels[i].first_columns);
  }
}

constexpr quire::Window kWindow{.visible_tokens = 8, .sink_tokens = 2};

void window() {
  for (const auto page_tables : {quire::PageTables::Rows, quire::PageTables::Csr}) {
    const Engine engine(quire::PlanConfig{.page_tables = page_tables});
    const Sequence a = engine.begin(text(0, 22), kWindow);
    engine.prefill(a, 6);
    const StepEntry entry{&a};
    const quire::Step step = engine.plan({&entry, 1});
    if (page_tables == quire::PageTables::Rows) {
      print_row(step.plan);
      print_queries(step.plan);
      std::printf("Rows\n");
    } else {
      std::printf("Csr\n");
      print("page_indices", step.plan.groups[0].page_indices);
    }
    print_window(step.plan);
  }
}

void window_chunk() {
  const Engine engine(quire::PlanConfig{.page_tables = quire::PageTables::Csr});
  const Sequence a = engine.begin(text(0, 32), kWindow);
  for (const std::uint32_t token_count : {20U, 12U}) {
    const StepEntry entry{.sequence = &a, .token_count = token_count};
    const quire::Step step = engine.plan({&entry, 1});
    std::printf("tokens %u to %u\n", step.plan.entries[0].position,
                step.plan.entries[0].position + step.plan.entries[0].token_count - 1);
    print_row(step.plan);
    print_queries(step.plan);
    print("page_indices", step.plan.groups[0].page_indices);
    print_window(step.plan);
    engine.finish(step);
  }
}

void layer_window() {
  for (const auto page_tables : {quire::PageTables::Rows, quire::PageTables::Csr}) {
    const Engine engine(quire::PlanConfig{.page_tables = page_tables, .layer_windows = {6}});
    const Sequence a = engine.begin(text(0, 14));
    engine.prefill(a);
    const Sequence b = engine.begin(text(20, 13));
    const StepEntry first{.sequence = &b, .token_count = 10};
    engine.finish(engine.plan({&first, 1}));
    const std::vector<StepEntry> entries = {{&a}, {&b}};
    const quire::Step step = engine.plan(entries);
    const quire::GroupPlan& group = step.plan.groups[0];
    const quire::LayerWindowPlan& window = group.layer_windows[0];
    if (page_tables == quire::PageTables::Rows) {
      print_queries(step.plan);
      print_own_level(step.plan);
      std::printf("layers with a window of %u, Rows\n", window.window_tokens);
      print("page_indptr", window.page_indptr);
      print("rows", window.rows);
      print("first_columns", window.first_columns);
      print("first_keys", window.first_keys);
      print("key_offsets", window.key_offsets);
    } else {
      std::printf("Csr\n");
      print("page_indptr", window.page_indptr);
      print("page_indices", group.page_indices);
    }
  }
}

void full_hit() {
  const Engine engine;
  const Sequence first = engine.begin(text(0, 8));
  engine.prefill(first);
  const Sequence second = engine.begin(text(0, 8));
  const StepEntry entry{&second};
  const quire::Step step = engine.plan({&entry, 1});
  print_row(step.plan);
  print_queries(step.plan);
}

void chain() {
  const Engine engine;
  const Sequence a = engine.begin(text(0, 6));
  engine.prefill(a);
  const StepEntry drafting{.sequence = &a, .draft_count = 3};
  const quire::Step step = engine.plan({&drafting, 1});
  print_row(step.plan);
  print_queries(step.plan);
  const std::vector<TokenId> tokens = {70, 71};  // the first draft was right; 71 is what the model says instead
  const StepResult result{.tokens = tokens, .accepted_count = 1};
  must(engine.cache->finish_step(step, {&result, 1}));
  const StepEntry next{&a};
  std::printf("after one of three drafts was accepted\n");
  const quire::Step later = engine.plan({&next, 1});
  print_row(later.plan);
  print_queries(later.plan);
}

void tree() {
  const Engine engine;
  const Sequence a = engine.begin(text(0, 5));
  engine.prefill(a);

  const std::vector<std::int32_t> first_parents = {-1, 0, 0};
  const StepEntry first{.sequence = &a, .tree_parents = first_parents};
  const quire::Step first_step = engine.plan({&first, 1});
  std::printf("first round\n");
  print_row(first_step.plan);
  print_queries(first_step.plan);
  print_tree(first_step.plan);
  const std::vector<TokenId> first_values = {70, 71, 72};
  const StepResult first_result{.tokens = first_values};
  must(engine.cache->finish_step(first_step, {&first_result, 1}));

  const std::vector<std::int32_t> second_parents = {1, 2};
  const StepEntry second{.sequence = &a, .tree_parents = second_parents};
  const quire::Step second_step = engine.plan({&second, 1});
  std::printf("second round\n");
  print_row(second_step.plan);
  print_queries(second_step.plan);
  print_tree(second_step.plan);
  const std::vector<TokenId> second_values = {73, 74};
  const StepResult second_result{.tokens = second_values};
  must(engine.cache->finish_step(second_step, {&second_result, 1}));

  must(engine.cache->commit_tree(a, 4));
  const std::vector<TokenId> sampled = {75};
  must(engine.cache->append(a, {.tokens = sampled}));
  const StepEntry next{&a};
  const quire::Step step = engine.plan({&next, 1});
  std::printf("after commit_tree(4)\n");
  print_row(step.plan);
  print_queries(step.plan);
  print_moves(step.plan);
}

void copies() {
  const Engine engine;
  const Sequence a = engine.begin(text(0, 6));
  engine.finish(engine.plan(std::vector<StepEntry>{{&a}}));
  const Sequence b = must(engine.cache->fork(a, 6));
  const std::vector<TokenId> sampled = {70, 71};
  must(engine.cache->append(a, {.tokens = std::span(sampled).first(1)}));
  must(engine.cache->append(b, {.tokens = std::span(sampled).last(1)}));
  const std::vector<StepEntry> entries = {{&a}, {&b}};
  const quire::Step step = engine.plan(entries);
  print_copies(step.plan);
  print_deltas(step.plan);
  print_queries(step.plan);
}

void print_slots(std::span<const quire::SlotRun> slots) {
  std::printf("%-17s", "slots");
  for (const quire::SlotRun& run : slots) {
    const std::int64_t end = run.first_slot + run.token_count;
    std::printf("  [%lld, %lld)", static_cast<long long>(run.first_slot), static_cast<long long>(end));
  }
  std::printf("\n");
}

void transfer() {
  // The receiver's free pages do not lie one after the other: pages 1 and 3 are cached, and page 2 came back last.
  quire::CacheConfig config = small_config();
  config.device.page_count = 5;
  config.context_tokens_max = 16;
  const Engine decoder(std::move(config));
  Sequence former = decoder.begin(text(50, 5));
  decoder.prefill(former);
  const Sequence other = decoder.begin(text(60, 4));
  decoder.finish(decoder.plan(std::vector<StepEntry>{{&other}}));
  must(decoder.cache->end(former));

  const Sequence receiving = decoder.begin(text(0, 10));
  const std::span<const quire::SlotRun> slots = must(decoder.cache->prepare_receive(receiving, 9));
  std::printf("the receiver\n");
  print_slots(slots);

  const Engine prefiller;
  const Sequence sending = prefiller.begin(text(0, 10));
  const StepEntry first{.sequence = &sending, .token_count = 4};
  prefiller.finish(prefiller.plan({&first, 1}));
  must(prefiller.cache->mark_send(sending, 0, slots, 7));
  const StepEntry rest{.sequence = &sending};
  const quire::Step step = prefiller.plan({&rest, 1});
  std::printf("the sender\n");
  print("append_slots", step.plan.groups[0].append_slots);
  print("remote_slots", step.plan.groups[0].remote_slots);
  print("receivers", step.plan.groups[0].receivers);
  for (const quire::SendRun& run : step.plan.groups[0].sends) {
    std::printf("%-17s  %d tokens, slot %lld -> slot %lld of receiver %d\n", "sends", run.token_count,
                static_cast<long long>(run.local_slot), static_cast<long long>(run.remote_slot), run.receiver);
  }
  prefiller.finish(step);

  must(decoder.cache->finish_receive(receiving));
  const StepEntry last{&receiving};
  const quire::Step decoding = decoder.plan({&last, 1});
  std::printf("the receiver, when all has arrived\n");
  print_row(decoding.plan);
  print_queries(decoding.plan);
}

void mla() {
  for (const char* name : {"llama-3-8b", "deepseek-v3"}) {
    quire::CacheConfig config = small_config();
    config.layout = must(quire::preset(name));
    const Engine engine(std::move(config));
    const Sequence a = engine.begin(text(0, 9));
    engine.prefill(a);
    const StepEntry entry{&a};
    const quire::Step step = engine.plan({&entry, 1});
    std::printf("%s\n", name);
    print("append_slots", step.plan.groups[0].append_slots);
    const quire::PoolStrides& strides = engine.cache->geometry().strides();
    const auto& components = engine.cache->geometry().page().group().components;
    const auto slot = static_cast<std::uint64_t>(step.plan.append_slots[0]);
    for (std::uint32_t i = 0; i < strides.component_count; ++i) {
      const quire::RowLocation row{.page = {static_cast<std::uint32_t>(slot / 4)},
                                   .layer_index = 0,
                                   .component_index = i,
                                   .token_index = static_cast<std::uint32_t>(slot % 4)};
      std::printf("%-17s  at byte %llu of the pool, a head of it %llu bytes\n", components[i].name.c_str(),
                  static_cast<unsigned long long>(strides.offset_of(row)),
                  static_cast<unsigned long long>(strides.components[i].head_bytes));
    }
  }
}

struct Example {
  std::string_view name;
  void (*run)();
};
constexpr Example kExamples[] = {
    {"decode", decode},
    {"prefill", prefill},
    {"mixed", mixed},
    {"shape", shape},
    {"tables", tables},
    {"cascade", cascade},
    {"cascade-rows", cascade_rows},
    {"window", window},
    {"window-chunk", window_chunk},
    {"layer-window", layer_window},
    {"full-hit", full_hit},
    {"chain", chain},
    {"tree", tree},
    {"copies", copies},
    {"transfer", transfer},
    {"mla", mla},
};

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string_view name = argument_count == 2 ? arguments[1] : "";
  for (const Example& example : kExamples) {
    if (example.name != name) continue;
    example.run();
    return 0;
  }
  std::fprintf(stderr, "usage: plan_examples <name>, one of");
  for (const Example& example : kExamples) std::fprintf(stderr, " %s", std::string(example.name).c_str());
  std::fprintf(stderr, "\n");
  return 2;
}
