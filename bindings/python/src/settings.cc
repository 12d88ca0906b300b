// SPDX-License-Identifier: Apache-2.0
#include "settings.h"
#include "casters.h"

#include <span>
#include <string>
#include <utility>

#include "arrays.h"
#include "errors.h"
#include "host_device.h"
#include "mover_handle.h"
#include "quire/cache.h"

namespace quire::python {
namespace {

using Tensor = nb::ndarray<>;

// A tensor that may be written to, where the configuration says it lies.
Tensor import_tensor(nb::handle source, const std::string& what, const Device* accelerator) {
  // Their makers take for granted that nobody writes to them.
  if (nb::cast<std::string>(nb::str(source.type().attr("__module__"))).starts_with("jax")) {
    raise(ErrorCode::InvalidArgument, what +
                                          " is an array of jax, which is never to be written to: let jax read "
                                          "device_memory() instead");
  }
  Tensor tensor;
  if (!nb::try_cast(source, tensor, false) || !tensor.is_valid()) {
    if (ForeignArray read_only; nb::try_cast(source, read_only, false) && read_only.is_valid()) {
      raise(ErrorCode::InvalidArgument, what + " cannot be written to: give a writable tensor");
    }
    refuse_array(source, what, "give a writable tensor that has __dlpack__");
  }
  const bool is_on_host =
      tensor.device_type() == nb::device::cpu::value || tensor.device_type() == nb::device::cuda_host::value;
  if (accelerator == nullptr && !is_on_host) {
    raise(ErrorCode::InvalidArgument,
          what + " lies on an accelerator: set the accelerator too, as with open_cuda_device(" +
              std::to_string(tensor.device_id()) + ")");
  }
  if (accelerator != nullptr && !(is_plain_memory(*accelerator) && is_on_host)) {
    if (is_on_host) {
      raise(ErrorCode::InvalidArgument, what + " lies in memory of the processor, and the accelerator is " +
                                            accelerator->name() + ": give a tensor that lies there");
    }
    if (static_cast<std::uint32_t>(tensor.device_id()) != accelerator->index()) {
      raise(ErrorCode::InvalidArgument, what + " lies on device " + std::to_string(tensor.device_id()) +
                                            ", and the accelerator is device " + std::to_string(accelerator->index()));
    }
  }
  return tensor;
}

// Bytes of everything from dimension `first` on, which must follow each other.
std::uint64_t dense_bytes(const Tensor& tensor, std::size_t first, const std::string& what) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.ndim(); i-- > first;) {
    if (tensor.size() != 0 && tensor.shape(i) != 1 && tensor.stride(i) != expected) {
      raise(ErrorCode::InvalidArgument, what + " is not contiguous in dimension " + std::to_string(i) +
                                            ": its stride is " + std::to_string(tensor.stride(i)) + " elements, not " +
                                            std::to_string(expected));
    }
    expected *= static_cast<std::int64_t>(tensor.shape(i));
  }
  return static_cast<std::uint64_t>(expected) * tensor.itemsize();
}

// Takes over one piece of contiguous memory.
std::byte* adopt(OpenRequest& request, const nb::object& source, const std::string& what, std::uint64_t bytes_min) {
  if (source.is_none()) return nullptr;
  const Lent lent = lend(source, what, bytes_min, request.config.device.accelerator);
  request.adopted.push_back({.source = source, .data = lent.data, .bytes = lent.bytes, .name = what});
  request.kept.push_back(lent.kept);  // until the cache gives it back
  return lent.data;
}

void adopt_tensors(OpenRequest& request, const DeviceSettings& settings, const Cache& probe) {
  const std::span<const CacheGroup> groups = probe.config().layout.groups();
  for (std::size_t g = 0; g < settings.adopted_tensors.size(); ++g) {
    std::vector<AdoptedTensor>& group = request.config.device.adopted_tensors.emplace_back();
    for (std::size_t i = 0; i < settings.adopted_tensors[g].size(); ++i) {
      const TensorSettings& given = settings.adopted_tensors[g][i];
      const std::string what = "device.adopted_tensors[" + std::to_string(g) + "][" + std::to_string(i) + "].data";
      if (!has_pages(groups[g])) {
        raise(ErrorCode::InvalidArgument, what + ": group " + groups[g].name + " has no pages, give no tensors");
      }
      LentTensor lent =
          lend_tensor(given, what, probe.geometry(static_cast<std::uint32_t>(g)), request.config.device.accelerator);
      group.push_back(lent.tensor);
      request.adopted.push_back(std::move(lent.adopted));
      request.kept.push_back(std::move(lent.kept));
    }
  }
}

// Pages of one may lie between those of another, as K and V of a layer do in some engines.
bool overlap(const Adopted& a, const Adopted& b) {
  const auto begin_of = [](const Adopted& one) { return reinterpret_cast<std::uintptr_t>(one.data); };
  const auto end_of = [&](const Adopted& one) {
    return begin_of(one) + ((one.page_count - 1) * one.page_stride) + one.bytes;
  };
  if (a.bytes == 0 || b.bytes == 0 || end_of(a) <= begin_of(b) || end_of(b) <= begin_of(a)) return false;
  if (a.page_stride == 0 || a.page_stride != b.page_stride) return true;
  const Adopted& first = begin_of(a) <= begin_of(b) ? a : b;
  const Adopted& second = &first == &a ? b : a;
  const std::uint64_t distance = (begin_of(second) - begin_of(first)) % a.page_stride;
  return distance < first.bytes || distance + second.bytes > a.page_stride;
}

void check_overlaps(const std::vector<Adopted>& adopted) {
  for (std::size_t i = 0; i < adopted.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!overlap(adopted[j], adopted[i])) continue;
      raise(ErrorCode::InvalidArgument,
            adopted[j].name + " and " + adopted[i].name + " share memory: each page of each needs memory of its own");
    }
  }
}

}  // namespace

Lent lend(const nb::object& source, const std::string& what, std::uint64_t bytes_min, const Device* accelerator) {
  const Tensor tensor = import_tensor(source, what, accelerator);
  const std::uint64_t bytes = dense_bytes(tensor, 0, what);
  if (bytes < bytes_min) {
    raise(ErrorCode::InvalidArgument, what + " has " + std::to_string(bytes) + " bytes, and the pool needs " +
                                          std::to_string(bytes_min) + ", its null page included");
  }
  return {.data = static_cast<std::byte*>(tensor.data()), .bytes = bytes, .kept = own(tensor)};
}

LentTensor lend_tensor(const TensorSettings& given, const std::string& what, const PoolGeometry& pool,
                       const Device* accelerator) {
  const Tensor tensor = import_tensor(given.data, what, accelerator);
  if (tensor.ndim() < 2 || tensor.shape(0) < pool.page_count()) {
    raise(ErrorCode::InvalidArgument, what + " has " + std::to_string(tensor.ndim() == 0 ? 0 : tensor.shape(0)) +
                                          " pages in its first dimension, and the pool needs " +
                                          std::to_string(pool.page_count()) + ", its null page included");
  }
  const std::uint64_t bytes = dense_bytes(tensor, 1, what);
  std::uint64_t needed = pool.page().layer_bytes();
  if (given.component_index && *given.component_index < pool.page().components().size()) {
    needed = pool.page().entry_count() * pool.page().components()[*given.component_index].head_bytes *
             pool.page().heads_on_rank(*given.component_index, 0).count;
  }
  if (bytes != needed) {
    raise(ErrorCode::InvalidArgument,
          what + " has " + std::to_string(bytes) + " bytes for each page, not " + std::to_string(needed));
  }
  const std::uint64_t page_stride = static_cast<std::uint64_t>(tensor.stride(0)) * tensor.itemsize();
  return {.tensor = {.layer_index = given.layer_index,
                     .component_index = given.component_index,
                     .data = static_cast<std::byte*>(tensor.data()),
                     .page_stride = page_stride},
          .adopted = {.source = given.data,
                      .data = tensor.data(),
                      .bytes = bytes,
                      .page_count = tensor.shape(0),
                      .page_stride = page_stride,
                      .name = what},
          .kept = own(tensor)};
}

Device* device_of(const nb::object& given, const std::string& what) {
  if (given.is_none()) return nullptr;
  DeviceHandle* handle = nullptr;
  if (nb::try_cast(given, handle, false)) return handle->device.get();
  raise(ErrorCode::InvalidArgument,
        what + " is " + nb::cast<std::string>(nb::repr(given)) + ": give what open_cuda_device() returns");
}

LentMover lend_mover(const nb::object& given, const std::string& what) {
  MoverHandle* handle = nullptr;
  if (!nb::try_cast(given, handle, false) || handle == nullptr) {
    raise(ErrorCode::InvalidArgument,
          what + " is " + nb::cast<std::string>(nb::repr(given)) + ": give what Mover.open() returns");
  }
  if (handle->open == nullptr) raise(ErrorCode::InvalidArgument, what + " was closed: open() another one");
  auto shared = std::make_unique<std::shared_ptr<OpenMover>>(handle->open);
  Mover* const mover = handle->open->mover.get();
  return {.mover = mover, .kept = nb::capsule(shared.release(), [](void* pointer) noexcept {
                            delete static_cast<std::shared_ptr<OpenMover>*>(pointer);
                          })};
}

CacheConfig copy_config(const CacheConfig& config) {
  CacheConfig copy{.layout = config.layout};
  copy.page = config.page;
  copy.host = config.host;
  copy.host.rank_movers.clear();
  copy.disk = config.disk;
  copy.remote = config.remote;
  copy.chunks = config.chunks;
  copy.sequence_count_max = config.sequence_count_max;
  copy.context_tokens_max = config.context_tokens_max;
  copy.step_tokens_max = config.step_tokens_max;
  copy.expected_requests = config.expected_requests;
  copy.dedup = config.dedup;
  copy.steps_in_flight_max = config.steps_in_flight_max;
  copy.tree_tokens_max = config.tree_tokens_max;
  copy.window_rewind_tokens = config.window_rewind_tokens;
  copy.plan = config.plan;
  copy.extra_key_count_max = config.extra_key_count_max;
  copy.key_space_count_max = config.key_space_count_max;
  copy.keep_count_max = config.keep_count_max;
  copy.keep_pages_max = config.keep_pages_max;
  copy.partial_reuse_min_tokens = config.partial_reuse_min_tokens;
  copy.policy = config.policy;
  copy.whole_runs = config.whole_runs;
  copy.hash_seed = config.hash_seed;
  copy.residency_record_count_max = config.residency_record_count_max;
  copy.lost_page_count_max = config.lost_page_count_max;
  copy.device.pool = config.device.pool;
  copy.device.page_count = config.device.page_count;
  copy.device.capacity_bytes = config.device.capacity_bytes;
  copy.device.group_page_counts = config.device.group_page_counts;
  copy.device.state_slot_count = config.device.state_slot_count;
  copy.device.memory = config.device.memory;
  copy.device.byte_layout = config.device.byte_layout;
  return copy;
}

Settings::Settings(const Settings& other)
    : CacheConfig(copy_config(other)), has_layout(other.has_layout), device(other.device), host(other.host) {}

OpenRequest make_request(const Settings& settings) {
  if (!settings.has_layout) {
    raise(ErrorCode::InvalidArgument, "CacheConfig.layout is not set: give preset(\"llama-3-8b\") or a ModelLayout");
  }
  OpenRequest request{.config = copy_config(settings), .adopted = {}, .kept = {}};
  DeviceConfig& device = request.config.device;
  device = settings.device;
  device.accelerator = device_of(settings.device.accelerator, "device.accelerator");
  if (device.accelerator != nullptr) request.kept.push_back(settings.device.accelerator);
  HostConfig& host = request.config.host;
  host = settings.host;
  for (std::size_t i = 0; i < settings.host.rank_movers.size(); ++i) {
    LentMover lent = lend_mover(settings.host.rank_movers[i], "host.rank_movers[" + std::to_string(i) + "]");
    host.rank_movers.push_back(lent.mover);
    request.kept.push_back(std::move(lent.kept));
  }
  const bool has_group_memory = !settings.device.adopted_group_memory.empty();
  if (settings.device.adopted_memory.is_none() && !has_group_memory && settings.device.adopted_tensors.empty() &&
      settings.device.adopted_state_memory.is_none()) {
    return request;
  }
  // How much is needed is what a cache without memory says.
  CacheConfig bare = copy_config(settings);
  bare.device = settings.device;
  bare.device.memory = DeviceMemory::None;
  bare.device.accelerator = nullptr;
  bare.host = {};
  bare.disk = {};
  bare.remote = {};
  const std::unique_ptr<Cache> probe = [&] {
    auto opened = [&] {
      const WithoutGil without;
      return Cache::open(std::move(bare));
    }();
    return take(std::move(opened));
  }();
  const std::size_t group_count = settings.layout.groups().size();
  if (!settings.device.adopted_memory.is_none() && has_group_memory) {
    raise(ErrorCode::InvalidArgument,
          "device.adopted_memory and device.adopted_group_memory are both set: give the memory of all groups in one");
  }
  if (!settings.device.adopted_memory.is_none()) {
    device.adopted_memory =
        adopt(request, settings.device.adopted_memory, "device.adopted_memory", probe->geometry(0).pool_bytes());
  }
  if (has_group_memory && settings.device.adopted_group_memory.size() != group_count) {
    raise(ErrorCode::InvalidArgument, "device.adopted_group_memory has " +
                                          std::to_string(settings.device.adopted_group_memory.size()) +
                                          " tensors for " + std::to_string(group_count) + " groups");
  }
  for (std::size_t g = 0; g < settings.device.adopted_group_memory.size(); ++g) {
    const bool pages = has_pages(settings.layout.groups()[g]);
    device.adopted_group_memory.push_back(adopt(
        request, settings.device.adopted_group_memory[g], "device.adopted_group_memory[" + std::to_string(g) + "]",
        pages ? probe->geometry(static_cast<std::uint32_t>(g)).pool_bytes() : 0));
  }
  if (!settings.device.adopted_state_memory.is_none()) {
    const std::uint64_t slots =
        settings.device.state_slot_count == 0 ? settings.sequence_count_max : settings.device.state_slot_count;
    device.adopted_state_memory = adopt(request, settings.device.adopted_state_memory, "device.adopted_state_memory",
                                        slots * probe->state_slots().slot_bytes());
  }
  if (settings.device.adopted_tensors.size() > group_count) {
    raise(ErrorCode::InvalidArgument, "device.adopted_tensors has " +
                                          std::to_string(settings.device.adopted_tensors.size()) + " lists for " +
                                          std::to_string(group_count) + " groups");
  }
  adopt_tensors(request, settings.device, *probe);
  check_overlaps(request.adopted);
  return request;
}

}  // namespace quire::python
