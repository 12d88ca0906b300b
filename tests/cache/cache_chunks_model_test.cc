// SPDX-License-Identifier: Apache-2.0
//
// Random operations on a cache that finds chunks, and a twin that knows what every device page really holds: its bytes.
// Each token has two words in memory. One depends on the key space and on everything before the token, the other on the
// token and what it depends on besides. After each operation every page that is found must hold what was asked for:
// both words where the match is Exact, the second where it is Partial. Pinned pages hold it as long as they are pinned,
// and what was added is found as long as it does not leave the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache_fixture.h"
#include "hand_mover.h"
#include "quire/cache.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

constexpr std::uint32_t kPageTokens = 4;
constexpr std::uint32_t kTokenBytes = 16;
constexpr std::size_t kDocumentCount = 6;
constexpr std::size_t kSpaceCount = 2;

/// Tokens of one request with the items that some of them stand for.
struct Text {
  std::vector<TokenId> tokens;
  std::vector<ExtraKey> keys;

  [[nodiscard]] Chunk chunk() const { return {.tokens = tokens, .extra_keys = keys}; }
  [[nodiscard]] Prompt prompt() const { return {.tokens = tokens, .extra_keys = keys}; }
  void append(const Text& other) {
    const auto at = static_cast<std::uint32_t>(tokens.size());
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    for (const ExtraKey& key : other.keys) {
      keys.push_back({.begin = key.begin + at, .end = key.end + at, .item = key.item});
    }
  }
};

struct TokenWords {
  std::uint64_t path = 0;
  std::uint64_t own = 0;
};

/// What an engine computes for each token of a text in a key space of this number.
std::vector<TokenWords> words_of(std::uint64_t space, const Text& text) {
  std::vector<TokenWords> words;
  std::uint64_t path = mix64(space);
  for (std::uint32_t i = 0; i < text.tokens.size(); ++i) {
    std::uint64_t own = mix64((space * 1'000'003) + static_cast<std::uint64_t>(text.tokens[i]));
    for (const ExtraKey& key : text.keys) {
      if (key.begin <= i && i < key.end) own = mix64(own + key.item[0] + (std::uint64_t{i - key.begin} << 32U));
    }
    path = mix64(path ^ own);
    words.push_back({.path = path, .own = own});
  }
  return words;
}

class ChunksModel {
 public:
  explicit ChunksModel(Random& random) {
    CacheConfig config{.layout = ModelLayout::opaque(kTokenBytes).value(),
                       .page = {.page_tokens = kPageTokens},
                       .device = {.page_count = 12 + random.below(20)},
                       .chunks = {.page_count_max = 4 + random.below(60)},
                       .sequence_count_max = 6,
                       .context_tokens_max = 48};
    if (random.below(3) > 0) {
      config.host.page_count = 6 + random.below(40);
      config.host.external_mover = true;
      config.host.write_policy = static_cast<WritePolicy>(random.below(3));
      config.host.clean_reserve_pages = random.below(3);
    }
    config.chunks.pin_count_max = 1 + random.below(4);
    config.dedup = random.below(4) > 0;
    config.policy = std::array{"lru", "lfu", "s3fifo", "arc"}[random.below(4)];
    config.whole_runs = random.below(5) == 0;
    has_host_ = config.host.is_on();
    holds_all_ = config.chunks.page_count_max > config.device.page_count + 30;
    cache_ = open_cache(std::move(config));
    mover_ = std::make_unique<HandMover>(*cache_);
    for (std::size_t i = 0; i < kSpaceCount; ++i) renew(i);
    for (std::size_t i = 0; i < kDocumentCount; ++i) {
      Text& document = documents_[i];
      document.tokens = token_range(static_cast<TokenId>((i / 2) * 100), (1 + random.below(4)) * kPageTokens);
      if (i % 2 == 1) document.keys = {{.begin = 1, .end = 3, .item = {static_cast<std::uint8_t>(i)}}};
    }
  }

  std::string apply(const Op& op) {
    Random random((std::uint64_t{op.draws[0]} << 32U) | op.draws[1]);
    const std::size_t space = op.draws[2] % kSpaceCount;
    switch (op.kind % 20) {
      case 0:
      case 1:
      case 2:
        begin(space, random);
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        step(random);
        break;
      case 7:
        end(random);
        break;
      case 8:
        change(random);
        break;
      case 9:
      case 10:
        add(space, random);
        break;
      case 11:
      case 12:
        pin(space, random);
        break;
      case 13:
        if (!pins_.empty()) pins_.erase(pins_.begin() + random.below(static_cast<std::uint32_t>(pins_.size())));
        break;
      case 14:
        (void)cache_->reclaim(random.below(6));
        break;
      case 15:
        if (random.below(6) == 0) drop(space);
        break;
      case 16:
        if (random.below(4) == 0) rest(random);
        break;
      case 17:
        (void)cache_->resize(12 + random.below(40));
        break;
      default:
        move(random);
        break;
    }
    const Status rules = cache_->check_invariants();
    if (!rules) return rules.error().message;
    return check(random);
  }

 private:
  struct Live {
    std::size_t space = 0;
    std::uint64_t salt = 0;
    Text text;
    Sequence sequence;
  };
  struct Pinned {
    std::uint64_t salt = 0;
    std::vector<std::pair<PageHandle, std::vector<TokenWords>>> pages;
    ChunkPin pin;
  };
  struct Added {
    std::size_t space = 0;
    Text text;
    std::uint32_t page_count = 0;  // that have been on the device ever since
  };

  void renew(std::size_t space) {
    spaces_[space] = cache_->key_space({.model = "m", .salt = std::to_string(space)}).value();
    salts_[space] = ++last_salt_;
  }
  [[nodiscard]] Text draw_text(Random& random) const {
    Text text;
    for (std::uint32_t i = 0; i <= random.below(3); ++i) text.append(documents_[random.below(kDocumentCount)]);
    const std::vector<TokenId> tail = token_range(900, random.below(6));
    text.tokens.insert(text.tokens.end(), tail.begin(), tail.end());
    return text;
  }
  [[nodiscard]] Live* draw_live(Random& random) {
    return live_.empty() ? nullptr : &live_[random.below(static_cast<std::uint32_t>(live_.size()))];
  }

  void begin(std::size_t space, Random& random) {
    Text text = draw_text(random);
    SequenceOptions options;
    options.publish = random.below(5) == 0 ? Publish::None : Publish::All;
    Result<Sequence> sequence = cache_->begin(spaces_[space], text.prompt(), options);
    if (!sequence) return;
    live_.push_back({space, salts_[space], std::move(text), std::move(*sequence)});
    (void)cache_->admit(live_.back().sequence);
  }
  void step(Random& random) {
    Live* const live = draw_live(random);
    if (live == nullptr) return;
    (void)cache_->admit(live->sequence);
    const StepEntry entry{.sequence = &live->sequence, .token_count = 0};
    const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
    if (!outcome || !outcome->step) return;
    ASSERT_TRUE(cache_->apply_copies(*outcome->step));
    const AttentionPlanEntry& planned = outcome->step->plan.entries[0];
    const std::vector<TokenWords> words = words_of(live->salt, live->text);
    for (std::uint32_t i = 0; i < planned.token_count; ++i) {
      if (planned.append_slots[i] == kNoSlot) continue;
      std::memcpy(cache_->device_memory() + (planned.append_slots[i] * kTokenBytes), &words[planned.position + i],
                  kTokenBytes);
    }
    const auto next = static_cast<TokenId>(random.below(300));
    const bool ends = planned.position + planned.token_count == live->text.tokens.size();
    const bool grows = ends && live->text.tokens.size() < 44;
    const StepResult result{.tokens = grows ? std::span(&next, 1) : std::span<const TokenId>{}};
    if (random.below(12) == 0) {
      ASSERT_TRUE(cache_->abort_step(*outcome->step));
    } else {
      const Status finished = cache_->finish_step(*outcome->step, {&result, 1});
      ASSERT_TRUE(finished.has_value()) << finished.error().message;
      if (grows) live->text.tokens.push_back(next);
    }
  }
  void end(Random& random) {
    if (live_.empty()) return;
    live_.erase(live_.begin() + random.below(static_cast<std::uint32_t>(live_.size())));
  }
  void change(Random& random) {
    Live* const live = draw_live(random);
    if (live == nullptr) return;
    const Result<SequenceView> view = cache_->view(live->sequence);
    switch (random.below(5)) {
      case 0: {
        const std::uint32_t at = 1 + random.below(view->token_count);
        Result<Sequence> fork = cache_->fork(live->sequence, at);
        if (!fork) return;
        Live copy{.space = live->space, .salt = live->salt, .text = live->text, .sequence = std::move(*fork)};
        copy.text.tokens.resize(at);
        std::erase_if(copy.text.keys, [&](const ExtraKey& key) { return key.begin >= at; });
        for (ExtraKey& key : copy.text.keys) key.end = std::min(key.end, at);
        live_.push_back(std::move(copy));
        break;
      }
      case 1:
        (void)cache_->preempt(live->sequence, Preempt::Drop);
        break;
      case 2:
        (void)cache_->preempt(live->sequence, Preempt::Save);
        break;
      case 3:
        (void)cache_->resume(live->sequence);
        break;
      default:
        (void)cache_->stop_loading(live->sequence);
        break;
    }
  }
  void add(std::size_t space, Random& random) {
    Text text = random.below(2) == 0 && !live_.empty() ? draw_live(random)->text : draw_text(random);
    const Result<ChunkInsertion> added = cache_->add_chunks(spaces_[space], text.prompt());
    if (!added) return;
    const std::uint32_t page_count = cache_->lookup(spaces_[space], text.prompt())->matched_tokens / kPageTokens;
    added_.push_back({.space = space, .text = std::move(text), .page_count = page_count});
    if (added_.size() > 12) added_.erase(added_.begin());
  }
  void pin(std::size_t space, Random& random) {
    const std::vector<const Text*> asked = draw_chunks(random);
    const std::vector<Chunk> chunks = views(asked);
    Result<PinnedChunks> pinned = cache_->pin_chunks(spaces_[space], chunks, pages_);
    if (!pinned || !pinned->pin) return;
    Pinned held{.salt = salts_[space], .pages = {}, .pin = std::move(pinned->pin)};
    const std::vector<TokenWords> words = words_of_chunks(salts_[space], asked);
    for (std::size_t i = 0; i < pinned->match.pages.size(); ++i) {
      if (pinned->match.pages[i].handle.is_none()) continue;
      const auto first = words.begin() + static_cast<std::ptrdiff_t>(i * kPageTokens);
      held.pages.emplace_back(pinned->match.pages[i].handle, std::vector(first, first + kPageTokens));
    }
    pins_.push_back(std::move(held));
  }
  void drop(std::size_t space) {
    ASSERT_TRUE(cache_->drop(spaces_[space]));
    std::erase_if(added_, [&](const Added& each) { return each.space == space; });
    renew(space);
  }
  /// reset() or sleep(), which need nobody there.
  void rest(Random& random) {
    const bool sleeps = random.below(2) == 0;
    if (random.below(3) > 0) {
      live_.clear();
      pins_.clear();
    }
    if (!sleeps) {
      (void)cache_->reset();
      return;
    }
    const Result<bool> asleep = cache_->sleep(random.below(2) == 0 ? Sleep::DropAll : Sleep::KeepHost);
    while (has_host_ && !mover_->waiting.empty()) move(random);
    if (asleep) (void)cache_->wake();
  }
  void move(Random& random) {
    if (!has_host_) return;
    mover_->take();
    if (mover_->waiting.empty()) return;
    const std::size_t which = random.below(static_cast<std::uint32_t>(mover_->waiting.size()));
    const Completion completion =
        random.below(8) == 0 ? mover_->fail_it(which, TransferOutcome::Failed) : mover_->move(which);
    ASSERT_TRUE(cache_->apply({&completion, 1}, 0));
  }

  // What is checked.

  [[nodiscard]] std::vector<const Text*> draw_chunks(Random& random) const {
    std::vector<const Text*> asked;
    for (std::uint32_t i = 0; i <= random.below(3); ++i) asked.push_back(&documents_[random.below(kDocumentCount)]);
    return asked;
  }
  [[nodiscard]] static std::vector<Chunk> views(std::span<const Text* const> texts) {
    std::vector<Chunk> chunks;
    for (const Text* const text : texts) chunks.push_back(text->chunk());
    return chunks;
  }
  /// Of all chunks, which are whole pages each.
  [[nodiscard]] static std::vector<TokenWords> words_of_chunks(std::uint64_t salt, std::span<const Text* const> texts) {
    Text all;
    for (const Text* const text : texts) all.append(*text);
    return words_of(salt, all);
  }
  [[nodiscard]] bool holds(PageHandle handle, std::span<const TokenWords> words, bool is_exact) const {
    std::array<TokenWords, kPageTokens> found;
    std::memcpy(found.data(), cache_->device_memory() + (handle.value * sizeof(found)), sizeof(found));
    return std::ranges::equal(found, words, [&](const TokenWords& is, const TokenWords& wanted) {
      return is.own == wanted.own && (!is_exact || is.path == wanted.path);
    });
  }

  [[nodiscard]] std::string check(Random& random) {
    for (const Pinned& pin : pins_) {
      for (const auto& [handle, words] : pin.pages) {
        if (!holds(handle, words, /*is_exact=*/false)) {
          return "page " + std::to_string(handle.value) + " is pinned and has other bytes";
        }
      }
    }
    for (std::size_t space = 0; space < kSpaceCount; ++space) {
      std::vector<std::vector<const Text*>> questions{draw_chunks(random), draw_chunks(random)};
      for (const Text& document : documents_) questions.push_back({&document});
      for (const std::vector<const Text*>& asked : questions) {
        const std::vector<Chunk> chunks = views(asked);
        const ChunkMatch match = cache_->lookup_chunks(spaces_[space], chunks, pages_).value();
        const std::vector<TokenWords> words = words_of_chunks(salts_[space], asked);
        for (std::size_t i = 0; i < match.pages.size(); ++i) {
          const ChunkPage& page = match.pages[i];
          const bool is_exact = page.status == ChunkStatus::Exact;
          if (page.handle.is_none()) continue;
          ++found_;
          if (!holds(page.handle, std::span(words).subspan(i * kPageTokens, kPageTokens), is_exact)) {
            return "page " + std::to_string(page.handle.value) + " was found as " +
                   std::string(to_string(page.status)) + " and holds something else";
          }
        }
      }
    }
    return holds_all_ ? check_added() : "";
  }
  /// What was added and has stayed is found.
  [[nodiscard]] std::string check_added() {
    for (Added& each : added_) {
      const Lookup lookup = cache_->lookup(spaces_[each.space], each.text.prompt()).value();
      each.page_count = std::min(each.page_count, lookup.matched_tokens / kPageTokens);
      if (each.page_count == 0) continue;
      const Chunk chunk = each.text.chunk();
      const ChunkMatch match = cache_->lookup_chunks(spaces_[each.space], {&chunk, 1}, pages_).value();
      for (std::uint32_t i = 0; i < each.page_count; ++i) {
        if (match.pages[i].status != ChunkStatus::Exact) {
          return "page " + std::to_string(i) + " of a text is on the device and is not found";
        }
      }
    }
    return "";
  }

  bool has_host_ = false;
  bool holds_all_ = false;
  std::array<KeySpaceId, kSpaceCount> spaces_;
  std::array<std::uint64_t, kSpaceCount> salts_{};  // each key space has its own, and a new one when it was dropped
  std::uint64_t last_salt_ = 0;
  std::array<Text, kDocumentCount> documents_;
  std::array<ChunkPage, 64> pages_;
  std::uint64_t found_ = 0;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<HandMover> mover_;
  std::vector<Live> live_;
  std::vector<Pinned> pins_;
  std::vector<Added> added_;
};

TEST(CacheChunksModel, EveryPageThatIsFoundHoldsWhatWasAskedFor) {
  EXPECT_EQ(run_seeds({.test = "bin/cache_chunks_model_test", .seed_count = 40, .step_count = 500},
                      [](Random& random) { return ChunksModel(random); }),
            "");
}

}  // namespace
}  // namespace quire::testing
