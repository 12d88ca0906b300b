// SPDX-License-Identifier: Apache-2.0
//
// SimMover: the moving half, simulated. Host pages are real bytes with generation, tag and a checksum of their own, of
// one pool or of several.
// Bytes move piece by piece, one piece per event, at times that the simulation draws: so a page that is reused before
// its transfer has been reported on comes to hold wrong bytes. Each rank moves its share of every page and reports
// alone. Besides, the mover knows which pages are in transfers, and says when two uses of one cannot both be right.
//
// single-threaded
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/cache.h"
#include "sim_setup.h"
#include "store/host_pages.h"

namespace quire::testing {

class SimMover {
 public:
  SimMover(Cache& cache, const SimSetup& setup, const SimMutation& mutation, Random& random, SimCounts& counts);

  // What the cache says.
  void take(std::span<const TransferPlan> plans, TimeNs now);
  /// A sequence's pages are saved by this transfer. Its tokens count; what is behind them may be written meanwhile.
  struct Owner {
    std::uint64_t number = 0;
    std::uint32_t token_count = 0;
  };
  void set_owner(TransferId id, const Owner& owner);
  /// It has ended: nobody wants what its transfers read.
  void forget_owner(std::uint64_t number);
  void cancel(std::span<const TransferId> ids);

  /// One event: a piece of a page moves, or a transfer of a rank ends. False when nothing can happen now.
  bool work(TimeNs now);
  /// Between transfers.
  void set_device_page_count(std::uint32_t count) { pools_.front().device_page_count = count; }
  /// For a while nothing moves.
  void get_stuck(TimeNs until) { stuck_until_ = until; }
  void get_unstuck() { stuck_until_ = 0; }
  /// A bit of some host page that holds something turns over; of several pools, in any of them.
  void flip_a_bit();

  /// Reports that the simulation may apply: some of them, perhaps in another order, or all.
  [[nodiscard]] std::vector<Completion> collect(bool all);
  /// They were applied: pages of transfers that every rank has reported on may be used again. Gives those transfers.
  struct Over {
    TransferId id;
    TransferKind kind = TransferKind::Load;
    std::uint16_t pool_index = 0;
    TransferOutcome outcome = TransferOutcome::Ok;  ///< of the rank that stopped first
    std::uint32_t good_pages = 0;                   ///< of all ranks
    bool was_cancelled = false;                     ///< by the cache
    std::vector<PageTransfer> pages;
  };
  std::vector<Over> finish(std::span<const Completion> applied);

  /// When the next transfer can end, if one can.
  [[nodiscard]] std::optional<TimeNs> next_end() const;
  [[nodiscard]] bool is_idle() const { return transfers_.empty(); }
  [[nodiscard]] std::size_t report_count() const { return outbox_.size(); }
  [[nodiscard]] std::size_t transfer_count() const { return transfers_.size(); }
  [[nodiscard]] std::uint64_t loading_bytes() const;
  [[nodiscard]] bool uses(PageId device_page, std::uint16_t pool_index = 0) const {
    const Pool& pool = pools_[pool_index];
    return pool.device_reads[device_page.value] + pool.device_writes[device_page.value] > 0;
  }
  [[nodiscard]] bool is_moving(TransferId id) const { return find(id) != nullptr; }
  /// Whether all ranks have moved the bands of a load up to this one.
  [[nodiscard]] bool has_band(TransferId id, std::uint32_t band) const;
  /// Loads that nobody has called off, as far as the mover has heard, as visit(id, when it was taken).
  template <typename Visit>
  void for_each_load(Visit visit) const {
    for (const auto& each : transfers_) {
      if (each->kind == TransferKind::Load && !each->is_cancelled) visit(each->id, each->taken_at);
    }
  }
  /// Whether a load that the cache still wants reads this host page, of the first pool, and was taken behind `since`.
  /// One that has failed on some rank, as the cache knows, brings nothing to rely on.
  [[nodiscard]] bool is_being_loaded(PageId host_page, TimeNs since = -1) const;
  // The host pages as the disk tier sees them.
  struct Place {
    std::uint32_t rank = 0;
    std::uint16_t pool_index = 0;
  };
  [[nodiscard]] TransferFault begin_read(const PageTransfer& page, HostPages::Record& record, Place place);
  [[nodiscard]] TransferFault begin_write(const PageTransfer& page, std::span<std::byte>& bytes, Place place);
  void end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum, Place place);
  /// Pages of the first pool that have got their bytes from disk, on the first rank, since this was last asked.
  [[nodiscard]] std::vector<PageTransfer> take_arrived() { return std::exchange(arrived_, {}); }
  /// What a load of this page would read; nothing where it would find that something has happened to it.
  [[nodiscard]] std::span<const std::byte> good_bytes(const PageTransfer& page);
  /// The engine writes a device page from this token on: no transfer may be using that.
  void expect_unused(PageId device_page, std::uint32_t token, const char* who, std::uint16_t pool_index = 0) const;

 private:
  struct HostPage {
    std::uint32_t generation = 0;
    std::uint64_t name_tag = 0;
    std::uint64_t checksum = 0;
    std::vector<std::byte> bytes;
  };
  /// Pages with ids of their own, and who uses them.
  struct Pool {
    std::vector<std::uint32_t> groups;
    std::uint64_t page_bytes = 0;
    std::uint32_t device_page_count = 0;
    std::uint32_t host_page_count = 0;
    std::array<std::vector<HostPage>, 2> host_pages;  // by rank
    std::vector<std::uint32_t> device_reads;          // by page: stores
    std::vector<std::uint32_t> device_writes;         // by page: loads
    std::vector<std::uint32_t> host_reads;
    std::vector<std::uint32_t> host_writes;
  };
  enum class Stop : std::uint8_t { No, Io, Partial, Cancel };
  /// One rank's part of a transfer.
  struct Job {
    std::vector<std::uint16_t> pieces;      // that have not moved: page * chunk_count + chunk, the next one last
    std::vector<std::uint8_t> chunks_left;  // by page
    std::vector<std::uint8_t> is_good;      // by page
    std::vector<std::byte> bytes;           // as they were read
    std::uint32_t pieces_until_stop = 0;
    Stop stop = Stop::No;
    TransferFault fault = TransferFault::None;
    TimeNs ends_at = 0;
    std::uint64_t moved_bytes = 0;
    TimeNs busy_ns = 0;
    bool is_over = false;
    bool is_reported = false;
  };
  struct Transfer {
    TransferId id;
    TransferKind kind = TransferKind::Load;
    std::uint16_t pool_index = 0;
    std::uint32_t chunk_count = 1;
    std::uint32_t band_count = 1;
    bool is_cancelled = false;
    std::optional<Owner> owner;  // of what is saved
    TimeNs taken_at = 0;
    TransferOutcome outcome = TransferOutcome::Ok;
    std::uint32_t good_pages = 0;
    std::vector<PageTransfer> pages;
    std::span<const PageTransfer> planned;  // the cache's own, which stay as they are
    std::array<Job, 2> jobs;
  };
  struct ByteRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  [[nodiscard]] Transfer* find(TransferId id);
  [[nodiscard]] const Transfer* find(TransferId id) const;
  void start(Job& job, const Transfer& transfer, TimeNs now);
  void move_piece(Transfer& transfer, std::uint32_t rank);
  void end_load_of_page(const Transfer& transfer, Job& job, std::uint32_t rank, std::uint32_t page);
  void end_store_of_page(const Transfer& transfer, Job& job, std::uint32_t rank, std::uint32_t page);
  void report(Transfer& transfer, std::uint32_t rank);
  [[nodiscard]] const Pool& pool_of(const Transfer& transfer) const { return pools_[transfer.pool_index]; }
  /// The bytes of a device page that a rank brings when it loads.
  [[nodiscard]] ByteRange share_of(const Pool& pool, std::uint32_t rank) const;
  /// The bytes of a page that a rank keeps on the host.
  [[nodiscard]] ByteRange kept_by(const Pool& pool, std::uint32_t rank) const {
    return setup_.has_rank_pages ? ByteRange{0, pool.page_bytes} : share_of(pool, rank);
  }
  [[nodiscard]] std::uint32_t tokens_read_of(PageId device_page, std::uint16_t pool_index) const;
  [[nodiscard]] HostPage& host_page(const Transfer& transfer, std::uint32_t rank, PageId page) {
    return pools_[transfer.pool_index].host_pages[rank][page.value];
  }
  [[nodiscard]] static std::uint64_t checksum_of(std::span<const std::byte> bytes);
  [[nodiscard]] static std::uint64_t library_checksum_of(std::span<const std::byte> bytes);

  Cache& cache_;
  SimSetup setup_;
  SimMutation mutation_;
  Random& random_;
  SimCounts& counts_;
  std::vector<Pool> pools_;  // by TransferPlan::pool_index
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<std::unique_ptr<Transfer>> spare_;
  std::vector<Completion> outbox_;
  std::vector<PageTransfer> arrived_;  // from disk
  TimeNs stuck_until_ = 0;
};

/// The mover's pages, of one rank and pool, for a disk tier that is opened before there is a mover.
class SimHostPages : public HostPages {
 public:
  explicit SimHostPages(SimMover::Place place) : place_(place) {}
  void set_mover(SimMover* mover) { mover_ = mover; }
  [[nodiscard]] TransferFault begin_read(const PageTransfer& page, Record& record) override {
    return mover_->begin_read(page, record, place_);
  }
  void end_read(const PageTransfer& /*page*/) override {}
  [[nodiscard]] TransferFault begin_write(const PageTransfer& page, std::span<std::byte>& bytes) override {
    return mover_->begin_write(page, bytes, place_);
  }
  void end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) override {
    mover_->end_write(page, checksum, place_);
  }

 private:
  SimMover::Place place_;
  SimMover* mover_ = nullptr;
};

}  // namespace quire::testing
