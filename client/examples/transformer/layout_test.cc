#include "client/examples/transformer/layout.h"

#include <stdexcept>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::examples {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

std::string Normalize(const std::string& text, int64_t world_size) {
  return Layout::Parse(text, world_size).ToText();
}

TEST(LayoutTest, RanksAreSharedOutAmongNamesWithoutASize) {
  EXPECT_EQ(Normalize("ddp", 4), "ddp=4");
  EXPECT_EQ(Normalize("", 4), "ddp=4");
  EXPECT_EQ(Normalize("fsdp,tp", 4), "fsdp=2,tp=2");
  EXPECT_EQ(Normalize("tp,fsdp", 8), "fsdp=2,tp=4");
  EXPECT_EQ(Normalize("fsdp,tp", 6), "fsdp=3,tp=2");
  EXPECT_EQ(Normalize("ddp,fsdp,pp,tp", 16), "ddp=2,fsdp=2,pp=2,tp=2");
  EXPECT_EQ(Normalize("fsdp,tp", 1), "one process");
}

TEST(LayoutTest, GivenSizesStay) {
  EXPECT_EQ(Normalize("tp=2,pp=2", 4), "pp=2,tp=2");
  EXPECT_EQ(Normalize("fsdp,tp=2", 12), "fsdp=6,tp=2");
  EXPECT_EQ(Layout::Parse("tp=2,pp=3", 6).size("pp"), 3);
  EXPECT_EQ(Layout::Parse("tp=2,pp=3", 6).size("ddp"), 1);
}

TEST(LayoutTest, ErrorsNameTheFlagAndTheValue) {
  const auto error = [](const std::string& text, int64_t world_size,
                        const std::string& why) {
    EXPECT_THAT([&] { Layout::Parse(text, world_size); },
                ThrowsMessage<std::invalid_argument>(
                    StrEq("--parallel=" + text + ": " + why)));
  };
  error("zero", 4, "\"zero\" is not ddp, fsdp, pp, tp or such a name with =N");
  error("tp,", 4, "\"\" is not ddp, fsdp, pp, tp or such a name with =N");
  error("tp=2=2", 4,
        "\"tp=2=2\" is not ddp, fsdp, pp, tp or such a name with =N");
  error("tp,tp=2", 4, "\"tp\" is there twice");
  error("tp=", 4, "the size of \"tp=\" is not a number from 1 on");
  error("tp=0", 4, "the size of \"tp=0\" is not a number from 1 on");
  error("tp=two", 4, "the size of \"tp=two\" is not a number from 1 on");
  error("tp=3", 4, "the sizes' product is 3, there are 4 ranks");
  error("tp=2", 4, "the sizes' product is 2, there are 4 ranks");
  error("fsdp,tp=3", 4, "the sizes' product is 3, there are 4 ranks");
  error("tp=4,pp=9223372036854775807", 4, "needs more than 4 ranks");
}

}  // namespace
}  // namespace muster::examples
