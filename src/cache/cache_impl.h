// SPDX-License-Identifier: Apache-2.0
//
// What a Cache is made of. Public calls check the thread, end dropped sequences and then work on these parts; they
// validate everything before the first change.
//
// single-threaded
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/lazy_array.h"
#include "base/residency_log.h"
#include "cache/key_space_table.h"
#include "pool/offered_pages.h"
#include "pool/page_pool.h"
#include "prefix/prefix_tree.h"
#include "quire/cache.h"
#include "sequence/release_queue.h"
#include "sequence/sequence_table.h"

namespace quire {

struct Cache::Impl {
  struct KeepSlot {
    bool is_live = false;
    std::uint32_t generation = 0;
    std::uint32_t key_space = 0;
    std::uint32_t page_count = 0;
    TimeNs expires_at = 0;
    PrefixTree::Pin pin;
  };

  struct StepInFlight {
    bool is_planned = false;
    std::uint64_t number = 0;
    std::vector<AttentionPlanEntry> entries;
    std::vector<std::int64_t> append_slots;
    std::vector<PageCopy> copies;
    std::vector<PageId> page_scratch;  // pages on their way into rows, and duplicates on their way out
  };

  Impl(CacheConfig config_, PoolGeometry geometry_)
      : config(std::move(config_)),
        geometry(std::move(geometry_)),
        log(config.residency_record_count_max),
        key_spaces(config.key_space_count_max),
        keeps(config.keep_count_max) {}

  // Every public call begins with this: it refuses other threads, and ends sequences whose handles were dropped.
  [[nodiscard]] Status enter();
  [[nodiscard]] Status require(DevicePool pool, const char* call) const;

  // Input.
  [[nodiscard]] Result<std::uint32_t> find_key_space(KeySpaceId id) const;
  [[nodiscard]] Result<std::uint32_t> find_sequence(const Sequence& sequence) const;
  /// Everything about a prompt but its tokens' values: those that match need no look.
  [[nodiscard]] Status check_prompt(const Prompt& prompt) const;
  [[nodiscard]] Status check_extra_keys(std::span<const ExtraKey> keys, TokenRange range) const;
  [[nodiscard]] static Status check_tokens(std::span<const TokenId> tokens, std::size_t first_position);
  [[nodiscard]] static Status check_ttl(std::optional<TimeNs> ttl_ns);

  // Sequences and steps.
  /// What of a prompt is cached, after checking the tokens of the rest.
  [[nodiscard]] Result<PrefixTree::Match> match(std::uint32_t space, const Prompt& prompt,
                                                const SequenceOptions& options) const;
  [[nodiscard]] std::uint32_t tokens_in(const PrefixTree::Match& match) const { return match.page_count * page_tokens; }
  [[nodiscard]] std::uint32_t usable_partial(const PrefixTree::Match& match) const {
    return match.partial_tokens >= partial_reuse_min_tokens ? match.partial_tokens : 0;
  }
  [[nodiscard]] std::uint32_t pending_tokens(const SequenceSlot& slot) const;
  [[nodiscard]] TimeNs time_after(TimeNs ttl_ns) const;  // the end of time if that is too long
  [[nodiscard]] Retention retention_of(const SequenceSlot& slot) const {
    return {.priority = slot.priority, .expires_at = time_after(slot.ttl_ns)};
  }
  [[nodiscard]] std::uint32_t pages_for(std::uint32_t token_count) const {
    return static_cast<std::uint32_t>((std::uint64_t{token_count} + page_tokens - 1) / page_tokens);
  }
  [[nodiscard]] Status check_in_flight(const Step& asked) const;
  [[nodiscard]] Status check_entries(std::span<const StepEntry> entries) const;
  [[nodiscard]] std::uint32_t tokens_of(const StepEntry& entry, const SequenceSlot& slot) const;
  [[nodiscard]] Status check_new_tokens(const SequenceSlot& slot, std::span<const TokenId> tokens) const;
  void add_tokens(std::uint32_t index, std::span<const TokenId> tokens);
  [[nodiscard]] Status check_distinct(std::span<const StepEntry> entries);
  [[nodiscard]] Shortage measure(std::span<const StepEntry> entries);
  [[nodiscard]] bool try_without_copies(std::span<const StepEntry> entries);
  void unplan(std::span<const StepEntry> entries);
  void plan_entry(std::uint32_t index, std::span<const PageId> new_pages);
  void settle(std::uint32_t index);
  void end_sequence(std::uint32_t index);
  void end_step();
  void make_room(std::uint32_t page_count);

  // Pages that leave the tree.
  void give_up(std::span<const PageId> pages);
  std::uint32_t evict(std::uint32_t page_count);
  std::uint32_t drop_pages(RunId root, ResidencyCause cause);
  void release_key_space(std::uint32_t index);
  void end_keep(std::uint32_t index);
  [[nodiscard]] std::uint32_t keep_pages_max() const { return config.keep_pages_max.value_or(pool_page_count() / 2); }
  [[nodiscard]] std::uint32_t pool_page_count() const {
    return config.device.pool == DevicePool::Owned ? pool.page_count() : offered.page_count();
  }

  CacheConfig config;
  std::atomic<std::thread::id> owner = std::this_thread::get_id();
  PoolGeometry geometry;
  std::uint32_t page_tokens = 0;
  std::uint32_t partial_reuse_min_tokens = 0;
  std::uint32_t context_tokens_max = 0;

  LazyMemory host_memory;
  std::byte* memory = nullptr;

  // What pins the tree is declared after it, and so destroyed before.
  std::unique_ptr<Policy> policy;
  ResidencyLog log;
  std::unique_ptr<PrefixTree> tree;
  PagePool pool;         // DevicePool::Owned
  OfferedPages offered;  // DevicePool::External
  KeySpaceTable key_spaces;
  SequenceTable sequences;
  std::shared_ptr<ReleaseQueue> release_queue;  // shared with the handles, which may outlive the cache
  std::vector<KeepSlot> keeps;
  std::uint32_t kept_pages = 0;
  TimeNs now = 0;
  TimeNs next_expiry = INT64_MAX;

  StepInFlight step;
  Stats counters;  // the counting half; levels are read when asked for
};

}  // namespace quire
