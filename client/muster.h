// All of the SDK: what a program includes.

#ifndef MUSTER_CLIENT_MUSTER_H_
#define MUSTER_CLIENT_MUSTER_H_

#include "client/distributed.h"
#include "client/errors.h"
#include "client/process_group.h"
#include "client/session.h"
#include "client/store.h"

#endif  // MUSTER_CLIENT_MUSTER_H_
