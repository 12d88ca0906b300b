// SPDX-License-Identifier: Apache-2.0
//
// Overlap: the first step of a request of 8,192 tokens, of which 7,168 are on the host: loaded first and then computed,
// or computed layer by layer while the layers arrive. The cache, its own mover and the calls of an engine are the real
// ones; what computes a layer is the benchmark's, on a host or on a GPU.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "quire/cache.h"

namespace quire::bench {

inline constexpr std::uint32_t kOverlapTokens = 8'192;
inline constexpr std::uint32_t kOverlapCachedTokens = 7'168;
inline constexpr std::uint32_t kOverlapPageTokens = 16;
inline constexpr std::uint32_t kOverlapLayers = 32;

/// How the engine works that a step is for.
struct OverlapEngine {
  std::function<void(const Cache& cache, const Step& step, std::uint32_t layer)> wait;
  std::function<void(std::uint32_t layer)> compute;
  std::function<void()> synchronize;  ///< everything is computed
};

/// Seconds, of one run each.
struct OverlapTimes {
  double load = 0;        ///< from admit() until all pages have arrived
  double compute = 0;     ///< from plan_step() until the step is finished, with everything on the device
  double in_turn = 0;     ///< from admit() until the step is finished: loading, then computing
  double overlapped = 0;  ///< the same with plan_while_loading

  /// Of the longer of the two that nothing can be faster than.
  [[nodiscard]] double ratio(double seconds) const { return seconds / std::max(load, compute); }
};

class Overlap {
 public:
  /// Fills in what every run has in common. Loads are one transfer each, unless pages_max is less than a prompt.
  Overlap(CacheConfig config, std::uint16_t layer_bands, std::uint32_t transfer_pages_max = 512) {
    constexpr std::uint32_t kPages = kOverlapTokens / kOverlapPageTokens;
    config.page.page_tokens = kOverlapPageTokens;
    config.device.page_count = kPages + 8;
    config.host.page_count = kPages;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.host.layer_bands = layer_bands;
    config.host.transfer_pages_max = transfer_pages_max;
    config.sequence_count_max = 2;
    config.context_tokens_max = kOverlapTokens;
    config.step_tokens_max = kOverlapTokens;
    cache_ = taken(Cache::open(std::move(config)));
    space_ = taken(cache_->key_space({.model = "overlap"}));
    tokens_.resize(kOverlapTokens);
    for (std::uint32_t i = 0; i < kOverlapTokens; ++i) tokens_[i] = static_cast<TokenId>(i);
    Sequence sequence = taken(cache_->begin(space_, {.tokens = std::span(tokens_).first(kOverlapCachedTokens)}));
    QUIRE_CHECK(cache_->admit(sequence).has_value(), "not admitted");
    finish(plan(sequence));
    end(sequence);
  }

  [[nodiscard]] Cache& cache() { return *cache_; }

  [[nodiscard]] OverlapTimes measure(const OverlapEngine& engine) {
    OverlapTimes times;
    {
      Sequence sequence = begin(/*plan_while_loading=*/false);
      times.load = seconds_of([&] { load(sequence); });
      times.compute = seconds_of([&] { finish(compute(engine, plan(sequence))); });
      end(sequence);
    }
    {
      Sequence sequence = begin(/*plan_while_loading=*/false);
      times.in_turn = seconds_of([&] {
        load(sequence);
        finish(compute(engine, plan(sequence)));
      });
      end(sequence);
    }
    Sequence sequence = begin(/*plan_while_loading=*/true);
    times.overlapped = seconds_of([&] {
      QUIRE_CHECK(cache_->admit(sequence)->is_ready, "the loads are not on their way");
      const Step step = plan(sequence);
      QUIRE_CHECK(!step.loads.empty(), "the step waits for nothing");
      for (std::uint32_t layer = 0; layer < kOverlapLayers; ++layer) {
        engine.wait(*cache_, step, layer);
        engine.compute(layer);
      }
      engine.synchronize();
      drain();
      QUIRE_CHECK(cache_->lost_entries(step)->empty(), "pages did not arrive");
      finish(step);
    });
    end(sequence);
    return times;
  }

 private:
  template <typename T>
  [[nodiscard]] static T taken(Result<T> result) {
    QUIRE_CHECK(result.has_value(), result.error().message.c_str());
    return std::move(*result);
  }
  template <typename Call>
  [[nodiscard]] static double seconds_of(Call&& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  /// What is computed is not published: the next run finds the same pages.
  [[nodiscard]] Sequence begin(bool plan_while_loading) {
    return taken(cache_->begin(space_, {.tokens = tokens_},
                               {.publish = Publish::None, .plan_while_loading = plan_while_loading}));
  }
  void load(const Sequence& sequence) {
    QUIRE_CHECK(cache_->admit(sequence)->loading_tokens == kOverlapCachedTokens, "the host has lost pages");
    drain();
    QUIRE_CHECK(cache_->view(sequence)->computed_tokens == kOverlapCachedTokens, "pages did not arrive");
  }
  [[nodiscard]] Step plan(const Sequence& sequence) {
    const StepEntry entry{&sequence};
    const PlanOutcome outcome = taken(cache_->plan_step({&entry, 1}));
    QUIRE_CHECK(outcome.step.has_value(), "short of pages");
    return *outcome.step;
  }
  [[nodiscard]] static Step compute(const OverlapEngine& engine, const Step& step) {
    for (std::uint32_t layer = 0; layer < kOverlapLayers; ++layer) engine.compute(layer);
    engine.synchronize();
    return step;
  }
  void finish(const Step& step) {
    const StepResult result;
    QUIRE_CHECK(cache_->finish_step(step, {&result, 1}), "the step did not finish");
  }
  /// The host keeps what it has, and the device nothing.
  void end(Sequence& sequence) {
    QUIRE_CHECK(cache_->end(sequence), "the sequence did not end");
    drain();
    QUIRE_CHECK(cache_->reclaim(UINT32_MAX).has_value(), "pages stay on the device");
  }
  void drain() {
    while (cache_->stats()->transfers_in_flight > 0) {
      pollfd event{.fd = cache_->event_fd(), .events = POLLIN, .revents = 0};
      (void)::poll(&event, 1, /*timeout=*/-1);
      QUIRE_CHECK(cache_->apply(*cache_->poll(), 0), "completions were refused");
    }
  }

  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<TokenId> tokens_;
};

}  // namespace quire::bench
