// SPDX-License-Identifier: Apache-2.0
//
// IndexList: a doubly linked list over indices [0, capacity), each at most once. The links are two arrays, so nothing
// is allocated per element, and every operation is O(1). Capacity grows only by reserve().
//
// single-threaded
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/lazy_array.h"

namespace quire {

class IndexList {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// Room for indices below `capacity`; the list keeps its elements.
  [[nodiscard]] Status reserve(std::uint32_t capacity) {
    const bool is_new = links_.size() == 0;
    QUIRE_TRY(links_.grow(std::size_t{capacity} + kFirst));
    if (is_new) links_[kHead] = {kHead, kHead};
    return {};
  }

  void push_back(std::uint32_t index) { insert_after_position(links_[kHead].previous, index); }
  /// Directly behind `anchor`, which is in the list.
  void insert_after(std::uint32_t anchor, std::uint32_t index) {
    QUIRE_DCHECK(contains(anchor), "the anchor is not in the list");
    insert_after_position(anchor + kFirst, index);
  }
  void remove(std::uint32_t index) {
    Link& link = links_[std::size_t{index} + kFirst];
    QUIRE_CHECK(link.next != 0, "removing what is not in the list");
    links_[link.previous].next = link.next;
    links_[link.next].previous = link.previous;
    link = {};
    --size_;
  }

  [[nodiscard]] bool contains(std::uint32_t index) const { return links_[std::size_t{index} + kFirst].next != 0; }
  /// kNone when the list is empty.
  [[nodiscard]] std::uint32_t front() const { return index_at(links_[kHead].next); }
  /// kNone behind the last.
  [[nodiscard]] std::uint32_t next(std::uint32_t index) const {
    return index_at(links_[std::size_t{index} + kFirst].next);
  }
  [[nodiscard]] std::uint32_t size() const { return size_; }

 private:
  // A ring of positions: index + kFirst, closed by the head. Position 0 does not exist, so a zero-filled link is one
  // that is not in the list.
  struct Link {
    std::uint32_t previous;
    std::uint32_t next;
  };
  static constexpr std::uint32_t kHead = 1;
  static constexpr std::uint32_t kFirst = 2;

  [[nodiscard]] static std::uint32_t index_at(std::uint32_t position) {
    return position == kHead ? kNone : position - kFirst;
  }
  void insert_after_position(std::uint32_t previous, std::uint32_t index) {
    const std::uint32_t position = index + kFirst;
    const std::uint32_t next = links_[previous].next;
    QUIRE_CHECK(links_[position].next == 0, "inserting what is already in the list");
    links_[position] = {previous, next};
    links_[previous].next = position;
    links_[next].previous = position;
    ++size_;
  }

  LazyArray<Link> links_;
  std::uint32_t size_ = 0;
};

}  // namespace quire
