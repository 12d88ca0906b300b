// SPDX-License-Identifier: Apache-2.0
//
// LayerBytes: what every layer of every page holds, for tests that look at layers one by one. The bytes of a full page
// in a layer of a group follow from the group, the layer and all tokens up to the end of the page. Pages are found by
// the tables that plans keep up to date.
//
// single-threaded, but for check(), which only reads
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "quire/cache.h"
#include "quire/host_kernels.h"

namespace quire::testing {

class LayerBytes {
 public:
  explicit LayerBytes(Cache& cache) : cache_(cache), page_tokens_(cache.config().page.page_tokens) {
    columns_ = (cache.config().context_tokens_max + page_tokens_ - 1) / page_tokens_;
    tables_.resize(cache.config().layout.groups().size());
    for (auto& table : tables_) table.resize(std::size_t{cache.config().sequence_count_max} * columns_, -1);
  }

  /// Once for each plan, in their order.
  void start(const Step& step) {
    for (std::size_t g = 0; g < tables_.size(); ++g) {
      apply_deltas_on_host({.table = tables_[g].data(),
                            .rows = cache_.config().sequence_count_max,
                            .row_columns = columns_,
                            .deltas = step.plan.groups[g].deltas});
    }
  }
  /// Every layer of the pages that an entry fills.
  void write(const Step& step, std::size_t place, std::span<const TokenId> tokens) {
    const AttentionPlanEntry& entry = step.plan.entries[place];
    for (std::uint32_t column = entry.position / page_tokens_; column < entry.context_tokens / page_tokens_; ++column) {
      for (const GroupLayer layer : layers()) {
        const std::optional<std::span<std::byte>> bytes = find(step, place, layer, column);
        if (bytes) fill(*bytes, layer, tokens, column);
      }
    }
  }
  /// Whether a layer of every page that an entry finds is what it should be, and how many pages that are.
  struct Answer {
    bool is_right = true;
    std::uint32_t page_count = 0;
  };
  [[nodiscard]] Answer check(const Step& step, std::size_t place, std::span<const TokenId> tokens,
                             GroupLayer layer) const {
    Answer answer;
    for (std::uint32_t column = 0; column < step.plan.entries[place].position / page_tokens_; ++column) {
      const std::optional<std::span<std::byte>> bytes = find(step, place, layer, column);
      if (!bytes) continue;
      ++answer.page_count;
      answer.is_right = answer.is_right && holds(*bytes, layer, tokens, column);
    }
    return answer;
  }
  /// The memory that check() looks at.
  [[nodiscard]] std::vector<std::span<const std::byte>> touched(const Step& step, std::size_t place,
                                                                GroupLayer layer) const {
    std::vector<std::span<const std::byte>> all;
    for (std::uint32_t column = 0; column < step.plan.entries[place].position / page_tokens_; ++column) {
      if (const auto bytes = find(step, place, layer, column)) all.emplace_back(*bytes);
    }
    return all;
  }
  /// All layers of all groups, in the order of the layout.
  [[nodiscard]] std::vector<GroupLayer> layers() const {
    std::vector<GroupLayer> all;
    const std::span<const CacheGroup> groups = cache_.config().layout.groups();
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      for (std::uint32_t l = 0; l < groups[g].layers.size(); ++l) all.push_back({.group_index = g, .layer_index = l});
    }
    return all;
  }
  /// Nothing in the device's memory is what it was.
  void scrub() {
    for (std::uint32_t g = 0; g < tables_.size(); ++g) {
      std::memset(cache_.device_memory(g), 0xEE, cache_.geometry(g).pool_bytes());
    }
  }

 private:
  // A layer of a page that the entry has in this column, if it has one and sees some of it.
  [[nodiscard]] std::optional<std::span<std::byte>> find(const Step& step, std::size_t place, GroupLayer layer,
                                                         std::uint32_t column) const {
    const CascadeLevel& level = step.plan.groups[layer.group_index].levels.back();
    const auto row = static_cast<std::size_t>(level.rows[place]);
    const bool is_window = step.plan.groups[layer.group_index].window_tokens > 0;
    if (is_window && column < static_cast<std::uint32_t>(level.first_columns[place])) return std::nullopt;
    const std::int32_t page = tables_[layer.group_index][(row * columns_) + column];
    if (page <= 0) return std::nullopt;
    const PoolGeometry& geometry = cache_.geometry(layer.group_index);
    const PoolStrides& strides = geometry.strides();
    std::byte* const memory = cache_.device_memory(layer.group_index);
    return std::span(memory + (static_cast<std::uint64_t>(page) * strides.page) + (layer.layer_index * strides.layer),
                     geometry.page().layer_bytes());
  }
  [[nodiscard]] std::uint64_t seed_of(GroupLayer layer, std::span<const TokenId> tokens, std::uint32_t column) const {
    std::uint64_t seed = mix64((std::uint64_t{layer.group_index} << 32U) + layer.layer_index + 1);
    for (const TokenId token : tokens.first(std::size_t{column + 1} * page_tokens_)) {
      seed = mix64(seed + static_cast<std::uint64_t>(token));
    }
    return seed;
  }
  void fill(std::span<std::byte> bytes, GroupLayer layer, std::span<const TokenId> tokens, std::uint32_t column) const {
    const std::uint64_t seed = seed_of(layer, tokens, column);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(mix64(seed + i));
  }
  [[nodiscard]] bool holds(std::span<const std::byte> bytes, GroupLayer layer, std::span<const TokenId> tokens,
                           std::uint32_t column) const {
    const std::uint64_t seed = seed_of(layer, tokens, column);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != static_cast<std::byte>(mix64(seed + i))) return false;
    }
    return true;
  }

  Cache& cache_;
  std::uint32_t page_tokens_ = 0;
  std::uint32_t columns_ = 0;
  std::vector<std::vector<std::int32_t>> tables_;
};

}  // namespace quire::testing
