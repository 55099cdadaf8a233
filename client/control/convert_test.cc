#include "client/control/convert.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

std::vector<std::pair<int, int>> ToRanges(
    const std::vector<uint32_t>& numbers) {
  const Ranges proto(numbers.begin(), numbers.end());
  std::vector<std::pair<int, int>> ranges;
  for (const RankRange& range : FromProto(proto)) {
    ranges.emplace_back(range.first, range.count);
  }
  return ranges;
}

TEST(ConvertTest, RangesCountFromTheEndOfTheOneBefore) {
  EXPECT_THAT(ToRanges({0, 2, 5, 1}), ElementsAre(Pair(0, 2), Pair(7, 1)));
}

TEST(ConvertTest, RangesThatNobodyCanMeanAreLeftOut) {
  EXPECT_THAT(ToRanges({0, 2, 4294967295, 4294967295}),
              ElementsAre(Pair(0, 2)));
  EXPECT_THAT(ToRanges({3}), IsEmpty());
}

TEST(ConvertTest, RangesComeBack) {
  const Ranges proto =
      ToProto({{.first = 0, .count = 2}, {.first = 7, .count = 1}});
  EXPECT_THAT(proto, ElementsAre(0u, 2u, 5u, 1u));
}

TEST(ConvertTest, TextsThatAreNoUtf8AreEscaped) {
  v1::Operation operation;
  v1::RegisterGroupsRequest& request = *operation.mutable_register_groups();
  v1::GroupDefinition& group = *request.add_groups();
  group.set_name("odd\xff");
  group.set_description(
      "gr\xc3\xb6\xc3\x9f"
      "er");
  EscapeTexts(&operation);
  EXPECT_EQ(group.name(), "odd\\xff");
  EXPECT_EQ(group.description(),
            "gr\xc3\xb6\xc3\x9f"
            "er");
  // Keys and values are bytes.
  operation.mutable_set()->set_key("\xff");
  EscapeTexts(&operation);
  EXPECT_EQ(operation.set().key(), "\xff");
  v1::HeartbeatRequest heartbeat;
  heartbeat.add_groups()->set_group("\xfe");
  EscapeTexts(&heartbeat);
  EXPECT_EQ(heartbeat.groups(0).group(), "\\xfe");
}

TEST(ConvertTest, AHeartbeatTellsTheArgumentsOfACollective) {
  constexpr uint64_t kHash = uint64_t{1} << 63 | 5;
  GroupProgress collective;
  collective.arguments_hash = kHash;
  GroupProgress receive;
  receive.peer_call = PeerCall{.peer = 1};
  const v1::HeartbeatRequest heartbeat = ToHeartbeat({collective, receive});
  EXPECT_EQ(heartbeat.groups(0).arguments_hash(), kHash);
  EXPECT_FALSE(heartbeat.groups(1).has_arguments_hash());
}

// Sets all texts of a message and of those in it, but for the caller's; returns
// how many.
int SetTexts(const std::string& text, google::protobuf::Message* message) {
  const auto* const type = message->GetDescriptor();
  const auto* const reflection = message->GetReflection();
  if (type == v1::Caller::descriptor()) return 0;
  int set = 0;
  for (int i = 0; i < type->field_count(); ++i) {
    const auto* const field = type->field(i);
    if (field->type() == google::protobuf::FieldDescriptor::TYPE_STRING) {
      if (field->is_repeated()) {
        reflection->AddString(message, field, text);
      } else {
        reflection->SetString(message, field, text);
      }
      ++set;
    } else if (field->type() ==
               google::protobuf::FieldDescriptor::TYPE_MESSAGE) {
      set += SetTexts(text, field->is_repeated()
                                ? reflection->AddMessage(message, field)
                                : reflection->MutableMessage(message, field));
    }
  }
  return set;
}

TEST(ConvertTest, TheTextsOfEveryOperationAreEscaped) {
  const auto* const requests =
      v1::Operation::descriptor()->FindOneofByName("request");
  int texts = 0;
  for (int i = 0; i < requests->field_count(); ++i) {
    v1::Operation operation;
    google::protobuf::Message* const request =
        operation.GetReflection()->MutableMessage(&operation,
                                                  requests->field(i));
    texts += SetTexts("odd\xff", request);
    EscapeTexts(&operation);
    const std::string text = operation.ShortDebugString();
    EXPECT_THAT(text, Not(HasSubstr("odd\\377"))) << text;
  }
  EXPECT_GE(texts, 10);
}

TEST(ConvertTest, AnEventHasTheRanksOfAllCulprits) {
  v1::MemberEvent proto;
  proto.mutable_culprits()->add_members()->set_rank(3);
  proto.mutable_culprits()->add_others(5);
  proto.mutable_culprits()->add_others(20);
  const MemberEvent event = FromProto(proto);
  ASSERT_THAT(event.culprits, SizeIs(1));
  ASSERT_THAT(event.other_culprits, SizeIs(1));
  EXPECT_EQ(event.other_culprits[0].first, 5);
  EXPECT_EQ(event.other_culprits[0].count, 20);
  EXPECT_EQ(event.unknown_culprits, 0);
  proto.mutable_culprits()->set_omitted(28);
  EXPECT_EQ(FromProto(proto).unknown_culprits, 28);
  proto.mutable_culprits()->set_omitted(-1);
  EXPECT_EQ(FromProto(proto).unknown_culprits, 0);
}

}  // namespace
}  // namespace muster::internal
