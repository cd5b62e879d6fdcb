/* SPDX-License-Identifier: Apache-2.0
 * Operations of more than 2 GiB in host memory: no count, offset or size fits into 31 bits. */
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "ncclsvc_plan.h"
#include "tensor_ranks.h"

#define PART	((UINT64_C(1) << 30) + 6173)
#define ALL	(2 * PART) /* bytes, and elements */
#define BLOCK	4096
#define WITHIN	600000 /* ms */
#define GIB	(UINT64_C(1) << 30)
#define OPTIONS "--user-region-bytes", "6G"

/* One rank of two, and its one buffer of ALL bytes. */
struct big {
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	int8_t *at;
	int rank;
};

/* Equal within a block; blocks where a 31-bit or 32-bit offset would end up differ. */
static int8_t value(int rank, uint64_t i)
{
	return (int8_t)((i / BLOCK * 7 + i / GIB * 11 + (uint64_t)rank * 5) % 60);
}

static void fill(const struct big *b, uint64_t from, uint64_t end)
{
	for (uint64_t i = from, next; i < end; i = next) {
		next = (i / BLOCK + 1) * BLOCK;
		next = next < end ? next : end;
		memset(b->at + i, value(b->rank, i), next - i);
	}
}

static int8_t of_rank_0(uint64_t i)
{
	return value(0, i);
}

static int8_t of_rank_1(uint64_t i)
{
	return value(1, i);
}

static int8_t sum(uint64_t i)
{
	return (int8_t)(value(0, i) + value(1, i));
}

/* Every byte near the end of a part or of 31 bits; elsewhere at least one per block. */
static uint64_t step(uint64_t i, uint64_t end)
{
	static const uint64_t edges[] = {0, PART, UINT64_C(1) << 31};
	for (size_t k = 0; k < sizeof(edges) / sizeof(edges[0]); k++)
		if (i + 2 * BLOCK > edges[k] && i < edges[k] + 2 * BLOCK)
			return 1;
	return i + 2 * BLOCK > end ? 1 : 509;
}

static void check(const struct big *b, uint64_t from, uint64_t end, int8_t (*expected)(uint64_t i))
{
	for (uint64_t i = from; i < end; i += step(i, end))
		if (b->at[i] != expected(i))
			check_failed(__FILE__, __LINE__, "byte %llu is %d, not %d",
				     (unsigned long long)i, b->at[i], expected(i));
}

static void wait_long(const struct big *b, ncclsvc_task task)
{
	CHECK_OK(ncclsvc_wait(b->s, task, WITHIN));
}

/* ---- Operations ---- */

static void send_and_recv(const struct big *b)
{
	ncclsvc_task task;
	fill(b, 0, ALL);
	CHECK_OK(b->rank ? ncclsvc_recv(b->at, ALL, NCCLSVC_INT8, 0, b->comm, &task)
			 : ncclsvc_send(b->at, ALL, NCCLSVC_INT8, 1, b->comm, &task));
	wait_long(b, task);
	check(b, 0, ALL, of_rank_0);
}

static void broadcast(const struct big *b)
{
	ncclsvc_task task;
	fill(b, 0, ALL);
	CHECK_OK(ncclsvc_broadcast(b->at, b->at, ALL, NCCLSVC_INT8, 1, b->comm, &task));
	wait_long(b, task);
	check(b, 0, ALL, of_rank_1);
}

static void all_reduce(const struct big *b)
{
	ncclsvc_task task;
	fill(b, 0, ALL);
	CHECK_OK(ncclsvc_all_reduce(b->at, b->at, ALL, NCCLSVC_INT8, NCCLSVC_SUM, b->comm, &task));
	wait_long(b, task);
	check(b, 0, ALL, sum);
}

static void all_gather(const struct big *b)
{
	ncclsvc_task task;
	const uint64_t own = (uint64_t)b->rank * PART;
	memset(b->at, -1, ALL);
	fill(b, own, own + PART);
	CHECK_OK(ncclsvc_all_gather(b->at + own, b->at, PART, NCCLSVC_INT8, b->comm, &task));
	wait_long(b, task);
	check(b, 0, PART, of_rank_0);
	check(b, PART, ALL, of_rank_1);
}

static void reduce_scatter(const struct big *b)
{
	ncclsvc_task task;
	const uint64_t own = (uint64_t)b->rank * PART;
	fill(b, 0, ALL);
	CHECK_OK(ncclsvc_reduce_scatter(b->at, b->at + own, PART, NCCLSVC_INT8, NCCLSVC_SUM,
					b->comm, &task));
	wait_long(b, task);
	check(b, own, own + PART, sum);
}

static int8_t from_rank_0(uint64_t i)
{
	return value(0, i % PART + PART); /* rank 0's part for rank 1 */
}

static int8_t from_rank_1(uint64_t i)
{
	return value(1, i % PART);
}

static void all_to_all(const struct big *b)
{
	ncclsvc_task task;
	fill(b, 0, ALL);
	CHECK_OK(ncclsvc_all_to_all(b->at, b->at, PART, NCCLSVC_INT8, b->comm, &task));
	wait_long(b, task);
	if (b->rank) {
		check(b, 0, PART, from_rank_0);
		check(b, PART, ALL, of_rank_1);
	} else {
		check(b, 0, PART, of_rank_0);
		check(b, PART, ALL, from_rank_1);
	}
}

static void planned(const struct big *b)
{
	ncclsvc_plan *plan;
	ncclsvc_task task;
	fill(b, 0, ALL);
	CHECK_OK(ncclsvc_plan_start(b->comm, &plan));
	CHECK_OK(ncclsvc_plan_group_start(plan));
	CHECK_OK(b->rank ? ncclsvc_plan_recv(plan, ALL, NCCLSVC_INT8, 0)
			 : ncclsvc_plan_send(plan, ALL, NCCLSVC_INT8, 1));
	CHECK_OK(ncclsvc_plan_group_end(plan));
	CHECK_OK(ncclsvc_plan_end(plan, WITHIN));
	CHECK_OK(ncclsvc_plan_launch(plan));
	CHECK_OK(b->rank ? ncclsvc_plan_submit_recv(plan, b->at, ALL, NCCLSVC_INT8, 0, &task)
			 : ncclsvc_plan_submit_send(plan, b->at, ALL, NCCLSVC_INT8, 1, &task));
	wait_long(b, task);
	check(b, 0, ALL, of_rank_0);
	CHECK_OK(ncclsvc_plan_terminate(plan, WITHIN));
}

static void operations(struct client *me)
{
	static void (*const all[])(const struct big *b) = {
		send_and_recv,	broadcast,  all_reduce, all_gather,
		reduce_scatter, all_to_all, planned,
	};
	struct big b = {.s = session_open(me->daemon), .rank = me->rank};
	b.comm = comm_join(me, b.s);
	b.at = shared(b.s, ALL);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		all[i](&b);
	check_usable(b.s, b.comm);
	say(me, 1);
	hear(me);
	ncclsvc_close(b.s);
}

/* ---- Lists ---- */

static void list(struct client *me)
{
	struct side x = side_open(me);
	const int64_t few = 40, many = (int64_t)ALL;
	const bool sender = me->rank == 0;
	int8_t *a = malloc(ALL), b[40];
	CHECK(a);
	/* The small one first, so that the tensors do not form a buffer as they are. */
	const ncclsvc_tensor t[] = {{b, NCCLSVC_INT8, 1, &few}, {a, NCCLSVC_INT8, 1, &many}};
	ncclsvc_message m = message(&x, NCCLSVC_SHAPES_STATIC, 1, 2, t);
	const struct big own = {.at = a, .rank = me->rank};
	fill(&own, 0, ALL);
	memset(b, sender ? 0x32 : 0, sizeof(b));
	CHECK_OK(sender ? ncclsvc_tensors_send(x.lists, &m, -1, NULL)
			: ncclsvc_tensors_recv(x.lists, &m, -1, NULL));
	CHECK(ncclsvc_tensors_copied(x.lists) == ALL + sizeof(b));
	CHECK_EQ(b[39], 0x32);
	check(&own, 0, ALL, of_rank_0);
	fill(&own, 0, ALL);
	CHECK_OK(ncclsvc_tensors_all_reduce(x.lists, t, NULL, 2, NCCLSVC_SUM, WITHIN, NULL));
	CHECK_EQ(b[39], 0x64);
	check(&own, 0, ALL, sum);
	free(a);
	say(me, 1);
	hear(me);
	side_close(&x);
}

/* ---- Running them ---- */

static void run(client_main *main, unsigned gib)
{
	struct daemon d;
	struct client clients[2];
	struct sysinfo info;
	time_limit(2 * WITHIN / 1000);
	CHECK_EQ(sysinfo(&info), 0);
	const double free_gib = (double)info.freeram * info.mem_unit / (double)GIB;
	if (free_gib < gib)
		skip_because("needs %u GiB of free memory, there are %.1f", gib, free_gib);
	daemon_start(&d, OPTIONS, NULL);
	clients_start(clients, 2, &d, main, NULL);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(hear_within(&clients[i], WITHIN), 1);
	say_all(clients, 2, 2);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void operations_of_more_than_2_gib(void **state)
{
	(void)state;
	run(operations, 6);
}

static void lists_of_more_than_2_gib(void **state)
{
	(void)state;
	run(list, 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(operations_of_more_than_2_gib),
		TEST(lists_of_more_than_2_gib),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
