// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a swap: pages that lie in fragments become records of consecutive bytes and the other way round, and
// are summed up in the same pass. A record is what the host tier and the disk have of a page, and its checksum is the
// one that kernels/copy_checked.h defines, whoever computes it.
//
//     device, fragment f of page p   fragments[f].first + p * fragments[f].page_stride
//     record                         [fragment 0][fragment 1]…, at fragments[f].record_offset
//
// Each has a launcher for a GPU (quire::cuda) and a twin on the host, which judges it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace quire {

/// The same bytes of every page: of one layer, one component, or a piece of that.
struct Fragment {
  std::byte* first = nullptr;     ///< of page 0
  std::uint64_t page_stride = 0;  ///< from one page to the next
  std::uint64_t record_offset = 0;
  std::uint64_t bytes = 0;
};
/// Of a fragment that a kernel is given; longer ones are cut.
inline constexpr std::uint64_t kFragmentBytesMax = 4096;

/// One page of a swap.
struct SwapItem {
  std::uint32_t device_page = 0;
  std::uint32_t host_page = 0;  ///< number of its record, from 0
  std::uint64_t expected = 0;   ///< the checksum that the record should have, of a load that knows
};

enum class FragmentWay : std::uint8_t {
  ToRecords,
  FromRecords,
  SumOnly,  ///< of the fragments; there are no records
};

/// Where the record of an item lies.
enum class RecordOrder : std::uint8_t {
  ByItem,      ///< item i has record i: in staging memory
  ByHostPage,  ///< the host tier's own
};

struct FinishChecksumsParams {
  std::span<const SwapItem> items = {};  ///< where move_fragments() had them
  std::span<std::uint64_t> sums = {};    ///< [items] ChecksumPart::sum of all fragments; 0 from then on
  std::uint64_t record_bytes = 0;
  std::span<std::uint64_t> checksums = {};  ///< [items] that the host reads: written
  /// The first item whose checksum is not the expected one, or the number of items: written, by one who has looked at
  /// all of them. Null: nobody compares.
  std::uint64_t* first_bad = nullptr;
};

struct MoveFragmentsParams {
  FragmentWay way = FragmentWay::ToRecords;
  RecordOrder record_order = RecordOrder::ByItem;
  std::uint8_t access_bytes = 1;      ///< 16, 4 or 1: every address, stride, offset and length is a multiple of it
  std::uint32_t block_count_max = 1;  ///< thread blocks, of 1024 threads
  std::span<const Fragment> fragments = {};  ///< on the device, none longer than kFragmentBytesMax
  std::span<const SwapItem> items = {};      ///< on the device, or registered host memory that it reaches
  bool are_items_on_host = false;            ///< then the first few travel with the launch
  std::span<std::uint64_t> sums = {};        ///< [items] on the device: added to; empty: nothing is summed up
  std::byte* records = nullptr;              ///< record 0
  std::uint64_t record_stride = 0;
  std::uint64_t record_begin = 0;  ///< offset in a whole record that the first byte of those at `records` has
  /// Finishes the checksums of the same items behind the last fragment, for a call that has one kernel.
  std::optional<FinishChecksumsParams> finish = std::nullopt;
  std::uint32_t* blocks_done = nullptr;  ///< with finish: 0, on the device, and 0 again behind the kernel
};

void move_fragments_on_host(const MoveFragmentsParams& params);
void finish_checksums_on_host(const FinishChecksumsParams& params);

}  // namespace quire
