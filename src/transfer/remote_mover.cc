// SPDX-License-Identifier: Apache-2.0
#include "transfer/remote_mover.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <utility>

#include "base/blocked_signals.h"
#include "base/check.h"
#include "base/system_error.h"
#include "transfer/remote_fields.h"
#include "transfer/remote_mover_impl.h"

namespace quire {
namespace {

TimeNs steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr std::uint32_t kIndexBits = 24;  // of a batch's id: its flight
constexpr int kPauseMs = 1;               // between two looks at what tells nobody when to look
constexpr int kStatusMs = 1'000;          // the same at the store's status, while nothing is asked

}  // namespace

// Opening and closing

RemoteMover::Impl::Impl(Config the_config, RemoteStore& the_store, std::span<HostPages* const> the_hosts)
    : config(std::move(the_config)), store(the_store), hosts(the_hosts.begin(), the_hosts.end()) {
  hosts.resize(config.pools.size());
  if (!config.clock) config.clock = steady_now;
}

Status RemoteMover::Impl::prepare() {
  const auto invalid = [](const std::string& why) { return fail(ErrorCode::InvalidArgument, "a remote tier: " + why); };
  const auto is_printable = [](char c) { return c > ' ' && c <= '~'; };
  if (config.key_prefix.empty() || config.key_prefix.size() > kExtentPrefixBytesMax ||
      !std::ranges::all_of(config.key_prefix, is_printable)) {
    return invalid("a key prefix has from 1 to " + std::to_string(kExtentPrefixBytesMax) +
                   " printable characters, and no spaces");
  }
  QUIRE_CHECK(!config.pools.empty() && config.pools[0].is_kept, "a remote tier keeps the history");
  std::uint32_t extent_pages_max = 1;
  for (std::uint32_t i = 0; i < config.pools.size(); ++i) {
    const Pool& pool = config.pools[i];
    if (!pool.is_kept) continue;
    QUIRE_CHECK(hosts[i] != nullptr, "a pool that is kept has host pages");
    QUIRE_CHECK(i == 0 || pool.extent_pages == 1, "only the history lies in extents");
    if (pool.extent_pages == 0 || pool.extent_pages > std::min(kExtentPagesMax, config.transfer_pages_max)) {
      return invalid("extents of " + std::to_string(pool.extent_pages) + " pages; from 1 to " +
                     std::to_string(std::min(kExtentPagesMax, config.transfer_pages_max)) +
                     " are possible, as many as one transfer moves");
    }
    for (std::uint32_t before = 0; before < i; ++before) {
      const bool is_same = config.pools[before].is_kept && config.pools[before].layout.hash == pool.layout.hash;
      if (is_same) return invalid("two groups of pages have the same layout, and cannot be told apart");
    }
    extent_pages_max = std::max(extent_pages_max, pool.extent_pages);
    if (i > 0) anchored.push_back(i);
  }
  work_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (work_fd < 0) return fail(errno_code(errno), "making an eventfd for the remote tier: " + errno_text(errno));
  QUIRE_TRY_ASSIGN(queue, LowerQueue::create({.names = config.names,
                                              .log = config.log,
                                              .transfer_count_max = config.transfer_count_max,
                                              .transfer_pages_max = config.transfer_pages_max,
                                              .path_pages_max = config.path_pages_max,
                                              .event_fd = config.event_fd,
                                              .work_fd = work_fd,
                                              .on_key_space = nullptr}));
  const std::size_t flight_count = config.transfer_count_max + kBackgroundFlights + kDropFlights;
  const std::size_t page_max = config.transfer_pages_max;
  object_max = std::max<std::size_t>(kQuestionNamesMax, page_max);
  piece_max = page_max * (1 + extent_pages_max);
  header_bytes_max = page_max * extent_headers_bytes(extent_pages_max);
  discard_bytes = extent_pages_max > 1 ? 2 * config.pools[0].layout.page_bytes : 0;
  flights.resize(flight_count);
  for (std::uint32_t i = 0; i < flight_count; ++i) flights[i].index = i;
  QUIRE_TRY_ASSIGN(objects, LazyArray<RemoteObject>::create(flight_count * object_max));
  QUIRE_TRY_ASSIGN(keys, (LazyArray<std::array<char, kRemoteKeyBytesMax>>::create(flight_count * object_max)));
  QUIRE_TRY_ASSIGN(tags, LazyArray<std::uint32_t>::create(flight_count * object_max));
  QUIRE_TRY_ASSIGN(pages, LazyArray<PageRow>::create(flight_count * page_max));
  QUIRE_TRY_ASSIGN(items, LazyArray<Item>::create(flight_count * page_max));
  QUIRE_TRY_ASSIGN(targets, LazyArray<std::span<std::byte>>::create(flight_count * piece_max));
  QUIRE_TRY_ASSIGN(sources, LazyArray<std::span<const std::byte>>::create(flight_count * piece_max));
  QUIRE_TRY_ASSIGN(headers, LazyArray<std::byte>::create(flight_count * header_bytes_max));
  QUIRE_TRY_ASSIGN(discards, LazyArray<std::byte>::create(flight_count * discard_bytes));
  decoded.resize(extent_pages_max);
  waiting.reserve(flight_count);
  flushes.reserve(config.transfer_count_max);
  cancelled.reserve(config.transfer_count_max);
  open_drops.reserve(config.transfer_count_max);
  for (const std::span<std::byte> memory :
       {std::span(headers.data(), headers.size()), std::span(discards.data(), discards.size())}) {
    if (memory.empty()) continue;
    QUIRE_TRY(store.register_memory(memory));
    registered.push_back(memory);
  }
  note_status();
  return {};
}

RemoteMover::Impl::~Impl() {
  for (const std::span<std::byte> memory : registered) store.unregister_memory(memory);
  if (work_fd >= 0) ::close(work_fd);
}

Status RemoteMover::Impl::start() {
  const BlockedSignals blocked;
  try {
    thread = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    return fail(errno_code(error.code().value()), "starting the thread of the remote tier: " + error.code().message());
  }
  return {};
}

void RemoteMover::Impl::stop() {
  is_stopping.store(true, std::memory_order_relaxed);
  queue->stop();
  if (thread.joinable()) thread.join();
  for (const Flight& flight : flights) {
    if (flight.state == Flight::State::AtStore) store.cancel(flight.batch.id);
  }
  // What ends may go on to its next step, which ends at once.
  while (std::ranges::any_of(flights, [](const Flight& flight) { return flight.state != Flight::State::Idle; })) {
    if (!take_answer() && !submit_waiting()) std::this_thread::sleep_for(std::chrono::milliseconds(kPauseMs));
  }
}

// The thread

void RemoteMover::Impl::work() {
  pthread_setname_np(pthread_self(), "quire-remote");
  while (!is_stopping.load(std::memory_order_relaxed)) {
    if (!run()) wait_for_work();
  }
}

// Whatever comes while nobody waits leaves its mark on one of the two.
void RemoteMover::Impl::wait_for_work() {
  note_status();
  const int store_fd = store.event_fd();
  std::array<pollfd, 2> fds = {pollfd{.fd = work_fd, .events = POLLIN, .revents = 0},
                               pollfd{.fd = store_fd, .events = POLLIN, .revents = 0}};
  const auto is_at_store = [](const Flight& flight) { return flight.state == Flight::State::AtStore; };
  int timeout_ms = kStatusMs;
  if (!waiting.empty() || (store_fd < 0 && std::ranges::any_of(flights, is_at_store))) timeout_ms = kPauseMs;
  if (const OpenDrop* const drop = next_drop()) {
    const TimeNs left_ms = (std::max<TimeNs>(0, drop->next_ns - now()) / 1'000'000) + 1;
    timeout_ms = static_cast<int>(std::min<TimeNs>(left_ms, timeout_ms));
  }
  (void)::poll(fds.data(), fds.size(), timeout_ms);
  std::uint64_t marks = 0;
  if (fds[0].revents != 0) (void)!::read(work_fd, &marks, sizeof(marks));
}

void RemoteMover::Impl::note_status() {
  is_usable.store(store.status().is_usable, std::memory_order_relaxed);
}

// Drops and flushes go first: they have little to do, and nobody may keep this thread so busy that they never begin.
bool RemoteMover::Impl::run() {
  return cancel_some() || try_drop() || try_end_flush() || submit_waiting() || take_answer() ||
         queue->follow([this](const LowerPlan& plan) { begin(plan); });
}

// A plan that has its names.
void RemoteMover::Impl::begin(const LowerPlan& plan) {
  Flight& flight = flights[plan.id.index];
  flight.plan = plan;
  flight.completion = {.id = plan.id, .kind = plan.kind};
  flight.start_ns = now();
  flight.deadline_ns = std::numeric_limits<TimeNs>::max();  // until something is asked of the store
  flight.has_failed = false;
  flight.pool = plan.pool;
  flight.fault = TransferFault::None;
  switch (plan.kind) {
    case TransferKind::FindBelow:
      begin_find(flight);
      return;
    case TransferKind::LoadFromBelow:
      begin_load(flight);
      return;
    case TransferKind::StoreBelow:
      flight.write_number = ++last_number;
      begin_store(flight);
      return;
    case TransferKind::PutBelow:
      flight.write_number = ++last_number;
      begin_direct(flight);
      return;
    case TransferKind::GetFromBelow:
      begin_direct(flight);
      return;
    case TransferKind::DropBelow:
      open_drop(queue->records(flight.index)[0].name);
      complete(flight);
      return;
    case TransferKind::FlushBelow:
      flight.number = ++last_number;
      flushes.push_back(flight.index);
      hurry_drops();
      return;
    default:
      QUIRE_CHECK(false, "a plan that no lower tier has");
  }
}

void RemoteMover::Impl::complete(Flight& flight) {
  flight.write_number = 0;
  flight.completion.busy_ns = std::max<TimeNs>(1, now() - flight.start_ns);
  queue->complete(flight.completion);
}

// Of a plan that has not got all it asked for.
void RemoteMover::Impl::set_failure(Flight& flight, TransferFault fault) {
  Completion& completion = flight.completion;
  if (queue->is_cancelled(flight.index)) {
    completion.outcome = TransferOutcome::Cancelled;
    completion.fault = TransferFault::None;
  } else if (fault == TransferFault::Io && now() >= flight.deadline_ns) {
    completion.outcome = TransferOutcome::TimedOut;
    completion.fault = TransferFault::None;
  } else {
    completion.outcome = TransferOutcome::Failed;
    completion.fault = fault;
  }
}

// Batches

RemoteObject& RemoteMover::Impl::set_object(Flight& flight, std::uint32_t object, const Value& value) {
  std::array<char, kRemoteKeyBytesMax>& room = keys[(flight.index * object_max) + object];
  RemoteObject& set = objects_of(flight)[object];
  set = {.key = write_extent_key({.prefix = config.key_prefix,
                                  .key_space = value.key_space,
                                  .layout = config.pools[value.pool].layout.hash,
                                  .page_count = config.pools[value.pool].extent_pages,
                                  .name = value.name},
                                 room)};
  return set;
}

// The first objects of the flight. Where the store has no room, the batch waits, no longer than it may take.
void RemoteMover::Impl::submit(Flight& flight, const Request& request) {
  flight.step = request.step;
  flight.deadline_ns = now() + request.timeout_ns;
  if (flight.plan.timeout_ns > 0) {
    flight.deadline_ns = std::min(flight.deadline_ns, flight.start_ns + flight.plan.timeout_ns);
  }
  flight.batch = {.id = (++last_batch << kIndexBits) | flight.index,
                  .operation = request.operation,
                  .priority = request.priority,
                  .is_path = request.is_path,
                  .objects = objects_of(flight).first(request.object_count)};
  flight.state = Flight::State::Waiting;
  waiting.push_back(flight.index);
}

bool RemoteMover::Impl::submit_waiting() {
  std::array<bool, 2> is_full{};  // by priority: those behind must not overtake
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    Flight& flight = flights[waiting[i]];
    const TimeNs left_ns = flight.deadline_ns - now();
    const bool is_late = left_ns <= 0 || is_stopping.load(std::memory_order_relaxed);
    bool& is_full_for_it = is_full[static_cast<std::size_t>(flight.batch.priority)];
    if (!is_late) {
      if (is_full_for_it) continue;
      flight.batch.timeout_ns = left_ns;
      is_full_for_it = !store.try_submit(flight.batch);
      if (is_full_for_it) continue;
      flight.state = Flight::State::AtStore;
    }
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    if (is_late) {
      for (RemoteObject& object : flight.batch.objects) object.outcome = RemoteOutcome::Late;
      finish_batch(flight);
    }
    return true;
  }
  return false;
}

bool RemoteMover::Impl::take_answer() {
  std::array<RemoteAnswer, 1> room;
  const std::span<const RemoteAnswer> answers = store.poll(room);
  if (answers.empty()) return false;
  note_status();  // before somebody hears of what has ended
  const std::uint64_t index = answers[0].id & ((1U << kIndexBits) - 1);
  QUIRE_CHECK(index < flights.size() && flights[index].state == Flight::State::AtStore &&
                  flights[index].batch.id == answers[0].id,
              "a remote store answers a batch that it does not have");
  finish_batch(flights[index]);
  return true;
}

void RemoteMover::Impl::finish_batch(Flight& flight) {
  flight.state = Flight::State::Idle;
  for (const RemoteObject& object : flight.batch.objects) {
    if (object.outcome == RemoteOutcome::Late) count(&RemoteMoverStats::late_objects);
    if (object.outcome == RemoteOutcome::Failed) count(&RemoteMoverStats::failed_objects);
  }
  switch (flight.step) {
    case Step::Probe:
      end_probe(flight);
      return;
    case Step::Window:
      end_window(flight);
      return;
    case Step::Anchored:
      end_anchored(flight);
      return;
    case Step::Get:
      end_get(flight);
      return;
    case Step::Ask:
      end_ask(flight);
      return;
    case Step::Put:
      end_put(flight);
      return;
    case Step::Drop:
      end_drop(flight);
      return;
    case Step::Discard:
      end_discard(flight);
      return;
    case Step::Touch:
      return;  // nobody waits for it
  }
}

bool RemoteMover::Impl::cancel_some() {
  queue->take_cancelled(cancelled);
  for (const TransferId id : cancelled) {
    Flight& flight = flights[id.index];
    if (flight.plan.id != id) continue;  // its turn has not come, or is over
    if (flight.state == Flight::State::AtStore) store.cancel(flight.batch.id);
    if (flight.state == Flight::State::Waiting) flight.deadline_ns = 0;
  }
  return !cancelled.empty();
}

RemoteMover::Impl::Flight* RemoteMover::Impl::idle_background() {
  const auto background = std::span(flights).subspan(config.transfer_count_max, kBackgroundFlights);
  const auto idle = std::ranges::find(background, Flight::State::Idle, &Flight::state);
  return idle != background.end() ? &*idle : nullptr;
}

// When there is no room for it, whoever reads the value next drops it.
void RemoteMover::Impl::discard(std::uint32_t pool, const PageName& name, const RemoteObject& object) {
  Flight* const flight = idle_background();
  if (flight == nullptr || config.is_read_only) return;
  flight->pool = pool;
  flight->dropped = name;
  std::array<char, kRemoteKeyBytesMax>& room = keys[flight->index * object_max];
  std::ranges::copy(object.key, room.begin());
  objects_of(*flight)[0] = {.key = {room.data(), object.key.size()}};
  submit(*flight, {.step = Step::Discard,
                   .operation = RemoteOperation::Drop,
                   .priority = RemotePriority::Background,
                   .object_count = 1,
                   .timeout_ns = config.store_timeout_ns});
}

// What is there from now on, somebody has put there since.
void RemoteMover::Impl::end_discard(const Flight& flight) {
  if (flight.batch.objects[0].outcome != RemoteOutcome::Ok) return;
  bad.remove(flight.pool, flight.dropped);
  absent.add(flight.pool, flight.dropped, now() + kAbsentNs);
}

// Drops of key spaces

// Of the stores and direct puts that are not over the one that began first.
std::uint64_t RemoteMover::Impl::oldest_write() const {
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (const Flight& flight : flights) {
    if (flight.write_number > 0) oldest = std::min(oldest, flight.write_number);
  }
  return oldest;
}

// The queue hides the key space already.
void RemoteMover::Impl::open_drop(const PageName& key_space) {
  const std::uint64_t number = ++last_number;
  const auto drop = std::ranges::find(open_drops, key_space, &OpenDrop::key_space);
  if (drop == open_drops.end()) {
    open_drops.push_back(
        {.key_space = key_space, .first_number = number, .asked_number = number, .next_ns = now(), .flight = {}});
    return;
  }
  queue->finish_drop(key_space);  // once is enough
  drop->asked_number = number;
  if (drop->repeat_number == 0) drop->next_ns = now();
}

RemoteMover::Impl::Flight* RemoteMover::Impl::idle_drop() {
  const auto drops = std::span(flights).last(kDropFlights);
  const auto idle = std::ranges::find(drops, Flight::State::Idle, &Flight::state);
  return idle != drops.end() ? &*idle : nullptr;
}

// The drop that is to be tried next, now or when its time comes. A value that is put behind a drop would stay, so that
// none begins before the writes have ended that began before its plan. These do not get more: no stream of others keeps
// a drop waiting, and other key spaces are stored all the time.
RemoteMover::Impl::OpenDrop* RemoteMover::Impl::next_drop() {
  if (open_drops.empty() || config.is_read_only || idle_drop() == nullptr) return nullptr;
  const std::uint64_t oldest = oldest_write();
  OpenDrop* next = nullptr;
  for (OpenDrop& drop : open_drops) {
    if (drop.flight || drop.first_number > oldest) continue;
    if (next == nullptr || drop.next_ns < next->next_ns) next = &drop;
  }
  return next;
}

bool RemoteMover::Impl::try_drop() {
  OpenDrop* const drop = next_drop();
  if (drop == nullptr || now() < drop->next_ns) return false;
  Flight& flight = *idle_drop();
  drop->flight = flight.index;
  flight.dropped = drop->key_space;
  flight.number = ++last_number;
  std::array<char, kRemoteKeyBytesMax>& room = keys[flight.index * object_max];
  objects_of(flight)[0] = {.key = write_key_space_prefix(config.key_prefix, drop->key_space, room)};
  submit(flight, {.step = Step::Drop,
                  .operation = RemoteOperation::DropBelow,
                  .priority = RemotePriority::Waiting,
                  .object_count = 1,
                  .timeout_ns = config.drop_timeout_ns});
  return true;
}

void RemoteMover::Impl::end_drop(const Flight& flight) {
  const auto tried = std::ranges::find(open_drops, flight.index, &OpenDrop::flight);
  QUIRE_CHECK(tried != open_drops.end(), "a drop is tried that nobody wants");
  tried->flight.reset();
  if (objects_of(flight)[0].outcome == RemoteOutcome::Ok) {
    end_drop_well(flight);
    return;
  }
  count(&RemoteMoverStats::failed_drops);
  if (tried->done_number > tried->asked_number) {  // by a drop of everything
    queue->finish_drop(tried->key_space);
    open_drops.erase(tried);
    return;
  }
  tried->failed_number = flight.number;
  tried->pause_ns = std::clamp(2 * tried->pause_ns, kDropPauseMinNs, kDropPauseMaxNs);
  tried->next_ns = now() + tried->pause_ns;
  hurry_drops();  // for flushes that began meanwhile
}

// Drops of everything have waited for what others would wait for that were asked for before they began: what was put
// since they were asked for themselves is of none of these key spaces. One that is at the store stays open as long, or
// it would take what is put from now on. A drop is repeated once where puts were given up shortly before, because one
// of them may have come through behind it.
void RemoteMover::Impl::end_drop_well(const Flight& flight) {
  const TimeNs now_ns = now();
  const bool has_lost_puts = lost_put_ns && now_ns - *lost_put_ns < kLostPutNs;
  std::erase_if(open_drops, [&](OpenDrop& drop) {
    const bool is_of_it = flight.dropped.is_none() || drop.key_space == flight.dropped;
    if (!is_of_it || drop.first_number > flight.number) return false;
    if (drop.repeat_number == 0 && has_lost_puts) {
      drop.repeat_number = ++last_number;
      drop.next_ns = now_ns + kDropPauseMinNs;
      return false;
    }
    if (flight.number < drop.repeat_number) return false;  // it ran beside the one that is to be repeated
    drop.done_number = flight.number;
    if (flight.number < drop.asked_number || drop.flight) return false;
    queue->finish_drop(drop.key_space);
    return true;
  });
}

// Flushes

// Somebody waits until drops have been tried, which then make no pauses, but for the one before they are repeated.
void RemoteMover::Impl::hurry_drops() {
  if (flushes.empty()) return;
  const std::uint64_t last_flush = flights[flushes.back()].number;
  const TimeNs now_ns = now();
  for (OpenDrop& drop : open_drops) {
    const bool is_tried = std::max(drop.done_number, drop.failed_number) > last_flush;
    if (is_tried || drop.first_number > last_flush) continue;
    drop.next_ns = std::min(drop.next_ns, drop.repeat_number == 0 ? now_ns : now_ns + kDropPauseMinNs);
  }
}

// The first one ends first: what it waits for, those behind it wait for too.
bool RemoteMover::Impl::try_end_flush() {
  if (flushes.empty()) return false;
  Flight& flight = flights[flushes.front()];
  if (oldest_write() < flight.number) return false;
  bool has_failed = false;
  for (const OpenDrop& drop : open_drops) {
    if (config.is_read_only || drop.first_number > flight.number || drop.done_number > flight.number) continue;
    if (drop.failed_number < flight.number) return false;
    has_failed = true;
  }
  flushes.erase(flushes.begin());
  if (has_failed) flight.completion.outcome = TransferOutcome::Failed;  // and no fault: nothing that was put is lost
  complete(flight);
  return true;
}

void RemoteMover::Impl::count(Counter counter, std::uint64_t number) {
  const MutexLock lock(stats_mutex);
  stats.*counter += number;
}

// RemoteMover

RemoteMover::RemoteMover(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RemoteMover::~RemoteMover() {
  impl_->stop();
}

Result<std::unique_ptr<RemoteMover>> RemoteMover::open(const Config& config, RemoteStore& store,
                                                       std::span<HostPages* const> hosts) {
  auto impl = std::make_unique<Impl>(config, store, hosts);
  QUIRE_TRY(impl->prepare());
  auto mover = std::unique_ptr<RemoteMover>(new RemoteMover(std::move(impl)));  // stops what has started
  if (config.has_threads) QUIRE_TRY(mover->impl_->start());
  return mover;
}

void RemoteMover::submit(const NameLog& log) {
  impl_->queue->submit(log);
}

void RemoteMover::submit(const LowerPlan& plan) {
  impl_->queue->submit(plan);
}

void RemoteMover::cancel(TransferId id) {
  impl_->queue->cancel(id);
}

std::span<Completion> RemoteMover::poll(std::span<Completion> out) {
  return impl_->queue->poll(out);
}

bool RemoteMover::keeps(std::uint32_t pool) const {
  return pool < impl_->config.pools.size() && impl_->config.pools[pool].is_kept;
}

std::string RemoteMover::last_error() const {
  return in_remote_fields(impl_->store.status().last_error);
}

std::uint32_t RemoteMover::extent_pages() const {
  return impl_->extent_pages(0);
}

std::uint64_t RemoteMover::written_bytes(std::uint32_t pool) const {
  return extent_bytes(1, impl_->config.pools[pool].layout.page_bytes);
}

bool RemoteMover::run() {
  QUIRE_CHECK(!impl_->config.has_threads, "running a mover that has a thread");
  return impl_->run();
}

RemoteMoverStats RemoteMover::stats() const {
  const MutexLock lock(impl_->stats_mutex);
  return impl_->stats;
}

bool RemoteMover::is_usable() const {
  return impl_->is_usable.load(std::memory_order_relaxed);
}

}  // namespace quire
