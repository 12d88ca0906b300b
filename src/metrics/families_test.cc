// SPDX-License-Identifier: Apache-2.0
#include "metrics/families.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

/// Everything is there, and every number is another one.
MetricsSnapshot full_snapshot() {
  std::uint32_t number = 1'000;
  const auto next = [&number] { return ++number; };
  Stats stats;
  // So that what is derived from several of them is not 0 either.
  stats.hit_tokens = 10'000'000;
  stats.page_count = 1'000'000;
  stats.host_page_count = 2'000'000;
  stats.sequence_count = 500'000;
  for (std::uint32_t* field : {&stats.free_pages,
                               &stats.open_pages,
                               &stats.sealed_pages,
                               &stats.private_pages,
                               &stats.fenced_pages,
                               &stats.saved_pages,
                               &stats.pinned_pages,
                               &stats.evictable_pages,
                               &stats.soft_pinned_pages,
                               &stats.kept_pages,
                               &stats.chunk_pages,
                               &stats.chunk_pinned_pages,
                               &stats.held_pages,
                               &stats.run_count,
                               &stats.key_space_count,
                               &stats.host_free_pages,
                               &stats.host_only_pages,
                               &stats.host_copy_pages,
                               &stats.host_filling_pages,
                               &stats.leaving_pages,
                               &stats.clean_reserve_pages,
                               &stats.transfers_in_flight,
                               &stats.disk_waiting_pages,
                               &stats.remote_waiting_pages,
                               &stats.loading_sequence_count,
                               &stats.waiting_sequence_count}) {
    *field = next();
  }
  for (std::uint64_t* field : {&stats.begun_sequence_count,
                               &stats.admitted_sequence_count,
                               &stats.forked_sequence_count,
                               &stats.preempted_sequence_count,
                               &stats.planned_step_count,
                               &stats.short_plan_count,
                               &stats.aborted_step_count,
                               &stats.prompt_tokens,
                               &stats.partial_hit_tokens,
                               &stats.computed_tokens,
                               &stats.received_tokens,
                               &stats.sealed_page_total,
                               &stats.duplicate_page_total,
                               &stats.evicted_page_total,
                               &stats.dropped_page_total,
                               &stats.host_hit_tokens,
                               &stats.lost_page_total,
                               &stats.host_evicted_page_total,
                               &stats.loaded_page_total,
                               &stats.stored_page_total,
                               &stats.disk_hit_tokens,
                               &stats.disk_find_count,
                               &stats.disk_found_page_total,
                               &stats.disk_loaded_page_total,
                               &stats.disk_stored_page_total,
                               &stats.disk_loaded_bytes,
                               &stats.disk_stored_bytes,
                               &stats.loaded_bytes,
                               &stats.stored_bytes,
                               &stats.unknown_completion_count,
                               &stats.remote_hit_tokens,
                               &stats.remote_find_count,
                               &stats.remote_found_page_total,
                               &stats.remote_loaded_page_total,
                               &stats.remote_stored_page_total,
                               &stats.remote_loaded_bytes,
                               &stats.remote_stored_bytes}) {
    *field = next();
  }
  for (auto* counts :
       {&stats.load_outcomes, &stats.store_outcomes, &stats.disk_load_outcomes, &stats.disk_store_outcomes,
        &stats.load_faults, &stats.remote_load_outcomes, &stats.remote_store_outcomes}) {
    for (std::uint64_t& count : *counts) count = next();
  }
  for (auto* counts : {&stats.miss_requests, &stats.miss_tokens}) {
    for (std::uint64_t& count : *counts) count = next();
  }
  stats.load_bytes_per_ns = 25;
  stats.store_bytes_per_ns = 12.5;

  DiskStatus disk;
  for (std::uint64_t* field :
       {&disk.capacity_bytes, &disk.used_bytes, &disk.live_bytes, &disk.page_count, &disk.written_bytes,
        &disk.carried_bytes, &disk.read_bytes, &disk.evicted_page_total, &disk.corrupt_page_total,
        &disk.torn_page_total, &disk.other_layout_pages, &disk.failed_segment_count}) {
    *field = next();
  }
  RemoteTierStatus remote;
  for (std::uint64_t* field :
       {&remote.waiting_bytes, &remote.asked_names, &remote.spared_names, &remote.got_values, &remote.got_bytes,
        &remote.put_values, &remote.put_bytes, &remote.kept_values, &remote.absent_values, &remote.corrupt_values,
        &remote.foreign_values, &remote.late_objects, &remote.failed_objects, &remote.failed_drops}) {
    *field = next();
  }
  remote.extent_pages = next();
  remote.node_count = 6;
  remote.failed_nodes = 2;
  remote.question_ns = 5e6;
  remote.load_bytes_per_ns = 2;
  disk.segment_count = next();
  disk.directory_count = 4;
  disk.failed_directory_count = 1;

  MetricsSnapshot snapshot{.start_time_seconds = 1.7e9,
                           .facts = CacheFacts{.page_bytes = 4'096,
                                               .page_tokens = 16,
                                               .policy = "lru",
                                               .disk_write_bytes_per_day = 1,
                                               .remote_write_bytes_per_day = 1},
                           .stats = stats,
                           .disk = disk,
                           .remote = remote};
  for (Histogram& each : snapshot.call_seconds) each.observe(bounds::kCallSeconds, 1);
  for (Histogram& each : snapshot.transfer_seconds) each.observe(bounds::kTransferSeconds, 1);
  for (std::size_t i = 0; i < kTransferKindCount; ++i) {
    if (!is_of_lower_tier(static_cast<TransferKind>(i))) continue;  // only those are any tier's own
    snapshot.remote_transfer_seconds[i].observe(bounds::kTransferSeconds, 1);
  }
  for (Histogram& each : snapshot.miss_age_seconds) each.observe(bounds::kAgeSeconds, 1);
  return snapshot;
}

const MetricFamily& family_of(const std::vector<MetricFamily>& families, std::string_view name) {
  const auto found = std::ranges::find(families, name, &MetricFamily::name);
  EXPECT_NE(found, families.end()) << name;
  return *found;
}

/// "tier=device,state=free"
std::string text_of(const std::vector<MetricLabel>& labels) {
  std::string text;
  for (const MetricLabel& label : labels) {
    if (!text.empty()) text += ',';
    text += std::string(label.name) + "=" + label.value;
  }
  return text;
}

double value_of(const std::vector<MetricFamily>& families, std::string_view name, std::string_view labels = "") {
  for (const Metric& metric : family_of(families, name).metrics) {
    if (text_of(metric.labels) == labels) return metric.value;
  }
  ADD_FAILURE() << name << " has no " << labels;
  return 0;
}

TEST(MetricFamilies, HaveNamesByTheCustomsOfPrometheus) {
  std::set<std::string_view> names;
  for (const MetricFamily& family : families_of(full_snapshot())) {
    SCOPED_TRACE(family.name);
    EXPECT_TRUE(names.insert(family.name).second);
    EXPECT_TRUE(family.name.starts_with("quire_"));
    EXPECT_TRUE(std::ranges::all_of(family.name, [](char c) { return c == '_' || (c >= 'a' && c <= 'z'); }));
    EXPECT_EQ(family.name.ends_with("_total"), family.type == MetricType::Counter);
    EXPECT_TRUE(family.help.ends_with("."));
    EXPECT_FALSE(family.metrics.empty());
    for (const char* unit : {"_ms", "_ns", "_milliseconds", "_percent", "_kib", "_mib"}) {  // base units only
      EXPECT_EQ(family.name.find(unit), std::string_view::npos);
    }
    std::set<std::string> labels;
    for (const Metric& metric : family.metrics) {
      EXPECT_TRUE(labels.insert(text_of(metric.labels)).second) << "twice: " << text_of(metric.labels);
      for (const MetricLabel& label : metric.labels) {
        EXPECT_EQ(label.value.find(' '), std::string::npos);
        EXPECT_NE(label.name, "le");
      }
    }
  }
}

TEST(MetricFamilies, LeaveOutWhatIsNotThereYet) {
  for (const MetricFamily& family : families_of({})) {
    EXPECT_TRUE(family.type == MetricType::Histogram || family.name == "quire_info") << family.name;
  }
  MetricsSnapshot snapshot = full_snapshot();
  snapshot.disk.reset();
  snapshot.stats->host_page_count = 0;
  for (const MetricFamily& family : families_of(snapshot)) {
    for (const Metric& metric : family.metrics) {
      for (const MetricLabel& label : metric.labels) {
        if (label.name != "tier" || family.name == "quire_hit_tokens_total") continue;
        if (family.type == MetricType::Histogram) continue;
        EXPECT_EQ(label.value, "device") << family.name;
      }
    }
  }
}

TEST(MetricFamilies, PagesOfATierAddUpToItsCapacity) {
  MetricsSnapshot snapshot = full_snapshot();
  Stats& stats = *snapshot.stats;
  stats.page_count =
      stats.free_pages + stats.open_pages + stats.sealed_pages + stats.private_pages + stats.fenced_pages;
  const std::vector<MetricFamily> families = families_of(snapshot);
  for (const std::string tier : {"device", "host"}) {
    double sum = 0;
    for (const Metric& metric : family_of(families, "quire_pages").metrics) {
      if (metric.labels[0].value == tier) sum += metric.value;
    }
    EXPECT_EQ(sum, value_of(families, "quire_capacity_pages", "tier=" + tier));
  }
}

TEST(MetricFamilies, HitsOfAllTiersAddUpToTheHits) {
  const MetricsSnapshot snapshot = full_snapshot();
  const std::vector<MetricFamily> families = families_of(snapshot);
  double sum = 0;
  for (const Metric& metric : family_of(families, "quire_hit_tokens_total").metrics) sum += metric.value;
  EXPECT_EQ(sum, static_cast<double>(snapshot.stats->hit_tokens));
  EXPECT_EQ(value_of(families, "quire_hit_tokens_total", "tier=host"),
            static_cast<double>(snapshot.stats->host_hit_tokens));
  EXPECT_EQ(value_of(families, "quire_hit_tokens_total", "tier=disk"),
            static_cast<double>(snapshot.stats->disk_hit_tokens));
  EXPECT_EQ(value_of(families, "quire_hit_tokens_total", "tier=remote"),
            static_cast<double>(snapshot.stats->remote_hit_tokens));
}

// Each number that a snapshot has is the value of some metric, or part of a difference that is.
TEST(MetricFamilies, ShowEveryNumberOfStatsAndOfTheTiersBelow) {
  std::set<double> shown;
  for (const MetricFamily& family : families_of(full_snapshot())) {
    for (const Metric& metric : family.metrics) shown.insert(metric.value);
  }
  // 1,001 to the last that full_snapshot() drew.
  const auto last = static_cast<std::uint32_t>(full_snapshot().disk->segment_count);
  EXPECT_GT(last, 1'100U);
  for (std::uint32_t number = 1'001; number <= last; ++number) {
    EXPECT_TRUE(shown.contains(number)) << "the number that full_snapshot() drew as " << number;
  }
}

TEST(MetricFamilies, ValuesAreInBaseUnits) {
  const std::vector<MetricFamily> families = families_of(full_snapshot());
  EXPECT_EQ(value_of(families, "quire_transfer_bytes_per_second", "kind=load"), 25e9);
  EXPECT_EQ(value_of(families, "quire_tier_capacity_bytes", "tier=device"), 1'000'000.0 * 4'096);
  EXPECT_EQ(value_of(families, "quire_disk_directories", "state=ok"), 3);
  EXPECT_EQ(value_of(families, "quire_disk_directories", "state=failed"), 1);
  EXPECT_EQ(value_of(families, "quire_remote_nodes", "state=ok"), 4);
  EXPECT_EQ(value_of(families, "quire_remote_answer_seconds"), 0.005);
  EXPECT_EQ(value_of(families, "quire_remote_load_bytes_per_second"), 2e9);
}

TEST(MetricFamilies, LabelsNameReasonsOutcomesAndFaults) {
  const MetricsSnapshot snapshot = full_snapshot();
  const std::vector<MetricFamily> families = families_of(snapshot);
  EXPECT_EQ(family_of(families, "quire_miss_tokens_total").metrics.size(), kMissReasonCount);
  EXPECT_EQ(value_of(families, "quire_miss_tokens_total", "reason=never_seen"),
            static_cast<double>(snapshot.stats->miss_tokens[1]));
  EXPECT_EQ(family_of(families, "quire_transfers_total").metrics.size(), 6 * kTransferOutcomeCount);
  EXPECT_EQ(value_of(families, "quire_transfers_total", "kind=load_from_disk,outcome=timed_out"),
            static_cast<double>(snapshot.stats->disk_load_outcomes[2]));
  EXPECT_EQ(value_of(families, "quire_load_faults_total", "fault=checksum"),
            static_cast<double>(snapshot.stats->load_faults[1]));
}

TEST(Histogram, CountsAValueAtItsBoundInThatBucket) {
  constexpr std::array kBounds{1.0, 2.0};
  Histogram histogram;
  for (const double value : {0.5, 1.0, 1.5, 2.0, 2.5}) histogram.observe(kBounds, value);
  EXPECT_EQ(histogram.counts[0], 2U);
  EXPECT_EQ(histogram.counts[1], 2U);
  EXPECT_EQ(histogram.counts[2], 1U);
  EXPECT_EQ(histogram.count, 5U);
  EXPECT_EQ(histogram.sum, 7.5);
}

// ── the document ─────────────────────────────────────────────────────────────────────────────────────────────────────

std::string type_text(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Histogram:
      return "histogram";
  }
  return "";
}

std::string document_text() {
  std::ifstream file(QUIRE_TEST_DOCUMENT);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// One line of the document's table: | `name` | type | `label`, `label` | text |
std::string row_of(const MetricFamily& family) {
  std::string labels;
  for (const MetricLabel& label : family.metrics.front().labels) {
    labels += (labels.empty() ? "`" : ", `") + std::string(label.name) + "`";
  }
  return "| `" + std::string(family.name) + "` | " + type_text(family.type) + " | " + labels + " | " +
         std::string(family.help) + " |";
}

TEST(MetricsDocument, ListsEveryMetricWithItsTypeLabelsAndHelp) {
  const std::string document = "\n" + document_text();
  std::size_t row_count = 0;
  for (std::size_t at = document.find("\n| `quire_"); at != std::string::npos;
       at = document.find("\n| `quire_", at + 1)) {
    ++row_count;
  }
  const std::vector<MetricFamily> families = families_of(full_snapshot());
  EXPECT_EQ(row_count, families.size());
  for (const MetricFamily& family : families) {
    EXPECT_NE(document.find("\n" + row_of(family) + "\n"), std::string::npos) << "missing:\n" << row_of(family);
  }
}

TEST(MetricsDocument, NamesNoMetricThatDoesNotExist) {
  const std::string document = document_text();
  std::set<std::string> names;
  for (const MetricFamily& family : families_of(full_snapshot())) names.emplace(family.name);
  const auto is_part = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t begin = document.find("quire_"); begin != std::string::npos;) {
    const std::size_t end = static_cast<std::size_t>(
        std::find_if_not(document.begin() + static_cast<std::ptrdiff_t>(begin), document.end(), is_part) -
        document.begin());
    std::string name = document.substr(begin, end - begin);
    const bool is_start = begin == 0 || !is_part(document[begin - 1]);
    for (const std::string suffix : {"_bucket", "_sum", "_count"}) {
      if (!names.contains(name) && name.ends_with(suffix)) name.resize(name.size() - suffix.size());
    }
    EXPECT_TRUE(!is_start || names.contains(name)) << name;
    begin = document.find("quire_", end);
  }
}

}  // namespace
}  // namespace quire
