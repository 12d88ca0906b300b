// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_cluster_check.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "remote/monotonic_clock.h"

namespace quire {
namespace {

constexpr std::size_t kThreadsMax = 64;
constexpr std::size_t kNamedMax = 8;

Status check_node(const RedisEndpoint& node, const RedisLogin& login, TimeNs limit_ns) {
  QUIRE_TRY_ASSIGN(const auto session, RedisSession::open(node, login, limit_ns));
  return session->ping();
}

std::string list_of(const std::vector<RedisEndpoint>& nodes) {
  std::string text;
  for (std::size_t i = 0; i < std::min(nodes.size(), kNamedMax); ++i)
    text += (i == 0 ? "" : ", ") + to_string(nodes[i]);
  return nodes.size() > kNamedMax ? text + " and " + std::to_string(nodes.size() - kNamedMax) + " more" : text;
}

}  // namespace

Status check_cluster_nodes(const RedisTopology& topology, const RedisLogin& login) {
  const std::vector<RedisEndpoint> nodes = nodes_of(topology, login);
  const TimeNs limit_ns = monotonic_now() + login.connect_timeout_ns + login.command_timeout_ns;
  std::vector<Status> results(nodes.size());
  std::atomic<std::size_t> next = 0;
  const auto check = [&] {
    for (std::size_t i = next++; i < nodes.size(); i = next++) results[i] = check_node(nodes[i], login, limit_ns);
  };
  std::vector<std::thread> threads;
  try {
    while (threads.size() + 1 < std::min(nodes.size(), kThreadsMax)) threads.emplace_back(check);
  } catch (const std::system_error&) {
    // Those that there are, and this one, take longer.
  }
  check();
  for (std::thread& thread : threads) thread.join();

  const auto is_wrong = [](const Status& result) {
    return !result.has_value() && result.error().code == ErrorCode::InvalidArgument;
  };
  const auto wrong = std::ranges::find_if(results, is_wrong);
  if (wrong != results.end()) {
    return fail(ErrorCode::InvalidArgument,
                "the cluster that " + to_string(topology.seed) +
                    " belongs to has a node that cannot be used: " + wrong->error().message);
  }
  if (nodes.empty() || std::ranges::any_of(results, &Status::has_value)) return {};
  return fail(ErrorCode::Unavailable,
              "of the cluster that " + to_string(topology.seed) +
                  " belongs to, no node can be used where the cluster says that it is, which is at " + list_of(nodes) +
                  " (" + results.front().error().message +
                  "): set cluster-announce-ip and cluster-announce-port of each node to where this machine reaches it");
}

}  // namespace quire
