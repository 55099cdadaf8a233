#include "client/python/core/array_view.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <initializer_list>
#include <new>

#include "client/python/core/python_errors.h"

namespace muster::python {
namespace {

// The data type of elements whose format, as in Python's module struct, is the
// character `code`; -1: none.
int FindDataType(char code, Py_ssize_t itemsize) {
  switch (code) {
    case 'f':
      return MUSTER_FLOAT32;
    case 'd':
      return MUSTER_FLOAT64;
    case 'e':
      return MUSTER_FLOAT16;
    case '?':
      return MUSTER_BOOL;
    case 'c':
    case 'B':
      return MUSTER_UINT8;
    case 'b':
      return MUSTER_INT8;
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return itemsize == 2   ? MUSTER_INT16
             : itemsize == 4 ? MUSTER_INT32
                             : MUSTER_INT64;
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return itemsize == 2   ? MUSTER_UINT16
             : itemsize == 4 ? MUSTER_UINT32
                             : MUSTER_UINT64;
    default:
      return -1;
  }
}

// The data type of a structured element of numpy, "T{f:value:i:index:}": a pair
// for minloc and maxloc if it is one of a value and an index without a gap.
int FindDataTypeOfStruct(const char* format, Py_ssize_t itemsize) {
  struct Pair {
    char value;
    Py_ssize_t index_bytes;
    Py_ssize_t itemsize;
    int type;
  };
  static constexpr Pair kPairs[] = {
      {'f', 4, 8, MUSTER_FLOAT32_INT32},
      {'d', 8, 16, MUSTER_FLOAT64_INT64},
      {'i', 4, 8, MUSTER_INT32_INT32},
      {'l', 8, 16, MUSTER_INT64_INT64},
  };
  char value = 0;
  char index = 0;
  int end = 0;
  const int found =
      sscanf(format, "T{%c:%*[^:]:%c:%*[^:]:}%n", &value, &index, &end);
  if (found == 2 && end > 0 && format[end] == 0) {
    const Py_ssize_t index_bytes = index == 'i' ? 4 : index == 'l' ? 8 : 0;
    for (const Pair& pair : kPairs) {
      if (pair.value == value && pair.index_bytes == index_bytes &&
          pair.itemsize == itemsize) {
        return pair.type;
      }
    }
  }
  return MUSTER_OPAQUE;
}

// Whether elements have references to objects, or other addresses, which mean
// nothing on another rank. Names of fields stand between colons.
bool HasAddresses(const char* format) {
  bool is_name = false;
  for (; *format != 0; ++format) {
    if (*format == ':') is_name = !is_name;
    if (!is_name && strchr("OP&X", *format) != nullptr) return true;
  }
  return false;
}

// As FindDataType, for a whole format.
int FindDataTypeOfFormat(const char* format, Py_ssize_t itemsize) {
  if (format == nullptr) return MUSTER_UINT8;
  if (HasAddresses(format)) return -1;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == 'Z' && format[1] != 0 && format[2] == 0) {
    if (format[1] == 'f') return MUSTER_COMPLEX64;
    if (format[1] == 'd') return MUSTER_COMPLEX128;
    return -1;
  }
  if (format[0] == 'T') return FindDataTypeOfStruct(format, itemsize);
  // Bytes without a meaning (numpy.void): "8x".
  if (format[0] != 0 && format[strlen(format) - 1] == 'x') return MUSTER_OPAQUE;
  return format[0] != 0 && format[1] == 0 ? FindDataType(format[0], itemsize)
                                          : -1;
}

bool IsByteSwapped(const PythonBuffer& buffer) {
  return buffer.format != nullptr && buffer.itemsize > 1 &&
         (*buffer.format == '>' || *buffer.format == '!');
}

bool IsContiguous(const PythonBuffer& buffer) {
  if (buffer.strides == nullptr || buffer.len == 0) return true;
  Py_ssize_t expected = buffer.itemsize;
  for (int dim = buffer.ndim - 1; dim >= 0; --dim) {
    if (buffer.shape[dim] != 1 && buffer.strides[dim] != expected) return false;
    expected *= buffer.shape[dim];
  }
  return true;
}

PyObject* MakeTuple(const Py_ssize_t* values, int count) {
  PyObject* tuple = PyTuple_New(count);
  for (int i = 0; tuple != nullptr && i < count; ++i) {
    PyTuple_SetItem(tuple, i, PyLong_FromSsize_t(values[i]));
  }
  return tuple;
}

// "array", or "tensor_list[2]".
PyObject* MakeText(ArgumentName name) {
  return name.index < 0
             ? PyUnicode_FromString(name.name)
             : PyUnicode_FromFormat("%s[%zd]", name.name, name.index);
}

bool RefuseStrides(const PythonBuffer& buffer, ArgumentName name) {
  const Reference text(MakeText(name));
  const Reference shape(MakeTuple(buffer.shape, buffer.ndim));
  const Reference strides(MakeTuple(buffer.strides, buffer.ndim));
  if (!text || !shape || !strides) return false;
  RaiseArgumentError(
      "argument %U: the array is not contiguous in row-major order: its shape "
      "is %R and its strides are %R bytes; pass a contiguous copy, such as "
      "numpy.ascontiguousarray(array)",
      text.get(), shape.get(), strides.get());
  return false;
}

// The call on array.__dlpack__ with the version that can say "read-only" and "a
// copy", and without a copy where the call writes. Older libraries know neither
// argument.
PyObject* CallDLPack(PyObject* array, Access access) {
  const Reference function(PyObject_GetAttrString(array, "__dlpack__"));
  if (!function) return nullptr;
  const Reference nothing(PyTuple_New(0));
  const Reference version(Py_BuildValue("{s:(ii)}", "max_version", 1, 1));
  const Reference no_copy(
      Py_BuildValue("{s:(ii),s:O}", "max_version", 1, 1, "copy", Py_False));
  if (!nothing || !version || !no_copy) return nullptr;
  for (PyObject* named : {no_copy.get(), version.get()}) {
    if (access == Access::kRead && named == no_copy.get()) continue;
    PyObject* capsule = PyObject_Call(function.get(), nothing.get(), named);
    if (capsule != nullptr || PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
      return capsule;
    }
    PyErr_Clear();
  }
  return PyObject_CallObject(function.get(), nullptr);
}

// The first fields of a DLManagedTensorVersioned of version 1.
struct VersionedHead {
  uint32_t major;
  uint32_t minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
};
constexpr uint64_t kIsCopied = 2;

// Arrays of jax never change, but before DLPack 1.0 it cannot say so.
bool IsOfJax(PyObject* array) {
  const Reference module(PyObject_GetAttrString(
      reinterpret_cast<PyObject*>(Py_TYPE(array)), "__module__"));
  if (!module) {
    PyErr_Clear();
    return false;
  }
  const Reference bytes(PyUnicode_Check(module.get())
                            ? PyUnicode_AsUTF8String(module.get())
                            : nullptr);
  return bytes && strncmp(PyBytes_AsString(bytes.get()), "jax", 3) == 0;
}

bool RefuseCopy(PyObject* name) {
  RaiseArgumentError(
      "argument %U: its library exports a copy of the array, and this call "
      "would write to the copy",
      name);
  return false;
}

bool RefuseReadOnly(ArgumentName name) {
  const Reference text(MakeText(name));
  if (text) {
    RaiseArgumentError(
        "argument %U: the array is read-only, and this call writes to it",
        text.get());
  }
  return false;
}

struct ArrayViewObject {
  PyObject ob_base;
  // Made after the object itself.
  ArrayView view;
  muster_tensor tensor;
};

ArrayViewObject* ToViewObject(PyObject* self) {
  return reinterpret_cast<ArrayViewObject*>(self);
}

PyObject* NewArrayView(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* array = nullptr;
  const char* name = nullptr;
  int writable = 0;
  if (PyArg_ParseTuple(args, "Osp", &array, &name, &writable) == 0) {
    return nullptr;
  }
  Reference object(PyType_GenericAlloc(type, 0));
  if (!object) return nullptr;
  ArrayViewObject* self = ToViewObject(object.get());
  new (&self->view) ArrayView();
  const Access access = writable != 0 ? Access::kWrite : Access::kRead;
  if (!self->view.Open(array, {name}, access, &self->tensor)) return nullptr;
  return object.release();
}

void DeallocateArrayView(PyObject* object) {
  ToViewObject(object)->view.~ArrayView();
  PyTypeObject* type = Py_TYPE(object);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* GetTensorAddress(PyObject* self, void*) {
  return PyLong_FromVoidPtr(&ToViewObject(self)->tensor);
}

PyGetSetDef array_view_properties[] = {
    {"address", GetTensorAddress, nullptr, "Of the muster_tensor.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot array_view_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(NewArrayView)},
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocateArrayView)},
    {Py_tp_getset, array_view_properties},
    {0, nullptr},
};

PyType_Spec array_view_spec = {"muster._core.ArrayView",
                               sizeof(ArrayViewObject), 0, Py_TPFLAGS_DEFAULT,
                               array_view_slots};

}  // namespace

bool AddArrayViewType(PyObject* module) {
  PyObject* type = PyType_FromSpec(&array_view_spec);
  if (type == nullptr) return false;
  if (PyModule_AddObject(module, "ArrayView", type) == 0) return true;
  Py_DECREF(type);
  return false;
}

bool ArrayView::Open(PyObject* array, ArgumentName name, Access access,
                     muster_tensor* tensor) {
  int flags = kBufferFormat | kBufferStrides;
  if (access == Access::kWrite) flags |= kBufferWritable;
  if (PyObject_GetBuffer(array, &buffer_, flags) == 0) {
    return OpenBuffer(name, tensor);
  }
  buffer_ = {};
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
    // The array has the protocol, but refuses. If it would give a view to read,
    // it is read-only.
    PythonBuffer readable = {};
    PyObject* type = nullptr;
    PyObject* value = nullptr;
    PyObject* trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    if (access == Access::kWrite &&
        PyObject_GetBuffer(array, &readable, kBufferFormat | kBufferStrides) ==
            0) {
      PyBuffer_Release(&readable);
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(trace);
      return RefuseReadOnly(name);
    }
    PyErr_Clear();
    // It clears the exception.
    const bool has_dlpack = PyObject_HasAttrString(array, "__dlpack__") != 0;
    PyErr_Restore(type, value, trace);
    if (!has_dlpack) return false;
  }
  PyErr_Clear();
  return OpenDLPack(array, name, access, tensor);
}

bool ArrayView::OpenBuffer(ArgumentName name, muster_tensor* tensor) {
  if (!IsContiguous(buffer_)) return RefuseStrides(buffer_, name);
  const Reference text(IsByteSwapped(buffer_) ? MakeText(name) : nullptr);
  if (text) {
    RaiseArgumentError(
        "argument %U: the elements have the other byte order (format \"%s\"); "
        "pass a copy in this machine's, such as "
        "array.astype(array.dtype.newbyteorder(\"=\"))",
        text.get(), buffer_.format);
    return false;
  }
  const int type = FindDataTypeOfFormat(buffer_.format, buffer_.itemsize);
  if (type < 0) {
    const Reference argument(MakeText(name));
    if (argument) {
      PyErr_Format(PyExc_TypeError,
                   "argument %U: muster has no data type for elements of the "
                   "format \"%s\" (%zd bytes); %s",
                   argument.get(), buffer_.format, buffer_.itemsize,
                   HasAddresses(buffer_.format)
                       ? "they refer to memory of this process"
                       : "view them as bytes to move them");
    }
    return false;
  }
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
  tensor->data = buffer_.buf;
  tensor->dtype = type;
  if (type == MUSTER_OPAQUE) {
    tensor->element_size = static_cast<uint64_t>(buffer_.itemsize);
  }
  tensor->ndim = buffer_.ndim;
  // Without dimensions there may be no shape, which is one element, too.
  tensor->shape = reinterpret_cast<const int64_t*>(buffer_.shape);
  tensor->count = 1;
  return true;
}

bool ArrayView::OpenDLPack(PyObject* array, ArgumentName name, Access access,
                           muster_tensor* tensor) {
  const Reference text(MakeText(name));
  if (!text) return false;
  if (PyObject_HasAttrString(array, "__dlpack__") == 0) {
    PyErr_Format(PyExc_TypeError,
                 "argument %U: muster takes arrays with the buffer protocol or "
                 "with DLPack, not %R",
                 text.get(), reinterpret_cast<PyObject*>(Py_TYPE(array)));
    return false;
  }
  if (access == Access::kWrite && IsOfJax(array)) return RefuseReadOnly(name);
  const Reference capsule(CallDLPack(array, access));
  if (!capsule) return false;
  muster_status status = MUSTER_OK;
  const char* used = "used_dltensor";
  if (PyCapsule_IsValid(capsule.get(), "dltensor") != 0) {
    auto* managed = static_cast<DLManagedTensor*>(
        PyCapsule_GetPointer(capsule.get(), "dltensor"));
    status = muster_from_dlpack(managed, &imported_);
  } else {
    auto* managed = static_cast<DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.get(), "dltensor_versioned"));
    if (managed == nullptr) return false;
    const auto* head = reinterpret_cast<const VersionedHead*>(managed);
    if (access == Access::kWrite && head->major == 1 &&
        (head->flags & kIsCopied) != 0) {
      // The capsule calls the deleter.
      return RefuseCopy(text.get());
    }
    used = "used_dltensor_versioned";
    status = muster_from_dlpack_versioned(
        managed, access == Access::kRead ? 1 : 0, &imported_);
  }
  if (status != MUSTER_OK) {
    RaiseArgumentError("argument %U: %s", text.get(),
                       muster_error_message(muster_last_error()));
    return false;
  }
  // Now `imported_` calls the deleter, and the capsule no longer does.
  if (PyCapsule_SetName(capsule.get(), used) != 0) return false;
  return muster_dlpack_tensor(imported_, tensor) == MUSTER_OK;
}

void ArrayView::Close() {
  if (buffer_.obj == nullptr && imported_ == nullptr) return;
  // The exporter may run any code, also after an error.
  const KeptException kept;
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
  muster_dlpack_release(imported_);
  imported_ = nullptr;
}

bool ArrayViews::OpenList(PyObject* list, const char* name, Access access) {
  if (list == Py_None) return true;
  const Py_ssize_t size = PySequence_Size(list);
  if (size < 0) {
    PyErr_Format(PyExc_TypeError, "argument %s must be a list of arrays", name);
    return false;
  }
  if (size == 0) return true;
  const auto count = static_cast<size_t>(size);
  list_ = static_cast<muster_tensor*>(PyMem_Calloc(count, sizeof *list_));
  views_ = static_cast<ArrayView*>(PyMem_Malloc(count * sizeof *views_));
  if (list_ == nullptr || views_ == nullptr) {
    PyErr_NoMemory();
    return false;
  }
  for (Py_ssize_t i = 0; i < size; ++i) {
    const Reference array(PySequence_GetItem(list, i));
    if (!array) return false;
    new (&views_[i]) ArrayView();
    ++list_size_;
    if (!views_[i].Open(array.get(), {name, i}, access, &list_[i])) {
      return false;
    }
  }
  return true;
}

void ArrayViews::Close() {
  one_.Close();
  for (size_t i = 0; i < list_size_; ++i) views_[i].~ArrayView();
  PyMem_Free(views_);
  PyMem_Free(list_);
  views_ = nullptr;
  list_ = nullptr;
  list_size_ = 0;
}

}  // namespace muster::python
