// SPDX-License-Identifier: Apache-2.0
#include "remote/name_resolver.h"

#include <pthread.h>

#include <utility>

#include "base/blocked_signals.h"

namespace quire {

NameResolver::~NameResolver() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    has_questions_.notify_all();
  }
  thread_.join();
}

void NameResolver::ask(std::uint32_t node_index, const RedisEndpoint& endpoint) {
  if (!thread_.joinable()) {
    const BlockedSignals blocked;
    thread_ = std::thread([this] { work(); });
  }
  const MutexLock lock(mutex_);
  questions_.push_back({.node_index = node_index, .endpoint = endpoint});
  has_questions_.notify_one();
}

std::vector<NameResolver::Answer> NameResolver::take_answers() {
  const MutexLock lock(mutex_);
  return std::exchange(answers_, {});
}

void NameResolver::work() {
  pthread_setname_np(pthread_self(), "quire-names");
  MutexLock lock(mutex_);
  while (true) {
    while (questions_.empty() && !is_stopping_) has_questions_.wait(mutex_);
    if (is_stopping_) return;
    const Question question = std::move(questions_.front());
    questions_.erase(questions_.begin());
    lock.unlock();
    Answer answer{
        .node_index = question.node_index, .endpoint = question.endpoint, .addresses = look_up_(question.endpoint)};
    lock.lock();
    answers_.push_back(std::move(answer));
    wake_();
  }
}

}  // namespace quire
