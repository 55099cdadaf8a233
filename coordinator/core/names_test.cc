#include "coordinator/core/names.h"

#include <string>

#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

std::string Check(absl::string_view name) {
  return CheckName(Limits{.name_bytes = 16}, "register", {"host", name})
      .ToString();
}

TEST(NamesTest, NamesOfAnyScriptAreGood) {
  for (const char* name :
       {"", "trainer-0", "0", "a b\"c\\", "h\xC3\xB6he", "\xE4\xB8\xAD",
        "\xF0\x9F\x98\x80", "\xD7\x90\xD8\xA7", "\xC2\xA0"}) {
    EXPECT_EQ(Check(name), "OK") << name;
  }
}

TEST(NamesTest, WhatActsOnATerminalIsRefused) {
  for (const char* name :
       {"\n", "a\x1B[2J", "\x7F", "\xC2\x80", "\xC2\x9B", "\xC2\x9F"}) {
    EXPECT_NE(Check(name).find("has a control character"), std::string::npos)
        << name;
  }
  for (const char* name :
       {"\xE2\x80\x8E", "\xE2\x80\x8F", "\xE2\x80\xAA", "a\xE2\x80\xAE",
        "\xE2\x81\xA6", "\xE2\x81\xA9", "\xD8\x9C"}) {
    EXPECT_NE(Check(name).find("has a direction mark"), std::string::npos)
        << name;
  }
  EXPECT_EQ(Check("m\xC2\x85x"),
            "INVALID_ARGUMENT: register: host \"m\\xc2\\x85x\" has a control "
            "character");
}

TEST(NamesTest, WhatIsNoTextIsRefused) {
  for (const char* name :
       {"\x80", "\xC3", "\xC3(", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xB8"}) {
    EXPECT_NE(Check(name).find("is not UTF-8"), std::string::npos) << name;
  }
}

TEST(NamesTest, ALongNameNamesTheLimit) {
  EXPECT_EQ(Check(std::string(17, 'x')),
            "RESOURCE_EXHAUSTED: limit name_bytes is 16, offered 17 (host "
            "\"xxxxxxxxxxxxxxxxx\")");
}

}  // namespace
}  // namespace muster::coordinator::core
