/* SPDX-License-Identifier: Apache-2.0
 * Failed tasks, kept longer than their slots: until they are reported and pushed out by newer ones.
 */
#ifndef CLIENT_CORE_FAILURE_H
#define CLIENT_CORE_FAILURE_H

#include "base/error.h"
#include "task_slot.h"

#define FAILURES_KEPT 4096

/* A failed task, kept longer than its slot. */
struct failure {
	bool handled;  /* some call has told the user, or none needs to */
	bool reported; /* some call has told the user */
	uint8_t op;
	uint32_t comm_key;
	uint64_t seq;
	ncclsvc_status status;
	char comm[NCCLSVC_NAME_BYTES];
	char label[NCCLSVC_LABEL_BYTES]; /* label of a planned task */
	char text[LOST_TEXT];		 /* more than the status can say; may be empty */
};

/* Remembers that the task failed. `text` says more than the status, or is "". Locked. */
void failure_keep(ncclsvc_session *s, const struct slot *slot, const char *text);
struct failure *failure_find(const struct tasks *t, uint64_t task);
/* Whether a call has reported a task failure with this result, in that epoch of that communicator.
 * Locked. */
bool failure_reported(const ncclsvc_session *s, uint32_t comm_key, uint32_t epoch,
		      ncclsvc_result result);
/* Writes the status of an ended task; all zeros with result OK if it is forgotten. Locked. */
void task_status_of(ncclsvc_session *s, uint64_t task, ncclsvc_status *status);
/* Returns an ended task's result, stores its sentence, and marks it as reported. Locked. */
ncclsvc_result task_report(ncclsvc_session *s, uint64_t task);
/* Returns the result of the first failure not yet handled, and stores its sentence. Looks at one
 * communicator (key), or with key 0 at all communicators up to a task and marks all these failures
 * as handled. OK: no failure. Locked. */
ncclsvc_result failures_report(ncclsvc_session *s, uint32_t comm_key, uint64_t last);
void failures_forgive(ncclsvc_session *s, uint32_t comm_key); /* locked */

#endif
