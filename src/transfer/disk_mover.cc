// SPDX-License-Identifier: Apache-2.0
#include "transfer/disk_mover.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/blocked_signals.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/system_error.h"
#include "transfer/lower_queue.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

// 0 would mean unknown.
TimeNs elapsed_ns(Clock::time_point start) {
  return std::max<TimeNs>(1, std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

constexpr std::size_t kLaneCount = 3;
// Names are computed as long as they are found: a miss costs so many at most.
constexpr std::uint32_t kFindPages = 16;

constexpr std::array<const char*, kLaneCount> kThreadNames = {"quire-names", "quire-disk-in", "quire-disk-out"};

}  // namespace

struct DiskMover::Impl {
  Impl(Config the_config, std::span<HostPages* const> the_hosts)
      : config(std::move(the_config)), hosts(the_hosts.begin(), the_hosts.end()) {
    hosts.resize(config.stores.size());
  }

  /// A page of a direct call.
  struct DirectPage {
    std::uint32_t column = 0;  // of the path
    std::uint64_t offset = 0;  // in the caller's memory
    FileOutcome outcome = FileOutcome::Failed;
  };

  [[nodiscard]] Status prepare(FileSystem& files);
  [[nodiscard]] Status start();
  void stop();
  void work(Lane lane);
  [[nodiscard]] bool wait(Lane lane);
  bool run(Lane lane);

  void take(const LowerPlan& plan);
  [[nodiscard]] Completion find(const LowerPlan& plan);
  [[nodiscard]] Completion load(const LowerPlan& plan);
  [[nodiscard]] Completion store_pages(const LowerPlan& plan);
  [[nodiscard]] Completion put(const LowerPlan& plan);
  [[nodiscard]] Completion get(const LowerPlan& plan);
  template <typename Move>
  void move_direct(const LowerPlan& plan, Completion& completion, Move&& move);
  [[nodiscard]] Completion drop(const LowerPlan& plan);
  [[nodiscard]] Completion flush(const LowerPlan& plan);
  [[nodiscard]] const KeySpace* text_of(const PageName& key_space);
  void find_anchored(const LowerPlan& plan, std::span<const PageName> path);
  void note_failure();

  [[nodiscard]] TimeNs unix_time() const { return config.unix_time ? config.unix_time() : 0; }

  Config config;
  std::vector<HostPages*> hosts;                   // by pool; null where there is none
  std::vector<std::unique_ptr<FileStore>> stores;  // by pool; null: nothing on disk
  std::vector<std::atomic<bool>> failed;           // by pool
  std::vector<std::thread> threads;

  std::unique_ptr<LowerQueue> queue;  // followed by the lane of names
  std::vector<FileRead> reads;        // the lane of reads
  std::vector<FileWrite> writes;      // the lane of writes
  struct Text {
    PageName name;
    KeySpace key_space;
  };
  std::vector<Text> texts;  // the lane of writes: what the last key spaces are called, for people
  std::size_t next_text = 0;

  Mutex mutex;  // guards what follows
  // That have their names; the lane of names has the queue instead.
  std::array<std::vector<LowerPlan>, kLaneCount> plans QUIRE_GUARDED_BY(mutex);
  std::vector<KeySpace> new_texts QUIRE_GUARDED_BY(mutex);
  bool is_stopping QUIRE_GUARDED_BY(mutex) = false;
  std::array<Condition, kLaneCount> has_work;
};

Status DiskMover::Impl::prepare(FileSystem& files) {
  stores.resize(config.stores.size());
  failed = std::vector<std::atomic<bool>>(config.stores.size());
  for (std::size_t i = 0; i < config.stores.size(); ++i) {
    if (config.stores[i].directories.empty()) continue;
    QUIRE_CHECK(hosts[i] != nullptr, "a store has the host pages of its pool above it");
    QUIRE_TRY_ASSIGN(stores[i], FileStore::open(config.stores[i], files));
  }
  const auto keep_text = [this](const KeySpace& key_space) {
    const MutexLock lock(mutex);
    // text_of() empties the list, but may never be called: the oldest are dropped.
    if (new_texts.size() == config.names.key_space_count_max) new_texts.erase(new_texts.begin());
    new_texts.push_back(key_space);
  };
  QUIRE_TRY_ASSIGN(queue, LowerQueue::create({.names = config.names,
                                              .log = config.log,
                                              .transfer_count_max = config.transfer_count_max,
                                              .transfer_pages_max = config.transfer_pages_max,
                                              .path_pages_max = config.path_pages_max,
                                              .event_fd = config.event_fd,
                                              .on_key_space = keep_text}));
  reads.reserve(config.transfer_pages_max);
  writes.reserve(config.transfer_pages_max);
  const MutexLock lock(mutex);
  for (std::vector<LowerPlan>& lane : plans) lane.reserve(config.transfer_count_max);
  return {};
}

Status DiskMover::Impl::start() {
  const BlockedSignals blocked;
  threads.reserve(kLaneCount);
  try {
    for (const Lane lane : {Lane::Names, Lane::Read, Lane::Write}) {
      threads.emplace_back([this, lane] { work(lane); });
    }
  } catch (const std::system_error& error) {
    return fail(errno_code(error.code().value()), "starting a thread of the disk tier: " + error.code().message());
  }
  return {};
}

void DiskMover::Impl::stop() {
  queue->stop();
  {
    const MutexLock lock(mutex);
    is_stopping = true;
    for (Condition& condition : has_work) condition.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

void DiskMover::Impl::work(Lane lane) {
  const auto place = static_cast<std::size_t>(lane);
  pthread_setname_np(pthread_self(), kThreadNames[place]);
  while (lane == Lane::Names ? queue->wait() : wait(lane)) (void)run(lane);
}

// False: stop() was called.
bool DiskMover::Impl::wait(Lane lane) {
  const auto place = static_cast<std::size_t>(lane);
  const MutexLock lock(mutex);
  while (!is_stopping && plans[place].empty()) has_work[place].wait(mutex);
  return !is_stopping;
}

bool DiskMover::Impl::run(Lane lane) {
  if (lane == Lane::Names) return queue->follow([this](const LowerPlan& plan) { take(plan); });
  const auto place = static_cast<std::size_t>(lane);
  LowerPlan plan;
  {
    const MutexLock lock(mutex);
    if (plans[place].empty()) return false;
    plan = plans[place].front();
    plans[place].erase(plans[place].begin());
  }
  if (queue->begin(plan.id.index)) plan.pages = {};
  switch (plan.kind) {
    case TransferKind::LoadFromBelow:
      queue->complete(load(plan));
      break;
    case TransferKind::StoreBelow:
      queue->complete(store_pages(plan));
      break;
    case TransferKind::GetFromBelow:
      queue->complete(get(plan));
      break;
    case TransferKind::PutBelow:
      queue->complete(put(plan));
      break;
    case TransferKind::DropBelow:
      queue->complete(drop(plan));
      break;
    case TransferKind::FlushBelow:
      queue->complete(flush(plan));
      break;
    default:
      QUIRE_CHECK(false, "a plan in the wrong lane");
  }
  return true;
}

// A plan that has its names.
void DiskMover::Impl::take(const LowerPlan& plan) {
  if (plan.kind == TransferKind::FindBelow) {
    queue->complete(find(plan));
    return;
  }
  const bool is_read = plan.kind == TransferKind::LoadFromBelow || plan.kind == TransferKind::GetFromBelow;
  const auto place = static_cast<std::size_t>(is_read ? Lane::Read : Lane::Write);
  const MutexLock lock(mutex);
  plans[place].push_back(plan);
  has_work[place].notify_one();
}

Completion DiskMover::Impl::find(const LowerPlan& plan) {
  const Clock::time_point start = Clock::now();
  Completion completion{.id = plan.id, .kind = plan.kind};
  const auto page_count = static_cast<std::uint32_t>(plan.tokens.size() / config.names.page_tokens);
  const PageNames::Record& shared = queue->records(plan.id.index)[0];
  const std::span<const PageName> path = queue->path(plan.id.index);
  const bool is_hidden =
      shared.parent.is_none() || queue->is_dropping(shared.key_space) || queue->is_cancelled(plan.id.index);
  std::uint32_t page = 0;
  while (!is_hidden && page < page_count) {
    const std::uint32_t count = std::min(kFindPages, page_count - page);
    queue->name_path(plan, page, count);
    // What is held need not be there; what it goes on with must.
    const std::uint32_t held = plan.held_pages - std::min(plan.held_pages, page);
    const std::uint32_t there = held >= count ? count : held + stores[0]->find(path.subspan(page + held, count - held));
    page += there;
    if (there < count) break;
  }
  if (!plan.anchored.empty()) {
    std::ranges::fill(plan.anchored, 0);
    find_anchored(plan, path.first(page));
  }
  completion.good_pages = page - std::min(page, plan.held_pages);
  completion.outcome = page > 0 ? TransferOutcome::Ok : TransferOutcome::Empty;
  completion.busy_ns = elapsed_ns(start);
  return completion;
}

// Which anchored groups have something under the names of a path.
void DiskMover::Impl::find_anchored(const LowerPlan& plan, std::span<const PageName> path) {
  for (std::size_t i = 1; i < stores.size(); ++i) {
    if (stores[i] == nullptr) continue;
    for (std::size_t page = 0; page < path.size(); ++page) {
      if (stores[i]->find(path.subspan(page, 1)) == 1) plan.anchored[page] |= std::uint64_t{1} << (i - 1);
    }
  }
}

// The first page that does not come ends the path.
Completion DiskMover::Impl::load(const LowerPlan& plan) {
  const Clock::time_point start = Clock::now();
  Completion completion{.id = plan.id, .kind = plan.kind};
  if (plan.pages.empty()) {
    completion.outcome = TransferOutcome::Cancelled;
    return completion;
  }
  const std::span<const PageNames::Record> page_names = queue->records(plan.id.index);
  HostPages& host = *hosts[plan.pool];
  reads.clear();
  for (std::size_t i = 0; i < plan.pages.size(); ++i) {
    FileRead read{.name = page_names[i].name};
    completion.fault = host.begin_write(plan.pages[i], read.bytes);
    if (completion.fault != TransferFault::None) break;
    reads.push_back(read);
  }
  stores[plan.pool]->read(reads);
  bool is_good = true;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const FileRead& read = reads[i];
    if (is_good && read.outcome != FileOutcome::Ok) {
      is_good = false;
      completion.fault = read.outcome == FileOutcome::Corrupt ? TransferFault::Checksum : TransferFault::Io;
    }
    host.end_write(plan.pages[i], is_good ? std::optional(read.checksum) : std::nullopt);
    if (!is_good) continue;
    ++completion.good_pages;
    completion.moved_bytes += read.bytes.size();
  }
  if (completion.good_pages < plan.pages.size()) completion.outcome = TransferOutcome::Failed;
  if (completion.fault == TransferFault::Io) note_failure();
  completion.busy_ns = elapsed_ns(start);
  return completion;
}

// What a key space is called, if that is still known: the last ones are.
const KeySpace* DiskMover::Impl::text_of(const PageName& key_space) {
  {
    const MutexLock lock(mutex);
    for (KeySpace& text : new_texts) {
      Text added{.name = key_space_name(text), .key_space = std::move(text)};
      if (texts.size() < config.names.key_space_count_max) {
        texts.push_back(std::move(added));
      } else {
        texts[next_text++ % texts.size()] = std::move(added);
      }
    }
    new_texts.clear();
  }
  const auto text = std::ranges::find(texts, key_space, &Text::name);
  return text != texts.end() ? &text->key_space : nullptr;
}

// Pages without a name are passed over: nobody could ask for them.
Completion DiskMover::Impl::store_pages(const LowerPlan& plan) {
  const Clock::time_point start = Clock::now();
  Completion completion{.id = plan.id, .kind = plan.kind};
  if (plan.pages.empty()) {
    completion.outcome = TransferOutcome::Cancelled;
    return completion;
  }
  FileStore* const store = stores[plan.pool].get();
  HostPages& host = *hosts[plan.pool];
  const std::uint64_t written_before = store->stats().written_bytes;
  const std::span<const PageNames::Record> page_names = queue->records(plan.id.index);
  const auto page_count = static_cast<std::uint32_t>(plan.pages.size());
  while (completion.good_pages < page_count && completion.fault == TransferFault::None) {
    // As many as belong to one key space.
    const std::uint32_t first = completion.good_pages;
    const PageName& key_space = page_names[first].key_space;
    std::uint32_t end = first;
    writes.clear();
    for (; end < page_count && page_names[end].key_space == key_space; ++end) {
      if (page_names[end].name.is_none()) continue;
      HostPages::Record record;
      completion.fault = host.begin_read(plan.pages[end], record);
      if (completion.fault != TransferFault::None) break;
      // An anchored page depends on no other page of its store: it need not go when one before it does.
      const bool is_anchored = plan.pool > 0;
      writes.push_back({.name = page_names[end].name,
                        .parent = page_names[end].parent,
                        .page_index = is_anchored ? 0 : page_names[end].page_index,
                        .bytes = record.bytes,
                        .checksum = record.checksum});
    }
    if (!writes.empty()) store->write(key_space, text_of(key_space), writes, unix_time());
    std::size_t next = 0;
    for (std::uint32_t i = first; i < end; ++i) {
      if (page_names[i].name.is_none()) {
        if (completion.good_pages == i) ++completion.good_pages;
        continue;
      }
      const FileWrite& write = writes[next++];
      host.end_read(plan.pages[i]);
      if (write.outcome == FileOutcome::Ok) {
        if (completion.good_pages == i) ++completion.good_pages;
      } else if (completion.fault == TransferFault::None) {
        completion.fault = write.outcome == FileOutcome::Corrupt ? TransferFault::Checksum : TransferFault::Io;
      }
    }
  }
  if (completion.good_pages < page_count) completion.outcome = TransferOutcome::Failed;
  if (completion.fault == TransferFault::Io) note_failure();
  completion.moved_bytes = store->stats().written_bytes - written_before;  // what the disk wears by
  completion.busy_ns = elapsed_ns(start);
  return completion;
}

// Pages that go with one path, straight from or to memory of the caller's, as many at a time as a plan has: `move` has
// them written or read. The history ends with its first page that is not; pages of other groups are of use one by one.
template <typename Move>
void DiskMover::Impl::move_direct(const LowerPlan& plan, Completion& completion, Move&& move) {
  std::ranges::fill(plan.anchored, 0);
  std::vector<DirectPage> pages;  // of this call alone: reads and writes have a thread each
  std::uint64_t offset = 0;
  for (const PoolColumns& columns : plan.columns) {
    const std::uint64_t page_bytes = config.stores[columns.pool].layout.page_bytes;
    const bool is_history = columns.pool == 0;
    for (std::uint32_t i = 0; i < columns.count();) {
      pages.clear();
      for (; i < columns.count() && pages.size() < config.transfer_pages_max; ++i) {
        const bool is_of_use = is_history || columns.at(i) < completion.good_pages;
        if (is_of_use) pages.push_back({.column = columns.at(i), .offset = offset + (i * page_bytes)});
      }
      if (!pages.empty()) move(columns.pool, std::span(pages));
      for (const DirectPage& page : pages) {
        if (page.outcome == FileOutcome::Ok) {
          completion.good_pages += is_history ? 1 : 0;
          if (!is_history) plan.anchored[page.column] |= std::uint64_t{1} << (columns.pool - 1);
          continue;
        }
        if (page.outcome == FileOutcome::Corrupt) completion.fault = TransferFault::Checksum;
        if (page.outcome == FileOutcome::Failed || page.outcome == FileOutcome::Full) {
          completion.fault = TransferFault::Io;
        }
        if (is_history) break;
      }
      if (is_history && completion.good_pages < i) break;
    }
    offset += columns.count() * page_bytes;
  }
  if (completion.fault != TransferFault::None) completion.outcome = TransferOutcome::Failed;
  if (completion.fault == TransferFault::Io) note_failure();
}

Completion DiskMover::Impl::put(const LowerPlan& plan) {
  const Clock::time_point start = Clock::now();
  Completion completion{.id = plan.id, .kind = plan.kind};
  const std::span<const PageName> path = queue->path(plan.id.index);
  const PageNames::Record& first = queue->records(plan.id.index)[0];
  move_direct(plan, completion, [&](std::uint32_t pool, std::span<DirectPage> pages) {
    writes.clear();
    for (const DirectPage& page : pages) {
      writes.push_back({.name = path[page.column],
                        .parent = page.column == 0 ? first.parent : path[page.column - 1],
                        .page_index = pool == 0 ? page.column : 0,  // as store_pages() has it
                        .bytes = plan.source.subspan(page.offset, config.stores[pool].layout.page_bytes)});
    }
    const std::uint64_t written_before = stores[pool]->stats().written_bytes;
    stores[pool]->write(first.key_space, text_of(first.key_space), writes, unix_time());
    completion.moved_bytes += stores[pool]->stats().written_bytes - written_before;
    for (std::size_t i = 0; i < writes.size(); ++i) pages[i].outcome = writes[i].outcome;
  });
  completion.busy_ns = elapsed_ns(start);
  return completion;
}

Completion DiskMover::Impl::get(const LowerPlan& plan) {
  const Clock::time_point start = Clock::now();
  Completion completion{.id = plan.id, .kind = plan.kind};
  const std::span<const PageName> path = queue->path(plan.id.index);
  const bool is_hidden = queue->is_dropping(queue->records(plan.id.index)[0].key_space);
  const auto read_pages = [&](std::uint32_t pool, std::span<DirectPage> pages) {
    const std::uint64_t page_bytes = config.stores[pool].layout.page_bytes;
    reads.clear();
    for (const DirectPage& page : pages) {
      reads.push_back({.name = path[page.column], .bytes = plan.target.subspan(page.offset, page_bytes)});
    }
    stores[pool]->read(reads);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      pages[i].outcome = reads[i].outcome;
      completion.moved_bytes += reads[i].outcome == FileOutcome::Ok ? page_bytes : 0;
    }
  };
  if (!is_hidden) move_direct(plan, completion, read_pages);
  completion.busy_ns = elapsed_ns(start);
  return completion;
}

Completion DiskMover::Impl::drop(const LowerPlan& plan) {
  Completion completion{.id = plan.id, .kind = plan.kind};
  const PageName name = queue->records(plan.id.index)[0].name;
  for (const std::unique_ptr<FileStore>& store : stores) {
    if (store == nullptr) continue;
    const Status dropped = name.is_none() ? store->drop_all(unix_time()) : store->drop(name, unix_time());
    if (dropped) continue;
    completion.outcome = TransferOutcome::Failed;
    completion.fault = TransferFault::Io;
    note_failure();
  }
  queue->finish_drop(name);
  return completion;
}

Completion DiskMover::Impl::flush(const LowerPlan& plan) {
  Completion completion{.id = plan.id, .kind = plan.kind};
  for (const std::unique_ptr<FileStore>& store : stores) {
    if (store == nullptr || store->flush()) continue;
    completion.outcome = TransferOutcome::Failed;
    completion.fault = TransferFault::Io;
    note_failure();
  }
  return completion;
}

void DiskMover::Impl::note_failure() {
  for (std::size_t i = 0; i < stores.size(); ++i) {
    if (stores[i] == nullptr) continue;
    const FileStoreStats stats = stores[i]->stats();
    if (stats.failed_directories == stats.directory_count) failed[i].store(true, std::memory_order_relaxed);
  }
}

DiskMover::DiskMover(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

DiskMover::~DiskMover() {
  impl_->stop();
}

Result<std::unique_ptr<DiskMover>> DiskMover::open(const Config& config, FileSystem& files,
                                                   std::span<HostPages* const> hosts) {
  auto impl = std::make_unique<Impl>(config, hosts);
  QUIRE_TRY(impl->prepare(files));
  auto mover = std::unique_ptr<DiskMover>(new DiskMover(std::move(impl)));  // stops what has started
  if (config.has_threads) QUIRE_TRY(mover->impl_->start());
  return mover;
}

void DiskMover::submit(const NameLog& log) {
  impl_->queue->submit(log);
}

void DiskMover::submit(const LowerPlan& plan) {
  impl_->queue->submit(plan);
}

void DiskMover::cancel(TransferId id) {
  impl_->queue->cancel(id);
}

std::span<Completion> DiskMover::poll(std::span<Completion> out) {
  return impl_->queue->poll(out);
}

bool DiskMover::run(Lane lane) {
  QUIRE_CHECK(!impl_->config.has_threads, "running a lane that has a thread");
  return impl_->run(lane);
}

bool DiskMover::keeps(std::uint32_t pool) const {
  return pool < impl_->stores.size() && impl_->stores[pool] != nullptr;
}

bool DiskMover::is_failed(std::uint32_t pool) const {
  return impl_->failed[pool].load(std::memory_order_relaxed);
}

std::string DiskMover::last_error() const {
  for (const std::unique_ptr<FileStore>& store : impl_->stores) {
    if (store == nullptr) continue;
    if (std::string error = store->stats().last_error; !error.empty()) return error;
  }
  return {};
}

std::uint64_t DiskMover::written_bytes(std::uint32_t pool) const {
  return record_bytes(impl_->config.stores[pool].layout.page_bytes);
}

FileStoreStats DiskMover::store_stats(std::uint32_t pool) const {
  return keeps(pool) ? impl_->stores[pool]->stats() : FileStoreStats{};
}

FileStore& DiskMover::store(std::uint32_t pool) {
  return *impl_->stores[pool];
}

}  // namespace quire
