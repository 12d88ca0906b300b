// SPDX-License-Identifier: Apache-2.0
//
// SimRemoteServer: a server of values in memory, that many RemoteStores share: each SimRemoteStore is what one process
// has of it. It does what remote_store.h allows a store to do. Nothing happens before the test says so: run_one() ends
// one batch, which one is drawn, as are the faults. Time is the number that set_now() was given; a batch whose time is
// over is answered when somebody polls.
//
// It looks after its callers too: a source that changes while its batch is in flight, and a target that somebody else
// writes meanwhile, end the program. So does a store that has a value put and everything below a prefix of its key
// dropped at the same time, because nobody knows which comes last. Targets are full of rubbish until their batch ends.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "quire/remote_store.h"
#include "testing/seeded_run.h"

namespace quire::testing {

class SimRemoteStore;

class SimRemoteServer {
 public:
  /// How many of a thousand go wrong: batches that are refused, else objects.
  struct Faults {
    std::uint32_t refused_batches = 0;
    std::uint32_t late = 0;       ///< of puts and drops half have happened
    std::uint32_t failed = 0;     ///< the same
    std::uint32_t lost_puts = 0;  ///< Ok, and gone
    std::uint32_t gone = 0;       ///< of gets: the value has just been evicted
    std::uint32_t promised = 0;   ///< of finds: Ok, and there is nothing
    std::uint32_t flipped_bits = 0;
    std::uint32_t foreign = 0;  ///< the value of another key of that length
    std::uint32_t other_lengths = 0;
  };
  enum class Node : std::uint8_t {
    Up,
    Failing,  ///< every batch fails
    Stopped,  ///< nothing is answered in time
  };
  enum class Eviction : std::uint8_t { LeastUsed, Random };
  /// Objects so far, whatever became of them.
  struct Counts {
    std::uint64_t found = 0;
    std::uint64_t got = 0;
    std::uint64_t put = 0;
    std::uint64_t dropped = 0;
    std::uint64_t batches = 0;
  };

  explicit SimRemoteServer(std::uint64_t seed) : random_(seed) {}

  // What the test says.

  /// Ends a batch. False: there is none, or nothing is answered.
  bool run_one();
  void set_now(TimeNs now_ns);
  void set_faults(const Faults& faults);
  void set_node(Node node);
  /// Values that are kept; the rest is evicted.
  void set_value_count_max(std::size_t count, Eviction eviction = Eviction::LeastUsed);
  /// Off where the test itself breaks bytes of sources and targets in flight.
  void set_checks_memory(bool checks);
  /// Batches in flight, of each store.
  void set_batch_count_max(std::size_t count);
  void restart_empty();

  // What strangers do, and see.

  void put_value(const std::string& key, std::vector<std::byte> bytes);
  void drop_value(const std::string& key);
  [[nodiscard]] std::vector<std::byte> value(const std::string& key) const;
  [[nodiscard]] std::vector<std::string> keys() const;
  [[nodiscard]] std::size_t batch_count() const;
  [[nodiscard]] Counts counts() const;

 private:
  friend class SimRemoteStore;
  struct Value {
    std::vector<std::byte> bytes;
    std::uint64_t used = 0;
  };
  struct Flight {
    SimRemoteStore* store = nullptr;
    RemoteBatch batch;
    TimeNs start_ns = 0;
    std::vector<std::uint64_t> hashes;  // of each object's memory when it came
  };

  [[nodiscard]] bool draws(std::uint32_t of_thousand) QUIRE_REQUIRES(mutex_);
  void end(std::size_t flight, RemoteOutcome outcome) QUIRE_REQUIRES(mutex_);
  [[nodiscard]] RemoteOutcome run(RemoteOperation operation, const RemoteObject& object) QUIRE_REQUIRES(mutex_);
  [[nodiscard]] RemoteOutcome get(const RemoteObject& object) QUIRE_REQUIRES(mutex_);
  [[nodiscard]] RemoteOutcome put(const RemoteObject& object) QUIRE_REQUIRES(mutex_);
  void end_late() QUIRE_REQUIRES(mutex_);
  void make_room() QUIRE_REQUIRES(mutex_);
  void check_order(const SimRemoteStore* store, const RemoteBatch& batch) const QUIRE_REQUIRES(mutex_);
  static std::uint64_t hash_of(const RemoteObject& object);

  mutable Mutex mutex_;  // guards what follows, and the stores' answers
  Random random_ QUIRE_GUARDED_BY(mutex_);
  std::map<std::string, Value, std::less<>> values_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Flight> flights_ QUIRE_GUARDED_BY(mutex_);
  Faults faults_ QUIRE_GUARDED_BY(mutex_);
  Node node_ QUIRE_GUARDED_BY(mutex_) = Node::Up;
  Eviction eviction_ QUIRE_GUARDED_BY(mutex_) = Eviction::LeastUsed;
  std::size_t value_count_max_ QUIRE_GUARDED_BY(mutex_) = SIZE_MAX;
  std::size_t batch_count_max_ QUIRE_GUARDED_BY(mutex_) = 64;
  bool checks_memory_ QUIRE_GUARDED_BY(mutex_) = true;
  TimeNs now_ns_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t use_count_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t moved_bytes_ QUIRE_GUARDED_BY(mutex_) = 0;  // by the batch that runs
  Counts counts_ QUIRE_GUARDED_BY(mutex_);
};

class SimRemoteStore final : public RemoteStore {
 public:
  /// The server must outlive it.
  explicit SimRemoteStore(SimRemoteServer& server);
  ~SimRemoteStore() override;
  SimRemoteStore(const SimRemoteStore&) = delete;
  SimRemoteStore& operator=(const SimRemoteStore&) = delete;

  [[nodiscard]] Status register_memory(std::span<std::byte> memory) override;
  void unregister_memory(std::span<std::byte> memory) override;
  [[nodiscard]] bool try_submit(const RemoteBatch& batch) override;
  void cancel(std::uint64_t id) override;
  [[nodiscard]] std::span<RemoteAnswer> poll(std::span<RemoteAnswer> out) override;
  [[nodiscard]] int event_fd() const override { return event_fd_; }
  [[nodiscard]] RemoteStatus status() const override;

  /// How many batches had ended when everything below this prefix was last dropped for this store, with that one; 0: it
  /// never was.
  [[nodiscard]] std::uint64_t dropped_at(std::string_view prefix) const;

 private:
  friend class SimRemoteServer;
  SimRemoteServer& server_;
  int event_fd_ = -1;
  // Guarded by the server's mutex.
  std::vector<RemoteAnswer> answers_;
  std::map<std::string, std::uint64_t, std::less<>> drops_;  // by prefix
};

}  // namespace quire::testing
