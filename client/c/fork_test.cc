// A forked child and its parent's handles: calls fail, releases do no harm.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "gtest/gtest.h"
#include "muster/muster.h"

namespace muster::c {
namespace {

struct Handles {
  muster_store* store = nullptr;
  muster_store* hash = nullptr;
  muster_group* group = nullptr;
  muster_work* work = nullptr;
  muster_prepared* prepared = nullptr;
  muster_tensor tensor = {};
};

// Returns 0, or the number of the check that fails.
int CheckInChild(const Handles& parent) {
  int32_t number = 0;
  muster_strings* strings = nullptr;
  if (muster_init_process_group(nullptr) != MUSTER_FAILED_PRECONDITION) {
    return 1;
  }
  if (muster_all_reduce(&parent.tensor, MUSTER_SUM, nullptr, nullptr) !=
      MUSTER_FAILED_PRECONDITION) {
    return 2;
  }
  if (muster_all_reduce(&parent.tensor, MUSTER_SUM, parent.group, nullptr) !=
      MUSTER_FAILED_PRECONDITION) {
    return 3;
  }
  if (muster_work_wait(parent.work) != MUSTER_FAILED_PRECONDITION) return 4;
  if (muster_prepared_run(parent.prepared) != MUSTER_FAILED_PRECONDITION) {
    return 5;
  }
  if (muster_store_get(parent.store, "k", 1, &strings) == MUSTER_OK) return 6;
  if (muster_is_initialized(&number) != MUSTER_OK || number != 0) return 7;
  muster_work_release(parent.work);
  muster_prepared_release(parent.prepared);
  muster_group_release(parent.group);
  muster_store_release(parent.store);
  return 0;
}

TEST(ForkTest, TheParentsHandlesFailInAChild) {
  Handles handles;
  int64_t value = 1;
  handles.tensor.data = &value;
  handles.tensor.dtype = MUSTER_INT64;
  handles.tensor.count = 1;
  ASSERT_EQ(muster_hash_store_new(&handles.hash), MUSTER_OK);
  muster_init_options options = {};
  options.size = sizeof(options);
  options.store = handles.hash;
  options.world_size = 1;
  options.has_rank = 1;
  ASSERT_EQ(muster_init_process_group(&options), MUSTER_OK)
      << muster_error_message(muster_last_error());
  ASSERT_EQ(muster_get_default_store(&handles.store), MUSTER_OK);
  ASSERT_EQ(muster_world_group(&handles.group), MUSTER_OK);
  // A receive that nobody sends runs in the parent.
  ASSERT_EQ(muster_irecv(&handles.tensor, 0, nullptr, nullptr, &handles.work),
            MUSTER_OK);
  ASSERT_EQ(muster_prepare_all_reduce(&handles.tensor, MUSTER_SUM, nullptr,
                                      nullptr, &handles.prepared),
            MUSTER_OK);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(CheckInChild(handles));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);

  // In the parent all goes on.
  muster_work* sent = nullptr;
  EXPECT_EQ(muster_isend(&handles.tensor, 0, nullptr, nullptr, &sent),
            MUSTER_OK);
  EXPECT_EQ(muster_work_wait(handles.work), MUSTER_OK);
  muster_work_release(sent);
  muster_work_release(handles.work);
  EXPECT_EQ(muster_prepared_run(handles.prepared), MUSTER_OK);
  muster_prepared_release(handles.prepared);
  muster_group_release(handles.group);
  muster_store_release(handles.store);
  EXPECT_EQ(muster_destroy_process_group(nullptr), MUSTER_OK);
  muster_store_release(handles.hash);
}

}  // namespace
}  // namespace muster::c
