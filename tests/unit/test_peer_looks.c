/* SPDX-License-Identifier: Apache-2.0
 * How much work the supervisor does when it reads control blocks: their content is hostile, and one
 * user has many. The test is linked so that it can count this work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "account/account.h"
#include "account/task_table.h"
#include "base/clock.h"
#include "base/timings.h"
#include "comm/comm.h"
#include "comm/comms.h"
#include "comm/peer/look.h"

#define MANY 300 /* communicators of one user */

static struct {
	unsigned histories, scans, tasks;
} count;

struct peer_history __real_peer_history_of(const struct peer_control *control, uint32_t kernel_seq,
					   const uint32_t messages[PEER_DIRS]);
struct peer_history __wrap_peer_history_of(const struct peer_control *control, uint32_t kernel_seq,
					   const uint32_t messages[PEER_DIRS])
{
	count.histories++;
	return __real_peer_history_of(control, kernel_seq, messages);
}

bool __wrap_peer_record_of(const struct peer_control *control, uint32_t kernel_seq,
			   struct peer_record *r)
{
	(void)control;
	(void)kernel_seq;
	(void)r;
	count.scans++;
	return false;
}

bool __wrap_peer_record_in(const struct peer_control *control, uint32_t peer_dir, uint32_t message,
			   struct peer_record *r)
{
	(void)control;
	(void)peer_dir;
	(void)message;
	(void)r;
	count.scans++;
	return false;
}

bool __wrap_table_get(const struct task_table *t, uint32_t slot, struct table_entry *e)
{
	(void)t;
	(void)slot;
	(void)e;
	count.tasks++;
	return false;
}

/* ---- Communicators with control blocks ---- */

static struct comms comms;
static struct session session;

static struct communicator *begin(struct account *a, uint32_t nranks)
{
	struct communicator *m = calloc(1, sizeof(*m));
	assert_non_null(m);
	m->comms = &comms;
	m->account = a;
	m->nranks = nranks;
	m->members = calloc(nranks, sizeof(*m->members));
	m->pending = calloc(nranks, sizeof(*m->pending));
	m->peer = calloc(1, sizeof(*m->peer));
	assert_true(m->members && m->pending && m->peer);
	m->peer->comm = m;
	m->peer->base = calloc(nranks, PEER_CONTROL_BYTES);
	assert_non_null(m->peer->base);
	for (uint32_t k = 0; k < nranks; k++) {
		m->members[k].session = &session;
		m->members[k].state = NCCLSVC_MEMBER_JOINED;
	}
	assert_int_equal(deadlines_add(&comms.looks, &m->peer->look, 1), 0);
	memset(&count, 0, sizeof(count));
	return m;
}

static void end(struct communicator *m)
{
	deadlines_remove(&comms.looks, &m->peer->look);
	free(m->peer->base);
	free(m->peer);
	free(m->pending);
	free(m->members);
	free(m);
}

static void end_all(void)
{
	deadlines_fini(&comms.looks);
}

/* All peers and directions of all ranks wait for something that is in no record; it changes between
 * checks, so that the epoch never ends. */
static void fill(struct communicator *m, uint32_t kernel)
{
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct peer_control *p = peer_member_control(m, k);
		p->moves = 1;
		p->begun = (uint64_t)kernel << 32 | kernel;
		p->records = 3 * PEER_HISTORY;
		for (uint32_t peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++) {
			p->waits[peer_dir] = (uint64_t)kernel << 32 | kernel;
			p->messages[peer_dir] = kernel + 1;
		}
		for (uint32_t i = 0; i < PEER_HISTORY; i++)
			p->history[i] = (struct peer_record){
				.header = peer_header(NCCLSVC_SEND, NCCLSVC_UINT32, 0, 0, 8),
				.kernel_seq = UINT32_MAX,
				.message = UINT32_MAX};
	}
}

static void is_due(struct communicator *m)
{
	deadlines_remove(&comms.looks, &m->peer->look);
	assert_int_equal(deadlines_add(&comms.looks, &m->peer->look, 1), 0);
}

static void a_look_reads_each_record_once(void **state)
{
	static struct account user;
	(void)state;
	struct communicator *m = begin(&user, PEER_RANKS);
	for (uint32_t kernel = 1; kernel < 10; kernel++) {
		fill(m, kernel);
		is_due(m);
		peer_watch(&comms, clock_now());
		assert_int_equal(count.histories, kernel * PEER_RANKS);
	}
	assert_int_equal(count.scans, 0);
	assert_int_equal(count.tasks, 0); /* independent of their number */
	end(m);
	end_all();
}

/* Without the time in which another process runs */
static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Each of them is checked, and others are not delayed. */
static void looks_of_one_user_leave_time(void **state)
{
	static struct account user, other;
	struct communicator *m[MANY];
	uint64_t took = 0, last = 0;
	(void)state;
	for (int i = 0; i < MANY; i++) {
		m[i] = begin(&user, PEER_RANKS);
		fill(m[i], 1);
	}
	struct communicator *bystander = begin(&other, 2);
	const uint64_t began = clock_now();
	while (count.histories < MANY * PEER_RANKS || !bystander->peer->heartbeat) {
		const uint64_t since = cpu_ns();
		assert_int_not_equal(peer_watch(&comms, clock_now()), 0);
		took += cpu_ns() - since;
	}
	for (int i = 0; i < MANY; i++)
		if (m[i]->peer->look.at_ns > last)
			last = m[i]->peer->look.at_ns;
	assert_true(last - began >= took * PEER_LOOKS_SHARE / 2);
	assert_true(bystander->peer->look.at_ns <= clock_now() + PEER_LOOK_QUIET_NS);
	for (int i = 0; i < MANY; i++)
		end(m[i]);
	end(bystander);
	end_all();
}

/* The counters of the member that waited longest, since the half minute began. */
static void late_ranks_are_found(void **state)
{
	static struct account user;
	(void)state;
	struct communicator *m = begin(&user, 3);
	ncclsvc_lateness_info i = {0};
	assert_false(peer_lateness_read(m, 0, clock_now(), &i));
	peer_member_control(m, 0)->waited[2] = (struct peer_waited){10, 500};
	is_due(m);
	peer_watch(&comms, clock_now());
	peer_member_control(m, 0)->waited[2] = (struct peer_waited){13, 1100};
	peer_member_control(m, 1)->waited[2] = (struct peer_waited){4, 400};
	for (uint32_t k = 0; k < 3; k++) {
		i = (ncclsvc_lateness_info){0};
		assert_true(peer_lateness_read(m, k, clock_now() + 1000, &i));
		assert_int_equal(i.kernel_waits, k == 2 ? 3 : 0);
		assert_int_equal(i.kernel_waited_ns, k == 2 ? 600 : 0);
		assert_true(i.kernel_window_ns >= 1000);
	}
	i = (ncclsvc_lateness_info){0};
	assert_false(peer_lateness_read(m, 2, clock_now() + 2 * LATENESS_HALF_NS, &i));
	end(m);
	end_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_look_reads_each_record_once),
		cmocka_unit_test(looks_of_one_user_leave_time),
		cmocka_unit_test(late_ranks_are_found),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
