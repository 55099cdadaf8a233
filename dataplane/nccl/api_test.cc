#include "dataplane/nccl/api.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::nccl {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string MakePath(const std::string& name) {
  return absl::StrCat("dataplane/cuda/testing/lib", name, ".so");
}

StatusOr<Library> LoadFake(const std::string& path) {
  setenv("MUSTER_NCCL_LIBRARY", path.c_str(), /*overwrite=*/1);
  StatusOr<Library> library = Load();
  unsetenv("MUSTER_NCCL_LIBRARY");
  return library;
}

std::string GetText(const Status& status) {
  return std::string(status.message());
}

TEST(NcclApiTest, ALibraryThatHasAllThatIsNeeded) {
  const StatusOr<Library> library = LoadFake(MakePath("good"));
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_THAT(library->path, EndsWith(MakePath("good")));
  EXPECT_EQ(VersionText(library->version), "2.28.9");
  EXPECT_NE(library->api.AllReduce, nullptr);
  // Functions of newer versions may be missing.
  EXPECT_EQ(library->api.CommShrink, nullptr);
}

TEST(NcclApiTest, ALibraryThatIsNotThereIsNamedWithItsVariable) {
  const Status status = LoadFake("nowhere/libnccl.so").status();
  EXPECT_TRUE(IsNotFound(status)) << status;
  EXPECT_THAT(GetText(status),
              AllOf(StartsWith("no NCCL: environment variable "
                               "MUSTER_NCCL_LIBRARY: nowhere/libnccl.so: "),
                    HasSubstr("No such file")));
}

TEST(NcclApiTest, OneThatIsTooOldIsRefusedWithBothVersions) {
  const Status status = LoadFake(MakePath("no_driver")).status();
  EXPECT_TRUE(IsFailedPrecondition(status)) << status;
  EXPECT_THAT(GetText(status), AllOf(StartsWith("NCCL 2.17.3 ("),
                                     EndsWith("is too old: 2.18.0 is needed")));
}

TEST(NcclApiTest, WhatALibraryLacksIsNamed) {
  const Status status = LoadFake(MakePath("incomplete")).status();
  EXPECT_TRUE(IsFailedPrecondition(status)) << status;
  EXPECT_THAT(GetText(status),
              AllOf(HasSubstr("libincomplete.so has no ncclGetErrorString, "),
                    Not(HasSubstr("ncclCommShrink"))));
}

// With or without an NCCL on this machine.
TEST(NcclApiTest, WithoutTheVariableTheSystemsIsLoadedOrAllPlacesAreNamed) {
  const StatusOr<Library> library = Load();
  if (library.ok()) {
    EXPECT_GE(library->version, kOldestVersion);
  } else if (IsNotFound(library.status())) {
    EXPECT_THAT(GetText(library.status()),
                AllOf(StartsWith("no NCCL: libnccl.so.2: "),
                      HasSubstr("/lib64/libnccl.so.2: ")));
  }
  EXPECT_EQ(Available().ok(), library.ok() && cuda::TheRuntime().ok());
}

}  // namespace
}  // namespace muster::dataplane::nccl
