// Reductions of the user's own, from a function of Python.

#ifndef MUSTER_CLIENT_PYTHON_CORE_USER_OP_H_
#define MUSTER_CLIENT_PYTHON_CORE_USER_OP_H_

#include "client/python/core/limited_python.h"
#include "muster/muster.h"

namespace muster::python {

bool AddUserOpType(PyObject* module);

// The op of a UserOp for the `count` arrays `reduced`, which must be of one
// type. It lives as long as the UserOp. Null, with an exception.
muster_op* FindUserOp(PyObject* user_op, const muster_tensor* reduced,
                      size_t count);

}  // namespace muster::python

#endif  // MUSTER_CLIENT_PYTHON_CORE_USER_OP_H_
