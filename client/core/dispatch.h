/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_DISPATCH_H
#define CLIENT_CORE_DISPATCH_H

#include "base/api.h"

/* A kernel runs, whose end nothing signals: starts the timer. Locked. */
void dispatch_tick(ncclsvc_session *s);
/* The event loop's fd stays the same when the connection changes. Locked. */
ncclsvc_result dispatch_watch(ncclsvc_session *s);
void dispatch_unwatch(ncclsvc_session *s);
void dispatch_close(ncclsvc_session *s);

#endif
