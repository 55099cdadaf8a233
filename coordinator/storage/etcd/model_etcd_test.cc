#include "coordinator/storage/etcd/testing/model_etcd.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/storage/etcd/etcd.pb.h"
#include "coordinator/storage/etcd/etcd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::testing {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

RequestOp MakePut(const std::string& key, const std::string& value,
                  int64_t lease = 0) {
  RequestOp op;
  op.mutable_request_put()->set_key(key);
  op.mutable_request_put()->set_value(value);
  op.mutable_request_put()->set_lease(lease);
  return op;
}

RequestOp MakeGet(const std::string& key) {
  RequestOp op;
  op.mutable_request_range()->set_key(key);
  return op;
}

RequestOp MakeDeletion(const std::string& key, const std::string& end = "") {
  RequestOp op;
  op.mutable_request_delete_range()->set_key(key);
  op.mutable_request_delete_range()->set_range_end(end);
  return op;
}

// The behaviour that etcd and its model share. With ETCD_ENDPOINT in the
// environment the tests run against that etcd, whose keys they delete.
class ConformanceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* const endpoint = std::getenv("ETCD_ENDPOINT")) {
      EtcdOptions options;
      options.endpoints = {endpoint};
      auto made = MakeEtcdClient(options);
      ASSERT_TRUE(made.ok()) << made.status();
      real_ = *std::move(made);
    }
    ASSERT_EQ(Run({MakeDeletion(std::string(1, '\0'), std::string(1, '\0'))}),
              OkStatus());
  }

  EtcdKv& etcd() { return real_ == nullptr ? model_ : *real_; }

  Status Run(const TxnRequest& request) {
    return etcd().Txn(request, response_);
  }

  Status Run(std::initializer_list<RequestOp> ops) {
    TxnRequest request;
    for (const RequestOp& op : ops) *request.add_success() = op;
    return Run(request);
  }

  etcdserverpb::KeyValue Find(const std::string& key) {
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    etcdserverpb::RangeResponse response;
    EXPECT_EQ(etcd().Range(request, response), OkStatus());
    return response.kvs_size() == 0 ? etcdserverpb::KeyValue()
                                    : response.kvs(0);
  }

  // Whether a comparison of `key` holds; `set` sets its target and value.
  template <typename Set>
  bool Holds(const std::string& key, Compare::CompareResult result,
             const Set& set) {
    TxnRequest request;
    Compare* compare = request.add_compare();
    compare->set_key(key);
    compare->set_result(result);
    set(*compare);
    EXPECT_EQ(Run(request), OkStatus());
    return response_.succeeded();
  }

  ModelEtcd model_;
  std::unique_ptr<EtcdKv> real_;
  TxnResponse response_;
};

// Behaviour that only the model can show.
class ModelEtcdTest : public ConformanceTest {
 protected:
  ModelEtcd& etcd_ = model_;
};

TEST_F(ConformanceTest, AKeyHasItsRevisionsVersionAndLease) {
  const int64_t lease = etcd().GrantLease(seconds(5)).value();
  ASSERT_EQ(Run({MakePut("a", "1", lease)}), OkStatus());
  const int64_t created = response_.header().revision();
  ASSERT_EQ(Run({MakePut("b", "1")}), OkStatus());
  ASSERT_EQ(Run({MakePut("a", "2", lease)}), OkStatus());
  EXPECT_EQ(response_.header().revision(), created + 2);
  const auto key = Find("a");
  EXPECT_EQ(key.value(), "2");
  EXPECT_EQ(key.create_revision(), created);
  EXPECT_EQ(key.mod_revision(), created + 2);
  EXPECT_EQ(key.version(), 2);
  EXPECT_EQ(key.lease(), lease);

  // Created again after it was deleted.
  ASSERT_EQ(Run({MakeDeletion("a")}), OkStatus());
  EXPECT_EQ(response_.responses(0).response_delete_range().deleted(), 1);
  ASSERT_EQ(Run({MakePut("a", "3")}), OkStatus());
  EXPECT_EQ(Find("a").version(), 1);
  EXPECT_EQ(Find("a").create_revision(), created + 4);
}

TEST_F(ConformanceTest, ATransactionThatChangesNothingIsNoRevision) {
  ASSERT_EQ(Run({MakePut("a", "1")}), OkStatus());
  const int64_t revision = response_.header().revision();
  ASSERT_EQ(Run({MakeGet("a"), MakeDeletion("b", "c")}), OkStatus());
  EXPECT_EQ(response_.header().revision(), revision);
}

TEST_F(ConformanceTest, Comparisons) {
  const int64_t lease = etcd().GrantLease(seconds(5)).value();
  ASSERT_EQ(Run({MakePut("a", "1")}), OkStatus());
  ASSERT_EQ(Run({MakePut("a", "b", lease)}), OkStatus());
  const int64_t revision = response_.header().revision();
  const struct {
    Compare::CompareTarget target;
    int64_t number;  // of the key
  } targets[] = {{Compare::VERSION, 2},
                 {Compare::CREATE, revision - 1},
                 {Compare::MOD, revision},
                 {Compare::LEASE, lease}};
  for (const auto& [target, number] : targets) {
    const auto than = [target = target](int64_t value) {
      return [=](Compare& compare) {
        compare.set_target(target);
        if (target == Compare::VERSION) compare.set_version(value);
        if (target == Compare::CREATE) compare.set_create_revision(value);
        if (target == Compare::MOD) compare.set_mod_revision(value);
        if (target == Compare::LEASE) compare.set_lease(value);
      };
    };
    EXPECT_TRUE(Holds("a", Compare::EQUAL, than(number))) << target;
    EXPECT_FALSE(Holds("a", Compare::EQUAL, than(number + 1))) << target;
    EXPECT_TRUE(Holds("a", Compare::NOT_EQUAL, than(number + 1))) << target;
    EXPECT_TRUE(Holds("a", Compare::GREATER, than(number - 1))) << target;
    EXPECT_FALSE(Holds("a", Compare::GREATER, than(number))) << target;
    EXPECT_TRUE(Holds("a", Compare::LESS, than(number + 1))) << target;
    EXPECT_FALSE(Holds("a", Compare::LESS, than(number))) << target;
    EXPECT_TRUE(Holds("absent", Compare::EQUAL, than(0))) << target;
  }
  const auto than_value = [](const char* value) {
    return [=](Compare& compare) {
      compare.set_target(Compare::VALUE);
      compare.set_value(value);
    };
  };
  EXPECT_TRUE(Holds("a", Compare::EQUAL, than_value("b")));
  EXPECT_TRUE(Holds("a", Compare::GREATER, than_value("a")));
  EXPECT_FALSE(Holds("absent", Compare::EQUAL, than_value("")));
  EXPECT_FALSE(Holds("absent", Compare::NOT_EQUAL, than_value("b")));
}

TEST_F(ConformanceTest, NestedTransactionsAreDecidedBeforeAnythingIsApplied) {
  TxnRequest request;
  *request.add_success() = MakePut("a", "1");
  TxnRequest* nested = request.add_success()->mutable_request_txn();
  Compare* absent = nested->add_compare();
  absent->set_target(Compare::VERSION);
  absent->set_key("a");
  *nested->add_success() = MakePut("b", "1");
  *nested->add_success() = MakeGet("a");
  *nested->add_failure() = MakeDeletion("c");
  ASSERT_EQ(Run(request), OkStatus());
  ASSERT_EQ(response_.responses_size(), 2);
  const TxnResponse& inner = response_.responses(1).response_txn();
  EXPECT_TRUE(inner.succeeded());
  // But ranges see what was put before them.
  EXPECT_EQ(inner.responses(1).response_range().kvs(0).value(), "1");
  EXPECT_EQ(Find("a").mod_revision(), Find("b").mod_revision());

  ASSERT_EQ(Run(request), OkStatus());
  EXPECT_FALSE(response_.responses(1).response_txn().succeeded());
  EXPECT_EQ(Find("b").version(), 1);
}

TEST_F(ConformanceTest, AKeyIsWrittenOnceInATransaction) {
  RequestOp nested;
  *nested.mutable_request_txn()->add_success() = MakePut("a", "1");
  *nested.mutable_request_txn()->add_failure() = MakePut("a", "2");
  EXPECT_EQ(Run({nested}), OkStatus());
  EXPECT_TRUE(IsInvalidArgument(Run({MakePut("a", "1"), MakePut("a", "2")})));
  EXPECT_TRUE(IsInvalidArgument(Run({nested, MakePut("a", "2")})));
  EXPECT_TRUE(IsInvalidArgument(Run({nested, nested})));
  EXPECT_TRUE(IsInvalidArgument(Run({nested, MakeDeletion("a")})));
  EXPECT_TRUE(
      IsInvalidArgument(Run({MakePut("b", "1"), MakeDeletion("a", "c")})));
  EXPECT_EQ(Run({MakePut("b", "1"), MakeDeletion("a")}), OkStatus());
  // The branch that is not taken counts, too.
  TxnRequest request;
  *request.add_failure() = MakePut("a", "1");
  *request.add_failure() = MakePut("a", "2");
  EXPECT_TRUE(IsInvalidArgument(Run(request)));
}

TEST_F(ConformanceTest, ATransactionHas128OperationsAtMost) {
  TxnRequest request;
  for (int i = 0; i < 128; ++i) {
    *request.add_success() = MakePut(absl::StrCat(i), "");
  }
  EXPECT_EQ(Run(request), OkStatus());
  TxnRequest larger = request;
  *larger.add_success() = MakePut("one more", "");
  EXPECT_TRUE(IsInvalidArgument(Run(larger)));
  // Operations of a nested one count with those around it.
  TxnRequest nested;
  *nested.add_success()->mutable_request_txn() = request;
  EXPECT_TRUE(IsInvalidArgument(Run(nested)));
  nested.mutable_success(0)
      ->mutable_request_txn()
      ->mutable_success()
      ->RemoveLast();
  EXPECT_EQ(Run(nested), OkStatus());
}

TEST_F(ConformanceTest, ARangeHasALimitACountAndOldRevisions) {
  ASSERT_EQ(Run({MakePut("a", "1"), MakePut("b", "1"), MakePut("c", "1")}),
            OkStatus());
  const int64_t revision = response_.header().revision();
  ASSERT_EQ(Run({MakePut("a", "2"), MakeDeletion("b")}), OkStatus());
  etcdserverpb::RangeRequest request;
  request.set_key("a");
  request.set_range_end("c");
  request.set_revision(revision);
  request.set_limit(1);
  etcdserverpb::RangeResponse response;
  ASSERT_EQ(etcd().Range(request, response), OkStatus());
  ASSERT_EQ(response.kvs_size(), 1);
  EXPECT_EQ(response.kvs(0).value(), "1");
  EXPECT_TRUE(response.more());
  EXPECT_EQ(response.count(), 2);
  EXPECT_EQ(response.header().revision(), revision + 1);

  request.set_revision(0);
  request.set_keys_only(true);
  ASSERT_EQ(etcd().Range(request, response), OkStatus());
  ASSERT_EQ(response.kvs_size(), 1);
  EXPECT_EQ(response.kvs(0).value(), "");
  EXPECT_FALSE(response.more());

  request.set_revision(revision + 2);
  EXPECT_TRUE(IsOutOfRange(etcd().Range(request, response)));
  RequestOp ahead;
  *ahead.mutable_request_range() = request;
  EXPECT_TRUE(IsOutOfRange(Run({MakePut("d", "1"), ahead})));
  EXPECT_EQ(Find("d").value(), "");
}

TEST_F(ConformanceTest, ARevisionThatIsCompactedIsGone) {
  ASSERT_EQ(Run({MakePut("a", "1")}), OkStatus());
  ASSERT_EQ(Run({MakePut("a", "2")}), OkStatus());
  const int64_t revision = response_.header().revision();
  etcdserverpb::CompactionRequest compaction;
  compaction.set_revision(revision);
  etcdserverpb::CompactionResponse compacted;
  EXPECT_EQ(etcd().Compact(compaction, compacted), OkStatus());
  EXPECT_TRUE(IsOutOfRange(etcd().Compact(compaction, compacted)));
  compaction.set_revision(revision + 1);
  EXPECT_TRUE(IsOutOfRange(etcd().Compact(compaction, compacted)));
  etcdserverpb::RangeRequest request;
  request.set_key("a");
  request.set_revision(revision - 1);
  etcdserverpb::RangeResponse response;
  EXPECT_TRUE(IsOutOfRange(etcd().Range(request, response)));
  request.set_revision(revision);
  ASSERT_EQ(etcd().Range(request, response), OkStatus());
  EXPECT_EQ(response.kvs(0).value(), "2");
}

TEST_F(ConformanceTest, ALeaseThatIsRevokedTakesItsKeys) {
  const int64_t lease = etcd().GrantLease(seconds(60)).value();
  ASSERT_EQ(Run({MakePut("a", "1", lease), MakePut("b", "1", lease)}),
            OkStatus());
  // A later put takes a key from its lease.
  ASSERT_EQ(Run({MakePut("b", "2")}), OkStatus());
  const int64_t revision = response_.header().revision();
  EXPECT_EQ(etcd().KeepLeaseAlive(lease, seconds(5)), OkStatus());
  EXPECT_EQ(etcd().RevokeLease(lease), OkStatus());
  ASSERT_EQ(Run({MakeGet("a"), MakeGet("b")}), OkStatus());
  EXPECT_EQ(response_.header().revision(), revision + 1);
  EXPECT_EQ(response_.responses(0).response_range().kvs_size(), 0);
  EXPECT_EQ(response_.responses(1).response_range().kvs(0).value(), "2");

  EXPECT_TRUE(IsNotFound(etcd().KeepLeaseAlive(lease, seconds(5))));
  EXPECT_TRUE(IsNotFound(etcd().RevokeLease(lease)));
  EXPECT_TRUE(IsNotFound(Run({MakePut("b", "3"), MakePut("a", "3", lease)})));
  EXPECT_EQ(Find("b").value(), "2");
}

TEST_F(ConformanceTest, ARequestHasOneAndAHalfMiB) {
  EXPECT_EQ(Run({MakePut("a", std::string(1'500'000, 'x'))}), OkStatus());
  EXPECT_TRUE(
      IsInvalidArgument(Run({MakePut("a", std::string(1'600'000, 'x'))})));
}

TEST_F(ModelEtcdTest, ALeaseEndsWithItsKeys) {
  const int64_t lease = etcd_.GrantLease(seconds(5)).value();
  const int64_t other = etcd_.GrantLease(seconds(60)).value();
  ASSERT_NE(lease, 0);
  ASSERT_NE(lease, other);
  ASSERT_EQ(Run({MakePut("a", "1", lease), MakePut("b", "1", lease),
                 MakePut("c", "1", other), MakePut("d", "1")}),
            OkStatus());
  // A later put takes a key from its lease.
  ASSERT_EQ(Run({MakePut("b", "2")}), OkStatus());
  const int64_t revision = response_.header().revision();
  etcd_.AdvanceClock(milliseconds(4'999));
  EXPECT_EQ(etcd_.KeepLeaseAlive(lease, seconds(1)), OkStatus());
  etcd_.AdvanceClock(milliseconds(4'999));
  EXPECT_THAT(etcd_.Keys(), ElementsAre("a", "b", "c", "d"));
  etcd_.AdvanceClock(milliseconds(1));
  EXPECT_THAT(etcd_.Keys(), ElementsAre("b", "c", "d"));
  ASSERT_EQ(Run({MakeGet("a")}), OkStatus());
  EXPECT_EQ(response_.header().revision(), revision + 1);

  EXPECT_TRUE(IsNotFound(etcd_.KeepLeaseAlive(lease, seconds(1))));
  EXPECT_TRUE(IsNotFound(etcd_.RevokeLease(lease)));
  EXPECT_TRUE(IsNotFound(Run({MakePut("d", "2"), MakePut("a", "2", lease)})));
  EXPECT_EQ(Find("d").value(), "1");

  EXPECT_EQ(etcd_.RevokeLease(other), OkStatus());
  EXPECT_THAT(etcd_.Keys(), ElementsAre("b", "d"));
}

TEST_F(ModelEtcdTest, WithoutSpaceItPutsAndGrantsNothing) {
  const int64_t lease = etcd_.GrantLease(seconds(5)).value();
  ASSERT_EQ(Run({MakePut("a", "1")}), OkStatus());
  etcd_.SetFates([] { return ModelEtcd::Fate::kNoSpace; });
  EXPECT_TRUE(IsResourceExhausted(Run({MakePut("a", "2")})));
  EXPECT_TRUE(IsResourceExhausted(etcd_.GrantLease(seconds(5)).status()));
  EXPECT_EQ(etcd_.KeepLeaseAlive(lease, seconds(1)), OkStatus());
  EXPECT_EQ(Run({MakeGet("a"), MakeDeletion("a")}), OkStatus());
  EXPECT_THAT(etcd_.Keys(), IsEmpty());
}

TEST_F(ModelEtcdTest, ALateTransactionIsAppliedByItself) {
  ModelEtcd::Fate fate = ModelEtcd::Fate::kLate;
  etcd_.SetFates([&] { return fate; });
  EXPECT_TRUE(IsUnavailable(Run({MakePut("a", "1")})));
  EXPECT_THAT(etcd_.Keys(), IsEmpty());
  fate = ModelEtcd::Fate::kAnswered;
  while (Find("a").value().empty()) {
  }
  EXPECT_EQ(Find("a").value(), "1");
}

}  // namespace
}  // namespace muster::coordinator::testing
