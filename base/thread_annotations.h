// Clang's thread-safety attributes: which mutex guards what. Other compilers
// ignore them; `./dev lint` checks them.

#ifndef MUSTER_BASE_THREAD_ANNOTATIONS_H_
#define MUSTER_BASE_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define MUSTER_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define MUSTER_THREAD_ATTRIBUTE(attribute)
#endif

// Of a variable.
#define MUSTER_GUARDED_BY(mutex) MUSTER_THREAD_ATTRIBUTE(guarded_by(mutex))

// Of a function: its caller holds the mutex; or does not.
#define MUSTER_EXCLUSIVE_LOCKS_REQUIRED(...) \
  MUSTER_THREAD_ATTRIBUTE(exclusive_locks_required(__VA_ARGS__))
#define MUSTER_LOCKS_EXCLUDED(...) \
  MUSTER_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define MUSTER_NO_THREAD_SAFETY_ANALYSIS \
  MUSTER_THREAD_ATTRIBUTE(no_thread_safety_analysis)

// Of a mutex, of a class that holds one, and of what locks and unlocks it.
#define MUSTER_LOCKABLE MUSTER_THREAD_ATTRIBUTE(lockable)
#define MUSTER_SCOPED_LOCKABLE MUSTER_THREAD_ATTRIBUTE(scoped_lockable)
#define MUSTER_EXCLUSIVE_LOCK_FUNCTION(...) \
  MUSTER_THREAD_ATTRIBUTE(exclusive_lock_function(__VA_ARGS__))
#define MUSTER_UNLOCK_FUNCTION(...) \
  MUSTER_THREAD_ATTRIBUTE(unlock_function(__VA_ARGS__))

#endif  // MUSTER_BASE_THREAD_ANNOTATIONS_H_
