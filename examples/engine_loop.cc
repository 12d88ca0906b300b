// SPDX-License-Identifier: Apache-2.0
//
// An engine with everything but a model, for docs/write_an_engine.md. What a token stores is its value, attention adds
// up what it sees, and the next token follows from the sum; so every wrong byte shows in the text. The document shows
// the parts between marks, and a test keeps the two the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/host_kernels.h"
#include "quire/quire.h"

namespace {

using quire::Result;
using quire::Status;
using quire::TokenId;

constexpr std::uint32_t kPageTokens = 4;

/// What the model says after a query that sees keys of this sum.
TokenId next_token(std::int64_t sum) {
  return static_cast<TokenId>(((sum * 31) + 17) % 1000);
}

// The engine: its memory, a cache over it, and what a kernel does with a plan.
struct Engine {
  std::vector<std::byte> pool;
  std::unique_ptr<quire::Cache> cache;
  quire::KeySpaceId space;

  [[nodiscard]] static Result<Engine> open(std::uint32_t page_count);
  void prepare(const quire::AttentionPlan& plan);
  [[nodiscard]] std::vector<TokenId> run(const quire::AttentionPlan& plan, std::span<const TokenId> tokens);
};

Result<Engine> Engine::open(std::uint32_t page_count) {
  Engine engine;
  // [open]
  QUIRE_TRY_ASSIGN(quire::ModelLayout layout, quire::ModelLayout::opaque(sizeof(TokenId)));
  engine.pool.resize((page_count + 1ULL) * kPageTokens * layout.token_bytes());  // page 0 is the null page: zeros
  quire::CacheConfig config{.layout = std::move(layout), .page = {.page_tokens = kPageTokens}};
  config.device = {
      .page_count = page_count, .memory = quire::DeviceMemory::Adopted, .adopted_memory = engine.pool.data()};
  config.sequence_count_max = 16;
  config.context_tokens_max = 48;
  config.step_tokens_max = 32;
  config.steps_in_flight_max = 2;
  config.plan.page_tables = quire::PageTables::Csr;
  QUIRE_TRY_ASSIGN(engine.cache, quire::Cache::open(std::move(config)));
  QUIRE_TRY_ASSIGN(engine.space, engine.cache->key_space({.model = "sums", .salt = "tenant 7"}));
  // [open]
  return engine;
}

// [prepare]
void Engine::prepare(const quire::AttentionPlan& plan) {
  const quire::PoolGeometry& geometry = cache->geometry();
  quire::move_tokens_on_host({.geometry = &geometry, .pool = pool.data(), .moves = plan.groups[0].moves});
  quire::copy_pages_on_host({.geometry = &geometry, .pool = pool.data(), .copies = plan.groups[0].copies});
}
// [prepare]

// [run]
std::vector<TokenId> Engine::run(const quire::AttentionPlan& plan, std::span<const TokenId> tokens) {
  const quire::GroupPlan& group = plan.groups[0];
  const quire::CascadeLevel& own = group.levels.back();
  // What a model computes in each layer; here a token's row is its value.
  quire::append_on_host({.geometry = &cache->geometry(),
                         .pool = pool.data(),
                         .layer_index = 0,
                         .component_index = 0,
                         .source = reinterpret_cast<const std::byte*>(tokens.data()),
                         .slots = plan.append_slots});
  std::vector<TokenId> next;  // what follows each query
  for (std::size_t entry = 0; entry < plan.entry_count; ++entry) {
    const auto pages = group.page_indices.subspan(static_cast<std::size_t>(own.page_indptr[entry]));
    const std::int32_t query_count = plan.query_indptr[entry + 1] - plan.query_indptr[entry];
    const std::int32_t seq_len = plan.seq_lens[entry];
    const std::int32_t window = plan.visible_tokens[entry];
    const std::int32_t sink = own.sink_tokens[entry];
    const std::int32_t tree_begin = seq_len - (plan.tree_indptr[entry + 1] - plan.tree_indptr[entry]);
    const quire::TreeNode* const tree = plan.tree_nodes.data() + plan.tree_indptr[entry];
    // A key's place: tree tokens of one depth are alternatives for one place. What is seen goes by the place, in the
    // sink too, since a tree may begin there; the number j only finds the slot.
    const auto place_of = [&](std::int32_t j) { return j < tree_begin ? j : tree_begin + tree[j - tree_begin].depth; };
    for (std::int32_t r = 0; r < query_count; ++r) {
      const std::int32_t query = seq_len - query_count + r;  // its number as a key
      std::int64_t sum = 0;
      for (std::int32_t j = 0; j <= query; ++j) {
        const std::int32_t place = place_of(j);
        if (window > 0 && place >= sink && place_of(query) - place >= window - sink) continue;  // behind the window
        if (j >= tree_begin) {
          const quire::TreeNode& key = tree[j - tree_begin];
          const std::int32_t own_begin = tree[query - tree_begin].begin;
          if (own_begin < key.begin || own_begin >= key.end) continue;  // no ancestor
        }
        const auto token = static_cast<std::uint32_t>(j < sink ? j : j - sink + own.window_offsets[entry]);
        TokenId value = 0;
        const std::uint64_t offset = cache->geometry().offset_of(
            {.page = {static_cast<std::uint32_t>(pages[token / kPageTokens])}, .token_index = token % kPageTokens});
        std::memcpy(&value, pool.data() + offset, sizeof(value));
        sum += value;
      }
      next.push_back(next_token(sum));
    }
  }
  return next;
}
// [run]

// What a text must be, without a cache.

TokenId oracle_next(std::span<const TokenId> text, quire::Window window = {}) {
  std::int64_t sum = 0;
  const std::size_t length = text.size();
  for (std::size_t i = 0; i < length; ++i) {
    const bool is_seen = window.visible_tokens == 0 || i < window.sink_tokens ||
                         i + (window.visible_tokens - window.sink_tokens) >= length;
    if (is_seen) sum += text[i];
  }
  return next_token(sum);
}

std::vector<TokenId> oracle(std::vector<TokenId> text, std::size_t new_tokens, quire::Window window = {}) {
  for (std::size_t i = 0; i < new_tokens; ++i) text.push_back(oracle_next(text, window));
  return text;
}

Status expect_text(const std::vector<TokenId>& text, const std::vector<TokenId>& expected, const char* what) {
  if (text == expected) return {};
  return quire::fail(quire::ErrorCode::Corrupt, std::string(what) + ": the text is not what it should be");
}

std::vector<TokenId> make_prompt(TokenId first, std::size_t count) {
  std::vector<TokenId> prompt(count);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

/// The tokens that a step computes, in the order of its queries: those the cache knows, then `drafts`.
std::vector<TokenId> queries_of(const quire::AttentionPlan& plan, std::span<const TokenId> drafts = {}) {
  std::vector<TokenId> tokens;
  for (const quire::AttentionPlanEntry& entry : plan.entries) {
    tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.end());
  }
  tokens.insert(tokens.end(), drafts.begin(), drafts.end());
  return tokens;
}

// Continuous batching

enum class State : std::uint8_t { Waiting, Running, Preempted, Done };

struct Request {
  std::vector<TokenId> text;  // the prompt, then what was sampled
  std::size_t text_end = 0;   // how long it is to become
  State state = State::Waiting;
  quire::Sequence sequence = {};  // NOLINT(readability-redundant-member-init): some compilers ask for it
};

bool is_running(const Request& request) {
  return request.state == State::Running;
}

struct Scheduler {
  Engine& engine;
  std::vector<Request> requests = {};
  std::uint32_t chunk_tokens_max = 8;
  std::ptrdiff_t running_max = 4;
  bool may_admit = true;  // nothing was preempted since a sequence last ended
  std::uint32_t preempt_count = 0;
  std::uint32_t found_tokens = 0;

  [[nodiscard]] Status serve();
  [[nodiscard]] Status admit_waiting();
  [[nodiscard]] Status run_step();
  [[nodiscard]] Status preempt_youngest();
  [[nodiscard]] std::ptrdiff_t running_count() const {
    return std::count_if(requests.begin(), requests.end(), is_running);
  }
};

Status Scheduler::serve() {
  const auto is_done = [](const Request& request) { return request.state == State::Done; };
  while (!std::all_of(requests.begin(), requests.end(), is_done)) {
    QUIRE_TRY(admit_waiting());
    QUIRE_TRY(run_step());
  }
  return {};
}

// [admit]
Status Scheduler::admit_waiting() {
  quire::Cache& cache = *engine.cache;
  for (Request& request : requests) {
    // After a preemption those that are left go first; otherwise two sequences could push each other out for ever.
    if (running_count() == running_max || (!may_admit && running_count() > 0)) return {};
    if (request.state == State::Waiting) {
      QUIRE_TRY_ASSIGN(request.sequence, cache.begin(engine.space, {.tokens = request.text}));
      QUIRE_TRY_ASSIGN(const quire::Admission hit, cache.admit(request.sequence));
      found_tokens += hit.matched_tokens;  // these need no prefill
      request.state = State::Running;
    } else if (request.state == State::Preempted) {
      QUIRE_TRY(cache.resume(request.sequence));
      request.state = State::Running;
    }
  }
  return {};
}
// [admit]

// [step]
Status Scheduler::run_step() {
  quire::Cache& cache = *engine.cache;
  std::vector<quire::StepEntry> entries;
  std::vector<Request*> running;
  std::uint32_t tokens_left = cache.config().step_tokens_max;
  for (Request& request : requests) {
    if (request.state != State::Running || tokens_left == 0) continue;
    QUIRE_TRY_ASSIGN(const quire::SequenceView view, cache.view(request.sequence));
    const std::uint32_t token_count = std::min({view.pending_tokens, chunk_tokens_max, tokens_left});
    entries.push_back({.sequence = &request.sequence, .token_count = token_count});
    running.push_back(&request);
    tokens_left -= token_count;
  }

  QUIRE_TRY_ASSIGN(quire::PlanOutcome outcome, cache.plan_step(entries));
  if (!outcome.step && outcome.shortage.entries_that_fit > 0) {
    entries.resize(outcome.shortage.entries_that_fit);
    QUIRE_TRY_ASSIGN(outcome, cache.plan_step(entries));
  }
  if (!outcome.step) return preempt_youngest();

  const quire::AttentionPlan& plan = outcome.step->plan;
  engine.prepare(plan);
  const std::vector<TokenId> sampled = engine.run(plan, queries_of(plan));

  std::vector<quire::StepResult> results(entries.size());
  for (std::size_t i = 0; i < plan.entry_count; ++i) {
    const quire::AttentionPlanEntry& entry = plan.entries[i];
    std::vector<TokenId>& text = running[entry.entry_index]->text;
    if (entry.context_tokens < text.size()) continue;  // in the middle of its prompt
    text.push_back(sampled[static_cast<std::size_t>(plan.query_indptr[i + 1]) - 1]);
    results[entry.entry_index].tokens = std::span(text).last(1);
  }
  QUIRE_TRY(cache.finish_step(*outcome.step, results));
  for (Request* request : running) {
    if (request->text.size() < request->text_end) continue;
    QUIRE_TRY(cache.end(request->sequence));
    request->state = State::Done;
    may_admit = true;
  }
  return {};
}
// [step]

// [preempt]
Status Scheduler::preempt_youngest() {
  if (running_count() <= 1) return quire::fail(quire::ErrorCode::Unavailable, "the pool is too small for one request");
  const auto youngest = std::find_if(requests.rbegin(), requests.rend(), is_running);
  QUIRE_TRY(engine.cache->preempt(youngest->sequence, quire::Preempt::Drop));
  youngest->state = State::Preempted;
  may_admit = false;
  ++preempt_count;
  return {};
}
// [preempt]

Status batching() {
  QUIRE_TRY_ASSIGN(Engine engine, Engine::open(14));
  Scheduler scheduler{.engine = engine};
  std::vector<std::vector<TokenId>> expected;
  for (TokenId i = 0; i < 6; ++i) {
    std::vector<TokenId> text = make_prompt(0, 12);  // the same system prompt for all
    text.push_back(100 + i);
    text.push_back(200 + i);
    expected.push_back(oracle(text, 12));
    scheduler.requests.push_back({.text = std::move(text), .text_end = 26});
  }
  QUIRE_TRY(scheduler.serve());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    QUIRE_TRY(expect_text(scheduler.requests[i].text, expected[i], "batching"));
  }
  std::printf("batching: 6 requests, %u prompt tokens found, preempted %u times\n", scheduler.found_tokens,
              scheduler.preempt_count);
  return engine.cache->check_invariants();
}

// Plans and runs one step of one sequence.
struct Ran {
  quire::Step step;
  std::vector<TokenId> sampled;
};
Result<Ran> run_one(Engine& engine, const quire::StepEntry& entry, std::span<const TokenId> drafts = {}) {
  QUIRE_TRY_ASSIGN(quire::PlanOutcome outcome, engine.cache->plan_step({&entry, 1}));
  if (!outcome.step) return quire::fail(quire::ErrorCode::Unavailable, "the pool is full");
  engine.prepare(outcome.step->plan);
  std::vector<TokenId> sampled = engine.run(outcome.step->plan, queries_of(outcome.step->plan, drafts));
  return Ran{*outcome.step, std::move(sampled)};
}

// Computes what is pending in chunks, and decodes until the text is long enough.
Status decode(Engine& engine, const quire::Sequence& sequence, std::vector<TokenId>& text, std::size_t text_end,
              std::uint32_t chunk_tokens_max = 8) {
  while (text.size() < text_end) {
    QUIRE_TRY_ASSIGN(const quire::SequenceView view, engine.cache->view(sequence));
    QUIRE_TRY_ASSIGN(const Ran ran, run_one(engine, {.sequence = &sequence,
                                                     .token_count = std::min(view.pending_tokens, chunk_tokens_max)}));
    quire::StepResult result;
    if (ran.step.plan.entries[0].context_tokens == text.size()) {
      text.push_back(ran.sampled.back());
      result.tokens = std::span(text).last(1);
    }
    QUIRE_TRY(engine.cache->finish_step(ran.step, {&result, 1}));
  }
  return {};
}

Result<quire::Sequence> start(Engine& engine, std::span<const TokenId> prompt) {
  QUIRE_TRY_ASSIGN(quire::Sequence sequence, engine.cache->begin(engine.space, {.tokens = prompt}));
  QUIRE_TRY(engine.cache->admit(sequence));
  return sequence;
}

// Two steps in flight

Status ahead() {
  QUIRE_TRY_ASSIGN(Engine engine, Engine::open(24));
  quire::Cache& cache = *engine.cache;
  std::vector<TokenId> text = make_prompt(0, 10);
  const std::vector<TokenId> expected = oracle(text, 20);
  QUIRE_TRY_ASSIGN(quire::Sequence sequence, start(engine, text));
  // [ahead]
  std::deque<Ran> flights;
  while (text.size() < expected.size()) {
    while (flights.size() < 2 && text.size() + flights.size() < expected.size()) {
      const quire::StepEntry entry{.sequence = &sequence};
      QUIRE_TRY_ASSIGN(quire::PlanOutcome outcome, cache.plan_step({&entry, 1}));
      if (!outcome.step) break;  // pages may return when the oldest step is finished
      const quire::AttentionPlan& plan = outcome.step->plan;
      engine.prepare(plan);
      // What the step before has sampled is on the device, but not yet known to the host.
      std::vector<TokenId> tokens = queries_of(plan);
      if (tokens.size() < plan.token_count) tokens.push_back(flights.back().sampled.back());
      std::vector<TokenId> sampled = engine.run(plan, tokens);
      flights.push_back({*outcome.step, std::move(sampled)});
    }
    if (flights.empty()) return quire::fail(quire::ErrorCode::Unavailable, "the pool is full");
    text.push_back(flights.front().sampled.back());
    const quire::StepResult result{.tokens = std::span(text).last(1)};
    QUIRE_TRY(cache.finish_step(flights.front().step, {&result, 1}));
    flights.pop_front();
  }
  // [ahead]
  QUIRE_TRY(expect_text(text, expected, "ahead"));
  std::printf("ahead: %zu tokens\n", text.size());
  return cache.check_invariants();
}

// Parallel sampling

Status samples() {
  QUIRE_TRY_ASSIGN(Engine engine, Engine::open(24));
  quire::Cache& cache = *engine.cache;
  const std::vector<TokenId> prompt = make_prompt(0, 10);
  // [fork]
  std::vector<quire::Sequence> forks;
  QUIRE_TRY_ASSIGN(quire::Sequence first, start(engine, prompt));
  QUIRE_TRY_ASSIGN(const Ran ran, run_one(engine, {.sequence = &first}));
  const quire::StepResult nothing;  // the prompt is computed; who continues it how is decided below
  QUIRE_TRY(cache.finish_step(ran.step, {&nothing, 1}));
  for (int i = 1; i < 3; ++i) {
    QUIRE_TRY_ASSIGN(quire::Sequence fork, cache.fork(first, static_cast<std::uint32_t>(prompt.size())));
    forks.push_back(std::move(fork));
  }
  forks.push_back(std::move(first));
  std::vector<std::vector<TokenId>> texts(forks.size(), prompt);
  for (std::size_t i = 0; i < forks.size(); ++i) {
    texts[i].push_back(ran.sampled.back() + static_cast<TokenId>(i));  // three samples of one distribution
    QUIRE_TRY(cache.append(forks[i], {.tokens = std::span(texts[i]).last(1)}));
  }
  // [fork]
  for (std::size_t i = 0; i < forks.size(); ++i) {
    const std::vector<TokenId> expected = oracle(texts[i], 8);
    QUIRE_TRY(decode(engine, forks[i], texts[i], expected.size()));
    QUIRE_TRY(expect_text(texts[i], expected, "samples"));
  }
  std::printf("samples: 3 of one prompt\n");
  return cache.check_invariants();
}

// Speculation

Status chain() {
  QUIRE_TRY_ASSIGN(Engine engine, Engine::open(24));
  quire::Cache& cache = *engine.cache;
  std::vector<TokenId> text = make_prompt(0, 10);
  const std::vector<TokenId> expected = oracle(text, 12);
  QUIRE_TRY_ASSIGN(quire::Sequence sequence, start(engine, text));
  std::uint32_t step_count = 0;  // the first one computes the prompt too: ten pending tokens, and drafts behind them
  while (text.size() + 4 <= expected.size()) {
    std::vector<TokenId> drafts = {expected[text.size()], expected[text.size() + 1], 5};  // the third is wrong
    // [chain]
    const quire::StepEntry entry{.sequence = &sequence, .draft_count = static_cast<std::uint32_t>(drafts.size())};
    QUIRE_TRY_ASSIGN(const Ran ran, run_one(engine, entry, drafts));
    // sampled[i] follows query i. The last queries are the drafts, and the one before them is the last known token.
    const std::size_t last_known = ran.sampled.size() - drafts.size() - 1;
    std::uint32_t accepted = 0;
    while (accepted < drafts.size() && drafts[accepted] == ran.sampled[last_known + accepted]) ++accepted;
    drafts.resize(accepted);
    drafts.push_back(ran.sampled[last_known + accepted]);
    const quire::StepResult result{.tokens = drafts, .accepted_count = accepted};
    QUIRE_TRY(cache.finish_step(ran.step, {&result, 1}));
    // [chain]
    text.insert(text.end(), drafts.begin(), drafts.end());
    ++step_count;
  }
  QUIRE_TRY(decode(engine, sequence, text, expected.size()));
  QUIRE_TRY(expect_text(text, expected, "chain"));
  std::printf("chain: 9 tokens in %u steps\n", step_count);
  return cache.check_invariants();
}

Status tree() {
  QUIRE_TRY_ASSIGN(Engine engine, Engine::open(24));
  quire::Cache& cache = *engine.cache;
  std::vector<TokenId> text = make_prompt(0, 10);
  const std::vector<TokenId> expected = oracle(text, 8);
  QUIRE_TRY_ASSIGN(quire::Sequence sequence, start(engine, text));
  QUIRE_TRY(decode(engine, sequence, text, text.size() + 1));
  const TokenId right = expected[text.size()];
  const TokenId second = expected[text.size() + 1];
  // Two guesses for the next token, the right one last; then two guesses behind that one.
  const std::vector<std::vector<TokenId>> rounds = {{right + 1, right}, {second + 1, second}};
  const std::vector<std::vector<std::int32_t>> round_parents = {{-1, -1}, {1, 1}};
  // [tree]
  std::vector<TokenId> values;        // of the tree's tokens, all rounds
  std::vector<std::int32_t> parents;  // likewise
  std::vector<TokenId> after;         // what the model says behind each of them
  TokenId after_text = 0;             // and behind the last known token
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    const quire::StepEntry entry{.sequence = &sequence, .tree_parents = round_parents[round]};
    QUIRE_TRY_ASSIGN(const Ran ran, run_one(engine, entry, rounds[round]));
    const std::size_t known_count = ran.sampled.size() - rounds[round].size();
    if (known_count > 0) after_text = ran.sampled[known_count - 1];
    values.insert(values.end(), rounds[round].begin(), rounds[round].end());
    parents.insert(parents.end(), round_parents[round].begin(), round_parents[round].end());
    after.insert(after.end(), ran.sampled.begin() + static_cast<std::ptrdiff_t>(known_count), ran.sampled.end());
    const quire::StepResult result{.tokens = rounds[round]};
    QUIRE_TRY(cache.finish_step(ran.step, {&result, 1}));
  }

  // The longest path that says what the model says. Parents stand before their children.
  std::int32_t leaf = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (parents[i] != leaf || values[i] != (leaf < 0 ? after_text : after[static_cast<std::size_t>(leaf)])) continue;
    leaf = static_cast<std::int32_t>(i);
    text.push_back(values[i]);
  }
  text.push_back(leaf < 0 ? after_text : after[static_cast<std::size_t>(leaf)]);
  QUIRE_TRY(cache.commit_tree(sequence, leaf));
  QUIRE_TRY(cache.append(sequence, {.tokens = std::span(text).last(1)}));
  // [tree]
  QUIRE_TRY(decode(engine, sequence, text, expected.size()));
  QUIRE_TRY(expect_text(text, expected, "tree"));
  std::printf("tree: token %d of the tree was the leaf\n", leaf);
  return cache.check_invariants();
}

Status window() {
  QUIRE_TRY_ASSIGN(Engine engine, Engine::open(24));
  quire::Cache& cache = *engine.cache;
  std::vector<TokenId> text = make_prompt(3, 14);
  const quire::Window window{.visible_tokens = 8, .sink_tokens = 2};
  const std::vector<TokenId> expected = oracle(text, 16, window);
  // [window]
  QUIRE_TRY_ASSIGN(quire::Sequence sequence, cache.begin(engine.space, {.tokens = text}));
  QUIRE_TRY(cache.set_window(sequence, window));
  QUIRE_TRY(cache.admit(sequence));
  // This engine reads keys from pages only, so every token of a chunk needs a slot.
  const std::uint32_t chunk_tokens_max = window.visible_tokens - window.sink_tokens;
  QUIRE_TRY(decode(engine, sequence, text, expected.size(), chunk_tokens_max));
  // [window]
  QUIRE_TRY(expect_text(text, expected, "window"));
  QUIRE_TRY_ASSIGN(const quire::Stats stats, cache.stats());
  std::printf("window: %zu tokens in %u pages\n", text.size(),
              stats.open_pages + stats.private_pages + stats.pinned_pages);
  return cache.check_invariants();
}

struct TokenTree {
  std::vector<TokenId> values;
  std::vector<std::int32_t> parents;
};

/// The text that ends with token `leaf` of a tree behind `text`.
std::vector<TokenId> text_down_to(const TokenTree& tree, std::size_t leaf, std::vector<TokenId> text) {
  const std::int32_t parent = tree.parents[leaf];
  if (parent >= 0) text = text_down_to(tree, static_cast<std::size_t>(parent), std::move(text));
  text.push_back(tree.values[leaf]);
  return text;
}

// A token tree that begins inside the sink of a window: its fourth token is key 5, at place 2. In one round all tokens
// are queries; in two rounds, what was pending is stored by the second.
Status sink_tree(std::span<const std::size_t> round_tokens) {
  QUIRE_TRY_ASSIGN(Engine engine, Engine::open(24));
  quire::Cache& cache = *engine.cache;
  std::vector<TokenId> text = make_prompt(3, 2);
  const quire::Window window{.visible_tokens = 8, .sink_tokens = 5};
  const TokenTree tree{.values = make_prompt(50, 7), .parents = {-1, -1, -1, -1, 3, 4, 5}};
  QUIRE_TRY_ASSIGN(quire::Sequence sequence, cache.begin(engine.space, {.tokens = text}));
  QUIRE_TRY(cache.set_window(sequence, window));
  QUIRE_TRY(cache.admit(sequence));
  std::vector<TokenId> after;  // what the model says behind each token of the tree
  for (const std::size_t count : round_tokens) {
    const auto drafts = std::span(tree.values).subspan(after.size(), count);
    const quire::StepEntry entry{.sequence = &sequence,
                                 .tree_parents = std::span(tree.parents).subspan(after.size(), count)};
    QUIRE_TRY_ASSIGN(const Ran ran, run_one(engine, entry, drafts));
    after.insert(after.end(), ran.sampled.end() - static_cast<std::ptrdiff_t>(count), ran.sampled.end());
    const quire::StepResult result{.tokens = drafts};
    QUIRE_TRY(cache.finish_step(ran.step, {&result, 1}));
  }
  std::vector<TokenId> expected_after(tree.values.size());
  for (std::size_t i = 0; i < expected_after.size(); ++i) {
    expected_after[i] = oracle_next(text_down_to(tree, i, text), window);
  }
  QUIRE_TRY(expect_text(after, expected_after, "sink tree"));

  QUIRE_TRY(cache.commit_tree(sequence, 6));
  text = text_down_to(tree, 6, std::move(text));
  const std::vector<TokenId> expected = oracle(text, 12, window);
  text.push_back(after.back());
  QUIRE_TRY(cache.append(sequence, {.tokens = std::span(text).last(1)}));
  const std::uint32_t chunk_tokens_max = window.visible_tokens - window.sink_tokens;
  QUIRE_TRY(decode(engine, sequence, text, expected.size(), chunk_tokens_max));
  QUIRE_TRY(expect_text(text, expected, "sink tree"));
  std::printf("sink tree: %zu tokens, rounds: %zu\n", after.size(), round_tokens.size());
  return cache.check_invariants();
}

Status sink_trees() {
  for (const std::vector<std::size_t>& round_tokens : {std::vector<std::size_t>{7}, std::vector<std::size_t>{5, 2}}) {
    QUIRE_TRY(sink_tree(round_tokens));
  }
  return {};
}

// Prefill in one engine, decode in another

std::byte* row_of(Engine& engine, std::int64_t slot) {
  return engine.pool.data() +
         engine.cache->geometry().offset_of({.page = {static_cast<std::uint32_t>(slot / kPageTokens)},
                                             .token_index = static_cast<std::uint32_t>(slot % kPageTokens)});
}

Status split() {
  QUIRE_TRY_ASSIGN(Engine prefiller, Engine::open(24));
  QUIRE_TRY_ASSIGN(Engine decoder, Engine::open(24));
  std::vector<TokenId> text = make_prompt(0, 13);
  const std::vector<TokenId> expected = oracle(text, 8);
  // [split]
  // The decoder says where the tokens go that it does not have.
  QUIRE_TRY_ASSIGN(quire::Sequence receiving, start(decoder, text));
  QUIRE_TRY_ASSIGN(const quire::SequenceView view, decoder.cache->view(receiving));
  QUIRE_TRY_ASSIGN(const std::span<const quire::SlotRun> slots,
                   decoder.cache->prepare_receive(receiving, view.pending_tokens));

  // The prefiller computes the prompt, and sends with every step what is marked.
  QUIRE_TRY_ASSIGN(quire::Sequence sending, start(prefiller, text));
  QUIRE_TRY(prefiller.cache->mark_send(sending, view.computed_tokens, slots, 0));
  QUIRE_TRY_ASSIGN(const Ran ran, run_one(prefiller, {.sequence = &sending}));
  const quire::GroupPlan& group = ran.step.plan.groups[0];
  for (const quire::SendRun& run : group.sends) {  // computed before they were marked
    for (std::int32_t i = 0; i < run.token_count; ++i) {
      std::memcpy(row_of(decoder, run.remote_slot + i), row_of(prefiller, run.local_slot + i), sizeof(TokenId));
    }
  }
  for (std::size_t i = 0; i < ran.step.plan.token_count; ++i) {  // computed by this step
    if (group.remote_slots[i] == quire::kNoSlot) continue;
    std::memcpy(row_of(decoder, group.remote_slots[i]), row_of(prefiller, group.append_slots[i]), sizeof(TokenId));
  }
  const quire::StepResult nothing;
  QUIRE_TRY(prefiller.cache->finish_step(ran.step, {&nothing, 1}));

  // Everything has arrived. The last token runs again here, as after a prompt that was cached whole.
  QUIRE_TRY(decoder.cache->finish_receive(receiving));
  QUIRE_TRY(decode(decoder, receiving, text, expected.size()));
  // [split]
  QUIRE_TRY(expect_text(text, expected, "split"));
  std::printf("split: 13 tokens were sent\n");
  return decoder.cache->check_invariants();
}

}  // namespace

int main() {
  for (Status (*part)() : {batching, ahead, samples, chain, tree, window, sink_trees, split}) {
    if (const Status status = part(); !status) {
      std::fprintf(stderr, "engine_loop: %s\n", status.error().message.c_str());
      return 1;
    }
  }
  std::printf("every text is what it should be\n");
  return 0;
}
