// SPDX-License-Identifier: Apache-2.0
//
// Cache: pages found by their own tokens. The index names device pages of the tree; HistoryPages takes them out as they
// leave. add_chunks() matches the prompt with the tree, so that no caller can put a page under tokens that are not its.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

// Calls visit(run) for runs that together hold all pages of a match. Pages of one document mostly lie in one run or in
// runs that follow each other; the last of these holds the others, which are its path.
template <typename Visitor>
void for_each_run(const PrefixTree& tree, const ChunkMatch& match, Visitor&& visit) {
  RunId last = RunId::none();
  for (const ChunkPage& page : match.pages) {
    if (page.handle.is_none()) continue;
    const RunId run = tree.run_of(PageId{static_cast<std::uint32_t>(page.handle.value)});
    if (run == last) continue;
    if (!last.is_none() && tree.parent(run) != last) visit(last);
    last = run;
  }
  if (!last.is_none()) visit(last);
}

}  // namespace

void ChunkPin::reset() {
  if (queue_ != nullptr) std::exchange(queue_, nullptr)->push(index_);
}

Status Cache::Impl::require_chunks(const char* call) const {
  if (chunks != nullptr) return {};
  return unsupported(call, ": this cache does not look for chunks; set chunks.page_count_max");
}

Result<ChunkInsertion> Cache::add_chunks(KeySpaceId key_space, const Prompt& prompt) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require_chunks("add_chunks"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY_ASSIGN(const PrefixTree::Match match, impl.match(space, prompt, {}));
  if (impl.config.device.memory != DeviceMemory::Host && impl.is_moving()) {  // a cached page may lack rows
    return unavailable("add_chunks: moves of a committed tree are not made yet; finish the step that makes them first");
  }
  impl.make_moves();
  if (match.page_count == 0) return ChunkInsertion{};
  CachedChunks& chunks = *impl.chunks;
  const std::span<PageId> pages = std::span(chunks.pages).first(match.page_count);
  impl.tree->copy_pages(match, 0, pages);
  const std::span<PageHandle> handles = std::span(chunks.handles).first(prompt.tokens.size() / impl.page_tokens);
  std::ranges::fill(handles.subspan(match.page_count), PageHandle::none());
  std::ranges::transform(pages, handles.begin(), [](PageId page) { return PageHandle{page.value}; });
  impl.key_spaces.touch(space);
  return chunks.index->insert(key_space, {.tokens = prompt.tokens, .extra_keys = prompt.extra_keys}, handles);
}

Result<ChunkMatch> Cache::lookup_chunks(KeySpaceId key_space, std::span<const Chunk> chunks,
                                        std::span<ChunkPage> out) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require_chunks("lookup_chunks"));
  QUIRE_TRY(impl.find_key_space(key_space));
  return impl.chunks->index->lookup(key_space, chunks, out);
}

Result<PinnedChunks> Cache::pin_chunks(KeySpaceId key_space, std::span<const Chunk> chunks, std::span<ChunkPage> out) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require_chunks("pin_chunks"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  CachedChunks& cached = *impl.chunks;
  QUIRE_TRY_ASSIGN(const ChunkMatch match, cached.index->lookup(key_space, chunks, out));
  PinnedChunks pinned{.match = match, .pin = {}};
  if (match.exact_pages + match.partial_pages == 0) return pinned;

  std::uint64_t page_count = 0;
  for_each_run(*impl.tree, match, [&](RunId run) { page_count += impl.tree->end_page(run); });
  if (cached.pinned_pages + page_count > cached.pinned_pages_max) {
    return unavailable("pin_chunks: the ", plain(match.exact_pages + match.partial_pages),
                       " pages that were found, and ", "what stands before them in their paths, are ", page_count,
                       " pages; with the ", cached.pinned_pages,
                       " pinned now they exceed chunks.pinned_pages_max = ", cached.pinned_pages_max,
                       ": drop a ChunkPin, or compute them");
  }
  const auto slot = std::ranges::find_if(cached.pins, [](const auto& each) { return !each.is_live; });
  if (slot == cached.pins.end()) {
    return unavailable("pin_chunks: all ", cached.pins.size(),
                       " ChunkPins live; drop one, or raise "
                       "chunks.pin_count_max");
  }
  *slot = {.is_live = true, .key_space = space, .page_count = static_cast<std::uint32_t>(page_count)};
  for_each_run(*impl.tree, match, [&](RunId run) {
    const std::uint32_t taken = cached.first_free;
    CachedChunks::PinnedRun& place = cached.runs[taken];
    cached.first_free = place.next;
    place.pin = impl.tree->pin_run(run);
    place.next = slot->first;
    slot->first = taken;
  });
  for (const ChunkPage& page : match.pages) {
    if (!page.handle.is_none()) (void)cached.index->touch(page.handle);
  }
  ++cached.pin_count;
  cached.pinned_pages += slot->page_count;
  impl.tiers->parts.use_key_space(space);
  impl.key_spaces.touch(space);
  pinned.pin = ChunkPin(cached.released, static_cast<std::uint32_t>(slot - cached.pins.begin()));
  return pinned;
}

void Cache::Impl::unpin_chunks(std::uint32_t pin) {
  CachedChunks::PinSlot& slot = chunks->pins[pin];
  QUIRE_CHECK(slot.is_live && chunks->pinned_pages >= slot.page_count, "chunks are given up that are not pinned");
  for (std::uint32_t run = slot.first; run != CachedChunks::kNone;) {
    CachedChunks::PinnedRun& place = chunks->runs[run];
    place.pin.reset();
    const std::uint32_t next = place.next;
    place.next = chunks->first_free;
    chunks->first_free = run;
    run = next;
  }
  chunks->pinned_pages -= slot.page_count;
  --chunks->pin_count;
  const std::uint32_t space = slot.key_space;
  slot = {};
  tiers->parts.leave_key_space(space);
}

// The index names device pages of the tree, each under its own key space, and pins are counted rightly.
Status Cache::Impl::check_chunks() const {
  QUIRE_TRY(chunks->index->check_invariants());
  const auto broken = [](const char* rule) { return fail(ErrorCode::Corrupt, message_of("cache: chunks: ", rule)); };
  std::vector<KeySpaceId> spaces(std::size_t{pool_page_count()} + 1);
  for (std::uint32_t i = 0; i < key_spaces.end(); ++i) {
    if (!key_spaces[i].is_live || key_spaces[i].is_retired) continue;
    tree->for_each_run(key_spaces[i].root, [&](const RunView& run) {
      if (run.tier != Tier::Device) return;
      for (const PageId page : run.pages) spaces[page.value] = key_spaces.id(i);
    });
  }
  bool is_true = true;
  chunks->index->visit_pages([&](PageHandle handle, KeySpaceId space) {
    is_true = is_true && handle.value < spaces.size() && spaces[handle.value] == space;
  });
  if (!is_true) return broken("a page is found that the tree does not have on the device in that key space");
  std::uint32_t pin_count = 0;
  std::uint64_t pinned = 0;
  for (const CachedChunks::PinSlot& pin : chunks->pins) {
    pin_count += pin.is_live ? 1 : 0;
    pinned += pin.page_count;
  }
  if (pin_count != chunks->pin_count || pinned != chunks->pinned_pages) return broken("the count of pins is wrong");
  return {};
}

}  // namespace quire
