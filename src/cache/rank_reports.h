// SPDX-License-Identifier: Apache-2.0
//
// RankReports: what ranks with a cache each tell one another, so that all apply the same completions. A report is bytes
// of 8-byte words, which mean the same in any process of the same build:
//
//     RankReportHeader
//     failed pools                one word for each lower tier
//     for each completion that no agreement had yet, in the order in which the rank heard of them:
//         RankReportEntry
//         anchored                word_count words: for each page that a question asks for, a bit for each anchored
//                                 group that has it; words behind the last one with a bit are left out
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

inline constexpr std::uint64_t kRankReportMagic = 0x31'54'52'50'52'49'55'51;  // "QUIRPRT1"

struct RankReportHeader {
  std::uint64_t magic = kRankReportMagic;
  std::uint64_t round = 0;  // how many agreements there were
  TimeNs now = 0;
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
static_assert(sizeof(RankReportHeader) == 32 && sizeof(RankReportEntry) == 40);

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

/// What a cache that reports to other ranks keeps count of.
struct RankReports {
  /// A completion of one rank, as its report has it.
  struct Told {
    std::uint32_t rank = 0;
    RankReportEntry entry;
    std::span<const std::byte> words;  // in the report
  };

  bool is_on = false;
  std::uint64_t round = 0;
  std::vector<Completion> heard;        // by this rank, in their order; no agreement had them yet
  std::vector<std::byte> bytes;         // the last report
  std::vector<std::uint64_t> failures;  // by lower tier: what any rank has told
  std::vector<Told> told;               // of all ranks, in the order of the ranks
  std::vector<Completion> agreed;       // the last agreement
};

}  // namespace quire
