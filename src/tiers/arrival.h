// SPDX-License-Identifier: Apache-2.0
//
// Arrival: what an admitted sequence waits for, and what became of it. A sequence first looks in lower tiers for what
// memory lacks, then loads what the host has, and then runs with what has come. These are states of its SequenceSlot:
//
//     admit ──► Looking ──────────────► Loading ──────────────► Running
//       │       asks a lower tier,      loads from the            ▲ ▲
//       │       reads into host pages;  host to the device        │ │
//       │       then the next tier ─────── nothing to load ───────┘ │
//       └────────────────── nothing to wait for ────────────────────┘
//
// admit goes straight to Loading when there is no lower tier to ask.
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
  std::uint32_t host_from = kNone;               // tokens, in whole pages, that the device could serve at admission
  std::uint32_t lower_from = kNone;              // the same of device and host, when a lower tier was first asked

  // Looking.
  std::uint32_t search = Transfer::kNone;  // in TierParts::searches; none: the sequence waits for its turn
  std::uint64_t turn = 0;                  // a number drawn from a counter: the lowest one looks first
  TimeNs turn_deadline = INT64_MAX;
  std::uint32_t next_lower = 0;    // the lower tier to be asked next
  std::uint32_t looked_pages = 0;  // once memory has more pages than this, all tiers are asked again

  // Loading.
  TimeNs room_deadline = INT64_MAX;  // of a wait for a transfer or for device pages
  bool has_asked_anchored = false;   // `hit`, next_group and next_column are set: loads of anchored groups may start
  Hit hit;
  std::uint32_t next_group = 0;   // the group whose loads are to be started next
  std::uint32_t next_column = 0;  // the column of that group from which they start

  // What came from the host and from lower tiers: set by Cache::Impl::count_admission(), shown by Cache::view().
  std::uint32_t host_tokens = 0;
  std::uint32_t lower_tokens = 0;

  /// Lower tiers are not asked any more.
  void stop_asking() {
    next_lower = UINT32_MAX;
    looked_pages = UINT32_MAX;
  }
};

}  // namespace quire
