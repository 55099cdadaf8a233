#include "client/python/core/user_op.h"

#include <new>

#include "client/python/core/handles.h"
#include "client/python/core/python_errors.h"
#include "client/python/core/waiting.h"

namespace muster::python {
namespace {

// The function of Python for arrays of one type: the C interface tells the
// function a count of elements, but not their type.
// The UserOp lives as long as a collective uses it: its Work or Prepared keeps
// it. So the garbage collector may count the function's references as its own.
struct TypedFunction {
  PyObject* function;
  muster_dtype dtype;
  size_t element_size;
  muster_op* op;
  TypedFunction* next;
};

struct UserOpObject {
  PyObject ob_base;
  PyObject* function;
  int commutative;
  TypedFunction* first;
};

PyTypeObject* user_op_type = nullptr;

// The format of memoryview.cast; null: bytes.
const char* FindFormat(muster_dtype dtype) {
  switch (dtype) {
    case MUSTER_UINT8:
      return "B";
    case MUSTER_INT8:
      return "b";
    case MUSTER_INT16:
      return "h";
    case MUSTER_INT32:
      return "i";
    case MUSTER_INT64:
      return "q";
    case MUSTER_UINT16:
      return "H";
    case MUSTER_UINT32:
      return "I";
    case MUSTER_UINT64:
      return "Q";
    case MUSTER_FLOAT32:
      return "f";
    case MUSTER_FLOAT64:
      return "d";
    case MUSTER_BOOL:
      return "?";
    default:
      return nullptr;
  }
}

PyObject* MakeView(void* data, size_t bytes, bool writable,
                   const char* format) {
  constexpr int kRead = 0x100;
  constexpr int kWrite = 0x200;
  PyObject* view = PyMemoryView_FromMemory(static_cast<char*>(data),
                                           static_cast<Py_ssize_t>(bytes),
                                           writable ? kWrite : kRead);
  if (view == nullptr || format == nullptr) return view;
  PyObject* typed = PyObject_CallMethod(view, "cast", "s", format);
  Py_DECREF(view);
  return typed;
}

// The memory is gone after the call: a view that the function has kept, or an
// array on it, is an error.
bool EndView(PyObject* view) {
  const Reference done(PyObject_CallMethod(view, "release", nullptr));
  if (!done) PyErr_Clear();
  return static_cast<bool>(done);
}

bool Combine(const TypedFunction& function, const void* in, void* inout,
             size_t count) {
  const char* format = FindFormat(function.dtype);
  const size_t bytes = count * function.element_size;
  const Reference operand(
      MakeView(const_cast<void*>(in), bytes, /*writable=*/false, format));
  const Reference result(MakeView(inout, bytes, /*writable=*/true, format));
  if (!operand || !result) return false;
  const Reference nothing(PyObject_CallFunctionObjArgs(
      function.function, operand.get(), result.get(), nullptr));
  bool ended = false;
  {
    // Both views end, also after an exception of the function.
    const KeptException kept;
    ended = EndView(operand.get());
    ended = EndView(result.get()) && ended;
  }
  if (nothing && !ended) {
    PyErr_SetString(PyExc_BufferError,
                    "the function of the UserOp has kept its memory");
  }
  return nothing && ended;
}

// A muster_op_function.
muster_status CallFunction(const void* in, void* inout, size_t count,
                           void* context) {
  if (Py_IsInitialized() == 0) return MUSTER_CANCELLED;
  const PyGILState_STATE state = PyGILState_Ensure();
  const auto& function = *static_cast<TypedFunction*>(context);
  muster_status status = MUSTER_OK;
  if (CallbacksAreClosed() || !Combine(function, in, inout, count)) {
    status = MUSTER_UNKNOWN;
  }
  if (PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) {
      // For the thread that waits.
      PyErr_Clear();
      PyErr_SetInterrupt();
    } else {
      PyErr_WriteUnraisable(function.function);
    }
  }
  PyGILState_Release(state);
  return status;
}

// Called when no collective uses the op any more.
void ReleaseFunction(void* context) {
  if (Py_IsInitialized() == 0) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  auto* function = static_cast<TypedFunction*>(context);
  Py_DECREF(function->function);
  PyMem_Free(function);
  PyGILState_Release(state);
}

PyObject* NewUserOp(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* function = nullptr;
  int commutative = 0;
  if (PyArg_ParseTuple(args, "Op", &function, &commutative) == 0) {
    return nullptr;
  }
  if (PyCallable_Check(function) == 0) {
    PyErr_SetString(PyExc_TypeError, "argument function must be callable");
    return nullptr;
  }
  auto* self = reinterpret_cast<UserOpObject*>(PyType_GenericAlloc(type, 0));
  if (self == nullptr) return nullptr;
  Py_INCREF(function);
  self->function = function;
  self->commutative = commutative;
  return reinterpret_cast<PyObject*>(self);
}

int TraverseUserOp(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<UserOpObject*>(object);
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  Py_VISIT(self->function);
  for (TypedFunction* one = self->first; one != nullptr; one = one->next) {
    Py_VISIT(one->function);
  }
  return 0;
}

int ClearUserOp(PyObject* object) {
  auto* self = reinterpret_cast<UserOpObject*>(object);
  TypedFunction* function = self->first;
  self->first = nullptr;
  while (function != nullptr) {
    TypedFunction* next = function->next;
    muster_op* op = function->op;
    // May call ReleaseFunction, here or later.
    Py_BEGIN_ALLOW_THREADS;
    muster_op_release(op);
    Py_END_ALLOW_THREADS;
    function = next;
  }
  Py_CLEAR(self->function);
  return 0;
}

void DeallocateUserOp(PyObject* object) {
  PyObject_GC_UnTrack(object);
  ClearUserOp(object);
  PyTypeObject* type = Py_TYPE(object);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(NewUserOp)},
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocateUserOp)},
    {Py_tp_traverse, reinterpret_cast<void*>(TraverseUserOp)},
    {Py_tp_clear, reinterpret_cast<void*>(ClearUserOp)},
    {0, nullptr},
};

PyType_Spec spec = {
    "muster._core.UserOp", sizeof(UserOpObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

TypedFunction* MakeFunction(UserOpObject* self, muster_dtype dtype,
                            size_t element_size) {
  auto* function =
      static_cast<TypedFunction*>(PyMem_Malloc(sizeof(TypedFunction)));
  if (function == nullptr) {
    PyErr_NoMemory();
    return nullptr;
  }
  *function = {self->function, dtype, element_size, nullptr, nullptr};
  muster_op_options options = {};
  options.size = sizeof options;
  options.not_commutative = self->commutative != 0 ? 0 : 1;
  options.element_size = element_size;
  options.release_context = ReleaseFunction;
  const muster_status status =
      muster_op_create(CallFunction, function, &options, &function->op);
  if (status != MUSTER_OK) {
    PyMem_Free(function);
    RaiseLastError();
    return nullptr;
  }
  Py_INCREF(self->function);
  return function;
}

size_t GetElementSize(const muster_tensor& tensor) {
  return tensor.dtype == MUSTER_OPAQUE ? tensor.element_size
                                       : muster_dtype_size(tensor.dtype);
}

}  // namespace

bool AddUserOpType(PyObject* module) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) return false;
  user_op_type = reinterpret_cast<PyTypeObject*>(type);
  Py_INCREF(type);
  if (PyModule_AddObject(module, "UserOp", type) == 0) return true;
  Py_DECREF(type);
  return false;
}

muster_op* FindUserOp(PyObject* user_op, const muster_tensor* reduced,
                      size_t count) {
  if (PyObject_TypeCheck(user_op, user_op_type) == 0) {
    PyErr_Format(PyExc_TypeError,
                 "argument op must be a muster.ReduceOp or muster.UserOp, not "
                 "%R",
                 reinterpret_cast<PyObject*>(Py_TYPE(user_op)));
    return nullptr;
  }
  auto* self = reinterpret_cast<UserOpObject*>(user_op);
  const muster_dtype dtype = count == 0 ? MUSTER_UINT8 : reduced[0].dtype;
  const size_t size = count == 0 ? 1 : GetElementSize(reduced[0]);
  for (size_t i = 1; i < count; ++i) {
    if (reduced[i].dtype == dtype && GetElementSize(reduced[i]) == size) {
      continue;
    }
    RaiseArgumentError(
        "a UserOp reduces arrays of one type in a call, but arrays 0 and %zu "
        "have elements of different types",
        i);
    return nullptr;
  }
  for (TypedFunction* known = self->first; known != nullptr;
       known = known->next) {
    if (known->dtype == dtype && known->element_size == size) return known->op;
  }
  if (self->function == nullptr) {
    PyErr_SetString(PyExc_ReferenceError,
                    "the UserOp was freed by the garbage collector");
    return nullptr;
  }
  TypedFunction* made = MakeFunction(self, dtype, size);
  if (made == nullptr) return nullptr;
  made->next = self->first;
  self->first = made;
  return made->op;
}

}  // namespace muster::python
