#include <cstddef>
#include <cstdint>
#include <exception>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/future.h"
#include "muster/muster.h"
#include "muster/process_group.h"

using muster::c::Guard;
using muster::c::Need;

void muster_work_release(muster_work* work) { delete work; }

muster_status muster_work_wait(muster_work* work) {
  return Guard(__func__, [&] { Need(work, "work").work.Wait(); });
}

muster_status muster_work_wait_for(muster_work* work, int64_t timeout_ms,
                                   int32_t* completed) {
  return Guard(__func__, [&] {
    int32_t& result = Need(completed, "completed");
    const bool is_completed =
        Need(work, "work").work.WaitFor(muster::c::ToMilliseconds(timeout_ms));
    result = is_completed ? 1 : 0;
  });
}

muster_status muster_work_is_completed(muster_work* work, int32_t* completed) {
  return Guard(__func__, [&] {
    const bool is_completed = Need(work, "work").work.IsCompleted();
    Need(completed, "completed") = is_completed ? 1 : 0;
  });
}

muster_status muster_work_is_success(muster_work* work, int32_t* success) {
  return Guard(__func__, [&] {
    const bool is_success = Need(work, "work").work.IsSuccess();
    Need(success, "success") = is_success ? 1 : 0;
  });
}

muster_status muster_work_status(muster_work* work) {
  return Guard(__func__, [&] {
    const std::exception_ptr error = Need(work, "work").work.Exception();
    if (error != nullptr) std::rethrow_exception(error);
  });
}

muster_status muster_work_source_rank(muster_work* work, int32_t* rank) {
  return Guard(__func__, [&] {
    Need(rank, "rank") = Need(work, "work").work.SourceRank();
  });
}

muster_status muster_work_result(muster_work* work, muster_tensor* tensors,
                                 size_t capacity, size_t* count) {
  return Guard(__func__, [&] {
    muster_work& from = Need(work, "work");
    // Not changed by a second call: the caller may use the shapes.
    if (from.result.empty()) from.result = from.work.Result();
    std::vector<muster_tensor> result;
    for (const muster::Tensor& tensor : from.result) {
      result.push_back(muster::c::FromTensor(tensor));
    }
    muster::c::WriteArray(result, tensors, "tensors", capacity, count);
  });
}

muster_status muster_work_add_done_callback(muster_work* work,
                                            muster_work_callback callback,
                                            void* context) {
  return Guard(__func__, [&] {
    Need(callback, "callback");
    Need(work, "work")
        .work.GetFuture()
        .AddDoneCallback([callback, context](const auto& future) {
          const muster_error error = muster::c::ToError(future.Exception());
          callback(context, error.status, &error);
        });
  });
}
