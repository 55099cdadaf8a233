#include "client/python/core/handles.h"

#include <new>

#include "client/python/core/python_errors.h"
#include "client/python/core/waiting.h"

namespace muster::python {
namespace {

// How long a wait of the main thread is before it looks for signals.
constexpr int64_t kSliceMs = 50;

struct GroupObject {
  PyObject ob_base;
  muster_group* group;
};

struct WorkObject {
  PyObject ob_base;
  muster_work* work;
  Arrays* arrays;
  PyObject* group;
};

struct PreparedObject {
  PyObject ob_base;
  muster_prepared* prepared;
  Arrays* arrays;
  PyObject* group;
};

PyTypeObject* group_type = nullptr;
PyTypeObject* work_type = nullptr;
PyTypeObject* prepared_type = nullptr;
// Guarded by the GIL.
bool callbacks_are_closed = false;

template <typename Object>
Object* ToObject(PyObject* self) {
  return reinterpret_cast<Object*>(self);
}

template <typename Object>
Object* Allocate(PyTypeObject* type) {
  return ToObject<Object>(PyType_GenericAlloc(type, 0));
}

// Frees the object's memory; its type is a heap type, which it refers to.
void FreeObject(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  const auto release =
      reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// ------------------------------------------------------------------- Group

PyObject* NewGroup(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long address = 0;
  if (PyArg_ParseTuple(args, "K", &address) == 0) return nullptr;
  auto* self = Allocate<GroupObject>(type);
  if (self == nullptr) return nullptr;
  self->group = reinterpret_cast<muster_group*>(address);
  return reinterpret_cast<PyObject*>(self);
}

void DeallocateGroup(PyObject* self) {
  muster_group* group = ToObject<GroupObject>(self)->group;
  Py_BEGIN_ALLOW_THREADS;
  muster_group_release(group);
  Py_END_ALLOW_THREADS;
  FreeObject(self);
}

PyObject* GetGroupAddress(PyObject* self, void*) {
  return PyLong_FromVoidPtr(ToObject<GroupObject>(self)->group);
}

PyGetSetDef group_properties[] = {
    {"_address", GetGroupAddress, nullptr, "The handle, for ctypes.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot group_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(NewGroup)},
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocateGroup)},
    {Py_tp_getset, group_properties},
    {0, nullptr},
};

PyType_Spec group_spec = {"muster._core.Group", sizeof(GroupObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                          group_slots};

// -------------------------------------------------------------------- Work

// The arrays are the caller's again.
void LetGo(WorkObject* self) {
  Arrays* arrays = self->arrays;
  self->arrays = nullptr;
  DeleteArrays(arrays);
}

// A work that nobody refers to any more, and which still uses its arrays.
// Waiting for it here would delay Ctrl-C, and whatever drops an object.
struct DroppedWork {
  muster_work* work;
  Arrays* arrays;
  PyObject* group;
  DroppedWork* next;
};

// Guarded by the GIL.
DroppedWork* dropped_works = nullptr;

bool IsRunning(muster_work* work) {
  int32_t completed = 0;
  // An error: the process was forked, or the collective has failed.
  return muster_work_is_completed(work, &completed) == MUSTER_OK &&
         completed == 0;
}

void Release(muster_work* work, Arrays* arrays, PyObject* group) {
  Py_BEGIN_ALLOW_THREADS;
  muster_work_release(work);
  Py_END_ALLOW_THREADS;
  DeleteArrays(arrays);
  Py_XDECREF(group);
}

// Releases the dropped works that are complete.
void ReleaseDroppedWorks() {
  DroppedWork* works = dropped_works;
  // Releasing may run any code, also this function.
  dropped_works = nullptr;
  while (works != nullptr) {
    DroppedWork* next = works->next;
    if (IsRunning(works->work)) {
      works->next = dropped_works;
      dropped_works = works;
    } else {
      Release(works->work, works->arrays, works->group);
      PyMem_Free(works);
    }
    works = next;
  }
}

void DeallocateWork(PyObject* object) {
  auto* self = ToObject<WorkObject>(object);
  DroppedWork* dropped = nullptr;
  if (IsRunning(self->work)) {
    dropped = static_cast<DroppedWork*>(PyMem_Malloc(sizeof(DroppedWork)));
  }
  if (dropped != nullptr) {
    *dropped = {self->work, self->arrays, self->group, dropped_works};
    dropped_works = dropped;
  } else {
    Release(self->work, self->arrays, self->group);
  }
  FreeObject(object);
}

// Waits at most `timeout_ms`; -1: for ever. Returns 1, 0 if it is not complete,
// and -1 with an exception.
int Wait(WorkObject* self, int64_t timeout_ms) {
  muster_work* work = self->work;
  const bool in_slices = IsMainThread();
  for (int32_t completed = 0; timeout_ms != -1 || in_slices;) {
    const bool is_last = timeout_ms != -1 && timeout_ms <= kSliceMs;
    const int64_t slice = is_last || !in_slices ? timeout_ms : kSliceMs;
    if (!RunUnlocked(
            [&] { return muster_work_wait_for(work, slice, &completed); })) {
      return -1;
    }
    if (completed != 0) break;
    if (PyErr_CheckSignals() != 0) return -1;
    if (is_last || !in_slices) return 0;
    if (timeout_ms != -1) timeout_ms -= slice;
  }
  // With CUDA tensors this also makes the current stream wait.
  return RunUnlocked([&] { return muster_work_wait(work); }) ? 1 : -1;
}

PyObject* WaitForWork(PyObject* object, PyObject* timeout) {
  auto* self = ToObject<WorkObject>(object);
  const long long timeout_ms = PyLong_AsLongLong(timeout);
  if (timeout_ms == -1 && PyErr_Occurred() != nullptr) return nullptr;
  // It lives on if another thread drops it meanwhile.
  const int done = Wait(self, timeout_ms);
  // Also a failed collective does not touch them any more.
  if (done > 0 || (done < 0 && !IsRunning(self->work))) LetGo(self);
  if (done < 0) return nullptr;
  return PyBool_FromLong(done);
}

PyObject* WorkIsCompleted(PyObject* self, PyObject*) {
  int32_t completed = 0;
  if (!CheckStatus(muster_work_is_completed(ToObject<WorkObject>(self)->work,
                                            &completed))) {
    return nullptr;
  }
  return PyBool_FromLong(completed);
}

PyObject* WorkIsSuccess(PyObject* self, PyObject*) {
  int32_t success = 0;
  if (!CheckStatus(
          muster_work_is_success(ToObject<WorkObject>(self)->work, &success))) {
    return nullptr;
  }
  return PyBool_FromLong(success);
}

PyObject* WorkException(PyObject* self, PyObject*) {
  if (muster_work_status(ToObject<WorkObject>(self)->work) == MUSTER_OK) {
    Py_RETURN_NONE;
  }
  return MakeException(nullptr);
}

PyObject* WorkSourceRank(PyObject* self, PyObject*) {
  int32_t rank = -1;
  if (!CheckStatus(
          muster_work_source_rank(ToObject<WorkObject>(self)->work, &rank))) {
    return nullptr;
  }
  return PyLong_FromLong(rank);
}

// A muster_work_callback; `context` is a function of Python, owned.
void CallPython(void* context, muster_status status,
                const muster_error* error) {
  if (Py_IsInitialized() == 0) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  if (!callbacks_are_closed) {
    auto* function = static_cast<PyObject*>(context);
    PyObject* exception = nullptr;
    if (status != MUSTER_OK) {
      exception = MakeException(error);
    } else {
      Py_INCREF(Py_None);
      exception = Py_None;
    }
    PyObject* result = exception == nullptr ? nullptr
                                            : PyObject_CallFunctionObjArgs(
                                                  function, exception, nullptr);
    if (result == nullptr) PyErr_WriteUnraisable(function);
    Py_XDECREF(result);
    Py_XDECREF(exception);
    Py_DECREF(function);
  }
  PyGILState_Release(state);
}

PyObject* AddDoneCallback(PyObject* self, PyObject* function) {
  if (PyCallable_Check(function) == 0) {
    PyErr_SetString(PyExc_TypeError, "a callback must be callable");
    return nullptr;
  }
  muster_work* work = ToObject<WorkObject>(self)->work;
  Py_INCREF(function);
  // After the end of the group it calls back from here.
  if (!RunUnlocked([&] {
        return muster_work_add_done_callback(work, CallPython, function);
      })) {
    Py_DECREF(function);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef work_methods[] = {
    {"_wait", WaitForWork, METH_O, nullptr},
    {"is_completed", WorkIsCompleted, METH_NOARGS,
     "is_completed() -> bool\n\nWhether it is complete, also with an error. "
     "Does not block."},
    {"is_success", WorkIsSuccess, METH_NOARGS,
     "is_success() -> bool\n\nWhether it is complete without an error."},
    {"exception", WorkException, METH_NOARGS,
     "exception() -> Error or None\n\nWhat wait() would raise; None while the "
     "collective runs."},
    {"source_rank", WorkSourceRank, METH_NOARGS,
     "source_rank() -> int\n\nThe global rank that sent the message of a "
     "completed receive, else -1."},
    {"add_done_callback", AddDoneCallback, METH_O,
     "add_done_callback(function)\n\nCalls function(error) when it is "
     "complete, "
     "with None if it has succeeded, on a thread of the group."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot work_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocateWork)},
    {Py_tp_methods, work_methods},
    {0, nullptr},
};

PyType_Spec work_spec = {"muster._core.Work", sizeof(WorkObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, work_slots};

// ---------------------------------------------------------------- Prepared

void DeallocatePrepared(PyObject* object) {
  auto* self = ToObject<PreparedObject>(object);
  Py_BEGIN_ALLOW_THREADS;
  muster_prepared_release(self->prepared);
  Py_END_ALLOW_THREADS;
  DeleteArrays(self->arrays);
  Py_CLEAR(self->group);
  FreeObject(object);
}

PyObject* RunPrepared(PyObject* object, PyObject*) {
  auto* self = ToObject<PreparedObject>(object);
  if (!RunInterruptibly(self->group,
                        [&] { return muster_prepared_run(self->prepared); })) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* StartPrepared(PyObject* object, PyObject*) {
  auto* self = ToObject<PreparedObject>(object);
  muster_work* work = nullptr;
  if (!RunUnlocked(
          [&] { return muster_prepared_start(self->prepared, &work); })) {
    return nullptr;
  }
  // The work keeps this object, which has the arrays.
  return MakeWork(work, object, nullptr);
}

PyMethodDef prepared_methods[] = {
    {"run", RunPrepared, METH_NOARGS,
     "run()\n\nRuns the collective and returns when it is complete."},
    {"start", StartPrepared, METH_NOARGS,
     "start() -> Work\n\nStarts the collective and returns at once."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot prepared_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocatePrepared)},
    {Py_tp_methods, prepared_methods},
    {0, nullptr},
};

PyType_Spec prepared_spec = {"muster._core.Prepared", sizeof(PreparedObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                             prepared_slots};

bool AddType(PyObject* module, PyType_Spec* spec, const char* name) {
  PyObject* type = PyType_FromSpec(spec);
  if (type == nullptr) return false;
  if (PyModule_AddObject(module, name, type) == 0) return true;
  Py_DECREF(type);
  return false;
}

void SetType(PyTypeObject** type, PyObject* value) {
  Py_INCREF(value);
  *type = reinterpret_cast<PyTypeObject*>(value);
}

}  // namespace

Arrays* NewArrays() {
  void* memory = PyMem_Malloc(sizeof(Arrays));
  if (memory == nullptr) {
    PyErr_NoMemory();
    return nullptr;
  }
  return new (memory) Arrays();
}

void DeleteArrays(Arrays* arrays) {
  if (arrays == nullptr) return;
  PyObject* user_op = arrays->user_op;
  arrays->~Arrays();
  PyMem_Free(arrays);
  Py_XDECREF(user_op);
}

bool AddHandleTypes(PyObject* module) {
  return AddType(module, &group_spec, "Group") &&
         AddType(module, &work_spec, "Work") &&
         AddType(module, &prepared_spec, "Prepared");
}

void SetHandleTypes(PyObject* group, PyObject* work, PyObject* prepared) {
  SetType(&group_type, group);
  SetType(&work_type, work);
  SetType(&prepared_type, prepared);
}

bool ToGroup(PyObject* object, muster_group** group) {
  *group = nullptr;
  if (object == Py_None) return true;
  if (PyObject_TypeCheck(object, group_type) == 0) {
    PyErr_Format(PyExc_TypeError,
                 "argument group must be a muster.Group or None, not %R",
                 reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return false;
  }
  *group = ToObject<GroupObject>(object)->group;
  return true;
}

PyObject* MakeWork(muster_work* work, PyObject* group, Arrays* arrays) {
  if (dropped_works != nullptr) ReleaseDroppedWorks();
  auto* self = Allocate<WorkObject>(work_type);
  if (self == nullptr) {
    Py_BEGIN_ALLOW_THREADS;
    muster_work_release(work);
    Py_END_ALLOW_THREADS;
    DeleteArrays(arrays);
    return nullptr;
  }
  self->work = work;
  self->arrays = arrays;
  Py_INCREF(group);
  self->group = group;
  return reinterpret_cast<PyObject*>(self);
}

PyObject* MakePrepared(muster_prepared* prepared, PyObject* group,
                       Arrays* arrays) {
  auto* self = Allocate<PreparedObject>(prepared_type);
  if (self == nullptr) {
    muster_prepared_release(prepared);
    DeleteArrays(arrays);
    return nullptr;
  }
  self->prepared = prepared;
  self->arrays = arrays;
  Py_INCREF(group);
  self->group = group;
  return reinterpret_cast<PyObject*>(self);
}

void CloseCallbacks() { callbacks_are_closed = true; }

bool CallbacksAreClosed() { return callbacks_are_closed; }

}  // namespace muster::python
