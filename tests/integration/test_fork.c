/* SPDX-License-Identifier: Apache-2.0
 * Trainers that fork, like those with data loaders. */
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

enum { READY = 1, GO };

/* Forks a child that lives until the test closes the pipe, and waits to be killed. */
static void dies_before_its_child(struct client *me)
{
	const int *pipe = me->arg;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	char c;
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_barrier(comm, &task));
		say(me, READY);
		wait_for(s, task, NCCLSVC_PEER_GONE);
		say(me, now_ns());
		ncclsvc_close(s);
		return;
	}
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		close(pipe[1]);
		_exit(read(pipe[0], &c, 1) != 0);
	}
	say(me, READY);
	CHECK_EQ(hear(me), GO);
}

static void a_child_does_not_keep_its_parent_alive(void **state)
{
	struct daemon d;
	struct client clients[2];
	int pipe[2];
	(void)state;
	daemon_start(&d, NULL);
	CHECK_EQ(pipe2(pipe, O_CLOEXEC), 0);
	clients_start(clients, 2, &d, dies_before_its_child, pipe);
	hear_all(clients, 2, READY);
	uint64_t killed = now_ns();
	client_kill(&clients[1]);
	CHECK(in_time(killed, hear(&clients[0])));
	clients_end(clients, 2);
	daemon_finishes(&d); /* the child still lives */
	close(pipe[0]);
	close(pipe[1]);
	daemon_stop(&d);
}

/* Calls that a child should not make, but its destructors may. */
static void touches_all(struct client *me, ncclsvc_session *s, ncclsvc_comm *comm, void *memory)
{
	ncclsvc_task task;
	CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_DAEMON_LOST);
	CHECK(strstr(ncclsvc_last_error(), "forked"));
	CHECK_RESULT(ncclsvc_reattach(s, 100), NCCLSVC_DAEMON_LOST);
	CHECK_RESULT(ncclsvc_dispatch(s, 0), NCCLSVC_DAEMON_LOST);
	/* A new session may reuse the inherited session's fd numbers: closing the latter must not
	 * close them. */
	ncclsvc_session *own = session_open(me->daemon);
	CHECK_OK(ncclsvc_mem_free(s, memory));
	CHECK_OK(ncclsvc_comm_leave(comm));
	ncclsvc_close(s);
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_OK(ncclsvc_comm_join(own, &id, 1, 0, WAIT_MS, &comm));
	check_usable(own, comm);
	ncclsvc_close(own);
}

static void has_a_child(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int *memory = shared(s, 4096), status;
	ncclsvc_task task;
	CHECK(ncclsvc_get_fd(s) >= 0);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		touches_all(me, s, comm, memory);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	wait_for(s, task, NCCLSVC_OK);
	memory[0] = 1;
	CHECK_OK(ncclsvc_all_reduce(memory, memory, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(memory[0], me->nranks);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_childs_touch_does_not_harm_its_parent(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, has_a_child, NULL);
	clients_end(clients, 2);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_child_does_not_keep_its_parent_alive),
		TEST(a_childs_touch_does_not_harm_its_parent),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
