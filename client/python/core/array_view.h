// Arrays of Python as tensors, without a copy.

#ifndef MUSTER_CLIENT_PYTHON_CORE_ARRAY_VIEW_H_
#define MUSTER_CLIENT_PYTHON_CORE_ARRAY_VIEW_H_

#include "client/python/core/limited_python.h"
#include "muster/muster.h"

namespace muster::python {

// The name of an argument in error texts: "array", or "tensor_list[2]".
struct ArgumentName {
  const char* name;
  Py_ssize_t index = -1;
};

enum class Access { kRead, kWrite };

// ArrayView keeps the memory of one array alive and in its place. It takes the
// buffer protocol where the array has it, else DLPack. It cannot be copied or
// moved, since a buffer may point into itself.
class ArrayView {
 public:
  ArrayView() = default;
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;
  ~ArrayView() { Close(); }

  // Fills `tensor`, whose shape lives as long as this object.
  // False, with an exception: TypeError (not an array, or elements of a type
  // that muster lacks), muster.ArgumentError (not contiguous, byte-swapped, or
  // read-only although the call writes to it).
  bool Open(PyObject* array, ArgumentName name, Access access,
            muster_tensor* tensor);

  // Needs the GIL.
  void Close();

 private:
  bool OpenBuffer(ArgumentName name, muster_tensor* tensor);
  bool OpenDLPack(PyObject* array, ArgumentName name, Access access,
                  muster_tensor* tensor);

  PythonBuffer buffer_ = {};
  muster_dlpack* imported_ = nullptr;
};

// ArrayViews has the tensors of an argument of a call: one array, or a list.
class ArrayViews {
 public:
  ArrayViews() = default;
  ArrayViews(const ArrayViews&) = delete;
  ArrayViews& operator=(const ArrayViews&) = delete;
  ~ArrayViews() { Close(); }

  // At most one of these, once. False, with an exception.
  bool OpenOne(PyObject* array, const char* name, Access access) {
    return one_.Open(array, {name}, access, &tensor_);
  }
  // `list`: a sequence of arrays; None is an empty one.
  bool OpenList(PyObject* list, const char* name, Access access);

  // Needs the GIL.
  void Close();

  const muster_tensor* one() const { return &tensor_; }
  const muster_tensor* list() const { return list_; }
  size_t list_size() const { return list_size_; }

 private:
  // Most arguments are one array, which needs no allocation.
  ArrayView one_;
  muster_tensor tensor_ = {};

  size_t list_size_ = 0;
  ArrayView* views_ = nullptr;
  muster_tensor* list_ = nullptr;
};

// The type ArrayView, for calls that go through ctypes: ArrayView(array, name,
// writable) opens the array, and has the address of the muster_tensor, which is
// valid as long as the object.
bool AddArrayViewType(PyObject* module);

}  // namespace muster::python

#endif  // MUSTER_CLIENT_PYTHON_CORE_ARRAY_VIEW_H_
