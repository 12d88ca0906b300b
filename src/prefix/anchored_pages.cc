// SPDX-License-Identifier: Apache-2.0
#include "prefix/anchored_pages.h"

#include <string>

#include "base/check.h"
#include "base/mutants.h"

namespace quire {

Result<AnchoredPages> AnchoredPages::create(const AnchoredPagesConfig& config) {
  AnchoredPages pages;
  QUIRE_TRY_ASSIGN(pages.anchored_, LazyArray<std::uint32_t>::create(config.tree_page_end));
  QUIRE_TRY_ASSIGN(pages.entries_, LazyArray<Entry>::create(config.page_end));
  QUIRE_TRY(pages.idle_.reserve(config.page_end, kListCount));
  return pages;
}

Status AnchoredPages::grow(std::uint32_t tree_page_end) {
  return anchored_.grow(tree_page_end);
}

void AnchoredPages::attach(PageId tree_page, PageId page) {
  Entry& entry = entries_[page.value];
  QUIRE_CHECK(anchored_[tree_page.value] == 0, "a page of the tree has two pages of a group");
  QUIRE_CHECK(entry.tree_page == 0 && entry.pins == 0, "a page hangs on two of the tree's");
  anchored_[tree_page.value] = page.value + 1;
  entry = {.tree_page = tree_page.value + 1, .pins = 1};
  ++attached_count_;
}

void AnchoredPages::pin(PageId page) {
  Entry& entry = entries_[page.value];
  QUIRE_CHECK(entry.tree_page != 0, "pinning a page that the tree does not have");
  if (entry.is_idle()) idle_.remove(page.value);
  ++entry.pins;
}

void AnchoredPages::pin_found(PageId page) {
  pin(page);
  entries_[page.value].is_kept = true;
}

void AnchoredPages::unpin(PageId page, Worth worth) {
  Entry& entry = entries_[page.value];
  QUIRE_CHECK(entry.pins > 0, "more unpinned than pinned");
  entry.is_kept |= worth == Worth::Kept;
  --entry.pins;
  if (entry.is_idle()) enter_idle(page.value);
}

void AnchoredPages::hold(PageId page, std::uint32_t count) {
  Entry& entry = entries_[page.value];
  QUIRE_CHECK(entry.tree_page != 0, "holding a page that the tree does not have");
  if (entry.is_idle() && count > 0) idle_.remove(page.value);
  entry.holds += count;
}

void AnchoredPages::release_hold(PageId page) {
  Entry& entry = entries_[page.value];
  QUIRE_CHECK(entry.holds > 0, "a page is let go that nobody holds");
  entry.is_kept = true;
  --entry.holds;
  if (entry.is_idle()) enter_idle(page.value);
}

void AnchoredPages::detach(PageId page) {
  Entry& entry = entries_[page.value];
  QUIRE_CHECK(entry.tree_page != 0 && entry.pins == 0, "giving up a page that is in use");
  if (entry.holds == 0) idle_.remove(page.value);
  anchored_[entry.tree_page - 1] = 0;
  entry = {};
  --attached_count_;
}

PageId AnchoredPages::first_idle(Worth worth) const {
  std::uint32_t page = idle_.front(kPassed);
  if (page == IndexLists::kNone && worth == Worth::Kept) page = idle_.front(kKept);
  return page == IndexLists::kNone ? PageId::none() : PageId{page};
}

PageId AnchoredPages::evict(Worth worth) {
  const PageId page = first_idle(worth);
  if (!page.is_none()) detach(page);
  return page;
}

PageId AnchoredPages::drop(PageId tree_page) {
  const PageId page = is_mutated(Mutant::AnchoredPagesStay) ? PageId::none() : at(tree_page);
  if (!page.is_none()) detach(page);
  return page;
}

Status AnchoredPages::check_invariants() const {
  const auto broken = [](std::uint32_t page, const char* rule) {
    return fail(ErrorCode::Corrupt, "anchored page " + std::to_string(page) + ": " + rule);
  };
  std::uint32_t attached = 0;
  std::uint32_t idle = 0;
  for (std::uint32_t page = 0; page < entries_.size(); ++page) {
    const Entry& entry = entries_[page];
    if (entry.tree_page == 0) {
      if (entry.pins > 0 || entry.holds > 0) return broken(page, "pinned or held, but not the tree's");
      if (idle_.contains(page)) return broken(page, "idle, but not the tree's");
      continue;
    }
    ++attached;
    if (anchored_[entry.tree_page - 1] != page + 1) return broken(page, "the page it hangs on does not know it");
    if (idle_.contains(page) != entry.is_idle()) return broken(page, "idle and in use, or neither");
    idle += entry.is_idle() ? 1 : 0;
  }
  std::uint32_t listed = 0;
  for (const std::uint32_t list : {kPassed, kKept}) {
    for (std::uint32_t page = idle_.front(list); page != IndexLists::kNone; page = idle_.next(page)) {
      ++listed;
      if (entries_[page].is_kept != (list == kKept)) return broken(page, "in the list of the other worth");
    }
  }
  if (listed != idle || idle != idle_.size())
    return fail(ErrorCode::Corrupt, "anchored pages: idle ones are miscounted");
  if (attached != attached_count_) return fail(ErrorCode::Corrupt, "anchored pages: attached ones are miscounted");
  std::uint32_t anchored = 0;
  for (std::uint32_t page = 0; page < anchored_.size(); ++page) anchored += anchored_[page] != 0 ? 1 : 0;
  if (anchored != attached)
    return fail(ErrorCode::Corrupt, "anchored pages: a page of the tree names one that does not hang on it");
  return {};
}

}  // namespace quire
