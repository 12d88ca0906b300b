// SPDX-License-Identifier: Apache-2.0
#include "output_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace quire {
namespace {

/// A folder that is gone after the test.
class OutputFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] static std::string content(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::filesystem::path folder_;
};

TEST_F(OutputFile, CheckingAPlaceLeavesItAsItWas) {
  EXPECT_TRUE(check_writable(path("new.html")));
  EXPECT_FALSE(std::filesystem::exists(path("new.html")));
  ASSERT_TRUE(write_file(path("old.html"), "old"));
  EXPECT_TRUE(check_writable(path("old.html")));
  EXPECT_EQ(content(path("old.html")), "old");
}

TEST_F(OutputFile, WhatCannotBeWrittenIsSaidBefore) {
  EXPECT_EQ(check_writable(folder_.string()).error().message,
            "cannot write '" + folder_.string() + "': Is a directory");
  EXPECT_EQ(check_writable(path("no/out.html")).error().message,
            "cannot write '" + path("no/out.html") + "': No such file or directory");
}

TEST_F(OutputFile, AFileIsReplacedAsAWhole) {
  ASSERT_TRUE(write_file(path("out.html"), "a long text"));
  ASSERT_TRUE(write_file(path("out.html"), "short"));
  EXPECT_EQ(content(path("out.html")), "short");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "nothing else is left behind";
  EXPECT_FALSE(write_file("/dev/full", "text"));
}

TEST_F(OutputFile, AFileKeepsItsModeWhenItIsReplaced) {
  ASSERT_TRUE(write_file(path("out.html"), "before"));
  std::filesystem::permissions(path("out.html"), std::filesystem::perms(0640));
  ASSERT_TRUE(write_file(path("out.html"), "after"));
  EXPECT_EQ(std::filesystem::status(path("out.html")).permissions(), std::filesystem::perms(0640));
}

TEST_F(OutputFile, OfALinkWhatItLeadsToIsReplaced) {
  ASSERT_TRUE(write_file(path("real.html"), "before"));
  std::filesystem::create_symlink(path("real.html"), path("link.html"));
  ASSERT_TRUE(write_file(path("link.html"), "after"));
  EXPECT_TRUE(std::filesystem::is_symlink(path("link.html")));
  EXPECT_EQ(content(path("real.html")), "after");
}

TEST_F(OutputFile, AReportReplacesReportsAndEmptyFilesOnly) {
  EXPECT_TRUE(check_report_path(path("new.html")));
  ASSERT_TRUE(write_file(path("old.html"), "<!doctype html>\n<title>a report</title>"));
  EXPECT_TRUE(check_report_path(path("old.html")));
  ASSERT_TRUE(write_file(path("empty"), ""));
  EXPECT_TRUE(check_report_path(path("empty")));
  EXPECT_TRUE(check_report_path("/dev/null"));
  ASSERT_TRUE(write_file(path("trace.jsonl"), "{\"tokens\": [1]}\n"));
  const Status refused = check_report_path(path("trace.jsonl"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "'" + path("trace.jsonl") + "' exists and is no report; remove it, or choose another name");
  EXPECT_FALSE(check_report_path(""));
  EXPECT_EQ(content(path("trace.jsonl")), "{\"tokens\": [1]}\n");
}

}  // namespace
}  // namespace quire
