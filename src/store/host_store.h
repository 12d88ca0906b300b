// SPDX-License-Identifier: Apache-2.0
//
// HostStore: the host pages of one pool. A page is a record of all its layers, one behind the other, in a HostRegion of
// its own or in a piece of one that several share:
//
//     region   [page 1: layer 0 | layer 1 | …][page 2: layer 0 | …]…      a multiple of 64 bytes each
//     beside   generation, name tag, checksum, and whether there is data
//
// Where groups share their page ids, a page has a part of each of them, with layers of its own size. The layers of all
// parts count on from 0, in the order of the parts, and lie one behind the other in the record; checksum, generation
// and tag are the page's.
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
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "kernels/copy_checked.h"
#include "quire/layout.h"
#include "quire/mover.h"
#include "quire/result.h"
#include "quire/transfer.h"
#include "store/host_pages.h"
#include "store/host_region.h"

namespace quire {

struct RecordPart {
  std::uint64_t layer_bytes = 0;
  std::uint32_t layer_count = 0;
};

struct HostStoreConfig {
  std::vector<RecordPart> parts;
  std::uint32_t page_count = 0;  ///< ids lie in [1, page_count]
  bool checksums = true;
  HostRegionConfig region;      ///< of its own
  std::byte* memory = nullptr;  ///< in place of that: memory_bytes() of somebody's, zero at first and aligned to 64
};

/// Device pages that the processor can reach, of one part.
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
  std::span<const DevicePages> device;  ///< one for each part
  PageTransfer page;                    ///< in both pools
  LayerRange layers;
};

class HostStore : public HostPages {
 public:
  /// What the records take. Fails on pages without bytes, and when it is more than memory can address.
  [[nodiscard]] static Result<std::uint64_t> memory_bytes(const HostStoreConfig& config);
  [[nodiscard]] static Result<std::unique_ptr<HostStore>> open(const HostStoreConfig& config,
                                                               const RegionCalls& calls = RegionCalls::real());

  /// Device to host. `sum` goes from piece to piece and begins as {}; the last layer makes the page have data.
  [[nodiscard]] TransferFault write_layers(const PagePiece& piece, ChecksumPart& sum);
  /// Host to device. The last layer's answer is the one about the bytes.
  [[nodiscard]] TransferFault read_layers(const PagePiece& piece, ChecksumPart& sum);
  /// All layers at once.
  [[nodiscard]] TransferFault write_page(std::span<const DevicePages> device, const PageTransfer& page);
  [[nodiscard]] TransferFault read_page(std::span<const DevicePages> device, const PageTransfer& page);

  [[nodiscard]] TransferFault begin_read(const PageTransfer& page, Record& out) override;
  void end_read(const PageTransfer& page) override;
  [[nodiscard]] TransferFault begin_write(const PageTransfer& page, std::span<std::byte>& bytes) override;
  void end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) override;

  /// No page has data, and the memory of a region of its own is the system's again. Fails only where that does. Nobody
  /// reads or writes meanwhile.
  [[nodiscard]] Status forget();

  [[nodiscard]] std::uint32_t page_count() const { return page_count_; }
  /// Of all parts.
  [[nodiscard]] std::uint32_t layer_count() const { return layer_count_; }
  /// Of these layers of a page.
  [[nodiscard]] std::uint64_t bytes_of(LayerRange layers) const;
  [[nodiscard]] const HostRegionStatus& region_status() const { return region_.status(); }

 private:
  friend struct HostStorePeer;  // tests break what reads must notice

  enum class State : std::uint8_t { NoData, BeingWritten, HasData };
  enum class Access : std::uint8_t { Read, Write };
  class Claim;

  // Where in a record a part lies.
  struct Part {
    std::uint64_t offset = 0;
    std::uint64_t layer_bytes = 0;
    std::uint32_t first_layer = 0;
    std::uint32_t layer_count = 0;
    /// Those of `layers` that are the part's, counted from its first.
    [[nodiscard]] LayerRange common(LayerRange layers) const;
  };
  struct PartCopy;

  // What is known of each page. Zero: no data.
  struct PageFacts {
    LazyArray<std::uint32_t> claims;  // who is at the page right now: a writer, or so many readers
    LazyArray<State> states;
    LazyArray<std::uint32_t> generations;
    LazyArray<std::uint64_t> name_tags;
    LazyArray<std::uint64_t> checksums;
  };

  HostStore() = default;
  [[nodiscard]] static Result<std::unique_ptr<HostStore>> without_memory(const HostStoreConfig& config);
  [[nodiscard]] static Result<PageFacts> make_facts(std::uint32_t page_count);
  [[nodiscard]] std::uint32_t index_of(PageId host_page) const;
  [[nodiscard]] std::uint32_t index_of(const PagePiece& piece) const;
  [[nodiscard]] bool try_claim(std::uint32_t index, Access access);
  void release_claim(std::uint32_t index, Access access);
  [[nodiscard]] std::byte* record(std::uint32_t index) const { return records_ + (index * record_bytes_); }
  [[nodiscard]] TransferFault fault_of(std::uint32_t index, const PageTransfer& page, State wanted) const;
  void copy(const PagePiece& piece, Access access, ChecksumPart& sum) const;
  void copy_part(const PartCopy& copy, Access access, ChecksumPart& sum) const;
  [[nodiscard]] PagePiece whole(std::span<const DevicePages> device, const PageTransfer& page) const;

  std::vector<Part> parts_;
  std::uint32_t page_count_ = 0;
  std::uint32_t layer_count_ = 0;
  bool has_checksums_ = true;
  std::uint64_t page_bytes_ = 0;
  std::uint64_t record_bytes_ = 0;  // page_bytes_ and what is missing to a multiple of 64
  HostRegion region_;               // empty where the memory is somebody else's
  std::byte* records_ = nullptr;
  PageFacts facts_;
};

}  // namespace quire
