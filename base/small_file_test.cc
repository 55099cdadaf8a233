#include "base/small_file.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace muster::base {
namespace {

std::string TestPath(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

TEST(SmallFileTest, IsReadUpToItsLimit) {
  const std::string path = TestPath("small");
  std::ofstream(path) << "12345";
  EXPECT_EQ(*ReadSmallFile("token_file", path, 5), "12345");
  EXPECT_EQ(
      ReadSmallFile("token_file", path, 4).status(),
      InvalidArgumentError("token_file \"" + path + "\": more than 4 bytes"));
}

TEST(SmallFileTest, WhatIsNoFileIsNamed) {
  const std::string pipe = TestPath("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ReadSmallFile("tls_ca", pipe, 5).status().message(),
            "tls_ca \"" + pipe + "\": not a regular file");
  EXPECT_EQ(ReadSmallFile("tls_ca", "/", 5).status().message(),
            "tls_ca \"/\": is a directory");
  EXPECT_EQ(ReadSmallFile("tls_ca", "/nowhere", 5).status().message(),
            "tls_ca \"/nowhere\": no such file or directory");
}

}  // namespace
}  // namespace muster::base
