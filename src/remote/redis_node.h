// SPDX-License-Identifier: Apache-2.0
//
// RedisNode: a server as the worker sees it: where it is, whether it is asked, and its lanes with their deadlines.
//
// single-threaded
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/types.h"
#include "remote/address_round.h"
#include "remote/breaker.h"
#include "remote/growing_pause.h"
#include "remote/put_pause.h"
#include "remote/redis_lane.h"
#include "remote/redis_url.h"
#include "remote/socket_address.h"

namespace quire {

inline constexpr std::uint32_t kLanesOfNode = 3;
enum class LaneKind : std::uint8_t { Questions, Waiting, Background };

struct RedisNode {
  struct Lane {
    RedisLane lane;
    AddressRound round;              ///< under way until it is connected
    std::uint32_t epoll_events = 0;  ///< that are asked for at present; 0: the socket is not watched
    std::uint64_t flight_bytes = 0;  ///< of values in flight
    TimeNs due_ns = 0;               ///< by when it has to be connected, or to have said something; 0: nothing is due
    std::uint64_t seen_bytes = 0;    ///< RedisLane::moved_bytes() when due_ns was set
    std::uint64_t heard_bytes = 0;   ///< RedisLane::arrived_bytes(), as far as RedisNode::heard_at_ns knows of them
    std::uint32_t sending = UINT32_MAX;  ///< the request whose value is being sent, if one is
    bool may_read = false;               ///< the system said that there is something
    bool is_queued = false;              ///< for its turn
  };

  RedisNode(RedisEndpoint where, std::uint32_t first_lane, const BreakerConfig& config, std::uint64_t seed)
      : endpoint(std::move(where)),
        breaker(config, seed),
        puts(GrowingPause(config.pause_ns_min, config.pause_ns_max, ~seed)),
        lanes{Lane{.lane = RedisLane(first_lane)}, Lane{.lane = RedisLane(first_lane + 1)},
              Lane{.lane = RedisLane(first_lane + 2)}} {
    if (const auto address = address_in_numbers(endpoint)) addresses.push_back(*address);
    is_name = addresses.empty();
  }

  RedisEndpoint endpoint;
  std::vector<SocketAddress> addresses;  ///< the one first that worked last; none until a name has been looked up
  bool is_name = false;                  ///< which may have other addresses at another time
  bool is_looked_up = false;             ///< somebody is at it
  bool is_elsewhere = false;             ///< another answers at its address, which is to be left
  TimeNs may_leave_at_ns = 0;            ///< not before
  Breaker breaker;
  PutPause puts;
  std::array<Lane, kLanesOfNode> lanes;
  bool is_seed = false;         ///< named by the configuration: asked for the cluster when no other is left
  bool is_used = false;         ///< has slots
  bool is_bare = false;         ///< a primary without slots, which may have keys all the same: drops go there too
  std::string cluster_id = {};  ///< as the cluster calls it; empty: not known
  bool is_asked_map = false;    ///< it was asked for the cluster's slots and owes the answer
  bool is_vacant = false;       ///< of no use any more: another may take its place
  TimeNs heard_at_ns = 0;       ///< when it last said something, whatever it was
  TimeNs late_at_ns = 0;        ///< when it was last noticed to be late
  std::string shut_why = {};    ///< not empty: the breaker has opened, and what is in flight is to be ended
};

}  // namespace quire
