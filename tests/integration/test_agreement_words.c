/* SPDX-License-Identifier: Apache-2.0
 * Agreement words: members whose words differ, members that refuse, and clients that send invalid
 * words. */
#include <string.h>
#include <unistd.h>

#include "bystanders.h"
#include "harness_raw.h"
#include "proto/task.h"

#define RANKS 3
#define N     64

struct scene {
	struct daemon d;
	struct raw r[RANKS];
	struct svc_join_reply comm[RANKS];
	struct raw_region region[RANKS];
};

static void scene_start(struct scene *s)
{
	ncclsvc_unique_id id;
	uint32_t request_ids[RANKS];
	CHECK_OK(ncclsvc_unique_id_create(&id));
	daemon_start(&s->d, NULL);
	for (int k = 0; k < RANKS; k++) {
		struct svc_join join = raw_join_request(&id, RANKS, k);
		raw_open(&s->r[k], &s->d);
		raw_attach(&s->r[k], 64);
		s->region[k] = raw_region(&s->r[k], SVC_PAGE);
		request_ids[k] = raw_send(&s->r[k], SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int k = 0; k < RANKS; k++) {
		struct raw_reply reply;
		raw_reply_to(&s->r[k], request_ids[k], &reply);
		CHECK_EQ(reply.header.result, 0);
		s->comm[k] = reply.join;
	}
}

static void scene_end(struct scene *s)
{
	for (int k = 0; k < RANKS; k++) {
		raw_region_close(&s->region[k]);
		raw_close(&s->r[k]);
	}
	daemon_stop(&s->d);
}

static struct svc_record task_of(const struct scene *s, int rank, unsigned op, int peer,
				 uint64_t word)
{
	return (struct svc_record){
		.comm = s->comm[rank].comm,
		.epoch = s->comm[rank].epoch,
		.op = (uint8_t)op,
		.type = NCCLSVC_INT32,
		.peer = peer,
		.count = N,
		.src_region = s->region[rank].id,
		.dst_region = s->region[rank].id,
		.flags = word ? SVC_TASK_AGREE : 0,
		.agreement = word,
	};
}

/* One AllReduce on all ranks, with these words. */
static void all_reduce(struct scene *s, const uint64_t *words, ncclsvc_status *st)
{
	uint64_t numbers[RANKS];
	for (int k = 0; k < RANKS; k++) {
		int32_t *v = s->region[k].base;
		struct svc_record r = task_of(s, k, NCCLSVC_ALL_REDUCE, -1, words[k]);
		for (int i = 0; i < N; i++)
			v[i] = k + 1;
		if (words[k] >= SVC_AGREEMENT_REFUSES)
			r.count = 0;
		numbers[k] = raw_ring_submit(&s->r[k], r);
	}
	for (int k = 0; k < RANKS; k++) {
		const int32_t *v = s->region[k].base;
		st[k] = raw_ring_wait(&s->r[k], numbers[k]);
		for (int i = 0; i < N; i++)
			CHECK_EQ(v[i], st[k].result ? k + 1 : 6);
	}
}

static void all_same(const ncclsvc_status *st, ncclsvc_result result, ncclsvc_field field)
{
	for (int k = 0; k < RANKS; k++) {
		CHECK_EQ(st[k].result, result);
		CHECK_EQ(st[k].field, field);
		CHECK_EQ(st[k].value_a, st[0].value_a);
		CHECK_EQ(st[k].rank_a, st[0].rank_a);
		CHECK_EQ(st[k].rank_b, st[0].rank_b);
		if (result)
			CHECK_EQ(st[k].started_ns, 0);
	}
}

static void collectives_with_other_words_move_nothing(void **state)
{
	struct scene s;
	ncclsvc_status st[RANKS];
	char text[SVC_TEXT_BYTES];
	(void)state;
	scene_start(&s);
	all_reduce(&s, (uint64_t[]){7, 7, 7}, st);
	all_same(st, NCCLSVC_OK, NCCLSVC_FIELD_NONE);
	all_reduce(&s, (uint64_t[]){7, 7, 8}, st);
	all_same(st, NCCLSVC_MISMATCH, NCCLSVC_FIELD_AGREEMENT);
	CHECK(st[0].rank_a == 2 || st[0].rank_b == 2);
	CHECK_EQ(st[0].value_a + st[0].value_b, 15);
	CHECK(strstr(ncclsvc_status_sentence(&st[0], text, sizeof(text)), "agreement differs"));
	/* A member without a word has not agreed. */
	all_reduce(&s, (uint64_t[]){7, 0, 7}, st);
	all_same(st, NCCLSVC_MISMATCH, NCCLSVC_FIELD_AGREEMENT);
	CHECK(st[0].rank_a == 1 || st[0].rank_b == 1);
	CHECK(strstr(ncclsvc_status_sentence(&st[0], text, sizeof(text)), "has none"));
	all_reduce(&s, (uint64_t[]){0, 0, 0}, st);
	all_same(st, NCCLSVC_OK, NCCLSVC_FIELD_NONE);
	scene_end(&s);
}

static void a_refusal_ends_it_for_all_and_names_its_rank(void **state)
{
	struct scene s;
	ncclsvc_status st[RANKS];
	char text[SVC_TEXT_BYTES];
	const uint64_t no = SVC_AGREEMENT_REFUSED;
	/* The words that members send, and the result that all ranks get: DAEMON_LOST, which a
	 * member may not report, becomes INVALID_ARGUMENT. */
	const uint64_t say[RANKS] = {no, svc_refusal(NCCLSVC_NO_MEMORY, NCCLSVC_REFUSAL_ALLOCATE),
				     svc_refusal(NCCLSVC_DAEMON_LOST, 0xee) | 0xabcd0000};
	static const ncclsvc_result told[RANKS] = {NCCLSVC_INVALID_ARGUMENT, NCCLSVC_NO_MEMORY,
						   NCCLSVC_INVALID_ARGUMENT};
	static const char *const why[RANKS] = {"refused the list: an argument", "allocate callback",
					       "refused the list: an argument"};
	(void)state;
	scene_start(&s);
	for (int who = 0; who < RANKS; who++) {
		uint64_t words[RANKS] = {9, 9, 9};
		words[who] = say[who];
		all_reduce(&s, words, st);
		all_same(st, told[who], NCCLSVC_FIELD_REFUSAL);
		CHECK_EQ(st[0].rank_a, who);
		CHECK_EQ(st[0].pid_a, getpid());
		CHECK_EQ(st[0].value_a, svc_refusal_reason(say[who]));
		CHECK(strstr(ncclsvc_status_sentence(&st[0], text, sizeof(text)), why[who]));
		all_reduce(&s, (uint64_t[]){9, 9, 9}, st);
		all_same(st, NCCLSVC_OK, NCCLSVC_FIELD_NONE);
	}
	all_reduce(&s, (uint64_t[]){no, no, no}, st);
	all_same(st, NCCLSVC_INVALID_ARGUMENT, NCCLSVC_FIELD_REFUSAL);
	/* Ranks that have submitted get the refusal before the last one submits. */
	struct svc_record r0 = task_of(&s, 0, NCCLSVC_ALL_REDUCE, -1, 9);
	struct svc_record r1 = task_of(&s, 1, NCCLSVC_ALL_REDUCE, -1, no);
	struct svc_record r2 = task_of(&s, 2, NCCLSVC_BROADCAST, 0, 9);
	uint64_t n0 = raw_ring_submit(&s.r[0], r0), n1 = raw_ring_submit(&s.r[1], r1);
	CHECK_EQ(raw_ring_wait(&s.r[0], n0).rank_a, 1);
	CHECK_EQ(raw_ring_wait(&s.r[1], n1).rank_a, 1);
	/* The last rank's task fails in the same way, although it is another operation. */
	st[2] = raw_ring_wait(&s.r[2], raw_ring_submit(&s.r[2], r2));
	CHECK_EQ(st[2].result, NCCLSVC_INVALID_ARGUMENT);
	CHECK_EQ(st[2].rank_a, 1);
	all_reduce(&s, (uint64_t[]){9, 9, 9}, st);
	all_same(st, NCCLSVC_OK, NCCLSVC_FIELD_NONE);
	scene_end(&s);
}

/* A Send of rank 0 and its Recv at rank 2. */
static ncclsvc_status pair(struct scene *s, uint64_t send, uint64_t recv, uint64_t recv_count)
{
	struct svc_record a = task_of(s, 0, NCCLSVC_SEND, 2, send);
	struct svc_record b = task_of(s, 2, NCCLSVC_RECV, 0, recv);
	b.count = recv_count;
	memset(s->region[0].base, 0x5a, SVC_PAGE);
	memset(s->region[2].base, 0, SVC_PAGE);
	uint64_t na = raw_ring_submit(&s->r[0], a), nb = raw_ring_submit(&s->r[2], b);
	ncclsvc_status sa = raw_ring_wait(&s->r[0], na), sb = raw_ring_wait(&s->r[2], nb);
	CHECK_EQ(sa.result, sb.result);
	CHECK_EQ(sa.field, sb.field);
	CHECK_EQ(sa.rank_a, sb.rank_a);
	CHECK_EQ(*(char *)s->region[2].base, sa.result ? 0 : 0x5a);
	return sa;
}

static void a_send_and_its_recv_agree_or_move_nothing(void **state)
{
	struct scene s;
	ncclsvc_status st;
	(void)state;
	scene_start(&s);
	CHECK_EQ(pair(&s, 3, 3, N).result, NCCLSVC_OK);
	st = pair(&s, 3, 4, N - 1);
	CHECK_EQ(st.result, NCCLSVC_MISMATCH);
	CHECK_EQ(st.field, NCCLSVC_FIELD_AGREEMENT);
	CHECK_EQ(st.value_a, 3);
	CHECK_EQ(st.value_b, 4);
	CHECK_EQ(pair(&s, 3, 3, N - 1).field, NCCLSVC_FIELD_COUNT);
	CHECK_EQ(pair(&s, 0, 3, N).field, NCCLSVC_FIELD_AGREEMENT);
	st = pair(&s, 3, svc_refusal(NCCLSVC_MISMATCH, NCCLSVC_REFUSAL_SHAPES), 0);
	CHECK_EQ(st.result, NCCLSVC_MISMATCH);
	CHECK_EQ(st.field, NCCLSVC_FIELD_REFUSAL);
	CHECK_EQ(st.value_a, NCCLSVC_REFUSAL_SHAPES);
	CHECK_EQ(st.rank_a, 2);
	st = pair(&s, SVC_AGREEMENT_REFUSED, 3, N);
	CHECK_EQ(st.result, NCCLSVC_INVALID_ARGUMENT);
	CHECK_EQ(st.rank_a, 0);
	CHECK_EQ(pair(&s, 3, 3, N).result, NCCLSVC_OK);
	scene_end(&s);
}

/* The record changes while the scheduler reads it: either answer is correct, but the daemon must
 * not crash. */
static void a_record_that_changes_under_way_harms_nobody(void **state)
{
	struct daemon d;
	struct bystanders b;
	struct raw r;
	(void)state;
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	raw_open(&r, &d);
	raw_attach(&r, 16);
	struct svc_join_reply comm = raw_join_alone(&r);
	struct svc_record record = {.comm = comm.comm,
				    .epoch = comm.epoch,
				    .op = NCCLSVC_BARRIER,
				    .peer = -1,
				    .flags = SVC_TASK_AGREE,
				    .agreement = 1};
	for (int round = 0; round < 2000; round++) {
		uint64_t number = raw_ring_submit(&r, record);
		struct svc_record *slot = svc_record_slot(r.ring, r.entries, number);
		volatile uint8_t *flags = &slot->flags;
		volatile uint64_t *word = &slot->agreement;
		*word = round % 3 ? SVC_AGREEMENT_REFUSED : 0;
		*flags = (uint8_t)(round % 5 ? 0 : 0xfe);
		ncclsvc_result result = raw_ring_wait(&r, number).result;
		CHECK(result == NCCLSVC_OK || result == NCCLSVC_INVALID_ARGUMENT);
	}
	raw_close(&r);
	bystanders_end(&b);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(collectives_with_other_words_move_nothing),
		TEST(a_refusal_ends_it_for_all_and_names_its_rank),
		TEST(a_send_and_its_recv_agree_or_move_nothing),
		TEST(a_record_that_changes_under_way_harms_nobody),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
