// SPDX-License-Identifier: Apache-2.0
#include "store/file_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/hash.h"
#include "wire/segment.h"

namespace quire {
namespace {

constexpr std::uint32_t kHitsMax = 255;

}  // namespace

std::size_t FileIndex::NameHash::operator()(const PageName& name) const {
  std::uint64_t word = 0;
  std::memcpy(&word, name.bytes.data(), sizeof(word));
  return static_cast<std::size_t>(mix64(word));
}

// Names are hashes already; the seed is for those who hand in names of their own making.
std::uint64_t FileIndex::hash(const PageName& name) const {
  std::uint64_t word = 0;
  std::memcpy(&word, name.bytes.data(), sizeof(word));
  return mix64(word ^ seed_);
}

Result<FileIndex> FileIndex::create(std::uint32_t page_count_max, std::uint64_t seed) {
  QUIRE_CHECK(page_count_max > 0 && page_count_max <= (1U << 30U), "the store bounds its pages");
  FileIndex index;
  const std::uint32_t slot_count = std::bit_ceil(page_count_max * 2);
  QUIRE_TRY_ASSIGN(index.slots_, LazyArray<Slot>::create(slot_count));
  QUIRE_TRY_ASSIGN(index.entries_, LazyArray<Entry>::create(page_count_max));
  index.slots_.prefer_huge_pages();
  index.slot_mask_ = slot_count - 1;
  index.page_count_max_ = page_count_max;
  index.seed_ = mix64(seed);
  return index;
}

std::uint32_t FileIndex::find_slot(const PageName& name) const {
  const std::uint64_t hashed = hash(name);
  const auto tag = static_cast<std::uint32_t>(hashed >> 32U);
  for (auto slot = static_cast<std::uint32_t>(hashed) & slot_mask_;; slot = (slot + 1) & slot_mask_) {
    const Slot& at = slots_[slot];
    if (at.entry_plus_1 == 0) return kNone;
    if (at.tag == tag && entries_[at.entry_plus_1 - 1].page.name == name) return slot;
  }
}

std::uint32_t FileIndex::find(const PageName& name) const {
  const std::uint32_t slot = find_slot(name);
  return slot == kNone ? kNone : slots_[slot].entry_plus_1 - 1;
}

std::uint32_t FileIndex::insert(const IndexedPage& page) {
  QUIRE_CHECK(page_count_ < page_count_max_, "the index is full");
  QUIRE_DCHECK(find(page.name) == kNone, "a page has one record in the index");
  std::uint32_t entry = first_free_;
  if (entry != kNone) {
    first_free_ = entries_[entry].next;
  } else {
    entry = entries_used_++;
  }
  entries_[entry] = {.page = page, .next = kNone, .previous = kNone, .hits = 0};

  const std::uint64_t hashed = hash(page.name);
  auto slot = static_cast<std::uint32_t>(hashed) & slot_mask_;
  while (slots_[slot].entry_plus_1 != 0) slot = (slot + 1) & slot_mask_;
  slots_[slot] = {.tag = static_cast<std::uint32_t>(hashed >> 32U), .entry_plus_1 = entry + 1};

  ++page_count_;
  ++key_spaces_[page.key_space].page_count;
  link(entry);
  return entry;
}

void FileIndex::remove(std::uint32_t entry) {
  unlink(entry);
  std::uint32_t hole = find_slot(entries_[entry].page.name);
  QUIRE_CHECK(hole != kNone, "every entry has a slot");
  // What probed past the hole moves into it, so that no search ever meets a mark of something removed.
  for (std::uint32_t slot = (hole + 1) & slot_mask_; slots_[slot].entry_plus_1 != 0; slot = (slot + 1) & slot_mask_) {
    const auto home = static_cast<std::uint32_t>(hash(entries_[slots_[slot].entry_plus_1 - 1].page.name)) & slot_mask_;
    if (((slot - home) & slot_mask_) < ((slot - hole) & slot_mask_)) continue;
    slots_[hole] = slots_[slot];
    hole = slot;
  }
  slots_[hole] = {};

  const std::uint32_t key_space = entries_[entry].page.key_space;
  --key_spaces_[key_space].page_count;
  release_key_space(key_space);
  entries_[entry].next = first_free_;
  first_free_ = entry;
  --page_count_;
}

void FileIndex::move(std::uint32_t entry, PagePlace place, std::uint64_t order) {
  unlink(entry);
  entries_[entry].page.place = place;
  entries_[entry].page.order = order;
  entries_[entry].hits /= 2;
  link(entry);
}

void FileIndex::touch(std::uint32_t entry) {
  Entry& at = entries_[entry];
  if (at.hits == 0) segments_[at.page.place.segment].hot_bytes += record_bytes(at.page.stored_bytes);
  at.hits = std::min(at.hits + 1, kHitsMax);
}

void FileIndex::clear() {
  for (SegmentPages& segment : segments_) {
    while (segment.first != kNone) remove(segment.first);
  }
}

void FileIndex::link(std::uint32_t entry) {
  Entry& at = entries_[entry];
  SegmentPages& segment = segments_[at.page.place.segment];
  const std::uint64_t bytes = record_bytes(at.page.stored_bytes);
  at.previous = kNone;
  at.next = segment.first;
  if (segment.first != kNone) entries_[segment.first].previous = entry;
  segment.first = entry;
  ++segment.page_count;
  segment.live_bytes += bytes;
  if (at.hits > 0) segment.hot_bytes += bytes;
  live_bytes_ += bytes;
}

void FileIndex::unlink(std::uint32_t entry) {
  const Entry& at = entries_[entry];
  SegmentPages& segment = segments_[at.page.place.segment];
  const std::uint64_t bytes = record_bytes(at.page.stored_bytes);
  (at.previous == kNone ? segment.first : entries_[at.previous].next) = at.next;
  if (at.next != kNone) entries_[at.next].previous = at.previous;
  --segment.page_count;
  segment.live_bytes -= bytes;
  if (at.hits > 0) segment.hot_bytes -= bytes;
  live_bytes_ -= bytes;
}

void FileIndex::add_segment(std::uint32_t segment) {
  if (segment >= segments_.size()) segments_.resize(segment + 1);
  QUIRE_CHECK(segments_[segment].page_count == 0, "a slot is taken again only when its pages are gone");
}

std::uint32_t FileIndex::find_key_space(const PageName& name) const {
  const auto found = key_space_numbers_.find(name);
  return found == key_space_numbers_.end() ? kNone : found->second;
}

std::uint32_t FileIndex::key_space(const PageName& name) {
  if (const std::uint32_t known = find_key_space(name); known != kNone) return known;
  std::uint32_t number = 0;
  if (free_key_spaces_.empty()) {
    number = static_cast<std::uint32_t>(key_spaces_.size());
    key_spaces_.emplace_back();
  } else {
    number = free_key_spaces_.back();
    free_key_spaces_.pop_back();
  }
  key_spaces_[number] = {.name = name};
  key_space_numbers_.emplace(name, number);
  return number;
}

void FileIndex::remove_text(std::uint32_t key_space) {
  QUIRE_CHECK(key_spaces_[key_space].text_count > 0, "a text is removed once");
  --key_spaces_[key_space].text_count;
  release_key_space(key_space);
}

void FileIndex::release_key_space(std::uint32_t key_space) {
  const KeySpaceFacts& facts = key_spaces_[key_space];
  if (facts.page_count > 0 || facts.text_count > 0 || key_space_numbers_.erase(facts.name) == 0) return;
  free_key_spaces_.push_back(key_space);
}

void FileIndex::check_invariants() const {
  std::uint64_t page_count = 0;
  std::uint64_t live_bytes = 0;
  std::vector<std::uint32_t> key_space_pages(key_spaces_.size());
  for (std::uint32_t number = 0; number < segments_.size(); ++number) {
    const SegmentPages& segment = segments_[number];
    SegmentPages sum{.first = segment.first};
    std::uint32_t previous = kNone;
    for (std::uint32_t entry = segment.first; entry != kNone; entry = entries_[entry].next) {
      const Entry& at = entries_[entry];
      QUIRE_CHECK(at.previous == previous, "neighbours agree");
      QUIRE_CHECK(at.page.place.segment == number, "a page is in the list of its segment");
      QUIRE_CHECK(find(at.page.name) == entry, "what is in a list is found");
      QUIRE_CHECK(find_key_space(key_spaces_[at.page.key_space].name) == at.page.key_space, "its key space is known");
      ++key_space_pages[at.page.key_space];
      const std::uint64_t bytes = record_bytes(at.page.stored_bytes);
      ++sum.page_count;
      sum.live_bytes += bytes;
      if (at.hits > 0) sum.hot_bytes += bytes;
      previous = entry;
    }
    QUIRE_CHECK(sum.page_count == segment.page_count && sum.live_bytes == segment.live_bytes &&
                    sum.hot_bytes == segment.hot_bytes,
                "a segment's sums are those of its pages");
    page_count += sum.page_count;
    live_bytes += sum.live_bytes;
  }
  QUIRE_CHECK(page_count == page_count_ && live_bytes == live_bytes_, "the sums are those of the segments");
  for (std::uint32_t number = 0; number < key_spaces_.size(); ++number) {
    if (find_key_space(key_spaces_[number].name) != number) continue;
    QUIRE_CHECK(key_space_pages[number] == key_spaces_[number].page_count, "a key space counts its pages");
  }
}

}  // namespace quire
