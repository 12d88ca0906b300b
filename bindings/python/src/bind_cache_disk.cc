// SPDX-License-Identifier: Apache-2.0
//
// The calls of a cache that are about its disk tier.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "arrays.h"
#include "bind.h"
#include "cache_calls.h"
#include "casters.h"
#include "errors.h"
#include "prompt.h"

namespace quire::python {
namespace {

// Whom to tell once the call that `start` makes with it is done: apply(), or close() if that comes first.
template <typename Start>
void request(CacheState& state, nb::object callback, nb::object memory, Start start) {
  if (PyCallable_Check(callback.ptr()) == 0) {
    raise(ErrorCode::InvalidArgument, std::string("callback is of type ") + nb::type_name(callback.type()).c_str() +
                                          ": give a function that takes a DiskAnswer");
  }
  const std::shared_ptr<DiskRequest> request(new DiskRequest{std::move(callback), std::move(memory)},
                                             [](DiskRequest* over) {
                                               const nb::gil_scoped_acquire acquire;
                                               delete over;
                                             });
  take(start([raw = &state, request](const DiskAnswer& answer) { raw->disk_answers.push_back({request, answer}); }));
  std::erase_if(state.disk_requests, [](const std::weak_ptr<DiskRequest>& other) { return other.expired(); });
  state.disk_requests.push_back(request);
}

template <typename Array>
Array import_bytes(nb::handle source, const char* what) {
  Array array;
  if (!nb::try_cast(source, array, false) || !array.is_valid()) {
    raise(ErrorCode::InvalidArgument, std::string(what) + " is of type " + nb::type_name(source.type()).c_str() +
                                          (Array::ReadOnly ? "" : " or cannot be written to") +
                                          ": give a contiguous array" + (Array::ReadOnly ? "" : " that can be"));
  }
  if (array.device_type() != nb::device::cpu::value && array.device_type() != nb::device::cuda_host::value) {
    raise(ErrorCode::InvalidArgument, std::string(what) + " lies on an accelerator: give memory of the processor");
  }
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) {
      raise(ErrorCode::InvalidArgument, std::string(what) + " is not contiguous");
    }
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return array;
}

}  // namespace

void bind_cache_disk(nb::class_<CacheState>& cache) {
  cache
      .def(
          "lookup_on_disk",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, nb::object callback) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            request(self, std::move(callback), nb::none(),
                    [&](auto answer) { return access->lookup_on_disk(key_space, *view, std::move(answer)); });
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("callback"),
          nb::sig("def lookup_on_disk(self, key_space: KeySpaceId, prompt: object, callback: "
                  "collections.abc.Callable[[DiskAnswer], object]) -> None"),
          "How many leading tokens of a prompt are on disk, as far as all groups can go on; apply() calls "
          "callback(DiskAnswer).")
      .def(
          "direct_bytes",
          [](CacheState& self, std::uint32_t token_count) {
            const Access access(self);
            return take(access->direct_bytes(token_count));
          },
          nb::arg("token_count"), "What put_on_disk() and get_from_disk() move of a prompt of so many tokens.")
      .def(
          "put_on_disk",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, nb::object bytes, nb::object callback) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            const auto array = import_bytes<nb::ndarray<nb::ro>>(bytes, "bytes");
            const std::span memory(static_cast<const std::byte*>(array.data()), array.nbytes());
            request(self, std::move(callback), own(array),
                    [&](auto answer) { return access->put_on_disk(key_space, *view, memory, std::move(answer)); });
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("bytes"), nb::arg("callback"),
          nb::sig("def put_on_disk(self, key_space: KeySpaceId, prompt: object, bytes: object, callback: "
                  "collections.abc.Callable[[DiskAnswer], object]) -> None"),
          "Writes the pages of a prompt that are not on disk, as direct_bytes() has them; `bytes` is left alone until "
          "the callback.")
      .def(
          "get_from_disk",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, nb::object bytes, nb::object callback) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            const auto array = import_bytes<nb::ndarray<>>(bytes, "bytes");
            const std::span memory(static_cast<std::byte*>(array.data()), array.nbytes());
            request(self, std::move(callback), own(array),
                    [&](auto answer) { return access->get_from_disk(key_space, *view, memory, std::move(answer)); });
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("bytes"), nb::arg("callback"),
          nb::sig("def get_from_disk(self, key_space: KeySpaceId, prompt: object, bytes: object, callback: "
                  "collections.abc.Callable[[DiskAnswer], object]) -> None"),
          "Reads those that are on disk into `bytes`, as far as there is no gap.")
      .def(
          "flush",
          [](CacheState& self) {
            const ByteAccess access(self);
            return take(without_gil([&] { return access->flush(); }));
          },
          "Has all that is cached written to disk and synced. True when that is done; else call it again after "
          "apply().")
      .def("wait_until_flushed", &wait_until_flushed, nb::arg("timeout_s") = nb::none(),
           "flush(), poll() and apply() until it is done; False when that takes longer.")
      .def(
          "disk_status",
          [](CacheState& self, std::optional<std::uint32_t> group_index) {
            const Access access(self);
            return take(access->disk_status(group_index));
          },
          nb::arg("group_index") = nb::none(), "The disk tier, as its store sees it.")
      .def(
          "remote_status",
          [](CacheState& self) {
            const Access access(self);
            return take(access->remote_status());
          },
          "The remote tier: its servers, and what was got from them and put there.");
}

}  // namespace quire::python
