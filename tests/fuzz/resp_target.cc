// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/resp_target.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "remote/cluster_nodes.h"
#include "remote/cluster_slots.h"
#include "remote/redis_refusal.h"
#include "remote/redis_url.h"
#include "remote/resp.h"

namespace quire::testing {
namespace {

// As text, so that two can be compared.
void append_value(const RespValue& value, std::string& out) {
  out += std::to_string(static_cast<int>(value.kind)) + ' ' + std::to_string(value.number) + ' ' +
         std::to_string(value.text.size()) + ' ' + value.text + ' ' + std::to_string(value.parts.size());
  for (const RespValue& part : value.parts) append_value(part, out);
}

struct Reading {
  std::vector<std::string> answers;
  bool is_nonsense = false;
  std::string wrong;
};

std::string wrong_in(const RespValue& answer) {
  if (answer.kind == RespKind::Error) {
    (void)refusal_of(answer.text);
    const auto redirection = parse_redirection(answer.text);
    if (redirection.has_value() && (redirection->slot >= kClusterSlots || redirection->port == 0 ||
                                    (!redirection->host.empty() && !is_host(redirection->host)))) {
      return "a redirection goes where nothing can be";
    }
  }
  if (const auto nodes = parse_cluster_nodes(answer); nodes.has_value()) {
    for (const ClusterNode& node : *nodes) {
      if (node.port == 0 || (!node.address.empty() && !is_host(node.address)) ||
          (!node.name.empty() && !is_host(node.name))) {
        return "a node that is known is where nothing can be";
      }
    }
  }
  const auto map = parse_cluster_slots(answer, "here");
  if (!map.has_value()) return "";
  for (const std::uint16_t owner : map->slots) {
    if (owner != ClusterMap::kNobody && owner >= map->nodes.size()) return "a slot belongs to a node that is none";
  }
  const bool are_places = std::ranges::all_of(map->nodes, [](const auto& n) { return is_host(n.host) && n.port > 0; });
  return are_places ? "" : "a node is where nothing can be";
}

Reading read_in_pieces(std::string_view bytes, std::size_t piece_bytes) {
  Reading reading;
  RespCollector collector;
  std::string kept;
  while (reading.wrong.empty()) {
    std::string_view rest = kept;
    const RespTaken taken = collector.take(rest);
    kept.erase(0, kept.size() - rest.size());
    if (taken == RespTaken::Nonsense) {
      reading.is_nonsense = true;
      break;
    }
    if (taken == RespTaken::Taken) {
      append_value(collector.value(), reading.answers.emplace_back());
      reading.wrong = wrong_in(collector.value());
      continue;
    }
    if (bytes.empty()) break;
    kept += bytes.substr(0, piece_bytes);
    bytes.remove_prefix(std::min(piece_bytes, bytes.size()));
  }
  return reading;
}

}  // namespace

RespReport try_resp_input(std::span<const std::byte> input) {
  if (input.empty()) return {};
  const std::string_view bytes(reinterpret_cast<const char*>(input.data()) + 1, input.size() - 1);
  const Reading whole = read_in_pieces(bytes, std::max<std::size_t>(bytes.size(), 1));
  const Reading pieces = read_in_pieces(bytes, 1 + (std::to_integer<std::size_t>(input[0]) % 16));
  RespReport report{.answer_count = whole.answers.size(), .wrong = whole.wrong};
  if (whole.answers != pieces.answers) report.wrong = "other answers in other pieces";
  if (whole.is_nonsense != pieces.is_nonsense) report.wrong = "nonsense in some pieces, and not in others";
  return report;
}

}  // namespace quire::testing
