// SPDX-License-Identifier: Apache-2.0
//
// Mover: copies pages between device memory and a host tier of its own. Where the processor reaches the device's memory
// its threads copy; pages on an accelerator move by a SwapEngine (swap.h), on streams of the mover's. It decides
// nothing: TransferPlans in, Completions out. A Cache with a host tier makes one by itself; open one where plans go to
// several ranks, or to another process.
//
//     mover->try_submit(plan)       a plan is copied into the queue of its direction; full is an answer
//     mover->poll(completions)      what has ended since; event_fd() becomes readable when there is something
//     mover->wait(id, band, ns)     for an engine that begins before all layers are there
//
// It moves pages of one pool or of several, each with ids and host pages of its own; a plan names one of them. All host
// pages are page-first records in one region. Each has a generation, a name tag and a checksum, which are written with
// the bytes and verified when they are loaded: a page that is not what the plan says is reported, never delivered as
// good. A load that is submitted after a store of the same host page has been reported, by poll() or by wait(), sees
// what was stored; between two transfers that are on their way at the same time there is no order, and none may write a
// page that the other one uses. Where plans break this, host pages answer with a fault; device pages are not guarded.
//
// thread-safe. Destroying it cancels what is queued, waits for the pages being copied, and reports nothing more; those
// who are in wait() are told Cancelled first, and those in wait_on() Unavailable. Nothing is allocated after open(),
// except for errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/layout.h"
#include "quire/result.h"
#include "quire/swap.h"
#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

class HostPages;

/// What the host region should lie in. What the system refuses is done without, and told by HostRegionStatus.
struct HostRegionConfig {
  bool huge_pages = true;
  /// Unset: the accelerator's, where the system tells which that is; else wherever the system puts it.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  bool bind_threads = true;  ///< the mover's threads run on the processors of that node
  bool lock_memory = false;  ///< never swapped out; all of it is taken at once
};

/// What the host region lies in.
struct HostRegionStatus {
  bool has_huge_pages = false;
  bool has_reserved_huge_pages = false;  ///< of those that the system has set apart (hugetlbfs), not transparent ones
  std::optional<std::uint32_t> numa_node =
      std::nullopt;                ///< that was asked for, by the configuration or for the accelerator
  bool is_on_numa_node = false;    ///< on that one, as long as it has memory
  bool has_bound_threads = false;  ///< the mover's threads run on its processors only
  bool is_locked = false;
  std::string refusals = {};  ///< what was asked for and refused, and why; empty when nothing was
};

/// Device pages of one geometry.
struct MoverPart {
  const PoolGeometry* geometry = nullptr;  ///< copied by open()
  std::byte* memory = nullptr;
  /// In place of memory, on an accelerator: tensors that lie anywhere. The geometry then counts pages and their bytes.
  std::vector<AdoptedTensor> tensors = {};
};

/// Pages that have their ids and host pages to themselves. With several parts, which have as many pages each, an id
/// names a page in every one of them: these move together, and are one record on the host. Their layers count on from
/// part to part.
struct MoverPool {
  std::vector<MoverPart> parts = {};
  std::uint32_t host_page_count = 0;  ///< ids lie in [1, host_page_count]; a SwapEngine's RecordId counts from 0
};

/// The streams of one direction, load or store, of a mover with an accelerator. A set of them carries one transfer
/// behind the other; transfers take the sets in turn, so that as many may overlap as there are sets.
struct TransferStreams {
  static constexpr std::uint32_t kSetCountMax = 4;

  std::uint32_t set_count = 1;  ///< that the mover makes, up to kSetCountMax; kernels have two streams of each set
  StreamPriority priority = StreamPriority::High;
  /// In place of those: the caller's own, up to kSetCountMax sets, which outlive the mover. Nobody else puts work on
  /// them meanwhile.
  std::vector<SwapStreams> given = {};
};

struct MoverConfig {
  // One pool of one part.
  const PoolGeometry* device_geometry = nullptr;  ///< copied by open()
  std::byte* device_memory = nullptr;
  std::uint32_t host_page_count = 0;  ///< ids lie in [1, host_page_count]; a SwapEngine's RecordId counts from 0
  /// Or any pools, and then none of the above. TransferPlan::pool_index counts them.
  std::vector<MoverPool> pools = {};
  HostRegionConfig host_region = {};
  bool checksums = true;
  std::uint32_t load_thread_count = 1;
  std::uint32_t store_thread_count = 1;
  std::uint32_t queue_depth_max = 256;     ///< plans waiting in each direction
  std::uint32_t transfer_pages_max = 256;  ///< pages of one plan
  std::uint16_t rank = 0;                  ///< written into completions
  /// Where the device's memory lies, if the processor does not reach it. It outlives the mover. The host region is then
  /// registered with it, and stays so; thread counts are not looked at.
  Device* accelerator = nullptr;
  std::uint64_t staging_bytes = 0;                     ///< of each direction, shared by all pools; 0: 96 MiB
  std::optional<SwapPaths> load_paths = std::nullopt;  ///< of all pools; unset: measured by open()
  std::optional<SwapPaths> store_paths = std::nullopt;
  TransferStreams load_streams = {};
  TransferStreams store_streams = {};

  [[nodiscard]] Status validate() const;
};

class Mover {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Mover>> open(const MoverConfig& config);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// Queues a plan; its pages are copied. False when the queue of its direction is full, or as long as completions are
  /// not polled. An error for a pool that is not there, pages outside of it, more pages than transfer_pages_max, more
  /// bands than the pool has layers, and an id that is queued or running.
  [[nodiscard]] Result<bool> try_submit(const TransferPlan& plan);
  /// Ends a transfer early: its completion says Cancelled, unless it was done by then. False for one that is over,
  /// unknown, or was cancelled before.
  bool cancel(TransferId id);
  /// Completions since the last call, oldest first, as many as fit.
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out);
  /// Becomes readable when there is something to poll(); an eventfd, read by poll().
  [[nodiscard]] int event_fd() const;
  /// Waits until band `band` of a transfer is on the device, at most timeout_ns; 0 asks and does not wait. Its
  /// checksums are only known at the end of its last band; that it failed is told for every band, from then on. A
  /// transfer that is over answers from a short memory, which holds those that were not polled, and some more; one that
  /// is unknown or forgotten is an error, and so is a band that it does not have.
  [[nodiscard]] Result<TransferOutcome> wait(TransferId id, std::uint32_t band, TimeNs timeout_ns);

  /// Makes a stream of the accelerator's wait for band `band` of a transfer; the host waits at most timeout_ns, and
  /// only until that band is on the mover's streams, where bands are put one by one. What is said of wait() holds for
  /// what the stream does then: checksums are known at the end. Ok at once for a band that has arrived. Io or
  /// Cancelled: the transfer has failed or was cancelled, as far as is known by now. Unavailable: the band is not on
  /// its streams, and the time is over, the mover is being destroyed, or is paused while the transfer is still queued.
  [[nodiscard]] Status wait_on(DeviceStream stream, TransferId id, std::uint32_t band, TimeNs timeout_ns = 0);

  /// Finishes the transfers that run and starts no more until resume(). Blocks for as long. Queues still take plans.
  void pause();
  void resume();

  [[nodiscard]] HostRegionStatus host_region() const;
  /// Of one pool, which must be there; for the tier below.
  [[nodiscard]] HostPages& host_pages(std::uint16_t pool_index = 0);
  /// Gives the memory of the host region back to the system, unless an accelerator knows it: every host page of every
  /// pool is forgotten. The queues must be empty.
  [[nodiscard]] Status forget_host_pages();
  /// Where the device pages of a pool lie from now on, as after a resize: as many parts as the pool has, with the same
  /// layers. Not with an accelerator. The queues must be empty.
  [[nodiscard]] Status set_device(std::span<const MoverPart> parts, std::uint16_t pool_index = 0);
  /// The same for a first pool of one part.
  [[nodiscard]] Status set_device(const PoolGeometry& geometry, std::byte* memory);

 private:
  friend struct MoverHost;  // what the disk tier must know of an engine's mover
  friend struct MoverPeer;  // tests hold workers and break pages
  struct Impl;
  explicit Mover(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
