// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include "casters.h"
#include "quire/introspect.h"
#include "quire/stats.h"
#include "quire/transfer.h"
#include "structs.h"

namespace quire::python {

void bind_stats(nb::module_& module) {
  enum_class<TransferKind>(module, "TransferKind", "What a transfer moves, and where to.")
      .value("Load", TransferKind::Load, "host to device")
      .value("Store", TransferKind::Store, "device to host")
      .value("FindBelow", TransferKind::FindBelow)
      .value("LoadFromBelow", TransferKind::LoadFromBelow, "to the host")
      .value("StoreBelow", TransferKind::StoreBelow, "from the host")
      .value("PutBelow", TransferKind::PutBelow, "from memory of the caller's")
      .value("GetFromBelow", TransferKind::GetFromBelow)
      .value("DropBelow", TransferKind::DropBelow)
      .value("FlushBelow", TransferKind::FlushBelow);

  enum_class<TransferPriority>(module, "TransferPriority",
                               "Within a direction, those that somebody waits for go first.")
      .value("Waiting", TransferPriority::Waiting)
      .value("Background", TransferPriority::Background);

  enum_class<TransferOutcome>(module, "TransferOutcome", "How a transfer, or one band of it, ended.")
      .value("Ok", TransferOutcome::Ok)
      .value("Failed", TransferOutcome::Failed)
      .value("TimedOut", TransferOutcome::TimedOut)
      .value("Cancelled", TransferOutcome::Cancelled)
      .value("Empty", TransferOutcome::Empty, "there was nothing to move");

  enum_class<TransferFault>(module, "TransferFault", "Why a transfer failed.")
      .value("None_", TransferFault::None)
      .value("Checksum", TransferFault::Checksum, "the bytes are not those that were stored")
      .value("Generation", TransferFault::Generation, "the host page was handed out again since")
      .value("NameTag", TransferFault::NameTag, "the host page holds another page")
      .value("Io", TransferFault::Io, "the copy itself");

  enum_class<ResidencyCause>(module, "ResidencyCause", "Why pages came to or left a tier.")
      .value("Sealed", ResidencyCause::Sealed, "a sequence filled them")
      .value("Offered", ResidencyCause::Offered, "an engine with its own pool offered them")
      .value("Loaded", ResidencyCause::Loaded, "from a lower tier")
      .value("Stored", ResidencyCause::Stored, "a copy of what a higher tier holds")
      .value("Evicted", ResidencyCause::Evicted, "the policy gave them up for others")
      .value("Failed", ResidencyCause::Failed, "their bytes were found to be wrong")
      .value("Dropped", ResidencyCause::Dropped, "drop(key_space)")
      .value("Reset", ResidencyCause::Reset, "reset()");

  StructClass<GroupStats>(module, "GroupStats",
                          "One group's pages on the device. page_count = free + open + sealed + private + fenced.")
      .value("page_count", &GroupStats::page_count)
      .value("free_pages", &GroupStats::free_pages)
      .value("open_pages", &GroupStats::open_pages)
      .value("sealed_pages", &GroupStats::sealed_pages, "that requests can find: pinned + evictable")
      .value("private_pages", &GroupStats::private_pages)
      .value("fenced_pages", &GroupStats::fenced_pages)
      .value("pinned_pages", &GroupStats::pinned_pages)
      .value("evictable_pages", &GroupStats::evictable_pages)
      .value("sealed_page_total", &GroupStats::sealed_page_total, "since open(): that could be found")
      .value("duplicate_page_total", &GroupStats::duplicate_page_total, "computed in vain")
      .value("evicted_page_total", &GroupStats::evicted_page_total, "given up for others of the group")
      .value("dropped_page_total", &GroupStats::dropped_page_total,
             "gone with the history that they belonged to, or passed and not to be kept")
      .value("skipped_snapshot_total", &GroupStats::skipped_snapshot_total, "not taken, for want of a page")
      .value("restored_snapshot_total", &GroupStats::restored_snapshot_total)
      .value("loaded_page_total", &GroupStats::loaded_page_total, "from the host")
      .value("disk_loaded_page_total", &GroupStats::disk_loaded_page_total)
      .value("disk_stored_page_total", &GroupStats::disk_stored_page_total)
      .value("remote_loaded_page_total", &GroupStats::remote_loaded_page_total)
      .value("remote_stored_page_total", &GroupStats::remote_stored_page_total)
      .value("host_page_count", &GroupStats::host_page_count)
      .value("host_free_pages", &GroupStats::host_free_pages)
      .value("host_sealed_pages", &GroupStats::host_sealed_pages)
      .value("slot_count", &GroupStats::slot_count, "state slots, where the group keeps something in them")
      .value("used_slots", &GroupStats::used_slots)
      .without_constructor();

  StructClass<Stats>(module, "Stats", "What a cache holds now, and what it has done since open().")
      .value("page_count", &Stats::page_count)
      .value("free_pages", &Stats::free_pages)
      .value("open_pages", &Stats::open_pages)
      .value("sealed_pages", &Stats::sealed_pages)
      .value("private_pages", &Stats::private_pages)
      .value("fenced_pages", &Stats::fenced_pages,
             "given back while steps or transfers may read them; free when these have ended")
      .value("saved_pages", &Stats::saved_pages, "on the host, of preempted sequences")
      .value("pinned_pages", &Stats::pinned_pages)
      .value("evictable_pages", &Stats::evictable_pages)
      .value("soft_pinned_pages", &Stats::soft_pinned_pages)
      .value("kept_pages", &Stats::kept_pages, "held by keep(), as counted against keep_pages_max")
      .value("chunk_pages", &Stats::chunk_pages, "that can be found by their own tokens")
      .value("chunk_pinned_pages", &Stats::chunk_pinned_pages,
             "held by ChunkPins, as counted against ChunkConfig.pinned_pages_max")
      .value("held_pages", &Stats::held_pages, "held by hold_on_host(), as counted against hold_pages_max")
      .value("run_count", &Stats::run_count)
      .value("key_space_count", &Stats::key_space_count)
      .value("sequence_count", &Stats::sequence_count, "live, waiting ones included")
      .value("waiting_sequence_count", &Stats::waiting_sequence_count)
      .value("begun_sequence_count", &Stats::begun_sequence_count)
      .value("admitted_sequence_count", &Stats::admitted_sequence_count, "resumed ones whose pages were dropped, again")
      .value("forked_sequence_count", &Stats::forked_sequence_count)
      .value("preempted_sequence_count", &Stats::preempted_sequence_count)
      .value("planned_step_count", &Stats::planned_step_count)
      .value("short_plan_count", &Stats::short_plan_count, "plan_step calls that found too few pages")
      .value("aborted_step_count", &Stats::aborted_step_count)
      .value("prompt_tokens", &Stats::prompt_tokens, "of admitted sequences, and all tokens of resumed ones")
      .value("hit_tokens", &Stats::hit_tokens, "of those, found in the cache; partial_hit_tokens included")
      .value("partial_hit_tokens", &Stats::partial_hit_tokens, "found at the start of a page, and copied")
      .value("computed_tokens", &Stats::computed_tokens,
             "by finished steps; those that ran again or were rejected included")
      .value("received_tokens", &Stats::received_tokens, "computed elsewhere")
      .value("sealed_page_total", &Stats::sealed_page_total, "pages that entered the tree")
      .value("duplicate_page_total", &Stats::duplicate_page_total, "pages computed in vain: the tree had them by then")
      .value("evicted_page_total", &Stats::evicted_page_total)
      .value("dropped_page_total", &Stats::dropped_page_total, "by drop() and reset()")
      .value("host_page_count", &Stats::host_page_count)
      .value("host_free_pages", &Stats::host_free_pages)
      .value("host_only_pages", &Stats::host_only_pages, "cached there and not on the device")
      .value("host_copy_pages", &Stats::host_copy_pages, "copies of device pages")
      .value("host_filling_pages", &Stats::host_filling_pages)
      .value("leaving_pages", &Stats::leaving_pages, "device pages to be given up once they are copied")
      .value("clean_reserve_pages", &Stats::clean_reserve_pages, "device pages given up but for the asking")
      .value("host_has_huge_pages", &Stats::host_has_huge_pages)
      .value("host_is_on_numa_node", &Stats::host_is_on_numa_node)
      .value("host_is_locked", &Stats::host_is_locked)
      .value("transfers_in_flight", &Stats::transfers_in_flight)
      .value("transfers_moving", &Stats::transfers_moving,
             "of these, those whose completion is still to come; others wait for them")
      .value("loading_sequence_count", &Stats::loading_sequence_count)
      .value("disk_is_on", &Stats::disk_is_on, "there is a disk tier, and it works")
      .value("disk_has_failed", &Stats::disk_has_failed,
             "there was one; the cache goes on without. Cache.disk_status() says why.")
      .value("disk_waiting_pages", &Stats::disk_waiting_pages, "host pages still to be written")
      .value("remote_is_on", &Stats::remote_is_on, "there is a remote tier, and it can be used now")
      .value("remote_has_failed", &Stats::remote_has_failed,
             "there is one, and it cannot: it is asked again later. Cache.remote_status().")
      .value("remote_waiting_pages", &Stats::remote_waiting_pages)
      .value("host_hit_tokens", &Stats::host_hit_tokens, "of hit_tokens, those that were loaded for the request")
      .value("lost_page_total", &Stats::lost_page_total, "of evicted_page_total, those that are in no tier any more")
      .value("host_evicted_page_total", &Stats::host_evicted_page_total)
      .value("loaded_page_total", &Stats::loaded_page_total)
      .value("stored_page_total", &Stats::stored_page_total)
      .value("disk_hit_tokens", &Stats::disk_hit_tokens,
             "of hit_tokens, those that were read from disk for the request")
      .value("disk_find_count", &Stats::disk_find_count, "times that requests looked on disk")
      .value("disk_found_page_total", &Stats::disk_found_page_total)
      .value("disk_loaded_page_total", &Stats::disk_loaded_page_total, "that came to the host")
      .value("disk_stored_page_total", &Stats::disk_stored_page_total)
      .value("disk_loaded_bytes", &Stats::disk_loaded_bytes)
      .value("disk_stored_bytes", &Stats::disk_stored_bytes, "written, with everything around the pages")
      .value("disk_load_outcomes", &Stats::disk_load_outcomes)
      .value("disk_store_outcomes", &Stats::disk_store_outcomes)
      .value("remote_hit_tokens", &Stats::remote_hit_tokens, "The same of the remote tier.")
      .value("remote_find_count", &Stats::remote_find_count)
      .value("remote_found_page_total", &Stats::remote_found_page_total)
      .value("remote_loaded_page_total", &Stats::remote_loaded_page_total)
      .value("remote_stored_page_total", &Stats::remote_stored_page_total)
      .value("remote_loaded_bytes", &Stats::remote_loaded_bytes)
      .value("remote_stored_bytes", &Stats::remote_stored_bytes)
      .value("remote_load_outcomes", &Stats::remote_load_outcomes)
      .value("remote_store_outcomes", &Stats::remote_store_outcomes)
      .value("loaded_bytes", &Stats::loaded_bytes)
      .value("stored_bytes", &Stats::stored_bytes)
      .value("load_outcomes", &Stats::load_outcomes, "Transfers by TransferOutcome.")
      .value("store_outcomes", &Stats::store_outcomes)
      .value("load_faults", &Stats::load_faults, "of failed loads, by TransferFault")
      .value("unknown_completion_count", &Stats::unknown_completion_count, "applied twice, or of no transfer")
      .value("miss_requests", &Stats::miss_requests,
             "Requests and tokens that had to be computed, by MissReason of the first.")
      .value("miss_tokens", &Stats::miss_tokens)
      .value("load_bytes_per_ns", &Stats::load_bytes_per_ns, "as measured by completions; 0: not yet")
      .value("store_bytes_per_ns", &Stats::store_bytes_per_ns)
      .without_constructor();
}

}  // namespace quire::python
