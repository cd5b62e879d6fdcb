/* SPDX-License-Identifier: Apache-2.0
 * A fake daemon at the other end of a client's socket, with faults on request that the library must
 * withstand, although a correct daemon shows them rarely or never. It also speaks the version after
 * the library's. It runs no tasks; the test ends them. */
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
#include "proto/ring.h"

enum fault {
	NO_FAULT,
	SAYS_VERSION,
	SAYS_BYE,
	SAYS_NOTHING,
	HANGS_UP_UNREAD,
	SHORT_REPLY,
	WRONG_REQUEST_ID,
	STRAY_FD,
	NO_RING_FDS,
	UNSEALED_RING,
	SMALL_RING,
	OTHER_ENTRIES,
	NO_MAGIC,
	OTHER_RING_VERSION,
	CHOOSES_VERSION_0,
	CHOOSES_NEXT_VERSION,
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
	SHORT_EVENT,
};

#define PEER_HELD 256
#define ENTRIES	  16 /* entries of the sessions' rings */
#define WAIT_MS	  25000

struct peer {
	char path[64];
	int listener, stop[2];
	pthread_t thread;
	pthread_mutex_t lock; /* protects conn: tests send events from their own thread */
	_Atomic enum fault fault;
	_Atomic int conn;
	uint32_t wants_entries; /* of the next session's ring; 0: ENTRIES */
	struct svc_ring *ring;
	uint32_t entries;
	int doorbell, completion;
	uint32_t regions, joins;
	int32_t join_device; /* device of the last JOIN */
	uint16_t join_out_of_reach;
	int32_t split_ranks;	     /* size of the communicator that a SPLIT creates */
	struct svc_hello_reply says; /* its MPS advice, in the answer to HELLO */
	/* GPUs: */
	ncclsvc_device_info devices[8];
	unsigned ndevices;
	struct svc_region_cuda cuda[64]; /* received registrations, and their opcodes */
	uint32_t cuda_ids[64];
	_Atomic unsigned ncuda;
	struct svc_region_range range; /* the last one */
	uint32_t range_id;
	_Atomic bool holds_ranges; /* the test answers them */
	struct svc_header held_range;
	_Atomic bool busy;		/* no region can be deleted */
	_Atomic bool registers_nothing; /* REGION_ADD gets no answer */
	_Atomic unsigned hang_ups,
		drains; /* the number of next HELLOs that are answered this way */
	uint32_t deleted[64];
	_Atomic unsigned ndeleted;
	_Atomic unsigned opcodes[SVC_OPCODE_END]; /* requests received */
	/* Requests held back: answered in reverse order once there are this many; the test answers
	 * SUBMITs. */
	_Atomic unsigned hold;
	struct svc_header held[PEER_HELD];
	unsigned nheld;
	struct svc_header submits[PEER_HELD];
	struct svc_record records[PEER_HELD];
	_Atomic unsigned nsubmits;
};

void peer_start(struct peer *p);
void peer_stop(struct peer *p);
/* Opens a session with it; NULL if that fails. */
ncclsvc_session *peer_session(struct peer *p, bool no_ring, ncclsvc_result *result);

/* Ends task n of the ring. */
void peer_end_task(struct peer *p, uint64_t n, int result);
/* Ends the i-th SUBMIT: with a status, or with an error before it became a task. */
void peer_answer_submit(struct peer *p, unsigned i, int result, bool as_error);
/* Answers the held REGION_RANGE. */
void peer_answer_range(struct peer *p);
void peer_event_comm(struct peer *p, uint32_t comm, uint32_t epoch, int reason, int rank, int pid);
/* Reports for comm's first epoch that the node was lost, and rank 1 with it. */
void peer_event_node_lost(struct peer *p, uint32_t comm, uint32_t node);
void peer_hang_up(struct peer *p);
/* Waits until everything sent so far has been handled. */
void peer_sync(ncclsvc_session *s);

/* Every test's fixture: a peer, an open session with it, its world, a task. */
extern struct peer peer;
int setup(void **state);
int teardown(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
ncclsvc_session *session(bool no_ring);
ncclsvc_comm *world(ncclsvc_session *s);
ncclsvc_task barrier(ncclsvc_comm *comm);
/* Checks that the last error contains this text. */
void says(const char *part);
bool readable(ncclsvc_session *s);

#endif
