// SPDX-License-Identifier: Apache-2.0
//
// ResidencyLog: the last changes of residency, in a ring that never allocates. Writers never wait for readers: a reader
// keeps the number of the next record it wants, and learns how many it missed.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/introspect.h"

namespace quire {

class ResidencyLog {
 public:
  explicit ResidencyLog(std::uint32_t capacity) : records_(capacity) {}

  void append(ResidencyRecord record) {
    if (records_.empty()) return;
    record.number = next_number_;
    records_[next_number_ % records_.size()] = record;
    ++next_number_;
  }

  /// Copies records from number `first` on, oldest first, as many as fit; the oldest kept if `first` is older.
  [[nodiscard]] std::span<ResidencyRecord> read(std::uint64_t first, std::span<ResidencyRecord> out) const {
    const std::uint64_t oldest = next_number_ - std::min<std::uint64_t>(next_number_, records_.size());
    const std::uint64_t begin = std::clamp(first, oldest, next_number_);
    const std::size_t count = std::min<std::uint64_t>(out.size(), next_number_ - begin);
    for (std::size_t i = 0; i < count; ++i) out[i] = records_[(begin + i) % records_.size()];
    return out.first(count);
  }

  [[nodiscard]] std::uint64_t next_number() const { return next_number_; }

 private:
  std::vector<ResidencyRecord> records_;
  std::uint64_t next_number_ = 0;
};

}  // namespace quire
