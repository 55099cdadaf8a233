// Bad arguments of each family of functions: an error that names the argument,
// never a crash.

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/muster.h"

namespace muster::c {
namespace {

using ::testing::HasSubstr;

// Expects that `call` fails because of `argument`.
#define EXPECT_BAD(call, argument)                                \
  do {                                                            \
    EXPECT_EQ(call, MUSTER_INVALID_ARGUMENT) << #call;            \
    EXPECT_THAT(muster_error_message(muster_last_error()),        \
                ::testing::StartsWith(std::string(#call).substr(  \
                    0, std::string(#call).find('('))))            \
        << #call;                                                 \
    EXPECT_THAT(muster_error_message(muster_last_error()),        \
                HasSubstr(std::string("argument ") + (argument))) \
        << #call;                                                 \
  } while (0)

// As EXPECT_BAD, for an argument that is null.
#define EXPECT_NULL(call, argument) \
  EXPECT_BAD(call, std::string(argument) + " is NULL")

// A default group of this process alone.
class ArgumentsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    muster_store* store = nullptr;
    ASSERT_EQ(muster_hash_store_new(&store), MUSTER_OK);
    muster_init_options options = {};
    options.size = sizeof(options);
    options.store = store;
    options.world_size = 1;
    options.has_rank = 1;
    ASSERT_EQ(muster_init_process_group(&options), MUSTER_OK)
        << muster_error_message(muster_last_error());
    muster_store_release(store);
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(muster_destroy_process_group(nullptr), MUSTER_OK);
  }

  ArgumentsTest() {
    tensor_.data = &value_;
    tensor_.dtype = MUSTER_INT64;
    tensor_.count = 1;
  }

  int64_t value_ = 1;
  muster_tensor tensor_ = {};
  muster_work* work_ = nullptr;
  muster_prepared* prepared_ = nullptr;
  muster_strings* strings_ = nullptr;
  int32_t number_ = 0;
  size_t count_ = 0;
};

TEST_F(ArgumentsTest, TensorsAndOutputsOfCollectives) {
  const muster_tensor* const none = nullptr;
  muster_tensor* const t = &tensor_;
  EXPECT_NULL(muster_all_reduce(none, MUSTER_SUM, nullptr, nullptr), "tensor");
  EXPECT_NULL(muster_all_reduce_async(t, MUSTER_SUM, nullptr, nullptr, nullptr),
              "work");
  EXPECT_NULL(
      muster_prepare_all_reduce(t, MUSTER_SUM, nullptr, nullptr, nullptr),
      "prepared");
  EXPECT_NULL(muster_broadcast(none, 0, nullptr, nullptr), "tensor");
  EXPECT_NULL(muster_broadcast_async(none, 0, nullptr, nullptr, &work_),
              "tensor");
  EXPECT_NULL(muster_prepare_broadcast(none, 0, nullptr, nullptr, &prepared_),
              "tensor");
  EXPECT_NULL(muster_reduce(none, 0, MUSTER_SUM, nullptr, nullptr), "tensor");
  EXPECT_NULL(muster_all_gather(none, 1, t, nullptr, nullptr), "tensor_list");
  EXPECT_NULL(muster_all_gather(t, 1, none, nullptr, nullptr), "tensor");
  EXPECT_NULL(muster_all_gather_into_tensor(none, t, nullptr, nullptr),
              "output");
  EXPECT_NULL(muster_all_gather_into_tensor(t, none, nullptr, nullptr),
              "input");
  EXPECT_NULL(muster_gather(t, none, 1, 0, nullptr, nullptr), "gather_list");
  EXPECT_NULL(muster_scatter(t, none, 1, 0, nullptr, nullptr), "scatter_list");
  EXPECT_NULL(muster_reduce_scatter(t, none, 1, MUSTER_SUM, nullptr, nullptr),
              "input_list");
  EXPECT_NULL(
      muster_reduce_scatter_tensor(none, t, MUSTER_SUM, nullptr, nullptr),
      "output");
  EXPECT_NULL(muster_all_to_all(none, 1, t, 1, nullptr, nullptr),
              "output_list");
  EXPECT_NULL(
      muster_all_to_all_single(t, none, nullptr, nullptr, 0, nullptr, nullptr),
      "input");
  EXPECT_NULL(muster_all_gather_v(t, nullptr, nullptr, 1, t, nullptr, nullptr),
              "counts");
  EXPECT_NULL(muster_reduce_scatter_v(t, t, nullptr, nullptr, 1, MUSTER_SUM,
                                      nullptr, nullptr),
              "counts");
  EXPECT_NULL(muster_barrier_async(nullptr, nullptr, nullptr), "work");
  EXPECT_NULL(muster_prepared_run(nullptr), "prepared");
  EXPECT_NULL(muster_prepared_start(nullptr, &work_), "prepared");
  EXPECT_EQ(work_, nullptr);
  EXPECT_EQ(prepared_, nullptr);
  muster_prepared_release(nullptr);
  EXPECT_EQ(value_, 1);
}

TEST_F(ArgumentsTest, SplitsHaveALength) {
  const int64_t splits[] = {1};
  EXPECT_BAD(muster_all_to_all_single(&tensor_, &tensor_, splits, nullptr, 0,
                                      nullptr, nullptr),
             "output_splits: rank_count is 0");
  EXPECT_BAD(muster_all_to_all_single(&tensor_, &tensor_, nullptr, splits, 0,
                                      nullptr, nullptr),
             "input_splits: rank_count is 0");
}

TEST_F(ArgumentsTest, NumbersOfTensorsAndReductions) {
  tensor_.dtype = 99;
  EXPECT_BAD(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
             "tensor: dtype 99 does not exist");
  tensor_.dtype = MUSTER_INT64 + 256;
  EXPECT_BAD(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
             "tensor: dtype 260 does not exist");
  tensor_.dtype = MUSTER_INT64;
  tensor_.device_type = 7;
  EXPECT_BAD(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
             "tensor: device_type 7 does not exist");
  tensor_.device_type = MUSTER_CPU;
  tensor_.ndim = 1;
  EXPECT_BAD(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
             "tensor: ndim is 1, but shape is NULL");
  const int64_t shape[1] = {1};
  tensor_.shape = shape;
  tensor_.ndim = -1;
  EXPECT_BAD(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
             "tensor: ndim is -1");
  tensor_.ndim = 1;
  EXPECT_BAD(muster_all_reduce(&tensor_, 1000, nullptr, nullptr),
             "op: 1000 does not exist");
  EXPECT_BAD(muster_all_reduce(&tensor_, -1, nullptr, nullptr),
             "op: -1 does not exist");
}

TEST_F(ArgumentsTest, UserOpsAndOpaqueElements) {
  muster_op* op = nullptr;
  EXPECT_NULL(muster_op_create(nullptr, nullptr, nullptr, &op), "function");
  EXPECT_NULL(muster_all_reduce(&tensor_, MUSTER_USER_OP, nullptr, nullptr),
              "options.user_op");
  muster_op_release(nullptr);
  tensor_.element_size = 8;
  EXPECT_BAD(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
             "tensor: element_size is for MUSTER_OPAQUE");
  tensor_.element_size = 0;
  tensor_.dtype = MUSTER_OPAQUE;
  EXPECT_EQ(muster_broadcast(&tensor_, 0, nullptr, nullptr),
            MUSTER_INVALID_ARGUMENT);
  tensor_.element_size = 3;
  EXPECT_EQ(muster_broadcast(&tensor_, 0, nullptr, nullptr), MUSTER_OK);
  EXPECT_NE(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
            MUSTER_OK);
  EXPECT_EQ(muster_error_get_kind(muster_last_error()), MUSTER_ERROR_ARGUMENT);
}

static void CountRelease(void* context) { ++*static_cast<int*>(context); }

TEST_F(ArgumentsTest, AnOpReleasesItsContextOnce) {
  int releases = 0;
  muster_op_options options = {};
  options.size = sizeof(options);
  options.release_context = &CountRelease;
  muster_op* op = nullptr;
  const auto function = [](const void*, void*, size_t, void*) -> muster_status {
    return MUSTER_OK;
  };
  options.reserved = 1;
  EXPECT_EQ(muster_op_create(function, &releases, &options, &op),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_EQ(releases, 0);
  options.reserved = 0;
  ASSERT_EQ(muster_op_create(function, &releases, &options, &op), MUSTER_OK);
  EXPECT_EQ(releases, 0);
  muster_op_release(op);
  EXPECT_EQ(releases, 1);
}

TEST_F(ArgumentsTest, TextsOfTheLibraryBelowStayAsTheyAre) {
  tensor_.data = nullptr;
  EXPECT_EQ(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("null data pointer"));
  tensor_.data = &value_;
  muster_reduction_options options = {};
  options.size = sizeof(options);
  options.timeout_ms = -1;
  EXPECT_EQ(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, &options),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("timeout must not be negative"));
  EXPECT_EQ(muster_broadcast(&tensor_, 5, nullptr, nullptr),
            MUSTER_INVALID_ARGUMENT);
  // The group goes on after a bad argument.
  EXPECT_EQ(muster_all_reduce(&tensor_, MUSTER_SUM, nullptr, nullptr),
            MUSTER_OK);
}

TEST_F(ArgumentsTest, Groups) {
  muster_group* group = nullptr;
  EXPECT_NULL(muster_get_rank(nullptr, nullptr), "rank");
  EXPECT_NULL(muster_get_world_size(nullptr, nullptr), "world_size");
  EXPECT_NULL(muster_get_backend(nullptr, nullptr), "backend");
  EXPECT_NULL(muster_get_process_group_ranks(nullptr, nullptr, 1, &count_),
              "ranks");
  EXPECT_NULL(muster_get_process_group_ranks(nullptr, &number_, 1, nullptr),
              "count");
  EXPECT_NULL(muster_get_group_rank(nullptr, 0, nullptr), "group_rank");
  EXPECT_NULL(muster_get_global_rank(nullptr, 0, nullptr), "global_rank");
  EXPECT_NULL(muster_world_group(nullptr), "group");
  EXPECT_NULL(muster_new_group(nullptr, 1, nullptr, &group), "ranks");
  EXPECT_NULL(muster_new_group(&number_, 1, nullptr, nullptr), "group");
  EXPECT_NULL(muster_new_subgroups(1, nullptr, nullptr, nullptr), "current");
  EXPECT_NULL(
      muster_new_subgroups_by_enumeration(nullptr, 1, nullptr, nullptr, &group),
      "lists");
  EXPECT_NULL(muster_split_group(nullptr, nullptr, 1, nullptr, &group),
              "lists");
  muster_subgroup_options options = {};
  options.size = sizeof(options);
  options.backend = "gloo";
  const muster_ranks list = {&number_, 1};
  EXPECT_BAD(muster_split_group(nullptr, &list, 1, &options, &group),
             "options: a part has the parent's backend");
  EXPECT_NULL(muster_shrink_group(nullptr, 1, nullptr, nullptr, &group),
              "ranks_to_exclude");
  EXPECT_BAD(muster_group_last_run(nullptr, 9, &strings_),
             "device: device_type 9 does not exist");
  EXPECT_EQ(group, nullptr);
  EXPECT_EQ(muster_get_global_rank(nullptr, 7, &number_),
            MUSTER_INVALID_ARGUMENT);
  muster_group_release(nullptr);
}

TEST_F(ArgumentsTest, Initialization) {
  EXPECT_NULL(muster_is_initialized(nullptr), "initialized");
  EXPECT_NULL(muster_get_default_store(nullptr), "store");
  EXPECT_NULL(muster_get_debug_address(nullptr), "address");
  muster_init_options options = {};
  options.size = sizeof(options);
  options.world_size = -2;
  EXPECT_BAD(muster_init_process_group(&options), "options: world_size is -2");
  options.world_size = 1;
  options.has_rank = 1;
  options.rank = -2;
  EXPECT_BAD(muster_init_process_group(&options), "options: rank is -2");
  options.rank = 0;
  muster_nccl_options nccl = {};
  options.nccl = &nccl;
  EXPECT_BAD(muster_init_process_group(&options), "options.nccl: size is 0");
  nccl.size = sizeof(nccl);
  nccl.given = uint32_t{1} << 31;
  EXPECT_BAD(muster_init_process_group(&options),
             "options.nccl: given has bits that this library does not know");
  nccl.given = MUSTER_NCCL_CTA_POLICY;
  nccl.cta_policy = 3;
  EXPECT_BAD(muster_init_process_group(&options),
             "options.nccl: cta_policy is 3");
  // There is a group already.
  EXPECT_EQ(muster_init_process_group(nullptr), MUSTER_FAILED_PRECONDITION);
  EXPECT_EQ(muster_error_get_kind(muster_last_error()), MUSTER_ERROR_CONTROL);
}

TEST_F(ArgumentsTest, Works) {
  EXPECT_NULL(muster_work_wait(nullptr), "work");
  EXPECT_NULL(muster_work_wait_for(nullptr, 1, &number_), "work");
  EXPECT_NULL(muster_work_is_completed(nullptr, &number_), "work");
  EXPECT_NULL(muster_work_is_success(nullptr, &number_), "work");
  EXPECT_NULL(muster_work_status(nullptr), "work");
  EXPECT_NULL(muster_work_source_rank(nullptr, &number_), "work");
  EXPECT_NULL(muster_work_result(nullptr, nullptr, 0, &count_), "work");
  muster_work_release(nullptr);
  ASSERT_EQ(muster_barrier_async(nullptr, nullptr, &work_), MUSTER_OK);
  EXPECT_NULL(muster_work_wait_for(work_, 1, nullptr), "completed");
  EXPECT_NULL(muster_work_add_done_callback(work_, nullptr, nullptr),
              "callback");
  EXPECT_EQ(muster_work_wait_for(work_, -1, &number_), MUSTER_INVALID_ARGUMENT);
  muster_work_release(work_);
}

TEST_F(ArgumentsTest, PointToPointObjectsAndCoalescing) {
  EXPECT_NULL(muster_send(nullptr, 0, nullptr, nullptr), "tensor");
  EXPECT_NULL(muster_recv(nullptr, 0, nullptr, nullptr, nullptr), "tensor");
  EXPECT_NULL(muster_isend(&tensor_, 0, nullptr, nullptr, nullptr), "work");
  EXPECT_NULL(muster_irecv(nullptr, 0, nullptr, nullptr, &work_), "tensor");
  muster_p2p_op op = {};
  op.kind = 5;
  EXPECT_NULL(muster_batch_isend_irecv(&op, 1, nullptr, nullptr), "works");
  EXPECT_NULL(muster_batch_isend_irecv(nullptr, 1, nullptr, &work_), "ops");
  EXPECT_BAD(muster_batch_isend_irecv(&op, 1, nullptr, &work_),
             "ops: kind 5 does not exist");
  op.kind = MUSTER_IRECV;
  EXPECT_NULL(muster_batch_isend_irecv(&op, 1, nullptr, &work_), "ops");
  op.reserved_2 = 1;
  EXPECT_BAD(muster_batch_isend_irecv(&op, 1, nullptr, &work_),
             "ops: the field reserved is not 0");
  EXPECT_NULL(muster_all_gather_object(nullptr, 1, nullptr, nullptr, &strings_),
              "object");
  EXPECT_NULL(muster_all_gather_object("", 0, nullptr, nullptr, nullptr),
              "result");
  EXPECT_NULL(
      muster_broadcast_object_list(nullptr, 1, 0, nullptr, nullptr, &strings_),
      "objects");
  EXPECT_NULL(
      muster_scatter_object_list(nullptr, 1, 0, nullptr, nullptr, &strings_),
      "objects");
  const muster_bytes bytes = {nullptr, 3};
  EXPECT_NULL(muster_send_object_list(&bytes, 1, 0, nullptr, nullptr),
              "objects");
  EXPECT_NULL(muster_recv_object_list(1, 0, nullptr, nullptr, nullptr, nullptr),
              "result");
  // On the destination the C++ function refuses the call, on all ranks alike.
  EXPECT_EQ(muster_gather_object("", 0, 0, nullptr, nullptr, nullptr),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_NULL(muster_coalescing_create(nullptr, nullptr, nullptr),
              "coalescing");
  EXPECT_NULL(
      muster_coalescing_all_reduce(nullptr, &tensor_, MUSTER_SUM, nullptr),
      "coalescing");
  EXPECT_NULL(muster_coalescing_run(nullptr), "coalescing");
  EXPECT_NULL(
      muster_all_reduce_coalesced(nullptr, 1, MUSTER_SUM, nullptr, nullptr),
      "tensors");
  EXPECT_BAD(
      muster_all_gather_coalesced(&tensor_, 1, &tensor_, 0, nullptr, nullptr),
      "output_count: 1 is not a multiple of input_count (0)");
  muster_coalescing* list = nullptr;
  ASSERT_EQ(muster_coalescing_create(nullptr, nullptr, &list), MUSTER_OK);
  muster_reduction_options options = {};
  options.size = sizeof(options);
  options.timeout_ms = 5;
  EXPECT_BAD(muster_coalescing_all_reduce(list, &tensor_, MUSTER_SUM, &options),
             "options: the timeout is that of muster_coalescing_create");
  muster_coalescing_release(list);
  muster_coalescing_release(nullptr);
}

TEST_F(ArgumentsTest, Meshes) {
  muster_device_mesh* mesh = nullptr;
  const int64_t shape[1] = {1};
  EXPECT_NULL(muster_init_device_mesh("cpu", nullptr, 1, nullptr, &mesh),
              "shape");
  EXPECT_NULL(muster_init_device_mesh("cpu", shape, 1, nullptr, nullptr),
              "mesh");
  EXPECT_NULL(muster_device_mesh_from_array("cpu", shape, 1, nullptr, 1,
                                            nullptr, &mesh),
              "ranks");
  const int64_t negative[1] = {-1};
  EXPECT_BAD(muster_device_mesh_from_array("cpu", negative, 1, &number_, 1,
                                           nullptr, &mesh),
             "shape: a size is -1");
  EXPECT_BAD(muster_device_mesh_from_array("cpu", shape, 1, &number_, 2,
                                           nullptr, &mesh),
             "rank_count: 2, but the product of the shape is 1");
  EXPECT_NULL(muster_device_mesh_concatenate(&mesh, 1, &mesh), "meshes");
  EXPECT_NULL(muster_device_mesh_slice(nullptr, nullptr, 0, &mesh), "mesh");
  EXPECT_NULL(muster_device_mesh_ndim(nullptr, &number_), "mesh");
  EXPECT_NULL(muster_device_mesh_ranks(nullptr, nullptr, 0, &count_), "mesh");
  EXPECT_NULL(muster_device_mesh_to_string(nullptr, &strings_), "mesh");
  muster_device_mesh_release(nullptr);
}

TEST_F(ArgumentsTest, StoresWatchesAndSessions) {
  muster_store* store = nullptr;
  muster_watch* watch = nullptr;
  muster_session* session = nullptr;
  EXPECT_NULL(muster_hash_store_new(nullptr), "store");
  EXPECT_NULL(muster_file_store_new(nullptr, 0, &store), "path");
  EXPECT_NULL(muster_prefix_store_new("p", nullptr, &store), "other");
  EXPECT_NULL(muster_coordinator_store_new(nullptr, &store), "session");
  EXPECT_NULL(muster_tcp_store_new(nullptr, &store), "options");
  EXPECT_NULL(muster_store_set(nullptr, "k", 1, "v", 1, nullptr), "store");
  EXPECT_NULL(muster_store_get(nullptr, "k", 1, &strings_), "store");
  ASSERT_EQ(muster_hash_store_new(&store), MUSTER_OK);
  EXPECT_NULL(muster_store_set(store, nullptr, 1, "v", 1, nullptr), "key");
  EXPECT_NULL(muster_store_set(store, "k", 1, nullptr, 1, nullptr), "value");
  EXPECT_NULL(muster_store_get(store, "k", 1, nullptr), "value");
  EXPECT_NULL(muster_store_check(store, nullptr, 1, &number_), "keys");
  EXPECT_NULL(
      muster_store_compare_set(store, "k", 1, nullptr, 1, "", 0, &strings_),
      "expected");
  EXPECT_NULL(muster_store_compare_and_set(store, "k", 1, 0, "", 0, nullptr,
                                           nullptr, nullptr, nullptr),
              "written");
  EXPECT_NULL(muster_store_num_keys(store, nullptr), "count");
  EXPECT_NULL(muster_store_queue_pop(store, "k", 1, 0, nullptr), "item");
  EXPECT_BAD(muster_tcp_store_port(store, &number_),
             "store: it is no TCP store");
  muster_store* other = nullptr;
  EXPECT_BAD(muster_prefix_store_underlying(store, &other),
             "store: it is no prefix store");
  muster_store_release(store);
  muster_store_release(nullptr);
  muster_key_change change = {};
  EXPECT_NULL(muster_watch_next(nullptr, 1, &change, &number_), "watch");
  EXPECT_NULL(muster_watch_cancel(nullptr), "watch");
  EXPECT_NULL(muster_store_watch(nullptr, "k", 1, nullptr, &watch), "store");
  muster_watch_release(nullptr);
  EXPECT_NULL(muster_session_connect(nullptr, &session), "options");
  EXPECT_NULL(muster_session_join(nullptr, nullptr, nullptr), "formation");
  EXPECT_NULL(muster_session_status(nullptr), "session");
  EXPECT_NULL(muster_session_leave(nullptr, "", 0), "session");
  muster_session_release(nullptr);
  muster_formation_release(nullptr);
  EXPECT_EQ(muster_formation_rank(nullptr), -1);
}

TEST_F(ArgumentsTest, MemoryDebuggingBackendsAndDlpack) {
  muster_symmetric* symmetric = nullptr;
  EXPECT_NULL(
      muster_allocate_symmetric(nullptr, MUSTER_INT8, 0, 1, nullptr, nullptr),
      "memory");
  EXPECT_BAD(muster_allocate_symmetric(nullptr, 99, 0, 1, nullptr, &symmetric),
             "dtype: dtype 99 does not exist");
  EXPECT_NULL(muster_symmetric_tensor(nullptr, &tensor_), "memory");
  muster_symmetric_release(nullptr);
  EXPECT_NULL(muster_current_stream(0, nullptr), "stream");
  EXPECT_EQ(muster_set_current_stream(-1, nullptr), MUSTER_INVALID_ARGUMENT);
  EXPECT_NULL(muster_device_memory_write(nullptr, nullptr, 1, 0), "from");
  EXPECT_NULL(muster_device_memory_clear(nullptr), "memory");
  EXPECT_EQ(muster_device_memory_data(nullptr), nullptr);
  muster_device_memory_release(nullptr);
  EXPECT_NULL(muster_get_debug_level(nullptr), "level");
  EXPECT_BAD(muster_set_debug_level(3), "level: 3 does not exist");
  EXPECT_NULL(muster_dump_flight_recorder(nullptr), "path");
  EXPECT_EQ(muster_dump_flight_recorder("/no/such/folder/file"),
            MUSTER_NOT_FOUND);
  EXPECT_NULL(muster_list_backends(nullptr), "names");
  EXPECT_NULL(muster_load_backend(nullptr, nullptr), "path");
  EXPECT_EQ(muster_load_backend("/no/such/library.so", nullptr),
            MUSTER_NOT_FOUND);
  EXPECT_NULL(muster_is_backend_available("gloo", nullptr), "available");
  muster_dlpack* imported = nullptr;
  EXPECT_NULL(muster_from_dlpack(nullptr, &imported), "managed");
  EXPECT_NULL(muster_to_dlpack(&tensor_, nullptr, nullptr, nullptr), "managed");
  muster_dlpack_release(nullptr);
  EXPECT_EQ(muster_strings_data(nullptr, 0), nullptr);
  EXPECT_EQ(muster_strings_count(nullptr), 0U);
  muster_strings_release(nullptr);
}

TEST_F(ArgumentsTest, BackendsAreListedAndFoundForDevices) {
  ASSERT_EQ(muster_list_backends(&strings_), MUSTER_OK);
  bool has_shm = false;
  for (size_t i = 0; i < muster_strings_count(strings_); ++i) {
    if (std::string(muster_strings_data(strings_, i)) == "shm") has_shm = true;
  }
  EXPECT_TRUE(has_shm);
  muster_strings_release(strings_);
  ASSERT_EQ(muster_is_backend_available("gloo", &number_), MUSTER_OK);
  EXPECT_EQ(number_, 1);
  ASSERT_EQ(muster_is_backend_available("none", &number_), MUSTER_OK);
  EXPECT_EQ(number_, 0);
  ASSERT_EQ(muster_get_default_backend_for_device("cpu", &strings_), MUSTER_OK);
  EXPECT_STREQ(muster_strings_data(strings_, 0), "shm");
  muster_strings_release(strings_);
  EXPECT_EQ(muster_get_default_backend_for_device("tpu", &strings_),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_EQ(strings_, nullptr);
}

}  // namespace
}  // namespace muster::c
