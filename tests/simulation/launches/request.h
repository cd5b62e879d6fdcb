/* SPDX-License-Identifier: Apache-2.0
 * request.c's interface for node.c. */
#ifndef REQUEST_H
#define REQUEST_H

#include "launches.h"

/* An operation whose answer is overdue if it still waits when the event happens. */
struct waiting {
	uint32_t node, comm;
	struct operation_key key;
};

static inline struct node *node_of(const struct match *m)
{
	return &nodes[m->at->node];
}

struct message *to_sequencer(uint32_t node, enum message_kind kind, uint32_t nentries);
void send_withdraw(const struct match *m, const struct launch_request *r,
		   const struct failed_note *note);
void match_name_missing(const struct match *m, ncclsvc_status *st);
/* Ends the node's wait for others' records of an operation that it has failed, because records
 * differ. */
void send_wait_no_more(const struct match *m);
ncclsvc_status without_missing(const ncclsvc_status *why);
void request_forget(struct node *n, struct launch_request *r);
void request_void(struct node *n, struct launch_request *r);
void comm_give_up(struct local_comm *s);
bool request_names(const struct launch_request *r, uint64_t internode_id);
void request_give_up(struct node *n, struct launch_request *r);
void match_call_off(struct match *m);
void match_withdraw(struct match *m);
void send_request(uint32_t node, const struct launch_request *r);
void node_launch_ordered(struct node *n);
void request_ordered(struct node *n, uint64_t number, uint64_t grant);

#endif
