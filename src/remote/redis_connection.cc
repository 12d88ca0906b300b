// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/system_error.h"

namespace quire {
namespace {

IoCount io_ended(ssize_t result, int error_number, IoCount::State waits) {
  if (result == 0) return {.state = IoCount::State::Closed, .why = "the server closed the connection"};
  if (error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR) return {.state = waits};
  return {.state = IoCount::State::Closed, .why = errno_text(error_number)};
}

}  // namespace

Result<std::unique_ptr<RedisConnection>> RedisConnection::begin(const SocketAddress& address, const Options& options) {
  const int family = address.storage.ss_family;
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return fail(errno_code(errno), "no socket: " + errno_text(errno));
  if (family != AF_UNIX) {
    // Best effort: without these, it works all the same.
    const int on = 1;
    (void)setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    const auto unanswered_ms =
        static_cast<unsigned>(std::clamp<TimeNs>(options.unanswered_ns_max / 1'000'000, 1, INT_MAX));
    (void)setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof(unanswered_ms));
  }
  std::unique_ptr<RedisConnection> connection(new RedisConnection(std::move(socket)));
  if (::connect(connection->descriptor(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) == 0) {
    connection->is_connected_ = true;
  } else if (errno != EINPROGRESS) {
    // A Unix socket whose queue is full says EAGAIN, and will not become connected by itself.
    return fail(ErrorCode::Unavailable, errno == EAGAIN ? "too many wait to be accepted" : errno_text(errno));
  }
  if (options.tls != nullptr) {
    QUIRE_TRY_ASSIGN(connection->tls_, TlsStream::make(*options.tls, connection->descriptor(), options.server_name));
  }
  return connection;
}

IoCount RedisConnection::connect() {
  if (!is_connected_) {
    pollfd poll_for{.fd = descriptor(), .events = POLLOUT, .revents = 0};
    if (poll(&poll_for, 1, 0) == 0) return {.state = IoCount::State::WaitsToWrite};
    int error_number = 0;
    socklen_t bytes = sizeof(error_number);
    (void)getsockopt(descriptor(), SOL_SOCKET, SO_ERROR, &error_number, &bytes);
    if (error_number != 0) return {.state = IoCount::State::Closed, .why = errno_text(error_number)};
    is_connected_ = true;
  }
  return tls_ == nullptr ? IoCount{} : tls_->shake_hands();
}

IoCount RedisConnection::read(std::span<const iovec> pieces) {
  if (tls_ == nullptr) {
    const ssize_t count = readv(descriptor(), pieces.data(), static_cast<int>(pieces.size()));
    if (count > 0) return {.bytes = static_cast<std::size_t>(count)};
    return io_ended(count, errno, IoCount::State::WaitsToRead);
  }
  IoCount all;
  for (const iovec& piece : pieces) {
    for (std::size_t offset = 0; offset < piece.iov_len;) {
      IoCount one = tls_->read(static_cast<char*>(piece.iov_base) + offset, piece.iov_len - offset);
      // What came before is told first; whatever ended it will be there again.
      if (one.state != IoCount::State::Moved) return all.bytes > 0 ? all : one;
      offset += one.bytes;
      all.bytes += one.bytes;
    }
  }
  return all;
}

void RedisConnection::set_low_water(std::uint64_t bytes) {
  if (tls_ != nullptr) return;  // it reads records of its own
  const int wanted = static_cast<int>(bytes);
  if (wanted == low_water_) return;
  low_water_ = wanted;
  (void)setsockopt(descriptor(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));
}

std::uint64_t RedisConnection::unread_bytes() const {
  int bytes = 0;
  return ioctl(descriptor(), FIONREAD, &bytes) == 0 && bytes > 0 ? static_cast<std::uint64_t>(bytes) : 0;
}

void RedisConnection::shut_down() {
  (void)::shutdown(descriptor(), SHUT_RDWR);
}

IoCount RedisConnection::write(std::span<const iovec> pieces) {
  if (tls_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());  // which sendmsg() does not write to
    message.msg_iovlen = pieces.size();
    const ssize_t count = sendmsg(descriptor(), &message, MSG_NOSIGNAL);
    if (count > 0) return {.bytes = static_cast<std::size_t>(count)};
    return io_ended(count, errno, IoCount::State::WaitsToWrite);
  }
  IoCount all;
  for (const iovec& piece : pieces) {
    for (std::size_t offset = 0; offset < piece.iov_len;) {
      IoCount one = tls_->write(static_cast<const char*>(piece.iov_base) + offset, piece.iov_len - offset);
      if (one.state != IoCount::State::Moved) return all.bytes > 0 ? all : one;
      offset += one.bytes;
      all.bytes += one.bytes;
    }
  }
  return all;
}

}  // namespace quire
