/* all_reduce.cc in C. */

#include <muster/muster.h>
#include <muster/version.h>
#include <stdio.h>

int main(void) {
  muster_init_options options = {.size = sizeof options};
  float values[4];
  muster_tensor tensor = {.data = values, .dtype = MUSTER_FLOAT32, .count = 4};
  int32_t rank, i;
  if (muster_init_process_group(&options) != MUSTER_OK) goto failed;
  if (muster_get_rank(NULL, &rank) != MUSTER_OK) goto failed;
  for (i = 0; i < 4; ++i) values[i] = (float)rank;
  if (muster_all_reduce(&tensor, MUSTER_SUM, NULL, NULL) != MUSTER_OK) {
    goto failed;
  }
  printf("muster %s: rank %d has %g; %s\n", MUSTER_VERSION, (int)rank,
         (double)values[0],
         muster_status_name(muster_broadcast(&tensor, 99, NULL, NULL)));
  if (muster_destroy_process_group(NULL) != MUSTER_OK) goto failed;
  return 0;
failed:
  fprintf(stderr, "%s\n", muster_error_message(muster_last_error()));
  return 1;
}
