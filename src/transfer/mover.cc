// SPDX-License-Identifier: Apache-2.0
#include "quire/mover.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/blocked_signals.h"
#include "base/check.h"
#include "base/checked.h"
#include "base/lazy_array.h"
#include "base/mutex.h"
#include "base/system_error.h"
#include "store/host_store.h"
#include "transfer/device_flights.h"
#include "transfer/mover_host.h"
#include "transfer/mover_impl.h"
#include "transfer/mover_peer.h"
#include "transfer/transfer_table.h"

namespace quire {
namespace {

// Whoever waits may be kept from it for some milliseconds, however short the queues are.
constexpr std::uint32_t kRememberedMin = 1024;

std::vector<MoverPool> pools_of(const MoverConfig& config) {
  if (!config.pools.empty()) return config.pools;
  const MoverPart part{.geometry = config.device_geometry, .memory = config.device_memory};
  return {MoverPool{.parts = {part}, .host_page_count = config.host_page_count}};
}

// Layers as evenly as they go.
LayerRange layers_of_band(std::uint32_t layer_count, std::uint32_t band_count, std::uint32_t band) {
  const auto first_of = [&](std::uint32_t i) {
    return static_cast<std::uint32_t>(std::uint64_t{layer_count} * i / band_count);
  };
  return {.first = first_of(band), .count = first_of(band + 1) - first_of(band)};
}

// What a pool takes of the region: pools that are registered apart have no page of the system in common.
std::uint64_t room_of_pool(std::uint64_t bytes) {
  constexpr std::uint64_t kSystemPage = 4096;
  return bytes <= UINT64_MAX - kSystemPage ? (bytes + kSystemPage - 1) / kSystemPage * kSystemPage : bytes;
}

}  // namespace

Mover::Impl::Impl(MoverConfig the_config, MoverHooks the_hooks, TransferTable the_table)
    : config(std::move(the_config)), hooks(std::move(the_hooks)), table(std::move(the_table)) {
  for (const MoverPool& pool : pools_of(config)) pools.emplace_back(pool);
  config.device_geometry = nullptr;  // The caller's; ours are the copies.
  config.pools.clear();
}

Mover::Impl::~Impl() {
  for (Pool& pool : pools) {
    pool.engine.reset();
    if (!pool.records.empty()) config.accelerator->unregister_host(pool.records);
  }
  if (event_fd >= 0) ::close(event_fd);
}

Mover::Impl::Pool::Pool(const MoverPool& pool) : host_page_count(pool.host_page_count) {
  geometries.reserve(pool.parts.size());  // so that they stay where they are
  for (const MoverPart& part : pool.parts) {
    geometries.push_back(*part.geometry);
    device.push_back({.geometry = &geometries.back(), .memory = part.memory});
    tensors.push_back(part.tensors);
  }
}

HostStoreConfig Mover::Impl::Pool::store_config(bool checksums) const {
  HostStoreConfig made{.parts = {}, .page_count = host_page_count, .checksums = checksums};
  for (const PoolGeometry& geometry : geometries) {
    made.parts.push_back({.layer_bytes = geometry.page().layer_bytes(), .layer_count = geometry.page().layer_count()});
  }
  return made;
}

// All in one region, one behind the other.
Status Mover::Impl::open_stores() {
  std::uint64_t region_bytes = 0;
  for (const Pool& pool : pools) {
    QUIRE_TRY_ASSIGN(const std::uint64_t pool_bytes, HostStore::memory_bytes(pool.store_config(config.checksums)));
    const auto sum = checked_add(region_bytes, room_of_pool(pool_bytes));
    if (!sum) return invalid_argument("the host pages of all pools are more than memory can address");
    region_bytes = *sum;
  }
  HostRegionConfig wanted = config.host_region;
  if (!wanted.numa_node && config.accelerator != nullptr) {
    wanted.numa_node = find_numa_node(config.accelerator->pci_bus_id(), *hooks.numa);
  }
  QUIRE_TRY_ASSIGN(region, HostRegion::map(region_bytes, wanted, *hooks.calls));
  std::byte* memory = region.data();
  for (Pool& pool : pools) {
    HostStoreConfig store_config = pool.store_config(config.checksums);
    store_config.memory = memory;
    QUIRE_TRY_ASSIGN(pool.store, HostStore::open(store_config));
    const std::uint64_t room = room_of_pool(*HostStore::memory_bytes(store_config));
    if (config.accelerator != nullptr) {
      const std::uint64_t record_stride = *HostStore::memory_bytes(store_config) / pool.host_page_count;
      QUIRE_TRY(config.accelerator->register_host({memory, room}, record_stride));
      pool.records = {memory, room};
    }
    memory += room;
  }
  return {};
}

std::size_t Mover::Impl::worker_count() const {
  return config.accelerator != nullptr ? 2 : config.load_thread_count + config.store_thread_count;
}

Status Mover::Impl::prepare() {
  QUIRE_TRY(open_stores());
  if (config.accelerator != nullptr) {
    QUIRE_TRY(open_engines());
  } else {
    QUIRE_TRY_ASSIGN(worker_sums, LazyArray<ChecksumPart>::create(worker_count() * config.transfer_pages_max));
  }
  event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd < 0) return fail(errno_code(errno), "making the mover's eventfd: " + errno_text(errno));
  const MutexLock lock(mutex);
  for (const Pool& pool : pools) {
    QUIRE_TRY(seen_on_device.reserve(pool.device_page_count()));
    QUIRE_TRY(seen_on_host.reserve(pool.host_page_count + 1));
  }
  return {};
}

Status Mover::Impl::start() {
  const BlockedSignals blocked;
  workers.reserve(worker_count());
  try {
    if (config.accelerator != nullptr) {
      workers.emplace_back([this] { work_with_accelerator(TransferKind::Load); });
      workers.emplace_back([this] { work_with_accelerator(TransferKind::Store); });
    }
    for (std::size_t i = workers.size(); i < worker_count(); ++i) {
      const TransferKind kind = i < config.load_thread_count ? TransferKind::Load : TransferKind::Store;
      const std::span sums(worker_sums.data() + (i * config.transfer_pages_max), config.transfer_pages_max);
      workers.emplace_back([this, kind, sums] { work(kind, sums); });
    }
  } catch (const std::system_error& error) {
    return fail(errno_code(error.code().value()), "starting a thread of the mover: " + error.code().message());
  }
  bind_workers();
  return {};
}

// Who copies should stand where the memory does. Where that cannot be, threads run wherever they may.
void Mover::Impl::bind_workers() {
  const MutexLock lock(mutex);
  const std::optional<std::uint32_t> node = region.status().numa_node;
  if (!node || !config.host_region.bind_threads) return;
  const std::string what = "threads on NUMA node " + std::to_string(*node);
  const std::optional<std::vector<std::uint32_t>> processors = processors_of_node(*node, *hooks.numa);
  if (!processors) return region.refused(what.c_str(), "the system does not tell its processors");
  if (processors->empty()) return region.refused(what.c_str(), "the process may run on none of its processors");
  for (std::thread& worker : workers) {
    if (const int why = hooks.numa->bind_thread(worker.native_handle(), *processors); why != 0) {
      return region.refused(what.c_str(), errno_text(why).c_str());
    }
  }
  region.set_bound_threads(true);
}

void Mover::Impl::stop() {
  {
    MutexLock lock(mutex);
    is_stopping = true;
    for (TransferTable::Record& record : table.records()) record.must_stop.store(true, std::memory_order_relaxed);
    for (Condition& condition : has_work) condition.notify_all();
    has_news.notify_all();
    while (blocked_count != 0) has_news.wait(mutex);
  }
  for (std::thread& worker : workers) worker.join();
}

void Mover::Impl::work(TransferKind kind, std::span<ChecksumPart> sums) {
  pthread_setname_np(pthread_self(), kind == TransferKind::Load ? "quire-load" : "quire-store");
  MutexLock lock(mutex);
  while (true) {
    std::optional<std::uint32_t> index;
    while (!is_stopping) {
      if (!is_paused) index = table.take(kind);
      if (index) break;
      has_work[static_cast<std::size_t>(kind)].wait(mutex);
    }
    if (!index) return;
    const TransferTable::Record& record = table.record(*index);
    const Work work{.index = *index,
                    .id = record.id,
                    .kind = kind,
                    .band_count = record.band_count,
                    .pages = table.pages(*index),
                    .must_stop = &record.must_stop,
                    .pool = &pools[record.pool_index]};
    lock.unlock();
    const Completion completion = run(work, sums);
    lock.lock();
    const std::size_t count_before = table.completion_count();
    table.finish(*index, completion);
    signal_completion(count_before);
  }
}

// Band by band over all pages.
Completion Mover::Impl::run(const Work& work, std::span<ChecksumPart> sums) {
  const Clock::time_point start = Clock::now();
  Completion completion{.id = work.id, .kind = work.kind, .rank = config.rank};
  std::span<ChecksumPart> pages = sums.first(work.pages.size());
  std::ranges::fill(pages, ChecksumPart{});
  for (std::uint32_t band = 0; band < work.band_count; ++band) {
    pages = pages.first(run_band(work, band, pages, completion));
    if (completion.outcome == TransferOutcome::Cancelled) break;
    if (completion.outcome == TransferOutcome::Ok && band + 1 < work.band_count) mark_band(work, band);
  }
  const TimeNs busy_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  completion.busy_ns = std::max<TimeNs>(1, busy_ns);  // 0 would mean unknown.
  return completion;
}

// How many of the pages are worth going on with. The first one that fails ends the way: of a path, what lies behind it
// is of no use.
std::uint32_t Mover::Impl::run_band(const Work& work, std::uint32_t band, std::span<ChecksumPart> pages,
                                    Completion& completion) {
  const Pool& pool = *work.pool;
  const std::uint64_t piece_bytes = pool.store->bytes_of(layers_of_band(pool.layer_count(), work.band_count, band));
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    if (work.must_stop->load(std::memory_order_relaxed)) {
      completion.outcome = TransferOutcome::Cancelled;
      completion.fault = TransferFault::None;
      return i;
    }
    const PieceStart piece{.id = work.id, .kind = work.kind, .band = band, .page_index = i};
    const TransferFault fault = move_piece(work, piece, pages[i]);
    const bool is_moved = fault == TransferFault::None || fault == TransferFault::Checksum;
    if (is_moved) completion.moved_bytes += piece_bytes;
    if (fault != TransferFault::None) {
      completion.outcome = TransferOutcome::Failed;
      completion.fault = fault;
      mark_fault(work);
      return i;
    }
    if (band + 1 == work.band_count) completion.good_pages = i + 1;
  }
  return static_cast<std::uint32_t>(pages.size());
}

TransferFault Mover::Impl::move_piece(const Work& work, const PieceStart& start, ChecksumPart& sum) {
  if (hooks.before_piece) {
    const TransferFault fault = hooks.before_piece(start);
    if (fault != TransferFault::None) return fault;
  }
  const Pool& pool = *work.pool;
  const PagePiece piece{.device = pool.device,
                        .page = work.pages[start.page_index],
                        .layers = layers_of_band(pool.layer_count(), work.band_count, start.band)};
  return work.kind == TransferKind::Load ? pool.store->read_layers(piece, sum) : pool.store->write_layers(piece, sum);
}

void Mover::Impl::mark_band(const Work& work, std::uint32_t band) {
  const MutexLock lock(mutex);
  table.record(work.index).bands_done = band + 1;
  if (blocked_count != 0) has_news.notify_all();
}

void Mover::Impl::mark_fault(const Work& work) {
  const MutexLock lock(mutex);
  table.record(work.index).has_fault = true;
  if (blocked_count != 0) has_news.notify_all();
}

// The eventfd is readable exactly when there are completions: both change under the mutex.
void Mover::Impl::signal_completion(std::size_t count_before) {
  constexpr std::uint64_t kOne = 1;
  if (count_before == 0) {
    const ssize_t written = ::write(event_fd, &kOne, sizeof(kOne));
    QUIRE_CHECK(written == sizeof(kOne), "an eventfd takes 1 when it is at 0");
  }
  if (blocked_count != 0) has_news.notify_all();
}

Status Mover::Impl::check_plan(const TransferPlan& plan) {
  if (plan.kind != TransferKind::Load && plan.kind != TransferKind::Store) {
    return invalid_argument(text_of(plan.id) + " is neither a load nor a store");
  }
  if (plan.priority != TransferPriority::Waiting && plan.priority != TransferPriority::Background) {
    return invalid_argument(text_of(plan.id) + " has an unknown priority");
  }
  if (plan.pool_index >= pools.size()) {
    return invalid_argument(text_of(plan.id) + " is of pool " + std::to_string(plan.pool_index) + ": the mover has " +
                            std::to_string(pools.size()) + (pools.size() == 1 ? " pool" : " pools") +
                            ", counted from 0");
  }
  const Pool& pool = pools[plan.pool_index];
  if (plan.band_count == 0 || plan.band_count > pool.layer_count()) {
    return invalid_argument(text_of(plan.id) + " has " + std::to_string(plan.band_count) + " bands, and pages" +
                            text_of_pool(plan.pool_index) + " have " + std::to_string(pool.layer_count()) +
                            " layers: give each band one at least");
  }
  if (plan.pages.size() > config.transfer_pages_max) {
    return invalid_argument(text_of(plan.id) + " has " + std::to_string(plan.pages.size()) +
                            " pages: MoverConfig::transfer_pages_max is " + std::to_string(config.transfer_pages_max));
  }
  QUIRE_TRY(check_pages(plan));
  const auto index = table.find(plan.id);
  if (index && table.record(*index).state != TransferTable::State::Finished) {
    return invalid_argument(text_of(plan.id) + " is queued or running: an id is free again when its transfer is over");
  }
  return {};
}

// Where there is a choice.
std::string Mover::Impl::text_of_pool(std::uint16_t pool_index) const {
  return pools.size() == 1 ? "" : " of pool " + std::to_string(pool_index);
}

Status Mover::Impl::check_pages(const TransferPlan& plan) {
  const Pool& pool = pools[plan.pool_index];
  const bool is_load = plan.kind == TransferKind::Load;
  SeenPages& seen = is_load ? seen_on_device : seen_on_host;
  seen.begin_plan();
  for (const PageTransfer& page : plan.pages) {
    if (page.device_page.value >= pool.device_page_count()) {
      return invalid_argument(text_of(plan.id) + " names device page " + std::to_string(page.device_page.value) +
                              text_of_pool(plan.pool_index) + ": there are " +
                              std::to_string(pool.device_page_count()));
    }
    if (page.host_page.value < 1 || page.host_page.value > pool.host_page_count) {
      return invalid_argument(text_of(plan.id) + " names host page " + std::to_string(page.host_page.value) +
                              text_of_pool(plan.pool_index) + ": ids lie in [1, " +
                              std::to_string(pool.host_page_count) + "]");
    }
    const std::uint32_t target = is_load ? page.device_page.value : page.host_page.value;
    if (!seen.add(target)) {
      return invalid_argument(text_of(plan.id) + " has " + (is_load ? "device" : "host") + " page " +
                              std::to_string(target) + " twice as its target");
    }
  }
  return {};
}

Status Mover::Impl::check_idle(std::string_view what) {
  if (table.queued_count() == 0 && table.running_count() == 0) return {};
  return fail(ErrorCode::Unavailable, std::string(what) + ": " + std::to_string(table.queued_count()) +
                                          " transfers are queued and " + std::to_string(table.running_count()) +
                                          " run; wait until they are over");
}

// What is known of a band by now; nothing when it is on its way.
std::optional<TransferOutcome> Mover::Impl::answer(std::uint32_t index, std::uint32_t band) {
  const TransferTable::Record& record = table.record(index);
  if (record.state == TransferTable::State::Finished) return record.outcome;
  if (record.has_fault) return TransferOutcome::Failed;
  if (band < record.bands_done) return TransferOutcome::Ok;
  return is_stopping ? std::optional(TransferOutcome::Cancelled) : std::nullopt;
}

Result<std::uint32_t> Mover::Impl::find_band(TransferId id, std::uint32_t band) {
  const auto index = table.find(id);
  if (!index) {
    return invalid_argument(text_of(id) + " is unknown: it was never submitted, or is forgotten, as all are when " +
                            std::to_string(table.remembered_count()) + " others have ended");
  }
  const std::uint32_t band_count = table.record(*index).band_count;
  if (band >= band_count) {
    return invalid_argument(text_of(id) + " has " + std::to_string(band_count) + " bands: there is no band " +
                            std::to_string(band));
  }
  return *index;
}

// For one who waits for a transfer, which is not forgotten meanwhile.
void Mover::Impl::wait_for_news(std::uint32_t index, Clock::time_point deadline) {
  begin_blocking(index);
  has_news.wait_until(mutex, deadline);
  end_blocking(index);
}

// Between the two, the mutex may be given up: the mover lives, and the transfer is remembered.
void Mover::Impl::begin_blocking(std::uint32_t index) {
  ++table.record(index).waiter_count;
  ++blocked_count;
}

void Mover::Impl::end_blocking(std::uint32_t index) {
  --table.record(index).waiter_count;
  --blocked_count;
  if (is_stopping) has_news.notify_all();
}

Mover::Mover(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Mover::~Mover() {
  impl_->stop();
}

Result<std::unique_ptr<Mover>> MoverPeer::open(const MoverConfig& config, MoverHooks hooks) {
  QUIRE_TRY(config.validate());
  QUIRE_TRY_ASSIGN(TransferTable table,
                   TransferTable::create({.queue_depth_max = config.queue_depth_max,
                                          .transfer_pages_max = config.transfer_pages_max,
                                          .worker_count = config.accelerator != nullptr
                                                              ? 2 * DeviceFlights::kFlightsMax
                                                              : config.load_thread_count + config.store_thread_count,
                                          .remembered_min = kRememberedMin,
                                          .rank = config.rank}));
  auto impl = std::make_unique<Mover::Impl>(config, std::move(hooks), std::move(table));
  QUIRE_TRY(impl->prepare());
  auto mover = std::unique_ptr<Mover>(new Mover(std::move(impl)));
  QUIRE_TRY(mover->impl_->start());  // From here on a failure must join those that have started.
  return mover;
}

// Workers read the hooks without the mutex, while they have work.
void MoverPeer::set_hooks(Mover& mover, MoverHooks hooks) {
  const MutexLock lock(mover.impl_->mutex);
  QUIRE_CHECK(mover.impl_->check_idle("setting hooks"), "a mover that is at work gets hooks");
  mover.impl_->hooks = std::move(hooks);
}

HostStore& MoverPeer::host_store(Mover& mover, std::uint16_t pool_index) {
  return *mover.impl_->pools.at(pool_index).store;
}

std::uint32_t MoverPeer::blocked_count(Mover& mover) {
  const MutexLock lock(mover.impl_->mutex);
  return mover.impl_->blocked_count;
}

bool MoverPeer::is_stopping(Mover& mover) {
  const MutexLock lock(mover.impl_->mutex);
  return mover.impl_->is_stopping;
}

Result<std::unique_ptr<Mover>> Mover::open(const MoverConfig& config) {
  return MoverPeer::open(config, {});
}

Result<bool> Mover::try_submit(const TransferPlan& plan) {
  Impl& impl = *impl_;
  {
    const MutexLock lock(impl.mutex);
    QUIRE_TRY(impl.check_plan(plan));
    if (!impl.table.has_room_for(plan.kind)) return false;
    const std::size_t count_before = impl.table.completion_count();
    (void)impl.table.add(plan);
    if (impl.table.completion_count() != count_before) {
      impl.signal_completion(count_before);
      return true;
    }
  }
  impl.has_work[static_cast<std::size_t>(plan.kind)].notify_one();
  return true;
}

bool Mover::cancel(TransferId id) {
  Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  const auto index = impl.table.find(id);
  if (!index) return false;
  TransferTable::Record& record = impl.table.record(*index);
  if (record.state == TransferTable::State::Queued) {
    const std::size_t count_before = impl.table.completion_count();
    impl.table.drop(*index);
    impl.signal_completion(count_before);
    return true;
  }
  return record.state == TransferTable::State::Running && !record.must_stop.exchange(true, std::memory_order_relaxed);
}

std::span<Completion> Mover::poll(std::span<Completion> out) {
  Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  const std::span<Completion> polled = impl.table.poll(out);
  if (!polled.empty() && impl.table.completion_count() == 0) {
    std::uint64_t count = 0;
    (void)!::read(impl.event_fd, &count, sizeof(count));  // Somebody else may have read it: then it is at 0 already.
  }
  return polled;
}

int Mover::event_fd() const {
  return impl_->event_fd;
}

// When a wait that begins now ends.
Mover::Impl::Clock::time_point Mover::Impl::deadline_in(TimeNs timeout_ns) {
  constexpr TimeNs kForeverNs = TimeNs{1} << 61U;  // 73 years; a deadline behind it might not fit the clock
  return Clock::now() + std::chrono::nanoseconds(std::clamp<TimeNs>(timeout_ns, 0, kForeverNs));
}

Result<TransferOutcome> Mover::wait(TransferId id, std::uint32_t band, TimeNs timeout_ns) {
  Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_band(id, band));
  if (const auto known = impl.answer(index, band)) return *known;
  if (timeout_ns <= 0) return TransferOutcome::TimedOut;

  const Impl::Clock::time_point deadline = Impl::deadline_in(timeout_ns);
  std::optional<TransferOutcome> outcome;
  while (!(outcome = impl.answer(index, band)) && Impl::Clock::now() < deadline) impl.wait_for_news(index, deadline);
  return outcome.value_or(TransferOutcome::TimedOut);
}

void Mover::pause() {
  Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  impl.is_paused = true;
  if (impl.blocked_count != 0) impl.has_news.notify_all();
  ++impl.blocked_count;
  while (impl.table.running_count() != 0) impl.has_news.wait(impl.mutex);
  --impl.blocked_count;
  if (impl.is_stopping) impl.has_news.notify_all();
}

void Mover::resume() {
  Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  impl.is_paused = false;
  for (Condition& condition : impl.has_work) condition.notify_all();
}

HostPages& Mover::host_pages(std::uint16_t pool_index) {
  QUIRE_CHECK(pool_index < impl_->pools.size(), "the mover has no such pool");
  return *impl_->pools[pool_index].store;
}

std::vector<MoverHost::Pool> MoverHost::pools(Mover& mover) {
  std::vector<Pool> pools;
  for (const Mover::Impl::Pool& pool : mover.impl_->pools) {
    pools.push_back({.pages = pool.store.get(),
                     .page_count = pool.host_page_count,
                     .page_bytes = pool.store->bytes_of({.first = 0, .count = pool.layer_count()})});
  }
  return pools;
}

std::span<std::byte> MoverHost::memory(Mover& mover) {
  return {mover.impl_->region.data(), mover.impl_->region.bytes()};
}

std::uint16_t MoverHost::rank(const Mover& mover) {
  return mover.impl_->config.rank;
}

HostRegionStatus Mover::host_region() const {
  const MutexLock lock(impl_->mutex);
  return impl_->region.status();
}

Status Mover::forget_host_pages() {
  Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  QUIRE_TRY(impl.check_idle("forgetting all host pages"));
  if (impl.config.accelerator == nullptr) QUIRE_TRY(impl.region.forget());
  for (const Impl::Pool& pool : impl.pools) QUIRE_TRY(pool.store->forget());
  return {};
}

Status Mover::set_device(std::span<const MoverPart> parts, std::uint16_t pool_index) {
  Impl& impl = *impl_;
  const MutexLock lock(impl.mutex);
  if (impl.config.accelerator != nullptr) {
    return fail(ErrorCode::Unsupported, "moving the device pages: only those without an accelerator can move");
  }
  if (pool_index >= impl.pools.size() || parts.size() != impl.pools[pool_index].geometries.size()) {
    return invalid_argument("moving the device pages of pool " + std::to_string(pool_index) + " in " +
                            std::to_string(parts.size()) + " parts: the mover has " +
                            std::to_string(impl.pools.size()) + " pools" +
                            (pool_index < impl.pools.size()
                                 ? ", and that one has " + std::to_string(impl.pools[pool_index].geometries.size())
                                 : ""));
  }
  QUIRE_TRY(impl.check_idle("moving the device pages"));
  Impl::Pool& pool = impl.pools[pool_index];
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].memory == nullptr || parts[i].geometry == nullptr) {
      return invalid_argument("the device memory is missing: say where device pages lie");
    }
    const PageGeometry& page = parts[i].geometry->page();
    const PageGeometry& page_before = pool.geometries[i].page();
    if (page.layer_bytes() != page_before.layer_bytes() || page.layer_count() != page_before.layer_count()) {
      return invalid_argument("device pages of " + std::to_string(page.layer_count()) + " layers of " +
                              std::to_string(page.layer_bytes()) + " bytes: host pages have " +
                              std::to_string(page_before.layer_count()) + " of " +
                              std::to_string(page_before.layer_bytes()));
    }
    if (parts[i].geometry->page_count() != parts[0].geometry->page_count()) {
      return invalid_argument(
          "the parts of a pool have different numbers of pages: an id names a page in each of them");
    }
  }
  QUIRE_TRY(impl.seen_on_device.reserve(parts[0].geometry->page_count()));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    pool.geometries[i] = *parts[i].geometry;
    pool.device[i].memory = parts[i].memory;
  }
  return {};
}

Status Mover::set_device(const PoolGeometry& geometry, std::byte* memory) {
  const MoverPart part{.geometry = &geometry, .memory = memory, .tensors = {}};
  return set_device({&part, 1});
}

}  // namespace quire
