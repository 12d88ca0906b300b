// SPDX-License-Identifier: Apache-2.0
#include "remote/cluster_slots.h"

#include <gtest/gtest.h>

#include <string>

#include "remote/redis_refusal.h"

namespace quire {
namespace {

RespValue parsed_answer(std::string_view text) {
  RespCollector collector;
  EXPECT_EQ(collector.take(text), RespTaken::Taken);
  return collector.value();
}

// "*4 first last [host port] [replica]"
std::string range(int first, int last, const std::string& host, int port) {
  return "*4\r\n:" + std::to_string(first) + "\r\n:" + std::to_string(last) + "\r\n*3\r\n$" +
         std::to_string(host.size()) + "\r\n" + host + "\r\n:" + std::to_string(port) +
         "\r\n$2\r\nid\r\n*2\r\n$1\r\nr\r\n:1\r\n";
}

TEST(ClusterSlots, AreThoseOfTheSpecification) {
  EXPECT_EQ(cluster_slot("123456789"), 0x31C3 % kClusterSlots);
  EXPECT_EQ(cluster_slot("foo"), 12'182);
  EXPECT_EQ(cluster_slot(""), 0);
}

TEST(ClusterSlots, DependOnTheTextInBracesAlone) {
  EXPECT_EQ(cluster_slot("a{user1}b"), cluster_slot("user1"));
  EXPECT_EQ(cluster_slot("{user1}{user2}"), cluster_slot("user1"));
  EXPECT_EQ(cluster_slot("foo{{bar}}zap"), cluster_slot("{bar"));
  EXPECT_NE(cluster_slot("foo{}{bar}"), cluster_slot("bar")) << "empty braces do not count";
  EXPECT_NE(cluster_slot("foo{bar"), cluster_slot("bar"));
}

TEST(ClusterSlots, AMapHasThePrimariesAndTheirSlots) {
  const auto map = parse_cluster_slots(parsed_answer("*3\r\n" + range(0, 99, "10.0.0.1", 7000) +
                                                     range(100, 16'383, "::1", 7001) + "*3\r\n:100\r\n:99\r\n*0\r\n"),
                                       "h");
  EXPECT_FALSE(map.has_value()) << "the last range goes backwards";
  const auto good = parse_cluster_slots(parsed_answer("*3\r\n" + range(0, 99, "10.0.0.1", 7000) +
                                                      range(101, 16'383, "", 7001) + range(100, 100, "10.0.0.1", 7000)),
                                        "asked");
  ASSERT_TRUE(good.has_value()) << good.error().message;
  ASSERT_EQ(good->nodes.size(), 2U);
  EXPECT_EQ(good->nodes[1], (ClusterMap::Node{"asked", 7001}));
  EXPECT_EQ(good->slots[100], 0);
  EXPECT_EQ(good->slots[101], 1);
  EXPECT_EQ(good->missing_slots(), 0U);
}

TEST(ClusterSlots, ANodeMayHaveAnId) {
  const std::string text = "*2\r\n*3\r\n:0\r\n:9\r\n*2\r\n+h\r\n:1\r\n" + range(10, 19, "g", 2);
  const auto map = parse_cluster_slots(parsed_answer(text), "h");
  ASSERT_TRUE(map.has_value()) << map.error().message;
  EXPECT_EQ(map->nodes[0].id, "");
  EXPECT_EQ(map->nodes[1].id, "id");
}

TEST(ClusterSlots, WhatIsMissingIsCounted) {
  const auto map = parse_cluster_slots(parsed_answer("*1\r\n" + range(0, 383, "h", 1)), "h");
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->missing_slots(), 16'000U);
  EXPECT_EQ(map->slots[384], ClusterMap::kNobody);
  EXPECT_EQ(parse_cluster_slots(parsed_answer("*0\r\n"), "h")->missing_slots(), kClusterSlots);
}

TEST(ClusterSlots, AMapThatCannotBeIsRefusedWhole) {
  for (const std::string& text :
       {std::string("+OK\r\n"), std::string("*1\r\n:1\r\n"), "*1\r\n" + range(-1, 5, "h", 1),
        "*1\r\n" + range(0, 16'384, "h", 1), "*1\r\n" + range(5, 4, "h", 1), "*1\r\n" + range(0, 5, "h", 0),
        "*1\r\n" + range(0, 5, "h", 65'536), "*1\r\n" + range(0, 5, "?", 1), "*1\r\n" + range(0, 5, "a b", 1),
        "*2\r\n" + range(0, 5, "h", 1) + range(5, 6, "g", 1), std::string("*1\r\n*3\r\n:0\r\n:1\r\n:2\r\n"),
        std::string("*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n+h\r\n")}) {
    EXPECT_FALSE(parse_cluster_slots(parsed_answer(text), "h").has_value()) << text;
  }
}

TEST(ClusterSlots, ANodeWithoutAnAddressThatWasAskedAtASocketHasNone) {
  const RespValue answer = parsed_answer("*1\r\n" + range(0, 16'383, "", 7001));
  const auto map = parse_cluster_slots(answer, "/run/quire/kv.sock");
  ASSERT_FALSE(map.has_value()) << map->nodes[0].host;
  EXPECT_NE(map.error().message.find("cluster-announce-ip"), std::string::npos) << map.error().message;
}

TEST(RedisRefusal, IsToldByHowItBegins) {
  EXPECT_EQ(refusal_of("MOVED 1 h:1"), RedisRefusal::Moved);
  EXPECT_EQ(refusal_of("LOADING Redis is loading the dataset in memory"), RedisRefusal::Loading);
  EXPECT_EQ(refusal_of("OOM command not allowed when used memory > 'maxmemory'."), RedisRefusal::OutOfMemory);
  EXPECT_EQ(refusal_of("ERR unknown command 'TOUCH'"), RedisRefusal::UnknownCommand);
  EXPECT_EQ(refusal_of(""), RedisRefusal::Other);
}

TEST(RedisRefusal, ARedirectionHasASlotAHostAndAPort) {
  const auto redirection = parse_redirection("MOVED 3999 127.0.0.1:6381");
  ASSERT_TRUE(redirection.has_value());
  EXPECT_EQ(redirection->slot, 3999);
  EXPECT_EQ(redirection->host, "127.0.0.1");
  EXPECT_EQ(redirection->port, 6381);
  EXPECT_EQ(parse_redirection("ASK 3999 ::1:6381")->host, "::1");
  EXPECT_EQ(parse_redirection("ASK 3999 :6381")->host, "");
  for (const char* const text : {"MOVED", "MOVED 3999", "MOVED 16384 h:1", "MOVED -1 h:1", "MOVED 1 h:0", "MOVED 1 h",
                                 "MOVED 1 h:99999", "MOVED 1 a b:1", "MOVED x h:1"}) {
    EXPECT_FALSE(parse_redirection(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace quire
