// SPDX-License-Identifier: Apache-2.0
//
// StoreClient: a caller of a RemoteStore that trusts nobody. Values follow from their keys, so that each that comes
// back Ok can be compared. Memory of a batch that was answered is filled with a pattern, kept, and looked at again in
// the end; under the address sanitizer, touching it is an error at once.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "quire/remote_store.h"

namespace quire::testing {

/// The value that belongs to a key.
[[nodiscard]] std::vector<std::byte> value_of(const std::string& key, std::size_t bytes);

/// "prefix-0", "prefix-1", …
[[nodiscard]] std::vector<std::string> numbered_keys(const std::string& prefix, std::size_t count);

struct BatchRun {
  std::vector<RemoteOutcome> outcomes;
  std::vector<std::string> wrong_keys;  ///< of values that are Ok and not what belongs to their key
  RemoteAnswer answer;
  std::int64_t waited_ns = 0;  ///< from the call of try_submit() until the answer was polled

  [[nodiscard]] std::size_t count(RemoteOutcome outcome) const;
  [[nodiscard]] bool all(RemoteOutcome outcome) const { return count(outcome) == outcomes.size(); }
};

class StoreClient {
 public:
  explicit StoreClient(RemoteStore& store) : store_(store) {}
  /// Looks at all memory again, unless it was done already.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  struct Call {
    RemoteOperation operation = RemoteOperation::Get;
    std::vector<std::string> keys;
    std::size_t bytes = 0;  ///< of each value
    TimeNs timeout_ns = 20'000'000'000;
    bool is_path = false;
    RemotePriority priority = RemotePriority::Waiting;
    std::size_t pieces = 3;  ///< of each value
  };
  /// Submits it, and waits for the answer.
  BatchRun run(const Call& call);
  /// The same in two parts. An id of 0: the store had no room for it.
  std::uint64_t submit(const Call& call);
  BatchRun wait(std::uint64_t id);
  [[nodiscard]] bool has_answer(std::uint64_t id);

  BatchRun put(const std::vector<std::string>& keys, std::size_t bytes) {
    return run({.operation = RemoteOperation::Put, .keys = keys, .bytes = bytes});
  }
  BatchRun get(const std::vector<std::string>& keys, std::size_t bytes) {
    return run({.operation = RemoteOperation::Get, .keys = keys, .bytes = bytes});
  }
  BatchRun find(const std::vector<std::string>& keys) {
    return run({.operation = RemoteOperation::Find, .keys = keys});
  }

  /// Of values that came back Ok: those that were not what belongs to their key.
  [[nodiscard]] std::uint64_t wrong_values() const { return wrong_values_; }
  /// Memory that was written to after its batch was answered.
  [[nodiscard]] std::uint64_t touched_after_answer();

 private:
  struct Flight {
    std::uint64_t id = 0;
    Call call;
    std::int64_t submitted_at_ns = 0;
    std::vector<std::vector<std::byte>> values;
    std::vector<std::vector<std::span<std::byte>>> targets;
    std::vector<std::vector<std::span<const std::byte>>> sources;
    std::vector<RemoteObject> objects;
    bool is_answered = false;
    BatchRun run;
  };

  void poll_once(int wait_ms);
  void finish(Flight& flight, const RemoteAnswer& answer);

  RemoteStore& store_;
  std::uint64_t last_id_ = 0;
  std::list<Flight> flights_;
  std::vector<std::vector<std::byte>> retired_;
  std::uint64_t wrong_values_ = 0;
};

}  // namespace quire::testing
