// SPDX-License-Identifier: Apache-2.0
//
// Search: one path that is looked for in a lower tier, and the loads of what was found into host pages. The question is
// a transfer. It stays in the book until the search ends, because loads name their pages by its index
// (LowerPlan::found_by). SearchPaths is the table of searches, with a copy of the tokens of each path.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "prefix/hit_rule.h"
#include "prefix/prefix_tree.h"
#include "quire/result.h"
#include "quire/types.h"
#include "tiers/transfer_book.h"
#include "transfer/lower_tier.h"

namespace quire {

struct Search {
  enum class State : std::uint8_t {
    Free,
    Asking,
    Reading,    // pages that were found are on their way to the host, or wait for transfers
    Abandoned,  // nobody uses what comes; the search ends when none of its transfers is being moved
    Direct,     // a direct call of the engine: it ends with its answer, and no loads follow
  };
  /// What an engine asked for by lookup_on_disk(), put_on_disk() or get_from_disk().
  struct DirectCall {
    std::vector<PoolColumns> columns;
    std::span<std::byte> target;
    std::span<const std::byte> source;
    std::function<void(TransferOutcome outcome, const Hit& hit)> callback;
  };

  State state = State::Free;
  std::uint32_t transfer = Transfer::kNone;  // the question
  std::uint16_t lower = 0;
  std::uint32_t key_space = 0;
  std::uint32_t token_count = 0;
  std::uint32_t extra_key_count = 0;
  std::uint32_t first_page = 0;  // memory has the pages before it
  std::uint32_t asked_from = 0;  // the question is about the pages of the path from this one on
  PrefixTree::Pin pin;           // of the pages in memory: those before first_page, later also those that have come
  PageFingerprint missing = 0;   // of page first_page, or made from the last page if memory has all (look_for())
  PageFingerprint last_tag = 0;  // of the last page in a load that was started
  TimeNs asked_at = 0;
  TimeNs deadline = INT64_MAX;       // of the last of those who wait
  TimeNs tier_deadline = INT64_MAX;  // the tier's own: of the question, then of what it has found
  SequenceId owner;                  // the sequence that the search was started for
  bool is_prefetch = false;          // goes on though nobody waits for it
  std::uint32_t prompt_tokens = 0;
  bool allows_inexact = false;
  bool is_for_host = false;  // of a prefix that is to be held on the host

  // What was found.
  Hit hit;  // what a sequence would have if all came that memory and the tier have of its path
  std::uint32_t limiting_group = Hit::kNoGroup;  // the group that limits `hit`
  std::uint32_t gained_tokens = 0;               // by the hit, over what memory has
  std::uint32_t found_pages = 0;       // of the history: the tier's answer, then as many of them as are loaded
  std::uint32_t wanted_pages = 0;      // of the history: as many as are to be loaded, if the host has room or not
  std::uint64_t anchored_bytes = 0;    // to be read of anchored groups
  std::uint32_t started_pages = 0;     // of found_pages, those in loads that were started
  std::uint32_t arrived_pages = 0;     // of started_pages, good or bad
  std::uint32_t loads_in_flight = 0;   // of the history
  bool has_asked_anchored = false;     // no more loads of anchored groups are to be started
  std::uint32_t anchored_started = 0;  // how many pages that anchored groups need were visited
  std::uint32_t anchored_loads_in_flight = 0;
  MissReason miss = MissReason::None;  // why what was found did not come

  std::unique_ptr<DirectCall> direct;

  [[nodiscard]] bool is_live() const { return state != State::Free; }
  /// It looks for a path, and somebody may use what it finds.
  [[nodiscard]] bool is_open() const { return state == State::Asking || state == State::Reading; }
  [[nodiscard]] bool is_abandoned() const { return state == State::Abandoned; }
};

class SearchPaths {
 public:
  [[nodiscard]] Status open(std::uint32_t count, std::uint32_t tokens_max, std::uint32_t extra_keys_max,
                            std::uint32_t pages_max, bool has_groups) {
    searches_.resize(count);
    QUIRE_TRY_ASSIGN(before_, LazyArray<NamedPage>::create(std::size_t{count} * pages_max));
    tokens_max_ = tokens_max;
    extra_keys_max_ = extra_keys_max + 1;  // with lookahead, one more holds the path's first tokens (lookahead_keys.h)
    pages_max_ = pages_max;
    QUIRE_TRY_ASSIGN(tokens_, LazyArray<TokenId>::create(std::size_t{count} * tokens_max));
    QUIRE_TRY_ASSIGN(extra_keys_, LazyArray<ExtraKey>::create(std::size_t{count} * extra_keys_max_));
    if (has_groups) {
      QUIRE_TRY_ASSIGN(anchored_, LazyArray<std::uint64_t>::create(std::size_t{count} * pages_max));
    }
    return {};
  }

  /// A place for one more search, or nothing when all are in use.
  [[nodiscard]] std::optional<std::uint32_t> find_free() const {
    const auto free = std::ranges::find(searches_, Search::State::Free, &Search::state);
    if (free == searches_.end()) return std::nullopt;
    return static_cast<std::uint32_t>(free - searches_.begin());
  }
  void set_path(std::uint32_t index, const PrefixTree::Key& key) {
    end_ = std::max(end_, index + 1);
    searches_[index].token_count = static_cast<std::uint32_t>(key.tokens.size());
    searches_[index].extra_key_count = static_cast<std::uint32_t>(key.extra_keys.size());
    std::ranges::copy(key.tokens, tokens_.data() + (std::size_t{index} * tokens_max_));
    std::ranges::copy(key.extra_keys, extra_keys_.data() + (std::size_t{index} * extra_keys_max_));
  }
  [[nodiscard]] PrefixTree::Key key(std::uint32_t index) const {
    return {
        .tokens = {tokens_.data() + (std::size_t{index} * tokens_max_), searches_[index].token_count},
        .extra_keys = {extra_keys_.data() + (std::size_t{index} * extra_keys_max_), searches_[index].extra_key_count}};
  }
  /// For each page of the path, a bit for each anchored group whose page there the tier has.
  [[nodiscard]] std::span<std::uint64_t> anchored(std::uint32_t index, std::uint32_t page_tokens) {
    if (anchored_.size() == 0) return {};
    return {anchored_.data() + (std::size_t{index} * pages_max_), searches_[index].token_count / page_tokens};
  }

  /// Room for LowerPlan::before.
  [[nodiscard]] std::span<NamedPage> before(std::uint32_t index) {
    return {before_.data() + (std::size_t{index} * pages_max_), pages_max_};
  }

  [[nodiscard]] Search& operator[](std::uint32_t index) { return searches_[index]; }
  [[nodiscard]] const Search& operator[](std::uint32_t index) const { return searches_[index]; }
  [[nodiscard]] std::uint32_t capacity() const { return static_cast<std::uint32_t>(searches_.size()); }
  /// All searches that live have indices below this value.
  [[nodiscard]] std::uint32_t end() const { return end_; }
  void remove(std::uint32_t index) {
    searches_[index] = {};
    while (end_ > 0 && !searches_[end_ - 1].is_live()) --end_;
  }

 private:
  std::vector<Search> searches_;
  std::uint32_t end_ = 0;
  LazyArray<TokenId> tokens_;  // a row for each search: its path from the root on
  LazyArray<ExtraKey> extra_keys_;
  LazyArray<std::uint64_t> anchored_;
  LazyArray<NamedPage> before_;  // a row for each search
  std::uint32_t tokens_max_ = 0;
  std::uint32_t extra_keys_max_ = 0;
  std::uint32_t pages_max_ = 0;
};

}  // namespace quire
