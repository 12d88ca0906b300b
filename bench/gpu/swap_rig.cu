// SPDX-License-Identifier: Apache-2.0
#include "swap_rig.cuh"

#include <algorithm>
#include <thread>

namespace quire::bench {
namespace {

constexpr std::uint64_t kPoolBytes = std::uint64_t{4} << 30U;

// Layers behind each other, as in engines' own tensors, or pages.
std::vector<std::vector<Fragment>> lay_out(const SwapShape& shape, std::byte* pool, std::uint32_t page_count) {
  std::vector<std::vector<Fragment>> layers(shape.layer_count);
  for (std::uint32_t f = 0; f < shape.fragment_count; ++f) {
    const std::uint64_t offset = f * shape.fragment_bytes;
    layers[f * shape.layer_count / shape.fragment_count].push_back(
        {.first = pool + (shape.is_page_first ? offset : offset * page_count),
         .page_stride = shape.is_page_first ? shape.page_bytes() : shape.fragment_bytes,
         .record_offset = offset,
         .bytes = shape.fragment_bytes});
  }
  return layers;
}

}  // namespace

TimedDevice::~TimedDevice() {
  for (const Kernel& kernel : kernels_) {
    (void)cudaEventDestroy(kernel.begin);
    (void)cudaEventDestroy(kernel.end);
  }
}

TimedDevice::Kernel& TimedDevice::next_kernel() {
  if (used_ == kernels_.size()) {
    Kernel kernel;
    check(cudaEventCreate(&kernel.begin), "making an event");
    check(cudaEventCreate(&kernel.end), "making an event");
    kernels_.push_back(kernel);
  }
  return kernels_[used_++];
}

Status TimedDevice::move_fragments(const MoveFragmentsParams& params, DeviceStream stream) {
  if (!keeps_times_) return device_.move_fragments(params, stream);
  Kernel& kernel = next_kernel();
  const std::uint64_t work = params.items.size() * params.fragments.size();
  kernel.blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(params.block_count_max, (work + 31) / 32));
  check(cudaEventRecord(kernel.begin, static_cast<cudaStream_t>(stream.handle)), "recording");
  Status status = device_.move_fragments(params, stream);
  check(cudaEventRecord(kernel.end, static_cast<cudaStream_t>(stream.handle)), "recording");
  return status;
}

Status TimedDevice::finish_checksums(const FinishChecksumsParams& params, DeviceStream stream) {
  if (!keeps_times_) return device_.finish_checksums(params, stream);
  Kernel& kernel = next_kernel();
  kernel.blocks = 1;
  check(cudaEventRecord(kernel.begin, static_cast<cudaStream_t>(stream.handle)), "recording");
  Status status = device_.finish_checksums(params, stream);
  check(cudaEventRecord(kernel.end, static_cast<cudaStream_t>(stream.handle)), "recording");
  return status;
}

double TimedDevice::take_block_seconds() {
  double total = 0;
  for (std::size_t i = 0; i < used_; ++i) {
    check(cudaEventSynchronize(kernels_[i].end), "waiting");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, kernels_[i].begin, kernels_[i].end), "timing");
    total += ms / 1e3 * kernels_[i].blocks;
  }
  used_ = 0;
  return total;
}

SwapRig::SwapRig(Device& device, const SwapShape& shape, const Settings& settings, bool checksums)
    : device_(device),
      shape_(shape),
      page_count_(static_cast<std::uint32_t>(kPoolBytes / shape.page_bytes())),
      host_bytes_(page_count_ * shape.page_bytes()),
      pool_(host_bytes_),
      host_(device, host_bytes_, shape.page_bytes()),
      layers_(lay_out(shape, pool_.data(), page_count_)) {
  for (const auto& layer : layers_) fragments_.insert(fragments_.end(), layer.begin(), layer.end());
  // Loads and stores have pages of their own, so that they may run at the same time.
  const std::vector<PageId> device_pages = scattered_pages(2 * shape.call_pages, page_count_, 11);
  std::vector<RecordId> records;
  for (const PageId page : scattered_pages(2 * shape.call_pages, page_count_, 12))
    records.push_back(RecordId{page.value});
  const auto half = static_cast<std::ptrdiff_t>(shape.call_pages);
  load_device_.assign(device_pages.begin(), device_pages.begin() + half);
  store_device_.assign(device_pages.begin() + half, device_pages.end());
  load_records_.assign(records.begin(), records.begin() + half);
  store_records_.assign(records.begin() + half, records.end());
  engine_ = take(SwapEngine::open({.device = &device_,
                                   .layers = layers_,
                                   .device_page_count = page_count_,
                                   .records = host_.data(),
                                   .record_stride = shape.page_bytes(),
                                   .record_count = page_count_,
                                   .checksums = checksums,
                                   .call_pages_max = shape.call_pages,
                                   .calls_in_flight_max = 4,
                                   .staging_bytes = settings.staging_bytes,
                                   .staged_blocks = settings.staged_blocks,
                                   .direct_blocks = settings.direct_blocks}),
                 "opening a swap engine");
}

Pages SwapRig::pages(TransferKind kind) const {
  const bool is_load = kind == TransferKind::Load;
  return {.kind = kind,
          .fragments = fragments_,
          .device_pages = is_load ? load_device_ : store_device_,
          .record_ids = is_load ? load_records_ : store_records_,
          .records = host_.data(),
          .record_stride = shape_.page_bytes()};
}

void SwapRig::start(TransferKind kind, std::optional<SwapPath> path) {
  const Pages moved = pages(kind);
  const int first = kind == TransferKind::Load ? 0 : 3;
  const SwapOrder order{.kind = kind,
                        .device_pages = moved.device_pages,
                        .records = moved.record_ids,
                        .streams = {.copies = {streams_.of[first]},
                                    .kernels = {streams_.of[first + 1]},
                                    .more_kernels = {streams_.of[first + 2]}},
                        .path = path};
  std::vector<SwapTicket>& own = on_their_way_[static_cast<std::size_t>(kind)];
  while (true) {
    const auto ticket = take(engine_->try_start(order), "starting a swap");
    if (ticket) {
      own.push_back(*ticket);
      return;
    }
    while (!take(engine_->is_done(own.front()), "asking for a swap")) {
    }
    (void)take(engine_->finish(own.front()), "finishing a swap");
    own.erase(own.begin());
  }
}

void SwapRig::finish_all(TransferKind kind) {
  std::vector<SwapTicket>& own = on_their_way_[static_cast<std::size_t>(kind)];
  for (const SwapTicket& ticket : own) {
    while (!take(engine_->is_done(ticket), "asking for a swap")) {
    }
    (void)take(engine_->finish(ticket), "finishing a swap");
  }
  own.clear();
}

double SwapRig::rate(bool loads, bool stores, int calls, std::optional<SwapPath> path) {
  const auto run = [&](TransferKind kind) {
    for (int i = 0; i < calls; ++i) start(kind, path);
    finish_all(kind);
  };
  const double seconds = median_seconds(5, [&] {
    std::thread loader;
    if (loads && stores) loader = std::thread(run, TransferKind::Load);  // as a mover has one for each direction
    run(stores ? TransferKind::Store : TransferKind::Load);
    if (loader.joinable()) loader.join();
  });
  return static_cast<double>(call_bytes()) * calls * ((loads ? 1 : 0) + (stores ? 1 : 0)) / seconds / 1e9;
}

double SwapRig::busy_share(TransferKind kind, int calls) {
  device_.keep_times(true);
  double seconds = 0;
  for (int tries = 0; tries < 2; ++tries) {  // the first makes the events
    (void)device_.take_block_seconds();
    const double begin = now_seconds();
    for (int i = 0; i < calls; ++i) start(kind);
    finish_all(kind);
    seconds = now_seconds() - begin;
  }
  device_.keep_times(false);
  return device_.take_block_seconds() / device_.multiprocessor_count() / seconds;
}

}  // namespace quire::bench
