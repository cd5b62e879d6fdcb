/* SPDX-License-Identifier: Apache-2.0 */
#include "why_scene.h"

#include <stdio.h>
#include <string.h>

struct scene scene;

int set_up(void **state)
{
	(void)state;
	memset(&scene, 0, sizeof(scene));
	scene.s.sessions = scene.sessions;
	scene.s.comms = scene.comms;
	scene.s.members = scene.members;
	scene.s.tasks = scene.tasks;
	scene.s.devices = scene.devices;
	scene.s.nodes = scene.nodes;
	scene.s.plans = scene.plans;
	scene.s.plan_tasks = scene.plan_tasks;
	scene.s.daemon.pid = 77;
	for (int i = 0; i < LIST_MAX; i++)
		is(i, PROCESS_SLEEPING);
	return 0;
}

struct process *is(int process, enum process_state process_state)
{
	struct process *p = &scene.process[process];

	*p = (struct process){.pid = PID(process), .state = process_state, .cpu = -1};
	return p;
}

int tear_down(void **state)
{
	(void)state;
	why_free(&scene.report);
	return 0;
}

void processes(int n)
{
	for (int i = 0; i < n; i++) {
		ncclsvc_session_info *x = &scene.sessions[scene.s.nsessions++];

		*x = (ncclsvc_session_info){
			.session = SESSION + (uint32_t)i, .pid = PID(i), .age_ns = 100 * SEC};
		snprintf(x->name, sizeof(x->name), "trainer-%d", i);
	}
}

ncclsvc_comm_info *comm(uint64_t id, uint32_t nranks, const char *label)
{
	ncclsvc_comm_info *x = &scene.comms[scene.s.ncomms++];

	*x = (ncclsvc_comm_info){.comm = id,
				 .nranks = nranks,
				 .joined = nranks,
				 .epoch = 1,
				 .state = NCCLSVC_COMM_READY,
				 .age_ns = 50 * SEC};
	snprintf(x->label, sizeof(x->label), "%s", label);
	return x;
}

ncclsvc_member_info *member(uint64_t id, int rank, int process, uint64_t submitted)
{
	ncclsvc_member_info *x = &scene.members[scene.s.nmembers++];

	*x = (ncclsvc_member_info){.comm = id,
				   .rank = rank,
				   .state = NCCLSVC_MEMBER_JOINED,
				   .session = SESSION + (uint32_t)process,
				   .pid = PID(process),
				   .epoch = 1,
				   .device = -1,
				   .submitted = submitted};
	return x;
}

void world(int n, uint64_t submitted)
{
	processes(n);
	comm(WORLD, (uint32_t)n, "world");
	for (int i = 0; i < n; i++)
		member(WORLD, i, i, submitted);
}

ncclsvc_task_info *task(uint64_t id, int rank, int process, unsigned op, uint64_t seq,
			unsigned task_state, double seconds)
{
	ncclsvc_task_info *x = &scene.tasks[scene.s.ntasks++];
	uint32_t nranks = 0;

	for (size_t i = 0; i < scene.s.ncomms; i++)
		if (scene.comms[i].comm == id)
			nranks = scene.comms[i].nranks;
	*x = (ncclsvc_task_info){.task = scene.s.ntasks,
				 .comm = id,
				 .seq = seq,
				 .count = 1048576,
				 .bytes = 4194304,
				 .op = (uint8_t)op,
				 .type = NCCLSVC_FLOAT32,
				 .state = (uint8_t)task_state,
				 .rank = rank,
				 .peer = -1,
				 .pid = PID(process),
				 .session = SESSION + (uint32_t)process,
				 .epoch = 1,
				 .nranks = nranks,
				 .age_ns = (uint64_t)(seconds * 1e9),
				 .state_ns = (uint64_t)(seconds * 1e9)};
	return x;
}

void waits(ncclsvc_task_info *t, int32_t rank)
{
	if (t->waits_count < NCCLSVC_MISSING_SHOWN)
		t->waits_for[t->waits_count] = rank;
	t->waits_count++;
}

void waiting(uint64_t id, int rank, int process, uint64_t seq, double seconds, int32_t for_rank)
{
	waits(task(id, rank, process, NCCLSVC_ALL_REDUCE, seq, NCCLSVC_WAITING_PEERS, seconds),
	      for_rank);
}

void nodes(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		ncclsvc_node_info *x = &scene.nodes[scene.s.nnodes++];

		*x = (ncclsvc_node_info){.node = i,
					 .state = i ? NCCLSVC_NODE_ALIVE : NCCLSVC_NODE_SELF,
					 .pid = 900 + (int32_t)i,
					 .heard_ns = i ? SEC / 10 : 0};
		snprintf(x->host, sizeof(x->host), "host-%u", i);
	}
}

void sits_on(uint64_t id, int rank, uint32_t node)
{
	for (size_t i = 0; i < scene.s.nmembers; i++) {
		ncclsvc_member_info *m = &scene.members[i];

		if (m->comm != id || m->rank != rank)
			continue;
		m->elsewhere = node + 1;
		m->session = 0;
		m->submitted = 0;
	}
}

void asks(ncclsvc_task_info *t, uint32_t node)
{
	if (t->ask_count < NCCLSVC_MISSING_SHOWN)
		t->ask_nodes[t->ask_count] = node;
	t->ask_count++;
}

void p2p(uint64_t id, int rank, int process, unsigned op, uint64_t seq, int32_t peer)
{
	ncclsvc_task_info *t = task(id, rank, process, op, seq, NCCLSVC_WAITING_PEERS, 5);

	t->peer = peer;
	waits(t, peer);
}

const struct process *look(int32_t pid, bool closely, void *arg)
{
	const struct scene *s = arg;

	(void)closely;
	assert_in_range(pid, PID(0), PID(LIST_MAX - 1));
	return &s->process[pid - PID(0)];
}

const struct why_report *analyse(void)
{
	struct why_input in = {&scene.s, SEC, look, &scene};

	snapshot_order(&scene.s);
	why_analyse(&in, &scene.report);
	for (size_t i = 0; i < scene.report.n; i++)
		print_message("  %s\n", scene.report.findings[i].text);
	return &scene.report;
}

const struct why_finding *only(enum why_cause cause)
{
	const struct why_report *r = analyse();

	assert_int_equal(r->n, 1);
	if (r->findings[0].cause != cause)
		fail_msg("%s, not %s", why_cause_name(r->findings[0].cause), why_cause_name(cause));
	return &r->findings[0];
}

void says(const struct why_finding *f, const char *what)
{
	if (!strstr(f->text, what))
		fail_msg("\"%s\" is not in \"%s\"", what, f->text);
}

void never_says(const struct why_finding *f, const char *what)
{
	if (strstr(f->text, what))
		fail_msg("\"%s\" is in \"%s\"", what, f->text);
}

void blames(const struct why_finding *f, size_t i, uint64_t id, int32_t rank, int32_t pid,
	    const char *member_state)
{
	assert_true(i < f->nculprits);
	assert_int_equal(f->culprits[i].comm, id);
	assert_int_equal(f->culprits[i].rank, rank);
	assert_int_equal(f->culprits[i].pid, pid);
	assert_string_equal(f->culprits[i].state, member_state);
}
