// SPDX-License-Identifier: Apache-2.0
#include "prefix/extra_key_lists.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace quire {

std::span<const ExtraKey> overlapping(std::span<const ExtraKey> keys, TokenRange range) {
  const auto first = std::ranges::upper_bound(keys, range.begin, {}, &ExtraKey::end);
  const auto last = std::ranges::lower_bound(keys, range.end, {}, &ExtraKey::begin);
  return first < last ? std::span(first, last) : std::span<const ExtraKey>{};
}

void ExtraKeyLists::append(std::uint32_t& list, std::span<const ExtraKey> keys, TokenRange range) {
  std::uint32_t* tail = &list;
  const ExtraKey* last = nullptr;
  while (*tail != kNoExtraKey) {
    last = &nodes_[*tail].key;
    tail = &nodes_[*tail].next;
  }
  for (const ExtraKey& key : overlapping(keys, range)) {
    if (last != nullptr && *last == key) continue;
    *tail = take(key);
    tail = &nodes_[*tail].next;
  }
}

void ExtraKeyLists::split(std::uint32_t& suffix, std::uint32_t& prefix, std::uint32_t position) {
  prefix = suffix;
  std::uint32_t* cut = &prefix;
  const Node* crossing = nullptr;
  while (*cut != kNoExtraKey && nodes_[*cut].key.begin < position) {
    if (nodes_[*cut].key.end > position) crossing = &nodes_[*cut];
    cut = &nodes_[*cut].next;
  }
  suffix = *cut;
  *cut = kNoExtraKey;
  if (crossing != nullptr) {
    const std::uint32_t copy = take(crossing->key);
    nodes_[copy].next = suffix;
    suffix = copy;
  }
}

void ExtraKeyLists::trim(std::uint32_t& list, std::uint32_t position) {
  std::uint32_t* cut = &list;
  while (*cut != kNoExtraKey && nodes_[*cut].key.begin < position) cut = &nodes_[*cut].next;
  give_back_from(*cut);
  *cut = kNoExtraKey;
}

std::uint32_t ExtraKeyLists::first_difference(std::uint32_t list, std::span<const ExtraKey> keys,
                                              TokenRange range) const {
  std::uint32_t i = list;
  while (i != kNoExtraKey && nodes_[i].key.end <= range.begin) i = nodes_[i].next;
  std::span<const ExtraKey> rest = overlapping(keys, range);
  for (;;) {
    const bool has_listed = i != kNoExtraKey && nodes_[i].key.begin < range.end;
    if (!has_listed && rest.empty()) return range.end;
    if (has_listed && !rest.empty() && nodes_[i].key == rest.front()) {
      i = nodes_[i].next;
      rest = rest.subspan(1);
      continue;
    }
    const std::uint32_t listed_begin = has_listed ? nodes_[i].key.begin : range.end;
    const std::uint32_t asked_begin = rest.empty() ? range.end : rest.front().begin;
    return std::max(range.begin, std::min(listed_begin, asked_begin));
  }
}

std::uint64_t ExtraKeyLists::fold(std::uint64_t hash, std::uint32_t list, TokenRange range) const {
  for (std::uint32_t i = list; i != kNoExtraKey && nodes_[i].key.begin < range.end; i = nodes_[i].next) {
    if (nodes_[i].key.end > range.begin) hash = hash_bytes(&nodes_[i].key, sizeof(ExtraKey), hash);
  }
  return hash;
}

std::uint64_t ExtraKeyLists::fold(std::uint64_t hash, std::span<const ExtraKey> keys, TokenRange range) {
  for (const ExtraKey& key : overlapping(keys, range)) hash = hash_bytes(&key, sizeof(ExtraKey), hash);
  return hash;
}

std::uint32_t ExtraKeyLists::take(const ExtraKey& key) {
  std::uint32_t index = first_free_;
  if (index != kNoExtraKey) {
    first_free_ = nodes_[index].next;
  } else {
    index = fresh_++;
    QUIRE_CHECK(index < nodes_.size(), "more extra keys than tokens");
  }
  nodes_[index] = {.key = key, .next = kNoExtraKey};
  ++used_count_;
  return index;
}

void ExtraKeyLists::give_back_from(std::uint32_t first) {
  while (first != kNoExtraKey) {
    const std::uint32_t next = nodes_[first].next;
    nodes_[first].next = first_free_;
    first_free_ = first;
    first = next;
    --used_count_;
  }
}

}  // namespace quire
