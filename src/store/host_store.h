// SPDX-License-Identifier: Apache-2.0
//
// HostStore: the pages of the host tier. A page is a record of all its layers, one behind the other, in one HostRegion:
//
//     region   [page 1: layer 0 | layer 1 | …][page 2: layer 0 | …]…      a multiple of 64 bytes each
//     beside   generation, name tag, checksum, and whether there is data
//
// A page has data from the moment its last layer is written until its first layer is written again: a write that fails
// or ends early leaves a page without data. A read delivers bytes first and says then whether they are right, so until
// it has said so nobody may look at them.
//
// thread-safe, except for forget(). Readers and writers of one page at the same time are a mistake of the plan: those
// who come later get a fault, and no byte of the record is touched by two.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/lazy_array.h"
#include "kernels/copy_checked.h"
#include "quire/layout.h"
#include "quire/mover.h"
#include "quire/result.h"
#include "quire/transfer.h"
#include "store/host_pages.h"
#include "store/host_region.h"

namespace quire {

struct HostStoreConfig {
  std::uint64_t layer_bytes = 0;
  std::uint32_t layer_count = 0;
  std::uint32_t page_count = 0;  ///< ids lie in [1, page_count]
  bool checksums = true;
  HostRegionConfig region;
};

/// Device pages that the processor can reach.
struct DevicePages {
  const PoolGeometry* geometry = nullptr;
  std::byte* memory = nullptr;
};

struct LayerRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// Some layers of one page. A page moves from layer 0 up, in any number of pieces.
struct PagePiece {
  DevicePages device;
  PageTransfer page;  ///< in both pools
  LayerRange layers;
};

class HostStore : public HostPages {
 public:
  [[nodiscard]] static Result<std::unique_ptr<HostStore>> open(const HostStoreConfig& config,
                                                               const RegionCalls& calls = RegionCalls::real());

  /// Device to host. `sum` goes from piece to piece and begins as {}; the last layer makes the page have data.
  [[nodiscard]] TransferFault write_layers(const PagePiece& piece, ChecksumPart& sum);
  /// Host to device. The last layer's answer is the one about the bytes.
  [[nodiscard]] TransferFault read_layers(const PagePiece& piece, ChecksumPart& sum);
  /// All layers at once.
  [[nodiscard]] TransferFault write_page(const DevicePages& device, const PageTransfer& page);
  [[nodiscard]] TransferFault read_page(const DevicePages& device, const PageTransfer& page);

  [[nodiscard]] TransferFault begin_read(const PageTransfer& page, Record& out) override;
  void end_read(const PageTransfer& page) override;
  [[nodiscard]] TransferFault begin_write(const PageTransfer& page, std::span<std::byte>& bytes) override;
  void end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) override;

  /// No page has data, and the memory is the system's again. Nobody reads or writes meanwhile.
  [[nodiscard]] Status forget();

  [[nodiscard]] std::uint32_t page_count() const { return config_.page_count; }
  [[nodiscard]] const HostRegionStatus& region_status() const { return region_.status(); }

 private:
  friend struct HostStorePeer;  // tests break what reads must notice

  enum class State : std::uint8_t { NoData, BeingWritten, HasData };
  enum class Access : std::uint8_t { Read, Write };
  class Claim;

  // What is known of each page. Zero: no data.
  struct PageFacts {
    LazyArray<std::uint32_t> claims;  // who is at the page right now: a writer, or so many readers
    LazyArray<State> states;
    LazyArray<std::uint32_t> generations;
    LazyArray<std::uint64_t> name_tags;
    LazyArray<std::uint64_t> checksums;
  };

  explicit HostStore(const HostStoreConfig& config);
  [[nodiscard]] static Result<PageFacts> make_facts(std::uint32_t page_count);
  [[nodiscard]] std::uint32_t index_of(PageId host_page) const;
  [[nodiscard]] std::uint32_t index_of(const PagePiece& piece) const;
  [[nodiscard]] bool try_claim(std::uint32_t index, Access access);
  void release_claim(std::uint32_t index, Access access);
  [[nodiscard]] std::byte* record(std::uint32_t index) const { return region_.data() + (index * record_bytes_); }
  [[nodiscard]] TransferFault fault_of(std::uint32_t index, const PageTransfer& page, State wanted) const;
  void copy(const PagePiece& piece, Access access, ChecksumPart& sum) const;
  [[nodiscard]] PagePiece whole(const DevicePages& device, const PageTransfer& page) const;

  HostStoreConfig config_;
  std::uint64_t page_bytes_ = 0;
  std::uint64_t record_bytes_ = 0;  // page_bytes_ and what is missing to a multiple of 64
  HostRegion region_;
  PageFacts facts_;
};

}  // namespace quire
