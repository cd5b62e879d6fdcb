/* SPDX-License-Identifier: Apache-2.0
 * What stands in the pages of members whose kernels meet. All of it can be wrong, or change at any
 * time: it is read once. */
#ifndef COMM_PEER_LOOK_H
#define COMM_PEER_LOOK_H

#include "peer.h"

/* One reading of a page's records: what they say about the kernel that waits. */
struct peer_history {
	bool known; /* it has this record, the first of several: */
	struct peer_record record;
	uint32_t ways;		     /* bits: those that it has messages of */
	uint32_t serials[PEER_WAYS]; /* of the kernel with the message asked for; 0: not known */
};

/* One look at a member's page. */
struct look {
	uint64_t submitted;
	uint32_t entered, reached, records;
	uint32_t messages[PEER_WAYS];
	uint32_t waits;		     /* as in struct peer_member */
	uint32_t serial;	     /* of that kernel; 0: it is in a graph */
	uint32_t graph, index;	     /* then that, and its operation there */
	bool moves;		     /* it has messages */
	uint32_t round;		     /* the library's; 0: it has messages, or is in a graph */
	uint32_t place;		     /* as the GPUs count rounds: the newest that has begun */
	uint32_t came;		     /* bits: the ranks that have begun it, too */
	uint64_t header;	     /* of its collective, or of a message that waits */
	uint32_t ways;		     /* bits: those of a kernel of messages that wait */
	uint32_t message[PEER_WAYS]; /* which one waits there */
	bool broken;		     /* it does not run kernels any more */
	struct peer_history history; /* once that was read */
};

struct look peer_look_at(const struct peer_page *page);
/* lateness.c: counts the look, by whom collectives wait for. */
void peer_lateness_count(struct communicator *m, const struct look *looks, uint64_t now);
/* Its kernels can still run: it holds its rank, or has left and its process goes on. */
bool peer_runs_kernels(const struct communicator *m, uint32_t rank);

/* False: it was not written yet, or is overwritten. */
bool peer_record(const struct peer_page *page, uint32_t number, struct peer_record *r);
/* The first one of that kernel; of 0, one in a graph, none. */
bool peer_record_of(const struct peer_page *page, uint32_t serial, struct peer_record *r);
/* Reads PEER_HISTORY records at most. messages: the number of one in each way that is asked for; 0:
 * of any. */
struct peer_history peer_history_of(const struct peer_page *page, uint32_t serial,
				    const uint32_t messages[PEER_WAYS]);
/* The record of an operation in a graph whose kernel waits, as the page says. */
struct peer_record peer_record_of_graph(const struct peer_page *page, const struct look *l);
/* The way's first message of that number. */
bool peer_record_in(const struct peer_page *page, uint32_t way, uint32_t message,
		    struct peer_record *r);

static inline uint64_t peer_load64(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline uint32_t peer_load32(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline struct peer_page *peer_member_page(const struct communicator *m, uint32_t rank)
{
	return peer_page_of(m->peer->base, rank);
}

/* The other rank's way for the same messages. */
static inline uint32_t peer_way_back(uint32_t way, uint32_t rank)
{
	return way < PEER_RANKS ? PEER_WAY_FROM(rank) : PEER_WAY_TO(rank);
}

#endif
