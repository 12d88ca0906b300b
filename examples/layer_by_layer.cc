// SPDX-License-Identifier: Apache-2.0
//
// A step that begins before its pages have arrived: pages of a prompt come back from the host layer by layer, and each
// layer is computed when it is there. What is read is compared with what was written.
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

constexpr std::uint32_t kLayers = 8;
constexpr std::uint32_t kPageTokens = 16;
constexpr quire::TimeNs kSecond = 1'000'000'000;

/// The number that a layer has for a token: a stand-in for K and V.
std::uint64_t number_of(quire::TokenId token, std::uint32_t layer) {
  return (static_cast<std::uint64_t>(token) * 1'000) + layer;
}

std::byte* place_of(quire::Cache& cache, std::int64_t slot, std::uint32_t layer) {
  const quire::PageId page{static_cast<std::uint32_t>(slot / kPageTokens)};
  const auto token = static_cast<std::uint32_t>(slot % kPageTokens);
  return cache.device_memory() + cache.geometry().offset_of({.page = page, .layer_index = layer, .token_index = token});
}

/// One layer of an entry: reads the numbers of all tokens before it, and writes those of its own. True: all were right.
bool compute_layer(quire::Cache& cache, const quire::AttentionPlanEntry& entry, std::span<const quire::TokenId> tokens,
                   std::uint32_t layer) {
  bool is_right = true;
  for (std::uint32_t i = 0; i < entry.position; ++i) {
    const std::int64_t slot = (std::int64_t{entry.pages[i / kPageTokens].value} * kPageTokens) + (i % kPageTokens);
    std::uint64_t found = 0;
    std::memcpy(&found, place_of(cache, slot, layer), sizeof(found));
    is_right = is_right && found == number_of(tokens[i], layer);
  }
  for (std::uint32_t i = 0; i < entry.token_count; ++i) {
    const std::uint64_t number = number_of(tokens[entry.position + i], layer);
    if (entry.append_slots[i] != quire::kNoSlot) {
      std::memcpy(place_of(cache, entry.append_slots[i], layer), &number, sizeof(number));
    }
  }
  return is_right;
}

void apply_ended(quire::Cache& cache) {
  const auto ended = *cache.poll();
  if (!cache.apply(ended, /*now=*/0)) std::abort();
}

void wait_for_pages(quire::Cache& cache) {
  apply_ended(cache);
  pollfd event{.fd = cache.event_fd(), .events = POLLIN, .revents = 0};
  poll(&event, 1, /*milliseconds=*/10);
}

struct Served {
  std::uint32_t found_tokens = 0;
  std::size_t loads = 0;  // under way when the step began
  bool is_right = true;
};

Served serve(quire::Cache& cache, quire::KeySpaceId space, std::span<const quire::TokenId> tokens) {
  // [step]
  quire::Sequence sequence = *cache.begin(space, {tokens}, {.plan_while_loading = true});
  if (!cache.admit(sequence)) std::abort();
  while (!cache.view(sequence)->is_ready) wait_for_pages(cache);
  Served served{.found_tokens = cache.view(sequence)->computed_tokens};

  bool is_lost = true;
  while (is_lost) {
    const quire::StepEntry entry{&sequence};
    const quire::PlanOutcome outcome = *cache.plan_step({&entry, 1});
    if (!outcome.step || !cache.apply_copies(*outcome.step)) std::abort();
    const quire::Step& step = *outcome.step;
    served.loads += step.loads.size();
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      // On a GPU: cache.wait_on(stream, step, …), and the stream waits instead.
      const auto arrived = cache.wait_for_layer(step, {.group_index = 0, .layer_index = layer}, kSecond);
      if (!arrived || *arrived != quire::TransferOutcome::Ok) break;  // told once more by lost_entries()
      served.is_right = compute_layer(cache, step.plan.entries[0], tokens, layer) && served.is_right;
    }
    while (cache.view(sequence)->is_loading && cache.lost_entries(step)->empty()) wait_for_pages(cache);
    is_lost = !cache.lost_entries(step)->empty();  // then the next step computes what did not come
    const quire::StepResult result;
    if (!cache.finish_step(step, {&result, 1})) std::abort();
  }
  // [step]
  if (!cache.end(sequence)) std::abort();
  return served;
}

}  // namespace

int main() {
  std::vector<std::uint32_t> layers(kLayers);
  std::iota(layers.begin(), layers.end(), 0);
  const quire::Component number{.name = "number", .element = quire::ElementType::Bytes, .dim = sizeof(std::uint64_t)};
  const quire::CacheGroup group{.name = "numbers", .layers = layers, .components = {number}};
  quire::CacheConfig config{.layout = *quire::ModelLayout::create("eight layers", {group}),
                            .page = {.page_tokens = kPageTokens}};
  config.device.page_count = 96;
  config.host.page_count = 256;
  config.host.write_policy = quire::WritePolicy::WriteThrough;
  config.host.layer_bands = kLayers;    // a band for each layer
  config.host.transfer_pages_max = 64;  // one load brings all pages of a prompt, layer by layer
  const std::unique_ptr<quire::Cache> cache = *quire::Cache::open(std::move(config));
  const quire::KeySpaceId space = *cache->key_space({.model = "layer by layer"});
  std::vector<quire::TokenId> prompt(1'000);
  std::iota(prompt.begin(), prompt.end(), 1);
  bool is_right = serve(*cache, space, prompt).is_right;
  while (cache->stats()->transfers_in_flight > 0) wait_for_pages(*cache);
  if (!cache->reclaim(UINT32_MAX)) return 1;  // the device forgets it, the host does not

  const Served second = serve(*cache, space, prompt);
  is_right = is_right && second.is_right;
  std::printf("%u of %zu tokens came from the host, %s; every number %s\n", second.found_tokens, prompt.size(),
              second.loads > 0 ? "while the step ran" : "before the step began",
              is_right ? "was the one written" : "was WRONG");
  return is_right ? 0 : 1;
}
