// SPDX-License-Identifier: Apache-2.0
//
// Cache: a cache for each rank. What one rank has heard of goes to the others as bytes, and all apply what all have.
#include <algorithm>
#include <iterator>
#include <string>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

template <typename Piece>
void append_piece(std::vector<std::byte>& bytes, const Piece& piece) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&piece);
  bytes.insert(bytes.end(), begin, begin + sizeof(Piece));
}

std::uint64_t word_at(std::span<const std::byte> words, std::size_t index) {
  std::uint64_t word = 0;
  if (index < words.size() / sizeof(word)) std::memcpy(&word, words.data() + (index * sizeof(word)), sizeof(word));
  return word;
}

/// A hash of numbers and texts, in their order.
class Digest {
 public:
  template <typename... Numbers>
  void add(Numbers... numbers) {
    ((value_ = mix64(value_ ^ static_cast<std::uint64_t>(numbers))), ...);
  }
  void add_text(const std::string& text) { add(hash_bytes(text.data(), text.size(), text.size())); }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace

// Reporting

Result<std::span<const std::byte>> Cache::report_to_ranks(const RankReport& report) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.open_reports(report));
  QUIRE_TRY(Impl::check_completions(report.moved, "report_to_ranks"));
  if (impl.has_host()) {
    impl.hear(impl.collect());
    impl.hear(report.moved);
  }
  impl.write_report(report.now);
  return std::span<const std::byte>(impl.rank_reports.bytes);
}

// The first report takes all the memory that is ever needed.
Status Cache::Impl::open_reports(const RankReport& report) {
  RankReports& ours = rank_reports;
  if (ours.is_on && report.rank_index == ours.rank_index && report.rank_count == ours.rank_count) return {};
  if (ours.is_on) {
    return invalid("report_to_ranks: this is rank ", plain(report.rank_index), " of ", plain(report.rank_count),
                   ", and was rank ", plain(ours.rank_index), " of ", plain(ours.rank_count), " before");
  }
  if (config.host.rank_count > 1) {
    return unsupported("report_to_ranks: the cache drives all of host.rank_count = ", plain(config.host.rank_count),
                       " ranks itself: poll() and apply()");
  }
  if (report.rank_count > kRanksMax || report.rank_index >= report.rank_count) {
    return invalid("report_to_ranks: there is no rank ", plain(report.rank_index), " of ", plain(report.rank_count),
                   ": give the number of caches that exchange reports, ", kRanksMax,
                   " at most, and which of them this one is, from 0 on");
  }
  if (ours.is_late) {
    return unsupported(
        "report_to_ranks: this rank alone was told by poll(), apply() or advance() what the others do not know: call "
        "none of them on a new cache before its first report");
  }
  TierParts& parts = tiers->parts;
  const std::size_t transfer_count = parts.book.capacity();
  const bool has_anchored = parts.has_lower() && !groups.empty();
  const std::size_t row_words = has_anchored ? sequences.row_pages() : 0;
  QUIRE_TRY_ASSIGN(ours.anchored, LazyArray<std::uint64_t>::create(transfer_count * row_words));
  ours.tallies.resize(transfer_count);
  ours.has_told.resize(transfer_count * report.rank_count);
  ours.heard.reserve(transfer_count);
  ours.agreed.reserve(transfer_count);
  ours.by_rank.resize(report.rank_count);
  ours.failures.resize(parts.lowers.size());
  ours.bytes.reserve(sizeof(RankReportHeader) + (transfer_count * sizeof(RankReportEntry)) +
                     ((parts.lowers.size() + (parts.searches.capacity() * row_words)) * sizeof(std::uint64_t)));
  for (Lower& lower : parts.lowers) lower.is_agreed = true;
  ours.rank_index = report.rank_index;
  ours.rank_count = report.rank_count;
  ours.opened_as = opened_as();
  ours.is_on = true;
  return {};
}

Status Cache::Impl::may_apply_alone(const char* call) const {
  if (!rank_reports.is_on) return {};
  return unsupported(call,
                     ": what this rank alone has heard, or its time, is not applied: report_to_ranks() takes both, "
                     "and apply_ranks() applies what all ranks have");
}

// Whatever decides anything, and so has to be the same on all ranks. Of the layout, not which heads a rank has.
std::uint64_t Cache::Impl::opened_as() const {
  const TierParts& parts = tiers->parts;
  const HostConfig& host = config.host;
  Digest digest;
  const Result<std::string> layout = config.layout.describe(config.page);
  digest.add_text(layout ? *layout : layout.error().message);
  for (const PoolGeometry* const geometry : group_geometries) {
    digest.add(geometry != nullptr ? disk_layout_hash(geometry->page(), /*rank=*/0) : 0);
  }
  digest.add(page_tokens, config.device.pool, state_slot_count);
  for (const PageHome* const home : parts.homes) {
    const TierPages& pages = home->pages;
    digest.add(pages.page_bytes, pages.device_page_count(), pages.host.page_count());
  }
  digest.add(config.sequence_count_max, context_tokens_max, config.step_tokens_max, config.steps_in_flight_max,
             config.tree_tokens_max, config.window_rewind_tokens, config.extra_key_count_max,
             config.key_space_count_max, config.keep_count_max, keep_pages_max(), partial_reuse_min_tokens,
             config.dedup, config.whole_runs, config.hash_seed, config.plan.page_tables,
             config.plan.cascade_levels_max);
  digest.add_text(config.policy);
  digest.add(chunks != nullptr, config.chunks.page_count_max, config.chunks.pin_count_max,
             config.chunks.pinned_pages_max.value_or(UINT32_MAX));
  if (!has_host()) return digest.value();
  digest.add_text(host.policy);
  digest.add(host.write_policy, host.write_hits_min, clean_reserve_for(pool_page_count()), host.compute_ns_per_token,
             host.load_timeout_ns, host.layer_bands, host.transfer_count_max, host.transfer_pages_max,
             host.hold_count_max, hold_pages_max());
  for (const Lower& lower : parts.lowers) {
    const LowerSettings& settings = lower.settings;
    digest.add(settings.tier, settings.access, settings.write_policy, settings.write_hits_min,
               settings.write_bytes_per_day, settings.find_timeout_ns, settings.load_timeout_ns,
               settings.store_timeout_ns, settings.answers_at_once, lower.extent_pages);
    for (const PageHome* const home : parts.homes) {
      digest.add(lower.tier->keeps(home->pool) ? lower.tier->written_bytes(home->pool) : 0);
    }
    for (const GroupRetention& each : settings.group_retention) digest.add(each.rule, each.interval_tokens);
  }
  return digest.value();
}

// What has come of everything that was decided so far. Ranks that were given the same have the same.
std::uint64_t Cache::Impl::decisions() const {
  const TierParts& parts = tiers->parts;
  Digest digest;
  digest.add(parts.book.decisions(), parts.now, parts.fence.next_number(), sequences.live_count(), tree->run_count());
  for (const PageHome* const home : parts.homes) {
    digest.add(home->pages.device.free_count(), home->pages.host.free_count());
  }
  return digest.value();
}

// Keeps what has ended until it is told.
void Cache::Impl::hear(std::span<const Completion> ended) {
  const TransferBook& book = tiers->parts.book;
  for (Completion completion : ended) {
    if (!book.knows(completion) || rank_reports.tallies[completion.id.index].is_heard) {
      ++counters.unknown_completion_count;
      continue;
    }
    completion.kind = book[completion.id.index].kind;
    // Ok means all pages, and is told as their number, with which that of another rank is compared.
    const bool has_all = completion.outcome == TransferOutcome::Ok && !asks_for_path(completion.kind);
    if (has_all) completion.good_pages = book[completion.id.index].page_count;
    rank_reports.tallies[completion.id.index].is_heard = true;
    rank_reports.heard.push_back(completion);
    // The mover may forget it before all ranks have told, and threads may ask for its layers until then.
    if (completion.kind == TransferKind::Load) tiers->parts.ended_loads.add(completion.id, completion.outcome);
  }
}

void Cache::Impl::write_report(TimeNs now) {
  const TierParts& parts = tiers->parts;
  std::vector<Completion>& heard = rank_reports.heard;
  std::vector<std::byte>& bytes = rank_reports.bytes;
  std::ranges::sort(heard, {}, [](const Completion& each) { return each.id.index; });
  RankReportHeader header{.opened_as = rank_reports.opened_as,
                          .decisions = decisions(),
                          .round = rank_reports.round,
                          .now = std::max(now, parts.now),
                          .rank_index = rank_reports.rank_index,
                          .rank_count = rank_reports.rank_count,
                          .lower_count = static_cast<std::uint32_t>(parts.lowers.size()),
                          .completion_count = static_cast<std::uint32_t>(heard.size())};
  bytes.clear();
  append_piece(bytes, header);
  for (const Lower& lower : parts.lowers) append_piece(bytes, lower.own_failed_pools(parts.homes.size()));
  for (const Completion& each : heard) {
    std::span<const std::uint64_t> words = tiers->parts.anchored_of(each.id.index);
    while (!words.empty() && words.back() == 0) words = words.first(words.size() - 1);
    append_piece(bytes, RankReportEntry{.id = each.id,
                                        .moved_bytes = each.moved_bytes,
                                        .busy_ns = each.busy_ns,
                                        .good_pages = each.good_pages,
                                        .word_count = static_cast<std::uint32_t>(words.size()),
                                        .kind = static_cast<std::uint8_t>(each.kind),
                                        .outcome = static_cast<std::uint8_t>(each.outcome),
                                        .fault = static_cast<std::uint8_t>(each.fault)});
    const std::span<const std::byte> word_bytes = std::as_bytes(words);
    bytes.insert(bytes.end(), word_bytes.begin(), word_bytes.end());
  }
  header.checksum = rank_report_checksum(bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
}

// Agreeing

Result<RankAgreement> Cache::apply_ranks(std::span<const std::span<const std::byte>> reports) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  RankReports& ours = impl.rank_reports;
  if (ours.bytes.empty()) {
    return invalid("apply_ranks: report_to_ranks() comes first, and its bytes go to all ranks");
  }
  QUIRE_TRY_ASSIGN(const TimeNs now, impl.read_reports(reports));
  impl.agree();
  ++ours.round;
  ours.bytes.clear();
  ours.heard.clear();
  QUIRE_TRY(impl.advance(now));
  for (std::size_t i = 0; i < ours.failures.size(); ++i) impl.tiers->parts.lowers[i].failed_pools |= ours.failures[i];
  for (const Completion& completion : ours.agreed) {
    QUIRE_CHECK(impl.tiers->apply(completion), "ranks have agreed on a transfer that is over");
  }
  if (impl.has_host()) impl.follow_up();
  return RankAgreement{.now = now, .completions = ours.agreed};
}

// Finds out whether reports are those of this round, and puts them in the order of the ranks. Gives the time that they
// agree on. When one of them is not right, nothing that counts is changed. What does not depend on this rank alone
// comes out the same on all ranks.
Result<TimeNs> Cache::Impl::read_reports(std::span<const std::span<const std::byte>> reports) {
  RankReports& ours = rank_reports;
  if (reports.size() != ours.rank_count) {
    return invalid("apply_ranks: there are ", reports.size(), " reports, and ", plain(ours.rank_count),
                   " ranks: give those of all ranks, this one's too");
  }
  std::ranges::fill(ours.by_rank, std::span<const std::byte>());
  TimeNs earliest = INT64_MAX;
  TimeNs latest = 0;
  for (std::uint32_t i = 0; i < reports.size(); ++i) {
    const std::optional<RankReportHeader> header = RankReportReader(reports[i]).read<RankReportHeader>();
    const bool is_whole =
        header && header->magic == kRankReportMagic && header->checksum == rank_report_checksum(reports[i]);
    if (!is_whole) return invalid("apply_ranks: report ", plain(i), " is damaged, or of another build");
    if (header->rank_count != ours.rank_count || header->rank_index >= ours.rank_count) {
      return invalid("apply_ranks: report ", plain(i), " is of rank ", plain(header->rank_index), " of ",
                     plain(header->rank_count), ", and this is rank ", plain(ours.rank_index), " of ",
                     plain(ours.rank_count));
    }
    std::span<const std::byte>& place = ours.by_rank[header->rank_index];
    if (!place.empty()) {
      const auto first = std::ranges::find(reports, place.data(), [](auto report) { return report.data(); });
      return invalid("apply_ranks: report ", plain(i), " is of rank ", plain(header->rank_index), ", as report ",
                     plain(first - reports.begin()), ": each rank reports once");
    }
    if (header->round != ours.round) {
      return invalid("apply_ranks: report ", plain(i), " is of round ", header->round, ", this rank is in round ",
                     ours.round, ": all ranks report, and then all apply, once in each round");
    }
    place = reports[i];
    earliest = std::min(earliest, header->now);
    latest = std::max(latest, header->now);
  }
  if (!std::ranges::equal(ours.by_rank[ours.rank_index], ours.bytes)) {
    return invalid("apply_ranks: the report of rank ", plain(ours.rank_index),
                   " is not the last one that this rank gave");
  }
  if (earliest < 0 || latest - earliest > kRankTimesApartMax) {
    return invalid(
        "apply_ranks: the ranks' times, from ", plain(earliest), " to ", plain(latest),
        " ns, are more than an hour apart: give report_to_ranks() times that mean the same on all ranks, such "
        "as Unix time or the time since all have begun");
  }
  for (std::uint32_t rank = 0; rank < ours.rank_count; ++rank) QUIRE_TRY(check_report(rank));
  return latest;
}

// Whether the report of a rank is of a cache that is like this one.
Status Cache::Impl::check_report(std::uint32_t rank) {
  RankReports& ours = rank_reports;
  const TierParts& parts = tiers->parts;
  const auto other = [&](const auto&... why) {
    return fail(ErrorCode::Corrupt, message_of("apply_ranks: the report of rank ", plain(rank), " ", why...));
  };
  const auto other_way = [&](const char* what) {
    return other("is of a cache that went another way (", what,
                 "): ranks get the same calls in the same order, these two included. Begin anew on all ranks");
  };
  RankReportReader reader(ours.by_rank[rank]);
  const RankReportHeader header = *reader.read<RankReportHeader>();
  if (header.opened_as != ours.opened_as) {
    return other(
        "is of a cache that was opened otherwise: layout, pages, limits, policies, time limits and tiers below "
        "the host are the same on all ranks, and only rank_index and where something lies may differ");
  }
  if (header.decisions != word_at(ours.bytes, offsetof(RankReportHeader, decisions) / sizeof(std::uint64_t))) {
    return other_way("something else was decided");
  }
  bool is_right = header.lower_count == ours.failures.size() && reader.words(header.lower_count);
  std::optional<std::uint32_t> last;
  for (std::uint32_t i = 0; i < header.completion_count && is_right; ++i) {
    const std::optional<RankReportEntry> entry = reader.read<RankReportEntry>();
    is_right = entry && entry->kind < kTransferKindCount && entry->outcome < kTransferOutcomeCount &&
               entry->fault < kTransferFaultCount && reader.words(entry->word_count) &&
               (!last || entry->id.index > *last);
    if (!is_right) break;
    last = entry->id.index;
    is_right = parts.book.knows({.id = entry->id}) &&
               parts.book[*last].kind == static_cast<TransferKind>(entry->kind) &&
               entry->word_count <= tiers->parts.anchored_of(*last).size() &&
               !ours.has_told[(std::size_t{*last} * ours.rank_count) + rank];
  }
  return is_right && reader.is_at_end() ? Status{} : other_way("it has a transfer that this one has not begun");
}

// Adds what ranks tell to what they have told before. What all have told of by now is agreed.
void Cache::Impl::agree() {
  RankReports& ours = rank_reports;
  const TierParts& parts = tiers->parts;
  ours.agreed.clear();
  std::ranges::fill(ours.failures, 0);
  for (std::uint32_t rank = 0; rank < ours.rank_count; ++rank) {
    RankReportReader reader(ours.by_rank[rank]);
    const RankReportHeader header = *reader.read<RankReportHeader>();
    for (std::uint64_t& failures : ours.failures) failures |= *reader.read<std::uint64_t>();
    for (std::uint32_t i = 0; i < header.completion_count; ++i) {
      const RankReportEntry entry = *reader.read<RankReportEntry>();
      take_told(rank, entry, *reader.words(entry.word_count));
      if (ours.tallies[entry.id.index].told_count < ours.rank_count) continue;
      const RankTally tally = std::exchange(ours.tallies[entry.id.index], {});
      std::fill_n(ours.has_told.begin() + std::ptrdiff_t{entry.id.index} * ours.rank_count, ours.rank_count, false);
      const Transfer& transfer = parts.book[entry.id.index];
      const bool is_below = is_of_lower_tier(transfer.kind);
      Completion& whole = ours.agreed.emplace_back(
          Completion{.id = entry.id,
                     .kind = transfer.kind,
                     .tier = is_below ? parts.lowers[transfer.lower].settings.tier : Tier::Host,
                     .moved_bytes = tally.moved_bytes,
                     .busy_ns = tally.busy_ns});
      tally.merge.write_to(whole);
      const std::span<std::uint64_t> anchored = tiers->parts.anchored_of(entry.id.index);
      std::ranges::copy(anchored_told(entry.id.index), anchored.begin());
    }
  }
}

void Cache::Impl::take_told(std::uint32_t rank, const RankReportEntry& entry, std::span<const std::byte> words) {
  RankTally& tally = rank_reports.tallies[entry.id.index];
  rank_reports.has_told[(std::size_t{entry.id.index} * rank_reports.rank_count) + rank] = true;
  tally.merge.take(rank, {.outcome = static_cast<TransferOutcome>(entry.outcome),
                          .fault = static_cast<TransferFault>(entry.fault),
                          .good_pages = entry.good_pages});
  tally.moved_bytes = std::max(tally.moved_bytes, entry.moved_bytes);
  tally.busy_ns = std::max(tally.busy_ns, entry.busy_ns);
  const bool is_first = tally.told_count++ == 0;
  const std::span<std::uint64_t> anchored = anchored_told(entry.id.index);
  for (std::size_t page = 0; page < anchored.size(); ++page) {
    anchored[page] = word_at(words, page) & (is_first ? UINT64_MAX : anchored[page]);
  }
}

// As TierParts::anchored_of(), and what all ranks that have told of the transfer have.
std::span<std::uint64_t> Cache::Impl::anchored_told(std::uint32_t transfer) {
  LazyArray<std::uint64_t>& anchored = rank_reports.anchored;
  const std::size_t word_count = tiers->parts.anchored_of(transfer).size();
  if (word_count == 0) return {};
  return {anchored.data() + (transfer * (anchored.size() / rank_reports.tallies.size())), word_count};
}

}  // namespace quire
