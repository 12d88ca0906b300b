// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace quire::bench {

std::string text_of(double value, int digits) {
  char text[64];
  (void)std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

void Table::section(std::string name) {
  lines_.push_back({.is_row = false, .text = "\n" + std::move(name), .row = {}});
}

void Table::add(Row row) {
  lines_.push_back({.is_row = true, .text = {}, .row = std::move(row)});
}

void Table::note(std::string text) {
  lines_.push_back({.is_row = false, .text = "  " + std::move(text), .row = {}});
}

void Table::not_measured(std::string what) {
  ++not_measured_;
  note("NOT MEASURED: " + std::move(what));
}

void Table::print_line(std::FILE* to, const Line& line) {
  if (!line.is_row) {
    (void)std::fprintf(to, "%s\n", line.text.c_str());
    return;
  }
  const Row& row = line.row;
  const std::string value = text_of(row.value, row.value < 10 ? 2 : 1) + " " + row.unit;
  const std::string ratio = row.ratio ? text_of(*row.ratio, 3) : "";
  const char* const verdict = !row.is_met ? "" : *row.is_met ? "met" : "MISSED";
  (void)std::fprintf(to, "  %-60s %14s  %6s  %-34s %-12s %s\n", row.what.c_str(), value.c_str(), ratio.c_str(),
                     row.beside.c_str(), row.target.c_str(), verdict);
}

void Table::print_new() {
  for (; printed_ < lines_.size(); ++printed_) print_line(stderr, lines_[printed_]);
}

void Table::print() const {
  std::printf("  %-60s %14s  %6s  %-34s %-12s %s\n", "", "figure", "ratio", "beside", "target", "");
  for (const Line& line : lines_) print_line(stdout, line);
  (void)std::fflush(stdout);
}

int Table::missed_count() const {
  return static_cast<int>(
      std::ranges::count_if(lines_, [](const Line& line) { return line.is_row && line.row.is_met == false; }));
}

}  // namespace quire::bench
