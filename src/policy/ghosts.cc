// SPDX-License-Identifier: Apache-2.0
#include "policy/ghosts.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace quire {

Status Ghosts::reserve(std::uint32_t capacity) {
  if (capacity <= entries_.size()) return {};
  QUIRE_TRY(order_.reserve(capacity));
  const std::size_t bucket_count = std::bit_ceil(std::max<std::size_t>(16, capacity));
  if (bucket_count > buckets_.size()) {
    QUIRE_TRY_ASSIGN(buckets_, LazyArray<std::uint32_t>::create(bucket_count));
    bucket_mask_ = static_cast<std::uint32_t>(bucket_count - 1);
    for (std::uint32_t entry = order_.front(); entry != IndexLists::kNone; entry = order_.next(entry)) {
      std::uint32_t& bucket = buckets_[entries_[entry].fingerprint & bucket_mask_];
      entries_[entry].bucket_next = std::exchange(bucket, entry + 1);
    }
  }
  return entries_.grow(capacity);
}

void Ghosts::add(PageFingerprint fingerprint) {
  if (entries_.size() == 0) return;
  remove(fingerprint);
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
  std::uint32_t& link = link_to(fingerprint);
  if (link == 0) return false;
  take_out(link);
  return true;
}

void Ghosts::remove_oldest() {
  take_out(link_to(entries_[order_.front()].fingerprint));
}

// What names the entry of a fingerprint, or would if there were one.
std::uint32_t& Ghosts::link_to(PageFingerprint fingerprint) {
  std::uint32_t* link = &buckets_[fingerprint & bucket_mask_];
  while (*link != 0 && entries_[*link - 1].fingerprint != fingerprint) link = &entries_[*link - 1].bucket_next;
  return *link;
}

void Ghosts::take_out(std::uint32_t& link) {
  const std::uint32_t entry = link - 1;
  link = entries_[entry].bucket_next;
  entries_[entry].bucket_next = std::exchange(first_unused_, entry + 1);
  order_.remove(entry);
}

}  // namespace quire
