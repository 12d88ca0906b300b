// SPDX-License-Identifier: Apache-2.0
#include "quire/cache_group.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace quire {
namespace {

std::vector<std::byte> little_endian(std::uint32_t value, std::uint32_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (std::uint32_t i = 0; i < bytes; ++i) pattern[i] = static_cast<std::byte>((value >> (8 * i)) & 0xffU);
  return pattern;
}

}  // namespace

std::vector<std::byte> fp32_pattern(float value) {
  return little_endian(std::bit_cast<std::uint32_t>(value), 4);
}

std::vector<std::byte> bf16_pattern(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t half = 0x7fffU + ((bits >> 16U) & 1U);  // of the lowest bit that stays; ties go to even
  return little_endian((bits + half) >> 16U, 2);
}

std::vector<std::byte> int32_pattern(std::int32_t value) {
  return little_endian(static_cast<std::uint32_t>(value), 4);
}

std::vector<std::uint32_t> layer_range(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> layers(count);
  std::iota(layers.begin(), layers.end(), first);
  return layers;
}

bool has_slot(const CacheGroup& group) {
  if (group.kind == GroupKind::Window) return group.window_form == WindowForm::Ring;
  return group.kind == GroupKind::Snapshot;
}

bool has_pages(const CacheGroup& group) {
  if (!has_slot(group)) return true;
  if (group.retention.rule == RetentionRule::None) return false;
  return group.kind != GroupKind::Snapshot || group.snapshot_entries > 0;
}

std::uint32_t boundary_multiple(const CacheGroup& group) {
  if (group.kind == GroupKind::Compressed) return group.tokens_per_entry;
  if (group.kind == GroupKind::Snapshot) return group.boundary_tokens;
  return 1;
}

bool is_reusable(const CacheGroup& group) {
  if (group.kind == GroupKind::Full || group.kind == GroupKind::Compressed) return true;
  if (group.retention.rule != RetentionRule::None || group.replay.tokens > 0) return true;
  return group.kind == GroupKind::Snapshot ? group.snapshot_entries == 0 : group.window_tokens == 1;
}

std::uint64_t lookback_tokens(const CacheGroup& group, std::uint64_t position) {
  switch (group.kind) {
    case GroupKind::Full:
      return 0;
    case GroupKind::Window:
      return std::min<std::uint64_t>(position, group.window_tokens - 1);
    case GroupKind::Compressed:
      return std::min<std::uint64_t>(position, group.overlap_tokens + (position % group.tokens_per_entry));
    case GroupKind::Snapshot:
      return std::min<std::uint64_t>(position, group.snapshot_entries);
  }
  return 0;
}

}  // namespace quire
