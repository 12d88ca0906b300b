// SPDX-License-Identifier: Apache-2.0
#include "store/numa_node.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace quire {
namespace {

using Processors = std::vector<std::uint32_t>;

TEST(NumaNode, ProcessorListsAreReadAsTheSystemWritesThem) {
  EXPECT_EQ(parse_processor_list("0\n"), (Processors{0}));
  EXPECT_EQ(parse_processor_list("0-3\n"), (Processors{0, 1, 2, 3}));
  EXPECT_EQ(parse_processor_list("0-1,8,10-11\n"), (Processors{0, 1, 8, 10, 11}));
  EXPECT_EQ(parse_processor_list("5-5"), (Processors{5}));
  Processors many(65'536);
  std::iota(many.begin(), many.end(), 0U);
  EXPECT_EQ(parse_processor_list("0-65535"), many);
}

TEST(NumaNode, ListsThatAreNoneGiveNothing) {
  for (const std::string text : {"",
                                 "\n",
                                 "a",
                                 "1,",
                                 ",1",
                                 "1,,2",
                                 "-1",
                                 "1-",
                                 "-",
                                 "3-1",
                                 "1-2-3",
                                 "0-65536",
                                 "4294967295",
                                 "4294967296",
                                 "99999999999999999999",
                                 "0-99999999999999999999",
                                 "1 2",
                                 " 1",
                                 "1 ",
                                 "0x1",
                                 "+1",
                                 "2,1",
                                 "1,1",
                                 "0-3,3",
                                 "1\n\n",
                                 "0-10:2/4"}) {
    EXPECT_FALSE(parse_processor_list(text)) << '"' << text << '"';
  }
}

// Files of a machine, and what this thread may run on.
struct Machine {
  static inline std::map<std::string, std::string> files;
  static inline Processors allowed;
  static NumaCalls calls() {
    return {.read_text =
                [](const std::string& path) {
                  const auto found = files.find(path);
                  return found == files.end() ? std::string() : found->second;
                },
            .allowed_processors = [] { return allowed; },
            .bind_thread = [](pthread_t, std::span<const std::uint32_t>) { return 0; }};
  }
};

TEST(NumaNode, ADeviceStandsWhereTheSystemSays) {
  const std::string file = "/sys/bus/pci/devices/0000:3b:00.0/numa_node";
  Machine::files = {{file, "1\n"}};
  EXPECT_EQ(find_numa_node("0000:3b:00.0", Machine::calls()), 1U);
  EXPECT_EQ(find_numa_node("0000:3B:00.0", Machine::calls()), 1U) << "as CUDA writes it";
  EXPECT_FALSE(find_numa_node("0000:3c:00.0", Machine::calls())) << "there is no such file";
  for (const std::string text : {"-1\n", "", "\n", "one\n", "1 2\n", "1024\n", "99999999999999999999\n", "0x1\n"}) {
    Machine::files[file] = text;
    EXPECT_FALSE(find_numa_node("0000:3b:00.0", Machine::calls())) << '"' << text << '"';
  }
}

TEST(NumaNode, WhatIsNoBusIdIsNotLookedFor) {
  Machine::files = {{"/sys/bus/pci/devices//numa_node", "1\n"},
                    {"/sys/bus/pci/devices/../numa_node", "1\n"},
                    {"/sys/bus/pci/devices/a/b/numa_node", "1\n"}};
  const std::vector<std::string> ids = {"", "..", "a/b", "../x", ".", std::string(40, 'a')};
  for (const std::string& id : ids) {
    EXPECT_FALSE(find_numa_node(id, Machine::calls())) << id;
  }
}

TEST(NumaNode, OnlyProcessorsThatTheProcessMayUseAreNamed) {
  Machine::files = {{"/sys/devices/system/node/node1/cpulist", "4-7,12-15\n"}};
  Machine::allowed = {13, 0, 5, 6};
  EXPECT_EQ(processors_of_node(1, Machine::calls()), (Processors{5, 6, 13}));
  Machine::allowed = {0};
  EXPECT_EQ(processors_of_node(1, Machine::calls()), Processors{});
  EXPECT_FALSE(processors_of_node(0, Machine::calls())) << "the system does not tell";
}

TEST(NumaNode, TheSystemItselfAnswersOrDoesNot) {
  const Processors allowed = NumaCalls::real().allowed_processors();
  ASSERT_FALSE(allowed.empty()) << "this thread runs";
  EXPECT_TRUE(NumaCalls::real().read_text("/sys/there/is/no/such/file").empty());
  EXPECT_EQ(NumaCalls::real().bind_thread(pthread_self(), allowed), 0);
  EXPECT_EQ(NumaCalls::real().allowed_processors(), allowed);
  EXPECT_NE(NumaCalls::real().bind_thread(pthread_self(), {}), 0) << "a thread runs somewhere";
}

}  // namespace
}  // namespace quire
