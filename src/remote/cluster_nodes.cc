// SPDX-License-Identifier: Apache-2.0
#include "remote/cluster_nodes.h"

#include <algorithm>
#include <charconv>

#include "remote/redis_url.h"

namespace quire {
namespace {

tl::unexpected<Error> wrong_nodes(const std::string& what) {
  return fail(ErrorCode::Corrupt, "the answer to CLUSTER NODES " + what);
}

// What stands before the sign, which is taken off with it; all of it when there is none.
std::string_view take_until(std::string_view& text, char sign) {
  const std::size_t end = text.find(sign);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return taken;
}

bool has_flag(std::string_view flags, std::string_view flag) {
  while (!flags.empty()) {
    if (take_until(flags, ',') == flag) return true;
  }
  return false;
}

// "address:port@port,name,more=…"; before Redis 7 without names, before 4 without the second port.
bool parse_place(std::string_view text, ClusterNode& node) {
  std::string_view place = take_until(text, ',');
  const std::string_view name = take_until(text, ',');
  place = take_until(place, '@');
  const std::size_t colon = place.rfind(':');  // IPv6 addresses have more of them
  if (colon == std::string_view::npos) return false;
  const std::string_view port = place.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), node.port);
  node.address = place.substr(0, colon);
  if (name != "?" && name.find('=') == std::string_view::npos) node.name = name;
  return error == std::errc{} && end == port.data() + port.size() && (node.address.empty() || is_host(node.address)) &&
         (node.name.empty() || is_host(node.name));
}

}  // namespace

Result<std::vector<ClusterNode>> parse_cluster_nodes(const RespValue& answer) {
  if (answer.kind != RespKind::Bulk) return wrong_nodes("is no text");
  std::vector<ClusterNode> nodes;
  std::vector<std::string> targets;
  for (std::string_view text = answer.text; !text.empty();) {
    std::string_view line = take_until(text, '\n');
    if (line.empty()) continue;
    ClusterNode node{.id = std::string(take_until(line, ' '))};
    const std::string_view place = take_until(line, ' ');
    const std::string_view flags = take_until(line, ' ');
    if (node.id.empty() || flags.empty()) return wrong_nodes("has a line that names no node");
    if (has_flag(flags, "noaddr") || has_flag(flags, "handshake")) continue;
    if (!parse_place(place, node)) return wrong_nodes("has a node without an address: " + printable(place));
    if (node.port == 0) continue;
    node.is_self = has_flag(flags, "myself");
    node.is_primary = has_flag(flags, "master");
    node.is_gone = has_flag(flags, "fail");
    // Its primary, when it was pinged and answered, its epoch and its connection.
    for (int i = 0; i < 5; ++i) (void)take_until(line, ' ');
    while (!line.empty()) {
      const std::string_view slots = take_until(line, ' ');
      const std::size_t arrow = slots.find("->-");
      if (!slots.starts_with('[')) {
        node.has_slots = true;
      } else if (arrow != std::string_view::npos && slots.ends_with(']')) {
        targets.emplace_back(slots.substr(arrow + 3, slots.size() - arrow - 4));
      }
    }
    nodes.push_back(std::move(node));
  }
  for (ClusterNode& node : nodes) node.is_target = std::ranges::find(targets, node.id) != targets.end();
  return nodes;
}

}  // namespace quire
