// SPDX-License-Identifier: Apache-2.0
//
// NameResolver: looks up names of machines on threads of its own, since the system's resolver may take tens of seconds
// for one. There are a few of them, so that others do not wait for such a name, and only while there are names to look
// up; most stores have none, as clusters name their nodes by address.
//
// thread-safe
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "quire/result.h"
#include "remote/redis_url.h"
#include "remote/socket_address.h"

namespace quire {

class NameResolver {
 public:
  static constexpr std::uint32_t kThreadsMax = 4;

  struct Answer {
    std::uint32_t node_index = 0;
    RedisEndpoint endpoint;  ///< that was asked for
    Result<std::vector<SocketAddress>> addresses;
  };
  /// Runs it on a thread that nobody waits for, or throws what std::thread throws.
  using StartThread = void (*)(std::function<void()> body);
  static void start_thread(std::function<void()> body);

  /// `look_up` is called on threads that may outlive this: it must need nothing that does not. `wake` is called when
  /// there is an answer, on any thread, while this lives.
  NameResolver(NameLookUp look_up, std::function<void()> wake, StartThread start = start_thread);
  /// Waits for nothing: who is in the middle of a name ends behind it.
  ~NameResolver();
  NameResolver(const NameResolver&) = delete;
  NameResolver& operator=(const NameResolver&) = delete;

  void ask(std::uint32_t node_index, const RedisEndpoint& endpoint);
  [[nodiscard]] std::vector<Answer> take_answers();

 private:
  struct Shared;
  static void work(Shared& shared);

  const StartThread start_;
  const std::shared_ptr<Shared> shared_;  // with the threads, which cannot be made to end
};

}  // namespace quire
