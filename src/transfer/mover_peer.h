// SPDX-License-Identifier: Apache-2.0
//
// What tests need of a mover: to hold its workers at a certain piece, to make a piece fail, to refuse what it asks of
// the system, and to break what it has stored.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "quire/mover.h"
#include "quire/result.h"
#include "quire/transfer.h"
#include "store/host_region.h"
#include "store/host_store.h"
#include "store/numa_node.h"

namespace quire {

/// A worker is about to copy this.
struct PieceStart {
  TransferId id;
  TransferKind kind = TransferKind::Load;
  std::uint32_t band = 0;
  std::uint32_t page_index = 0;  ///< in the plan
};

struct MoverHooks {
  /// Called by workers, which hold no lock then: it may wait. A fault it answers is the piece's. With an accelerator,
  /// it is called once for each page of a transfer that is being started, ahead of its first band.
  std::function<TransferFault(const PieceStart& piece)> before_piece;
  const RegionCalls* calls = &RegionCalls::real();
  const NumaCalls* numa = &NumaCalls::real();
};

struct MoverPeer {
  [[nodiscard]] static Result<std::unique_ptr<Mover>> open(const MoverConfig& config, MoverHooks hooks);
  /// Of a mover that somebody else has opened, and that has nothing to do.
  static void set_hooks(Mover& mover, MoverHooks hooks);
  [[nodiscard]] static HostStore& host_store(Mover& mover, std::uint16_t pool_index = 0);
  /// How many are in wait(), wait_on() or pause() right now.
  [[nodiscard]] static std::uint32_t blocked_count(Mover& mover);
  /// Whether its destruction has begun, of one whose worker is held.
  [[nodiscard]] static bool is_stopping(Mover& mover);
};

}  // namespace quire
