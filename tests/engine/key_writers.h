// SPDX-License-Identifier: Apache-2.0
//
// KeyWriters: for which texts each row of K was written, told by the row's bytes, so that it is known wherever the row
// was copied to since. A plan that lists a key of another text, or one that nobody wrote, is noticed even where the
// logits do not depend on it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "tools/tiny_engine/hybrid_engine.h"

namespace quire::testing {

class KeyWriters final : public tiny_engine::KeyWatch {
 public:
  struct Entry {
    std::uint64_t sequence = 0;
    std::vector<std::int32_t> texts;  ///< of the whole text: of what is cached, then of the queries
    std::uint32_t position = 0;       ///< of the first query
    std::uint32_t query_count = 0;
    bool is_checked = false;  ///< false: what it reads need not be right, or does not stand where positions say
  };
  /// The step that runs next, by the plan's entries.
  void begin_step(std::vector<Entry> entries) {
    entries_ = std::move(entries);
    queries_.clear();
    for (std::uint32_t i = 0; i < entries_.size(); ++i) {
      for (std::uint32_t j = 0; j < entries_[i].query_count; ++j) queries_.emplace_back(i, entries_[i].position + j);
    }
  }

  [[nodiscard]] std::string on_read(const tiny_engine::GroupLayer& layer, std::size_t query, std::uint32_t position,
                                    std::span<const double> key) override {
    const Entry& entry = entries_[queries_[query].first];
    if (!entry.is_checked) return "";
    ++compared_count_;
    if (position < entry.texts.size() && writers_.contains(row_of(layer, key, entry.texts[position]))) return "";
    return "layer " + std::to_string(layer.layer_index) + " of group " + std::to_string(layer.group_index) +
           ": sequence " + std::to_string(entry.sequence) + " reads at position " +
           std::to_string(queries_[query].second) + " a key at " + std::to_string(position) +
           " that was not written for its text";
  }
  void on_append(const tiny_engine::GroupLayer& layer, std::size_t query, std::span<const double> key) override {
    const auto [entry, position] = queries_[query];
    writers_.insert(row_of(layer, key, entries_[entry].texts[position]));
  }

  [[nodiscard]] std::uint64_t compared_count() const { return compared_count_; }

 private:
  /// A hash of the layer, the text and the key's bytes.
  [[nodiscard]] static std::uint64_t row_of(const tiny_engine::GroupLayer& layer, std::span<const double> key,
                                            std::int32_t text) {
    std::uint64_t hash =
        mix64((std::uint64_t{layer.group_index} << 32U) | layer.layer_index) + static_cast<std::uint32_t>(text);
    for (const double value : key) hash = mix64(hash ^ std::bit_cast<std::uint64_t>(value));
    return hash;
  }

  std::vector<Entry> entries_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> queries_;  // the entry of each, and its position
  std::unordered_set<std::uint64_t> writers_;
  std::uint64_t compared_count_ = 0;
};

}  // namespace quire::testing
