// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/version.h"
#include "tests/tool/report_sample.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::ReportSample;

constexpr std::size_t kPageBytesMax = 2'000'000;

std::size_t occurrences(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// The report inside a page, as the browser would find it.
json data_of(std::string_view page) {
  constexpr std::string_view kBegin = R"(id="report">)";
  const std::size_t begin = page.find(kBegin) + kBegin.size();
  return json::parse(page.substr(begin, page.find("</script", begin) - begin));
}

std::uint64_t sum_of(const json& numbers) {
  const auto counts = numbers.get<std::vector<std::uint64_t>>();
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

TEST(ReportJson, HasWhatTheTraceIsAndWhatWasAsked) {
  const ReportSample sample = testing::full_sample();
  const json report = json::parse(json_of(sample.input()));
  EXPECT_EQ(report["format_version"], 1);
  EXPECT_EQ(report["quire_version"], kVersion);
  EXPECT_EQ(report["title"], sample.title);
  EXPECT_EQ(report["command"], sample.command);
  EXPECT_EQ(report["is_complete"], true);
  const json& trace = report["trace"];
  EXPECT_EQ(trace["name"], "made_up.jsonl");
  EXPECT_EQ(trace["unit_tokens"], 64);
  EXPECT_EQ(trace["request_count"], sample.trace.requests.size());
  EXPECT_EQ(trace["prompt_tokens"], sample.facts.prompt_tokens());
  EXPECT_EQ(trace["distinct_tokens"], sample.facts.distinct_tokens());
  EXPECT_EQ(trace["reusable_tokens"], sample.facts.reusable_tokens());
  EXPECT_EQ(trace["has_timestamps"], true);
  EXPECT_EQ(trace["key_spaces"].size(), 6);
  EXPECT_EQ(trace["key_spaces"][0]["name"], "acme / chat-70b");
  EXPECT_EQ(trace["reuse_distances"].size(), sample.facts.reuse_distances().size());
  const json settings = {
      {"model", "llama-3-8b"}, {"bytes", "verify"}, {"running_max", 8}, {"flip_a_byte", false}, {"bin_count", 96}};
  EXPECT_EQ(report["settings"], settings);
}

TEST(ReportJson, HasEveryReplayAndBoundInTheirOrder) {
  const ReportSample sample = testing::full_sample();
  const json report = json::parse(json_of(sample.input()));
  ASSERT_EQ(report["replays"].size(), sample.sweep.replays.size());
  for (std::size_t i = 0; i < sample.sweep.replays.size(); ++i) {
    const ReplayOutcome& outcome = sample.sweep.replays[i];
    const json& replay = report["replays"][i];
    EXPECT_EQ(replay["policy"], outcome.config.policy);
    EXPECT_EQ(replay["page_tokens"], outcome.config.page_tokens);
    EXPECT_EQ(replay["capacity_tokens"], outcome.config.capacity_tokens);
    EXPECT_EQ(replay["page_count"], outcome.page_count);
    EXPECT_EQ(replay["page_bytes"], outcome.page_bytes);
    EXPECT_EQ(replay["hit_rate"], outcome.hit_rate());
    EXPECT_EQ(replay["request_count"], outcome.request_count);
    EXPECT_EQ(replay["prompt_tokens"], outcome.prompt_tokens);
    EXPECT_EQ(replay["hit_tokens"], outcome.hit_tokens);
    EXPECT_EQ(replay["partial_hit_tokens"], outcome.partial_hit_tokens);
    EXPECT_EQ(replay["hit_request_count"], outcome.hit_request_count);
    EXPECT_EQ(replay["shared_hit_tokens"], outcome.shared_hit_tokens);
    EXPECT_EQ(replay["over_pool_count"], outcome.over_pool_count);
    EXPECT_EQ(replay["over_pool_lines"], outcome.over_pool_lines);
    EXPECT_EQ(replay["sealed_pages"], outcome.sealed_pages);
    EXPECT_EQ(replay["evicted_pages"], outcome.evicted_pages);
    EXPECT_EQ(replay["verified_bytes"], outcome.verified_bytes);
    EXPECT_EQ(replay["corruption"], nullptr);
    EXPECT_EQ(replay["run_lengths"], outcome.run_lengths);
    EXPECT_EQ(sum_of(replay["key_spaces"]["hit_tokens"]), outcome.hit_tokens);
    for (const char* column : {"begin", "prompt_tokens", "hit_tokens", "cached_pages"}) {
      EXPECT_EQ(replay["timeline"][column].size(), outcome.timeline.size());
    }
    EXPECT_EQ(sum_of(replay["timeline"]["prompt_tokens"]), outcome.prompt_tokens);
    EXPECT_EQ(replay["timeline"]["cached_pages"].back(), outcome.timeline.back().cached_pages);
  }
  ASSERT_EQ(report["bounds"].size(), sample.sweep.bounds.size());
  for (std::size_t i = 0; i < sample.sweep.bounds.size(); ++i) {
    EXPECT_EQ(report["bounds"][i]["capacity_tokens"], sample.sweep.bounds[i].capacity_tokens);
    EXPECT_EQ(report["bounds"][i]["hit_tokens"], sample.sweep.bounds[i].hit_tokens);
    EXPECT_EQ(report["bounds"][i]["hit_rate"], sample.sweep.bounds[i].hit_rate());
    EXPECT_FALSE(report["bounds"][i]["timeline"].contains("cached_pages"));
  }
}

TEST(ReportJson, HasWhatTheHostTierDidOnlyWhereThereIsOne) {
  const json plain = json::parse(json_of(testing::single_sample().input()));
  EXPECT_FALSE(plain["replays"][0].contains("host"));
  EXPECT_FALSE(plain["settings"].contains("host_bytes"));
  EXPECT_FALSE(plain.contains("tier_replays"));

  const ReportSample sample = testing::tiers_sample();
  const json report = json::parse(json_of(sample.input()));
  EXPECT_EQ(report["settings"]["host_bytes"], sample.settings.host.capacity_bytes);
  EXPECT_EQ(report["settings"]["write_policy"], "write_through");
  EXPECT_EQ(report["settings"]["host_policy"], "arc");
  for (std::size_t i = 0; i < sample.sweep.replays.size(); ++i) {
    const HostTierOutcome& host = *sample.sweep.replays[i].host;
    const json& found = report["replays"][i]["host"];
    EXPECT_EQ(found["page_count"], host.page_count);
    EXPECT_EQ(found["hit_tokens"], host.hit_tokens);
    EXPECT_EQ(found["stored_bytes"], host.stored_bytes);
    EXPECT_EQ(found["loaded_bytes"], host.loaded_bytes);
    EXPECT_EQ(found["misses"][0]["reason"], "never seen");
    EXPECT_EQ(found["misses"][1]["reason"], "evicted");
    EXPECT_EQ(found["misses"][1]["token_count"],
              host.misses[static_cast<std::size_t>(MissReason::Evicted)].token_count);
  }
}

TEST(ReportJson, HasWhatTheDiskTierDidOnlyWhereThereIsOne) {
  const json plain = json::parse(json_of(testing::tiers_sample().input()));
  EXPECT_FALSE(plain["replays"][0].contains("disk"));
  EXPECT_FALSE(plain["settings"].contains("disk_bytes"));
  const ReportSample sample = testing::disk_sample();
  const json report = json::parse(json_of(sample.input()));
  EXPECT_EQ(report["settings"]["disk_bytes"], sample.settings.disk.capacity_bytes);
  EXPECT_EQ(report["settings"]["disk_write_policy"], "write_through");
  EXPECT_EQ(report["settings"]["disk_write_bytes_per_day"], sample.settings.disk.write_bytes_per_day);
  for (std::size_t i = 0; i < sample.sweep.replays.size(); ++i) {
    const json& found = report["replays"][i]["disk"];
    EXPECT_EQ(found["hit_tokens"], sample.sweep.replays[i].disk->hit_tokens);
    EXPECT_EQ(found["written_bytes"], sample.sweep.replays[i].disk->written_bytes);
    EXPECT_EQ(found["has_failed"], false);
  }
}

TEST(ReportJson, HasWhatEachEngineDidOnlyWhereThereAreSeveral) {
  const json plain = json::parse(json_of(testing::disk_sample().input()));
  EXPECT_FALSE(plain["replays"][0].contains("engines"));
  EXPECT_FALSE(plain["settings"].contains("engine_count"));
  const ReportSample sample = testing::engines_sample();
  const json report = json::parse(json_of(sample.input()));
  EXPECT_EQ(report["settings"]["engine_count"], 4);
  for (std::size_t i = 0; i < sample.sweep.replays.size(); ++i) {
    const std::vector<EngineOutcome>& engines = sample.sweep.replays[i].engines;
    ASSERT_EQ(report["replays"][i]["engines"].size(), engines.size());
    const json& found = report["replays"][i]["engines"][2];
    EXPECT_EQ(found["request_count"], engines[2].request_count);
    EXPECT_EQ(found["hit_tokens"], engines[2].hit_tokens);
    EXPECT_EQ(found["hit_rate"], engines[2].hit_rate());
    EXPECT_EQ(found["host_hit_tokens"], engines[2].host_hit_tokens);
    EXPECT_EQ(found["disk_hit_tokens"], engines[2].disk_hit_tokens);
  }
}

TEST(ReportJson, HasReplaysWithTiersBesideThoseWithout) {
  const ReportSample sample = testing::single_sample();
  const ReportSample tiers = testing::tiers_sample();
  ReportInput input = sample.input();
  input.tiers = &tiers.sweep;
  const json report = json::parse(json_of(input));
  EXPECT_EQ(report["replays"].size(), 1);
  EXPECT_EQ(report["tier_replays"].size(), tiers.sweep.replays.size());
  EXPECT_TRUE(report["tier_replays"][0].contains("host"));
}

TEST(ReportJson, HasOneLinePerReplay) {
  const ReportSample sample = testing::ended_early_sample();
  const std::string text = json_of(sample.input());
  EXPECT_EQ(occurrences(text, "\n{\"policy\":"), sample.sweep.replays.size());
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(json::parse(text)["is_complete"], false);
}

TEST(ReportJson, CountsStayExactWhateverTheirSize) {
  ReportSample sample = testing::single_sample();
  constexpr std::uint64_t kOdd = (std::uint64_t{1} << 63U) + 1;
  sample.sweep.replays[0].verified_bytes = kOdd;
  const std::string text = json_of(sample.input());
  EXPECT_NE(text.find("\"verified_bytes\":" + std::to_string(kOdd)), std::string::npos);
}

TEST(ReportJson, SaysWhereWrongBytesWereFound) {
  const ReportSample sample = testing::corrupt_sample();
  const json report = json::parse(json_of(sample.input()));
  const json expected = {{"line", 203}, {"page", 17}, {"offset", 40'961}, {"prefix", "key space a, tokens 0 to 767"}};
  EXPECT_EQ(report["replays"][1]["corruption"], expected);
  EXPECT_EQ(report["replays"][2]["shared_hit_tokens"], 64);
}

TEST(ReportJson, NamesThatAreNotTextDoNotBreakIt) {
  const ReportSample sample = testing::hostile_sample();
  const json report = json::parse(json_of(sample.input()));
  EXPECT_EQ(report["title"], sample.title);
  EXPECT_EQ(report["trace"]["key_spaces"].size(), 300);
  EXPECT_EQ(report["trace"]["key_spaces"][4]["name"], "\uFFFD\uFFFD not UTF-8 \uFFFD");
  EXPECT_EQ(report["trace"]["name"].get<std::string>().size(), 100'000);
}

TEST(Report, SameInputGivesTheSameText) {
  for (const ReportSample& sample : testing::report_samples()) {
    EXPECT_EQ(json_of(sample.input()), json_of(sample.input())) << sample.name;
    EXPECT_EQ(html_of(sample.input()), html_of(sample.input())) << sample.name;
  }
}

TEST(ReportPage, CarriesTheWholeReportWhenItIsOfOrdinarySize) {
  for (const ReportSample& sample : {testing::full_sample(), testing::single_sample(), testing::corrupt_sample()}) {
    EXPECT_EQ(data_of(html_of(sample.input())), json::parse(json_of(sample.input()))) << sample.name;
  }
}

TEST(ReportPage, NothingInANameBecomesMarkup) {
  const std::string page = html_of(testing::hostile_sample().input());
  const std::string harmless = html_of(testing::single_sample().input());
  EXPECT_EQ(occurrences(page, "<script"), occurrences(harmless, "<script"));
  EXPECT_EQ(occurrences(page, "</script"), occurrences(harmless, "</script"));
  EXPECT_EQ(occurrences(page, "<!--"), occurrences(harmless, "<!--"));
  EXPECT_EQ(occurrences(page, "<img"), 0);
  EXPECT_EQ(occurrences(page, "<"), occurrences(harmless, "<"));
  EXPECT_EQ(data_of(page)["title"], testing::hostile_sample().title);
}

TEST(ReportPage, StaysSmallForALargeSweep) {
  EXPECT_LT(html_of(testing::full_sample().input()).size(), kPageBytesMax);
}

TEST(ReportPage, StaysSmallForManyKeySpacesLongNamesAndFineTimelines) {
  ReportSample sample{.name = "large"};
  std::vector<std::string> key_spaces(3'000, std::string(500, 'x'));
  sample.trace = testing::sample_trace({.key_spaces = std::move(key_spaces)});
  sample.settings.bin_count = 1'000;
  sweep(sample, {});
  const std::string page = html_of(sample.input());
  EXPECT_LT(page.size(), kPageBytesMax);

  // What was left out of the page is in its sums.
  const json report = data_of(page);
  EXPECT_EQ(report["trace"]["key_spaces"].size(), 16);
  EXPECT_EQ(report["trace"]["key_spaces_added_up"], 3'000 - 15);
  EXPECT_EQ(report["trace"]["key_spaces"].back()["name"], "2985 others");
  for (std::size_t i = 0; i < sample.sweep.replays.size(); ++i) {
    const json& replay = report["replays"][i];
    EXPECT_LT(replay["timeline"]["begin"].size(), 200);
    EXPECT_EQ(sum_of(replay["timeline"]["hit_tokens"]), sample.sweep.replays[i].hit_tokens);
    EXPECT_EQ(sum_of(replay["timeline"]["prompt_tokens"]), sample.sweep.replays[i].prompt_tokens);
    EXPECT_EQ(sum_of(replay["key_spaces"]["hit_tokens"]), sample.sweep.replays[i].hit_tokens);
    EXPECT_EQ(replay["timeline"]["cached_pages"].back(), sample.sweep.replays[i].timeline.back().cached_pages);
  }
}

TEST(ReportPage, LoadsNothing) {
  const std::string page = html_of(testing::full_sample().input());
  for (const char* reference : {"http:", "https:", "//www", "src=", "href=", "@import", "url(", "<link", "fetch(",
                                "XMLHttpRequest", "import("}) {
    EXPECT_EQ(occurrences(page, reference), 0) << reference;
  }
  EXPECT_EQ(occurrences(page, "default-src 'none'"), 1);
}

TEST(ReportPage, SaysWhatToDoWithoutScripts) {
  EXPECT_EQ(occurrences(html_of(testing::single_sample().input()), "<noscript>"), 1);
}

}  // namespace
}  // namespace quire
