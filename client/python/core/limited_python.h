// CPython's limited API of 3.9, and the few parts of CPython beyond it that the
// module uses.
//
// The buffer protocol entered the limited API with 3.11, METH_FASTCALL with
// 3.10. Both are in every CPython from 3.9 on with the layout below: Py_buffer
// has not changed since 3.3, and METH_FASTCALL's signature since 3.7. So one
// module serves all of them. CheckBufferLayout() makes sure of it at import.

#ifndef MUSTER_CLIENT_PYTHON_CORE_LIMITED_PYTHON_H_
#define MUSTER_CLIENT_PYTHON_CORE_LIMITED_PYTHON_H_

#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#if __has_include(<Python.h>)
#include <Python.h>
#else
#include <python3.11/Python.h>
#endif

#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif

extern "C" {

// Py_buffer, under another name in case the headers have it.
struct PythonBuffer {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
};

int PyObject_GetBuffer(PyObject* exporter, PythonBuffer* view, int flags);
void PyBuffer_Release(PythonBuffer* view);

}  // extern "C"

namespace muster::python {

inline constexpr int kBufferWritable = 0x0001;
inline constexpr int kBufferFormat = 0x0004;
inline constexpr int kBufferStrides = 0x0010 | 0x0008;

// False, with an exception, if this interpreter's Py_buffer is another one.
inline bool CheckBufferLayout() {
  char bytes[] = {'m', 'u', 's'};
  PyObject* object = PyByteArray_FromStringAndSize(bytes, sizeof bytes);
  if (object == nullptr) return false;
  PythonBuffer view = {};
  const int failed = PyObject_GetBuffer(
      object, &view, kBufferWritable | kBufferFormat | kBufferStrides);
  const bool as_known = failed == 0 && view.obj == object && view.len == 3 &&
                        view.itemsize == 1 && view.readonly == 0 &&
                        view.ndim == 1 && view.format != nullptr &&
                        view.format[0] == 'B' && view.shape != nullptr &&
                        view.shape[0] == 3 && view.strides != nullptr &&
                        view.strides[0] == 1 && view.suboffsets == nullptr;
  if (as_known) PyBuffer_Release(&view);
  Py_DECREF(object);
  if (!as_known && PyErr_Occurred() == nullptr) {
    PyErr_SetString(PyExc_ImportError,
                    "muster does not know this Python's buffer protocol");
  }
  return as_known;
}

// A reference that ends with its scope.
class Reference {
 public:
  explicit Reference(PyObject* object = nullptr) : object_(object) {}
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

}  // namespace muster::python

#endif  // MUSTER_CLIENT_PYTHON_CORE_LIMITED_PYTHON_H_
