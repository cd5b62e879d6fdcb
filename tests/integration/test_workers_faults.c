/* SPDX-License-Identifier: Apache-2.0
 * GPUs, drivers and NCCL that fail, each in its own way. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "workers.h"

#define WORDS	       100000
/* Time before a worker is restarted, minus timer inaccuracy; it doubles. */
#define FIRST_PAUSE_NS UINT64_C(90000000)

static void submit_and_wait(struct rank_group *c)
{
	for (int i = 0; i < c->n; i++) {
		ranks_must(c, i, ORDER_SUM, NCCLSVC_OK, 0, WORDS, i + 1);
		ranks_begin(c, i, ORDER_WAIT, WAIT_MS);
	}
}

static void all_end(struct rank_group *c, int result)
{
	for (int i = 0; i < c->n; i++) {
		ranks_ended(c, i, result);
		ranks_must(c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	}
}

static void says(const char *text, const char *part)
{
	if (!strstr(text, part))
		check_failed(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", text, part);
}

/* ---- The context ---- */

static void fails_at_work(const char *fault, const char *error)
{
	struct rank_group c;
	ranks_start(&c, 2, NULL);
	int pid = device_of(&c, 1).pid;
	fault_on(&c, fault, pid);
	submit_and_wait(&c);
	all_end(&c, NCCLSVC_WORKER_LOST);
	fault_off(&c, fault);
	ncclsvc_device_info d = worker_replaced(&c, 1, pid);
	CHECK_EQ(d.restarts, 1);
	says(d.text, error);
	CHECK_EQ(device_of(&c, 0).restarts, 0);
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 0);
	ranks_stop(&c);
}

static void sticky_error(void **state)
{
	(void)state;
	fails_at_work("sticky", "CUDA_ERROR_ILLEGAL_ADDRESS");
}

/* After any unknown error, all later calls fail. */
static void unheard_of_error(void **state)
{
	(void)state;
	fails_at_work("contained", "unknown CUDA error");
}

/* The GPU is unused, but the daemon still notices the error. */
static void error_of_an_idle_gpu(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, "--worker-seconds", "1", NULL);
	int pid = device_of(&c, 1).pid;
	fault_on(&c, "contained", pid);
	worker_replaced(&c, 1, pid);
	fault_off(&c, "contained");
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 0);
	ranks_stop(&c);
}

/* Waits until the device's worker has ended at least n times. */
static ncclsvc_device_info restarted(const struct rank_group *c, int device, uint32_t n)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(5)) {
		ncclsvc_device_info d = device_of(c, device);
		if (d.restarts >= n)
			return d;
		CHECK(now_ns() < end);
	}
}

static void again_and_again(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	int pid = device_of(&c, 1).pid;
	fault_on(&c, "driver-old", 0);
	uint64_t killed = worker_kill(&c, 1);
	restarted(&c, 1, 2); /* the new one has failed, too */
	device_reaches(&c, 1, NCCLSVC_DEVICE_LOST);
	/* A JOIN waits for the worker, within its timeout. */
	uint64_t before = now_ns();
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_REJOIN, 0, 700);
	for (int i = 0; i < 2; i++) {
		ranks_ended(&c, i, NCCLSVC_TIMEOUT);
		says(c.pages[i].text, "gpu1");
		says(c.pages[i].text, "11.4");
	}
	CHECK(in_time(before, now_ns()));
	ncclsvc_device_info d = restarted(&c, 1, 3);
	CHECK(d.state == NCCLSVC_DEVICE_LOST || d.state == NCCLSVC_DEVICE_STARTING);
	says(d.text, "install a newer driver");
	/* The first restart is immediate, because that worker had done work; later restarts come
	 * after growing pauses. */
	CHECK(now_ns() - killed >= ((UINT64_C(1) << (d.restarts - 2)) - 1) * FIRST_PAUSE_NS);
	fault_off(&c, "driver-old");
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 0);
	worker_replaced(&c, 1, pid);
	ranks_stop(&c);
}

/* Pauses apply only to workers that have done no work. With pauses, the last restart here would
 * take 25.6 s. */
static void killed_often(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	for (int i = 0; i < 9; i++) {
		int pid = device_of(&c, 1).pid;
		uint64_t killed = worker_kill(&c, 1);
		worker_replaced(&c, 1, pid);
		CHECK(in_time(killed, now_ns()));
		ranks_rejoin(&c, 3, 0);
		ranks_try(&c, 3, 0);
	}
	ranks_stop(&c);
}

/* ---- Calls that do not return ---- */

static void ctl_answers(const struct rank_group *c, const char *command, const char *option,
			const char *argument, const char *part)
{
	static char out[1 << 16];
	char *argv[] = {(char *)(uintptr_t)program("NCCLSVC_CTL"),
			"--socket",
			(char *)(uintptr_t)c->d.socket,
			(char *)(uintptr_t)command,
			(char *)(uintptr_t)option,
			(char *)(uintptr_t)argument,
			NULL};
	uint64_t before = now_ns();
	run_program(argv, out, sizeof(out));
	CHECK(in_time(before, now_ns()));
	says(out, part);
}

static void wedged_worker(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, "--worker-seconds", "12", NULL);
	int pid = device_of(&c, 1).pid;
	fault_on(&c, "wedge", pid);
	submit_and_wait(&c);
	sleep_ms(300);
	ctl_answers(&c, "devices", "--json", NULL, "\"state\"");
	ctl_answers(&c, "tasks", NULL, NULL, "AllReduce");
	ctl_answers(&c, "why", "--after", "0.1", "AllReduce");
	CHECK_EQ(device_of(&c, 1).pid, pid);
	all_end(&c, NCCLSVC_WORKER_LOST);
	fault_off(&c, "wedge");
	ncclsvc_device_info d = worker_replaced(&c, 1, pid);
	says(d.text, "does not answer");
	CHECK_EQ(device_of(&c, 0).restarts, 0);
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 0);
	ranks_stop(&c);
}

/* The whole machine stopped, including the daemon: the daemon must not end a worker that had no
 * chance to answer. */
static void a_machine_that_stood_still(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, "--worker-seconds", "11", NULL);
	int pid = device_of(&c, 1).pid;
	worker_pause(pid);
	for (int i = 0; i < 2; i++)
		ranks_begin(&c, i, ORDER_JOIN, 2, 2, i, i, WAIT_MS, 1);
	clients_ask(c.ranks, 2);
	process_stop(c.d.pid);
	sleep_ms(11700);
	CHECK_EQ(kill(c.d.pid, SIGCONT), 0);
	sleep_ms(50); /* the daemon checks first */
	worker_continue(pid);
	for (int i = 0; i < 2; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	CHECK_EQ(device_of(&c, 1).restarts, 0);
	ranks_try(&c, 3, 1);
	ranks_stop(&c);
}

/* ---- NCCL ---- */

static void async_error(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	fault_on(&c, "async-error", 0);
	submit_and_wait(&c);
	all_end(&c, NCCLSVC_NCCL_ERROR);
	fault_off(&c, "async-error");
	ncclsvc_device_info d = device_of(&c, 0), e = device_of(&c, 1);
	says(d.text[0] ? d.text : e.text, "asynchronous error");
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(device_of(&c, i).restarts, 0);
		only_comm_stays(&c, i);
	}
	ranks_stop(&c);
}

/* A kernel that ignores the abort: it ends only with its process. */
static void hang_after_abort(void **state)
{
	struct rank_group c;
	int pids[2];
	(void)state;
	ranks_start(&c, 2, "--worker-seconds", sanitized() ? "4" : "1", NULL);
	for (int i = 0; i < 2; i++)
		pids[i] = device_of(&c, i).pid;
	fault_on(&c, "kernel-hang", 0);
	submit_and_wait(&c);
	kernels_hang(&c, 2);
	uint64_t killed = worker_kill(&c, 1);
	for (int i = 0; i < 2; i++) {
		ranks_ended(&c, i, NCCLSVC_WORKER_LOST);
		ranks_in_time(&c, i, killed);
	}
	/* The ranks' streams wait for kernels that may still write, but not forever. */
	for (int i = 0; i < 2; i++)
		ranks_must(&c, i, ORDER_SYNC, NCCLSVC_OK, 0);
	CHECK(in_time(killed, now_ns()));
	for (int i = 0; i < 2; i++)
		worker_replaced(&c, i, pids[i]);
	fault_off(&c, "kernel-hang");
	ranks_rejoin(&c, 3, 0);
	ranks_try(&c, 3, 0);
	ranks_stop(&c);
}

/* A trainer dies while the peers' kernels hang: the daemon aborts them if they do not end. */
static void hang_of_a_dead_trainer(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, "--worker-seconds", sanitized() ? "4" : "1", NULL);
	fault_on(&c, "kernel-hang", 0);
	submit_and_wait(&c);
	kernels_hang(&c, 2);
	fault_off(&c, "kernel-hang");
	uint64_t killed = ranks_kill(&c, 1);
	ranks_ended(&c, 0, NCCLSVC_PEER_GONE);
	ranks_in_time(&c, 0, killed);
	ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
	ranks_replace(&c, 1);
	ranks_begin(&c, 1, ORDER_JOIN, 1, 2, 1, 1, WAIT_MS, 0);
	ranks_begin(&c, 0, ORDER_REJOIN, 0, WAIT_MS);
	for (int i = 0; i < 2; i++)
		ranks_ended(&c, i, NCCLSVC_OK);
	ranks_try(&c, 3, 0);
	CHECK(daemon_says(&c.d, "gpu0, gpu1: NCCL communicator 0 is aborted"));
	for (int i = 0; i < 2; i++)
		CHECK_EQ(device_of(&c, i).restarts, 0);
	ranks_stop(&c);
}

static void init_fails(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_prepare(&c, 2);
	ranks_start_daemon(&c, NULL);
	ranks_create(&c, 2);
	fault_on(&c, "init-fail", 0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2; i++)
			ranks_begin(&c, i, ORDER_JOIN, 1, 2, i, i, WAIT_MS, 0);
		for (int i = 0; i < 2; i++) {
			ranks_ended(&c, i, NCCLSVC_NCCL_ERROR);
			says(c.pages[i].text, "the fault init-fail is on");
		}
	}
	fault_off(&c, "init-fail");
	ranks_join(&c, 1, 3, 0);
	ranks_try(&c, 3, 0);
	only_comm_stays(&c, 0);
	ranks_stop(&c);
}

/* ---- Memory ---- */

static void import_fails(void **state)
{
	static const char *const faults[] = {"ipc-open", "memory"};
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	for (int k = 0; k < 2; k++) {
		ranks_must(&c, 0, ORDER_NEW, NCCLSVC_OK, 0);
		fault_on(&c, faults[k], device_of(&c, 0).pid);
		ncclsvc_result r = ranks_ask(&c, 0, ORDER_SUM, 0, WORDS, 1);
		CHECK_EQ(r, k ? NCCLSVC_NO_MEMORY : NCCLSVC_SYSTEM);
		says(c.pages[0].text, "gpu0");
		says(c.pages[0].text, "CUDA");
		fault_off(&c, faults[k]);
		/* Nothing was submitted, and nothing is broken. */
		ranks_must(&c, 0, ORDER_SYNC, NCCLSVC_OK, 0);
		ranks_try(&c, 3, 0);
	}
	CHECK_EQ(device_of(&c, 0).restarts, 0);
	ranks_stop(&c);
}

static void allocation_fails(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	const uint32_t before = device_of(&c, 0).imports;
	fault_on(&c, "memory", c.ranks[0].pid);
	ranks_must(&c, 0, ORDER_ALLOC, NCCLSVC_NO_MEMORY, 1 << 20);
	says(c.pages[0].text, "cannot allocate 1048576 bytes on GPU 0");
	fault_off(&c, "memory");
	/* More than the GPU has. */
	ranks_must(&c, 0, ORDER_ALLOC, NCCLSVC_NO_MEMORY, INT64_C(1) << 40);
	ranks_must(&c, 0, ORDER_ALLOC, NCCLSVC_OK, 1 << 20);
	ranks_try(&c, 3, 0);
	CHECK_EQ(device_of(&c, 0).imports, before + 1);
	ranks_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(sticky_error),
		RANKS_TEST(unheard_of_error),
		RANKS_TEST(error_of_an_idle_gpu),
		RANKS_TEST(again_and_again),
		RANKS_TEST(wedged_worker),
		RANKS_TEST(a_machine_that_stood_still),
		RANKS_TEST(async_error),
		RANKS_TEST(hang_after_abort),
		RANKS_TEST(hang_of_a_dead_trainer),
		RANKS_TEST(init_fails),
		RANKS_TEST(import_fails),
		RANKS_TEST(allocation_fails),
		RANKS_TEST(killed_often),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
