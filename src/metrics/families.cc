// SPDX-License-Identifier: Apache-2.0
#include "metrics/families.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "quire/version.h"

namespace quire {
namespace {

constexpr double kNsPerSecond = 1e9;

// "timed out" becomes timed_out, as label values are by custom.
std::string label_value(std::string_view text) {
  std::string value(text);
  std::ranges::replace(value, ' ', '_');
  return value;
}

std::string to_label(TransferKind kind, Tier lower = Tier::Disk) {
  const std::string below(to_string(lower));
  switch (kind) {
    case TransferKind::Load:
      return "load";
    case TransferKind::Store:
      return "store";
    case TransferKind::FindBelow:
      return "find_on_" + below;
    case TransferKind::LoadFromBelow:
      return "load_from_" + below;
    case TransferKind::StoreBelow:
      return "store_to_" + below;
    case TransferKind::PutBelow:
      return "put_on_" + below;
    case TransferKind::GetFromBelow:
      return "get_from_" + below;
    case TransferKind::DropBelow:
      return "drop_on_" + below;
    case TransferKind::FlushBelow:
      return "flush_" + below;
  }
  return "unknown";
}

/// Builds families one after the other; samples belong to the family named last.
class FamilyList {
 public:
  FamilyList& counter(std::string_view name, std::string_view help) { return add(name, MetricType::Counter, help); }
  FamilyList& gauge(std::string_view name, std::string_view help) { return add(name, MetricType::Gauge, help); }
  FamilyList& histogram(std::string_view name, std::string_view help, std::span<const double> bounds) {
    add(name, MetricType::Histogram, help);
    families_.back().bounds = bounds;
    return *this;
  }

  template <typename Number>
  FamilyList& value(Number number) {
    return value({}, number);
  }
  template <typename Number>
  FamilyList& value(std::vector<MetricLabel> labels, Number number) {
    families_.back().metrics.push_back({.labels = std::move(labels), .value = static_cast<double>(number)});
    return *this;
  }
  FamilyList& value(std::vector<MetricLabel> labels, const Histogram& observed) {
    families_.back().metrics.push_back({.labels = std::move(labels), .histogram = observed});
    return *this;
  }

  [[nodiscard]] std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  FamilyList& add(std::string_view name, MetricType type, std::string_view help) {
    families_.push_back({.name = name, .type = type, .help = help});
    return *this;
  }

  std::vector<MetricFamily> families_;
};

// One sample for each value of an enumeration.
template <typename Enum, std::size_t kCount>
void add_by(FamilyList& list, std::string_view label, const std::array<std::uint64_t, kCount>& counts) {
  for (std::size_t i = 0; i < kCount; ++i) {
    list.value({{label, label_value(to_string(static_cast<Enum>(i)))}}, counts[i]);
  }
}

void add_requests(FamilyList& list, const Stats& s) {
  list.counter("quire_prompt_tokens_total", "Tokens of admitted sequences, and all tokens of resumed ones.")
      .value(s.prompt_tokens);
  list.counter("quire_hit_tokens_total", "Of the prompt tokens, found in the cache, by the tier they were in.")
      .value({{"tier", "device"}}, s.hit_tokens - s.host_hit_tokens - s.disk_hit_tokens - s.remote_hit_tokens)
      .value({{"tier", "host"}}, s.host_hit_tokens)
      .value({{"tier", "disk"}}, s.disk_hit_tokens)
      .value({{"tier", "remote"}}, s.remote_hit_tokens);
  list.counter("quire_partial_hit_tokens_total", "Of the hits on the device, found at the start of a page and copied.")
      .value(s.partial_hit_tokens);
  list.counter("quire_computed_tokens_total", "Computed by finished steps, repeated and rejected ones included.")
      .value(s.computed_tokens);
  list.counter("quire_received_tokens_total", "Computed by another cache.").value(s.received_tokens);
  list.counter("quire_miss_requests_total", "Admitted requests, by why their first missing page was not found.");
  add_by<MissReason>(list, "reason", s.miss_requests);
  list.counter("quire_miss_tokens_total", "Tokens these requests had to compute.");
  add_by<MissReason>(list, "reason", s.miss_tokens);

  list.gauge("quire_sequences", "Live sequences; running ones are admitted and load nothing.")
      .value({{"state", "waiting"}}, s.waiting_sequence_count)
      .value({{"state", "loading"}}, s.loading_sequence_count)
      .value({{"state", "running"}},
             s.sequence_count - std::min(s.sequence_count, s.waiting_sequence_count + s.loading_sequence_count));
  list.counter("quire_begun_sequences_total", "Sequences begun.").value(s.begun_sequence_count);
  list.counter("quire_admitted_sequences_total", "Sequences admitted, and resumed after a drop.")
      .value(s.admitted_sequence_count);
  list.counter("quire_forked_sequences_total", "Sequences forked from others.").value(s.forked_sequence_count);
  list.counter("quire_preempted_sequences_total", "Sequences preempted.").value(s.preempted_sequence_count);
  list.counter("quire_steps_total", "Steps planned.").value(s.planned_step_count);
  list.counter("quire_aborted_steps_total", "Steps aborted.").value(s.aborted_step_count);
  list.counter("quire_short_plans_total", "Plans refused because pages were short.").value(s.short_plan_count);
}

void add_pages(FamilyList& list, const Stats& s, const DiskStatus* disk) {
  const std::uint32_t host_known =
      s.host_free_pages + s.host_filling_pages + s.host_only_pages + s.host_copy_pages + s.saved_pages;
  const bool has_host = s.host_page_count > 0;
  list.gauge("quire_pages", "Pages, by tier and state.")
      .value({{"tier", "device"}, {"state", "free"}}, s.free_pages)
      .value({{"tier", "device"}, {"state", "open"}}, s.open_pages)
      .value({{"tier", "device"}, {"state", "sealed"}}, s.sealed_pages)
      .value({{"tier", "device"}, {"state", "private"}}, s.private_pages)
      .value({{"tier", "device"}, {"state", "fenced"}}, s.fenced_pages);
  if (has_host) {
    list.value({{"tier", "host"}, {"state", "free"}}, s.host_free_pages)
        .value({{"tier", "host"}, {"state", "filling"}}, s.host_filling_pages)
        .value({{"tier", "host"}, {"state", "only"}}, s.host_only_pages)
        .value({{"tier", "host"}, {"state", "copy"}}, s.host_copy_pages)
        .value({{"tier", "host"}, {"state", "saved"}}, s.saved_pages)
        .value({{"tier", "host"}, {"state", "held"}}, s.host_page_count - std::min(s.host_page_count, host_known));
  }
  if (disk != nullptr) list.value({{"tier", "disk"}, {"state", "live"}}, disk->page_count);
  list.gauge("quire_capacity_pages", "Pages that a tier can hold.").value({{"tier", "device"}}, s.page_count);
  if (has_host) list.value({{"tier", "host"}}, s.host_page_count);

  list.gauge("quire_pinned_pages", "Sealed device pages that somebody holds.").value(s.pinned_pages);
  list.gauge("quire_evictable_pages", "Sealed device pages that nobody holds.").value(s.evictable_pages);
  list.gauge("quire_soft_pinned_pages", "Of the evictable ones, those of waiting requests.").value(s.soft_pinned_pages);
  list.gauge("quire_kept_pages", "Device pages held by keep().").value(s.kept_pages);
  list.gauge("quire_chunk_pages", "Device pages that can be found by their own tokens.").value(s.chunk_pages);
  list.gauge("quire_chunk_pinned_pages", "Device pages held by ChunkPins.").value(s.chunk_pinned_pages);
  list.gauge("quire_held_pages", "Pages held on the host by hold_on_host().").value(s.held_pages);
  list.gauge("quire_leaving_pages", "Device pages to be given up once they are copied.").value(s.leaving_pages);
  list.gauge("quire_clean_reserve_pages", "Device pages with a copy, given up but for the asking.")
      .value(s.clean_reserve_pages);
  list.gauge("quire_runs", "Runs of the prefix tree.").value(s.run_count);
  list.gauge("quire_key_spaces", "Key spaces known.").value(s.key_space_count);

  list.counter("quire_sealed_pages_total", "Pages that entered the prefix tree.").value(s.sealed_page_total);
  list.counter("quire_duplicate_pages_total", "Pages computed in vain: the tree had them by then.")
      .value(s.duplicate_page_total);
  list.counter("quire_evicted_pages_total", "Pages evicted from a tier.")
      .value({{"tier", "device"}}, s.evicted_page_total);
  if (has_host) list.value({{"tier", "host"}}, s.host_evicted_page_total);
  if (disk != nullptr) list.value({{"tier", "disk"}}, disk->evicted_page_total);
  list.counter("quire_lost_pages_total", "Of those evicted from the device, in no other tier.")
      .value(s.lost_page_total);
  list.counter("quire_dropped_pages_total", "Pages forgotten by drop() and reset().").value(s.dropped_page_total);
}

struct Direction {
  std::string_view name;
  const std::array<std::uint64_t, kTransferOutcomeCount>& outcomes;
  std::uint64_t pages;
  std::uint64_t bytes;
};

void add_transfers(FamilyList& list, const Stats& s) {
  const std::array directions{
      Direction{"load", s.load_outcomes, s.loaded_page_total, s.loaded_bytes},
      Direction{"store", s.store_outcomes, s.stored_page_total, s.stored_bytes},
      Direction{"load_from_disk", s.disk_load_outcomes, s.disk_loaded_page_total, s.disk_loaded_bytes},
      Direction{"store_to_disk", s.disk_store_outcomes, s.disk_stored_page_total, s.disk_stored_bytes},
      Direction{"load_from_remote", s.remote_load_outcomes, s.remote_loaded_page_total, s.remote_loaded_bytes},
      Direction{"store_to_remote", s.remote_store_outcomes, s.remote_stored_page_total, s.remote_stored_bytes},
  };
  list.counter("quire_transfers_total", "Transfers that have ended, by kind and outcome.");
  for (const Direction& direction : directions) {
    for (std::size_t i = 0; i < kTransferOutcomeCount; ++i) {
      list.value(
          {{"kind", std::string(direction.name)}, {"outcome", label_value(to_string(static_cast<TransferOutcome>(i)))}},
          direction.outcomes[i]);
    }
  }
  list.counter("quire_transferred_pages_total", "Pages that arrived.");
  for (const Direction& direction : directions) list.value({{"kind", std::string(direction.name)}}, direction.pages);
  list.counter("quire_transferred_bytes_total", "Bytes moved; to disk with everything around the pages.");
  for (const Direction& direction : directions) list.value({{"kind", std::string(direction.name)}}, direction.bytes);
  list.gauge("quire_transfers_in_flight", "Transfers planned and not ended.").value(s.transfers_in_flight);
  list.counter("quire_load_faults_total", "Failed loads from the host, by fault; checksum means damaged bytes.");
  add_by<TransferFault>(list, "fault", s.load_faults);
  list.counter("quire_unknown_completions_total", "Completions of no transfer, or told twice.")
      .value(s.unknown_completion_count);
  list.gauge("quire_transfer_bytes_per_second", "As measured of late; 0: not yet.")
      .value({{"kind", "load"}}, s.load_bytes_per_ns * kNsPerSecond)
      .value({{"kind", "store"}}, s.store_bytes_per_ns * kNsPerSecond);
  list.gauge("quire_host_region_info", "What the memory of the host tier lies in.")
      .value({{"huge_pages", s.host_has_huge_pages ? "yes" : "no"},
              {"numa_node", s.host_is_on_numa_node ? "yes" : "no"},
              {"locked", s.host_is_locked ? "yes" : "no"}},
             1);

  list.gauge("quire_disk_up", "1: there is a disk tier, and it works.").value(s.disk_is_on ? 1 : 0);
  list.gauge("quire_disk_failed", "1: there was a disk tier, and the cache goes on without.")
      .value(s.disk_has_failed ? 1 : 0);
  list.gauge("quire_disk_waiting_pages", "Host pages still to be written to disk.").value(s.disk_waiting_pages);
  list.counter("quire_disk_finds_total", "Times that requests looked on disk.").value(s.disk_find_count);
  list.counter("quire_disk_found_pages_total", "Pages they found there.").value(s.disk_found_page_total);
  list.gauge("quire_remote_up", "1: there is a remote tier, and it can be used now.").value(s.remote_is_on ? 1 : 0);
  list.gauge("quire_remote_failed", "1: there is a remote tier, and it cannot be used now.")
      .value(s.remote_has_failed ? 1 : 0);
  list.gauge("quire_remote_waiting_pages", "Host pages still to be written to the remote tier.")
      .value(s.remote_waiting_pages);
  list.counter("quire_remote_finds_total", "Times that requests looked in the remote tier.").value(s.remote_find_count);
  list.counter("quire_remote_found_pages_total", "Pages they found there.").value(s.remote_found_page_total);
}

void add_remote(FamilyList& list, const RemoteTierStatus& r) {
  list.gauge("quire_remote_nodes", "Servers, by whether they are asked; those left alone are asked again later.")
      .value({{"state", "ok"}}, r.node_count - std::min(r.node_count, r.failed_nodes))
      .value({{"state", "failed"}}, r.failed_nodes);
  list.gauge("quire_remote_waiting_bytes", "Bytes of values that are not on their way yet.").value(r.waiting_bytes);
  list.gauge("quire_remote_extent_pages", "Pages of the history in one value.").value(r.extent_pages);
  list.gauge("quire_remote_answer_seconds", "How long answers take, as measured of late; 0: not yet.")
      .value(r.question_ns / kNsPerSecond);
  list.gauge("quire_remote_load_bytes_per_second", "As measured of late; 0: not yet.")
      .value(r.load_bytes_per_ns * kNsPerSecond);
  list.counter("quire_remote_names_total", "Names that were to be looked up, by whether a server was asked.")
      .value({{"asked", "yes"}}, r.asked_names)
      .value({{"asked", "no"}}, r.spared_names);
  list.counter("quire_remote_values_total", "Values, by what became of them.")
      .value({{"result", "got"}}, r.got_values)
      .value({{"result", "absent"}}, r.absent_values)
      .value({{"result", "corrupt"}}, r.corrupt_values)
      .value({{"result", "foreign"}}, r.foreign_values)
      .value({{"result", "put"}}, r.put_values)
      .value({{"result", "kept"}}, r.kept_values)
      .value({{"result", "late"}}, r.late_objects)
      .value({{"result", "failed"}}, r.failed_objects);
  list.counter("quire_remote_value_bytes_total", "Bytes of pages in values that were got and put.")
      .value({{"result", "got"}}, r.got_bytes)
      .value({{"result", "put"}}, r.put_bytes);
  list.counter("quire_remote_failed_drops_total", "Drops of key spaces that have to be tried again.")
      .value(r.failed_drops);
}

void add_disk(FamilyList& list, const DiskStatus& d) {
  list.gauge("quire_disk_used_bytes", "Bytes of files.").value(d.used_bytes);
  list.gauge("quire_disk_live_bytes", "Bytes of records that can be found.").value(d.live_bytes);
  list.gauge("quire_disk_capacity_bytes", "Bytes that files may take.").value(d.capacity_bytes);
  list.gauge("quire_disk_segments", "Files of records.").value(d.segment_count);
  list.counter("quire_disk_written_bytes_total", "Bytes written, for whatever reason.").value(d.written_bytes);
  list.counter("quire_disk_carried_bytes_total", "Of those, written again to make room.").value(d.carried_bytes);
  list.counter("quire_disk_read_bytes_total", "Bytes read.").value(d.read_bytes);
  list.counter("quire_disk_corrupt_pages_total", "Records dropped because they were damaged.")
      .value(d.corrupt_page_total);
  list.counter("quire_disk_torn_pages_total", "Records that were being written when the last process ended.")
      .value(d.torn_page_total);
  list.gauge("quire_disk_other_layout_pages", "Records of another model or page size: never read, first to go.")
      .value(d.other_layout_pages);
  list.gauge("quire_disk_directories", "Directories, by whether they work.")
      .value({{"state", "ok"}}, d.directory_count - std::min(d.directory_count, d.failed_directory_count))
      .value({{"state", "failed"}}, d.failed_directory_count);
  list.counter("quire_disk_failed_segments_total", "Files given up after an error.").value(d.failed_segment_count);
  list.gauge("quire_disk_info", "How the disk tier does its I/O.")
      .value({{"io", d.uses_io_uring ? "io_uring" : "threads"},
              {"direct", d.is_direct ? "yes" : "no"},
              {"registered_buffers", d.has_registered_buffers ? "yes" : "no"}},
             1);
}

void add_facts(FamilyList& list, const CacheFacts& facts, const Stats* stats) {
  list.gauge("quire_page_bytes", "Bytes of a page.").value(facts.page_bytes);
  list.gauge("quire_page_tokens", "Tokens of a page.").value(facts.page_tokens);
  list.gauge("quire_policy_info", "The eviction policies.")
      .value({{"device", facts.policy}, {"host", facts.host_policy.empty() ? "none" : facts.host_policy}}, 1);
  if (facts.disk_write_bytes_per_day > 0) {
    list.gauge("quire_disk_write_budget_bytes", "Bytes that may be written to disk in any 24 hours.")
        .value(facts.disk_write_bytes_per_day);
  }
  if (facts.remote_write_bytes_per_day > 0) {
    list.gauge("quire_remote_write_budget_bytes", "Bytes that may be written to the remote tier in any 24 hours.")
        .value(facts.remote_write_bytes_per_day);
  }
  if (stats == nullptr) return;
  const bool has_host = stats->host_page_count > 0;
  list.gauge("quire_tier_used_bytes", "Bytes of pages that are not free.")
      .value({{"tier", "device"}}, std::uint64_t{stats->page_count - stats->free_pages} * facts.page_bytes);
  if (has_host) {
    list.value({{"tier", "host"}}, std::uint64_t{stats->host_page_count - stats->host_free_pages} * facts.page_bytes);
  }
  list.gauge("quire_tier_capacity_bytes", "Bytes of all pages.")
      .value({{"tier", "device"}}, std::uint64_t{stats->page_count} * facts.page_bytes);
  if (has_host) list.value({{"tier", "host"}}, std::uint64_t{stats->host_page_count} * facts.page_bytes);
}

// Of those with labels only what was observed is shown: most engines observe some of them, and each has many lines.
template <std::size_t kCount, typename Label>
void add_observed(FamilyList& list, std::string_view name, const std::array<Histogram, kCount>& histograms,
                  Label label) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (histograms[i].count > 0) list.value({{name, std::string(label(i))}}, histograms[i]);
  }
}

void add_histograms(FamilyList& list, const MetricsSnapshot& snapshot) {
  list.histogram("quire_call_seconds", "Time of calls on the engine's thread.", bounds::kCallSeconds);
  add_observed(list, "call", snapshot.call_seconds, [](std::size_t i) { return to_string(static_cast<TimedCall>(i)); });
  list.histogram("quire_transfer_seconds", "Time of transfers.", bounds::kTransferSeconds);
  add_observed(list, "kind", snapshot.transfer_seconds,
               [](std::size_t i) { return to_label(static_cast<TransferKind>(i)); });
  add_observed(list, "kind", snapshot.remote_transfer_seconds,
               [](std::size_t i) { return to_label(static_cast<TransferKind>(i), Tier::Remote); });
  list.histogram("quire_ready_seconds", "From begin() until a sequence can be planned.", bounds::kReadySeconds)
      .value({}, snapshot.ready_seconds);
  list.histogram("quire_request_tokens", "Tokens of requests when they were admitted.", bounds::kTokens)
      .value({}, snapshot.prompt_tokens);
  list.histogram("quire_matched_tokens", "Of those, found in the cache.", bounds::kTokens)
      .value({}, snapshot.matched_tokens);
  list.histogram("quire_matched_ratio", "The share that was found, from 0 to 1.", bounds::kRatio)
      .value({}, snapshot.matched_ratio);
  list.histogram("quire_miss_age_seconds", "How long before a request its first missing page was evicted.",
                 bounds::kAgeSeconds);
  add_observed(list, "tier", snapshot.miss_age_seconds, [](std::size_t i) { return to_string(static_cast<Tier>(i)); });
}

}  // namespace

std::vector<MetricFamily> families_of(const MetricsSnapshot& snapshot) {
  const Stats* const stats = snapshot.stats ? &*snapshot.stats : nullptr;
  const DiskStatus* const disk = snapshot.disk ? &*snapshot.disk : nullptr;
  FamilyList list;
  list.gauge("quire_info", "The version of quire.").value({{"version", std::string(kVersion)}}, 1);
  if (snapshot.start_time_seconds) {
    list.gauge("quire_start_time_seconds", "When the engine started, since 1970.").value(*snapshot.start_time_seconds);
  }
  if (snapshot.facts) add_facts(list, *snapshot.facts, stats);
  if (stats != nullptr) {
    add_requests(list, *stats);
    add_pages(list, *stats, disk);
    add_transfers(list, *stats);
  }
  if (disk != nullptr) add_disk(list, *disk);
  if (snapshot.remote) add_remote(list, *snapshot.remote);
  add_histograms(list, snapshot);
  return list.take();
}

}  // namespace quire
