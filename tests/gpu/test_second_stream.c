/* SPDX-License-Identifier: Apache-2.0
 * A slot's two streams: sums are right while they are tried, and the one that the trainer's stream
 * hears sooner is the one that stays. Which that is only the stand-in can say. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "windows.h"

#define SUMS   50
#define FEW    5     /* one in so many that wait hears late: while nothing is tried */
#define ROUNDS 8     /* where nobody can say */
#define END_MS 18000 /* a trial ends without a result where the machine is too busy */

/* What a stream waits for is told at once, or late if it was written in the other queue: in the end
 * at once. */
static void use(struct rank *r, CUdeviceptr p, unsigned burst, const char *whose)
{
	const uint64_t end = now_ns() + END_MS * UINT64_C(1000000);
	bool good = false;
	stage("%s stream", whose);
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	for (unsigned round = 0; !good; round++) {
		const int far = fake_notes("far");
		for (unsigned k = 1; k <= SUMS; k++) {
			/* Submitted ahead of the one that is looked at. */
			for (unsigned i = 1; i < burst; i++, k++)
				CHECK_OK(ncclsvc_all_reduce(at(p), at(p + WORDS * 4), WORDS,
							    NCCLSVC_FLOAT32, NCCLSVC_SUM, r->comm,
							    NULL));
			sum(r, p, p + WORDS * 4, WORDS, round * SUMS + k);
		}
		good = setup.fake ? fake_notes("far") - far <= (int)(SUMS / burst / FEW)
				  : round == ROUNDS;
		good = all_say(r, good);
		CHECK(good || now_ns() < end);
	}
}

static void two_streams(struct client *c)
{
	const unsigned burst = *(const unsigned *)c->arg;
	struct rank r;
	CUdeviceptr p;
	CUstream own;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * WORDS * 4));
	use(&r, p, burst, "one");
	/* In the other queue: one of both is not where the slot's first stream is. */
	own = r.stream;
	CHECK_CU(cu.cuStreamCreate(&r.stream, CU_STREAM_NON_BLOCKING));
	use(&r, p, burst, "another");
	CHECK_CU(cu.cuStreamDestroy(r.stream));
	r.stream = own;
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* A process that answers where MPS would: as far as the stand-in for CUDA can see, there is one. */
static pid_t pretend_mps(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/control",
		 getenv("NCCLSVC_FAKE_DIR"));
	unlink(address.sun_path);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof(address)) &&
	      !listen(fd, RANKS_MAX));
	setenv("CUDA_MPS_PIPE_DIRECTORY", getenv("NCCLSVC_FAKE_DIR"), 1);
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		for (int client; (client = accept(fd, NULL, NULL)) >= 0;)
			send(client, "y", 1, MSG_NOSIGNAL); /* and it stays connected */
	close(fd);
	return pid;
}

static void choose(unsigned burst)
{
	const pid_t mps = setup.fake ? pretend_mps() : 0;
	setenv("NCCLSVC_FAKE_FAULTS", "far-late", 1);
	ranks_run(ranks_count(), two_streams, &burst);
	unsetenv("NCCLSVC_FAKE_FAULTS");
	if (!setup.fake)
		return;
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	kill(mps, SIGKILL);
	waitpid(mps, NULL, 0);
	CHECK(fake_notes("far") > 0);
}

static void test_chosen(void)
{
	choose(1);
}

static void test_ahead(void)
{
	choose(10);
}

const struct gpu_test second_stream_tests[] = {
	{"second_stream/chosen", test_chosen, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"second_stream/ahead", test_ahead, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{0},
};
