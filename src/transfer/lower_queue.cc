// SPDX-License-Identifier: Apache-2.0
#include "transfer/lower_queue.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutants.h"

namespace quire {

Result<std::unique_ptr<LowerQueue>> LowerQueue::create(const Config& config) {
  auto queue = std::unique_ptr<LowerQueue>(new LowerQueue);
  queue->config_ = config;
  if (!config.on_key_space) queue->config_.on_key_space = [](const KeySpace&) {};
  QUIRE_TRY_ASSIGN(queue->names_, PageNames::create(config.names));
  QUIRE_TRY_ASSIGN(queue->work_log_, NameLog::create(config.log));
  const std::size_t count = config.transfer_count_max;
  QUIRE_TRY_ASSIGN(queue->paths_, LazyArray<PageName>::create(count * config.path_pages_max));
  QUIRE_TRY_ASSIGN(queue->records_, LazyArray<PageNames::Record>::create(count * config.transfer_pages_max));
  queue->work_plans_.reserve(count);
  const MutexLock lock(queue->mutex_);
  QUIRE_TRY_ASSIGN(queue->log_, NameLog::create(config.log));
  queue->tasks_.resize(count);
  queue->plans_.reserve(count);
  queue->cancelled_.reserve(count);
  queue->completions_.reserve(count);
  queue->dropping_.reserve(count);
  return queue;
}

void LowerQueue::signal(int fd) {
  constexpr std::uint64_t kOne = 1;
  if (fd >= 0) (void)!::write(fd, &kOne, sizeof(kOne));  // it can only be too full, which wakes as well
}

// Engine threads

void LowerQueue::submit(const NameLog& log) {
  const MutexLock lock(mutex_);
  log_.append(log);
  has_work_.notify_one();
  signal(config_.work_fd);
}

void LowerQueue::submit(const LowerPlan& plan) {
  const MutexLock lock(mutex_);
  QUIRE_CHECK(plan.id.index < tasks_.size() && !tasks_[plan.id.index].is_live,
              "a plan of a lower tier with the index of another one");
  tasks_[plan.id.index] = {.is_live = true, .after_entry_count = log_.entry_count(), .plan = plan};
  plans_.push_back(plan.id.index);
  has_work_.notify_one();
  signal(config_.work_fd);
}

void LowerQueue::cancel(TransferId id) {
  const MutexLock lock(mutex_);
  Task& task = tasks_[id.index];
  const bool may_stop = task.plan.kind == TransferKind::FindBelow || task.plan.kind == TransferKind::LoadFromBelow;
  if (!task.is_live || task.has_begun || task.is_cancelled || task.plan.id != id || !may_stop) return;
  task.is_cancelled = true;
  if (config_.work_fd < 0) return;  // nobody takes them
  cancelled_.push_back(id);
  signal(config_.work_fd);
}

std::span<Completion> LowerQueue::poll(std::span<Completion> out) {
  const MutexLock lock(mutex_);
  const std::size_t count = std::min(out.size(), completions_.size());
  std::copy_n(completions_.begin(), count, out.begin());
  completions_.erase(completions_.begin(), completions_.begin() + static_cast<std::ptrdiff_t>(count));
  return out.first(count);
}

// The worker

bool LowerQueue::wait() {
  const MutexLock lock(mutex_);
  while (!is_stopping_ && plans_.empty() && log_.is_empty()) has_work_.wait(mutex_);
  return !is_stopping_;
}

void LowerQueue::stop() {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  has_work_.notify_all();
  signal(config_.work_fd);
}

// Everything that is there by now. A plan speaks of pages as they were when it was submitted, so that its turn comes
// between the entries before that and those after it: a page that it names may be another path's by now.
bool LowerQueue::follow(const std::function<void(const LowerPlan&)>& take) {
  {
    const MutexLock lock(mutex_);
    if (plans_.empty() && log_.is_empty()) return false;
    std::swap(log_, work_log_);
    work_plans_.swap(plans_);
  }
  for (const std::uint32_t index : work_plans_) {
    LowerPlan plan;
    std::uint32_t entry_count = 0;
    {
      const MutexLock lock(mutex_);
      plan = tasks_[index].plan;
      entry_count = tasks_[index].after_entry_count;
    }
    names_.follow(work_log_, is_mutated(Mutant::PlansAfterTheLog) ? UINT32_MAX : entry_count, config_.on_key_space);
    name_pages_of(plan);
    take(plan);
  }
  names_.finish(work_log_, config_.on_key_space);
  work_plans_.clear();
  return true;
}

void LowerQueue::name_pages_of(const LowerPlan& plan) {
  const std::span<PageNames::Record> records = this->records(plan.id.index);
  switch (plan.kind) {
    case TransferKind::FindBelow:
      records[0] = {.name = {},
                    .parent = names_.parent_name(plan.parent, plan.key_space),
                    .key_space = names_.space(plan.key_space).name,
                    .page_index = plan.first_page};
      return;
    case TransferKind::LoadFromBelow: {
      const std::span<const PageName> path = this->path(plan.found_by);
      for (std::size_t i = 0; i < plan.pages.size(); ++i) {
        const std::size_t place = plan.pages[i].place;
        PageNames::Record& record = records[i];
        record = this->records(plan.found_by)[0];
        record.name = path[place];
        if (place > 0) record.parent = path[place - 1];
        record.page_index += static_cast<std::uint32_t>(place);
        if (plan.pool == 0) names_.set_host(plan.pages[i].host_page, record);
      }
      return;
    }
    case TransferKind::StoreBelow:
      for (std::size_t i = 0; i < plan.pages.size(); ++i) {
        records[i] = names_.of(plan.named_in, PageId{plan.pages[i].place});
      }
      return;
    case TransferKind::PutBelow:
    case TransferKind::GetFromBelow: {
      const PageNames::Space& space = names_.space(plan.key_space);
      records[0] = {.name = {}, .parent = space.root, .key_space = space.name, .page_index = 0};
      name_path(plan, 0, static_cast<std::uint32_t>(plan.tokens.size() / config_.names.page_tokens));
      return;
    }
    case TransferKind::DropBelow: {
      records[0].name = plan.key_space == kAllKeySpaces ? PageName{} : names_.space(plan.key_space).name;
      const MutexLock lock(mutex_);
      dropping_.push_back(records[0].name);
      return;
    }
    default:
      return;
  }
}

void LowerQueue::name_path(const LowerPlan& plan, std::uint32_t first_page, std::uint32_t page_count) {
  const std::uint32_t page_tokens = config_.names.page_tokens;
  const std::span<PageName> path = this->path(plan.id.index);
  const PageNames::Record& shared = records(plan.id.index)[0];
  name_pages(
      {.parent = first_page == 0 ? shared.parent : path[first_page - 1],
       .page_tokens = page_tokens,
       .first_position = (shared.page_index + first_page) * page_tokens,
       .tokens = plan.tokens.subspan(std::size_t{first_page} * page_tokens, std::size_t{page_count} * page_tokens),
       .extra_keys = plan.extra_keys},
      path.subspan(first_page, page_count));
}

void LowerQueue::take_cancelled(std::vector<TransferId>& out) {
  out.clear();
  const MutexLock lock(mutex_);
  out.swap(cancelled_);
}

// Whoever has the plan

bool LowerQueue::is_cancelled(std::uint32_t index) const {
  const MutexLock lock(mutex_);
  return tasks_[index].is_cancelled;
}

bool LowerQueue::begin(std::uint32_t index) {
  const MutexLock lock(mutex_);
  tasks_[index].has_begun = true;
  return tasks_[index].is_cancelled;
}

void LowerQueue::complete(const Completion& completion) {
  const MutexLock lock(mutex_);
  tasks_[completion.id.index].is_live = false;
  completions_.push_back(completion);
  signal(config_.event_fd);
}

// Drops

bool LowerQueue::is_dropping(const PageName& key_space) const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(dropping_, [&](const PageName& name) { return name == key_space || name.is_none(); });
}

void LowerQueue::finish_drop(const PageName& key_space) {
  const MutexLock lock(mutex_);
  dropping_.erase(std::ranges::find(dropping_, key_space));
}

}  // namespace quire
