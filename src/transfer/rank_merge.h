// SPDX-License-Identifier: Apache-2.0
//
// RankMerge: what several ranks, or shards of them, say of one transfer, as one answer. A page is there when every rank
// has it, so the answer has the least good_pages and the worst outcome; the fault is that of the rank which stopped
// first among those with this outcome. The order in which ranks are taken does not matter.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "quire/transfer.h"

namespace quire {

class RankMerge {
 public:
  void take(std::uint32_t rank, const Completion& answer) {
    const std::tuple reason{-badness(answer.outcome), answer.good_pages, rank};
    good_pages_ = is_first_ ? answer.good_pages : std::min(good_pages_, answer.good_pages);
    if (is_first_ || reason < reason_) {
      reason_ = reason;
      outcome_ = answer.outcome;
      fault_ = answer.fault;
    }
    is_first_ = false;
  }
  /// Changes of an answer what take() has merged.
  void write_to(Completion& whole) const {
    whole.good_pages = good_pages_;
    whole.outcome = outcome_;
    whole.fault = fault_;
  }

 private:
  // How bad an outcome is. Where one rank was cancelled and another one failed, the failure is what counts.
  [[nodiscard]] static int badness(TransferOutcome outcome) {
    switch (outcome) {
      case TransferOutcome::Ok:
        return 0;
      case TransferOutcome::Empty:
        return 1;
      case TransferOutcome::Cancelled:
        return 2;
      case TransferOutcome::TimedOut:
        return 3;
      case TransferOutcome::Failed:
        return 4;
    }
    return 4;
  }

  bool is_first_ = true;
  std::uint32_t good_pages_ = 0;
  TransferOutcome outcome_ = TransferOutcome::Ok;
  TransferFault fault_ = TransferFault::None;
  std::tuple<int, std::uint32_t, std::uint32_t> reason_;  // of the rank whose outcome and fault they are
};

}  // namespace quire
