/* SPDX-License-Identifier: Apache-2.0
 * The drop-in: refusals, communicators that are not ready, memory. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dropin_calls.h"

enum word { READY = 1, GO };

/* ---- Refusals ---- */

static void refused_operations(ncclComm_t comm, CUstream s)
{
	CUdeviceptr p = dropin_words(1);
	uint32_t host[DROPIN_WORDS] = {0};
	stage("operations");
	CHECK_NC_IS(nc.ncclAllReduce(at(p), at(p), 1, 99, NCCLSVC_SUM, comm, s),
		    ncclInvalidArgument);
	CHECK_SAYS(NULL, "99 is not a data type");
	CHECK_NC_IS(nc.ncclAllReduce(at(p), at(p), 1, NCCLSVC_INT8, 77, comm, s),
		    ncclInvalidArgument);
	CHECK_SAYS(NULL, "77 is not a reduction");
	CHECK_NC_IS(nc.ncclBroadcast(at(p), at(p), 1, NCCLSVC_INT8, 1000, comm, s),
		    ncclInvalidArgument);
	CHECK_SAYS(NULL, "root");
	CHECK_NC_IS(nc.ncclSend(at(p), 1, NCCLSVC_INT8, -1, comm, s), ncclInvalidArgument);
	CHECK_SAYS(NULL, "peer");
	CHECK_NC_IS(nc.ncclAllReduce(NULL, at(p), 1, NCCLSVC_INT8, NCCLSVC_SUM, comm, s),
		    ncclInvalidArgument);
	CHECK_SAYS(NULL, "sendbuf");
	CHECK_NC_IS(nc.ncclAllReduce(host, host, 1, NCCLSVC_INT8, NCCLSVC_SUM, comm, s),
		    ncclInvalidUsage);
	CHECK_NC_IS(nc.ncclAllReduce(at(p), at(p), SIZE_MAX, NCCLSVC_INT32, NCCLSVC_SUM, comm, s),
		    ncclInvalidArgument);
	stage("a group");
	CHECK_NC_IS(nc.ncclGroupEnd(), ncclInvalidUsage);
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(dropin_sum(p, comm, s));
	CHECK_NC_IS(nc.ncclAllReduce(at(p), at(p), 1, 99, NCCLSVC_SUM, comm, s),
		    ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclGroupEnd(), ncclInvalidArgument);
	CHECK_SAYS(NULL, "99 is not a data type");
	CHECK_CU(cu.cuMemFree(p));
}

static void refused_configurations(struct client *c, ncclComm_t comm)
{
	ncclConfig_t config = dropin_config();
	ncclComm_t other = (ncclComm_t)-1;
	ncclUniqueId id = dropin_id_number(c, 7);
	stage("configurations");
	config.magic = 1;
	CHECK_NC_IS(nc.ncclCommInitRankConfig(&other, 2, id, 0, &config), ncclInvalidArgument);
	CHECK(!other);
	config = dropin_config();
	config.blocking = 2;
	CHECK_NC_IS(nc.ncclCommInitRankConfig(&other, 2, id, 0, &config), ncclInvalidArgument);
	CHECK_SAYS(NULL, "blocking");
	config = dropin_config();
	config.minCTAs = 8;
	config.maxCTAs = 4;
	CHECK_NC_IS(nc.ncclCommInitRankConfig(&other, 2, id, 0, &config), ncclInvalidArgument);
	CHECK_SAYS(NULL, "minCTAs");
	config = dropin_config();
	config.cgaClusterSize = -1;
	CHECK_NC_IS(nc.ncclCommInitRankConfig(&other, 2, id, 0, &config), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommInitRank(&other, 2, id, 2), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommInitRank(NULL, 2, id, 0), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommInitRankScalable(&other, 2, 0, 3, &id, NULL), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommSplit(comm, -2, 0, &other, NULL), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommShrink(comm, &c->rank, 1, &other, NULL, 0), ncclInvalidArgument);
	CHECK_SAYS(NULL, "excludes itself");
}

static void refused_others(ncclComm_t comm)
{
	char scratch[256] = {0};
	ncclSimInfo_t info = {.size = sizeof(info), .magic = NCCL_SIM_MAGIC};
	stage("others");
	CHECK_NC_IS(nc.ncclDevCommCreate(comm, scratch, scratch), ncclInvalidUsage);
	CHECK_SAYS(NULL, "device API");
	CHECK_NC_IS(nc.ncclDevCommDestroy(comm, scratch), ncclInvalidUsage);
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC_IS(nc.ncclGroupSimulateEnd(&info), ncclInvalidUsage);
	CHECK_NC_IS(nc.ncclGroupEnd(), ncclInvalidUsage);
	CHECK_EQ(nc.ncclTeamLsa(comm).nRanks, 0);
	CHECK_NC_IS(nc.ncclCommCount(NULL, &(int){0}), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclMemFree(scratch), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommRevoke(comm, 1), ncclInvalidArgument);
	CHECK(strcmp(nc.ncclGetErrorString(ncclRemoteError), nc.ncclGetErrorString(99)));
}

static void refused_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	CUstream s = gpu_stream();
	ncclTeam_t world = nc.ncclTeamWorld(comm);
	CHECK_EQ(world.nRanks, c->nranks);
	CHECK_EQ(world.rank, c->rank);
	refused_operations(comm, s);
	refused_configurations(c, comm);
	refused_others(comm);
	stage("a mismatch");
	CUdeviceptr p = dropin_words(1);
	CHECK_NC(nc.ncclAllReduce(at(p), at(p), DROPIN_WORDS - (size_t)(c->rank == 0),
				  NCCLSVC_UINT32, NCCLSVC_SUM, comm, s));
	CHECK_EQ(dropin_fails(comm, WAIT_MS), ncclInvalidUsage);
	CHECK_SAYS(comm, "MISMATCH");
	CHECK_SAYS(comm, "count");
	CHECK(gpu_stream_ends(s, WAIT_MS));
	CHECK_NC_IS(dropin_sum(p, comm, s), ncclInvalidUsage);
	stage("another communicator");
	ncclComm_t next;
	CHECK_NC(nc.ncclCommInitRank(&next, c->nranks, dropin_id_number(c, 1), c->rank));
	dropin_check_usable(next);
	CHECK_NC(nc.ncclCommDestroy(next));
	/* An earlier abort might reach the other rank before it has seen the mismatch. */
	CHECK_NC(nc.ncclCommAbort(comm));
	CHECK_CU(cu.cuMemFree(p));
}

static void test_refused(void)
{
	ranks_run(2, refused_rank, NULL);
}

/* ---- Memory ---- */

static void memory_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	CUstream s = gpu_stream();
	CUdeviceptr own = dropin_words(1);
	ncclWindow_t window;
	void *block, *handle, *user;
	for (int round = 0; round < 3; round++) {
		stage("memory of ncclMemAlloc, %d", round);
		CHECK_NC(nc.ncclMemAlloc(&block, DROPIN_WORDS * 4));
		gpu_fill((uintptr_t)block, (unsigned)c->rank + 1, DROPIN_WORDS);
		CHECK_NC(nc.ncclCommRegister(comm, block, DROPIN_WORDS * 4, &handle));
		CHECK_NC(nc.ncclCommWindowRegister(comm, block, DROPIN_WORDS * 4, &window,
						   NCCL_WIN_COLL_SYMMETRIC));
		CHECK_NC(nc.ncclWinGetUserPtr(comm, window, &user));
		CHECK(user == block);
		CHECK_NC_IS(nc.ncclWinGetUserPtr(comm, handle, &user), ncclInvalidArgument);
		CHECK_NC(dropin_sum((uintptr_t)block, comm, s));
		/* A block in use is freed when its operation is over. */
		if (round < 2) {
			CHECK(gpu_stream_ends(s, WAIT_MS));
			gpu_check((uintptr_t)block, (unsigned)(c->nranks * (c->nranks + 1) / 2),
				  DROPIN_WORDS, "the sum in memory of ncclMemAlloc");
		}
		CHECK_NC(nc.ncclCommWindowDeregister(comm, window));
		CHECK_NC_IS(nc.ncclCommWindowDeregister(comm, window), ncclInvalidArgument);
		CHECK_NC(nc.ncclCommDeregister(comm, handle));
		CHECK_NC(nc.ncclMemFree(block));
	}
	stage("memory that the program allocated");
	CHECK_NC(nc.ncclCommWindowRegister(comm, at(own), DROPIN_WORDS * 4, &window, 0));
	CHECK_NC(nc.ncclCommWindowDeregister(comm, window));
	CHECK_NC(nc.ncclCommRegister(comm, at(own), DROPIN_WORDS * 4, &handle));
	CHECK_NC(nc.ncclCommDeregister(comm, handle));
	/* Freed and allocated again: the same address may be other memory. */
	for (int round = 0; round < 10; round++) {
		CHECK_CU(cu.cuMemFree(own));
		own = dropin_words((unsigned)(c->rank + 1 + round));
		CHECK_NC(dropin_sum(own, comm, s));
		CHECK(gpu_stream_ends(s, WAIT_MS));
		gpu_check(own, (unsigned)(c->nranks * (c->nranks + 1) / 2 + round * c->nranks),
			  DROPIN_WORDS, "the sum in memory allocated again");
	}
	stage("checking for errors releases freed memory");
	CHECK_CU(cu.cuMemFree(own));
	ncclsvc_session *session = session_open(c->daemon);
	for (uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	     device_info(session, c->rank).imports; sleep_ms(10)) {
		ncclResult_t error;
		CHECK_NC(nc.ncclCommGetAsyncError(comm, &error));
		CHECK(now_ns() < end);
	}
	ncclsvc_close(session);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_memory(void)
{
	ranks_run(2, memory_rank, NULL);
}

/* A child must not use its parent's session, whose fd numbers it may have reused. */
static void free_in_child(void *block)
{
	enum { PAIRS = 32 };
	int pairs[PAIRS][2];
	char byte;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid) {
		int status;
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK_EQ(status, 0);
		return;
	}
	for (int i = 0; i < PAIRS; i++)
		CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pairs[i]), 0);
	CHECK_NC_IS(nc.ncclMemFree(block), ncclInvalidUsage);
	CHECK_SAYS(NULL, "forked");
	for (int i = 0; i < PAIRS; i++)
		for (int k = 0; k < 2; k++)
			CHECK_EQ(recv(pairs[i][k], &byte, 1, MSG_DONTWAIT), -1);
	_exit(0);
}

/* Frees memory that was never allocated, until it is told to stop. */
static void *free_nothing(void *stop)
{
	while (!atomic_load((atomic_bool *)stop))
		nc.ncclMemFree(stop);
	return NULL;
}

/* Forks while another thread is in ncclMemFree, whose locks must not be held in the children. */
static void fork_while_freeing(void)
{
	enum { FORKS = 200, SECONDS = 10 };
	atomic_bool stop = false;
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, free_nothing, &stop), 0);
	for (int i = 0, status; i < FORKS; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			alarm(SECONDS);
			_exit(nc.ncclMemFree(&stop) != ncclInvalidArgument);
		}
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK_EQ(status, 0);
	}
	atomic_store(&stop, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void forked_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	void *block;
	CHECK_NC(nc.ncclMemAlloc(&block, DROPIN_WORDS * 4));
	stage("a child");
	free_in_child(block);
	stage("a child, while another thread frees");
	fork_while_freeing();
	stage("the parent");
	gpu_fill((uintptr_t)block, (unsigned)c->rank + 1, DROPIN_WORDS);
	CHECK_NC(dropin_sum((uintptr_t)block, comm, NULL));
	CHECK(gpu_stream_ends(NULL, WAIT_MS));
	CHECK_NC(nc.ncclMemFree(block));
	CHECK_NC_IS(nc.ncclMemFree(block), ncclInvalidArgument);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_forked(void)
{
	ranks_run(2, forked_rank, NULL);
}

/* ---- Without blocking ---- */

/* An abort withdraws a join that has not reached the daemon, or waits there. Otherwise the daemon
 * would still know the id with two ranks, and refuse the last join, of one rank. */
static void join_again(struct client *c, ncclConfig_t *config)
{
	static const unsigned waits_ms[] = {0, 1, 50};
	for (int i = 0; i < 3; i++) {
		ncclUniqueId id = dropin_id_number(c, 20 + 10 * i + c->rank);
		ncclComm_t comm;
		stage("a join that is aborted after %u ms, and started again", waits_ms[i]);
		for (int k = 0; k < 3; k++) {
			CHECK_NC_IS(nc.ncclCommInitRankConfig(&comm, 2, id, 0, config),
				    ncclInProgress);
			sleep_ms(waits_ms[i]);
			CHECK_NC(nc.ncclCommAbort(comm));
		}
		CHECK_NC_IS(nc.ncclCommInitRankConfig(&comm, 1, id, 0, config), ncclInProgress);
		CHECK_EQ(dropin_finishes(comm), ncclSuccess);
		dropin_check_usable(comm);
		CHECK_NC(nc.ncclCommDestroy(comm));
	}
}

/* The number of communicators that the daemon lists with this label. */
static size_t listed(const struct client *c, const char *label)
{
	ncclsvc_session *s = session_open(c->daemon);
	ncclsvc_comm_info *list;
	size_t n, found = 0;
	CHECK_OK(ncclsvc_list_comms(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		found += !strcmp(list[i].label, label);
	ncclsvc_list_free(list);
	ncclsvc_close(s);
	return found;
}

static void nonblocking_rank(struct client *c)
{
	ncclConfig_t config = dropin_config();
	ncclComm_t comm, part = NULL;
	ncclResult_t error;
	int n;
	config.blocking = 0;
	config.commName = "tests";
	dropin_open(c->daemon);
	gpu_use(c->rank);
	if (c->rank == 0) {
		stage("joining alone");
		CHECK_NC_IS(
			nc.ncclCommInitRankConfig(&comm, c->nranks, dropin_id(c), c->rank, &config),
			ncclInProgress);
		sleep_ms(50);
		CHECK_NC(nc.ncclCommGetAsyncError(comm, &error));
		CHECK_EQ(error, ncclInProgress);
		CHECK_NC_IS(dropin_sum(0, comm, NULL), ncclInvalidArgument);
		CHECK_SAYS(NULL, "still being created");
		CHECK_NC_IS(nc.ncclCommCount(comm, &n), ncclInvalidArgument);
		say(c, READY);
	} else {
		CHECK_EQ(hear(c), GO);
		CHECK_NC(nc.ncclGroupStart());
		CHECK_NC(nc.ncclCommInitRankConfig(&comm, c->nranks, dropin_id(c), c->rank,
						   &config));
		CHECK_NC_IS(nc.ncclGroupEnd(), ncclInProgress);
	}
	CHECK_EQ(dropin_finishes(comm), ncclSuccess);
	dropin_check_usable(comm);
	CHECK_EQ(listed(c, "tests"), 1);
	stage("splitting");
	CHECK_NC_IS(nc.ncclCommSplit(comm, c->rank ? 1 : NCCL_SPLIT_NOCOLOR, 0, &part, NULL),
		    ncclInProgress);
	CHECK_EQ(dropin_finishes(comm), ncclSuccess);
	CHECK_EQ(part != NULL, c->rank != 0);
	if (part) {
		CHECK_EQ(dropin_finishes(part), ncclSuccess);
		CHECK_EQ(listed(c, "tests/split 1 colour 1"), 1);
		dropin_check_usable(part);
		CHECK_NC(nc.ncclCommDestroy(part));
	}
	stage("finalizing");
	ncclResult_t r = nc.ncclCommFinalize(comm);
	CHECK(r == ncclInProgress || r == ncclSuccess);
	CHECK_EQ(dropin_finishes(comm), ncclSuccess);
	CHECK_NC(nc.ncclCommDestroy(comm));
	stage("an aborted join");
	CHECK_NC_IS(
		nc.ncclCommInitRankConfig(&comm, 2, dropin_id_number(c, 10 + c->rank), 0, &config),
		ncclInProgress);
	CHECK_NC(nc.ncclCommAbort(comm));
	join_again(c, &config);
	stage("a join of too many ranks");
	CHECK_NC_IS(nc.ncclCommInitRankConfig(&comm, 1000, dropin_id_number(c, 3), 0, &config),
		    ncclInProgress);
	CHECK_EQ(dropin_finishes(comm), ncclInvalidArgument);
	CHECK_SAYS(comm, "1000");
	CHECK_NC(nc.ncclCommAbort(comm));
}

static void test_nonblocking(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, nonblocking_rank, NULL);
	CHECK_EQ(hear(&ranks[0]), READY);
	for (int i = 1; i < n; i++)
		say(&ranks[i], GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test nccl_life_tests[] = {
	{"nccl/refused", test_refused, 2, 120, TEST_QUICK},
	{"nccl/memory", test_memory, 2, 120, TEST_QUICK},
	{"nccl/nonblocking", test_nonblocking, 2, 120, TEST_QUICK},
	{"nccl/memory-forked", test_forked, 2, 120, TEST_QUICK},
	{0},
};
