// SPDX-License-Identifier: Apache-2.0
//
// Whether the nodes of a cluster are where the cluster says that they are, for opening: a store is of no use to
// somebody whom one of them does not let in, or who reaches none of them at the addresses that they announce.
//
// SIGPIPE has to be blocked, see redis_tls.h
#pragma once

#include "quire/result.h"
#include "remote/redis_login.h"
#include "remote/redis_session.h"

namespace quire {

/// Connects to all nodes at the same time, logs in and sends a PING, with as much time as connecting and a command may
/// take. InvalidArgument: one refuses the user, the password or the certificate, and is named. Unavailable: none of
/// them can be used. One that is dead is no error, as long as others are not.
[[nodiscard]] Status check_cluster_nodes(const RedisTopology& topology, const RedisLogin& login);

}  // namespace quire
