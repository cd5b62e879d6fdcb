/* SPDX-License-Identifier: Apache-2.0
 * Attacks on workers, and on the supervisor's work for GPUs, with stand-ins (tests/fake): memory,
 * descriptors, and kernels that wait. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flood.h"
#include "gpus.h"
#include "slow_fds.h"

static void nothing(struct attacker *a)
{
	attack_ready(a, "for comparison");
	attack_hold();
}

/* Starts one more attacker on each GPU. Returns this one's device. */
static int on_each_gpu(void)
{
	for (int i = 1; i < GPUS; i++)
		if (attack_fork())
			return i;
	return 0;
}

/* ---- Descriptors ---- */

/* Sends the descriptor in each kind of request that takes one. */
static bool pass(struct conn *c, int device, int fd)
{
	const struct svc_region_cuda cuda = {.device = device, .bytes = GPU_PAGE};
	const struct svc_region_add add = {.bytes = GPU_PAGE};
	const struct svc_region_range range = {.device = device, .count = 2, .bytes = GPU_PAGE};
	const struct {
		unsigned opcode;
		const void *body;
		size_t length;
	} requests[] = {{SVC_REGION_CUDA_FD, &cuda, sizeof(cuda)},
			{SVC_REGION_CUDA, &cuda, sizeof(cuda)},
			{SVC_REGION_ADD, &add, sizeof(add)},
			{SVC_REGION_RANGE, &range, sizeof(range)}};
	static unsigned next;
	struct answer answer;
	const unsigned i = next++ % (sizeof(requests) / sizeof(requests[0]));
	if (conn_send(c, requests[i].opcode, requests[i].body, requests[i].length, fd, 0))
		return false;
	close(fd); /* the daemon's close is the last one */
	if (conn_next(c, &answer, 10000) != 1)
		return false;
	svc_close_fds(answer.fds, answer.nfds);
	return true;
}

static void pass_all(struct attacker *a, int (*make)(void))
{
	const int device = on_each_gpu();
	struct conn c;
	attack_fork();
	attack_ready(a, "by 4 processes");
	while (conn_open(&c, a->socket)) {
		for (int fd; (fd = make()) >= 0 && pass(&c, device, fd); a->asked++)
			;
		a->ended++;
		conn_close(&c);
	}
	attack_hold();
}

static void pass_sockets(struct attacker *a)
{
	pass_all(a, slow_socket);
}

static void pass_memfds(struct attacker *a)
{
	pass_all(a, slow_memfd);
}

static void pass_files(struct attacker *a)
{
	slow_file_serve(a);
	pass_all(a, slow_file);
}

/* ---- Memory ---- */

/* Keeps requests of one kind in flight, and drops what they return. */
static void register_and_forget(struct attacker *a, struct conn *c, unsigned depth, unsigned opcode,
				const void *body, size_t length)
{
	for (unsigned open = 0;;) {
		struct answer answer;
		for (; open < depth; open++, a->asked++)
			if (conn_send(c, opcode, body, length, -1, 0))
				attack_hold();
		if (conn_next(c, &answer, 60000) != 1)
			attack_hold();
		svc_close_fds(answer.fds, answer.nfds);
		if (answer.header.opcode != (opcode | SVC_REPLY))
			continue;
		open--;
		a->refused += answer.header.result != 0;
		const struct svc_region_del del = {.region = answer.body.region.region};
		if (!answer.header.result && conn_send(c, SVC_REGION_DEL, &del, sizeof(del), -1, 0))
			attack_hold();
	}
}

/* A range of n times the same region. */
static struct svc_region_range times(uint32_t n, int device, uint32_t part, uint64_t bytes)
{
	struct svc_region_range r = {.device = device, .count = n, .bytes = n * bytes};
	for (uint32_t i = 0; i < n; i++)
		r.parts[i] = part;
	return r;
}

/* Ranges of 56 ranges of 112 mappings. In the stand-in each is a mapping of the process, of which
 * Linux allows 65,530: those under way, and others about to be released, must fit. */
static void ranges(struct attacker *a)
{
	const int device = on_each_gpu();
	struct conn c;
	struct answer answer;
	if (!conn_open(&c, a->socket))
		attack_hold();
	const uint32_t part = gpu_memory(&c, device, GPU_PAGE, &answer);
	struct svc_region_range r = times(SVC_RANGE_PARTS, device, part, GPU_PAGE);
	if (!part || conn_call(&c, SVC_REGION_RANGE, &r, sizeof(r), -1, &answer))
		attack_hold();
	r = times(SVC_RANGE_PARTS / 2, device, answer.body.region.region, r.bytes);
	attack_ready(a, "8 RANGEs of 6,272 mappings under way for each GPU");
	register_and_forget(a, &c, 8, SVC_REGION_RANGE, &r, sizeof(r));
}

/* ---- Kernels that wait, beside the bystanders' own ---- */

static void tasks_beside(struct attacker *a)
{
	uint64_t n = queue_tasks(a, 262144, 0);
	attack_ready(a, "%llu tasks queued", (unsigned long long)n);
	attack_hold();
}

/* False: no more can be opened. */
static bool open_kernels(struct attacker *a, struct conn c[GPUS], struct peer_control **controls)
{
	struct rank ranks[GPUS];
	struct answer answer;
	uint32_t staging[GPUS];
	for (int i = 0; i < GPUS; i++)
		if (!conn_open(&c[i], a->socket) ||
		    !(staging[i] = gpu_memory(&c[i], i, PEER_STAGING, &answer)))
			return false;
	return gpu_join(c, staging, ranks) && (*controls = gpu_controls(&ranks[0]));
}

/* Writes plausible but false words. */
static void falsify(struct peer_control *p, int rank)
{
	for (unsigned i = 0; i < PEER_HISTORY; i++) {
		struct peer_record *r = &p->history[i];
		const int op = random() % 2 ? NCCLSVC_SEND : NCCLSVC_RECV;
		r->header = peer_header((uint8_t)op, NCCLSVC_UINT32, 0, (uint8_t)!rank, 8);
		r->kernel_seq = 1 + (uint32_t)random() % 4;
		r->message = 1 + (uint32_t)random() % 4;
		r->coll_seq = random() % 2 ? 0 : r->message;
		r->timeout_ns = 0;
		r->operation = (uint64_t)random();
	}
	for (unsigned peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++) {
		p->messages[peer_dir] = (uint32_t)random();
		p->waits[peer_dir] = UINT64_C(1) << 32 | (uint32_t)random() % 8;
	}
	p->submitted = (uint64_t)random();
	p->entered = (uint32_t)random();
	p->graphs = random() % 2;
	p->graph = random() % 2 ? UINT64_C(1) << 32 : 0;
	p->moves = 1;
	p->records = (uint32_t)random();
	p->begun = UINT64_C(1) << 32 | 1;
}

/* False control blocks, beside as many queued tasks as the user may have. */
static void false_pages(struct attacker *a)
{
	enum { COMMS = 4 };
	static struct conn c[COMMS][GPUS];
	struct peer_control *controls[COMMS];
	unsigned comms = 0;
	while (comms < COMMS && open_kernels(a, c[comms], &controls[comms]))
		comms++;
	uint64_t n = queue_tasks(a, 262144, 0);
	attack_ready(a, "%u communicators, %llu tasks queued", comms, (unsigned long long)n);
	for (;; pause_ms(2))
		for (unsigned i = 0; i < comms; i++) {
			for (int rank = 0; rank < GPUS; rank++)
				falsify(peer_control_of(controls[i], (uint32_t)rank), rank);
			a->asked++;
			if (!controls[i]->abort)
				continue;
			gpu_controls_close(controls[i]); /* the epoch has ended: start another */
			for (int rank = 0; rank < GPUS; rank++)
				conn_close(&c[i][rank]);
			a->ended++;
			if (!open_kernels(a, c[i], &controls[i]))
				attack_hold();
		}
}

const struct attack gpu_attacks[] = {
	{"gpu-none", "nothing, for comparison", .run = nothing, .gpus = true},
	{"gpu-fd-linger", "sockets whose close waits for two seconds, in requests for GPUs",
	 .run = pass_sockets, .gpus = true},
	{"gpu-fd-large", "memfds of 1 GiB, in requests for GPUs", .run = pass_memfds, .gpus = true},
	{"gpu-fd-fuse", "files whose close waits for their server, in requests for GPUs",
	 .run = pass_files, .gpus = true, .fuse = true},
	{"gpu-ranges", "RANGEs of 6,272 mappings come and go without pause", .run = ranges,
	 .gpus = true},
	{"gpu-tasks", "the whole table of tasks, beside another's kernel that waits",
	 .run = tasks_beside, .gpus = true},
	{"gpu-controls",
	 "false control blocks of kernels that wait, beside the whole table of tasks",
	 .run = false_pages, .gpus = true},
	{0}};
