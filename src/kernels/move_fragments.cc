// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/copy_checked.h"
#include "quire/swap_kernels.h"

namespace quire {

void move_fragments_on_host(const MoveFragmentsParams& params) {
  const CheckedCopier& copier = best_checked_copier();
  for (std::size_t i = 0; i < params.items.size(); ++i) {
    const SwapItem& item = params.items[i];
    const std::uint64_t record_index = params.record_order == RecordOrder::ByItem ? i : item.host_page;
    for (const Fragment& fragment : params.fragments) {
      QUIRE_CHECK(fragment.bytes <= kFragmentBytesMax, "a fragment is longer than kernels take");
      std::byte* const on_device = fragment.first + (item.device_page * fragment.page_stride);
      const bool is_to_record = params.way == FragmentWay::ToRecords;
      CopyPart part{.source = on_device, .bytes = fragment.bytes, .offset = fragment.record_offset};
      if (params.way == FragmentWay::SumOnly) {
        params.sums[i] += copier.sum(part).sum;
        continue;
      }
      std::byte* const in_record =
          params.records + (record_index * params.record_stride) + (fragment.record_offset - params.record_begin);
      part.source = is_to_record ? on_device : in_record;
      part.target = is_to_record ? in_record : on_device;
      if (!params.sums.empty()) {
        params.sums[i] += copier.copy_summed(part).sum;
      } else {
        copier.copy(part);
      }
    }
  }
  copier.settle();
  if (params.finish) finish_checksums_on_host(*params.finish);
}

void finish_checksums_on_host(const FinishChecksumsParams& params) {
  std::uint64_t first_bad = params.items.size();
  for (std::size_t i = params.items.size(); i-- > 0;) {
    const std::uint64_t checksum = ChecksumPart{params.sums[i]}.finish(params.record_bytes);
    params.sums[i] = 0;
    params.checksums[i] = checksum;
    if (checksum != params.items[i].expected) first_bad = i;
  }
  if (params.first_bad != nullptr) *params.first_bad = first_bad;
}

}  // namespace quire
