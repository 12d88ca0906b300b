// SPDX-License-Identifier: Apache-2.0
//
// PrefixTree: the host tier. Runs go from the device to the host and back; nothing here runs without one.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "prefix/prefix_tree.h"

namespace quire {

// Copies of device pages

void PrefixTree::want_copy(PageId device_page) {
  HostCopy& copy = copies_[device_page.value];
  QUIRE_CHECK(copy.state == Copy::None, "a page that has a copy, or will have one");
  copy.state = Copy::Wanted;
  page_lists_.push_back(device_page.value, kWantedCopies);
  ++wanted_count_;
}

PageId PrefixTree::next_wanted() const {
  const std::uint32_t page = page_lists_.front(kWantedCopies);
  return page == IndexLists::kNone ? PageId::none() : PageId{page};
}

void PrefixTree::start_copy(PageId device_page, PageId host_page) {
  HostCopy& copy = copies_[device_page.value];
  if (copy.state == Copy::Wanted) forget_copy(device_page);
  QUIRE_CHECK(copy.state == Copy::None, "a page is copied twice");
  copy.state = Copy::Storing;
  copy.host_page = host_page;
  host_fingerprints_[host_page.value] = fingerprints_[device_page.value];
  note_copy(device_page, host_page);
  ++storing_count_;
}

void PrefixTree::end_copy(PageId device_page, bool goes_first) {
  HostCopy& copy = copies_[device_page.value];
  QUIRE_CHECK(copy.state == Copy::Storing, "a copy arrived that nobody started");
  copy.state = Copy::Ready;
  --storing_count_;
  ++ready_copy_count_;
  if (log_ != nullptr) {
    log_->append({.run = RunId::none(), .page_count = 1, .tier = Tier::Host, .cause = ResidencyCause::Stored});
  }
  if (!copy.is_held && !copy.is_kept) {
    page_lists_.push_back(device_page.value, goes_first ? kFirstCopies : kOtherCopies);
  }
}

// The state of the copy only: whoever forgets a copy that is there, or on its way, owns the host page.
void PrefixTree::forget_copy(PageId device_page) {
  HostCopy& copy = copies_[device_page.value];
  switch (copy.state) {
    case Copy::None:
      break;
    case Copy::Wanted:
      page_lists_.remove(device_page.value);
      --wanted_count_;
      break;
    case Copy::Storing:
      --storing_count_;
      break;
    case Copy::Ready:
      if (!copy.is_held && !copy.is_kept) page_lists_.remove(device_page.value);
      --ready_copy_count_;
      break;
  }
  copy.state = Copy::None;
}

// A device page leaves the tree: what it has on the host goes too. A copy on its way belongs to who moves it.
void PrefixTree::drop_copy(PageId device_page, ResidencyCause cause) {
  const HostCopy copy = copies_[device_page.value];
  forget_copy(device_page);
  copies_[device_page.value] = {};
  if (copy.state != Copy::Ready) return;
  free_host(copy.host_page);
  if (log_ != nullptr) log_->append({.run = RunId::none(), .page_count = 1, .tier = Tier::Host, .cause = cause});
}

bool PrefixTree::take_copy(PageList list) {
  const std::uint32_t page = page_lists_.front(list);
  if (page == IndexLists::kNone) return false;
  if (listener_ != nullptr) listener_->on_copy_given_up(PageId{page}, copies_[page].host_page);
  drop_copy(PageId{page}, ResidencyCause::Evicted);
  return true;
}

// From the device to the host

// Whether the policy hears of a run has changed: its place among its siblings follows, and the policy hears of the
// parent.
void PrefixTree::become_absent(std::uint32_t run) {
  const std::uint32_t parent = runs_[run].parent;
  unlink_child(run);
  link_absent(parent, run);
  if (!is_root(parent) && is_resident(parent) && last_resident(parent) == kNoRun) policy_.on_leaf(RunId{parent});
}

void PrefixTree::become_resident(std::uint32_t run) {
  const std::uint32_t parent = runs_[run].parent;
  const bool is_first = last_resident(parent) == kNoRun;
  unlink_child(run);
  link_child(parent, run);
  // A parent that is leaving is about to stay too, and hears of its children then.
  if (is_first && !is_root(parent) && is_resident(parent)) policy_.on_branch(RunId{parent});
}

void PrefixTree::end_soft_pins(std::uint32_t run) {
  if (runs_[run].soft_pins == 0) return;
  soft_.remove(run);
  soft_pages_ -= runs_[run].page_count;
  idle_pages_ += runs_[run].page_count;
  runs_[run].soft_pins = 0;
  ++runs_[run].generation;  // so that their handles see it
  drop_soft(runs_[run].parent);
}

RunId PrefixTree::start_leaving(std::uint32_t page_count_max) {
  const std::uint32_t leaf = next_victim_leaf();
  if (leaf == kNoRun) return RunId::none();
  const std::uint32_t parent = runs_[leaf].parent;
  if (runs_[leaf].page_count > page_count_max) (void)split(leaf, runs_[leaf].page_count - page_count_max);
  ++version_;
  end_soft_pins(leaf);
  Run& run = runs_[leaf];
  const std::span<const PageId> leaving = pages(RunId{leaf});
  idle_pages_ -= run.page_count;
  leaving_pages_ += run.page_count;
  policy_.on_remove(RunId{leaf},
                    {.page_count = run.page_count, .pages_left = 0, .fingerprints = fingerprints_of(leaving)});
  for (const PageId page : leaving) {
    HostCopy& copy = copies_[page.value];
    if (copy.state == Copy::Wanted) forget_copy(page);
    if (copy.state == Copy::Ready && !copy.is_kept) page_lists_.remove(page.value);
    copy.is_held = true;
  }
  run.leaving = Leaving::Copying;
  leaving_.push_back(leaf, 0);
  become_absent(leaf);
  end_descent(leaf, parent);
  return RunId{leaf};
}

void PrefixTree::end_leaving() {
  for (;;) {
    const std::uint32_t run = leaving_.front(0);
    if (run == IndexLists::kNone) return;
    for (const PageId page : pages(RunId{run})) {
      if (copies_[page.value].state == Copy::Storing) return;
    }
    leaving_.remove(run);
    leaving_.push_back(run, 1);
    runs_[run].leaving = Leaving::Left;
    leaving_pages_ -= runs_[run].page_count;
    left_pages_ += runs_[run].page_count;
  }
}

// Somebody pins a run that was to go.
void PrefixTree::stop_leaving(std::uint32_t run) {
  Run& kept = runs_[run];
  descent_.victim = kNoRun;  // it went on above the run, which may be named again
  leaving_.remove(run);
  (kept.leaving == Leaving::Left ? left_pages_ : leaving_pages_) -= kept.page_count;
  kept.leaving = Leaving::No;
  const std::span<const PageId> all = pages(RunId{run});
  for (const PageId page : all) {
    HostCopy& copy = copies_[page.value];
    copy.is_held = false;
    if (copy.state == Copy::Ready && !copy.is_kept) page_lists_.push_back(page.value, kFirstCopies);
  }
  become_resident(run);
  policy_.on_seal(RunId{run}, {.page_count = kept.page_count,
                               .pages_left = kept.page_count,
                               .fingerprints = fingerprints_of(all),
                               .retention = {}});
  if (last_resident(run) != kNoRun) policy_.on_branch(RunId{run});
}

// The next device pages to go, all with copies or all without: those with copies stay on the host.
std::span<const PageId> PrefixTree::evict_to_host(std::uint32_t page_count_max) {
  std::uint32_t run = leaving_.front(1);
  const bool has_left = run != IndexLists::kNone;
  if (!has_left) run = next_victim_leaf();
  if (!has_left && leaving_.size() > 0) {
    // What is being copied may hang below what is not: then it goes first, copied or not.
    const auto first_leaving_below = [this](std::uint32_t above) {
      for (std::uint32_t child = runs_[above].first_child; child != kNoRun; child = runs_[child].next_sibling) {
        if (runs_[child].leaving != Leaving::No) return child;
      }
      return kNoRun;
    };
    for (std::uint32_t below = run; run != kNoRun && below != kNoRun; below = first_leaving_below(run)) run = below;
  }
  if (run == kNoRun) return {};
  const std::uint32_t parent = runs_[run].parent;
  const std::span<const PageId> all = pages(RunId{run});
  const std::uint32_t limit =
      config_.whole_runs ? runs_[run].page_count : std::min(page_count_max, runs_[run].page_count);
  const auto is_copied = [&](std::uint32_t from_end) {
    return copies_[all[all.size() - 1 - from_end].value].state == Copy::Ready;
  };
  const bool stays = is_copied(0);
  std::uint32_t count = 1;
  while (count < limit && is_copied(count) == stays) ++count;
  std::span<const PageId> given_up;
  if (stays) {
    given_up = demote(run, count);
  } else {
    drop_below(run, ResidencyCause::Evicted);
    given_up = give_up_tail(run, count, ResidencyCause::Evicted);
  }
  if (!has_left) end_descent(run, parent);
  return given_up;
}

// The last pages of a device run, all of which have copies, become a host run.
std::span<const PageId> PrefixTree::demote(std::uint32_t run, std::uint32_t page_count) {
  if (page_count < runs_[run].page_count) (void)split(run, runs_[run].page_count - page_count);
  ++version_;
  Run& left = runs_[run];
  PageId* const row = storage_.pages(left);
  std::memcpy(given_up_.data(), row, page_count * sizeof(PageId));
  const std::span<const PageId> given_up = std::span(given_up_).first(page_count);
  record(run, left.first_page, page_count, ResidencyCause::Evicted);
  const PageChange change{.page_count = page_count, .pages_left = 0, .fingerprints = fingerprints_of(given_up)};
  if (left.leaving != Leaving::No) {
    leaving_.remove(run);
    (left.leaving == Leaving::Left ? left_pages_ : leaving_pages_) -= page_count;
    left.leaving = Leaving::No;
  } else {
    end_soft_pins(run);
    idle_pages_ -= page_count;
    policy_.on_remove(RunId{run}, change);
    become_absent(run);
  }
  left.is_on_host = true;
  for (std::uint32_t i = 0; i < page_count; ++i) {
    row[i] = copies_[given_up[i].value].host_page;
    if (listener_ != nullptr) listener_->on_demote(given_up[i], row[i]);
    forget_copy(given_up[i]);
    copies_[given_up[i].value] = {};
  }
  note_run(run, pages(RunId{run}));
  host_policy_->on_seal(
      RunId{run},
      {.page_count = page_count, .pages_left = page_count, .fingerprints = change.fingerprints, .retention = {}});
  if (left.first_child != kNoRun) host_policy_->on_branch(RunId{run});
  enter_idle(run);
  return given_up;
}

std::uint32_t PrefixTree::left_pages(const Match& match) const {
  QUIRE_CHECK(match.version == version_, "the tree has changed since this match");
  std::uint32_t left = 0;
  std::uint32_t pages_in_run = match.pages_in_run;
  // What leaves is the end of a path.
  for (std::uint32_t run = match.run.value; runs_[run].leaving != Leaving::No; run = runs_[run].parent) {
    left += runs_[run].leaving == Leaving::Left ? pages_in_run : 0;
    pages_in_run = runs_[runs_[run].parent].page_count;
  }
  return left;
}

// From below the host to the host

void PrefixTree::insert_host(Pin& pin, const Key& key, std::span<const PageId> host_pages) {
  QUIRE_CHECK(pin.tree_ == this && has_host(), "inserting host pages behind an empty pin, or without a host tier");
  const std::uint32_t first_page = end_page(pin.run_);
  QUIRE_CHECK((first_page + host_pages.size()) * config_.page_tokens <= key.tokens.size(), "more pages than tokens");
  QUIRE_CHECK(host_pages.empty() || find_child(pin.run_.value, key, first_page) == kNoRun,
              "inserting host pages that the tree has");
  ++version_;
  while (!host_pages.empty()) {
    const std::uint32_t run = new_run(pin.run_.value);
    pin.run_ = RunId{run};
    runs_[run].is_on_host = true;
    const std::size_t count = std::min<std::size_t>(host_pages.size(), storage_.run_pages_max());
    fill(run, key, host_pages.first(count), {.cause = ResidencyCause::Loaded, .retention = {}});
    host_pages = host_pages.subspan(count);
  }
}

// From the host to the device

void PrefixTree::promote(RunId id, std::span<const PageId> device_pages, const Sealing& sealing) {
  Run& run = runs_[id.value];
  QUIRE_CHECK(run.is_on_host && run.pins > 0 && device_pages.size() == run.page_count,
              "promoting what is not on the host");
  QUIRE_CHECK(is_root(run.parent) || is_resident(run.parent), "promoting a run before its parent");
  ++version_;
  host_policy_->on_remove(id, {.page_count = run.page_count, .pages_left = 0, .fingerprints = {}, .retention = {}});
  host_pinned_pages_ -= run.page_count;
  pinned_pages_ += run.page_count;
  PageId* const row = storage_.pages(run);
  for (std::uint32_t i = 0; i < run.page_count; ++i) {
    const PageId host_page = row[i];
    row[i] = device_pages[i];
    fingerprints_[row[i].value] = host_fingerprints_[host_page.value];
    QUIRE_CHECK(copies_[row[i].value].state == Copy::None, "a page on its way to the host comes from it");
    copies_[row[i].value] = {.state = Copy::Ready, .is_kept = tiers_[id.value].holds > 0, .host_page = host_page};
    note_copy(row[i], host_page);
    if (listener_ != nullptr) listener_->on_promote(host_page, row[i]);
  }
  if (tiers_[id.value].holds == 0) page_lists_.push_back_all(device_pages, kFirstCopies);
  ready_copy_count_ += run.page_count;
  run.is_on_host = false;
  note_run(id.value, device_pages);
  tiers_[id.value].load = 0;
  become_resident(id.value);
  policy_.on_seal(id, {.page_count = run.page_count,
                       .pages_left = run.page_count,
                       .fingerprints = fingerprints_of(device_pages),
                       .retention = sealing.retention});
  record(id.value, run.first_page, run.page_count, sealing.cause);
}

RunId PrefixTree::first_host_run(RunId end_run) const {
  RunId first;
  for (std::uint32_t run = end_run.value; runs_[run].is_on_host; run = runs_[run].parent) first = RunId{run};
  return first;
}

// Out of the host

std::uint32_t PrefixTree::least_recent_host_leaf(std::uint32_t run) const {
  while (runs_[run].last_child != kNoRun) run = runs_[run].last_child;
  return run;
}

std::uint32_t PrefixTree::evict_host(std::uint32_t page_count) {
  const std::uint32_t before = freed_host_count_;
  while (freed_host_count_ - before < page_count) {
    if (take_copy(kFirstCopies)) continue;
    if (const std::optional<RunId> victim = host_policy_->next_victim()) {
      const std::uint32_t leaf = least_recent_host_leaf(victim->value);
      QUIRE_CHECK(runs_[leaf].is_on_host && runs_[leaf].pins == 0, "the host's policy named a run that is not idle");
      give_up_host_tail(leaf, std::min(page_count - (freed_host_count_ - before), runs_[leaf].page_count),
                        ResidencyCause::Evicted);
      continue;
    }
    if (!take_copy(kOtherCopies)) break;
  }
  return freed_host_count_ - before;
}

void PrefixTree::drop_host_run(RunId run, ResidencyCause cause) {
  QUIRE_CHECK(runs_[run.value].is_on_host, "dropping a device run from the host");
  drop_below(run.value, cause);
  give_up_host_tail(run.value, runs_[run.value].page_count, cause);
}

// Everything below a run whose end goes: host runs, without which nothing leads to them.
void PrefixTree::drop_below(std::uint32_t run, ResidencyCause cause) {
  for (std::uint32_t below = deepest_first(run); below != run;) {
    const std::uint32_t next = next_in_postorder(below);
    QUIRE_CHECK(runs_[below].is_on_host, "a device run below what is given up");
    give_up_host_tail(below, runs_[below].page_count, cause);
    below = next;
  }
}

void PrefixTree::give_up_host_tail(std::uint32_t run, std::uint32_t page_count, ResidencyCause cause) {
  ++version_;
  Run& victim = runs_[run];
  QUIRE_CHECK(victim.pins == 0 && victim.first_child == kNoRun, "giving up a host run that is in use");
  end_host_holds(run);
  const std::uint32_t pages_left = victim.page_count - page_count;
  const PageId* const lost = storage_.pages(victim) + pages_left;
  for (std::uint32_t i = 0; i < page_count; ++i) {
    free_host(lost[i]);
    told_fingerprints_[i] = host_fingerprints_[lost[i].value];
  }
  record(run, victim.first_page + pages_left, page_count, cause, Tier::Host);
  host_idle_pages_ -= page_count;
  victim.page_count = pages_left;
  const PageChange change{.page_count = page_count,
                          .pages_left = pages_left,
                          .fingerprints = std::span(told_fingerprints_).first(page_count),
                          .retention = {}};
  if (cause == ResidencyCause::Evicted || cause == ResidencyCause::Failed) {
    note_given_up({lost, page_count}, change.fingerprints, Tier::Host, cause);
  }
  if (pages_left == 0) {
    remove_run(run, change);
    return;
  }
  if (victim.extra_keys != kNoExtraKey) {
    extra_keys_.trim(victim.extra_keys, (victim.first_page + pages_left) * config_.page_tokens);
  }
  storage_.shrink(run);
  host_policy_->on_trim(RunId{run}, change);
}

}  // namespace quire
