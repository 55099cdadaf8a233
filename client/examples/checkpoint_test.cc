#include "client/examples/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::examples {
namespace {

using ::testing::HasSubstr;

class CheckpointTest : public ::testing::Test {
 protected:
  const std::string path_ =
      ::testing::TempDir() + "/" +
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const TrainingState state_ = {.epoch = 2,
                                .step = 7,
                                .parameters = {1, 2, 3},
                                .velocity = {4, 5, 6},
                                .losses = {0.5F, 0.25F}};

  std::string ReadError() {
    try {
      ReadCheckpoint(path_);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(CheckpointTest, WhatIsWrittenIsRead) {
  EXPECT_FALSE(ReadCheckpoint(path_).has_value());
  WriteCheckpoint(path_, {});
  WriteCheckpoint(path_, state_);
  const TrainingState read = ReadCheckpoint(path_).value();
  EXPECT_EQ(read.epoch, 2);
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.parameters, state_.parameters);
  EXPECT_EQ(read.velocity, state_.velocity);
  EXPECT_EQ(read.losses, state_.losses);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(CheckpointTest, DamageIsFound) {
  WriteCheckpoint(path_, state_);
  const auto bytes = std::filesystem::file_size(path_);
  for (const size_t size : {size_t{0}, size_t{9}, bytes - 1, bytes + 1}) {
    std::filesystem::resize_file(path_, size);
    EXPECT_THAT(ReadError(), HasSubstr(path_ + "\" is no checkpoint")) << size;
  }
  std::ofstream(path_) << std::string(bytes, 'x');
  EXPECT_THAT(ReadError(), HasSubstr("is no checkpoint"));
}

TEST_F(CheckpointTest, AFolderThatIsNotThereIsNamed) {
  try {
    WriteCheckpoint("/no/such/folder/file", state_);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/no/such/folder/file"));
  }
}

}  // namespace
}  // namespace muster::examples
