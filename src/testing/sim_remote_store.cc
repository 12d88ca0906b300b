// SPDX-License-Identifier: Apache-2.0
#include "testing/sim_remote_store.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace quire::testing {
namespace {

constexpr TimeNs kTimeoutNs = 60'000'000'000;  // of batches that have none

// By address, so that targets that overlap have the same.
void fill_with_rubbish(std::span<std::byte> bytes) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(mix64(reinterpret_cast<std::uintptr_t>(&byte) / 8));
}

std::uint64_t bytes_of(const RemoteObject& object) {
  std::uint64_t bytes = 0;
  for (const std::span<const std::byte> piece : object.target) bytes += piece.size();
  for (const std::span<const std::byte> piece : object.source) bytes += piece.size();
  return bytes;
}

}  // namespace

bool SimRemoteServer::draws(std::uint32_t of_thousand) {
  return of_thousand > 0 && random_.below(1000) < of_thousand;
}

std::uint64_t SimRemoteServer::hash_of(const RemoteObject& object) {
  std::uint64_t hash = 0;
  for (const std::span<const std::byte> piece : object.target) hash = hash_bytes(piece.data(), piece.size(), hash);
  for (const std::span<const std::byte> piece : object.source) hash = hash_bytes(piece.data(), piece.size(), hash);
  return hash;
}

bool SimRemoteServer::run_one() {
  const MutexLock lock(mutex_);
  end_late();
  if (flights_.empty() || node_ == Node::Stopped) return false;
  const std::size_t flight = random_.below(static_cast<std::uint32_t>(flights_.size()));
  end(flight, node_ == Node::Up ? RemoteOutcome::Ok : RemoteOutcome::Failed);
  return true;
}

// Ok: as it goes. Else nothing is answered any more, and objects that change something may have done it.
void SimRemoteServer::end(std::size_t index, RemoteOutcome outcome) {
  const Flight flight = std::move(flights_[index]);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(index));
  const std::span<RemoteObject> objects = flight.batch.objects;
  for (std::size_t i = 0; i < objects.size() && checks_memory_; ++i) {
    QUIRE_CHECK(hash_of(objects[i]) == flight.hashes[i], "memory of a batch in flight was changed by somebody else");
  }
  const bool changes = flight.batch.operation == RemoteOperation::Put ||
                       flight.batch.operation == RemoteOperation::Drop ||
                       flight.batch.operation == RemoteOperation::DropBelow;
  moved_bytes_ = 0;
  ++counts_.batches;
  for (RemoteObject& object : objects) {
    RemoteOutcome end = outcome;
    if (end == RemoteOutcome::Ok && draws(faults_.late)) end = RemoteOutcome::Late;
    if (end == RemoteOutcome::Ok && draws(faults_.failed)) end = RemoteOutcome::Failed;
    const bool has_happened = end == RemoteOutcome::Ok || (changes && random_.below(2) == 0);
    const RemoteOutcome ran = has_happened ? run(flight.batch.operation, object) : end;
    object.outcome = end == RemoteOutcome::Ok ? ran : end;
    const bool is_swept = flight.batch.operation == RemoteOperation::DropBelow && object.outcome == RemoteOutcome::Ok;
    if (is_swept) flight.store->drops_.insert_or_assign(std::string(object.key), counts_.batches);
    if (flight.batch.is_path && outcome == RemoteOutcome::Ok && object.outcome != RemoteOutcome::Ok) break;
  }
  flight.store->answers_.push_back({.id = flight.batch.id,
                                    .first_byte_ns = outcome == RemoteOutcome::Ok ? now_ns_ - flight.start_ns + 1 : 0,
                                    .busy_ns = now_ns_ - flight.start_ns + 1,
                                    .moved_bytes = moved_bytes_});
  constexpr std::uint64_t kOne = 1;
  (void)!::write(flight.store->event_fd_, &kOne, sizeof(kOne));
}

void SimRemoteServer::end_late() {
  for (std::size_t i = flights_.size(); i-- > 0;) {
    const TimeNs timeout_ns = flights_[i].batch.timeout_ns > 0 ? flights_[i].batch.timeout_ns : kTimeoutNs;
    if (now_ns_ - flights_[i].start_ns >= timeout_ns) end(i, RemoteOutcome::Late);
  }
}

RemoteOutcome SimRemoteServer::run(RemoteOperation operation, const RemoteObject& object) {
  const auto value = values_.find(object.key);
  switch (operation) {
    case RemoteOperation::Find:
      ++counts_.found;
      if (value != values_.end()) value->second.used = ++use_count_;
      return value != values_.end() || draws(faults_.promised) ? RemoteOutcome::Ok : RemoteOutcome::Absent;
    case RemoteOperation::Get:
      ++counts_.got;
      return get(object);
    case RemoteOperation::Put:
      ++counts_.put;
      return put(object);
    case RemoteOperation::Drop:
      ++counts_.dropped;
      if (value != values_.end()) values_.erase(value);
      return RemoteOutcome::Ok;
    case RemoteOperation::DropBelow:
      ++counts_.dropped;
      std::erase_if(values_, [&](const auto& each) { return each.first.starts_with(object.key); });
      return RemoteOutcome::Ok;
  }
  return RemoteOutcome::Failed;
}

RemoteOutcome SimRemoteServer::get(const RemoteObject& object) {
  auto value = values_.find(object.key);
  if (value != values_.end() && draws(faults_.gone)) {
    values_.erase(value);
    value = values_.end();
  }
  if (value == values_.end()) return RemoteOutcome::Absent;
  value->second.used = ++use_count_;
  std::vector<std::byte> bytes = value->second.bytes;
  if (draws(faults_.foreign)) {
    const auto other = std::next(values_.begin(), random_.below(static_cast<std::uint32_t>(values_.size())));
    if (other->second.bytes.size() == bytes.size()) bytes = other->second.bytes;
  }
  if (draws(faults_.flipped_bits) && !bytes.empty()) {
    bytes[random_.below(static_cast<std::uint32_t>(bytes.size()))] ^= std::byte{1} << random_.below(8);
  }
  if (draws(faults_.other_lengths)) bytes.resize(random_.below(static_cast<std::uint32_t>(2 * bytes.size()) + 1));
  // What fits is there, whatever comes of it.
  std::size_t offset = 0;
  for (const std::span<std::byte> piece : object.target) {
    const std::size_t count = std::min(piece.size(), bytes.size() - offset);
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), count, piece.begin());
    offset += count;
  }
  if (bytes_of(object) != bytes.size()) return RemoteOutcome::Corrupt;
  moved_bytes_ += bytes.size();
  return RemoteOutcome::Ok;
}

RemoteOutcome SimRemoteServer::put(const RemoteObject& object) {
  Value value{.bytes = {}, .used = ++use_count_};
  for (const std::span<const std::byte> piece : object.source) {
    value.bytes.insert(value.bytes.end(), piece.begin(), piece.end());
  }
  moved_bytes_ += value.bytes.size();
  if (draws(faults_.lost_puts)) return RemoteOutcome::Ok;
  values_.insert_or_assign(std::string(object.key), std::move(value));
  make_room();
  return RemoteOutcome::Ok;
}

void SimRemoteServer::make_room() {
  while (values_.size() > value_count_max_) {
    auto victim = std::next(values_.begin(), random_.below(static_cast<std::uint32_t>(values_.size())));
    if (eviction_ == Eviction::LeastUsed) {
      victim = std::ranges::min_element(values_, {}, [](const auto& each) { return each.second.used; });
    }
    values_.erase(victim);
  }
}

void SimRemoteServer::check_order(const SimRemoteStore* store, const RemoteBatch& batch) const {
  const auto is_below = [](const RemoteBatch& puts, const RemoteBatch& drops) {
    if (puts.operation != RemoteOperation::Put || drops.operation != RemoteOperation::DropBelow) return false;
    return std::ranges::any_of(puts.objects, [&](const RemoteObject& put) {
      return std::ranges::any_of(drops.objects,
                                 [&](const RemoteObject& drop) { return put.key.starts_with(drop.key); });
    });
  };
  for (const Flight& flight : flights_) {
    QUIRE_CHECK(flight.store != store || (!is_below(batch, flight.batch) && !is_below(flight.batch, batch)),
                "a value is put and dropped at the same time");
  }
}

void SimRemoteServer::set_now(TimeNs now_ns) {
  const MutexLock lock(mutex_);
  now_ns_ = now_ns;
}

void SimRemoteServer::set_faults(const Faults& faults) {
  const MutexLock lock(mutex_);
  faults_ = faults;
}

void SimRemoteServer::set_node(Node node) {
  const MutexLock lock(mutex_);
  node_ = node;
}

void SimRemoteServer::set_value_count_max(std::size_t count, Eviction eviction) {
  const MutexLock lock(mutex_);
  value_count_max_ = count;
  eviction_ = eviction;
  make_room();
}

void SimRemoteServer::set_checks_memory(bool checks) {
  const MutexLock lock(mutex_);
  checks_memory_ = checks;
}

void SimRemoteServer::set_batch_count_max(std::size_t count) {
  const MutexLock lock(mutex_);
  batch_count_max_ = count;
}

void SimRemoteServer::restart_empty() {
  const MutexLock lock(mutex_);
  values_.clear();
}

void SimRemoteServer::put_value(const std::string& key, std::vector<std::byte> bytes) {
  const MutexLock lock(mutex_);
  values_.insert_or_assign(key, Value{.bytes = std::move(bytes), .used = ++use_count_});
  make_room();
}

void SimRemoteServer::drop_value(const std::string& key) {
  const MutexLock lock(mutex_);
  values_.erase(key);
}

std::vector<std::byte> SimRemoteServer::value(const std::string& key) const {
  const MutexLock lock(mutex_);
  const auto value = values_.find(key);
  return value != values_.end() ? value->second.bytes : std::vector<std::byte>{};
}

std::vector<std::string> SimRemoteServer::keys() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

std::size_t SimRemoteServer::batch_count() const {
  const MutexLock lock(mutex_);
  return flights_.size();
}

SimRemoteServer::Counts SimRemoteServer::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

// The store

SimRemoteStore::SimRemoteStore(SimRemoteServer& server)
    : server_(server), event_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  QUIRE_CHECK(event_fd_ >= 0, "a store in memory has an eventfd");
}

SimRemoteStore::~SimRemoteStore() {
  {
    const MutexLock lock(server_.mutex_);
    for (std::size_t i = server_.flights_.size(); i-- > 0;) {
      if (server_.flights_[i].store == this) server_.end(i, RemoteOutcome::Late);
    }
  }
  ::close(event_fd_);
}

Status SimRemoteStore::register_memory(std::span<std::byte> /*memory*/) {
  return {};
}

void SimRemoteStore::unregister_memory(std::span<std::byte> /*memory*/) {}

bool SimRemoteStore::try_submit(const RemoteBatch& batch) {
  SimRemoteServer& server = server_;
  const MutexLock lock(server.mutex_);
  const auto flight_count = std::ranges::count(server.flights_, this, &SimRemoteServer::Flight::store);
  if (flight_count + static_cast<std::ptrdiff_t>(answers_.size()) >=
          static_cast<std::ptrdiff_t>(server.batch_count_max_) ||
      server.draws(server.faults_.refused_batches))
    return false;
  QUIRE_CHECK(!batch.objects.empty(), "a batch has objects");
  for (const auto& each : server.flights_) {
    QUIRE_CHECK(each.store != this || each.batch.id != batch.id, "two batches with one id");
  }
  server.check_order(this, batch);
  auto& flight = server.flights_.emplace_back(
      SimRemoteServer::Flight{.store = this, .batch = batch, .start_ns = server.now_ns_, .hashes = {}});
  for (RemoteObject& object : batch.objects) {
    const bool is_key = !object.key.empty() && object.key.size() <= kRemoteKeyBytesMax &&
                        std::ranges::all_of(object.key, [](char c) { return c > ' ' && c <= '~'; });
    QUIRE_CHECK(is_key, "a key is printable and not too long");
    QUIRE_CHECK(object.outcome == RemoteOutcome::NotTried, "an object begins without an outcome");
    for (const std::span<std::byte> piece : object.target) fill_with_rubbish(piece);
  }
  for (const RemoteObject& object : batch.objects) flight.hashes.push_back(SimRemoteServer::hash_of(object));
  return true;
}

void SimRemoteStore::cancel(std::uint64_t id) {
  SimRemoteServer& server = server_;
  const MutexLock lock(server.mutex_);
  for (std::size_t i = 0; i < server.flights_.size(); ++i) {
    if (server.flights_[i].store != this || server.flights_[i].batch.id != id) continue;
    server.end(i, RemoteOutcome::Late);
    return;
  }
}

std::span<RemoteAnswer> SimRemoteStore::poll(std::span<RemoteAnswer> out) {
  SimRemoteServer& server = server_;
  const MutexLock lock(server.mutex_);
  server.end_late();
  const std::size_t count = std::min(out.size(), answers_.size());
  std::copy_n(answers_.begin(), count, out.begin());
  answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(count));
  std::uint64_t marks = 0;
  if (answers_.empty()) (void)!::read(event_fd_, &marks, sizeof(marks));
  return out.first(count);
}

std::uint64_t SimRemoteStore::dropped_at(std::string_view prefix) const {
  const MutexLock lock(server_.mutex_);
  const auto drop = drops_.find(prefix);
  return drop != drops_.end() ? drop->second : 0;
}

RemoteStatus SimRemoteStore::status() const {
  SimRemoteServer& server = server_;
  const MutexLock lock(server.mutex_);
  const bool is_up = server.node_ == SimRemoteServer::Node::Up;
  return {.node_count = 1,
          .failed_nodes = is_up ? 0U : 1U,
          .is_usable = is_up,
          .batch_count =
              static_cast<std::uint32_t>(std::ranges::count(server.flights_, this, &SimRemoteServer::Flight::store)),
          .last_error = is_up ? "" : "the store in memory was made to fail"};
}

}  // namespace quire::testing
