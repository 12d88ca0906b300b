// SPDX-License-Identifier: Apache-2.0
#include "remote_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "amounts.h"
#include "store_text.h"
#include "terminal.h"

namespace quire {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLinesMax = 20;

std::vector<Cell> cells_of(const std::string& name, const std::string& layout, const RedisPart& part) {
  return {{name},
          {layout},
          {with_commas(part.value_count)},
          {with_commas(part.page_count)},
          {part.value_count == 0 ? "-" : bytes_text(part.bytes / part.value_count)},
          {bytes_text(part.bytes)}};
}

std::string values_text(const RedisInspectReport& report) {
  return fmt::format("{} ({}) on {} of {}", counted(report.value_count, "value"), counted(report.page_count, "page"),
                     counted(report.node_count, "node"), bytes_text(report.bytes));
}

}  // namespace

std::string remote_text(const RedisInspectReport& report, const TextPlace& place) {
  std::string text = values_text(report) + "\n";
  if (report.foreign_count > 0) {
    text += fmt::format("Beside them, {} that no cache writes: quire verify --remote lists the first of them.\n",
                        counted(report.foreign_count, "key"));
  }
  if (report.parts.empty()) return text;
  Table table;
  std::vector<Cell> header;
  for (const char* const name : {"key space", "layout", "values", "pages", "a value", "bytes"}) {
    header.push_back({name, Ink::Bold});
  }
  table.add(std::move(header));
  const std::size_t shown = report.parts.size() <= kLinesMax ? report.parts.size() : kLinesMax - 1;
  RedisPart others;
  for (std::size_t i = 0; i < report.parts.size(); ++i) {
    const RedisPart& part = report.parts[i];
    if (i < shown) {
      table.add(cells_of(part.key_space, fmt::format("{:016x}", part.layout), part));
      continue;
    }
    others.value_count += part.value_count;
    others.page_count += part.page_count;
    others.bytes += part.bytes;
  }
  if (shown < report.parts.size()) {
    table.add(cells_of(fmt::format("{} others", with_commas(report.parts.size() - shown)), "", others));
  }
  return text + "\n" + table.text(place);
}

std::string remote_json(const RedisInspectReport& report) {
  Json parts = Json::array();
  for (const RedisPart& part : report.parts) {
    // As text: programs in other languages lose digits of numbers as large as hashes.
    parts.push_back({{"key_space", part.key_space},
                     {"layout", fmt::format("{:016x}", part.layout)},
                     {"value_count", part.value_count},
                     {"page_count", part.page_count},
                     {"bytes", part.bytes}});
  }
  const Json object = {{"format_version", 1},
                       {"node_count", report.node_count},
                       {"value_count", report.value_count},
                       {"page_count", report.page_count},
                       {"bytes", report.bytes},
                       {"foreign_count", report.foreign_count},
                       {"is_complete", report.is_complete},
                       {"parts", std::move(parts)}};
  return object.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string remote_verify_text(const RedisInspectReport& report, bool is_repair, const TextPlace& place) {
  std::string text;
  if (!report.faults.empty()) {
    Table table;
    std::vector<Cell> header = {{"bad", Ink::Bold}};
    if (is_repair) header.push_back({"repair", Ink::Bold});
    header.push_back({"why", Ink::Bold});
    for (std::size_t column = 1; column < header.size(); ++column) table.align_left(column);
    table.add(std::move(header));
    std::size_t widest = 0;
    for (const RedisFault& fault : report.faults) {
      std::vector<Cell> line = {{escaped(fault.key)}};
      if (is_repair) line.push_back({fault.is_dropped ? "dropped" : "left", fault.is_dropped ? Ink::Plain : Ink::Red});
      line.push_back({escaped(fault.why)});
      std::size_t columns = 0;
      for (const Cell& cell : line) columns += columns_of(cell.text) + 8;
      widest = std::max(widest, columns);
      table.add(std::move(line));
    }
    // A fault is one line, however long, so that it can be searched for.
    text += table.text({.paint = place.paint, .width = std::max(place.width, widest)});
    if (report.faults.size() < report.fault_count) {
      text += fmt::format("and {} more\n", with_commas(report.fault_count - report.faults.size()));
    }
    text += "\n";
  }
  text += values_text(report) + ": ";
  if (report.fault_count == 0) {
    text += "all as written\n";
  } else {
    text += fmt::format("{} bad{}\n", with_commas(report.fault_count),
                        !is_repair          ? ""
                        : report.is_clean() ? ", and dropped: what is left is good"
                                            : fmt::format(", of which {} could not be dropped",
                                                          with_commas(report.fault_count - report.dropped_count)));
  }
  if (report.gone_count > 0) {
    text += fmt::format("{} gone before anybody read them: evicted, dropped or written again\n",
                        counted(report.gone_count, "value") + (report.gone_count == 1 ? " was" : " were"));
  }
  return text;
}

std::string remote_progress_text(const RedisInspectProgress& progress, double elapsed_s) {
  std::string text = counted(progress.value_count, "value");
  if (progress.read_bytes > 0) text += fmt::format(", {} read", bytes_text(progress.read_bytes));
  if (progress.fault_count > 0) text += fmt::format(", {} bad", with_commas(progress.fault_count));
  if (progress.read_bytes > 0 && elapsed_s > 0) {
    text += fmt::format(", {}/s",
                        bytes_text(static_cast<std::uint64_t>(static_cast<double>(progress.read_bytes) / elapsed_s)));
  }
  return text;
}

}  // namespace quire
