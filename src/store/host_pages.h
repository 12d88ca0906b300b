// SPDX-License-Identifier: Apache-2.0
//
// HostPages: the bytes of host pages as the tier below sees them. A seam, because a simulation has host pages of its
// own.
//
// thread-safe, as HostStore is
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "quire/transfer.h"

namespace quire {

class HostPages {
 public:
  virtual ~HostPages() = default;

  struct Record {
    std::span<const std::byte> bytes;
    std::optional<std::uint64_t> checksum;  ///< what the bytes should have, if that is known
  };
  /// The record of a page, which stays what it is until end_read(). A fault when the page is not what `page` says; then
  /// there is no end_read().
  [[nodiscard]] virtual TransferFault begin_read(const PageTransfer& page, Record& record) = 0;
  virtual void end_read(const PageTransfer& page) = 0;
  /// Where the bytes of a page go. Nobody can read it until end_write(). A fault when somebody is at the page.
  [[nodiscard]] virtual TransferFault begin_write(const PageTransfer& page, std::span<std::byte>& bytes) = 0;
  /// The page is what `page` says and has this checksum, or, without one, no data.
  virtual void end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) = 0;
};

}  // namespace quire
