/* SPDX-License-Identifier: Apache-2.0
 * Sessions of the modes that measure the service itself. */
#ifndef PERF_CLIENT_H
#define PERF_CLIENT_H

#include "ncclsvc.h"
#include "options.h"

/* A session with a one-member communicator and buffers for an AllReduce of 8 bytes. */
struct client {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	uint64_t *send, *recv;
	int timeout_ms;
};

/* "what: SENTENCE" of the thread's last failed call. Always false. */
bool complain_of(const char *what);

/* Each complains and returns false on failure. */
bool client_open(struct client *c, const struct options *options, const char *socket, bool no_ring);
void client_close(struct client *c);
/* One AllReduce of 8 bytes, to be waited for. */
ncclsvc_result client_submit(struct client *c, ncclsvc_task *task);
ncclsvc_result client_wait(struct client *c, ncclsvc_task task);
/* Submits with some tasks in flight until n are done or `until` (perf_now_ns) has passed; *done
 * says how many. */
bool client_pipeline(struct client *c, uint64_t n, uint64_t until, uint64_t *done);
/* Submits and waits n times or until then; each time in us goes to samples, if not NULL. */
bool client_one_by_one(struct client *c, uint64_t n, uint64_t until, double *samples,
		       uint64_t *done);

#endif
