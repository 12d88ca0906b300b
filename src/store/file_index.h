// SPDX-License-Identifier: Apache-2.0
//
// FileIndex: where the newest record of each page lies, over all segments of a file store. Its capacity is fixed; it
// compares whole names; nothing allocates for a page. Beside the table it keeps, for each segment, the list of the
// pages that are found in it and how many bytes they take, and for each key space how many pages it has.
//
//     slots     [tag, entry]…    open addressing, at most half full
//     entries   name, parent, place, …, and their neighbours in the list of their segment
//
// single-threaded: the store guards it
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/lazy_array.h"
#include "quire/result.h"
#include "wire/page_name.h"

namespace quire {

/// A record's place: a segment of the store, by its slot, and the block it begins at.
struct PagePlace {
  std::uint32_t segment = 0;
  std::uint32_t block = 0;
  friend constexpr bool operator==(PagePlace, PagePlace) = default;
};

struct IndexedPage {
  PageName name;
  PageName parent;
  std::uint64_t order = 0;
  PagePlace place;
  std::uint32_t stored_bytes = 0;
  std::uint32_t page_index = 0;
  std::uint32_t key_space = 0;  ///< see FileIndex::key_space()
};

class FileIndex {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffU;

  struct SegmentPages {
    std::uint32_t first = kNone;
    std::uint32_t page_count = 0;
    std::uint64_t live_bytes = 0;  ///< of their records
    std::uint64_t hot_bytes = 0;   ///< part of it: read since written or carried
  };
  struct KeySpaceFacts {
    PageName name;
    std::uint32_t page_count = 0;
    std::uint32_t text_count = 0;  ///< segments that have its KeySpace record
  };

  [[nodiscard]] static Result<FileIndex> create(std::uint32_t page_count_max, std::uint64_t seed);

  [[nodiscard]] std::uint32_t find(const PageName& name) const;
  [[nodiscard]] const IndexedPage& page(std::uint32_t entry) const { return entries_[entry].page; }
  [[nodiscard]] std::uint32_t hits(std::uint32_t entry) const { return entries_[entry].hits; }
  [[nodiscard]] std::uint32_t next_in_segment(std::uint32_t entry) const { return entries_[entry].next; }
  [[nodiscard]] bool is_full() const { return page_count_ == page_count_max_; }

  /// The name must not be there; the index must not be full.
  std::uint32_t insert(const IndexedPage& page);
  void remove(std::uint32_t entry);
  /// Its record was carried over: it lies elsewhere, and half of its hits are forgotten, so that everything ages.
  void move(std::uint32_t entry, PagePlace place, std::uint64_t order);
  /// Its record was read.
  void touch(std::uint32_t entry);
  void clear();

  /// The segment's slot becomes known, without pages.
  void add_segment(std::uint32_t segment);
  [[nodiscard]] const SegmentPages& segment(std::uint32_t segment) const { return segments_[segment]; }

  /// A number for the key space; the same as long as it has pages or texts.
  [[nodiscard]] std::uint32_t key_space(const PageName& name);
  [[nodiscard]] std::uint32_t find_key_space(const PageName& name) const;
  [[nodiscard]] const KeySpaceFacts& key_space_facts(std::uint32_t key_space) const { return key_spaces_[key_space]; }
  void add_text(std::uint32_t key_space) { ++key_spaces_[key_space].text_count; }
  void remove_text(std::uint32_t key_space);
  /// Forgets the number, if nothing uses it.
  void release_key_space(std::uint32_t key_space);

  [[nodiscard]] std::uint32_t page_count() const { return page_count_; }
  [[nodiscard]] std::uint32_t page_count_max() const { return page_count_max_; }
  [[nodiscard]] std::uint64_t live_bytes() const { return live_bytes_; }
  void check_invariants() const;

 private:
  struct Entry {
    IndexedPage page;
    std::uint32_t next;  // in its segment, or in the list of free ones
    std::uint32_t previous;
    std::uint32_t hits;
  };
  struct Slot {
    std::uint32_t tag;
    std::uint32_t entry_plus_1;  // 0: empty
  };
  struct NameHash {
    std::size_t operator()(const PageName& name) const;
  };

  [[nodiscard]] std::uint64_t hash(const PageName& name) const;
  [[nodiscard]] std::uint32_t find_slot(const PageName& name) const;
  void link(std::uint32_t entry);
  void unlink(std::uint32_t entry);

  LazyArray<Slot> slots_;
  LazyArray<Entry> entries_;
  std::uint32_t slot_mask_ = 0;
  std::uint32_t page_count_max_ = 0;
  std::uint32_t page_count_ = 0;
  std::uint32_t entries_used_ = 0;  // entries behind it were never used
  std::uint32_t first_free_ = kNone;
  std::uint64_t seed_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::vector<SegmentPages> segments_;
  std::vector<KeySpaceFacts> key_spaces_;
  std::vector<std::uint32_t> free_key_spaces_;
  std::unordered_map<PageName, std::uint32_t, NameHash> key_space_numbers_;
};

}  // namespace quire
