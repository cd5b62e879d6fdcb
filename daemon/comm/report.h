/* SPDX-License-Identifier: Apache-2.0
 * Failures on a communicator: each is recorded (failures/), and the log line is that record in
 * words. Ranks that end soon after a failure, and other communicators' epochs that end with them,
 * are recorded as its consequences, and logged together. A user whose communicators fail all the
 * time gets a few lines, so that those of others are seen. */
#ifndef COMM_REPORT_H
#define COMM_REPORT_H

#include "communicator.h"

struct comms;

/* Where failures are kept is in the environment (STATE_DIRECTORY). */
void report_open(struct comms *s);
void report_close(struct comms *s);

/* A member leaves, aborts, or has ended in this way: to be called before its epoch is ended. If its
 * process was told of a failure within a minute, and has done nothing with success since, that is
 * why. */
void report_ending(struct communicator *m, const struct session *c, int32_t rank,
		   struct ending ending);
/* The epoch was ended because of this session. If it is not known how its process ended, the record
 * is to say so later. */
void report_ended(struct communicator *m, const struct session *c);
/* A member has ended whose epoch was over. */
void report_ended_later(struct communicator *m, int32_t rank);

/* Tasks have failed with this status; op, rank and seq are the first one's. */
void report_tasks(struct communicator *m, const ncclsvc_status *st, unsigned op, int32_t rank,
		  uint64_t seq);
/* The epoch ends with this status. first: from what it follows, as another node says; NULL: from
 * nothing that it knows of. Changes the status into what members are to be told. */
void report_epoch(struct communicator *m, ncclsvc_status *st, const ncclsvc_status *first);
/* A member has called an operation after the epoch had ended, which is over for good reason only if
 * nobody does. */
void report_too_late(struct session *c, uint32_t handle, uint32_t epoch, unsigned op);
/* The epoch ends with this status, since members' kernels wait in vain, as the sentence says. */
void report_kernels(struct communicator *m, const ncclsvc_status *st, const char *sentence);
/* A member's operation was refused in that epoch, after that many of its rank's operations. */
struct refused_operation {
	uint32_t epoch, op;
	int32_t rank;
	int result;
	uint64_t seq;
	const char *text; /* at most 200 bytes of it are kept */
};
void report_refused(struct communicator *m, const struct refused_operation *o);
/* REFUSED: a member's library has refused an operation by itself. Replies. */
void report_refusal(struct session *c, uint32_t request_id, const struct svc_refused *request);
/* A JOIN of the session was refused, since its tenant is not admitted. */
void report_refused_tenant(const struct communicator *m, const struct session *c);
/* A request of the members ("JOIN") has failed. */
void report_request(struct communicator *m, const char *request, int result, const char *text);

#endif
