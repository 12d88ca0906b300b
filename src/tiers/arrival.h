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
#include <optional>

#include "prefix/hit_rule.h"
#include "quire/types.h"

namespace quire {

struct Arrival {
  /// A place in the row of those that wait until they may look.
  struct Turn {
    std::uint64_t number = 0;  // drawn from a counter: the lowest one looks first
    TimeNs deadline = INT64_MAX;
  };
  /// What the sequence asks of windows and states, and how far it has.
  struct AnchoredNeed {
    Hit hit;
    std::uint32_t next_group = 0;   // whose loads are to be started next,
    std::uint32_t next_column = 0;  // from this column on
  };

  TimeNs deadline = INT64_MAX;                   // when the sequence takes what there is
  MissReason load_miss = MissReason::None;       // why loads from the host brought less than they should
  bool has_lost_pages = false;                   // of its own, which had been saved: load_miss tells of these
  MissReason lower_miss = MissReason::None;      // why lower tiers brought less than they have
  std::uint32_t limiting_group = Hit::kNoGroup;  // the group that limits what lower tiers can give
  std::optional<std::uint32_t> host_from;        // tokens, in whole pages, that the device could serve at admission
  std::optional<std::uint32_t> lower_from;       // the same of device and host, when a lower tier was first asked
  std::uint8_t asked = 0;                        // a bit for each lower tier that was asked, or need not be
  std::uint16_t lower = 0;                       // the lower tier that is asked now, or to be asked next
  std::optional<TimeNs> look_deadline;           // when the sequence stops looking, set when it begins to
  std::uint32_t looked_from = 0;                 // tokens that memory could serve when `lower` was asked
  std::uint32_t brought_tokens = 0;              // of what it could serve since, those that the search has brought
  std::uint32_t disk_gain = 0;                   // tokens that searches in Tier::Disk have brought
  std::uint32_t remote_gain = 0;                 // the same of Tier::Remote
  std::uint32_t looked_pages = 0;                // once memory has more pages than this, all tiers are asked again

  // One of these while Looking, and none later.
  std::optional<std::uint32_t> search;  // in TierParts::searches
  std::optional<Turn> turn;

  // While Loading.
  TimeNs room_deadline = INT64_MAX;      // of a wait for a transfer or for device pages
  bool waits_for_room = false;           // its next load finds no device pages, or no transfer
  bool has_let_go = false;               // of its path, whose pages others needed: it is looked for again
  std::uint64_t seen_step = 0;           // the number of the next step, when that was last looked at
  std::uint32_t idle_wakes = 0;          // how often nobody had done anything since
  std::optional<AnchoredNeed> anchored;  // once the history is there

  // What came from the host and from lower tiers: set by Cache::Impl::count_admission(), shown by Cache::view().
  std::uint32_t host_tokens = 0;
  std::uint32_t disk_tokens = 0;
  std::uint32_t remote_tokens = 0;

  /// A load has started.
  void end_wait_for_room() {
    room_deadline = INT64_MAX;
    waits_for_room = false;
    idle_wakes = 0;
  }
  void stop_looking() {
    search.reset();
    turn.reset();
  }
  /// Lower tiers are not asked any more.
  void stop_asking() {
    asked = UINT8_MAX;
    looked_pages = UINT32_MAX;
  }
};

}  // namespace quire
