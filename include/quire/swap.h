// SPDX-License-Identifier: Apache-2.0
//
// SwapEngine: moves pages between a device and records in host memory, asynchronously, on streams of the caller's. A
// page lies on the device in any fragments (page-first, layer-first, K and V apart); its record is all of them one
// behind the other. Three ways lead there, and what is fastest was measured when the engine was opened:
//
//     Whole    copy engines move each stretch of a page between its place and the record: no multiprocessor is busy
//     Staged   a kernel gathers fragments into records in a ring of device memory, which copy engines carry as wholes
//              (a load the other way round): link speed for fragments that are too small for copies of their own
//     Direct   a kernel reads or writes host memory itself: one launch, so the first byte moves at once
//
// With checksums, every byte is summed on the device in the pass that moves it; a load compares with what it was told
// to expect. Calls put work on streams and return: they neither allocate nor wait. A call that is refused has done
// nothing; when the device fails in the middle of one, what was begun has ended before the error is returned, and the
// direction takes no more.
//
// Loads may be called by one thread and stores by another at the same time; otherwise single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quire/device.h"
#include "quire/layout.h"
#include "quire/result.h"
#include "quire/swap_kernels.h"
#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

/// A tensor of the engine's that holds some of every page: a layer, or one component of it.
struct AdoptedTensor {
  std::uint32_t layer_index = 0;  ///< in the group
  /// Which of the group's components; unset: all of them, as the layer of a page has them.
  std::optional<std::uint32_t> component_index = std::nullopt;
  std::byte* data = nullptr;      ///< of page 0
  std::uint64_t page_stride = 0;  ///< bytes from one page to the next
};

/// The fragments of a pool's pages, layer by layer, as their records have them.
[[nodiscard]] std::vector<std::vector<Fragment>> fragments_of(const PoolGeometry& geometry, std::byte* memory);
/// The same for tensors of the engine's. Fails unless they hold every byte of a page once: on layers or components that
/// are missing or given twice, on components that share records, and on padding between components that are apart.
[[nodiscard]] Result<std::vector<std::vector<Fragment>>> fragments_of(const PageGeometry& page,
                                                                      std::span<const AdoptedTensor> tensors);

enum class SwapPath : std::uint8_t { Whole, Staged, Direct };
[[nodiscard]] std::string_view to_string(SwapPath path);

/// Which way the pages of a call go, by how many they are.
struct SwapPaths {
  SwapPath few = SwapPath::Direct;
  std::uint32_t few_pages_max = 0;  ///< so many are few
  SwapPath many = SwapPath::Staged;
  friend bool operator==(const SwapPaths&, const SwapPaths&) = default;
};

/// A record in a SwapEngine's host memory, counted from 0. Host pages of a Mover and of TransferPlans count from 1:
/// host page h is record h - 1. Both are numbers of the same kind of place, so each has a type of its own.
using RecordId = detail::Id<struct RecordTag>;

struct SwapConfig {
  Device* device = nullptr;  ///< outlives the engine
  /// Of each layer, in the order of the record, which they fill without gaps.
  std::vector<std::vector<Fragment>> layers = {};
  std::uint32_t device_page_count = 0;
  /// Registered with the device, from record 0 on with record_stride as the unit. Record i lies at
  /// records + i * record_stride.
  std::byte* records = nullptr;
  std::uint64_t record_stride = 0;
  std::uint32_t record_count = 0;

  bool checksums = true;
  /// Unset: measured by open(), in one or two tenths of a second and in memory of its own: as much as
  /// three rings more, given back behind it.
  std::optional<SwapPaths> load_paths = std::nullopt;
  std::optional<SwapPaths> store_paths = std::nullopt;
  std::uint32_t call_pages_max = 256;
  std::uint32_t calls_in_flight_max = 8;  ///< of each direction
  /// Device memory of the staging ring of each direction, at least that of three pages; 0: 96 MiB.
  std::uint64_t staging_bytes = 0;
  /// Of one slot of the ring, at least a page: what is in one should still be in the device's cache when it is read
  /// again, and the next kernel goes when one is free.
  std::uint64_t slot_bytes_max = std::uint64_t{12} << 20U;
  /// Thread blocks of a kernel that works in device memory, and of one that reaches to the host; 0: chosen.
  std::uint32_t staged_blocks = 0;
  std::uint32_t direct_blocks = 0;
  /// What measures; the system's by default.
  std::function<double()> seconds = {};

  [[nodiscard]] Status validate() const;
};

/// Where a call's work goes; they live until it is finished. `kernels` without a handle: on `copies`, where it runs one
/// after the other. A second kernel stream lets a kernel go as soon as there is room on the device, whatever the one
/// before it waits for.
struct SwapStreams {
  DeviceStream copies = {};
  DeviceStream kernels = {};
  DeviceStream more_kernels = {};
};

struct SwapOrder {
  TransferKind kind = TransferKind::Load;  ///< or Store
  std::span<const PageId> device_pages = {};
  std::span<const RecordId> records = {};  ///< as many, below SwapConfig::record_count
  /// Checksums of the records, of a load that knows them: as many, or none.
  std::span<const std::uint64_t> expected = {};
  std::uint32_t band_count = 1;  ///< the layers of band 0 of all pages move first, then those of the next
  /// try_start() puts band 0 on the streams, and start_next_band() the next one each time: it takes a while to put all
  /// of many pages there, and who waits for band 0 need not wait for that. swap() puts them all.
  bool band_by_band = false;
  SwapStreams streams = {};
  DeviceEvent after = {};                       ///< nothing begins before it has happened; without a handle: at once
  std::optional<SwapPath> path = std::nullopt;  ///< in place of what was measured
};

/// A call on its way.
struct SwapTicket {
  TransferKind kind = TransferKind::Load;
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
};

struct SwapReport {
  using IsBorrowed = void;  // see Result

  std::uint32_t page_count = 0;
  /// So many pages in front arrived as they were expected: all, where nothing was expected.
  std::uint32_t good_pages = 0;
  std::span<const std::uint64_t> checksums =
      {};  ///< of the pages' records; empty without. Valid until the next try_start()
};

class SwapEngine {
 public:
  [[nodiscard]] static Result<std::unique_ptr<SwapEngine>> open(const SwapConfig& config);
  /// Waits for what is on its way.
  ~SwapEngine();
  SwapEngine(const SwapEngine&) = delete;
  SwapEngine& operator=(const SwapEngine&) = delete;

  /// Puts a call on its streams. Nothing when as many as calls_in_flight_max have not been finish()ed. Fails, and has
  /// done nothing, on lists of different lengths, ids outside of the pools, a target that is named twice, more pages or
  /// bands than there can be, and streams that are missing. Streams and events of another device are the device's to
  /// refuse, which counts as its failure.
  [[nodiscard]] Result<std::optional<SwapTicket>> try_start(const SwapOrder& order);
  /// Puts the next band of a call on its streams, of one that was started band_by_band; false when all are there. Other
  /// calls may come in between. When the device fails, what was begun has ended and the ticket is spent.
  [[nodiscard]] Result<bool> start_next_band(SwapTicket ticket);
  /// The events of the bands that are on the streams, in the order of the bands. As long as the engine lives, any
  /// thread may have streams wait for them; when the call is finished, a later one uses them again.
  [[nodiscard]] Result<std::span<const DeviceEvent>> band_events(SwapTicket ticket);
  /// Whether band `band` of a call has arrived; does not wait. One that is not on the streams has not.
  [[nodiscard]] Result<bool> has_arrived(SwapTicket ticket, std::uint32_t band);
  /// Makes a stream wait for band `band` of a call, which must be on its streams; the host goes on. Behind the last
  /// band, what a store has read may be overwritten, and so may the records that a load has read. The pages of a load
  /// may be read behind their band, and written when is_done() says so.
  [[nodiscard]] Status wait_on(DeviceStream stream, SwapTicket ticket, std::uint32_t band);
  /// Whether all of a call is done, its checksums too; does not wait, and says no as long as bands are not on the
  /// streams. An error leaves the call as it is.
  [[nodiscard]] Result<bool> is_done(SwapTicket ticket);
  /// Of a call that is done: what became of it. The ticket is spent.
  [[nodiscard]] Result<SwapReport> finish(SwapTicket ticket);
  /// try_start(), the waiting, and finish(). Blocks.
  [[nodiscard]] Result<SwapReport> swap(const SwapOrder& order);

  [[nodiscard]] const SwapPaths& paths(TransferKind kind) const;
  [[nodiscard]] std::uint64_t record_bytes() const;
  [[nodiscard]] std::uint32_t layer_count() const;

 private:
  struct Impl;
  explicit SwapEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// How one way took a number of pages, as open() measures it.
struct SwapTiming {
  TransferKind kind = TransferKind::Load;
  SwapPath path = SwapPath::Direct;
  std::uint32_t page_count = 0;
  double seconds = 0;
};
/// Measures all ways in scratch memory of its own, for pages as `config` has them. Blocks, for one or two
/// tenths of a second.
[[nodiscard]] Result<std::vector<SwapTiming>> measure_swaps(const SwapConfig& config);
/// What follows from timings, of which there must be some: the fastest way for few pages and for many. Whole wins where
/// it is nearly the fastest, since nobody else loses time by it.
[[nodiscard]] SwapPaths choose_paths(std::span<const SwapTiming> timings, TransferKind kind);

}  // namespace quire
