// The whole SDK: the header that a program includes.

#ifndef MUSTER_CLIENT_MUSTER_H_
#define MUSTER_CLIENT_MUSTER_H_

#include "client/backends.h"
#include "client/coalescing.h"
#include "client/debug.h"
#include "client/device_memory.h"
#include "client/device_mesh.h"
#include "client/distributed.h"
#include "client/dlpack.h"
#include "client/errors.h"
#include "client/file_store.h"
#include "client/future.h"
#include "client/hash_store.h"
#include "client/launch.h"
#include "client/object_messages.h"
#include "client/objects.h"
#include "client/prepared.h"
#include "client/process_group.h"
#include "client/session.h"
#include "client/store.h"
#include "client/streams.h"
#include "client/symmetric.h"
#include "client/tcp_store.h"

#endif  // MUSTER_CLIENT_MUSTER_H_
