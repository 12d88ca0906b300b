// SPDX-License-Identifier: Apache-2.0
//
// A host tier behind a small device pool, with the bytes moved by the cache itself and then by the engine. Four prompts
// take turns on a device that holds one and a half of them; what a turn finds is compared with what was written.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

constexpr std::uint32_t kTokenBytes = 64;
constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kPageBytes = kPageTokens * kTokenBytes;
constexpr std::uint32_t kDevicePages = 12;
constexpr std::uint32_t kHostPages = 64;

// [external]
struct HostPage {
  std::uint32_t generation = 0;
  std::uint64_t name_tag = 0;
  std::array<std::byte, kPageBytes> bytes{};
};

void move_pages(quire::Cache& cache, std::span<HostPage> host_pages, quire::TimeNs now) {
  std::array<quire::TransferPlan, 16> room;
  std::vector<quire::Completion> done;
  const std::span<const quire::TransferPlan> plans = *cache.take_transfers(room);
  for (const quire::TransferPlan& plan : plans) {
    quire::Completion& end = done.emplace_back(quire::Completion{.id = plan.id});
    for (const quire::PageTransfer& page : plan.pages) {
      const std::span device(cache.device_memory() + cache.geometry().offset_of({page.device_page}), kPageBytes);
      HostPage& host = host_pages[page.host_page.value];
      if (plan.kind == quire::TransferKind::Store) {
        host = {.generation = page.host_generation, .name_tag = page.name_tag};
        std::ranges::copy(device, host.bytes.begin());
      } else if (host.generation == page.host_generation && host.name_tag == page.name_tag) {
        std::ranges::copy(host.bytes, device.begin());
      } else {  // another page by now; those before it are good
        end.outcome = quire::TransferOutcome::Failed;
        end.fault = quire::TransferFault::Generation;
        break;
      }
      ++end.good_pages;
      end.moved_bytes += kPageBytes;
    }
  }
  if (!cache.apply(done, now)) std::abort();
}
// [external]

// [own]
void wait_for_pages(quire::Cache& cache, quire::TimeNs now) {
  const auto ended = *cache.poll();            // also hands over what is to be moved
  if (!cache.apply(ended, now)) std::abort();  // even of nothing: loads that take too long end here
  if (!ended.empty()) return;
  pollfd event{.fd = cache.event_fd(), .events = POLLIN, .revents = 0};
  poll(&event, 1, /*milliseconds=*/1'000);
}
// [own]

std::byte pattern(quire::TokenId token, std::uint32_t i) {
  return static_cast<std::byte>((token * 31) + static_cast<quire::TokenId>(i));
}

/// Where the bytes of a token lie.
std::span<std::byte> token_bytes(quire::Cache& cache, std::int64_t slot) {
  const quire::PageId page{static_cast<std::uint32_t>(slot / kPageTokens)};
  const auto token = static_cast<std::uint32_t>(slot % kPageTokens);
  return {cache.device_memory() + cache.geometry().offset_of({page}) + (std::size_t{token} * kTokenBytes), kTokenBytes};
}

struct Served {
  std::uint32_t found_tokens = 0;
  bool is_right = false;
};

/// One request; `move` lets transfers go on.
Served serve(quire::Cache& cache, quire::KeySpaceId space, std::span<const quire::TokenId> prompt,
             const std::function<void()>& move) {
  // [engine]
  quire::Sequence sequence = *cache.begin(space, {prompt});
  quire::Result<quire::Admission> hit = cache.admit(sequence);
  while (!hit && hit.error().code == quire::ErrorCode::Unavailable) {  // no room for the pages to load
    move();
    hit = cache.admit(sequence);
  }
  while (cache.view(sequence)->is_loading) move();
  const std::uint32_t found = cache.view(sequence)->computed_tokens;  // those that did not arrive are pending

  const quire::StepEntry entry{&sequence};
  quire::PlanOutcome outcome = *cache.plan_step({&entry, 1});
  while (!outcome.step && outcome.shortage.pages_leaving > 0) {  // room is being made
    move();
    outcome = *cache.plan_step({&entry, 1});
  }
  // [engine]
  if (!outcome.step || !cache.apply_copies(*outcome.step)) return {};

  const quire::AttentionPlanEntry& planned = outcome.step->plan.entries.front();
  bool is_right = true;
  for (std::uint32_t i = 0; i < found; ++i) {
    const std::int64_t slot = (std::int64_t{planned.pages[i / kPageTokens].value} * kPageTokens) + (i % kPageTokens);
    const std::span<const std::byte> bytes = token_bytes(cache, slot);
    for (std::uint32_t k = 0; k < kTokenBytes; ++k) is_right = is_right && bytes[k] == pattern(prompt[i], k);
  }
  for (std::uint32_t i = 0; i < planned.token_count; ++i) {
    if (planned.append_slots[i] == quire::kNoSlot) continue;
    const std::span<std::byte> bytes = token_bytes(cache, planned.append_slots[i]);
    for (std::uint32_t k = 0; k < kTokenBytes; ++k) bytes[k] = pattern(prompt[planned.position + i], k);
  }
  const quire::StepResult result;
  if (!cache.finish_step(*outcome.step, {&result, 1}) || !cache.end(sequence)) return {};
  return {found, is_right};
}

bool run(bool is_external) {
  // [open]
  quire::CacheConfig config{.layout = *quire::ModelLayout::opaque(kTokenBytes), .page = {.page_tokens = kPageTokens}};
  config.device.page_count = kDevicePages;
  config.host.page_count = kHostPages;
  config.host.write_policy = quire::WritePolicy::WriteBack;
  config.host.external_mover = is_external;  // false: the cache has a mover of its own
  const std::unique_ptr<quire::Cache> cache = *quire::Cache::open(std::move(config));
  // [open]
  const quire::KeySpaceId space = *cache->key_space({.model = "two tiers"});
  std::vector<HostPage> host_pages(is_external ? kHostPages + 1 : 0);
  const quire::TimeNs now = 0;
  const std::function<void()> move = [&] {
    if (is_external) {
      move_pages(*cache, host_pages, now);
    } else {
      wait_for_pages(*cache, now);
    }
  };

  std::uint32_t found = 0;
  std::uint32_t all = 0;
  bool is_right = true;
  for (int turn = 0; turn < 3; ++turn) {
    for (quire::TokenId user = 0; user < 4; ++user) {
      std::vector<quire::TokenId> prompt(8 * kPageTokens);
      std::iota(prompt.begin(), prompt.end(), 1'000 * user);
      const Served served = serve(*cache, space, prompt, move);
      found += served.found_tokens;
      all += static_cast<std::uint32_t>(prompt.size());
      is_right = is_right && served.is_right;
    }
  }
  const quire::Stats stats = *cache->stats();
  std::printf("%s mover: %u of %u tokens found, more than half of them on the host: %s; every byte %s\n",
              is_external ? "the engine's" : "the cache's own", found, all,
              stats.host_hit_tokens * 2 > found ? "yes" : "no", is_right ? "as written" : "WRONG");
  return is_right;
}

}  // namespace

int main() {
  const bool is_right = run(/*is_external=*/false);
  return run(/*is_external=*/true) && is_right ? 0 : 1;
}
