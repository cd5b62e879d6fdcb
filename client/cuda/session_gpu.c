/* SPDX-License-Identifier: Apache-2.0
 * The steps of a submission, and the end of a session's GPU state. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "core/session_timeline.h"
#include "cuda/capture/capture_graph.h"
#include "cuda/capture/captured_group.h"
#include "cuda/direct/peer_life.h"
#include "cuda/direct/shares.h"
#include "gpu_state.h"
#include "proto/names.h"

/* Finds who starts the operation: its stream's timeline, the stream itself, or a graph. */
static ncclsvc_result stream_prepare(ncclsvc_session *s, struct gpu *g, struct op *op,
				     uint64_t since, bool *yielded)
{
	struct stream st;
	CUdeviceptr address;
	const ncclsvc_comm *comm = op->comm;
	ncclsvc_result r = stream_look(g, comm->device, op->stream, &st);
	if (r)
		return r;
	op->route.push = st.push;
	op->route.captured = st.captured;
	op->route.stream_started = !st.captured && captured_groups_due(s, comm->capture, g->clock);
	if (op->route.stream_started && op->planned)
		return error_set(
			NCCLSVC_UNSUPPORTED,
			"%s: communicator %s has NCCL operations in CUDA graphs: use another "
			"communicator for plans while these graphs exist",
			svc_op_name(op->record.op), comm->label);
	if (op->route.captured && op->detached)
		return capture_cannot_detach();
	if (op->route.captured) /* drivers before 12.5 cannot tell its GPU during a capture */
		return op->planned || op->record.flags & SVC_TASK_AGREE ? stream_captured()
									: NCCLSVC_OK;
	if (!op->route.stream_started)
		return stream_find(s, g, op, &st, since, yielded);
	r = stream_page(s, g, comm, &st, &address);
	return r ? r : captured_group_prepare(s, op);
}

/* Puts operations that streams start at the end. */
static void number_all(struct gpu *g, struct op *ops, unsigned n, bool finished)
{
	unsigned started = 0;
	for (unsigned i = 0; i < n; i++) {
		started += ops[i].route.stream_started;
		if (ops[i].comm->device < 0 || ops[i].route.stream_started || ops[i].route.captured)
			continue;
		if (finished)
			streams_number(g, &ops[i]);
		else
			ops[i].record.timeline = 0;
	}
	if (!finished || !started)
		return;
	captured_groups_sort(ops, n);
	captured_groups_number(ops + n - started, started);
}

static ncclsvc_result prepare(ncclsvc_session *s, struct op *ops, unsigned n, uint64_t *since,
			      bool *finished)
{
	struct gpu *g = s->gpu;
	ncclsvc_result r = NCCLSVC_OK;
	bool yielded = false;
	g->clock++;
	if (!*since)
		*since = g->clock;
	for (unsigned i = 0; !r && !yielded && i < n; i++)
		if (ops[i].comm->device >= 0)
			r = stream_prepare(s, g, &ops[i], *since, &yielded);
	if (!r && !yielded)
		r = device_buffers_find_all(s, g, ops, n, *since, &yielded);
	if (!r && !yielded)
		r = checkpoint_look(s, g, &yielded);
	*finished = !r && !yielded;
	number_all(g, ops, n, *finished);
	return r;
}

/* Another thread may be capturing into a graph; none of these calls belong to that. */
ncclsvc_result gpu_prepare(ncclsvc_session *s, struct op *ops, unsigned n, uint64_t *since,
			   bool *finished)
{
	const int mode = relaxed_begin(s->gpu->cuda);
	ncclsvc_result r = prepare(s, ops, n, since, finished);
	relaxed_end(s->gpu->cuda, mode);
	return r;
}

static ncclsvc_result enqueue(ncclsvc_session *s, const struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (ops[i].comm->device >= 0)
			device_pin(s, &ops[i], s->tasks.next - n + i);
	unsigned others = n;
	while (others && ops[others - 1].route.stream_started)
		others--;
	ncclsvc_result started = NCCLSVC_OK, ended = NCCLSVC_OK;
	/* All starts precede the first wait. */
	if (others < n)
		started = captured_groups_launch(s, ops + others, n - others, CAPTURED_GROUP_START);
	ncclsvc_result r = streams_enqueue(s, ops, others);
	if (others < n)
		ended = captured_groups_launch(s, ops + others, n - others, CAPTURED_GROUP_END);
	r = r ? r : started ? started : ended;
	if (!r)
		r = checkpoint_prove(s, s->gpu, n);
	/* Workers that have lost their daemon say so, and release the streams whose records they
	 * then see in the ring. The doorbell's fence is between our records and this check. */
	return r ? r : session_check(s);
}

ncclsvc_result gpu_submitted(ncclsvc_session *s, const struct op *ops, unsigned n)
{
	const int mode = relaxed_begin(s->gpu->cuda);
	ncclsvc_result r = enqueue(s, ops, n);
	relaxed_end(s->gpu->cuda, mode);
	return r;
}

/* The connection's page stays until its streams can no longer use it. */
static void page_leave(ncclsvc_session *s)
{
	struct gpu *g = s->gpu;
	streams_forget(s);
	if (!g->page)
		return;
	g->page->next = g->retired;
	g->retired = g->page;
	g->page = NULL;
}

void gpu_reattached(ncclsvc_session *s)
{
	if (!s->gpu)
		return;
	page_leave(s);
	device_regions_forget(s, s->gpu);
}

ncclsvc_result gpu_comm_resumed(ncclsvc_session *s, ncclsvc_comm *comm)
{
	ncclsvc_result r = peer_resumed(s, comm);
	if (comm->asleep && !comm->peer)
		call_forget(s, SVC_SLEEP, &(struct svc_sleep){.comm = comm->handle, .asleep = 1});
	if (!r && comm->capture)
		r = captured_groups_again(s, comm);
	return r;
}

void gpu_comm_release(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	const struct capture *c = comm->capture;
	const uint32_t line = c ? c->groups.timeline : 0;
	if (!line || !s->gpu || s->gpu->page != c->groups.page)
		return;
	struct svc_timeline *words = stream_counters(s->gpu, line);
	timeline_raise(&words->done, SVC_CAPTURED_GROUP_DEAD);
	if (c->connections != session_connections(s)) /* no daemon has it that could release it */
		atomic_store(&words->captured_groups, SVC_CAPTURED_NONE);
}

void gpu_back(const ncclsvc_session *s)
{
	if (s->gpu && s->gpu->importer)
		importer_wake(s->gpu->importer);
}

void gpu_drop_retired(ncclsvc_session *s)
{
	struct gpu *g = s->gpu;
	if (!g)
		return;
	CUcontext contexts[GPU_DEVICES];
	session_lock(s);
	struct page *page = g->retired;
	g->retired = NULL;
	memcpy(contexts, g->primary, sizeof(contexts));
	session_unlock(s);
	while (page) {
		struct page *next = page->next;
		page_retire(page, contexts);
		page = next;
	}
}

void gpu_quiesce(ncclsvc_session *s)
{
	struct gpu *g = s->gpu;
	if (!g)
		return;
	peers_close(s);
	importer_stop(g);
	gpu_drop_retired(s);
	if (g->page) {
		/* The daemon gives up pending tasks, and no longer writes to the timelines. */
		shutdown(s->connection->sock, SHUT_RDWR);
		page_retire(g->page, g->primary);
		g->page = NULL;
	}
}

void gpu_close(ncclsvc_session *s)
{
	struct gpu *g = s->gpu;
	if (!g)
		return;
	peer_modules_unload(g);
	device_allocations_free(g);
	checkpoint_close(g);
	for (int d = 0; d < GPU_DEVICES; d++) {
		CUdevice cu;
		if (g->primary[d] && !cuda_device(g->cuda, d, &cu))
			g->cuda->cuDevicePrimaryCtxRelease(cu);
	}
	for (unsigned i = 0; i < DEVICE_REGIONS; i++)
		free(g->regions[i].parts);
	free(g->regions);
	free(g->sorted);
	free(g->pins);
	free(g);
	s->gpu = NULL;
}
