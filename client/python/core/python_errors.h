// Errors of muster as exceptions of Python.

#ifndef MUSTER_CLIENT_PYTHON_CORE_PYTHON_ERRORS_H_
#define MUSTER_CLIENT_PYTHON_CORE_PYTHON_ERRORS_H_

#include "client/python/core/limited_python.h"
#include "muster/muster.h"

namespace muster::python {

// `argument_error`: the class muster.ArgumentError. `make_error`: called with
// the address of a muster_error, 0 for the thread's last one; returns an
// exception.
void SetErrorFunctions(PyObject* argument_error, PyObject* make_error);

// Sets muster.ArgumentError; the format is that of PyUnicode_FromFormat.
void RaiseArgumentError(const char* format, ...);

// Sets the exception of the thread's last failed call.
void RaiseLastError();

// The exception of `error`, as a new reference; null with an exception.
PyObject* MakeException(const muster_error* error);

// Keeps the exception that is set, or none, while code of others runs, and sets
// it again. An exception of that code is printed.
class KeptException {
 public:
  KeptException() { PyErr_Fetch(&type_, &value_, &trace_); }
  KeptException(const KeptException&) = delete;
  KeptException& operator=(const KeptException&) = delete;
  ~KeptException() {
    if (PyErr_Occurred() != nullptr) PyErr_WriteUnraisable(nullptr);
    PyErr_Restore(type_, value_, trace_);
  }

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* trace_ = nullptr;
};

}  // namespace muster::python

#endif  // MUSTER_CLIENT_PYTHON_CORE_PYTHON_ERRORS_H_
