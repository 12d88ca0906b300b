// SPDX-License-Identifier: Apache-2.0
#include "store_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "amounts.h"
#include "progress.h"
#include "terminal.h"

namespace quire {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLinesMax = 20;
constexpr std::size_t kTextColumnsMax = 24;
constexpr std::size_t kNameDigits = 12;
constexpr TimeNs kSecondNs = 1'000'000'000;

/// "2026-11-15 17:40:01 UTC"
std::string time_text(TimeNs time_ns) {
  const auto seconds = static_cast<std::time_t>(time_ns / kSecondNs);
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "unknown";
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string age_since(TimeNs then_ns, TimeNs now_ns) {
  TimeNs age_ns = 0;
  if (then_ns < now_ns && __builtin_sub_overflow(now_ns, then_ns, &age_ns)) age_ns = std::numeric_limits<TimeNs>::max();
  return age_text(age_ns);
}

/// "5f3c12ab90de…"
std::string short_name(const std::string& name) {
  return name.size() <= kNameDigits ? name : name.substr(0, kNameDigits) + "…";
}

std::string cell_text(const std::string& text) {
  return text.empty() ? "-" : cut_to(escaped(text), kTextColumnsMax);
}

std::vector<Cell> titles(std::initializer_list<const char*> names) {
  std::vector<Cell> cells;
  for (const char* const name : names) cells.push_back({name, Ink::Bold});
  return cells;
}

/// Where a file lies, as short as can be.
std::string file_text(const std::vector<DiskDirectoryReport>& directories, std::uint32_t directory_index,
                      const std::string& file) {
  if (directories.size() <= 1) return file;
  return fmt::format("{}/{}", escaped(directories[directory_index].path), file);
}

std::string directory_text(const DiskDirectoryReport& directory) {
  const std::string path = escaped(directory.path);
  std::string text;
  if (directory.is_in_use) {
    text += fmt::format("{}: {} has it open; this is how it was a moment ago\n", path,
                        directory.process ? fmt::format("process {}", *directory.process) : "a process");
  }
  for (const std::string& name : directory.group_stores) {
    text += fmt::format("{}: {} a store of its own: {}/{}\n", path,
                        name.starts_with("shard-") ? "a shard of ranks has" : "a group of the model has", path,
                        escaped(name));
  }
  if (!directory.foreign_files.empty()) {
    const std::size_t count = directory.foreign_files.size();
    text += fmt::format("{}: {} in it, not of the store and never touched: {}{}\n", path,
                        counted(count, "file") + (count == 1 ? " is" : " are"),
                        escaped(directory.foreign_files.front()), count > 1 ? ", …" : "");
  }
  return text;
}

std::string totals_text(const DiskStoreReport& report, TimeNs now_ns) {
  const auto line = [](std::string_view what, const std::string& amount, const std::string& note) {
    return fmt::format("  {:<12}{:>14}{}{}\n", what, amount, note.empty() ? "" : "  ", note);
  };
  std::string text;
  text += line(
      "pages", with_commas(report.page_count),
      bytes_text(report.page_bytes) +
          (report.compressed_pages == 0 ? "" : fmt::format(", {} compressed", with_commas(report.compressed_pages))));
  text += line("files", bytes_text(report.file_bytes),
               fmt::format("{}{}", counted(report.segments.size(), "segment"),
                           report.directories.size() == 1
                               ? ""
                               : fmt::format(" in {} directories", with_commas(report.directories.size()))));
  text += line("live", bytes_text(report.live_bytes), "records that can be found");
  text += line("to reclaim", bytes_text(report.garbage_bytes), "records that cannot, and what is damaged");
  text += line("tombstones", with_commas(report.tombstone_count), "");
  if (report.page_count > 0) {
    text += line("written", age_since(report.newest_ns, now_ns),
                 fmt::format("ago the newest page, {} ago the oldest", age_since(report.oldest_ns, now_ns)));
  }
  return text;
}

std::string key_spaces_text(const DiskStoreReport& report, TimeNs now_ns, const TextPlace& place) {
  const std::vector<DiskKeySpaceReport>& spaces = report.key_spaces;
  if (spaces.empty()) return "";
  Table table;
  table.add(titles({"key space", "model", "revision", "adapter", "element", "salted", "pages", "bytes", "newest"}));
  for (std::size_t column = 1; column <= 4; ++column) table.align_left(column);
  const std::size_t shown = spaces.size() <= kLinesMax ? spaces.size() : kLinesMax - 1;
  for (std::size_t i = 0; i < shown; ++i) {
    const DiskKeySpaceReport& space = spaces[i];
    const KeySpace text = space.text.value_or(KeySpace{.model = "?"});
    table.add({{short_name(space.name)},
               {cell_text(text.model)},
               {cell_text(text.revision)},
               {cell_text(text.adapter)},
               {cell_text(text.element)},
               {!space.text       ? "?"
                : space.is_salted ? "yes"
                                  : "no"},
               {with_commas(space.page_count)},
               {bytes_text(space.bytes)},
               {space.page_count == 0 ? "-" : age_since(space.newest_ns, now_ns)}});
  }
  if (shown < spaces.size()) {
    std::uint64_t pages = 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = shown; i < spaces.size(); ++i) {
      pages += spaces[i].page_count;
      bytes += spaces[i].bytes;
    }
    table.add({{fmt::format("{} others", with_commas(spaces.size() - shown))},
               {},
               {},
               {},
               {},
               {},
               {with_commas(pages)},
               {bytes_text(bytes)},
               {}});
  }
  return "\n" + table.text(place);
}

std::string ages_text(const DiskStoreReport& report, const TextPlace& place) {
  constexpr std::size_t kBarColumns = 32;
  if (report.page_count == 0) return "";
  std::uint64_t most = 1;
  for (const DiskAgeReport& age : report.ages) most = std::max(most, age.page_count);
  Table table;
  table.add({{"age", Ink::Bold}, {"pages", Ink::Bold}});
  table.align_left(2);
  TimeNs above_ns = 0;
  for (const DiskAgeReport& age : report.ages) {
    const bool is_last = age.age_ns_max == std::numeric_limits<TimeNs>::max();
    const std::string name = is_last ? fmt::format("above {}", age_text(above_ns)) : "to " + age_text(age.age_ns_max);
    above_ns = age.age_ns_max;
    if (age.page_count == 0) continue;
    const std::uint64_t columns = std::max<std::uint64_t>(1, age.page_count * kBarColumns / most);
    table.add({{name}, {with_commas(age.page_count)}, {std::string(columns, '#'), Ink::Dim}});
  }
  return "\n" + table.text(place);
}

std::string layouts_text(const DiskStoreReport& report, const TextPlace& place) {
  if (report.layouts.empty()) return "";
  Table table;
  table.add(titles({"layout", "page bytes", "pages"}));
  for (const DiskLayoutReport& layout : report.layouts) {
    table.add(
        {{fmt::format("{:016x}", layout.hash)}, {with_commas(layout.page_bytes)}, {with_commas(layout.page_count)}});
  }
  return "\n" + table.text(place);
}

Ink ink_of(DiskSegmentState state) {
  switch (state) {
    case DiskSegmentState::Damaged:
    case DiskSegmentState::Newer:
      return Ink::Red;
    case DiskSegmentState::Foreign:
      return Ink::Yellow;
    case DiskSegmentState::Sealed:
    case DiskSegmentState::Open:
    case DiskSegmentState::Empty:
      return Ink::Plain;
  }
  return Ink::Plain;
}

std::string segments_text(const DiskStoreReport& report, const TextPlace& place) {
  if (report.segments.empty()) return "";
  // Of many, those that are not as usual come first.
  std::vector<const DiskSegmentReport*> segments;
  for (const DiskSegmentReport& segment : report.segments) segments.push_back(&segment);
  if (segments.size() > kLinesMax) {
    std::ranges::stable_partition(
        segments, [](const DiskSegmentReport* segment) { return segment->state != DiskSegmentState::Sealed; });
  }
  Table table;
  table.add(titles({"segment", "state", "file bytes", "pages", "live", "live bytes", "to reclaim", "tombstones"}));
  table.align_left(1);
  const std::size_t shown = segments.size() <= kLinesMax ? segments.size() : kLinesMax - 1;
  std::string notes;
  for (std::size_t i = 0; i < shown; ++i) {
    const DiskSegmentReport& segment = *segments[i];
    const std::string file = file_text(report.directories, segment.directory_index, segment.file);
    table.add({{file},
               {std::string(to_string(segment.state)), ink_of(segment.state)},
               {with_commas(segment.file_bytes)},
               {with_commas(segment.page_count)},
               {with_commas(segment.live_pages)},
               {with_commas(segment.live_bytes)},
               {with_commas(segment.garbage_bytes)},
               {with_commas(segment.tombstone_count)}});
    if (!segment.why.empty()) notes += fmt::format("{} is {}: {}\n", file, to_string(segment.state), segment.why);
    if (segment.torn_count > 0) {
      notes += fmt::format("{}: {} like a record and {}\n", file,
                           counted(segment.torn_count, "place") + (segment.torn_count == 1 ? " begins" : " begin"),
                           segment.torn_count == 1 ? "is none" : "are none");
    }
  }
  if (shown < segments.size()) {
    DiskSegmentReport rest;
    for (std::size_t i = shown; i < segments.size(); ++i) {
      rest.file_bytes += segments[i]->file_bytes;
      rest.page_count += segments[i]->page_count;
      rest.live_pages += segments[i]->live_pages;
      rest.live_bytes += segments[i]->live_bytes;
      rest.garbage_bytes += segments[i]->garbage_bytes;
      rest.tombstone_count += segments[i]->tombstone_count;
    }
    table.add({{fmt::format("{} others", with_commas(segments.size() - shown))},
               {},
               {with_commas(rest.file_bytes)},
               {with_commas(rest.page_count)},
               {with_commas(rest.live_pages)},
               {with_commas(rest.live_bytes)},
               {with_commas(rest.garbage_bytes)},
               {with_commas(rest.tombstone_count)}});
  }
  return "\n" + table.text(place) + (notes.empty() ? "" : "\n" + notes);
}

std::string json_line(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

std::string age_text(TimeNs age_ns) {
  const TimeNs seconds = age_ns / kSecondNs;
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3'600) return fmt::format("{} min", seconds / 60);
  if (seconds < 86'400) return fmt::format("{} h", seconds / 3'600);
  return counted(static_cast<std::uint64_t>(seconds / 86'400), "day");
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t good = first_unprintable(text);
    result += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    text.remove_prefix(1);
  }
  return result;
}

std::string store_text(const DiskStoreReport& report, TimeNs now_ns, const TextPlace& place) {
  std::string text = fmt::format("store {}, made {}\n", report.store_id, time_text(report.created_at_ns));
  for (const DiskDirectoryReport& directory : report.directories) text += directory_text(directory);
  return text + totals_text(report, now_ns) + key_spaces_text(report, now_ns, place) + ages_text(report, place) +
         layouts_text(report, place) + segments_text(report, place);
}

std::string store_json(const DiskStoreReport& report) {
  Json directories = Json::array();
  for (const DiskDirectoryReport& directory : report.directories) {
    Json object = {{"path", directory.path},
                   {"file_bytes", directory.file_bytes},
                   {"segment_count", directory.segment_count},
                   {"is_in_use", directory.is_in_use},
                   {"foreign_files", directory.foreign_files},
                   {"group_stores", directory.group_stores}};
    if (directory.process) object["process"] = *directory.process;
    if (directory.free_bytes) object["free_bytes"] = *directory.free_bytes;
    directories.push_back(std::move(object));
  }
  Json key_spaces = Json::array();
  for (const DiskKeySpaceReport& space : report.key_spaces) {
    Json object = {{"name", space.name}, {"page_count", space.page_count}, {"bytes", space.bytes}};
    if (space.page_count > 0) object["newest_ns"] = space.newest_ns;
    if (space.text) {
      object["model"] = space.text->model;
      object["revision"] = space.text->revision;
      object["adapter"] = space.text->adapter;
      object["element"] = space.text->element;
      object["rope"] = space.text->rope;
      object["is_salted"] = space.is_salted;
    }
    key_spaces.push_back(std::move(object));
  }
  Json layouts = Json::array();
  for (const DiskLayoutReport& layout : report.layouts) {
    // As text: programs in other languages lose digits of numbers as large as hashes.
    layouts.push_back({{"hash", fmt::format("{:016x}", layout.hash)},
                       {"page_bytes", layout.page_bytes},
                       {"page_count", layout.page_count}});
  }
  Json ages = Json::array();
  for (const DiskAgeReport& age : report.ages) {
    const bool is_last = age.age_ns_max == std::numeric_limits<TimeNs>::max();
    ages.push_back(
        {{"age_s_max", is_last ? Json(nullptr) : Json(age.age_ns_max / kSecondNs)}, {"page_count", age.page_count}});
  }
  Json segments = Json::array();
  for (const DiskSegmentReport& segment : report.segments) {
    Json object = {{"directory", report.directories[segment.directory_index].path},
                   {"file", segment.file},
                   {"state", to_string(segment.state)},
                   {"file_bytes", segment.file_bytes},
                   {"page_count", segment.page_count},
                   {"live_pages", segment.live_pages},
                   {"live_bytes", segment.live_bytes},
                   {"garbage_bytes", segment.garbage_bytes},
                   {"tombstone_count", segment.tombstone_count},
                   {"torn_count", segment.torn_count}};
    if (!segment.why.empty()) object["why"] = segment.why;
    segments.push_back(std::move(object));
  }
  Json object = {{"format_version", 1},
                 {"store_id", report.store_id},
                 {"created_at_ns", report.created_at_ns},
                 {"page_count", report.page_count},
                 {"page_bytes", report.page_bytes},
                 {"compressed_pages", report.compressed_pages},
                 {"file_bytes", report.file_bytes},
                 {"live_bytes", report.live_bytes},
                 {"garbage_bytes", report.garbage_bytes},
                 {"tombstone_count", report.tombstone_count}};
  if (report.page_count > 0) {
    object["oldest_ns"] = report.oldest_ns;
    object["newest_ns"] = report.newest_ns;
  }
  object["directories"] = std::move(directories);
  object["key_spaces"] = std::move(key_spaces);
  object["ages"] = std::move(ages);
  object["layouts"] = std::move(layouts);
  object["segments"] = std::move(segments);

  std::string text;
  for (const auto& [name, value] : object.items()) {
    text += fmt::format("{}\"{}\":", text.empty() ? "{\n" : ",\n", name);
    if (!value.is_array() || value.empty()) {
      text += json_line(value);
      continue;
    }
    std::string_view separator = "[\n";
    for (const Json& element : value) {
      text += separator;
      text += json_line(element);
      separator = ",\n";
    }
    text += "\n]";
  }
  return text + "\n}\n";
}

std::string verify_text(const VerifyReport& report, const TextPlace& place) {
  std::string text;
  for (const DiskDirectoryReport& directory : report.directories) text += directory_text(directory);
  const bool is_repaired =
      std::ranges::any_of(report.faults, [](const DiskFault& fault) { return fault.repair != DiskRepair::NotAsked; });
  if (!report.faults.empty()) {
    Table table;
    std::vector<Cell> header = titles({"bad", "offset", "name"});
    if (is_repaired) header.push_back({"repair", Ink::Bold});
    header.push_back({"why", Ink::Bold});
    for (std::size_t column = 2; column < header.size(); ++column) table.align_left(column);
    table.add(std::move(header));
    std::size_t widest = 0;
    for (const DiskFault& fault : report.faults) {
      std::vector<Cell> line = {{file_text(report.directories, fault.directory_index, fault.file)},
                                {fault.offset ? with_commas(*fault.offset) : "file"},
                                {fault.name.empty() ? "-" : short_name(fault.name)}};
      if (is_repaired) {
        line.push_back(
            {std::string(to_string(fault.repair)), fault.repair == DiskRepair::Left ? Ink::Red : Ink::Plain});
      }
      line.push_back({escaped(fault.why)});
      std::size_t columns = 0;
      for (const Cell& cell : line) columns += columns_of(cell.text) + 8;
      widest = std::max(widest, columns);
      table.add(std::move(line));
    }
    // A fault is one line, however long, so that it can be searched for.
    text += table.text({.paint = place.paint, .width = std::max(place.width, widest)}) + "\n";
  }
  const std::string pages = report.compressed_pages == 0
                                ? counted(report.page_count, "page")
                                : fmt::format("{}, {} of them compressed", counted(report.page_count, "page"),
                                              with_commas(report.compressed_pages));
  text += fmt::format("{} ({}) in {} of {}: ", counted(report.record_count, "record"), pages,
                      counted(report.segment_count, "segment"), bytes_text(report.file_bytes));
  if (report.faults.empty()) {
    text += "all as written\n";
  } else {
    std::uint64_t left_count = 0;
    for (const DiskFault& fault : report.faults) left_count += fault.repair == DiskRepair::Left ? 1 : 0;
    text +=
        fmt::format("as written; {} bad{}\n", with_commas(report.faults.size()),
                    !is_repaired      ? ""
                    : left_count == 0 ? ", and repaired: what is left is good"
                                      : fmt::format(", of which {} could not be repaired", with_commas(left_count)));
  }
  if (report.unfinished_count > 0) {
    text += fmt::format("{} on the way to disk: not judged\n",
                        counted(report.unfinished_count, "record") + (report.unfinished_count == 1 ? " is" : " are"));
  }
  return text;
}

std::string verify_progress_text(const VerifyProgress& progress, double elapsed_s) {
  const double share =
      progress.all_bytes == 0 ? 1 : static_cast<double>(progress.done_bytes) / static_cast<double>(progress.all_bytes);
  std::string text = fmt::format("{:.0f} % {} {} of {}", 100 * share, progress_bar(share),
                                 bytes_text(progress.done_bytes), bytes_text(progress.all_bytes));
  if (progress.fault_count > 0) text += fmt::format(", {} bad", with_commas(progress.fault_count));
  if (progress.done_bytes > 0 && elapsed_s > 0) {
    const auto rate = static_cast<std::uint64_t>(static_cast<double>(progress.done_bytes) / elapsed_s);
    text += fmt::format(", {}/s, {}", bytes_text(rate), time_left_text(elapsed_s, share));
  }
  return text;
}

}  // namespace quire
