/* SPDX-License-Identifier: Apache-2.0
 * How processes ended, before and after their parent has reaped them. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/ending.h"
#include "proto/names.h"

struct child {
	pid_t pid;
	int link;
	struct process process;
};

/* When told, the child exits with the status, is killed by the signal, or closes its link. */
static struct child start(int status, int signal, bool closes)
{
	int pair[2];
	char word;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	struct child c = {.pid = fork(), .link = pair[0]};
	assert_true(c.pid >= 0);
	if (!c.pid) {
		close(pair[0]);
		if (read(pair[1], &word, 1) != 1)
			_exit(99);
		if (signal)
			kill(getpid(), signal);
		if (!closes)
			_exit(status);
		close(pair[1]);
		for (;;)
			pause();
	}
	close(pair[1]);
	c.process = ending_watch(-1, c.pid);
	return c;
}

/* Tells the child to end, and waits until its side of the link is closed. */
static void end(const struct child *c)
{
	char word = 1;
	assert_int_equal(write(c->link, &word, 1), 1);
	while (recv(c->link, &word, 1, 0) > 0)
		;
}

static void reap(struct child *c)
{
	int status;
	kill(c->pid, SIGKILL);
	assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
	close(c->link);
}

static void is(const struct child *c, unsigned how, int code)
{
	const struct ending e = ending_of(&c->process);
	assert_int_equal(e.how, how);
	assert_int_equal(e.code, code);
}

static void before_it_is_reaped(void **state)
{
	(void)state;
	struct child c = start(0, SIGABRT, false);
	end(&c);
	is(&c, NCCLSVC_ENDED_KILLED, SIGABRT);
	reap(&c);
	close(c.process.fd);
	c = start(3, 0, false);
	end(&c);
	is(&c, NCCLSVC_ENDED_EXITED, 3);
	reap(&c);
	close(c.process.fd);
	c = start(0, 0, true);
	end(&c);
	is(&c, NCCLSVC_ENDED_CLOSED, 0);
	reap(&c);
	close(c.process.fd);
}

/* Older kernels do not report how a reaped process ended. */
static void after_it_is_reaped(void **state)
{
	(void)state;
	struct child c = start(0, SIGKILL, false);
	end(&c);
	reap(&c);
	const struct ending e = ending_of(&c.process);
	if (e.how != NCCLSVC_ENDED_UNKNOWN)
		is(&c, NCCLSVC_ENDED_KILLED, SIGKILL);
	close(c.process.fd);
	c.process.fd = -1;
	is(&c, NCCLSVC_ENDED_UNKNOWN, 0);
}

/* The pid is another process's by now. */
static void a_pid_that_was_reused_is_unknown(void **state)
{
	(void)state;
	struct child c = start(0, 0, false);
	struct process later = c.process;
	later.start++;
	later.fd = -1;
	const struct ending e = ending_of(&later);
	assert_int_equal(e.how, NCCLSVC_ENDED_UNKNOWN);
	reap(&c);
	close(c.process.fd);
}

static void each_ending_has_words(void **state)
{
	char text[SVC_ENDING_BYTES];
	(void)state;
	for (unsigned how = NCCLSVC_ENDED_UNKNOWN; how <= NCCLSVC_ENDED_DISCONNECTED; how++) {
		assert_string_not_equal(svc_ending_name(how), "?");
		assert_true(strlen(svc_ending_text(how, 1, text)) > 4);
	}
	assert_string_equal(svc_ending_text(NCCLSVC_ENDED_KILLED, SIGSEGV, text),
			    "was killed by SIGSEGV");
	assert_string_equal(svc_ending_text(NCCLSVC_ENDED_KILLED, SIGRTMIN + 1, text),
			    "was killed by signal 35");
	assert_string_equal(svc_ending_text(NCCLSVC_ENDED_KILLED, 0, text),
			    "was killed by a signal");
	assert_string_equal(svc_ending_text(NCCLSVC_ENDED_EXITED, 1, text), "exited with status 1");
	assert_string_equal(svc_ending_text(NCCLSVC_ENDED_EXITED, -1, text), "exited");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(before_it_is_reaped),
		cmocka_unit_test(after_it_is_reaped),
		cmocka_unit_test(a_pid_that_was_reused_is_unknown),
		cmocka_unit_test(each_ending_has_words),
	};
	return cmocka_run_group_tests_name("ending", tests, NULL, NULL);
}
