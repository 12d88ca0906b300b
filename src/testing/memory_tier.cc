// SPDX-License-Identifier: Apache-2.0
#include "testing/memory_tier.h"

#include <algorithm>

#include "base/check.h"

namespace quire::testing {

MemoryTier::MemoryTier(const Config& config) : config_(config), pools_(config.hosts.size()) {
  Result<NameLog> log = NameLog::create(config.log);
  Result<PageNames> names = PageNames::create(config.names);
  QUIRE_CHECK(log.has_value() && names.has_value(), "no memory for names");
  log_ = std::move(*log);
  names_ = std::move(*names);
}

void MemoryTier::submit(const NameLog& log) {
  log_.append(log);
  names_.finish(log_, [](const KeySpace&) {});
}

// Names are those that pages have now, whenever the plan's turn comes.
void MemoryTier::submit(const LowerPlan& plan) {
  Task task{.plan = plan, .names = {}};
  if (plan.kind == TransferKind::FindBelow) find_timeouts.push_back(plan.timeout_ns);
  if (plan.kind == TransferKind::LoadFromBelow) load_timeouts.push_back(plan.timeout_ns);
  if (plan.kind == TransferKind::StoreBelow) store_timeouts.push_back(plan.timeout_ns);
  switch (plan.kind) {
    case TransferKind::FindBelow:
      found_[plan.id.index] = path_of(plan);
      break;
    case TransferKind::LoadFromBelow:
      for (const PageTransfer& page : plan.pages) {
        task.names.push_back(found_[plan.found_by][page.place]);
        if (plan.pool == 0) names_.set_host(page.host_page, task.names.back());
      }
      break;
    case TransferKind::StoreBelow:
      for (const PageTransfer& page : plan.pages) {
        task.names.push_back(names_.of(plan.named_in, PageId{page.place}));
      }
      break;
    case TransferKind::DropBelow:
      task.names.emplace_back();
      if (plan.key_space != kAllKeySpaces) task.names[0].key_space = names_.space(plan.key_space).name;
      break;
    case TransferKind::FlushBelow:
      break;
    default:
      QUIRE_CHECK(false, "a memory tier has no direct calls");
  }
  const bool is_read = plan.kind == TransferKind::FindBelow || plan.kind == TransferKind::LoadFromBelow;
  (is_read ? reads_ : writes_).push_back(std::move(task));
}

std::vector<PageNames::Record> MemoryTier::path_of(const LowerPlan& plan) const {
  const PageNames::Space& space = names_.space(plan.key_space);
  const std::size_t page_count = plan.tokens.size() / config_.names.page_tokens;
  std::vector<PageNames::Record> path(page_count, {.name = {}, .parent = {}, .key_space = space.name});
  const PageName& parent = names_.parent_name(plan.parent, plan.key_space);
  if (parent.is_none()) return path;
  std::vector<PageName> names(page_count);
  name_pages({.parent = parent,
              .page_tokens = config_.names.page_tokens,
              .first_position = plan.first_page * config_.names.page_tokens,
              .tokens = plan.tokens,
              .extra_keys = plan.extra_keys},
             names);
  for (std::size_t i = 0; i < page_count; ++i) {
    path[i].name = names[i];
    path[i].parent = i == 0 ? parent : names[i - 1];
    path[i].page_index = plan.first_page + static_cast<std::uint32_t>(i);
  }
  return path;
}

void MemoryTier::cancel(TransferId id) {
  const auto task = std::ranges::find(reads_, id, [](const Task& each) { return each.plan.id; });
  if (task != reads_.end()) task->is_cancelled = true;
}

std::span<Completion> MemoryTier::poll(std::span<Completion> out) {
  const std::size_t count = std::min(out.size(), completions_.size());
  std::copy_n(completions_.begin(), count, out.begin());
  completions_.erase(completions_.begin(), completions_.begin() + static_cast<std::ptrdiff_t>(count));
  return out.first(count);
}

bool MemoryTier::keeps(std::uint32_t pool) const {
  return pool < config_.hosts.size() && config_.hosts[pool] != nullptr;
}

bool MemoryTier::run_one(Random& random) {
  const bool reads = writes_.empty() || (!reads_.empty() && random.below(2) == 0);
  std::vector<Task>& tasks = reads ? reads_ : writes_;
  if (tasks.empty()) return false;
  const std::size_t place = reads ? random.below(static_cast<std::uint32_t>(tasks.size())) : 0;
  const Task task = std::move(tasks[place]);
  tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(place));
  Completion completion{.id = task.plan.id, .kind = task.plan.kind};
  if (task.plan.kind == TransferKind::FindBelow) {
    completion = find(task, random);
  } else if (task.plan.kind == TransferKind::LoadFromBelow) {
    completion = load(task, random);
  } else if (task.plan.kind == TransferKind::StoreBelow) {
    completion = store(task, random);
  } else if (has_failed_) {
    completion.outcome = TransferOutcome::Failed;
    completion.fault = TransferFault::Io;
  } else if (task.plan.kind == TransferKind::DropBelow) {
    for (auto& pool : pools_) {
      std::erase_if(pool, [&](const auto& page) { return drops(task, page.second.key_space); });
    }
  }
  flush_count += task.plan.kind == TransferKind::FlushBelow ? 1 : 0;
  completion.busy_ns = 1 + static_cast<TimeNs>(static_cast<double>(completion.moved_bytes) * ns_per_byte);
  if (task.plan.kind == TransferKind::FindBelow) completion.busy_ns = question_ns;
  if (completion.outcome == TransferOutcome::TimedOut) completion.busy_ns = std::max<TimeNs>(1, task.plan.timeout_ns);
  completions_.push_back(completion);
  if (draws(random, faults.repeated_answers)) completions_.push_back(completion);
  return true;
}

bool MemoryTier::drops(const Task& task, const PageName& key_space) {
  return task.plan.key_space == kAllKeySpaces || task.names[0].key_space == key_space;
}

bool MemoryTier::is_dropping(const PageName& key_space) const {
  return std::ranges::any_of(
      writes_, [&](const Task& task) { return task.plan.kind == TransferKind::DropBelow && drops(task, key_space); });
}

Completion MemoryTier::find(const Task& task, Random& random) {
  ++question_count;
  const LowerPlan& plan = task.plan;
  Completion completion{.id = plan.id, .kind = plan.kind};
  std::ranges::fill(plan.anchored, 0);
  if (has_failed_ || draws(random, faults.failed_questions)) {
    completion.outcome = TransferOutcome::Failed;
    completion.fault = TransferFault::Io;
    return completion;
  }
  const std::vector<PageNames::Record>& path = found_[plan.id.index];
  const bool is_hidden = task.is_cancelled || path.empty() || path[0].name.is_none() || is_dropping(path[0].key_space);
  std::uint32_t page = is_hidden ? 0 : plan.held_pages;
  const auto end_of_extent = [&] {
    return static_cast<std::uint32_t>(std::min(last_of_extent(path, page), path.size() - 1)) + 1;
  };
  const auto has_extent = [&] {
    const std::size_t last = last_of_extent(path, page);
    return last < path.size() && pools_[0].contains(path[last].name);
  };
  while (!is_hidden && page < path.size() && has_extent()) page = end_of_extent();
  if (!is_hidden && page < path.size() && draws(random, faults.promised_pages)) page = end_of_extent();
  for (std::size_t pool = 1; pool < pools_.size(); ++pool) {
    for (std::uint32_t i = 0; i < std::min<std::size_t>(page, plan.anchored.size()); ++i) {
      if (pools_[pool].contains(path[i].name)) plan.anchored[i] |= 1ULL << (pool - 1);
    }
  }
  completion.good_pages = page - std::min(page, plan.held_pages);
  completion.outcome = page > 0 ? TransferOutcome::Ok : TransferOutcome::Empty;
  return completion;
}

// A page of the path of a question, or what hangs on it.
const MemoryTier::KeptPage* MemoryTier::kept_page(const LowerPlan& plan, std::size_t place) const {
  const std::vector<PageNames::Record>& path = found_.at(plan.found_by);
  const std::size_t last = plan.pool == 0 ? last_of_extent(path, place) : place;
  if (last >= path.size()) return nullptr;
  const auto kept = pools_[plan.pool].find(path[last].name);
  if (kept == pools_[plan.pool].end()) return nullptr;
  return &kept->second.pages[kept->second.pages.size() - 1 - (last - place)];
}

// The first page that does not come ends the load.
Completion MemoryTier::load(const Task& task, Random& random) {
  const LowerPlan& plan = task.plan;
  Completion completion{.id = plan.id, .kind = plan.kind};
  HostPages& host = *config_.hosts[plan.pool];
  if (plan.pool == 0) load_page_counts.push_back(plan.pages.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(plan.pages.size(), load_pages_max) && !task.is_cancelled; ++i) {
    const KeptPage* const kept = kept_page(plan, plan.pages[i].place);
    if (has_failed_ || kept == nullptr || draws(random, faults.failed_loads)) break;
    std::span<std::byte> bytes;
    if (host.begin_write(plan.pages[i], bytes) != TransferFault::None) break;
    std::ranges::copy(kept->bytes, bytes.begin());
    if (draws(random, faults.changed_bytes))
      bytes[random.below(static_cast<std::uint32_t>(bytes.size()))] ^= std::byte{4};
    host.end_write(plan.pages[i], kept->checksum);
    ++completion.good_pages;
    completion.moved_bytes += bytes.size();
    ++loaded_page_count;
  }
  if (completion.good_pages == plan.pages.size()) return completion;
  if (task.is_cancelled) {
    completion.outcome = TransferOutcome::Cancelled;
  } else if (completion.good_pages == load_pages_max) {
    completion.outcome = TransferOutcome::TimedOut;
  } else {
    completion.outcome = TransferOutcome::Failed;
    completion.fault = TransferFault::Io;
  }
  return completion;
}

// An extent is consecutive pages of one path, and begins where extents begin.
void MemoryTier::check_extent(std::span<const PageNames::Record> names) const {
  for (std::size_t i = 0; i < names.size(); ++i) {
    QUIRE_CHECK(names[i].page_index % config_.extent_pages == i, "a page is at a wrong place of its extent");
    QUIRE_CHECK(i == 0 || names[i].parent == names[i - 1].name, "an extent has pages of several paths");
  }
}

// Extents with a page that has no name are passed over: nobody could ask for them.
Completion MemoryTier::store(const Task& task, Random& random) {
  const LowerPlan& plan = task.plan;
  Completion completion{.id = plan.id, .kind = plan.kind};
  HostPages& host = *config_.hosts[plan.pool];
  std::map<PageName, Kept>& pool = pools_[plan.pool];
  const std::uint32_t extent_pages = extent_of(plan.pool);
  QUIRE_CHECK(plan.pages.size() % extent_pages == 0, "a store has a part of an extent");
  if (faults.cancelled_stores > 0 && draws(random, faults.cancelled_stores)) {
    completion.outcome = TransferOutcome::Cancelled;
    return completion;
  }
  for (std::size_t first = 0; first < plan.pages.size(); first += extent_pages) {
    if (has_failed_ || draws(random, faults.failed_stores)) {
      completion.fault = TransferFault::Io;
      break;
    }
    const std::span<const PageNames::Record> names = std::span(task.names).subspan(first, extent_pages);
    const bool is_named = std::ranges::none_of(names, [](const auto& name) { return name.name.is_none(); });
    if (is_named && plan.pool == 0) check_extent(names);
    Kept kept{.key_space = names.back().key_space, .pages = {}};
    for (const PageTransfer& page : plan.pages.subspan(first, extent_pages)) {
      HostPages::Record record;
      completion.fault = host.begin_read(page, record);
      if (completion.fault != TransferFault::None) break;
      kept.pages.push_back({.bytes = {record.bytes.begin(), record.bytes.end()}, .checksum = record.checksum});
      host.end_read(page);
    }
    if (completion.fault != TransferFault::None) break;
    if (is_named) {
      kept.age = ++last_age_;
      pool[names.back().name] = std::move(kept);
      completion.moved_bytes += extent_pages * config_.page_bytes;
      stored_page_count += extent_pages;
      const auto oldest = std::ranges::min_element(pool, {}, [](const auto& each) { return each.second.age; });
      if (page_count(plan.pool) > config_.page_count_max) pool.erase(oldest);
    }
    completion.good_pages += extent_pages;
  }
  if (completion.good_pages < plan.pages.size()) completion.outcome = TransferOutcome::Failed;
  return completion;
}

}  // namespace quire::testing
