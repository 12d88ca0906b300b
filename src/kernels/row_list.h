// SPDX-License-Identifier: Apache-2.0
//
// Rows of one length, collected so that many are copied in one call, in the order they were added. Everything added is
// copied once flush() has returned.
//
// single-threaded
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/copy_rows.h"

namespace quire {

class RowList {
 public:
  RowList(CopyRows copy_rows, std::uint64_t row_bytes) : copy_rows_(copy_rows), row_bytes_(row_bytes) {}

  void add(const RowCopy& row) {
    rows_[count_++] = row;
    if (count_ == rows_.size()) flush();
  }
  void flush() {
    copy_rows_(std::span(rows_).first(count_), row_bytes_);
    count_ = 0;
  }

 private:
  CopyRows copy_rows_;
  std::uint64_t row_bytes_;
  std::size_t count_ = 0;
  std::array<RowCopy, 512> rows_;
};

}  // namespace quire
