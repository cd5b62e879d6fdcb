/* SPDX-License-Identifier: Apache-2.0
 * The other end of a client's socket, with faults on request: what no correct daemon does, or does
 * only by chance, the library has to stand. It runs no tasks; the test ends them. */
#ifndef TESTS_CLIENT_PEER_H
#define TESTS_CLIENT_PEER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "ncclsvc.h"
#include "ring.h"

enum fault {
	NO_FAULT,
	SAYS_VERSION,
	SAYS_BYE,
	SAYS_NOTHING,
	HANGS_UP_UNREAD,
	SHORT_REPLY,
	WRONG_SERIAL,
	STRAY_FD,
	NO_RING_FDS,
	UNSEALED_RING,
	SMALL_RING,
	OTHER_ENTRIES,
	NO_MAGIC,
	OTHER_RING_VERSION,
	CHOOSES_VERSION_0,
	CHOOSES_VERSION_4,
	LIST_LONGER,
	LIST_SHORTER,
	LIST_OVERFLOWS,
	LIST_CUT,
	LIST_CIRCLES,
	JOIN_RANGE,
	JOIN_MORE_RANKS,
	JOIN_OTHER_RANK,
	DOORBELL_PIPE,
	DOORBELL_BLOCKS,
	COMPLETION_FILE,
	SPINS_LONG,
	UNASKED_REPLY,
};

#define PEER_HELD 256
#define ENTRIES	  16 /* of the sessions' rings */
#define WAIT_MS	  5000

struct peer {
	char path[64];
	int listener, stop[2];
	pthread_t thread;
	pthread_mutex_t lock; /* of conn: tests send events from their own thread */
	_Atomic enum fault fault;
	_Atomic int conn;
	_Atomic unsigned version;     /* that the session speaks */
	_Atomic unsigned version_max; /* the newest it knows; 0: as the library */
	struct svc_ring *ring;
	uint32_t entries;
	int doorbell, completion;
	uint32_t regions, joins;
	int32_t join_device;	     /* of the last JOIN */
	int32_t split_ranks;	     /* what a SPLIT makes */
	struct svc_hello_reply says; /* of MPS, in the answer to HELLO */
	/* GPUs: */
	ncclsvc_device_info devices[4];
	unsigned ndevices;
	struct svc_region_cuda
		cuda[64]; /* the registrations that came, and what they were called */
	uint32_t cuda_ids[64];
	_Atomic unsigned ncuda;
	struct svc_region_range range; /* the last */
	uint32_t range_id;
	_Atomic bool holds_ranges; /* their answers are the test's */
	struct svc_header held_range;
	int lend_fd; /* what is lent; the test's */
	uint64_t lend_bytes;
	_Atomic bool busy;		   /* no region can be deleted */
	_Atomic bool registers_nothing;	   /* no answer to REGION_ADD */
	_Atomic unsigned hang_ups, drains; /* so many HELLOs to come are answered so */
	uint32_t deleted[64];
	_Atomic unsigned ndeleted;
	_Atomic unsigned opcodes[SVC_OPCODE_END]; /* requests seen */
	/* Requests kept back: answered in reverse once there are so many; SUBMITs by the test. */
	_Atomic unsigned hold;
	struct svc_header held[PEER_HELD];
	unsigned nheld;
	struct svc_header submits[PEER_HELD];
	struct svc_record records[PEER_HELD];
	_Atomic unsigned nsubmits;
};

void peer_start(struct peer *p);
void peer_stop(struct peer *p);
/* Opens a session with it: NULL if that fails. */
ncclsvc_session *peer_session(struct peer *p, bool no_ring, ncclsvc_result *result);

/* Ends task n of the ring. */
void peer_end_task(struct peer *p, uint64_t n, int result);
/* Ends the i-th SUBMIT: with a status, or with an error that came before it was a task. */
void peer_answer_submit(struct peer *p, unsigned i, int result, bool as_error);
/* Answers the REGION_RANGE that was held back. */
void peer_answer_range(struct peer *p);
void peer_event_comm(struct peer *p, uint32_t comm, uint32_t epoch, int reason, int rank, int pid);
/* Of comm's first epoch: node was lost, and rank 1 with it. */
void peer_event_node_lost(struct peer *p, uint32_t comm, uint32_t node);
void peer_hang_up(struct peer *p);
/* Waits until everything sent so far has been handled. */
void peer_sync(ncclsvc_session *s);

/* What every test needs: a peer, a session with it that has to open, its world, a task. */
extern struct peer peer;
int setup(void **state);
int teardown(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
ncclsvc_session *session(bool no_ring);
ncclsvc_comm *world(ncclsvc_session *s);
ncclsvc_task barrier(ncclsvc_comm *comm);
/* The last error has this part. */
void says(const char *part);
bool readable(ncclsvc_session *s);

#endif
