// SPDX-License-Identifier: Apache-2.0
#include "transfer/rank_host_pages.h"

#include <cstring>

#include "base/check.h"
#include "base/mutants.h"

namespace quire {

Result<std::unique_ptr<RankHostPages>> RankHostPages::create(std::span<HostPages* const> ranks,
                                                             std::uint32_t page_count) {
  auto pages = std::unique_ptr<RankHostPages>(new RankHostPages);
  pages->ranks_.assign(ranks.begin(), ranks.end());
  QUIRE_TRY_ASSIGN(pages->records_,
                   LazyArray<std::span<std::byte>>::create((std::size_t{page_count} + 1) * ranks.size()));
  return pages;
}

TransferFault RankHostPages::begin_read(const PageTransfer& page, Record& record) {
  return ranks_.front()->begin_read(page, record);
}

void RankHostPages::end_read(const PageTransfer& page) {
  ranks_.front()->end_read(page);
}

TransferFault RankHostPages::begin_write(const PageTransfer& page, std::span<std::byte>& bytes) {
  std::span<std::byte>* const records = &records_[page.host_page.value * ranks_.size()];
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const TransferFault fault = ranks_[i]->begin_write(page, records[i]);
    if (fault == TransferFault::None) continue;
    for (std::size_t begun = 0; begun < i; ++begun) ranks_[begun]->end_write(page, std::nullopt);
    return fault;
  }
  bytes = records[0];
  return TransferFault::None;
}

void RankHostPages::end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) {
  const std::span<std::byte>* const records = &records_[page.host_page.value * ranks_.size()];
  for (std::size_t i = 1; i < ranks_.size(); ++i) {
    QUIRE_CHECK(records[i].size() == records[0].size(), "ranks that hold the same bytes have pages of one size");
    if (checksum && !is_mutated(Mutant::OneRankArrives)) {
      std::memcpy(records[i].data(), records[0].data(), records[0].size());
    }
    ranks_[i]->end_write(page, checksum);
  }
  ranks_.front()->end_write(page, checksum);
}

}  // namespace quire
