// SPDX-License-Identifier: Apache-2.0
//
// FencedPages: pages given back while steps in flight may still read or write them, each with the newest of those
// steps. First in, first out: the steps of later pages are never older.
//
// single-threaded. Allocates in reserve() only.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/lazy_array.h"
#include "base/mutants.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

class FencedPages {
 public:
  /// Room for so many pages. There must be none in it.
  [[nodiscard]] Status reserve(std::uint32_t page_count) {
    QUIRE_CHECK(count_ == 0, "resizing a queue that is in use");
    QUIRE_TRY_ASSIGN(entries_, LazyArray<Entry>::create(page_count));
    head_ = 0;
    return {};
  }

  void push(PageId page, std::uint64_t step) {
    QUIRE_CHECK(count_ < entries_.size(), "more fenced pages than the pool has");
    std::size_t end = std::size_t{head_} + count_++;
    if (end >= entries_.size()) end -= entries_.size();
    entries_[end] = {step, page};
  }

  /// No page waits for a later step than this one: those there were are not coming.
  void wait_at_most_for(std::uint64_t step) {
    for (std::size_t i = count_; i > 0; --i) {
      std::size_t place = std::size_t{head_} + i - 1;
      if (place >= entries_.size()) place -= entries_.size();
      if (entries_[place].step <= step) return;
      entries_[place].step = step;
    }
  }

  /// Calls release(page) for all whose step is below `step`, oldest first.
  template <typename Release>
  void release_before(std::uint64_t step, Release&& release) {
    if (is_mutated(Mutant::ShortFence)) ++step;
    while (count_ > 0 && entries_[head_].step < step) release(pop());
  }

  /// Takes the oldest one out.
  [[nodiscard]] PageId pop() {
    QUIRE_CHECK(count_ > 0, "no page is fenced");
    const PageId page = entries_[head_].page;
    head_ = head_ + 1 == entries_.size() ? 0 : head_ + 1;
    if (--count_ == 0) head_ = 0;  // touches as little memory as possible
    return page;
  }

  [[nodiscard]] std::uint32_t count() const { return count_; }

 private:
  struct Entry {
    std::uint64_t step;
    PageId page;
  };

  LazyArray<Entry> entries_;
  std::uint32_t head_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace quire
