// SPDX-License-Identifier: Apache-2.0
#include "remote/cluster_slots.h"

#include <algorithm>

#include "remote/redis_url.h"

namespace quire {
namespace {

// CRC-16/XMODEM, the one that the cluster's specification names.
constexpr std::array<std::uint16_t, 256> crc_table() {
  std::array<std::uint16_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i << 8U;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000U) != 0 ? (crc << 1U) ^ 0x1021U : crc << 1U;
    table[i] = static_cast<std::uint16_t>(crc);
  }
  return table;
}
constexpr std::array<std::uint16_t, 256> kCrcTable = crc_table();

tl::unexpected<Error> wrong_map(const std::string& what) {
  return fail(ErrorCode::Corrupt, "the answer to CLUSTER SLOTS " + what);
}

bool is_text(const RespValue& value) {
  return value.kind == RespKind::Bulk || value.kind == RespKind::Text;
}

// One range: its first and last slot, the primary, and replicas, which are not used.
Status add_range(const RespValue& range, const std::string& asked_host, ClusterMap& map) {
  if (range.kind != RespKind::Array || range.parts.size() < 3) return wrong_map("has a range without a node");
  const RespValue& first = range.parts[0];
  const RespValue& last = range.parts[1];
  if (first.kind != RespKind::Integer || last.kind != RespKind::Integer || first.number < 0 ||
      first.number > last.number || last.number >= kClusterSlots) {
    return wrong_map("has a range of slots that do not exist");
  }
  const RespValue& primary = range.parts[2];
  if (primary.kind != RespKind::Array || primary.parts.size() < 2 || primary.parts[1].kind != RespKind::Integer) {
    return wrong_map("has a node without an address");
  }
  const RespValue& host = primary.parts[0];
  const std::int64_t port = primary.parts[1].number;
  if (port < 1 || port > UINT16_MAX) return wrong_map("has a node with a port that does not exist");
  ClusterMap::Node node{.port = static_cast<std::uint16_t>(port)};
  if (host.kind == RespKind::Null || (is_text(host) && host.text.empty())) {
    // At a socket in the file system, what was asked is a path.
    if (!is_host(asked_host))
      return wrong_map("has a node that knows no address of its own: set cluster-announce-ip there");
    node.host = asked_host;
  } else if (is_text(host) && is_host(host.text)) {
    node.host = host.text;
  } else {
    // Also "?", a node that does not know its own address.
    return wrong_map("has a node whose host is '" + printable(host.text) + "': set cluster-announce-ip there");
  }
  if (primary.parts.size() > 2 && is_text(primary.parts[2])) node.id = primary.parts[2].text;
  auto place = std::ranges::find(map.nodes, node);
  if (place == map.nodes.end()) {
    if (map.nodes.size() == kClusterNodesMax) return wrong_map("has more than 1024 nodes");
    place = map.nodes.insert(map.nodes.end(), std::move(node));
  }
  const auto index = static_cast<std::uint16_t>(place - map.nodes.begin());
  for (std::int64_t slot = first.number; slot <= last.number; ++slot) {
    std::uint16_t& owner = map.slots[static_cast<std::size_t>(slot)];
    if (owner != ClusterMap::kNobody) return wrong_map("gives slot " + std::to_string(slot) + " to two nodes");
    owner = index;
  }
  return {};
}

}  // namespace

std::uint16_t cluster_slot(std::string_view key) {
  if (const std::size_t open = key.find('{'); open != std::string_view::npos) {
    const std::size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close != open + 1) key = key.substr(open + 1, close - open - 1);
  }
  std::uint32_t crc = 0;
  for (const char c : key) {
    crc = ((crc << 8U) & 0xFFFFU) ^ kCrcTable[((crc >> 8U) ^ static_cast<unsigned char>(c)) & 0xFFU];
  }
  return static_cast<std::uint16_t>(crc % kClusterSlots);
}

std::uint32_t ClusterMap::missing_slots() const {
  return static_cast<std::uint32_t>(std::ranges::count(slots, kNobody));
}

Result<ClusterMap> parse_cluster_slots(const RespValue& answer, const std::string& asked_host) {
  if (answer.kind != RespKind::Array) return wrong_map("is no list");
  ClusterMap map;
  map.slots.fill(ClusterMap::kNobody);
  for (const RespValue& range : answer.parts) QUIRE_TRY(add_range(range, asked_host, map));
  return map;
}

}  // namespace quire
