#include "dataplane/mpi/mpi_reduction.h"

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/reduction.h"

namespace muster::dataplane::mpi_internal {
namespace {

bool HasMeaning(ReduceOp op, DataType type) {
  double memory[2] = {};
  return Reduction::Has(type) &&
         Validate({.kind = CollectiveKind::kAllReduce,
                   .tensors = {Tensor(memory, type, {1})},
                   .reduce_op = op},
                  0, 1)
             .ok();
}

// One MPI type per data type and operation, because MPI passes only the type to
// a user-defined operation.
struct Types {
  std::array<std::array<MPI_Datatype, kReduceOpCount>, kDataTypeCount> of;

  Types() {
    for (int type = 0; type < kDataTypeCount; ++type) {
      for (int op = 0; op < kReduceOpCount; ++op) {
        MPI_Datatype& made =
            of[static_cast<size_t>(type)][static_cast<size_t>(op)];
        made = MPI_DATATYPE_NULL;
        if (!HasMeaning(static_cast<ReduceOp>(op),
                        static_cast<DataType>(type))) {
          continue;
        }
        const Reduction& reduction = Reduction::Of(static_cast<DataType>(type),
                                                   static_cast<ReduceOp>(op));
        MPI_Type_contiguous(static_cast<int>(reduction.accumulator_bytes()),
                            MPI_BYTE, &made);
        MPI_Type_commit(&made);
      }
    }
  }
};

const Types& AllTypes() {
  static const Types* const types = new Types;
  return *types;
}

template <size_t op>
void Combine(void* in, void* in_out, int* count, MPI_Datatype* type) {
  const Types& types = AllTypes();
  for (size_t i = 0; i < types.of.size(); ++i) {
    if (types.of[i][op] != *type) continue;
    const Reduction& reduction =
        Reduction::Of(static_cast<DataType>(i), static_cast<ReduceOp>(op));
    return reduction.Combine(in_out, in, in_out, static_cast<size_t>(*count));
  }
}

template <size_t... ops>
std::array<MPI_Op, sizeof...(ops)> MakeOperations(
    std::index_sequence<ops...> /*all*/) {
  std::array<MPI_Op, sizeof...(ops)> made;
  (MPI_Op_create(&Combine<ops>, /*commute=*/1, &made[ops]), ...);
  return made;
}

}  // namespace

MPI_Datatype AccumulatorType(DataType type, ReduceOp op) {
  return AllTypes().of[static_cast<size_t>(type)][static_cast<size_t>(op)];
}

MPI_Op GetOperation(ReduceOp op) {
  static const auto operations =
      MakeOperations(std::make_index_sequence<kReduceOpCount>());
  return operations[static_cast<size_t>(op)];
}

Status ToStatus(int code, absl::string_view call) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return InternalError(
      absl::StrCat(call, ": ", std::string(text, static_cast<size_t>(length))));
}

}  // namespace muster::dataplane::mpi_internal
