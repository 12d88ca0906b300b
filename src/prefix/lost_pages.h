// SPDX-License-Identifier: Apache-2.0
//
// LostPages: remembers which pages were evicted, from where and when, so that a later miss can say why. It holds the
// last so many by fingerprint: a page that it does not know was never cached, or lost before all of them.
//
// single-threaded
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "base/hash.h"
#include "base/lazy_array.h"
#include "quire/policy.h"
#include "quire/types.h"

namespace quire {

class LostPages {
 public:
  struct Loss {
    Tier tier = Tier::Device;  ///< the last one that held it
    bool was_bad = false;      ///< its bytes were found to be wrong
    TimeNs time = 0;
  };

  [[nodiscard]] static Result<LostPages> create(std::uint32_t capacity) {
    LostPages lost;
    lost.capacity_ = capacity;
    if (capacity == 0) return lost;
    QUIRE_TRY_ASSIGN(lost.entries_, LazyArray<Entry>::create(capacity));
    QUIRE_TRY_ASSIGN(lost.buckets_, LazyArray<std::uint32_t>::create(std::bit_ceil(std::size_t{capacity})));
    return lost;
  }

  [[nodiscard]] bool is_on() const { return capacity_ > 0; }
  void set_time(TimeNs now) { now_ = now; }

  void note(PageFingerprint page, Tier tier, bool was_bad) {
    if (capacity_ == 0) return;
    const auto index = static_cast<std::uint32_t>(noted_ % capacity_);
    if (noted_ >= capacity_) unlink(index);
    ++noted_;
    std::uint32_t& bucket = bucket_of(page);
    entries_[index] = {.page = page, .time = now_, .next = bucket, .tier = tier, .was_bad = was_bad};
    bucket = index + 1;
  }

  /// Its last loss, if it is remembered.
  [[nodiscard]] std::optional<Loss> find(PageFingerprint page) const {
    if (capacity_ == 0) return std::nullopt;
    for (std::uint32_t link = bucket_of(page); link != 0; link = entries_[link - 1].next) {
      const Entry& entry = entries_[link - 1];
      if (entry.page == page) return Loss{.tier = entry.tier, .was_bad = entry.was_bad, .time = entry.time};
    }
    return std::nullopt;
  }
  /// Whether some loss is no longer remembered.
  [[nodiscard]] bool has_forgotten() const { return noted_ > capacity_; }

 private:
  struct Entry {
    PageFingerprint page;
    TimeNs time;
    std::uint32_t next;  // in the same bucket: index + 1, 0 at the end
    Tier tier;
    bool was_bad;
  };

  [[nodiscard]] std::uint32_t& bucket_of(PageFingerprint page) { return buckets_[mix64(page) & (buckets_.size() - 1)]; }
  [[nodiscard]] const std::uint32_t& bucket_of(PageFingerprint page) const {
    return buckets_[mix64(page) & (buckets_.size() - 1)];
  }
  void unlink(std::uint32_t index) {
    std::uint32_t* link = &bucket_of(entries_[index].page);
    while (*link != index + 1) link = &entries_[*link - 1].next;
    *link = entries_[index].next;
  }

  std::uint32_t capacity_ = 0;
  std::uint64_t noted_ = 0;
  TimeNs now_ = 0;
  LazyArray<Entry> entries_;
  LazyArray<std::uint32_t> buckets_;  // index + 1, so that untouched memory is empty
};

}  // namespace quire
