/* SPDX-License-Identifier: Apache-2.0 */
#include "look.h"
#include "comm/comm.h"
#include "comm/comms.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "proto/task.h"

/* The member has aborted its kernels, or one has failed in a way that makes all later ones fail. */
static bool is_broken(const struct peer_control *control)
{
	return peer_load32(&control->abort) || peer_load64(&control->failed);
}

bool peer_broken_off(const struct communicator *m, uint32_t rank)
{
	return m->peer && is_broken(peer_member_control(m, rank));
}

/* A message's header has its type and bytes; converts it to the form in records. */
static uint64_t message_header(uint32_t peer_dir, uint64_t part)
{
	const uint8_t type = (uint8_t)(part >> 56);
	const uint64_t size = svc_type_size(type);
	return peer_header(peer_dir < PEER_RANKS ? NCCLSVC_SEND : NCCLSVC_RECV, type, 0,
			   (uint8_t)(peer_dir % PEER_RANKS),
			   size ? PEER_MESSAGE_BYTES(part) / size : 0);
}

/* A collective waits until it has ended; a message kernel, while one of its directions waits. */
static void waits_look(const struct peer_control *control, struct look *l)
{
	const uint64_t posted = peer_load64(&control->begun), graph = peer_load64(&control->graph);
	const uint32_t begun = (uint32_t)posted, ended = (uint32_t)peer_load64(&control->ended);
	l->kernel_seq = (uint32_t)(posted >> 32);
	l->graph = l->kernel_seq ? 0 : (uint32_t)(graph >> 32);
	l->index = (uint32_t)graph;
	l->coll_launch_seq = peer_load32(&control->coll_launch_seq);
	l->arrived_ranks = peer_load32(&control->arrived_ranks);
	l->moves = peer_load32(&control->moves);
	l->coll_seq = l->moves || l->graph ? 0 : peer_load32(&control->coll_seq);
	l->header = l->moves ? 0 : peer_load64(&control->header);
	for (uint32_t peer_dir = 0; l->moves && peer_dir < PEER_DIRS; peer_dir++) {
		const uint64_t waits = peer_load64(&control->waits[peer_dir]);
		l->message[peer_dir] = (uint32_t)waits;
		if (!begun || waits >> 32 != begun)
			continue;
		l->peer_dirs |= UINT32_C(1) << peer_dir;
		if (!l->header)
			l->header =
				message_header(peer_dir, peer_load64(&control->parts[peer_dir]));
	}
	if (begun && (l->moves ? l->peer_dirs : !peer_reached(ended, begun)))
		l->waits = begun;
}

/* In the reverse of the order in which the member writes: entered covers everything that is
 * submitted. */
struct look peer_look_at(const struct peer_control *control)
{
	struct look l = {.submitted = peer_load64(&control->submitted)};
	waits_look(control, &l);
	for (uint32_t peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++)
		l.messages[peer_dir] = peer_load32(&control->messages[peer_dir]);
	l.entered = peer_load32(&control->entered);
	l.broken = is_broken(control);
	l.reached = peer_load32(&control->reached);
	l.records = peer_load32(&control->records);
	return l;
}

bool peer_runs_kernels(const struct communicator *m, uint32_t rank)
{
	return comm_takes_part(&m->members[rank]) ||
	       sessions_find(m->comms->sessions, m->peer->members[rank].session);
}

/* ---- Records ---- */

/* A record's fields are not atomic, since most records are copies. */
static uint32_t record_load32(const uint32_t *word)
{
	return peer_load32((const peer_atomic32 *)word);
}

static uint64_t record_load64(const uint64_t *word)
{
	return peer_load64((const peer_atomic64 *)word);
}

bool peer_record(const struct peer_control *control, uint32_t number, struct peer_record *r)
{
	const struct peer_record *from = &control->history[number % PEER_HISTORY];
	const uint32_t kernel_seq = record_load32(&from->kernel_seq);
	*r = (struct peer_record){.operation = record_load64(&from->operation),
				  .header = record_load64(&from->header),
				  .launched_ns = record_load64(&from->launched_ns),
				  .timeout_ns = record_load64(&from->timeout_ns),
				  .kernel_seq = kernel_seq,
				  .collective = record_load32(&from->collective),
				  .coll_seq = record_load32(&from->coll_seq),
				  .message = record_load32(&from->message)};
	const uint32_t behind = peer_load32(&control->records) - number;
	return kernel_seq && record_load32(&from->kernel_seq) == kernel_seq && behind &&
	       behind < PEER_HISTORY;
}

/* The direction of a message; PEER_DIRS: it is no message. Does not use svc_header_record, which
 * fills in much more. */
static uint32_t peer_dir_of(const struct peer_record *r)
{
	const unsigned op = peer_header_op(r->header);
	const uint32_t peer = peer_header_root(r->header);
	if (r->coll_seq || !svc_op_is_p2p(op) || peer >= PEER_RANKS)
		return PEER_DIRS;
	return op == NCCLSVC_SEND ? PEER_DIR_TO(peer) : PEER_DIR_FROM(peer);
}

bool peer_record_of(const struct peer_control *control, uint32_t kernel_seq, struct peer_record *r)
{
	const uint32_t records = peer_load32(&control->records);
	for (uint32_t i = PEER_HISTORY - 1; kernel_seq && i; i--)
		if (peer_record(control, records - i, r) && r->kernel_seq == kernel_seq)
			return true;
	return false;
}

struct peer_record peer_record_of_graph(const struct peer_control *control, const struct look *l)
{
	return (struct peer_record){.operation = l->index,
				    .header = l->header,
				    .timeout_ns = peer_load64(&control->timeout_ns)};
}

bool peer_record_in(const struct peer_control *control, uint32_t peer_dir, uint32_t message,
		    struct peer_record *r)
{
	const uint32_t records = peer_load32(&control->records);
	for (uint32_t i = PEER_HISTORY - 1; i; i--)
		if (peer_record(control, records - i, r) && peer_dir_of(r) == peer_dir &&
		    r->message == message)
			return true;
	return false;
}

struct peer_history peer_history_of(const struct peer_control *control, uint32_t kernel_seq,
				    const uint32_t messages[PEER_DIRS])
{
	struct peer_record r;
	struct peer_history h = {0};
	const uint32_t records = peer_load32(&control->records);
	for (uint32_t i = PEER_HISTORY - 1; i; i--) {
		if (!peer_record(control, records - i, &r))
			continue;
		const uint32_t peer_dir = peer_dir_of(&r);
		const bool waits = r.kernel_seq == kernel_seq;
		if (waits && !h.known) {
			h.known = true;
			h.record = r;
		}
		if (peer_dir == PEER_DIRS)
			continue;
		if (waits)
			h.peer_dirs |= UINT32_C(1) << peer_dir;
		if (!h.kernel_seqs[peer_dir] &&
		    (!messages[peer_dir] || r.message == messages[peer_dir]))
			h.kernel_seqs[peer_dir] = r.kernel_seq;
	}
	return h;
}
