// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bind.h"
#include "cache_state.h"
#include "casters.h"
#include "errors.h"
#include "quire/device.h"
#include "settings.h"

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
  nb::class_<DeviceHandle>(module, "Device", "An accelerator, for DeviceConfig.accelerator: open_cuda_device().")
      .def_prop_ro("index", [](const DeviceHandle& self) { return self.device->index(); })
      .def_prop_ro("name", [](const DeviceHandle& self) { return self.device->name(); })
      .def_prop_ro("multiprocessor_count", [](const DeviceHandle& self) { return self.device->multiprocessor_count(); })
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
        return DeviceHandle{take(std::move(device))};
      },
      nb::arg("index") = 0, "One GPU, by CUDA's number.");
#ifdef QUIRE_PYTHON_CUDA
  module.attr("has_cuda") = true;
#else
  module.attr("has_cuda") = false;
#endif
}

}  // namespace quire::python
