#include "coordinator/server/rpc/unsent_answers.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::HasSubstr;

// Calls are compared and never dereferenced.
grpc::CallbackServerContext* CallNumber(int number) {
  static char calls[10];
  return reinterpret_cast<grpc::CallbackServerContext*>(&calls[number]);
}

// Each answer counts twice: as a message and in encoded form.
TEST(UnsentAnswersTest, ALimitIsForAllTogetherUntilTheyAreTaken) {
  UnsentAnswers unsent(200'000);
  EXPECT_TRUE(unsent.Add(CallNumber(1), 60'000).ok());
  const Status refused = unsent.Add(CallNumber(2), 50'000);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("limit unsent_bytes is 200000, offered 220000 (answers "
                        "that clients have not taken)"));
  EXPECT_TRUE(unsent.Add(CallNumber(3), 40'000).ok());
  unsent.Remove(CallNumber(2));  // which was not added
  EXPECT_EQ(unsent.bytes(), 200'000);
  unsent.Remove(CallNumber(1));
  EXPECT_TRUE(unsent.Add(CallNumber(2), 50'000).ok());
  EXPECT_EQ(unsent.bytes(), 180'000);
}

}  // namespace
}  // namespace muster::coordinator
