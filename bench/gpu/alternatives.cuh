// SPDX-License-Identifier: Apache-2.0
//
// How pages are swapped elsewhere, for the same fragments: one copy for each, one batch of copies, one warp for each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <vector>

#include "quire/swap.h"
#include "quire/swap_kernels.h"
#include "quire/transfer.h"
#include "quire/types.h"

namespace quire::bench {

/// What is moved, in memory that outlives the call.
struct Pages {
  TransferKind kind = TransferKind::Load;
  std::span<const Fragment> fragments;  ///< as the model has them, not cut
  std::span<const PageId> device_pages;
  std::span<const RecordId> record_ids;
  std::byte* records = nullptr;
  std::uint64_t record_stride = 0;
};

void one_copy_each(const Pages& pages, cudaStream_t stream);

/// One call of the runtime with a list of copies, which is made beforehand.
class Batch {
 public:
  explicit Batch(const Pages& pages);
  void run(cudaStream_t stream) const;

 private:
  mutable std::vector<const void*> targets_;  // the runtime's arrays are not const
  mutable std::vector<const void*> sources_;
  std::vector<std::size_t> bytes_;
};

/// One warp for each fragment, four in a block, 8 bytes at a time. Takes its lists to the device beforehand.
class WarpEach {
 public:
  explicit WarpEach(const Pages& pages);
  ~WarpEach();
  WarpEach(const WarpEach&) = delete;
  WarpEach& operator=(const WarpEach&) = delete;
  void run(cudaStream_t stream) const;

 private:
  TransferKind kind_;
  std::uint64_t bytes_ = 0;  // of a fragment
  std::uint32_t count_ = 0;
  void* addresses_ = nullptr;  // on the device: source and target of each
};

}  // namespace quire::bench
