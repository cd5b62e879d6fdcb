/* SPDX-License-Identifier: Apache-2.0
 * What each command shows, as a table or as JSON. These functions depend only on struct view. */
#ifndef CTL_VIEW_H
#define CTL_VIEW_H

#include "base/args.h"
#include "base/json.h"
#include "base/snapshot.h"
#include "base/table.h"
#include "doctor/doctor.h"
#include "why/why.h"

#define CTL_SCHEMA    1
#define VIEW_SENTENCE 512 /* room for a sentence on how a task ended */

struct view {
	const struct ctl_args *args;
	const struct snapshot *s;
	struct text *out;
	const char *time;      /* ISO 8601 */
	uint64_t monotonic_ns; /* the same time, on the clock of operations' times */
	bool colour;
	unsigned width;	   /* of the terminal; 0: none */
	const char *host;  /* this machine's name */
	why_look_fn *look; /* what processes are doing; NULL: they can't be seen from here */
	void *look_arg;
};

void view_status(const struct view *v);
void view_sessions(const struct view *v);
void view_comms(const struct view *v);
void view_tasks(const struct view *v);
void view_memory(const struct view *v);
void view_devices(const struct view *v);
void view_plan(const struct view *v);
void view_failures(const struct view *v);
/* The number behind those that were shown: where --follow goes on. */
uint64_t view_failures_next(const struct view *v, uint64_t from);
void view_lateness(const struct view *v);
/* If a rank holds up a communicator: a sentence that names it. In JSON, its record, or null. */
void view_straggler(const struct view *v);
void view_straggler_json(const struct view *v, struct json *j);
void view_doctor(const struct view *v, const struct doctor_report *report);
void view_why(const struct view *v, const struct why_report *report);
void view_dump(const struct view *v);
/* Writes a file for each rank into args->pytorch, as PyTorch's flight recorder does. False: it
 * can't be done, out says why. */
bool view_dump_pytorch(const struct view *v);
void view_version(const struct view *v, const char *version);
void view_cancelled(const struct view *v, uint64_t cancelled);
/* The sessions that a drained daemon waits for, with their communicators. */
void view_drain(const struct view *v);
size_t view_drain_left(const struct snapshot *s);
/* Names the first of them, in a line without a newline. */
void view_drain_progress(const struct view *v, uint64_t waited_ns);

/* False: the parameters do not form a world, and ncclsvc_last_error says why. */
bool view_groups(const struct view *v);

/* "nccl" or "mpi" */
const char *view_transport(unsigned transport);

/* "yes", "no", "other" or "unknown" */
const char *mps_name(unsigned mps);
/* The MPS line in status, and its JSON object: null without GPUs. */
void view_mps_line(const struct view *v);
void view_mps_json(const struct view *v, struct json *j);

/* A paragraph. On a terminal it is broken at spaces, and continuation lines are indented; otherwise
 * it is one line. */
void view_paragraph(const struct view *v, size_t indent, const char *s);

/* The keys with which every answer begins, and its end. */
struct json view_json_begin(const struct view *v);
void view_json_end(struct json *j);
/* A communicator's label as shown: its own, or "-" if it has none or it is unknown. */
void view_label(struct text *out, const ncclsvc_comm_info *comm);
void view_json_label(struct json *j, const char *key, const ncclsvc_comm_info *comm);
/* "comm", and "comm_node": whose number it is, null for the asked daemon's. */
void view_json_comm(const struct snapshot *s, struct json *j, uint64_t comm);
/* The nodes that the task and the member are on. */
uint32_t view_task_node(const struct snapshot *s, const ncclsvc_task_info *x);
uint32_t view_member_node(const struct snapshot *s, const ncclsvc_member_info *m);
/* "node", of several that were asked; else null. */
void view_json_node(const struct snapshot *s, struct json *j, uint32_t node);
/* "answers": what came of asking the nodes; null if only this daemon was asked. */
void view_json_answers(const struct view *v, struct json *j);
/* Prints a sentence for each node that was asked and did not answer, unless the report already
 * names that node. */
void view_silence(const struct view *v, const struct why_report *report);
/* The last failure was within an hour. */
bool view_failed_lately(const ncclsvc_daemon_info *d);
/* The daemon's last failure, or null. */
void view_json_failure(struct json *j, const ncclsvc_daemon_info *d);
/* True if s is the number as units_number writes it: "17", "17@2". */
bool view_is_number(const char *s, uint64_t id);
/* True if args->comm names this communicator, or no particular one. */
bool view_comm_wanted(const struct ctl_args *args, uint64_t id, const ncclsvc_comm_info *comm);
/* True if args->job names this job (NULL: unknown), or none in particular. */
bool view_job_wanted(const struct ctl_args *args, const char *job);
/* A session's job as it says, else its control group. */
const char *view_job(const ncclsvc_session_info *session);
/* "-" if it is empty. */
void view_name_cell(struct table *t, const char *name, size_t size);
void view_job_cell(struct table *t, const char job[NCCLSVC_JOB_BYTES]);

#endif
