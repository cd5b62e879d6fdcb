/* SPDX-License-Identifier: Apache-2.0
 * One connection to the daemon. */
#ifndef CLIENT_BASE_CONNECTION_H
#define CLIENT_BASE_CONNECTION_H

#include <stdbool.h>
#include <sys/un.h>

#include "api.h"
#include "proto/mps.h"
#include "proto/ring.h"

struct connection_options {
	struct sockaddr_un address;
	char name[NCCLSVC_NAME_BYTES];
	char job[NCCLSVC_JOB_BYTES]; /* svc_label_ok; empty: not known */
	uint32_t entries;	     /* of the ring */
	bool entries_required;	     /* false: fewer will do if the daemon allows no more */
	bool no_ring;
	bool retry; /* until the deadline, while no daemon listens or the one that does is going */
};

/* Shared by the session and by the threads that sleep on it, so that a reattach cannot pull the
 * mapping or the socket from under a sleeper. */
struct connection {
	struct connection *next, **back; /* fork.c's list; NULL: not in it */
	bool foreign;  /* this process was forked: it is the parent's, and has no fds here */
	unsigned refs; /* atomic */
	int sock;
	unsigned version;	  /* of the protocol; before HELLO's reply the lowest */
	uint32_t session;	  /* its number in the daemon */
	int doorbell, completion; /* an eventfd and a socket; -1 without a ring */
	struct svc_ring *ring;	  /* NULL without a ring */
	uint32_t entries;	  /* as agreed; without a ring, as asked */
	size_t ring_size;
	enum svc_mps_advice mps; /* the daemon's; what it does not advise counts as SVC_MPS_NONE */
	char mps_directory[NCCLSVC_MPS_DIRECTORY_BYTES]; /* of SVC_MPS_JOIN */
};

ncclsvc_result connection_open(const struct connection_options *options, uint64_t deadline,
			       struct connection **connection);
struct connection *connection_ref(struct connection *c); /* locked */
void connection_unref(struct connection *c);		 /* locked, or by the only owner */

#endif
