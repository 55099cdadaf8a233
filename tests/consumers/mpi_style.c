/* A program in the style of MPI, in C: an all_reduce with an op of its own that
 * is not commutative, a gatherv and an alltoallv. Each rank compares the
 * results with plain loops over the data of all ranks, which it makes by
 * itself. */

#include <muster/muster.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULUS 1000003u
#define ELEMENTS 100

/* A 2x2 matrix of numbers below MODULUS. */
typedef struct {
  uint32_t at[4];
} Matrix;

static void check(muster_status status) {
  if (status == MUSTER_OK) return;
  int32_t exit_status = 1;
  muster_record_error(muster_last_error(), &exit_status);
  exit(exit_status);
}

static void expect(int right, const char* what) {
  if (right) return;
  fprintf(stderr, "wrong: %s\n", what);
  exit(1);
}

static uint32_t value(int rank, int index) {
  uint32_t x = (uint32_t)(rank * 7919 + index + 1) * 2654435761u;
  return (x ^ x >> 15) % MODULUS;
}

static Matrix make_matrix(int rank, int index) {
  Matrix matrix;
  for (int i = 0; i < 4; ++i) matrix.at[i] = value(rank, index * 4 + i);
  return matrix;
}

static Matrix product(Matrix a, Matrix b) {
  Matrix result;
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 2; ++column) {
      const uint64_t sum = (uint64_t)a.at[row * 2] * b.at[column] +
                           (uint64_t)a.at[row * 2 + 1] * b.at[2 + column];
      result.at[row * 2 + column] = (uint32_t)(sum % MODULUS);
    }
  }
  return result;
}

static muster_status multiply(const void* in, void* inout, size_t count,
                              void* context) {
  (void)context;
  const Matrix* a = in;
  Matrix* b = inout;
  for (size_t i = 0; i < count; ++i) b[i] = product(a[i], b[i]);
  return MUSTER_OK;
}

static void all_reduce(int rank, int ranks) {
  Matrix matrices[ELEMENTS];
  for (int i = 0; i < ELEMENTS; ++i) matrices[i] = make_matrix(rank, i);
  const muster_op_options op_options = {.size = sizeof(op_options),
                                        .not_commutative = 1,
                                        .element_size = sizeof(Matrix),
                                        .name = "matrix product"};
  muster_op* op;
  check(muster_op_create(&multiply, NULL, &op_options, &op));
  const muster_tensor tensor = {.data = matrices,
                                .dtype = MUSTER_OPAQUE,
                                .count = ELEMENTS,
                                .element_size = sizeof(Matrix)};
  const muster_reduction_options options = {.size = sizeof(options),
                                            .user_op = op};
  check(muster_all_reduce(&tensor, MUSTER_USER_OP, NULL, &options));
  muster_op_release(op);
  for (int i = 0; i < ELEMENTS; ++i) {
    Matrix want = make_matrix(0, i);
    for (int r = 1; r < ranks; ++r) want = product(want, make_matrix(r, i));
    expect(memcmp(&want, &matrices[i], sizeof(want)) == 0, "all_reduce");
  }
}

static int count_of(int from, int to) { return from * 2 + to + 1; }

/* Rank r sends r * 2 + 1 numbers to rank 0. */
static void gatherv(int rank, int ranks) {
  const int count = count_of(rank, 0);
  uint32_t* mine = malloc(sizeof(uint32_t) * (size_t)count);
  for (int i = 0; i < count; ++i) mine[i] = value(rank, i);
  const muster_tensor sent = {
      .data = mine, .dtype = MUSTER_UINT32, .count = count};
  if (rank != 0) {
    check(muster_send(&sent, 0, NULL, NULL));
    free(mine);
    return;
  }
  for (int from = 1; from < ranks; ++from) {
    const int theirs = count_of(from, 0);
    uint32_t* got = malloc(sizeof(uint32_t) * (size_t)theirs);
    const muster_tensor received = {
        .data = got, .dtype = MUSTER_UINT32, .count = theirs};
    int32_t source = -1;
    check(muster_recv(&received, from, NULL, NULL, &source));
    expect(source == from, "the source of a receive");
    for (int i = 0; i < theirs; ++i)
      expect(got[i] == value(from, i), "gatherv");
    free(got);
  }
  free(mine);
}

/* Rank a sends rank b a * 2 + b + 1 numbers. */
static void alltoallv(int rank, int ranks) {
  int64_t* to = malloc(sizeof(int64_t) * (size_t)ranks);
  int64_t* from = malloc(sizeof(int64_t) * (size_t)ranks);
  int64_t sent = 0, received = 0;
  for (int r = 0; r < ranks; ++r) {
    sent += to[r] = count_of(rank, r);
    received += from[r] = count_of(r, rank);
  }
  uint32_t* in = malloc(sizeof(uint32_t) * (size_t)sent);
  uint32_t* out = malloc(sizeof(uint32_t) * (size_t)received);
  int64_t at = 0;
  for (int r = 0; r < ranks; ++r) {
    for (int i = 0; i < to[r]; ++i) in[at++] = value(rank * 100 + r, i);
  }
  const muster_tensor input = {
      .data = in, .dtype = MUSTER_UINT32, .count = sent};
  const muster_tensor output = {
      .data = out, .dtype = MUSTER_UINT32, .count = received};
  check(muster_all_to_all_single(&output, &input, from, to, (size_t)ranks, NULL,
                                 NULL));
  at = 0;
  for (int r = 0; r < ranks; ++r) {
    for (int i = 0; i < from[r]; ++i)
      expect(out[at++] == value(r * 100 + rank, i), "alltoallv");
  }
  free(in);
  free(out);
  free(to);
  free(from);
}

int main(void) {
  int32_t rank, ranks;
  check(muster_init_process_group(NULL));
  check(muster_get_rank(NULL, &rank));
  check(muster_get_world_size(NULL, &ranks));
  all_reduce(rank, ranks);
  gatherv(rank, ranks);
  alltoallv(rank, ranks);
  printf("rank %d: right\n", (int)rank);
  check(muster_destroy_process_group(NULL));
  return 0;
}
