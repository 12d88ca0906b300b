// SPDX-License-Identifier: Apache-2.0
//
// HeldGroups: what a cache of several groups holds of a key space, by looking at everything, and where a sequence could
// go on, by trying every position. It shares nothing with the rule that the cache goes by.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "quire/cache.h"

namespace quire::testing {

class HeldGroups {
 public:
  HeldGroups(const Cache& cache, KeySpaceId space);

  /// The greatest position where a sequence could go on, and how far the history goes there.
  struct Found {
    std::uint32_t start = 0;
    std::uint32_t end = 0;
    friend constexpr bool operator==(const Found&, const Found&) = default;
  };
  /// Of a page that is found in part, so many tokens at least; UINT32_MAX: none. Down to `tier`, the device or the
  /// host, where only whole pages are found.
  [[nodiscard]] Found find(std::span<const TokenId> tokens, std::uint32_t partial_min, Tier tier = Tier::Device) const;
  /// Whole pages of the history.
  [[nodiscard]] std::uint32_t history_tokens(std::span<const TokenId> tokens, Tier tier = Tier::Device) const;
  /// Whether a group has what it needs to go on at `start`, wherever the history is found up to there.
  [[nodiscard]] bool holds(std::uint32_t group, std::span<const TokenId> tokens, std::uint32_t start, Tier tier) const;

 private:
  struct Page {
    std::span<const TokenId> tokens;
    PageId page;
    Tier tier = Tier::Device;
  };
  using Path = std::vector<Page>;

  [[nodiscard]] std::uint32_t matched(const Path& path, std::span<const TokenId> tokens, Tier tier) const;
  [[nodiscard]] bool has(std::uint32_t group, const Page& page, Tier tier) const;
  /// Where `start` tokens are found and up to `until` the history is not written again.
  [[nodiscard]] bool holds(std::uint32_t group, const Path& path, std::uint32_t start, std::uint32_t until,
                           std::uint32_t length, Tier tier) const;
  /// How many groups a replay rebuilds; nothing when a group cannot go on.
  [[nodiscard]] std::optional<int> rebuilt_groups(const Path& path, Found at, std::uint32_t length, Tier tier) const;

  const Cache& cache_;
  std::uint32_t page_tokens_ = 0;
  std::uint32_t lookahead_ = 0;
  std::deque<std::vector<TokenId>> texts_;  // of the runs
  std::vector<Path> paths_;                 // down to every run
  /// Pages of the history that a group has something of, sorted.
  struct Anchors {
    std::vector<std::uint32_t> on_device;
    std::vector<std::uint32_t> on_host_of_device;  // on the host, by the history's device page
    std::vector<std::uint32_t> on_host_of_host;    // and by its host page
  };
  std::vector<Anchors> anchors_;  // by group
};

}  // namespace quire::testing
