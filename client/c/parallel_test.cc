// Data parallel training and checkpoints by the C interface, in a process that
// is its own only rank. The Python package's tests have several ranks.

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/muster_parallel.h"

namespace muster::c {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string LastText() { return muster_error_message(muster_last_error()); }

// Expects that `call` succeeds.
#define EXPECT_OK(call) EXPECT_EQ(call, MUSTER_OK) << LastText()

// Expects that `call` fails with `status`, and that the text has `part`.
#define EXPECT_FAILS(call, status, part)               \
  do {                                                 \
    EXPECT_EQ(call, status) << #call;                  \
    EXPECT_THAT(LastText(), HasSubstr(part)) << #call; \
  } while (0)

std::vector<std::string> Take(muster_strings* strings) {
  std::vector<std::string> list;
  for (size_t i = 0; i < muster_strings_count(strings); ++i) {
    list.emplace_back(muster_strings_data(strings, i));
  }
  muster_strings_release(strings);
  return list;
}

muster_tensor Floats(float* data, int64_t count) {
  muster_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = MUSTER_FLOAT32;
  tensor.count = count;
  return tensor;
}

class ParallelTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    muster_store* store = nullptr;
    ASSERT_EQ(muster_hash_store_new(&store), MUSTER_OK);
    muster_init_options options = {};
    options.size = sizeof(options);
    options.store = store;
    options.world_size = 1;
    options.has_rank = 1;
    ASSERT_EQ(muster_init_process_group(&options), MUSTER_OK) << LastText();
    muster_store_release(store);
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(muster_destroy_process_group(nullptr), MUSTER_OK);
  }

  ParallelTest() {
    options_.size = sizeof(options_);
    std::filesystem::remove_all(folder_);
    EXPECT_OK(muster_directory_storage_new(folder_.c_str(), &storage_));
  }
  ~ParallelTest() override {
    muster_data_parallel_release(model_);
    muster_checkpoint_storage_release(storage_);
    std::filesystem::remove_all(folder_);
  }

  muster_status Make() {
    return muster_data_parallel_new(parameters_.data(), parameters_.size(),
                                    nullptr, &options_, &model_);
  }

  std::array<float, 2> weights_ = {1, 2};
  std::array<float, 2> gradients_ = {0, 0};
  float bias_ = 3;
  muster_tensor weights_tensor_ = Floats(weights_.data(), 2);
  muster_tensor gradients_tensor_ = Floats(gradients_.data(), 2);
  muster_tensor bias_tensor_ = Floats(&bias_, 1);
  std::array<muster_parameter, 2> parameters_ = {
      {{"weights", &weights_tensor_, &gradients_tensor_},
       {"bias", &bias_tensor_, nullptr}}};
  muster_data_parallel_options options_ = {};
  muster_data_parallel* model_ = nullptr;
  const std::string folder_ = ::testing::TempDir() + "/checkpoints";
  muster_checkpoint_storage* storage_ = nullptr;
};

TEST_F(ParallelTest, AStepReducesWhatIsReady) {
  ASSERT_EQ(Make(), MUSTER_OK) << LastText();
  gradients_ = {5, 7};
  muster_tensor bias = {};
  EXPECT_OK(muster_data_parallel_gradient(model_, 1, &bias));
  *static_cast<float*>(bias.data) = 11;
  EXPECT_OK(muster_data_parallel_begin_step(model_));
  EXPECT_OK(muster_data_parallel_ready(model_, 0));
  EXPECT_OK(muster_data_parallel_ready(model_, 1));
  EXPECT_OK(muster_data_parallel_finish_step(model_));
  EXPECT_THAT(gradients_, ElementsAre(5, 7));
  // It may lie elsewhere now.
  EXPECT_OK(muster_data_parallel_gradient(model_, 1, &bias));
  EXPECT_EQ(bias.dtype, MUSTER_FLOAT32);
  EXPECT_EQ(bias.ndim, 1);
  EXPECT_EQ(bias.shape[0], 1);
  EXPECT_EQ(*static_cast<float*>(bias.data), 11);
  EXPECT_OK(muster_data_parallel_gradient(model_, 0, &bias));
  EXPECT_EQ(bias.data, gradients_.data());
}

TEST_F(ParallelTest, AMissingParameterIsAnErrorOnlyInStepsThatReduce) {
  ASSERT_EQ(Make(), MUSTER_OK) << LastText();
  EXPECT_OK(muster_data_parallel_set_no_sync(model_, 1));
  EXPECT_OK(muster_data_parallel_set_no_sync(model_, 1));
  EXPECT_OK(muster_data_parallel_ready(model_, 0));
  EXPECT_OK(muster_data_parallel_finish_step(model_));
  EXPECT_OK(muster_data_parallel_set_no_sync(model_, 0));
  EXPECT_FAILS(muster_data_parallel_finish_step(model_),
               MUSTER_FAILED_PRECONDITION, "\"bias\"");
  EXPECT_OK(muster_data_parallel_shadow_step(model_));
  muster_strings* json = nullptr;
  EXPECT_OK(muster_data_parallel_logging_data_json(model_, &json));
  EXPECT_THAT(Take(json), ElementsAre(HasSubstr("\"num_iterations\":2")));
}

TEST_F(ParallelTest, OptionsReachTheModel) {
  float mean = 0;
  const muster_tensor mean_tensor = Floats(&mean, 1);
  muster_named_tensor buffer = {"mean", &mean_tensor};
  options_.buffers = &buffer;
  options_.buffer_count = 1;
  options_.find_unused_parameters = 1;
  muster_power_sgd_options power_sgd = {};
  power_sgd.size = sizeof(power_sgd);
  power_sgd.rank = 3;
  power_sgd.has_start_step = 1;
  options_.hook = "power_sgd";
  options_.power_sgd = &power_sgd;
  ASSERT_EQ(Make(), MUSTER_OK) << LastText();
  EXPECT_FAILS(muster_data_parallel_ready(model_, 0),
               MUSTER_FAILED_PRECONDITION, "BeginStep is missing");
  EXPECT_OK(muster_data_parallel_begin_step(model_));
  EXPECT_OK(muster_data_parallel_ready(model_, 0));
  EXPECT_OK(muster_data_parallel_finish_step(model_));
  muster_strings* json = nullptr;
  EXPECT_OK(muster_data_parallel_logging_data_json(model_, &json));
  const std::vector<std::string> texts = Take(json);
  EXPECT_THAT(texts,
              ElementsAre(HasSubstr("\"unused_parameters\":[\"bias\"]")));
  EXPECT_THAT(texts, ElementsAre(HasSubstr("rank 3")));
}

TEST_F(ParallelTest, BadArgumentsOfAModel) {
  EXPECT_FAILS(muster_data_parallel_new(parameters_.data(), 2, nullptr,
                                        &options_, nullptr),
               MUSTER_INVALID_ARGUMENT, "argument model is NULL");
  EXPECT_FAILS(
      muster_data_parallel_new(nullptr, 2, nullptr, &options_, &model_),
      MUSTER_INVALID_ARGUMENT, "argument parameters is NULL");
  EXPECT_FAILS(
      muster_data_parallel_new(nullptr, 0, nullptr, &options_, &model_),
      MUSTER_INVALID_ARGUMENT, "no parameters");
  options_.hook = "fp17";
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT, "no hook \"fp17\"");
  options_.hook = "power_sgd";
  muster_power_sgd_options power_sgd = {};
  options_.power_sgd = &power_sgd;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT,
               "options: power_sgd: size is 0");
  power_sgd.size = sizeof(power_sgd);
  power_sgd.rank = -1;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT, "rank 0: ");
  options_.hook = nullptr;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT,
               "power_sgd is not for the hook");
  options_.power_sgd = nullptr;
  options_.bucket_bytes = -1;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT, "bucket_bytes");
  options_.bucket_bytes = 0;
  options_.buffer_count = 1;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT, "options: buffers is NULL");
  muster_named_tensor buffer = {"mean", nullptr};
  options_.buffers = &buffer;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT,
               "argument options: buffers: \"mean\" has no tensor");
  options_.buffer_count = 0;
  gradients_tensor_.data = nullptr;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT,
               "the gradient of \"weights\" has no memory");
  weights_tensor_.dtype = 99;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT, "dtype 99 does not exist");
  parameters_[0].value = nullptr;
  EXPECT_FAILS(Make(), MUSTER_INVALID_ARGUMENT,
               "argument parameters: \"weights\" has no tensor");
  EXPECT_EQ(model_, nullptr);
  EXPECT_FAILS(muster_data_parallel_begin_step(nullptr),
               MUSTER_INVALID_ARGUMENT, "argument model is NULL");
  EXPECT_FAILS(muster_data_parallel_ready(nullptr, 0), MUSTER_INVALID_ARGUMENT,
               "argument model is NULL");
  EXPECT_FAILS(muster_data_parallel_finish_step(nullptr),
               MUSTER_INVALID_ARGUMENT, "argument model is NULL");
  EXPECT_FAILS(muster_data_parallel_shadow_step(nullptr),
               MUSTER_INVALID_ARGUMENT, "argument model is NULL");
  EXPECT_FAILS(muster_data_parallel_set_no_sync(nullptr, 1),
               MUSTER_INVALID_ARGUMENT, "argument model is NULL");
  muster_tensor tensor = {};
  EXPECT_FAILS(muster_data_parallel_gradient(nullptr, 0, &tensor),
               MUSTER_INVALID_ARGUMENT, "argument model is NULL");
  EXPECT_FAILS(muster_data_parallel_logging_data_json(nullptr, nullptr),
               MUSTER_INVALID_ARGUMENT, "argument json is NULL");
}

TEST_F(ParallelTest, BadIndicesOfAModel) {
  ASSERT_EQ(Make(), MUSTER_OK) << LastText();
  EXPECT_FAILS(muster_data_parallel_ready(model_, 2), MUSTER_INVALID_ARGUMENT,
               "parameter 2 of 2");
  muster_tensor tensor = {};
  EXPECT_FAILS(muster_data_parallel_gradient(model_, 2, &tensor),
               MUSTER_INVALID_ARGUMENT, "parameter 2 of 2");
  EXPECT_FAILS(muster_data_parallel_gradient(model_, 0, nullptr),
               MUSTER_INVALID_ARGUMENT, "argument gradient is NULL");
}

TEST_F(ParallelTest, ACheckpointIsLoadedByParts) {
  std::array<float, 6> whole = {0, 1, 2, 3, 4, 5};
  const muster_tensor tensor = Floats(whole.data(), 6);
  muster_checkpoint_shard shard = {};
  shard.name = "w";
  shard.local = &tensor;
  const muster_checkpoint_value value = {"epoch", "7"};
  muster_save_checkpoint_options options = {};
  options.size = sizeof(options);
  options.values = &value;
  options.value_count = 1;
  options.keep_newest = 2;
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_OK(
        muster_save_checkpoint(storage_, step, &shard, 1, nullptr, &options));
  }
  size_t count = 0;
  EXPECT_OK(muster_list_checkpoints(storage_, nullptr, 0, &count));
  EXPECT_EQ(count, 2U);
  std::array<int64_t, 2> steps = {};
  EXPECT_OK(muster_list_checkpoints(storage_, steps.data(), 2, &count));
  EXPECT_THAT(steps, ElementsAre(2, 3));

  std::array<float, 2> part = {};
  const muster_tensor part_tensor = Floats(part.data(), 2);
  const int64_t global_shape = 6;
  const int64_t offset = 3;
  std::array<muster_checkpoint_shard, 2> wanted = {
      {{"w", &part_tensor, &global_shape, &offset, 1},
       {"other", &part_tensor, nullptr, nullptr, 0}}};
  muster_strings* values = nullptr;
  muster_strings* missing = nullptr;
  EXPECT_FAILS(muster_load_checkpoint(storage_, 3, wanted.data(), 2, nullptr,
                                      &values, &missing),
               MUSTER_NOT_FOUND, "\"other\"");
  EXPECT_EQ(values, nullptr);
  muster_load_checkpoint_options load = {};
  load.size = sizeof(load);
  load.not_strict = 1;
  EXPECT_OK(muster_load_checkpoint(storage_, 3, wanted.data(), 2, &load,
                                   &values, &missing));
  EXPECT_THAT(part, ElementsAre(3, 4));
  EXPECT_THAT(Take(values), ElementsAre("epoch", "7"));
  EXPECT_THAT(Take(missing), ElementsAre("other"));
  EXPECT_OK(muster_load_checkpoint(storage_, 2, wanted.data(), 1, nullptr,
                                   nullptr, nullptr));
}

TEST_F(ParallelTest, TheNewestCheckpointIsVerifiedLoadedAndRemoved) {
  muster_checkpoint_shard shard = {};
  shard.name = "w";
  shard.local = &weights_tensor_;
  int64_t step = 0;
  muster_strings* values = nullptr;
  EXPECT_OK(muster_load_newest_checkpoint(storage_, &shard, 1, nullptr, nullptr,
                                          &step, &values));
  EXPECT_EQ(step, -1);
  EXPECT_EQ(values, nullptr);
  const muster_checkpoint_value value = {"epoch", "7"};
  muster_save_checkpoint_options options = {};
  options.size = sizeof(options);
  options.values = &value;
  options.value_count = 1;
  EXPECT_OK(muster_save_checkpoint(storage_, 5, &shard, 1, nullptr, &options));
  weights_ = {0, 0};
  EXPECT_OK(muster_verify_checkpoint(storage_, 5));
  EXPECT_OK(muster_load_newest_checkpoint(storage_, &shard, 1, nullptr, nullptr,
                                          &step, &values));
  EXPECT_EQ(step, 5);
  EXPECT_THAT(weights_, ElementsAre(1, 2));
  EXPECT_THAT(Take(values), ElementsAre("epoch", "7"));
  shard.local = nullptr;
  EXPECT_FAILS(muster_load_newest_checkpoint(storage_, &shard, 1, nullptr,
                                             nullptr, &step, nullptr),
               MUSTER_INVALID_ARGUMENT, "\"w\" has no tensor");
  EXPECT_FAILS(muster_load_newest_checkpoint(storage_, &shard, 1, nullptr,
                                             nullptr, nullptr, nullptr),
               MUSTER_INVALID_ARGUMENT, "argument step is NULL");
  EXPECT_OK(muster_remove_checkpoint(storage_, 5));
  EXPECT_FAILS(muster_remove_checkpoint(storage_, 5), MUSTER_NOT_FOUND, "5");
  EXPECT_FAILS(muster_verify_checkpoint(storage_, 5), MUSTER_NOT_FOUND, "5");
}

TEST_F(ParallelTest, ACheckpointIsWrittenWhileTheProgramGoesOn) {
  muster_checkpoint_shard shard = {};
  shard.name = "w";
  shard.local = &weights_tensor_;
  muster_checkpointer* checkpointer = nullptr;
  ASSERT_EQ(muster_checkpointer_new(storage_, nullptr, nullptr, &checkpointer),
            MUSTER_OK)
      << LastText();
  muster_pending_checkpoint* pending = nullptr;
  const muster_checkpoint_value value = {"epoch", "7"};
  EXPECT_OK(muster_save_checkpoint_async(checkpointer, 4, &shard, 1, &value, 1,
                                         &pending));
  weights_ = {0, 0};
  EXPECT_OK(muster_pending_checkpoint_wait(pending));
  int32_t done = 0;
  EXPECT_OK(muster_pending_checkpoint_is_done(pending, &done));
  EXPECT_EQ(done, 1);
  EXPECT_OK(muster_load_checkpoint(storage_, 4, &shard, 1, nullptr, nullptr,
                                   nullptr));
  EXPECT_THAT(weights_, ElementsAre(1, 2));

  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool are_refused =
        muster_pending_checkpoint_wait(pending) == MUSTER_FAILED_PRECONDITION &&
        muster_save_checkpoint_async(checkpointer, 5, &shard, 1, nullptr, 0,
                                     &pending) == MUSTER_FAILED_PRECONDITION;
    muster_checkpointer_release(checkpointer);
    _exit(are_refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);

  muster_pending_checkpoint_release(pending);
  muster_checkpointer_release(checkpointer);
}

TEST_F(ParallelTest, BadArgumentsOfCheckpoints) {
  muster_checkpoint_storage* none = nullptr;
  EXPECT_FAILS(muster_directory_storage_new(nullptr, &none),
               MUSTER_INVALID_ARGUMENT, "argument directory is NULL");
  EXPECT_FAILS(muster_directory_storage_new("", nullptr),
               MUSTER_INVALID_ARGUMENT, "argument storage is NULL");
  muster_checkpoint_shard shard = {};
  shard.name = "w";
  EXPECT_FAILS(muster_save_checkpoint(nullptr, 1, &shard, 1, nullptr, nullptr),
               MUSTER_INVALID_ARGUMENT, "argument storage is NULL");
  EXPECT_FAILS(
      muster_save_checkpoint(storage_, 1, nullptr, 1, nullptr, nullptr),
      MUSTER_INVALID_ARGUMENT, "argument state is NULL");
  EXPECT_FAILS(muster_save_checkpoint(storage_, 1, &shard, 1, nullptr, nullptr),
               MUSTER_INVALID_ARGUMENT, "argument state: \"w\" has no tensor");
  shard.local = &weights_tensor_;
  const int64_t numbers = 2;
  shard.global_shape = &numbers;
  shard.ndim = 1;
  EXPECT_FAILS(muster_save_checkpoint(storage_, 1, &shard, 1, nullptr, nullptr),
               MUSTER_INVALID_ARGUMENT, "\"w\" has no offsets");
  shard.offsets = &numbers;
  EXPECT_FAILS(muster_save_checkpoint(storage_, 1, &shard, 1, nullptr, nullptr),
               MUSTER_INVALID_ARGUMENT, "is outside");
  shard.global_shape = nullptr;
  EXPECT_FAILS(
      muster_load_checkpoint(storage_, 1, &shard, 1, nullptr, nullptr, nullptr),
      MUSTER_INVALID_ARGUMENT, "argument shards: \"w\" has no global_shape");
  shard.offsets = nullptr;
  EXPECT_FAILS(
      muster_load_checkpoint(storage_, 1, &shard, 1, nullptr, nullptr, nullptr),
      MUSTER_NOT_FOUND, "step");
  EXPECT_FAILS(
      muster_save_checkpoint(storage_, -1, &shard, 1, nullptr, nullptr),
      MUSTER_INVALID_ARGUMENT, "argument step");
  EXPECT_FAILS(muster_list_checkpoints(storage_, nullptr, 0, nullptr),
               MUSTER_INVALID_ARGUMENT, "argument count is NULL");
  EXPECT_FAILS(muster_checkpointer_new(storage_, nullptr, nullptr, nullptr),
               MUSTER_INVALID_ARGUMENT, "argument checkpointer is NULL");
  muster_pending_checkpoint* pending = nullptr;
  EXPECT_FAILS(
      muster_save_checkpoint_async(nullptr, 1, &shard, 1, nullptr, 0, &pending),
      MUSTER_INVALID_ARGUMENT, "argument checkpointer is NULL");
  EXPECT_FAILS(muster_pending_checkpoint_wait(nullptr), MUSTER_INVALID_ARGUMENT,
               "argument pending is NULL");
  int32_t done = 0;
  EXPECT_FAILS(muster_pending_checkpoint_is_done(nullptr, &done),
               MUSTER_INVALID_ARGUMENT, "argument pending is NULL");
  muster_checkpointer_release(nullptr);
  muster_pending_checkpoint_release(nullptr);
  muster_checkpoint_storage_release(nullptr);
}

}  // namespace
}  // namespace muster::c
