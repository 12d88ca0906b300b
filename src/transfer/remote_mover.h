// SPDX-License-Identifier: Apache-2.0
//
// RemoteMover: the lower tier of a RemoteStore. It decides nothing: LowerPlans in, Completions out. One thread follows
// the names, submits batches, and verifies what comes; it never waits for one answer, so that no plan holds another.
//
// Pages of the history lie in extents (wire/extent.h): a question finds whole extents only, and a load fetches them
// whole, also where it begins or ends inside one. Stores write those extents of which a plan has all pages; others are
// done without having been written, and RemoteMoverStats::skipped_pages counts them.
//
//   - A page has arrived when its header says what was asked for (key space, layout, name, parent, index) and its bytes
//     have the checksum. The load ends in front of a value that is not right, and a store puts its pages anew. Because
//     a connection may be at fault, and others need the value if it is right, nobody asks for it for 5 s. It is dropped
//     from the store when it is not right after that either, or, where nothing is written, not asked for again.
//   - What comes late is not used: the load ends there (TransferOutcome::TimedOut), as where the store has nothing. A
//     plan that says how long it may take takes no longer than that.
//   - Values are put only where a question says that they are absent. One that the store refuses fails the store of its
//     pages (TransferFault::Io), and never the tier: is_failed() is never true, because a machine that is away may be
//     back in a minute. Meanwhile RemoteStore::status() says so, and everything fails at once.
//   - A drop is over at once for whoever asked for it: from then on nothing of its key space is found, loaded or put,
//     until the store has dropped it. That goes on in the background, and begins when the stores before it have ended;
//     those of other key spaces go on meanwhile. It is tried until it has succeeded, with longer and longer pauses, and
//     once more where puts before it were given up, which may happen all the same.
//   - A flush says what became of that. It ends when all stores before it have ended, and the store has taken every
//     drop before it, or refused one that was tried since: then the flush fails, and the drops go on.
//   - A mover that only reads hides what was dropped for as long as it lives. It remembers each key space once.
//
// thread-safe; without threads, run() is what the thread would do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/remote_store.h"
#include "quire/result.h"
#include "quire/transfer.h"
#include "quire/types.h"
#include "store/file_store.h"
#include "store/host_pages.h"
#include "transfer/lower_tier.h"
#include "transfer/page_names.h"

namespace quire {

/// Since open().
struct RemoteMoverStats {
  std::uint64_t asked_names = 0;   ///< in questions, of finds and before puts
  std::uint64_t spared_names = 0;  ///< not asked for: they were absent a moment ago
  std::uint64_t got_values = 0;    ///< verified
  std::uint64_t got_bytes = 0;     ///< of pages in them that were wanted
  std::uint64_t put_values = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t kept_values = 0;     ///< not put: they were there
  std::uint64_t skipped_pages = 0;   ///< of stores: without a name, in a part of an extent, or being dropped
  std::uint64_t absent_values = 0;   ///< of those that were to be got
  std::uint64_t corrupt_values = 0;  ///< damaged, or of another length
  std::uint64_t foreign_values = 0;  ///< undamaged, and not what their key says
  std::uint64_t late_objects = 0;
  std::uint64_t failed_objects = 0;
  std::uint64_t failed_drops = 0;  ///< tries to drop a key space; each is followed by another one
};

class RemoteMover final : public LowerTier {
 public:
  /// What the store keeps of a pool.
  struct Pool {
    bool is_kept = true;
    FileLayout layout;               ///< no two pools have the same hash
    std::uint32_t extent_pages = 1;  ///< 1 for all pools but the history's
  };
  struct Config {
    PageNames::Config names;
    NameLog::Config log;
    std::vector<Pool> pools;               ///< the history's first
    std::uint32_t transfer_count_max = 0;  ///< indices of TransferIds lie below it
    std::uint32_t transfer_pages_max = 0;  ///< pages of one plan, but for FindBelow: an extent's at least
    std::uint32_t path_pages_max = 0;      ///< pages of a FindBelow
    bool is_read_only = false;             ///< nothing is written: what is dropped is hidden instead
    std::string key_prefix = "quire";      ///< that all keys begin with: printable, no spaces
    TimeNs find_timeout_ns = 100'000'000;
    TimeNs load_timeout_ns = 500'000'000;
    TimeNs store_timeout_ns = 5'000'000'000;  ///< of its question and of its puts, each
    TimeNs drop_timeout_ns = 30'000'000'000;
    bool has_threads = true;
    int event_fd = -1;                  ///< written when there is something to poll; -1: none
    std::function<TimeNs()> clock;      ///< for timeouts; null: the steady clock
    std::function<TimeNs()> unix_time;  ///< when values are written, for people; null: 0
  };

  /// `store` and `hosts` must outlive it. The store is this mover's alone, which hears all its answers. Of the hosts
  /// there is one for each pool that is kept. The memory of host pages is not registered with the store here: whoever
  /// owns it does that.
  [[nodiscard]] static Result<std::unique_ptr<RemoteMover>> open(const Config& config, RemoteStore& store,
                                                                 std::span<HostPages* const> hosts);
  /// Drops what is queued, cancels what is at the store, and waits until that is out of use.
  ~RemoteMover() override;
  RemoteMover(const RemoteMover&) = delete;
  RemoteMover& operator=(const RemoteMover&) = delete;

  void submit(const NameLog& log) override;
  void submit(const LowerPlan& plan) override;
  /// Ends it also when it is at the store: with what has arrived by then.
  void cancel(TransferId id) override;
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out) override;
  [[nodiscard]] bool keeps(std::uint32_t pool) const override;
  [[nodiscard]] bool is_failed(std::uint32_t /*pool*/) const override { return false; }
  [[nodiscard]] std::string last_error() const override;
  [[nodiscard]] std::uint32_t extent_pages() const override;
  [[nodiscard]] bool makes_room_by_use() const override { return true; }
  [[nodiscard]] std::uint64_t written_bytes(std::uint32_t pool) const override;

  /// Without threads: does one thing; false when there is nothing to do now.
  bool run();
  [[nodiscard]] RemoteMoverStats stats() const;
  /// RemoteStatus::is_usable as of the last answer, or of a second ago. The status itself has text, which an engine's
  /// thread must not ask for all the time.
  [[nodiscard]] bool is_usable() const;

 private:
  struct Impl;
  explicit RemoteMover(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
