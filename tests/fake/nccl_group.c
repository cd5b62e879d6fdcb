/* SPDX-License-Identifier: Apache-2.0
 * Groups: ncclGroupEnd launches the calls made since ncclGroupStart, with one launch per
 * communicator. */
#include <stdlib.h>
#include <string.h>

#include "nccl_fake.h"

static _Thread_local unsigned depth;
static _Thread_local struct ncclComm *comms;
static _Thread_local ncclResult_t failed; /* first error; the group launches nothing */

bool nccl_grouping(void)
{
	return depth > 0;
}

static void launch_drop(struct launch *l)
{
	for (struct work *w = l->works, *next; w; w = next) {
		next = w->next;
		work_free(w);
	}
	free(l);
}

/* Orders the launch after earlier work on the group's other stream (before), or that stream's later
 * work after the launch. */
static ncclResult_t streams_join(const struct launch *l, const struct launch *other, bool before)
{
	CUevent event;
	if (cuEventCreate(&event, CU_EVENT_DISABLE_TIMING))
		return nccl_error(ncclUnhandledCudaError, "cuEventCreate failed");
	CUresult error = cuEventRecord(event, before ? other->stream : l->stream);
	if (!error)
		error = cuStreamWaitEvent(before ? l->stream : other->stream, event, 0);
	cuEventDestroy(event);
	return error ? nccl_error(ncclUnhandledCudaError, "CUDA error %d", error) : ncclSuccess;
}

static struct launch *launch_new(struct ncclComm *c, CUstream stream)
{
	struct launch *l = calloc(1, sizeof(*l));
	if (l)
		*l = (struct launch){.comm = c, .stream = stream, .tail = &l->works};
	return l;
}

/* Fails on a captured stream. */
static CUresult enqueue(struct launch *l)
{
	static const struct fake_work work = {.run = launch_run, .drop = launch_free};
	struct ncclComm *c = l->comm; /* l may be freed as soon as it is enqueued */
	const uint64_t ticket = l->ticket = atomic_load(&c->launched) + 1;
	CUresult error = fake_stream_enqueue(l->stream, &work, l);
	if (!error)
		atomic_store(&c->launched, ticket);
	return error;
}

static ncclResult_t launch(struct launch *l)
{
	struct ncclComm *c = l->comm;
	CUcontext context;
	CUresult error = cuStreamGetCtx(l->stream, &context);
	if (!error && context != c->context) {
		launch_drop(l);
		return nccl_error(ncclInvalidArgument, "the stream is of another device");
	}
	if (!error)
		error = enqueue(l);
	if (error) {
		launch_drop(l);
		return nccl_error(ncclUnhandledCudaError, "CUDA error %d", error);
	}
	return ncclSuccess;
}

/* Finds or creates the open group's launch on the stream. */
static struct launch *group_launch(struct ncclComm *c, CUstream stream)
{
	if (!c->group) {
		c->next_in_group = comms;
		comms = c;
	}
	struct launch **link = &c->group;
	while (*link && (*link)->stream != stream)
		link = &(*link)->next;
	if (!*link)
		*link = launch_new(c, stream);
	return *link;
}

ncclResult_t nccl_submit(struct ncclComm *c, CUstream stream, struct work *work)
{
	struct launch *l = depth ? group_launch(c, stream) : launch_new(c, stream);
	if (!l) {
		work_free(work);
		return nccl_error(ncclSystemError, "out of memory");
	}
	if (depth)
		l = c->group; /* the first stream's launch holds all works */
	*l->tail = work;
	l->tail = &work->next;
	if (depth)
		return ncclSuccess;
	p2p_connect(l);
	ncclResult_t error = p2p_connected(l);
	if (error)
		launch_drop(l);
	return error ? error : launch(l);
}

ncclResult_t nccl_group_note(ncclResult_t error)
{
	if (depth && !failed)
		failed = error;
	return error;
}

ncclResult_t ncclGroupStart(void)
{
	depth++;
	return ncclSuccess;
}

static ncclResult_t comm_launch(struct ncclComm *c)
{
	struct launch *first = c->group;
	struct launch *others = first->next;
	ncclResult_t error = ncclSuccess;
	for (const struct launch *o = others; o && !error; o = o->next)
		error = streams_join(first, o, true);
	struct launch at = {.stream = first->stream};
	c->group = NULL;
	if (error || failed)
		launch_drop(first);
	else
		error = launch(first);
	for (struct launch *next; others; others = next) {
		next = others->next;
		if (!error)
			error = streams_join(&at, others, false);
		launch_drop(others);
	}
	return error;
}

ncclResult_t ncclGroupEnd(void)
{
	if (depth == 0)
		return nccl_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
	if (--depth)
		return ncclSuccess;
	ncclResult_t error = joins_run();
	if (!failed)
		failed = error;
	for (const struct ncclComm *c = comms; c && !failed; c = c->next_in_group)
		p2p_connect(c->group);
	for (const struct ncclComm *c = comms; c && !failed; c = c->next_in_group)
		failed = p2p_connected(c->group);
	while (comms) {
		struct ncclComm *c = comms;
		comms = c->next_in_group;
		error = comm_launch(c);
		if (!failed)
			failed = error;
	}
	error = failed;
	failed = ncclSuccess;
	return error;
}
