// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/system_error.h"

namespace quire {
namespace {

void signal(int event) {
  const std::uint64_t one = 1;
  (void)!write(event, &one, sizeof(one));  // it fails when it is signalled already, which is as good
}

void clear(int event) {
  std::uint64_t count = 0;
  (void)!read(event, &count, sizeof(count));
}

}  // namespace

RedisMailbox::RedisMailbox(std::uint32_t batch_count_max, std::uint32_t object_count_max)
    : work_event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      answers_event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      object_count_max_(object_count_max),
      places_(batch_count_max) {
  for (std::uint32_t i = batch_count_max; i != 0; --i) free_.push_back(i - 1);
  submitted_.reserve(batch_count_max);
  cancelled_.reserve(batch_count_max);
  answered_.reserve(batch_count_max);
}

Result<std::unique_ptr<RedisMailbox>> RedisMailbox::make(std::uint32_t batch_count_max,
                                                         std::uint32_t object_count_max) {
  std::unique_ptr<RedisMailbox> mailbox(new RedisMailbox(batch_count_max, object_count_max));
  if (mailbox->work_event() < 0 || mailbox->answers_event() < 0) {
    return fail(errno_code(errno), "no event for a remote store: " + errno_text(errno));
  }
  return mailbox;
}

bool RedisMailbox::try_submit(const RemoteBatch& batch, TimeNs now) {
  {
    const MutexLock lock(mutex_);
    if (free_.empty() || batch.objects.size() > object_count_max_ - object_count_) return false;
    object_count_ += static_cast<std::uint32_t>(batch.objects.size());
    const std::uint32_t place = free_.back();
    free_.pop_back();
    places_[place] = {.state = State::Submitted, .batch = batch, .submitted_at_ns = now};
    submitted_.push_back(place);
    if (submitted_.size() > 1) return true;  // the worker was woken for the first, and takes all
  }
  signal(work_event());
  return true;
}

void RedisMailbox::cancel(std::uint64_t id) {
  {
    const MutexLock lock(mutex_);
    const auto is_it = [&](const Place& place) {
      return (place.state == State::Submitted || place.state == State::Working) && place.batch.id == id;
    };
    const auto place = std::ranges::find_if(places_, is_it);
    // Once for each batch, so that there is room for all.
    if (place == places_.end() || std::exchange(place->is_cancelled, true)) return;
    cancelled_.push_back(id);
  }
  signal(work_event());
}

std::span<RemoteAnswer> RedisMailbox::poll(std::span<RemoteAnswer> out) {
  const MutexLock lock(mutex_);
  std::size_t count = 0;
  for (; count < out.size() && first_answer_ < answered_.size(); ++count) {
    const std::uint32_t place = answered_[first_answer_++];
    out[count] = places_[place].answer;
    places_[place].state = State::Free;
    free_.push_back(place);
  }
  if (first_answer_ == answered_.size() && first_answer_ > 0) {
    answered_.clear();
    first_answer_ = 0;
    clear(answers_event());
  }
  return out.first(count);
}

RemoteStatus RedisMailbox::status() const {
  const MutexLock lock(mutex_);
  RemoteStatus status = status_;
  status.batch_count = static_cast<std::uint32_t>(places_.size() - free_.size() - (answered_.size() - first_answer_));
  status.waiting_bytes = waiting_bytes_.load(std::memory_order_relaxed);
  return status;
}

void RedisMailbox::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  wake();
}

void RedisMailbox::wake() {
  signal(work_event());
}

bool RedisMailbox::take(std::vector<Taken>& batches, std::vector<std::uint64_t>& cancelled) {
  batches.clear();
  cancelled.clear();
  clear(work_event());
  const MutexLock lock(mutex_);
  for (const std::uint32_t index : submitted_) {
    Place& place = places_[index];
    place.state = State::Working;
    batches.push_back({.place = index, .batch = place.batch, .submitted_at_ns = place.submitted_at_ns});
  }
  submitted_.clear();
  cancelled.assign(cancelled_.begin(), cancelled_.end());
  cancelled_.clear();
  return !is_stopping_;
}

void RedisMailbox::answer(std::uint32_t place, const RemoteAnswer& answer) {
  const MutexLock lock(mutex_);
  places_[place].state = State::Answered;
  places_[place].answer = answer;
  if (answered_.size() == answered_.capacity()) {
    // As many as there are places, and some of them were polled: the others move to the front.
    answered_.erase(answered_.begin(), answered_.begin() + static_cast<std::ptrdiff_t>(first_answer_));
    first_answer_ = 0;
  }
  answered_.push_back(place);
  signal(answers_event());
}

void RedisMailbox::give_back_objects(std::uint32_t count) {
  const MutexLock lock(mutex_);
  object_count_ -= count;
}

void RedisMailbox::publish(const RemoteStatus& status) {
  const MutexLock lock(mutex_);
  status_ = status;
}

}  // namespace quire
