// SPDX-License-Identifier: Apache-2.0
//
// One line of JSON per member and per replay, so that text tools can work on it too:
//
//   format_version   1; a change that could break a reader raises it
//   quire_version    of the tool
//   title, command   what the report is about, and what repeats it
//   is_complete      false: the sweep was ended early, and only what was finished is here
//   trace            name, unit_tokens, request_count, prompt_tokens, distinct_tokens, reusable_tokens, has_timestamps,
//                    duration_s, bad_line_count, first_bad_line,
//                    key_spaces       [{name, request_count, prompt_tokens}]
//                    reuse_distances  [{distance_tokens, token_count}], see ReuseBin
//   settings         model, bytes ("none" or "verify"), running_max, flip_a_byte, bin_count; with a host tier
//                    host_bytes, write_policy, host_policy, with a disk tier disk_bytes, disk_write_policy,
//                    disk_write_bytes_per_day, with a remote tier remote_extent_bytes, remote_write_policy,
//                    remote_write_bytes_per_day
//   replays          [the fields of ReplayOutcome and its config by name, with hit_rate from 0 to 1, where
//                    key_spaces  {prompt_tokens, hit_tokens}: arrays in the order of trace.key_spaces
//                    timeline    {begin, prompt_tokens, hit_tokens, cached_pages}: arrays of one length
//                    run_lengths [runs of 1 page, of 2 to 3, of 4 to 7, ...]
//                    corruption  null, or {line, page, offset, prefix}; of a model with several groups, also group
//                                and is_slot: page is then the number of a state slot
//                    device_bytes, groups  only of a model with several groups: bytes of all of them, and [{name, kind,
//                                page_bytes, slot_bytes, limited_request_count, limited_token_count and fields of
//                                GroupStats by name}]
//                    host        only with a host tier: {page_count, hit_tokens, stored_bytes, loaded_bytes,
//                                evicted_pages, lost_pages, early_requests, early_steps, misses [{reason,
//                                request_count, token_count}]}
//                    disk        only with a disk tier: {capacity_bytes, hit_tokens, page_count, found_pages,
//                                written_bytes, read_bytes, evicted_pages, has_failed}]
//                remote      only with a remote tier: {hit_tokens, extent_pages, put_values, put_bytes, kept_values,
//                            got_bytes, absent_values, bad_values, late_objects, failed_objects}
//   bounds           [{capacity_tokens, prompt_tokens, hit_tokens, hit_rate, timeline without cached_pages}], with a
//                    host tier also host_tokens, with a disk tier disk_tokens: the bound is for all together
//   tier_replays     only where replays with a host tier stand beside others: as replays
//
// The page carries the same object. There, names are cut, key spaces beyond the largest few are added up into a last
// one (trace.key_spaces_added_up counts them), and neighbouring stretches of the timelines are merged, if without that
// it would get too large.
#include "report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host_tier.h"
#include "quire/types.h"
#include "quire/version.h"

namespace quire {

/// report.html, put into a source by the build.
extern const std::string_view kReportHtml;

namespace {

using Json = nlohmann::ordered_json;

/// What a page can show; a file of JSON has everything.
struct Limits {
  std::size_t name_bytes = std::numeric_limits<std::size_t>::max();
  std::size_t key_spaces = std::numeric_limits<std::size_t>::max();
  std::size_t stretches = std::numeric_limits<std::size_t>::max();  ///< of all timelines together
};
// A stretch is some 40 bytes, so that timelines fill 1.2 MB at most.
constexpr Limits kPageLimits = {.name_bytes = 200, .key_spaces = 16, .stretches = 30'000};

std::string cut(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  std::size_t end = bytes_max;
  const auto is_inside_a_character = [&](std::size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
  };
  while (end > 0 && is_inside_a_character(end)) --end;
  return std::string(text.substr(0, end)) + "\u2026";
}

/// Which key spaces are told apart: all of them in their order, or the ones with most tokens and one for the others.
struct KeySpaceRows {
  std::vector<std::size_t> row_of;      ///< by key space
  std::vector<std::size_t> key_spaces;  ///< by row, without the one for the others
  std::size_t row_count = 0;
  std::size_t added_up = 0;

  KeySpaceRows(const std::vector<std::uint64_t>& prompt_tokens, std::size_t rows_max)
      : row_of(prompt_tokens.size()), key_spaces(prompt_tokens.size()), row_count(prompt_tokens.size()) {
    std::iota(key_spaces.begin(), key_spaces.end(), 0);
    if (row_count > rows_max) {
      std::ranges::sort(key_spaces, std::greater<>{},
                        [&](std::size_t i) { return std::pair(prompt_tokens[i], row_count - i); });
      added_up = row_count - (rows_max - 1);
      row_count = rows_max;
    }
    for (std::size_t i = 0; i < key_spaces.size(); ++i) row_of[key_spaces[i]] = std::min(i, row_count - 1);
    if (added_up > 0) key_spaces.resize(row_count - 1);
  }
};

Json object_of_key_spaces(const std::vector<KeySpaceOutcome>& outcomes, const KeySpaceRows& rows) {
  std::vector<std::uint64_t> prompt_tokens(rows.row_count);
  std::vector<std::uint64_t> hit_tokens(rows.row_count);
  for (std::size_t i = 0; i < std::min(outcomes.size(), rows.row_of.size()); ++i) {
    prompt_tokens[rows.row_of[i]] += outcomes[i].prompt_tokens;
    hit_tokens[rows.row_of[i]] += outcomes[i].hit_tokens;
  }
  return {{"prompt_tokens", std::move(prompt_tokens)}, {"hit_tokens", std::move(hit_tokens)}};
}

enum class CachedPages : std::uint8_t { Known, Unknown };

/// Columns, because rows would repeat every name. Groups of `merged` neighbours become one stretch.
Json object_of_timeline(const std::vector<TimeBin>& timeline, std::size_t merged, CachedPages cached_pages) {
  Json begin = Json::array();
  Json prompt_tokens = Json::array();
  Json hit_tokens = Json::array();
  Json pages = Json::array();
  for (std::size_t i = 0; i < timeline.size(); i += merged) {
    const std::size_t end = std::min(timeline.size(), i + merged);
    std::uint64_t prompt = 0;
    std::uint64_t hit = 0;
    for (std::size_t bin = i; bin < end; ++bin) {
      prompt += timeline[bin].prompt_tokens;
      hit += timeline[bin].hit_tokens;
    }
    begin.push_back(timeline[i].begin);
    prompt_tokens.push_back(prompt);
    hit_tokens.push_back(hit);
    pages.push_back(timeline[end - 1].cached_pages);
  }
  Json object = {
      {"begin", std::move(begin)}, {"prompt_tokens", std::move(prompt_tokens)}, {"hit_tokens", std::move(hit_tokens)}};
  if (cached_pages == CachedPages::Known) object["cached_pages"] = std::move(pages);
  return object;
}

/// How many neighbouring stretches become one, so that there are not more than `stretches_max` in all.
std::size_t merging_for(const SweepOutcome& sweep, std::size_t stretches_max) {
  const auto count = [&](std::size_t merged) {
    std::size_t stretches = 0;
    const auto add = [&](const auto& outcome) { stretches += (outcome.timeline.size() + merged - 1) / merged; };
    std::for_each(sweep.replays.begin(), sweep.replays.end(), add);
    std::for_each(sweep.bounds.begin(), sweep.bounds.end(), add);
    return stretches;
  };
  const std::size_t fewest = sweep.replays.size() + sweep.bounds.size();
  std::size_t merged = 1;
  while (count(merged) > std::max(fewest, stretches_max)) ++merged;
  return merged;
}

Json object_of_trace(const Trace& trace, const TraceFacts& facts, const KeySpaceRows& rows, const Limits& limits) {
  struct Totals {
    std::uint64_t request_count = 0;
    std::uint64_t prompt_tokens = 0;
  };
  std::vector<Totals> totals(rows.row_count);
  TimeNs first = 0;
  TimeNs last = 0;
  for (const TraceRequest& request : trace.requests) {
    Totals& row = totals[rows.row_of[request.key_space]];
    ++row.request_count;
    row.prompt_tokens += request.prompt_tokens;
    const bool is_first = &request == trace.requests.data();
    first = is_first ? request.timestamp_ns : std::min(first, request.timestamp_ns);
    last = is_first ? request.timestamp_ns : std::max(last, request.timestamp_ns);
  }

  Json key_spaces = Json::array();
  for (std::size_t row = 0; row < rows.row_count; ++row) {
    const bool is_others = row >= rows.key_spaces.size();
    key_spaces.push_back({{"name", is_others ? std::to_string(rows.added_up) + " others"
                                             : cut(trace.key_spaces[rows.key_spaces[row]], limits.name_bytes)},
                          {"request_count", totals[row].request_count},
                          {"prompt_tokens", totals[row].prompt_tokens}});
  }
  Json reuse_distances = Json::array();
  for (const ReuseBin& bin : facts.reuse_distances()) {
    reuse_distances.push_back({{"distance_tokens", bin.distance_tokens}, {"token_count", bin.token_count}});
  }
  Json object = {{"name", cut(trace.name, limits.name_bytes)},
                 {"unit_tokens", trace.unit_tokens},
                 {"request_count", trace.requests.size()},
                 {"prompt_tokens", facts.prompt_tokens()},
                 {"distinct_tokens", facts.distinct_tokens()},
                 {"reusable_tokens", facts.reusable_tokens()},
                 {"has_timestamps", last > first},
                 {"duration_s", static_cast<double>(last - first) / 1e9},
                 {"bad_line_count", trace.bad_line_count},
                 {"first_bad_line", cut(trace.first_bad_line, limits.name_bytes)},
                 {"key_spaces", std::move(key_spaces)},
                 {"reuse_distances", std::move(reuse_distances)}};
  if (rows.added_up > 0) object["key_spaces_added_up"] = rows.added_up;
  return object;
}

Json object_of_settings(const ReplaySettings& settings) {
  Json object = {{"model", settings.model},
                 {"bytes", settings.bytes == BytesMode::Verify ? "verify" : "none"},
                 {"running_max", settings.running_max},
                 {"flip_a_byte", settings.flip_a_byte},
                 {"bin_count", settings.bin_count}};
  if (settings.mix == RequestMix::Longest) object["mix"] = "longest";
  if (settings.engine_count > 1) object["engine_count"] = settings.engine_count;
  if (settings.host.is_on()) {
    object["host_bytes"] = settings.host.capacity_bytes;
    object["write_policy"] = write_policy_name(settings.host.write_policy);
    object["host_policy"] = settings.host.policy;
  }
  if (settings.disk.is_on()) {
    object["disk_bytes"] = settings.disk.capacity_bytes;
    object["disk_write_policy"] = write_policy_name(settings.disk.write_policy);
    object["disk_write_bytes_per_day"] = settings.disk.write_bytes_per_day;
  }
  if (settings.remote.is_on()) {
    object["remote_extent_bytes"] = settings.remote.extent_bytes;
    object["remote_write_policy"] = write_policy_name(settings.remote.write_policy);
    object["remote_write_bytes_per_day"] = settings.remote.write_bytes_per_day;
  }
  return object;
}

Json object_of_host(const HostTierOutcome& host) {
  Json misses = Json::array();
  for (std::size_t i = 0; i < host.misses.size(); ++i) {
    if (host.misses[i].request_count == 0) continue;
    misses.push_back({{"reason", to_string(static_cast<MissReason>(i))},
                      {"request_count", host.misses[i].request_count},
                      {"token_count", host.misses[i].token_count}});
  }
  return {{"page_count", host.page_count},
          {"hit_tokens", host.hit_tokens},
          {"stored_bytes", host.stored_bytes},
          {"loaded_bytes", host.loaded_bytes},
          {"evicted_pages", host.evicted_pages},
          {"lost_pages", host.lost_pages},
          {"early_requests", host.early_request_count},
          {"early_steps", host.early_step_count},
          {"misses", std::move(misses)}};
}

Json object_of_remote(const RemoteTierOutcome& remote) {
  return {{"hit_tokens", remote.hit_tokens},       {"extent_pages", remote.extent_pages},
          {"put_values", remote.put_values},       {"put_bytes", remote.put_bytes},
          {"kept_values", remote.kept_values},     {"got_bytes", remote.got_bytes},
          {"absent_values", remote.absent_values}, {"bad_values", remote.bad_values},
          {"late_objects", remote.late_objects},   {"failed_objects", remote.failed_objects}};
}

Json object_of_disk(const DiskTierOutcome& disk) {
  return {{"capacity_bytes", disk.capacity_bytes}, {"hit_tokens", disk.hit_tokens},
          {"page_count", disk.page_count},         {"found_pages", disk.found_pages},
          {"written_bytes", disk.written_bytes},   {"read_bytes", disk.read_bytes},
          {"evicted_pages", disk.evicted_pages},   {"has_failed", disk.has_failed}};
}

Json array_of_engines(const ReplayOutcome& outcome) {
  Json array = Json::array();
  for (const EngineOutcome& engine : outcome.engines) {
    Json object = {{"request_count", engine.request_count},
                   {"prompt_tokens", engine.prompt_tokens},
                   {"hit_tokens", engine.hit_tokens},
                   {"hit_rate", engine.hit_rate()}};
    if (outcome.host) object["host_hit_tokens"] = engine.host_hit_tokens;
    if (outcome.disk) object["disk_hit_tokens"] = engine.disk_hit_tokens;
    if (outcome.remote) {
      object["remote_hit_tokens"] = engine.remote_hit_tokens;
      object["private_hit_tokens"] = engine.private_hit_tokens;
      object["private_hit_rate"] = engine.private_hit_rate();
    }
    array.push_back(std::move(object));
  }
  return array;
}

Json array_of_groups(const std::vector<GroupOutcome>& groups) {
  Json array = Json::array();
  for (const GroupOutcome& group : groups) {
    const GroupStats& stats = group.stats;
    array.push_back({{"name", group.name},
                     {"kind", group.kind},
                     {"page_bytes", group.page_bytes},
                     {"slot_bytes", group.slot_bytes},
                     {"page_count", stats.page_count},
                     {"slot_count", stats.slot_count},
                     {"free_pages", stats.free_pages},
                     {"sealed_pages", stats.sealed_pages},
                     {"sealed_page_total", stats.sealed_page_total},
                     {"duplicate_page_total", stats.duplicate_page_total},
                     {"evicted_page_total", stats.evicted_page_total},
                     {"dropped_page_total", stats.dropped_page_total},
                     {"skipped_snapshot_total", stats.skipped_snapshot_total},
                     {"restored_snapshot_total", stats.restored_snapshot_total},
                     {"limited_request_count", group.limited.request_count},
                     {"limited_token_count", group.limited.token_count}});
  }
  return array;
}

Json object_of_replay(const ReplayOutcome& outcome, const KeySpaceRows& rows, std::size_t merged,
                      const Limits& limits) {
  Json corruption = nullptr;
  if (outcome.corruption) {
    corruption = {{"line", outcome.corruption->line},
                  {"page", outcome.corruption->page},
                  {"offset", outcome.corruption->offset},
                  {"prefix", cut(outcome.corruption->prefix, limits.name_bytes)}};
    if (!outcome.corruption->group.empty()) {
      corruption["group"] = outcome.corruption->group;
      corruption["is_slot"] = outcome.corruption->is_slot;
    }
  }
  Json object = {{"policy", cut(outcome.config.policy, limits.name_bytes)},
                 {"page_tokens", outcome.config.page_tokens},
                 {"capacity_tokens", outcome.config.capacity_tokens},
                 {"page_count", outcome.page_count},
                 {"page_bytes", outcome.page_bytes},
                 {"hit_rate", outcome.hit_rate()},
                 {"request_count", outcome.request_count},
                 {"prompt_tokens", outcome.prompt_tokens},
                 {"hit_tokens", outcome.hit_tokens},
                 {"partial_hit_tokens", outcome.partial_hit_tokens},
                 {"hit_request_count", outcome.hit_request_count},
                 {"shared_hit_tokens", outcome.shared_hit_tokens},
                 {"over_pool_count", outcome.over_pool_count},
                 {"over_pool_lines", outcome.over_pool_lines},
                 {"sealed_pages", outcome.sealed_pages},
                 {"evicted_pages", outcome.evicted_pages},
                 {"verified_bytes", outcome.verified_bytes},
                 {"corruption", std::move(corruption)},
                 {"run_lengths", outcome.run_lengths},
                 {"key_spaces", object_of_key_spaces(outcome.key_spaces, rows)},
                 {"timeline", object_of_timeline(outcome.timeline, merged, CachedPages::Known)}};
  if (!outcome.groups.empty()) {
    object["device_bytes"] = outcome.device_bytes;
    object["groups"] = array_of_groups(outcome.groups);
  }
  if (!outcome.engines.empty()) object["engines"] = array_of_engines(outcome);
  if (outcome.host) object["host"] = object_of_host(*outcome.host);
  if (outcome.disk) object["disk"] = object_of_disk(*outcome.disk);
  if (outcome.remote) object["remote"] = object_of_remote(*outcome.remote);
  return object;
}

Json object_of_bound(const BoundOutcome& bound, std::size_t merged) {
  Json object = {{"capacity_tokens", bound.capacity_tokens},
                 {"prompt_tokens", bound.prompt_tokens},
                 {"hit_tokens", bound.hit_tokens},
                 {"hit_rate", bound.hit_rate()},
                 {"timeline", object_of_timeline(bound.timeline, merged, CachedPages::Unknown)}};
  if (bound.host_tokens > 0) object["host_tokens"] = bound.host_tokens;
  if (bound.disk_tokens > 0) object["disk_tokens"] = bound.disk_tokens;
  return object;
}

/// On one line. Names come from foreign files: bytes that are no UTF-8 become U+FFFD.
std::string text_of(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string lines_of(const Json& report) {
  std::string text;
  for (const auto& [name, value] : report.items()) {
    text += text.empty() ? "{\n" : ",\n";
    text += '"' + name + "\":";
    if ((name != "replays" && name != "bounds" && name != "tier_replays") || value.empty()) {
      text += text_of(value);
      continue;
    }
    std::string_view separator = "[\n";
    for (const Json& element : value) {
      text += separator;
      text += text_of(element);
      separator = ",\n";
    }
    text += "\n]";
  }
  return text + "\n}\n";
}

std::string json_within(const ReportInput& input, const Limits& limits) {
  std::vector<std::uint64_t> prompt_tokens(input.trace->key_spaces.size());
  for (const TraceRequest& request : input.trace->requests) prompt_tokens[request.key_space] += request.prompt_tokens;
  const KeySpaceRows rows(prompt_tokens, limits.key_spaces);
  const std::size_t merged = merging_for(*input.sweep, limits.stretches);

  Json replays = Json::array();
  for (const ReplayOutcome& outcome : input.sweep->replays) {
    replays.push_back(object_of_replay(outcome, rows, merged, limits));
  }
  Json bounds = Json::array();
  for (const BoundOutcome& bound : input.sweep->bounds) bounds.push_back(object_of_bound(bound, merged));
  Json report = {{"format_version", 1},
                 {"quire_version", kVersion},
                 {"title", cut(input.title, limits.name_bytes)},
                 {"command", input.command},
                 {"is_complete", input.sweep->is_complete},
                 {"trace", object_of_trace(*input.trace, *input.facts, rows, limits)},
                 {"settings", object_of_settings(*input.settings)},
                 {"replays", std::move(replays)},
                 {"bounds", std::move(bounds)}};
  if (input.tiers != nullptr) {
    Json& tiers = report["tier_replays"] = Json::array();
    for (const ReplayOutcome& outcome : input.tiers->replays) {
      tiers.push_back(object_of_replay(outcome, rows, merged, limits));
    }
  }
  return lines_of(report);
}

}  // namespace

std::string json_of(const ReportInput& input) {
  return json_within(input, Limits{});
}

std::string html_of(const ReportInput& input) {
  constexpr std::string_view kPlace = "@QUIRE_REPORT@";
  const std::size_t place = kReportHtml.find(kPlace);
  std::string page(kReportHtml.substr(0, place));
  // In JSON '<' occurs in strings only. Escaped, nothing in them can end the script element or begin a comment.
  for (const char c : json_within(input, kPageLimits)) {
    if (c == '<') {
      page += "\\u003c";
    } else {
      page += c;
    }
  }
  page += kReportHtml.substr(place + kPlace.size());
  return page;
}

}  // namespace quire
