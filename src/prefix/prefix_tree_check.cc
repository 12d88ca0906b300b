// SPDX-License-Identifier: Apache-2.0
//
// PrefixTree::check_invariants: every rule the tree promises, each under its own name.
#include <string>
#include <unordered_set>
#include <vector>

#include "prefix/prefix_tree.h"

namespace quire {

namespace {

auto broken(const char* rule, std::uint32_t run) {
  return fail(ErrorCode::Corrupt, "prefix tree: " + std::string(rule) + " (run " + std::to_string(run) + ")");
}

}  // namespace

Status PrefixTree::check_invariants() const {
  std::uint32_t live_runs = 0;
  std::uint32_t live_roots = 0;
  std::uint32_t listed_children = 0;
  std::uint32_t idle_runs = 0;
  std::uint32_t soft_runs = 0;
  std::uint32_t extra_keys = 0;
  std::uint64_t idle_pages = 0;
  std::uint64_t soft_pages = 0;
  std::uint64_t pinned_pages = 0;
  std::unordered_set<std::uint32_t> pages_seen;

  for (std::uint32_t i = 0; i < fresh_run_; ++i) {
    const Run& run = runs_[i];
    if (!run.is_live) continue;

    std::uint32_t pinned_children = 0;
    std::uint32_t soft_children = 0;
    std::uint32_t previous = kNoRun;
    for (std::uint32_t child = run.first_child; child != kNoRun; child = runs_[child].next_sibling) {
      if (!runs_[child].is_live || runs_[child].parent != i) return broken("a child does not name its parent", child);
      if (runs_[child].previous_sibling != previous) return broken("siblings are not linked both ways", child);
      pinned_children += runs_[child].pins > 0 ? 1 : 0;
      soft_children += runs_[child].soft_pins > 0 ? 1 : 0;
      ++listed_children;
      previous = child;
    }
    if (run.last_child != previous) return broken("a run's last child is not the last", i);
    if (run.pins < pinned_children) return broken("a pinned run's parent is not pinned for it", i);
    if (run.soft_pins < soft_children) return broken("a softly pinned run's parent is not softly pinned for it", i);

    if (is_root(i)) {
      ++live_roots;
      if (run.page_count != 0 || run.first_page != 0 || run.root != i) return broken("a root has pages", i);
      continue;
    }
    ++live_runs;
    const Run& parent = runs_[run.parent];
    if (run.page_count == 0 || run.page_count > storage_.run_pages_max()) {
      return broken("a run's page count is out of range", i);
    }
    if (run.first_page != parent.first_page + parent.page_count) {
      return broken("a run does not start where its parent ends", i);
    }
    if (run.root != parent.root) return broken("a run is in another key space than its parent", i);
    if (run.key_hash != key_hash_of(i)) return broken("a run's hash is not that of its first page", i);

    std::uint32_t found = 0;
    for (std::uint32_t other = buckets_[run.key_hash & bucket_mask_] - 1; other != kNoRun;
         other = runs_[other].bucket_next) {
      if (other == i) ++found;
    }
    if (found != 1) return broken("a run is not in the child table exactly once", i);
    std::vector<ExtraKey> keys;
    extra_keys_.for_each(run.extra_keys, [&](const ExtraKey& key) { keys.push_back(key); });
    const Key own{{storage_.tokens(run), std::size_t{run.page_count} * config_.page_tokens}, keys};
    const TokenRange range = page_range(run.first_page, run.page_count);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      if (keys[k].end <= range.begin || keys[k].begin >= range.end || (k > 0 && keys[k].begin < keys[k - 1].end)) {
        return broken("an extra key lies outside its run or out of order", i);
      }
    }
    extra_keys += static_cast<std::uint32_t>(keys.size());
    // Only runs with equal hashes can have equal first pages.
    for (std::uint32_t other = run.bucket_next; other != kNoRun; other = runs_[other].bucket_next) {
      if (runs_[other].parent != run.parent || runs_[other].key_hash != run.key_hash) continue;
      const TokenId* const tokens = storage_.tokens(runs_[other]);
      bool differs = extra_keys_.first_difference(runs_[other].extra_keys, keys, page_range(run.first_page, 1)) <
                     page_range(run.first_page, 1).end;
      for (std::uint32_t t = 0; t < config_.page_tokens; ++t) differs = differs || tokens[t] != own.tokens[t];
      if (!differs) return broken("two siblings have the same first page", i);
    }

    for (std::uint32_t p = 0; p < run.page_count; ++p) {
      if (!pages_seen.insert(storage_.pages(run)[p].value).second) return broken("a page is in the tree twice", i);
    }
    if (run.pins > 0) {
      pinned_pages += run.page_count;
      if (soft_.contains(i)) return broken("a pinned run is in the soft pins' order", i);
    } else if (run.soft_pins > 0) {
      soft_pages += run.page_count;
      ++soft_runs;
      if (!soft_.contains(i)) return broken("a softly pinned run is missing from their order", i);
    } else {
      idle_pages += run.page_count;
      ++idle_runs;
      if (soft_.contains(i)) return broken("a run without soft pins is in their order", i);
    }
  }

  if (listed_children != live_runs) return broken("a run is not among its parent's children", live_runs);
  if (live_runs != run_count_) return broken("the count of runs is wrong", run_count_);
  if (live_roots != root_count_) return broken("the count of roots is wrong", root_count_);
  if (pinned_pages != pinned_pages_) return broken("the count of pinned pages is wrong", pinned_pages_);
  if (soft_pages != soft_pages_) return broken("the count of softly pinned pages is wrong", soft_pages_);
  if (idle_pages != idle_pages_) return broken("the count of idle pages is wrong", idle_pages_);
  if (soft_runs != soft_.size())
    return broken("the soft pins' order has runs that are not softly pinned", soft_.size());
  if (idle_runs != policy_.idle_run_count()) return broken("the policy's order is not the idle runs", idle_runs);
  if (extra_keys != extra_keys_.used_count()) return broken("an extra key belongs to no run", extra_keys);

  std::uint32_t free_runs = 0;
  for (std::uint32_t run = first_free_run_; run != kNoRun && free_runs <= fresh_run_; run = runs_[run].parent) {
    if (runs_[run].is_live) return broken("a live run is in the free list", run);
    ++free_runs;
  }
  if (free_runs + live_runs + live_roots != fresh_run_) return broken("a run is neither live nor free", free_runs);
  return storage_.check_invariants();
}

}  // namespace quire
