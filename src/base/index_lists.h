// SPDX-License-Identifier: Apache-2.0
//
// IndexLists: doubly linked lists over indices [0, capacity), each in at most one of them, at most once. The links are
// one array, so nothing is allocated per element, and every operation is O(1). Capacity grows only by reserve(), which
// also says how many lists there are; a list that is not named is the first, for those who need no other.
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/lazy_array.h"

namespace quire {

class IndexLists {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// Room for indices below `capacity`; the lists keep their elements, and their number stays what it first was.
  [[nodiscard]] Status reserve(std::uint32_t capacity, std::uint32_t list_count = 1) {
    if (first_ == 0) first_ = list_count + 1;
    QUIRE_CHECK(first_ == list_count + 1, "the number of lists cannot change");
    return links_.grow(std::size_t{capacity} + first_);
  }

  void push_back(std::uint32_t index, std::uint32_t list = 0) {
    insert_after_position(links_[head_of(list)].previous, index);
  }
  void push_front(std::uint32_t index, std::uint32_t list = 0) { insert_after_position(head_of(list), index); }
  /// Behind the last, in the order of `ids`, which hold their index as `value`: cheaper than one by one.
  template <typename Id>
  void push_back_all(std::span<const Id> ids, std::uint32_t list = 0) {
    if (ids.empty()) return;
    const std::uint32_t head = head_of(list);
    Link* const links = links_.data();
    std::uint32_t previous = links[head].previous;
    for (const Id id : ids) {
      const std::uint32_t position = id.value + first_;
      QUIRE_CHECK(links[position].next == 0, "inserting what is already in a list");
      links[previous].next = position;
      links[position] = {previous, head};
      previous = position;
    }
    links[head].previous = previous;
    size_ += static_cast<std::uint32_t>(ids.size());
  }
  /// Directly behind `anchor`, which is in one of the lists.
  void insert_after(std::uint32_t anchor, std::uint32_t index) {
    QUIRE_DCHECK(contains(anchor), "the anchor is in no list");
    insert_after_position(position_of(anchor), index);
  }
  void remove(std::uint32_t index) {
    Link& link = links_[position_of(index)];
    QUIRE_CHECK(link.next != 0, "removing what is in no list");
    links_[link.previous].next = link.next;
    links_[link.next].previous = link.previous;
    link = {};
    --size_;
  }

  [[nodiscard]] bool contains(std::uint32_t index) const { return links_[position_of(index)].next != 0; }
  /// kNone when the list is empty.
  [[nodiscard]] std::uint32_t front(std::uint32_t list = 0) const { return index_at(links_[list + 1].next); }
  /// kNone behind the last.
  [[nodiscard]] std::uint32_t next(std::uint32_t index) const { return index_at(links_[position_of(index)].next); }
  /// Asks for the memory that remove() of an element will look at first: a victim has mostly been idle for so long that
  /// nothing of it is in the caches.
  void prefetch(std::uint32_t index) const { __builtin_prefetch(links_.data() + position_of(index), 1); }
  /// Elements of all lists.
  [[nodiscard]] std::uint32_t size() const { return size_; }

 private:
  // Rings of positions: one of each list's head, which is its number + 1, and the elements, which are their
  // index + first_. Position 0 does not exist, so a zero-filled link is an element that is in no list, or the head of
  // one that was never used.
  struct Link {
    std::uint32_t previous;
    std::uint32_t next;
  };

  [[nodiscard]] std::size_t position_of(std::uint32_t index) const { return std::size_t{index} + first_; }
  [[nodiscard]] std::uint32_t index_at(std::uint32_t position) const {
    return position < first_ ? kNone : position - first_;
  }
  [[nodiscard]] std::uint32_t head_of(std::uint32_t list) {
    const std::uint32_t head = list + 1;
    QUIRE_DCHECK(head < first_, "there is no such list");
    if (links_[head].next == 0) links_[head] = {head, head};
    return head;
  }
  void insert_after_position(std::size_t previous, std::uint32_t index) {
    const std::uint32_t position = index + first_;
    const std::uint32_t next = links_[previous].next;
    QUIRE_CHECK(links_[position].next == 0, "inserting what is already in a list");
    links_[position] = {static_cast<std::uint32_t>(previous), next};
    links_[previous].next = position;
    links_[next].previous = position;
    ++size_;
  }

  LazyArray<Link> links_;
  std::uint32_t first_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace quire
