/* One rank of the test of every verb of the C interface. Compiled as C11.
 *
 *   verb_rank every_verb | lost_peer | refused_call
 *
 * Prints "NAME ok" for each check that succeeds, what is wrong otherwise, and
 * at the end "bye". */

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "muster/muster.h"

enum { kRanksMax = 8, kCount = 5 };

static int32_t rank;
static int32_t ranks;

static void Fail(const char* file, int line, const char* what) {
  printf("%s:%d: %s; last error: %s\n", file, line, what,
         muster_error_message(muster_last_error()));
  fflush(stdout);
  exit(1);
}

#define CHECK(condition)                                    \
  do {                                                      \
    if (!(condition)) Fail(__FILE__, __LINE__, #condition); \
  } while (0)
#define OK(call) CHECK((call) == MUSTER_OK)

static void Say(const char* name) {
  printf("%s ok\n", name);
  fflush(stdout);
}

static muster_tensor Int64s(int64_t* data, int64_t count) {
  muster_tensor tensor = {0};
  tensor.data = data;
  tensor.dtype = MUSTER_INT64;
  tensor.count = count;
  return tensor;
}

static void Fill(int64_t* data, int64_t count, int64_t value) {
  for (int64_t i = 0; i < count; ++i) data[i] = value + i;
}

static void CheckFill(const int64_t* data, int64_t count, int64_t value) {
  for (int64_t i = 0; i < count; ++i) CHECK(data[i] == value + i);
}

/* What rank r gives: different in each element and on each rank. */
static int64_t Given(int32_t r) { return 1000 * (r + 1); }

/* The sum of all ranks' element i is SumOfGiven() + ranks * i. */
static void CheckSum(const int64_t* data, int64_t count) {
  int64_t sum = 0;
  for (int32_t r = 0; r < ranks; ++r) sum += Given(r);
  for (int64_t i = 0; i < count; ++i) CHECK(data[i] == sum + ranks * i);
}

/* How a verb is called. */
typedef enum { kSync, kAsync, kPrepared, kForms } Form;

static void Finish(Form form, muster_work* work, muster_prepared* prepared) {
  if (form == kAsync) {
    int32_t success = 0;
    OK(muster_work_wait(work));
    OK(muster_work_is_success(work, &success));
    CHECK(success == 1);
    OK(muster_work_status(work));
    muster_work_release(work);
  }
  if (form == kPrepared) {
    OK(muster_prepared_run(prepared));
    muster_prepared_release(prepared);
  }
}

static void AllReduce(Form form) {
  int64_t data[kCount];
  Fill(data, kCount, Given(rank));
  const muster_tensor tensor = Int64s(data, kCount);
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) OK(muster_all_reduce(&tensor, MUSTER_SUM, NULL, NULL));
  if (form == kAsync) {
    OK(muster_all_reduce_async(&tensor, MUSTER_SUM, NULL, NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_all_reduce(&tensor, MUSTER_SUM, NULL, NULL, &prepared));
  }
  Finish(form, work, prepared);
  CheckSum(data, kCount);
}

static void Broadcast(Form form) {
  const int32_t src = ranks - 1;
  int64_t data[kCount];
  Fill(data, kCount, Given(rank));
  const muster_tensor tensor = Int64s(data, kCount);
  muster_root_options options = {.size = sizeof(options), .is_group_rank = 1};
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) OK(muster_broadcast(&tensor, src, NULL, NULL));
  if (form == kAsync) {
    OK(muster_broadcast_async(&tensor, src, NULL, &options, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_broadcast(&tensor, src, NULL, &options, &prepared));
  }
  Finish(form, work, prepared);
  CheckFill(data, kCount, Given(src));
}

static void Reduce(Form form) {
  const int32_t dst = ranks - 1;
  int64_t data[kCount];
  Fill(data, kCount, Given(rank));
  const muster_tensor tensor = Int64s(data, kCount);
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) OK(muster_reduce(&tensor, dst, MUSTER_SUM, NULL, NULL));
  if (form == kAsync) {
    OK(muster_reduce_async(&tensor, dst, MUSTER_SUM, NULL, NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_reduce(&tensor, dst, MUSTER_SUM, NULL, NULL, &prepared));
  }
  Finish(form, work, prepared);
  if (rank == dst) {
    CheckSum(data, kCount);
  } else {
    CheckFill(data, kCount, Given(rank));
  }
}

/* A buffer with a part for each rank, and the parts as tensors. */
typedef struct Parts {
  int64_t data[kRanksMax * kCount];
  muster_tensor whole;
  muster_tensor list[kRanksMax];
} Parts;

static void MakeParts(Parts* parts, int64_t value) {
  Fill(parts->data, ranks * kCount, value);
  parts->whole = Int64s(parts->data, ranks * kCount);
  for (int32_t r = 0; r < ranks; ++r) {
    parts->list[r] = Int64s(parts->data + r * kCount, kCount);
  }
}

static void CheckGathered(const Parts* parts) {
  for (int32_t r = 0; r < ranks; ++r) {
    CheckFill(parts->data + r * kCount, kCount, Given(r));
  }
}

static void AllGather(Form form) {
  Parts to;
  MakeParts(&to, 0);
  int64_t data[kCount];
  Fill(data, kCount, Given(rank));
  const muster_tensor tensor = Int64s(data, kCount);
  const size_t count = (size_t)ranks;
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) OK(muster_all_gather(to.list, count, &tensor, NULL, NULL));
  if (form == kAsync) {
    OK(muster_all_gather_async(to.list, count, &tensor, NULL, NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_all_gather(to.list, count, &tensor, NULL, NULL,
                                 &prepared));
  }
  Finish(form, work, prepared);
  CheckGathered(&to);
}

static void AllGatherIntoTensor(Form form) {
  Parts to;
  MakeParts(&to, 0);
  int64_t data[kCount];
  Fill(data, kCount, Given(rank));
  const muster_tensor tensor = Int64s(data, kCount);
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) {
    OK(muster_all_gather_into_tensor(&to.whole, &tensor, NULL, NULL));
  }
  if (form == kAsync) {
    OK(muster_all_gather_into_tensor_async(&to.whole, &tensor, NULL, NULL,
                                           &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_all_gather_into_tensor(&to.whole, &tensor, NULL, NULL,
                                             &prepared));
  }
  Finish(form, work, prepared);
  CheckGathered(&to);
}

static void Gather(Form form) {
  const int32_t dst = ranks - 1;
  Parts to;
  MakeParts(&to, 0);
  int64_t data[kCount];
  Fill(data, kCount, Given(rank));
  const muster_tensor tensor = Int64s(data, kCount);
  const muster_tensor* const list = rank == dst ? to.list : NULL;
  const size_t count = rank == dst ? (size_t)ranks : 0;
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) OK(muster_gather(&tensor, list, count, dst, NULL, NULL));
  if (form == kAsync) {
    OK(muster_gather_async(&tensor, list, count, dst, NULL, NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_gather(&tensor, list, count, dst, NULL, NULL, &prepared));
  }
  Finish(form, work, prepared);
  if (rank == dst) CheckGathered(&to);
}

static void Scatter(Form form) {
  const int32_t src = ranks - 1;
  Parts from;
  MakeParts(&from, 7);
  int64_t data[kCount];
  Fill(data, kCount, 0);
  const muster_tensor tensor = Int64s(data, kCount);
  const muster_tensor* const list = rank == src ? from.list : NULL;
  const size_t count = rank == src ? (size_t)ranks : 0;
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) OK(muster_scatter(&tensor, list, count, src, NULL, NULL));
  if (form == kAsync) {
    OK(muster_scatter_async(&tensor, list, count, src, NULL, NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_scatter(&tensor, list, count, src, NULL, NULL,
                              &prepared));
  }
  Finish(form, work, prepared);
  CheckFill(data, kCount, 7 + rank * kCount);
}

/* All ranks give Given(r) + their index: part p of the sum begins at
 * SumOfGiven() + ranks * p * kCount. */
static void CheckReducedPart(const int64_t* data) {
  int64_t sum = 0;
  for (int32_t r = 0; r < ranks; ++r) sum += Given(r);
  for (int64_t i = 0; i < kCount; ++i) {
    CHECK(data[i] == sum + ranks * (rank * kCount + i));
  }
}

static void ReduceScatter(Form form) {
  Parts from;
  MakeParts(&from, Given(rank));
  int64_t data[kCount];
  Fill(data, kCount, 0);
  const muster_tensor to = Int64s(data, kCount);
  const size_t count = (size_t)ranks;
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) {
    OK(muster_reduce_scatter(&to, from.list, count, MUSTER_SUM, NULL, NULL));
  }
  if (form == kAsync) {
    OK(muster_reduce_scatter_async(&to, from.list, count, MUSTER_SUM, NULL,
                                   NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_reduce_scatter(&to, from.list, count, MUSTER_SUM, NULL,
                                     NULL, &prepared));
  }
  Finish(form, work, prepared);
  CheckReducedPart(data);
}

static void ReduceScatterTensor(Form form) {
  Parts from;
  MakeParts(&from, Given(rank));
  int64_t data[kCount];
  Fill(data, kCount, 0);
  const muster_tensor to = Int64s(data, kCount);
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) {
    OK(muster_reduce_scatter_tensor(&to, &from.whole, MUSTER_SUM, NULL, NULL));
  }
  if (form == kAsync) {
    OK(muster_reduce_scatter_tensor_async(&to, &from.whole, MUSTER_SUM, NULL,
                                          NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_reduce_scatter_tensor(&to, &from.whole, MUSTER_SUM, NULL,
                                            NULL, &prepared));
  }
  Finish(form, work, prepared);
  CheckReducedPart(data);
}

/* Part r of the output is this rank's part of the input of rank r. */
static void CheckExchanged(const Parts* to) {
  for (int32_t r = 0; r < ranks; ++r) {
    CheckFill(to->data + r * kCount, kCount, Given(r) + rank * kCount);
  }
}

static void AllToAll(Form form) {
  Parts from;
  MakeParts(&from, Given(rank));
  Parts to;
  MakeParts(&to, 0);
  const size_t count = (size_t)ranks;
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) {
    OK(muster_all_to_all(to.list, count, from.list, count, NULL, NULL));
  }
  if (form == kAsync) {
    OK(muster_all_to_all_async(to.list, count, from.list, count, NULL, NULL,
                               &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_all_to_all(to.list, count, from.list, count, NULL, NULL,
                                 &prepared));
  }
  Finish(form, work, prepared);
  CheckExchanged(&to);
}

static void AllToAllSingle(Form form) {
  Parts from;
  MakeParts(&from, Given(rank));
  Parts to;
  MakeParts(&to, 0);
  int64_t splits[kRanksMax];
  for (int32_t r = 0; r < ranks; ++r) splits[r] = kCount;
  const size_t count = (size_t)ranks;
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) {
    OK(muster_all_to_all_single(&to.whole, &from.whole, NULL, NULL, 0, NULL,
                                NULL));
  }
  if (form == kAsync) {
    OK(muster_all_to_all_single_async(&to.whole, &from.whole, splits, splits,
                                      count, NULL, NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_all_to_all_single(&to.whole, &from.whole, splits, splits,
                                        count, NULL, NULL, &prepared));
  }
  Finish(form, work, prepared);
  CheckExchanged(&to);
}

static void Barrier(Form form) {
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) OK(muster_barrier(NULL, NULL));
  if (form == kAsync) OK(muster_barrier_async(NULL, NULL, &work));
  if (form == kPrepared) OK(muster_prepare_barrier(NULL, NULL, &prepared));
  Finish(form, work, prepared);
}

/* Ranks from `first` to `last`, and how many. 12 bytes. */
typedef struct Range {
  int32_t first;
  int32_t last;
  int32_t count;
} Range;

/* Joins ranges; fails if the lower one does not end where the other begins. */
static muster_status JoinRanges(const void* in, void* inout, size_t count,
                                void* context) {
  const Range* const lower = in;
  Range* const upper = inout;
  if (*(const int32_t*)context != 77) return MUSTER_INTERNAL;
  for (size_t i = 0; i < count; ++i) {
    if (lower[i].last + 1 != upper[i].first) return MUSTER_DATA_LOSS;
    upper[i].first = lower[i].first;
    upper[i].count += lower[i].count;
  }
  return MUSTER_OK;
}

static muster_status Refuse(const void* in, void* inout, size_t count,
                            void* context) {
  (void)in;
  (void)inout;
  (void)count;
  (void)context;
  return MUSTER_DATA_LOSS;
}

static void CountRelease(void* context) { ++*(int32_t*)context; }

static void UserOps(void) {
  static int32_t context = 77;
  muster_op_options op_options = {.size = sizeof(op_options),
                                  .not_commutative = 1,
                                  .element_size = sizeof(Range),
                                  .release_context = &CountRelease,
                                  .name = "join"};
  muster_op* op = NULL;
  OK(muster_op_create(&JoinRanges, &context, &op_options, &op));
  Range ranges[kCount];
  for (int i = 0; i < kCount; ++i) ranges[i] = (Range){rank, rank, 1};
  muster_tensor tensor = {.data = ranges,
                          .dtype = MUSTER_OPAQUE,
                          .count = kCount,
                          .element_size = sizeof(Range)};
  muster_reduction_options options = {.size = sizeof(options), .user_op = op};
  OK(muster_all_reduce(&tensor, MUSTER_USER_OP, NULL, &options));
  for (int i = 0; i < kCount; ++i) {
    CHECK(ranges[i].first == 0 && ranges[i].last == ranks - 1 &&
          ranges[i].count == ranks);
  }
  /* The work keeps the op. */
  for (int i = 0; i < kCount; ++i) ranges[i] = (Range){rank, rank, 1};
  muster_work* work = NULL;
  OK(muster_reduce_async(&tensor, 0, MUSTER_USER_OP, NULL, &options, &work));
  muster_op_release(op);
  OK(muster_work_wait(work));
  if (rank == 0) CHECK(ranges[0].count == ranks);
  muster_work_release(work);
  /* An op needs MUSTER_USER_OP, and the reverse. */
  OK(muster_op_create(&Refuse, NULL, NULL, &op));
  options.user_op = op;
  CHECK(muster_all_reduce(&tensor, MUSTER_SUM, NULL, &options) ==
        MUSTER_INVALID_ARGUMENT);
  CHECK(muster_all_reduce(&tensor, MUSTER_USER_OP, NULL, NULL) ==
        MUSTER_INVALID_ARGUMENT);
  /* A function that fails ends its group, on all ranks. */
  if (ranks > 1) {
    muster_group* group = NULL;
    OK(muster_new_group(NULL, 0, NULL, &group));
    CHECK(muster_all_reduce(&tensor, MUSTER_USER_OP, group, &options) !=
          MUSTER_OK);
    CHECK(muster_error_get_kind(muster_last_error()) == MUSTER_ERROR_BACKEND);
    CHECK(strstr(muster_error_message(muster_last_error()), "DATA_LOSS") !=
          NULL);
    muster_destroy_process_group(group);
    muster_group_release(group);
  }
  muster_op_release(op);
  Say("user_ops");
}

static void Pairs(void) {
  struct {
    float value;
    int32_t index;
  } best[2] = {{(float)rank, rank}, {7, ranks - rank}};
  muster_tensor tensor = {
      .data = best, .dtype = MUSTER_FLOAT32_INT32, .count = 2};
  OK(muster_all_reduce(&tensor, MUSTER_MAXLOC, NULL, NULL));
  CHECK(best[0].value == (float)ranks - 1 && best[0].index == ranks - 1);
  CHECK(best[1].value == 7 && best[1].index == 1);
  uint16_t unsigned_value = 65535;
  tensor.data = &unsigned_value;
  tensor.dtype = MUSTER_UINT16;
  tensor.count = 1;
  OK(muster_all_reduce(&tensor, MUSTER_MAX, NULL, NULL));
  CHECK(unsigned_value == 65535);
  Say("pairs");
}

/* Rank r gives r + 1 elements, and its part begins one element behind the end
 * of the part of rank r - 1. */
static int64_t MakeCounts(int64_t* counts, int64_t* displacements) {
  int64_t end = 0;
  for (int32_t r = 0; r < ranks; ++r) {
    counts[r] = r + 1;
    displacements[r] = end + r;
    end += r + 1;
  }
  return end + ranks - 1;
}

static void AllGatherV(Form form) {
  int64_t counts[kRanksMax];
  int64_t displacements[kRanksMax];
  const int64_t total = MakeCounts(counts, displacements);
  int64_t to[kRanksMax * kRanksMax] = {0};
  int64_t from[kRanksMax];
  Fill(from, rank + 1, Given(rank));
  const muster_tensor output = Int64s(to, total);
  const muster_tensor input = Int64s(from, rank + 1);
  const size_t count = (size_t)ranks;
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) {
    OK(muster_all_gather_v(&output, counts, displacements, count, &input, NULL,
                           NULL));
  }
  if (form == kAsync) {
    OK(muster_all_gather_v_async(&output, counts, displacements, count, &input,
                                 NULL, NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_all_gather_v(&output, counts, displacements, count,
                                   &input, NULL, NULL, &prepared));
  }
  Finish(form, work, prepared);
  for (int32_t r = 0; r < ranks; ++r) {
    CheckFill(to + displacements[r], counts[r], Given(r));
    if (r > 0) CHECK(to[displacements[r] - 1] == 0);
  }
}

static void ReduceScatterV(Form form) {
  int64_t counts[kRanksMax];
  int64_t displacements[kRanksMax];
  const int64_t total = MakeCounts(counts, displacements);
  int64_t from[kRanksMax * kRanksMax];
  int64_t to[kRanksMax];
  Fill(from, total, Given(rank));
  Fill(to, rank + 1, 0);
  const muster_tensor output = Int64s(to, rank + 1);
  const muster_tensor input = Int64s(from, total);
  const size_t count = (size_t)ranks;
  muster_work* work = NULL;
  muster_prepared* prepared = NULL;
  if (form == kSync) {
    OK(muster_reduce_scatter_v(&output, &input, counts, displacements, count,
                               MUSTER_SUM, NULL, NULL));
  }
  if (form == kAsync) {
    OK(muster_reduce_scatter_v_async(&output, &input, counts, displacements,
                                     count, MUSTER_SUM, NULL, NULL, &work));
  }
  if (form == kPrepared) {
    OK(muster_prepare_reduce_scatter_v(&output, &input, counts, displacements,
                                       count, MUSTER_SUM, NULL, NULL,
                                       &prepared));
  }
  Finish(form, work, prepared);
  int64_t sum = 0;
  for (int32_t r = 0; r < ranks; ++r) sum += Given(r);
  for (int64_t i = 0; i < rank + 1; ++i) {
    CHECK(to[i] == sum + ranks * (displacements[rank] + i));
  }
}

static void Collectives(void) {
  static const struct {
    const char* name;
    void (*run)(Form form);
  } kVerbs[] = {{"all_reduce", &AllReduce},
                {"broadcast", &Broadcast},
                {"reduce", &Reduce},
                {"all_gather", &AllGather},
                {"all_gather_into_tensor", &AllGatherIntoTensor},
                {"all_gather_v", &AllGatherV},
                {"gather", &Gather},
                {"scatter", &Scatter},
                {"reduce_scatter", &ReduceScatter},
                {"reduce_scatter_tensor", &ReduceScatterTensor},
                {"reduce_scatter_v", &ReduceScatterV},
                {"all_to_all", &AllToAll},
                {"all_to_all_single", &AllToAllSingle},
                {"barrier", &Barrier}};
  for (size_t i = 0; i < sizeof(kVerbs) / sizeof(kVerbs[0]); ++i) {
    for (int form = kSync; form < kForms; ++form) kVerbs[i].run((Form)form);
    Say(kVerbs[i].name);
  }
  muster_monitored_barrier_options options = {.size = sizeof(options),
                                              .timeout_ms = 30000};
  OK(muster_monitored_barrier(NULL, &options));
  Say("monitored_barrier");
}

static void Reductions(void) {
  float data[2] = {(float)rank + 1, -(float)rank};
  muster_tensor tensor = {.data = data, .dtype = MUSTER_FLOAT32, .count = 2};
  OK(muster_all_reduce(&tensor, MUSTER_MAX, NULL, NULL));
  CHECK(data[0] == (float)ranks && data[1] == 0);
  OK(muster_all_reduce(&tensor, MUSTER_AVG, NULL, NULL));
  CHECK(data[0] == (float)ranks);
  data[0] = 1;
  muster_reduction_options options = {
      .size = sizeof(options), .has_factor = 1, .factor = 0.5};
  OK(muster_all_reduce(&tensor, MUSTER_PREMUL_SUM, NULL, &options));
  CHECK(data[0] == (float)ranks / 2);
  CHECK(muster_all_reduce(&tensor, MUSTER_SUM, NULL, &options) ==
        MUSTER_INVALID_ARGUMENT);
  /* A scalar, and a shape of two dimensions. */
  const int64_t shape[2] = {2, 1};
  data[0] = data[1] = 1;
  tensor.shape = shape;
  tensor.ndim = 2;
  OK(muster_all_reduce(&tensor, MUSTER_SUM, NULL, NULL));
  CHECK(data[1] == (float)ranks);
  tensor.ndim = 0;
  OK(muster_all_reduce(&tensor, MUSTER_SUM, NULL, NULL));
  CHECK(data[0] == (float)(ranks * ranks) && data[1] == (float)ranks);
  Say("reductions");
}

static void CountCallback(void* context, muster_status status,
                          const muster_error* error) {
  if (status == MUSTER_OK &&
      muster_error_get_kind(error) == MUSTER_ERROR_NONE) {
    /* The test waits for the second callback, which has another context. */
    ++*(int32_t*)context;
  }
}

static void Works(void) {
  int64_t data[kCount];
  Fill(data, kCount, Given(rank));
  const int64_t shape[1] = {kCount};
  muster_tensor tensor = Int64s(data, 0);
  tensor.shape = shape;
  tensor.ndim = 1;
  muster_work* work = NULL;
  OK(muster_all_reduce_async(&tensor, MUSTER_SUM, NULL, NULL, &work));
  /* The callback may come after the wait. */
  static int32_t calls = 0;
  OK(muster_work_add_done_callback(work, &CountCallback, &calls));
  int32_t completed = 0;
  OK(muster_work_wait_for(work, 60000, &completed));
  CHECK(completed == 1);
  OK(muster_work_is_completed(work, &completed));
  CHECK(completed == 1);
  size_t count = 0;
  OK(muster_work_result(work, NULL, 0, &count));
  CHECK(count == 1);
  muster_tensor result = {0};
  OK(muster_work_result(work, &result, 1, &count));
  CHECK(result.data == data && result.dtype == MUSTER_INT64);
  CHECK(result.ndim == 1 && result.shape[0] == kCount);
  CHECK(result.count == kCount);
  int32_t source = 0;
  OK(muster_work_source_rank(work, &source));
  CHECK(source == -1);
  muster_work_release(work);

  muster_prepared* prepared = NULL;
  OK(muster_prepare_all_reduce(&tensor, MUSTER_SUM, NULL, NULL, &prepared));
  OK(muster_prepared_start(prepared, &work));
  OK(muster_work_wait(work));
  muster_work_release(work);
  muster_prepared_release(prepared);

  /* The group's thread runs callbacks until the group ends: see main. */
  static int32_t later_calls = 0;
  OK(muster_barrier_async(NULL, NULL, &work));
  OK(muster_work_add_done_callback(work, &CountCallback, &later_calls));
  muster_work_release(work);
  Say("works");
}

static void PointToPoint(void) {
  const int32_t next = (rank + 1) % ranks;
  const int32_t previous = (rank + ranks - 1) % ranks;
  int64_t out[kCount];
  int64_t in[kCount];
  Fill(out, kCount, Given(rank));
  const muster_tensor sent = Int64s(out, kCount);
  const muster_tensor received = Int64s(in, kCount);
  muster_p2p_options options = {.size = sizeof(options), .tag = 3};
  muster_work* sending = NULL;
  int32_t source = -1;
  OK(muster_isend(&sent, next, NULL, &options, &sending));
  OK(muster_recv(&received, MUSTER_ANY_SOURCE, NULL, &options, &source));
  CHECK(source == previous);
  CheckFill(in, kCount, Given(previous));
  OK(muster_work_wait(sending));
  muster_work_release(sending);

  muster_work* receiving = NULL;
  options.is_group_rank = 1;
  Fill(in, kCount, 0);
  OK(muster_irecv(&received, previous, NULL, &options, &receiving));
  if (next == rank) {
    OK(muster_isend(&sent, next, NULL, &options, &sending));
    OK(muster_work_wait(sending));
    muster_work_release(sending);
  } else {
    OK(muster_send(&sent, next, NULL, &options));
  }
  OK(muster_work_wait(receiving));
  OK(muster_work_source_rank(receiving, &source));
  CHECK(source == previous);
  muster_work_release(receiving);
  CheckFill(in, kCount, Given(previous));

  Fill(in, kCount, 0);
  muster_p2p_op ops[2] = {{.tensor = &sent, .kind = MUSTER_ISEND, .peer = next},
                          {.tensor = &received,
                           .kind = MUSTER_IRECV,
                           .peer = previous,
                           .is_group_rank = 1}};
  muster_work* works[2] = {NULL, NULL};
  OK(muster_batch_isend_irecv(ops, 2, NULL, works));
  for (int i = 0; i < 2; ++i) {
    OK(muster_work_wait(works[i]));
    muster_work_release(works[i]);
  }
  CheckFill(in, kCount, Given(previous));
  Say("point_to_point");
}

static void Coalescing(void) {
  int64_t small[3][kCount];
  Parts whole[2];
  muster_tensor tensors[3];
  muster_tensor outputs[2];
  muster_tensor inputs[2];
  for (int i = 0; i < 3; ++i) {
    Fill(small[i], kCount, Given(rank));
    tensors[i] = Int64s(small[i], kCount);
  }
  OK(muster_all_reduce_coalesced(tensors, 3, MUSTER_SUM, NULL, NULL));
  for (int i = 0; i < 3; ++i) CheckSum(small[i], kCount);

  for (int i = 0; i < 2; ++i) {
    MakeParts(&whole[i], 0);
    outputs[i] = whole[i].whole;
    Fill(small[i], kCount, Given(rank));
    inputs[i] = tensors[i];
  }
  OK(muster_all_gather_into_tensor_coalesced(outputs, inputs, 2, NULL, NULL));
  for (int i = 0; i < 2; ++i) CheckGathered(&whole[i]);

  muster_work* work = NULL;
  for (int i = 0; i < 2; ++i) MakeParts(&whole[i], Given(rank));
  OK(muster_reduce_scatter_tensor_coalesced_async(
      inputs, outputs, 2, MUSTER_SUM, NULL, NULL, &work));
  OK(muster_work_wait(work));
  muster_work_release(work);
  for (int i = 0; i < 2; ++i) CheckReducedPart(small[i]);

  muster_tensor lists[2 * kRanksMax];
  for (int i = 0; i < 2; ++i) {
    MakeParts(&whole[i], 0);
    Fill(small[i], kCount, Given(rank));
    for (int32_t r = 0; r < ranks; ++r) lists[r * 2 + i] = whole[i].list[r];
  }
  OK(muster_all_gather_coalesced(lists, 2 * (size_t)ranks, inputs, 2, NULL,
                                 NULL));
  for (int i = 0; i < 2; ++i) CheckGathered(&whole[i]);

  muster_coalescing* list = NULL;
  OK(muster_coalescing_create(NULL, NULL, &list));
  for (int i = 0; i < 3; ++i) {
    Fill(small[i], kCount, Given(rank));
    OK(muster_coalescing_all_reduce(list, &tensors[i], MUSTER_SUM, NULL));
  }
  OK(muster_coalescing_run(list));
  for (int i = 0; i < 3; ++i) CheckSum(small[i], kCount);
  Fill(small[0], kCount, Given(rank));
  OK(muster_coalescing_all_gather_into_tensor(list, &outputs[0], &inputs[0]));
  OK(muster_coalescing_run_async(list, &work));
  OK(muster_work_wait(work));
  muster_work_release(work);
  CheckGathered(&whole[0]);
  /* Verbs that do not go together. */
  OK(muster_coalescing_all_gather(list, whole[0].list, (size_t)ranks,
                                  &inputs[0]));
  OK(muster_coalescing_reduce_scatter_tensor(list, &inputs[1], &outputs[1],
                                             MUSTER_SUM, NULL));
  CHECK(muster_coalescing_run(list) == MUSTER_INVALID_ARGUMENT);
  /* The list is empty again. */
  OK(muster_coalescing_run(list));
  muster_coalescing_release(list);
  Say("coalescing");
}

static void CheckString(const muster_strings* strings, size_t index,
                        const char* expected) {
  CHECK(muster_strings_size(strings, index) == strlen(expected));
  CHECK(strcmp(muster_strings_data(strings, index), expected) == 0);
}

static void Objects(void) {
  char mine[32];
  snprintf(mine, sizeof(mine), "object %d", rank);
  char expected[32];
  muster_strings* result = NULL;
  OK(muster_all_gather_object(mine, strlen(mine), NULL, NULL, &result));
  CHECK(muster_strings_count(result) == (size_t)ranks);
  for (int32_t r = 0; r < ranks; ++r) {
    snprintf(expected, sizeof(expected), "object %d", r);
    CheckString(result, (size_t)r, expected);
  }
  muster_strings_release(result);

  const int32_t root = ranks - 1;
  muster_bytes list[kRanksMax];
  char texts[kRanksMax][32];
  for (int32_t r = 0; r < ranks; ++r) {
    snprintf(texts[r], sizeof(texts[r]), "%d for %d", rank, r);
    list[r].data = texts[r];
    list[r].size = strlen(texts[r]);
  }
  OK(muster_broadcast_object_list(list, (size_t)ranks, root, NULL, NULL,
                                  &result));
  CHECK(muster_strings_count(result) == (size_t)ranks);
  snprintf(expected, sizeof(expected), "%d for 0", root);
  CheckString(result, 0, expected);
  muster_strings_release(result);

  muster_object_options options = {.size = sizeof(options), .is_group_rank = 1};
  OK(muster_scatter_object_list(list, (size_t)ranks, root, NULL, &options,
                                &result));
  CHECK(muster_strings_count(result) == 1);
  snprintf(expected, sizeof(expected), "%d for %d", root, rank);
  CheckString(result, 0, expected);
  muster_strings_release(result);

  OK(muster_gather_object(mine, strlen(mine), root, NULL, NULL,
                          rank == root ? &result : NULL));
  if (rank == root) {
    CHECK(muster_strings_count(result) == (size_t)ranks);
    CheckString(result, 0, "object 0");
    muster_strings_release(result);
  }

  if (ranks > 1) {
    int32_t source = -1;
    if (rank == 0) OK(muster_send_object_list(list, 2, root, NULL, NULL));
    if (rank == root) {
      OK(muster_recv_object_list(2, MUSTER_ANY_SOURCE, NULL, NULL, &source,
                                 &result));
      CHECK(source == 0);
      CheckString(result, 1, "0 for 1");
      muster_strings_release(result);
    }
  }
  Say("objects");
}

static void CheckGroup(muster_group* group, int32_t size) {
  int32_t group_size = 0;
  OK(muster_get_world_size(group, &group_size));
  CHECK(group_size == size);
  int64_t one = 1;
  const muster_tensor tensor = Int64s(&one, 1);
  OK(muster_all_reduce(&tensor, MUSTER_SUM, group, NULL));
  CHECK(one == size);
}

/* A group of the last rank alone, whose rank in the group is 0. */
static void GroupRanks(void) {
  const int32_t last[1] = {ranks - 1};
  muster_group* group = NULL;
  OK(muster_new_group(last, 1, NULL, &group));
  if (rank == last[0]) {
    int64_t value = 7;
    muster_tensor tensor = Int64s(&value, 1);
    muster_root_options root = {.size = sizeof(root), .is_group_rank = 1};
    muster_reduction_options reduction = {.size = sizeof(reduction),
                                          .is_group_rank = 1};
    muster_object_options object = {.size = sizeof(object), .is_group_rank = 1};
    muster_p2p_options p2p = {.size = sizeof(p2p), .is_group_rank = 1};
    const muster_bytes bytes = {"x", 1};
    muster_strings* result = NULL;
    OK(muster_broadcast(&tensor, last[0], group, NULL));
    OK(muster_broadcast(&tensor, 0, group, &root));
    OK(muster_reduce(&tensor, last[0], MUSTER_SUM, group, NULL));
    OK(muster_reduce(&tensor, 0, MUSTER_SUM, group, &reduction));
    int64_t copy = 0;
    muster_tensor other = Int64s(&copy, 1);
    OK(muster_gather(&tensor, &other, 1, last[0], group, NULL));
    OK(muster_gather(&tensor, &other, 1, 0, group, &root));
    OK(muster_scatter(&other, &tensor, 1, last[0], group, NULL));
    OK(muster_scatter(&other, &tensor, 1, 0, group, &root));
    OK(muster_broadcast_object_list(&bytes, 1, last[0], group, NULL, &result));
    muster_strings_release(result);
    OK(muster_gather_object("x", 1, 0, group, &object, &result));
    CHECK(muster_strings_count(result) == 1);
    muster_strings_release(result);
    OK(muster_gather_object("x", 1, last[0], group, NULL, &result));
    CHECK(muster_strings_count(result) == 1);
    muster_strings_release(result);
    muster_work* works[2] = {NULL, NULL};
    OK(muster_isend(&tensor, 0, group, &p2p, &works[0]));
    OK(muster_irecv(&other, last[0], group, NULL, &works[1]));
    OK(muster_work_wait(works[1]));
    for (int i = 0; i < 2; ++i) muster_work_release(works[i]);
    CHECK(value == 7 && copy == 7);
    if (last[0] != 0) {
      /* Global rank 0 is not in the group. */
      CHECK(muster_broadcast(&tensor, 0, group, NULL) ==
            MUSTER_INVALID_ARGUMENT);
      CHECK(muster_isend(&tensor, 0, group, NULL, &works[0]) ==
            MUSTER_INVALID_ARGUMENT);
    }
  }
  muster_group_release(group);
  Say("group_ranks");
}

static void Groups(void) {
  const int32_t first[1] = {0};
  muster_new_group_options options = {
      .size = sizeof(options), .description = "rank 0", .name = "first"};
  muster_group* group = NULL;
  OK(muster_new_group(first, 1, &options, &group));
  int32_t group_rank = 0;
  OK(muster_get_rank(group, &group_rank));
  CHECK(group_rank == (rank == 0 ? 0 : -1));
  if (rank == 0) {
    muster_strings* text = NULL;
    OK(muster_group_name(group, &text));
    CheckString(text, 0, "first");
    muster_strings_release(text);
    OK(muster_group_description(group, &text));
    CheckString(text, 0, "rank 0");
    muster_strings_release(text);
    CheckGroup(group, 1);
    OK(muster_destroy_process_group(group));
  }
  muster_group_release(group);

  OK(muster_new_group(NULL, 0, NULL, &group));
  CheckGroup(group, ranks);
  int32_t listed[kRanksMax];
  size_t count = 0;
  OK(muster_get_process_group_ranks(group, listed, 1, &count));
  CHECK(count == (size_t)ranks && listed[0] == 0);
  OK(muster_get_global_rank(group, ranks - 1, &group_rank));
  CHECK(group_rank == ranks - 1);
  OK(muster_get_group_rank(group, 0, &group_rank));
  CHECK(group_rank == 0);
  int64_t timeout_ms = 0;
  OK(muster_group_timeout(group, &timeout_ms));
  CHECK(timeout_ms == 60000);
  OK(muster_group_status(group));
  muster_strings* last_run = NULL;
  OK(muster_group_last_run(group, MUSTER_CPU, &last_run));
  CHECK(muster_strings_count(last_run) == 2);
  CHECK(muster_strings_size(last_run, 0) > 0);
  muster_strings_release(last_run);

  muster_group* all[kRanksMax];
  muster_group* current = NULL;
  OK(muster_new_subgroups(1, NULL, all, &current));
  CheckGroup(current, 1);
  CheckGroup(all[rank], 1);
  for (int32_t r = 0; r < ranks; ++r) muster_group_release(all[r]);
  muster_group_release(current);

  int32_t one_rank[kRanksMax];
  muster_ranks lists[kRanksMax];
  for (int32_t r = 0; r < ranks; ++r) {
    one_rank[r] = r;
    lists[r].ranks = &one_rank[r];
    lists[r].count = 1;
  }
  OK(muster_new_subgroups_by_enumeration(lists, (size_t)ranks, NULL, NULL,
                                         &current));
  CheckGroup(current, 1);
  muster_group_release(current);
  OK(muster_split_group(group, lists, (size_t)ranks, NULL, &current));
  CheckGroup(current, 1);
  muster_group_release(current);

  /* Without the last rank. */
  if (ranks > 1) {
    const int32_t excluded[1] = {ranks - 1};
    if (rank != excluded[0]) {
      muster_group* shrunk = NULL;
      OK(muster_shrink_group(excluded, 1, group, NULL, &shrunk));
      CheckGroup(shrunk, ranks - 1);
      muster_group_release(shrunk);
    } else {
      OK(muster_destroy_process_group(group));
    }
  }
  muster_group_release(group);
  muster_group* world = NULL;
  OK(muster_world_group(&world));
  CheckGroup(world, ranks);
  muster_group_release(world);
  Say("groups");
}

static void Meshes(void) {
  const int64_t shape[2] = {1, ranks};
  const char* names[2] = {"dp", "tp"};
  muster_device_mesh_options options = {.size = sizeof(options),
                                        .dim_names = names};
  muster_device_mesh* mesh = NULL;
  OK(muster_init_device_mesh("cpu", shape, 2, &options, &mesh));
  int32_t ndim = 0;
  OK(muster_device_mesh_ndim(mesh, &ndim));
  CHECK(ndim == 2);
  int64_t sizes[2];
  size_t count = 0;
  OK(muster_device_mesh_shape(mesh, sizes, 2, &count));
  CHECK(count == 2 && sizes[0] == 1 && sizes[1] == ranks);
  muster_strings* text = NULL;
  OK(muster_device_mesh_dim_names(mesh, &text));
  CheckString(text, 1, "tp");
  muster_strings_release(text);
  OK(muster_device_mesh_device_type(mesh, &text));
  CheckString(text, 0, "cpu");
  muster_strings_release(text);
  OK(muster_device_mesh_to_string(mesh, &text));
  CHECK(strncmp(muster_strings_data(text, 0), "DeviceMesh((dp=1, tp=", 21) ==
        0);
  muster_strings_release(text);
  int64_t coordinate[2];
  OK(muster_device_mesh_get_coordinate(mesh, coordinate, 2, &count));
  CHECK(count == 2 && coordinate[0] == 0 && coordinate[1] == rank);
  int32_t listed[kRanksMax];
  OK(muster_device_mesh_ranks(mesh, listed, kRanksMax, &count));
  CHECK(count == (size_t)ranks && listed[ranks - 1] == ranks - 1);
  int32_t local = -1;
  OK(muster_device_mesh_get_local_rank(mesh, 1, &local));
  CHECK(local == rank);
  OK(muster_device_mesh_get_local_rank_by_name(mesh, "dp", &local));
  CHECK(local == 0);
  muster_group* group = NULL;
  OK(muster_device_mesh_get_group(mesh, 0, &group));
  CheckGroup(group, 1);
  muster_group_release(group);
  muster_group* line = NULL;
  OK(muster_device_mesh_get_group_by_name(mesh, "tp", &line));
  CheckGroup(line, ranks);

  muster_device_mesh* slice = NULL;
  const char* slice_names[1] = {"tp"};
  OK(muster_device_mesh_slice(mesh, slice_names, 1, &slice));
  muster_device_mesh* flat = NULL;
  OK(muster_device_mesh_flatten(mesh, NULL, NULL, &flat));
  OK(muster_device_mesh_ndim(flat, &ndim));
  CHECK(ndim == 1);
  int32_t equal = 1;
  OK(muster_device_mesh_equal(mesh, slice, &equal));
  CHECK(equal == 0);
  OK(muster_device_mesh_equal(slice, slice, &equal));
  CHECK(equal == 1);
  muster_device_mesh* unflat = NULL;
  const char* new_names[2] = {"a", "b"};
  options.dim_names = new_names;
  const int64_t halves[2] = {1, ranks};
  OK(muster_device_mesh_unflatten(flat, 0, halves, 2, &options, &unflat));
  OK(muster_device_mesh_ndim(unflat, &ndim));
  CHECK(ndim == 2);
  muster_device_mesh_release(unflat);
  muster_device_mesh_release(flat);

  muster_device_mesh* dp = NULL;
  slice_names[0] = "dp";
  OK(muster_device_mesh_slice(mesh, slice_names, 1, &dp));
  muster_device_mesh* joined = NULL;
  muster_device_mesh* parts[2] = {dp, slice};
  OK(muster_device_mesh_concatenate(parts, 2, &joined));
  OK(muster_device_mesh_ndim(joined, &ndim));
  CHECK(ndim == 2);
  muster_device_mesh_release(joined);
  muster_device_mesh_release(dp);
  muster_device_mesh_release(slice);
  muster_device_mesh_release(mesh);

  int32_t reversed[kRanksMax];
  for (int32_t r = 0; r < ranks; ++r) reversed[r] = ranks - 1 - r;
  const int64_t length[1] = {ranks};
  OK(muster_device_mesh_from_array("cpu", length, 1, reversed, (size_t)ranks,
                                   NULL, &mesh));
  OK(muster_device_mesh_get_coordinate(mesh, coordinate, 1, &count));
  CHECK(count == 1 && coordinate[0] == ranks - 1 - rank);
  muster_device_mesh_release(mesh);
  OK(muster_device_mesh_from_group(line, "cpu", "x", &mesh));
  OK(muster_device_mesh_shape(mesh, sizes, 2, &count));
  CHECK(count == 1 && sizes[0] == ranks);
  muster_device_mesh_release(mesh);
  int32_t in_order[kRanksMax];
  for (int32_t r = 0; r < ranks; ++r) in_order[r] = r;
  options.dim_names = slice_names;
  OK(muster_device_mesh_from_groups(&line, "cpu", length, 1, in_order,
                                    (size_t)ranks, &options, &mesh));
  OK(muster_device_mesh_dim_names(mesh, &text));
  CheckString(text, 0, "dp");
  muster_strings_release(text);
  muster_device_mesh_release(mesh);
  muster_group_release(line);
  Say("meshes");
}

static void TheStore(void) {
  muster_store* store = NULL;
  OK(muster_get_default_store(&store));
  char key[16];
  snprintf(key, sizeof(key), "key %d", rank);
  OK(muster_store_set(store, key, strlen(key), "value", 5, NULL));
  const int32_t next = (rank + 1) % ranks;
  snprintf(key, sizeof(key), "key %d", next);
  muster_strings* value = NULL;
  OK(muster_store_get(store, key, strlen(key), &value));
  CheckString(value, 0, "value");
  muster_strings_release(value);
  muster_store_release(store);
  Say("store");
}

static void Symmetric(void) {
  muster_symmetric* memory = NULL;
  OK(muster_allocate_symmetric(NULL, MUSTER_INT64, 0, kCount, NULL, &memory));
  muster_tensor tensor = {0};
  OK(muster_symmetric_tensor(memory, &tensor));
  CHECK(tensor.count == kCount && tensor.dtype == MUSTER_INT64);
  CHECK((uintptr_t)tensor.data % 256 == 0);
  Fill(tensor.data, kCount, Given(rank));
  OK(muster_all_reduce(&tensor, MUSTER_SUM, NULL, NULL));
  CheckSum(tensor.data, kCount);
  muster_symmetric_release(memory);
  Say("symmetric");
}

static void Debugging(void) {
  muster_debug_level level = -1;
  OK(muster_get_debug_level(&level));
  CHECK(level == MUSTER_DEBUG_OFF);
  OK(muster_set_debug_level(MUSTER_DEBUG_INFO));
  OK(muster_get_debug_level(&level));
  CHECK(level == MUSTER_DEBUG_INFO);
  OK(muster_set_debug_level_from_env());
  OK(muster_get_debug_level(&level));
  CHECK(level == MUSTER_DEBUG_OFF);
  muster_strings* json = NULL;
  OK(muster_flight_recorder_json(&json));
  CHECK(strstr(muster_strings_data(json, 0), "all_reduce") != NULL);
  muster_strings_release(json);
  muster_strings* text = NULL;
  OK(muster_get_debug_address(&text));
  CheckString(text, 0, "");
  muster_strings_release(text);
  Say("debugging");
}

/* Even ranks give an argument that the C interface refuses, odd ranks one that
 * is refused further inside. */
static void BadAllReduce(Form form) {
  int64_t data = 1;
  muster_tensor tensor = Int64s(&data, 1);
  muster_work* work = NULL;
  const muster_reduce_op op = rank % 2 == 0 ? 1000 : MUSTER_SUM;
  if (rank % 2 != 0) tensor.data = NULL;
  CHECK((form == kSync
             ? muster_all_reduce(&tensor, op, NULL, NULL)
             : muster_all_reduce_async(&tensor, op, NULL, NULL, &work)) ==
        MUSTER_INVALID_ARGUMENT);
  CHECK(work == NULL);
  CHECK(muster_error_get_kind(muster_last_error()) == MUSTER_ERROR_ARGUMENT);
}

/* Even ranks give no place for the work of a prepared collective. */
static void BadStart(void) {
  int64_t data = 1;
  const muster_tensor tensor = Int64s(&data, 1);
  muster_prepared* prepared = NULL;
  OK(muster_prepare_all_reduce(&tensor, MUSTER_SUM, NULL, NULL, &prepared));
  if (rank % 2 == 0) {
    CHECK(muster_prepared_start(prepared, NULL) == MUSTER_INVALID_ARGUMENT);
    CHECK(muster_error_get_kind(muster_last_error()) == MUSTER_ERROR_ARGUMENT);
  } else {
    BadAllReduce(kSync);
  }
  muster_prepared_release(prepared);
}

/* After a call that all ranks refuse they go on together. */
static void Refusals(void) {
  BadStart();
  AllReduce(kSync);
  BadAllReduce(kSync);
  AllReduce(kSync);
  BadAllReduce(kAsync);
  AllReduce(kAsync);
  OK(muster_group_status(NULL));
  Say("refusals");
}

static void Init(void) {
  int32_t initialized = -1;
  OK(muster_is_initialized(&initialized));
  CHECK(initialized == 0);
  muster_init_options options = {.size = sizeof(options), .timeout_ms = 60000};
  OK(muster_init_process_group(&options));
  OK(muster_is_initialized(&initialized));
  CHECK(initialized == 1);
  OK(muster_get_rank(NULL, &rank));
  OK(muster_get_world_size(NULL, &ranks));
  CHECK(ranks <= kRanksMax);
  muster_strings* backend = NULL;
  OK(muster_get_backend(NULL, &backend));
  CHECK(muster_strings_size(backend, 0) > 0);
  muster_strings_release(backend);
}

static void EveryVerb(void) {
  Init();
  Collectives();
  Refusals();
  Reductions();
  Pairs();
  UserOps();
  Works();
  PointToPoint();
  Coalescing();
  Objects();
  GroupRanks();
  Groups();
  Meshes();
  TheStore();
  Symmetric();
  Debugging();
  OK(muster_destroy_process_group(NULL));
  int32_t initialized = -1;
  OK(muster_is_initialized(&initialized));
  CHECK(initialized == 0);
}

/* Rank 1 dies; rank 0 gets its name from the error and from the callback. */

static void CopyError(void* context, muster_status status,
                      const muster_error* error) {
  (void)status;
  OK(muster_error_copy(error, (muster_error**)context));
}

static void CheckBlamesRankOne(const muster_error* error) {
  CHECK(muster_error_get_kind(error) == MUSTER_ERROR_NETWORK);
  size_t count = 0;
  const int32_t* const culprits = muster_error_culprit_ranks(error, &count);
  CHECK(count == 1 && culprits[0] == 1);
  CHECK(muster_error_culprit_count(error) == 1);
  muster_member_info member = {.size = sizeof(member)};
  OK(muster_error_culprit(error, 0, &member));
  CHECK(member.rank == 1 && member.pid > 0);
  CHECK(strlen(member.host) > 0);
}

static void LostPeer(void) {
  Init();
  OK(muster_barrier(NULL, NULL));
  if (rank == 1) _exit(9);
  int64_t data = 1;
  const muster_tensor tensor = Int64s(&data, 1);
  muster_work* work = NULL;
  muster_error* copy = NULL;
  OK(muster_all_reduce_async(&tensor, MUSTER_SUM, NULL, NULL, &work));
  OK(muster_work_add_done_callback(work, &CopyError, &copy));
  CHECK(muster_work_wait(work) == MUSTER_UNAVAILABLE);
  CheckBlamesRankOne(muster_last_error());
  CHECK(muster_work_status(work) == MUSTER_UNAVAILABLE);
  int32_t success = 1;
  OK(muster_work_is_success(work, &success));
  CHECK(success == 0);
  muster_work_release(work);
  CHECK(muster_group_status(NULL) != MUSTER_OK);
  /* Later calls fail with the same error. */
  CHECK(muster_all_reduce(&tensor, MUSTER_SUM, NULL, NULL) ==
        MUSTER_UNAVAILABLE);
  CheckBlamesRankOne(muster_last_error());
  int32_t exit_status = 0;
  OK(muster_record_error(muster_last_error(), &exit_status));
  CHECK(exit_status == 75);
  Say("lost peer");
  /* Runs the callbacks to their end. */
  OK(muster_destroy_process_group(NULL));
  CheckBlamesRankOne(copy);
  muster_error_release(copy);
  Say("callback");
}

/* A call that rank 0 refuses is not replaced by its next one: no rank gets a
 * sum. */
static void RefusedCall(void) {
  Init();
  OK(muster_barrier(NULL, NULL));
  int64_t data = 1;
  const muster_tensor tensor = Int64s(&data, 1);
  if (rank == 0) {
    CHECK(muster_all_reduce(&tensor, 1000, NULL, NULL) ==
          MUSTER_INVALID_ARGUMENT);
    CHECK(strcmp(muster_error_message(muster_last_error()),
                 "muster_all_reduce: argument op: 1000 does not exist") == 0);
    OK(muster_group_status(NULL));
  }
  CHECK(muster_all_reduce(&tensor, MUSTER_SUM, NULL, NULL) != MUSTER_OK);
  CHECK(muster_group_status(NULL) != MUSTER_OK);
  /* A bad argument does not hide the error of the group. */
  CHECK(muster_all_reduce(&tensor, 1000, NULL, NULL) ==
        muster_group_status(NULL));
  Say("refused call");
  OK(muster_destroy_process_group(NULL));
}

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  if (strcmp(argv[1], "lost_peer") == 0) {
    LostPeer();
  } else if (strcmp(argv[1], "refused_call") == 0) {
    RefusedCall();
  } else {
    EveryVerb();
  }
  printf("bye\n");
  return 0;
}
