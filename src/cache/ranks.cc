// SPDX-License-Identifier: Apache-2.0
//
// Cache: a cache for each rank. What one rank has heard of goes to the others as bytes, and all apply what all have.
#include <algorithm>
#include <array>

#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"
#include "transfer/rank_merge.h"

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

}  // namespace

// Reporting

Result<std::span<const std::byte>> Cache::report_to_ranks(TimeNs now, std::span<const Completion> moved) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (impl.config.host.rank_count > 1) {
    return unsupported("report_to_ranks: the cache drives all of host.rank_count = ",
                       plain(impl.config.host.rank_count), " ranks itself: poll() and apply()");
  }
  QUIRE_TRY(Impl::check_completions(moved, "report_to_ranks"));
  impl.open_reports();
  if (impl.has_host()) {
    impl.hear(impl.collect());
    impl.hear(moved);
  }
  impl.write_report(now);
  return std::span<const std::byte>(impl.rank_reports.bytes);
}

void Cache::Impl::open_reports() {
  if (std::exchange(rank_reports.is_on, true)) return;
  rank_reports.heard.reserve(completions.size());
  rank_reports.agreed.reserve(completions.size());
  for (Lower& lower : tiers->parts.lowers) lower.is_agreed = true;
  rank_reports.failures.resize(tiers->parts.lowers.size());
}

// Keeps what has ended until all ranks have it.
void Cache::Impl::hear(std::span<const Completion> ended) {
  const TransferBook& book = tiers->parts.book;
  for (Completion completion : ended) {
    if (!book.knows(completion) ||
        std::ranges::find(rank_reports.heard, completion.id, &Completion::id) != rank_reports.heard.end()) {
      ++counters.unknown_completion_count;
      continue;
    }
    completion.kind = book[completion.id.index].kind;
    // Ok means all pages, and is told as their number, with which that of another rank is compared.
    const bool has_all = completion.outcome == TransferOutcome::Ok && !asks_for_path(completion.kind);
    if (has_all) completion.good_pages = book[completion.id.index].page_count;
    rank_reports.heard.push_back(completion);
  }
}

void Cache::Impl::write_report(TimeNs now) {
  const TierParts& parts = tiers->parts;
  std::vector<std::byte>& bytes = rank_reports.bytes;
  bytes.clear();
  append_piece(bytes, RankReportHeader{.round = rank_reports.round,
                                       .now = now,
                                       .lower_count = static_cast<std::uint32_t>(parts.lowers.size()),
                                       .completion_count = static_cast<std::uint32_t>(rank_reports.heard.size())});
  for (const Lower& lower : parts.lowers) append_piece(bytes, lower.own_failed_pools(parts.homes.size()));
  for (const Completion& each : rank_reports.heard) {
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
    for (const std::uint64_t word : words) append_piece(bytes, word);
  }
}

// Agreeing

Result<RankAgreement> Cache::apply_ranks(std::span<const std::span<const std::byte>> reports) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  RankReports& ours = impl.rank_reports;
  if (!ours.is_on || ours.bytes.empty()) {
    return invalid("apply_ranks: report_to_ranks() comes first, and its bytes go to all ranks");
  }
  if (reports.empty()) return invalid("apply_ranks: there are no reports: give those of all ranks, in the same order");
  QUIRE_TRY_ASSIGN(const TimeNs now, impl.read_reports(reports));
  impl.agree(static_cast<std::uint32_t>(reports.size()));
  ++ours.round;
  ours.bytes.clear();
  QUIRE_TRY(impl.advance(now));
  for (std::size_t i = 0; i < ours.failures.size(); ++i) impl.tiers->parts.lowers[i].failed_pools |= ours.failures[i];
  for (const Completion& completion : ours.agreed) {
    QUIRE_CHECK(impl.tiers->apply(completion), "ranks have agreed on a transfer that is over");
  }
  if (impl.has_host()) impl.follow_up();
  return RankAgreement{.now = now, .completions = ours.agreed};
}

// Takes the reports apart, and gives the time that they agree on. Nothing is changed when one of them is not right.
Result<TimeNs> Cache::Impl::read_reports(std::span<const std::span<const std::byte>> reports) {
  const TierParts& parts = tiers->parts;
  const auto is_own = [&](std::span<const std::byte> report) { return std::ranges::equal(report, rank_reports.bytes); };
  TimeNs now = parts.now;
  rank_reports.told.clear();
  std::ranges::fill(rank_reports.failures, 0);
  for (std::uint32_t rank = 0; rank < reports.size(); ++rank) {
    const auto broken = [&] {
      return invalid("apply_ranks: report ", plain(rank), " is damaged, or of another build");
    };
    RankReportReader reader(reports[rank]);
    const std::optional<RankReportHeader> header = reader.read<RankReportHeader>();
    if (!header || header->magic != kRankReportMagic) return broken();
    if (header->round != rank_reports.round) {
      return invalid("apply_ranks: report ", plain(rank), " is of round ", header->round, ", this rank is in round ",
                     rank_reports.round, ": all ranks report, and then all apply, once in each round");
    }
    if (header->lower_count != rank_reports.failures.size()) return strangers(rank, "another number of lower tiers");
    now = std::max(now, header->now);
    for (std::uint64_t& failures : rank_reports.failures) {
      const std::optional<std::uint64_t> told = reader.read<std::uint64_t>();
      if (!told) return broken();
      failures |= *told;
    }
    for (std::uint32_t i = 0; i < header->completion_count; ++i) {
      const std::optional<RankReportEntry> entry = reader.read<RankReportEntry>();
      if (!entry || entry->kind >= kTransferKindCount || entry->outcome >= kTransferOutcomeCount ||
          entry->fault >= kTransferFaultCount) {
        return broken();
      }
      const std::optional<std::span<const std::byte>> words = reader.words(entry->word_count);
      if (!words) return broken();
      const Completion completion{.id = entry->id};
      const bool is_known = parts.book.knows(completion) &&
                            parts.book[entry->id.index].kind == static_cast<TransferKind>(entry->kind) &&
                            entry->word_count <= tiers->parts.anchored_of(entry->id.index).size();
      if (!is_known) return strangers(rank, "a transfer that this rank has not begun");
      const bool is_twice = std::ranges::any_of(rank_reports.told, [&](const RankReports::Told& told) {
        return told.rank == rank && told.entry.id == entry->id;
      });
      if (is_twice) return broken();
      rank_reports.told.push_back({.rank = rank, .entry = *entry, .words = *words});
    }
    if (!reader.is_at_end()) return broken();
  }
  if (std::ranges::none_of(reports, is_own)) {
    return invalid("apply_ranks: the last report of this rank is not among them: give those of all ranks, its own too");
  }
  return now;
}

tl::unexpected<Error> Cache::Impl::strangers(std::uint32_t rank, const char* what) {
  return fail(ErrorCode::Corrupt, "apply_ranks: report " + std::to_string(rank) + " has " + what +
                                      ": caches of ranks have the same configuration but for rank_index, and are "
                                      "given the same calls in the same order");
}

// Merges what all ranks have, in the order of the first one, and takes it off what this rank has heard.
void Cache::Impl::agree(std::uint32_t rank_count) {
  rank_reports.agreed.clear();
  for (const RankReports::Told& first : rank_reports.told) {
    if (first.rank > 0) break;
    const auto is_same = [&](const RankReports::Told& told) { return told.entry.id == first.entry.id; };
    const auto heard = std::ranges::find(rank_reports.heard, first.entry.id, &Completion::id);
    if (heard == rank_reports.heard.end() || std::ranges::count_if(rank_reports.told, is_same) != rank_count) continue;
    Completion whole = *heard;
    const std::span<std::uint64_t> anchored = tiers->parts.anchored_of(whole.id.index);
    RankMerge merge;
    whole.moved_bytes = 0;
    whole.busy_ns = 0;
    for (const RankReports::Told& told : rank_reports.told) {
      if (!is_same(told)) continue;
      merge.take(told.rank, {.outcome = static_cast<TransferOutcome>(told.entry.outcome),
                             .fault = static_cast<TransferFault>(told.entry.fault),
                             .good_pages = told.entry.good_pages});
      // Each rank moves its own share at the same time as the others: the slowest one is what all wait for.
      whole.moved_bytes = std::max(whole.moved_bytes, told.entry.moved_bytes);
      whole.busy_ns = std::max(whole.busy_ns, told.entry.busy_ns);
      for (std::size_t page = 0; page < anchored.size(); ++page) anchored[page] &= word_at(told.words, page);
    }
    merge.write_to(whole);
    rank_reports.agreed.push_back(whole);
    rank_reports.heard.erase(heard);
  }
  rank_reports.told.clear();  // it points into the reports
}

}  // namespace quire
