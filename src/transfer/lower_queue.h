// SPDX-License-Identifier: Apache-2.0
//
// LowerQueue: what lower tiers have in common that find pages by name. Plans and entries of the NameLog come in on any
// thread. One worker follows the log, so that the pages of each plan have the names that they had when it was
// submitted, and takes the plans in their order. Completions wait here until somebody polls them.
//
//     engine    submit ──► [log, plans] ──► worker: follow() ──► path(), records() of a plan
//     engine    poll   ◄── [completions] ◄── whoever did the work: complete()
//
// thread-safe, but follow(), names of paths and what they return are the worker's, and a plan's rows are of whoever has
// the plan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "base/mutex.h"
#include "quire/result.h"
#include "quire/transfer.h"
#include "transfer/lower_tier.h"
#include "transfer/page_names.h"

namespace quire {

class LowerQueue {
 public:
  struct Config {
    PageNames::Config names;
    NameLog::Config log;
    std::uint32_t transfer_count_max = 0;  ///< indices of TransferIds lie below it
    std::uint32_t transfer_pages_max = 0;  ///< pages of one plan, but for FindBelow
    std::uint32_t path_pages_max = 0;      ///< pages of a path
    int event_fd = -1;                     ///< written when there is something to poll; -1: none
    int work_fd = -1;                      ///< written when there is something to follow or to cancel; -1: none
    std::function<void(const KeySpace&)> on_key_space;  ///< hears of key spaces, on the worker; or null
  };

  [[nodiscard]] static Result<std::unique_ptr<LowerQueue>> create(const Config& config);

  // What a LowerTier passes on.
  void submit(const NameLog& log);
  void submit(const LowerPlan& plan);
  /// Of a FindBelow or LoadFromBelow that is not over.
  void cancel(TransferId id);
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out);

  // The worker's.

  /// Waits until there is something to follow. False: stop() was called.
  [[nodiscard]] bool wait();
  void stop();
  /// Follows all that is there by now, and gives each plan, with names, to `take`. Plans of direct calls, loads and
  /// stores have their rows; of a find, path() is to be named. False: there was nothing.
  bool follow(const std::function<void(const LowerPlan&)>& take);
  /// Names the pages of a FindBelow from `first_page` of its path on. Those before them have been named.
  void name_path(const LowerPlan& plan, std::uint32_t first_page, std::uint32_t page_count);
  /// What a page in memory is called at the turn of the plan that `take` has.
  [[nodiscard]] const PageName& name_of(const NamedPage& page) const { return names_.of(page.tier, page.page).name; }
  /// Plans that were called off since the last call, whether they are over or not.
  void take_cancelled(std::vector<TransferId>& out);

  // Whoever has the plan.

  [[nodiscard]] bool is_cancelled(std::uint32_t index) const;
  /// From here on it is too late to cancel the plan. Whether it was.
  [[nodiscard]] bool begin(std::uint32_t index);
  /// The names of the pages of a FindBelow, PutBelow or GetFromBelow, until its index is used again.
  [[nodiscard]] std::span<PageName> path(std::uint32_t index) {
    return {paths_.data() + (std::size_t{index} * config_.path_pages_max), config_.path_pages_max};
  }
  /// Of a load or store: what each page is called. Of others, the first is what all pages of the path share, with the
  /// name before it as parent; a DropBelow has the name of its key space as name, none for all.
  [[nodiscard]] std::span<PageNames::Record> records(std::uint32_t index) {
    return {records_.data() + (std::size_t{index} * config_.transfer_pages_max), config_.transfer_pages_max};
  }
  void complete(const Completion& completion);

  // Key spaces whose drop is on its way: nothing of them is to be found. A drop counts from follow() on until whoever
  // has it calls finish_drop(), once for each plan. Drops may allocate; a search goes through all that count.

  [[nodiscard]] bool is_dropping(const PageName& key_space) const;
  void finish_drop(const PageName& key_space);

 private:
  struct Task {
    bool is_live = false;
    bool has_begun = false;
    bool is_cancelled = false;
    std::uint32_t after_entry_count = 0;  // of the log, when it was submitted
    LowerPlan plan;
  };

  LowerQueue() = default;
  void name_pages_of(const LowerPlan& plan);
  static void signal(int fd);

  Config config_;

  // The worker's.
  PageNames names_;
  NameLog work_log_;
  std::vector<std::uint32_t> work_plans_;
  LazyArray<PageName> paths_;             // a row for each plan that has a path
  LazyArray<PageNames::Record> records_;  // a row for each plan

  mutable Mutex mutex_;  // guards what follows
  NameLog log_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Task> tasks_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> plans_ QUIRE_GUARDED_BY(mutex_);  // that have not been followed, by index
  std::vector<TransferId> cancelled_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Completion> completions_ QUIRE_GUARDED_BY(mutex_);
  std::vector<PageName> dropping_ QUIRE_GUARDED_BY(mutex_);  // one for each drop; none: of all
  bool is_stopping_ QUIRE_GUARDED_BY(mutex_) = false;
  Condition has_work_;
};

}  // namespace quire
