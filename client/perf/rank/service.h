/* SPDX-License-Identifier: Apache-2.0
 * The service as a rank uses it, whatever its memory is. */
#ifndef PERF_SERVICE_H
#define PERF_SERVICE_H

#include "command.h"
#include "ncclsvc_plan.h"
#include "rank.h"

ncclsvc_result service_open(const struct rank_options *options, ncclsvc_session **session);
/* Joins options->id; device: a CUDA ordinal or NCCLSVC_DEVICE_HOST. */
ncclsvc_result service_join(ncclsvc_session *session, const struct rank_options *options,
			    int device, ncclsvc_comm **comm);
/* Submits the work. task[1] is SendRecv's second, or 0. */
ncclsvc_result service_submit(ncclsvc_session *session, ncclsvc_comm *comm, const struct work *w,
			      void *send, void *recv, ncclsvc_task task[2]);

/* SendRecv by the planned service, again and again. */
struct service_plan {
	ncclsvc_plan *plan; /* NULL: none */
	unsigned at;	    /* group */
};

/* Commits it, with the other ranks. */
ncclsvc_result service_plan_start(struct service_plan *p, ncclsvc_comm *comm, int timeout_ms);
ncclsvc_result service_plan_submit(struct service_plan *p, ncclsvc_comm *comm, const struct work *w,
				   void *send, void *recv, int timeout_ms, ncclsvc_task task[2]);

/* "what: SENTENCE" of the thread's last failed call, on stderr. Always false. */
bool service_complain(const char *what);
/* The thread's last failure as a reply. */
void service_explain(struct job_reply *reply, ncclsvc_result result);

#endif
