/* SPDX-License-Identifier: Apache-2.0
 * The drop-in: splits and shrinks of a communicator. */
#include "dropin_calls.h"

/* ---- Splits and shrinks ---- */

static void parts_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c), part, rest = NULL;
	int rank, n, last = c->nranks - 1;
	ncclUniqueId ids[2] = {dropin_id_number(c, 5), dropin_id_number(c, 6)};
	stage("splitting");
	CHECK_NC(nc.ncclCommSplit(comm, c->rank & 1, -c->rank, &part, NULL));
	CHECK_NC(nc.ncclCommCount(part, &n));
	CHECK_EQ(n, (c->nranks + !(c->rank & 1)) / 2);
	CHECK_NC(nc.ncclCommUserRank(part, &rank));
	CHECK_EQ(rank, (c->nranks - 1 - c->rank) / 2);
	dropin_check_usable(part);
	CHECK_NC(nc.ncclCommDestroy(part));
	CHECK_NC(nc.ncclCommSplit(comm, c->rank == last ? NCCL_SPLIT_NOCOLOR : 0, 0, &part, NULL));
	CHECK_EQ(part == NULL, c->rank == last);
	if (part)
		CHECK_NC(nc.ncclCommDestroy(part));
	stage("scalable");
	CHECK_NC(nc.ncclCommInitRankScalable(&part, c->nranks, c->rank, 2, ids, NULL));
	dropin_check_usable(part);
	stage("shrinking");
	if (c->rank != last) {
		CHECK_NC(nc.ncclCommShrink(part, &last, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
		CHECK_NC(nc.ncclCommCount(rest, &n));
		CHECK_EQ(n, last);
		dropin_check_usable(rest);
		CHECK_NC(nc.ncclCommDestroy(rest));
	}
	/* No rank revokes the communicator before all have finished with the shrunk one. */
	dropin_check_usable(part);
	dropin_check_usable(comm);
	stage("revoking");
	CUdeviceptr p = dropin_words(1);
	CUstream s = gpu_stream();
	/* No peer takes part: the sum is aborted, or refused if another rank has revoked first. */
	if (c->rank == 0) {
		const ncclResult_t r = dropin_sum(p, part, s);
		CHECK(r == ncclSuccess || r == ncclRemoteError);
	}
	CHECK_NC(nc.ncclCommRevoke(part, NCCL_REVOKE_DEFAULT));
	CHECK(gpu_stream_ends(s, WAIT_MS));
	CHECK_NC_IS(dropin_sum(p, part, s), ncclInvalidUsage);
	CHECK_SAYS(NULL, "revoked");
	for (int i = 0; i < 2; i++) { /* all ranks, then only the last one */
		int colour = i && c->rank != last ? NCCL_SPLIT_NOCOLOR : 7;
		CHECK_NC(nc.ncclCommSplit(part, colour, -c->rank, &rest, NULL));
		CHECK_EQ(rest == NULL, colour == NCCL_SPLIT_NOCOLOR);
		if (!rest)
			continue;
		CHECK_NC(nc.ncclCommCount(rest, &n));
		CHECK_EQ(n, i ? 1 : c->nranks);
		dropin_check_usable(rest);
		CHECK_NC(nc.ncclCommDestroy(rest));
	}
	if (c->rank != last) {
		CHECK_NC(nc.ncclCommShrink(part, &last, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
		dropin_check_usable(rest);
		CHECK_NC(nc.ncclCommDestroy(rest));
	}
	CHECK_NC(nc.ncclCommDestroy(part));
	CHECK_NC(nc.ncclCommDestroy(comm));
	CHECK_CU(cu.cuMemFree(p));
}

static void test_parts(void)
{
	ranks_run(ranks_count(), parts_rank, NULL);
}

/* ---- Several nonblocking splits of one communicator ---- */

enum { SPLITS = 4 }; /* in the ranks' order, reversed, each rank alone, all but rank 0 */

static void split_many(struct client *c, ncclComm_t comm, bool grouped, ncclConfig_t *config)
{
	const ncclResult_t begun = grouped ? ncclSuccess : ncclInProgress;
	const int colours[SPLITS] = {0, 0, c->rank, c->rank ? 0 : NCCL_SPLIT_NOCOLOR};
	const int ranks[SPLITS] = {c->rank, c->nranks - 1 - c->rank, 0, c->rank - 1};
	const int sizes[SPLITS] = {c->nranks, c->nranks, 1, c->nranks - 1};
	ncclComm_t parts[SPLITS];
	int rank, n;
	if (grouped)
		CHECK_NC(nc.ncclGroupStart());
	for (int i = 0; i < SPLITS; i++)
		CHECK_NC_IS(nc.ncclCommSplit(comm, colours[i], i == 1 ? -c->rank : c->rank,
					     &parts[i], config),
			    begun);
	if (grouped)
		CHECK_NC_IS(nc.ncclGroupEnd(), ncclInProgress);
	CHECK_EQ(dropin_finishes(comm), ncclSuccess);
	for (int i = 0; i < SPLITS; i++) {
		if (colours[i] == NCCL_SPLIT_NOCOLOR) {
			CHECK(!parts[i]);
			continue;
		}
		CHECK_EQ(dropin_finishes(parts[i]), ncclSuccess);
		CHECK_NC(nc.ncclCommUserRank(parts[i], &rank));
		CHECK_EQ(rank, ranks[i]);
		CHECK_NC(nc.ncclCommCount(parts[i], &n));
		CHECK_EQ(n, sizes[i]);
	}
	for (int i = 0; i < SPLITS; i++)
		CHECK_NC(nc.ncclCommDestroy(parts[i]));
}

static void splits_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c), last, part;
	ncclConfig_t config = dropin_config();
	config.blocking = 0;
	for (int round = 0; round < 6; round++) {
		stage("round %d", round);
		split_many(c, comm, round & 1, &config);
	}
	stage("a blocking split after a non-blocking one");
	CHECK_NC_IS(nc.ncclCommSplit(comm, c->rank, 0, &part, &config), ncclInProgress);
	CHECK_NC(nc.ncclCommSplit(comm, 0, c->rank, &last, NULL));
	CHECK_EQ(dropin_finishes(part), ncclSuccess);
	dropin_check_usable(last);
	CHECK_NC(nc.ncclCommDestroy(last));
	CHECK_NC(nc.ncclCommDestroy(part));
	stage("splits that no peer joins");
	if (c->rank == 0)
		for (int i = 0; i < 2; i++)
			CHECK_NC_IS(nc.ncclCommSplit(comm, 0, 0, i ? &last : &part, &config),
				    ncclInProgress);
	CHECK_NC(nc.ncclCommAbort(comm));
	for (int i = 0; c->rank == 0 && i < 2; i++) {
		CHECK(dropin_fails(i ? last : part, WAIT_MS));
		CHECK_NC(nc.ncclCommAbort(i ? last : part));
	}
}

static void test_splits(void)
{
	ranks_run(ranks_count(), splits_rank, NULL);
}

const struct gpu_test nccl_part_tests[] = {
	{"nccl/parts", test_parts, 2, 120, TEST_QUICK},
	{"nccl/splits", test_splits, 2, 120, TEST_QUICK},
	{0},
};
