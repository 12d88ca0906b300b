// SPDX-License-Identifier: Apache-2.0
//
// TierPages: the pages of one pool on the device and, where there is a host tier, on the host, and who may still read
// or write them. Pool 0 is the history: the pages of all groups that keep every token. Each window or snapshot group
// has a pool of its own. All pools follow the same rules:
//
//   - A page that a transfer reads is not used for anything else before the transfer has ended. If the page is given up
//     meanwhile, it is fenced until then.
//   - A device page that a sequence gives back is fenced until the last step that may use it has ended.
//   - A device page is neither copied nor loaded into while moves are still to write it.
//   - A host page has a generation, which grows each time the page is handed out: a transfer that was planned for an
//     earlier generation fails.
//   - A cached host page has a state for each lower tier: what is known of its copy there.
//
// single-threaded
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "base/mutants.h"
#include "pool/fenced_pages.h"
#include "pool/offered_pages.h"
#include "pool/page_pool.h"
#include "quire/result.h"
#include "quire/stats.h"
#include "quire/transfer.h"
#include "quire/types.h"
#include "tiers/step_fence.h"

namespace quire {

/// The copies that a lower tier has, or is to get, of the host pages of one pool.
struct LowerCopies {
  enum class State : std::uint8_t {
    None,  // nothing is known of a copy there, the page is not to go there, or its bytes were bad
    Cold,  // waits to be written
    Hot,   // waits to be written before the cold pages: it was used again
    Writing,
    There,  // as far as is known: the tier makes room as it likes
    Lost,   // could not be written, or may be gone again: flush() tries once more
  };
  enum List : std::uint32_t { kHot, kCold, kListCount };

  LazyArray<State> states;        // by host page; empty when the tier keeps nothing of the pool
  IndexLists waiting;             // host pages by List
  std::uint32_t there_count = 0;  // pages in State::There
  std::uint32_t store_count = 0;  // stores of the pool that are under way
  std::uint64_t loaded_page_total = 0;
  std::uint64_t stored_page_total = 0;

  [[nodiscard]] bool is_on() const { return states.size() > 0; }
  [[nodiscard]] bool has(PageId host_page) const { return is_on() && states[host_page.value] == State::There; }
  void want(PageId host_page, bool is_hot) {
    QUIRE_DCHECK(!waiting.contains(host_page.value), "a host page waits for a lower tier twice");
    states[host_page.value] = is_hot ? State::Hot : State::Cold;
    waiting.push_back(host_page.value, is_hot ? kHot : kCold);
  }
  /// Takes the page out of its list and out of the counts; its state is None.
  void forget(PageId host_page) {
    if (!is_on()) return;
    State& state = states[host_page.value];
    if (state == State::Cold || state == State::Hot) waiting.remove(host_page.value);
    if (state == State::There) --there_count;
    state = State::None;
  }
  void set_there(PageId host_page) {
    if (!is_on()) return;
    QUIRE_CHECK(states[host_page.value] != State::There, "a host page comes to a lower tier twice");
    states[host_page.value] = State::There;
    ++there_count;
  }
};

class TierPages {
 public:
  explicit TierPages(const StepFence& fence) : fence_(&fence) {}
  [[nodiscard]] Status open_device(std::uint32_t page_count);
  /// The same for pages that the engine hands out (DevicePool::External). They have no host tier.
  [[nodiscard]] Status open_offered(std::uint32_t page_count);
  struct HostConfig {
    std::uint32_t page_count = 0;
    bool looks_ahead = false;  // rows depend on tokens behind them: a page that enters the tree has all its rows when
                               // that call is over
    bool lists_reads = false;  // for_each_read() will be called
  };
  [[nodiscard]] Status open_host(const HostConfig& config);
  /// Adds the states of the host pages in one more lower tier; none, if the tier keeps nothing of this pool.
  [[nodiscard]] Status add_lower(bool keeps_pages);
  /// Room for so many device pages, before the pool itself grows.
  [[nodiscard]] Status grow_device(std::uint32_t page_count);

  // Device pages.

  [[nodiscard]] std::uint32_t device_page_count() const {
    return offered ? offered->page_count() : device.page_count();
  }
  /// Device pages that the tree has.
  [[nodiscard]] std::uint32_t cached_page_count() const {
    return offered ? offered->count(OfferedPages::State::Held) : device.count(PageState::Sealed);
  }
  /// A sequence gives up a page of its own, which becomes free as soon as no step and no store uses it.
  void give_back(PageId page);
  /// The tree gives up a page, which becomes free at once, or when the store that reads it has ended. No step needs to
  /// be waited for: steps only read the tree's pages, and a sequence pins those that its steps in flight read.
  void release_device(PageId page);
  void begin_device_read(PageId page);
  void end_device_read(PageId page);
  /// Frees the fenced pages that waited for steps which have ended.
  void free_fenced();
  /// For a plan that is being made: frees pages that wait only for the moves of this plan, until so many are free. The
  /// plan may write them, because its moves run first.
  void unfence(std::uint32_t page_count);
  /// A page has just come into the tree. It is settled, and may be copied, when no move is still to write it and rows
  /// that look ahead are written.
  void settle_later(PageId page);
  [[nodiscard]] bool is_settled(PageId page) const {
    return fence_->is_over(settled_by_step_[page.value]) && has_rows_written(page);
  }
  void set_settled(PageId page) { settled_by_step_[page.value] = 0; }
  /// Takes free pages that may be written at any time from now on, all of `out` or none.
  [[nodiscard]] bool try_take_targets(std::span<PageId> out);
  /// Pages that are free at once, or in time for the next plan.
  [[nodiscard]] std::uint32_t free_for_plan() const {
    return device.free_count() + (fence_->has_steps() ? 0 : fenced.count());
  }
  /// Device pages that stores read, in whatever state the pages are.
  [[nodiscard]] std::uint32_t read_page_count() const { return read_page_count_; }
  [[nodiscard]] bool is_read(PageId page) const {
    return device_readers_.size() > 0 && device_readers_[page.value] > 0;
  }
  /// Calls visit(page) for the device pages that stores read. Needs HostConfig::lists_reads.
  template <typename Visitor>
  void for_each_read(Visitor&& visit) const {
    if (read_page_count_ == 0) return;
    for (std::uint32_t page = reads_.front(); page != IndexLists::kNone; page = reads_.next(page)) visit(PageId{page});
  }

  // Host pages.

  [[nodiscard]] bool has_host() const { return host.page_count() > 0; }
  /// A free page, now open with its next generation; none when all are taken.
  [[nodiscard]] PageId try_take_host();
  /// A page that the tree, or a sequence that had saved it, has given up.
  void release_host(PageId page);
  void begin_host_read(PageId page) {
    QUIRE_CHECK(host.state(page) != PageState::Free, "a transfer reads a host page that is free");
    ++host_readers_[page.value];
  }
  void end_host_read(PageId page);
  [[nodiscard]] std::uint32_t generation(PageId host_page) const { return generations_[host_page.value]; }
  /// One page's part of a transfer.
  [[nodiscard]] PageTransfer transfer_of(PageId device_page, PageId host_page, std::uint64_t name_tag,
                                         std::uint32_t place) const {
    return {.device_page = device_page,
            .host_page = host_page,
            .host_generation = generations_[host_page.value],
            .place = place,
            .name_tag = name_tag};
  }

  /// The totals, and how many pages there are in which state. Who pins pages, and which may be evicted, is not known
  /// here.
  [[nodiscard]] GroupStats stats() const;
  /// Compares the counts of readers, and which pages are fenced, with the transfers: `device_reads` and `host_reads`
  /// say how many transfers read the page with each id.
  [[nodiscard]] Status check(std::span<const std::uint32_t> device_reads,
                             std::span<const std::uint32_t> host_reads) const;

  PagePool device;
  std::optional<OfferedPages> offered;  // the engine's pages, instead of `device`
  PagePool host;
  FencedPages fenced;
  std::vector<LowerCopies> lower;  // by lower tier
  GroupStats totals;               // counters only: levels such as page counts are read elsewhere
  std::uint64_t page_bytes = 0;
  std::uint32_t layer_count = 1;
  std::uint16_t mover_pool = 0;  // TransferPlan::pool_index, which does not count groups without pages
  bool is_anchored = false;      // of a window or snapshot group: WritePolicy::WriteBack does not hold its pages back

 private:
  /// Always true, but in tests of mutants.
  [[nodiscard]] bool fences_reads() const {
    return !is_mutated(is_anchored ? Mutant::NoAnchoredFence : Mutant::NoFence);
  }
  [[nodiscard]] bool has_rows_written(PageId page) const {
    return settled_in_call_.size() == 0 || settled_in_call_[page.value] != fence_->call_number();
  }

  const StepFence* fence_;
  std::uint32_t read_page_count_ = 0;
  // By device page.
  LazyArray<std::uint32_t> device_readers_;  // stores that read the page
  bool lists_reads_ = false;
  IndexLists reads_;                          // pages that stores read, if they are listed
  LazyArray<std::uint64_t> settled_by_step_;  // the step that carries moves into the page; 0: none
  LazyArray<std::uint64_t> settled_in_call_;  // StepFence::call_number() when it entered the tree; empty: no lookahead
  // By host page.
  LazyArray<std::uint32_t> generations_;
  LazyArray<std::uint32_t> host_readers_;  // loads, and stores to lower tiers
};

// Called for every page that moves: inline.

inline void TierPages::begin_device_read(PageId page) {
  QUIRE_CHECK(device.state(page) != PageState::Free, "a store reads a device page that is free");
  if (++device_readers_[page.value] > 1) return;
  ++read_page_count_;
  if (lists_reads_) reads_.push_back(page.value);
}

// A store no longer reads the page. If the tree or a sequence has given the page up meanwhile, and no other store reads
// it, the page waits for the steps in flight: one of them may have been planned before the page was given up.
inline void TierPages::end_device_read(PageId page) {
  QUIRE_CHECK(device_readers_[page.value] > 0, "a store ends that does not read the page");
  if (--device_readers_[page.value] > 0) return;
  --read_page_count_;
  if (lists_reads_) reads_.remove(page.value);
  if (device.state(page) != PageState::Fenced) return;
  if (fence_->is_quiet()) {
    device.release({&page, 1});
  } else {
    fenced.push(page, fence_->last_user());
  }
}

inline PageId TierPages::try_take_host() {
  PageId page;
  if (!host.try_allocate({&page, 1})) return PageId::none();
  ++generations_[page.value];
  return page;
}

inline void TierPages::end_host_read(PageId page) {
  QUIRE_CHECK(host_readers_[page.value] > 0, "a transfer ends that does not read the page");
  if (--host_readers_[page.value] > 0 || host.state(page) != PageState::Fenced) return;
  host.release({&page, 1});
}

}  // namespace quire
