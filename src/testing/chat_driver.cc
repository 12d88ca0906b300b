// SPDX-License-Identifier: Apache-2.0
#include "testing/chat_driver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::testing {
namespace {

template <typename T>
T value_of(Result<T> result) {
  QUIRE_CHECK(result.has_value(), result.error().message.c_str());
  return *std::move(result);
}

}  // namespace

TreeDriver::TreeDriver(const TreeDriverConfig& config)
    : pool_(value_of(PagePool::create({.page_count = config.page_count}))),
      policy_(value_of(make_policy(config.policy))),
      tree_(value_of(PrefixTree::create(
          {.page_tokens = config.page_tokens, .page_count_max = config.page_count, .whole_runs = config.whole_runs},
          *policy_, nullptr))),
      root_(tree_->add_root()),
      pages_((config.request_tokens_max + config.page_tokens - 1) / config.page_tokens),
      duplicates_(pages_.size()) {}

std::size_t TreeDriver::run_request(std::span<const TokenId> tokens) {
  const std::uint32_t page_tokens = tree_->page_tokens();
  const std::size_t whole_page_count = tokens.size() / page_tokens;
  const std::size_t page_count = (tokens.size() + page_tokens - 1) / page_tokens;
  QUIRE_CHECK(page_count <= pages_.size(), "the request is longer than the driver was made for");

  const PrefixTree::Key key{.tokens = tokens, .extra_keys = {}};
  const PrefixTree::Match match = tree_->match(root_, key);
  PrefixTree::Pin pin = tree_->pin(match);

  const std::span<PageId> fresh = std::span(pages_).first(page_count - match.page_count);
  if (fresh.size() > pool_.free_count()) {
    evict(static_cast<std::uint32_t>(fresh.size()) - pool_.free_count());
  }
  QUIRE_CHECK(pool_.try_allocate(fresh), "the pool is smaller than one request");

  const std::span<PageId> whole = fresh.first(whole_page_count - match.page_count);
  const std::span<PageId> tail = fresh.subspan(whole.size());
  pool_.seal(whole);
  const std::uint32_t duplicate_count = tree_->insert(pin, key, whole, duplicates_);
  pool_.release(std::span(duplicates_).first(duplicate_count));
  pool_.release(tail);

  const std::size_t hit_token_count = std::size_t{match.page_count} * page_tokens;
  outcome_.hit_token_count += hit_token_count;
  return hit_token_count;
}

std::uint32_t TreeDriver::evict(std::uint32_t page_count) {
  const std::uint32_t evicted = tree_->evict(page_count, [&](std::span<const PageId> pages) { pool_.release(pages); });
  outcome_.evicted_token_count += std::uint64_t{evicted} * tree_->page_tokens();
  ++outcome_.evict_call_count;
  return evicted;
}

TreeDriverConfig chat_driver_config(const ChatWorkload& workload, std::uint32_t page_tokens) {
  std::size_t longest = 0;
  for (const ChatWorkload::Request& request : workload.requests()) {
    longest = std::max(longest, request.tokens.size());
  }
  return {.page_tokens = page_tokens,
          .page_count = static_cast<std::uint32_t>(workload.pool_token_count() / page_tokens),
          .request_tokens_max = static_cast<std::uint32_t>(longest)};
}

ChatOutcome run_chat_on_tree(const ChatWorkload& workload, std::uint32_t page_tokens, bool whole_runs) {
  TreeDriverConfig config = chat_driver_config(workload, page_tokens);
  config.whole_runs = whole_runs;
  TreeDriver driver(config);
  for (const ChatWorkload::Request& request : workload.requests()) driver.run_request(request.tokens);
  return driver.outcome();
}

}  // namespace quire::testing
