/* SPDX-License-Identifier: Apache-2.0
 * Client processes, forked from the test, each with its own session. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness_parts.h"
#include "node_daemons.h"

#define CLIENTS_MAX 64

/* Copies: a failed test's own structs were on a stack that is gone. */
static struct {
	pid_t pid; /* 0: free */
	int link;
} alive[CLIENTS_MAX];
static struct client *self;

const struct client *client_self(void)
{
	return self;
}

static void forget(struct client *c)
{
	for (int i = 0; i < CLIENTS_MAX; i++)
		if (alive[i].pid == c->pid)
			alive[i].pid = 0;
	close(c->link);
	c->link = -1;
	c->pid = 0;
}

static void remember(const struct client *c)
{
	int i = 0;
	while (i < CLIENTS_MAX && alive[i].pid)
		i++;
	CHECK(i < CLIENTS_MAX);
	alive[i].pid = c->pid;
	alive[i].link = c->link;
}

/* In a client, cmocka's signal handlers would continue the test. */
static void die_of_crashes(void)
{
	static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS};
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		signal(signals[i], SIG_DFL);
}

void client_start(struct client *c, client_main *main)
{
	int link[2];
	pid_t parent = getpid();
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link), 0);
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		/* The test's ends of the other clients' links must not stay open here. */
		for (int i = 0; i < CLIENTS_MAX; i++)
			if (alive[i].pid)
				close(alive[i].link);
		close(link[0]);
		daemons_forget();
		die_of_crashes();
		c->pid = getpid();
		c->link = link[1];
		self = c;
		main(c);
		close(c->link);
		exit(0);
	}
	close(link[1]);
	c->pid = pid;
	c->link = link[0];
	remember(c);
}

void clients_start(struct client *clients, int n, const struct daemon *d, client_main *main,
		   void *arg)
{
	ncclsvc_unique_id id;
	const struct cluster *c = cluster_of(d);
	if (c) {
		cluster_clients(clients, n, c, IN_TURN, main, arg);
		return;
	}
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < n; i++) {
		clients[i] = (struct client){
			.rank = i, .nranks = n, .daemon = d, .id = id, .arg = arg, .link = -1};
		client_start(&clients[i], main);
	}
}

bool reap(pid_t pid, int *status, unsigned ms)
{
	for (uint64_t end = now_ns() + ms * 1000000ull;; sleep_ms(1)) {
		pid_t done = waitpid(pid, status, WNOHANG);
		if (done == pid)
			return true;
		if (done < 0 || now_ns() > end)
			return false;
	}
}

/* Reports a process that did not end with success. */
static bool ended_well(const struct client *c, int status)
{
	const bool exited = WIFEXITED(status);
	const int number = exited ? WEXITSTATUS(status) : WTERMSIG(status);
	if (exited && !number)
		return true;
	print_error("rank %d (pid %d) ended with %s %d\n", c->rank, c->pid,
		    exited ? "exit code" : "signal", number);
	return false;
}

void clients_end(struct client *clients, int n)
{
	clients_end_within(clients, n, 2 * WAIT_MS);
}

/* Reaps in any order: the remaining clients may wait for one that has failed. */
void clients_end_within(struct client *clients, int n, unsigned ms)
{
	bool good = true;
	int left;
	for (uint64_t end = now_ns() + ms * 1000000ull;; sleep_ms(1)) {
		left = 0;
		for (int i = 0; i < n; i++) {
			int status;
			if (!clients[i].pid)
				continue;
			if (!reap(clients[i].pid, &status, 0)) {
				left++;
				continue;
			}
			good = ended_well(&clients[i], status) && good;
			forget(&clients[i]);
		}
		if (!left || !good || now_ns() > end)
			break;
	}
	for (int i = 0; good && i < n; i++)
		if (clients[i].pid)
			print_error("rank %d (pid %d) does not end\n", i, clients[i].pid);
	CHECK(good && !left && "every client succeeded");
}

void client_kill(struct client *c)
{
	int status;
	CHECK(c->pid > 0);
	kill(c->pid, SIGKILL);
	CHECK(reap(c->pid, &status, WAIT_MS));
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	forget(c);
}

void clients_recover(int n, const char *ranks, client_main *main, bool daemon_too)
{
	enum { READY = 1, GO };
	struct daemon d;
	struct client clients[CLIENTS_MAX];
	CHECK(n > 0 && n <= CLIENTS_MAX);
	daemon_start(&d, "--ranks", ranks, NULL);
	clients_start(clients, n, &d, main, NULL);
	hear_all(clients, n, READY);
	client_kill(&clients[n - 1]);
	if (daemon_too) {
		daemon_kill(&d);
		daemon_restart(&d, "--ranks", ranks, NULL);
	}
	client_start(&clients[n - 1], main);
	say_all(clients, n - 1, GO);
	hear_all(clients, n, READY);
	say_all(clients, n, GO);
	clients_end(clients, n);
	daemon_stop(&d);
}

void clients_cleanup(void)
{
	for (int i = 0; i < CLIENTS_MAX; i++) {
		int status;
		if (!alive[i].pid)
			continue;
		kill(alive[i].pid, SIGKILL);
		reap(alive[i].pid, &status, WAIT_MS);
		close(alive[i].link);
		alive[i].pid = 0;
	}
}

char process_state(pid_t pid)
{
	char path[64], text[512], state = 0;
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return 0;
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	const char *rest = strrchr(text, ')');
	if (rest)
		sscanf(rest + 1, " %c", &state);
	return state;
}

static bool all_stopped(pid_t pid)
{
	char path[64];
	bool stopped = true;
	const struct dirent *thread;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *threads = opendir(path);
	CHECK(threads);
	while (stopped && (thread = readdir(threads)))
		stopped = thread->d_name[0] == '.' ||
			  strchr("TZX", process_state((pid_t)atoi(thread->d_name)));
	closedir(threads);
	return stopped;
}

void process_stop(pid_t pid)
{
	CHECK_EQ(kill(pid, SIGSTOP), 0);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !all_stopped(pid); sleep_ms(1))
		CHECK(now_ns() < end);
}

uint64_t process_gone(pid_t pid)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(1)) {
		char state = process_state(pid);
		if (!state || state == 'Z' || state == 'X')
			return now_ns();
	}
	check_failed(__FILE__, __LINE__, "process %d does not end", pid);
}

void clients_ask(struct client *clients, int n)
{
	for (int i = 0; i < n; i++) {
		if (!clients[i].pid)
			continue;
		/* A client that has received something is no longer asleep, so one that sleeps has
		 * sent its request. */
		uint64_t end = now_ns() + WAIT_MS * 1000000ull;
		for (int asleep = 0; asleep < 20; sleep_ms(1)) {
			asleep = process_state(clients[i].pid) == 'S' ? asleep + 1 : 0;
			if (now_ns() > end)
				check_failed(__FILE__, __LINE__, "rank %d (pid %d) asks nothing", i,
					     clients[i].pid);
		}
		/* The daemon reads in order of arrival: once it serves this session, it has read
		 * the request. */
		ncclsvc_close(session_open(clients[i].daemon));
	}
}

void say(struct client *c, uint64_t word)
{
	CHECK_EQ(send(c->link, &word, sizeof(word), MSG_NOSIGNAL), sizeof(word));
}

uint64_t hear(struct client *c)
{
	return hear_within(c, WAIT_MS);
}

uint64_t hear_within(struct client *c, int ms)
{
	uint64_t word = 0;
	struct pollfd p = {.fd = c->link, .events = POLLIN};
	int ready;
	do
		ready = poll(&p, 1, ms);
	while (ready < 0 && errno == EINTR);
	if (ready != 1)
		check_failed(__FILE__, __LINE__, "%s says nothing",
			     self ? "the test" : "a client process");
	ssize_t n = recv(c->link, &word, sizeof(word), 0);
	/* The sender exited with a word unread; what it said before can still be received. */
	if (n < 0 && errno == ECONNRESET)
		n = recv(c->link, &word, sizeof(word), 0);
	if (n != sizeof(word)) {
		int status;
		if (!self && reap(c->pid, &status, 1000))
			ended_well(c, status);
		check_failed(__FILE__, __LINE__, "%s has gone",
			     self ? "the test" : "a client process");
	}
	return word;
}

void hear_all(struct client *clients, int n, uint64_t word)
{
	for (int i = 0; i < n; i++)
		if (clients[i].pid)
			CHECK_EQ(hear(&clients[i]), word);
}

void say_all(struct client *clients, int n, uint64_t word)
{
	for (int i = 0; i < n; i++)
		if (clients[i].pid)
			say(&clients[i], word);
}
