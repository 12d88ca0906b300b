// SPDX-License-Identifier: Apache-2.0
//
// NameResolver: looks up names of machines on a thread of its own, since the system's resolver may take seconds. It is
// started with the first name; most stores have none to look up, as clusters name their nodes by address.
//
// thread-safe
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "quire/result.h"
#include "remote/redis_url.h"
#include "remote/socket_address.h"

namespace quire {

class NameResolver {
 public:
  struct Answer {
    std::uint32_t node_index = 0;
    RedisEndpoint endpoint;  ///< that was asked for
    Result<std::vector<SocketAddress>> addresses;
  };

  /// Calls both on its thread, `wake` when there is an answer.
  NameResolver(NameLookUp look_up, std::function<void()> wake) : look_up_(std::move(look_up)), wake_(std::move(wake)) {}
  /// Waits for the name that is being looked up.
  ~NameResolver();
  NameResolver(const NameResolver&) = delete;
  NameResolver& operator=(const NameResolver&) = delete;

  void ask(std::uint32_t node_index, const RedisEndpoint& endpoint);
  [[nodiscard]] std::vector<Answer> take_answers();

 private:
  struct Question {
    std::uint32_t node_index = 0;
    RedisEndpoint endpoint;
  };
  void work();

  const NameLookUp look_up_;
  const std::function<void()> wake_;
  Mutex mutex_;  // guards what follows
  Condition has_questions_;
  std::vector<Question> questions_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Answer> answers_ QUIRE_GUARDED_BY(mutex_);
  bool is_stopping_ QUIRE_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace quire
