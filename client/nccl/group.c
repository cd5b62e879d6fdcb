/* SPDX-License-Identifier: Apache-2.0
 * Groups: a thread's calls between ncclGroupStart and the outermost ncclGroupEnd. */
#include <stdio.h>
#include <stdlib.h>

#include "dropin.h"

struct group {
	unsigned depth;
	ncclResult_t failed; /* the first refusal, for ncclGroupEnd */
	char text[1024];
	struct job *jobs;
	unsigned njobs, room;
	struct start *starts, **starts_end;
};

static _Thread_local struct group group;

bool group_is_open(void)
{
	return group.depth;
}

void group_note(ncclResult_t result)
{
	if (!group.depth || group.failed || !result || result == ncclInProgress)
		return;
	group.failed = result;
	snprintf(group.text, sizeof(group.text), "%s", last_sentence());
}

ncclResult_t group_add_job(const struct job *job)
{
	if (group.njobs == RING_ENTRIES)
		return fail(ncclInvalidUsage, "a group has at most %d operations: end it earlier",
			    RING_ENTRIES);
	if (group.njobs == group.room) {
		unsigned room = group.room ? 2 * group.room : 16;
		struct job *grown = realloc(group.jobs, room * sizeof(*grown));
		if (!grown)
			return fail(ncclSystemError, "out of memory");
		group.jobs = grown;
		group.room = room;
	}
	group.jobs[group.njobs] = *job;
	handle_ref(group.jobs[group.njobs++].comm);
	return ncclSuccess;
}

void group_add_start(struct start *start)
{
	if (!group.starts)
		group.starts_end = &group.starts;
	*group.starts_end = start;
	group.starts_end = &start->next;
}

ncclResult_t ncclGroupStart(void)
{
	if (!group.depth++)
		group.failed = ncclSuccess;
	return ncclSuccess;
}
NCCL_TWIN(ncclGroupStart);

/* As they fail together, they were never begun. */
static void drop_starts(struct start *list, ncclResult_t why, const char *text)
{
	while (list) {
		struct start *s = list;
		list = s->next;
		start_drop(s, why, text);
	}
}

ncclResult_t ncclGroupEnd(void)
{
	if (!group.depth)
		return fail(ncclInvalidUsage, "ncclGroupEnd: there was no ncclGroupStart");
	if (--group.depth)
		return ncclSuccess;
	struct start *starts = group.starts;
	struct job *jobs = group.jobs;
	unsigned n = group.njobs;
	ncclResult_t r = group.failed;
	group.starts = NULL;
	group.njobs = 0; /* who makes groups makes many: the room is kept */
	if (r) {
		fail(r, "%s", group.text);
		drop_starts(starts, r, group.text);
	} else {
		r = starts ? starts_run(starts) : ncclSuccess;
		if (n && (!r || r == ncclInProgress)) {
			ncclResult_t submitted = jobs_submit(jobs, n);
			r = submitted ? submitted : r;
		}
	}
	for (unsigned i = 0; i < n; i++)
		handle_unref(jobs[i].comm);
	return r;
}
NCCL_TWIN(ncclGroupEnd);

/* What a group will take is known to the daemon's NCCL alone. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	if (!info || info->magic != NCCL_SIM_MAGIC)
		return fail(ncclInvalidArgument,
			    "ncclGroupSimulateEnd: the info was not made with "
			    "NCCL_SIM_INFO_INITIALIZER");
	return fail(ncclInvalidUsage,
		    "ncclGroupSimulateEnd: a group is planned in the daemon when it runs: time it, "
		    "or ask NCCL itself");
}
NCCL_TWIN(ncclGroupSimulateEnd);
