// SPDX-License-Identifier: Apache-2.0
//
// An accelerator as the half of quire that moves bytes sees it: streams, events, memory, copies and the kernels of a
// swap. Device is a seam: open_cuda_device() of quire::cuda makes one of a GPU, tests have one that runs in plain
// memory, in any order that streams and events allow. No header of quire includes one of CUDA's: a stream is whatever
// the backend calls a stream.
//
// thread-safe, except that one stream is used by one thread at a time. Nothing but what its comment says blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "quire/result.h"
#include "quire/swap_kernels.h"

namespace quire {

/// A stream of the backend: a cudaStream_t.
struct DeviceStream {
  void* handle = nullptr;
  friend constexpr bool operator==(DeviceStream, DeviceStream) = default;
};

/// An event of the backend: a cudaEvent_t.
struct DeviceEvent {
  void* handle = nullptr;
  friend constexpr bool operator==(DeviceEvent, DeviceEvent) = default;
};

enum class StreamPriority : std::uint8_t { Low, High };

/// Copies that may run in any order, or at the same time. As many of each.
struct CopyList {
  std::span<std::byte* const> targets = {};
  std::span<const std::byte* const> sources = {};
  std::span<const std::size_t> bytes = {};
};

class Device {
 public:
  virtual ~Device() = default;

  /// The backend's number of this device. Everything else here is about it, whichever device a thread has selected.
  [[nodiscard]] virtual std::uint32_t index() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual std::uint32_t multiprocessor_count() const = 0;
  /// Where it stands on the PCI bus, such as "0000:3b:00.0"; empty where that is not known.
  [[nodiscard]] virtual std::string pci_bus_id() const { return {}; }

  // Memory.
  /// Device memory, zero at first and aligned to 256. Blocks.
  [[nodiscard]] virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  /// Makes host memory known to the device, so that it can be copied from and to without a detour, and kernels reach it
  /// at its address. Takes all of it from the system. It is done in pieces, by several threads; `unit_bytes` is the
  /// length of what one copy touches at most: copies do not cross from one piece into the next as long as each lies in
  /// one of the units that follow each other from the beginning on. Memory begins and ends at a multiple of 4096. What
  /// is registered already, by whomever in the process, is refused. Blocks.
  [[nodiscard]] virtual Status register_host(std::span<std::byte> memory, std::size_t unit_bytes) = 0;
  /// What register_host() was given. Blocks.
  virtual void unregister_host(std::span<std::byte> memory) = 0;

  // Streams and events.
  [[nodiscard]] virtual Result<DeviceStream> create_stream(StreamPriority priority) = 0;
  virtual void destroy_stream(DeviceStream stream) = 0;
  [[nodiscard]] virtual Result<DeviceEvent> create_event() = 0;
  virtual void destroy_event(DeviceEvent event) = 0;
  /// The event happens when all that is on the stream by now has.
  [[nodiscard]] virtual Status record(DeviceEvent event, DeviceStream stream) = 0;
  /// What comes on the stream from now on waits for the event as it was recorded last; not at all, if it never was.
  [[nodiscard]] virtual Status wait(DeviceStream stream, DeviceEvent event) = 0;
  /// Whether the event has happened, as it was recorded last. An error is that of anything before it.
  [[nodiscard]] virtual Result<bool> has_happened(DeviceEvent event) = 0;
  /// Waits for all that is on the stream. Blocks.
  [[nodiscard]] virtual Status synchronize(DeviceStream stream) = 0;

  // Bytes. Host memory must be registered.
  [[nodiscard]] virtual Status copy(std::byte* target, const std::byte* source, std::size_t bytes,
                                    DeviceStream stream) = 0;
  [[nodiscard]] virtual Status copy_all(const CopyList& copies, DeviceStream stream) = 0;
  [[nodiscard]] virtual Status move_fragments(const MoveFragmentsParams& params, DeviceStream stream) = 0;
  [[nodiscard]] virtual Status finish_checksums(const FinishChecksumsParams& params, DeviceStream stream) = 0;
};

// In quire::cuda.
/// How many GPUs there are; an error says why none can be used.
[[nodiscard]] Result<std::uint32_t> cuda_device_count();
/// One GPU, by CUDA's number.
[[nodiscard]] Result<std::unique_ptr<Device>> open_cuda_device(std::uint32_t index);

}  // namespace quire
