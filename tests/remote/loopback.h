// SPDX-License-Identifier: Apache-2.0
//
// Names of a test's own, and addresses of the loopback that behave in some way. All of 127.0.0.0/8 is the loopback, so
// a name may have several of its addresses, with servers of their own on one port.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "remote/redis_store.h"
#include "remote/socket_address.h"

namespace quire::testing {

/// What names stand for; they may change at any time. thread-safe
class NameTable {
 public:
  void set(const std::string& name, std::vector<std::string> addresses) {
    const MutexLock lock(shared_->mutex);
    shared_->names[name] = std::move(addresses);
  }
  [[nodiscard]] NameLookUp look_up() {
    return [shared = shared_](const RedisEndpoint& endpoint) -> Result<std::vector<SocketAddress>> {
      const MutexLock lock(shared->mutex);
      ++shared->count;
      std::vector<SocketAddress> addresses;
      for (const std::string& address : shared->names[endpoint.host]) {
        addresses.push_back(*address_in_numbers({.host = address, .port = endpoint.port}));
      }
      if (addresses.empty()) return fail(ErrorCode::Unavailable, "the host '" + endpoint.host + "' cannot be found");
      return addresses;
    };
  }
  /// Names that were looked up so far.
  [[nodiscard]] std::uint32_t count() {
    const MutexLock lock(shared_->mutex);
    return shared_->count;
  }
  /// Of the configuration, with these names.
  [[nodiscard]] RedisLogin login(const RedisConfig& config) {
    auto login = make_redis_login(config);
    EXPECT_TRUE(login.has_value()) << login.error().message;
    login->look_up = look_up();
    return *std::move(login);
  }
  [[nodiscard]] Result<std::unique_ptr<RemoteStore>> try_open(const RedisConfig& config) {
    return open_redis_store(config, login(config));
  }
  [[nodiscard]] std::unique_ptr<RemoteStore> open(const RedisConfig& config) {
    auto store = try_open(config);
    EXPECT_TRUE(store.has_value()) << store.error().message;
    return store.has_value() ? *std::move(store) : nullptr;
  }

 private:
  struct Shared {
    Mutex mutex;  // guards what follows
    std::map<std::string, std::vector<std::string>> names QUIRE_GUARDED_BY(mutex);
    std::uint32_t count QUIRE_GUARDED_BY(mutex) = 0;
  };
  // With threads that look names up and may outlive the test.
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

/// Listens, and takes no connection itself: the system does, as far as the queue goes. single-threaded
class Listener {
 public:
  Listener(const std::string& host, std::uint16_t port, int queue_length)
      : address_(*address_in_numbers({.host = host, .port = port})),
        socket_(::socket(address_.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const int on = 1;
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address_.storage), address_.bytes), 0);
    EXPECT_EQ(::listen(socket_.get(), queue_length), 0);
  }
  /// Fills the queue: from now on, connecting takes for ever.
  void fill() {
    for (bool is_full = false; !is_full;) {
      Descriptor& filler =
          fillers_.emplace_back(::socket(address_.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)::connect(filler.get(), reinterpret_cast<const sockaddr*>(&address_.storage), address_.bytes);
      pollfd poll_for{.fd = filler.get(), .events = POLLOUT, .revents = 0};
      is_full = ::poll(&poll_for, 1, 100) == 0;
    }
  }
  /// Somebody has connected.
  [[nodiscard]] bool has_visitor() {
    return Descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)).get() >= 0;
  }

 private:
  const SocketAddress address_;
  Descriptor socket_;
  std::vector<Descriptor> fillers_;
};

}  // namespace quire::testing
