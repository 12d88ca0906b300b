// SPDX-License-Identifier: Apache-2.0
//
// RedisConnection: a socket to a server that does not block, perhaps with TLS. First it connects, which
// proves nothing about the server, then bytes go both ways until it is closed.
//
// single-threaded
#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "quire/result.h"
#include "quire/types.h"
#include "remote/redis_tls.h"
#include "remote/socket_address.h"

namespace quire {

class RedisConnection {
 public:
  struct Options {
    TimeNs unanswered_ns_max = 0;  ///< after which the system gives up on bytes that nobody acknowledges
    const TlsContext* tls = nullptr;
    std::string server_name = {};
  };
  /// Begins to connect.
  [[nodiscard]] static Result<std::unique_ptr<RedisConnection>> begin(const SocketAddress& address,
                                                                      const Options& options);

  /// Goes on connecting. Moved: bytes can be sent from now on.
  [[nodiscard]] IoCount connect();
  /// As much as there is, into the pieces one after the other.
  [[nodiscard]] IoCount read(std::span<const iovec> pieces);
  [[nodiscard]] IoCount write(std::span<const iovec> pieces);

  /// Until so many bytes are there, the socket does not say that there is something to read. 1 at first.
  void set_low_water(std::uint64_t bytes);

  /// That the system keeps for it; with TLS, as they came.
  [[nodiscard]] std::uint64_t unread_bytes() const;

  /// Both ends are told, also while a child of this process, which was forked meanwhile, has the socket too.
  void shut_down();

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  /// There is something to read that the socket will not tell of.
  [[nodiscard]] bool has_pending() const { return tls_ != nullptr && tls_->has_pending(); }

 private:
  explicit RedisConnection(Descriptor socket) : socket_(std::move(socket)) {}

  Descriptor socket_;
  std::unique_ptr<TlsStream> tls_;
  bool is_connected_ = false;  // the socket
  int low_water_ = 1;
};

}  // namespace quire
