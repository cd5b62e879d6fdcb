/* SPDX-License-Identifier: Apache-2.0
 * Shared by the tests of plans. A desk is a rank with its session, communicator and plan. */
#ifndef TESTS_PLAN_DESK_H
#define TESTS_PLAN_DESK_H

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "ncclsvc_plan.h"

#define N   1000
#define ANY NCCLSVC_PLAN_ANY, NCCLSVC_INT8

static inline void run_clients(int n, client_main *main)
{
	struct daemon d;
	struct client clients[8];
	daemon_start(&d, NULL);
	clients_start(clients, n, &d, main, NULL);
	clients_end(clients, n);
	daemon_stop(&d);
}

static inline void fill(int32_t *buf, int32_t base)
{
	for (int32_t i = 0; i < N; i++)
		buf[i] = base + i;
}

static inline void check(const int32_t *buf, int32_t base)
{
	for (int32_t i = 0; i < N; i++)
		CHECK_EQ(buf[i], base + i);
}

#define CHECK_SAYS(text)                                                                           \
	do {                                                                                       \
		if (!strstr(ncclsvc_last_error(), text))                                           \
			check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", text,             \
				     ncclsvc_last_error());                                        \
	} while (0)

/* Waits until the thread that has stored its id in *tid sleeps in its next call. */
static inline void wait_until_asleep(const _Atomic pid_t *tid)
{
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	for (int asleep = 0; asleep < 20; sleep_ms(1)) {
		const pid_t thread = atomic_load(tid);
		asleep = thread && process_state(thread) == 'S' ? asleep + 1 : 0;
		CHECK(now_ns() < end);
	}
}

struct desk {
	struct client *c;
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_plan *plan;
	int me, other; /* of two ranks */
};

static inline void desk_open(struct desk *d, struct client *me)
{
	*d = (struct desk){.c = me, .me = me->rank, .other = 1 - me->rank};
	d->s = session_open(me->daemon);
	d->comm = comm_join(me, d->s);
	CHECK_OK(ncclsvc_plan_start(d->comm, &d->plan));
}

static inline void desk_close(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_terminate(d->plan, WAIT_MS));
	check_usable(d->s, d->comm);
	ncclsvc_close(d->s);
}

static inline void launch(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_end(d->plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(d->plan));
}

/* A Send to and a Recv from the other rank, in one group. */
static inline void plan_exchange(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_group_start(d->plan));
	CHECK_OK(ncclsvc_plan_send(d->plan, ANY, d->other));
	CHECK_OK(ncclsvc_plan_recv(d->plan, ANY, d->other));
	CHECK_OK(ncclsvc_plan_group_end(d->plan));
}

static inline void exchange_desk(struct desk *d, struct client *me)
{
	desk_open(d, me);
	plan_exchange(d);
	launch(d);
}

#endif
