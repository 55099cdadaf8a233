// MUSTER_EXPORT marks what the shared library exports: the namespaces of the
// installed headers. All else is hidden (-fvisibility=hidden): classes that a
// header only names stand outside these namespaces, or are MUSTER_HIDDEN inside
// a class. For C and C++.

#ifndef MUSTER_BASE_EXPORT_H_
#define MUSTER_BASE_EXPORT_H_

#if defined(__cplusplus)
// The only form that stands before a namespace's name.
#define MUSTER_EXPORT [[gnu::visibility("default")]]
#define MUSTER_HIDDEN [[gnu::visibility("hidden")]]
#elif defined(__GNUC__)
#define MUSTER_EXPORT __attribute__((visibility("default")))
#define MUSTER_HIDDEN __attribute__((visibility("hidden")))
#else
#define MUSTER_EXPORT
#define MUSTER_HIDDEN
#endif

#endif  // MUSTER_BASE_EXPORT_H_
