// SPDX-License-Identifier: Apache-2.0
#include "hybrid_mover.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "tests/cache/group_pools.h"

namespace quire::testing {

namespace {

constexpr int kSpoiled = 0x5A;

}  // namespace

HybridMover::HybridMover(Cache& cache, std::uint64_t seed, ScheduleCounts& counts)
    : cache_(cache),
      random_(seed),
      counts_(counts),
      pools_(transfer_pools(cache.config().layout)),
      host_pages_(pools_.size()) {}

HybridMover::HostPage& HybridMover::host_page(const Moving& moving, PageId page) {
  std::vector<HostPage>& pages = host_pages_[moving.plan.pool_index];
  if (page.value >= pages.size()) pages.resize(std::size_t{page.value} + 1);
  pages[page.value].bytes.resize(pool_page_bytes(cache_, pools_[moving.plan.pool_index]));
  return pages[page.value];
}

std::string HybridMover::take() {
  std::array<TransferPlan, 32> plans;
  const Result<std::span<TransferPlan>> taken = cache_.take_transfers(plans);
  if (!taken) return "take_transfers: " + taken.error().message;
  for (const TransferPlan& plan : *taken) {
    if (plan.pool_index >= pools_.size()) return "a transfer names a pool that is not there";
    const Moving& moving = moving_.emplace_back(Moving{.plan = plan, .pages = {plan.pages.begin(), plan.pages.end()}});
    if (plan.kind != TransferKind::Load) continue;
    for (const PageTransfer& page : moving.pages) spoil_page(moving, page);
  }
  std::array<TransferId, 32> room;
  const Result<std::span<TransferId>> cancelled = cache_.take_cancellations(room);
  if (!cancelled) return "take_cancellations: " + cancelled.error().message;
  for (const TransferId id : *cancelled) {
    const auto at = std::ranges::find_if(moving_, [&](const Moving& each) { return each.plan.id == id; });
    if (at == moving_.end()) return "a cancellation of a transfer that nobody has taken";
    at->is_cancelled = true;
  }
  return "";
}

std::string HybridMover::move(const HybridTransferChances& chances) {
  if (std::string problem = take(); !problem.empty()) return problem;
  std::vector<Completion> ended;
  std::vector<Moving> late;
  // In any order.
  for (std::size_t i = moving_.size(); i > 1; --i) {
    std::swap(moving_[i - 1], moving_[random_.below(static_cast<std::uint32_t>(i))]);
  }
  for (Moving& moving : moving_) {
    if (random_.below(100) < chances.delay) {
      late.push_back(std::move(moving));
      continue;
    }
    const std::string problem = finish(moving, random_.below(100) < chances.fault);
    if (!problem.empty()) return problem;
    ended.push_back(*moving.end);
  }
  moving_ = std::move(late);
  const Status applied = cache_.apply(ended, 0);
  return applied ? "" : "apply: " + applied.error().message;
}

std::string HybridMover::bring(TransferId id, GroupLayer layer, const HybridTransferChances& chances) {
  const auto at = std::ranges::find_if(moving_, [&](const Moving& each) { return each.plan.id == id; });
  if (at == moving_.end()) return "";
  const std::vector<std::uint32_t>& groups = pools_[at->plan.pool_index];
  if (std::ranges::count(groups, layer.group_index) == 0) return "";  // a layer of other pages
  if (!at->end) decide_end(*at, random_.below(100) < chances.fault);
  const std::uint32_t band = cache_.band_of(layer);
  std::uint64_t end = 0;
  for (const std::uint32_t group : groups) {
    const PageGeometry& page = cache_.geometry(group).page();
    for (std::uint32_t i = 0; i < page.layer_count(); ++i) {
      if (cache_.band_of({group, i}) <= band) end += page.layer_bytes();
    }
  }
  if (end <= at->moved_bytes) return "";
  counts_.add("bands brought between layers");
  for (std::uint32_t i = 0; i < at->end->good_pages; ++i) {
    if (std::string problem = move_page(*at, at->pages[i], end); !problem.empty()) return problem;
  }
  at->moved_bytes = end;
  return "";
}

std::string HybridMover::end(std::span<const StepLoad> loads, const HybridTransferChances& chances) {
  std::vector<Completion> ended;
  for (const StepLoad& load : loads) {
    const auto at = std::ranges::find_if(moving_, [&](const Moving& each) { return each.plan.id == load.id; });
    if (at == moving_.end()) continue;
    const std::string problem = finish(*at, random_.below(100) < chances.fault);
    if (!problem.empty()) return problem;
    ended.push_back(*at->end);
    moving_.erase(at);
  }
  const Status applied = cache_.apply(ended, 0);
  return applied ? "" : "apply: " + applied.error().message;
}

// What becomes of a transfer, and of how many of its pages.
void HybridMover::decide_end(Moving& moving, bool fails) {
  const bool is_load = moving.plan.kind == TransferKind::Load;
  const char* const pool = moving.plan.pool_index == 0 ? " of the history" : " of another group";
  const auto page_count = static_cast<std::uint32_t>(moving.pages.size());
  const bool is_cancelled = moving.is_cancelled && random_.below(2) == 0;
  Completion& end = moving.end.emplace();
  end = {.id = moving.plan.id, .kind = moving.plan.kind, .good_pages = page_count};
  if (fails || is_cancelled) {
    constexpr std::array kFaults = {TransferFault::None, TransferFault::Io, TransferFault::Checksum};
    end.outcome = is_cancelled ? TransferOutcome::Cancelled : TransferOutcome::Failed;
    if (!is_cancelled) end.fault = kFaults[random_.below(is_load ? static_cast<std::uint32_t>(kFaults.size()) : 2)];
    end.good_pages = random_.below(page_count);
    counts_.add(std::string(is_load ? "load" : "store") + pool + (is_cancelled ? " cancelled" : " failed"));
  }
}

std::string HybridMover::finish(Moving& moving, bool fails) {
  if (!moving.end) decide_end(moving, fails);
  const char* const pool = moving.plan.pool_index == 0 ? " of the history" : " of another group";
  const std::uint64_t page_bytes = pool_page_bytes(cache_, pools_[moving.plan.pool_index]);
  for (std::uint32_t i = 0; i < moving.pages.size(); ++i) {
    if (i >= moving.end->good_pages) {
      spoil_page(moving, moving.pages[i]);
      continue;
    }
    if (std::string problem = move_page(moving, moving.pages[i], page_bytes); !problem.empty()) return problem;
    moving.end->moved_bytes += page_bytes;
  }
  const bool is_load = moving.plan.kind == TransferKind::Load;
  counts_.add(std::string(is_load ? "pages loaded" : "pages stored") + pool, moving.end->good_pages);
  return "";
}

// Moves the bytes of a page that have not moved, up to `end`.
std::string HybridMover::move_page(const Moving& moving, const PageTransfer& page, std::uint64_t end) {
  HostPage& host = host_page(moving, page.host_page);
  const std::vector<std::uint32_t>& groups = pools_[moving.plan.pool_index];
  const bool is_load = moving.plan.kind == TransferKind::Load;
  if (is_load && (host.generation != page.host_generation || host.name_tag != page.name_tag)) {
    return "a load of a host page that holds something else";
  }
  host.generation = page.host_generation;
  host.name_tag = page.name_tag;
  const auto copy = [&](std::byte* device, std::uint64_t at, std::uint64_t count) {
    if (is_load) {
      std::memcpy(device, host.bytes.data() + at, count);
    } else {
      std::memcpy(host.bytes.data() + at, device, count);
    }
  };
  visit_page_bytes(cache_, groups, page.device_page, moving.moved_bytes, end, copy);
  return "";
}

// Where a transfer has failed, anything may have been written.
void HybridMover::spoil_page(const Moving& moving, const PageTransfer& page) {
  HostPage& host = host_page(moving, page.host_page);
  if (moving.plan.kind == TransferKind::Store) {
    std::memset(host.bytes.data(), kSpoiled, host.bytes.size());
    host.generation = 0;
    return;
  }
  const auto spoil = [](std::byte* device, std::uint64_t /*at*/, std::uint64_t count) {
    std::memset(device, kSpoiled, count);
  };
  visit_page_bytes(cache_, pools_[moving.plan.pool_index], page.device_page, 0, host.bytes.size(), spoil);
}

}  // namespace quire::testing
