/* SPDX-License-Identifier: Apache-2.0
 *
 * libncclsvc's planned service: Sends and Recvs in groups that are known before the first of them
 * runs. All members of a communicator plan, and the commit matches their plans: a Send without its
 * Recv, an order that cannot work, or sizes that differ are errors at the commit instead of hangs
 * later. The plan lives in the daemon, which runs its groups strictly in plan order, each as one
 * task group (on GPUs as one ncclGroupStart and ncclGroupEnd), as soon as all of its tasks have
 * been submitted.
 *
 * Names of ONNX Runtime's NcclService, and their equivalents here:
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
 * Threads: all functions may be called from any thread, except those from plan_start to plan_end
 * (one thread plans; others may wait for the launch) and plan_terminate (the last call).
 *
 * Errors: as everywhere, a result and ncclsvc_last_error(). No error ends the process.
 */
#ifndef NCCLSVC_PLAN_H
#define NCCLSVC_PLAN_H

#include "ncclsvc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclsvc_plan ncclsvc_plan; /* one member's part of a plan */

#define NCCLSVC_PLAN_ANY SIZE_MAX /* a count: any */

/* ---- Planning: local until plan_end ----------------------------------------------------- */

/* Begins a plan for the communicator's Sends and Recvs. A member has one plan at a time on a
 * communicator (BUSY at plan_end). *plan belongs to the session; free it with plan_terminate before
 * you leave its communicator; otherwise all other calls fail and say so. Never blocks. */
ncclsvc_result ncclsvc_plan_start(ncclsvc_comm *comm, ncclsvc_plan **plan);

/* Groups follow one another, and do not nest. An empty group is allowed, and ends at once. */
ncclsvc_result ncclsvc_plan_group_start(ncclsvc_plan *plan);
ncclsvc_result ncclsvc_plan_group_end(ncclsvc_plan *plan);

/* A task of the open group. The k-th Send from a to b, in plan order, matches the k-th Recv at b
 * from a. A group may contain equal tasks. count and type are those that will be submitted; count =
 * NCCLSVC_PLAN_ANY leaves both open (type is ignored then). LIMIT: 65536 tasks in a plan, 4096 in a
 * group. */
ncclsvc_result ncclsvc_plan_send(ncclsvc_plan *plan, size_t count, ncclsvc_type type, int peer);
ncclsvc_result ncclsvc_plan_recv(ncclsvc_plan *plan, size_t count, ncclsvc_type type, int peer);

/* Names the task that was planned last, for inspection and in errors: at most 23 characters of
 * printable ASCII, copied; "" removes the name. INVALID_ARGUMENT: another text, or no task. */
ncclsvc_result ncclsvc_plan_label(ncclsvc_plan *plan, const char *label);

/* Ends the plan and commits it. Blocks until all members have committed, for at most timeout_ms;
 * all get the same answer. MISMATCH: the plans do not fit; the sentence names ranks, group and
 * task. TIMEOUT names the ranks that have not committed. PEER_GONE: a member or its node is gone.
 * After an error the plan may be committed again by the same call, or terminated, but no longer
 * changed. */
ncclsvc_result ncclsvc_plan_end(ncclsvc_plan *plan, int timeout_ms);

/* ---- Running ---------------------------------------------------------------------------- */

/* If strict, this member's blocking submissions behave like NcclService's: a Send, too, returns
 * only when its whole group is done, and makes no copy; each call returns the failure of its own
 * task alone, as soon as the task fails. So each task of a group needs its own thread: a thread
 * that submits two tasks one after the other gets TIMEOUT, which names the missing task.
 * INVALID_ARGUMENT: after plan_launch. Never blocks. */
ncclsvc_result ncclsvc_plan_set_strict(ncclsvc_plan *plan, bool strict);

/* Allows tasks to be submitted. INVALID_ARGUMENT: before plan_end, or twice. */
ncclsvc_result ncclsvc_plan_launch(ncclsvc_plan *plan);

#define NCCLSVC_PLAN_FIRST UINT32_MAX /* a group: the first with a free slot for the task */

/* Flags of a submission. */
#define NCCLSVC_PLANNED_WAIT   1u /* block */
/* The caller leaves the buffer unchanged until the task's group is done: a blocking Send that
 * returns early makes no copy of session memory or GPU memory. */
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

/* Submits a task: with NCCLSVC_PLANNED_WAIT like the calls that wait, otherwise like those that
 * return (timeout_ms is then unused). The four calls are shorthands for it, with
 * NCCLSVC_PLAN_FIRST. It takes the first of equal slots of the group. *task (may be NULL) is 0 if
 * the task was not submitted; after a wait's TIMEOUT the task continues. INVALID_ARGUMENT: as for
 * the four calls, or the group has no free slot for it: the sentence says what the group has. */
ncclsvc_result ncclsvc_plan_submit(ncclsvc_plan *plan, const ncclsvc_planned *planned,
				   int timeout_ms, ncclsvc_task *task);

/* Submit a task and return. It takes the earliest free slot of this iteration that was planned for
 * this operation and peer: equal slots are filled in order of submission, others in any order, from
 * any thread. The task is held until its group, and all groups before it, have all their tasks.
 * Buffers, streams, timelines and deadlines (ncclsvc_comm_set_timeout, counted from the submission)
 * work as with ncclsvc_send and ncclsvc_recv, except on GPUs: the input is ordered after the
 * thread's stream, and later work on the stream does not wait, as with NCCLSVC_STREAM_DETACHED;
 * once its group is submitted, use ncclsvc_stream_wait to order the work that needs the result.
 * Tasks of one stream must be submitted in the order of their groups. *task may be NULL.
 * INVALID_ARGUMENT: not launched, not planned, all its slots are taken (reset first), another count
 * or type than planned, or the thread has an open task group. STALE_EPOCH: rejoin the communicator,
 * then reset. AGAIN: the ring is full. BUSY: another thread resets the plan, or a list of an
 * earlier group will use this stream. */
ncclsvc_result ncclsvc_plan_submit_send(ncclsvc_plan *plan, const void *sendbuf, size_t count,
					ncclsvc_type type, int peer, ncclsvc_task *task);
ncclsvc_result ncclsvc_plan_submit_recv(ncclsvc_plan *plan, void *recvbuf, size_t count,
					ncclsvc_type type, int peer, ncclsvc_task *task);

/* A planned task is done when its whole group is. Returns the first failure in the group, or OK.
 * TIMEOUT: the wait timed out; it names a task missing from the group, if that is the reason; the
 * task continues. For tasks of previous iterations: like ncclsvc_wait. (ncclsvc_wait and
 * ncclsvc_test are allowed, too: they report the single task, which may end before its group.) */
ncclsvc_result ncclsvc_plan_wait(ncclsvc_plan *plan, ncclsvc_task task, int timeout_ms);
/* IN_PROGRESS, or the same. Never blocks. */
ncclsvc_result ncclsvc_plan_test(ncclsvc_plan *plan, ncclsvc_task task);

/* Submit a task and wait for its group. But a Send whose group cannot begin yet, because this rank
 * has not submitted all of it (or of an earlier one), is copied, and returns: its buffer is free
 * again, and a single thread can go on to submit the missing tasks. Another task of its group, or
 * plan_reset, reports how such a Send ended. With plan_set_strict, Sends behave like Recvs. Before
 * plan_launch, the calls first wait for another thread to launch; this wait also ends when the plan
 * is terminated, or its communicator breaks or is left. TIMEOUT: not launched in that time, and
 * nothing was submitted; or as plan_wait: then the task is still under way, and its buffer in use,
 * until plan_reset or plan_terminate. */
ncclsvc_result ncclsvc_plan_submit_send_and_wait(ncclsvc_plan *plan, const void *sendbuf,
						 size_t count, ncclsvc_type type, int peer,
						 int timeout_ms);
ncclsvc_result ncclsvc_plan_submit_recv_and_wait(ncclsvc_plan *plan, void *recvbuf, size_t count,
						 ncclsvc_type type, int peer, int timeout_ms);

/* Waits until all groups of this iteration are over (whichever thread submitted them), and begins
 * the next one. Returns the iteration's first failure that no call has reported. TIMEOUT: nothing
 * was changed; the sentence names a task that was not submitted, if that is the reason. If nothing
 * of the iteration was submitted, there is nothing to wait for. If several threads wait, one begins
 * the next iteration and returns the failure, and the others return OK. A successful iteration
 * returns OK even if a member has left since: the next submission reports that. INVALID_ARGUMENT:
 * the communicator was left meanwhile. After the communicator has been rejoined (or the session
 * reattached, which rejoins it) the call commits the plan again, together with the other members
 * (who reset, or commit, theirs), and the iteration starts over. */
ncclsvc_result ncclsvc_plan_reset(ncclsvc_plan *plan, int timeout_ms);

/* Waits for completely submitted groups, for at most timeout_ms; then cancels groups that have not
 * begun, and waits for running ones, 5 s at most. Ends the plan and frees it, whatever it returns:
 * a failure that no call has reported, or TIMEOUT if complete groups were not over. Tasks of other
 * members that wait for this one's fail with CANCELLED. NULL is allowed. A plan that was never
 * launched, or never committed, is just freed. The plan's copies in GPU memory are freed at once if
 * the session has no task pending (CUDA then waits for the work on the process's streams on that
 * GPU), else with the next plan that is terminated, or with the session. */
ncclsvc_result ncclsvc_plan_terminate(ncclsvc_plan *plan, int timeout_ms);

/* The number of iterations that have ended (with plan_reset). 0 for NULL. */
uint64_t ncclsvc_plan_iterations(const ncclsvc_plan *plan);

/* ---- Inspection: as in ncclsvc.h --------------------------------------------------------- */

/* Every member's position in its plan. */
ncclsvc_result ncclsvc_list_plans(ncclsvc_session *session, ncclsvc_plan_info **list, size_t *n);
/* Every task of every plan, and its state in the current iteration. */
ncclsvc_result ncclsvc_list_plan_tasks(ncclsvc_session *session, ncclsvc_plan_task_info **list,
				       size_t *n);

#ifdef __cplusplus
}
#endif
#endif
