// SPDX-License-Identifier: Apache-2.0
#include "tests/remote/store_client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "remote/monotonic_clock.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_poison_memory_region(const volatile void* address, std::size_t bytes);
extern "C" void __asan_unpoison_memory_region(const volatile void* address, std::size_t bytes);
#endif

namespace quire::testing {
namespace {

constexpr std::byte kRetired{0xA5};

// Under the address sanitizer, whoever touches it, the system on our behalf too, ends the test.
void set_forbidden([[maybe_unused]] std::vector<std::byte>& memory, [[maybe_unused]] bool is_forbidden) {
#if defined(__SANITIZE_ADDRESS__)
  if (is_forbidden) {
    __asan_poison_memory_region(memory.data(), memory.size());
  } else {
    __asan_unpoison_memory_region(memory.data(), memory.size());
  }
#endif
}

}  // namespace

std::vector<std::byte> value_of(const std::string& key, std::size_t bytes) {
  std::vector<std::byte> value(bytes);
  const std::uint64_t seed = hash_bytes(key.data(), key.size(), 1);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = mix64(seed + i);
    std::memcpy(value.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return value;
}

std::vector<std::string> numbered_keys(const std::string& prefix, std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(prefix + "-" + std::to_string(i));
  return keys;
}

std::size_t BatchRun::count(RemoteOutcome outcome) const {
  return static_cast<std::size_t>(std::ranges::count(outcomes, outcome));
}

StoreClient::~StoreClient() {
  for (const auto& flight : flights_) QUIRE_CHECK(flight.is_answered, "a batch was never waited for");
  QUIRE_CHECK(touched_after_answer() == 0, "memory was written to after its batch was answered");
}

std::uint64_t StoreClient::submit(const Call& call) {
  Flight& flight = flights_.emplace_back();
  flight.id = ++last_id_;
  flight.call = call;
  const std::size_t count = call.keys.size();
  flight.values.resize(count);
  flight.targets.resize(count);
  flight.sources.resize(count);
  flight.objects.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    RemoteObject& object = flight.objects[i];
    object.key = flight.call.keys[i];
    if (call.operation != RemoteOperation::Get && call.operation != RemoteOperation::Put) continue;
    const bool is_put = call.operation == RemoteOperation::Put;
    flight.values[i] = is_put ? value_of(call.keys[i], call.bytes) : std::vector<std::byte>(call.bytes);
    std::span<std::byte> rest = flight.values[i];
    for (std::size_t piece = 0; piece < call.pieces; ++piece) {
      const std::size_t bytes = piece + 1 == call.pieces ? rest.size() : rest.size() / (call.pieces - piece);
      flight.targets[i].push_back(rest.first(bytes));
      flight.sources[i].emplace_back(rest.first(bytes));
      rest = rest.subspan(bytes);
    }
    if (is_put) {
      object.source = flight.sources[i];
    } else {
      object.target = flight.targets[i];
    }
  }
  flight.submitted_at_ns = monotonic_now();
  const bool is_taken = store_.try_submit({.id = flight.id,
                                           .operation = call.operation,
                                           .priority = call.priority,
                                           .timeout_ns = call.timeout_ns,
                                           .is_path = call.is_path,
                                           .objects = flight.objects});
  if (is_taken) return flight.id;
  flights_.pop_back();
  return 0;
}

void StoreClient::finish(Flight& flight, const RemoteAnswer& answer) {
  QUIRE_CHECK(!flight.is_answered, "a batch was answered twice");
  flight.is_answered = true;
  flight.run.answer = answer;
  flight.run.waited_ns = monotonic_now() - flight.submitted_at_ns;
  for (std::size_t i = 0; i < flight.objects.size(); ++i) {
    flight.run.outcomes.push_back(flight.objects[i].outcome);
    std::vector<std::byte>& value = flight.values[i];
    if (flight.call.operation == RemoteOperation::Get && flight.objects[i].outcome == RemoteOutcome::Ok &&
        value != value_of(flight.call.keys[i], flight.call.bytes)) {
      ++wrong_values_;
      flight.run.wrong_keys.push_back(flight.call.keys[i]);
    }
    std::ranges::fill(value, kRetired);
    if (!value.empty()) {
      set_forbidden(value, true);
      retired_.push_back(std::move(value));
    }
  }
}

void StoreClient::poll_once(int wait_ms) {
  pollfd event{.fd = store_.event_fd(), .events = POLLIN, .revents = 0};
  (void)::poll(&event, 1, wait_ms);
  std::array<RemoteAnswer, 16> answers;
  for (const RemoteAnswer& answer : store_.poll(answers)) {
    const auto flight = std::ranges::find_if(flights_, [&](const Flight& f) { return f.id == answer.id; });
    QUIRE_CHECK(flight != flights_.end(), "an answer to nothing");
    finish(*flight, answer);
  }
}

bool StoreClient::has_answer(std::uint64_t id) {
  poll_once(0);
  return std::ranges::find_if(flights_, [&](const Flight& f) { return f.id == id && f.is_answered; }) != flights_.end();
}

BatchRun StoreClient::wait(std::uint64_t id) {
  const auto flight = std::ranges::find_if(flights_, [&](const Flight& f) { return f.id == id; });
  QUIRE_CHECK(flight != flights_.end(), "there is no such batch");
  const std::int64_t limit = monotonic_now() + 60'000'000'000;
  while (!flight->is_answered) {
    QUIRE_CHECK(monotonic_now() < limit, "a batch is never answered");
    poll_once(1000);
  }
  const BatchRun run = flight->run;
  flights_.erase(flight);
  return run;
}

BatchRun StoreClient::run(const Call& call) {
  const std::uint64_t id = submit(call);
  QUIRE_CHECK(id != 0, "the store has no room");
  return wait(id);
}

std::uint64_t StoreClient::touched_after_answer() {
  std::uint64_t count = 0;
  for (std::vector<std::byte>& value : retired_) {
    set_forbidden(value, false);
    count += static_cast<std::uint64_t>(std::ranges::count_if(value, [](std::byte b) { return b != kRetired; }));
  }
  retired_.clear();
  return count;
}

}  // namespace quire::testing
