// SPDX-License-Identifier: Apache-2.0
//
// Random operations on ChunkIndex and on a twin: a list of pages in the order of their use, each with all tokens and
// items before it, compared one by one.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "generated_ops.h"
#include "quire/chunk_index.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

/// One token with what it depends on besides: an item and the token's place in it. Equal lists mean equal K and V.
struct FullToken {
  TokenId token = 0;
  std::uint8_t item = 0;  // 0: none
  std::uint32_t place = 0;
  std::uint32_t length = 0;  // of the item
  friend bool operator==(const FullToken&, const FullToken&) = default;
};
using FullText = std::vector<FullToken>;

/// A chunk with its own memory.
struct OwnedChunk {
  std::vector<TokenId> tokens;
  std::vector<ExtraKey> keys;

  [[nodiscard]] Chunk view() const { return {.tokens = tokens, .extra_keys = keys}; }
  [[nodiscard]] FullText full() const {
    FullText text;
    for (const TokenId token : tokens) text.push_back({.token = token});
    for (const ExtraKey& key : keys) {
      for (std::uint32_t i = key.begin; i < key.end; ++i) {
        text[i] = {.token = tokens[i], .item = key.item[0], .place = i - key.begin, .length = key.end - key.begin};
      }
    }
    return text;
  }
};

struct ChunkModelConfig {
  std::uint32_t page_tokens = 2;
  std::uint32_t page_count_max = 8;
  std::uint32_t ratio_percent = 20;
};

class ChunkModel {
 public:
  explicit ChunkModel(const ChunkModelConfig& config)
      : config_(config),
        index_(*ChunkIndex::create({.page_tokens = config.page_tokens,
                                    .page_count_max = config.page_count_max,
                                    .recompute_ratio = config.ratio_percent / 100.0})) {}

  std::string apply(const Op& op) {
    difference_.clear();
    Random random((std::uint64_t{op.draws[0]} << 32U) | op.draws[1]);
    const KeySpaceId space{.index = op.draws[2] % 2, .generation = 0};
    switch (op.kind % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        insert(space, random);
        break;
      case 5:
        erase(PageHandle{op.draws[3] % handle_count()});
        break;
      case 6:
      case 7:
        touch(PageHandle{op.draws[3] % handle_count()});
        break;
      case 8:
        if (op.draws[3] % 16 == 0) drop(space);
        if (op.draws[3] % 16 == 1) {
          index_->clear();
          pages_.clear();
        }
        break;
      default:
        lookup(space, random);
        break;
    }
    if (index_->page_count() != pages_.size()) differ("page count");
    if (const Status status = index_->check_invariants(); !status.has_value()) differ(status.error().message);
    return difference_;
  }

 private:
  struct Page {
    KeySpaceId space;
    FullText text;  // from the first token on, its own included
    PageHandle handle;
  };

  void differ(const std::string& what) {
    if (difference_.empty()) difference_ = what;
  }
  [[nodiscard]] std::uint32_t handle_count() const { return config_.page_count_max + 4; }

  /// At least a page of few different tokens, so that pages are often the same; some with a tail, some with an item.
  [[nodiscard]] OwnedChunk draw_chunk(Random& random) const {
    OwnedChunk chunk;
    const std::uint32_t page_count = 1 + random.below(4);
    for (std::uint32_t i = 0; i < page_count; ++i) {
      const auto letter = static_cast<TokenId>(random.below(3));
      chunk.tokens.insert(chunk.tokens.end(), config_.page_tokens, letter);
    }
    if (random.below(6) == 0) {
      for (std::uint32_t tail = random.below(config_.page_tokens); tail > 0; --tail) chunk.tokens.push_back(0);
    }
    if (random.below(4) == 0) {
      const auto size = static_cast<std::uint32_t>(chunk.tokens.size());
      const std::uint32_t begin = random.below(size);
      chunk.keys.push_back({.begin = begin,
                            .end = begin + 1 + random.below(size - begin),
                            .item = {static_cast<std::uint8_t>(1 + random.below(2))}});
    }
    return chunk;
  }

  [[nodiscard]] static FullText first(const FullText& text, std::size_t count) {
    return {text.begin(), text.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  [[nodiscard]] std::vector<Page>::iterator find(PageHandle handle) {
    return std::ranges::find_if(pages_, [&](const Page& page) { return page.handle == handle; });
  }
  [[nodiscard]] std::vector<Page>::iterator find(KeySpaceId space, const FullText& text) {
    return std::ranges::find_if(pages_, [&](const Page& page) { return page.space == space && page.text == text; });
  }
  void move_to_back(std::vector<Page>::iterator page) { std::rotate(page, page + 1, pages_.end()); }

  void insert(KeySpaceId space, Random& random) {
    const OwnedChunk chunk = draw_chunk(random);
    const FullText text = chunk.full();
    std::vector<PageHandle> handles;
    for (std::size_t i = 0; i < text.size() / config_.page_tokens; ++i) {
      handles.push_back(random.below(8) == 0 ? PageHandle::none() : PageHandle{random.below(handle_count())});
    }
    ChunkInsertion expected;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      if (handles[i].is_none()) continue;
      const FullText path = first(text, (i + 1) * config_.page_tokens);
      if (const auto former = find(handles[i]);
          former != pages_.end() && !(former->space == space && former->text == path)) {
        pages_.erase(former);
      }
      if (const auto known = find(space, path); known != pages_.end()) {
        move_to_back(known);
        ++expected.known_pages;
        continue;
      }
      if (pages_.size() == config_.page_count_max) {
        pages_.erase(pages_.begin());
        ++expected.replaced_pages;
      }
      pages_.push_back({space, path, handles[i]});
      ++expected.inserted_pages;
    }
    const auto done = index_->insert(space, chunk.view(), handles);
    if (!done.has_value()) {
      differ(done.error().message);
    } else if (done->inserted_pages != expected.inserted_pages || done->known_pages != expected.known_pages ||
               done->replaced_pages != expected.replaced_pages) {
      differ("what an insertion says");
    }
  }

  void lookup(KeySpaceId space, Random& random) {
    std::vector<OwnedChunk> chunks;
    for (std::uint32_t count = 1 + random.below(4); count > 0; --count) chunks.push_back(draw_chunk(random));
    std::vector<Chunk> views;
    for (const OwnedChunk& chunk : chunks) views.push_back(chunk.view());

    std::vector<ChunkPage> expected;
    FullText before;
    std::size_t dropped_tokens = 0;
    std::uint64_t partial_pages = 0;
    for (const OwnedChunk& chunk : chunks) {
      const FullText text = chunk.full();
      for (std::size_t end = config_.page_tokens; end <= text.size(); end += config_.page_tokens) {
        FullText path = before;
        path.insert(path.end(), text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end));
        expected.push_back(find_page(space, path, partial_pages > 0));
        if (expected.back().status == ChunkStatus::Partial) ++partial_pages;
      }
      before.insert(before.end(), text.begin(), text.end());
      dropped_tokens += text.size() % config_.page_tokens;
    }

    std::vector<ChunkPage> out(expected.size() + random.below(3));
    const auto match = index_->lookup(space, views, out);
    if (!match.has_value()) return differ(match.error().message);
    if (!std::ranges::equal(match->pages, expected)) differ("what a lookup finds");
    if (match->partial_pages != partial_pages) differ("count of partial pages");
    if (match->dropped_tokens != dropped_tokens) differ("dropped tokens");
    const auto exact = std::ranges::count(expected, ChunkStatus::Exact, &ChunkPage::status);
    if (match->exact_pages != static_cast<std::size_t>(exact)) differ("count of exact pages");
    const std::uint64_t tokens = ((partial_pages * config_.page_tokens * config_.ratio_percent) + 99) / 100;
    if (match->recompute_tokens != tokens) differ("tokens to recompute");
    if (match->scratch_pages != (tokens + config_.page_tokens - 1) / config_.page_tokens) differ("scratch pages");
    const ChunkStatus beyond = partial_pages > 0 ? ChunkStatus::NotMatchPartial : ChunkStatus::NotMatchExact;
    if (match->status(expected.size()) != beyond) differ("status beyond the chunks");
  }

  /// The last page of a path. Paths of the index are whole pages, so that one with a tail in it never equals them.
  [[nodiscard]] ChunkPage find_page(KeySpaceId space, const FullText& path, bool is_behind_partial) {
    if (const auto exact = find(space, path); exact != pages_.end()) return {ChunkStatus::Exact, exact->handle};
    for (auto page = pages_.rbegin(); page != pages_.rend(); ++page) {
      if (page->space == space && std::equal(page->text.end() - config_.page_tokens, page->text.end(),
                                             path.end() - config_.page_tokens, path.end())) {
        return {ChunkStatus::Partial, page->handle};
      }
    }
    return {is_behind_partial ? ChunkStatus::NotMatchPartial : ChunkStatus::NotMatchExact, PageHandle::none()};
  }

  void erase(PageHandle handle) {
    const auto page = find(handle);
    const bool is_there = page != pages_.end();
    if (is_there) pages_.erase(page);
    if (index_->erase(handle) != is_there) differ("whether a page was there to erase");
  }

  void touch(PageHandle handle) {
    const auto page = find(handle);
    const bool is_there = page != pages_.end();
    if (is_there) move_to_back(page);
    if (index_->touch(handle) != is_there) differ("whether a page was there to touch");
  }

  void drop(KeySpaceId space) {
    const auto count = std::erase_if(pages_, [&](const Page& page) { return page.space == space; });
    if (index_->drop(space) != count) differ("how many pages a key space had");
  }

  ChunkModelConfig config_;
  std::unique_ptr<ChunkIndex> index_;
  std::vector<Page> pages_;  // least recently used first
  std::string difference_;
};

TEST(ChunkIndexModel, AgreesWithItsTwinAfterEveryStep) {
  const SeedPlan plan{.test = "bin/chunk_model_test --gtest_filter='*AgreesWithItsTwinAfterEveryStep'",
                      .seed_count = kIsSanitized ? 20 : 300,
                      .step_count = 500};
  EXPECT_EQ(run_seeds(plan,
                      [](Random& random) {
                        return ChunkModel({.page_tokens = 1 + random.below(4),
                                           .page_count_max = 1 + random.below(24),
                                           .ratio_percent = random.below(101)});
                      }),
            "");
}

TEST(ChunkIndexModel, AgreesWithItsTwinOnGeneratedOperations) {
  EXPECT_TRUE(check_generated([] { return ChunkModel({}); }));
}

}  // namespace
}  // namespace quire::testing
