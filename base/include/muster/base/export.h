// MUSTER_EXPORT marks what the shared library exports: the namespaces of the
// installed headers. All else is hidden (-fvisibility=hidden). For C and C++.

#ifndef MUSTER_BASE_EXPORT_H_
#define MUSTER_BASE_EXPORT_H_

#if defined(__cplusplus)
// The only form that stands before a namespace's name.
#define MUSTER_EXPORT [[gnu::visibility("default")]]
#elif defined(__GNUC__)
#define MUSTER_EXPORT __attribute__((visibility("default")))
#else
#define MUSTER_EXPORT
#endif

#endif  // MUSTER_BASE_EXPORT_H_
