/* SPDX-License-Identifier: Apache-2.0
 * Sends and Recvs that a thread submits together go into one kernel, in which the messages of each
 * peer and direction progress independently. */
#include "core/comm_handle.h"
#include "peer.h"
#include "proto/names.h"
#include "proto/operation.h"

/* Takes one message for each peer and direction before the second of any, so that messages that do
 * not fit one kernel can be split at whole turns. */
void peer_turns(struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (ops[i].route.kernel == KERNEL_MESSAGES)
			ops[i].comm->peer->turns[peer_dir_of(&ops[i].record)] = 0;
	for (unsigned i = 0; i < n; i++)
		if (ops[i].route.kernel == KERNEL_MESSAGES)
			ops[i].route.turn = ops[i].comm->peer->turns[peer_dir_of(&ops[i].record)]++;
}

static uint64_t message_bytes(const struct svc_record *r)
{
	return r->count * svc_type_size(r->type);
}

/* Threads for the longest slice: one per line, up to the limit. The kernels of all ranks on a GPU
 * must fit there together. */
static unsigned movers(const struct peer *p, uint64_t bytes, uint32_t channels)
{
	const unsigned most = PEER_THREADS / p->ranks_per_gpu / WARP * WARP;
	const uint64_t lines = 1 + (bytes / channels + LL_LINE_DATA) / LL_LINE_DATA;
	return lines < most ? (unsigned)(lines + WARP - 1) / WARP * WARP : most;
}

struct peer_dir {
	unsigned n;
	uint32_t channels;
};

static void peer_dir_add(const struct peer *p, struct peer_dir *peer_dir, const struct op *op,
			 unsigned *threads)
{
	const uint64_t bytes = message_bytes(&op->record);
	const uint32_t channels =
		peer_channels(bytes, p->call.channels, op->record.peer == p->call.rank);
	const unsigned n = movers(p, bytes, channels) + WARP; /* plus the monitor warp */
	peer_dir->n++;
	peer_dir->channels = channels > peer_dir->channels ? channels : peer_dir->channels;
	*threads = n > *threads ? n : *threads;
}

static void messages_fill(const struct op *ops, unsigned n, struct peer_messages *m)
{
	uint8_t next[PEER_DIRS];
	for (unsigned peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++)
		next[peer_dir] = m->first[peer_dir];
	for (unsigned i = 0; i < n; i++) {
		const struct svc_record *r = &ops[i].record;
		const unsigned peer_dir = peer_dir_of(r), k = next[peer_dir]++;
		if (k == m->first[peer_dir] && ops[i].launch.message)
			m->before[peer_dir] = ops[i].launch.message - 1;
		m->parts[k].at = (uintptr_t)(r->op == NCCLSVC_SEND ? ops[i].src : ops[i].dst);
		m->parts[k].header = peer_message(r->type, message_bytes(r));
		m->parts[k].share = ops[i].regions.shares[1];
		m->parts[k].share_at = r->dst_offset;
	}
}

unsigned peer_messages_describe(const struct peer *p, const struct op *ops, unsigned n,
				struct peer_messages *m, unsigned *threads)
{
	struct peer_dir peer_dirs[PEER_DIRS] = {0};
	unsigned blocks = 0, messages = 0;
	*threads = 0;
	for (unsigned i = 0; i < n; i++)
		peer_dir_add(p, &peer_dirs[peer_dir_of(&ops[i].record)], &ops[i], threads);
	for (unsigned peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++) {
		for (uint32_t c = 0; c < peer_dirs[peer_dir].channels; c++, blocks++)
			if (m)
				m->block[blocks] = PEER_BLOCK_OF(peer_dir, c);
		if (m)
			m->first[peer_dir] = (uint8_t)messages;
		messages += peer_dirs[peer_dir].n;
	}
	if (!m)
		return blocks;
	m->first[PEER_DIRS] = (uint8_t)messages;
	messages_fill(ops, n, m);
	return blocks;
}
