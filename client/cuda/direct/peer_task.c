/* SPDX-License-Identifier: Apache-2.0
 * How kernels of the direct transport ended. Kernels do not notify the host unless a thread waits:
 * then the next kernels post their ends in the member's control block, and the GPU is asked about
 * earlier ones. */
#include <string.h>
#include <time.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "peer.h"
#include "proto/spin.h"
#include "proto/task.h"

#define POSTING	     1024	     /* kernels after the one that a thread waits for */
#define ASK_NS	     UINT64_C(20000) /* interval of a waiting thread's queries */
#define POLL_NS	     UINT64_C(200000)
#define SLEEP_MAX_NS UINT64_C(1000000) /* between looks */

/* ---- Progress ---- */

static void known(struct peer *p, uint32_t kernel_seq)
{
	if (kernel_seq && !peer_reached(p->over, kernel_seq))
		p->over = kernel_seq;
}

/* The kernel before that one; the wrap may have skipped its number. */
static uint32_t before(uint32_t kernel_seq)
{
	return kernel_seq - 1;
}

/* The newest kernel outside graphs whose end, or whose block 0's end, the control block reports. */
static uint32_t control_ended(const struct peer *p)
{
	return (uint32_t)(atomic_load_explicit(&p->control->ended, memory_order_acquire) >> 32);
}

/* A kernel's block 0 may report its end while other blocks still run; earlier kernels are over. */
static void look(struct peer *p, const struct slot *slot)
{
	const uint32_t ended = control_ended(p);
	if (ended)
		known(p, ended == slot->kernel_seq && slot->posted ? ended : before(ended));
}

bool peer_blocks_completed(const struct peer *p, uint32_t kernel_seq, unsigned blocks)
{
	bool all = blocks;
	for (unsigned i = 0; i < blocks; i++)
		all = all && peer_reached(p->completed[i], kernel_seq);
	return all;
}

static bool read_state(const struct peer *p, struct peer_state *state)
{
	const struct capture *c = p->capture;
	CUresult e = p->saved_staging ? CUDA_ERROR_NOT_READY : cuda_push(c->cuda, c->context);
	if (e)
		return false;
	const int mode = relaxed_begin(c->cuda);
	e = c->cuda->cuMemcpyDtoHAsync(state, p->own.base, sizeof(*state), p->asking);
	if (!e)
		e = c->cuda->cuStreamSynchronize(p->asking);
	relaxed_end(c->cuda, mode);
	cuda_pop(c->cuda, c->context);
	return !e;
}

void peer_ask(struct peer *p)
{
	struct peer_state state;
	const bool read = read_state(p, &state);
	p->asked_ns = now_ns();
	if (!read)
		return;
	memcpy(p->completed, state.completed, sizeof(p->completed));
	for (unsigned i = 0; i < PEER_BLOCKS; i++)
		if (p->completed[i]) /* it began after the previous kernel had ended */
			known(p, before(p->completed[i]));
	if (peer_blocks_completed(p, p->kernel_seq, p->kernel_seq_blocks))
		known(p, p->kernel_seq);
}

void peer_post_end(const struct peer *p)
{
	struct peer_state state;
	if (read_state(p, &state))
		atomic_store_explicit(
			&p->control->coll_launch_seq,
			atomic_load_explicit(&state.coll_launch_seq, memory_order_relaxed),
			memory_order_release);
}

static bool is_known_quiet(const struct peer *p)
{
	if (atomic_load_explicit(&p->failed,
				 memory_order_relaxed)) /* nothing was launched after that kernel */
		return !p->newest.any || peer_reached(p->over, p->newest.kernel_seq) ||
		       peer_blocks_completed(p, p->newest.kernel_seq, p->newest.blocks);
	return !p->kernel_seq || peer_reached(p->over, p->kernel_seq);
}

bool peer_is_quiet(struct peer *p)
{
	if (p->control && !is_known_quiet(p))
		peer_ask(p);
	return !p->control || is_known_quiet(p);
}

CUresult peer_wait_ended(const struct peer *p, CUstream stream, uint32_t kernel_seq,
			 unsigned blocks)
{
	CUstreamBatchMemOpParams ops[PEER_BLOCKS];
	const CUdeviceptr completed = p->own.base + offsetof(struct peer_state, completed);
	for (unsigned i = 0; i < blocks; i++)
		ops[i] = (CUstreamBatchMemOpParams){
			.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
				      .address = completed + i * sizeof(uint32_t),
				      .value = kernel_seq,
				      .flags = CU_STREAM_WAIT_VALUE_GEQ}};
	return p->capture->cuda->cuStreamBatchMemOp(stream, blocks, ops, 0);
}

/* ---- Statuses ---- */

static bool aborted(const struct peer *p)
{
	return atomic_load_explicit(&p->control->abort, memory_order_relaxed);
}

/* With more than two ranks: the rank whose header differs from all others, which agree; n: none. */
static unsigned odd_one(const uint64_t *headers, unsigned n)
{
	for (unsigned k = 0; n > 2 && k < n; k++) {
		const uint64_t common = headers[!k];
		bool odd = headers[k] != common;
		for (unsigned i = 0; odd && i < n; i++)
			odd = i == k || headers[i] == common;
		if (odd)
			return k;
	}
	return n;
}

static void mismatched(const struct peer *p, uint32_t kernel_seq, ncclsvc_status *status)
{
	uint64_t headers[PEER_RANKS], value_a = 0, value_b = 0;
	const peer_atomic64 *posted = p->control->headers[kernel_seq % PEER_RESULTS];
	const unsigned n = p->call.nranks;
	status->result = NCCLSVC_MISMATCH;
	for (unsigned k = 0; k < n; k++)
		headers[k] = atomic_load_explicit(&posted[k], memory_order_relaxed);
	unsigned a = p->call.rank, b = odd_one(headers, n);
	if (b < n) {
		a = !b;
		status->missing_count = 1;
		status->missing[0] = (int32_t)b;
	} else {
		for (b = 0; b < n && headers[b] == headers[a];)
			b++;
	}
	if (b == n) /* already overwritten by another kernel */
		return;
	const struct svc_record mine = svc_header_record(headers[a]),
				other = svc_header_record(headers[b]);
	status->rank_a = (int32_t)a;
	status->rank_b = (int32_t)b;
	status->pid_a = peer_control_of(p->controls, a)->pid;
	status->pid_b = peer_control_of(p->controls, b)->pid;
	status->field = svc_record_differs(&mine, &other, &value_a, &value_b);
	status->value_a = value_a;
	status->value_b = value_b;
}

static bool is_over(const struct peer *p, const struct slot *slot)
{
	return peer_reached(p->over, slot->kernel_seq) ||
	       peer_blocks_completed(p, slot->kernel_seq, slot->blocks);
}

static bool has_failed(const struct peer *p, uint32_t kernel_seq)
{
	const uint64_t result = atomic_load_explicit(
		&p->control->results[kernel_seq % PEER_RESULTS], memory_order_acquire);
	return (uint32_t)result == kernel_seq ||
	       atomic_load_explicit(&p->control->failed, memory_order_acquire);
}

/* Fills in the status of a kernel that is over, or whose epoch is. */
static bool finish(ncclsvc_session *s, struct slot *slot)
{
	const struct peer *p = slot->peer;
	const uint64_t result = atomic_load_explicit(
		&p->control->results[slot->kernel_seq % PEER_RESULTS], memory_order_acquire);
	const uint64_t failed = atomic_load_explicit(&p->control->failed, memory_order_acquire);
	ncclsvc_status *status = &slot->status;
	*status = (ncclsvc_status){
		.rank_a = -1, .rank_b = -1, .epoch = slot->epoch, .done_ns = now_ns()};
	if (is_over(p, slot) && (uint32_t)result == slot->kernel_seq &&
	    result >> 32 == PEER_MISMATCH) {
		mismatched(p, slot->kernel_seq, status);
		return true;
	}
	const bool launched = !atomic_load_explicit(&p->failed, memory_order_acquire) ||
			      !peer_reached(slot->kernel_seq, p->failed_seq);
	if (is_over(p, slot) && launched &&
	    (!failed || !peer_reached(slot->kernel_seq, (uint32_t)failed)))
		return true;
	if (is_over(p, slot) && failed >> 32 == PEER_OVERLAP) {
		status->result = NCCLSVC_SYSTEM;
		return true;
	}
	const ncclsvc_comm *comm = comm_by_key(s, slot->comm_key);
	if (!comm || !comm->broken) /* the daemon has not given the reason yet */
		return false;
	*status = comm->end;
	status->epoch = slot->epoch;
	status->done_ns = now_ns();
	return true;
}

static bool over(ncclsvc_session *s, struct slot *slot, bool ask)
{
	struct peer *p = slot->peer;
	if (!is_over(p, slot))
		look(p, slot);
	if (!is_over(p, slot) && (ask || aborted(p) || has_failed(p, slot->kernel_seq)))
		peer_ask(p);
	if (!is_over(p, slot) && !aborted(p))
		return false;
	if (!finish(s, slot)) {
		socket_pump(s); /* the daemon gives the reason */
		return false;
	}
	slot->peer = NULL;
	return true;
}

/* ---- Waiting ---- */

static bool posted(const struct peer *p, uint32_t kernel_seq)
{
	return peer_reached(control_ended(p), kernel_seq) || aborted(p);
}

/* Called without the lock. */
static void control_poll(const struct peer *p, uint32_t kernel_seq, uint64_t until)
{
	while (!posted(p, kernel_seq) && now_ns() < until)
		spin_pause();
}

/* Waits until the next look. Nothing wakes the thread, so it polls at first, and then sleeps longer
 * and longer. */
static void pause_between_looks(const struct peer *p, uint32_t kernel_seq, bool posts,
				uint64_t since, uint64_t deadline)
{
	const uint64_t now = now_ns(), waited = now - since;
	if (waited < POLL_NS) {
		const uint64_t until = posts ? since + POLL_NS : now + ASK_NS;
		control_poll(p, kernel_seq, deadline < until ? deadline : until);
		return;
	}
	if (now >= deadline)
		return;
	uint64_t ns = spin_nap_ns(waited, SPIN_NAP_SHARE);
	ns = ns < SLEEP_MAX_NS ? ns : SLEEP_MAX_NS;
	ns = deadline - now < ns ? deadline - now : ns;
	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static void wait(ncclsvc_session *s, struct slot *slot, uint64_t since, uint64_t deadline)
{
	struct peer *p = slot->peer;
	const uint64_t now = now_ns();
	p->posting = POSTING;
	if (aborted(p)) { /* until the daemon has given the reason */
		socket_step(s, deadline < now + SLEEP_MAX_NS ? deadline : now + SLEEP_MAX_NS);
		return;
	}
	if (!slot->posted && now - p->asked_ns > ASK_NS)
		peer_ask(p);
	if (is_over(p, slot))
		return;
	const uint32_t kernel_seq = slot->kernel_seq;
	const bool posts = slot->posted;
	p->capture->refs++;
	session_unlock(s);
	pause_between_looks(p, kernel_seq, posts, since, deadline);
	session_lock(s);
	capture_unref(p->capture);
}

static bool ask(struct peer *p)
{
	if (p->control && p->over != p->kernel_seq)
		peer_ask(p);
	return p->control && p->over != p->kernel_seq;
}

static void break_off(struct peer *p)
{
	if (p->control)
		atomic_store_explicit(&p->control->abort, 1, memory_order_release);
}

const struct kernel_callbacks peer_callbacks = {
	.over = over, .wait = wait, .ask = ask, .break_off = break_off, .ended = device_unpin};
