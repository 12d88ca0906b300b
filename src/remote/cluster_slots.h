// SPDX-License-Identifier: Apache-2.0
//
// The slots of a cluster: which a key is in, and which node has it.
//
// immutable
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "remote/resp.h"

namespace quire {

inline constexpr std::uint16_t kClusterSlots = 16'384;
inline constexpr std::uint32_t kClusterNodesMax = 1024;

/// Of the part in braces, where there is one that is not empty, so that keys can be kept together.
[[nodiscard]] std::uint16_t cluster_slot(std::string_view key);

/// Whole clusters, as one of their nodes sees them: the primaries, and for each slot which of them has it.
struct ClusterMap {
  static constexpr std::uint16_t kNobody = UINT16_MAX;

  struct Node {
    std::string host;
    std::uint16_t port = 0;
    std::string id = {};  ///< the same wherever it is asked for; empty: the server did not say
    /// At the same place.
    friend bool operator==(const Node& a, const Node& b) { return a.host == b.host && a.port == b.port; }
  };
  std::vector<Node> nodes;
  std::array<std::uint16_t, kClusterSlots> slots{};  ///< index of a node, or kNobody

  [[nodiscard]] std::uint32_t missing_slots() const;
};

/// The answer to CLUSTER SLOTS of the node at `asked_host`, which is the host of nodes without one. An error when it is
/// none: then nothing of it is believed.
[[nodiscard]] Result<ClusterMap> parse_cluster_slots(const RespValue& answer, const std::string& asked_host);

}  // namespace quire
