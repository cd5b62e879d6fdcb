/* SPDX-License-Identifier: Apache-2.0
 * Matching plans: named examples, and random plans compared with a slow and simple simulation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coord/plan.h"

#define RANKS	  4
#define TASKS_MAX 64

/* A list in text form, whose last letter is its tag: a and b send their shapes ahead, l and m do
 * not; a and b differ in their word, and so do l and m. */
static void make_list(struct svc_plan_task *t, const char *c)
{
	t->agreement = (uint64_t)c[0];
	t->tag = c[1] - '0';
	t->count = strchr("ab", c[0]) ? SVC_PLAN_ANY : 4;
	t->type = strchr("ab", c[0]) ? 0 : NCCLSVC_UINT8;
}

/* A plan in text form: for each rank "S1 R2 | S0", with bars between groups. */
static struct plan *parse(const char *const *ranks, uint32_t n, bool whole_groups, int *result,
			  char *text)
{
	struct plan *p = plan_create(n);
	assert_non_null(p);
	p->whole_groups = whole_groups;
	*result = 0;
	for (uint32_t k = 0; k < n && !*result; k++) {
		struct svc_plan_task *tasks = calloc(TASKS_MAX, sizeof(*tasks));
		uint32_t groups = ranks[k][0] ? 1 : 0, ntasks = 0;
		for (const char *c = ranks[k]; *c; c++) {
			groups += *c == '|';
			if (*c != 'S' && *c != 'R')
				continue;
			tasks[ntasks++] = (struct svc_plan_task){
				.group = groups - 1,
				.op = *c == 'S' ? NCCLSVC_SEND : NCCLSVC_RECV,
				.peer = c[1] - '0',
				.count = SVC_PLAN_ANY,
			};
			if (c[2] == ':') { /* a count of bytes */
				tasks[ntasks - 1].count = (uint64_t)(c[3] - '0');
				tasks[ntasks - 1].type = NCCLSVC_INT8;
			} else if (c[2] && strchr("ablm", c[2])) {
				make_list(&tasks[ntasks - 1], c + 2);
			}
		}
		*result = plan_set(p, k, groups, ntasks, tasks, false, text);
	}
	return p;
}

static int match_bounded(const struct plan *p, char *text)
{
	uint64_t steps;
	const int result = plan_match(p, text, &steps);
	assert_in_range(steps, 0, plan_match_steps(p));
	return result;
}

static int match(const char *const *ranks, uint32_t n, bool whole_groups, char *text)
{
	int result;
	text[0] = '\0';
	struct plan *p = parse(ranks, n, whole_groups, &result, text);
	if (!result)
		result = match_bounded(p, text);
	plan_free(p);
	return result;
}

static void expect(const char *const *ranks, uint32_t n, int host, int gpus, const char *why)
{
	char text[PLAN_TEXT];
	for (int whole = 0; whole < 2; whole++) {
		int due = whole ? gpus : host, is = match(ranks, n, whole, text);
		if (is != due)
			print_message("%d, not %d: %s\n", is, due, text);
		assert_int_equal(is, due);
		if (due && !strstr(text, why)) {
			print_message("\"%s\" is not in: %s\n", why, text);
			fail();
		}
	}
}

#define OK	 NCCLSVC_OK
#define MISMATCH NCCLSVC_MISMATCH
#define PLANS(...)                                                                                 \
	(const char *const[]){__VA_ARGS__},                                                        \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static void examples(void **state)
{
	(void)state;
	expect(PLANS("", ""), OK, OK, "");
	expect(PLANS("|||", ""), OK, OK, "");
	expect(PLANS("S1 R1", "S0 R0"), OK, OK, "");
	expect(PLANS("S1 R1", "R0 S0"), OK, OK, "");
	expect(PLANS("S1|R1", "R0|S0"), OK, OK, "");
	expect(PLANS("||S1||R1", "R0|S0|"), OK, OK, "");
	expect(PLANS("S0 R0"), OK, OK, "");
	expect(PLANS("S1:8 R1:3", "S0:3 R0"), OK, OK, "");
	/* Pipelines: forward and back. */
	expect(PLANS("S1|S1|R1|R1", "R0|S2|R0|S2|R2|S0|R2|S0", "R1|R1|S1|S1"), OK, OK, "");
	/* Tasks without a counterpart. */
	expect(PLANS("S1", ""), MISMATCH, MISMATCH, "rank 0's Send to rank 1 (the Send no. 1");
	expect(PLANS("", "R0"), MISMATCH, MISMATCH, "rank 1's Recv from rank 0");
	expect(PLANS("S1|S1", "R0"), MISMATCH, MISMATCH, "no. 2 between the two, in its group 1");
	expect(PLANS("S1 R1", "R0 S0 S0"), MISMATCH, MISMATCH, "rank 1's Send to rank 0");
	expect(PLANS("S2", "S2", "R1 R1"), MISMATCH, MISMATCH, "rank 0's Send to rank 2");
	expect(PLANS("S1:8", "R0:7"), MISMATCH, MISMATCH, "has 8 int8");
	/* Circles. */
	expect(PLANS("S1|R1", "S0|R0"), MISMATCH, MISMATCH,
	       "rank 0 in its group 0 waits for rank 1's group 1, rank 1 in its group 0 waits for "
	       "rank 0's group 1");
	expect(PLANS("S0|R0"), MISMATCH, MISMATCH,
	       "rank 0 in its group 0 waits for rank 0's group 1");
	expect(PLANS("S1|R2", "S2|R0", "S0|R1"), MISMATCH, MISMATCH, "waits for rank 2's group 1");
	expect(PLANS("S1|R3", "S2|R0", "S3|R1", "S0|R2"), MISMATCH, MISMATCH, "in a circle");
	/* On GPUs, a group is one unit: tasks that depend on each other must start together. */
	expect(PLANS("S1 R2", "R0|S2", "R1|S0"), OK, MISMATCH, "never");
	expect(PLANS("S1 R2", "R0 S2", "R1 S0"), OK, OK, "");
}

/* Rank 0 sends 8 bytes, rank 1 receives 7, or nothing. */
static void labels_stand_in_sentences(void **state)
{
	char text[PLAN_TEXT];
	(void)state;
	for (uint32_t received = 0; received < 2; received++) {
		struct plan *p = plan_create(2);
		struct svc_plan_task *sends = calloc(1, sizeof(*sends));
		struct svc_plan_task *recvs = calloc(1, sizeof(*recvs));
		*sends = (struct svc_plan_task){.op = NCCLSVC_SEND,
						.type = NCCLSVC_INT8,
						.peer = 1,
						.count = 8,
						.label = "grad of layer 3"};
		*recvs = (struct svc_plan_task){
			.op = NCCLSVC_RECV, .type = NCCLSVC_INT8, .count = 7, .label = "grad"};
		assert_int_equal(plan_set(p, 0, 1, 1, sends, false, text), 0);
		assert_int_equal(plan_set(p, 1, 1, received, recvs, false, text), 0);
		assert_int_equal(match_bounded(p, text), MISMATCH);
		assert_non_null(strstr(text, "rank 0's Send \"grad of layer 3\" to rank 1"));
		assert_true(!strstr(text, "the Recv \"grad\" in rank 1's group 0") == !received);
		plan_free(p);
	}
	struct plan *p = plan_create(2);
	struct svc_plan_task *list = calloc(1, sizeof(*list)), *plain = calloc(1, sizeof(*plain));
	*list = (struct svc_plan_task){.op = NCCLSVC_SEND,
				       .type = NCCLSVC_UINT8,
				       .peer = 1,
				       .count = 8,
				       .label = "weights",
				       .agreement = 7};
	*plain = (struct svc_plan_task){
		.op = NCCLSVC_RECV, .type = NCCLSVC_UINT8, .count = 8, .label = "theirs"};
	assert_int_equal(plan_set(p, 0, 1, 1, list, false, text), 0);
	assert_int_equal(plan_set(p, 1, 1, 1, plain, false, text), 0);
	assert_int_equal(match_bounded(p, text), MISMATCH);
	assert_non_null(strstr(text, "rank 0's Send \"weights\" to rank 1"));
	assert_non_null(strstr(text, "the Recv \"theirs\" in rank 1's group 0"));
	plan_free(p);
}

static void lists(void **state)
{
	(void)state;
	expect(PLANS("S1a1 R1l2", "R0a1 S0l2"), OK, OK, "");
	expect(PLANS("S1a1", "R0"), MISMATCH, MISMATCH,
	       "a list with its shapes ahead, tag 1 is sent, no list of tensors received: rank 0's "
	       "Send to rank 1 in its group 0, the Recv in rank 1's group 0");
	expect(PLANS("S1 S1", "R0 R0l1"), MISMATCH, MISMATCH,
	       "no list of tensors is sent, a list of static shapes, tag 1 received");
	expect(PLANS("S1a1", "R0l1"), MISMATCH, MISMATCH,
	       "a list of static shapes, tag 1 received");
	expect(PLANS("S1a1", "R0a2"), MISMATCH, MISMATCH, "ahead, tag 2");
	expect(PLANS("S1l1", "R0l3"), MISMATCH, MISMATCH, "static shapes, tag 3");
	expect(PLANS("S1l1", "R0m1"), MISMATCH, MISMATCH, "differ in types or shapes");
	expect(PLANS("S1a1", "R0b1"), MISMATCH, MISMATCH, "the number or types of their tensors");
	/* On the host too, groups that share lists with shapes ahead begin together. */
	expect(PLANS("S1a1 S1a1", "R0a1|R0a1"), MISMATCH, MISMATCH,
	       "rank 0 in its group 0 waits for rank 1's group 1");
	expect(PLANS("S1 S1a1", "R0|R0a1"), MISMATCH, MISMATCH, "waits for");
	expect(PLANS("S1a1|S1a1", "R0a1|R0a1"), OK, OK, "");
	expect(PLANS("S1l1 S1l1", "R0l1|R0l1"), OK, MISMATCH, "waits for");
	expect(PLANS("R2|S1a1", "R0a1 S2a1", "S0|R1a1"), OK, OK, "");
	expect(PLANS("S1a1|R2", "R0a1 S2a1", "S0|R1a1"), MISMATCH, MISMATCH, "waits for");
	expect(PLANS("R2|S1a1", "R0a1 S2a1", "R1a1|S0"), MISMATCH, MISMATCH, "waits for");
	expect(PLANS("S1a1|R2", "R0a1 S2a1", "S0|S0 R1a1"), MISMATCH, MISMATCH, "no. 2");
	expect(PLANS("S1l1|R2", "R0l1 S2l1", "S0|R1l1"), OK, MISMATCH, "waits for");
}

#define MANY	  2048
#define MANY_EACH 112 /* tasks of a rank: 229,376 in all */

/* Each rank exchanges lists with its neighbours, with shapes ahead, so all groups are one unit.
 * Rank 0 has one more in a second group, which never begins, and rank 2 waits for it. */
static void explanations_are_linear(void **state)
{
	char text[PLAN_TEXT];
	struct plan *p = plan_create(MANY);
	(void)state;
	assert_non_null(p);
	for (uint32_t k = 0; k < MANY; k++) {
		struct svc_plan_task *tasks = calloc(MANY_EACH + 1, sizeof(*tasks));
		const bool more = k == 0 || k == 2;
		assert_non_null(tasks);
		for (uint32_t i = 0; i < MANY_EACH + (uint32_t)more; i++)
			tasks[i] = (struct svc_plan_task){
				.op = i % 2 ? NCCLSVC_RECV : NCCLSVC_SEND,
				.peer = (int32_t)((k + (i % 2 ? MANY - 1 : 1)) % MANY),
				.count = SVC_PLAN_ANY,
				.agreement = 1,
			};
		if (more) {
			tasks[MANY_EACH].group = !k;
			tasks[MANY_EACH].op = k ? NCCLSVC_RECV : NCCLSVC_SEND;
			tasks[MANY_EACH].peer = k ? 0 : 2;
		}
		assert_int_equal(plan_set(p, k, k ? 1 : 2, MANY_EACH + more, tasks, false, text),
				 0);
	}
	for (int whole = 0; whole < 2; whole++) {
		p->whole_groups = whole;
		assert_int_equal(match_bounded(p, text), MISMATCH);
		assert_non_null(strstr(text, "rank 2 in its group 0 waits for rank 0's group 1"));
	}
	plan_free(p);
}

static void bad_plans_alone(void **state)
{
	char text[PLAN_TEXT];
	(void)state;
	assert_int_equal(match(PLANS("S1"), false, text), NCCLSVC_INVALID_ARGUMENT);
	assert_non_null(strstr(text, "peer"));
	struct plan *p = plan_create(1);
	struct svc_plan_task *tasks = calloc(SVC_GROUP_TASKS + 1, sizeof(*tasks));
	for (int i = 0; i <= SVC_GROUP_TASKS; i++)
		tasks[i] = (struct svc_plan_task){.op = NCCLSVC_SEND, .count = SVC_PLAN_ANY};
	assert_int_equal(plan_set(p, 0, 1, SVC_GROUP_TASKS + 1, tasks, false, text), NCCLSVC_LIMIT);
	plan_unset(p, 0);
	assert_null(p->members[0].tasks);
	for (int i = 0; i < 2; i++) {
		tasks = calloc(1, sizeof(*tasks));
		*tasks = (struct svc_plan_task){.op = NCCLSVC_SEND, .count = SVC_PLAN_ANY};
		if (i)
			tasks->tag = 1;
		else
			tasks->agreement = SVC_AGREEMENT_REFUSED;
		assert_int_equal(plan_set(p, 0, 1, 1, tasks, false, text),
				 NCCLSVC_INVALID_ARGUMENT);
		assert_non_null(strstr(text, i ? "has a tag" : "refuses"));
		plan_unset(p, 0);
	}
	plan_free(p);
}

/* ---- At random ---- */

struct random_task {
	int rank, group, other; /* other: index of the other side */
};

struct random_plan {
	struct random_task tasks[2 * TASKS_MAX];
	int n, groups[RANKS], at[RANKS];
	bool matched[2 * TASKS_MAX];
	char text[RANKS][8 * TASKS_MAX];
};

static void random_plan(struct random_plan *r)
{
	memset(r, 0, sizeof(*r));
	int pairs = rand() % 12;
	for (int i = 0; i < pairs; i++) {
		int ends[2] = {rand() % RANKS, rand() % RANKS};
		bool first = rand() %
			     2; /* which side is written first matters for messages to oneself */
		for (int e = 0; e < 2; e++) {
			int side = e ^ first, k = ends[side];
			if (r->text[k][0] && rand() % 3 == 0) {
				strcat(r->text[k], "|");
				r->groups[k]++;
			}
			char word[8];
			snprintf(word, sizeof(word), "%c%d ", side ? 'R' : 'S', ends[!side]);
			strcat(r->text[k], word);
			r->tasks[r->n] =
				(struct random_task){k, r->groups[k], e ? r->n - 1 : r->n + 1};
			r->n++;
		}
	}
	for (int k = 0; k < RANKS; k++)
		r->groups[k] += r->text[k][0] != '\0';
}

static bool current(const struct random_plan *r, int i)
{
	return r->at[r->tasks[i].rank] == r->tasks[i].group;
}

/* Whether everything connected to this rank's group through tasks is current. */
static bool may_start(const struct random_plan *r, int rank)
{
	bool in[RANKS] = {false};
	in[rank] = true;
	for (int round = 0; round < RANKS; round++)
		for (int i = 0; i < r->n; i++) {
			if (!in[r->tasks[i].rank] || !current(r, i))
				continue;
			if (!current(r, r->tasks[i].other))
				return false;
			in[r->tasks[r->tasks[i].other].rank] = true;
		}
	return true;
}

static bool group_met(const struct random_plan *r, int rank)
{
	for (int i = 0; i < r->n; i++)
		if (r->tasks[i].rank == rank && current(r, i) && !r->matched[i])
			return false;
	return true;
}

static bool simulate(struct random_plan *r, bool whole)
{
	bool moved = true, all = true;
	memset(r->at, 0, sizeof(r->at));
	memset(r->matched, 0, sizeof(r->matched));
	while (moved) {
		moved = false;
		for (int i = 0; i < r->n; i++)
			if (!r->matched[i] && current(r, i) && current(r, r->tasks[i].other) &&
			    (!whole || may_start(r, r->tasks[i].rank)))
				r->matched[i] = r->matched[r->tasks[i].other] = true;
		for (int k = 0; k < RANKS; k++)
			if (r->at[k] < r->groups[k] && group_met(r, k)) {
				r->at[k]++;
				moved = true;
				if (whole)
					continue;
			}
	}
	for (int k = 0; k < RANKS; k++)
		all = all && r->at[k] == r->groups[k];
	return all;
}

static void random_plans(void **state)
{
	static struct random_plan r;
	char text[PLAN_TEXT];
	int good[2] = {0}, bad[2] = {0};
	(void)state;
	srand(4711);
	for (int i = 0; i < 20000; i++) {
		random_plan(&r);
		const char *const ranks[RANKS] = {r.text[0], r.text[1], r.text[2], r.text[3]};
		for (int whole = 0; whole < 2; whole++) {
			bool due = simulate(&r, whole);
			int is = match(ranks, RANKS, whole, text);
			if (is != (due ? NCCLSVC_OK : NCCLSVC_MISMATCH)) {
				for (int k = 0; k < RANKS; k++)
					print_message("rank %d: %s\n", k, ranks[k]);
				print_message("%s: %d: %s\n", whole ? "whole" : "alone", is, text);
				fail();
			}
			good[whole] += due;
			bad[whole] += !due;
			if (!due)
				assert_non_null(strstr(text, "waits for rank"));
		}
	}
	for (int whole = 0; whole < 2; whole++)
		assert_true(good[whole] > 1000 && bad[whole] > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(examples),	cmocka_unit_test(labels_stand_in_sentences),
		cmocka_unit_test(lists),	cmocka_unit_test(bad_plans_alone),
		cmocka_unit_test(random_plans), cmocka_unit_test(explanations_are_linear),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
