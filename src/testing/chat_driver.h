// SPDX-License-Identifier: Apache-2.0
//
// TreeDriver: serves requests on the real pool and prefix tree, one after the other, in the protocol that
// run_request_on_naive() follows, so that their figures can be compared to the token. Tests read the figures,
// benchmarks time it: a request allocates no memory.
//
// Between requests no page is open or pinned, and the pool's sealed pages are the tree's. single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "pool/page_pool.h"
#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "quire/types.h"
#include "testing/naive_radix.h"
#include "testing/workloads.h"

namespace quire::testing {

struct TreeDriverConfig {
  std::uint32_t page_tokens = 16;
  std::uint32_t page_count = 0;
  std::uint32_t request_tokens_max = 0;
  bool whole_runs = false;  ///< evict as the naive tree does; otherwise page by page
  std::string_view policy = "lru";
};

class TreeDriver {
 public:
  explicit TreeDriver(const TreeDriverConfig& config);

  /// Match and pin, evict just the shortfall, allocate, seal and insert the whole pages, release the
  /// duplicates and the page of the unaligned tail, unpin. The pool must be large enough for the request
  /// alone. Returns the tokens that were cached.
  std::size_t run_request(std::span<const TokenId> tokens);
  /// Evicts `page_count` pages into the pool. Returns how many there were.
  std::uint32_t evict(std::uint32_t page_count);

  [[nodiscard]] const PagePool& pool() const { return pool_; }
  [[nodiscard]] const PrefixTree& tree() const { return *tree_; }
  // For callers that pin or allocate between requests.
  [[nodiscard]] PagePool& pool() { return pool_; }
  [[nodiscard]] PrefixTree& tree() { return *tree_; }
  [[nodiscard]] RunId root() const { return root_; }
  /// Since construction.
  [[nodiscard]] const ChatOutcome& outcome() const { return outcome_; }

 private:
  PagePool pool_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<PrefixTree> tree_;
  RunId root_;
  // One for each page of the longest request.
  std::vector<PageId> pages_;
  std::vector<PageId> duplicates_;
  ChatOutcome outcome_;
};

/// A pool of workload.pool_token_count() tokens, evicted page by page.
[[nodiscard]] TreeDriverConfig chat_driver_config(const ChatWorkload& workload, std::uint32_t page_tokens);

/// What run_chat_on_naive() does, on the real tree.
[[nodiscard]] ChatOutcome run_chat_on_tree(const ChatWorkload& workload, std::uint32_t page_tokens, bool whole_runs);

}  // namespace quire::testing
