// SPDX-License-Identifier: Apache-2.0
#include "sim_mover.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/copy_checked.h"
#include "tests/cache/group_pools.h"

namespace quire::testing {

SimMover::SimMover(Cache& cache, const SimSetup& setup, const SimMutation& mutation, Random& random, SimCounts& counts)
    : cache_(cache), setup_(setup), mutation_(mutation), random_(random), counts_(counts) {
  for (std::vector<std::uint32_t>& groups : transfer_pools(cache.config().layout)) {
    Pool& pool = pools_.emplace_back();
    const bool is_history = pools_.size() == 1;
    const GroupStats stats = cache.group_stats(is_history ? 0 : groups.front()).value();
    pool.groups = std::move(groups);
    pool.page_bytes = pool_page_bytes(cache, pool.groups);
    // A path without groups of its own has a byte for each token on disk, which nobody reads.
    if (setup.has_disk && pool.groups.empty()) pool.page_bytes = setup.page_tokens;
    pool.device_page_count = is_history ? setup.device_page_count : stats.page_count;
    pool.host_page_count = is_history ? setup.host_page_count : stats.host_page_count;
    const std::uint32_t device_page_count_max = is_history ? setup.device_page_count_max : stats.page_count;
    pool.device_reads.resize(std::size_t{device_page_count_max} + 1);
    pool.device_writes.resize(std::size_t{device_page_count_max} + 1);
    pool.host_reads.resize(std::size_t{pool.host_page_count} + 1);
    pool.host_writes.resize(std::size_t{pool.host_page_count} + 1);
    for (std::uint32_t rank = 0; rank < setup.rank_count; ++rank) {
      pool.host_pages[rank].resize(std::size_t{pool.host_page_count} + 1);
      const ByteRange kept = kept_by(pool, rank);
      for (HostPage& page : pool.host_pages[rank]) page.bytes.resize(kept.end - kept.begin);
    }
  }
}

SimMover::ByteRange SimMover::share_of(const Pool& pool, std::uint32_t rank) const {
  return {pool.page_bytes * rank / setup_.rank_count, pool.page_bytes * (rank + 1) / setup_.rank_count};
}

// FNV-1a by words: nothing of the library's.
std::uint64_t SimMover::checksum_of(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0xCBF29CE484222325ULL;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
    sum = (sum ^ word) * 0x100000001B3ULL;
    sum ^= sum >> 31U;
  }
  return sum;
}

std::uint64_t SimMover::library_checksum_of(std::span<const std::byte> bytes) {
  return best_checked_copier().sum({.source = bytes.data(), .bytes = bytes.size()}).finish(bytes.size());
}

SimMover::Transfer* SimMover::find(TransferId id) {
  const auto found = std::ranges::find_if(transfers_, [&](const auto& each) { return each->id == id; });
  return found == transfers_.end() ? nullptr : found->get();
}
const SimMover::Transfer* SimMover::find(TransferId id) const {
  const auto found = std::ranges::find_if(transfers_, [&](const auto& each) { return each->id == id; });
  return found == transfers_.end() ? nullptr : found->get();
}

std::uint64_t SimMover::loading_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& each : transfers_) {
    bytes += each->kind == TransferKind::Load ? each->pages.size() * pool_of(*each).page_bytes : 0;
  }
  return bytes;
}

bool SimMover::has_band(TransferId id, std::uint32_t band) const {
  const Transfer& transfer = *find(id);
  // Of several ranks each has some of the layers here: a layer is there when all is.
  const bool is_last = band + 1 >= transfer.band_count || setup_.rank_count > 1;
  for (std::uint32_t rank = 0; rank < setup_.rank_count; ++rank) {
    for (const std::uint16_t piece : transfer.jobs[rank].pieces) {
      if (is_last || piece % transfer.chunk_count <= band) return false;
    }
  }
  return true;
}

bool SimMover::is_being_loaded(PageId host_page, TimeNs since) const {
  for (const auto& each : transfers_) {
    const bool is_load = each->kind == TransferKind::Load && each->pool_index == 0;
    const bool may_come = !each->is_cancelled && each->outcome == TransferOutcome::Ok;
    if (!is_load || !may_come || each->taken_at <= since) continue;
    if (std::ranges::find(each->pages, host_page, &PageTransfer::host_page) != each->pages.end()) return true;
  }
  return false;
}

void SimMover::set_owner(TransferId id, const Owner& owner) {
  find(id)->owner = owner;
}

void SimMover::forget_owner(std::uint64_t number) {
  for (const auto& each : transfers_) {
    if (each->owner && each->owner->number == number) each->owner->token_count = 0;
  }
}

// So many leading tokens of a device page must stay what they are for the stores that read it.
std::uint32_t SimMover::tokens_read_of(PageId device_page, std::uint16_t pool_index) const {
  std::uint32_t count = 0;
  for (const auto& each : transfers_) {
    if (each->kind == TransferKind::Load || each->pool_index != pool_index) continue;
    for (const PageTransfer& page : each->pages) {
      if (page.device_page != device_page) continue;
      const std::uint32_t first = page.place * setup_.page_tokens;
      const std::uint32_t wanted =
          each->owner ? each->owner->token_count - std::min(each->owner->token_count, first) : setup_.page_tokens;
      count = std::max(count, std::min(wanted, setup_.page_tokens));
    }
  }
  return count;
}

void SimMover::expect_unused(PageId device_page, std::uint32_t token, const char* who, std::uint16_t pool_index) const {
  if (!mutation_.checks_fences || !uses(device_page, pool_index)) return;
  // A page begun that two sequences share is saved for the one, while the other goes on behind its tokens; or anywhere,
  // when the one has ended and what is read will be thrown away.
  const bool is_written = pools_[pool_index].device_writes[device_page.value] > 0;
  if (!is_written && token >= tokens_read_of(device_page, pool_index)) {
    counts_.add(SimEvent::WriteBesideSave);
    return;
  }
  throw SimFailure("device page " + std::to_string(device_page.value) +
                   (pools_.size() > 1 ? " of pool " + std::to_string(pool_index) : "") + " is written by " + who +
                   " while a transfer uses it");
}

// Plans

void SimMover::take(std::span<const TransferPlan> plans, TimeNs now) {
  if (!std::ranges::is_sorted(plans, {}, &TransferPlan::priority)) {
    throw SimFailure("transfers that somebody waits for come after others");
  }
  for (const TransferPlan& plan : plans) {
    const bool is_load = plan.kind == TransferKind::Load;
    counts_.add(is_load ? SimEvent::LoadWanted : SimEvent::StoreWanted);
    if (find(plan.id) != nullptr) throw SimFailure("a transfer is handed out twice");
    if (plan.pages.empty()) throw SimFailure("a transfer without pages");
    if (plan.pages.size() > setup_.transfer_pages_max) throw SimFailure("a transfer of too many pages");
    if (plan.pool_index >= pools_.size()) throw SimFailure("a transfer of a pool that is not there");
    if (transfers_.size() == setup_.transfer_count_max) throw SimFailure("more transfers than may be in flight");
    Pool& pool = pools_[plan.pool_index];
    std::unique_ptr<Transfer> transfer;
    if (spare_.empty()) {
      transfer = std::make_unique<Transfer>();
    } else {
      transfer = std::move(spare_.back());
      spare_.pop_back();
    }
    transfer->id = plan.id;
    transfer->kind = plan.kind;
    transfer->pool_index = plan.pool_index;
    transfer->is_cancelled = false;
    transfer->owner.reset();
    transfer->taken_at = now;
    transfer->outcome = TransferOutcome::Ok;
    transfer->good_pages = static_cast<std::uint32_t>(plan.pages.size());
    transfer->pages.assign(plan.pages.begin(), plan.pages.end());
    transfer->planned = plan.pages;
    transfer->band_count = plan.band_count;
    transfer->chunk_count = plan.band_count > 1 ? plan.band_count : 1 + random_.below(2);
    for (const PageTransfer& page : transfer->pages) {
      const bool is_inside = page.device_page.value >= 1 && page.device_page.value <= pool.device_page_count &&
                             page.host_page.value >= 1 && page.host_page.value <= pool.host_page_count;
      if (!is_inside) throw SimFailure("a transfer of pages that are not there");
      std::uint32_t& device_reads = pool.device_reads[page.device_page.value];
      std::uint32_t& device_writes = pool.device_writes[page.device_page.value];
      std::uint32_t& reads = pool.host_reads[page.host_page.value];
      std::uint32_t& writes = pool.host_writes[page.host_page.value];
      if (mutation_.checks_fences) {
        if (device_writes > 0) throw SimFailure("a transfer of a device page that another one writes");
        if (is_load && device_reads > 0) throw SimFailure("a transfer writes a device page that another one reads");
        if (writes > 0) throw SimFailure("a transfer of a host page that another one writes");
        if (!is_load && reads > 0) throw SimFailure("a transfer writes a host page that another one reads");
      }
      ++(is_load ? device_writes : device_reads);
      ++(is_load ? reads : writes);
    }
    counts_.tell([&] {
      std::string text = "    transfer " + std::to_string(plan.id.index) + "." + std::to_string(plan.id.generation) +
                         (plan.pool_index > 0 ? " of pool " + std::to_string(plan.pool_index) : "") + ":";
      for (const PageTransfer& page : plan.pages) {
        text += " device " + std::to_string(page.device_page.value) + (is_load ? " <- " : " -> ") + "host " +
                std::to_string(page.host_page.value) + "." + std::to_string(page.host_generation);
      }
      return text;
    });
    for (std::uint32_t rank = 0; rank < setup_.rank_count; ++rank) start(transfer->jobs[rank], *transfer, now);
    transfers_.push_back(std::move(transfer));
  }
}

void SimMover::start(Job& job, const Transfer& transfer, TimeNs now) {
  const auto page_count = static_cast<std::uint32_t>(transfer.pages.size());
  const std::uint64_t page_bytes = pool_of(transfer).page_bytes;
  const std::uint64_t bytes = page_count * page_bytes;  // as if a share were a rank's whole page
  job.pieces.clear();
  // Bands: the first layers of all pages before the next ones.
  for (std::uint32_t chunk = 0; chunk < transfer.chunk_count; ++chunk) {
    for (std::uint32_t page = 0; page < page_count; ++page) {
      job.pieces.push_back(static_cast<std::uint16_t>((page * transfer.chunk_count) + chunk));
    }
  }
  std::ranges::reverse(job.pieces);
  if (!setup_.moves_in_order) {
    for (std::size_t i = job.pieces.size(); i > 1; --i) {
      std::swap(job.pieces[i - 1], job.pieces[random_.below(static_cast<std::uint32_t>(i))]);
    }
  }
  job.chunks_left.assign(page_count, static_cast<std::uint8_t>(transfer.chunk_count));
  job.is_good.assign(page_count, 0);
  job.bytes.resize(std::size_t{page_count} * page_bytes);
  job.stop = Stop::No;
  job.fault = TransferFault::None;
  if (has_chance(random_, setup_.io_chance)) {
    job.stop = Stop::Io;
  } else if (has_chance(random_, setup_.partial_chance)) {
    job.stop = Stop::Partial;
  }
  job.pieces_until_stop = random_.below(static_cast<std::uint32_t>(job.pieces.size()) + 1);
  job.busy_ns = std::max<TimeNs>(1, static_cast<TimeNs>(static_cast<double>(bytes) / setup_.bytes_per_ns));
  job.ends_at = now + job.busy_ns + (has_chance(random_, 30) ? random_.below(1000) * setup_.op_ns_max / 50 : 0);
  job.moved_bytes = 0;
  job.is_over = false;
  job.is_reported = false;
}

void SimMover::cancel(std::span<const TransferId> ids) {
  for (const TransferId id : ids) {
    counts_.add(SimEvent::CancelAsked);
    Transfer* const transfer = find(id);
    if (transfer == nullptr) throw SimFailure("a cancellation of a transfer that nobody has taken");
    if (std::exchange(transfer->is_cancelled, true)) throw SimFailure("a transfer is cancelled twice");
    bool is_honoured = false;
    for (std::uint32_t rank = 0; rank < setup_.rank_count; ++rank) {
      Job& job = transfer->jobs[rank];
      if (job.is_over || job.stop != Stop::No || !has_chance(random_, setup_.honour_chance)) continue;
      job.stop = Stop::Cancel;
      // What is being written is still written.
      job.pieces_until_stop = random_.below(static_cast<std::uint32_t>(job.pieces.size()) + 1);
      is_honoured = true;
    }
    counts_.add(is_honoured ? SimEvent::CancelHonoured : SimEvent::CancelTooLate);
  }
}

// Bytes

bool SimMover::work(TimeNs now) {
  if (transfers_.empty() || now < stuck_until_) return false;
  ++counts_.mover_events;
  // Any that can go on, from a random one on.
  const auto count = static_cast<std::uint32_t>(transfers_.size());
  const std::uint32_t first = random_.below(count);
  const std::uint32_t first_rank = random_.below(setup_.rank_count);
  for (std::uint32_t i = 0; i < count; ++i) {
    Transfer& transfer = *transfers_[(first + i) % count];
    for (std::uint32_t r = 0; r < setup_.rank_count; ++r) {
      const std::uint32_t rank = (first_rank + r) % setup_.rank_count;
      Job& job = transfer.jobs[rank];
      if (job.is_over) continue;
      const bool stops = job.fault != TransferFault::None || (job.stop != Stop::No && job.pieces_until_stop == 0);
      if (!job.pieces.empty() && !stops) {
        move_piece(transfer, rank);
        return true;
      }
      if (!stops && now < job.ends_at) continue;
      report(transfer, rank);
      return true;
    }
  }
  return false;
}

void SimMover::move_piece(Transfer& transfer, std::uint32_t rank) {
  Job& job = transfer.jobs[rank];
  const std::uint32_t piece = job.pieces.back();
  job.pieces.pop_back();
  if (job.stop != Stop::No) --job.pieces_until_stop;
  const std::uint32_t page = piece / transfer.chunk_count;
  const std::uint32_t chunk = piece % transfer.chunk_count;
  const Pool& pool = pool_of(transfer);
  const ByteRange kept = kept_by(pool, rank);
  const std::uint64_t kept_bytes = kept.end - kept.begin;
  const ByteRange range{kept.begin + (kept_bytes * chunk / transfer.chunk_count),
                        kept.begin + (kept_bytes * (chunk + 1) / transfer.chunk_count)};
  const PageTransfer& moved = transfer.pages[page];
  std::byte* const read = job.bytes.data() + (std::size_t{page} * pool.page_bytes);
  if (transfer.kind == TransferKind::Load) {
    if (transfer.is_cancelled) counts_.add(SimEvent::WriteAfterCancel);
    const HostPage& host = host_page(transfer, rank, moved.host_page);
    const auto load = [&](std::byte* device, std::uint64_t at, std::uint64_t count) {
      std::memcpy(read + at, host.bytes.data() + (at - kept.begin), count);
      // Of whole pages, each rank brings its share to the one device that there is: wrong bytes of any rank show.
      const ByteRange share = share_of(pool, rank);
      const std::uint64_t from = std::max(at, share.begin);
      const std::uint64_t to = std::min(at + count, share.end);
      for (std::uint64_t i = from; i < to; ++i) device[i - at] = read[i] ^ rank_mask(setup_, rank);
    };
    visit_page_bytes(cache_, pool.groups, moved.device_page, range.begin, range.end, load);
  } else {
    const auto store = [&](const std::byte* device, std::uint64_t at, std::uint64_t count) {
      std::transform(device, device + count, read + at, [&](std::byte byte) { return byte ^ rank_mask(setup_, rank); });
    };
    const std::vector<std::uint32_t>* groups = &pool.groups;
    for (const Pool& other : pools_) {
      const bool is_alike = other.page_bytes == pool.page_bytes && moved.device_page.value <= other.device_page_count;
      if (mutation_.confuses_pools && is_alike) groups = &other.groups;
    }
    visit_page_bytes(cache_, *groups, moved.device_page, range.begin, range.end, store);
  }
  job.moved_bytes += range.end - range.begin;
  if (--job.chunks_left[page] > 0) return;
  if (transfer.kind == TransferKind::Load) {
    end_load_of_page(transfer, job, rank, page);
  } else {
    end_store_of_page(transfer, job, rank, page);
  }
}

void SimMover::end_load_of_page(const Transfer& transfer, Job& job, std::uint32_t rank, std::uint32_t page) {
  const PageTransfer& moved = transfer.pages[page];
  const HostPage& host = host_page(transfer, rank, moved.host_page);
  const Pool& pool = pool_of(transfer);
  const ByteRange kept = kept_by(pool, rank);
  const std::span<const std::byte> read =
      std::span(job.bytes).subspan((std::size_t{page} * pool.page_bytes) + kept.begin, kept.end - kept.begin);
  if (mutation_.checks_names && host.generation != moved.host_generation) {
    job.fault = TransferFault::Generation;
  } else if (mutation_.checks_names && host.name_tag != moved.name_tag) {
    job.fault = TransferFault::NameTag;
  } else if (mutation_.checks_checksums && host.checksum != checksum_of(read)) {
    job.fault = TransferFault::Checksum;
  } else {
    job.is_good[page] = 1;
  }
}

void SimMover::end_store_of_page(const Transfer& transfer, Job& job, std::uint32_t rank, std::uint32_t page) {
  const PageTransfer& moved = transfer.pages[page];
  const Pool& pool = pool_of(transfer);
  const ByteRange kept = kept_by(pool, rank);
  const std::byte* const read = job.bytes.data() + (std::size_t{page} * pool.page_bytes) + kept.begin;
  job.is_good[page] = 1;
  // What was misdirected there earlier may have the same generation and tag: nobody could tell these two faults. Of one
  // group, seeds stay what they were.
  const HostPage& own = host_page(transfer, rank, moved.host_page);
  const bool shows = !setup_.has_groups() || own.generation != moved.host_generation || own.name_tag != moved.name_tag;
  if (has_chance(random_, setup_.lost_write_chance) && shows) {
    counts_.add(SimEvent::LostWrite);
    return;  // and nobody notices before it is read
  }
  PageId target = moved.host_page;
  if (has_chance(random_, setup_.misdirected_chance) && shows) {
    counts_.add(SimEvent::Misdirected);
    target = PageId{1 + random_.below(pool.host_page_count)};
  }
  HostPage& host = host_page(transfer, rank, target);
  host.generation = moved.host_generation;
  host.name_tag = moved.name_tag;
  if (!host.bytes.empty()) std::memcpy(host.bytes.data(), read, host.bytes.size());
  host.checksum = checksum_of(host.bytes);
}

void SimMover::flip_a_bit() {
  const std::uint32_t rank = random_.below(setup_.rank_count);
  Pool& pool = pools_[pools_.size() > 1 ? random_.below(static_cast<std::uint32_t>(pools_.size())) : 0];
  HostPage& page = pool.host_pages[rank][1 + random_.below(pool.host_page_count)];
  if (page.generation == 0 || page.bytes.empty()) return;
  counts_.add(SimEvent::Flipped);
  page.bytes[random_.below(static_cast<std::uint32_t>(page.bytes.size()))] ^= std::byte(1U << random_.below(8));
}

// For the disk tier

TransferFault SimMover::begin_read(const PageTransfer& page, HostPages::Record& record, Place place) {
  const Pool& pool = pools_[place.pool_index];
  if (mutation_.checks_fences && pool.host_writes[page.host_page.value] > 0) {
    throw SimFailure("a host page goes to disk while a transfer writes it");
  }
  const HostPage& host = pool.host_pages[place.rank][page.host_page.value];
  if (mutation_.checks_names && host.generation != page.host_generation) return TransferFault::Generation;
  if (mutation_.checks_names && host.name_tag != page.name_tag) return TransferFault::NameTag;
  record.bytes = host.bytes;
  record.checksum = library_checksum_of(host.bytes);
  // What it would be of the bytes that were written is not known any more; this is another one for sure.
  if (mutation_.checks_checksums && host.checksum != checksum_of(host.bytes)) *record.checksum ^= 1;
  return TransferFault::None;
}

TransferFault SimMover::begin_write(const PageTransfer& page, std::span<std::byte>& bytes, Place place) {
  Pool& pool = pools_[place.pool_index];
  if (mutation_.checks_fences && pool.host_writes[page.host_page.value] + pool.host_reads[page.host_page.value] > 0) {
    throw SimFailure("a host page is read from disk while a transfer uses it");
  }
  HostPage& host = pool.host_pages[place.rank][page.host_page.value];
  host.generation = 0;
  host.name_tag = 0;
  bytes = host.bytes;
  return TransferFault::None;
}

void SimMover::end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum, Place place) {
  HostPage& host = pools_[place.pool_index].host_pages[place.rank][page.host_page.value];
  if (!checksum) return;
  host.generation = page.host_generation;
  host.name_tag = page.name_tag;
  host.checksum = checksum_of(host.bytes);
  if (*checksum != library_checksum_of(host.bytes)) throw SimFailure("a page from disk has another checksum");
  if (place.pool_index == 0 && place.rank == 0) arrived_.push_back(page);
}

std::span<const std::byte> SimMover::good_bytes(const PageTransfer& page) {
  const HostPage& host = pools_.front().host_pages[0][page.host_page.value];
  const bool is_good = host.generation == page.host_generation && host.name_tag == page.name_tag &&
                       host.checksum == checksum_of(host.bytes);
  return is_good ? std::span<const std::byte>(host.bytes) : std::span<const std::byte>();
}

// Reports

void SimMover::report(Transfer& transfer, std::uint32_t rank) {
  Job& job = transfer.jobs[rank];
  job.is_over = true;
  if (!std::ranges::equal(transfer.pages, transfer.planned)) throw SimFailure("a plan's pages change under way");
  const auto bad = std::ranges::find(job.is_good, 0);
  const auto good = static_cast<std::uint32_t>(bad - job.is_good.begin());
  Completion completion{.id = transfer.id, .rank = static_cast<std::uint16_t>(rank), .good_pages = good};
  const bool is_load = transfer.kind == TransferKind::Load;
  const bool is_whole = bad == job.is_good.end();
  if (job.fault != TransferFault::None) {
    completion.outcome = TransferOutcome::Failed;
    completion.fault = job.fault;
    counts_.add(job.fault == TransferFault::Checksum     ? SimEvent::LoadChecksum
                : job.fault == TransferFault::Generation ? SimEvent::LoadGeneration
                                                         : SimEvent::LoadNameTag);
  } else if (job.stop == Stop::Cancel && !is_whole) {
    completion.outcome = TransferOutcome::Cancelled;
    counts_.add(is_load ? SimEvent::LoadCancelled : SimEvent::StoreCancelled);
  } else if (job.stop == Stop::Io || !is_whole) {
    completion.outcome = TransferOutcome::Failed;
    completion.fault = TransferFault::Io;
    counts_.add(is_load ? SimEvent::LoadIo : SimEvent::StoreIo);
  } else {
    counts_.add(is_load ? SimEvent::LoadOk : SimEvent::StoreOk);
  }
  if (completion.outcome != TransferOutcome::Ok && good > 0) counts_.add(SimEvent::PartialGood);
  completion.moved_bytes = job.moved_bytes * (setup_.has_rank_pages ? 1 : setup_.rank_count);
  if (job.moved_bytes > 0) {
    const double part = static_cast<double>(completion.moved_bytes) /
                        static_cast<double>(transfer.pages.size() * pool_of(transfer).page_bytes);
    completion.busy_ns = std::max<TimeNs>(1, static_cast<TimeNs>(static_cast<double>(job.busy_ns) * part));
  }
  outbox_.push_back(completion);
}

std::vector<Completion> SimMover::collect(bool all) {
  std::vector<Completion> collected;
  if (outbox_.empty()) return collected;
  if (setup_.reorders && outbox_.size() > 1) {
    counts_.add(SimEvent::Reordered);
    for (std::size_t i = outbox_.size(); i > 1; --i) {
      std::swap(outbox_[i - 1], outbox_[random_.below(static_cast<std::uint32_t>(i))]);
    }
  }
  const std::size_t count = all ? outbox_.size() : 1 + random_.below(static_cast<std::uint32_t>(outbox_.size()));
  collected.assign(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(count));
  outbox_.erase(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(count));
  return collected;
}

std::vector<SimMover::Over> SimMover::finish(std::span<const Completion> applied) {
  std::vector<Over> over;
  for (const Completion& completion : applied) {
    Transfer* const transfer = find(completion.id);
    if (transfer == nullptr || completion.rank >= setup_.rank_count) continue;
    Job& job = transfer->jobs[completion.rank];
    if (!job.is_over || std::exchange(job.is_reported, true)) continue;
    if (completion.outcome != TransferOutcome::Ok) {
      const bool stopped_first =
          transfer->outcome == TransferOutcome::Ok || completion.good_pages < transfer->good_pages;
      if (stopped_first) transfer->outcome = completion.outcome;
      transfer->good_pages = std::min(transfer->good_pages, completion.good_pages);
    }
    bool is_last = true;
    for (std::uint32_t rank = 0; rank < setup_.rank_count; ++rank)
      is_last = is_last && transfer->jobs[rank].is_reported;
    if (!is_last) {
      counts_.add(SimEvent::OtherRankLater);
      continue;
    }
    for (const PageTransfer& page : transfer->pages) {
      const bool is_load = transfer->kind == TransferKind::Load;
      Pool& pool = pools_[transfer->pool_index];
      --(is_load ? pool.host_reads : pool.host_writes)[page.host_page.value];
      --(is_load ? pool.device_writes : pool.device_reads)[page.device_page.value];
    }
    counts_.tell([&] {
      return "    over: " + std::to_string(transfer->id.index) + "." + std::to_string(transfer->id.generation) + " " +
             std::string(to_string(transfer->outcome));
    });
    over.push_back({.id = transfer->id,
                    .kind = transfer->kind,
                    .pool_index = transfer->pool_index,
                    .outcome = transfer->outcome,
                    .good_pages = transfer->good_pages,
                    .was_cancelled = transfer->is_cancelled,
                    .pages = transfer->pages});
    const auto place = std::ranges::find_if(transfers_, [&](const auto& each) { return each.get() == transfer; });
    spare_.push_back(std::move(*place));
    transfers_.erase(place);
  }
  return over;
}

std::optional<TimeNs> SimMover::next_end() const {
  std::optional<TimeNs> next;
  for (const auto& transfer : transfers_) {
    for (std::uint32_t rank = 0; rank < setup_.rank_count; ++rank) {
      const Job& job = transfer->jobs[rank];
      if (!job.is_over && (!next || job.ends_at < *next)) next = job.ends_at;
    }
  }
  return next;
}

}  // namespace quire::testing
