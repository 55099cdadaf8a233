// Calls that must not allocate, and calls for which there is no memory.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "muster/muster.h"

namespace {

// The calling thread's count.
thread_local int allocations = 0;
// True: the calling thread's allocations fail.
thread_local bool has_no_memory = false;

void* Allocate(size_t bytes) {
  ++allocations;
  if (has_no_memory) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace muster::c {
namespace {

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    muster_store* store = nullptr;
    EXPECT_EQ(muster_hash_store_new(&store), MUSTER_OK);
    muster_init_options options = {};
    options.size = sizeof(options);
    options.store = store;
    options.world_size = 1;
    options.has_rank = 1;
    EXPECT_EQ(muster_init_process_group(&options), MUSTER_OK)
        << muster_error_message(muster_last_error());
    muster_store_release(store);
    tensor_.data = &value_;
    tensor_.dtype = MUSTER_INT32;
    tensor_.count = 1;
  }
  ~MemoryTest() override {
    EXPECT_EQ(muster_destroy_process_group(nullptr), MUSTER_OK);
  }

  int32_t value_ = 1;
  muster_tensor tensor_ = {};
};

TEST_F(MemoryTest, ASynchronousCollectiveAllocatesNothing) {
  muster_group* group = nullptr;
  muster_prepared* prepared = nullptr;
  ASSERT_EQ(muster_world_group(&group), MUSTER_OK);
  ASSERT_EQ(muster_prepare_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr,
                                      &prepared),
            MUSTER_OK);
  muster_reduction_options options = {};
  options.size = sizeof(options);
  const auto run_all = [&] {
    return muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr) +
           muster_all_reduce(&tensor_, MUSTER_SUM, group, &options) +
           muster_broadcast(&tensor_, 0, nullptr, nullptr) +
           muster_barrier(nullptr, nullptr) + muster_prepared_run(prepared);
  };
  // Threads keep what they find in their first call.
  ASSERT_EQ(run_all(), MUSTER_OK);
  allocations = 0;
  EXPECT_EQ(run_all(), MUSTER_OK);
  EXPECT_EQ(allocations, 0);
  muster_prepared_release(prepared);
  muster_group_release(group);
}

// Calls `call` without memory for any allocation.
template <typename Call>
void ExpectNoMemory(Call call) {
  has_no_memory = true;
  const muster_status status = call();
  const muster_error_kind kind = muster_error_get_kind(muster_last_error());
  has_no_memory = false;
  EXPECT_EQ(status, MUSTER_RESOURCE_EXHAUSTED);
  EXPECT_EQ(kind, MUSTER_ERROR_INTERNAL);
  EXPECT_STREQ(muster_error_message(muster_last_error()),
               "there is not enough memory");
}

TEST_F(MemoryTest, WithoutMemoryACallFailsAndStartsNothing) {
  muster_store* store = nullptr;
  ExpectNoMemory([&] { return muster_hash_store_new(&store); });
  EXPECT_EQ(store, nullptr);
  // The sends would never complete, and the reductions count as calls.
  muster_work* work = nullptr;
  ExpectNoMemory(
      [&] { return muster_isend(&tensor_, 0, nullptr, nullptr, &work); });
  ExpectNoMemory([&] {
    return muster_all_reduce_async(&tensor_, MUSTER_SUM, nullptr, nullptr,
                                   &work);
  });
  EXPECT_EQ(work, nullptr);
  ExpectNoMemory(
      [&] { return muster_all_reduce(nullptr, 0, nullptr, nullptr); });
  EXPECT_EQ(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
            MUSTER_OK);
}

}  // namespace
}  // namespace muster::c
