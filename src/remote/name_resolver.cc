// SPDX-License-Identifier: Apache-2.0
#include "remote/name_resolver.h"

#include <pthread.h>

#include <system_error>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/mutex.h"

namespace quire {

struct NameResolver::Shared {
  struct Question {
    std::uint32_t node_index = 0;
    RedisEndpoint endpoint;
  };

  const NameLookUp look_up;
  const std::function<void()> wake;
  Mutex mutex;  // guards what follows, and calls of wake()
  std::vector<Question> questions QUIRE_GUARDED_BY(mutex);
  std::vector<Answer> answers QUIRE_GUARDED_BY(mutex);
  std::uint32_t thread_count QUIRE_GUARDED_BY(mutex) = 0;
  bool is_stopping QUIRE_GUARDED_BY(mutex) = false;
};

NameResolver::NameResolver(NameLookUp look_up, std::function<void()> wake, StartThread start)
    : start_(start), shared_(new Shared{.look_up = std::move(look_up), .wake = std::move(wake)}) {}

NameResolver::~NameResolver() {
  const MutexLock lock(shared_->mutex);
  shared_->is_stopping = true;
}

void NameResolver::start_thread(std::function<void()> body) {
  const BlockedSignals blocked;
  std::thread(std::move(body)).detach();
}

void NameResolver::ask(std::uint32_t node_index, const RedisEndpoint& endpoint) {
  MutexLock lock(shared_->mutex);
  shared_->questions.push_back({.node_index = node_index, .endpoint = endpoint});
  if (shared_->thread_count == kThreadsMax) return;
  ++shared_->thread_count;
  lock.unlock();
  try {
    start_([shared = shared_] { work(*shared); });
    return;
  } catch (const std::system_error& error) {
    lock.lock();
    // Another thread takes the question, if there is one.
    if (--shared_->thread_count > 0) return;
    for (const Shared::Question& question : std::exchange(shared_->questions, {})) {
      shared_->answers.push_back({.node_index = question.node_index,
                                  .endpoint = question.endpoint,
                                  .addresses = fail(ErrorCode::Unavailable, "the host '" + question.endpoint.host +
                                                                                "' cannot be looked up, as no thread "
                                                                                "can be started: " +
                                                                                error.code().message())});
    }
    shared_->wake();
  }
}

std::vector<NameResolver::Answer> NameResolver::take_answers() {
  const MutexLock lock(shared_->mutex);
  return std::exchange(shared_->answers, {});
}

void NameResolver::work(Shared& shared) {
  pthread_setname_np(pthread_self(), "quire-names");
  MutexLock lock(shared.mutex);
  while (!shared.questions.empty() && !shared.is_stopping) {
    const Shared::Question question = std::move(shared.questions.front());
    shared.questions.erase(shared.questions.begin());
    lock.unlock();
    Answer answer{.node_index = question.node_index,
                  .endpoint = question.endpoint,
                  .addresses = shared.look_up(question.endpoint)};
    lock.lock();
    if (shared.is_stopping) break;
    shared.answers.push_back(std::move(answer));
    shared.wake();
  }
  --shared.thread_count;
}

}  // namespace quire
