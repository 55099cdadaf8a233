#include "client/python/core/waiting.h"

#include <time.h>

#include "client/python/core/python_errors.h"

namespace muster::python {
namespace {

// All of these are guarded by the GIL.
unsigned long main_thread = 0;
unsigned long long last_number = 0;
unsigned long long running_number = 0;
// Null: the main thread is in no collective. Borrowed from the call.
PyObject* running_group = nullptr;

PyObject* watch = nullptr;
timespec last_watch = {};

}  // namespace

void SetWatch(PyObject* function) {
  Py_INCREF(function);
  Py_XDECREF(watch);
  watch = function;
}

// A call of `watch` takes as long as a small collective, so there is one for
// each tick of the coarse clock (4 ms).
bool RunningCall::HandleSignals() const {
  timespec now = {};
  if (is_main_ && watch != nullptr) {
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (now.tv_nsec != last_watch.tv_nsec || now.tv_sec != last_watch.tv_sec) {
      last_watch = now;
      const Reference done(PyObject_CallObject(watch, nullptr));
      // A signal's handler may run in it.
      if (!done) return false;
    }
  }
  return PyErr_CheckSignals() == 0;
}

void SetMainThread(unsigned long ident) { main_thread = ident; }

bool IsMainThread() { return PyThread_get_thread_ident() == main_thread; }

PyObject* GetRunningCall() {
  if (running_group == nullptr) Py_RETURN_NONE;
  return Py_BuildValue("(KO)", running_number, running_group);
}

bool CheckStatus(muster_status status) {
  if (status == MUSTER_OK) return true;
  if (PyErr_CheckSignals() == 0) RaiseLastError();
  return false;
}

RunningCall::RunningCall(PyObject* group)
    : is_main_(IsMainThread()),
      outer_number_(running_number),
      outer_group_(running_group) {
  if (!is_main_) return;
  running_number = ++last_number;
  running_group = group;
}

RunningCall::~RunningCall() {
  if (!is_main_) return;
  running_number = outer_number_;
  running_group = outer_group_;
}

}  // namespace muster::python
