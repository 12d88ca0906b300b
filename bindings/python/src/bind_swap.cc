// SPDX-License-Identifier: Apache-2.0
//
// SwapEngine: pages of a device to records in host memory and back, on streams of the engine's. Streams and events are
// int, as torch.cuda.Stream().cuda_stream is. The engine keeps the device and the memory that it was opened with.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "cache_state.h"
#include "casters.h"
#include "errors.h"
#include "quire/swap.h"
#include "settings.h"
#include "structs.h"

namespace quire::python {
namespace {

using Address = std::optional<std::uintptr_t>;

/// Fragment, with the memory that it points to.
struct FragmentCopy : Fragment {
  nb::object kept;
};

struct SwapSettings : SwapConfig {
  nb::object device = nb::none();
  std::vector<std::vector<FragmentCopy>> layers;
  nb::object records = nb::none();
};

struct OrderSettings {
  TransferKind kind = TransferKind::Load;
  std::vector<std::uint32_t> device_pages;
  std::vector<std::uint32_t> records;
  std::vector<std::uint64_t> expected;
  std::uint32_t band_count = 1;
  bool band_by_band = false;
  SwapStreams streams;
  Address after;
  std::optional<SwapPath> path;
};

struct ReportCopy {
  std::uint32_t page_count = 0;
  std::uint32_t good_pages = 0;
  std::vector<std::uint64_t> checksums;
};

void* pointer_of(Address address) {
  return reinterpret_cast<void*>(address.value_or(0));
}

struct SwapRequest {
  SwapConfig config;
  std::vector<nb::object> kept;
};

SwapRequest make_swap_request(const SwapSettings& settings) {
  SwapRequest request{.config = settings, .kept = {}};
  SwapConfig& config = request.config;
  config.device = device_of(settings.device, "device");
  request.kept.push_back(settings.device);
  for (const std::vector<FragmentCopy>& layer : settings.layers) {
    std::vector<Fragment>& fragments = config.layers.emplace_back();
    for (const FragmentCopy& fragment : layer) {
      fragments.push_back(fragment);
      request.kept.push_back(fragment.kept);
    }
  }
  if (settings.records.is_none()) return request;
  Lent records = lend(settings.records, "records", 0, nullptr);
  if (records.bytes / std::max<std::uint64_t>(config.record_stride, 1) < config.record_count) {
    raise(ErrorCode::InvalidArgument, "records has " + std::to_string(records.bytes) + " bytes, and " +
                                          std::to_string(config.record_count) + " records with a stride of " +
                                          std::to_string(config.record_stride) + " need more");
  }
  config.records = records.data;
  request.kept.push_back(std::move(records.kept));
  return request;
}

/// An order with the lists that its spans point to.
struct HeldOrder {
  explicit HeldOrder(const OrderSettings& settings) : expected(settings.expected) {
    for (const std::uint32_t page : settings.device_pages) device_pages.push_back(PageId{page});
    for (const std::uint32_t record : settings.records) records.push_back(RecordId{record});
    order = {.kind = settings.kind,
             .device_pages = device_pages,
             .records = records,
             .expected = expected,
             .band_count = settings.band_count,
             .band_by_band = settings.band_by_band,
             .streams = settings.streams,
             .after = {pointer_of(settings.after)},
             .path = settings.path};
  }
  HeldOrder(const HeldOrder&) = delete;
  HeldOrder& operator=(const HeldOrder&) = delete;

  std::vector<PageId> device_pages;
  std::vector<RecordId> records;
  std::vector<std::uint64_t> expected;
  SwapOrder order;
};

ReportCopy copy_of_report(const SwapReport& report) {
  return {report.page_count, report.good_pages, {report.checksums.begin(), report.checksums.end()}};
}

/// A SwapEngine with what it uses. Python calls it with the GIL, so one at a time, but for swap(), which waits without:
/// other calls are told then that it is busy.
struct SwapHandle {
  SwapHandle(std::unique_ptr<SwapEngine> opened, std::vector<nb::object> used)
      : kept(std::move(used)), engine(std::move(opened)) {}

  SwapEngine& get() const {
    if (is_busy) raise(ErrorCode::Unavailable, "the SwapEngine is in swap() on another thread: wait for that");
    return *engine;
  }

  std::vector<nb::object> kept;
  std::unique_ptr<SwapEngine> engine;  // destroyed before what it uses
  bool is_busy = false;                // under the GIL
};

std::vector<std::vector<FragmentCopy>> keep_fragments(std::vector<std::vector<Fragment>> layers,
                                                      const nb::object& kept) {
  std::vector<std::vector<FragmentCopy>> copies;
  for (const std::vector<Fragment>& layer : layers) {
    std::vector<FragmentCopy>& made = copies.emplace_back();
    for (const Fragment& fragment : layer) made.push_back({fragment, kept});
  }
  return copies;
}

void bind_engine(nb::module_& module) {
  nb::class_<SwapHandle>(
      module, "SwapEngine",
      "Moves pages between a device and records in host memory, on streams of the engine's. One thread at a time.")
      .def_static(
          "open",
          [](const SwapSettings& settings) {
            SwapRequest request = make_swap_request(settings);
            Result<std::unique_ptr<SwapEngine>> opened = [&] {
              const WithoutGil without;  // measures, which takes a while
              return SwapEngine::open(request.config);
            }();
            return std::make_shared<SwapHandle>(take(std::move(opened)), std::move(request.kept));
          },
          nb::arg("config"), nb::sig("def open(config: SwapConfig) -> SwapEngine"))
      .def(
          "try_start",
          [](const SwapHandle& self, const OrderSettings& order) {
            const HeldOrder held(order);
            return take(self.get().try_start(held.order));
          },
          nb::arg("order"), nb::sig("def try_start(self, order: SwapOrder) -> SwapTicket | None"),
          "Puts a call on its streams. None when as many as calls_in_flight_max have not been finish()ed.")
      .def(
          "start_next_band",
          [](const SwapHandle& self, SwapTicket ticket) { return take(self.get().start_next_band(ticket)); },
          nb::arg("ticket"),
          "Puts the next band of a call on its streams, of one that was started band_by_band; False when all are "
          "there.")
      .def(
          "band_events",
          [](const SwapHandle& self, SwapTicket ticket) {
            std::vector<std::uintptr_t> events;
            const std::span<const DeviceEvent> all = take(self.get().band_events(ticket));
            for (const DeviceEvent event : all) events.push_back(reinterpret_cast<std::uintptr_t>(event.handle));
            return events;
          },
          nb::arg("ticket"),
          "The events of the bands that are on the streams. As long as the engine lives, streams may wait for them; "
          "when "
          "the call is finished, a later one uses them again.")
      .def(
          "has_arrived",
          [](const SwapHandle& self, SwapTicket ticket, std::uint32_t band) {
            return take(self.get().has_arrived(ticket, band));
          },
          nb::arg("ticket"), nb::arg("band"), "Whether band `band` of a call has arrived; does not wait.")
      .def(
          "wait_on",
          [](const SwapHandle& self, std::uintptr_t stream, SwapTicket ticket, std::uint32_t band) {
            take(self.get().wait_on({pointer_of(stream)}, ticket, band));
          },
          nb::arg("stream"), nb::arg("ticket"), nb::arg("band"),
          "Makes a stream wait for band `band` of a call, which must be on its streams.")
      .def(
          "is_done", [](const SwapHandle& self, SwapTicket ticket) { return take(self.get().is_done(ticket)); },
          nb::arg("ticket"), "Whether all of a call is done, its checksums too; does not wait.")
      .def(
          "finish",
          [](const SwapHandle& self, SwapTicket ticket) { return copy_of_report(take(self.get().finish(ticket))); },
          nb::arg("ticket"), nb::sig("def finish(self, ticket: SwapTicket) -> SwapReport"),
          "Of a call that is done: what became of it. The ticket is spent.")
      .def(
          "swap",
          [](SwapHandle& self, const OrderSettings& order) {
            const HeldOrder held(order);
            SwapEngine& engine = self.get();
            self.is_busy = true;
            Result<SwapReport> report = [&] {
              const WithoutGil without;
              return engine.swap(held.order);
            }();
            self.is_busy = false;
            return copy_of_report(take(std::move(report)));
          },
          nb::arg("order"), nb::sig("def swap(self, order: SwapOrder) -> SwapReport"),
          "try_start(), the waiting, and finish(). Other threads run meanwhile.")
      .def(
          "paths", [](const SwapHandle& self, TransferKind kind) { return SwapPaths(self.get().paths(kind)); },
          nb::arg("kind"), "Which way pages go.")
      .def_prop_ro("record_bytes", [](const SwapHandle& self) { return self.get().record_bytes(); })
      .def_prop_ro("layer_count", [](const SwapHandle& self) { return self.get().layer_count(); });
  module.def(
      "fragments_of",
      [](const PoolGeometry& geometry, const nb::object& memory, const nb::object& device) {
        const Lent lent = lend(memory, "memory", geometry.pool_bytes(), device_of(device, "device"));
        return keep_fragments(fragments_of(geometry, lent.data), lent.kept);
      },
      nb::arg("geometry"), nb::arg("memory"), nb::arg("device") = nb::none(),
      nb::sig("def fragments_of(geometry: PoolGeometry, memory: object, device: Device | None = None) -> "
              "list[list[Fragment]]"),
      "The fragments of a pool's pages, layer by layer, as their records have them. `device` is where the memory lies, "
      "if the processor does not reach it.");
  module.def(
      "fragments_of",
      [](const PoolGeometry& geometry, const std::vector<TensorSettings>& tensors, const nb::object& device) {
        std::vector<AdoptedTensor> adopted;
        nb::list kept;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          LentTensor lent =
              lend_tensor(tensors[i], "tensors[" + std::to_string(i) + "].data", geometry, device_of(device, "device"));
          adopted.push_back(lent.tensor);
          kept.append(lent.kept);
        }
        return keep_fragments(take(fragments_of(geometry.page(), adopted)), kept);
      },
      nb::arg("geometry"), nb::kw_only(), nb::arg("tensors"), nb::arg("device") = nb::none(),
      nb::sig("def fragments_of(geometry: PoolGeometry, *, tensors: collections.abc.Sequence[AdoptedTensor], device: "
              "Device | None = None) -> list[list[Fragment]]"),
      "The same for tensors of the engine's, which hold every byte of a page once.");
  module.def(
      "measure_swaps",
      [](const SwapSettings& settings) {
        const SwapRequest request = make_swap_request(settings);
        Result<std::vector<SwapTiming>> timings = [&] {
          const WithoutGil without;
          return measure_swaps(request.config);
        }();
        return take(std::move(timings));
      },
      nb::arg("config"), nb::sig("def measure_swaps(config: SwapConfig) -> list[SwapTiming]"),
      "Measures all ways in scratch memory of its own, for pages as `config` has them. Takes one or two tenths of a "
      "second.");
  module.def(
      "choose_paths",
      [](const std::vector<SwapTiming>& timings, TransferKind kind) {
        for (const SwapTiming& timing : timings) {
          if (timing.kind == kind) return choose_paths(timings, kind);
        }
        raise(ErrorCode::InvalidArgument, "there are no timings of this kind: measure_swaps() makes some");
      },
      nb::arg("timings"), nb::arg("kind"), "What follows from timings: the fastest way for few pages and for many.");
}

}  // namespace

void bind_swap_values(nb::module_& module) {
  enum_class<SwapPath>(module, "SwapPath", "How pages go between a device and the host.")
      .value("Whole", SwapPath::Whole, "copy engines move each stretch of a page")
      .value("Staged", SwapPath::Staged,
             "a kernel gathers records in a ring of device memory, which copy engines carry")
      .value("Direct", SwapPath::Direct, "a kernel reads or writes host memory itself");
  StructClass<SwapPaths>(module, "SwapPaths", "Which way the pages of a call go, by how many they are.")
      .field("few", &SwapPaths::few)
      .field("few_pages_max", &SwapPaths::few_pages_max, "so many are few")
      .field("many", &SwapPaths::many)
      .with_constructor();
}

void bind_swap(nb::module_& module) {
  StructClass<FragmentCopy>(module, "Fragment",
                            "The same bytes of every page: of one layer, one component, or a piece of that.")
      .made(
          "first", [](const FragmentCopy& self) { return reinterpret_cast<std::uintptr_t>(self.first); },
          "the address in page 0; the memory stays as long as this", "int")
      .value("page_stride", &Fragment::page_stride, "from one page to the next")
      .value("record_offset", &Fragment::record_offset)
      .value("bytes", &Fragment::bytes)
      .without_constructor();
  StructClass<SwapSettings>(module, "SwapConfig", "What a SwapEngine is made of.")
      .field("device", &SwapSettings::device, "open_cuda_device(), or open_host_device()", "Device | None")
      .field("layers", &SwapSettings::layers, "fragments_of() makes them")
      .field("device_page_count", &SwapSettings::device_page_count)
      .field("records", &SwapSettings::records,
             "Host memory that Device.register_host() knows, from record 0 on with record_stride as the unit.",
             "object | None")
      .field("record_stride", &SwapSettings::record_stride)
      .field("record_count", &SwapSettings::record_count)
      .field("checksums", &SwapSettings::checksums)
      .field("load_paths", &SwapSettings::load_paths, "unset: measured by open()")
      .field("store_paths", &SwapSettings::store_paths)
      .field("call_pages_max", &SwapSettings::call_pages_max)
      .field("calls_in_flight_max", &SwapSettings::calls_in_flight_max, "of each direction")
      .field("staging_bytes", &SwapSettings::staging_bytes,
             "Device memory of the staging ring of each direction, at least that of three pages; 0: 96 MiB.")
      .field("slot_bytes_max", &SwapSettings::slot_bytes_max, "of one slot of the ring, at least a page")
      .field("staged_blocks", &SwapSettings::staged_blocks, "thread blocks of a kernel; 0: chosen")
      .field("direct_blocks", &SwapSettings::direct_blocks)
      .with_constructor()
      .def(
          "validate", [](const SwapSettings& self) { take(make_swap_request(self).config.validate()); },
          "Raises what is wrong with this configuration, if anything; SwapEngine.open() asks it first.");
  StructClass<OrderSettings>(module, "SwapOrder", "Which pages to move.")
      .field("kind", &OrderSettings::kind, "Load or Store")
      .field("device_pages", &OrderSettings::device_pages)
      .field("records", &OrderSettings::records, "as many, below SwapConfig.record_count")
      .field("expected", &OrderSettings::expected,
             "Checksums of the records, of a load that knows them: as many, or none.")
      .field("band_count", &OrderSettings::band_count,
             "the layers of band 0 of all pages move first, then those of the next")
      .field(
          "band_by_band", &OrderSettings::band_by_band,
          "try_start() puts band 0 on the streams, and start_next_band() the next one each time; swap() puts them all")
      .field("streams", &OrderSettings::streams)
      .field("after", &OrderSettings::after, "an event: nothing begins before it has happened; None: at once")
      .field("path", &OrderSettings::path, "in place of what was measured")
      .with_constructor();
  StructClass<SwapTicket>(module, "SwapTicket", "A call on its way.")
      .value("kind", &SwapTicket::kind)
      .value("index", &SwapTicket::index)
      .value("generation", &SwapTicket::generation)
      .without_constructor();
  StructClass<ReportCopy>(module, "SwapReport", "What became of a call.")
      .value("page_count", &ReportCopy::page_count)
      .value("good_pages", &ReportCopy::good_pages,
             "So many pages in front arrived as they were expected: all, where nothing was expected.")
      .value("checksums", &ReportCopy::checksums, "of the pages' records; empty without")
      .without_constructor();
  StructClass<SwapTiming>(module, "SwapTiming", "How one way took a number of pages.")
      .value("kind", &SwapTiming::kind)
      .value("path", &SwapTiming::path)
      .value("page_count", &SwapTiming::page_count)
      .value("seconds", &SwapTiming::seconds)
      .without_constructor();
  bind_engine(module);
}

}  // namespace quire::python
