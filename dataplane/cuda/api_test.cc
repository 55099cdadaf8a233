#include "dataplane/cuda/api.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cuda {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string MakePath(const std::string& name) {
  return absl::StrCat("dataplane/cuda/testing/lib", name, ".so");
}

StatusOr<Runtime> LoadFake(const std::string& path) {
  setenv("MUSTER_CUDA_LIBRARY", path.c_str(), /*overwrite=*/1);
  StatusOr<Runtime> runtime = Load();
  unsetenv("MUSTER_CUDA_LIBRARY");
  return runtime;
}

std::string GetText(const Status& status) {
  return std::string(status.message());
}

TEST(CudaApiTest, ARuntimeWithDevices) {
  const StatusOr<Runtime> runtime = LoadFake(MakePath("good"));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_THAT(runtime->path, EndsWith(MakePath("good")));
  EXPECT_EQ(runtime->devices, 2);
  EXPECT_EQ(VersionText(runtime->runtime_version), "12.4");
  EXPECT_EQ(VersionText(runtime->driver_version), "12.8");
  EXPECT_EQ(ToStatus(runtime->api, kSuccess, "malloc"), OkStatus());
  EXPECT_EQ(
      ToStatus(runtime->api, 2, "malloc of 8 bytes"),
      InternalError("malloc of 8 bytes: cudaErrorFake: as the test wants it"));
}

TEST(CudaApiTest, ALibraryThatIsNotThereIsNamedWithItsVariable) {
  const Status status = LoadFake("nowhere/libcudart.so").status();
  EXPECT_TRUE(IsNotFound(status)) << status;
  EXPECT_THAT(GetText(status),
              AllOf(StartsWith("no CUDA runtime: environment variable "
                               "MUSTER_CUDA_LIBRARY: nowhere/libcudart.so: "),
                    HasSubstr("No such file")));
}

TEST(CudaApiTest, WhatALibraryLacksIsNamed) {
  const Status status = LoadFake(MakePath("incomplete")).status();
  EXPECT_TRUE(IsFailedPrecondition(status)) << status;
  EXPECT_THAT(GetText(status), HasSubstr("libincomplete.so has no "
                                         "cudaGetDevice, cudaSetDevice, "));
}

TEST(CudaApiTest, WithoutADeviceTheDriverIsTold) {
  Status status = LoadFake(MakePath("no_device")).status();
  EXPECT_TRUE(IsUnavailable(status)) << status;
  EXPECT_THAT(GetText(status),
              AllOf(StartsWith("CUDA 12.4 ("),
                    EndsWith(" sees no device: as the test wants it; the "
                             "driver is for CUDA 12.8")));
  status = LoadFake(MakePath("old_driver")).status();
  EXPECT_TRUE(IsFailedPrecondition(status)) << status;
  EXPECT_THAT(GetText(status), EndsWith("the driver is for CUDA 11.4"));
  status = LoadFake(MakePath("no_driver")).status();
  EXPECT_TRUE(IsUnavailable(status)) << status;
  EXPECT_THAT(GetText(status), EndsWith("there is no driver"));
}

// With or without a CUDA runtime on this machine.
TEST(CudaApiTest, WithoutTheVariableTheSystemsIsLoadedOrAllPlacesAreNamed) {
  const StatusOr<Runtime> runtime = Load();
  if (runtime.ok()) {
    EXPECT_GT(runtime->devices, 0);
  } else if (IsNotFound(runtime.status())) {
    EXPECT_THAT(
        GetText(runtime.status()),
        AllOf(StartsWith("no CUDA runtime: "), HasSubstr("libcudart.so.13"),
              HasSubstr("libcudart.so.12"), HasSubstr("/lib64/")));
  } else {
    EXPECT_THAT(GetText(runtime.status()), HasSubstr("libcudart.so"));
  }
}

}  // namespace
}  // namespace muster::dataplane::cuda
