// SPDX-License-Identifier: Apache-2.0
//
// quire demo: an engine without a model. It serves chats of several tenants on a cache whose pages lie in
// host memory, writes into each token's place bytes that only this token behind this history has, and
// compares all of them wherever the cache says that a prefix need not be computed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"
#include "quire/quire.h"
#include "terminal.h"

namespace quire {

namespace {

constexpr std::uint32_t kTenants = 3;
constexpr std::uint32_t kChats = 240;
constexpr std::uint32_t kTurns = 6;
constexpr std::uint32_t kSystemPrompts = 5;  // the same for all tenants, who still must not share a page
constexpr std::uint32_t kRunningMax = 16;
constexpr std::uint32_t kChunkTokens = 256;  // computed of one prompt in one step
constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kPageCount = 4'096;
constexpr TokenId kVocabulary = 128'000;

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EB;
  return x ^ (x >> 31U);
}

/// Numbers from a seed, the same on every machine.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(mix(seed)) {}
  std::uint32_t between(std::uint32_t low, std::uint32_t high) {
    state_ = mix(state_);
    return low + static_cast<std::uint32_t>((state_ >> 32U) % (high - low + 1));
  }

 private:
  std::uint64_t state_;
};

/// A chat so far. What its bytes should be depends on the tenant and on every token up to theirs.
struct Chat {
  std::uint32_t tenant = 0;
  std::uint32_t turn = 0;
  std::vector<TokenId> tokens;
  std::vector<std::uint64_t> histories;  // one per token

  void append(TokenId token) {
    const std::uint64_t before = histories.empty() ? mix(tenant) : histories.back();
    tokens.push_back(token);
    histories.push_back(mix(before ^ static_cast<std::uint64_t>(token)));
  }
  void append_drawn(Draws& draws, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      append(static_cast<TokenId>(draws.between(0, kVocabulary - 1)));
    }
  }
};

/// A chat's turn that is being served.
struct Request {
  Chat* chat = nullptr;
  Sequence sequence;
  std::uint32_t matched_tokens = 0;
  std::uint32_t answer_left = 0;
  bool is_verified = false;
};

class Demo {
 public:
  Demo(std::unique_ptr<Cache> cache, const DemoOptions& options)
      : cache_(std::move(cache)), options_(options), draws_(options.seed) {}

  Status serve_all() {
    for (std::uint32_t i = 0; i < kTenants; ++i) {
      const KeySpace space{.model = "demo", .salt = fmt::format("tenant {}", i)};
      QUIRE_TRY_ASSIGN(spaces_.emplace_back(), cache_->key_space(space));
    }
    chats_.resize(kChats);
    for (std::uint32_t i = 0; i < kChats; ++i) {
      chats_[i].tenant = i % kTenants;
      const std::uint32_t number = draws_.between(1, kSystemPrompts);
      Draws prompt(number);
      chats_[i].append_drawn(prompt, 250 + (37 * number));
      chats_[i].append_drawn(draws_, draws_.between(30, 150));
      waiting_.push_back(&chats_[i]);
    }
    while (!waiting_.empty() || !running_.empty()) {
      while (!waiting_.empty() && running_.size() < kRunningMax) QUIRE_TRY(admit_one());
      QUIRE_TRY(run_step());
    }
    return cache_->check_invariants();
  }

  [[nodiscard]] std::uint64_t verified_bytes() const { return verified_bytes_; }
  [[nodiscard]] Result<Stats> stats() const { return cache_->stats(); }

 private:
  Status admit_one() {
    const std::uint32_t at = draws_.between(0, static_cast<std::uint32_t>(waiting_.size()) - 1);
    Chat* const chat = std::exchange(waiting_[at], waiting_.back());
    waiting_.pop_back();
    QUIRE_TRY_ASSIGN(Sequence sequence, cache_->begin(spaces_[chat->tenant], {chat->tokens}));
    QUIRE_TRY_ASSIGN(const Admission admission, cache_->admit(sequence));
    running_.push_back({chat, std::move(sequence), admission.matched_tokens, draws_.between(20, 60)});
    return {};
  }

  Status run_step() {
    std::vector<StepEntry> entries;
    for (const Request& request : running_) {
      QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(request.sequence));
      entries.push_back({&request.sequence, std::min(view.pending_tokens, kChunkTokens)});
    }
    QUIRE_TRY_ASSIGN(const PlanOutcome outcome, cache_->plan_step(entries));
    if (!outcome.step) return fail(ErrorCode::Unavailable, "the pool is too small for the running requests");
    QUIRE_TRY(cache_->apply_copies(*outcome.step));

    // This is where an engine runs its model.
    std::vector<StepResult> results(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const AttentionPlanEntry& entry = outcome.step->plan.entries[i];
      Request& request = running_[i];
      if (!std::exchange(request.is_verified, true)) QUIRE_TRY(verify(request, entry));
      write(request, entry);
      if (entry.context_tokens < request.chat->tokens.size()) continue;  // more of the prompt is to come
      request.chat->append_drawn(draws_, 1);
      results[i].tokens = std::span(request.chat->tokens).last(1);
    }
    QUIRE_TRY(cache_->finish_step(*outcome.step, results));

    for (std::size_t i = 0; i < entries.size(); ++i) {
      Request& request = running_[i];
      if (results[i].tokens.empty() || --request.answer_left > 0) continue;
      QUIRE_TRY(cache_->end(request.sequence));
      if (++request.chat->turn == kTurns) continue;
      request.chat->append_drawn(draws_, draws_.between(30, 150));  // the next question
      waiting_.push_back(request.chat);
    }
    std::erase_if(running_, [](const Request& request) { return !request.sequence; });
    return {};
  }

  // All bytes of what the cache said it had, also in a page of which a part was copied.
  Status verify(const Request& request, const AttentionPlanEntry& entry) {
    if (options_.flip_a_bit && request.matched_tokens > 0 && request.chat->turn == kTurns / 2) {
      cache_->device_memory()[cache_->geometry().offset_of({.page = entry.pages.front()})] ^= std::byte{1};
    }
    for (std::uint32_t position = 0; position < request.matched_tokens; ++position) {
      const PageId page = entry.pages[position / kPageTokens];
      bool is_equal = true;
      for_each_row(page, position % kPageTokens, request.chat->histories[position], [&](auto row, auto expected) {
        is_equal = is_equal && std::ranges::equal(row, expected);
        verified_bytes_ += row.size();
      });
      if (!is_equal) {
        return fail(ErrorCode::Corrupt, fmt::format("page {} does not hold what was written for token {} of its chat",
                                                    page.value, position));
      }
    }
    return {};
  }

  void write(const Request& request, const AttentionPlanEntry& entry) {
    for (std::uint32_t i = 0; i < entry.token_count; ++i) {
      if (entry.append_slots[i] == kNoSlot) continue;
      const PageId page{static_cast<std::uint32_t>(entry.append_slots[i] / kPageTokens)};
      const auto token_index = static_cast<std::uint32_t>(entry.append_slots[i] % kPageTokens);
      for_each_row(page, token_index, request.chat->histories[entry.position + i],
                   [](auto row, auto expected) { std::ranges::copy(expected, row.begin()); });
    }
  }

  // Calls use(row, expected) for each row of a token: its bytes in the pool, and what they should be.
  template <typename Use>
  void for_each_row(PageId page, std::uint32_t token_index, std::uint64_t history, Use&& use) {
    const PageGeometry& shape = cache_->geometry().page();
    std::uint64_t word = history;
    for (std::uint32_t layer = 0; layer < shape.layer_count(); ++layer) {
      for (std::uint32_t component = 0; component < shape.components().size(); ++component) {
        expected_.resize(shape.components()[component].head_bytes);
        for (std::uint32_t head = 0; head < shape.heads_on_rank(component, 0).count; ++head) {
          for (std::size_t at = 0; at < expected_.size(); at += sizeof(word)) {
            word = mix(word);
            std::memcpy(expected_.data() + at, &word, sizeof(word));
          }
          const std::uint64_t offset = cache_->geometry().offset_of({page, layer, component, token_index, head});
          use(std::span(cache_->device_memory() + offset, expected_.size()), std::span<const std::byte>(expected_));
        }
      }
    }
  }

  std::unique_ptr<Cache> cache_;
  DemoOptions options_;
  Draws draws_;
  std::vector<KeySpaceId> spaces_;
  std::vector<Chat> chats_;
  std::vector<Chat*> waiting_;
  std::vector<Request> running_;
  std::vector<std::byte> expected_;
  std::uint64_t verified_bytes_ = 0;
};

void print_table(const Stats& stats, std::uint64_t verified_bytes) {
  const auto line = [](std::string_view what, std::uint64_t count, std::string_view note = "") {
    fmt::print("  {:<22}{:>12}{}{}\n", what, with_commas(count), note.empty() ? "" : "  ", note);
  };
  const double hit_rate = 100.0 * static_cast<double>(stats.hit_tokens) / static_cast<double>(stats.prompt_tokens);
  line("requests", stats.admitted_sequence_count);
  line("prompt tokens", stats.prompt_tokens);
  line("  found in the cache", stats.hit_tokens, fmt::format("{:.1f} %", hit_rate));
  line("  of these, copied", stats.partial_hit_tokens, "where a cached page begins alike");
  line("tokens computed", stats.computed_tokens, "answers included");
  line("pages cached", stats.sealed_page_total);
  line("pages evicted", stats.evicted_page_total);
  line("bytes verified", verified_bytes, "all that was found, and all as written");
}

}  // namespace

int run_demo(const DemoOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto serve = [&]() -> Status {
    QUIRE_TRY_ASSIGN(ModelLayout layout, ModelLayout::simple({.layers = 4, .kv_heads = 2, .head_dim = 32}));
    CacheConfig config{.layout = std::move(layout), .page = {.page_tokens = kPageTokens}};
    config.device.page_count = kPageCount;
    config.sequence_count_max = kRunningMax;
    QUIRE_TRY_ASSIGN(std::unique_ptr<Cache> cache, Cache::open(std::move(config)));
    fmt::print("{} chats of {} tenants, {} turns each, on {} of {} tokens ({} MiB).\n\n", kChats, kTenants, kTurns,
               counted(kPageCount, "page"), kPageTokens, cache->geometry().pool_bytes() >> 20U);
    std::fflush(stdout);
    Demo demo(std::move(cache), options);
    QUIRE_TRY(demo.serve_all());
    QUIRE_TRY_ASSIGN(const Stats stats, demo.stats());
    print_table(stats, demo.verified_bytes());
    return {};
  };
  if (const Status status = serve(); !status) {
    fmt::print(stderr, "quire demo: {}\n", status.error().message);
    return kExitFailed;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  fmt::print("\n{:.1f} seconds. 'quire tree' draws a small cache; README.md shows how to use the library.\n",
             elapsed.count());
  return kExitDone;
}

}  // namespace quire
