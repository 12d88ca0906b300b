// SPDX-License-Identifier: Apache-2.0
//
// PrefixTree::check_invariants: every rule the tree promises, each under its own name.
#include <string>
#include <unordered_set>
#include <vector>

#include "prefix/prefix_tree.h"

namespace quire {

namespace {

// Tells host pages from device pages of the same id.
constexpr std::uint64_t kHostBit = 1ULL << 32U;

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
  std::unordered_set<std::uint64_t> pages_seen;

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
      const std::uint64_t page = storage_.pages(run)[p].value | (run.is_on_host ? kHostBit : 0);
      if (!pages_seen.insert(page).second) return broken("a page is in the tree twice", i);
      const PageId id = storage_.pages(run)[p];
      if (config_.finds_runs && (run.is_on_host ? run_of_host(id) : run_of(id)) != RunId{i}) {
        return broken("a page is found in another run than its own", i);
      }
    }
    if (run.is_on_host || run.leaving != Leaving::No) continue;  // check_tiers() looks at those
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
  if (has_host()) QUIRE_TRY(check_tiers());
  return storage_.check_invariants();
}

Status PrefixTree::check_tiers() const {
  std::uint64_t host_idle = 0;
  std::uint64_t host_pinned = 0;
  std::uint64_t host_held = 0;
  std::uint64_t leaving = 0;
  std::uint64_t left = 0;
  std::uint32_t leaving_runs = 0;
  std::uint32_t host_idle_runs = 0;
  std::uint32_t copies = 0;
  std::uint32_t wanted = 0;
  std::uint32_t storing = 0;
  std::uint32_t listed = 0;
  std::unordered_set<std::uint64_t> host_pages;
  for (std::uint32_t i = 0; i < fresh_run_; ++i) {
    const Run& run = runs_[i];
    if (!run.is_live) continue;
    std::uint32_t last_resident_child = kNoRun;
    bool has_absent = false;
    std::uint32_t held_children = 0;
    for (std::uint32_t child = run.first_child; child != kNoRun; child = runs_[child].next_sibling) {
      held_children += tiers_[child].holds > 0 ? 1 : 0;
      if (!is_resident(child)) {
        has_absent = true;
        continue;
      }
      if (has_absent) return broken("a child on the device stands behind one that is not", child);
      last_resident_child = child;
    }
    if (tiers_[i].last_resident_child != last_resident_child) {
      return broken("a run's last child on the device is not the last", i);
    }
    if (is_root(i)) continue;
    const bool is_held_on_host = tiers_[i].holds > 0;
    if (tiers_[i].holds < held_children) return broken("a held run's parent is not held for it", i);
    const Run& parent = runs_[run.parent];
    if (parent.is_on_host && !run.is_on_host) return broken("a device run hangs below a host run", i);
    if (parent.leaving != Leaving::No && is_resident(i)) return broken("a run stays whose parent leaves", i);
    if (parent.leaving == Leaving::Left && run.leaving == Leaving::Copying) {
      return broken("a run has left before its child", i);
    }
    if (leaving_.contains(i) != (run.leaving != Leaving::No)) return broken("the order of leaving runs is wrong", i);
    if (run.leaving != Leaving::No) {
      if (run.is_on_host || run.pins > 0 || run.soft_pins > 0) return broken("a run leaves that cannot", i);
      (run.leaving == Leaving::Left ? left : leaving) += run.page_count;
      ++leaving_runs;
    }
    if (run.is_on_host) {
      if (run.soft_pins > 0) return broken("a host run is softly pinned", i);
      (run.pins > 0 ? host_pinned : is_held_on_host ? host_held : host_idle) += run.page_count;
      host_idle_runs += run.pins == 0 && !is_held_on_host ? 1 : 0;
      for (const PageId page : pages(RunId{i})) {
        if (!host_pages.insert(page.value).second) return broken("a host page is held twice", i);
      }
      continue;
    }
    for (const PageId page : pages(RunId{i})) {
      const HostCopy& copy = copies_[page.value];
      if (copy.is_held != (run.leaving != Leaving::No)) return broken("a copy is held for a run that stays", i);
      if (copy.is_kept != is_held_on_host) return broken("a copy is kept for a run that is not held", i);
      const bool is_listed =
          copy.state == Copy::Wanted || (copy.state == Copy::Ready && run.leaving == Leaving::No && !is_held_on_host);
      if (page_lists_.contains(page.value) != is_listed) return broken("a page is in the wrong list of copies", i);
      listed += is_listed ? 1 : 0;
      copies += copy.state == Copy::Ready ? 1 : 0;
      wanted += copy.state == Copy::Wanted ? 1 : 0;
      storing += copy.state == Copy::Storing ? 1 : 0;
      if (copy.state != Copy::Ready && copy.state != Copy::Storing) continue;
      if (!host_pages.insert(copy.host_page.value).second) return broken("a host page is held twice", i);
      if (config_.finds_runs && run_of_host(copy.host_page) != RunId{i}) {
        return broken("a copy is found in another run than its page", i);
      }
    }
  }
  if (host_idle != host_idle_pages_) return broken("the count of idle host pages is wrong", host_idle_pages_);
  if (host_pinned != host_pinned_pages_) return broken("the count of pinned host pages is wrong", host_pinned_pages_);
  if (host_held != host_held_pages_) return broken("the count of held host pages is wrong", host_held_pages_);
  if (leaving != leaving_pages_) return broken("the count of leaving pages is wrong", leaving_pages_);
  if (left != left_pages_) return broken("the count of pages that have left is wrong", left_pages_);
  if (leaving_runs != leaving_.size()) return broken("a leaving run is gone", leaving_runs);
  if (host_idle_runs != host_policy_->idle_run_count()) {
    return broken("the host policy's order is not the idle host runs", host_idle_runs);
  }
  if (copies != ready_copy_count_) return broken("the count of copies is wrong", ready_copy_count_);
  if (wanted != wanted_count_) return broken("the count of wanted copies is wrong", wanted_count_);
  if (storing != storing_count_) return broken("the count of copies on their way is wrong", storing_count_);
  if (listed != page_lists_.size()) return broken("a page that left the tree is in a list of copies", listed);
  return {};
}

}  // namespace quire
