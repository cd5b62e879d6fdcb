/* SPDX-License-Identifier: Apache-2.0
 * Random plans, submitted in random order by several threads: all data arrives correctly, or all
 * ranks get the same error because the plan cannot work. */
#include <pthread.h>
#include <stdlib.h>

#include "plan_desk.h"

enum { RANKS = 4, PLANS = 60, PAIRS_MAX = 24, THREADS = 3, ROUNDS = 4, WORDS = 17 };

/* Identical on all ranks. */
struct pair {
	int from, to;
};

struct random_plan {
	struct pair pairs[PAIRS_MAX];
	int n;
};

struct place {
	bool sends;
	int peer, pair;
	int32_t *buf;
};

struct rank {
	struct desk d;
	struct random_plan plan;
	struct place places[2 * PAIRS_MAX]; /* in plan order */
	bool taken[2 * PAIRS_MAX];
	int n, round;
	uint64_t random; /* this rank's own */
	pthread_mutex_t lock;
};

static uint32_t draw(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

static void make_plan(struct random_plan *p, uint64_t seed)
{
	uint64_t random = seed * 7919 + 1;
	p->n = (int)(draw(&random) % PAIRS_MAX) + 1;
	for (int i = 0; i < p->n; i++) {
		p->pairs[i].from = (int)(draw(&random) % RANKS);
		p->pairs[i].to = (int)(draw(&random) % RANKS);
	}
}

static void add_place(struct rank *r, bool sends, int peer, int pair)
{
	struct place *p = &r->places[r->n++];
	p->sends = sends;
	p->peer = peer;
	p->pair = pair;
}

/* Lists this rank's places in the order of the pairs, which always forms a valid plan, then
 * swaps some of them, which may not. */
static void make_places(struct rank *r, uint64_t *random)
{
	r->n = 0;
	for (int i = 0; i < r->plan.n; i++) {
		if (r->plan.pairs[i].from == r->d.me)
			add_place(r, true, r->plan.pairs[i].to, i);
		if (r->plan.pairs[i].to == r->d.me)
			add_place(r, false, r->plan.pairs[i].from, i);
	}
	if (r->n < 2 || draw(random) % 4)
		return;
	struct place *p = &r->places[draw(random) % (uint32_t)(r->n - 1)], first = p[0];
	if (p[0].sends == p[1].sends && p[0].peer == p[1].peer)
		return;
	p[0] = p[1];
	p[1] = first;
}

static ncclsvc_result commit(struct rank *r, uint64_t seed)
{
	uint64_t random = seed * RANKS + (uint64_t)r->d.me;
	make_places(r, &random);
	CHECK_OK(ncclsvc_plan_start(r->d.comm, &r->d.plan));
	CHECK_OK(ncclsvc_plan_group_start(r->d.plan));
	for (int i = 0; i < r->n; i++) {
		const struct place *p = &r->places[i];
		for (unsigned ends = draw(&random) % 5; ends > 2; ends--) {
			CHECK_OK(ncclsvc_plan_group_end(r->d.plan));
			CHECK_OK(ncclsvc_plan_group_start(r->d.plan));
		}
		CHECK_OK(p->sends ? ncclsvc_plan_send(r->d.plan, WORDS, NCCLSVC_INT32, p->peer)
				  : ncclsvc_plan_recv(r->d.plan, ANY, p->peer));
	}
	CHECK_OK(ncclsvc_plan_group_end(r->d.plan));
	return ncclsvc_plan_end(r->d.plan, WAIT_MS);
}

/* Picks a free place that has no equal free place before it. NULL: all are taken. */
static struct place *pick(struct rank *r)
{
	int begin = (int)(draw(&r->random) % (uint32_t)r->n), i = 0;
	while (i < r->n && r->taken[(begin + i) % r->n])
		i++;
	if (i == r->n)
		return NULL;
	const struct place *like = &r->places[(begin + i) % r->n];
	for (i = 0;
	     r->taken[i] || r->places[i].sends != like->sends || r->places[i].peer != like->peer;)
		i++;
	r->taken[i] = true;
	return &r->places[i];
}

/* Takes a place and submits it in one step, so that equal places are submitted in order. */
static void *submit_some(void *arg)
{
	struct rank *r = arg;
	for (;;) {
		pthread_mutex_lock(&r->lock);
		struct place *p = r->n ? pick(r) : NULL;
		if (p && p->sends)
			CHECK_OK(ncclsvc_plan_submit_send(r->d.plan, p->buf, WORDS, NCCLSVC_INT32,
							  p->peer, NULL));
		else if (p)
			CHECK_OK(ncclsvc_plan_submit_recv(r->d.plan, p->buf, WORDS, NCCLSVC_INT32,
							  p->peer, NULL));
		pthread_mutex_unlock(&r->lock);
		if (!p)
			return NULL;
	}
}

static int32_t word(const struct rank *r, int pair, int i)
{
	return (int32_t)(r->round * 1000003 + pair * 1009 + i);
}

static void iterate(struct rank *r)
{
	pthread_t threads[THREADS];
	memset(r->taken, 0, sizeof(r->taken));
	for (int k = 0; k < r->n; k++)
		for (int i = 0; i < WORDS; i++)
			r->places[k].buf[i] =
				r->places[k].sends ? word(r, r->places[k].pair, i) : -1;
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, submit_some, r), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK_OK(ncclsvc_plan_reset(r->d.plan, WAIT_MS));
	for (int k = 0; k < r->n; k++)
		for (int i = 0; i < WORDS; i++)
			CHECK_EQ(r->places[k].buf[i], word(r, r->places[k].pair, i));
}

static void random_rank(struct client *me)
{
	static struct rank r;
	uint64_t good = 0;
	r.d = (struct desk){.c = me, .me = me->rank};
	r.d.s = session_open(me->daemon);
	r.d.comm = comm_join(me, r.d.s);
	r.random = (uint64_t)me->rank + 1;
	pthread_mutex_init(&r.lock, NULL);
	int32_t *bufs = shared(r.d.s, 2 * PAIRS_MAX * WORDS * sizeof(int32_t));
	for (int k = 0; k < 2 * PAIRS_MAX; k++)
		r.places[k].buf = bufs + (size_t)k * WORDS;
	for (uint64_t seed = 0; seed < PLANS; seed++) {
		make_plan(&r.plan, seed);
		ncclsvc_result result = commit(&r, seed);
		if (result != NCCLSVC_MISMATCH)
			CHECK_RESULT(result, NCCLSVC_OK);
		else
			CHECK(strstr(ncclsvc_last_error(), "never be carried out"));
		good = good << 1 | (result == NCCLSVC_OK);
		if (result == NCCLSVC_OK)
			CHECK_OK(ncclsvc_plan_launch(r.d.plan));
		for (r.round = 0; result == NCCLSVC_OK && r.round < ROUNDS; r.round++)
			iterate(&r);
		CHECK_OK(ncclsvc_plan_terminate(r.d.plan, WAIT_MS));
	}
	say(me, good);
	check_usable(r.d.s, r.d.comm);
	ncclsvc_close(r.d.s);
}

static void random_plans_run_or_are_refused_alike(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[RANKS];
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, random_rank, NULL);
	uint64_t good = hear(&clients[0]);
	for (int i = 1; i < RANKS; i++)
		CHECK_EQ(hear(&clients[i]), good);
	int n = __builtin_popcountll(good);
	print_message("%d of %d plans could run\n", n, PLANS);
	CHECK(n > PLANS / 4 && n < PLANS);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(random_plans_run_or_are_refused_alike),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
