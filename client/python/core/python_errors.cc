#include "client/python/core/python_errors.h"

#include <stdarg.h>

namespace muster::python {
namespace {

PyObject* argument_error = nullptr;
PyObject* make_error = nullptr;

}  // namespace

void SetErrorFunctions(PyObject* error_class, PyObject* function) {
  Py_INCREF(error_class);
  Py_XDECREF(argument_error);
  argument_error = error_class;
  Py_INCREF(function);
  Py_XDECREF(make_error);
  make_error = function;
}

void RaiseArgumentError(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const Reference text(PyUnicode_FromFormatV(format, arguments));
  va_end(arguments);
  if (text) PyErr_SetObject(argument_error, text.get());
}

PyObject* MakeException(const muster_error* error) {
  return PyObject_CallFunction(make_error, "K",
                               reinterpret_cast<unsigned long long>(error));
}

void RaiseLastError() {
  const Reference exception(MakeException(nullptr));
  if (!exception) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())),
                  exception.get());
}

}  // namespace muster::python
