/* SPDX-License-Identifier: Apache-2.0
 * Deadlines race cancellations: all members of a collective get the same status, whichever comes
 * first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "harness.h"
#include "harness_raw.h"

#define RANKS	       4
#define ENTRIES	       1024
#define BATCH	       48 /* collectives of a rank in its queue */
#define COLLECTIVES    (400 * BATCH)
#define AHEAD	       8
#define CANCEL_EACH_US 5000

/* The statuses that the ranks get, for the test to compare. */
struct shared {
	_Atomic uint32_t ended; /* number of ranks */
	_Atomic uint64_t comm_uid;
	_Atomic uint32_t batches[RANKS]; /* completed */
	ncclsvc_status statuses[RANKS][COLLECTIVES];
};

static struct shared *shared_new(void)
{
	void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void sleep_us(unsigned us)
{
	const struct timespec t = {.tv_nsec = (long)us * 1000};
	nanosleep(&t, NULL);
}

static struct svc_record join(struct raw *r, struct client *me, struct shared *b)
{
	struct raw_reply reply;
	const struct svc_join j = raw_join_request(&me->id, me->nranks, me->rank);
	raw_open(r, me->daemon);
	raw_attach(r, ENTRIES);
	raw_call(r, SVC_JOIN, &j, sizeof(j), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	b->comm_uid = reply.join.comm_uid;
	return (struct svc_record){.comm = reply.join.comm,
				   .epoch = reply.join.epoch,
				   .op = NCCLSVC_BARRIER,
				   .peer = -1};
}

/* The parts of a status that do not depend on the member. */
static ncclsvc_status common_part(ncclsvc_status st)
{
	st.number = 0;
	st.submitted_ns = st.started_ns = st.done_ns = 0;
	return st;
}

/* Keeps this rank at most AHEAD batches before every other: failed tasks wait for their peers, and
 * their number is limited. */
static void keep_pace(const struct shared *b, uint32_t batches)
{
	for (int k = 0; k < RANKS; k++)
		while (b->batches[k] + AHEAD < batches)
			sleep_us(100);
}

/* Each rank chooses its own deadlines: some pass while a collective waits behind others. */
static void submit_barriers(struct client *me)
{
	struct shared *b = me->arg;
	struct raw r;
	unsigned seed = (unsigned)me->rank + 1;
	struct svc_record barrier = join(&r, me, b);
	say(me, 1);
	hear(me);
	for (uint64_t done = 0; done < COLLECTIVES; done += BATCH) {
		const uint64_t first = r.last + 1;
		for (int i = 0; i < BATCH; i++) {
			barrier.timeout_ns = 300000 + (uint64_t)(rand_r(&seed) % 3000) * 1000;
			raw_ring_submit(&r, barrier);
			if (rand_r(&seed) % 32 == 0)
				sleep_us((unsigned)rand_r(&seed) % 500);
		}
		for (int i = 0; i < BATCH; i++)
			b->statuses[me->rank][done + (uint64_t)i] =
				common_part(raw_ring_wait(&r, first + (uint64_t)i));
		keep_pace(b, ++b->batches[me->rank]);
	}
	b->ended++;
	/* Stays until all ranks are done: a member that leaves ends the others' collectives. */
	hear(me);
	raw_close(&r);
}

static void cancel(struct raw *r, enum svc_cancel_kind kind, uint64_t id)
{
	const struct svc_cancel cancel = {.kind = kind, .id = id};
	struct raw_reply reply;
	raw_call(r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
}

static void compare(const struct shared *b)
{
	unsigned results[64] = {0}, differing = 0;
	for (int i = 0; i < COLLECTIVES; i++) {
		const ncclsvc_status *one = &b->statuses[0][i];
		int other = 1;
		while (other < RANKS && !memcmp(one, &b->statuses[other][i], sizeof(*one)))
			other++;
		results[-one->result & 63]++;
		if (other == RANKS)
			continue;
		if (!differing++)
			print_message("collective %d: rank 0 has %s (rank %d, %u missing), rank "
				      "%d has %s (rank %d, %u missing)\n",
				      i, ncclsvc_result_name(one->result), one->rank_a,
				      one->missing_count, other,
				      ncclsvc_result_name(b->statuses[other][i].result),
				      b->statuses[other][i].rank_a,
				      b->statuses[other][i].missing_count);
	}
	print_message("%d collectives: %u OK, %u cancelled, %u in time-out, %u differ\n",
		      COLLECTIVES, results[0], results[-NCCLSVC_CANCELLED & 63],
		      results[-NCCLSVC_TIMEOUT & 63], differing);
	CHECK(results[0]);
	CHECK(results[-NCCLSVC_CANCELLED & 63]);
	CHECK(results[-NCCLSVC_TIMEOUT & 63]);
	CHECK_EQ(differing, 0);
}

static void a_cancellation_races_deadlines(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	struct shared *b = shared_new();
	struct raw r;
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	clients_start(clients, RANKS, &d, submit_barriers, b);
	hear_all(clients, RANKS, 1);
	say_all(clients, RANKS, 1);
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	for (; b->ended < RANKS; sleep_us(CANCEL_EACH_US)) {
		CHECK(now_ns() < end);
		cancel(&r, SVC_CANCEL_COMM, b->comm_uid);
	}
	say_all(clients, RANKS, 1);
	clients_end(clients, RANKS);
	raw_close(&r);
	compare(b);
	daemon_stop(&d);
	munmap(b, sizeof(*b));
}

/* Waits until the rank has a queued task with that sequence number. Returns its id. */
static uint64_t queued_task(const struct daemon *d, int rank, uint64_t seq)
{
	ncclsvc_session *s = session_open(d);
	ncclsvc_task_info *tasks;
	uint64_t found = 0;
	for (uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000); !found; sleep_ms(1)) {
		size_t n;
		CHECK(now_ns() < end);
		CHECK_OK(ncclsvc_list_tasks(s, &tasks, &n));
		for (size_t i = 0; i < n; i++)
			if (tasks[i].rank == rank && tasks[i].seq == seq &&
			    tasks[i].state == NCCLSVC_QUEUED)
				found = tasks[i].task;
		ncclsvc_list_free(tasks);
	}
	ncclsvc_close(s);
	return found;
}

/* A deadlock ends a collective of rank 0 that the others have not posted, so later collectives
 * match at different positions in the ranks' queues. */
static void a_deadlock_moves_the_queues(void **state)
{
	enum { N = 3 };
	struct daemon d;
	struct raw r[N];
	struct raw_reply reply;
	struct svc_record barrier = {.op = NCCLSVC_BARRIER, .peer = -1}, recv;
	ncclsvc_unique_id id;
	uint32_t request_ids[N];
	(void)state;
	daemon_start(&d, NULL);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int k = 0; k < N; k++) {
		const struct svc_join j = raw_join_request(&id, N, k);
		raw_open(&r[k], &d);
		raw_attach(&r[k], ENTRIES);
		request_ids[k] = raw_send(&r[k], SVC_JOIN, &j, sizeof(j), NULL, 0);
	}
	for (int k = 0; k < N; k++) {
		raw_reply_to(&r[k], request_ids[k], &reply);
		CHECK_EQ(reply.header.result, 0);
	}
	barrier.comm = reply.join.comm;
	barrier.epoch = reply.join.epoch;
	recv = barrier;
	recv.op = NCCLSVC_RECV;
	recv.peer = 0;
	/* The third barrier of rank 0 fails while it waits behind two others. */
	raw_ring_submit(&r[0], barrier);
	const uint64_t second = raw_ring_submit(&r[0], barrier);
	barrier.timeout_ns = 1000000;
	const uint64_t late = raw_ring_submit(&r[0], barrier);
	barrier.timeout_ns = 0;
	const ncclsvc_status first = raw_ring_wait(&r[0], late);
	CHECK_EQ(first.result, NCCLSVC_TIMEOUT);
	for (int k = 1; k < N; k++)
		raw_ring_submit(&r[k], recv);
	for (int k = 0; k < N; k++)
		CHECK_EQ(raw_ring_wait(&r[k], 1).result, NCCLSVC_MISMATCH);
	/* The second barrier of rank 1 is the third of rank 0. */
	raw_ring_submit(&r[1], barrier);
	const uint64_t third = raw_ring_submit(&r[1], barrier);
	cancel(&r[2], SVC_CANCEL_TASK, queued_task(&d, 1, 2));
	const ncclsvc_status other = raw_ring_wait(&r[1], third);
	const ncclsvc_status a = common_part(first), b = common_part(other);
	CHECK_EQ(other.result, NCCLSVC_TIMEOUT);
	CHECK_EQ(memcmp(&a, &b, sizeof(a)), 0);
	raw_ring_submit(&r[2], barrier);
	CHECK_EQ(raw_ring_wait(&r[0], second).result, NCCLSVC_OK);
	raw_ring_submit(&r[2], barrier);
	CHECK_EQ(raw_ring_wait(&r[2], r[2].last).result, NCCLSVC_TIMEOUT);
	for (int k = 0; k < N; k++)
		raw_close(&r[k]);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_cancellation_races_deadlines),
		TEST(a_deadlock_moves_the_queues),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
