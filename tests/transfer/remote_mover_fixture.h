// SPDX-License-Identifier: Apache-2.0
//
// RemoteEngine: what an engine is to a RemoteMover, with host pages in plain memory. The bytes of every page follow
// from its prompt, so that whoever reads one can say whether it is right.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/record_payload.h"
#include "testing/sim_remote_store.h"
#include "transfer/remote_mover.h"

namespace quire {

inline constexpr std::uint32_t kRemotePageTokens = 4;
inline constexpr std::uint32_t kRemoteHostPages = 256;
inline constexpr std::uint32_t kRemoteTransfers = 16;
inline constexpr std::uint32_t kRemotePathPages = 2048;
inline constexpr std::array<std::uint64_t, 2> kRemotePageBytes = {320, 192};  // of the history, and of a window group

using RemotePrompt = std::vector<TokenId>;

/// Tokens of their own for each number; prompts with one beginning are made by the caller.
[[nodiscard]] inline RemotePrompt remote_prompt(std::uint32_t number, std::uint32_t page_count) {
  RemotePrompt tokens(std::size_t{page_count} * kRemotePageTokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<TokenId>(mix64((std::uint64_t{number} << 32U) + i) >> 40U);
  }
  return tokens;
}

/// What the page holds that ends with these tokens.
[[nodiscard]] inline std::vector<std::byte> remote_bytes(std::span<const TokenId> tokens, std::uint32_t pool,
                                                         std::uint64_t layout, std::uint32_t key_space) {
  const std::uint64_t seed =
      hash_bytes(tokens.data(), tokens.size_bytes(), layout + (pool * 1000U) + (key_space * 77U));
  std::vector<std::byte> bytes(kRemotePageBytes[pool]);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(seed)) {
    const std::uint64_t word = mix64(seed + at);
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
  return bytes;
}

/// Host pages of one pool. thread-safe.
class RemoteHost final : public HostPages {
 public:
  explicit RemoteHost(std::uint32_t pool) : pages_(kRemoteHostPages) {
    for (Page& page : pages_) page.bytes.resize(kRemotePageBytes[pool]);
  }

  [[nodiscard]] TransferFault begin_read(const PageTransfer& page, Record& record) override {
    const MutexLock lock(mutex_);
    Page& at = pages_[page.host_page.value];
    if (at.generation != page.host_generation || !at.checksum) return TransferFault::Generation;
    ++at.readers;
    record = {.bytes = at.bytes, .checksum = at.checksum};
    return TransferFault::None;
  }
  void end_read(const PageTransfer& page) override {
    const MutexLock lock(mutex_);
    Page& at = pages_[page.host_page.value];
    QUIRE_CHECK(at.readers > 0, "a page is given back that nobody reads");
    --at.readers;
  }
  [[nodiscard]] TransferFault begin_write(const PageTransfer& page, std::span<std::byte>& bytes) override {
    const MutexLock lock(mutex_);
    Page& at = pages_[page.host_page.value];
    if (at.readers > 0 || at.is_written || at.is_refused) return TransferFault::Generation;
    at.is_written = true;
    at.checksum.reset();
    bytes = at.bytes;
    return TransferFault::None;
  }
  void end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) override {
    const MutexLock lock(mutex_);
    Page& at = pages_[page.host_page.value];
    QUIRE_CHECK(at.is_written, "a page is written to its end that nobody writes");
    at.is_written = false;
    at.generation = page.host_generation;
    at.checksum = checksum;
  }

  void fill(PageId page, std::span<const std::byte> bytes) {
    const MutexLock lock(mutex_);
    Page& at = pages_[page.value];
    std::ranges::copy(bytes, at.bytes.begin());
    at.checksum = page_checksum(bytes);
  }
  /// None: it has no data.
  [[nodiscard]] std::optional<std::vector<std::byte>> bytes_of(PageId page) const {
    const MutexLock lock(mutex_);
    const Page& at = pages_[page.value];
    if (!at.checksum) return std::nullopt;
    EXPECT_EQ(*at.checksum, page_checksum(at.bytes));
    return at.bytes;
  }
  void spoil(PageId page) {
    const MutexLock lock(mutex_);
    pages_[page.value].bytes[3] ^= std::byte{1};
  }
  void refuse(PageId page, bool is_refused = true) {
    const MutexLock lock(mutex_);
    pages_[page.value].is_refused = is_refused;
  }
  [[nodiscard]] bool is_at_rest() const {
    const MutexLock lock(mutex_);
    return std::ranges::none_of(pages_, [](const Page& page) { return page.readers > 0 || page.is_written; });
  }

 private:
  struct Page {
    std::vector<std::byte> bytes;
    std::uint32_t generation = 0;
    std::uint32_t readers = 0;
    bool is_written = false;
    bool is_refused = false;
    std::optional<std::uint64_t> checksum;
  };
  mutable Mutex mutex_;  // guards what follows
  std::vector<Page> pages_ QUIRE_GUARDED_BY(mutex_);
};

struct RemoteEngineConfig {
  std::uint32_t extent_pages = 4;
  std::uint64_t layout = 1;      // the window group's is 1000 more
  std::uint32_t first_page = 1;  // of the host: ids of one engine mean nothing to another
  std::uint32_t transfer_pages_max = 16;
  std::string key_prefix = "quire";
  bool has_threads = false;
  int event_fd = -1;
  bool is_read_only = false;
};

/// A process with its host pages and its names. Pages of a prompt lie one behind the other on the host, those of the
/// window group at the same places.
class RemoteEngine {
 public:
  RemoteEngine(RemoteStore& store, const RemoteEngineConfig& config, const TimeNs* now = nullptr)
      : config_(config), log_(NameLog::create(log_config()).value()) {
    const std::array<HostPages*, 2> hosts = {&history, &window};
    RemoteMover::Config mover_config{
        .names = {.page_tokens = kRemotePageTokens,
                  .device_page_count = 1,
                  .host_page_count = kRemoteHostPages,
                  .key_space_count_max = 4},
        .log = log_config(),
        .pools = {{.layout = {.page_bytes = kRemotePageBytes[0], .hash = config.layout},
                   .extent_pages = config.extent_pages},
                  {.layout = {.page_bytes = kRemotePageBytes[1], .hash = config.layout + 1000}}},
        .transfer_count_max = kRemoteTransfers,
        .transfer_pages_max = config.transfer_pages_max,
        .path_pages_max = kRemotePathPages,
        .is_read_only = config.is_read_only,
        .key_prefix = config.key_prefix,
        .has_threads = config.has_threads,
        .event_fd = config.event_fd,
        .clock = {},
        .unix_time = [] { return TimeNs{7}; }};
    if (now != nullptr) mover_config.clock = [now] { return *now; };
    mover = RemoteMover::open(mover_config, store, hosts).value();
    for (std::uint32_t i = 0; i < 4; ++i) log_.add_key_space(i, {.model = "m" + std::to_string(i)});
    send_log();
  }

  ~RemoteEngine() { mover.reset(); }  // before what plans point to

  [[nodiscard]] static NameLog::Config log_config() {
    return {
        .page_tokens = kRemotePageTokens, .entry_count_max = 4096, .page_count_max = 4096, .extra_key_count_max = 1};
  }

  /// Where page `index` of what lies at `place` is.
  [[nodiscard]] PageId host_page(std::uint32_t place, std::uint32_t index = 0) const {
    return PageId{config_.first_page + place + index};
  }

  /// The prompt's pages lie at `place` from now on, with their bytes, in both pools.
  void put_on_host(const RemotePrompt& prompt, std::uint32_t place, std::uint32_t key_space = 0) {
    const auto count = static_cast<std::uint32_t>(prompt.size() / kRemotePageTokens);
    name_on_host(prompt, place, key_space);
    for (std::uint32_t i = 0; i < count; ++i) {
      history.fill(host_page(place, i), bytes_of(prompt, i, 0, key_space));
      window.fill(host_page(place, i), bytes_of(prompt, i, 1, key_space));
    }
  }
  void name_on_host(const RemotePrompt& prompt, std::uint32_t place, std::uint32_t key_space = 0) {
    const auto count = static_cast<std::uint32_t>(prompt.size() / kRemotePageTokens);
    for (std::uint32_t i = 0; i < count; ++i) {
      log_.add_page({.page = host_page(place, i),
                     .parent = i == 0 ? PageId::none() : host_page(place, i - 1),
                     .tier = Tier::Host,
                     .parent_tier = Tier::Host,
                     .key_space = key_space,
                     .page_index = i,
                     .tokens = std::span(prompt).subspan(std::size_t{i} * kRemotePageTokens, kRemotePageTokens),
                     .extra_keys = {}});
    }
    send_log();
  }
  void send_log() {
    mover->submit(log_);
    log_.clear();
  }

  [[nodiscard]] std::vector<std::byte> bytes_of(const RemotePrompt& prompt, std::uint32_t page, std::uint32_t pool = 0,
                                                std::uint32_t key_space = 0) const {
    return remote_bytes(std::span(prompt).first((std::size_t{page} + 1) * kRemotePageTokens), pool, config_.layout,
                        key_space);
  }

  // Plans. What they point to stays here until their index is used again.

  struct Asked {
    std::uint32_t first_page = 0;  // in memory are those before it, at `parent_place`
    std::uint32_t parent_place = 0;
    std::uint32_t held_pages = 0;
    std::uint32_t key_space = 0;
    bool has_anchored = false;
    bool tells_before = false;
  };
  TransferId submit_find(std::uint32_t index, const RemotePrompt& prompt, const Asked& asked) {
    Slot& slot = next_slot(index);
    slot.tokens.assign(prompt.begin() + std::ptrdiff_t{asked.first_page} * kRemotePageTokens, prompt.end());
    const std::size_t page_count = slot.tokens.size() / kRemotePageTokens;
    slot.anchored.assign(asked.has_anchored ? page_count : 0, ~std::uint64_t{0});
    LowerPlan plan{.id = slot.id, .kind = TransferKind::FindBelow, .key_space = asked.key_space};
    if (asked.first_page > 0) plan.parent = {Tier::Host, host_page(asked.parent_place, asked.first_page - 1)};
    slot.before.clear();
    const std::uint32_t extent = mover->extent_pages();
    for (std::uint32_t end = extent; asked.tells_before && end <= asked.first_page; end += extent) {
      slot.before.push_back({Tier::Host, host_page(asked.parent_place, end - 1)});
    }
    plan.before = slot.before;
    plan.first_page = asked.first_page;
    plan.tokens = slot.tokens;
    plan.held_pages = asked.held_pages;
    plan.anchored = slot.anchored;
    return submit(plan);
  }
  /// Pages [first, first + count) of a path that was found, to `place` on the host.
  TransferId submit_load(std::uint32_t index, std::uint32_t found_by, std::uint32_t first, std::uint32_t count,
                         std::uint32_t place, std::uint32_t pool = 0) {
    Slot& slot = next_slot(index);
    slot.pages.clear();
    for (std::uint32_t i = 0; i < count; ++i) {
      slot.pages.push_back({.host_page = host_page(place, i), .place = first + i});
    }
    LowerPlan plan{.id = slot.id, .kind = TransferKind::LoadFromBelow, .pool = pool};
    plan.found_by = found_by;
    plan.pages = slot.pages;
    return submit(plan);
  }
  /// Pages that lie at `place` and behind it.
  TransferId submit_store(std::uint32_t index, std::uint32_t place, std::uint32_t count, std::uint32_t pool = 0) {
    Slot& slot = next_slot(index);
    slot.pages.clear();
    for (std::uint32_t i = 0; i < count; ++i) {
      slot.pages.push_back({.host_page = host_page(place, i), .place = host_page(place, i).value});
    }
    LowerPlan plan{.id = slot.id, .kind = TransferKind::StoreBelow, .pool = pool};
    plan.named_in = Tier::Host;
    plan.pages = slot.pages;
    return submit(plan);
  }
  TransferId submit_drop(std::uint32_t index, std::uint32_t key_space) {
    return submit({.id = next_slot(index).id, .kind = TransferKind::DropBelow, .key_space = key_space});
  }
  TransferId submit_flush(std::uint32_t index) {
    return submit({.id = next_slot(index).id, .kind = TransferKind::FlushBelow});
  }
  /// All pages of a prompt and the last `window_pages` of the window group, in one piece of memory.
  TransferId submit_direct(TransferKind kind, std::uint32_t index, const RemotePrompt& prompt,
                           std::uint32_t window_pages) {
    Slot& slot = next_slot(index);
    slot.tokens = prompt;
    const auto count = static_cast<std::uint32_t>(prompt.size() / kRemotePageTokens);
    slot.columns = {{.pool = 0, .first = 0, .last = count}, {.pool = 1, .first = count - window_pages, .last = count}};
    slot.anchored.assign(count, 0);
    slot.bytes.assign((count * kRemotePageBytes[0]) + (window_pages * kRemotePageBytes[1]), std::byte{0});
    if (kind == TransferKind::PutBelow) {
      const std::vector<std::byte> bytes = direct_bytes(prompt, window_pages);
      slot.bytes.assign(bytes.begin(), bytes.end());
    }
    --slot.id.generation;
    return submit_direct_again(kind, index);
  }
  /// The same once more, with the bytes that are there.
  TransferId submit_direct_again(TransferKind kind, std::uint32_t index) {
    Slot& slot = next_slot(index);
    LowerPlan plan{.id = slot.id, .kind = kind};
    plan.tokens = slot.tokens;
    plan.anchored = slot.anchored;
    plan.columns = slot.columns;
    if (kind == TransferKind::PutBelow) plan.source = slot.bytes;
    if (kind == TransferKind::GetFromBelow) plan.target = slot.bytes;
    return submit(plan);
  }
  [[nodiscard]] std::vector<std::byte> direct_bytes(const RemotePrompt& prompt, std::uint32_t window_pages) const {
    const auto count = static_cast<std::uint32_t>(prompt.size() / kRemotePageTokens);
    std::vector<std::byte> all;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::vector<std::byte> page = bytes_of(prompt, i, 0);
      all.insert(all.end(), page.begin(), page.end());
    }
    for (std::uint32_t i = count - window_pages; i < count; ++i) {
      const std::vector<std::byte> page = bytes_of(prompt, i, 1);
      all.insert(all.end(), page.begin(), page.end());
    }
    return all;
  }

  /// Completions that have come, which stay here.
  void hear() {
    std::array<Completion, kRemoteTransfers> room;
    for (const Completion& each : mover->poll(room)) completions.push_back(each);
  }
  [[nodiscard]] std::optional<Completion> heard(TransferId id) {
    hear();
    const auto completion = std::ranges::find(completions, id, &Completion::id);
    if (completion == completions.end()) return std::nullopt;
    const Completion copy = *completion;
    completions.erase(completion);
    return copy;
  }
  [[nodiscard]] const std::vector<std::uint64_t>& anchored(std::uint32_t index) const { return slots_[index].anchored; }
  [[nodiscard]] const std::vector<std::byte>& bytes(std::uint32_t index) const { return slots_[index].bytes; }

  RemoteHost history{0};
  RemoteHost window{1};
  std::unique_ptr<RemoteMover> mover;
  std::vector<Completion> completions;

 private:
  struct Slot {
    TransferId id;
    RemotePrompt tokens;
    std::vector<NamedPage> before;
    std::vector<PageTransfer> pages;
    std::vector<std::uint64_t> anchored;
    std::vector<PoolColumns> columns;
    std::vector<std::byte> bytes;
  };
  [[nodiscard]] Slot& next_slot(std::uint32_t index) {
    Slot& slot = slots_[index];
    slot.id = {index, slot.id.generation + 1};
    return slot;
  }
  TransferId submit(const LowerPlan& plan) {
    mover->submit(plan);
    return plan.id;
  }

  RemoteEngineConfig config_;
  NameLog log_;
  std::array<Slot, kRemoteTransfers> slots_;
};

/// Engines without threads and a store, on a clock that stands still.
class RemoteMoverTest : public ::testing::Test {
 protected:
  RemoteMoverTest() { set_now(now_); }
  RemoteEngine& open(const RemoteEngineConfig& config = {}) {
    clients_.push_back(std::make_unique<testing::SimRemoteStore>(store_));
    engines_.push_back(std::make_unique<RemoteEngine>(*clients_.back(), config, &now_));
    return *engines_.back();
  }
  void set_now(TimeNs now_ns) {
    now_ = now_ns;
    store_.set_now(now_ns);
  }
  /// Everything that happens without time.
  void settle() {
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (const auto& engine : engines_) goes_on = engine->mover->run() || goes_on;
      goes_on = store_.run_one() || goes_on;
    }
  }
  Completion end_of(RemoteEngine& engine, TransferId id) {
    settle();
    const std::optional<Completion> completion = engine.heard(id);
    EXPECT_TRUE(completion.has_value());
    EXPECT_TRUE(engine.completions.empty());
    return completion.value_or(Completion{});
  }
  /// Everything that the engines do before the store answers anything.
  void run_movers() {
    for (const auto& engine : engines_) {
      while (engine->mover->run()) {
      }
    }
  }
  /// What was absent a moment ago is asked for again.
  void forget_absent() { set_now(now_ + 2'000'000'000); }

  /// What came wrong is asked for again.
  void forget_bad() { set_now(now_ + 6'000'000'000); }

  /// Flips a bit in the last page of every value.
  void damage_values() {
    for (const std::string& key : store_.keys()) {
      std::vector<std::byte> value = store_.value(key);
      value.back() ^= std::byte{1};
      store_.put_value(key, value);
    }
  }

  /// Puts a prompt's pages on the host, and from there into the store.
  Completion store_prompt(RemoteEngine& engine, const RemotePrompt& prompt, std::uint32_t place = 0,
                          std::uint32_t key_space = 0) {
    engine.put_on_host(prompt, place, key_space);
    const auto count = static_cast<std::uint32_t>(prompt.size() / kRemotePageTokens);
    Completion last;
    for (std::uint32_t first = 0; first < count; first += 16) {
      last = end_of(engine, engine.submit_store(0, place + first, std::min(16U, count - first)));
    }
    return last;
  }
  Completion find(RemoteEngine& engine, const RemotePrompt& prompt, const RemoteEngine::Asked& asked = {}) {
    return end_of(engine, engine.submit_find(1, prompt, asked));
  }
  /// Pages of what find() has found, to place 100.
  Completion load(RemoteEngine& engine, std::uint32_t first, std::uint32_t count, std::uint32_t pool = 0) {
    return end_of(engine, engine.submit_load(2, 1, first, count, 100, pool));
  }
  /// "" when the first `count` pages at place 100 are those of the prompt from `first` on.
  std::string loaded_fault(RemoteEngine& engine, const RemotePrompt& prompt, std::uint32_t first, std::uint32_t count,
                           std::uint32_t key_space = 0) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto bytes = engine.history.bytes_of(engine.host_page(100, i));
      if (!bytes) return "page " + std::to_string(i) + " has no data";
      if (*bytes != engine.bytes_of(prompt, first + i, 0, key_space)) return "page " + std::to_string(i) + " is wrong";
    }
    return "";
  }

  testing::SimRemoteServer store_{1};
  TimeNs now_ = 1'000;
  std::vector<std::unique_ptr<testing::SimRemoteStore>> clients_;
  std::vector<std::unique_ptr<RemoteEngine>> engines_;
};

}  // namespace quire
