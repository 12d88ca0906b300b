// SPDX-License-Identifier: Apache-2.0
#include "quire/key_space.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace quire {
namespace {

TEST(KeySpace, EachFieldStandsBehindItsLength) {
  const std::string none(8, '\0');
  const std::string form = KeySpace{.model = "ab", .salt = "c"}.canonical_form();
  EXPECT_EQ(form,
            std::string("\2\0\0\0\0\0\0\0ab", 10) + none + none + none + none + std::string("\1\0\0\0\0\0\0\0c", 9));
}

TEST(KeySpace, NoTwoIdentitiesHaveOneForm) {
  // Every way to put up to two of these strings into the fields.
  const std::vector<std::string> texts{"", "a", "b", "ab", std::string("\0", 1), std::string(8, '\0')};
  const std::vector<std::string KeySpace::*> fields{&KeySpace::model,   &KeySpace::revision, &KeySpace::adapter,
                                                    &KeySpace::element, &KeySpace::rope,     &KeySpace::salt};
  std::set<std::string> forms;
  std::vector<KeySpace> seen;
  for (const auto first : fields) {
    for (const auto second : fields) {
      for (const std::string& one : texts) {
        for (const std::string& two : texts) {
          KeySpace key_space;
          key_space.*first = one;
          key_space.*second = two;
          bool is_known = false;
          for (const KeySpace& each : seen) is_known = is_known || each == key_space;
          if (is_known) continue;
          seen.push_back(key_space);
          EXPECT_TRUE(forms.insert(key_space.canonical_form()).second);
        }
      }
    }
  }
  EXPECT_GT(forms.size(), 400U);
}

}  // namespace
}  // namespace quire
