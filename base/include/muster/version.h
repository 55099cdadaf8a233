// The version of muster, semantic: programs, library, packages and metrics have
// this one. For C and C++; build files read the three numbers. CONTRIBUTING.md
// has the rules of compatibility.

#ifndef MUSTER_VERSION_H_
#define MUSTER_VERSION_H_

#define MUSTER_VERSION_MAJOR 0
#define MUSTER_VERSION_MINOR 1
#define MUSTER_VERSION_PATCH 0

#define MUSTER_VERSION_TEXT_(major, minor, patch) #major "." #minor "." #patch
#define MUSTER_VERSION_EXPAND_(major, minor, patch) \
  MUSTER_VERSION_TEXT_(major, minor, patch)

// "0.1.0".
#define MUSTER_VERSION                                               \
  MUSTER_VERSION_EXPAND_(MUSTER_VERSION_MAJOR, MUSTER_VERSION_MINOR, \
                         MUSTER_VERSION_PATCH)

// One number that grows with the version: 0.1.0 is 100.
#define MUSTER_VERSION_NUMBER                                  \
  (MUSTER_VERSION_MAJOR * 10000 + MUSTER_VERSION_MINOR * 100 + \
   MUSTER_VERSION_PATCH)

#endif  // MUSTER_VERSION_H_
