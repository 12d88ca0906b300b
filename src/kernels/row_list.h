// SPDX-License-Identifier: Apache-2.0
//
// Rows of one shape, collected so that many are copied in one call, in the order they were added. Everything added is
// copied once flush() has returned.
//
// single-threaded
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/copy_rows.h"

namespace quire {

class RowList {
 public:
  RowList(CopyRows copy_rows, const RowShape& shape) : copy_rows_(copy_rows), shape_(shape) {}

  void add(const RowCopy& bundle) {
    bundles_[count_++] = bundle;
    if (count_ == bundles_.size()) flush();
  }
  void flush() {
    copy_rows_(std::span(bundles_).first(count_), shape_);
    count_ = 0;
  }

 private:
  CopyRows copy_rows_;
  RowShape shape_;
  std::size_t count_ = 0;
  std::array<RowCopy, 512> bundles_;
};

}  // namespace quire
