// SPDX-License-Identifier: Apache-2.0
#include "summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string_view>
#include <tuple>
#include <utility>

#include "quire/policy.h"

namespace quire::bench {
namespace {

// "0.024", "8.53", "36.4", "668,380"
std::string number(double value) {
  if (value >= 1000) {
    std::string digits = std::to_string(std::llround(value));
    for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
    return digits;
  }
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.*f", value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3, value);
  return text.data();
}

std::string ratio_text(double ratio) {
  return ratio < 0.01 ? "1/" + number(1 / ratio) : number(ratio);
}

std::string bound_text(const Target& target, const std::string& unit) {
  // The short form: a target is a round number.
  std::string value = number(target.value);
  if (value.find('.') != std::string::npos) {
    value.erase(value.find_last_not_of('0') + 1);
    if (value.ends_with('.')) value.pop_back();
  }
  return (target.bound == Bound::AtMost ? "<= " : ">= ") + value + unit;
}

bool is_met(const Target& target, double value) {
  return target.bound == Bound::AtMost ? value <= target.value : value >= target.value;
}

std::string joined(const auto&... parts) {
  std::string text;
  ((text += parts), ...);
  return text;
}

void append(std::string& list, const std::string& text) {
  list += (list.empty() ? "" : "; ") + text;
}

// Google Benchmark 1.8 has renamed the members.
std::string error_of(const auto& run) {
  if constexpr (requires { run.error_occurred; }) {
    return run.error_occurred ? run.error_message : "";
  } else {
    return static_cast<bool>(run.skipped) ? run.skip_message : "";
  }
}

Row match_row(const std::string& what, const std::string& benchmark, const std::string& limit) {
  return {.what = what,
          .figure = {benchmark, "quire_us"},
          .unit = " us",
          .beside = {{.name = limit, .figure = {benchmark, limit + "_us"}}}};
}

void add_match_rows(std::vector<Row>& rows) {
  rows.push_back(match_row("match 100,000 tokens, P=16, warm", "match/warm/P:16", "memcmp"));
  rows.back().ratio_target = Target{1.5};
  rows.push_back(match_row("match 100,000 tokens, P=16, cold", "match/cold/P:16", "memcmp"));
  rows.back().target = Target{100};
  rows.push_back(match_row("match 100,000 tokens, P=16, cold, aged", "match/aged_cold/P:16", "memcmp"));
  rows.back().target = Target{100};
  rows.push_back(match_row("lookup 100,000 tokens, hybrid, P=16, warm", "match_hybrid/warm/P:16", "full"));
  rows.back().ratio_target = Target{2};
  rows.push_back(match_row("lookup 100,000 tokens, hybrid, P=16, cold", "match_hybrid/cold/P:16", "full"));
  rows.back().ratio_target = Target{2};
  rows.push_back(match_row("insert 100,000 tokens, P=16, warm", "insert/warm/P:16", "memcpy"));
  rows.back().ratio_target = Target{4};
}

void add_chat_rows(std::vector<Row>& rows) {
  const auto row = [](std::string_view policy, std::string_view pages, std::string_view part, const char* counter,
                      const char* unit) {
    Row made{.what = joined("W1, ", policy, ", P=", pages, part),
             .figure = {joined("chat/", policy, "/P:", pages), counter},
             .unit = unit};
    if (policy != "lru") made.beside.push_back({"lru", {joined("chat/lru/P:", pages), counter}});
    return made;
  };
  const auto add = [&](std::string_view policy, std::string_view pages) {
    rows.push_back(row(policy, pages, "", "requests_per_s", "/s"));
    rows.push_back(row(policy, pages, ", hit rate", "hit_rate", ""));
    rows.push_back(row(policy, pages, ", eviction of 256 tokens", "evict_us_per_256_tokens", " us"));
    rows.back().target = Target{1};
    if (policy != "lru") return;
    Row& requests = rows[rows.size() - 3];
    requests.beside.push_back({"textbook tree", {requests.figure.benchmark, "naive_requests_per_s"}});
    if (pages == "16") requests.target = Target{140'000, Bound::AtLeast};
    Row& hits = rows[rows.size() - 2];
    hits.beside.push_back({"textbook tree", {hits.figure.benchmark, "naive_hit_rate"}});
  };
  add("lru", "1");
  for (const std::string_view policy : policy_names()) add(policy, "16");
}

void add_long_context_rows(std::vector<Row>& rows) {
  const auto add = [&](const std::string& what, const std::string& parameters) {
    const std::string benchmark = "long_context/warm/" + parameters;
    rows.push_back({.what = "W2, " + what + ", warm",
                    .figure = {benchmark, "quire_ms"},
                    .unit = " ms",
                    .beside = {{"memcmp", {benchmark, "memcmp_ms"}}, {"textbook tree", {benchmark, "naive_ms"}}},
                    .target = Target{0.065}});
  };
  add("P=1, one chunk", "P:1/chunk:131072");
  add("P=1, chunks of 8,192", "P:1/chunk:8192");
  add("P=1, chunks of 256", "P:1/chunk:256");
  add("P=16, chunks of 256", "P:16/chunk:256");
}

// A row of each policy, beside 1,000 leaves of its own and the same number of lru's.
void add_eviction_rows(std::vector<Row>& rows, std::string_view kind, std::uint32_t leaf_count) {
  for (const std::string_view policy : policy_names()) {
    for (const std::string_view pages : {"1", "16"}) {
      const auto benchmark = [&](std::string_view by) {
        return joined("evict/", kind, "/", by, "/P:", pages, "/leaves:", std::to_string(leaf_count));
      };
      rows.push_back({.what = joined("W3, ", policy, ", P=", pages, ", ", number(leaf_count), " leaves, ", kind),
                      .figure = {benchmark(policy), "quire_us"},
                      .unit = " us",
                      .beside = {{"1,000 leaves", {benchmark(policy), "quire_us_at_1000_leaves"}}},
                      .target = Target{10},
                      .ratio_target = Target{2}});
      if (policy != "lru") rows.back().beside.push_back({"lru", {benchmark("lru"), "quire_us"}});
    }
  }
}

void add_memory_rows(std::vector<Row>& rows) {
  const auto add = [&](std::uint32_t page_tokens, double target) {
    rows.push_back({.what = "index memory, P=" + std::to_string(page_tokens),
                    .figure = {"memory/P:" + std::to_string(page_tokens), "bytes_per_token"},
                    .unit = " bytes/token",
                    .target = Target{target}});
  };
  add(16, 6);
  add(1, 24);
}

void add_plan_rows(std::vector<Row>& rows) {
  const auto row = [](const std::string& what, const std::string& benchmark, double target) {
    return Row{.what = "plan of 256 sequences, " + what,
               .figure = {benchmark, "quire_us"},
               .unit = " us",
               .beside = {{"rebuild", {benchmark, "rebuild_us"}}},
               .target = Target{target}};
  };
  rows.push_back(row("4,096 tokens", "plan/rows/tokens:4096", 15));
  for (const auto& [what, benchmark] :
       {std::pair{"32,768 tokens", "plan/rows/tokens:32768"}, std::pair{"131,072 tokens", "plan/rows/tokens:131072"}}) {
    rows.push_back(row(what, benchmark, 15));
    rows.back().beside.insert(rows.back().beside.begin(), {"4,096 tokens", {"plan/rows/tokens:4096", "quire_us"}});
    rows.back().ratio_target = Target{1.5};
  }
  rows.push_back(row("4,096 tokens, all page ids", "plan/csr/tokens:4096", 30));
  rows.push_back({.what = "plan of 256 sequences, cascade of 3",
                  .figure = {"plan/cascade/tokens:4096", "cascade_us"},
                  .unit = " us",
                  .beside = {{"no cascade", {"plan/cascade/tokens:4096", "plain_us"}}},
                  .ratio_target = Target{1.2}});
  rows.push_back({.what = "plan of 255 sequences, other ones each step, cascade of 3",
                  .figure = {"plan/cascade/tokens:4096", "changed_us"},
                  .unit = " us",
                  .beside = {{"no cascade", {"plan/cascade/tokens:4096", "plain_changed_us"}}},
                  .ratio_target = Target{1.2}});
  rows.push_back({.what = "plan of 256 sequences, one admitted before each step, cascade of 3",
                  .figure = {"plan/cascade/tokens:4096", "admitted_us"},
                  .unit = " us",
                  .beside = {{"no cascade", {"plan/cascade/tokens:4096", "plain_admitted_us"}}},
                  .ratio_target = Target{1.2}});
}

void add_host_kernel_rows(std::vector<Row>& rows) {
  const auto add_one = [&](const std::string& what, const std::string& name, std::optional<Target> ratio_target) {
    rows.push_back({.what = what,
                    .figure = {name, "quire_gb_per_s"},
                    .unit = " GB/s",
                    .beside = {{"memcpy", {name, "memcpy_gb_per_s"}}, {"row by row", {name, "rows_gb_per_s"}}},
                    .ratio_target = ratio_target});
  };
  const auto add = [&](const std::string& what, const std::string& benchmark) {
    for (const auto& [place, suffix] : {std::pair{"memory", ", beyond the caches"}, std::pair{"l2", ", in L2"}}) {
      std::string name = benchmark;
      name.replace(name.find('*'), 1, place);
      add_one(what + suffix, name, Target{0.8, Bound::AtLeast});
    }
  };
  add("append, NHD", "append/*/nhd/page_first");
  add("append, NHD, layer-first", "append/*/nhd/layer_first");
  add("append, HND", "append/*/hnd/page_first");
  add("append, HND, whole pages", "append/*/hnd/whole_pages");
  add("copy pages", "copy_pages/*/page_first/tokens:16");
  add("copy pages, layer-first", "copy_pages/*/layer_first/tokens:16");
  add("copy 7 tokens of pages", "copy_pages/*/page_first/tokens:7");
  // What the rows above leave out is shown, without a target.
  add_one("append of 16 tokens, NHD, beyond the caches", "append/few/nhd/page_first", std::nullopt);
  add_one("append of 16 tokens, HND, beyond the caches", "append/few/hnd/page_first", std::nullopt);
  for (const auto& [order, name] :
       {std::pair{"NHD", "append_then_read/nhd"}, std::pair{"HND", "append_then_read/hnd"}}) {
    rows.push_back({.what = std::string("append around the caches, then read the pages, ") + order,
                    .figure = {name, "streaming_us"},
                    .unit = " us",
                    .beside = {{"through them", {name, "cached_us"}}}});
  }
}

void add_quantised_kernel_rows(std::vector<Row>& rows) {
  const auto add = [&](const std::string& what, const std::string& name, std::optional<Target> ratio_target) {
    rows.push_back({.what = what,
                    .figure = {name, "quire_gb_per_s"},
                    .unit = " GB/s",
                    .beside = {{"memcpy", {name, "memcpy_gb_per_s"}}, {"portable", {name, "portable_gb_per_s"}}},
                    .ratio_target = ratio_target});
  };
  for (const std::string format : {"fp8_arrays", "fp8_rows_then_scales", "fp8_records"}) {
    add("gather selected entries, " + format, "gather/selected/" + format, Target{0.5, Bound::AtLeast});
    add("gather all entries, " + format, "gather/all/" + format, Target{0.5, Bound::AtLeast});
    add("append quantised, " + format, "append_quantised/" + format, std::nullopt);
  }
  add("gather rings", "gather/ring/fp8_arrays_with_positions", Target{0.5, Bound::AtLeast});
}

void add_transfer_rows(std::vector<Row>& rows) {
  for (const auto& [checked, suffix, target] :
       {std::tuple{"/plain", "", 0.85}, std::tuple{"/checked", ", checksums", 0.7}}) {
    for (const auto& [layout, where] : {std::pair{"/page_first", ""}, std::pair{"/layer_first", ", layer-first"}}) {
      for (const std::string_view kind : {"store", "load"}) {
        for (const auto& [kib, size] : {std::pair{"64", "64 KiB"}, std::pair{"256", "256 KiB"},
                                        std::pair{"1024", "1 MiB"}, std::pair{"4096", "4 MiB"}}) {
          const std::string benchmark = joined("tier_copy/", kind, layout, checked, "/KiB:", kib);
          rows.push_back({.what = joined("host tier, ", kind, " pages of ", size, where, suffix),
                          .figure = {benchmark, "quire_gb_per_s"},
                          .unit = " GB/s",
                          .beside = {{"memcpy", {benchmark, "memcpy_gb_per_s"}}},
                          .ratio_target = Target{target, Bound::AtLeast}});
        }
      }
    }
  }
  const auto add = [&](const char* what, const char* counter, std::optional<Target> target) {
    rows.push_back({.what = what, .figure = {"mover/overhead", counter}, .unit = " us", .target = target});
  };
  add("mover, a transfer among queued ones", "queued_us", Target{2});
  add("mover, submitting a transfer", "submit_us", Target{1});
  add("mover, a transfer there and back", "round_trip_us", std::nullopt);
}

void add_overlap_rows(std::vector<Row>& rows) {
  for (const std::string_view bands : {"1", "4", "8", "16", "32"}) {
    const std::string benchmark = joined("overlap/bands:", bands);
    rows.push_back({.what = joined("a step while its pages arrive, ", bands, bands == "1" ? " band" : " bands"),
                    .figure = {benchmark, "overlapped_ms"},
                    .unit = " ms",
                    .beside = {{"longer of load, compute", {benchmark, "longer_ms"}}},
                    .ratio_target = bands == "8" ? std::optional(Target{1.15}) : std::nullopt});
  }
}

void add_tier_rows(std::vector<Row>& rows) {
  for (const auto& [name, what] :
       {std::pair{"tiers/cold/write_back", "write_back"}, std::pair{"tiers/cold/write_through", "write_through"}}) {
    // 1 % of a step of 10 ms.
    rows.push_back({.what = joined("host tier, a step of 64 without hits, ", what, ", added"),
                    .figure = {name, "added_us"},
                    .unit = " us",
                    .beside = {{"no host tier", {name, "plain_us"}}},
                    .target = Target{100}});
    rows.push_back({.what = joined("host tier, a completion of a store, ", what),
                    .figure = {name, "completion_us"},
                    .unit = " us",
                    .target = Target{1}});
  }
  for (const auto& [name, what] :
       {std::pair{"tiers/loads/write_back", "write_back"}, std::pair{"tiers/loads/write_through", "write_through"}}) {
    rows.push_back({.what = joined("host tier, a completion of a load, ", what),
                    .figure = {name, "completion_us"},
                    .unit = " us",
                    .target = Target{1}});
  }
  // 1 % of a step of 10 ms.
  const std::string ranks = "tiers/ranks:8/transfers:256";
  rows.push_back({.what = "host tier, 256 completions that 8 ranks agree on",
                  .figure = {ranks, "exchange_us"},
                  .unit = " us",
                  .beside = {{"alone", {ranks, "alone_us"}}},
                  .target = Target{100}});
}

}  // namespace

Summary::Summary(const Effort& effort) {
  add_match_rows(rows_);
  add_chat_rows(rows_);
  add_long_context_rows(rows_);
  rows_.push_back({.what = "W3, lru, P=1, 200,000 leaves, warm",
                   .figure = {"evict/warm/lru/P:1/leaves:200000", "quire_us"},
                   .unit = " us",
                   .beside = {{"textbook tree", {"evict/warm/lru/P:1/leaves:200000", "naive_us"}}}});
  add_eviction_rows(rows_, "cold", effort.leaf_count_max());
  add_eviction_rows(rows_, "used", effort.leaf_count_max());
  add_memory_rows(rows_);
  add_plan_rows(rows_);
  add_host_kernel_rows(rows_);
  add_quantised_kernel_rows(rows_);
  add_transfer_rows(rows_);
  add_overlap_rows(rows_);
  add_tier_rows(rows_);
}

void Summary::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    if (run.run_type != Run::RT_Iteration) continue;
    const std::string error = error_of(run);
    if (!error.empty()) {
      GetOutputStream() << "failed\t" << run.run_name.function_name << '\t' << error << '\n';
      continue;
    }
    for (const auto& [counter, value] : run.counters) {
      measured_[{run.run_name.function_name, counter}].push_back(value);
    }
  }
  std::erase_if(rows_, [&](const Row& row) {
    const std::optional<double> value = measured(row.figure);
    const auto is_measured = [&](const Beside& other) { return measured(other.figure).has_value(); };
    if (!value || !std::ranges::all_of(row.beside, is_measured)) return false;
    print(row, *value);
    return true;
  });
  GetOutputStream() << "done\t" << runs.front().run_name.function_name << '\n' << std::flush;
}

void Summary::Finalize() {
  for (const Row& row : rows_) {
    const std::optional<double> value = measured(row.figure);
    if (value) print(row, *value);
  }
  GetOutputStream() << std::flush;
}

std::optional<double> Summary::measured(const Figure& figure) const {
  const auto found = measured_.find(figure);
  if (found == measured_.end()) return std::nullopt;
  std::vector<double> sorted = found->second;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

void Summary::print(const Row& row, double value) {
  std::string beside;
  std::string ratios;
  std::string target;
  bool is_ok = true;
  if (row.target) {
    append(target, bound_text(*row.target, row.unit));
    is_ok = is_met(*row.target, value);
  }
  for (const Beside& other : row.beside) {
    const std::optional<double> divisor = measured(other.figure);
    if (!divisor) continue;
    append(beside, other.name + ' ' + number(*divisor) + row.unit);
    append(ratios, ratio_text(value / *divisor));
    if (row.ratio_target && &other == row.beside.data()) {
      append(target, bound_text(*row.ratio_target, " x"));
      is_ok = is_ok && is_met(*row.ratio_target, value / *divisor);
    }
  }
  const std::string_view verdict = target.empty() ? "" : is_ok ? "ok" : "short";
  GetOutputStream() << "row\t" << row.what << '\t' << number(value) << row.unit << '\t' << beside << '\t' << ratios
                    << '\t' << target << '\t' << verdict << '\n';
}

}  // namespace quire::bench
