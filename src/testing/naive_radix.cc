// SPDX-License-Identifier: Apache-2.0
#include "testing/naive_radix.h"

#include <algorithm>
#include <ranges>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "testing/tree_drawing.h"

namespace quire::testing {
namespace {

using Page = std::vector<TokenId>;
using PageView = std::span<const TokenId>;

// Transparent, so that a lookup by a view of the caller's tokens makes no vector.
struct PageHash {
  using is_transparent = void;
  std::size_t operator()(PageView page) const {
    std::uint64_t hash = 0;
    for (const TokenId token : page) hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>(hash ^ (hash >> 32));
  }
};

struct PageEqual {
  using is_transparent = void;
  bool operator()(PageView a, PageView b) const { return std::ranges::equal(a, b); }
};

}  // namespace

struct NaiveRadix::Node {
  std::vector<TokenId> tokens;
  std::vector<PageId> pages;  // One for each page_tokens tokens.
  Node* parent = nullptr;
  std::unordered_map<Page, std::unique_ptr<Node>, PageHash, PageEqual> children;  // By their first page.
  std::uint32_t lock_count = 0;
  std::uint64_t last_use = 0;
  std::uint64_t uuid = 0;

  [[nodiscard]] bool is_root() const { return parent == nullptr; }
  [[nodiscard]] bool is_leaf() const { return children.empty(); }
};

namespace {

/// For the heap algorithms, which keep the greatest in front.
bool is_used_later(const NaiveRadix::Node* a, const NaiveRadix::Node* b) {
  return a->last_use > b->last_use;
}

}  // namespace

NaiveRadix::NaiveRadix(const NaiveRadixConfig& config)
    : page_tokens_(config.page_tokens), page_count_(config.page_count) {
  QUIRE_CHECK(page_tokens_ > 0, "a page holds at least one token");
  for (std::uint32_t page = 0; page < page_count_; ++page) free_pages_.push_back(PageId{page});
  root_ = make_node();
  root_->lock_count = 1;  // Never evicted.
}

NaiveRadix::~NaiveRadix() {
  // Node by node: left to the members, a path of many nodes would recurse once for each.
  std::vector<std::unique_ptr<Node>> nodes;
  nodes.push_back(std::move(root_));
  while (!nodes.empty()) {
    const std::unique_ptr<Node> node = std::move(nodes.back());
    nodes.pop_back();
    for (auto& [page, child] : node->children) nodes.push_back(std::move(child));
  }
}

NaiveRadix::Match NaiveRadix::match(std::span<const TokenId> tokens) {
  const End end = walk(tokens);
  Match result{.node = end.node, .token_count = end.token_count, .pages = {}};
  std::vector<const Node*> path;
  for (const Node* node = end.node; !node->is_root(); node = node->parent) path.push_back(node);
  result.pages.reserve(end.token_count / page_tokens_);
  for (const Node* node : path | std::views::reverse) {
    result.pages.insert(result.pages.end(), node->pages.begin(), node->pages.end());
  }
  return result;
}

void NaiveRadix::lock(Node* node) {
  for (; !node->is_root(); node = node->parent) {
    if (node->lock_count == 0) {
      evictable_page_count_ -= node->pages.size();
      locked_page_count_ += node->pages.size();
    }
    ++node->lock_count;
  }
}

void NaiveRadix::unlock(Node* node) {
  for (; !node->is_root(); node = node->parent) {
    QUIRE_CHECK(node->lock_count > 0, "unlocked more often than locked");
    --node->lock_count;
    if (node->lock_count == 0) {
      evictable_page_count_ += node->pages.size();
      locked_page_count_ -= node->pages.size();
    }
  }
}

std::vector<PageId> NaiveRadix::allocate(std::size_t page_count) {
  if (page_count > free_pages_.size()) free_pages(evict(page_count - free_pages_.size()));
  const auto end = free_pages_.begin() + static_cast<std::ptrdiff_t>(page_count);
  std::vector<PageId> pages(free_pages_.begin(), end);
  free_pages_.erase(free_pages_.begin(), end);
  return pages;
}

void NaiveRadix::free_pages(std::span<const PageId> pages) {
  free_pages_.insert(free_pages_.end(), pages.begin(), pages.end());
}

std::size_t NaiveRadix::insert(std::span<const TokenId> tokens, std::span<const PageId> pages) {
  const std::span<const TokenId> aligned = tokens.first(tokens.size() / page_tokens_ * page_tokens_);
  QUIRE_CHECK(pages.size() * page_tokens_ >= aligned.size(), "a page for each whole page of tokens");
  const End end = walk(aligned);
  if (end.token_count == aligned.size()) return end.token_count;

  const std::span<const TokenId> suffix = aligned.subspan(end.token_count);
  const std::span<const PageId> suffix_pages =
      pages.subspan(end.token_count / page_tokens_, suffix.size() / page_tokens_);
  std::unique_ptr<Node> leaf = make_node();
  leaf->tokens.assign(suffix.begin(), suffix.end());
  leaf->pages.assign(suffix_pages.begin(), suffix_pages.end());
  leaf->parent = end.node;
  evictable_page_count_ += suffix_pages.size();
  const std::span<const TokenId> key = suffix.first(page_tokens_);
  end.node->children.emplace(Page(key.begin(), key.end()), std::move(leaf));
  return end.token_count;
}

void NaiveRadix::finish(const Match& match, std::span<const TokenId> tokens, std::span<const PageId> pages) {
  const std::size_t aligned_page_count = tokens.size() / page_tokens_;
  const std::size_t matched_page_count = match.token_count / page_tokens_;
  const std::size_t present_page_count = insert(tokens, pages) / page_tokens_;
  free_pages(pages.subspan(matched_page_count, present_page_count - matched_page_count));
  free_pages(pages.subspan(aligned_page_count));
  unlock(match.node);
}

std::vector<PageId> NaiveRadix::evict(std::size_t page_count) {
  std::vector<PageId> evicted;
  if (page_count == 0) return evicted;
  QUIRE_CHECK(page_count <= evictable_page_count_, "asked to evict more than is evictable");
  ++evict_call_count_;

  std::vector<Node*> leaves = collect_evictable_leaves();
  std::make_heap(leaves.begin(), leaves.end(), is_used_later);
  while (evicted.size() < page_count) {
    QUIRE_CHECK(!leaves.empty(), "a node without locks has only such nodes below it");
    std::pop_heap(leaves.begin(), leaves.end(), is_used_later);
    Node* const node = leaves.back();
    leaves.pop_back();
    evicted.insert(evicted.end(), node->pages.begin(), node->pages.end());
    evictable_page_count_ -= node->pages.size();
    evicted_token_count_ += node->tokens.size();
    --node_count_;
    Node* const parent = node->parent;
    parent->children.erase(parent->children.find(PageView(node->tokens).first(page_tokens_)));
    if (parent->is_leaf() && parent->lock_count == 0) {
      leaves.push_back(parent);
      std::push_heap(leaves.begin(), leaves.end(), is_used_later);
    }
  }
  return evicted;
}

NaiveRadix::End NaiveRadix::walk(std::span<const TokenId> tokens) {
  const std::uint64_t now = ++now_;
  Node* node = root_.get();
  std::size_t matched = 0;
  while (tokens.size() - matched >= page_tokens_) {
    const std::span<const TokenId> rest = tokens.subspan(matched);
    const auto found = node->children.find(rest.first(page_tokens_));
    if (found == node->children.end()) break;
    node = found->second.get();
    const auto differ = std::ranges::mismatch(node->tokens, rest).in1;
    const std::size_t common = static_cast<std::size_t>(differ - node->tokens.begin()) / page_tokens_ * page_tokens_;
    matched += common;
    if (common < node->tokens.size()) {
      node = split(node, common);
      break;
    }
    node->last_use = now;
  }
  return {.node = node, .token_count = matched};
}

std::unique_ptr<NaiveRadix::Node> NaiveRadix::make_node() {
  auto node = std::make_unique<Node>();
  node->uuid = next_uuid_++;
  node->last_use = ++now_;
  ++node_count_;
  return node;
}

NaiveRadix::Node* NaiveRadix::split(Node* node, std::size_t prefix_tokens) {
  const auto token_end = node->tokens.begin() + static_cast<std::ptrdiff_t>(prefix_tokens);
  const auto page_end = node->pages.begin() + static_cast<std::ptrdiff_t>(prefix_tokens / page_tokens_);
  std::unique_ptr<Node> prefix = make_node();
  prefix->tokens.assign(node->tokens.begin(), token_end);
  prefix->pages.assign(node->pages.begin(), page_end);
  prefix->parent = node->parent;
  prefix->lock_count = node->lock_count;  // Every lock of the node covers what comes before it.
  prefix->last_use = node->last_use;

  // The suffix keeps the identity of the node, so that locks taken on it still cover the whole.
  std::unique_ptr<Node>& place = node->parent->children.find(PageView(node->tokens).first(page_tokens_))->second;
  std::unique_ptr<Node> suffix = std::exchange(place, std::move(prefix));
  suffix->tokens.erase(suffix->tokens.begin(), token_end);
  suffix->pages.erase(suffix->pages.begin(), page_end);
  suffix->parent = place.get();
  const PageView key = PageView(suffix->tokens).first(page_tokens_);
  place->children.emplace(Page(key.begin(), key.end()), std::move(suffix));
  return place.get();
}

std::vector<NaiveRadix::Node*> NaiveRadix::collect_evictable_leaves() const {
  std::vector<Node*> leaves;
  std::vector<Node*> nodes = {root_.get()};
  while (!nodes.empty()) {
    Node* const node = nodes.back();
    nodes.pop_back();
    if (node->is_leaf()) {
      if (node->lock_count == 0) leaves.push_back(node);
    } else {
      for (const auto& [page, child] : node->children) nodes.push_back(child.get());
    }
  }
  return leaves;
}

void NaiveRadix::check_invariants(std::size_t held_page_count) const {
  std::size_t evictable = 0;
  std::size_t locked = 0;
  std::size_t node_count = 0;
  std::vector<bool> is_seen(page_count_, false);
  const auto see = [&](PageId page) {
    QUIRE_CHECK(page.value < page_count_, "a page of this pool");
    QUIRE_CHECK(!is_seen[page.value], "a page is in one place");
    is_seen[page.value] = true;
  };
  std::vector<const Node*> nodes = {root_.get()};
  while (!nodes.empty()) {
    const Node* const node = nodes.back();
    nodes.pop_back();
    ++node_count;
    if (!node->is_root()) {
      QUIRE_CHECK(!node->tokens.empty(), "a node holds tokens");
      QUIRE_CHECK(node->tokens.size() == node->pages.size() * page_tokens_, "a node holds whole pages");
      (node->lock_count == 0 ? evictable : locked) += node->pages.size();
    }
    for (const PageId page : node->pages) see(page);
    for (const auto& [key, child] : node->children) {
      QUIRE_CHECK(child->parent == node, "a child knows its parent");
      QUIRE_CHECK(std::ranges::equal(key, PageView(child->tokens).first(page_tokens_)), "key is the first page");
      QUIRE_CHECK(node->is_root() || child->lock_count <= node->lock_count, "a lock reaches up to the root");
      nodes.push_back(child.get());
    }
  }
  for (const PageId page : free_pages_) see(page);
  QUIRE_CHECK(evictable == evictable_page_count_, "count of evictable pages");
  QUIRE_CHECK(locked == locked_page_count_, "count of locked pages");
  QUIRE_CHECK(node_count == node_count_, "count of nodes");
  QUIRE_CHECK(free_pages_.size() + evictable + locked + held_page_count == page_count_, "no page is lost");
}

namespace {

DrawnNode drawn(const NaiveRadix::Node& node, std::size_t depth) {
  DrawnNode result{.number = node.uuid,
                   .tokens = node.tokens,
                   .pages = node.pages,
                   .ref = node.lock_count,
                   .is_root = node.is_root()};
  if (depth > kDrawingDepthMax) return result;
  for (const auto& [page, child] : node.children) result.children.push_back(drawn(*child, depth + 1));
  return result;
}

}  // namespace

std::string print_naive_tree(const NaiveRadix& radix) {
  return draw_tree(drawn(*radix.root_, 0));
}

// The published W1 figures come out of exactly this:
// - The page of the unaligned tail is allocated like the others and freed at the end, so the shortfall to
//   evict is counted in whole pages, rounded up. Without it, P=64 hits 26,010,880 tokens, not 26,010,496.
// - Only the shortfall is evicted, in whole nodes, while the matched path is locked.
// - All nodes a walk matches whole get one time, and a later walk a later time. No two leaves tie then: nodes
//   of equal time lie on one path, and the upper one is no leaf until the lower one is gone.
// Tried one at a time, three things in which trees of this family may differ change none of them: leaving the
// last token out of the match (each turn adds more than one), giving the upper half of a split the present
// time instead of the old (the insert of the same request walks it anyway), and an insert that does not count
// as a use (its match did).
std::size_t run_request_on_naive(NaiveRadix& radix, std::span<const TokenId> tokens) {
  NaiveRadix::Match match = radix.match(tokens);
  radix.lock(match.node);
  const std::size_t page_count = (tokens.size() + radix.page_tokens() - 1) / radix.page_tokens();
  const std::vector<PageId> fresh = radix.allocate(page_count - match.pages.size());
  match.pages.insert(match.pages.end(), fresh.begin(), fresh.end());
  radix.finish(match, tokens, match.pages);
  return match.token_count;
}

ChatOutcome run_chat_on_naive(const ChatWorkload& workload, std::uint32_t page_tokens) {
  NaiveRadix radix({.page_tokens = page_tokens,
                    .page_count = static_cast<std::uint32_t>(workload.pool_token_count() / page_tokens)});
  ChatOutcome outcome;
  for (const ChatWorkload::Request& request : workload.requests()) {
    outcome.hit_token_count += run_request_on_naive(radix, request.tokens);
  }
  outcome.evicted_token_count = radix.evicted_token_count();
  outcome.evict_call_count = radix.evict_call_count();
  return outcome;
}

}  // namespace quire::testing
