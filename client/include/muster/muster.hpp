// The whole SDK: the header that a program includes.

#ifndef MUSTER_MUSTER_HPP_
#define MUSTER_MUSTER_HPP_

#include "muster/backends.h"
#include "muster/coalescing.h"
#include "muster/debug.h"
#include "muster/device_memory.h"
#include "muster/device_mesh.h"
#include "muster/distributed.h"
#include "muster/dlpack.h"
#include "muster/errors.h"
#include "muster/file_store.h"
#include "muster/future.h"
#include "muster/hash_store.h"
#include "muster/launch.h"
#include "muster/object_messages.h"
#include "muster/objects.h"
#include "muster/prepared.h"
#include "muster/process_group.h"
#include "muster/session.h"
#include "muster/store.h"
#include "muster/streams.h"
#include "muster/symmetric.h"
#include "muster/tcp_store.h"
#include "muster/version.h"

#endif  // MUSTER_MUSTER_HPP_
