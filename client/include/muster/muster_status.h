/* The part of muster/muster.h that all others need: version, status and errors,
 * byte strings. */

#ifndef MUSTER_MUSTER_STATUS_H_
#define MUSTER_MUSTER_STATUS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* ----------------------------------------------------------------- Version */

/* The version of the library, for instance "0.1.0". */
const char* muster_version(void);

/* The version of this interface. It changes only when a program must be
 * compiled again: functions and fields are added without that. A program checks
 * that it is MUSTER_ABI_VERSION. */
uint32_t muster_abi_version(void);

#define MUSTER_ABI_VERSION 0

/* ------------------------------------------------------- Status and errors */

/* The codes are gRPC's. */
typedef int32_t muster_status;
enum {
  MUSTER_OK = 0,
  MUSTER_CANCELLED = 1,
  MUSTER_UNKNOWN = 2,
  MUSTER_INVALID_ARGUMENT = 3,
  MUSTER_DEADLINE_EXCEEDED = 4,
  MUSTER_NOT_FOUND = 5,
  MUSTER_ALREADY_EXISTS = 6,
  MUSTER_PERMISSION_DENIED = 7,
  MUSTER_RESOURCE_EXHAUSTED = 8,
  MUSTER_FAILED_PRECONDITION = 9,
  MUSTER_ABORTED = 10,
  MUSTER_OUT_OF_RANGE = 11,
  MUSTER_UNIMPLEMENTED = 12,
  MUSTER_INTERNAL = 13,
  MUSTER_UNAVAILABLE = 14,
  MUSTER_DATA_LOSS = 15,
  MUSTER_UNAUTHENTICATED = 16
};

/* "INVALID_ARGUMENT"; "" for a number that is no code. */
const char* muster_status_name(muster_status status);

/* What failed. */
typedef int32_t muster_error_kind;
enum {
  /* There is no error. */
  MUSTER_ERROR_NONE = 0,
  /* A rendezvous, a barrier, or a call that is not possible now. */
  MUSTER_ERROR_CONTROL = 1,
  /* An argument, or a combination of arguments that nothing supports. */
  MUSTER_ERROR_ARGUMENT = 2,
  /* There was no answer: a connection broke or could not be made, or a peer or
   * the coordinator is gone. */
  MUSTER_ERROR_NETWORK = 3,
  /* A collective or its backend failed, or its timeout passed. */
  MUSTER_ERROR_BACKEND = 4,
  /* The store answered with an error, or a key was not set in time. */
  MUSTER_ERROR_STORE = 5,
  /* This process has no memory, or the library has a bug. */
  MUSTER_ERROR_INTERNAL = 6
};

typedef struct muster_error muster_error;

/* The error of the calling thread's last failed call; one of kind
 * MUSTER_ERROR_NONE if none has failed. Never NULL. A successful call does not
 * change it. Valid until the thread's next failing call, or its end. Do not
 * release it. */
const muster_error* muster_last_error(void);

muster_status muster_error_status(const muster_error* error);
muster_error_kind muster_error_get_kind(const muster_error* error);

/* The text for people, in one line. Never NULL. It and all that the following
 * functions return is valid as long as the error. */
const char* muster_error_message(const muster_error* error);

/* The global ranks of all members that caused the failure, ascending. `count`
 * becomes their number: 0 if no other member caused it, or if none is known. */
const int32_t* muster_error_culprit_ranks(const muster_error* error,
                                          size_t* count);

/* One member of a job in an error or an event. Unknown strings are empty. */
typedef struct muster_member_info {
  size_t size;
  /* The global rank; -1: unknown. */
  int32_t rank;
  int32_t reserved;
  int64_t pid;
  const char* member;
  const char* host;
  /* The reason why it is here: "no heartbeat for 11.0s (lease 10s)". */
  const char* cause;
  /* Its last known activity: "all_reduce #418 on group \"world\"". */
  const char* last_progress;
  /* host:port of its debug and metrics server. */
  const char* debug_address;
} muster_member_info;

/* The members that caused the failure, in rank order. If there are very many,
 * the list has only some of them, and muster_error_culprit_ranks has all. */
size_t muster_error_culprit_count(const muster_error* error);
muster_status muster_error_culprit(const muster_error* error, size_t index,
                                   muster_member_info* member);

/* Copies an error, so that it can be kept or given to another thread. */
muster_status muster_error_copy(const muster_error* error, muster_error** copy);
void muster_error_release(muster_error* error);

/* For the end of main() in a program that muster-run or torchrun starts:
 * describes the error in the file that TORCHELASTIC_ERROR_FILE names, and
 * writes its text to standard error. `exit_status` becomes the status with
 * which the process should exit: 75 if the error blames other ranks, else 1. */
muster_status muster_record_error(const muster_error* error,
                                  int32_t* exit_status);

/* ------------------------------------------------------------ Byte strings */

/* A byte string of the caller. `data` may be NULL if `size` is 0. */
typedef struct muster_bytes {
  const void* data;
  size_t size;
} muster_bytes;

/* A list of byte strings that the library returns. A result of one string is a
 * list of one. */
typedef struct muster_strings muster_strings;

size_t muster_strings_count(const muster_strings* strings);
/* The bytes of string `index`, with a zero byte after them; NULL if there is no
 * such string. Valid until the list is released. */
const char* muster_strings_data(const muster_strings* strings, size_t index);
size_t muster_strings_size(const muster_strings* strings, size_t index);
void muster_strings_release(muster_strings* strings);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* MUSTER_MUSTER_STATUS_H_ */
