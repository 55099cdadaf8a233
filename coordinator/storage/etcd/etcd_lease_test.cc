#include "coordinator/storage/etcd/etcd_lease.h"

#include <chrono>
#include <memory>

#include "coordinator/storage/etcd/testing/model_etcd.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// A lease of 2 s, and its clock.
class EtcdLeaseTest : public ::testing::Test {
 protected:
  void Grant() {
    EtcdLeaseOptions options;
    options.ttl = seconds(2);
    options.clock = [this] { return now_; };
    options.has_thread = false;
    StatusOr<std::shared_ptr<EtcdLease>> lease =
        EtcdLease::Grant(etcd_, std::move(options));
    ASSERT_TRUE(lease.ok()) << lease.status();
    lease_ = *std::move(lease);
  }

  testing::ModelEtcd etcd_;
  nanoseconds now_ = seconds(100);
  std::shared_ptr<EtcdLease> lease_;
};

TEST_F(EtcdLeaseTest, EndsATenthBeforeItsTimeAfterTheLastRenewal) {
  Grant();
  now_ += milliseconds(1799);
  EXPECT_TRUE(lease_->valid());
  EXPECT_TRUE(lease_->Renew().ok());
  now_ += milliseconds(1799);
  EXPECT_TRUE(lease_->valid());
  now_ += milliseconds(1);
  EXPECT_FALSE(lease_->valid());
}

TEST_F(EtcdLeaseTest, StaysEndedWhenARenewalComesLate) {
  Grant();
  now_ += milliseconds(1800);
  EXPECT_FALSE(lease_->valid());
  // etcd has it still.
  EXPECT_TRUE(lease_->Renew().ok());
  EXPECT_FALSE(lease_->valid());
}

TEST_F(EtcdLeaseTest, IsRenewedLateIfNobodyHasAskedMeanwhile) {
  Grant();
  now_ += milliseconds(1900);
  EXPECT_TRUE(lease_->Renew().ok());
  EXPECT_TRUE(lease_->valid());
}

}  // namespace
}  // namespace muster::coordinator
