/* SPDX-License-Identifier: Apache-2.0
 *
 * libncclsvc's planned service: Sends and Recvs in groups that are known before the first of them
 * runs. All members of a communicator plan, and their plans are matched when they are committed: a
 * Send without its Recv, an order that can never be carried out, or sizes that do not fit are
 * errors then, and no hang later. The plan lives in the daemon, which runs its groups strictly in
 * plan order, each as one task group (on GPUs as one ncclGroupStart and ncclGroupEnd), as soon as
 * all of its tasks have been submitted.
 *
 * Names of ONNX Runtime's NcclService, and what they are here:
 *
 *   PlanStart, PlanEnd             ncclsvc_plan_start, ncclsvc_plan_end
 *   PlanNewGroupStart, -End        ncclsvc_plan_group_start, ncclsvc_plan_group_end
 *   PlanSend, PlanRecv             ncclsvc_plan_send, ncclsvc_plan_recv
 *   Launch                         ncclsvc_plan_launch
 *   SubmitSendAndWait, -Recv-      ncclsvc_plan_submit_send_and_wait, _recv_and_wait, of a plan
 *                                  with ncclsvc_plan_set_strict
 *   EnqueueTask's info             ncclsvc_plan_label
 *   Reset, Terminate               ncclsvc_plan_reset, ncclsvc_plan_terminate
 *
 * Lists of tensors can be tasks, too: see ncclsvc_tensors.h.
 *
 * Threads: all functions may be called from any thread, but for those from plan_start to plan_end
 * (one thread plans; others may wait for the launch) and plan_terminate (the last call).
 * Errors: as everywhere, a result and ncclsvc_last_error(). Nothing ends the process.
 */
#ifndef NCCLSVC_PLAN_H
#define NCCLSVC_PLAN_H

#include "ncclsvc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclsvc_plan ncclsvc_plan; /* one member's part of a plan */

#define NCCLSVC_PLAN_ANY SIZE_MAX /* a count: whatever is submitted */

/* ---- Planning: local until plan_end ----------------------------------------------------- */

/* Begins a plan for the communicator's Sends and Recvs. A member has one plan at a time on a
 * communicator (BUSY at plan_end). *plan belongs to the session; free it with plan_terminate. Its
 * communicator must not be left before; if it is, all other calls say so. Never blocks. */
ncclsvc_result ncclsvc_plan_start(ncclsvc_comm *comm, ncclsvc_plan **plan);

/* Groups follow one another, and do not nest. One without tasks is allowed, and is over at once. */
ncclsvc_result ncclsvc_plan_group_start(ncclsvc_plan *plan);
ncclsvc_result ncclsvc_plan_group_end(ncclsvc_plan *plan);

/* A task of the open group. The k-th Send from a to b, in plan order, matches the k-th Recv at b
 * from a. Several of one group may be alike. count and type: what will be submitted;
 * NCCLSVC_PLAN_ANY leaves both open (type is ignored then). LIMIT: 65536 tasks in a plan, 4096 in a
 * group. */
ncclsvc_result ncclsvc_plan_send(ncclsvc_plan *plan, size_t count, ncclsvc_type type, int peer);
ncclsvc_result ncclsvc_plan_recv(ncclsvc_plan *plan, size_t count, ncclsvc_type type, int peer);

/* Names the task that was planned last, for inspection and in errors: at most 23 characters of
 * printable ASCII, copied; "" takes the name away. INVALID_ARGUMENT: another text, or no task. */
ncclsvc_result ncclsvc_plan_label(ncclsvc_plan *plan, const char *label);

/* Ends the plan and commits it. Blocks until all members have, for at most timeout_ms; all get the
 * same answer. MISMATCH: the plans do not fit, the sentence names ranks, group and task. TIMEOUT
 * names the ranks that have not committed. PEER_GONE: a member or its node is gone. After an error
 * the plan may be committed again by the same call, or terminated, but no longer changed. */
ncclsvc_result ncclsvc_plan_end(ncclsvc_plan *plan, int timeout_ms);

/* ---- Running ---------------------------------------------------------------------------- */

/* If strict, this member's blocking submissions are as NcclService's: a Send, too, returns when its
 * whole group is done, and is not copied to return earlier; each returns the failure of its own
 * task alone, as soon as that fails. So it takes a thread for each task of a group: one thread that
 * submits two of them one after the other gets TIMEOUT, which names the one that lacks.
 * INVALID_ARGUMENT: after plan_launch. Never blocks. */
ncclsvc_result ncclsvc_plan_set_strict(ncclsvc_plan *plan, bool strict);

/* From now on tasks may be submitted. INVALID_ARGUMENT: before plan_end, or twice. */
ncclsvc_result ncclsvc_plan_launch(ncclsvc_plan *plan);

#define NCCLSVC_PLAN_FIRST UINT32_MAX /* a group: the first that has a free place for the task */

/* Flags of a submission. */
#define NCCLSVC_PLANNED_WAIT   1u /* it blocks */
/* The caller leaves the buffer as it is until the task's group is done: a blocking Send that
 * returns early is not copied, if it is in session memory or a GPU's. */
#define NCCLSVC_PLANNED_STABLE 2u

typedef struct ncclsvc_planned {
	size_t size;   /* sizeof(ncclsvc_planned): lets the struct grow */
	ncclsvc_op op; /* NCCLSVC_SEND or NCCLSVC_RECV */
	ncclsvc_type type;
	const void *sendbuf; /* a Send's; NULL for a Recv */
	void *recvbuf;	     /* a Recv's; NULL for a Send */
	size_t count;	     /* elements */
	int peer;
	uint32_t group; /* from 0, or NCCLSVC_PLAN_FIRST */
	unsigned flags;
} ncclsvc_planned;

/* Submits a task: with NCCLSVC_PLANNED_WAIT as the calls that wait do, else as those that return
 * (timeout_ms is not used then). The four calls are shorthands for it, with NCCLSVC_PLAN_FIRST. Of
 * several places of the group that are alike, it takes the first. *task (may be NULL) is 0 if the
 * task was not submitted; after a wait's TIMEOUT it goes on. INVALID_ARGUMENT: as theirs, or the
 * group has no free place for it: the sentence says what the group has. */
ncclsvc_result ncclsvc_plan_submit(ncclsvc_plan *plan, const ncclsvc_planned *planned,
				   int timeout_ms, ncclsvc_task *task);

/* Submit a task and return. It takes the earliest place of this iteration that was planned for this
 * operation and peer and has not been taken: places that are alike go in order of submission,
 * others in any order, from any thread. It is held until its group, and all groups before it, have
 * all their tasks. Buffers, streams, timelines and deadlines (ncclsvc_comm_set_timeout, counted
 * from the submission) are those of ncclsvc_send and ncclsvc_recv, but for GPUs: the input is
 * ordered after the thread's stream, and later work on the stream does not wait, as with
 * NCCLSVC_STREAM_DETACHED; once its group is submitted, ncclsvc_stream_wait orders what needs the
 * result. Tasks of one stream must be submitted in the order of their groups.
 * *task may be NULL. INVALID_ARGUMENT: not launched, not planned, all its places are taken (reset
 * first), another count or type than planned, or the thread has an open task group. STALE_EPOCH:
 * rejoin the communicator, then reset. AGAIN: the ring is full. BUSY: another thread resets the
 * plan, or a list of an earlier group will come to this stream. */
ncclsvc_result ncclsvc_plan_submit_send(ncclsvc_plan *plan, const void *sendbuf, size_t count,
					ncclsvc_type type, int peer, ncclsvc_task *task);
ncclsvc_result ncclsvc_plan_submit_recv(ncclsvc_plan *plan, void *recvbuf, size_t count,
					ncclsvc_type type, int peer, ncclsvc_task *task);

/* A planned task is done when its whole group is. Returns the first failure in it, or OK. TIMEOUT:
 * of this wait, which names a task that its group lacks, if that is why; the task goes on. Of tasks
 * of former iterations: as ncclsvc_wait. (ncclsvc_wait and ncclsvc_test are allowed, too: they tell
 * of the single task, which may end before its group.) */
ncclsvc_result ncclsvc_plan_wait(ncclsvc_plan *plan, ncclsvc_task task, int timeout_ms);
/* IN_PROGRESS, or the same. Never blocks. */
ncclsvc_result ncclsvc_plan_test(ncclsvc_plan *plan, ncclsvc_task task);

/* Submit a task and wait for its group. But a Send whose group cannot begin yet, because this rank
 * has not submitted all of it (or of an earlier one), is copied, and returns: its buffer is free
 * again, and a single thread can go on to submit what lacks. How such a Send ended, another task of
 * its group tells, or plan_reset. With plan_set_strict, Sends are as Recvs. Before plan_launch,
 * they first wait for another thread to launch; the wait ends, too, when the plan is terminated,
 * or its communicator breaks or is left. TIMEOUT: not launched in that time, and nothing was
 * submitted; or as plan_wait: then the task is still under way, and its buffer in use, until
 * plan_reset or plan_terminate. */
ncclsvc_result ncclsvc_plan_submit_send_and_wait(ncclsvc_plan *plan, const void *sendbuf,
						 size_t count, ncclsvc_type type, int peer,
						 int timeout_ms);
ncclsvc_result ncclsvc_plan_submit_recv_and_wait(ncclsvc_plan *plan, void *recvbuf, size_t count,
						 ncclsvc_type type, int peer, int timeout_ms);

/* Waits until all groups of this iteration are over (submitted by whatever thread), and begins the
 * next one. Returns the iteration's first failure that no call has told. TIMEOUT: nothing was
 * changed; the sentence names a task that was not submitted, if that is why. An iteration of which
 * nothing was submitted has nothing to wait for. Of several threads that wait, one begins the next
 * iteration and returns the failure, and the others return OK. An iteration that went well has done
 * so though a member has left since: the next submission tells. INVALID_ARGUMENT: the communicator
 * was left meanwhile.
 * After the communicator has been rejoined (or the session reattached, which rejoins it) the plan
 * is committed again, with the other members' (who reset, or commit, theirs), and the iteration
 * begins anew. */
ncclsvc_result ncclsvc_plan_reset(ncclsvc_plan *plan, int timeout_ms);

/* Waits for groups that were submitted whole, for at most timeout_ms; cancels what has not begun
 * then, waits for what has, 5 s at most; gives the plan up and frees it, whatever it returns: a
 * failure that no call has told, or TIMEOUT if groups were whole and not over. Tasks of other
 * members that wait for this one's fail with CANCELLED. NULL is allowed. A plan that was never
 * launched, or never committed, is just freed. Its copies in a GPU's memory go now if the session
 * has no task pending (CUDA then waits for what the process's streams on that GPU have been told to
 * do), else with the next plan that is terminated, or with the session. */
ncclsvc_result ncclsvc_plan_terminate(ncclsvc_plan *plan, int timeout_ms);

/* How many iterations have ended (with plan_reset). 0 for NULL. */
uint64_t ncclsvc_plan_iterations(const ncclsvc_plan *plan);

/* ---- Inspection: as in ncclsvc.h --------------------------------------------------------- */

/* Every member's place in its plan. */
ncclsvc_result ncclsvc_list_plans(ncclsvc_session *session, ncclsvc_plan_info **list, size_t *n);
/* Every task of every plan, and how far it is in the iteration under way. */
ncclsvc_result ncclsvc_list_plan_tasks(ncclsvc_session *session, ncclsvc_plan_task_info **list,
				       size_t *n);

#ifdef __cplusplus
}
#endif
#endif
