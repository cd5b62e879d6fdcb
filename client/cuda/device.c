/* SPDX-License-Identifier: Apache-2.0
 * GPUs in a session: which of the daemon's workers serves a device, and the steps of a submission.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "captured_group.h"
#include "core/comm.h"
#include "core/op.h"
#include "core/session.h"
#include "peer.h"
#include "shares.h"
#include "state.h"

#define REACH_BYTES                                                                                \
	((size_t)2 << 20) /* size of the allocation that tests whether a device is in reach */

/* The session's GPU part, created at first use. NULL with the error set. Locked. */
static struct gpu *gpu_get(ncclsvc_session *s)
{
	if (s->gpu)
		return s->gpu;
	const struct cuda *cuda = cuda_open();
	if (!cuda)
		return NULL;
	struct gpu *g = calloc(1, sizeof(*g));
	if (!g || !(g->regions = calloc(DEVICE_REGIONS, sizeof(*g->regions))) ||
	    !(g->sorted = calloc(DEVICE_REGIONS, sizeof(*g->sorted))) ||
	    !(g->pins = calloc(s->tasks.entries, sizeof(*g->pins)))) {
		if (g) {
			free(g->regions);
			free(g->sorted);
			free(g);
		}
		error_set(NCCLSVC_NO_MEMORY, "out of memory");
		return NULL;
	}
	g->cuda = cuda;
	return s->gpu = g;
}

ncclsvc_result gpu_primary(struct gpu *g, int device, CUcontext *context)
{
	CUdevice cu;
	if (device >= GPU_DEVICES)
		return error_set(NCCLSVC_LIMIT, "there is no GPU %d: %d GPUs can be used", device,
				 GPU_DEVICES);
	if (!g->primary[device]) {
		ncclsvc_result r = cuda_device(g->cuda, device, &cu);
		if (r)
			return r;
		CUresult e = g->cuda->cuDevicePrimaryCtxRetain(&g->primary[device], cu);
		if (e) {
			g->primary[device] = NULL;
			return cuda_error(g->cuda, e, "CUDA cannot create a context on the GPU");
		}
	}
	*context = g->primary[device];
	return NCCLSVC_OK;
}

static void uuid_text(const uint8_t *u, char *to)
{
	to += sprintf(to, "GPU-");
	for (int i = 0; i < 16; i++)
		to += sprintf(to, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", u[i]);
}

static ncclsvc_result match(const ncclsvc_device_info *list, size_t n, const CUuuid *uuid,
			    int device, int32_t *number)
{
	char text[64];
	for (size_t i = 0; i < n; i++) {
		if (memcmp(list[i].uuid, uuid->bytes, sizeof(list[i].uuid)))
			continue;
		if (list[i].state == NCCLSVC_DEVICE_FAILED)
			return error_set(NCCLSVC_UNSUPPORTED,
					 "the daemon cannot use GPU %d (its device %d): %.*s",
					 device, list[i].device, (int)sizeof(list[i].text),
					 list[i].text);
		if (list[i].device < 0)
			return error_set(NCCLSVC_PROTOCOL,
					 "the daemon reported an invalid number for GPU %d: %d",
					 device, list[i].device);
		*number = list[i].device;
		return NCCLSVC_OK;
	}
	uuid_text((const uint8_t *)uuid->bytes, text);
	return error_set(NCCLSVC_UNSUPPORTED,
			 "the daemon has no worker for GPU %d (%s) among its %zu: list its devices "
			 "with `ncclsvc-ctl devices`",
			 device, text, n);
}

ncclsvc_result device_match(ncclsvc_session *s, int device, int32_t *number)
{
	ncclsvc_device_info *list = NULL;
	size_t n = 0;
	CUuuid uuid;
	CUdevice cu;
	const struct cuda *cuda = cuda_open();
	if (!cuda)
		return NCCLSVC_UNSUPPORTED;
	ncclsvc_result r = cuda_device(cuda, device, &cu);
	if (r)
		return r;
	CUresult e = cuda->cuDeviceGetUuid(&uuid, cu);
	if (e)
		return cuda_error(cuda, e, "CUDA does not report the GPU's UUID");
	r = ncclsvc_list_devices(s, &list, &n);
	if (!r)
		r = match(list, n, &uuid, device, number);
	ncclsvc_list_free(list);
	return r;
}

static bool is_visible(const struct cuda *cuda, const uint8_t uuid[16])
{
	int n = 0;
	CUdevice cu;
	CUuuid own;
	if (cuda->cuDeviceGetCount(&n))
		return false;
	for (int i = 0; i < n; i++)
		if (!cuda->cuDeviceGet(&cu, i) && !cuda->cuDeviceGetUuid(&own, cu) &&
		    !memcmp(own.bytes, uuid, sizeof(own.bytes)))
			return true;
	return false;
}

static uint16_t try_devices(ncclsvc_session *s, int device)
{
	ncclsvc_device_info *list = NULL;
	size_t n = 0;
	uint16_t out = 0;
	if (ncclsvc_list_devices(s, &list, &n))
		return 0;
	for (size_t i = 0; i < n; i++) {
		const int32_t number = list[i].device;
		if (number < 0 || number >= 16 || list[i].state != NCCLSVC_DEVICE_READY ||
		    is_visible(s->gpu->cuda, list[i].uuid))
			continue;
		if (!lent_can_map(s, number, device, REACH_BYTES))
			out |= (uint16_t)(1u << number);
	}
	ncclsvc_list_free(list);
	return out;
}

/* A device that CUDA shows is in reach. For the others, a small allocation is tried: a device that
 * only CUDA_VISIBLE_DEVICES hides can be mapped, one without a device node cannot. The answer holds
 * for the process; the numbers are this daemon's. */
uint16_t devices_out_of_reach(ncclsvc_session *s, int device)
{
	struct gpu *g = s->gpu;
	session_lock(s);
	const bool known = g->reach_generation == s->generation + 1;
	const uint16_t before = g->out_of_reach;
	session_unlock(s);
	if (known)
		return before;
	const uint16_t out = try_devices(s, device);
	session_lock(s);
	g->out_of_reach = out;
	g->reach_generation = s->generation + 1;
	session_unlock(s);
	return out;
}

ncclsvc_result gpu_usable(ncclsvc_session *s)
{
	ncclsvc_result r = NCCLSVC_OK;
	if (s->options.no_ring)
		return error_set(NCCLSVC_UNSUPPORTED, "GPU communicators need a session with a "
						      "ring: open it without no_ring");
	if (!cuda_open())
		return NCCLSVC_UNSUPPORTED;
	session_lock(s);
	if (!gpu_get(s))
		r = NCCLSVC_NO_MEMORY;
	session_unlock(s);
	return r;
}

ncclsvc_result devices_rematch(ncclsvc_session *s)
{
	uint64_t wanted = 0; /* one bit for each of GPU_DEVICES */
	int32_t numbers[GPU_DEVICES];
	ncclsvc_result r = NCCLSVC_OK;
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		if (c->device >= 0 && !c->split)
			wanted |= UINT64_C(1) << c->device;
	if (!wanted)
		return NCCLSVC_OK;
	session_unlock(s);
	for (int d = 0; !r && d < GPU_DEVICES; d++)
		if (wanted >> d & 1)
			r = device_match(s, d, &numbers[d]);
	session_lock(s);
	for (ncclsvc_comm *c = s->comms; !r && c; c = c->next)
		if (c->device >= 0 && wanted >> c->device & 1)
			c->daemon_device = numbers[c->device];
	return r;
}

/* Querying memory needs a current context: a thread that has none gets one meanwhile. */
static ncclsvc_result buffers_find_all(ncclsvc_session *s, struct gpu *g, struct op *ops,
				       unsigned n, uint64_t since, bool *yielded)
{
	CUcontext now = NULL, own = NULL;
	ncclsvc_result r = NCCLSVC_OK;
	g->cuda->cuCtxGetCurrent(&now);
	for (unsigned i = 0; !r && !*yielded && i < n; i++) {
		if (ops[i].comm->device < 0)
			continue;
		if (!now && !own) {
			r = gpu_primary(g, ops[i].comm->device, &own);
			CUresult e = r ? CUDA_SUCCESS : g->cuda->cuCtxPushCurrent(own);
			if (e) {
				own = NULL;
				r = cuda_error(g->cuda, e, "cannot use the GPU's context");
			}
		}
		if (!r)
			r = device_buffers_find(s, g, &ops[i], since, yielded);
	}
	if (own)
		g->cuda->cuCtxPopCurrent(&own);
	return r;
}

/* Puts operations that streams start at the end. */
static void number_all(struct gpu *g, struct op *ops, unsigned n, bool finished)
{
	unsigned started = 0;
	for (unsigned i = 0; i < n; i++) {
		started += ops[i].stream_started;
		if (ops[i].comm->device < 0 || ops[i].stream_started || ops[i].captured)
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
			r = stream_find(s, g, &ops[i], *since, &yielded);
	if (!r && !yielded)
		r = buffers_find_all(s, g, ops, n, *since, &yielded);
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
	while (others && ops[others - 1].stream_started)
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

void gpu_reattached(ncclsvc_session *s)
{
	struct gpu *g = s->gpu;
	if (!g)
		return;
	streams_forget(s);
	device_regions_forget(s, g);
	/* Streams may still have to write to the page: keep it until they cannot. */
	g->retired = g->page;
	g->page = NULL;
}

void ncclsvc_mem_sweep(ncclsvc_session *s)
{
	CUcontext now = NULL, own = NULL;
	if (!s)
		return;
	session_lock(s);
	struct gpu *g = s->gpu;
	/* As in buffers_find_all; without a region there is no context. */
	if (g && g->nsorted && !session_check(s) && !g->cuda->cuCtxGetCurrent(&now)) {
		ncclsvc_result r =
			now ? NCCLSVC_OK : gpu_primary(g, g->regions[g->sorted[0]].device, &own);
		if (!r && !cuda_push(g->cuda, own)) {
			tasks_look(s); /* regions whose tasks are over */
			device_regions_sweep(s, g);
			cuda_pop(g->cuda, own);
		}
	}
	session_unlock(s);
}

void gpu_drop_retired(ncclsvc_session *s)
{
	struct gpu *g = s->gpu;
	if (!g || !g->retired)
		return;
	CUcontext contexts[GPU_DEVICES];
	session_lock(s);
	memcpy(contexts, g->primary, sizeof(contexts));
	session_unlock(s);
	page_retire(g->retired, contexts);
	g->retired = NULL;
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
		shutdown(g->page->connection->sock, SHUT_RDWR);
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
	device_lent_free(g);
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
