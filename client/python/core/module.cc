// The module muster._core: the calls whose time counts, on the C interface.
// Its functions take positional arguments alone; muster/collectives.py and
// others give them names.

#include <stddef.h>
#include <stdint.h>

#include <type_traits>

#include "client/python/core/array_view.h"
#include "client/python/core/handles.h"
#include "client/python/core/limited_python.h"
#include "client/python/core/python_errors.h"
#include "client/python/core/user_op.h"
#include "client/python/core/waiting.h"
#include "muster/muster.h"

namespace muster::python {
namespace {

// A function runs its collective, starts it or prepares it.
enum Mode { kRun = 0, kStart = 1, kPrepare = 2 };

bool CheckCount(const char* function, Py_ssize_t count, Py_ssize_t expected) {
  if (count == expected) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", function,
               expected, count);
  return false;
}

// None, seconds, or a datetime.timedelta. 0 is the group's timeout.
bool ToMilliseconds(PyObject* timeout, int64_t* milliseconds) {
  *milliseconds = 0;
  if (timeout == Py_None) return true;
  // Also scalars of numpy are numbers.
  double seconds = PyFloat_AsDouble(timeout);
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    const Reference total(
        PyObject_CallMethod(timeout, "total_seconds", nullptr));
    if (!total) {
      PyErr_Format(PyExc_TypeError,
                   "argument timeout must be seconds or a datetime.timedelta, "
                   "not %R",
                   reinterpret_cast<PyObject*>(Py_TYPE(timeout)));
      return false;
    }
    seconds = PyFloat_AsDouble(total.get());
  }
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) return false;
  if (!(seconds > 0 && seconds < 1e12)) {
    const Reference value(PyObject_Str(timeout));
    if (value) {
      RaiseArgumentError("argument timeout must be positive, but is %U",
                         value.get());
    }
    return false;
  }
  *milliseconds = static_cast<int64_t>(seconds * 1000);
  if (*milliseconds == 0) *milliseconds = 1;
  return true;
}

bool ToInt32(PyObject* object, const char* name, int32_t* value) {
  const long number = PyLong_AsLong(object);
  const bool failed = number == -1 && PyErr_Occurred() != nullptr;
  if (failed && PyErr_ExceptionMatches(PyExc_OverflowError) == 0) {
    PyErr_Format(PyExc_TypeError, "argument %s must be an integer, not %R",
                 name, object);
    return false;
  }
  if (failed || number != static_cast<int32_t>(number)) {
    PyErr_Clear();
    RaiseArgumentError("argument %s is %R, which is no rank or tag", name,
                       object);
    return false;
  }
  *value = static_cast<int32_t>(number);
  return true;
}

// A rank as a caller names it: by the global rank, or by the rank in the group.
struct RankArgument {
  int32_t rank = 0;
  int32_t is_group_rank = 0;
};

// `missing`: the rank if neither is given; null: that is an error.
bool ToRank(PyObject* global, PyObject* in_group, const char* name,
            const int32_t* missing, RankArgument* rank) {
  if (global == Py_None && in_group == Py_None) {
    if (missing == nullptr) {
      RaiseArgumentError(
          "Must specify global_rank or group_rank: neither %s nor group_%s is "
          "given",
          name, name);
      return false;
    }
    rank->rank = *missing;
    return true;
  }
  if (global != Py_None && in_group != Py_None) {
    RaiseArgumentError(
        "Can't specify both group_rank and global_rank: %s and group_%s are "
        "given",
        name, name);
    return false;
  }
  rank->is_group_rank = in_group != Py_None ? 1 : 0;
  return ToInt32(in_group != Py_None ? in_group : global, name, &rank->rank);
}

constexpr int32_t kRankZero = 0;
constexpr int32_t kAnySource = MUSTER_ANY_SOURCE;

// A list of counts; none for None.
class Counts {
 public:
  Counts() = default;
  Counts(const Counts&) = delete;
  Counts& operator=(const Counts&) = delete;
  ~Counts() { PyMem_Free(values_); }

  bool Read(PyObject* list, const char* name) {
    if (list == Py_None) return true;
    const Py_ssize_t size = PySequence_Size(list);
    if (size < 0) {
      PyErr_Format(PyExc_TypeError, "argument %s must be a list of integers",
                   name);
      return false;
    }
    size_ = static_cast<size_t>(size);
    values_ =
        static_cast<int64_t*>(PyMem_Malloc((size_ + 1) * sizeof(int64_t)));
    if (values_ == nullptr) return PyErr_NoMemory() != nullptr;
    for (Py_ssize_t i = 0; i < size; ++i) {
      const Reference item(PySequence_GetItem(list, i));
      const Reference index(item ? PyNumber_Index(item.get()) : nullptr);
      if (!index) return false;
      values_[i] = PyLong_AsLongLong(index.get());
      if (values_[i] == -1 && PyErr_Occurred() != nullptr) return false;
    }
    return true;
  }

  const int64_t* values() const { return values_; }
  size_t size() const { return size_; }

 private:
  int64_t* values_ = nullptr;
  size_t size_ = 0;
};

// CollectiveCall is one call of a collective: its arrays, its group and what to
// do. The last three arguments of every function are group, timeout and mode.
class CollectiveCall {
 public:
  // False, with an exception.
  bool Read(PyObject* const* last_three) {
    group_ = last_three[0];
    if (!ToGroup(group_, &group_handle_)) return false;
    // An async_op, or for kPrepare "...".
    const int mode = last_three[2] == Py_Ellipsis
                         ? kPrepare
                         : PyObject_IsTrue(last_three[2]);
    if (mode < 0) return false;
    mode_ = mode;
    is_counted_ = mode != kPrepare;
    if (!ToMilliseconds(last_three[1], &timeout_ms_)) return false;
    if (mode_ == kRun) return true;
    kept_ = NewArrays();
    return kept_ != nullptr;
  }

  ~CollectiveCall() { DeleteArrays(kept_); }

  // The arrays of a call that goes on live with its work.
  ArrayViews& outputs() { return kept_ ? kept_->outputs : here_.outputs; }
  ArrayViews& inputs() { return kept_ ? kept_->inputs : here_.inputs; }

  // A work keeps the UserOp as it keeps the arrays. A call that waits has it as
  // an argument.
  void KeepUserOp(PyObject* op) {
    if (kept_ == nullptr) return;
    Py_INCREF(op);
    kept_->user_op = op;
  }

  muster_group* group() const { return group_handle_; }
  int64_t timeout_ms() const { return timeout_ms_; }

  // Calls one of the three functions of a collective.
  template <typename Function, typename Async, typename Prepare, typename... T>
  PyObject* Finish(Function run, Async start, Prepare prepare, T... arguments) {
    if (mode_ == kRun) {
      const bool done =
          RunInterruptibly(group_, [&] { return run(arguments...); });
      if (!done) return nullptr;
      Py_RETURN_NONE;
    }
    if (mode_ == kStart) {
      muster_work* work = nullptr;
      if (!RunUnlocked([&] { return start(arguments..., &work); })) {
        return nullptr;
      }
      return MakeWork(work, group_, TakeArrays());
    }
    muster_prepared* prepared = nullptr;
    if (!RunUnlocked([&] { return prepare(arguments..., &prepared); })) {
      return nullptr;
    }
    return MakePrepared(prepared, group_, TakeArrays());
  }

  // Returns null, for a call that raises an exception because of its arguments.
  // It uses up a number of the group, as those do that the library refuses.
  // `start`: the verb's function, which refuses to start without a work.
  template <typename... T>
  PyObject* Refuse(muster_status (*start)(T...)) const {
    if (!is_counted_) return nullptr;
    bool has_group_failed = false;
    {
      const KeptException kept;
      PyThreadState* thread = PyEval_SaveThread();
      has_group_failed = start(NullArgument<T>()...) != MUSTER_INVALID_ARGUMENT;
      PyEval_RestoreThread(thread);
    }
    if (has_group_failed) RaiseLastError();
    return nullptr;
  }

 private:
  template <typename T>
  T NullArgument() const {
    if constexpr (std::is_same_v<T, muster_group*>) return group_handle_;
    return T();
  }

  Arrays* TakeArrays() {
    Arrays* arrays = kept_;
    kept_ = nullptr;
    return arrays;
  }

  PyObject* group_ = nullptr;
  muster_group* group_handle_ = nullptr;
  int64_t timeout_ms_ = 0;
  int mode_ = kRun;
  bool is_counted_ = false;
  Arrays here_;
  Arrays* kept_ = nullptr;
};

// For verbs that have no prepared form.
template <typename... T>
muster_status NoPrepare(T...) {
  return MUSTER_UNIMPLEMENTED;
}

// The operation of a reduction, and its options. `for_arrays`: the arrays that
// it reduces.
class Reduction {
 public:
  bool Read(PyObject* op, PyObject* factor, CollectiveCall& call,
            const muster_tensor* reduced, size_t reduced_count = 1) {
    options_.size = sizeof options_;
    options_.timeout_ms = call.timeout_ms();
    if (factor != Py_None) {
      options_.factor = PyFloat_AsDouble(factor);
      if (options_.factor == -1.0 && PyErr_Occurred() != nullptr) return false;
      options_.has_factor = 1;
    }
    if (PyLong_Check(op) != 0) {
      const long long number = PyLong_AsLongLong(op);
      op_ = static_cast<muster_reduce_op>(number);
      if (op_ == number && op_ >= 0 && op_ != MUSTER_USER_OP) return true;
      PyErr_Clear();
      RaiseArgumentError("argument op is %R, which is no muster.ReduceOp", op);
      return false;
    }
    op_ = MUSTER_USER_OP;
    options_.user_op = FindUserOp(op, reduced, reduced_count);
    if (options_.user_op == nullptr) return false;
    call.KeepUserOp(op);
    return true;
  }

  muster_reduce_op op() const { return op_; }
  muster_reduction_options* options() { return &options_; }

 private:
  muster_reduce_op op_ = MUSTER_SUM;
  muster_reduction_options options_ = {};
};

// Each function below is one verb: its arguments, then group, timeout and mode.
using Arguments = PyObject* const*;

PyObject* AllReduce(PyObject*, Arguments args, Py_ssize_t count) {
  // array, op, factor
  CollectiveCall call;
  Reduction reduction;
  if (!CheckCount("all_reduce", count, 6) || !call.Read(args + 3) ||
      !call.outputs().OpenOne(args[0], "array", Access::kWrite) ||
      !reduction.Read(args[1], args[2], call, call.outputs().one())) {
    return call.Refuse(muster_all_reduce_async);
  }
  return call.Finish(muster_all_reduce, muster_all_reduce_async,
                     muster_prepare_all_reduce, call.outputs().one(),
                     reduction.op(), call.group(), reduction.options());
}

PyObject* Reduce(PyObject*, Arguments args, Py_ssize_t count) {
  // array, dst, group_dst, op, factor
  CollectiveCall call;
  Reduction reduction;
  RankArgument dst;
  if (!CheckCount("reduce", count, 8) || !call.Read(args + 5) ||
      !ToRank(args[1], args[2], "dst", nullptr, &dst) ||
      !call.outputs().OpenOne(args[0], "array", Access::kWrite) ||
      !reduction.Read(args[3], args[4], call, call.outputs().one())) {
    return call.Refuse(muster_reduce_async);
  }
  reduction.options()->is_group_rank = dst.is_group_rank;
  return call.Finish(muster_reduce, muster_reduce_async, muster_prepare_reduce,
                     call.outputs().one(), dst.rank, reduction.op(),
                     call.group(), reduction.options());
}

PyObject* Broadcast(PyObject*, Arguments args, Py_ssize_t count) {
  // array, src, group_src
  CollectiveCall call;
  RankArgument src;
  if (!CheckCount("broadcast", count, 6) || !call.Read(args + 3) ||
      !ToRank(args[1], args[2], "src", nullptr, &src) ||
      !call.outputs().OpenOne(args[0], "array", Access::kWrite)) {
    return call.Refuse(muster_broadcast_async);
  }
  const muster_root_options options = {sizeof options, call.timeout_ms(),
                                       src.is_group_rank, 0};
  return call.Finish(muster_broadcast, muster_broadcast_async,
                     muster_prepare_broadcast, call.outputs().one(), src.rank,
                     call.group(), &options);
}

PyObject* AllGather(PyObject*, Arguments args, Py_ssize_t count) {
  // array_list, array
  CollectiveCall call;
  if (!CheckCount("all_gather", count, 5) || !call.Read(args + 2) ||
      !call.outputs().OpenList(args[0], "array_list", Access::kWrite) ||
      !call.inputs().OpenOne(args[1], "array", Access::kRead)) {
    return call.Refuse(muster_all_gather_async);
  }
  const muster_collective_options options = {sizeof options, call.timeout_ms()};
  return call.Finish(muster_all_gather, muster_all_gather_async,
                     muster_prepare_all_gather, call.outputs().list(),
                     call.outputs().list_size(), call.inputs().one(),
                     call.group(), &options);
}

PyObject* AllGatherIntoTensor(PyObject*, Arguments args, Py_ssize_t count) {
  // output, input
  CollectiveCall call;
  if (!CheckCount("all_gather_into_tensor", count, 5) || !call.Read(args + 2) ||
      !call.outputs().OpenOne(args[0], "output", Access::kWrite) ||
      !call.inputs().OpenOne(args[1], "input", Access::kRead)) {
    return call.Refuse(muster_all_gather_into_tensor_async);
  }
  const muster_collective_options options = {sizeof options, call.timeout_ms()};
  return call.Finish(
      muster_all_gather_into_tensor, muster_all_gather_into_tensor_async,
      muster_prepare_all_gather_into_tensor, call.outputs().one(),
      call.inputs().one(), call.group(), &options);
}

bool HaveOneLength(const ArrayViews& outputs, const ArrayViews& inputs) {
  if (outputs.list_size() == inputs.list_size()) return true;
  RaiseArgumentError(
      "output_list and input_list must have one length, but have %zu and %zu",
      outputs.list_size(), inputs.list_size());
  return false;
}

bool HaveOneLength(const Counts& some, const Counts& others,
                   const char* names) {
  if (some.values() == nullptr || others.values() == nullptr ||
      some.size() == others.size()) {
    return true;
  }
  RaiseArgumentError("arguments %s must have one length, but have %zu and %zu",
                     names, some.size(), others.size());
  return false;
}

PyObject* AllGatherV(PyObject*, Arguments args, Py_ssize_t count) {
  // output, counts, input, displacements
  CollectiveCall call;
  Counts counts;
  Counts displacements;
  if (!CheckCount("all_gather_v", count, 7) || !call.Read(args + 4) ||
      !counts.Read(args[1], "counts") ||
      !displacements.Read(args[3], "displacements") ||
      !HaveOneLength(counts, displacements, "counts and displacements") ||
      !call.outputs().OpenOne(args[0], "output", Access::kWrite) ||
      !call.inputs().OpenOne(args[2], "input", Access::kRead)) {
    return call.Refuse(muster_all_gather_v_async);
  }
  const muster_collective_options options = {sizeof options, call.timeout_ms()};
  return call.Finish(muster_all_gather_v, muster_all_gather_v_async,
                     muster_prepare_all_gather_v, call.outputs().one(),
                     counts.values(), displacements.values(), counts.size(),
                     call.inputs().one(), call.group(), &options);
}

PyObject* Gather(PyObject*, Arguments args, Py_ssize_t count) {
  // array, gather_list, dst, group_dst
  CollectiveCall call;
  RankArgument dst;
  if (!CheckCount("gather", count, 7) || !call.Read(args + 4) ||
      !ToRank(args[2], args[3], "dst", &kRankZero, &dst) ||
      !call.inputs().OpenOne(args[0], "array", Access::kRead) ||
      !call.outputs().OpenList(args[1], "gather_list", Access::kWrite)) {
    return call.Refuse(muster_gather_async);
  }
  const muster_root_options options = {sizeof options, call.timeout_ms(),
                                       dst.is_group_rank, 0};
  return call.Finish(muster_gather, muster_gather_async, muster_prepare_gather,
                     call.inputs().one(), call.outputs().list(),
                     call.outputs().list_size(), dst.rank, call.group(),
                     &options);
}

PyObject* Scatter(PyObject*, Arguments args, Py_ssize_t count) {
  // array, scatter_list, src, group_src
  CollectiveCall call;
  RankArgument src;
  if (!CheckCount("scatter", count, 7) || !call.Read(args + 4) ||
      !ToRank(args[2], args[3], "src", &kRankZero, &src) ||
      !call.outputs().OpenOne(args[0], "array", Access::kWrite) ||
      !call.inputs().OpenList(args[1], "scatter_list", Access::kRead)) {
    return call.Refuse(muster_scatter_async);
  }
  const muster_root_options options = {sizeof options, call.timeout_ms(),
                                       src.is_group_rank, 0};
  return call.Finish(muster_scatter, muster_scatter_async,
                     muster_prepare_scatter, call.outputs().one(),
                     call.inputs().list(), call.inputs().list_size(), src.rank,
                     call.group(), &options);
}

PyObject* ReduceScatter(PyObject*, Arguments args, Py_ssize_t count) {
  // output, input_list, op, factor
  CollectiveCall call;
  Reduction reduction;
  if (!CheckCount("reduce_scatter", count, 7) || !call.Read(args + 4) ||
      !call.outputs().OpenOne(args[0], "output", Access::kWrite) ||
      !call.inputs().OpenList(args[1], "input_list", Access::kRead) ||
      !reduction.Read(args[2], args[3], call, call.outputs().one())) {
    return call.Refuse(muster_reduce_scatter_async);
  }
  return call.Finish(muster_reduce_scatter, muster_reduce_scatter_async,
                     muster_prepare_reduce_scatter, call.outputs().one(),
                     call.inputs().list(), call.inputs().list_size(),
                     reduction.op(), call.group(), reduction.options());
}

PyObject* ReduceScatterTensor(PyObject*, Arguments args, Py_ssize_t count) {
  // output, input, op, factor
  CollectiveCall call;
  Reduction reduction;
  if (!CheckCount("reduce_scatter_tensor", count, 7) || !call.Read(args + 4) ||
      !call.outputs().OpenOne(args[0], "output", Access::kWrite) ||
      !call.inputs().OpenOne(args[1], "input", Access::kRead) ||
      !reduction.Read(args[2], args[3], call, call.outputs().one())) {
    return call.Refuse(muster_reduce_scatter_tensor_async);
  }
  return call.Finish(
      muster_reduce_scatter_tensor, muster_reduce_scatter_tensor_async,
      muster_prepare_reduce_scatter_tensor, call.outputs().one(),
      call.inputs().one(), reduction.op(), call.group(), reduction.options());
}

PyObject* ReduceScatterV(PyObject*, Arguments args, Py_ssize_t count) {
  // output, input, counts, displacements, op, factor
  CollectiveCall call;
  Reduction reduction;
  Counts counts;
  Counts displacements;
  if (!CheckCount("reduce_scatter_v", count, 9) || !call.Read(args + 6) ||
      !counts.Read(args[2], "counts") ||
      !displacements.Read(args[3], "displacements") ||
      !HaveOneLength(counts, displacements, "counts and displacements") ||
      !call.outputs().OpenOne(args[0], "output", Access::kWrite) ||
      !call.inputs().OpenOne(args[1], "input", Access::kRead) ||
      !reduction.Read(args[4], args[5], call, call.outputs().one())) {
    return call.Refuse(muster_reduce_scatter_v_async);
  }
  return call.Finish(muster_reduce_scatter_v, muster_reduce_scatter_v_async,
                     muster_prepare_reduce_scatter_v, call.outputs().one(),
                     call.inputs().one(), counts.values(),
                     displacements.values(), counts.size(), reduction.op(),
                     call.group(), reduction.options());
}

PyObject* AllToAll(PyObject*, Arguments args, Py_ssize_t count) {
  // output_list, input_list
  CollectiveCall call;
  if (!CheckCount("all_to_all", count, 5) || !call.Read(args + 2) ||
      !call.outputs().OpenList(args[0], "output_list", Access::kWrite) ||
      !call.inputs().OpenList(args[1], "input_list", Access::kRead)) {
    return call.Refuse(muster_all_to_all_async);
  }
  const muster_collective_options options = {sizeof options, call.timeout_ms()};
  return call.Finish(muster_all_to_all, muster_all_to_all_async,
                     muster_prepare_all_to_all, call.outputs().list(),
                     call.outputs().list_size(), call.inputs().list(),
                     call.inputs().list_size(), call.group(), &options);
}

PyObject* AllToAllSingle(PyObject*, Arguments args, Py_ssize_t count) {
  // output, input, output_split_sizes, input_split_sizes
  CollectiveCall call;
  Counts output_splits;
  Counts input_splits;
  if (!CheckCount("all_to_all_single", count, 7) || !call.Read(args + 4) ||
      !output_splits.Read(args[2], "output_split_sizes") ||
      !input_splits.Read(args[3], "input_split_sizes") ||
      !HaveOneLength(output_splits, input_splits,
                     "output_split_sizes and input_split_sizes") ||
      !call.outputs().OpenOne(args[0], "output", Access::kWrite) ||
      !call.inputs().OpenOne(args[1], "input", Access::kRead)) {
    return call.Refuse(muster_all_to_all_single_async);
  }
  const muster_collective_options options = {sizeof options, call.timeout_ms()};
  const size_t ranks = output_splits.values() != nullptr ? output_splits.size()
                                                         : input_splits.size();
  return call.Finish(muster_all_to_all_single, muster_all_to_all_single_async,
                     muster_prepare_all_to_all_single, call.outputs().one(),
                     call.inputs().one(), output_splits.values(),
                     input_splits.values(), ranks, call.group(), &options);
}

PyObject* Barrier(PyObject*, Arguments args, Py_ssize_t count) {
  CollectiveCall call;
  if (!CheckCount("barrier", count, 3) || !call.Read(args))
    return call.Refuse(muster_barrier_async);
  const muster_barrier_options options = {sizeof options, call.timeout_ms(), 0,
                                          0};
  return call.Finish(muster_barrier, muster_barrier_async,
                     muster_prepare_barrier, call.group(), &options);
}

PyObject* AllReduceCoalesced(PyObject*, Arguments args, Py_ssize_t count) {
  // array_list, op, factor
  CollectiveCall call;
  Reduction reduction;
  if (!CheckCount("all_reduce_coalesced", count, 6) || !call.Read(args + 3) ||
      !call.outputs().OpenList(args[0], "array_list", Access::kWrite) ||
      !reduction.Read(args[1], args[2], call, call.outputs().list(),
                      call.outputs().list_size())) {
    return nullptr;
  }
  return call.Finish(
      muster_all_reduce_coalesced, muster_all_reduce_coalesced_async,
      NoPrepare<const muster_tensor*, size_t, muster_reduce_op, muster_group*,
                const muster_reduction_options*, muster_prepared**>,
      call.outputs().list(), call.outputs().list_size(), reduction.op(),
      call.group(), reduction.options());
}

PyObject* AllGatherCoalesced(PyObject*, Arguments args, Py_ssize_t count) {
  // output_list, of all ranks' lists one after the other; input_list
  CollectiveCall call;
  if (!CheckCount("all_gather_coalesced", count, 5) || !call.Read(args + 2) ||
      !call.outputs().OpenList(args[0], "output_lists", Access::kWrite) ||
      !call.inputs().OpenList(args[1], "input_list", Access::kRead)) {
    return nullptr;
  }
  const muster_collective_options options = {sizeof options, call.timeout_ms()};
  return call.Finish(
      muster_all_gather_coalesced, muster_all_gather_coalesced_async,
      NoPrepare<const muster_tensor*, size_t, const muster_tensor*, size_t,
                muster_group*, const muster_collective_options*,
                muster_prepared**>,
      call.outputs().list(), call.outputs().list_size(), call.inputs().list(),
      call.inputs().list_size(), call.group(), &options);
}

PyObject* AllGatherIntoTensorCoalesced(PyObject*, Arguments args,
                                       Py_ssize_t count) {
  // output_list, input_list
  CollectiveCall call;
  if (!CheckCount("all_gather_into_tensor_coalesced", count, 5) ||
      !call.Read(args + 2) ||
      !call.outputs().OpenList(args[0], "output_list", Access::kWrite) ||
      !call.inputs().OpenList(args[1], "input_list", Access::kRead) ||
      !HaveOneLength(call.outputs(), call.inputs())) {
    return nullptr;
  }
  const muster_collective_options options = {sizeof options, call.timeout_ms()};
  return call.Finish(
      muster_all_gather_into_tensor_coalesced,
      muster_all_gather_into_tensor_coalesced_async,
      NoPrepare<const muster_tensor*, const muster_tensor*, size_t,
                muster_group*, const muster_collective_options*,
                muster_prepared**>,
      call.outputs().list(), call.inputs().list(), call.inputs().list_size(),
      call.group(), &options);
}

PyObject* ReduceScatterTensorCoalesced(PyObject*, Arguments args,
                                       Py_ssize_t count) {
  // output_list, input_list, op, factor
  CollectiveCall call;
  Reduction reduction;
  if (!CheckCount("reduce_scatter_tensor_coalesced", count, 7) ||
      !call.Read(args + 4) ||
      !call.outputs().OpenList(args[0], "output_list", Access::kWrite) ||
      !call.inputs().OpenList(args[1], "input_list", Access::kRead) ||
      !HaveOneLength(call.outputs(), call.inputs()) ||
      !reduction.Read(args[2], args[3], call, call.outputs().list(),
                      call.outputs().list_size())) {
    return nullptr;
  }
  return call.Finish(
      muster_reduce_scatter_tensor_coalesced,
      muster_reduce_scatter_tensor_coalesced_async,
      NoPrepare<const muster_tensor*, const muster_tensor*, size_t,
                muster_reduce_op, muster_group*,
                const muster_reduction_options*, muster_prepared**>,
      call.outputs().list(), call.inputs().list(), call.inputs().list_size(),
      reduction.op(), call.group(), reduction.options());
}

PyObject* Send(PyObject*, Arguments args, Py_ssize_t count) {
  // array, dst, group_dst, tag
  CollectiveCall call;
  RankArgument dst;
  int32_t tag = 0;
  if (!CheckCount("send", count, 7) || !call.Read(args + 4) ||
      !ToRank(args[1], args[2], "dst", nullptr, &dst) ||
      !ToInt32(args[3], "tag", &tag) ||
      !call.inputs().OpenOne(args[0], "array", Access::kRead)) {
    return nullptr;
  }
  const muster_p2p_options options = {sizeof options, call.timeout_ms(), tag,
                                      dst.is_group_rank};
  return call.Finish(muster_send, muster_isend,
                     NoPrepare<const muster_tensor*, int32_t, muster_group*,
                               const muster_p2p_options*, muster_prepared**>,
                     call.inputs().one(), dst.rank, call.group(), &options);
}

// Returns the rank that has sent, or a work.
PyObject* Recv(PyObject*, Arguments args, Py_ssize_t count) {
  // array, src, group_src, tag
  CollectiveCall call;
  RankArgument src;
  int32_t tag = 0;
  if (!CheckCount("recv", count, 7) || !call.Read(args + 4) ||
      !ToRank(args[1], args[2], "src", &kAnySource, &src) ||
      !ToInt32(args[3], "tag", &tag) ||
      !call.outputs().OpenOne(args[0], "array", Access::kWrite)) {
    return nullptr;
  }
  const muster_p2p_options options = {sizeof options, call.timeout_ms(), tag,
                                      src.is_group_rank};
  int32_t source = -1;
  const auto receive = [&source](const muster_tensor* tensor, int32_t rank,
                                 muster_group* group,
                                 const muster_p2p_options* given) {
    return muster_recv(tensor, rank, group, given, &source);
  };
  PyObject* result =
      call.Finish(receive, muster_irecv,
                  NoPrepare<const muster_tensor*, int32_t, muster_group*,
                            const muster_p2p_options*, muster_prepared**>,
                  call.outputs().one(), src.rank, call.group(), &options);
  if (result != Py_None) return result;
  Py_DECREF(result);
  return PyLong_FromLong(source);
}

// P2pOps has the operations of batch_isend_irecv, and their arrays, each with
// its work's.
class P2pOps {
 public:
  P2pOps() = default;
  P2pOps(const P2pOps&) = delete;
  P2pOps& operator=(const P2pOps&) = delete;
  ~P2pOps() {
    for (Py_ssize_t i = 0; i < size_; ++i) DeleteArrays(arrays_[i]);
    PyMem_Free(arrays_);
    PyMem_Free(works_);
    PyMem_Free(ops_);
  }

  // `list`: tuples of kind, array, peer, group_peer and tag.
  bool Read(PyObject* list) {
    const Py_ssize_t size = PyList_Size(list);
    if (size < 0) return false;
    const auto count = static_cast<size_t>(size) + 1;
    ops_ = static_cast<muster_p2p_op*>(PyMem_Calloc(count, sizeof *ops_));
    works_ = static_cast<muster_work**>(PyMem_Calloc(count, sizeof(void*)));
    arrays_ = static_cast<Arrays**>(PyMem_Calloc(count, sizeof(void*)));
    if (ops_ == nullptr || works_ == nullptr || arrays_ == nullptr) {
      return PyErr_NoMemory() != nullptr;
    }
    for (; size_ < size; ++size_) {
      arrays_[size_] = NewArrays();
      if (arrays_[size_] == nullptr) return false;
      if (!ReadOne(PyList_GetItem(list, size_), size_)) {
        ++size_;
        return false;
      }
    }
    return true;
  }

  // Starts them all, and returns the list of their works.
  PyObject* Start(PyObject* group, muster_group* handle) {
    if (!RunUnlocked([&] {
          return muster_batch_isend_irecv(ops_, static_cast<size_t>(size_),
                                          handle, works_);
        })) {
      return nullptr;
    }
    Reference list(PyList_New(size_));
    for (Py_ssize_t i = 0; i < size_; ++i) {
      Arrays* arrays = arrays_[i];
      arrays_[i] = nullptr;
      PyObject* work = MakeWork(works_[i], group, arrays);
      if (!list || work == nullptr) {
        Py_XDECREF(work);
        continue;
      }
      PyList_SetItem(list.get(), i, work);
    }
    return PyErr_Occurred() != nullptr ? nullptr : list.release();
  }

 private:
  bool ReadOne(PyObject* tuple, Py_ssize_t index) {
    muster_p2p_op& op = ops_[index];
    PyObject* array = nullptr;
    PyObject* peer = nullptr;
    PyObject* group_peer = nullptr;
    if (PyArg_ParseTuple(tuple, "iOOOi", &op.kind, &array, &peer, &group_peer,
                         &op.tag) == 0) {
      return false;
    }
    RankArgument rank;
    if (!ToRank(peer, group_peer, "peer", nullptr, &rank)) return false;
    op.peer = rank.rank;
    op.is_group_rank = rank.is_group_rank;
    const Access access =
        op.kind == MUSTER_ISEND ? Access::kRead : Access::kWrite;
    op.tensor = arrays_[index]->outputs.one();
    return arrays_[index]->outputs.OpenOne(array, "array", access);
  }

  muster_p2p_op* ops_ = nullptr;
  muster_work** works_ = nullptr;
  Arrays** arrays_ = nullptr;
  Py_ssize_t size_ = 0;
};

PyObject* BatchIsendIrecv(PyObject*, Arguments args, Py_ssize_t count) {
  // list of (kind, array, peer, group_peer, tag), group
  muster_group* group = nullptr;
  P2pOps ops;
  if (!CheckCount("batch_isend_irecv", count, 2) || !ToGroup(args[1], &group) ||
      !ops.Read(args[0])) {
    return nullptr;
  }
  return ops.Start(args[1], group);
}

PyObject* SetUp(PyObject*, Arguments args, Py_ssize_t count) {
  // ArgumentError, make_error, Group, Work, Prepared
  if (!CheckCount("set_up", count, 5)) return nullptr;
  SetErrorFunctions(args[0], args[1]);
  SetHandleTypes(args[2], args[3], args[4]);
  Py_RETURN_NONE;
}

PyObject* SetMainThreadIdent(PyObject*, PyObject* ident) {
  const unsigned long value = PyLong_AsUnsignedLong(ident);
  if (PyErr_Occurred() != nullptr) return nullptr;
  SetMainThread(value);
  Py_RETURN_NONE;
}

PyObject* SetWatchFunction(PyObject*, PyObject* function) {
  SetWatch(function);
  Py_RETURN_NONE;
}

PyObject* RunningCallOfMain(PyObject*, PyObject*) { return GetRunningCall(); }

PyObject* Close(PyObject*, PyObject*) {
  CloseCallbacks();
  Py_RETURN_NONE;
}

PyMethodDef MakeMethod(const char* name,
                       PyObject* (*function)(PyObject*, Arguments,
                                             Py_ssize_t)) {
  return {name,
          reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {
    MakeMethod("all_reduce", AllReduce),
    MakeMethod("reduce", Reduce),
    MakeMethod("broadcast", Broadcast),
    MakeMethod("all_gather", AllGather),
    MakeMethod("all_gather_into_tensor", AllGatherIntoTensor),
    MakeMethod("all_gather_v", AllGatherV),
    MakeMethod("gather", Gather),
    MakeMethod("scatter", Scatter),
    MakeMethod("reduce_scatter", ReduceScatter),
    MakeMethod("reduce_scatter_tensor", ReduceScatterTensor),
    MakeMethod("reduce_scatter_v", ReduceScatterV),
    MakeMethod("all_to_all", AllToAll),
    MakeMethod("all_to_all_single", AllToAllSingle),
    MakeMethod("barrier", Barrier),
    MakeMethod("all_reduce_coalesced", AllReduceCoalesced),
    MakeMethod("all_gather_coalesced", AllGatherCoalesced),
    MakeMethod("all_gather_into_tensor_coalesced",
               AllGatherIntoTensorCoalesced),
    MakeMethod("reduce_scatter_tensor_coalesced", ReduceScatterTensorCoalesced),
    MakeMethod("send", Send),
    MakeMethod("recv", Recv),
    MakeMethod("batch_isend_irecv", BatchIsendIrecv),
    MakeMethod("set_up", SetUp),
    {"set_main_thread", SetMainThreadIdent, METH_O, nullptr},
    {"set_watch", SetWatchFunction, METH_O, nullptr},
    {"running_call", RunningCallOfMain, METH_NOARGS, nullptr},
    {"close", Close, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "muster._core",
                          "The part of muster whose time counts.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace muster::python

// Python gives the name.
PyMODINIT_FUNC PyInit__core() {  // NOLINT(bugprone-reserved-identifier)
  using muster::python::Reference;
  if (!muster::python::CheckBufferLayout()) return nullptr;
  if (muster_abi_version() != MUSTER_ABI_VERSION) {
    PyErr_Format(PyExc_ImportError,
                 "libmuster has the interface %u, but this package needs %u",
                 muster_abi_version(),
                 static_cast<unsigned>(MUSTER_ABI_VERSION));
    return nullptr;
  }
  Reference module(PyModule_Create(&muster::python::definition));
  if (!module || !muster::python::AddArrayViewType(module.get()) ||
      !muster::python::AddHandleTypes(module.get()) ||
      !muster::python::AddUserOpType(module.get())) {
    return nullptr;
  }
  return module.release();
}
