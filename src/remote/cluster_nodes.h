// SPDX-License-Identifier: Apache-2.0
//
// The nodes of a cluster, as one of them knows them. Unlike the slots (cluster_slots.h), this has nodes without any:
// when a slot is on its way to such a node, some of its keys are there already.
//
// immutable
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "remote/resp.h"

namespace quire {

struct ClusterNode {
  std::string id;
  std::string address;    ///< empty: not known
  std::string name = {};  ///< that it announces; empty: none
  std::uint16_t port = 0;
  bool is_self = false;  ///< it has been asked
  bool is_primary = false;
  bool is_gone = false;  ///< all agree that it has failed
  bool has_slots = false;
  bool is_target = false;  ///< a slot of the node that was asked is on its way to it
};

/// The answer to CLUSTER NODES, without nodes that are not known well enough to be reached. An error when it is none.
[[nodiscard]] Result<std::vector<ClusterNode>> parse_cluster_nodes(const RespValue& answer);

}  // namespace quire
