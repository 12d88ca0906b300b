// SPDX-License-Identifier: Apache-2.0
#include "policy/ghosts.h"

#include <algorithm>
#include <bit>
#include <ranges>
#include <utility>

namespace quire {

Status Ghosts::reserve(std::uint32_t capacity) {
  if (capacity <= entries_.size()) return {};
  QUIRE_TRY(order_.reserve(capacity));
  const std::size_t bucket_count = std::bit_ceil(std::max<std::size_t>(16, capacity));
  if (bucket_count > buckets_.size()) {
    QUIRE_TRY_ASSIGN(buckets_, LazyArray<std::uint32_t>::create(bucket_count));
    buckets_.prefer_huge_pages();
    bucket_mask_ = static_cast<std::uint32_t>(bucket_count - 1);
    for (std::uint32_t entry = order_.front(); entry != IndexLists::kNone; entry = order_.next(entry)) {
      std::uint32_t& bucket = buckets_[entries_[entry].fingerprint & bucket_mask_];
      entries_[entry].bucket_next = std::exchange(bucket, entry + 1);
    }
  }
  return entries_.grow(capacity);
}

// Fingerprints lie anywhere in the table, and mostly out of the caches: all that is needed is asked for at once.
void Ghosts::prefetch(std::span<const PageFingerprint> fingerprints) const {
  if (size() == 0) return;
  for (const PageFingerprint fingerprint : fingerprints) __builtin_prefetch(&buckets_[fingerprint & bucket_mask_], 1);
}

void Ghosts::add(std::span<const PageFingerprint> fingerprints) {
  if (entries_.size() == 0) return;
  prefetch(fingerprints);
  if (size() + fingerprints.size() > entries_.size()) {
    std::uint32_t oldest = order_.front();
    for (std::size_t i = 0; i < fingerprints.size() && oldest != IndexLists::kNone; ++i, oldest = order_.next(oldest)) {
      __builtin_prefetch(&buckets_[entries_[oldest].fingerprint & bucket_mask_], 1);
    }
  }
  for (const PageFingerprint fingerprint : std::views::reverse(fingerprints)) add_newest(fingerprint);
}

void Ghosts::add_newest(PageFingerprint fingerprint) {
  if (size() == entries_.size()) remove_oldest();
  std::uint32_t entry = fresh_;
  if (first_unused_ != 0) {
    entry = first_unused_ - 1;
    first_unused_ = entries_[entry].bucket_next;
  } else {
    ++fresh_;
  }
  std::uint32_t& bucket = buckets_[fingerprint & bucket_mask_];
  entries_[entry] = {.fingerprint = fingerprint, .bucket_next = std::exchange(bucket, entry + 1)};
  order_.push_back(entry);
}

bool Ghosts::remove(PageFingerprint fingerprint) {
  if (size() == 0) return false;
  std::uint32_t* link = &buckets_[fingerprint & bucket_mask_];
  while (*link != 0 && entries_[*link - 1].fingerprint != fingerprint) link = &entries_[*link - 1].bucket_next;
  if (*link == 0) return false;
  take_out(*link);
  return true;
}

void Ghosts::remove_oldest() {
  const std::uint32_t oldest = order_.front();
  std::uint32_t* link = &buckets_[entries_[oldest].fingerprint & bucket_mask_];
  while (*link != oldest + 1) link = &entries_[*link - 1].bucket_next;
  take_out(*link);
}

void Ghosts::take_out(std::uint32_t& link) {
  const std::uint32_t entry = link - 1;
  link = entries_[entry].bucket_next;
  entries_[entry].bucket_next = std::exchange(first_unused_, entry + 1);
  order_.remove(entry);
}

}  // namespace quire
