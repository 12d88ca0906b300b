// SPDX-License-Identifier: Apache-2.0
//
// NaiveRadix: the textbook radix cache of the SGLang family in plain C++, for tests to compare with and for
// benchmarks to run beside the real prefix tree. It keeps that family's words and costs on purpose: nodes own
// vectors, a partial match splits, a lock counts on every node up to the root, and each eviction walks the
// whole tree for its leaves and heaps them, giving up whole nodes. It holds both the tree and the free list
// of its pool.
//
// Invariant: free pages + pages in the tree + pages the caller holds = page_count. All lengths in the tree
// are multiples of page_tokens. single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/types.h"
#include "testing/workloads.h"

namespace quire::testing {

struct NaiveRadixConfig {
  std::uint32_t page_tokens = 16;
  std::uint32_t page_count = 0;
};

class NaiveRadix {
 public:
  struct Node;

  /// The longest cached prefix. `pages` stay valid only while `node` is locked; a split leaves `node` the end
  /// of the same prefix.
  struct Match {
    Node* node = nullptr;
    std::size_t token_count = 0;
    std::vector<PageId> pages;
  };

  explicit NaiveRadix(const NaiveRadixConfig& config);
  ~NaiveRadix();
  NaiveRadix(const NaiveRadix&) = delete;
  NaiveRadix& operator=(const NaiveRadix&) = delete;

  /// Whole pages of `tokens` that are cached, from the start. Splits a node that matches in part, and makes
  /// every node that matches whole the most recently used.
  [[nodiscard]] Match match(std::span<const TokenId> tokens);

  /// Keeps `node` and all above it from eviction until as many unlock() calls.
  void lock(Node* node);
  void unlock(Node* node);

  /// Pages from the front of the free list, after evicting just the shortfall. Free and evictable pages
  /// together must suffice.
  [[nodiscard]] std::vector<PageId> allocate(std::size_t page_count);
  /// Back to the end of the free list.
  void free_pages(std::span<const PageId> pages);

  /// Caches the whole pages of `tokens`; `pages` holds one page for each. Returns the number of tokens that
  /// were there before: the caller keeps the pages of those, and the tree takes the rest.
  std::size_t insert(std::span<const TokenId> tokens, std::span<const PageId> pages);

  /// What a request does at its end: inserts `tokens`, frees the pages it computed in vain because they are
  /// in the tree by now, and the page of the unaligned tail; unlocks. `pages` covers all of `tokens`, the
  /// first of them from `match`.
  void finish(const Match& match, std::span<const TokenId> tokens, std::span<const PageId> pages);

  /// Gives up least recently used leaves until at least `page_count` pages are out of the tree, in that
  /// order. The caller owns them.
  [[nodiscard]] std::vector<PageId> evict(std::size_t page_count);

  [[nodiscard]] std::size_t free_page_count() const { return free_pages_.size(); }
  [[nodiscard]] std::size_t evictable_page_count() const { return evictable_page_count_; }
  [[nodiscard]] std::size_t locked_page_count() const { return locked_page_count_; }
  [[nodiscard]] std::size_t node_count() const { return node_count_; }
  [[nodiscard]] std::uint32_t page_tokens() const { return page_tokens_; }
  /// Since construction: calls of evict() for more than nothing, and the tokens they gave up.
  [[nodiscard]] std::uint64_t evict_call_count() const { return evict_call_count_; }
  [[nodiscard]] std::uint64_t evicted_token_count() const { return evicted_token_count_; }

  /// Aborts if counters, links, keys or the pool disagree. `held_page_count`: pages the caller has allocated
  /// and not given back or inserted.
  void check_invariants(std::size_t held_page_count = 0) const;

  friend std::string print_naive_tree(const NaiveRadix& radix);

 private:
  struct End {
    Node* node;
    std::size_t token_count;
  };
  [[nodiscard]] End walk(std::span<const TokenId> tokens);
  [[nodiscard]] std::unique_ptr<Node> make_node();
  [[nodiscard]] Node* split(Node* node, std::size_t prefix_tokens);
  [[nodiscard]] std::vector<Node*> collect_evictable_leaves() const;

  std::uint32_t page_tokens_;
  std::uint32_t page_count_;
  std::deque<PageId> free_pages_;

  std::unique_ptr<Node> root_;
  std::uint64_t now_ = 0;  // Counts walks and new nodes: time for this tree.
  std::uint64_t next_uuid_ = 0;
  std::size_t node_count_ = 0;
  std::size_t evictable_page_count_ = 0;
  std::size_t locked_page_count_ = 0;
  std::uint64_t evict_call_count_ = 0;
  std::uint64_t evicted_token_count_ = 0;
};

/// The tree as a drawing (testing/tree_drawing.h), nodes numbered in order of creation.
[[nodiscard]] std::string print_naive_tree(const NaiveRadix& radix);

struct ChatOutcome {
  std::uint64_t hit_token_count = 0;
  std::uint64_t evicted_token_count = 0;
  std::uint64_t evict_call_count = 0;
};

/// Runs one request of a chat: match and lock, allocate what is missing, finish. Returns the tokens that were
/// cached.
std::size_t run_request_on_naive(NaiveRadix& radix, std::span<const TokenId> tokens);

/// Runs all requests of `workload` on a new NaiveRadix of workload.pool_token_count() tokens.
[[nodiscard]] ChatOutcome run_chat_on_naive(const ChatWorkload& workload, std::uint32_t page_tokens);

}  // namespace quire::testing
