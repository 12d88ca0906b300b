// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "bind.h"
#include "cache_state.h"
#include "casters.h"
#include "errors.h"
#include "host_device.h"
#include "quire/device.h"
#include "settings.h"
#include "structs.h"

namespace quire::python {
namespace {

#ifdef QUIRE_PYTHON_CUDA
Result<std::uint32_t> count_devices() {
  return cuda_device_count();
}
Result<std::unique_ptr<Device>> open_device(std::uint32_t index) {
  return open_cuda_device(index);
}
#else
Error no_cuda() {
  return {ErrorCode::Unsupported,
          "this quire was built without CUDA: install CUDA 13, so that nvcc is found, and build the package again"};
}
Result<std::uint32_t> count_devices() {
  return tl::unexpected(no_cuda());
}
Result<std::unique_ptr<Device>> open_device(std::uint32_t) {
  return tl::unexpected(no_cuda());
}
#endif

}  // namespace

void bind_device(nb::module_& module) {
  enum_class<StreamPriority>(module, "StreamPriority", "Of a stream.")
      .value("Low", StreamPriority::Low)
      .value("High", StreamPriority::High);
  nb::class_<DeviceHandle>(module, "Device", "An accelerator, for DeviceConfig.accelerator: open_cuda_device().")
      .def_prop_ro("index", [](const DeviceHandle& self) { return self.device->index(); })
      .def_prop_ro("name", [](const DeviceHandle& self) { return self.device->name(); })
      .def_prop_ro("multiprocessor_count", [](const DeviceHandle& self) { return self.device->multiprocessor_count(); })
      .def_prop_ro(
          "pci_bus_id", [](const DeviceHandle& self) { return self.device->pci_bus_id(); },
          "Where it stands on the PCI bus; empty where that is not known.")
      .def(
          "register_host",
          [](DeviceHandle& self, const nb::object& memory, std::size_t unit_bytes) {
            const Lent lent = lend(memory, "memory", 0, nullptr);
            for (const Registered& known : self.registered) {
              if (known.data() == lent.data) {
                raise(ErrorCode::InvalidArgument, "this memory is registered already: unregister_host() it first");
              }
            }
            const std::span<std::byte> bytes(lent.data, lent.bytes);
            Status status = [&] {
              const WithoutGil without;
              return self.device->register_host(bytes, unit_bytes);
            }();
            take(std::move(status));
            self.registered.emplace_back(self.device, bytes, lent.kept);
          },
          nb::arg("memory"), nb::arg("unit_bytes"),
          "Makes host memory known to the device, in units that no copy crosses. It begins and ends at a multiple of "
          "4096, as mmap.mmap(-1, bytes) does. The device keeps it until unregister_host().")
      .def(
          "unregister_host",
          [](DeviceHandle& self, const nb::object& memory) {
            const Lent lent = lend(memory, "memory", 0, nullptr);
            for (std::size_t i = 0; i < self.registered.size(); ++i) {
              if (self.registered[i].data() != lent.data) continue;
              self.registered.erase(self.registered.begin() + static_cast<std::ptrdiff_t>(i));
              return;
            }
            raise(ErrorCode::InvalidArgument, "this memory is not registered");
          },
          nb::arg("memory"), "What register_host() was given. Nothing may be on its way there.")
      .def(
          "create_stream",
          [](DeviceHandle& self, StreamPriority priority) {
            return reinterpret_cast<std::uintptr_t>(take(self.device->create_stream(priority)).handle);
          },
          nb::arg("priority") = StreamPriority::Low, "A stream, as an int: a cudaStream_t.")
      .def(
          "destroy_stream",
          [](DeviceHandle& self, std::uintptr_t stream) {
            self.device->destroy_stream({reinterpret_cast<void*>(stream)});
          },
          nb::arg("stream"), "What create_stream() gave, when nobody uses it any more.")
      .def(
          "synchronize",
          [](DeviceHandle& self, std::uintptr_t stream) {
            Status status = [&] {
              const WithoutGil without;
              return self.device->synchronize({reinterpret_cast<void*>(stream)});
            }();
            take(std::move(status));
          },
          nb::arg("stream"), "Waits for all that is on the stream. Other threads run meanwhile.")
      .def(
          "__reduce__",
          [](const DeviceHandle&) -> nb::object {
            throw nb::type_error(
                "a Device cannot be pickled, it belongs to its process: send its index, and call open_cuda_device() "
                "there");
          },
          nb::sig("def __reduce__(self) -> typing.NoReturn"))
      .def("__repr__", [](const DeviceHandle& self) {
        return "Device(" + std::to_string(self.device->index()) + ", " + self.device->name() + ")";
      });
  module.def(
      "cuda_device_count",
      [] {
        Result<std::uint32_t> count = [] {
          const WithoutGil without;  // the first call starts CUDA, which takes seconds
          return count_devices();
        }();
        return take(std::move(count));
      },
      "How many GPUs there are; an error says why none can be used.");
  module.def(
      "open_cuda_device",
      [](std::uint32_t index) {
        Result<std::unique_ptr<Device>> device = [&] {
          const WithoutGil without;
          return open_device(index);
        }();
        return DeviceHandle(take(std::move(device)));
      },
      nb::arg("index") = 0, "One GPU, by CUDA's number.");
  module.def(
      "open_host_device", [] { return DeviceHandle(open_host_device()); },
      "A device in memory of the processor's, which does everything at once: for programs that are written for an "
      "accelerator and run without one.");
#ifdef QUIRE_PYTHON_CUDA
  module.attr("has_cuda") = true;
#else
  module.attr("has_cuda") = false;
#endif
}

}  // namespace quire::python
