// SPDX-License-Identifier: Apache-2.0
//
// Cache: sequences that give their device pages up for a while. What is in the tree stays there, for anyone to find or
// for the policy to evict; Save also keeps a copy of every page the sequence needs in host memory, so that resume()
// does not depend on it. The row of a saved sequence names saved pages.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

/// A page of some pool.
struct PageIn {
  const PoolGeometry* geometry = nullptr;
  std::byte* pool = nullptr;
  PageId page;
};

// One page, all layers, from one pool to another; both lie in host memory.
void copy_page(const PageIn& source, const PageIn& target) {
  const PageGeometry& page = source.geometry->page();
  for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
    std::memcpy(target.pool + (target.page.value * target.geometry->strides().page) +
                    (layer * target.geometry->strides().layer),
                source.pool + (source.page.value * source.geometry->strides().page) +
                    (layer * source.geometry->strides().layer),
                page.layer_bytes());
  }
}

}  // namespace

Status Cache::preempt(const Sequence& sequence, Preempt how) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_quiet(sequence, "preempt"));
  SequenceSlot& slot = impl.sequences[index];
  const auto name = [&] { return "preempt: " + Impl::name_of(index); };
  if (how == Preempt::Drop) {
    if (slot.window_tokens > 0 && slot.full_tokens > slot.window_tokens) {
      return fail(ErrorCode::Unsupported, name() + " saw " + with_separators(slot.full_tokens) +
                                              " tokens before its window of " + with_separators(slot.window_tokens) +
                                              " was set, so it cannot be computed again as it was; use Preempt::Save");
    }
    impl.release_pages(index);
    slot.state = SequenceSlot::State::Waiting;
    slot.computed_tokens = 0;
    slot.planned_end = 0;
    slot.has_run = false;
    slot.soft_pin = impl.tree->soft_pin(impl.match_of(index));
  } else {
    const std::uint32_t page_count = impl.held_page_count(index) + (slot.tail_tokens > 0 ? 1 : 0);
    if (impl.config.device.memory != DeviceMemory::Host) {
      return fail(ErrorCode::Unsupported,
                  name() + ": quire cannot reach the pool's memory, which is not its own; use Preempt::Drop");
    }
    if (page_count > impl.saved_pool.free_count()) {
      return fail(ErrorCode::Unavailable,
                  name() + " has " + with_separators(page_count) + " pages to save; " +
                      with_separators(impl.saved_pool.free_count()) +
                      " of saved_page_count = " + with_separators(impl.config.saved_page_count) + " are free");
    }
    impl.save_pages(index);
    slot.state = SequenceSlot::State::Saved;
  }
  slot.is_preempted = true;
  ++impl.counters.preempted_sequence_count;
  return {};
}

std::uint32_t Cache::Impl::held_page_count(std::uint32_t index, std::uint32_t first_page) const {
  const SequenceSlot& slot = sequences[index];
  const auto held = sequences.page_row(index).subspan(first_page, slot.page_count - first_page);
  return static_cast<std::uint32_t>(std::ranges::count_if(held, [](PageId page) { return page != kNullPage; }));
}

void Cache::Impl::save_pages(std::uint32_t index) {
  flush_moves();
  SequenceSlot& slot = sequences[index];
  const std::span<PageId> row = sequences.page_row(index);
  const auto save = [this](PageId page) {
    PageId saved;
    QUIRE_CHECK(saved_pool.try_allocate({&saved, 1}), "saved pages that were counted are not there");
    copy_page({&geometry, memory, page}, {saved_geometry.get(), saved_memory.data(), saved});
    return saved;
  };
  std::uint32_t page_count = slot.page_count;
  for (std::uint32_t page = 0; page < page_count; ++page) {
    if (row[page] == kNullPage) continue;
    const PageId saved = save(row[page]);
    if (page >= slot.shared_pages) give_back({&row[page], 1});
    row[page] = saved;
  }
  if (slot.tail_tokens > 0) {
    row[page_count++] = save(slot.tail_source);
    drop_tail(slot);
  }
  slot.pin.reset();
  slot.shared_pages = 0;
  slot.settled_pages = 0;
  slot.page_count = page_count;
}

// What is still in the tree is taken from there, the rest from the saved pages.
Status Cache::Impl::restore_pages(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const KeySpaceTable::Entry& space = key_spaces[slot.key_space];
  const bool may_match = slot.may_use_cache && !space.is_retired && !slot.has_hole();
  const std::uint32_t same_tokens = slot.window_tokens > 0 ? slot.full_tokens : UINT32_MAX;
  const std::uint32_t tokens_max = may_match ? std::min(slot.computed_tokens, same_tokens) : 0;
  const PrefixTree::Match match = tree->match(space.root, sequences.key(index, tokens_max / page_tokens * page_tokens));
  const std::uint32_t page_count = held_page_count(index, match.page_count);
  const std::uint32_t available = available_besides(match);
  if (page_count > available) {
    return fail(ErrorCode::Unavailable,
                "resume: " + name_of(index) + " has " + with_separators(page_count) + " saved pages to bring back; " +
                    with_separators(available) + " device pages are free or can be evicted, and " +
                    with_separators(step_order.empty() ? 0 : fenced.count()) + " return when steps in flight finish");
  }
  flush_moves();
  const std::span<PageId> row = sequences.page_row(index);
  saved_pool.release(row.first(match.page_count));
  tree->copy_pages(match, 0, row);
  slot.pin = tree->pin(match, retention_of(slot));
  slot.shared_pages = match.page_count;
  slot.settled_pages = match.page_count;
  make_room(page_count);
  for (std::uint32_t page = match.page_count; page < slot.page_count; ++page) {
    if (row[page] == kNullPage) continue;
    PageId restored;
    QUIRE_CHECK(pool.try_allocate({&restored, 1}), "pages that were counted are not there");
    copy_page({saved_geometry.get(), saved_memory.data(), row[page]}, {&geometry, memory, restored});
    saved_pool.release({&row[page], 1});
    row[page] = restored;
  }
  slot.state = SequenceSlot::State::Running;
  slot.is_preempted = false;
  slot.changed_column = 0;
  ++sharing_version;
  settle(index);
  return {};
}

void Cache::Impl::drop_saved(std::uint32_t index) {
  const std::span<PageId> row = sequences.page_row(index).first(sequences[index].page_count);
  for (const PageId& page : row) {
    if (page != kNullPage) saved_pool.release({&page, 1});
  }
}

Result<Admission> Cache::resume(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  const SequenceSlot& slot = impl.sequences[index];
  if (!slot.is_preempted) {
    return fail(ErrorCode::InvalidArgument, "resume: " + Impl::name_of(index) + " is not preempted");
  }
  if (slot.state == SequenceSlot::State::Waiting) {
    QUIRE_TRY(impl.check_expected(index));
    return impl.start_admitted(index);
  }
  QUIRE_TRY(impl.restore_pages(index));
  return Admission{.matched_tokens = slot.computed_tokens};
}

}  // namespace quire
