// SPDX-License-Identifier: Apache-2.0
//
// Mover: copies pages for an engine in Python. Its threads never need the GIL, and calls that wait let it go. It keeps
// the tensors and the device that it was opened with until it is closed.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "cache_state.h"
#include "cache_values.h"
#include "casters.h"
#include "errors.h"
#include "mover_handle.h"
#include "quire/mover.h"
#include "settings.h"
#include "structs.h"

namespace quire::python {
namespace {

/// So much is polled in one call, whatever is asked for.
constexpr std::uint32_t kPolledMax = 65'536;
/// A wait looks for signals, and whether the mover was closed, so often.
constexpr TimeNs kSliceNs = 50'000'000;

struct PartSettings {
  nb::object geometry = nb::none();
  nb::object memory = nb::none();
  std::vector<TensorSettings> tensors;
};

struct PoolSettings {
  std::vector<PartSettings> parts;
  std::uint32_t host_page_count = 0;
};

struct MoverSettings : MoverConfig {
  nb::object device_geometry = nb::none();
  nb::object device_memory = nb::none();
  std::vector<PoolSettings> pools;
  nb::object accelerator = nb::none();
};

/// MoverParts with the memory that they point to.
struct LentParts {
  std::vector<MoverPart> parts;
  std::vector<nb::object> kept;
};

LentParts lend_parts(const std::vector<PartSettings>& settings, const std::string& what, const Device* accelerator) {
  LentParts lent;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const PartSettings& given = settings[i];
    const std::string name = what + "[" + std::to_string(i) + "]";
    PoolGeometry* geometry = nullptr;
    if (!nb::try_cast(given.geometry, geometry, false) || geometry == nullptr) {
      raise(ErrorCode::InvalidArgument, name + ".geometry is not set: give a PoolGeometry, such as Cache.geometry()");
    }
    MoverPart& part = lent.parts.emplace_back(MoverPart{.geometry = geometry, .memory = nullptr, .tensors = {}});
    lent.kept.push_back(given.geometry);
    if (!given.memory.is_none()) {
      Lent memory = lend(given.memory, name + ".memory", geometry->pool_bytes(), accelerator);
      part.memory = memory.data;
      lent.kept.push_back(std::move(memory.kept));
    }
    for (std::size_t t = 0; t < given.tensors.size(); ++t) {
      LentTensor tensor =
          lend_tensor(given.tensors[t], name + ".tensors[" + std::to_string(t) + "].data", *geometry, accelerator);
      part.tensors.push_back(tensor.tensor);
      lent.kept.push_back(std::move(tensor.kept));
    }
  }
  return lent;
}

struct MoverRequest {
  MoverConfig config;
  std::vector<std::vector<nb::object>> kept;  // by pool
};

MoverRequest make_mover_request(const MoverSettings& settings) {
  MoverRequest request{.config = settings, .kept = {}};
  MoverConfig& config = request.config;
  config.accelerator = device_of(settings.accelerator, "accelerator");
  const bool is_one = !settings.device_geometry.is_none() || !settings.device_memory.is_none();
  if (is_one && !settings.pools.empty()) {
    raise(ErrorCode::InvalidArgument, "pools are given, and device_geometry or device_memory too: give either");
  }
  if (is_one) {
    // One pool of one part, under the names that the error should have.
    PoolGeometry* geometry = nullptr;
    if (!nb::try_cast(settings.device_geometry, geometry, false) || geometry == nullptr) {
      raise(ErrorCode::InvalidArgument,
            "device_geometry is not set: give a PoolGeometry, such as Cache.geometry(), with device_memory");
    }
    config.device_geometry = geometry;
    std::vector<nb::object>& kept = request.kept.emplace_back();
    kept.push_back(settings.device_geometry);
    if (!settings.device_memory.is_none()) {
      Lent memory = lend(settings.device_memory, "device_memory", geometry->pool_bytes(), config.accelerator);
      config.device_memory = memory.data;
      kept.push_back(std::move(memory.kept));
    }
  }
  for (std::size_t i = 0; i < settings.pools.size(); ++i) {
    LentParts lent = lend_parts(settings.pools[i].parts, "pools[" + std::to_string(i) + "].parts", config.accelerator);
    config.pools.push_back({.parts = std::move(lent.parts), .host_page_count = settings.pools[i].host_page_count});
    request.kept.push_back(std::move(lent.kept));
  }
  if (config.accelerator != nullptr) {
    if (request.kept.empty()) request.kept.emplace_back();
    request.kept.front().push_back(settings.accelerator);
  }
  return request;
}

TransferPlan plan_of(const TransferCopy& plan) {
  return {.id = plan.id,
          .kind = plan.kind,
          .priority = plan.priority,
          .band_count = plan.band_count,
          .pool_index = plan.pool_index,
          .pages = plan.pages};
}

TransferOutcome wait_for_band(const MoverHandle& self, TransferId id, std::uint32_t band, TimeNs timeout_ns) {
  const std::shared_ptr<OpenMover> open = self.get();
  TimeNs left_ns = std::max<TimeNs>(timeout_ns, 0);
  while (true) {
    const TimeNs slice_ns = std::min(left_ns, kSliceNs);
    Result<TransferOutcome> outcome = [&] {
      const WithoutGil without;
      return open->mover->wait(id, band, slice_ns);
    }();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    left_ns -= slice_ns;
    if (!outcome || *outcome != TransferOutcome::TimedOut || left_ns <= 0) return take(std::move(outcome));
    if (open->is_closed) raise(ErrorCode::Cancelled, "the mover was closed while somebody waited");
  }
}

void make_stream_wait(const MoverHandle& self, std::uintptr_t stream, TransferId id, std::uint32_t band,
                      TimeNs timeout_ns) {
  using Clock = std::chrono::steady_clock;
  const std::shared_ptr<OpenMover> open = self.get();
  TimeNs left_ns = std::max<TimeNs>(timeout_ns, 0);
  while (true) {
    const TimeNs slice_ns = std::min(left_ns, kSliceNs);
    const Clock::time_point slice_end = Clock::now() + std::chrono::nanoseconds(slice_ns);
    Status status = [&] {
      const WithoutGil without;
      return open->mover->wait_on({reinterpret_cast<void*>(stream)}, id, band, slice_ns);
    }();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    left_ns -= slice_ns;
    // One that says so before its time is over will not change its mind: the mover is paused.
    const bool may_still_come = !status && status.error().code == ErrorCode::Unavailable && Clock::now() >= slice_end;
    if (!may_still_come || left_ns <= 0) return take(std::move(status));
    if (open->is_closed) raise(ErrorCode::Cancelled, "the mover was closed while somebody waited");
  }
}

void bind_config_of_movers(nb::module_& module) {
  StructClass<PartSettings>(module, "MoverPart", "Device pages of one geometry.")
      .field("geometry", &PartSettings::geometry, "", "PoolGeometry | None")
      .field("memory", &PartSettings::memory, "A tensor of geometry.pool_bytes bytes, which stays the mover's.",
             "object | None")
      .field("tensors", &PartSettings::tensors,
             "In place of memory, on an accelerator: tensors that lie anywhere. The geometry then counts pages and "
             "their bytes.")
      .with_constructor();
  StructClass<PoolSettings>(module, "MoverPool",
                            "Pages that have their ids and host pages to themselves. With several parts, which have as "
                            "many pages each, an id names a page in every one of them.")
      .field("parts", &PoolSettings::parts)
      .field("host_page_count", &PoolSettings::host_page_count, "ids lie in [1, host_page_count]")
      .with_constructor();
  StructClass<MoverSettings>(module, "MoverConfig", "What a Mover is made of: one pool of one part, or `pools`.")
      .field("device_geometry", &MoverSettings::device_geometry, "such as Cache.geometry()", "PoolGeometry | None")
      .field("device_memory", &MoverSettings::device_memory,
             "A tensor of device_geometry.pool_bytes bytes, such as Cache.device_memory(); it stays the mover's until "
             "that is closed.",
             "object | None")
      .field("host_page_count", &MoverSettings::host_page_count, "ids lie in [1, host_page_count]")
      .field("pools", &MoverSettings::pools,
             "Or any pools, and then none of the above. TransferPlan.pool_index counts them.")
      .field("host_region", &MoverSettings::host_region)
      .field("checksums", &MoverSettings::checksums)
      .field("load_thread_count", &MoverSettings::load_thread_count)
      .field("store_thread_count", &MoverSettings::store_thread_count)
      .field("queue_depth_max", &MoverSettings::queue_depth_max, "plans waiting in each direction")
      .field("transfer_pages_max", &MoverSettings::transfer_pages_max, "pages of one plan")
      .field("rank", &MoverSettings::rank, "written into completions")
      .field("accelerator", &MoverSettings::accelerator,
             "Where the device's memory lies, if the processor does not reach it.", "Device | None")
      .field("staging_bytes", &MoverSettings::staging_bytes, "of each direction, shared by all pools; 0: 96 MiB")
      .field("load_paths", &MoverSettings::load_paths, "of all pools; unset: measured by open()")
      .field("store_paths", &MoverSettings::store_paths)
      .field("load_streams", &MoverSettings::load_streams, "with an accelerator")
      .field("store_streams", &MoverSettings::store_streams)
      .with_constructor()
      .def(
          "validate", [](const MoverSettings& self) { take(make_mover_request(self).config.validate()); },
          "Raises what is wrong with this configuration, if anything; Mover.open() asks it first.");
}

}  // namespace

void bind_mover(nb::module_& module) {
  bind_config_of_movers(module);
  nb::class_<MoverHandle>(module, "Mover",
                          "Copies pages between device memory and a host tier of its own, on threads of its own: "
                          "TransferPlans in, Completions out. Any thread may call it.")
      .def_static(
          "open",
          [](const MoverSettings& settings) {
            MoverRequest request = make_mover_request(settings);
            Result<std::unique_ptr<Mover>> opened = [&] {
              const WithoutGil without;
              return Mover::open(request.config);
            }();
            return MoverHandle(std::make_shared<OpenMover>(take(std::move(opened)), std::move(request.kept),
                                                           request.config.accelerator));
          },
          nb::arg("config"), nb::sig("def open(config: MoverConfig) -> Mover"))
      .def("close", &MoverHandle::close,
           "Cancels what is queued, waits for the pages being copied, and lets go of the tensors. Those who are in "
           "wait() are told that it was cancelled. The mover of a rank, HostConfig.rank_movers, takes no more calls, "
           "and ends with the cache.")
      .def_prop_ro("is_closed", [](const MoverHandle& self) { return self.open == nullptr; })
      .def(
          "__enter__", [](const nb::object& self) { return self; }, nb::sig("def __enter__(self) -> Mover"))
      .def(
          "__exit__", [](MoverHandle& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exc_info: object) -> None"))
      .def(
          "__reduce__",
          [](const MoverHandle&) -> nb::object {
            throw nb::type_error(
                "a Mover cannot be pickled, its threads belong to its process: send it plans by "
                "encode(), and open one there");
          },
          nb::sig("def __reduce__(self) -> typing.NoReturn"))
      .def(
          "try_submit",
          [](const MoverHandle& self, const TransferCopy& plan) {
            return take(self.get()->mover->try_submit(plan_of(plan)));
          },
          nb::arg("plan"),
          "Queues a plan. False when the queue of its direction is full, or as long as completions are not polled.")
      .def(
          "cancel", [](const MoverHandle& self, TransferId id) { return self.get()->mover->cancel(id); }, nb::arg("id"),
          "Ends a transfer early: its completion says Cancelled, unless it was done by then. False for one that is "
          "over, unknown, or was cancelled before.")
      .def(
          "poll",
          [](const MoverHandle& self, std::uint32_t count_max) {
            std::vector<Completion> room(std::min(count_max, kPolledMax));
            const std::span<Completion> ended = self.get()->mover->poll(room);
            return std::vector<Completion>(ended.begin(), ended.end());
          },
          nb::arg("count_max") = 256, "Completions since the last call, oldest first.")
      .def(
          "event_fd", [](const MoverHandle& self) { return self.get()->mover->event_fd(); },
          "Becomes readable when there is something to poll(); an eventfd, read by poll().")
      .def(
          "wait", &wait_for_band, nb::arg("id"), nb::arg("band"), nb::arg("timeout_ns"),
          "Waits until band `band` of a transfer is on the device, at most timeout_ns; 0 asks and does not wait. Other "
          "threads run meanwhile.")
      .def(
          "wait_on", &make_stream_wait, nb::arg("stream"), nb::arg("id"), nb::arg("band"), nb::arg("timeout_ns") = 0,
          "Makes a stream of the accelerator's, such as torch.cuda.Stream().cuda_stream, wait for a band of a "
          "transfer. "
          "The thread waits at most timeout_ns, until the band is on the mover's streams; other threads run meanwhile.")
      .def(
          "pause",
          [](const MoverHandle& self) {
            const std::shared_ptr<OpenMover> open = self.get();
            const WithoutGil without;
            open->mover->pause();
          },
          "Finishes the transfers that run and starts no more until resume(). Queues still take plans.")
      .def(
          "resume", [](const MoverHandle& self) { self.get()->mover->resume(); }, "Transfers start again.")
      .def(
          "host_region", [](const MoverHandle& self) { return self.get()->mover->host_region(); },
          "What the host region lies in.")
      .def(
          "forget_host_pages", [](const MoverHandle& self) { take(self.get()->mover->forget_host_pages()); },
          "Gives the memory of the host region back to the system: every host page is forgotten. The queues must be "
          "empty.")
      .def(
          "set_device",
          [](const MoverHandle& self, const std::vector<PartSettings>& parts, std::uint16_t pool_index) {
            const std::shared_ptr<OpenMover> open = self.get();
            LentParts lent = lend_parts(parts, "parts", open->accelerator);
            take(open->mover->set_device(lent.parts, pool_index));
            std::vector<nb::object> before = std::exchange(open->kept[pool_index], std::move(lent.kept));
          },
          nb::arg("parts"), nb::arg("pool_index") = 0,
          nb::sig("def set_device(self, parts: collections.abc.Sequence[MoverPart], pool_index: int = 0) -> None"),
          "Where the device pages of a pool lie from now on. The queues must be empty.");
}

}  // namespace quire::python
