// Macros for clang's thread-safety attributes, which state which mutex guards
// what. Other compilers ignore them; `./dev lint` checks them.

#ifndef MUSTER_BASE_THREAD_ANNOTATIONS_H_
#define MUSTER_BASE_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define MUSTER_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define MUSTER_THREAD_ATTRIBUTE(attribute)
#endif

// On a variable: the mutex that guards it.
#define MUSTER_GUARDED_BY(mutex) MUSTER_THREAD_ATTRIBUTE(guarded_by(mutex))

// On a function: its caller must hold the mutex, must not hold it, or the
// analysis skips the function.
#define MUSTER_EXCLUSIVE_LOCKS_REQUIRED(...) \
  MUSTER_THREAD_ATTRIBUTE(exclusive_locks_required(__VA_ARGS__))
#define MUSTER_LOCKS_EXCLUDED(...) \
  MUSTER_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define MUSTER_NO_THREAD_SAFETY_ANALYSIS \
  MUSTER_THREAD_ATTRIBUTE(no_thread_safety_analysis)

// On a mutex class, on a class that holds a mutex for a scope, and on the
// functions that lock and unlock.
#define MUSTER_LOCKABLE MUSTER_THREAD_ATTRIBUTE(lockable)
#define MUSTER_SCOPED_LOCKABLE MUSTER_THREAD_ATTRIBUTE(scoped_lockable)
#define MUSTER_EXCLUSIVE_LOCK_FUNCTION(...) \
  MUSTER_THREAD_ATTRIBUTE(exclusive_lock_function(__VA_ARGS__))
#define MUSTER_UNLOCK_FUNCTION(...) \
  MUSTER_THREAD_ATTRIBUTE(unlock_function(__VA_ARGS__))

#endif  // MUSTER_BASE_THREAD_ANNOTATIONS_H_
