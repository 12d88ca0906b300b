// SPDX-License-Identifier: Apache-2.0
#include "transfer/remote_fields.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(RemoteFields, AreCalledAsInTheConfigurationOfACache) {
  EXPECT_EQ(in_remote_fields("RedisConfig::ca_file is 'x'"), "remote.ca_file is 'x'");
  EXPECT_EQ(in_remote_fields("with RedisConfig::requires_server = false; or RedisConfig::max_age_ns"),
            "with remote.is_required = false; or remote.max_age_s");
  EXPECT_EQ(in_remote_fields("no such host"), "no such host");
}

}  // namespace
}  // namespace quire
