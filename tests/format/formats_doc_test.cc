// SPDX-License-Identifier: Apache-2.0
//
// The tables of docs/formats.md are those of the code: places and lengths of fields, magic texts, numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/segment.h"
#include "wire/segment_fields.h"

namespace quire {
namespace {

using Row = std::vector<std::string>;

std::string read_document() {
  std::ifstream file(QUIRE_TEST_DOCUMENT);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" `");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" `") - begin + 1));
}

Row cells_of(std::string_view line) {
  Row cells;
  for (std::size_t begin = 1; begin < line.size();) {
    const std::size_t end = std::min(line.find('|', begin), line.size());
    cells.push_back(trimmed(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return cells;
}

// The rows of all tables whose first column has this title, by the heading above them. Tables under one heading follow
// each other.
std::map<std::string, std::vector<Row>> tables_with(const std::string& title) {
  std::map<std::string, std::vector<Row>> tables;
  const std::string document = read_document();
  std::string heading;
  bool is_inside = false;
  for (std::size_t begin = 0; begin < document.size();) {
    const std::size_t end = std::min(document.find('\n', begin), document.size());
    const std::string line = document.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("#")) heading = line.substr(std::min(line.find_first_not_of("# "), line.size()));
    if (!line.starts_with("|")) {
      is_inside = false;
      continue;
    }
    const Row cells = cells_of(line);
    if (cells[0] == title) {
      is_inside = true;
    } else if (is_inside && !cells[0].starts_with("-")) {
      tables[heading].push_back(cells);
    }
  }
  return tables;
}

struct Table {
  std::string heading;
  std::span<const Field> fields;
  std::string_view magic;
};

const std::vector<Table>& coded_tables() {
  static const std::vector<Table> kTables = {
      {"Manifest", manifest_fields::kAll, kManifestMagic},
      {"Segment header", segment_fields::kAll, kSegmentMagic},
      {"Record header", record_fields::kAll, kRecordMagic},
      {"Key space", key_space_text_fields::kAll, ""},
      {"Footer and trailer", trailer_fields::kAll, kTrailerMagic},
  };
  return kTables;
}

TEST(FormatsDocument, EveryFieldIsWhereTheCodeHasIt) {
  const auto tables = tables_with("offset");
  EXPECT_EQ(tables.size(), coded_tables().size());
  for (const Table& table : coded_tables()) {
    SCOPED_TRACE(table.heading);
    ASSERT_TRUE(tables.contains(table.heading));
    const std::vector<Row>& rows = tables.at(table.heading);
    ASSERT_EQ(rows.size(), table.fields.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Field& field = table.fields[i];
      ASSERT_EQ(rows[i].size(), 4U);
      EXPECT_EQ(rows[i][0], std::to_string(field.offset)) << field.name;
      EXPECT_EQ(rows[i][1], std::to_string(field.bytes)) << field.name;
      EXPECT_EQ(rows[i][2], field.name);
      if (field.name == "magic") {
        EXPECT_EQ(rows[i][3], "the text `" + std::string(table.magic));
      }
      if (field.name == "version") {
        EXPECT_EQ(rows[i][3].substr(0, rows[i][3].find(';')), std::to_string(kSegmentVersion));
      }
    }
  }
}

TEST(FormatsDocument, EveryKindAndCompressionIsListed) {
  const auto kinds = tables_with("kind");
  ASSERT_EQ(kinds.size(), 1U);
  const std::vector<std::pair<RecordKind, std::string>> wanted = {{RecordKind::Page, "a page"},
                                                                  {RecordKind::KeySpace, "a key space"},
                                                                  {RecordKind::DropKeySpace, "drop of a key space"},
                                                                  {RecordKind::DropPage, "drop of a page"},
                                                                  {RecordKind::DropAll, "drop of everything"}};
  const std::vector<Row>& rows = kinds.begin()->second;
  ASSERT_EQ(rows.size(), wanted.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i][0], std::to_string(static_cast<int>(wanted[i].first)));
    EXPECT_EQ(rows[i][1], wanted[i].second);
  }
  const auto compressions = tables_with("compression");
  ASSERT_EQ(compressions.size(), 1U);
  const std::vector<Row>& ways = compressions.begin()->second;
  ASSERT_EQ(ways.size(), 2U);
  EXPECT_EQ(ways[0][0], std::to_string(static_cast<int>(Compression::None)));
  EXPECT_TRUE(ways[0][1].starts_with("none"));
  EXPECT_EQ(ways[1][0], std::to_string(static_cast<int>(Compression::Zstd)));
  EXPECT_TRUE(ways[1][1].starts_with("one zstd frame"));
}

// Numbers and names that stand in the text, in the words around them.
TEST(FormatsDocument, NumbersInTheTextAreThoseOfTheCode) {
  std::string document = read_document();
  // Where its lines end means nothing.
  std::ranges::replace(document, '\n', ' ');
  const auto [rest, end] = std::ranges::unique(document, [](char a, char b) { return a == ' ' && b == ' '; });
  document.erase(rest, end);
  const auto expect_text = [&](const std::string& text) { EXPECT_NE(document.find(text), std::string::npos) << text; };
  expect_text("A *block* is " + std::to_string(kSegmentBlockBytes) + " bytes.");
  expect_text("`" + std::to_string(kRecordHeaderBytes) + " + stored_bytes` bytes, rounded up to blocks");
  static_assert(kPayloadBytesMax == std::uint64_t{1} << 32U);
  expect_text("`payload_bytes` above 2^32");
  expect_text("their first " + std::to_string(kHeadChecksum.offset) + " bytes at 56");
  expect_text("| `" + std::string(kManifestFileName) + "` |");
  EXPECT_EQ(segment_file_name(255), "segment-00000000000000ff");
  expect_text("| `segment-` and 16 lower-case hexadecimal digits |");
}

}  // namespace
}  // namespace quire
