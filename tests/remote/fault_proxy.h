// SPDX-License-Identifier: Apache-2.0
//
// FaultProxy: a Unix socket or a port between a store and a server, which does to the bytes of the server what networks
// and broken servers do. A fault applies from when it is set; requests are passed on as they are, perhaps slowly. Each
// connection has two threads.
//
// thread-safe
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "testing/temp_directory.h"

namespace quire::testing {

class FaultProxy {
 public:
  enum class Fault : std::uint8_t {
    None,
    Hold,       ///< answers are kept until another fault is set
    Throttle,   ///< answers come in small pieces, slowly
    HoldShort,  ///< the same, and short answers are kept until another fault is set
    Cut,        ///< connections end in the middle of the next long answer
    FlipBit,    ///< one bit in the next long answer
    Swap,       ///< the next two long answers change places
    Garbage,    ///< something else is said instead of the next answer
    Extra,      ///< one answer is given twice
    Other,      ///< an empty list instead of the next answer
  };

  /// With a port, it listens there instead, on the loopback.
  explicit FaultProxy(const std::string& server_path, std::uint16_t port = 0);
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  /// Any answer, unless the fault says which; or long ones only, as values are.
  void set(Fault fault, bool is_of_values = false);
  /// Of those that happen once: it has happened.
  [[nodiscard]] bool has_happened();
  /// Ends all connections that there are.
  void cut_all();
  [[nodiscard]] std::string url() const { return url_; }
  /// Of Throttle, 2,000 if not said.
  void set_pace(std::size_t bytes_per_ms) { bytes_per_ms_ = bytes_per_ms; }
  /// Of the requests of each connection; 0, as at first: as fast as they come.
  void set_request_pace(std::size_t bytes_per_ms) { request_bytes_per_ms_ = bytes_per_ms; }
  [[nodiscard]] std::uint32_t connection_count() const { return connection_count_; }
  /// Of answers that were passed on.
  [[nodiscard]] std::uint64_t answered_bytes() const { return answered_bytes_; }

 private:
  void accept_all();
  void pass_requests(int client, int server);
  void pass_answers(int client, int server);
  [[nodiscard]] bool pass(int client, std::string_view bytes, std::string& kept);
  /// A millisecond; with a fault, only as long as it is set. False: the proxy is about to go.
  [[nodiscard]] bool pause(std::optional<Fault> fault);

  TempDirectory directory_;
  std::string url_;
  const std::string server_path_;
  Descriptor listener_;
  std::atomic<std::uint32_t> connection_count_ = 0;
  std::atomic<std::uint64_t> answered_bytes_ = 0;
  std::atomic<std::size_t> bytes_per_ms_ = 2'000;
  std::atomic<std::size_t> request_bytes_per_ms_ = 0;

  Mutex mutex_;  // guards what follows
  Condition changed_;
  Fault fault_ QUIRE_GUARDED_BY(mutex_) = Fault::None;
  bool is_of_values_ QUIRE_GUARDED_BY(mutex_) = false;
  bool has_happened_ QUIRE_GUARDED_BY(mutex_) = false;
  bool is_stopping_ QUIRE_GUARDED_BY(mutex_) = false;
  std::vector<int> sockets_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ QUIRE_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace quire::testing
