// SPDX-License-Identifier: Apache-2.0
//
// PrefixTree: what goes when room is needed. The policy names a run; the pages come from the end of its deepest idle
// descendant, the least recently used one.
#include <cstring>
#include <optional>

#include "base/check.h"
#include "prefix/prefix_tree.h"

namespace quire {

std::span<const PageId> PrefixTree::evict_from_next_victim(std::uint32_t page_count_max) {
  if (has_host()) return evict_to_host(page_count_max);
  const std::uint32_t leaf = next_victim_leaf();
  if (leaf == kNoRun) return {};
  const std::uint32_t parent = runs_[leaf].parent;
  const std::uint32_t count =
      config_.whole_runs ? runs_[leaf].page_count : std::min(page_count_max, runs_[leaf].page_count);
  const std::span<const PageId> pages = give_up_tail(leaf, count, ResidencyCause::Evicted);
  end_descent(leaf, parent);
  return pages;
}

// The leaf that the next pages are to come from, or kNoRun.
std::uint32_t PrefixTree::next_victim_leaf() {
  std::uint32_t run = soft_.front();
  if (const std::optional<RunId> victim = policy_.next_victim()) run = victim->value;
  if (run == kNoRun) return kNoRun;
  QUIRE_CHECK(run < fresh_run_ && runs_[run].is_live && runs_[run].pins == 0 && !is_root(run),
              "the policy named a run that is not idle");
  // Everything below an idle run is idle too. A policy that names the top of a long path again and again should not
  // cost the way down each time: go on where the last step stopped.
  const std::uint32_t victim = run;
  const bool goes_on = descent_.victim == victim && descent_.version == version_;
  const std::uint32_t leaf = least_recent_leaf(goes_on ? descent_.reached : victim);
  descent_ = {.victim = victim, .reached = leaf, .version = version_};
  return leaf;
}

// Pages were taken from the leaf that next_victim_leaf() named, or all of it.
void PrefixTree::end_descent(std::uint32_t leaf, std::uint32_t parent) {
  descent_.reached = runs_[leaf].is_live && is_resident(leaf) ? leaf : parent;
  // What was taken may have hung below runs that are leaving, of which next_victim_leaf() knows nothing.
  while (!is_resident(descent_.reached)) descent_.reached = runs_[descent_.reached].parent;
  descent_.version = version_;
}

// Takes the last `page_count` pages from a childless idle run, and the run itself with its last page.
std::span<const PageId> PrefixTree::give_up_tail(std::uint32_t run, std::uint32_t page_count, ResidencyCause cause) {
  ++version_;
  Run& victim = runs_[run];
  const std::uint32_t pages_left = victim.page_count - page_count;
  if (pages_left == 0) {
    // What the removal touches lies far apart, and out of the caches when the run has been idle for long: ask for all
    // of it now rather than wait for one after the other.
    storage_.prefetch(victim);
    __builtin_prefetch(&buckets_[victim.key_hash & bucket_mask_], 1);
    if (victim.next_sibling != kNoRun) __builtin_prefetch(&runs_[victim.next_sibling], 1);
    if (victim.previous_sibling != kNoRun) __builtin_prefetch(&runs_[victim.previous_sibling], 1);
    __builtin_prefetch(&runs_[victim.parent], 1);
  }
  std::memcpy(given_up_.data(), storage_.pages(victim) + pages_left, page_count * sizeof(PageId));
  record(run, victim.first_page + pages_left, page_count, cause);
  if (victim.leaving != Leaving::No) {
    (victim.leaving == Leaving::Left ? left_pages_ : leaving_pages_) -= page_count;
  } else {
    (victim.soft_pins > 0 ? soft_pages_ : idle_pages_) -= page_count;
  }
  if (has_host()) {
    for (std::uint32_t i = 0; i < page_count; ++i) drop_copy(given_up_[i], cause);
  }
  victim.page_count = pages_left;
  const PageChange lost{.page_count = page_count,
                        .pages_left = pages_left,
                        .fingerprints = cause == ResidencyCause::Evicted
                                            ? fingerprints_of(std::span(given_up_).first(page_count))
                                            : std::span<const PageFingerprint>{}};
  if (cause == ResidencyCause::Evicted) {
    note_given_up(std::span(given_up_).first(page_count), lost.fingerprints, Tier::Device, cause);
  }
  if (pages_left == 0) {
    if (victim.leaving != Leaving::No) leaving_.remove(run);
    remove_run(run, lost);
  } else {
    if (victim.extra_keys != kNoExtraKey) {
      extra_keys_.trim(victim.extra_keys, (victim.first_page + pages_left) * config_.page_tokens);
    }
    storage_.shrink(run);
    if (victim.leaving == Leaving::No) policy_.on_trim(RunId{run}, lost);
  }
  return std::span(given_up_).first(page_count);
}

void PrefixTree::note_given_up(std::span<const PageId> pages, std::span<const PageFingerprint> fingerprints, Tier tier,
                               ResidencyCause cause) {
  given_up_page_total_ += pages.size();
  for (const PageId page : pages) {
    if (listener_ == nullptr || !listener_->is_below(tier, page)) ++lost_page_total_;
  }
  if (lost_ == nullptr) return;
  for (const PageFingerprint page : fingerprints) lost_->note(page, tier, cause == ResidencyCause::Failed);
}

void PrefixTree::record(std::uint32_t run, std::uint32_t first_page, std::uint32_t page_count, ResidencyCause cause,
                        Tier tier) {
  if (log_ == nullptr) return;
  log_->append({.run = RunId{run}, .first_page = first_page, .page_count = page_count, .tier = tier, .cause = cause});
}

void PrefixTree::renumber(RunId id, std::uint32_t index_in_run, PageId page) {
  const Run& run = runs_[id.value];
  QUIRE_CHECK(!run.is_on_host && run.pins == 0 && index_in_run < run.page_count, "renumbering what somebody may use");
  ++version_;
  PageId& place = storage_.pages(run)[index_in_run];
  const PageId before = std::exchange(place, page);
  if (wants_fingerprints_) fingerprints_[page.value] = fingerprints_[before.value];
  note_run(id.value, {&page, 1});
  if (!has_host()) return;
  HostCopy& copy = copies_[before.value];
  QUIRE_CHECK(copy.state != Copy::Storing && copies_[page.value].state == Copy::None,
              "renumbering a page that is copied");
  if (page_lists_.contains(before.value)) {
    page_lists_.insert_after(before.value, page.value);
    page_lists_.remove(before.value);
  }
  copies_[page.value] = std::exchange(copy, {});
  if (copies_[page.value].state == Copy::Ready) note_copy(page, copies_[page.value].host_page);
}

}  // namespace quire
