// SPDX-License-Identifier: Apache-2.0
//
// A snapshot of what a Cache holds and has done. Levels are as of now; the rest counts since open().
#pragma once

#include <array>
#include <cstdint>

#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

/// One group's pages on the device. page_count = free + open + sealed + private + fenced.
struct GroupStats {
  std::uint32_t page_count = 0;
  std::uint32_t free_pages = 0;
  std::uint32_t open_pages = 0;
  std::uint32_t sealed_pages = 0;  ///< that requests can find: pinned + evictable
  std::uint32_t private_pages = 0;
  std::uint32_t fenced_pages = 0;
  std::uint32_t pinned_pages = 0;
  std::uint32_t evictable_pages = 0;
  std::uint64_t sealed_page_total = 0;     ///< since open(): that could be found
  std::uint64_t duplicate_page_total = 0;  ///< computed in vain
  std::uint64_t evicted_page_total = 0;    ///< given up for others of the group
  std::uint64_t dropped_page_total = 0;  ///< gone with the history that they belonged to, or passed and not to be kept
  std::uint64_t skipped_snapshot_total = 0;  ///< not taken, for want of a page
  std::uint64_t restored_snapshot_total = 0;
  std::uint64_t loaded_page_total = 0;  ///< from the host
  std::uint64_t disk_loaded_page_total = 0;
  std::uint64_t disk_stored_page_total = 0;
  std::uint64_t remote_loaded_page_total = 0;
  std::uint64_t remote_stored_page_total = 0;
  std::uint32_t host_page_count = 0;
  std::uint32_t host_free_pages = 0;
  std::uint32_t host_sealed_pages = 0;
  std::uint32_t slot_count = 0;  ///< state slots, where the group keeps something in them
  std::uint32_t used_slots = 0;
};

struct Stats {
  // Device pages now, of the groups that keep everything. page_count = free + open + sealed + private + fenced.
  std::uint32_t page_count = 0;
  std::uint32_t free_pages = 0;
  std::uint32_t open_pages = 0;
  std::uint32_t sealed_pages = 0;
  std::uint32_t private_pages = 0;
  std::uint32_t fenced_pages = 0;  ///< given back while steps or transfers may read them; free when these have ended
  std::uint32_t saved_pages = 0;   ///< on the host, of preempted sequences
  // Sealed pages now. sealed = pinned + evictable; softly pinned ones are evictable.
  std::uint32_t pinned_pages = 0;
  std::uint32_t evictable_pages = 0;
  std::uint32_t soft_pinned_pages = 0;
  std::uint32_t kept_pages = 0;          ///< held by keep(), as counted against keep_pages_max
  std::uint32_t chunk_pages = 0;         ///< that can be found by their own tokens
  std::uint32_t chunk_pinned_pages = 0;  ///< held by ChunkPins, as counted against ChunkConfig::pinned_pages_max
  std::uint32_t held_pages = 0;          ///< held by hold_on_host(), as counted against hold_pages_max

  std::uint32_t run_count = 0;
  std::uint32_t key_space_count = 0;
  std::uint32_t sequence_count = 0;  ///< live, waiting ones included
  std::uint32_t waiting_sequence_count = 0;

  std::uint64_t begun_sequence_count = 0;
  std::uint64_t admitted_sequence_count = 0;  ///< resumed ones whose pages were dropped, again
  std::uint64_t forked_sequence_count = 0;
  std::uint64_t preempted_sequence_count = 0;
  std::uint64_t planned_step_count = 0;
  std::uint64_t short_plan_count = 0;  ///< plan_step calls that found too few pages
  std::uint64_t aborted_step_count = 0;

  std::uint64_t prompt_tokens = 0;       ///< of admitted sequences, and all tokens of resumed ones
  std::uint64_t hit_tokens = 0;          ///< of those, found in the cache; partial_hit_tokens included
  std::uint64_t partial_hit_tokens = 0;  ///< found at the start of a page, and copied
  std::uint64_t computed_tokens = 0;     ///< by finished steps; those that ran again or were rejected included
  std::uint64_t received_tokens = 0;     ///< computed elsewhere

  std::uint64_t sealed_page_total = 0;     ///< pages that entered the tree
  std::uint64_t duplicate_page_total = 0;  ///< pages computed in vain: the tree had them by then
  std::uint64_t evicted_page_total = 0;
  std::uint64_t dropped_page_total = 0;  ///< by drop() and reset()

  // The host tier now. host_page_count = free + filling + cached + saved, and what transfers still read.
  std::uint32_t host_page_count = 0;
  std::uint32_t host_free_pages = 0;
  std::uint32_t host_only_pages = 0;  ///< cached there and not on the device
  std::uint32_t host_copy_pages = 0;  ///< copies of device pages
  std::uint32_t host_filling_pages = 0;
  std::uint32_t leaving_pages = 0;        ///< device pages to be given up once they are copied
  std::uint32_t clean_reserve_pages = 0;  ///< device pages given up but for the asking
  // What the memory of the cache's own mover lies in; Cache::host_region() says why not, where something was refused.
  bool host_has_huge_pages = false;
  bool host_is_on_numa_node = false;
  bool host_is_locked = false;
  std::uint32_t transfers_in_flight = 0;
  std::uint32_t transfers_moving = 0;  ///< of these, those whose completion is still to come; others wait for them
  std::uint32_t loading_sequence_count = 0;
  bool disk_is_on = false;               ///< there is a disk tier, and it works
  bool disk_has_failed = false;          ///< there was one; the cache goes on without. Cache::disk_status() says why.
  std::uint32_t disk_waiting_pages = 0;  ///< host pages still to be written
  bool remote_is_on = false;             ///< there is a remote tier, and it can be used now
  bool remote_has_failed = false;  ///< there is one, and it cannot: it is asked again later. Cache::remote_status().
  std::uint32_t remote_waiting_pages = 0;

  std::uint64_t host_hit_tokens = 0;  ///< of hit_tokens, those that were loaded for the request
  std::uint64_t lost_page_total = 0;  ///< of evicted_page_total, those that are in no tier any more
  std::uint64_t host_evicted_page_total = 0;
  std::uint64_t loaded_page_total = 0;
  std::uint64_t stored_page_total = 0;
  std::uint64_t disk_hit_tokens = 0;  ///< of hit_tokens, those that were read from disk for the request
  std::uint64_t disk_find_count = 0;  ///< times that requests looked on disk
  std::uint64_t disk_found_page_total = 0;
  std::uint64_t disk_loaded_page_total = 0;  ///< that came to the host
  std::uint64_t disk_stored_page_total = 0;
  std::uint64_t disk_loaded_bytes = 0;
  std::uint64_t disk_stored_bytes = 0;  ///< written, with everything around the pages
  std::array<std::uint64_t, kTransferOutcomeCount> disk_load_outcomes{};
  std::array<std::uint64_t, kTransferOutcomeCount> disk_store_outcomes{};
  // The same of the remote tier.
  std::uint64_t remote_hit_tokens = 0;
  std::uint64_t remote_find_count = 0;
  std::uint64_t remote_found_page_total = 0;
  std::uint64_t remote_loaded_page_total = 0;
  std::uint64_t remote_stored_page_total = 0;
  std::uint64_t remote_loaded_bytes = 0;
  std::uint64_t remote_stored_bytes = 0;
  std::array<std::uint64_t, kTransferOutcomeCount> remote_load_outcomes{};
  std::array<std::uint64_t, kTransferOutcomeCount> remote_store_outcomes{};
  std::uint64_t loaded_bytes = 0;
  std::uint64_t stored_bytes = 0;
  /// Transfers by TransferOutcome.
  std::array<std::uint64_t, kTransferOutcomeCount> load_outcomes{};
  std::array<std::uint64_t, kTransferOutcomeCount> store_outcomes{};
  std::array<std::uint64_t, kTransferFaultCount> load_faults{};  ///< of failed loads, by TransferFault
  std::uint64_t unknown_completion_count = 0;                    ///< applied twice, or of no transfer
  /// Requests and tokens that had to be computed, by MissReason of the first.
  std::array<std::uint64_t, kMissReasonCount> miss_requests{};
  std::array<std::uint64_t, kMissReasonCount> miss_tokens{};
  double load_bytes_per_ns = 0;  ///< as measured by completions; 0: not yet
  double store_bytes_per_ns = 0;
};

}  // namespace quire
