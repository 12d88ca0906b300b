// SPDX-License-Identifier: Apache-2.0
//
// IndexHeap: indices [0, capacity), each at most once, with a key each; the one with the lowest key is on top. A binary
// heap that knows where each index is, so that any can be removed. Nothing is allocated after reserve(); insert and
// remove are O(log size).
//
// single-threaded
#pragma once

#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/lazy_array.h"

namespace quire {

/// Key: trivially copyable, compared with <.
template <typename Key>
class IndexHeap {
 public:
  [[nodiscard]] Status reserve(std::uint32_t capacity) {
    QUIRE_TRY(items_.grow(capacity));
    return places_.grow(capacity);
  }

  void insert(std::uint32_t index, Key key) {
    QUIRE_CHECK(!contains(index), "inserting what is already in the heap");
    move_up(size_++, {key, index});
  }
  void remove(std::uint32_t index) {
    QUIRE_CHECK(contains(index), "removing what is not in the heap");
    const std::uint32_t hole = std::exchange(places_[index], 0) - 1;
    const Item last = items_[--size_];
    if (hole == size_) return;
    if (hole > 0 && last.key < items_[(hole - 1) / 2].key) {
      move_up(hole, last);
    } else {
      move_down(hole, last);
    }
  }

  [[nodiscard]] bool contains(std::uint32_t index) const { return places_[index] != 0; }
  [[nodiscard]] std::uint32_t size() const { return size_; }
  /// The heap is not empty.
  [[nodiscard]] std::uint32_t top() const { return items_[0].index; }
  [[nodiscard]] const Key& top_key() const { return items_[0].key; }

 private:
  struct Item {
    Key key;
    std::uint32_t index;
  };

  void put(std::uint32_t place, const Item& item) {
    items_[place] = item;
    places_[item.index] = place + 1;
  }
  void move_up(std::uint32_t place, const Item& item) {
    while (place > 0 && item.key < items_[(place - 1) / 2].key) {
      put(place, items_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    put(place, item);
  }
  void move_down(std::uint32_t place, const Item& item) {
    for (std::uint32_t child = (2 * place) + 1; child < size_; child = (2 * place) + 1) {
      if (child + 1 < size_ && items_[child + 1].key < items_[child].key) ++child;
      if (!(items_[child].key < item.key)) break;
      put(place, items_[child]);
      place = child;
    }
    put(place, item);
  }

  LazyArray<Item> items_;            // the heap: children of place i are at 2i + 1 and 2i + 2
  LazyArray<std::uint32_t> places_;  // of each index: place + 1, or 0
  std::uint32_t size_ = 0;
};

}  // namespace quire
