/* SPDX-License-Identifier: Apache-2.0
 * Plans that continue after a restart of their daemon, by SIGTERM or SIGKILL. */
#include "ncclsvc_plan.h"
#include "node_daemons.h"
#include "resume_programs.h"

#define GROUPS 3

static ncclsvc_plan *ring_plan(const struct client *me, ncclsvc_comm *comm)
{
	ncclsvc_plan *plan;
	CHECK_OK(ncclsvc_plan_start(comm, &plan));
	for (int g = 0; g < GROUPS; g++) {
		CHECK_OK(ncclsvc_plan_group_start(plan));
		CHECK_OK(ncclsvc_plan_send(plan, COUNT, NCCLSVC_INT32, (me->rank + 1) % RANKS));
		CHECK_OK(ncclsvc_plan_recv(plan, COUNT, NCCLSVC_INT32,
					   (me->rank + RANKS - 1) % RANKS));
		CHECK_OK(ncclsvc_plan_group_end(plan));
	}
	CHECK_OK(ncclsvc_plan_end(plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(plan));
	return plan;
}

/* Submits the six tasks of an iteration in an order of its own. */
static void submit_planned(const struct client *me, ncclsvc_plan *plan, int32_t *sent,
			   int32_t *received, unsigned round)
{
	for (unsigned n = 0; n < 2 * GROUPS; n++) {
		const unsigned k =
			(n * (round % 2 ? 5 : 1) + round + (unsigned)me->rank) % (2 * GROUPS);
		ncclsvc_planned x = {.size = sizeof(x),
				     .op = k % 2 ? NCCLSVC_RECV : NCCLSVC_SEND,
				     .type = NCCLSVC_INT32,
				     .count = COUNT,
				     .group = k / 2};
		x.peer = (me->rank + (k % 2 ? RANKS - 1 : 1)) % RANKS;
		if (k % 2)
			x.recvbuf = received + k / 2 * COUNT;
		else
			x.sendbuf = sent + k / 2 * COUNT;
		CHECK_OK(ncclsvc_plan_submit(plan, &x, WAIT_MS, NULL));
	}
}

static void work_planned(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	const int prev = (me->rank + RANKS - 1) % RANKS;
	int32_t *sent = shared(s, 2 * GROUPS * COUNT * sizeof(*sent));
	int32_t *received = sent + GROUPS * COUNT;
	ncclsvc_plan *plan = ring_plan(me, comm);
	say(me, READY);
	for (unsigned round = 0; !agree_to_stop(me, s, comm); round++) {
		for (unsigned g = 0; g < GROUPS; g++)
			fill(sent + g * COUNT, me->rank, 10 * round + g);
		submit_planned(me, plan, sent, received, round);
		const ncclsvc_result r = ncclsvc_plan_reset(plan, WAIT_MS);
		const bool missed = is_missed(me, r);
		CHECK(missed || !r);
		for (unsigned g = 0; !missed && g < GROUPS; g++)
			for (int i = 0; i < COUNT; i++)
				CHECK_EQ(received[g * COUNT + (unsigned)i],
					 value_of(prev, 10 * round + g, i));
		/* Another plan comes into force. A daemon can end after it has done so on some
		 * nodes only; one that is killed, on some ranks only. */
		if (!me->arg && !cluster_nodes() && round % 30 == 29) {
			CHECK_OK(ncclsvc_plan_terminate(plan, WAIT_MS));
			CHECK(!agree_to_stop(me, s, comm) || shared_state->stop);
			plan = ring_plan(me, comm);
		}
		shared_state->iterations[me->rank]++;
	}
	CHECK_OK(ncclsvc_plan_terminate(plan, WAIT_MS));
	ncclsvc_close(s);
}

static void plans_go_on_after_a_restart(void **state)
{
	(void)state;
	run(work_planned, restart, NULL);
}

static void plans_go_on_after_a_kill(void **state)
{
	(void)state;
	run(work_planned, kill_and_start, &killed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(plans_go_on_after_a_restart),
		TEST(plans_go_on_after_a_kill),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
