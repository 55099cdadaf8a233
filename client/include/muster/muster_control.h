/* The part of muster/muster.h without groups and tensors: stores and sessions,
 * the control plane. A program may include it alone. */

#ifndef MUSTER_MUSTER_CONTROL_H_
#define MUSTER_MUSTER_CONTROL_H_

#include <stddef.h>
#include <stdint.h>

#include "muster/muster_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef struct muster_store muster_store;
typedef struct muster_watch muster_watch;
typedef struct muster_session muster_session;

/* ------------------------------------------------------------------ Stores */

/* A map from byte strings to byte strings that processes share. Keys are byte
 * strings here, too: pointer and size. Ephemeral keys, times to live and
 * watches exist where a coordinator keeps the keys. A store without a function
 * returns MUSTER_UNIMPLEMENTED. */

void muster_store_release(muster_store* store);

/* Keeps its keys in this process; clones share them. */
muster_status muster_hash_store_new(muster_store** store);
/* Keeps its keys in a file, which the last of `world_size` stores removes; 0:
 * nobody does. */
muster_status muster_file_store_new(const char* path, int32_t world_size,
                                    muster_store** store);
/* Each key becomes prefix + "/" + key in the other store. */
muster_status muster_prefix_store_new(const char* prefix, muster_store* other,
                                      muster_store** store);
/* The store under a prefix store. */
muster_status muster_prefix_store_underlying(muster_store* store,
                                             muster_store** other);
/* The store of the session's job. It keeps the session alive. */
muster_status muster_coordinator_store_new(muster_session* session,
                                           muster_store** store);

typedef struct muster_tcp_store_options {
  size_t size;
  /* The host that serves the store, as all of its processes name it. */
  const char* host;
  /* 0: any free port, for the server only; see muster_tcp_store_port. */
  int32_t port;
  /* How many stores there will be; 0: any number. */
  int32_t world_size;
  /* 1: this process serves the store. */
  int32_t is_master;
  /* 1: the server does not wait for all other stores. */
  int32_t no_wait_for_workers;
  /* 1: the server shares port and keys with others of this process. */
  int32_t multi_tenant;
  /* A bound TCP socket for the server, if has_listen_fd is 1. The library takes
   * it over, also if the call fails; not if it is given no valid struct. */
  int32_t has_listen_fd;
  int32_t listen_fd;
  int32_t reserved;
  /* 0: 300 s. */
  int64_t timeout_ms;
} muster_tcp_store_options;

/* One process, the one with is_master, serves the store. */
muster_status muster_tcp_store_new(const muster_tcp_store_options* options,
                                   muster_store** store);
muster_status muster_tcp_store_port(muster_store* store, int32_t* port);

/* Another handle of the same keys, with a timeout of its own. */
muster_status muster_store_clone(muster_store* store, muster_store** clone);
/* How long a call may take, including waiting for keys; 300 s at first. */
muster_status muster_store_set_timeout(muster_store* store, int64_t timeout_ms);
muster_status muster_store_timeout(muster_store* store, int64_t* timeout_ms);

/* The properties of a key besides its value. */
typedef struct muster_set_options {
  size_t size;
  /* The store deletes the key after this time; 0: never. */
  int64_t ttl_ms;
  /* 1: the store deletes the key when this process's session ends. */
  int32_t ephemeral;
  int32_t reserved;
} muster_set_options;

muster_status muster_store_set(muster_store* store, const void* key,
                               size_t key_size, const void* value,
                               size_t value_size,
                               const muster_set_options* options);
/* Waits until the key is set. */
muster_status muster_store_get(muster_store* store, const void* key,
                               size_t key_size, muster_strings** value);
/* Does not wait. If the key is missing, `value` becomes NULL. `revision` may be
 * NULL. */
muster_status muster_store_try_get(muster_store* store, const void* key,
                                   size_t key_size, muster_strings** value,
                                   int64_t* revision);
/* Adds to a decimal integer; `sum` becomes the sum, and may be NULL. */
muster_status muster_store_add(muster_store* store, const void* key,
                               size_t key_size, int64_t delta, int64_t* sum);
muster_status muster_store_append(muster_store* store, const void* key,
                                  size_t key_size, const void* value,
                                  size_t value_size);
/* Whether all keys exist. Does not wait. */
muster_status muster_store_check(muster_store* store, const muster_bytes* keys,
                                 size_t count, int32_t* exist);
/* Waits until all keys exist; `timeout_ms` 0: the store's timeout. */
muster_status muster_store_wait(muster_store* store, const muster_bytes* keys,
                                size_t count, int64_t timeout_ms);
/* Sets the key to `desired` if it holds `expected`; a missing key matches the
 * empty one. `value` becomes what the key holds then, or `expected` if it is
 * missing. */
muster_status muster_store_compare_set(muster_store* store, const void* key,
                                       size_t key_size, const void* expected,
                                       size_t expected_size,
                                       const void* desired, size_t desired_size,
                                       muster_strings** value);
/* Sets the key to `desired` if its revision is `expected_revision`; 0: if it is
 * missing. `revision`, which may be NULL, becomes the key's revision; 0: it is
 * missing. `present`, which may be NULL, becomes the value that the key holds
 * if nothing was written, else NULL. */
muster_status muster_store_compare_and_set(
    muster_store* store, const void* key, size_t key_size,
    int64_t expected_revision, const void* desired, size_t desired_size,
    const muster_set_options* options, int32_t* written, int64_t* revision,
    muster_strings** present);
/* `existed` may be NULL. */
muster_status muster_store_delete_key(muster_store* store, const void* key,
                                      size_t key_size, int32_t* existed);
/* Deletes all keys and queues that begin with `prefix`. `deleted` may be NULL.
 */
muster_status muster_store_delete_prefix(muster_store* store,
                                         const void* prefix, size_t prefix_size,
                                         int64_t* deleted);
muster_status muster_store_num_keys(muster_store* store, int64_t* count);
/* The keys that begin with `prefix`, in byte order. */
muster_status muster_store_list_keys(muster_store* store, const void* prefix,
                                     size_t prefix_size, muster_strings** keys);
/* Whether the store has append, multi_get and multi_set. */
muster_status muster_store_has_extended_api(muster_store* store, int32_t* has);
muster_status muster_store_multi_get(muster_store* store,
                                     const muster_bytes* keys, size_t count,
                                     muster_strings** values);
muster_status muster_store_multi_set(muster_store* store,
                                     const muster_bytes* keys,
                                     const muster_bytes* values, size_t count);
muster_status muster_store_queue_push(muster_store* store, const void* key,
                                      size_t key_size, const void* value,
                                      size_t value_size);
/* Takes the oldest item. `block` 1: waits for one. Otherwise an empty queue is
 * MUSTER_NOT_FOUND. */
muster_status muster_store_queue_pop(muster_store* store, const void* key,
                                     size_t key_size, int32_t block,
                                     muster_strings** item);
muster_status muster_store_queue_len(muster_store* store, const void* key,
                                     size_t key_size, int64_t* length);

typedef struct muster_watch_options {
  size_t size;
  /* 1: watches all keys that begin with the given key. */
  int32_t prefix;
  /* If 1, watches changes after that revision, else changes after the call. */
  int32_t has_after_revision;
  int64_t after_revision;
} muster_watch_options;

/* The kinds of a muster_key_change. */
enum {
  MUSTER_KEY_PUT = 0,
  MUSTER_KEY_DELETED = 1,
  /* The key's time to live was over. */
  MUSTER_KEY_EXPIRED = 2,
  /* The key was ephemeral, and the process that set it is gone. */
  MUSTER_KEY_ORPHANED = 3
};

typedef struct muster_key_change {
  size_t size;
  int32_t kind;
  int32_t reserved;
  int64_t revision;
  /* Valid until the next muster_watch_next or the release of the watch. */
  muster_bytes key;
  /* The new value, for MUSTER_KEY_PUT. */
  muster_bytes value;
} muster_key_change;

/* Returns the changes of a key, each once and in order. */
muster_status muster_store_watch(muster_store* store, const void* key,
                                 size_t key_size,
                                 const muster_watch_options* options,
                                 muster_watch** watch);
void muster_watch_release(muster_watch* watch);
/* Waits for the next change. `found` becomes 0 if there was none within
 * `timeout_ms`, or after muster_watch_cancel. One thread at a time.
 * MUSTER_OUT_OF_RANGE: changes were lost; read the keys again and make a new
 * watch. */
muster_status muster_watch_next(muster_watch* watch, int64_t timeout_ms,
                                muster_key_change* change, int32_t* found);
/* Makes a waiting muster_watch_next and all later ones find nothing. From any
 * thread. */
muster_status muster_watch_cancel(muster_watch* watch);
/* All changes up to this revision were returned. */
muster_status muster_watch_revision(muster_watch* watch, int64_t* revision);

/* ---------------------------------------------------------------- Sessions */

/* The ranks from `first` to first + count - 1. */
typedef struct muster_rank_range {
  int32_t first;
  int32_t count;
} muster_rank_range;

/* The kinds of a muster_member_event. */
enum {
  /* The member left the job. */
  MUSTER_MEMBER_LEFT = 0,
  /* Its heartbeats stopped, or its connection closed. */
  MUSTER_MEMBER_LOST = 1,
  /* It reported its own failure. */
  MUSTER_MEMBER_FAILED = 2,
  /* A process with its name and a new incarnation replaced it. */
  MUSTER_MEMBER_REPLACED = 3,
  /* It waits for a seat in the next generation: see `waiting`. */
  MUSTER_MEMBER_WAITING = 4,
  /* A group of this member failed: see `group`. */
  MUSTER_MEMBER_GROUP_FAILED = 5
};

/* The library fills it, and sets `size` to what it has filled. Valid during the
 * callback. */
typedef struct muster_member_event {
  size_t size;
  int32_t kind;
  /* 1 for the one event that ended the generation. */
  int32_t generation_ended;
  /* The generation in which the member held its rank; 0: none. */
  int64_t generation;
  const muster_member_info* member;
  /* The code of the reported error, and its culprits. */
  muster_status code;
  /* Further culprits of which nothing is known. */
  int32_t unknown_culprits;
  const muster_member_info* const* culprits;
  size_t culprit_count;
  const muster_rank_range* other_culprits;
  size_t other_culprit_count;
  /* MUSTER_MEMBER_LEFT: the ranks of all members that left together, and some
   * of those members. */
  const muster_rank_range* left_ranks;
  size_t left_rank_count;
  const muster_member_info* const* left_members;
  size_t left_member_count;
  /* MUSTER_MEMBER_WAITING: how many members wait. */
  int32_t waiting;
  int32_t reserved;
  /* MUSTER_MEMBER_GROUP_FAILED: the group, and which one of this name. */
  const char* group;
  const char* group_instance;
} muster_member_event;

/* What a group of this member does. */
typedef struct muster_group_progress {
  size_t size;
  const char* group;
  /* Numbers of the group's collectives, from 1; 0: none yet. */
  int64_t last_enqueued;
  int64_t last_completed;
  /* The running collective, for people; NULL: none. */
  const char* current;
  int64_t running_for_ms;
  /* 1 if `current` is a send or receive, which the next three describe. */
  int32_t is_peer_call;
  int32_t sends;
  int64_t peer_call_number;
  /* The peer's rank in the group; -1: the rank that sends first. */
  int32_t peer;
  int32_t has_arguments_hash;
  uint64_t arguments_hash;
} muster_group_progress;

/* Takes the progress of groups during one callback. */
typedef struct muster_progress_report muster_progress_report;
muster_status muster_progress_report_add(muster_progress_report* report,
                                         const muster_group_progress* progress);

typedef struct muster_session_options {
  size_t size;
  /* host:port of the coordinator; or several with commas between, of which the
   * session finds the one that has the job. */
  const char* address;
  /* NULL: "default". */
  const char* job;
  /* The member's name in the job; NULL: one that is made. */
  const char* member;
  /* PEM files, a name and a token for TLS; NULL: MUSTER_TLS_CA,
   * MUSTER_TLS_CERT, MUSTER_TLS_KEY, MUSTER_TLS_SERVER_NAME, MUSTER_TOKEN,
   * MUSTER_TOKEN_FILE. */
  const char* tls_ca;
  const char* tls_cert;
  const char* tls_key;
  const char* tls_server_name;
  const char* token;
  const char* token_file;
  /* 1: sends no token, not even one of the environment. */
  int32_t no_token;
  /* 1: allows a token in plain text to an address beyond loopback. */
  int32_t insecure;
  /* The process id that other members see; 0: this process. */
  int64_t pid;
  /* How long connecting may take, and the default for calls without a timeout
   * of their own; 0: 60 s. */
  int64_t connect_timeout_ms;
  /* How often the log repeats that no coordinator answers; 0: 30 s. */
  int64_t unreached_log_interval_ms;
  /* host:port of this process's debug server. */
  const char* debug_address;
  /* A note that error texts add to the address. */
  const char* coordinator_note;
  /* After this long without a connection the session is over; 0: never. */
  int64_t give_up_after_ms;
  /* After this long without an answer the connection is broken; 0: 30 s. */
  int64_t silence_max_ms;
  /* The argument of the callbacks. They may run until muster_session_close has
   * returned, or the last handle, store and watch of the session are released;
   * see release_context. */
  void* context;
  /* Called for each event, in order, on a thread of the session. Must not
   * block, and must not call or release the session. */
  void (*on_event)(void* context, const muster_member_event* event);
  /* Called once, on that thread, if the session is over for another reason than
   * muster_session_leave and muster_session_close. `error` is valid during the
   * call. */
  void (*on_over)(void* context, const muster_error* error);
  /* Adds the progress of this member's groups to the report. Called before
   * every heartbeat, on another thread of the session. */
  void (*progress)(void* context, muster_progress_report* report);
  /* Called with `context` when no callback can run any more, on any thread. If
   * there is no session because muster_session_connect failed, it is not
   * called. */
  void (*release_context)(void* context);
} muster_session_options;

/* Connects to the coordinator and registers a member of the job. The session
 * reconnects by itself. Sessions are the control plane alone: no groups. */
muster_status muster_session_connect(const muster_session_options* options,
                                     muster_session** session);
/* Leaves and closes, if the last handle or store of the session is released.
 * Not from a callback. */
void muster_session_release(muster_session* session);

typedef struct muster_join_options {
  size_t size;
  /* The static form: the world size, and a rank if has_rank is 1. */
  int32_t world_size;
  int32_t has_rank;
  int32_t rank;
  /* The elastic form. */
  int32_t min_world_size;
  int32_t max_world_size;
  int32_t has_last_call;
  int64_t last_call_ms;
  /* 0: 30 minutes. */
  int64_t timeout_ms;
  /* 1: leaves out the seats. */
  int32_t without_seats;
  int32_t reserved;
} muster_join_options;

/* The result of a rendezvous. */
typedef struct muster_formation muster_formation;

/* Rendezvous: waits until a generation forms in which this member has a seat.
 */
muster_status muster_session_join(muster_session* session,
                                  const muster_join_options* options,
                                  muster_formation** formation);
void muster_formation_release(muster_formation* formation);
int64_t muster_formation_generation(const muster_formation* formation);
/* -1 for NULL. */
int32_t muster_formation_rank(const muster_formation* formation);
int32_t muster_formation_world_size(const muster_formation* formation);
/* The member with this rank: rank, member, host and pid. The strings are valid
 * as long as the formation. */
muster_status muster_formation_seat(const muster_formation* formation,
                                    int32_t rank, muster_member_info* seat);

/* Closes the job's rendezvous for good: joins fail with MUSTER_OUT_OF_RANGE. */
muster_status muster_session_close_rendezvous(muster_session* session,
                                              const char* reason);

typedef struct muster_group_definition {
  const char* name;
  /* Global ranks, ascending, including this member's. */
  const int32_t* ranks;
  size_t rank_count;
  const char* description;
  /* Must be 0. */
  uint64_t reserved;
  uint64_t reserved_2;
} muster_group_definition;

/* Registers groups of the formed generation: all, or none on an error.
 * `registered`, which may be NULL, is an array of `count` numbers: how many
 * ranks of each group have registered it so far. */
muster_status muster_session_register_groups(
    muster_session* session, const muster_group_definition* groups,
    size_t count, int32_t* registered);

typedef struct muster_session_barrier_options {
  size_t size;
  const char* name;
  /* NULL: "world". */
  const char* group;
  /* 0: 30 minutes. */
  int64_t timeout_ms;
  int32_t wait_all_ranks;
  int32_t reserved;
} muster_session_barrier_options;

/* Arrives at a monitored barrier and waits for the coordinator's decision. */
muster_status muster_session_await_barrier(
    muster_session* session, const muster_session_barrier_options* options);
/* Tells the coordinator that this member failed; the generation is over. */
muster_status muster_session_report_failure(muster_session* session,
                                            const char* error);
/* Leaves the job without a failure; `timeout_ms` 0: 2 s. */
muster_status muster_session_leave(muster_session* session, const char* reason,
                                   int64_t timeout_ms);
/* Ends the connection and the threads. Not from a callback. */
muster_status muster_session_close(muster_session* session);
muster_status muster_session_address(muster_session* session,
                                     muster_strings** address);
muster_status muster_session_job(muster_session* session, muster_strings** job);
muster_status muster_session_member(muster_session* session,
                                    muster_strings** member);
muster_status muster_session_incarnation(muster_session* session,
                                         uint64_t* incarnation);
/* The random id that the coordinator chose when it started. */
muster_status muster_session_coordinator_epoch(muster_session* session,
                                               uint64_t* coordinator_epoch);
/* MUSTER_OK while the session lasts, then the reason why it is over, which is
 * the last error, too. */
muster_status muster_session_status(muster_session* session);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* MUSTER_MUSTER_CONTROL_H_ */
