// SPDX-License-Identifier: Apache-2.0
//
// Random calls on a Cache, beside a twin that knows only this: which prefixes are cached (a set of strings), what each
// sequence has computed, and that nothing may vanish but by eviction, drop or reset. Every byte the cache serves is
// checked by an engine whose values depend on the whole history of a token. Which page goes first is the business of
// the tree's own model.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "generated_ops.h"
#include "quire/cache.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "tests/cache/cache_fixture.h"

namespace quire::testing {
namespace {

struct ModelConfig {
  std::uint32_t page_tokens = 4;
  std::uint32_t page_count = 24;
  bool whole_runs = false;
};

class CacheModel {
 public:
  explicit CacheModel(const ModelConfig& config) : config_(config) {
    CacheConfig settings = test_config(config.page_tokens, config.page_count);
    settings.context_tokens_max = config.page_tokens * std::min(8U, config.page_count);
    settings.sequence_count_max = 6;
    settings.key_space_count_max = 16;  // more than two and the dropped ones that still have sequences
    settings.keep_count_max = 3;
    settings.whole_runs = config.whole_runs;
    context_tokens_max_ = settings.context_tokens_max;
    cache_ = open_cache(std::move(settings));
    engine_ = std::make_unique<ByteEngine>(*cache_);
  }

  /// Empty, or what differs.
  std::string apply(const Op& op) {
    Random random((std::uint64_t{op.draws[0]} << 40U) ^ (std::uint64_t{op.draws[1]} << 20U) ^ op.draws[2] ^
                  (std::uint64_t{op.draws[3]} << 8U));
    using Operation = std::string (CacheModel::*)(Random&);
    constexpr std::array<Operation, 16> kOperations = {
        &CacheModel::lookup, &CacheModel::begin, &CacheModel::admit,  &CacheModel::step,
        &CacheModel::end,    &CacheModel::begin, &CacheModel::admit,  &CacheModel::step,
        &CacheModel::step,   &CacheModel::step,  &CacheModel::keep,   &CacheModel::advance,
        &CacheModel::drop,   &CacheModel::reset, &CacheModel::resize, &CacheModel::bad_input};
    std::string difference = (this->*kOperations[op.kind % kOperations.size()])(random);
    if (difference.empty()) difference = compare();
    return difference;
  }

 private:
  struct Text {
    std::vector<TokenId> tokens;
    std::vector<ExtraKey> extra_keys;
  };
  struct Live {
    Sequence handle;
    Text text;
    std::uint64_t epoch = 0;
    SequenceOptions options;
    std::uint32_t prompt_tokens = 0;
    bool is_admitted = false;
    bool has_pending_copy = false;
    bool has_run = false;
    std::uint32_t computed = 0;
    std::uint32_t shared_pages = 0;
    std::uint32_t page_count = 0;

    [[nodiscard]] std::uint32_t pending() const {
      const auto missing = static_cast<std::uint32_t>(text.tokens.size()) - computed;
      return missing == 0 && !has_run ? 1 : missing;
    }
  };
  struct Keep {
    KeepId id;
    std::uint64_t epoch = 0;
    Text text;
    std::uint32_t pages = 0;
    TimeNs expires_at = 0;
  };

  // ── operations ────────────────────────────────────────────────────────────────────────────────────────────────

  std::string lookup(Random& random) {
    const KeySpaceId space = draw_space(random);
    const Text text = draw_text(random);
    const Lookup found = cache_->lookup(space, prompt_of(text)).value();
    const std::uint32_t expected = cached_pages(epochs_.at(space), text, UINT32_MAX) * config_.page_tokens;
    if (found.matched_tokens - found.partial_tokens != expected) return "lookup finds another number of pages";
    if (found.matched_tokens > text.tokens.size()) return "lookup finds more tokens than there are";
    return "";
  }

  std::string begin(Random& random) {
    const KeySpaceId space = draw_space(random);
    Live live{.text = draw_text(random), .epoch = epochs_.at(space)};
    live.prompt_tokens = static_cast<std::uint32_t>(live.text.tokens.size());
    if (random.below(6) == 0) live.options.match_tokens_max = random.below(live.prompt_tokens + 1);
    live.options.use_cache = random.below(8) != 0;
    live.options.publish = std::array{Publish::All, Publish::All, Publish::Prompt, Publish::None}[random.below(4)];
    Result<Sequence> begun = cache_->begin(space, prompt_of(live.text), live.options);
    if (live_.size() == 6) return begun ? "a seventh sequence was begun" : "";
    if (!begun) return begun.error().message;
    live.handle = std::move(*begun);
    live_.push_back(std::move(live));
    return "";
  }

  std::string admit(Random& random) {
    Live* const live = draw_live(random, [](const Live& each) { return !each.is_admitted; });
    if (live == nullptr) return "";
    std::uint32_t tokens_max = live->options.match_tokens_max.value_or(UINT32_MAX);
    if (!live->options.use_cache || is_dropped(live->epoch)) tokens_max = 0;
    const std::uint32_t pages = cached_pages(live->epoch, live->text, tokens_max);
    const Result<Admission> admission = cache_->admit(live->handle);
    if (!admission) return admission.error().message;
    if (admission->matched_tokens - admission->partial_tokens != pages * config_.page_tokens) {
      return "admit matches " + std::to_string(admission->matched_tokens) + " tokens, not " + std::to_string(pages) +
             " pages";
    }
    if (admission->matched_tokens > std::min<std::size_t>(tokens_max, live->text.tokens.size())) {
      return "admit matches more than it may";
    }
    if (admission->partial_tokens > 0 && admission->partial_tokens < (config_.page_tokens + 1) / 2) {
      return "admit copies less than the minimum";
    }
    live->is_admitted = true;
    live->computed = admission->matched_tokens;
    live->has_pending_copy = admission->partial_tokens > 0;
    live->shared_pages = pages;
    live->page_count = pages;
    return "";
  }

  std::string step(Random& random) {
    std::vector<Live*> batch;
    std::vector<StepEntry> entries;
    for (Live& live : live_) {
      if (!live.is_admitted || live.pending() == 0 || random.below(3) == 0) continue;
      batch.push_back(&live);
      entries.push_back({&live.handle, 1 + random.below(live.pending())});
    }
    if (batch.empty()) return "";

    std::uint32_t needed = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) needed += pages_added(*batch[i], entries[i].token_count);
    const Stats before = cache_->stats().value();
    const Result<PlanOutcome> outcome = cache_->plan_step(entries);
    if (!outcome) return outcome.error().message;
    const std::uint32_t available = before.free_pages + before.evictable_pages;
    bool fits = needed <= available;
    if (!fits && outcome->step.has_value()) {
      // It fits once the copies that have not been made are given up, with the pins on their sources.
      for (Live& live : live_) {
        if (!live.has_pending_copy) continue;
        live.computed = live.shared_pages * config_.page_tokens;
        live.has_pending_copy = false;
      }
      needed = 0;
      for (std::size_t i = 0; i < batch.size(); ++i) needed += pages_added(*batch[i], entries[i].token_count);
      fits = needed <= before.page_count - before.open_pages - before.private_pages - pinned_names().size();
    }
    if (outcome->step.has_value() != fits) return "plan_step is wrong about what fits";
    if (!outcome->step) {
      const bool is_told = outcome->shortage.pages_needed == needed && outcome->shortage.pages_available == available;
      return is_told ? "" : "the shortage is not what it is";
    }
    const std::uint64_t evicted = cache_->stats()->evicted_page_total - before.evicted_page_total;
    const std::uint64_t shortfall = needed > before.free_pages ? needed - before.free_pages : 0;
    if (config_.whole_runs ? evicted < shortfall : evicted != shortfall) return "not just the shortfall was evicted";
    // Now, because the step may bring back the very page that was evicted for it.
    std::string difference = reconcile();
    if (!difference.empty()) return difference;

    const AttentionPlan& plan = outcome->step->plan;
    if (!cache_->apply_copies(*outcome->step)) return "the copies cannot be applied";
    for (std::size_t i = 0; i < batch.size(); ++i) {
      engine_->run(plan.entries[i], batch[i]->epoch, batch[i]->text.tokens, batch[i]->text.extra_keys);
      if (::testing::Test::HasFatalFailure()) return "wrong bytes";
    }
    if (random.below(8) == 0) return cache_->abort_step(*outcome->step) ? "" : "the step cannot be aborted";
    return finish(*outcome->step, batch, entries, random);
  }

  std::string finish(const Step& step, const std::vector<Live*>& batch, const std::vector<StepEntry>& entries,
                     Random& random) {
    std::vector<std::vector<TokenId>> sampled(batch.size());
    std::vector<StepResult> results(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Live& live = *batch[i];
      live.page_count += pages_added(live, entries[i].token_count);
      if (live.computed < live.text.tokens.size()) live.computed += entries[i].token_count;
      live.has_run = true;
      live.has_pending_copy = false;
      const bool may_grow = live.computed == live.text.tokens.size();
      for (std::uint32_t n = random.below(3); may_grow && n > 0; --n) {
        if (live.text.tokens.size() + sampled[i].size() == context_tokens_max_) break;
        sampled[i].push_back(draw_token(random));
      }
      results[i].tokens = sampled[i];
    }
    const Status status = cache_->finish_step(step, results);
    if (!status) return status.error().message;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Live& live = *batch[i];
      const std::uint32_t publishes = live.options.publish == Publish::All ? live.computed
                                      : live.options.publish == Publish::Prompt
                                          ? std::min(live.computed, live.prompt_tokens)
                                          : 0;
      for (; live.shared_pages < publishes / config_.page_tokens; ++live.shared_pages) {
        cached_.insert(page_name(live.epoch, live.text, live.shared_pages));
      }
      live.text.tokens.insert(live.text.tokens.end(), sampled[i].begin(), sampled[i].end());
      remember(live.text);
    }
    return "";
  }

  std::string end(Random& random) {
    Live* const live = draw_live(random, [](const Live&) { return true; });
    if (live == nullptr) return "";
    if (random.below(2) == 0 && !cache_->end(live->handle)) return "a sequence cannot end";
    live_.erase(live_.begin() + (live - live_.data()));                  // drops the handle otherwise
    return cache_->advance(now_) ? "" : "the clock cannot stand still";  // a call that ends dropped ones
  }

  std::string keep(Random& random) {
    const KeySpaceId space = draw_space(random);
    const Text text = draw_text(random);
    const std::uint32_t pages = cached_pages(epochs_.at(space), text, UINT32_MAX);
    const TimeNs ttl = 1 + random.below(20);
    const Stats before = cache_->stats().value();
    const Result<Kept> kept = cache_->keep(space, prompt_of(text), ttl);
    const bool fits = keeps_.size() < 3 && before.kept_pages + pages <= before.page_count / 2;
    if (kept.has_value() != fits) return "keep is wrong about its budget";
    if (!kept) return "";
    if (kept->token_count != pages * config_.page_tokens) return "keep holds another number of tokens";
    keeps_.push_back({kept->id, epochs_.at(space), text, pages, now_ + ttl});
    return "";
  }

  std::string advance(Random& random) {
    now_ += random.below(15);
    if (!cache_->advance(now_)) return "the clock cannot advance";
    std::erase_if(keeps_, [&](const Keep& each) { return each.expires_at <= now_; });
    if (!keeps_.empty() && random.below(3) == 0) {
      if (!cache_->unkeep(keeps_.back().id)) return "a keep cannot end";
      keeps_.pop_back();
    }
    return "";
  }

  std::string drop(Random& random) {
    if (random.below(3) != 0) return "";
    const std::string salt = draw_salt(random);
    if (!spaces_.contains(salt)) return "";
    const KeySpaceId space = spaces_.at(salt);
    if (!cache_->drop(space)) return "a key space cannot be dropped";
    const std::uint64_t epoch = epochs_.at(space);
    std::erase_if(keeps_, [&](const Keep& each) { return each.epoch == epoch; });
    spaces_.erase(salt);
    return "";
  }

  std::string reset(Random& random) {
    if (random.below(4) != 0) return "";
    const bool is_done = cache_->reset().has_value();
    if (is_done != live_.empty()) return "reset is wrong about live sequences";
    if (is_done) keeps_.clear();
    return "";
  }

  std::string resize(Random& random) {
    if (random.below(10) != 0) return "";
    const std::uint32_t count = std::max(8U, config_.page_count - 4 + random.below(9));
    if (count < 8 || count * config_.page_tokens < context_tokens_max_) return "";
    (void)cache_->resize(count);  // a page in use may lie above; then nothing has changed, which compare() sees
    return "";
  }

  std::string bad_input(Random& random) {
    const KeySpaceId space = draw_space(random);
    Text text = draw_text(random);
    text.tokens[random.below(static_cast<std::uint32_t>(text.tokens.size()))] = -1;
    if (cache_->begin(space, prompt_of(text)).has_value()) return "a negative token was taken";
    if (cache_->begin(space, {}).has_value()) return "an empty prompt was taken";
    const std::vector<TokenId> too_long(context_tokens_max_ + 1);
    if (cache_->begin(space, {.tokens = too_long}).has_value()) return "a prompt beyond the context was taken";
    return "";
  }

  // ── the twin ──────────────────────────────────────────────────────────────────────────────────────────────────

  /// What the real cache holds must be what the twin knows, less what was counted as evicted or dropped.
  std::string reconcile() {
    std::set<std::string> held;
    (void)cache_->visit_runs([&](const RunView& run) {
      if (!run.pages.empty()) collect(run, held);
    });
    const Stats stats = cache_->stats().value();
    if (held.size() != stats.sealed_pages) return "the tree's pages do not have distinct names";
    for (const std::string& name : held) {
      if (!cached_.contains(name)) return "the tree holds a page nobody computed";
    }
    const std::uint64_t gone = stats.evicted_page_total + stats.dropped_page_total - gone_;
    if (cached_.size() - held.size() != gone) return "pages are gone that were neither evicted nor dropped";
    gone_ += gone;
    cached_ = std::move(held);
    return "";
  }

  /// Everything that can be seen is as the twin has it, and nothing that is in use is gone.
  std::string compare() {
    const Status status = cache_->check_invariants();
    if (!status) return status.error().message;
    std::string difference = reconcile();
    if (!difference.empty()) return difference;
    const Stats stats = cache_->stats().value();
    const std::set<std::string> pinned = pinned_names();
    std::uint32_t open_or_private = 0;
    bool has_pending_copies = false;
    for (const Live& live : live_) {
      if (!live.is_admitted) continue;
      open_or_private += live.page_count - live.shared_pages;
      has_pending_copies = has_pending_copies || live.has_pending_copy;
      const SequenceView view = cache_->view(live.handle).value();
      if (view.computed_tokens != live.computed || view.pending_tokens != live.pending() ||
          view.pages.size() != live.page_count || view.token_count != live.text.tokens.size()) {
        return "a sequence is not where the twin is";
      }
    }
    for (const std::string& name : pinned) {
      if (!cached_.contains(name)) return "a page in use is gone";
    }
    // The source of a pending copy is pinned with the rest of its run.
    const bool is_exact = !has_pending_copies;
    if (is_exact ? stats.pinned_pages != pinned.size() : stats.pinned_pages < pinned.size()) {
      return "the count of pinned pages is not that of the pages in use";
    }
    if (stats.open_pages + stats.private_pages != open_or_private) return "open and private pages do not add up";
    if (stats.sequence_count != live_.size()) return "the count of sequences is wrong";
    return "";
  }

  /// What sequences and keeps hold, the sources of pending copies aside.
  [[nodiscard]] std::set<std::string> pinned_names() const {
    std::set<std::string> pinned;
    for (const Live& live : live_) {
      for (std::uint32_t page = 0; page < live.shared_pages; ++page) {
        pinned.insert(page_name(live.epoch, live.text, page));
      }
    }
    for (const Keep& each : keeps_) {
      for (std::uint32_t page = 0; page < each.pages; ++page) pinned.insert(page_name(each.epoch, each.text, page));
    }
    return pinned;
  }

  /// Adds the names of a run's pages. Runs come parents first, so the path above it is known.
  void collect(const RunView& run, std::set<std::string>& held) {
    Path path = run.depth > 1 ? paths_.at(run.parent) : Path{epochs_.at(run.key_space), {}};
    for (std::size_t page = 0; page < run.pages.size(); ++page) {
      const auto tokens = run.tokens.subspan(page * config_.page_tokens, config_.page_tokens);
      path.tokens.insert(path.tokens.end(), tokens.begin(), tokens.end());
      // The view does not show extra keys; they are told by the page's bytes, which are a hash of them too.
      held.insert(name_of(path.epoch, path.tokens, bytes_of(run.pages[page])));
    }
    paths_[run.run] = std::move(path);
  }

  /// Epoch, tokens and the value of the last token, which depends on all of them and on the extra keys.
  static std::string name_of(std::uint64_t epoch, std::span<const TokenId> tokens, std::uint64_t value) {
    std::string name = std::to_string(epoch) + ":";
    for (const TokenId token : tokens) name += static_cast<char>('a' + token);
    return name + ":" + std::to_string(value);
  }
  [[nodiscard]] std::string page_name(std::uint64_t epoch, const Text& text, std::uint32_t page) const {
    const std::size_t end = (std::size_t{page} + 1) * config_.page_tokens;
    return name_of(epoch, std::span(text.tokens).first(end),
                   ByteEngine::value_at(epoch, text.tokens, text.extra_keys, end - 1));
  }
  [[nodiscard]] std::uint64_t bytes_of(PageId page) const {
    std::uint64_t value = 0;
    const std::size_t last_token = (std::size_t{page.value} + 1) * config_.page_tokens - 1;
    std::memcpy(&value, cache_->device_memory() + (last_token * kTestTokenBytes), sizeof(value));
    return value;
  }
  [[nodiscard]] std::uint32_t cached_pages(std::uint64_t epoch, const Text& text, std::uint32_t tokens_max) const {
    const std::size_t pages = std::min<std::size_t>(text.tokens.size(), tokens_max) / config_.page_tokens;
    std::uint32_t count = 0;
    while (count < pages && cached_.contains(page_name(epoch, text, count))) ++count;
    return count;
  }
  [[nodiscard]] std::uint32_t pages_added(const Live& live, std::uint32_t token_count) const {
    const bool runs_again = live.computed == live.text.tokens.size();
    const std::uint32_t context = live.computed + (runs_again ? 0 : token_count);
    return ((context + config_.page_tokens - 1) / config_.page_tokens) - live.page_count;
  }
  [[nodiscard]] bool is_dropped(std::uint64_t epoch) const {
    return std::ranges::none_of(spaces_, [&](const auto& each) { return epochs_.at(each.second) == epoch; });
  }

  // ── drawing ───────────────────────────────────────────────────────────────────────────────────────────────────

  static TokenId draw_token(Random& random) { return static_cast<TokenId>(random.below(2)); }
  static std::string draw_salt(Random& random) { return std::string(1, static_cast<char>('a' + random.below(2))); }

  KeySpaceId draw_space(Random& random) {
    const std::string salt = draw_salt(random);
    const auto known = spaces_.find(salt);
    if (known != spaces_.end()) return known->second;
    const KeySpaceId id = cache_->key_space({.salt = salt}).value();
    spaces_[salt] = id;
    epochs_[id] = ++next_epoch_;
    return id;
  }

  /// A prefix of an earlier text and something new.
  Text draw_text(Random& random) {
    Text text;
    if (!history_.empty() && random.below(4) != 0) {
      const Text& earlier = history_[random.below(static_cast<std::uint32_t>(history_.size()))];
      const std::uint32_t kept = random.below(static_cast<std::uint32_t>(earlier.tokens.size()) + 1);
      text.tokens.assign(earlier.tokens.begin(), earlier.tokens.begin() + kept);
      for (const ExtraKey& key : earlier.extra_keys) {
        if (key.end <= kept) text.extra_keys.push_back(key);
      }
    }
    const auto room = static_cast<std::uint32_t>(context_tokens_max_ - text.tokens.size());
    const auto begin = static_cast<std::uint32_t>(text.tokens.size());
    for (std::uint32_t n = random.below(room + 1); n > 0; --n) text.tokens.push_back(draw_token(random));
    if (text.tokens.empty()) text.tokens.push_back(0);
    const auto end = static_cast<std::uint32_t>(text.tokens.size());
    if (end > begin && random.below(4) == 0) {
      const std::uint32_t first = begin + random.below(end - begin);
      const std::uint32_t last = first + 1 + random.below(end - first);
      text.extra_keys.push_back({.begin = first, .end = last, .item = {static_cast<std::uint8_t>(random.below(2))}});
    }
    remember(text);
    return text;
  }
  void remember(const Text& text) {
    if (history_.size() < 12) {
      history_.push_back(text);
    } else {
      history_[next_memory_++ % history_.size()] = text;
    }
  }

  template <typename Predicate>
  Live* draw_live(Random& random, Predicate is_wanted) {
    std::vector<Live*> wanted;
    for (Live& live : live_) {
      if (is_wanted(live)) wanted.push_back(&live);
    }
    return wanted.empty() ? nullptr : wanted[random.below(static_cast<std::uint32_t>(wanted.size()))];
  }
  static Prompt prompt_of(const Text& text) { return {.tokens = text.tokens, .extra_keys = text.extra_keys}; }

  struct Path {
    std::uint64_t epoch = 0;
    std::vector<TokenId> tokens;
  };

  ModelConfig config_;
  std::uint32_t context_tokens_max_ = 0;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<ByteEngine> engine_;
  std::map<std::string, KeySpaceId> spaces_;    // by salt, those not dropped
  std::map<KeySpaceId, std::uint64_t> epochs_;  // of every id; a dropped key space that comes back has a new one
  std::uint64_t next_epoch_ = 0;
  std::vector<Live> live_;
  std::vector<Keep> keeps_;
  std::vector<Text> history_;
  std::size_t next_memory_ = 0;
  std::set<std::string> cached_;
  std::map<RunId, Path> paths_;
  TimeNs now_ = 0;
  std::uint64_t gone_ = 0;
};

[[nodiscard]] CacheModel make_model(Random& random) {
  constexpr std::array<std::uint32_t, 5> kPageTokens = {1, 2, 3, 4, 16};
  return CacheModel({.page_tokens = kPageTokens[random.below(5)],
                     .page_count = 8 + random.below(24),
                     .whole_runs = random.below(4) == 0});
}

TEST(CacheModel, RandomCallsAgreeWithTheTwin) {
  EXPECT_EQ(run_seeds({.test = "bin/cache_model_test --gtest_filter=CacheModel.RandomCallsAgreeWithTheTwin",
                       .seed_count = kIsSanitized ? 40U : 1500U,
                       .step_count = 1000},
                      make_model),
            "");
}

TEST(CacheModel, GeneratedCallsAgreeWithTheTwinAndShrink) {
  EXPECT_TRUE(check_generated([] { return CacheModel({.page_tokens = 2, .page_count = 8}); }));
}

}  // namespace
}  // namespace quire::testing
