// SPDX-License-Identifier: Apache-2.0
#include "prefix/run_storage.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"

namespace quire {

namespace {

// A slab holds this many of the largest blocks: enough that the classes below it can be close together.
constexpr std::uint32_t kLargestBlocksPerSlab = 4;
// Neighbouring classes differ by at least this factor, except where one page is the step already.
constexpr double kClassRatio = 1.1;
// A block shrinks when its class is this many times what its run needs.
constexpr std::uint32_t kShrinkFactor = 2;
// How many slabs of a class are looked at for one with few live blocks.
constexpr std::uint32_t kSparseSearchMax = 16;
// Free blocks may add up to one part in this many of the live ones before slabs are emptied.
constexpr std::uint32_t kFreePart = 32;

}  // namespace

Result<RunStorage> RunStorage::create(std::uint32_t page_tokens, std::uint32_t page_count_max, LazyArray<Run>& runs) {
  if (page_tokens == 0 || page_tokens > kPageTokensMax) {
    return fail(ErrorCode::InvalidArgument, "page_tokens is " + std::to_string(page_tokens) + ": a page holds 1 to " +
                                                std::to_string(kPageTokensMax) + " tokens; 16 is usual");
  }
  RunStorage storage;
  storage.page_tokens_ = page_tokens;
  storage.run_pages_max_ = std::max<std::uint32_t>(1, kRunTokensMax / page_tokens);
  storage.runs_ = &runs;
  storage.make_classes();
  QUIRE_TRY(storage.grow(page_count_max));
  return storage;
}

Status RunStorage::grow(std::uint32_t page_count_max) {
  const std::uint64_t slab_count = slabs_needed(page_count_max);
  if (slab_count * slab_units_ > UINT32_MAX) {
    return fail(ErrorCode::InvalidArgument,
                std::to_string(page_count_max) + " pages of " + std::to_string(page_tokens_) +
                    " tokens need an index of " + std::to_string(slab_count * slab_bytes()) +
                    " bytes; one prefix tree addresses 32 GiB: use more tokens per page or several caches");
  }
  QUIRE_TRY(memory_.grow(slab_count * slab_bytes()));
  memory_.prefer_huge_pages();
  return slabs_.grow(slab_count);
}

void RunStorage::make_classes() {
  const std::uint64_t page_bytes = (std::uint64_t{page_tokens_} * sizeof(TokenId)) + sizeof(PageId);
  const auto block_units = [&](std::uint64_t capacity) {
    return static_cast<std::uint32_t>((kHeaderBytes + (capacity * page_bytes) + kUnitBytes - 1) / kUnitBytes);
  };
  slab_units_ = kLargestBlocksPerSlab * block_units(run_pages_max_);
  // Largest first: for n = 4, 5, 6, … the capacity that fits a slab n times, where it is enough smaller than the last.
  for (std::uint32_t capacity = run_pages_max_, last = 0; capacity >= 1;) {
    if (last == 0 || capacity * kClassRatio <= last || last - capacity == 1) {
      const std::uint32_t units = block_units(capacity);
      classes_.push_back({.capacity_pages = capacity,
                          .block_units = units,
                          .blocks_per_slab = slab_units_ / units,
                          .first_partial = kNone,
                          .slab_count = 0,
                          .live_count = 0});
      last = capacity;
    }
    // The largest capacity of which one block more fits a slab.
    const std::uint32_t count = (slab_units_ / block_units(capacity)) + 1;
    std::uint32_t smaller = capacity - 1;
    while (smaller >= 1 && block_units(smaller) * std::uint64_t{count} > slab_units_) --smaller;
    capacity = smaller;
  }
  if (classes_.back().capacity_pages != 1) {
    classes_.push_back({.capacity_pages = 1,
                        .block_units = block_units(1),
                        .blocks_per_slab = slab_units_ / block_units(1),
                        .first_partial = kNone,
                        .slab_count = 0,
                        .live_count = 0});
  }
  std::ranges::reverse(classes_);  // smallest first
  QUIRE_CHECK(classes_.size() <= UINT8_MAX, "more size classes than a byte counts");

  class_of_pages_.resize(std::size_t{run_pages_max_} + 1);
  std::uint8_t size_class = 0;
  for (std::uint32_t pages = 0; pages <= run_pages_max_; ++pages) {
    if (pages > classes_[size_class].capacity_pages) ++size_class;
    class_of_pages_[pages] = size_class;
  }
  for (const SizeClass& each : classes_) page_id_offsets_.push_back(each.capacity_pages * page_tokens_);
}

// The bound behind "cannot fail". Per class, a slab that is not the last partial one is full of blocks whose runs hold
// at least pages_min pages (else shrink() would have moved them); emptying sparse slabs makes every class
// reach that state. One partial slab per class, and blocks that exist twice while they move, come on top.
std::uint32_t RunStorage::slabs_needed(std::uint32_t page_count_max) const {
  std::uint64_t pages_per_slab_min = UINT64_MAX;
  for (const SizeClass& size_class : classes_) {
    std::uint32_t pages_min = 1;
    while (classes_[class_for(pages_min)].capacity_pages * kShrinkFactor <= size_class.capacity_pages) ++pages_min;
    pages_per_slab_min = std::min(pages_per_slab_min, std::uint64_t{pages_min} * size_class.blocks_per_slab);
  }
  return static_cast<std::uint32_t>((page_count_max / pages_per_slab_min) + 1 + classes_.size() + 2);
}

void RunStorage::allocate(std::uint32_t run, std::uint32_t page_count) {
  const std::uint8_t size_class = class_for(page_count);
  const std::uint32_t block = take_block(size_class, run);
  (*runs_)[run].block = block;
  (*runs_)[run].size_class = size_class;
}

void RunStorage::release(std::uint32_t run) {
  give_back_block((*runs_)[run].block);
}

void RunStorage::reserve(std::uint32_t run, std::uint32_t page_count) {
  const std::uint8_t size_class = class_for(page_count);
  if (size_class > (*runs_)[run].size_class) move_to_class(run, size_class);
}

void RunStorage::shrink(std::uint32_t run) {
  const std::uint8_t size_class = class_for((*runs_)[run].page_count);
  if (classes_[size_class].capacity_pages * kShrinkFactor <= classes_[(*runs_)[run].size_class].capacity_pages) {
    move_to_class(run, size_class);
  }
}

void RunStorage::split(std::uint32_t suffix, std::uint32_t prefix, std::uint32_t page_count) {
  const std::uint32_t pages_kept = (*runs_)[suffix].page_count - page_count;
  allocate(prefix, page_count);
  Run& from = (*runs_)[suffix];
  copy_pages(from, (*runs_)[prefix].block, (*runs_)[prefix].size_class, page_count);

  TokenId* const all_tokens = tokens(from);
  PageId* const all_pages = pages(from);
  std::memmove(all_tokens, all_tokens + (std::size_t{page_count} * page_tokens_),
               std::size_t{pages_kept} * page_tokens_ * sizeof(TokenId));
  std::memmove(all_pages, all_pages + page_count, pages_kept * sizeof(PageId));
  from.page_count = pages_kept;
  (*runs_)[prefix].page_count = page_count;
  shrink(suffix);
}

std::uint32_t RunStorage::take_block(std::uint8_t size_class, std::uint32_t owner) {
  SizeClass& of_class = classes_[size_class];
  if (of_class.first_partial == kNone) add_slab(size_class);
  const std::uint32_t slab_index = of_class.first_partial;
  Slab& slab = slabs_[slab_index];
  std::uint32_t block = slab.first_free;
  if (block != kNone) {
    slab.first_free = header(block).next_free;
  } else {
    block = (slab_index * slab_units_) + (slab.touched_count * of_class.block_units);
    ++slab.touched_count;
  }
  ++slab.live_count;
  ++of_class.live_count;
  used_units_ += of_class.block_units;
  if (slab.live_count == of_class.blocks_per_slab) unlink_partial(slab_index);
  header(block) = {.owner = owner, .next_free = kNone};
  return block;
}

void RunStorage::give_back_block(std::uint32_t block) {
  const std::uint32_t slab_index = block / slab_units_;
  Slab& slab = slabs_[slab_index];
  SizeClass& of_class = classes_[slab.size_class];
  QUIRE_CHECK(header(block).owner != kNone, "a block given back twice");
  header(block) = {.owner = kNone, .next_free = slab.first_free};
  slab.first_free = block;
  if (slab.live_count == of_class.blocks_per_slab) link_partial(slab_index);
  --slab.live_count;
  --of_class.live_count;
  used_units_ -= of_class.block_units;
  if (slab.live_count == 0) {
    unlink_partial(slab_index);
    slab = {};
    slab.next_partial = first_free_slab_;
    first_free_slab_ = slab_index;
    --of_class.slab_count;
    --used_slab_count_;
  }
}

void RunStorage::move_to_class(std::uint32_t run, std::uint8_t size_class) {
  const std::uint32_t target = take_block(size_class, run);  // may move the run's block: read it only after this
  Run& moved = (*runs_)[run];
  copy_pages(moved, target, size_class, moved.page_count);
  give_back_block(moved.block);
  moved.block = target;
  moved.size_class = size_class;
}

void RunStorage::copy_pages(const Run& source, std::uint32_t target_block, std::uint8_t target_class,
                            std::uint32_t page_count) {
  std::memcpy(tokens_at(target_block), tokens(source), std::size_t{page_count} * page_tokens_ * sizeof(TokenId));
  std::memcpy(pages_at(target_block, target_class), pages(source), page_count * sizeof(PageId));
}

void RunStorage::add_slab(std::uint8_t size_class) {
  if (first_free_slab_ == kNone && should_empty_a_slab()) {
    empty_a_slab();
    if (classes_[size_class].first_partial != kNone) return;  // it was this class that had room to spare
  }
  std::uint32_t slab_index = first_free_slab_;
  if (slab_index != kNone) {
    first_free_slab_ = slabs_[slab_index].next_partial;
  } else {
    slab_index = fresh_slab_++;
    QUIRE_CHECK(slab_index < slabs_.size(), "the tree holds more pages than its storage was made for");
  }
  slabs_[slab_index] = {.previous_partial = kNone,
                        .next_partial = kNone,
                        .first_free = kNone,
                        .live_count = 0,
                        .touched_count = 0,
                        .size_class = size_class,
                        .is_used = true};
  ++classes_[size_class].slab_count;
  ++used_slab_count_;
  link_partial(slab_index);
}

bool RunStorage::should_empty_a_slab() const {
  const std::uint64_t free_units = (std::uint64_t{used_slab_count_} * slab_units_) - used_units_;
  return fresh_slab_ == slabs_.size() || free_units > (used_units_ / kFreePart) + (2ULL * slab_units_);
}

// Moves the live blocks of a sparse slab to other slabs of its class, where one class has a slab's worth of free
// blocks. Does nothing when no class has.
void RunStorage::empty_a_slab() {
  std::uint8_t best_class = 0;
  std::uint64_t best_free_units = 0;
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    const SizeClass& each = classes_[i];
    const std::uint64_t free_count = (std::uint64_t{each.slab_count} * each.blocks_per_slab) - each.live_count;
    if (free_count >= each.blocks_per_slab && free_count * each.block_units > best_free_units) {
      best_class = static_cast<std::uint8_t>(i);
      best_free_units = free_count * each.block_units;
    }
  }
  if (best_free_units == 0) return;

  SizeClass& of_class = classes_[best_class];
  std::uint32_t sparsest = of_class.first_partial;
  std::uint32_t looked_at = 0;
  for (std::uint32_t i = of_class.first_partial; i != kNone && looked_at < kSparseSearchMax;
       i = slabs_[i].next_partial, ++looked_at) {
    if (slabs_[i].live_count < slabs_[sparsest].live_count) sparsest = i;
  }

  // Out of the partial list first, so that no block moves within the slab.
  unlink_partial(sparsest);
  const Slab emptied = slabs_[sparsest];
  for (std::uint32_t i = 0; i < emptied.touched_count; ++i) {
    const std::uint32_t block = (sparsest * slab_units_) + (i * of_class.block_units);
    const std::uint32_t owner = header(block).owner;
    if (owner == kNone) continue;
    const std::uint32_t target = take_block(best_class, owner);
    std::memcpy(memory_.data() + (target * kUnitBytes) + kHeaderBytes,
                memory_.data() + (block * kUnitBytes) + kHeaderBytes,
                (of_class.block_units * kUnitBytes) - kHeaderBytes);
    (*runs_)[owner].block = target;
    header(block).owner = kNone;
    --of_class.live_count;
    used_units_ -= of_class.block_units;
    ++moved_block_count_;
  }
  slabs_[sparsest] = {};
  slabs_[sparsest].next_partial = first_free_slab_;
  first_free_slab_ = sparsest;
  --of_class.slab_count;
  --used_slab_count_;
}

void RunStorage::link_partial(std::uint32_t slab_index) {
  SizeClass& of_class = classes_[slabs_[slab_index].size_class];
  slabs_[slab_index].previous_partial = kNone;
  slabs_[slab_index].next_partial = of_class.first_partial;
  if (of_class.first_partial != kNone) slabs_[of_class.first_partial].previous_partial = slab_index;
  of_class.first_partial = slab_index;
}

void RunStorage::unlink_partial(std::uint32_t slab_index) {
  Slab& slab = slabs_[slab_index];
  SizeClass& of_class = classes_[slab.size_class];
  if (slab.previous_partial != kNone) {
    slabs_[slab.previous_partial].next_partial = slab.next_partial;
  } else {
    of_class.first_partial = slab.next_partial;
  }
  if (slab.next_partial != kNone) slabs_[slab.next_partial].previous_partial = slab.previous_partial;
  slab.previous_partial = kNone;
  slab.next_partial = kNone;
}

Status RunStorage::check_invariants() const {
  const auto broken = [](const std::string& what) { return fail(ErrorCode::Corrupt, "run storage: " + what); };
  std::uint32_t used_slabs = 0;
  std::uint64_t used_units = 0;
  std::vector<std::uint32_t> live_by_class(classes_.size());
  std::vector<std::uint32_t> slabs_by_class(classes_.size());
  for (std::uint32_t i = 0; i < fresh_slab_; ++i) {
    const Slab& slab = slabs_[i];
    if (!slab.is_used) continue;
    ++used_slabs;
    const SizeClass& of_class = classes_[slab.size_class];
    std::uint32_t live = 0;
    for (std::uint32_t j = 0; j < slab.touched_count; ++j) {
      const std::uint32_t block = (i * slab_units_) + (j * of_class.block_units);
      const std::uint32_t owner = header(block).owner;
      if (owner == kNone) continue;
      ++live;
      const Run& run = (*runs_)[owner];
      if (!run.is_live || run.block != block || run.size_class != slab.size_class) {
        return broken("a block's owner does not point back to it (run " + std::to_string(owner) + ")");
      }
      if (run.page_count > of_class.capacity_pages) {
        return broken("a run has more pages than its block (run " + std::to_string(owner) + ")");
      }
    }
    if (live != slab.live_count) return broken("a slab's count of live blocks is wrong");
    live_by_class[slab.size_class] += live;
    ++slabs_by_class[slab.size_class];
    used_units += std::uint64_t{live} * of_class.block_units;
  }
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    if (live_by_class[i] != classes_[i].live_count) return broken("a size class's count of live blocks is wrong");
    if (slabs_by_class[i] != classes_[i].slab_count) return broken("a size class's count of slabs is wrong");
  }
  if (used_slabs != used_slab_count_) return broken("the count of used slabs is wrong");
  if (used_units != used_units_) return broken("the count of used bytes is wrong");
  return {};
}

}  // namespace quire
