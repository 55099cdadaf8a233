// Questions about data types that several files ask.

#ifndef MUSTER_DATAPLANE_DATA_TYPES_H_
#define MUSTER_DATAPLANE_DATA_TYPES_H_

#include "muster/dataplane/tensor.h"

namespace muster::dataplane {

// Integers and bool. The order of operands does not change their reduction.
inline bool IsIntegral(DataType type) {
  switch (type) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUint16:
    case DataType::kUint32:
    case DataType::kUint64:
    case DataType::kBool:
      return true;
    default:
      return false;
  }
}

inline bool IsComplex(DataType type) {
  return type == DataType::kComplex64 || type == DataType::kComplex128;
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_DATA_TYPES_H_
