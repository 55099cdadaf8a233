// The types Group, Work and Prepared: handles of the C interface as objects.

#ifndef MUSTER_CLIENT_PYTHON_CORE_HANDLES_H_
#define MUSTER_CLIENT_PYTHON_CORE_HANDLES_H_

#include "client/python/core/array_view.h"
#include "client/python/core/limited_python.h"
#include "muster/muster.h"

namespace muster::python {

// The arrays of one collective.
struct Arrays {
  ArrayViews outputs;
  ArrayViews inputs;
  // The UserOp that combines them, or null. Owned.
  PyObject* user_op = nullptr;
};

// Null, with an exception: no memory.
Arrays* NewArrays();
// Accepts null.
void DeleteArrays(Arrays* arrays);

bool AddHandleTypes(PyObject* module);

// The classes of Python that MakeWork and MakePrepared make, and the base of
// all groups.
void SetHandleTypes(PyObject* group, PyObject* work, PyObject* prepared);

// None is the default group. False, with an exception.
bool ToGroup(PyObject* object, muster_group** group);

// These take over the handle and the arrays, also if they fail. `group`: the
// object that the call was given, which the result keeps alive.
PyObject* MakeWork(muster_work* work, PyObject* group, Arrays* arrays);
PyObject* MakePrepared(muster_prepared* prepared, PyObject* group,
                       Arrays* arrays);

// At the end of the interpreter: callbacks call no Python any more.
void CloseCallbacks();
bool CallbacksAreClosed();

}  // namespace muster::python

#endif  // MUSTER_CLIENT_PYTHON_CORE_HANDLES_H_
