// SPDX-License-Identifier: Apache-2.0
//
// FakeDevice: a Device in plain memory. What is put on its streams runs later, one piece at a time, in an order that a
// seed draws among all that streams and events allow: work that should have waited for an event and did not will, for
// some seed, run too early. Streams have ranks that change now and then, so that one may also be left behind for long.
//
// It refuses what a GPU would stumble over: memory that it does not know, copies that cross from one registered piece
// into the next, and streams of another device. What can only be seen when work runs stops the program: memory that was
// given back meanwhile, and addresses that an access does not fit.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "quire/device.h"

namespace quire::testing {

struct FakeDeviceConfig {
  std::uint32_t index = 0;
  std::uint64_t seed = 0;
  std::uint32_t multiprocessor_count = 4;
  std::string pci_bus_id;
  std::size_t memory_bytes_max = std::size_t{1} << 30U;
  /// Only what runs on streams may touch memory that was allocated here: under the address sanitizer, anybody else who
  /// does is found out.
  bool guards_memory = false;
};

class FakeDevice : public Device {
 public:
  explicit FakeDevice(const FakeDeviceConfig& config = {});
  ~FakeDevice() override;

  /// Memory of somebody else's that counts as the device's.
  void adopt(std::span<std::byte> memory);
  /// A kernel of a test's: what it touches must be device memory when its turn comes, and `run` is called then. It may
  /// not call the device.
  [[nodiscard]] Status launch(std::vector<std::span<const std::byte>> touched, std::function<void()> run,
                              DeviceStream stream);
  /// The call that comes behind so many others, of those that may fail, fails; later ones do not. 0: the next one.
  void fail_call_after(std::uint64_t call_count);
  /// The same, and later ones fail as well: a device that is lost. What is on its streams by then never runs.
  void fail_calls_from(std::uint64_t call_count);
  /// Calls that may fail, since the beginning.
  [[nodiscard]] std::uint64_t call_count() const;
  /// Work runs only in synchronize() as long as it is held: has_happened() sees what was done by then.
  void hold(bool is_held);
  /// Runs everything.
  void drain();
  /// Work that was put on streams and has not run.
  [[nodiscard]] std::size_t pending_count() const;
  /// What is left: memory, registrations, streams and events that nobody gave back.
  [[nodiscard]] std::size_t leak_count() const;
  /// Streams that were made with this priority and not destroyed.
  [[nodiscard]] std::size_t stream_count(StreamPriority priority) const;
  /// Streams with work that has not run.
  [[nodiscard]] std::size_t busy_stream_count() const;
  [[nodiscard]] std::uint64_t copied_bytes() const;
  [[nodiscard]] std::uint64_t kernel_count() const;

  [[nodiscard]] std::uint32_t index() const override { return config_.index; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t multiprocessor_count() const override { return config_.multiprocessor_count; }
  [[nodiscard]] std::string pci_bus_id() const override { return config_.pci_bus_id; }
  [[nodiscard]] Result<std::byte*> allocate(std::size_t bytes) override;
  void release(std::byte* memory) override;
  [[nodiscard]] Status register_host(std::span<std::byte> memory, std::size_t unit_bytes) override;
  void unregister_host(std::span<std::byte> memory) override;
  [[nodiscard]] Result<DeviceStream> create_stream(StreamPriority priority) override;
  void destroy_stream(DeviceStream stream) override;
  [[nodiscard]] Result<DeviceEvent> create_event() override;
  void destroy_event(DeviceEvent event) override;
  [[nodiscard]] Status record(DeviceEvent event, DeviceStream stream) override;
  [[nodiscard]] Status wait(DeviceStream stream, DeviceEvent event) override;
  [[nodiscard]] Result<bool> has_happened(DeviceEvent event) override;
  [[nodiscard]] Status synchronize(DeviceStream stream) override;
  [[nodiscard]] Status copy(std::byte* target, const std::byte* source, std::size_t bytes,
                            DeviceStream stream) override;
  [[nodiscard]] Status copy_all(const CopyList& copies, DeviceStream stream) override;
  [[nodiscard]] Status move_fragments(const MoveFragmentsParams& params, DeviceStream stream) override;
  [[nodiscard]] Status finish_checksums(const FinishChecksumsParams& params, DeviceStream stream) override;

 private:
  // What one record() put on a stream. Shared with what waits for it, which does not mind if the event is recorded
  // again, on another stream, or destroyed.
  struct Recorded {
    bool has_happened = false;
  };
  struct Event {
    std::shared_ptr<Recorded> last;
  };
  struct Work {
    std::function<void()> run;  // empty for a wait
    std::shared_ptr<const Recorded> waits_for;
  };
  struct Stream {
    std::deque<Work> queue;
    std::uint64_t rank = 0;                         // the highest goes first
    StreamPriority priority = StreamPriority::Low;  // as it was asked for; nothing heeds it
  };
  struct Range {
    std::size_t bytes = 0;
    std::size_t unit_bytes = 0;  // of registered memory
  };

  [[nodiscard]] Status may_fail(const char* what);
  [[nodiscard]] Result<Stream*> stream_of(DeviceStream stream);
  [[nodiscard]] Result<Event*> event_of(DeviceEvent event);
  void run_copy(std::byte* target, const std::byte* source, std::size_t bytes);
  [[nodiscard]] Status check_copy(const std::byte* target, const std::byte* source, std::size_t bytes) const;
  [[nodiscard]] bool is_device_memory(const std::byte* data, std::size_t bytes) const;
  [[nodiscard]] bool is_one_registered_piece(const std::byte* data, std::size_t bytes) const;
  [[nodiscard]] bool is_registered(const std::byte* data, std::size_t bytes) const;
  void check_fragments(const MoveFragmentsParams& params) const;
  void check_results(const FinishChecksumsParams& params) const;
  [[nodiscard]] bool run_one();
  void run_all_of(const Stream& stream);
  void run_some();
  void guard_memory(bool is_guarded);

  const FakeDeviceConfig config_;
  const std::string name_;
  mutable std::mutex mutex_;  // guards what follows
  std::mt19937_64 draws_;
  std::uint64_t steps_per_rank_;  // how long streams keep their ranks, about
  std::map<const std::byte*, Range> device_memory_;
  std::map<const std::byte*, Range> registered_;
  std::vector<std::unique_ptr<Stream>> streams_;  // as they were made, so that a seed gives one order
  std::map<Event*, std::unique_ptr<Event>> events_;
  std::vector<std::byte*> allocated_;
  std::uint64_t calls_ = 0;
  std::uint64_t failing_call_ = UINT64_MAX;
  bool fails_from_then_on_ = false;
  std::size_t memory_bytes_ = 0;
  std::uint64_t copied_bytes_ = 0;
  std::uint64_t kernel_count_ = 0;
  bool is_held_ = false;
};

}  // namespace quire::testing
