// SPDX-License-Identifier: Apache-2.0
//
// Arrival: what an admitted sequence waits for, and what became of it. A sequence first looks in lower tiers for what
// memory lacks, then loads what the host has, and then runs with what has come:
//
//     admit ─► Looking: questions, reads into host pages ─► Loading: from the host to the device ─► Running
//
// single-threaded
#pragma once

#include <cstdint>

#include "prefix/hit_rule.h"
#include "quire/types.h"
#include "tiers/transfer_book.h"

namespace quire {

struct Arrival {
  static constexpr std::uint32_t kNone = UINT32_MAX;

  TimeNs deadline = INT64_MAX;                   // when the sequence takes what there is
  MissReason load_miss = MissReason::None;       // why loads from the host brought less than they should
  MissReason lower_miss = MissReason::None;      // why lower tiers brought less than they have
  std::uint32_t limiting_group = Hit::kNoGroup;  // the group that limits what lower tiers can give
  std::uint32_t host_from = kNone;   // tokens that the device had at admission: what follows came from the host
  std::uint32_t lower_from = kNone;  // tokens that memory had: what follows came from a lower tier

  // Looking.
  std::uint32_t search = Transfer::kNone;  // that the sequence waits for; none: it waits for its turn
  std::uint64_t turn = 0;                  // a number drawn from a counter: the lowest one looks first
  TimeNs turn_deadline = INT64_MAX;
  std::uint32_t next_lower = 0;  // to be asked next; those before it were asked up to looked_pages
  std::uint32_t looked_pages = 0;

  // Loading.
  TimeNs room_deadline = INT64_MAX;  // of a wait for a transfer or for device pages
  bool has_asked_anchored = false;   // windows and states are asked for what `hit` needs
  Hit hit;
  std::uint32_t next_group = 0;   // whose loads are to be started next,
  std::uint32_t next_column = 0;  // from this column on

  // What has come.
  std::uint32_t host_tokens = 0;
  std::uint32_t lower_tokens = 0;

  /// Lower tiers are not asked any more.
  void stop_asking() {
    next_lower = UINT32_MAX;
    looked_pages = UINT32_MAX;
  }
};

}  // namespace quire
