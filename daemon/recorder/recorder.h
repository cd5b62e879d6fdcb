/* SPDX-License-Identifier: Apache-2.0
 *
 * The flight recorder: for each session its last operations, kept after the session has ended.
 *
 * A session gets its recording when it first joins a communicator. It has two rings: `tasks`, which
 * the scheduler writes as tasks end, and `kernels`, into which the supervisor copies operations of
 * kernels on GPUs when an epoch ends. What is pending is in neither: the task table and the pages
 * of kernels have it.
 *
 * A living session's recording stays. Those of ended sessions are bounded for each user and for all
 * (SHARE_RECORDINGS): the user's oldest goes first. All of it is the supervisor's, but for the
 * rings' contents.
 */
#ifndef RECORDER_RECORDER_H
#define RECORDER_RECORDER_H

#include "account/account.h"
#include "recorder_ring.h"

#define RECORDER_JOINS 2048 /* as many communicators can the entries of a ring be of */

/* A rank that the session has had, in one epoch. */
struct recorded_join {
	uint64_t comm; /* uid */
	uint64_t key;  /* the same on all nodes */
	uint32_t epoch, nranks;
	int32_t rank, device;
	uint32_t transport; /* ncclsvc_operation_transport */
	char label[NCCLSVC_NAME_BYTES];
};

struct recording {
	uint32_t session; /* id */
	uint32_t uid;
	int32_t pid;
	struct account *account;
	struct recorder_ring *tasks, *kernels; /* kernels: NULL until there are any */
	struct recorded_join *joins;	       /* the last of them, by number % joins_room */
	uint32_t njoins, joins_room;	       /* so far; a power of two */
	unsigned readers;		       /* threads that read it: it stays */
	bool ended, dropped;		       /* dropped: it goes with the last reader */
	struct recording *prev, *next;	       /* of those that have ended, the oldest first */
};

struct recorder {
	struct recording **all; /* [n], by session */
	uint32_t n, room;
	struct recording *ended;
};

/* The session has a rank of an epoch that begins: *join is its number, for struct recorded. Returns
 * its recording; NULL: out of memory, and nothing is recorded. */
struct recording *recorder_join(struct recorder *r, uint32_t session, int32_t pid, uint32_t uid,
				struct account *account, const struct recorded_join *as,
				uint32_t *join);
/* Nothing more of the session's is recorded. */
void recorder_ended(struct recorder *r, uint32_t session);
void recorder_free(struct recorder *r);

/* The session's recording; NULL: there is none. */
struct recording *recorder_find(const struct recorder *r, uint32_t session);
/* The first recording of that session, or of a later one; r->n: there is none. */
uint32_t recorder_index(const struct recorder *r, uint64_t session);

/* NULL: it is too long ago. */
const struct recorded_join *recording_join(const struct recording *rec, uint32_t number);
/* The number of the session's last join of that epoch with that rank. False: there was none. */
bool recording_find_join(const struct recording *rec, uint64_t comm, uint32_t epoch, int32_t rank,
			 uint32_t *number);
/* Adds an operation of a kernel. */
void recording_add_kernel(struct recording *rec, const struct recorded *x);

/* A thread reads its rings, from here to recorder_read_end. */
void recording_read_begin(struct recording *rec);
void recorder_read_end(struct recorder *r, struct recording *rec);

#endif
