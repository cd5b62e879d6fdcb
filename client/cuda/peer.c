/* SPDX-License-Identifier: Apache-2.0
 * The memory and kernels that a member shares with others, from JOIN to LEAVE. The kernels are
 * loaded and the staging memory is mapped before JOIN, because neither may happen while a peer's
 * kernel waits. */
#include "captured_group.h"
#include "peer_graph.h"
#include "shares.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "kernels/image.h"
#include "proto/fdio.h"

#define WITHOUT                                                                                    \
	"; to run without such kernels, set NCCLSVC_PEER=0 for one rank, or peer_bytes = 0 in "    \
	"ncclsvcd.conf"

/* How long a leaving member waits for kernels that it has aborted. */
#define CLOSE_NS UINT64_C(2000000000)

/* How long a member waits for a new worker. */
#define WORKER_NS UINT64_C(3000000000)

/* ---- Kernels ---- */

int ncclsvc_has_kernels(void)
{
	return ncclsvc_peer_collective_image_size && ncclsvc_peer_direct_image_size &&
	       ncclsvc_peer_messages_image_size;
}

static CUresult load(const struct cuda *cuda, const void *image, const char *name, CUmodule *module,
		     CUfunction *function)
{
	CUresult e = cuda->cuModuleLoadData(module, image);
	if (e)
		return e;
	e = cuda->cuModuleGetFunction(function, *module, name);
	/* Without this, the function's first launch would load it, and wait for an idle GPU. */
	if (!e && cuda->cuFuncLoad)
		e = cuda->cuFuncLoad(*function);
	if (e)
		cuda->cuModuleUnload(*module);
	return e;
}

static void modules_unload(const struct cuda *cuda, struct peer_module *m)
{
	for (unsigned k = 0; k < KERNELS; k++)
		if (m->functions[k])
			cuda->cuModuleUnload(m->modules[k]);
	*m = (struct peer_module){0};
}

static bool modules_load(const struct cuda *cuda, struct peer_module *m)
{
	static const struct {
		const void *image;
		const char *name;
	} kernels[KERNELS] = {
		[KERNEL_LL] = {ncclsvc_peer_collective_image, "ncclsvc_peer_collective"},
		[KERNEL_DIRECT] = {ncclsvc_peer_direct_image, "ncclsvc_peer_direct"},
		[KERNEL_MESSAGES] = {ncclsvc_peer_messages_image, "ncclsvc_peer_messages"},
	};
	for (unsigned k = KERNEL_NONE + 1; k < KERNELS; k++) {
		if (load(cuda, kernels[k].image, kernels[k].name, &m->modules[k],
			 &m->functions[k])) {
			m->functions[k] = NULL;
			modules_unload(cuda, m);
			return false;
		}
	}
	return true;
}

/* The device's kernels, loaded at first use. The context must be current. Locked. */
static const struct peer_module *module_of(struct gpu *g, int device)
{
	if (!g->modules)
		g->modules = calloc(GPU_DEVICES, sizeof(*g->modules));
	if (!g->modules)
		return NULL;
	struct peer_module *m = &g->modules[device];
	return m->functions[KERNEL_LL] || modules_load(g->cuda, m) ? m : NULL;
}

/* ---- Before JOIN ---- */

static bool wanted(const ncclsvc_session *s, int nranks)
{
	const char *text = getenv("NCCLSVC_PEER");
	return !(text && text[0] == '0' && !text[1]) && nranks > 1 && nranks <= PEER_RANKS &&
	       ncclsvc_has_kernels() && s->gpu->cuda->cuLaunchKernel;
}

/* Gets context, kernels, streams. Locked. */
static bool prepare(ncclsvc_session *s, struct peer *p, int device, bool kernels)
{
	struct gpu *g = s->gpu;
	p->cuda = g->cuda;
	if (cuda_device(g->cuda, device, &p->device))
		return false;
	if (g->cuda->cuDevicePrimaryCtxRetain(&p->context, p->device))
		p->context = NULL;
	if (!p->context || cuda_push(g->cuda, p->context))
		return false;
	if (kernels)
		p->module = module_of(g, device);
	const bool good = (p->module || !kernels) &&
			  !g->cuda->cuStreamCreate(&p->asking, CU_STREAM_NON_BLOCKING) &&
			  !g->cuda->cuStreamCreate(&p->side_stream, CU_STREAM_NON_BLOCKING) &&
			  !g->cuda->cuEventCreate(&p->input, CU_EVENT_DISABLE_TIMING) &&
			  !g->cuda->cuEventCreate(&p->fork, CU_EVENT_DISABLE_TIMING) &&
			  !g->cuda->cuEventCreate(&p->order, CU_EVENT_DISABLE_TIMING);
	cuda_pop(g->cuda, p->context);
	return good;
}

static void destroy(struct peer *p)
{
	imports_discard(p);
	if (p->context && !cuda_push(p->cuda, p->context)) {
		for (unsigned r = 0; r < PEER_RANKS; r++)
			if (p->call.staging[r])
				shared_unmap(p->cuda, p->call.staging[r], p->own.bytes);
		if (p->controls)
			p->cuda->cuMemHostUnregister(p->controls);
		if (p->asking)
			p->cuda->cuStreamDestroy(p->asking);
		if (p->side_stream)
			p->cuda->cuStreamDestroy(p->side_stream);
		if (p->input)
			p->cuda->cuEventDestroy(p->input);
		if (p->fork)
			p->cuda->cuEventDestroy(p->fork);
		if (p->order)
			p->cuda->cuEventDestroy(p->order);
		cuda_pop(p->cuda, p->context);
	}
	if (p->context)
		p->cuda->cuDevicePrimaryCtxRelease(p->device);
	if (p->controls)
		munmap(p->controls, p->controls_bytes);
	peer_graphs_sweep(p);
	captured_groups_free(p);
	if (p->captured_page)
		atomic_fetch_or_explicit(&p->captured_page->given,
					 UINT64_C(1) << p->captured_timeline, memory_order_release);
	page_unref(p->captured_page);
}

/* ---- Epochs that are over ---- */

static bool is_quiet(const struct peer *p)
{
	if (atomic_load_explicit(&p->failed,
				 memory_order_relaxed)) /* nothing was launched after that kernel */
		return !p->any || peer_reached(p->over, p->latest) ||
		       peer_blocks_completed(p, p->latest, p->blocks);
	return !p->kernel_seq || peer_reached(p->over, p->kernel_seq);
}

/* The same, but asks the GPU if nothing else reports the end, and checks that streams are done with
 * captured groups. */
static bool becomes_quiet(struct peer *p)
{
	if (p->control && !is_quiet(p))
		peer_ask(p);
	return (!p->control || is_quiet(p)) && (!p->captured_timeline || peer_order_reached(p));
}

static void release(struct peer *p)
{
	const int mode = relaxed_begin(p->cuda);
	destroy(p);
	relaxed_end(p->cuda, mode);
	pthread_mutex_destroy(&p->turn);
	pthread_cond_destroy(&p->turned);
	free(p);
}

/* Parts whose kernels are still queued on a stream, or whose graphs may still be launched. They
 * belong to all sessions, including closed ones. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer *kept;

static void unused(struct peer *p)
{
	if (!peer_graphs_live(p) && becomes_quiet(p)) {
		release(p);
		return;
	}
	pthread_mutex_lock(&kept_lock);
	p->next = kept;
	kept = p;
	pthread_mutex_unlock(&kept_lock);
}

static void kept_sweep(void)
{
	pthread_mutex_lock(&kept_lock);
	for (struct peer **link = &kept, *p; (p = *link);) {
		if (peer_graphs_live(p) || !becomes_quiet(p)) {
			link = &p->next;
			continue;
		}
		*link = p->next;
		release(p);
	}
	pthread_mutex_unlock(&kept_lock);
}

static bool modules_are_kept(const struct gpu *g)
{
	bool any = false;
	pthread_mutex_lock(&kept_lock);
	for (const struct peer *p = kept; p; p = p->next)
		any = any || (g->modules && p->module >= g->modules &&
			      p->module < g->modules + GPU_DEVICES);
	pthread_mutex_unlock(&kept_lock);
	return any;
}

void peer_modules_unload(struct gpu *g)
{
	if (modules_are_kept(g)) {
		g->modules = NULL;
		return;
	}
	for (int d = 0; g->modules && d < GPU_DEVICES; d++) {
		struct peer_module *m = &g->modules[d];
		if (!m->functions[KERNEL_LL] || cuda_push(g->cuda, g->primary[d]))
			continue;
		modules_unload(g->cuda, m);
		cuda_pop(g->cuda, g->primary[d]);
	}
	free(g->modules);
	g->modules = NULL;
}

/* ---- A new member ---- */

static struct peer *allocate(void)
{
	struct peer *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	pthread_mutex_init(&p->turn, NULL);
	pthread_cond_init(&p->turned, NULL);
	p->refs = 1;
	p->ranks_per_gpu = 1;
	p->unused = unused;
	return p;
}

ncclsvc_result peer_bare(ncclsvc_session *s, ncclsvc_comm *comm)
{
	if (comm_captures(comm))
		return NCCLSVC_OK;
	struct peer *p = allocate();
	if (!p)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	p->own.generation = s->generation;
	const int mode = relaxed_begin(s->gpu->cuda);
	const bool good = prepare(s, p, comm->device, false);
	relaxed_end(s->gpu->cuda, mode);
	if (good) {
		comm->bare = p;
		return NCCLSVC_OK;
	}
	peer_unref(p);
	return error_set(NCCLSVC_SYSTEM, "cannot create streams and events on GPU %d",
			 comm->device);
}

/* A lost worker is replaced within about a second. JOIN would wait for it, too, but without staging
 * memory the communicator would have no kernels. */
static bool lend(ncclsvc_session *s, struct peer *p, int device, int32_t number)
{
	const uint64_t until = now_ns() + WORKER_NS;
	ncclsvc_result r = lent_map(s, number, device, PEER_STAGING, &p->own);
	while (r == NCCLSVC_WORKER_LOST && now_ns() < until) {
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		r = lent_map(s, number, device, PEER_STAGING, &p->own);
	}
	return !r;
}

struct peer *peer_new(ncclsvc_session *s, int device, int32_t number, int nranks)
{
	kept_sweep();
	if (!wanted(s, nranks))
		return NULL;
	struct peer *p = allocate();
	if (!p)
		return NULL;
	session_lock(s);
	bool good = prepare(s, p, device, true);
	session_unlock(s);
	if (good)
		good = lend(s, p, device, number);
	if (good) { /* otherwise nothing is mapped there */
		p->out_of_reach = devices_out_of_reach(s, device);
		p->call.staging[0] =
			p->own.at; /* the member's own memory, until it knows its rank */
		return p;
	}
	session_lock(s);
	peer_unref(p);
	session_unlock(s);
	return NULL;
}

void peer_discard(ncclsvc_session *s, struct peer *p)
{
	lent_forget(s, &p->own);
	session_lock(s);
	peer_unref(p);
	session_unlock(s);
}

void peer_renew(ncclsvc_session *s, ncclsvc_comm *comm, int32_t number)
{
	peer_close(s, comm);
	if (comm->device == NCCLSVC_DEVICE_HOST)
		return;
	struct peer *p = peer_new(s, comm->device, number, comm->nranks);
	session_lock(s);
	comm->peer = p;
	session_unlock(s);
}

/* ---- After JOIN ---- */

static ncclsvc_result fetch(ncclsvc_session *s, const ncclsvc_comm *comm, int32_t rank, int *fd)
{
	struct call call = {.fd = -1};
	session_lock(s);
	const struct svc_staging request = {.comm = comm->handle, .rank = rank};
	ncclsvc_result r = call_run(s, &call, SVC_STAGING, &request, -1, deadline_in(REQUEST_MS));
	session_unlock(s);
	*fd = call.fd;
	return r;
}

/* Takes ownership of the fd. The context must be current. */
static CUresult controls_map(struct peer *p, int fd, unsigned nranks)
{
	char text[SVC_TEXT_BYTES];
	const size_t bytes = (size_t)nranks * PEER_CONTROL_BYTES;
	void *at = MAP_FAILED;
	if (svc_memfd_trusted(fd, bytes, text))
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult e = p->cuda->cuMemHostRegister(
		at, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	CUdeviceptr address = 0;
	if (!e) {
		e = p->cuda->cuMemHostGetDevicePointer(&address, at, 0);
		if (e)
			p->cuda->cuMemHostUnregister(at);
	}
	if (e) {
		munmap(at, bytes);
		return e;
	}
	p->controls = at;
	p->controls_bytes = bytes;
	p->control = peer_control_of(at, p->call.rank);
	p->call.control = address + (CUdeviceptr)p->call.rank * PEER_CONTROL_BYTES;
	return CUDA_SUCCESS;
}

/* Takes ownership of the fd. */
static CUresult map(struct peer *p, const ncclsvc_comm *comm, int32_t rank, int fd)
{
	CUdevice device;
	CUdeviceptr at = 0;
	CUresult e = cuda_push(p->cuda, p->context);
	if (e) {
		close(fd);
		return e;
	}
	if (rank < 0) {
		e = controls_map(p, fd, (unsigned)comm->nranks);
	} else {
		e = p->cuda->cuCtxGetDevice(&device);
		if (!e)
			e = shared_map(p->cuda, fd, device, p->own.bytes, &at);
		close(fd);
		p->call.staging[rank] = e ? 0 : at;
	}
	cuda_pop(p->cuda, p->context);
	return e;
}

static uint8_t ranks_per_gpu(const struct peer *p)
{
	unsigned most = 1;
	for (unsigned a = 0; a < p->call.nranks; a++) {
		unsigned n = 0;
		for (unsigned b = 0; b < p->call.nranks; b++)
			n += peer_control_of(p->controls, a)->device ==
			     peer_control_of(p->controls, b)->device;
		most = n > most ? n : most;
	}
	return (uint8_t)most;
}

static ncclsvc_result open_all(ncclsvc_session *s, ncclsvc_comm *comm, struct peer *p)
{
	for (int32_t rank = -1; rank < comm->nranks; rank++) {
		int fd = -1;
		if (rank == comm->rank)
			continue;
		ncclsvc_result r = fetch(s, comm, rank, &fd);
		if (r)
			return r;
		CUresult e = map(p, comm, rank, fd);
		if (e)
			return cuda_error(p->cuda, e,
					  "cannot map the memory that a communicator's kernels "
					  "share" WITHOUT);
	}
	p->ranks_per_gpu = ranks_per_gpu(p);
	atomic_store_explicit(&p->control->open, 1, memory_order_release);
	return NCCLSVC_OK;
}

ncclsvc_result peer_open(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->peer;
	if (!p || peer_is_open(p))
		return NCCLSVC_OK;
	ncclsvc_result r = NCCLSVC_OK;
	/* A member of a split has staging memory before it knows how many ranks its part has. */
	const bool used = comm->peer_bytes && comm->nranks <= PEER_RANKS;
	if (used) {
		p->call.staging[0] = 0;
		p->call.staging[comm->rank] = p->own.at;
		p->call.rank = (uint8_t)comm->rank;
		p->call.nranks = (uint8_t)comm->nranks;
		r = open_all(s, comm, p);
	}
	/* The daemon now holds it for the member. This could not happen earlier, because the daemon
	 * sends no descriptor while an answer of its is unread. */
	lent_forget(s, &p->own);
	p->own.region = 0;
	if (used && !r) {
		session_lock(s);
		s->kernel_callbacks = &peer_callbacks;
		session_unlock(s);
		imports_begin(s, p);
		return NCCLSVC_OK;
	}
	session_lock(s);
	comm->peer = NULL;
	comm->peer_bytes = 0;
	peer_unref(p);
	session_unlock(s);
	/* A member has left: operations then fail on NCCL's path, as they would on the direct
	 * transport. */
	return r == NCCLSVC_PEER_GONE || r == NCCLSVC_STALE_EPOCH ? NCCLSVC_OK : r;
}

/* ---- The end ---- */

static void pause_unlocked(ncclsvc_session *s)
{
	session_unlock(s);
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	session_lock(s);
}

/* Tells the GPU to make later launches of the graphs do nothing. */
static void graphs_end(const struct peer *p)
{
	const CUdeviceptr dead = p->own.at + offsetof(struct peer_state, dead);
	if (cuda_push(p->cuda, p->context))
		return;
	const int mode = relaxed_begin(p->cuda);
	if (!p->cuda->cuMemsetD32Async(dead, PEER_ABORTED, 1, p->asking))
		p->cuda->cuStreamSynchronize(p->asking);
	relaxed_end(p->cuda, mode);
	cuda_pop(p->cuda, p->context);
}

/* Lets running launches end, or aborts them; later launches do nothing. Locked; yields. */
static void graphs_quiesce(ncclsvc_session *s, struct peer *p, uint64_t deadline)
{
	const peer_atomic32 *abort = &p->control->abort;
	while (!atomic_load_explicit(abort, memory_order_relaxed) && !peer_graphs_quiet(p) &&
	       now_ns() < deadline)
		pause_unlocked(s);
	if (!peer_graphs_quiet(p))
		peer_callbacks.break_off(p);
	graphs_end(p);
}

/* Locked; yields. */
static void quiesce(ncclsvc_session *s, struct peer *p)
{
	const uint64_t deadline = now_ns() + CLOSE_NS;
	if (!p->control)
		return;
	if (!becomes_quiet(p))
		peer_callbacks.break_off(p);
	if (peer_graphs_live(p))
		graphs_quiesce(s, p, deadline);
	while (!becomes_quiet(p) && now_ns() < deadline)
		pause_unlocked(s);
}

/* Cancels the kernels' tasks, which would not end otherwise. Locked. */
static void cancel_tasks(ncclsvc_session *s, const struct peer *p)
{
	tasks_look(s);
	for (uint32_t i = 0; i < s->tasks.entries; i++) {
		struct slot *slot = &s->tasks.slots[i];
		if (slot->state == SLOT_PENDING && slot->peer == p)
			kernel_task_cancel(s, slot);
	}
}

static void close_one(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->peer;
	quiesce(s, p);
	cancel_tasks(s, p);
	captured_groups_sweep(s, p);
	captured_groups_forget(s, p);
	if (p->own.region && p->own.generation == s->generation) /* it was never open */
		call_forget(s, SVC_REGION_DEL, &(struct svc_region_del){.region = p->own.region});
	comm->peer = NULL;
	comm->peer_bytes = 0;
	shares_end(s->gpu, p);
	peer_unref(p);
}

static void close_bare(ncclsvc_session *s, ncclsvc_comm *comm)
{
	struct peer *p = comm->bare;
	const uint64_t deadline = now_ns() + CLOSE_NS;
	while (p && !peer_graphs_quiet(p) && !comm->broken && now_ns() < deadline) {
		pause_unlocked(s);
		socket_pump(s); /* the epoch may be over */
	}
	if (!p)
		return;
	captured_groups_sweep(s, p);
	captured_groups_forget(s, p);
	comm->bare = NULL;
	peer_unref(p);
}

void peer_close(ncclsvc_session *s, ncclsvc_comm *comm)
{
	session_lock(s);
	if (comm->peer)
		close_one(s, comm);
	close_bare(s, comm);
	kept_sweep();
	session_unlock(s);
}

void peers_close(ncclsvc_session *s)
{
	session_lock(s);
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		if (c->peer)
			peer_callbacks.break_off(c->peer);
	for (ncclsvc_comm *c = s->comms; c; c = c->next) {
		if (c->peer)
			close_one(s, c);
		close_bare(s, c);
	}
	kept_sweep();
	session_unlock(s);
}
