/* SPDX-License-Identifier: Apache-2.0
 * One connection to the daemon. */
#ifndef CLIENT_BASE_CONNECTION_H
#define CLIENT_BASE_CONNECTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/un.h>

#include "api.h"
#include "proto/cuda/mps.h"
#include "proto/ring.h"

struct connection_options {
	struct sockaddr_un address;
	char name[NCCLSVC_NAME_BYTES];
	char job[NCCLSVC_JOB_BYTES]; /* svc_label_ok; empty: not known */
	uint32_t entries;	     /* entries of the ring */
	bool entries_required;	     /* false: accept fewer entries if the daemon limits them */
	bool no_ring;
	/* Its session memory goes to the new daemon; NULL: a new one is made. */
	const struct connection *previous;
	bool retry; /* retry until the deadline while no daemon listens or the daemon is shutting
		       down */
};

/* Shared by the session and the threads sleeping on it, so that a reattach cannot unmap or close it
 * under a sleeper. */
struct connection {
	struct connection *next, **back; /* fork.c's list; NULL: not in the list */
	bool foreign;			 /* the forked parent's connection, without fds here */
	atomic_uint refs;
	int sock;
	unsigned version;	  /* protocol version; the lowest before HELLO's reply */
	uint32_t session;	  /* the session's number in the daemon */
	int doorbell, completion; /* an eventfd and a socket; -1 without a ring */
	int memory;		  /* the session memory's memfd; -1 without a ring */
	struct svc_ring *ring;	  /* NULL without a ring */
	uint32_t entries;	  /* as agreed; without a ring, as requested */
	size_t ring_size;
	enum svc_mps_advice mps; /* the daemon's advice; SVC_MPS_NONE if it gives none */
	char mps_directory[NCCLSVC_MPS_DIRECTORY_BYTES]; /* for SVC_MPS_JOIN */
};

ncclsvc_result connection_open(const struct connection_options *options, uint64_t deadline,
			       struct connection **connection);
struct connection *connection_ref(struct connection *c); /* Locked. */
void connection_unref(struct connection *c);		 /* Locked, or called by the only owner. */

#endif
