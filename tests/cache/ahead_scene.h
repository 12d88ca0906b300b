// SPDX-License-Identifier: Apache-2.0
//
// A request whose pages arrive on a device while its stream reads them layer by layer, for any device: a GPU, or one in
// plain memory. Everything that touches the device's memory goes by its streams.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "quire/cache.h"
#include "quire/device.h"

namespace quire::testing {

struct AheadScene {
  SwapPath path = SwapPath::Staged;
  ByteLayout byte_layout = ByteLayout::LayerFirst;
  std::uint16_t layer_bands = 1;
  std::uint32_t transfer_pages_max = 64;
  /// Set: the stream does not wait, to see that this is noticed. Called with true before the pages are on their way:
  /// the device is to do nothing by itself until it is called with false.
  std::function<void(bool is_held)> hold_without_waiting;
};

class AheadSceneRun {
 public:
  /// What went wrong; empty: every layer was right when the stream read it.
  [[nodiscard]] static std::string run(Device& device, const AheadScene& scene) {
    AheadSceneRun made(device, scene);
    std::string wrong = made.run_all();
    if (made.stream_.handle != nullptr) {
      (void)device.synchronize(made.stream_);
      device.destroy_stream(made.stream_);
    }
    made.cache_.reset();
    if (made.is_registered_) device.unregister_host(made.staging_);
    return wrong;
  }

 private:
  static constexpr std::uint32_t kPageTokens = 16;
  static constexpr std::uint32_t kLayers = 6;
  static constexpr std::uint32_t kPages = 24;  // of the prompt

  AheadSceneRun(Device& device, const AheadScene& scene) : device_(device), scene_(scene) {}

  [[nodiscard]] Status open() {
    CacheConfig config{.layout = ModelLayout::simple({.layers = kLayers, .kv_heads = 2, .head_dim = 24}).value(),
                       .page = {.page_tokens = kPageTokens},
                       .device = {.page_count = kPages + 4,
                                  .memory = DeviceMemory::Accelerator,
                                  .byte_layout = scene_.byte_layout,
                                  .accelerator = &device_},
                       .host = {.page_count = 2 * kPages, .write_policy = WritePolicy::WriteThrough},
                       .sequence_count_max = 2,
                       .context_tokens_max = (kPages + 1) * kPageTokens,
                       .step_tokens_max = (kPages + 1) * kPageTokens};
    config.host.layer_bands = scene_.layer_bands;
    config.host.transfer_pages_max = scene_.transfer_pages_max;
    config.host.staging_bytes = 32'768;
    config.host.load_paths = SwapPaths{.few = scene_.path, .many = scene_.path};
    config.host.store_paths = config.host.load_paths;
    QUIRE_TRY_ASSIGN(cache_, Cache::open(std::move(config)));
    QUIRE_TRY_ASSIGN(space_, cache_->key_space({.model = "ahead"}));
    layer_bytes_ = cache_->geometry().page().layer_bytes();
    storage_.resize((std::size_t{kPages} * kLayers * layer_bytes_) + kAlignment);
    void* data = storage_.data();
    std::size_t room = storage_.size();
    staging_ = {static_cast<std::byte*>(std::align(kAlignment, storage_.size() - kAlignment, data, room)),
                storage_.size() - kAlignment};
    QUIRE_TRY(device_.register_host(staging_, layer_bytes_));
    is_registered_ = true;
    QUIRE_TRY_ASSIGN(stream_, device_.create_stream(StreamPriority::Low));
    tokens_.resize((kPages * kPageTokens) + 5);
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<TokenId>(i);
    return {};
  }

  [[nodiscard]] std::string run_all() {
    if (const Status status = open(); !status) return status.error().message;
    if (const Status status = put_on_host(); !status) return "putting pages on the host: " + status.error().message;
    for (int round = 0; round < 2; ++round) {
      std::ranges::fill(staging_, std::byte{0xEE});
      if (const Status status = copy_all(0, true); !status) return status.error().message;
      std::ranges::fill(staging_, std::byte{0x11});
      const Result<std::string> wrong = read_ahead();
      if (!wrong) return wrong.error().message;
      if (!wrong->empty()) return *wrong;
    }
    return "";
  }

  [[nodiscard]] Result<Step> plan(const Sequence& sequence) {
    const StepEntry entry{&sequence};
    QUIRE_TRY_ASSIGN(const PlanOutcome outcome, cache_->plan_step({&entry, 1}));
    if (!outcome.step) return fail(ErrorCode::Unavailable, "short of pages");
    const std::span<const PageId> pages = outcome.step->plan.entries[0].pages;
    pages_.assign(pages.begin(), pages.begin() + kPages);
    return *outcome.step;
  }
  [[nodiscard]] Status finish(const Step& step) {
    const StepResult result;
    return cache_->finish_step(step, {&result, 1});
  }
  /// Until nothing moves; then the device has nothing of the prompt.
  [[nodiscard]] Status end(Sequence& sequence) {
    QUIRE_TRY(cache_->end(sequence));
    QUIRE_TRY(drain());
    QUIRE_TRY(cache_->reclaim(UINT32_MAX));
    return {};
  }
  [[nodiscard]] Status drain() {
    while (cache_->stats()->transfers_in_flight > 0) {
      QUIRE_TRY_ASSIGN(const std::span<const Completion> completions, cache_->poll());
      if (completions.empty()) std::this_thread::yield();
      QUIRE_TRY(cache_->apply(completions, 0));
    }
    return {};
  }

  [[nodiscard]] Status put_on_host() {
    QUIRE_TRY_ASSIGN(Sequence sequence,
                     cache_->begin(space_, {.tokens = std::span(tokens_).first(kPages * kPageTokens)}));
    QUIRE_TRY(cache_->admit(sequence));
    QUIRE_TRY_ASSIGN(const Step step, plan(sequence));
    for (std::uint32_t column = 0; column < kPages; ++column) {
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) fill(column, layer);
    }
    QUIRE_TRY(copy_all(0, true));
    QUIRE_TRY(finish(step));
    return end(sequence);
  }

  [[nodiscard]] Result<std::string> read_ahead() {
    QUIRE_TRY_ASSIGN(Sequence sequence, cache_->begin(space_, {.tokens = tokens_},
                                                      {.publish = Publish::None, .plan_while_loading = true}));
    const bool waits = !scene_.hold_without_waiting;
    if (!waits) scene_.hold_without_waiting(true);
    QUIRE_TRY_ASSIGN(const Admission admission, cache_->admit(sequence));
    if (!admission.is_ready || admission.loading_tokens != kPages * kPageTokens)
      return "the pages are not on their way";
    QUIRE_TRY_ASSIGN(const Step step, plan(sequence));
    if (step.loads.empty()) return "the step has nothing to wait for";
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      if (waits) QUIRE_TRY(cache_->wait_on(stream_, step, {0, layer}));
      QUIRE_TRY(copy_layer(layer, false));
    }
    QUIRE_TRY(device_.synchronize(stream_));
    if (!waits) scene_.hold_without_waiting(false);
    std::string wrong = compare();
    QUIRE_TRY(drain());
    QUIRE_TRY_ASSIGN(const std::span<const std::uint32_t> lost, cache_->lost_entries(step));
    if (!lost.empty()) wrong += " and pages did not arrive";
    QUIRE_TRY(finish(step));
    QUIRE_TRY(end(sequence));
    return wrong;
  }

  // Between the device and the staging memory.
  [[nodiscard]] Status copy_all(std::uint32_t first_layer, bool is_to_device) {
    for (std::uint32_t layer = first_layer; layer < kLayers; ++layer) QUIRE_TRY(copy_layer(layer, is_to_device));
    return device_.synchronize(stream_);
  }
  [[nodiscard]] Status copy_layer(std::uint32_t layer, bool is_to_device) {
    const PoolStrides& strides = cache_->geometry().strides();
    for (std::uint32_t column = 0; column < kPages; ++column) {
      std::byte* const on_device =
          cache_->device_memory() + (pages_[column].value * strides.page) + (layer * strides.layer);
      std::byte* const on_host = staged(column, layer).data();
      QUIRE_TRY(is_to_device ? device_.copy(on_device, on_host, layer_bytes_, stream_)
                             : device_.copy(on_host, on_device, layer_bytes_, stream_));
    }
    return {};
  }
  [[nodiscard]] std::span<std::byte> staged(std::uint32_t column, std::uint32_t layer) const {
    return staging_.subspan(((std::size_t{layer} * kPages) + column) * layer_bytes_, layer_bytes_);
  }
  [[nodiscard]] static std::byte byte_at(std::uint32_t column, std::uint32_t layer, std::size_t place) {
    return static_cast<std::byte>(mix64((std::uint64_t{column} << 40U) + (std::uint64_t{layer} << 20U) + place));
  }
  void fill(std::uint32_t column, std::uint32_t layer) {
    const std::span<std::byte> bytes = staged(column, layer);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(column, layer, i);
  }
  [[nodiscard]] std::string compare() const {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      for (std::uint32_t column = 0; column < kPages; ++column) {
        const std::span<const std::byte> bytes = staged(column, layer);
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          if (bytes[i] == byte_at(column, layer, i)) continue;
          return "layer " + std::to_string(layer) + " of page " + std::to_string(column) + " was read too early";
        }
      }
    }
    return "";
  }

  static constexpr std::size_t kAlignment = 4096;

  Device& device_;
  AheadScene scene_;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  DeviceStream stream_;
  std::vector<TokenId> tokens_;
  std::vector<PageId> pages_;       // of the step that was planned last
  std::vector<std::byte> storage_;  // which the staging memory is part of
  std::span<std::byte> staging_;    // layer after layer, page after page
  std::uint64_t layer_bytes_ = 0;
  bool is_registered_ = false;
};

}  // namespace quire::testing
