// SPDX-License-Identifier: Apache-2.0
//
// Ghosts: fingerprints of pages that are no longer cached, oldest first, so that a policy can tell a page that comes
// back from a new one. Bounded: beyond its size the oldest are forgotten. All operations are O(1).
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>

#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "quire/policy.h"

namespace quire {

class Ghosts {
 public:
  /// Room for `capacity` fingerprints; those that are there stay.
  [[nodiscard]] Status reserve(std::uint32_t capacity);

  /// As the newest, the first of them as the very newest: it is needed again before those behind it. None of them is
  /// there. The oldest go when there is no room.
  void add(std::span<const PageFingerprint> fingerprints);
  /// Whether it was there.
  bool remove(PageFingerprint fingerprint);
  /// Asks for the memory that remove() of these will look at.
  void prefetch(std::span<const PageFingerprint> fingerprints) const;
  /// There must be one.
  void remove_oldest();

  [[nodiscard]] std::uint32_t size() const { return order_.size(); }

 private:
  struct Entry {
    PageFingerprint fingerprint;
    std::uint32_t bucket_next;  // entry + 1, or 0; of an unused entry: the next unused one
  };

  void take_out(std::uint32_t& link);
  void add_newest(PageFingerprint fingerprint);

  LazyArray<Entry> entries_;
  LazyArray<std::uint32_t> buckets_;  // entry + 1, or 0
  IndexLists order_;
  std::uint32_t bucket_mask_ = 0;
  std::uint32_t first_unused_ = 0;  // entry + 1
  std::uint32_t fresh_ = 0;         // entries never used lie from here on
};

}  // namespace quire
