// SPDX-License-Identifier: Apache-2.0
//
// RankHostPages: the host pages of several ranks that hold the same bytes, as the tier below sees one rank's. A page is
// read from the first rank, and written to all of them: the tier below fills the first rank's page, and the others get
// a copy when it is known to be right.
//
// thread-safe, as the ranks' pages are: one page is written by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "quire/result.h"
#include "store/host_pages.h"

namespace quire {

class RankHostPages final : public HostPages {
 public:
  /// `ranks` must outlive it. Ids of host pages are at most page_count.
  [[nodiscard]] static Result<std::unique_ptr<RankHostPages>> create(std::span<HostPages* const> ranks,
                                                                     std::uint32_t page_count);

  [[nodiscard]] TransferFault begin_read(const PageTransfer& page, Record& record) override;
  void end_read(const PageTransfer& page) override;
  /// A fault when it is one on any rank; then no rank's page has data.
  [[nodiscard]] TransferFault begin_write(const PageTransfer& page, std::span<std::byte>& bytes) override;
  void end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) override;

 private:
  RankHostPages() = default;

  std::vector<HostPages*> ranks_;
  LazyArray<std::span<std::byte>> records_;  // by host page, then by rank: where a page is being written
};

}  // namespace quire
