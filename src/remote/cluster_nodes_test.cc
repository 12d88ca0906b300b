// SPDX-License-Identifier: Apache-2.0
#include "remote/cluster_nodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace quire {
namespace {

RespValue text_answer(const std::string& text) {
  return {.kind = RespKind::Bulk, .text = text};
}

TEST(ClusterNodes, AreThoseThatCanBeReached) {
  const auto nodes = parse_cluster_nodes(
      text_answer("aa 127.0.0.1:30001@31001,host1 myself,master - 0 0 1 connected 0-5460 [77->-cc] [93-<-bb]\n"
                  "bb ::1:30002@31002,,shard-id=5 master - 0 1426238316232 2 connected 5461\n"
                  "cc 127.0.0.1:30003@31003 master,fail? - 0 1 3 connected\n"
                  "dd 127.0.0.1:30004@31004,host4 slave aa 0 1 3 connected\n"
                  "ee 127.0.0.1:30005@31005 master,fail - 1 1 3 disconnected\n"
                  "ff :0@0 master,noaddr - 0 0 0 disconnected\n"
                  "gg 127.0.0.1:30007@31007 handshake - 0 0 0 disconnected\n"
                  "hh 10.0.0.1:30008 master - 0 0 0 connected 5462-16383\n"));
  ASSERT_TRUE(nodes.has_value()) << nodes.error().message;
  std::string ids;
  for (const ClusterNode& node : *nodes) ids += node.id + " ";
  ASSERT_EQ(ids, "aa bb cc dd ee hh ");
  const auto& all = *nodes;
  EXPECT_TRUE(all[0].is_self && all[0].is_primary && all[0].has_slots && !all[0].is_target);
  EXPECT_EQ(all[0].address, "127.0.0.1");
  EXPECT_EQ(all[0].name, "host1");
  EXPECT_EQ(all[0].port, 30001);
  EXPECT_TRUE(!all[1].is_self && all[1].has_slots);
  EXPECT_EQ(all[1].address, "::1");
  EXPECT_EQ(all[1].name, "");
  EXPECT_TRUE(all[2].is_primary && all[2].is_target && !all[2].has_slots && !all[2].is_gone);
  EXPECT_FALSE(all[3].is_primary);
  EXPECT_TRUE(all[4].is_primary && all[4].is_gone && !all[4].has_slots);
  EXPECT_EQ(all[5].port, 30008);
}

TEST(ClusterNodes, WhatCannotBeIsRefusedWhole) {
  for (const char* const text : {"aa", "aa 127.0.0.1:1@2", "aa 127.0.0.1 master", "aa 127.0.0.1:x@1 master",
                                 "aa 127.0.0.1:65536@1 master", "aa a b:1@2 master", "aa /tmp/a:1@2 master"}) {
    EXPECT_FALSE(parse_cluster_nodes(text_answer(text)).has_value()) << text;
  }
  EXPECT_FALSE(parse_cluster_nodes({.kind = RespKind::Integer, .number = 1}).has_value());
  EXPECT_TRUE(parse_cluster_nodes(text_answer("")).has_value());
}

}  // namespace
}  // namespace quire
