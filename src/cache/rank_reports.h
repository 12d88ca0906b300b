// SPDX-License-Identifier: Apache-2.0
//
// RankReports: what ranks with a cache each tell one another, so that all apply the same completions. A report is bytes
// of 8-byte words, which mean the same in any process of the same build:
//
//     RankReportHeader
//     failed pools                one word for each lower tier
//     for each transfer that this rank has ended since the last agreement, by its index:
//         RankReportEntry
//         anchored                word_count words: for each page that a question asks for, a bit for each anchored
//                                 group that has it; words behind the last one with a bit are left out
//
// What was in a report that all have applied is not told again: each rank keeps a RankTally of each transfer until all
// have told.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/lazy_array.h"
#include "quire/transfer.h"
#include "quire/types.h"
#include "transfer/rank_merge.h"

namespace quire {

inline constexpr std::uint64_t kRankReportMagic = 0x32'54'52'50'52'49'55'51;  // "QUIRPRT2"
inline constexpr std::uint32_t kRanksMax = 1'024;
/// So far apart may the times of ranks be: further ones are damage, or of clocks that have nothing to do with each
/// other.
inline constexpr TimeNs kRankTimesApartMax = TimeNs{3'600} * 1'000'000'000;

struct RankReportHeader {
  std::uint64_t magic = kRankReportMagic;
  std::uint64_t checksum = 0;   // of all that follows
  std::uint64_t opened_as = 0;  // a hash of what ranks have in common
  std::uint64_t decisions = 0;  // a hash of what was decided until this report
  std::uint64_t round = 0;      // how many agreements there were
  TimeNs now = 0;
  std::uint32_t rank_index = 0;
  std::uint32_t rank_count = 0;
  std::uint32_t lower_count = 0;
  std::uint32_t completion_count = 0;
};

struct RankReportEntry {
  TransferId id;
  std::uint64_t moved_bytes = 0;
  TimeNs busy_ns = 0;
  std::uint32_t good_pages = 0;
  std::uint32_t word_count = 0;
  std::uint8_t kind = 0;
  std::uint8_t outcome = 0;
  std::uint8_t fault = 0;
  std::uint8_t unused[5] = {};  // so that bytes are the same wherever contents are
};
static_assert(sizeof(RankReportHeader) == 64 && sizeof(RankReportEntry) == 40);

[[nodiscard]] inline std::uint64_t rank_report_checksum(std::span<const std::byte> report) {
  constexpr std::size_t kSummedFrom = offsetof(RankReportHeader, opened_as);
  return hash_bytes(report.data() + kSummedFrom, report.size() - kSummedFrom, kRankReportMagic);
}

/// Reads a report piece by piece. Bytes that are not a report give nothing.
class RankReportReader {
 public:
  explicit RankReportReader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename Piece>
  [[nodiscard]] std::optional<Piece> read() {
    if (left_.size() < sizeof(Piece)) return std::nullopt;
    Piece piece;
    std::memcpy(&piece, left_.data(), sizeof(Piece));
    left_ = left_.subspan(sizeof(Piece));
    return piece;
  }
  /// The next words, as bytes: they need not be aligned.
  [[nodiscard]] std::optional<std::span<const std::byte>> words(std::uint64_t count) {
    if (left_.size() / sizeof(std::uint64_t) < count) return std::nullopt;
    const std::span<const std::byte> bytes = left_.first(count * sizeof(std::uint64_t));
    left_ = left_.subspan(bytes.size());
    return bytes;
  }
  [[nodiscard]] bool is_at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

/// What ranks have told of a transfer that some have not ended.
struct RankTally {
  bool is_heard = false;  // this rank has ended it
  std::uint32_t told_count = 0;
  RankMerge merge;
  // Each rank moves its own share at the same time as the others: the slowest one is what all wait for.
  std::uint64_t moved_bytes = 0;
  TimeNs busy_ns = 0;
};

/// What a cache that reports to other ranks keeps count of.
struct RankReports {
  bool is_on = false;
  bool is_late = false;  // this rank alone was told something, so that it can no longer begin to report
  std::uint32_t rank_index = 0;
  std::uint32_t rank_count = 0;
  std::uint64_t opened_as = 0;
  std::uint64_t round = 0;
  std::vector<Completion> heard;                    // by this rank, since the last agreement
  std::vector<std::byte> bytes;                     // the last report; empty: it was applied
  std::vector<std::span<const std::byte>> by_rank;  // reports while they are applied
  std::vector<RankTally> tallies;                   // by index in the book
  std::vector<bool> has_told;                       // a row of ranks for each of them
  LazyArray<std::uint64_t> anchored;                // a row for each of them: bits that all who told have set
  std::vector<std::uint64_t> failures;              // by lower tier: what any rank has told
  std::vector<Completion> agreed;                   // the last agreement
};

}  // namespace quire
